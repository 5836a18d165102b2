//! The CUDA executor.

pub(crate) mod driver;
mod params;
mod table;
