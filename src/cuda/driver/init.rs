//! The driver is loaded and started at the first use of CUDA, never before: workers forked until
//! then can use it too.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use super::error::{NO_DEVICE, STUB_LIBRARY};
use super::raw;
use crate::tensor::{DriverError, Error, Result};

static STARTED: OnceLock<Result<()>> = OnceLock::new();
/// The process that started, or was starting, the driver. 0: nobody has.
static STARTED_BY: AtomicU32 = AtomicU32::new(0);

/// Loads and starts the driver, once per process; every later answer is that of the first call.
///
/// # Errors
/// [`Error::NoDriver`], with the cure.
pub(crate) fn init() -> Result<()> {
    // A fork copies a lock that another thread holds: the child must not wait for it.
    if let Some(error) = forked() {
        return STARTED.get().cloned().unwrap_or(Ok(())).and(Err(error));
    }
    STARTED.get_or_init(start).clone()
}

fn start() -> Result<()> {
    STARTED_BY.store(process::id(), Ordering::Release);
    let unavailable = |text: String| Err(Error::NoDriver(text));
    if let Err(text) = lazy_driver::load() {
        return unavailable(format!("no driver found: {text}"));
    }
    // SAFETY: takes no pointer; 0 is the only flag there is.
    match unsafe { raw::cuInit(0) }.ok() {
        Ok(()) => Ok(()),
        Err(error) if error.code == NO_DEVICE => unavailable(
            "driver present, no device; if the machine has one, look at CUDA_VISIBLE_DEVICES"
                .into(),
        ),
        Err(error) if error.code == STUB_LIBRARY => unavailable(
            "the library found is the toolkit's stub, not the driver: take lib64/stubs out of the \
             library path"
                .into(),
        ),
        Err(error) => unavailable(error.to_string()),
    }
}

/// In a child forked after the start of the driver: the error that says so.
pub(crate) fn forked() -> Option<Error> {
    let by = STARTED_BY.load(Ordering::Acquire);
    if by == 0 || by == process::id() {
        return None;
    }
    Some(Error::NoDriver(
        "this process was forked after its parent had begun to use CUDA, which no driver survives; \
         start such processes by spawn or forkserver"
            .into(),
    ))
}

/// The newest CUDA version that the driver supports, as in (13, 0).
pub(crate) fn driver_version() -> std::result::Result<(u32, u32), DriverError> {
    let mut version = 0;
    // SAFETY: the pointer is to a live integer.
    unsafe { raw::cuDriverGetVersion(&raw mut version) }.ok()?;
    let version = version.unsigned_abs();
    Ok((version / 1000, version % 1000 / 10))
}

/// The release of an object of the driver, from a drop: nobody can be told of an error, the driver
/// may be gone (at process exit) or belong to the parent process.
pub(super) fn quietly(release: impl FnOnce()) {
    if forked().is_none() {
        release();
    }
}
