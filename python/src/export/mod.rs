//! Results handed on: DLPack, the buffer protocol, the array interfaces, the libraries by name, pickles.

pub(crate) mod array_interface;
pub(crate) mod buffer;
pub(crate) mod dlpack;
pub(crate) mod exchange;
pub(crate) mod libraries;
pub(crate) mod number;
pub(crate) mod numpy_api;
pub(crate) mod pickle;
