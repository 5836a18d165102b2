//! Trees of samples: containers, taken apart and made again.

pub(crate) mod container;
pub(crate) mod containers;
