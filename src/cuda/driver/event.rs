//! [`Event`]: a point in the work of a stream, for other streams and for the host to wait for.

use std::ptr::null_mut;
use std::sync::Arc;

use cust::sys::CUevent;

use super::context::{Context, Current};
use super::error::DriverResult;
use super::raw;

/// CU_EVENT_DISABLE_TIMING: such events are cheaper.
const DISABLE_TIMING: u32 = 2;

/// An event. Until it is recorded it counts as reached.
#[derive(Debug)]
pub(crate) struct Event {
    raw: CUevent,
    pub(super) context: Arc<Context>,
}

// SAFETY: the driver takes calls on an event from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the handle itself never changes.
unsafe impl Sync for Event {}

impl Current<'_> {
    /// An event for order, which does not tell the time.
    pub(crate) fn event(&self) -> DriverResult<Event> {
        let mut raw = null_mut();
        // SAFETY: a live pointer to write to; `self` says that a context is current.
        unsafe { raw::cuEventCreate(&raw mut raw, DISABLE_TIMING) }.ok()?;
        Ok(Event { raw, context: self.context.clone() })
    }
}

impl Event {
    /// The handle of the event.
    pub(super) fn raw(&self) -> CUevent {
        self.raw
    }

    /// Whether the work it was last recorded behind is done; true if it was never recorded. An error if its stream was being
    /// captured when it was recorded.
    pub(crate) fn query(&self) -> DriverResult<bool> {
        // SAFETY: a live event.
        unsafe { raw::cuEventQuery(self.raw) }.is_ready()
    }

    /// Blocks until the work it was last recorded behind is done, which the context counts as a wait.
    pub(crate) fn synchronize(&self) -> DriverResult<()> {
        let _wait = self.context.waits().begin();
        // SAFETY: a live event.
        unsafe { raw::cuEventSynchronize(self.raw) }.ok()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.context.release(|| {
            // SAFETY: destroyed once; the driver keeps what pending waits still need.
            let _ = unsafe { raw::cuEventDestroy_v2(self.raw) };
        });
    }
}
