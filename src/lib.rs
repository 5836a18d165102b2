//! windrow.
mod affine;
mod dtype;
mod error;
mod layout;
mod tensor;
pub mod dlpack;
mod host;
pub use affine::Affine;
pub use dtype::{DType, Element};
pub use error::{Error, Facet, Mismatch, Result};
pub use layout::{Dims, Layout, MAX_NDIM};
pub use tensor::{Device, Owner, Tensor};
