//! The driver is loaded and started at the first use of CUDA, never before: workers forked until
//! then can use it too.

use std::sync::OnceLock;

use super::codes::{NO_DEVICE, STUB_LIBRARY};
use super::raw;
use super::started::{self, forked};
use crate::tensor::{DriverError, Error, Result};

static STARTED: OnceLock<Result<()>> = OnceLock::new();

/// Loads and starts the driver, once per process; every later answer is that of the first call, but in a forked child.
///
/// # Errors
/// [`Error::NoDriver`], with the hint; always in a child forked after the start.
pub(crate) fn init() -> Result<()> {
    // A fork copies a lock that another thread holds: the child must not wait for it.
    if let Some(error) = forked() {
        return STARTED.get().cloned().unwrap_or(Ok(())).and(Err(error));
    }
    STARTED.get_or_init(start).clone()
}

/// Loads the library and calls `cuInit`; every failure is [`Error::NoDriver`]. It first marks this process as the one that started
/// the driver, also if the start fails.
fn start() -> Result<()> {
    started::mark();
    let unavailable = |text: String| Err(Error::no_driver(text));
    if let Err(text) = windrow_driver::load() {
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

/// The newest CUDA version that the driver supports, as in (13, 0). Call [`init`] before.
pub(crate) fn driver_version() -> std::result::Result<(u32, u32), DriverError> {
    let mut version = 0;
    // SAFETY: the pointer is to a live integer.
    unsafe { raw::cuDriverGetVersion(&raw mut version) }.ok()?;
    let version = version.unsigned_abs();
    Ok((version / 1000, version % 1000 / 10))
}
