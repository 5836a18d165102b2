//! [`StreamKey`]: a stream that memory was handed to, for later.

use super::super::driver::{DriverResult, StreamRef};
use crate::sync::thread::{self, ThreadId};

/// A stream, which may be gone: then another one may have its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamKey {
    pub handle: usize,
    id: u64,
    /// The thread, if the handle is [`PER_THREAD`], the per-thread default stream.
    thread: Option<ThreadId>,
}

/// The handle of the calling thread's own stream.
pub(crate) const PER_THREAD: usize = 2;

/// Streams without a name: what these have used goes back when the whole device has been waited for.
pub(crate) const ANY_STREAM: StreamKey =
    StreamKey { handle: usize::MAX, id: u64::MAX, thread: None };

impl StreamKey {
    /// The key of a stream; that of the per-thread default stream is the calling thread's.
    pub fn new(stream: StreamRef<'_>) -> DriverResult<StreamKey> {
        let (handle, id) = (stream.handle(), stream.id()?);
        let thread = (handle == PER_THREAD).then(|| thread::current().id());
        Ok(StreamKey { handle, id, thread })
    }

    /// What calls name the stream by, which may be another one by now.
    pub fn name(self) -> (usize, Option<ThreadId>) {
        (self.handle, self.thread)
    }

    /// Whether this is the per-thread default stream of another thread, which has no handle on this one.
    pub fn is_of_another_thread(self) -> bool {
        self.thread.is_some_and(|thread| thread != thread::current().id())
    }
}
