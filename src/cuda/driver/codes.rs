//! Result codes, by number: drivers newer than this crate have new ones.

pub(super) const OUT_OF_MEMORY: u32 = 2;
pub(super) const NOT_INITIALIZED: u32 = 3;
pub(super) const STUB_LIBRARY: u32 = 34;
pub(super) const NO_DEVICE: u32 = 100;
pub(super) const NO_BINARY_FOR_GPU: u32 = 209;
pub(super) const UNSUPPORTED_PTX_VERSION: u32 = 222;
pub(super) const NOT_FOUND: u32 = 500;
pub(super) const NOT_READY: u32 = 600;
pub(super) const NOT_SUPPORTED: u32 = 801;
pub(super) const UNKNOWN: u32 = 999;

/// The result of a driver function: a number, because drivers newer than this crate have new codes.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub(super) struct CuResult {
    pub(super) function: &'static str,
    pub(super) code: u32,
}
