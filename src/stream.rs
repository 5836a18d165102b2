//! [`Stream`] and [`RunOptions`]: where work on a device is enqueued, what it waits for, and whose
//! memory it writes.

use std::fmt::Debug;
use std::sync::Arc;

use crate::dtype::DType;
use crate::error::Result;
use crate::host::RowsAhead;
use crate::tensor::{Owner, Tensor};

/// A CUDA stream of any library, by its handle: 0 and 1 are the legacy default stream, 2 is that of the
/// calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(usize);

impl Stream {
    /// The legacy default stream, which is torch's current one unless told otherwise.
    pub const LEGACY: Stream = Stream(1);

    /// A stream by its handle (`cudaStream_t`, `CUstream`). It is never synchronised or destroyed.
    ///
    /// # Safety
    /// The handle is that of a stream that exists as long as batches enqueued on it, or exported to it,
    /// live.
    #[allow(unsafe_code)]
    pub unsafe fn from_raw(handle: usize) -> Stream {
        // The two names of the legacy stream must compare equal.
        Stream(handle.max(1))
    }

    /// The handle.
    pub fn handle(self) -> usize {
        self.0
    }
}

/// How a plan is run, for callers that know more than its samples.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct RunOptions {
    /// What was copied ahead for each leaf, by [`crate::Engine::start_rows`].
    pub ahead: Vec<Option<RowsAhead>>,
    /// Where work on a device is enqueued; `None` is a stream of the engine's own.
    pub stream: Option<Stream>,
    /// Streams that wrote the samples; the work waits for what they have enqueued so far.
    pub producers: Vec<Stream>,
    /// What keeps the samples' memory alive, held until they have been read.
    pub keep: Vec<Owner>,
    /// Where outputs on a device are; `None` is the engine's own pool.
    pub memory: Option<Arc<dyn OutputMemory>>,
    /// Host memory for the arena of a plan that has one: uint8, row-major, [`crate::Plan::arena_bytes`] or
    /// more, writable and held by nobody else; `None` is the engine's own pool.
    pub arena: Option<Tensor>,
}

/// Another library's allocator of device memory, so that its users get outputs in memory that it knows,
/// and two pools do not hoard what the other one needs.
pub trait OutputMemory: Debug + Send + Sync {
    /// The stream that the memory belongs to: a block that is let go may be given out again at once,
    /// for use in the order of this stream.
    fn stream(&self) -> Stream;

    /// A row-major tensor on a device, or `None` to take it from the engine's pool after all. Called
    /// before anything is enqueued, by the thread that runs the plan, which holds no lock then.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`], or whatever keeps the library from giving memory.
    fn allocate(&self, dtype: DType, shape: &[i64], ordinal: u32) -> Result<Option<Tensor>>;
}
