//! [`Completion`]: the end of a batch's work, and errors that only the device can report.
#![allow(unsafe_code)] // Handles of others' streams.

use std::sync::Arc;

use crate::cuda::driver::{forked, Context, PooledEvent};
use crate::cuda::memory::keep_alive::KeepAlive;
use crate::cuda::memory::list_table::IndexCheck;
use crate::tensor::{Result, Stream};

/// The end of a call's work.
#[derive(Debug)]
pub(crate) struct Completion {
    context: Arc<Context>,
    /// `None` in a graph, which can be launched any number of times.
    end: Option<Arc<PooledEvent>>,
    index_check: Option<IndexCheck>,
    /// The keeper of this call's samples until the end.
    keep_alive: Option<Arc<KeepAlive>>,
}

impl Completion {
    /// The completion of a batch: its end, unless that is in a graph, the call whose indices a device checked, and the
    /// owners to release.
    pub(crate) fn new(
        context: &Arc<Context>,
        end: Option<Arc<PooledEvent>>,
        index_check: Option<IndexCheck>,
        keep_alive: Option<Arc<KeepAlive>>,
    ) -> Completion {
        Completion { context: Arc::clone(context), end, index_check, keep_alive }
    }

    /// The end of the work; `None` for work in a graph.
    pub fn end(&self) -> Option<End> {
        let context = Arc::clone(&self.context);
        self.end.as_ref().map(|event| End { context, event: Arc::clone(event) })
    }

    /// Blocks until the work is done, drops the owners of samples that have been read, and returns
    /// the error that the device found, if any, at each call. Work in a graph is not waited for; an
    /// error that a replay found is returned once.
    pub fn check(&self) -> Result<()> {
        let _current = self.context.enter()?;
        if let Some(end) = &self.end {
            end.synchronize()?;
        }
        if let Some(keep_alive) = &self.keep_alive {
            keep_alive.reap()?;
        }
        let in_graph = self.end.is_none();
        self.index_check.as_ref().map_or(Ok(()), |index_check| index_check.check(in_graph))
    }
}

/// The end of the work of a call, to be waited for when the stream of the call may be gone.
#[derive(Clone, Debug)]
pub struct End {
    context: Arc<Context>,
    event: Arc<PooledEvent>,
}

impl End {
    /// Orders what is enqueued on a stream from now on behind the work. Nothing in a capture: a graph cannot wait for work
    /// outside of it.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for a stream of another device or context;
    /// [`Error::Cuda`](crate::Error::Cuda).
    pub fn order(&self, stream: Stream) -> Result<()> {
        let current = self.context.enter()?;
        // SAFETY: the maker of the `Stream` vouched for its handle.
        let stream = unsafe { current.foreign_stream(stream.handle()) }?;
        if !stream.is_capturing()? {
            stream.wait(&self.event)?;
        }
        Ok(())
    }

    /// The end of the work that this event marks.
    pub(super) fn new(context: &Arc<Context>, event: Arc<PooledEvent>) -> End {
        End { context: Arc::clone(context), event }
    }

    /// Blocks until the work is done.
    ///
    /// # Errors
    /// [`Error::NoDriver`](crate::Error::NoDriver) in a forked child; [`Error::Cuda`](crate::Error::Cuda).
    pub(crate) fn wait(&self) -> Result<()> {
        let _current = self.context.enter()?;
        match self.event.query()? {
            true => Ok(()),
            false => Ok(self.event.synchronize()?),
        }
    }

    /// The event that marks the end.
    pub(crate) fn event(&self) -> &PooledEvent {
        &self.event
    }

    /// A number that the ends of one call have and no other end meanwhile.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.event).addr()
    }
}

impl Drop for Completion {
    /// Releases the samples of the batch if the device has read them; else the next call does.
    fn drop(&mut self) {
        let Some(keep_alive) = &self.keep_alive else { return };
        // Most often `check` has released them. In a forked child the lock may be one that is never released.
        if forked().is_some() || keep_alive.is_empty() {
            return;
        }
        if let Ok(_current) = self.context.enter() {
            // The next call reports a failure.
            let _ = keep_alive.reap();
        }
    }
}
