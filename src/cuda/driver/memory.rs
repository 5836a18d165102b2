//! Memory: device pools, page-locked host memory, and what a pointer points to.

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, NonNull};
use std::sync::Arc;

use cust::sys::{CUcontext, CUmemoryPool};

use super::context::{Context, Current};
use super::error::DriverResult;
use super::raw::{self, DevicePtr, MEMORY_TYPE_DEVICE, MEMORY_TYPE_HOST};
use super::stream::StreamRef;

/// CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES.
const REUSE_ALLOW_INTERNAL_DEPENDENCIES: u32 = 3;
/// CU_MEMPOOL_ATTR_RELEASE_THRESHOLD.
const RELEASE_THRESHOLD: u32 = 4;
/// CU_MEM_ALLOCATION_TYPE_PINNED, the only type a pool can have.
const PINNED_ALLOCATION: u32 = 1;
/// CU_MEM_LOCATION_TYPE_DEVICE.
const ON_DEVICE: i32 = 1;
/// CU_MEMHOSTALLOC_PORTABLE and CU_MEMHOSTREGISTER_PORTABLE: pinned for every context.
const PORTABLE: u32 = 1;

/// Device memory in the order of streams.
#[derive(Debug)]
pub(crate) struct MemPool {
    raw: CUmemoryPool,
    /// A pool of our own, not the default one that the device shares with everybody.
    is_own: bool,
    context: Arc<Context>,
}

// SAFETY: the driver takes calls on a pool from any thread.
unsafe impl Send for MemPool {}
// SAFETY: as above; the handle itself never changes.
unsafe impl Sync for MemPool {}

impl Current<'_> {
    /// A pool of our own that keeps what it has, or the device's if it can have no other.
    pub(crate) fn mem_pool(&self) -> DriverResult<MemPool> {
        let mut raw = null_mut();
        let properties = raw::MemPoolProps {
            allocation: PINNED_ALLOCATION,
            handles: 0,
            location: raw::MemLocation { kind: ON_DEVICE, id: self.context.device() },
            security: null_mut(),
            reserved: [0; 8],
        };
        // SAFETY: a live description and a live pointer to write to.
        let is_own = match unsafe { raw::cuMemPoolCreate(&raw mut raw, &raw const properties) }.ok()
        {
            Ok(()) => true,
            Err(error) if error.is_unsupported() => {
                let device = self.context.device();
                // SAFETY: a device that has this context, and a live pointer to write to.
                unsafe { raw::cuDeviceGetDefaultMemPool(&raw mut raw, device) }.ok()?;
                false
            }
            Err(error) => return Err(error),
        };
        let pool = MemPool { raw, is_own, context: self.context.clone() };
        if is_own {
            // The pool would otherwise give its memory back at every synchronisation.
            let mut threshold = u64::MAX;
            // A full pool would otherwise have new work wait for work on other streams.
            let mut waits_for_others: c_int = 0;
            // SAFETY: a live pool; the first attribute is a 64-bit integer, the second an int.
            unsafe {
                raw::cuMemPoolSetAttribute(raw, RELEASE_THRESHOLD, (&raw mut threshold).cast())
                    .ok()?;
                raw::cuMemPoolSetAttribute(
                    raw,
                    REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                    (&raw mut waits_for_others).cast(),
                )
            }
            .ok()?;
        }
        Ok(pool)
    }

    /// Allocates page-locked host memory, which is not initialised; a dangling address for 0 bytes.
    pub(crate) fn pinned(&self, bytes: usize) -> DriverResult<Pinned> {
        let mut address = null_mut();
        if bytes > 0 {
            // SAFETY: a live pointer to write to; `self` says that a context is current.
            unsafe { raw::cuMemHostAlloc(&raw mut address, bytes, PORTABLE) }.ok()?;
        }
        let address = NonNull::new(address.cast()).unwrap_or(NonNull::dangling());
        Ok(Pinned { address, bytes, context: self.context.clone() })
    }

    /// Page-locks memory that the system allocated, for all contexts, until the result is dropped.
    ///
    /// # Safety
    /// Whole pages, which stay mapped until the result is dropped.
    pub(crate) unsafe fn register(
        &self,
        address: *mut u8,
        bytes: usize,
    ) -> DriverResult<Registered> {
        debug_assert!(address.addr() % 4096 == 0 && bytes % 4096 == 0, "whole pages");
        // SAFETY: the caller's to uphold; `self` says that a context is current.
        unsafe { raw::cuMemHostRegister_v2(address.cast(), bytes, PORTABLE) }.ok()?;
        Ok(Registered { address, context: self.context.clone() })
    }
}

impl MemPool {
    /// Memory for work that is enqueued on `stream` from here on, or ordered behind it. It is not initialised. The caller
    /// asks for a byte at least.
    pub(crate) fn alloc(&self, stream: StreamRef<'_>, bytes: usize) -> DriverResult<DevicePtr> {
        let mut address = 0;
        // SAFETY: a live pool and stream, and a live pointer to write to.
        unsafe { raw::cuMemAllocFromPoolAsync(&raw mut address, bytes, self.raw, stream.raw()) }
            .ok()?;
        Ok(address)
    }

    /// Frees memory in the order of `stream`.
    ///
    /// # Safety
    /// `address` is from [`MemPool::alloc`] and is given back once; nothing that is not ordered
    /// before this point of the stream still uses it.
    pub(crate) unsafe fn free(
        &self,
        stream: StreamRef<'_>,
        address: DevicePtr,
    ) -> DriverResult<()> {
        debug_assert_ne!(address, 0);
        // SAFETY: the caller's to uphold.
        unsafe { raw::cuMemFreeAsync(address, stream.raw()) }.ok()
    }

    /// Gives unused memory back to the device, but leaves the pool `keep_bytes` at least, to which
    /// memory in use counts. Does nothing if it has less.
    pub(crate) fn trim(&self, keep_bytes: usize) -> DriverResult<()> {
        // SAFETY: a live pool.
        unsafe { raw::cuMemPoolTrimTo(self.raw, keep_bytes) }.ok()
    }
}

impl Drop for MemPool {
    /// Memory that is still in use is released by the driver when it is freed.
    fn drop(&mut self) {
        if self.is_own {
            self.context.release(|| {
                // SAFETY: destroyed once, and ours.
                let _ = unsafe { raw::cuMemPoolDestroy(self.raw) };
            });
        }
    }
}

/// Page-locked host memory of the engine. Devices may read and write it at any time, so it gives no slices.
#[derive(Debug)]
pub(crate) struct Pinned {
    address: NonNull<u8>,
    bytes: usize,
    context: Arc<Context>,
}

// SAFETY: plain memory, reached through raw pointers alone.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// The address of the first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.context.release(|| {
                // SAFETY: from cuMemHostAlloc, freed once.
                let _ = unsafe { raw::cuMemFreeHost(self.address.as_ptr().cast()) };
            });
        }
    }
}

/// Memory of the system's that is page-locked until this is dropped.
#[derive(Debug)]
pub(crate) struct Registered {
    address: *mut u8,
    context: Arc<Context>,
}

// SAFETY: the address is a name of the memory for the driver, which takes the call from any thread.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Drop for Registered {
    fn drop(&mut self) {
        self.context.release(|| {
            // SAFETY: registered by `Current::register`, once; still mapped, as its caller promised.
            let _ = unsafe { raw::cuMemHostUnregister(self.address.cast()) };
        });
    }
}

/// The kind of memory that a pointer points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    Device,
    /// Page-locked host memory.
    Pinned,
    /// Migrates between host and device.
    Managed,
    /// Host memory that the driver does not know.
    Pageable,
}

/// The driver's attributes of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PointerInfo {
    pub(crate) kind: MemoryKind,
    /// The device it belongs to; `None` for pageable memory.
    pub(crate) ordinal: Option<u32>,
    /// The context it was allocated in; null for pageable memory and for memory from pools.
    pub(crate) context: CUcontext,
    /// Start and size of the allocation, zeros where the driver does not know.
    pub(crate) range: (u64, u64),
}

/// Asks the driver about an address, of any kind and of any origin: one that it does not know is
/// pageable, not an error. The driver is started before.
pub(crate) fn pointer_info(address: u64) -> DriverResult<PointerInfo> {
    // CU_POINTER_ATTRIBUTE_CONTEXT, MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL, RANGE_START_ADDR, RANGE_SIZE.
    const ATTRIBUTES: [u32; 6] = [1, 2, 8, 9, 11, 12];
    // Values are one to eight bytes long; zeros stay where the driver writes less or nothing.
    let mut values = [0u64; ATTRIBUTES.len()];
    let mut places = values.each_mut().map(|value| (&raw mut *value).cast::<c_void>());
    // SAFETY: two lists of one length, of attributes and of places large enough for each; the driver
    // looks the address up without reading there.
    let code = unsafe {
        let count = ATTRIBUTES.len() as u32;
        raw::cuPointerGetAttributes(count, ATTRIBUTES.as_ptr(), places.as_mut_ptr(), address)
    };
    code.ok()?;
    let [context, memory_type, is_managed, ordinal, start, bytes] = values;
    let kind = match memory_type as u32 {
        _ if is_managed != 0 => MemoryKind::Managed,
        MEMORY_TYPE_DEVICE => MemoryKind::Device,
        MEMORY_TYPE_HOST => MemoryKind::Pinned,
        _ => MemoryKind::Pageable,
    };
    // Negative, and 32 bits wide, for an address of no device.
    let ordinal = u32::try_from(ordinal as u32 as i32).ok();
    let ordinal = ordinal.filter(|_| kind != MemoryKind::Pageable);
    Ok(PointerInfo { kind, ordinal, context: context as CUcontext, range: (start, bytes) })
}
