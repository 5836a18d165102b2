//! The ground types, which know no stage of the data flow: tensors, dtypes, devices, layouts, errors, streams.

pub(crate) mod device;
pub(crate) mod dims;
mod dtype;
pub(crate) mod error;
mod footprint;
mod layout;
pub(crate) mod mismatch;
mod names;
mod offsets;
pub(crate) mod places;
pub(crate) mod reserve;
mod scalar;
mod stream;
pub(crate) mod tensor;

pub use device::Device;
pub(crate) use device::{CudaBuild, DeviceInfo};
pub use dims::MAX_NDIM;
pub(crate) use dims::{small_vec, DimSet, Dims, Tuple};
pub(crate) use dtype::CastTo;
pub use dtype::{DType, Element};
pub(crate) use error::{DriverError, Error, Result};
pub(crate) use footprint::{overlap, Footprint};
pub use layout::Layout;
pub(crate) use layout::{are_compact, bytes_of, checked_bytes, checked_numel, compact_strides};
pub(crate) use mismatch::{ErrorValue, Hint, Mismatch, MoveSide};
pub use offsets::Offsets;
pub(crate) use places::Places;
pub(crate) use reserve::{out_of_memory, try_vec};
pub use scalar::Scalar;
pub use stream::Stream;
pub(crate) use tensor::new_owners;
pub use tensor::{Owner, Tensor};
