//! Lists of samples: what callers give as one, and `SampleList`.

pub(crate) mod arrow;
pub(crate) mod imported;
pub(crate) mod list;
pub(crate) mod pieces;
pub(crate) mod read;
pub(crate) mod windows;
