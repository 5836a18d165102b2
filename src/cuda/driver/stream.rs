//! [`OwnStream`] and [`StreamRef`]: where work goes, in order.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use cust::sys::{CUcontext, CUevent, CUstream};
use windrow_driver::Function;

use super::context::{Context, Current};
use super::error::DriverResult;
use super::event::Event;
use super::module::Kernel;
use super::raw::{self, DevicePtr, LAST_DEFAULT_STREAM, LEGACY_STREAM};
use crate::sync::ForkMutex;
use crate::tensor::{Error, Result};

/// CU_STREAM_NON_BLOCKING: no order against the legacy default stream, which is torch's.
const NON_BLOCKING: u32 = 1;

/// A stream of our own.
#[derive(Debug)]
pub(crate) struct OwnStream {
    raw: CUstream,
    id: u64,
    /// Whether another library has memory that belongs to the stream.
    is_shared: AtomicBool,
    context: Arc<Context>,
}

// SAFETY: the driver takes calls on a stream from any thread.
unsafe impl Send for OwnStream {}
// SAFETY: as above; the handle itself never changes.
unsafe impl Sync for OwnStream {}

impl OwnStream {
    /// The handle of the stream.
    pub(crate) fn handle(&self) -> usize {
        self.raw as usize
    }

    /// Notes that another library has memory that belongs to the stream.
    pub(crate) fn share(&self) {
        self.is_shared.store(true, Ordering::Relaxed);
    }

    /// The stream as a place for work, while its context is current.
    pub(crate) fn on<'c>(&'c self, current: &'c Current<'_>) -> StreamRef<'c> {
        debug_assert!(Arc::ptr_eq(&self.context, current.context), "a stream of this context");
        StreamRef { raw: self.raw, id: Some(self.id), context: current.context }
    }
}

impl Drop for OwnStream {
    /// Work that is pending goes on; the driver frees the stream behind it. The work of a shared stream ends first: the
    /// next stream may have its handle, and by that the other library's memory.
    fn drop(&mut self) {
        let is_shared = *self.is_shared.get_mut();
        self.context.release(|| {
            if is_shared {
                // SAFETY: a live stream.
                let _ = unsafe { raw::cuStreamSynchronize(self.raw) };
            }
            // SAFETY: destroyed once; a `StreamRef` of it cannot outlive it.
            let _ = unsafe { raw::cuStreamDestroy_v2(self.raw) };
        });
    }
}

impl Current<'_> {
    /// A new non-blocking stream; lower numbers go first, 0 is usual.
    pub(crate) fn stream(&self, priority: i32) -> DriverResult<OwnStream> {
        let mut raw = null_mut();
        // SAFETY: a live pointer to write to; `self` says that a context is current.
        unsafe { raw::cuStreamCreateWithPriority(&raw mut raw, NON_BLOCKING, priority) }.ok()?;
        let is_shared = AtomicBool::new(false);
        let mut stream = OwnStream { raw, id: 0, is_shared, context: self.context.clone() };
        stream.id = StreamRef { raw, id: None, context: self.context }.id()?;
        Ok(stream)
    }

    /// The stream of a handle: 0 and 1 are the legacy default stream, 2 that of the thread. Its number
    /// is not asked for.
    ///
    /// # Safety
    /// Any other handle is that of a stream that exists and outlives the reference.
    ///
    /// # Errors
    /// [`Error::Argument`] if it belongs to another context than the current one; [`Error::Cuda`].
    pub(crate) unsafe fn foreign_stream(&self, handle: usize) -> Result<StreamRef<'_>> {
        let raw = handle as CUstream;
        if handle > LAST_DEFAULT_STREAM {
            let mut context: CUcontext = null_mut();
            // SAFETY: the caller vouches for the handle; a live pointer to write to.
            unsafe { raw::cuStreamGetCtx(raw, &raw mut context) }.ok()?;
            if context != self.context.raw() {
                return Err(Error::argument(format!(
                    "stream {handle:#x}: expected a stream of cuda:{} in its primary context, got one \
                     of another device or context (a green context is another one)",
                    self.context.ordinal()
                )));
            }
        }
        Ok(StreamRef { raw, id: None, context: self.context })
    }
}

/// The last foreign stream of a context. A call on it again asks for its number alone, which says that it is the same one.
#[derive(Debug, Default)]
pub(crate) struct LastStream(ForkMutex<Option<(usize, u64)>>);

impl LastStream {
    /// The stream of [`Current::foreign_stream`], with its number.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub(crate) unsafe fn stream<'c>(
        &self,
        current: &'c Current<'_>,
        handle: usize,
    ) -> Result<StreamRef<'c>> {
        let known = *self.0.lock();
        if known.is_some_and(|(last, _)| last == handle) {
            let stream = StreamRef { raw: handle as CUstream, id: None, context: current.context };
            let stream = stream.with_id()?;
            if known == stream.id.map(|id| (handle, id)) {
                return Ok(stream);
            }
        }
        // SAFETY: the caller's promise.
        let stream = unsafe { current.foreign_stream(handle) }?.with_id()?;
        *self.0.lock() = stream.id.map(|id| (handle, id));
        Ok(stream)
    }
}

/// A stream, ours or foreign, whose context is current.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamRef<'c> {
    raw: CUstream,
    /// The stream's number, if it is known.
    id: Option<u64>,
    context: &'c Context,
}

impl StreamRef<'_> {
    /// The handle, to be compared: no event is needed within one stream.
    pub(crate) fn handle(self) -> usize {
        self.raw as usize
    }

    /// The handle of the stream, for the driver's functions.
    pub(super) fn raw(self) -> CUstream {
        self.raw
    }

    /// The number of the stream, which no other stream of the process has, before or after: the driver gives the handle of
    /// a destroyed one to a new one. A default stream has its handle for a number: the legacy one
    /// has 0 or 1, by the handle that it came with. Drivers that load the kernels have the call.
    pub(crate) fn id(self) -> DriverResult<u64> {
        let handle = self.handle();
        if let Some(id) = self.id.or((handle <= LAST_DEFAULT_STREAM).then_some(handle as u64)) {
            return Ok(id);
        }
        let mut id = 0;
        // SAFETY: a live stream and a live pointer to write to.
        unsafe { raw::cuStreamGetId(self.raw, &raw mut id) }.ok()?;
        Ok(id)
    }

    /// The same stream, whose number is asked for once.
    pub(crate) fn with_id(self) -> DriverResult<Self> {
        Ok(StreamRef { id: Some(self.id()?), ..self })
    }

    /// Orders work enqueued from here on behind the work that `event` was last recorded behind.
    pub(crate) fn wait(self, event: &Event) -> DriverResult<()> {
        // SAFETY: a live stream and event; 0 is the only flag outside of captures.
        unsafe { raw::cuStreamWaitEvent(self.raw, event.raw(), 0) }.ok()
    }

    /// Waits as `wait` does, for an event of another library, by its handle.
    ///
    /// # Safety
    /// The handle is that of a live event.
    pub(crate) unsafe fn wait_foreign(self, event: usize) -> DriverResult<()> {
        debug_assert_ne!(event, 0);
        // SAFETY: a live stream, and the caller's promise.
        unsafe { raw::cuStreamWaitEvent(self.raw, event as CUevent, 0) }.ok()
    }

    /// Records `event` behind the work that is enqueued so far.
    pub(crate) fn record(self, event: &Event) -> DriverResult<()> {
        // SAFETY: a live event and stream.
        unsafe { raw::cuEventRecord(event.raw(), self.raw) }.ok()
    }

    /// Blocks until everything enqueued on the stream is done, which the context counts as a wait.
    pub(crate) fn synchronize(self) -> DriverResult<()> {
        let _wait = self.context.waits().begin();
        // SAFETY: a live stream.
        unsafe { raw::cuStreamSynchronize(self.raw) }.ok()
    }

    /// Whether the stream is captured: work goes to a graph instead of to the device, or fails if
    /// the capture is invalid. An error for the legacy stream while a blocking stream is captured.
    pub(crate) fn is_capturing(self) -> DriverResult<bool> {
        let mut status = 0;
        // SAFETY: a live stream and a live pointer to write to.
        unsafe { raw::cuStreamIsCapturing(self.raw, &raw mut status) }.ok()?;
        Ok(status != 0)
    }

    /// The number of the capture that work goes to, which no other capture of the process has;
    /// without meaning if the capture is invalid. `None` if the stream is not captured; the legacy
    /// stream never is.
    pub(crate) fn capture(self) -> DriverResult<Option<u64>> {
        // The legacy stream cannot be captured; asking it while a blocking stream is captured is an error.
        if self.handle() <= LEGACY_STREAM {
            return Ok(None);
        }
        let (mut status, mut id) = (0, 0);
        // SAFETY: a live stream and two live numbers to write to; the rest is not asked for.
        unsafe {
            let (graph, nodes, count) = (null_mut(), null_mut(), null_mut());
            raw::cuStreamGetCaptureInfo_v2(
                self.raw,
                &raw mut status,
                &raw mut id,
                graph,
                nodes,
                count,
            )
        }
        .ok()?;
        Ok((status != 0).then_some(id))
    }

    /// Enqueues a kernel in `blocks` blocks of `threads` threads each. Does nothing for 0 blocks.
    ///
    /// # Safety
    /// `params` points to one value for each parameter of the kernel, of its type; the driver copies
    /// them during the call. What they point to is valid for the kernel until it has run.
    pub(crate) unsafe fn launch(
        self,
        kernel: &Kernel,
        blocks: u32,
        threads: u32,
        params: &[*const c_void],
    ) -> DriverResult<()> {
        if blocks == 0 {
            return Ok(());
        }
        debug_assert!(params.iter().all(|value| !value.is_null()));
        // The driver does not write to the list, though its type would let it.
        let params = params.as_ptr().cast_mut().cast::<*mut c_void>();
        // SAFETY: a live kernel and stream; the rest is the caller's to uphold.
        let code = unsafe {
            let (kernel, stream, extra) = (kernel.raw(), self.raw, null_mut());
            raw::cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, params, extra)
        };
        code.ok()
    }

    /// Enqueues a copy of `bytes` bytes from host memory. Pageable memory is read during the call, pinned memory later.
    ///
    /// # Safety
    /// `bytes` are readable at `src` and writable at `dst` until the copy has run.
    pub(crate) unsafe fn h2d(
        self,
        dst: DevicePtr,
        src: *const u8,
        bytes: usize,
    ) -> DriverResult<()> {
        // SAFETY: the caller's to uphold.
        unsafe { self.copy(Direction::HostToDevice, dst, src as u64, bytes) }
    }

    /// Enqueues a copy of `bytes` bytes to host memory.
    ///
    /// # Safety
    /// `bytes` are readable at `src` and writable at `dst` until the copy has run.
    pub(crate) unsafe fn d2h(self, dst: *mut u8, src: DevicePtr, bytes: usize) -> DriverResult<()> {
        // SAFETY: the caller's to uphold.
        unsafe { self.copy(Direction::DeviceToHost, dst as u64, src, bytes) }
    }

    /// Enqueues a copy; does nothing for 0 bytes.
    ///
    /// # Safety
    /// As for `h2d` and `d2h`.
    unsafe fn copy(
        self,
        direction: Direction,
        dst: u64,
        src: u64,
        bytes: usize,
    ) -> DriverResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        let s = self.raw;
        debug_assert!(dst != 0 && src != 0);
        // SAFETY: the caller's to uphold.
        let code = unsafe {
            match direction {
                Direction::HostToDevice => {
                    raw::cuMemcpyHtoDAsync_v2(dst, src as *const c_void, bytes, s)
                }
                Direction::DeviceToHost => {
                    raw::cuMemcpyDtoHAsync_v2(dst as *mut c_void, src, bytes, s)
                }
            }
        };
        code.ok()
    }

    /// Enqueues copies of many ranges: in one call if driver and stream can, else one by one. They have no order among
    /// each other.
    ///
    /// # Safety
    /// The bytes of every range are readable at its source and writable at its destination until the copies have run.
    pub(crate) unsafe fn copy_batch(self, batch: &CopyBatch) -> DriverResult<()> {
        let in_one = batch.sizes.len() > 1
            && windrow_driver::entry(Function::cuMemcpyBatchAsync_v2).is_some()
            && self.handle() > LAST_DEFAULT_STREAM
            && !self.is_capturing()?;
        if !in_one {
            for ((&dst, &src), &bytes) in batch.dsts.iter().zip(&batch.srcs).zip(&batch.sizes) {
                // SAFETY: the caller's to uphold.
                unsafe { self.copy(batch.direction, dst, src, bytes) }?;
            }
            return Ok(());
        }
        // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: sources are read in the stream's order, not before.
        let attributes = raw::MemcpyAttributes { source_order: 1, ..Default::default() };
        let first_copies = [0];
        debug_assert_eq!([batch.dsts.len(), batch.srcs.len()], [batch.sizes.len(); 2]);
        debug_assert!(batch.dsts.iter().chain(&batch.srcs).all(|&address| address != 0));
        // SAFETY: three lists of one length, one attribute from the first copy on; the ranges are the
        // caller's to uphold.
        let code = unsafe {
            raw::cuMemcpyBatchAsync_v2(
                batch.dsts.as_ptr(),
                batch.srcs.as_ptr(),
                batch.sizes.as_ptr(),
                batch.sizes.len(),
                &raw const attributes,
                first_copies.as_ptr(),
                1,
                self.raw,
            )
        };
        code.ok()
    }

    /// Enqueues that `bytes` bytes are set to `value`; does nothing for 0 bytes.
    ///
    /// # Safety
    /// `bytes` are writable at `dst` until this has run.
    pub(crate) unsafe fn memset(self, dst: DevicePtr, value: u8, bytes: usize) -> DriverResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        debug_assert_ne!(dst, 0);
        // SAFETY: the caller's to uphold.
        unsafe { raw::cuMemsetD8Async(dst, value, bytes, self.raw) }.ok()
    }
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    HostToDevice,
    DeviceToHost,
}

/// Ranges to copy one way, in the three lists that the driver takes.
#[derive(Clone, Debug)]
pub(crate) struct CopyBatch {
    direction: Direction,
    dsts: Vec<u64>,
    srcs: Vec<u64>,
    sizes: Vec<usize>,
}

impl CopyBatch {
    /// An empty batch of copies in one direction.
    pub(crate) fn new(direction: Direction) -> CopyBatch {
        CopyBatch { direction, dsts: Vec::new(), srcs: Vec::new(), sizes: Vec::new() }
    }

    /// Adds a range; one of no bytes is left out, for the driver refuses it.
    pub(crate) fn push(&mut self, dst: u64, src: u64, bytes: usize) {
        if bytes > 0 {
            self.dsts.push(dst);
            self.srcs.push(src);
            self.sizes.push(bytes);
        }
    }

    /// The number of ranges.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.sizes.len()
    }
}
