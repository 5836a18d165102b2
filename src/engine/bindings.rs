//! The interface for bindings in other languages, beside the public one: stages that begin before there is a plan, batches
//! without a plan, and the ends of calls. Hidden from the documentation, and free to change. What the engine uses itself
//! is there without feature `unstable-bindings` too.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use super::engine::Engine;
use crate::batch::{Batch, Fields, LeafOutput};
use crate::collate::{Collate, Form};
use crate::cuda::PinnedBlock;
use crate::explain::Explain;
use crate::host;
use crate::observe::{Span, Stage, Tally};
use crate::plan::{InUse, Leaf, Plan, Target};
use crate::run_options::RunOptions;
use crate::samples::{SampleList, SampleRows, TensorMeta};
use crate::tensor::{DType, Device, Layout, Owner, Result, Stream, Tensor};

pub use crate::cuda::{
    hold_until_done, lock_refusal, lock_stats, page_locked, reap_copies, try_lock,
};
pub use crate::cuda::{relax_captures, relaxed, End};

/// Sets whether others may have the address of a page-locked tensor of windrow's: memory that they do not have is used
/// again at once. No effect for other tensors.
pub fn set_handed_out(tensor: &Tensor, is_handed_out: bool) {
    if let Some(block) = tensor.owner().downcast_ref::<PinnedBlock>() {
        block.set_handed_out(is_handed_out);
    }
}

pub use super::moves::MoveOptions;
pub use super::staging::Staging;
pub use crate::host::calibration_file;
pub use crate::host::{add_per_sample, prefetch, PipelinedCopy};
pub use crate::plan::page_copies::PageCopies;
pub use crate::tensor::dims::Dims;
pub use crate::tensor::places::Places;
pub use crate::tensor::reserve::try_vec;
pub use crate::tensor::tensor::new_owners;

impl Engine {
    /// The options with the engine's device, if it has one and the options name none.
    #[doc(hidden)]
    pub fn placed<'c>(&self, collate: &'c Collate) -> Cow<'c, Collate> {
        match self.shared.device {
            Some(device) if collate.device.is_none() => Cow::Owned(collate.clone().device(device)),
            _ => Cow::Borrowed(collate),
        }
    }

    /// Allocates bytes as [`Engine::empty`] does; the caller writes all of them before anything reads them.
    ///
    /// # Errors
    /// As [`Engine::empty`].
    pub(super) fn unwritten(&self, num_bytes: u64, device: Device) -> Result<Tensor> {
        let layout = Layout::compact(DType::U8, &[i64::try_from(num_bytes).unwrap_or(i64::MAX)])?;
        self.memory(self.shared.ordinal(), DType::U8, layout, device, false)
    }
}

#[cfg(feature = "unstable-bindings")]
#[doc(hidden)]
impl Engine {
    /// The account of [`Plan::explain`], each leaf by its engine, for a caller who returns the leaves marked in `views`, by position,
    /// as views of their samples' memory.
    pub fn explain<'e>(
        plan: &Plan<'_>,
        views: &[bool],
        engine: impl Fn(usize) -> &'e Engine,
    ) -> Explain {
        Explain::new(plan, views, |leaf| engine(leaf).shared.streaming_stores)
    }

    /// Allocates bytes as [`Engine::empty`] does, with any contents.
    ///
    /// # Errors
    /// As [`Engine::empty`].
    ///
    /// # Safety
    /// The caller writes all of the bytes before anything reads them.
    #[allow(unsafe_code)]
    pub unsafe fn unwritten_bytes(&self, num_bytes: u64, device: Device) -> Result<Tensor> {
        self.unwritten(num_bytes, device)
    }

    /// Whether both handles are of one engine.
    pub fn is_same(&self, other: &Engine) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The present time, for a stage that begins; `None` before the first [`Engine::stats`] or [`Engine::reset_stats`].
    pub fn now(&self) -> Option<Instant> {
        self.shared.counters.now()
    }

    /// Begins a stage of the engine's work that is done outside of it, such as the import of a binding.
    pub fn enter(&self, stage: Stage) -> Span<'_> {
        match self.shared.counters.time_of(stage) {
            Some(sum) => Span::timed(stage, self.shared.counters.now(), sum),
            None => Span::enter(stage),
        }
    }

    /// Starts to stack `count` samples with this metadata before all of them are known: what is pushed is
    /// copied by other threads, and [`Engine::run_with`] makes the rest. `None` if that would not
    /// pay, without other threads or memory, or if the batch is not such that rows are just copied.
    pub fn start_rows(
        &self,
        collate: &Collate,
        meta: &TensorMeta,
        count: usize,
    ) -> Option<PipelinedCopy> {
        let row_bytes = meta.layout.numel() as u64 * meta.dtype.size() as u64;
        if !self.is_plain_stack(collate, meta) || !PipelinedCopy::pays_for(row_bytes, count) {
            return None;
        }
        // The plain way is taken without threads or memory, and reports what is wrong.
        let threads = self.shared.threads.helpers().ok()??;
        let block = self.shared.memory.allocate(row_bytes.checked_mul(count as u64)?).ok()?;
        PipelinedCopy::start(block, row_bytes as usize, count, &threads)
    }

    /// Has one of the engine's other threads wake up, since [`Engine::for_each`] is to follow: that takes it some 70 us.
    pub fn wake_threads(&self) {
        if let Ok(Some(threads)) = self.shared.threads.helpers() {
            threads.spawn(|| {});
        }
    }

    /// Calls `run` once for each number below `count`, on the calling thread and on the engine's
    /// others, and returns when all calls have ended. A panic if `run` panics on any thread.
    ///
    /// # Errors
    /// As [`Engine::assemble`], where threads cannot be started.
    pub fn for_each(&self, count: usize, run: impl Fn(usize) + Sync) -> Result<()> {
        let threads = self.shared.threads.helpers()?;
        host::parallel_for(count, threads.as_ref(), run);
        Ok(())
    }

    /// Assembles all leaves without a plan, if together they read and write less than `most_bytes`, and less than 1 MiB unless
    /// their rows are short, if the samples are row-major rows on the host that differ in dim 0 at most, and if no more is asked
    /// for than to copy or cast them and to pad dim 0. Otherwise, and if an input is wrong, returns `None` and does nothing: a
    /// plan does the work or reports the error. `begin`: when the work on the samples began.
    pub fn assemble_small<'s, 'a: 's>(
        &self,
        leaves: &[Leaf<'s, 'a>],
        begin: Option<Instant>,
        most_bytes: u64,
    ) -> Option<Vec<LeafOutput>> {
        let outs = leaves.iter().filter_map(|leaf| leaf.out?.in_use());
        let _in_use = outs.map(InUse::new).collect::<Result<SmallVec<[_; 1]>>>().ok()?;
        self.small_leaves(leaves, begin, most_bytes)
    }

    /// Assembles one list as [`Engine::assemble_small`] does, with no other limit than `most_bytes`.
    pub fn assemble_small_list(
        &self,
        list: &SampleList<'_>,
        collate: &Collate,
        begin: Option<Instant>,
        most_bytes: u64,
    ) -> Option<Batch> {
        let rows = SampleRows::from_list(list, Engine::table_limits(collate))?;
        self.small_rows(rows, collate, None, begin, Some(most_bytes))?.into_batch()
    }

    /// Assembles samples at these positions of a list as [`Engine::assemble_small`] does; negative positions count from
    /// the end. The list that [`SampleList::take`] would return is not made. The limit is 1 MiB, however short the rows
    /// are.
    pub fn assemble_taken(
        &self,
        list: &SampleList<'_>,
        indices: &[i64],
        collate: &Collate,
        out: Option<&Target<'_>>,
        begin: Option<Instant>,
    ) -> Option<LeafOutput> {
        let most_bytes = host::POLICY.small_bytes;
        let rows = SampleRows::from_indices(list, indices, most_bytes)?;
        let _in_use = out.and_then(Target::in_use).map(InUse::new).transpose().ok()?;
        self.small_rows(rows, collate, out, begin, Some(most_bytes))
    }

    /// The owner that keeps [`Engine::stream`] in existence after the engine, for foreign memory that depends on the stream.
    ///
    /// # Errors
    /// As [`Engine::stream`].
    pub fn stream_owner(&self, ordinal: u32) -> Result<Owner> {
        Ok(self.shared.devices.executor(ordinal)?.stream_owner())
    }

    /// The number of the capture that a stream of a device is in, which no other capture has; `None` if it is in none.
    ///
    /// # Errors
    /// As [`Engine::stream`]; [`Error::Argument`] for a stream of another device or context.
    pub fn capture_of(&self, ordinal: u32, stream: Stream) -> Result<Option<u64>> {
        self.shared.devices.executor(ordinal)?.capture_of(stream)
    }

    /// Whether kernels of a device read page-locked memory as the host has it; under confidential computing they do not. The
    /// first call waits for the device's answer.
    ///
    /// # Errors
    /// As [`Engine::stream`].
    pub fn reads_mapped(&self, ordinal: u32) -> Result<bool> {
        let executor = self.shared.devices.executor(ordinal)?;
        let current = executor.enter()?;
        executor.reads_mapped(&current, true)
    }

    /// Gives unused memory of a device back, but for what streams without a name may use, and waits for the work that used it;
    /// with `waits` it waits for the device and gives that back too. Returns whether such memory is left.
    ///
    /// # Errors
    /// As [`Engine::stream`].
    pub fn trim(&self, ordinal: u32, waits: bool) -> Result<bool> {
        self.shared.devices.executor(ordinal)?.trim(waits)
    }

    /// Counts a batch that was returned as a view of its samples' memory.
    pub fn count_view(&self, num_samples: usize) {
        self.shared.counters.count(&Tally::for_view(num_samples));
    }

    /// Whether a stack of samples with this metadata is their bytes, row by row, on the host.
    fn is_plain_stack(&self, collate: &Collate, meta: &TensorMeta) -> bool {
        collate.form == Form::Stack
            && collate.increments.is_none()
            && collate.has_no_transform()
            && collate.dtype.unwrap_or(meta.dtype.native()) == meta.dtype
            && collate.device.or(self.shared.device).unwrap_or(Device::Cpu) == Device::Cpu
            && meta.device == Device::Cpu
            && meta.layout.is_compact()
            && !self.shared.reference
    }
}

#[cfg(feature = "unstable-bindings")]
#[doc(hidden)]
impl Fields {
    /// The end of the work on a device that writes the batch; `None` on the host and in a graph.
    pub fn end(&self) -> Option<End> {
        self.completion.as_ref().and_then(|completion| completion.end())
    }
}

#[cfg(feature = "unstable-bindings")]
#[doc(hidden)]
impl RunOptions {
    /// Adds what was copied ahead for the next leaf: see [`Engine::start_rows`].
    pub fn push_ahead(&mut self, rows: Option<PipelinedCopy>) {
        self.ahead.push(rows);
    }
}
