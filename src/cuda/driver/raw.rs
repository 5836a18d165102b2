//! The driver functions by address, under their own names.
#![allow(non_snake_case, clippy::too_many_arguments)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::transmute;

use cust::sys::{CUcontext, CUdevice, CUevent, CUfunction, CUmemoryPool, CUstream};
use windrow_driver::Function;

use super::codes::{CuResult, NOT_FOUND, NO_DEVICE};

/// An address on a device.
pub(crate) type DevicePtr = u64;

/// Default streams, which are not created: 0 and 1 are the legacy default stream, 2 is that of the thread.
pub(super) const LAST_DEFAULT_STREAM: usize = 2;
/// The last handle of the legacy one.
pub(super) const LEGACY_STREAM: usize = 1;

macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// # Safety
        /// As the driver's documentation of this function says.
        #[inline]
        pub(super) unsafe fn $name($($argument: $type),*) -> CuResult {
            const FUNCTION: &str = stringify!($name);
            type Entry = unsafe extern "C" fn($($type),*) -> u32;
            let Some(entry) = windrow_driver::entry(Function::$name) else {
                return absent(FUNCTION);
            };
            // SAFETY: the address of the function of this name, whose parameters in cuda.h are these.
            let entry = unsafe { transmute::<*mut c_void, Entry>(entry.as_ptr()) };
            // SAFETY: the caller's to uphold.
            CuResult { function: FUNCTION, code: unsafe { entry($($argument),*) } }
        }
    )*};
}

/// The answer for a function that is not there, nor perhaps a driver.
#[cold]
fn absent(function: &'static str) -> CuResult {
    let code = if windrow_driver::load().is_ok() { NOT_FOUND } else { NO_DEVICE };
    CuResult { function, code }
}

functions! {
    fn cuGetErrorName(code: u32, name: *mut *const c_char);
    fn cuGetErrorString(code: u32, text: *mut *const c_char);
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: CUdevice);
    fn cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int);
    fn cuCtxGetCurrent(context: *mut CUcontext);
    fn cuCtxGetId(context: CUcontext, id: *mut u64);
    fn cuCtxSynchronize();
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuCtxPushCurrent_v2(context: CUcontext);
    fn cuCtxPopCurrent_v2(context: *mut CUcontext);

    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    fn cuStreamGetId(stream: CUstream, id: *mut u64);
    fn cuStreamIsCapturing(stream: CUstream, status: *mut c_uint);
    fn cuStreamGetCaptureInfo_v2(
        stream: CUstream, status: *mut c_uint, id: *mut u64, graph: *mut *mut c_void,
        nodes: *mut *const c_void, num_nodes: *mut usize
    );
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventQuery(event: CUevent);
    fn cuEventSynchronize(event: CUevent);

    fn cuLaunchKernel(
        kernel: CUfunction,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        params: *mut *mut c_void,
        extra: *mut *mut c_void
    );

    fn cuMemcpyHtoDAsync_v2(dst: DevicePtr, src: *const c_void, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: DevicePtr, bytes: usize, stream: CUstream);
    fn cuMemcpyBatchAsync_v2(
        dsts: *const DevicePtr, srcs: *const DevicePtr, sizes: *const usize, count: usize,
        attributes: *const MemcpyAttributes, first_copies: *const usize, num_attributes: usize,
        stream: CUstream
    );
    fn cuMemsetD8Async(dst: DevicePtr, value: u8, count: usize, stream: CUstream);

    fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const MemPoolProps);
    fn cuMemPoolDestroy(pool: CUmemoryPool);
    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: c_uint, value: *mut c_void);
    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep_bytes: usize);
    fn cuMemAllocFromPoolAsync(
        address: *mut DevicePtr, bytes: usize, pool: CUmemoryPool, stream: CUstream
    );
    fn cuMemFreeAsync(address: DevicePtr, stream: CUstream);
    fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    fn cuMemFreeHost(address: *mut c_void);
    fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint);
    fn cuMemHostUnregister(address: *mut c_void);
    fn cuPointerGetAttributes(
        count: c_uint, attributes: *const c_uint, values: *mut *mut c_void, address: DevicePtr
    );
}

/// CU_MEMORYTYPE_*.
pub(super) const MEMORY_TYPE_HOST: c_uint = 1;
pub(super) const MEMORY_TYPE_DEVICE: c_uint = 2;

/// CUmemLocation.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct MemLocation {
    pub(super) kind: c_int,
    pub(super) id: c_int,
}

/// CUmemPoolProps. What is new in it since CUDA 12 is where zeros were reserved before.
#[repr(C)]
#[derive(Debug)]
pub(super) struct MemPoolProps {
    pub(super) allocation: c_uint,
    pub(super) handles: c_uint,
    pub(super) location: MemLocation,
    pub(super) security: *mut c_void,
    pub(super) reserved: [u64; 8],
}

/// CUmemcpyAttributes.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct MemcpyAttributes {
    pub(super) source_order: c_uint,
    pub(super) source: MemLocation,
    pub(super) destination: MemLocation,
    pub(super) flags: c_uint,
}

const _: () = {
    assert!(size_of::<MemPoolProps>() == 88);
    assert!(size_of::<MemcpyAttributes>() == 24);
};
