//! [`Context`]: the primary context of a device, which other libraries of the process share.

use std::ffi::{c_int, c_uint};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cust::device::{Device, DeviceAttribute};
use cust::sys::{CUcontext, CUdevice};

use super::error::DriverResult;
use super::init::init;
use super::raw;
use super::started::{forked, quietly};
use crate::observe::{Span, Stage};
use crate::tensor;
use crate::tensor::{DeviceInfo, DriverError, Error, Result};

/// CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, which cust does not know.
const MEMORY_POOLS_SUPPORTED: c_uint = 115;
/// CU_STREAM_CAPTURE_MODE_RELAXED.
const CAPTURE_MODE_RELAXED: c_uint = 2;

/// The number of devices that this process may use. Starts the driver.
///
/// # Errors
/// [`Error::NoDriver`], most often also where there is no device.
pub(crate) fn device_count() -> Result<u32> {
    init()?;
    Ok(Device::num_devices().map_err(|e| DriverError::from_cust("cuDeviceGetCount", e))?)
}

/// The handle of a device; a driver error for an ordinal that does not exist.
fn device_at(ordinal: u32) -> DriverResult<Device> {
    Device::get_device(ordinal).map_err(|e| DriverError::from_cust("cuDeviceGet", e))
}

/// The driver's description of a device. Call [`init`] before; an ordinal that does not exist is a driver error.
pub(crate) fn describe(ordinal: u32) -> Result<DeviceInfo> {
    Ok(info_of(device_at(ordinal)?, ordinal)?)
}

/// The driver's description of the device of this ordinal.
fn info_of(device: Device, ordinal: u32) -> DriverResult<DeviceInfo> {
    let attribute = |attribute| {
        let value = device.get_attribute(attribute);
        let value = value.map_err(|e| DriverError::from_cust("cuDeviceGetAttribute", e))?;
        Ok::<_, DriverError>(value.unsigned_abs())
    };
    let total = device.total_memory();
    Ok(DeviceInfo {
        device: tensor::Device::Cuda(ordinal),
        name: device.name().map_err(|e| DriverError::from_cust("cuDeviceGetName", e))?,
        compute_capability: (
            attribute(DeviceAttribute::ComputeCapabilityMajor)?,
            attribute(DeviceAttribute::ComputeCapabilityMinor)?,
        ),
        num_multiprocessors: attribute(DeviceAttribute::MultiprocessorCount)?,
        total_bytes: total.map_err(|e| DriverError::from_cust("cuDeviceTotalMem_v2", e))? as u64,
    })
}

/// How the host has waited for a device.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    count: AtomicU64,
    nanos: AtomicU64,
}

impl Waits {
    /// Counts a wait, whose time is added when the span is dropped.
    pub(super) fn begin(&self) -> Span<'_> {
        self.count.fetch_add(1, Ordering::Relaxed);
        Span::timed(Stage::Wait, Some(Instant::now()), &self.nanos)
    }

    /// The number of waits since the last reset, and their time. A wait that is under way is counted without its time.
    pub(crate) fn get(&self) -> (u64, Duration) {
        let nanos = self.nanos.load(Ordering::Relaxed);
        (self.count.load(Ordering::Relaxed), Duration::from_nanos(nanos))
    }

    /// Sets the number of waits and their time to 0. A wait that is under way still adds its time.
    pub(crate) fn reset(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.nanos.store(0, Ordering::Relaxed);
    }
}

/// The primary context of a device, retained until this is dropped.
#[derive(Debug)]
pub(crate) struct Context {
    // `Drop` releases it; cust would not ask whether the process is a forked child.
    inner: ManuallyDrop<cust::context::Context>,
    device: CUdevice,
    ordinal: u32,
    info: DeviceInfo,
    waits: Waits,
}

impl Context {
    /// Retains the primary context of a device once more, for a value with counters of its own. The
    /// caller's current context stays what it was.
    ///
    /// # Errors
    /// [`Error::NoDriver`]; [`Error::Argument`] for a device that is not there; [`Error::Cuda`].
    pub(crate) fn primary(ordinal: u32) -> Result<Arc<Context>> {
        let count = device_count()?;
        if count == 0 {
            return Err(Error::no_driver("driver present, no device".into()));
        }
        if ordinal >= count {
            return Err(Error::argument(format!("cuda:{ordinal}: there are {count} CUDA devices")));
        }
        let _relaxed = Relaxed::new();
        let device = device_at(ordinal)?;
        let info = info_of(device, ordinal)?;
        let mut before: CUcontext = null_mut();
        // SAFETY: a live pointer to write to.
        unsafe { raw::cuCtxGetCurrent(&raw mut before) }.ok()?;
        let inner = cust::context::Context::new(device);
        // SAFETY: what was current before `Context::new`, null included.
        unsafe { raw::cuCtxSetCurrent(before) }.ok()?;
        let inner = inner.map_err(|e| DriverError::from_cust("cuDevicePrimaryCtxRetain", e))?;
        let inner = ManuallyDrop::new(inner);
        let waits = Waits::default();
        Ok(Arc::new(Context { inner, device: device.as_raw(), ordinal, info, waits }))
    }

    /// The ordinal of the device.
    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The driver's description of the device.
    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Whether the device has stream-ordered allocation. A driver that does not know the question has none.
    pub(crate) fn has_pools(&self) -> bool {
        let mut has_pools: c_int = 0;
        // SAFETY: a live integer and a device that cust has from the driver.
        let code = unsafe {
            raw::cuDeviceGetAttribute(&raw mut has_pools, MEMORY_POOLS_SUPPORTED, self.device)
        };
        code.ok().is_ok() && has_pools != 0
    }

    /// The handle, to be compared with the context of a stream or a pointer.
    pub(crate) fn raw(&self) -> CUcontext {
        self.inner.as_raw()
    }

    /// The counters of how often and how long the host waited for the device.
    pub(crate) fn waits(&self) -> &Waits {
        &self.waits
    }

    /// The handle of the device.
    pub(super) fn device(&self) -> CUdevice {
        self.device
    }

    /// Makes this context current on the calling thread, for as long as the guard lives. If it is current already, as
    /// with callers that use the device themselves, it is only asked for. The thread is in relaxed
    /// capture mode for as long.
    ///
    /// # Errors
    /// A driver error; [`Error::NoDriver`] in a child forked since.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Current<'_>> {
        match forked() {
            Some(error) => Err(error),
            None => Ok(self.push()?),
        }
    }

    /// Makes the context current as [`Context::enter`] does, without the check that this process was not forked.
    fn push(self: &Arc<Self>) -> DriverResult<Current<'_>> {
        let mut now: CUcontext = null_mut();
        // SAFETY: a live pointer to write to.
        unsafe { raw::cuCtxGetCurrent(&raw mut now) }.ok()?;
        let is_pushed = now != self.raw();
        if is_pushed {
            // SAFETY: a context that is retained while `self` lives.
            unsafe { raw::cuCtxPushCurrent_v2(self.raw()) }.ok()?;
        }
        Ok(Current { context: self, is_pushed, _relaxed: Relaxed::new(), thread: PhantomData })
    }

    /// Runs the release of an object of this context, from a drop, with the context current. Does nothing in a forked child,
    /// or if the context cannot be entered. A panic of `release` is not caught.
    pub(super) fn release(self: &Arc<Self>, release: impl FnOnce()) {
        quietly(|| {
            if let Ok(_current) = self.push() {
                release();
            }
        });
    }
}

impl Drop for Context {
    /// Gives the context up; nothing in a forked child.
    fn drop(&mut self) {
        quietly(|| {
            // SAFETY: dropped here and nowhere else, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        });
    }
}

/// A guard: calls of this thread that a capture forbids, because they might wait for the device, are
/// allowed. Captures on other libraries' streams neither make windrow's calls fail nor are invalidated by
/// them.
#[derive(Debug)]
struct Relaxed {
    /// The mode to go back to; `None` if the driver did not take ours, or if it was the mode before.
    before: Option<c_uint>,
}

impl Relaxed {
    /// Puts the calling thread into relaxed capture mode, until the value is dropped.
    fn new() -> Relaxed {
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: a live integer, which the driver exchanges with the thread's.
        let code = unsafe { raw::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        let is_changed = code.ok().is_ok() && mode != CAPTURE_MODE_RELAXED;
        Relaxed { before: is_changed.then_some(mode) }
    }
}

/// Puts the calling thread into relaxed capture mode for good. Starts the driver; does nothing without one or in a forked child.
pub fn relax_captures() {
    if init().is_ok() && forked().is_none() {
        std::mem::forget(Relaxed::new());
    }
}

/// Runs some work, such as calls of another library, in relaxed mode, and returns its result. Starts the driver; without one,
/// or in a forked child, the work runs as it is.
pub fn relaxed<T>(work: impl FnOnce() -> T) -> T {
    let _relaxed = (init().is_ok() && forked().is_none()).then(Relaxed::new);
    work()
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: as above. An error means that the driver is gone.
            let _ = unsafe { raw::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        }
    }
}

/// A guard: its context is current on this thread. Guards end in the reverse order of their start,
/// as values of nested scopes do.
#[derive(Debug)]
pub(crate) struct Current<'c> {
    pub(super) context: &'c Arc<Context>,
    /// Another context, or none, was current before, and is again when the guard ends.
    is_pushed: bool,
    _relaxed: Relaxed,
    /// The current context is a property of one thread: the guard stays on it.
    thread: PhantomData<*mut ()>,
}

impl Current<'_> {
    /// The context that is current.
    pub(crate) fn context(&self) -> &Arc<Context> {
        self.context
    }

    /// The number of the context, which no other one of the process has, before or after.
    pub(super) fn context_id(&self) -> DriverResult<u64> {
        let mut id = 0;
        // SAFETY: a context that is retained, and a live pointer to write to.
        unsafe { raw::cuCtxGetId(self.context.raw(), &raw mut id) }.ok()?;
        Ok(id)
    }

    /// Blocks until everything enqueued in the primary context of the device is done, which the
    /// context counts as a wait.
    pub(crate) fn synchronize(&self) -> DriverResult<()> {
        let _wait = self.context.waits().begin();
        // SAFETY: takes no pointer; `self` says that a context is current.
        unsafe { raw::cuCtxSynchronize() }.ok()
    }

    /// Blocks until everything enqueued in the primary context of any device is done, those that other libraries use included.
    pub(crate) fn synchronize_all(&self) -> Result<()> {
        self.synchronize()?;
        for ordinal in (0..device_count()?).filter(|&ordinal| ordinal != self.context.ordinal) {
            if is_in_use(ordinal)? {
                Context::primary(ordinal)?.enter()?.synchronize()?;
            }
        }
        Ok(())
    }
}

/// Whether anything in this process has the primary context of a device.
fn is_in_use(ordinal: u32) -> DriverResult<bool> {
    let device = device_at(ordinal)?;
    let (mut flags, mut active) = (0, 0);
    // SAFETY: a device that cust has from the driver, and two live integers.
    unsafe { raw::cuDevicePrimaryCtxGetState(device.as_raw(), &raw mut flags, &raw mut active) }
        .ok()?;
    Ok(active != 0)
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if self.is_pushed {
            let mut popped: CUcontext = null_mut();
            // SAFETY: a live pointer to write to. An error means that the driver is gone.
            let _ = unsafe { raw::cuCtxPopCurrent_v2(&raw mut popped) };
        }
    }
}
