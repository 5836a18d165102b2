//! [`RunOptions`]: where work on a device is enqueued, what it waits for, and whose memory it writes.

use std::fmt::Debug;
use std::sync::Arc;

use crate::host::PipelinedCopy;
use crate::plan::AsTarget;
use crate::tensor::{DType, Device, Error, Layout, Owner, Result, Stream, Tensor};

/// Options of [`Engine::run_with`](crate::Engine::run_with).
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct RunOptions {
    /// Rows copied ahead for each leaf: see `Engine::start_rows`.
    pub(crate) ahead: Vec<Option<PipelinedCopy>>,
    /// The stream of work on a device; `None` is a stream of the engine's own.
    pub stream: Option<Stream>,
    /// Streams that wrote the samples; the work waits for what they have enqueued so far.
    pub producers: Vec<Stream>,
    /// Owners of the samples' memory, kept until the samples have been read; in a capture of samples that a device selects, as long
    /// as the table of their list, which they must not keep. The work waits for pending writes to memory that
    /// windrow allocated, and for the end of any other call that is among the owners.
    pub keep: Vec<Owner>,
    /// The allocator of outputs on a device; `None` is the engine's own pool.
    pub memory: Option<Arc<dyn OutputMemory>>,
    /// The allocator of page-locked outputs; `None` is the engine's own pool.
    pub pinned: Option<Arc<dyn PinnedMemory>>,
    /// Host memory for the arena of a plan that has one: uint8, row-major, [`Plan::arena_bytes`](crate::Plan::arena_bytes) or
    /// more, writable and held by nothing else; `None` is the engine's own pool. Tensors begin at multiples of 64 bytes from its
    /// first byte on, so they are aligned if that is.
    pub arena: Option<Tensor>,
    /// The most blocks of a launch, and so the share of the multiprocessors that it has; `None` is as many as there
    /// is work for. Calls with 0 fail with [`Error::Argument`].
    pub max_blocks: Option<u32>,
}

impl RunOptions {
    /// Sets the stream that work on a device is enqueued on.
    #[must_use]
    pub fn stream(self, stream: Stream) -> RunOptions {
        RunOptions { stream: Some(stream), ..self }
    }

    /// Sets the streams that work on a device waits for: those that wrote the samples.
    #[must_use]
    pub fn producers(self, producers: Vec<Stream>) -> RunOptions {
        RunOptions { producers, ..self }
    }

    /// Sets owners that are kept until the samples have been read.
    #[must_use]
    pub fn keep(self, keep: Vec<Owner>) -> RunOptions {
        RunOptions { keep, ..self }
    }

    /// Sets the allocator of outputs on a device.
    #[must_use]
    pub fn memory(self, memory: Arc<dyn OutputMemory>) -> RunOptions {
        RunOptions { memory: Some(memory), ..self }
    }

    /// Sets the allocator of page-locked outputs.
    #[must_use]
    pub fn pinned(self, pinned: Arc<dyn PinnedMemory>) -> RunOptions {
        RunOptions { pinned: Some(pinned), ..self }
    }

    /// Sets the most blocks that a launch has, 1 or more: calls with 0 fail with [`Error::Argument`].
    #[must_use]
    pub fn max_blocks(self, count: u32) -> RunOptions {
        RunOptions { max_blocks: Some(count), ..self }
    }

    /// Sets the memory of a plan's arena.
    #[must_use]
    pub fn arena(self, arena: Tensor) -> RunOptions {
        RunOptions { arena: Some(arena), ..self }
    }

    /// Refuses a limit of 0 blocks, with which nothing would be written.
    pub(crate) fn check(&self) -> Result<()> {
        match self.max_blocks {
            Some(0) => Err(Error::argument(
                "max_blocks: 0 blocks write nothing; give 1 or more, or None for no limit".into(),
            )),
            _ => Ok(()),
        }
    }

    /// The options of a part of the work: the same stream, producers, owners and blocks, with the engine's own memory.
    pub(crate) fn for_part(&self) -> RunOptions {
        RunOptions {
            stream: self.stream,
            producers: self.producers.clone(),
            keep: self.keep.clone(),
            max_blocks: self.max_blocks,
            ..RunOptions::default()
        }
    }

    /// Page-locked memory of the options' allocator: writable, row-major, whatever the strides of `layout`, and held by nothing
    /// else; `None` without an allocator, or if what it gives does not fit.
    pub(crate) fn pinned_tensor(&self, dtype: DType, layout: &Layout) -> Option<Tensor> {
        let mut tensor = self.pinned.as_ref()?.allocate(dtype, layout.shape())?;
        let is_fit = (tensor.dtype(), tensor.device()) == (dtype, Device::Pinned)
            && tensor.shape() == layout.shape()
            && tensor.layout().is_compact()
            && tensor.as_target().is_ok();
        is_fit.then_some(tensor)
    }
}

/// Another library's allocator of page-locked memory: it knows the streams that copy from its memory, and gives a block out
/// again when these have, where windrow waits for all devices.
pub trait PinnedMemory: Debug + Send + Sync {
    /// A row-major tensor in page-locked memory, which nothing else holds, or `None` to take it from the engine's pool after all; so
    /// does the engine if the tensor's owner has other references. Called by the thread that runs the plan, which holds no lock then.
    fn allocate(&self, dtype: DType, shape: &[i64]) -> Option<Tensor>;
}

/// Another library's allocator of device memory: outputs are then memory that the library manages, and free memory is kept
/// in one pool instead of two.
pub trait OutputMemory: Debug + Send + Sync {
    /// The stream that the memory belongs to: a block that is let go may be given out again at once,
    /// for use in the order of this stream.
    fn stream(&self) -> Stream;

    /// A row-major tensor on a device, or `None` to take it from the engine's pool after all. Called
    /// before anything is enqueued, by the thread that runs the plan, which holds no lock then.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), or any other error of the library.
    fn allocate(&self, dtype: DType, shape: &[i64], ordinal: u32) -> Result<Option<Tensor>>;
}
