//! One run of a plan on a device: what is enqueued, and in which order.
#![allow(unsafe_code)] // Launches and copies between raw addresses.

use std::fmt::Display;
use std::sync::Arc;

use super::download;
use super::driver::{Current, PooledEvent, StreamRef};
use super::executor::Executor;
use super::late::Late;
use super::memory::DeviceBlock;
use super::numbers::{known_numbers, KnownNumbers};
use super::params;
use super::ring::Slot;
use super::table::{Table, Values};
use super::upload;
use crate::host::{Helpers, MemoryPool};
use crate::observe::{Span, Stage, Traffic};
use crate::plan::{is_copied, is_upload, uploaded_together, Field, Op, Plan, Role, Spec};
use crate::run_options::{OutputMemory, RunOptions};
use crate::tensor::{bytes_of, DType, Device, Error, Layout, Owner, Result, Stream, Tensor};

/// What a run on a device gives.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// The tensor of each field that was run here and has memory of ours.
    pub tensors: Vec<(usize, Tensor)>,
    /// Batches that came back to be spread over an output of the caller's that is not row-major.
    pub spread: Vec<(Tensor, *mut u8, Layout)>,
    /// Lengths and offsets of each leaf whose batch is on the device.
    pub numbers: Vec<(usize, Role, Tensor)>,
    /// What all of these are in, if it is one allocation on the device.
    pub arena: Option<Tensor>,
    pub traffic: Traffic,
    /// The end of the work; not in a graph.
    pub late: Option<Arc<Late>>,
}

/// One run.
pub(super) struct Run<'r> {
    pub executor: &'r Executor,
    pub current: &'r Current<'r>,
    pub stream: StreamRef<'r>,
    pub is_capturing: bool,
    /// What the work waits for.
    pub producers: Vec<StreamRef<'r>>,
    /// Device memory had for this run: given back behind it, whether it fails or not.
    pub blocks: Vec<Arc<DeviceBlock>>,
    /// What small outputs are in together, and how much of it is theirs by now.
    pub shared: Option<(Arc<DeviceBlock>, u64)>,
    /// Page-locked memory that is being filled or copied.
    pub slot: Option<Slot<'r>>,
    /// Owners of outputs in memory of another library's.
    pub lent: Vec<Owner>,
    pub done: Done,
}

/// Outputs of at most so many bytes share memory with others of their call, which stays as long as one of them does.
const MAX_SHARED_BYTES: u64 = 16 << 10;

/// They begin as far apart as the driver's own allocations.
const SHARED_ALIGN: u64 = 256;

fn is_small(bytes: u64) -> bool {
    (1..=MAX_SHARED_BYTES).contains(&bytes)
}

fn is_on_device(spec: &Spec) -> bool {
    matches!(spec.device, Device::Cuda(_))
}

/// Whether a field is run on the device: its data is read or written there, or it is written there.
pub(crate) fn is_device_field(plan: &Plan<'_>, field: usize) -> bool {
    let field = &plan.fields[field];
    let spec = &plan.specs[field.leaf];
    let reads = matches!(spec.source, Device::Cuda(_)) && field.role == Role::Data;
    reads || is_on_device(spec)
}

/// Whether the samples of a field have to be brought to the device. Other host memory, which is
/// page-locked, the kernels read themselves.
pub(super) fn must_upload(plan: &Plan<'_>, index: usize, is_capturing: bool) -> bool {
    let field = &plan.fields[index];
    let reads = matches!(field.op, Op::Read { .. }) && field.numel() > 0;
    let is_pageable = plan.specs[field.leaf].source == Device::Cpu;
    reads && (is_pageable || !is_capturing && is_copied(plan, field))
}

impl Run<'_> {
    pub fn assemble(
        &mut self,
        plan: &mut Plan<'_>,
        own: &[usize],
        options: &RunOptions,
        host: &Arc<MemoryPool>,
        threads: Option<&Helpers>,
    ) -> Result<()> {
        // Memory first, so that nothing is enqueued if there is none.
        let arena = plan.arena.as_ref().filter(|arena| matches!(arena.device, Device::Cuda(_)));
        if let Some(layout) = arena.map(|arena| arena.layout().clone()) {
            let memory = self.output(options, DType::U8, layout)?;
            plan.place_in(&memory);
            self.done.arena = Some(memory);
        }
        let known = known_numbers(plan)?;
        self.share_outputs(plan, own, options, &known)?;
        let mut places = vec![None; plan.fields.len()];
        let mut back = Vec::new();
        let mut spread = vec![None; plan.fields.len()];
        for &index in own {
            let (bytes, out) = (plan.fields[index].bytes(), plan.fields[index].out);
            let on_device = is_on_device(&plan.specs[plan.fields[index].leaf]);
            let address = match out.filter(|_| on_device) {
                Some(out) => out.addr() as u64,
                None if on_device => {
                    let field = &plan.fields[index];
                    let tensor = self.output(options, field.dtype, field.layout.clone())?;
                    let address = tensor.data_ptr().addr() as u64;
                    self.done.tensors.push((index, tensor));
                    address
                }
                None => {
                    let block = self.allocate(bytes)?;
                    back.push((index, block.address()));
                    if let Some(out) = out.filter(|_| !plan.fields[index].layout.is_compact()) {
                        let compact = Field { out: None, ..plan.compacted(index)? };
                        let field = std::mem::replace(&mut plan.fields[index], compact);
                        spread[index] = Some((out, field.layout));
                    }
                    block.address()
                }
            };
            places[index] = Some(address);
        }
        let returned = back
            .iter()
            .map(|&(index, _)| self.host_memory(plan, index, host))
            .collect::<Result<Vec<_>>>()?;
        let numbers = self.numbers(plan, options, known)?;
        // Behind the allocations: memory just given may be in use by work that is enqueued already.
        self.order_behind_producers(plan, own, options)?;

        let together = uploaded_together(plan);
        for &index in own.iter().filter(|index| !together.contains(index)) {
            if let (Some(place), true) =
                (places[index], must_upload(plan, index, self.is_capturing))
            {
                if self.upload(plan, index, place, threads)? {
                    places[index] = None;
                }
            }
        }
        if !together.is_empty() {
            upload::together(self, plan, &together, threads)?;
        }
        let values: Vec<Values<'_>> = numbers.iter().map(Number::values).collect();
        self.launch(plan, &places, &values)?;

        let mut is_copying = false;
        for (&(index, address), (memory, _)) in back.iter().zip(&returned) {
            let bytes = plan.fields[index].bytes();
            let is_pinned = plan.specs[plan.fields[index].leaf].device == Device::Pinned;
            // SAFETY: a block of so many bytes, and host memory that `host_memory` measured; both are
            // held until the copy is done.
            unsafe {
                match is_pinned {
                    true => self.stream.d2h(*memory, address, bytes as usize)?,
                    false => download::bytes(self, address, *memory, bytes, threads)?,
                }
            }
            is_copying |= is_pinned;
            self.done.traffic.bytes_to_host += bytes;
        }
        self.finish(plan, own, options)?;
        if is_copying {
            self.stream.synchronize()?;
        }
        for (&(index, _), (_, tensor)) in back.iter().zip(returned) {
            match (tensor, spread[index].take()) {
                (Some(tensor), Some((out, layout))) => self.done.spread.push((tensor, out, layout)),
                (Some(tensor), None) => self.done.tensors.push((index, tensor)),
                (None, _) => {}
            }
        }
        Ok(())
    }

    /// The distinct streams that have to be waited for: those that wrote samples, and the one that
    /// memory for outputs belongs to.
    pub fn find_producers(&mut self, options: &RunOptions) -> Result<()> {
        let lender = options.memory.iter().map(|memory| memory.stream());
        let mut seen = vec![self.stream.handle()];
        for producer in options.producers.iter().copied().chain(lender).map(Stream::handle) {
            if seen.contains(&producer) {
                continue;
            }
            seen.push(producer);
            // SAFETY: whoever made the `Stream` vouched for its handle.
            let producer = unsafe { self.current.foreign_stream(producer) }?;
            match (self.is_capturing, producer.is_capturing()?) {
                // What happens outside of a capture cannot be waited for in it.
                (true, false) => continue,
                // To wait for it would draw our stream into the capture.
                (false, true) => {
                    return Err(Error::Argument(
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

    /// One event for each producer; and our own tensors know theirs.
    fn order_behind_producers(
        &mut self,
        plan: &Plan<'_>,
        own: &[usize],
        options: &RunOptions,
    ) -> Result<()> {
        for &producer in &self.producers {
            self.executor.events.order(self.current, producer, self.stream)?;
        }
        if self.is_capturing {
            return Ok(());
        }
        let lists = own.iter().map(|&field| plan.fields[field].leaf);
        let owners = lists.flat_map(|leaf| plan.lists[leaf].owners()).chain(&options.keep);
        for block in self.blocks_of(owners) {
            block.wait_on(self.stream)?;
        }
        for block in self.blocks_of(&plan.out_owners) {
            block.wait_for_users(self.current, &self.executor.events, self.stream)?;
        }
        Ok(())
    }

    /// Memory of windrow's on this device, of whatever engine.
    fn block_of<'o>(&self, owner: &'o Owner) -> Option<&'o DeviceBlock> {
        let block = owner.downcast_ref::<DeviceBlock>()?;
        (block.context().raw() == self.current.context().raw()).then_some(block)
    }

    /// Each one once, however many samples are in it.
    fn blocks_of<'o>(&self, owners: impl IntoIterator<Item = &'o Owner>) -> Vec<&'o DeviceBlock> {
        let blocks = owners.into_iter().filter_map(|owner| self.block_of(owner));
        let mut blocks: Vec<_> = blocks.collect();
        blocks.sort_unstable_by_key(|block| std::ptr::from_ref(*block));
        blocks.dedup_by(|a, b| std::ptr::eq(*a, *b));
        blocks
    }

    /// A point behind what is enqueued so far.
    pub fn event(&self) -> Result<Arc<PooledEvent>> {
        let event = Arc::new(self.executor.events.take(self.current)?);
        self.stream.record(&event)?;
        Ok(event)
    }

    /// Enqueues a copy of bytes that `fill` writes, at most a chunk of them.
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
        // Kept if the copy cannot be marked: until the run has waited for it.
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

    pub fn allocate(&mut self, bytes: u64) -> Result<Arc<DeviceBlock>> {
        let block = Arc::new(self.executor.memory.allocate(self.current, self.stream, bytes)?);
        self.blocks.push(Arc::clone(&block));
        Ok(block)
    }

    /// Takes memory for all small outputs of ours in one piece: a tree of many leaves has many of them.
    fn share_outputs(
        &mut self,
        plan: &Plan<'_>,
        own: &[usize],
        options: &RunOptions,
        known: &[KnownNumbers],
    ) -> Result<()> {
        if options.memory.is_some() || plan.arena.is_some() {
            return Ok(());
        }
        let fields = own.iter().map(|&index| &plan.fields[index]);
        let fields =
            fields.filter(|field| field.out.is_none() && is_on_device(&plan.specs[field.leaf]));
        let numbers = known.iter().map(|known| known.bytes.len() as u64);
        let sizes = fields.map(Field::bytes).chain(numbers);
        let sizes: Vec<u64> = sizes.filter(|&bytes| is_small(bytes)).collect();
        if sizes.len() > 1 {
            let bytes = sizes.iter().map(|bytes| bytes.next_multiple_of(SHARED_ALIGN)).sum();
            self.shared = Some((self.allocate(bytes)?, 0));
        }
        Ok(())
    }

    /// Memory on the device for an output, row-major.
    fn output(&mut self, options: &RunOptions, dtype: DType, layout: Layout) -> Result<Tensor> {
        let ordinal = self.current.context().ordinal();
        let device = Device::Cuda(ordinal);
        if let Some(memory) = &options.memory {
            if let Some(tensor) = memory.allocate(dtype, layout.shape(), ordinal)? {
                let is_fit = (tensor.dtype(), tensor.device()) == (dtype, device)
                    && tensor.shape() == layout.shape()
                    && tensor.layout().is_compact()
                    && !tensor.is_read_only();
                if !is_fit {
                    return Err(Error::Argument(format!(
                        "asked for a row-major output, {dtype} {:?} on {device}, the allocator gave {tensor:?}",
                        layout.shape()
                    )));
                }
                self.lent.push(Arc::clone(tensor.owner()));
                return Ok(tensor);
            }
        }
        if self.is_capturing {
            return Err(refused_in_capture("the allocator has no memory for this dtype"));
        }
        let bytes = bytes_of(dtype, layout.shape());
        let (block, begin) = match &mut self.shared {
            Some((block, used)) if is_small(bytes) => {
                let begin = *used;
                *used += bytes.next_multiple_of(SHARED_ALIGN);
                (Arc::clone(block), begin)
            }
            _ => (self.allocate(bytes)?, 0),
        };
        let data = (block.address() + begin) as *mut u8;
        // SAFETY: as many bytes of the block as the compact layout has; it is their owner.
        Ok(unsafe { Tensor::new_unchecked(block, data, dtype, device, layout, false) })
    }

    /// Memory on the host for a field read from the device: the caller's or ours.
    fn host_memory(
        &self,
        plan: &Plan<'_>,
        index: usize,
        host: &Arc<MemoryPool>,
    ) -> Result<(*mut u8, Option<Tensor>)> {
        let field = &plan.fields[index];
        let device = plan.specs[field.leaf].device;
        if let Some(out) = field.out {
            return Ok((out, None));
        }
        let (dtype, layout) = (field.dtype, field.layout.clone());
        let tensor = if device == Device::Pinned {
            let block = self.executor.pinned.take(self.current, field.bytes())?;
            block.into_tensor(dtype, layout)
        } else {
            host.allocate(field.bytes())?.into_tensor(dtype, layout)
        };
        Ok((tensor.data_ptr(), Some(tensor)))
    }

    /// Memory for lengths and offsets of batches on the device; and the zeros of an arena's gaps.
    fn numbers(
        &mut self,
        plan: &Plan<'_>,
        options: &RunOptions,
        known: Vec<KnownNumbers>,
    ) -> Result<Vec<Number>> {
        let mut all = Vec::new();
        for KnownNumbers { leaf, role, dtype, shape, bytes } in known {
            let tensor = match (&plan.arena, &self.done.arena) {
                (Some(arena), Some(memory)) => arena.tensor(memory, leaf, role)?,
                _ => self.output(options, dtype, Layout::compact(dtype, &shape)?)?,
            };
            all.push(Number { address: tensor.data_ptr().addr() as u64, dtype, bytes });
            self.done.numbers.push((leaf, role, tensor));
        }
        if let (Some(arena), Some(memory)) = (&plan.arena, &self.done.arena) {
            let base = memory.data_ptr().addr() as u64;
            all.extend(arena.gaps().map(|(begin, count)| Number {
                address: base + begin,
                dtype: DType::U8,
                bytes: vec![0; count],
            }));
        }
        Ok(all)
    }

    /// Brings the samples of a field to the device: as the batch itself, or else as they are, for the
    /// kernel to work on. Says whether it is the batch.
    fn upload(
        &mut self,
        plan: &mut Plan<'_>,
        index: usize,
        place: u64,
        threads: Option<&Helpers>,
    ) -> Result<bool> {
        let leaf = plan.fields[index].leaf;
        if is_upload(plan, &plan.fields[index]) {
            self.upload_field(plan, index, place, threads)?;
            return Ok(true);
        }
        let staged = {
            let (packed, offsets) = Plan::packed(&plan.lists[leaf])?;
            let (block, bytes) = (self.allocate(offsets.total() as u64)?, offsets.total() as u64);
            match plan.specs[leaf].source {
                Device::Pinned => {
                    upload::copied(self, &plan.lists[leaf], &offsets, block.address())?;
                    self.done.traffic.bytes_to_device += bytes;
                }
                _ => self.upload_field(&packed, 0, block.address(), threads)?,
            }
            let device = Device::Cuda(self.current.context().ordinal());
            upload::staged(&plan.lists[leaf], &offsets, block.address(), device)?
        };
        plan.fields[index] = plan.reread(index, &staged);
        Ok(false)
    }

    fn upload_field(
        &mut self,
        plan: &Plan<'_>,
        index: usize,
        place: u64,
        threads: Option<&Helpers>,
    ) -> Result<()> {
        upload::field(self, plan, index, place, threads)?;
        self.done.traffic.bytes_to_device += plan.fields[index].bytes();
        Ok(())
    }

    fn launch(
        &mut self,
        plan: &Plan<'_>,
        places: &[Option<u64>],
        values: &[Values<'_>],
    ) -> Result<()> {
        let _span = Span::enter(Stage::Launch);
        let (policy, num_sms) = (&self.executor.policy, self.current.context().info().num_sms);
        let table = Table::new(plan, places, values, num_sms, policy)?;
        if table.num_items() == 0 {
            return Ok(());
        }
        let address = match table.is_inline(policy) {
            true => None,
            false => Some(self.upload_table(&table)?),
        };
        let parameters = table.parameters(address, policy);
        let is_large = parameters.len() * 8 > params::SMALL_BYTES;
        let kernel = &self.executor.kernels[usize::from(is_large)];
        // A warp for each item.
        let grid = table.num_items().div_ceil(policy.threads / 32);
        let values = [parameters.as_ptr().cast()];
        // SAFETY: the kernel has one parameter, of this size (`Table::parameters`). Samples and
        // outputs are as the plan's maker promised, and held until the event after this.
        unsafe { self.stream.launch(kernel, [grid, 1, 1], [policy.threads, 1, 1], 0, &values) }?;
        self.done.traffic.launches += 1;
        Ok(())
    }

    /// Brings a table that is too large for parameters to the device.
    fn upload_table(&mut self, table: &Table) -> Result<u64> {
        let bytes = table.as_bytes();
        if self.is_capturing {
            let limit = self.executor.policy.inline_bytes;
            return Err(refused_in_capture(format_args!(
                "this batch's table has {} bytes, of which at most {limit} go into the parameters of a \
                 kernel; capture fewer samples, or a list of rows of one table",
                bytes.len()
            )));
        }
        let block = self.allocate(bytes.len() as u64)?;
        // SAFETY: the block has as many bytes, and is held until the event after the launch.
        unsafe { upload::bytes(self, block.address(), bytes) }?;
        Ok(block.address())
    }

    /// Marks the end of the work, for all who have to wait for it.
    fn finish(&mut self, plan: &Plan<'_>, own: &[usize], options: &RunOptions) -> Result<()> {
        if self.is_capturing {
            return Ok(());
        }
        let event = Arc::new(self.executor.events.take(self.current)?);
        self.stream.record(&event)?;
        for block in self.blocks.iter().map(Arc::as_ref).chain(self.blocks_of(&plan.out_owners)) {
            block.set_ready(Arc::clone(&event));
        }
        self.done.late = Some(Arc::new(Late::new(self.current.context(), Arc::clone(&event))));
        // What is in pageable memory has been read.
        let late = own.iter().map(|&field| plan.fields[field].leaf);
        let late = late.filter(|&leaf| plan.specs[leaf].source != Device::Cpu);
        let lists = late.flat_map(|leaf| plan.lists[leaf].owners());
        // In its own order, another library may give its memory out again at once.
        let is_elsewhere =
            |memory: &Arc<dyn OutputMemory>| memory.stream().handle() != self.stream.handle();
        let lent = match options.memory.as_ref().is_some_and(is_elsewhere) {
            true => &self.lent[..],
            false => &[],
        };
        let owners = || options.keep.iter().chain(lists.clone()).chain(lent);
        // Our own memory waits by itself, which spares it being held.
        for block in self.blocks_of(owners()) {
            block.set_read(self.stream.handle(), Arc::clone(&event));
        }
        let held: Vec<Owner> =
            owners().filter(|owner| self.block_of(owner).is_none()).cloned().collect();
        if !held.is_empty() {
            self.executor.held.until(event, held);
        }
        Ok(())
    }
}

/// Numbers on their way to the device.
struct Number {
    address: u64,
    dtype: DType,
    bytes: Vec<u8>,
}

impl Number {
    fn values(&self) -> Values<'_> {
        Values { out: self.address, dtype: self.dtype, bytes: &self.bytes }
    }
}

/// What cannot be done while the stream is captured, and the cure.
pub(super) fn refused_in_capture(what: impl Display) -> Error {
    Error::Argument(format!("the stream is being captured in a graph: {what}"))
}

/// Refuses what cannot be recorded in a graph: memory of ours, copies from and to pageable memory.
/// Another library's memory it may be, if that belongs to the stream: such libraries know of captures.
pub(super) fn check_capture(
    plan: &Plan<'_>,
    options: &RunOptions,
    stream: StreamRef<'_>,
) -> Result<()> {
    let has_memory =
        options.memory.as_ref().is_some_and(|memory| memory.stream().handle() == stream.handle());
    let refuse = |what: &str| Err(refused_in_capture(what));
    for (index, field) in plan.fields.iter().enumerate() {
        let spec = &plan.specs[field.leaf];
        if !is_device_field(plan, index) || !is_on_device(spec) {
            return refuse("the samples and the batch have to be on the device");
        }
        if spec.source == Device::Cpu && field.role == Role::Data {
            return refuse("samples in pageable host memory cannot be read in it");
        }
        if has_memory {
            continue;
        }
        if field.out.is_none() {
            return refuse(
                "give the memory to write to (out=), and ask for no mask or batch_index",
            );
        }
        if spec.lengths.is_some() {
            return refuse("lengths and offsets need memory: capture a stack");
        }
    }
    Ok(())
}
