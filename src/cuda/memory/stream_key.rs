//! [`StreamKey`]: a stream that memory was handed to, for later.

use super::super::driver::{DriverResult, StreamRef};
use crate::sync::thread::{self, ThreadId};

/// A stream, which may be gone: then another one may have its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamKey {
    pub handle: usize,
    id: u64,
    /// Of [`PER_THREAD`], which is another one on each thread, whose.
    thread: Option<ThreadId>,
}

/// The handle of the calling thread's own stream.
pub(crate) const PER_THREAD: usize = 2;

/// Streams without a name: what these have used goes back when the whole device has been waited for.
pub(crate) const ANY_STREAM: StreamKey =
    StreamKey { handle: usize::MAX, id: u64::MAX, thread: None };

impl StreamKey {
    pub fn new(stream: StreamRef<'_>) -> DriverResult<StreamKey> {
        let (handle, id) = (stream.handle(), stream.id()?);
        let thread = (handle == PER_THREAD).then(|| thread::current().id());
        Ok(StreamKey { handle, id, thread })
    }

    /// Where work finds what others of this handle have left, whose events it waits for.
    pub fn wait_key(self) -> (usize, Option<ThreadId>) {
        (self.handle, self.thread)
    }

    /// Whether it has no name on this thread.
    pub fn is_of_another_thread(self) -> bool {
        self.thread.is_some_and(|thread| thread != thread::current().id())
    }
}
