//! The driver calls that windrow makes itself, and cust where cust is enough.
//!
//! | type | is | made by |
//! |---|---|---|
//! | [`Context`] | the primary context of a device | [`Context::primary`] |
//! | [`Current`] | a guard: that context is current on this thread | [`Context::enter`] |
//! | [`OwnStream`], [`StreamRef`] | a stream of ours; any stream, ours or foreign, as a place for work | [`Current`] |
//! | [`Event`], [`EventPool`] | a point in a stream's work | [`Current`], [`EventPool::take`] |
//! | [`MemPool`], [`Pinned`] | device and page-locked memory | [`Current`] |
//! | [`Module`], [`Kernel`] | the kernels' image, one kernel, until their context ends | [`Current::load`], [`Module::kernel`] |
//!
//! Everything hangs on [`Current`], so no call can be made without a context, and whatever owns a
//! driver object keeps its context alive and enters it again to release the object.
//!
//! # Why not ...?
//!
//! - *cust's streams, events and memory?* They cannot be non-blocking or foreign, and block or lose
//!   errors when dropped.
//! - *Result codes as an enum?* A newer driver has codes that it could not hold.

// The driver is a C library called through addresses found at run time.
#![allow(unsafe_code)]

mod codes;
mod context;
mod error;
mod event;
mod event_pool;
mod init;
mod memory;
mod module;
mod raw;
mod started;
mod stream;
#[cfg(test)]
pub(super) mod tests;

pub(crate) use context::{describe, device_count, Context, Current, Waits};
pub use context::{relax_captures, relaxed};
pub(crate) use error::DriverResult;
pub(crate) use event_pool::{EventPool, PooledEvent};
pub(crate) use init::{driver_version, init};
pub(crate) use memory::{pointer_info, MemPool, MemoryKind, Pinned, Registered};
pub(crate) use module::{image, Kernel, TARGETS, TOOLKIT};
pub(crate) use raw::DevicePtr;
pub(crate) use started::forked;
pub(crate) use stream::{CopyBatch, Direction, LastStream, OwnStream, StreamRef};
