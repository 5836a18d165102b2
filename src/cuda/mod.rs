//! The CUDA executor.

pub(crate) mod driver;
