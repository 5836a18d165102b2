//! The C boundary: tensors of other libraries come in, tensors of this crate go out, by DLPack 1.3.
//!
//! | direction | what crosses | who frees |
//! |---|---|---|
//! | borrow | [`DLTensor`], read by [`read_tensor`] | the producer; valid for one call |
//! | import | [`DLManagedTensorVersioned`] or [`DLManagedTensor`] | [`ManagedTensor`], once, by the deleter in the struct |
//! | export | the same, from [`Tensor::to_dlpack`](crate::Tensor::to_dlpack) | the consumer, by the deleter we put in the struct |
//! | lend | [`DLTensor`] from [`Tensor::borrow_tensor`](crate::Tensor::borrow_tensor) | nothing; valid while the tensor is |
//!
//! ```text
//! import   producer's struct <- ManagedTensor <- Arc (Owner) <- Tensor, its clones and views
//! export   consumer -> one block [struct | Owner | shape | strides] -> Arc -> memory
//! ```
//!
//! An imported struct becomes the owner of a [`Tensor`](crate::Tensor), so an export of an import
//! keeps the first producer's memory alive. A foreign struct has its own type, [`ForeignTensor`],
//! until its dtype, device and extents have been looked at; values of the C enums stay open
//! integers, because later minor versions add some.
//!
//! Nothing here knows Python: capsules, streams and the GIL belong to the caller. The deleters of
//! this crate run on any thread and do not unwind.
//!
//! # Why not a crate?
//! The ABI is eight small structs, unchanged since 1.0. The crates that wrap it tie us to their
//! Python binding, check less (a device or dtype code beyond a closed enum is undefined behaviour,
//! `NULL` arrays at zero dims become slices) or refuse what producers send (`NULL` strides in
//! version 1.2 and later), and free a tensor twice or never when a consumer fails. Here every
//! offset is asserted when the crate is built, and this folder runs under Miri.

mod dtypes;
mod export;
mod ffi;
mod import;
#[cfg(test)]
mod tests;

pub use dtypes::dtype_to_dl;
pub use export::device_to_dl;
pub use ffi::*;
pub use import::{
    device_from_dl, dtype_from_dl, read_tensor, read_versioned, ForeignTensor, ManagedTensor,
};
