//! [`Event`]: a point in the work of a stream, for other streams and for the host to wait for.

use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::Arc;

use cust::sys::CUevent;

use super::context::{Context, Current};
use super::error::DriverResult;
use super::raw;
use super::stream::StreamRef;
use crate::sync::ForkMutex;

/// CU_EVENT_DISABLE_TIMING: such events are cheaper.
const DISABLE_TIMING: u32 = 2;

/// An event. Until it is recorded it counts as reached.
#[derive(Debug)]
pub(crate) struct Event {
    raw: CUevent,
    context: Arc<Context>,
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
    pub(super) fn raw(&self) -> CUevent {
        self.raw
    }

    /// Whether the work it was last recorded behind is done. Not while its stream is captured.
    pub(crate) fn query(&self) -> DriverResult<bool> {
        // SAFETY: a live event.
        unsafe { raw::cuEventQuery(self.raw) }.is_ready()
    }

    /// Blocks until then.
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

/// Events of one context that are not in use, to be recorded anew.
#[derive(Debug, Default)]
pub(crate) struct EventPool {
    free: ForkMutex<Vec<Event>>,
}

impl EventPool {
    /// An event, new or used before.
    pub(crate) fn take(self: &Arc<Self>, current: &Current<'_>) -> DriverResult<PooledEvent> {
        let free = self.free.lock().pop();
        let event = free.map_or_else(|| current.event(), Ok)?;
        debug_assert!(Arc::ptr_eq(&event.context, current.context), "one pool for each context");
        Ok(PooledEvent { event: Some(event), pool: self.clone() })
    }

    /// Orders what is enqueued on `then` from now on behind what is on `first` now.
    pub(crate) fn order(
        self: &Arc<Self>,
        current: &Current<'_>,
        first: StreamRef<'_>,
        then: StreamRef<'_>,
    ) -> DriverResult<()> {
        let event = self.take(current)?;
        first.record(&event)?;
        then.wait(&event)
    }

    /// How many are ready.
    #[cfg(test)]
    pub(super) fn num_free(&self) -> usize {
        self.free.lock().len()
    }
}

/// An event that goes back to its pool. Waits already made keep their meaning when it is recorded
/// again: a wait looks at the event once, when it is made.
#[derive(Debug)]
pub(crate) struct PooledEvent {
    event: Option<Event>,
    pool: Arc<EventPool>,
}

impl Deref for PooledEvent {
    type Target = Event;

    fn deref(&self) -> &Event {
        self.event.as_ref().expect("taken by drop alone")
    }
}

impl Drop for PooledEvent {
    fn drop(&mut self) {
        self.pool.free.lock().extend(self.event.take());
    }
}
