//! [`EventPool`]: events that are recorded anew, and order between two streams.

use std::ops::Deref;
use std::sync::Arc;

use super::context::Current;
use super::error::DriverResult;
use super::event::Event;
use super::stream::StreamRef;
use crate::sync::ForkMutex;

/// Events of one context that are not in use, to be recorded anew.
#[derive(Debug, Default)]
pub(crate) struct EventPool {
    free: ForkMutex<Vec<Event>>,
}

impl EventPool {
    /// An event, new or used before: it has no meaning until the caller records it.
    pub(crate) fn take(self: &Arc<Self>, current: &Current<'_>) -> DriverResult<PooledEvent> {
        let free = self.free.lock().pop();
        let event = free.map_or_else(|| current.event(), Ok)?;
        debug_assert!(Arc::ptr_eq(&event.context, current.context), "one pool for each context");
        Ok(PooledEvent { event: Some(event), pool: self.clone() })
    }

    /// Orders what is enqueued on `then` from now on behind what is on `first` now; the host does
    /// not wait. Equal streams are not looked for: they cost an event, to no effect.
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

    /// The number of events that are not in use.
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
