//! Engines as Python has them, what they did and what they can run on.

pub(crate) mod default;
pub(crate) mod engine;
pub(crate) mod explain;
pub(crate) mod machine;
pub(crate) mod stats;
