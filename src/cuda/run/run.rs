//! [`Run`]: one run of a plan on a device, and what it may enqueue in its stream: copies, waits, marks.
#![allow(unsafe_code)] // Copies between raw addresses.

use std::sync::Arc;

use smallvec::{smallvec, SmallVec};

use super::completion::{Completion, End};
use super::executor::Executor;
use crate::cuda::driver::{Current, Kernel, PooledEvent, StreamRef};
use crate::cuda::launch::kernel_abi::{LARGE_BYTES, SMALL_BYTES};
use crate::cuda::memory::device::DeviceBlock;
use crate::cuda::memory::list_table::IndexCheck;
use crate::cuda::memory::ring::Slot;
use crate::observe::Traffic;
use crate::plan::{BatchShape, Plan, Role};
use crate::run_options::{OutputMemory, RunOptions};
use crate::tensor::{Device, Error, Owner, Result, Stream, Tensor};

/// The results of a run on a device.
#[derive(Debug, Default)]
pub(crate) struct RunResult {
    /// The tensor of each output that was run here and has memory of the engine.
    pub tensors: SmallVec<[(usize, Tensor); 1]>,
    /// Outputs that came back to be spread over memory of the caller's, as their plan says.
    pub spread: Vec<(usize, Tensor, *mut u8)>,
    /// Lengths and offsets of each leaf whose batch is on the device.
    pub metadata: Vec<(usize, Role, Tensor)>,
    /// The one allocation on the device that has all of these, if there is one.
    pub arena: Option<Tensor>,
    pub traffic: Traffic,
    /// The end of the work. In a graph it has no event, and is there only if a device selects the samples.
    pub completion: Option<Arc<Completion>>,
}

/// One run.
pub(crate) struct Run<'r> {
    pub executor: &'r Executor,
    pub current: &'r Current<'r>,
    pub stream: StreamRef<'r>,
    pub is_capturing: bool,
    /// The streams that the work waits for.
    pub producers: Vec<StreamRef<'r>>,
    /// Device memory of this run. It is freed behind the run, whether that fails or not.
    pub blocks: SmallVec<[Arc<DeviceBlock>; 2]>,
    /// The block that small outputs share, and the bytes of it that are taken.
    pub shared: Option<(Arc<DeviceBlock>, u64)>,
    /// Page-locked memory that is being filled or copied.
    pub slot: Option<Slot<'r>>,
    /// Owners of outputs in memory of another library's.
    pub lent: Vec<Owner>,
    /// A device selects the samples.
    pub index_check: Option<IndexCheck>,
    /// The most blocks of a launch, if there is a bound.
    pub max_blocks: Option<u32>,
    pub result: RunResult,
}

impl<'r> Run<'r> {
    /// A run that has enqueued nothing.
    pub fn new(
        executor: &'r Executor,
        current: &'r Current<'r>,
        stream: StreamRef<'r>,
        is_capturing: bool,
    ) -> Run<'r> {
        Run {
            executor,
            current,
            stream,
            is_capturing,
            producers: Vec::new(),
            blocks: SmallVec::new(),
            shared: None,
            slot: None,
            lent: Vec::new(),
            index_check: None,
            max_blocks: None,
            result: RunResult::default(),
        }
    }

    /// Ends the run with what has been enqueued. After a failure it blocks until work under way has ended, before samples and
    /// memory are released; not in a capture. Memory that a failed device may still write to is never freed.
    pub fn end(mut self, finished: Result<()>) -> Result<RunResult> {
        let (stream, current) = (self.stream, self.current);
        if finished.is_err()
            && !self.is_capturing
            && stream.synchronize().or_else(|_| current.synchronize()).is_err()
        {
            // The device has failed: memory that it may still write to is not freed.
            self.blocks.drain(..).for_each(std::mem::forget);
            self.lent.drain(..).for_each(std::mem::forget);
        }
        finished.map(|()| self.result)
    }
}

impl Run<'_> {
    /// Adds the distinct streams that the work has to wait for: those that wrote samples, and the one that
    /// memory for outputs belongs to. An error for one that is being captured if the run is not. The run's own stream is left
    /// out, and in a capture those that are not captured.
    pub fn find_producers(&mut self, options: &RunOptions) -> Result<()> {
        let lender = options.memory.iter().map(|memory| memory.stream());
        let mut seen: SmallVec<[usize; 4]> = smallvec![self.stream.handle()];
        for producer in options.producers.iter().copied().chain(lender).map(Stream::handle) {
            if seen.contains(&producer) {
                continue;
            }
            seen.push(producer);
            // SAFETY: the maker of the `Stream` vouched for its handle.
            let producer = unsafe { self.current.foreign_stream(producer) }?;
            match (self.is_capturing, producer.is_capturing()?) {
                // A capture cannot wait for work outside of it.
                (true, false) => continue,
                // A wait for it would draw our stream into the capture.
                (false, true) => {
                    return Err(Error::argument(
                        "the samples come from a stream that is being captured in a graph, and the \
                         batch is to be assembled outside of it"
                            .into(),
                    ));
                }
                _ => {}
            }
            self.producers.push(producer);
        }
        Ok(())
    }

    /// Owners of memory that is read after the call has returned, and those that the options keep.
    /// Pageable memory has been read by then.
    pub fn readable<'p>(&self, plan: &'p Plan<'_>, options: &'p RunOptions) -> Readable<'p> {
        let leaves = plan.batch_shapes().iter().zip(&plan.lists);
        let is_late = |batch_shape: &BatchShape| {
            batch_shape.source.is_cuda()
                || batch_shape.source == Device::Pinned && batch_shape.is_on_device()
        };
        let lists = leaves.filter(|(batch_shape, _)| is_late(batch_shape)).map(|(_, list)| list);
        self.readable_of(lists.flat_map(|list| list.owners()).chain(&options.keep))
    }

    /// The [`Readable`] of these owners of memory that is read.
    pub fn readable_of<'p>(&self, owners: impl Iterator<Item = &'p Owner>) -> Readable<'p> {
        let mut readable = Readable::default();
        for owner in owners {
            match (self.block_of(owner), owner.downcast_ref()) {
                (Some(block), _) => readable.blocks.push(block),
                (None, Some(end)) => readable.ends.push(end),
                (None, None) => readable.others.push(owner),
            }
        }
        each_once(&mut readable.blocks);
        readable
    }

    /// Orders the stream behind the producers, the calls and blocks of windrow's that are read, and all users of the outputs'
    /// memory. Blocks until producers and the stream are done if the host itself reads page-locked samples.
    pub fn order_behind_producers(&mut self, plan: &Plan<'_>, read: &Readable<'_>) -> Result<()> {
        let is_pinned = |(_, shape): &(usize, &BatchShape)| shape.source == Device::Pinned;
        let mut pinned = plan.batch_shapes().iter().enumerate().filter(is_pinned);
        let reads_on_host = |leaf| plan.route().is_some_and(|route| route.reads_on_host(leaf));
        if pinned.any(|(leaf, _)| reads_on_host(leaf)) {
            // Samples that no kernel can read, with gaps: what writes them has to be done.
            for stream in self.producers.iter().chain([&self.stream]) {
                stream.synchronize()?;
            }
        }
        self.order_behind(read, &plan.out_owners)
    }

    /// Enqueues a kernel whose parameter is `words`, in `blocks` blocks, and counts the launch.
    ///
    /// # Safety
    /// The kernel has one parameter, of this size. What it reads and writes is valid until it has run.
    pub unsafe fn launch_kernel(
        &mut self,
        kernel: &Kernel,
        blocks: u32,
        words: &[u64],
    ) -> Result<()> {
        debug_assert!([SMALL_BYTES, LARGE_BYTES].contains(&size_of_val(words)));
        let (threads, values) = (self.executor.policy.threads, [words.as_ptr().cast()]);
        // SAFETY: as for this function.
        unsafe { self.stream.launch(kernel, blocks, threads, &values) }?;
        self.result.traffic.launches += 1;
        Ok(())
    }

    /// Orders work that the host has no part in as [`Run::order_behind_producers`] does; in a capture, behind the
    /// producers alone.
    pub fn order_behind(&mut self, read: &Readable<'_>, out_owners: &[Owner]) -> Result<()> {
        for &producer in &self.producers {
            self.executor.events.order(self.current, producer, self.stream)?;
        }
        if self.is_capturing {
            return Ok(());
        }
        for end in &read.ends {
            self.stream.wait(end.event())?;
        }
        for block in &read.blocks {
            block.wait_on(self.stream)?;
        }
        for block in self.blocks_of(out_owners) {
            block.wait_for_users(self.current, &self.executor.events, self.stream)?;
        }
        Ok(())
    }

    /// The block of windrow's, of any engine, that an owner is; `None` for other owners, and for blocks of another
    /// device.
    fn block_of<'o>(&self, owner: &'o Owner) -> Option<&'o DeviceBlock> {
        let block = owner.downcast_ref::<DeviceBlock>()?;
        (block.context().raw() == self.current.context().raw()).then_some(block)
    }

    /// The blocks of windrow's among these owners, each once.
    fn blocks_of<'o>(
        &self,
        owners: impl IntoIterator<Item = &'o Owner>,
    ) -> SmallVec<[&'o DeviceBlock; 4]> {
        let blocks = owners.into_iter().filter_map(|owner| self.block_of(owner));
        let mut blocks: SmallVec<[&DeviceBlock; 4]> = blocks.collect();
        each_once(&mut blocks);
        blocks
    }

    /// Records an event behind the work that is enqueued so far.
    pub fn event(&self) -> Result<Arc<PooledEvent>> {
        let event = Arc::new(self.executor.events.take(self.current)?);
        self.stream.record(&event)?;
        Ok(event)
    }

    /// Enqueues a copy of `bytes` bytes that `fill` writes, at most a chunk, to `place` on the device. Waits for
    /// earlier copies if the ring is full.
    ///
    /// # Safety
    /// The place has room for them and is held until the copy is done.
    pub unsafe fn copy_up(
        &mut self,
        place: u64,
        bytes: u64,
        fill: impl FnOnce(*mut u8),
    ) -> Result<()> {
        let slot = self.executor.ring.take(self.current, &self.executor.pinned, bytes)?;
        // The slot is kept until the run has waited for the copy if no event can be recorded.
        let from = self.slot.insert(slot).as_ptr();
        fill(from);
        // SAFETY: the slot has as many bytes and is kept until the event; the place is the caller's promise.
        unsafe { self.stream.h2d(place, from, bytes as usize) }?;
        let event = self.event()?;
        if let Some(slot) = self.slot.take() {
            slot.free_after(event);
        }
        Ok(())
    }

    /// Allocates `bytes` bytes of device memory, not initialised, that the run holds until its end; it is freed behind
    /// the work of the run.
    pub fn allocate(&mut self, bytes: u64) -> Result<Arc<DeviceBlock>> {
        let memory = &self.executor.memory;
        let block = memory.allocate(self.current, self.stream, bytes)?;
        let block = Arc::new(block);
        self.blocks.push(Arc::clone(&block));
        Ok(block)
    }

    /// Records the end of the work in all blocks that are written or read, keeps the owners of everything else that is read
    /// until then, and sets the result's completion; a move has none. Owners of lent memory are kept if it belongs to another
    /// stream. In a capture there is no end, owners are the caller's to keep or the table's (`ListTable::keep_for_graph`), and only
    /// samples that a device selects have a completion.
    pub fn finish(
        &mut self,
        out_owners: &[Owner],
        is_move: bool,
        read: &Readable<'_>,
        options: &RunOptions,
    ) -> Result<()> {
        let (context, index_check) = (self.current.context(), self.index_check.take());
        if self.is_capturing {
            let in_graph =
                |index_check| Arc::new(Completion::new(context, None, Some(index_check), None));
            self.result.completion = index_check.map(in_graph);
            return Ok(());
        }
        let end = Arc::new(self.executor.events.take(self.current)?);
        self.stream.record(&end)?;
        for block in self.blocks.iter().map(Arc::as_ref).chain(self.blocks_of(out_owners)) {
            block.set_ready(self.stream, Arc::clone(&end))?;
        }
        // windrow's own blocks carry the event, so they need not be kept alive here.
        for block in &read.blocks {
            block.set_read(self.stream, Arc::clone(&end))?;
        }
        let mut owners: SmallVec<[Owner; 2]> = read.others.iter().copied().cloned().collect();
        // Another library may reuse its memory at once, in the order of its own stream.
        let is_elsewhere =
            |memory: &Arc<dyn OutputMemory>| memory.stream().handle() != self.stream.handle();
        if options.memory.as_ref().is_some_and(is_elsewhere) {
            owners.extend(self.lent.iter().cloned());
        }
        let keep_alive = (!owners.is_empty()).then(|| Arc::clone(&self.executor.keep_alive));
        if let Some(keep_alive) = &keep_alive {
            keep_alive.until(self.stream.handle(), Arc::clone(&end), owners);
        }
        // A move has no batch that waits for its end: the next call releases the owners of what has been read.
        let completion =
            (!is_move).then(|| Completion::new(context, Some(end), index_check, keep_alive));
        self.result.completion = completion.map(Arc::new);
        Ok(())
    }
}

/// Owners of samples, until the work on these has ended, and the ends of calls that wrote them.
#[derive(Default)]
pub(crate) struct Readable<'p> {
    /// Memory of windrow's on the device, each block once.
    blocks: SmallVec<[&'p DeviceBlock; 4]>,
    others: SmallVec<[&'p Owner; 4]>,
    ends: SmallVec<[&'p End; 1]>,
}

/// Leaves each block once, however many samples are in it, in the order of their addresses.
fn each_once(blocks: &mut SmallVec<[&DeviceBlock; 4]>) {
    blocks.sort_unstable_by_key(|block| std::ptr::from_ref(*block));
    blocks.dedup_by(|a, b| std::ptr::eq(*a, *b));
}
