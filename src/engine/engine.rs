//! [`Engine`]: runs plans, owns threads and output memory.

use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use crate::batch::{bind_arena, Batch, Fields, LeafOutput};
use crate::collate::Collate;
use crate::cuda;
use crate::host::{self, MemoryPool, Outputs, PipelinedCopy, StreamingStores, Threads};
use crate::observe::{Counters, Span, Stage, Stats, Tally};
use crate::plan::{is_shared, AsTarget, BoolSlices, Leaf, Plan, Role};
use crate::run_options::RunOptions;
use crate::samples::Samples;
use crate::tensor::{bytes_of, DType, Device, Error, Layout, Result, Stream, Tensor};

/// Assembles batches. Cheap to clone: clones share threads, memory and counters.
///
/// The methods by the file of `src/engine/` that has them; a [`Plan`] makes itself, and an engine runs it:
///
/// | file | methods |
/// |---|---|
/// | `builder` | [`host`](Engine::host), [`host_with`](Engine::host_with), [`cuda`](Engine::cuda), [`builder`](Engine::builder) |
/// | `engine` | [`assemble`](Engine::assemble), [`assemble_on`](Engine::assemble_on), [`assemble_into`](Engine::assemble_into); [`run`](Engine::run), [`run_with`](Engine::run_with) (the steps on a device: `on_device`, `page_locked`); [`empty`](Engine::empty), [`empty_cache`](Engine::empty_cache); [`stats`](Engine::stats), [`reset_stats`](Engine::reset_stats), [`num_threads`](Engine::num_threads) |
/// | `small` | none of its own: batches without a plan, for the calls of `engine` |
/// | `moves` | [`copy_many`](Engine::copy_many), [`copy_many_with`](Engine::copy_many_with) (ids on a device: `chosen_moves`; several devices: `moves_across`) |
/// | `packed` | [`pack`](Engine::pack) |
/// | `resident` | [`resident`](Engine::resident) |
/// | `streams` | [`stream`](Engine::stream), [`adopt`](Engine::adopt), [`adopt_event`](Engine::adopt_event), [`order`](Engine::order) |
/// | `staging`, `bindings` | what bindings in other languages need beside these, hidden here |
///
/// ```
/// use windrow::{Collate, Engine, SampleView};
/// let engine = Engine::host();
/// let rows = [[1u8, 2], [3, 4]];
/// let samples = rows.each_ref().map(|row| SampleView::from_slice(row, &[2]).unwrap());
/// let batch = engine.assemble(&samples, &Collate::stack())?;
/// assert_eq!(batch.data().as_slice::<u8>()?, [1, 2, 3, 4]);
/// # Ok::<(), windrow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Engine {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) threads: Threads,
    pub(super) memory: Arc<MemoryPool>,
    pub(super) counters: Counters,
    pub(super) reference: bool,
    /// The device of batches if the call does not name one; `None` keeps the samples' device.
    pub(super) device: Option<Device>,
    pub(super) devices: cuda::Devices,
    pub(super) streaming_stores: Option<StreamingStores>,
}

impl Shared {
    /// The ordinal of the CUDA device that page-locks memory: that of the engine, else 0.
    pub(super) fn ordinal(&self) -> u32 {
        match self.device {
            Some(Device::Cuda(ordinal)) => ordinal,
            _ => 0,
        }
    }
}

/// Memory of the engine's for each output of a plan, and the rows of each that are copied already.
type HostOutputs = (SmallVec<[Option<Tensor>; 1]>, Vec<Option<PipelinedCopy>>);

impl Engine {
    /// The outputs that are written around the caches: those of the engine's options, else of this machine.
    pub(super) fn streaming_stores(&self) -> StreamingStores {
        self.shared.streaming_stores.unwrap_or_else(|| StreamingStores::chosen().stores)
    }

    /// Assembles one batch.
    ///
    /// # Errors
    /// Every error of input, see [`Error`]; [`Error::OutOfMemory`]; [`Error::Argument`] if threads cannot be started; for work
    /// on a device [`Error::NoDriver`] and [`Error::Cuda`].
    ///
    /// ```
    /// use windrow::{Collate, Engine, Pad};
    /// let rows = [vec![1, 2], vec![3]];
    /// let batch = Engine::host().assemble(&rows, &Collate::pad(Pad::new().value(-1)))?;
    /// assert_eq!(batch.data().as_slice::<i32>()?, [1, 2, 3, -1]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn assemble<S: Samples + ?Sized>(&self, samples: &S, collate: &Collate) -> Result<Batch> {
        self.assemble_with(samples, collate, None)
    }

    /// Assembles one batch by work enqueued on a stream, behind what is already on it. The call waits for the device only if
    /// the batch is placed on the host. Samples given by address in device or page-locked memory have to stay until the work
    /// is done, and a user of the batch on another stream orders that stream behind this one ([`Tensor::ready_on`]).
    ///
    /// # Errors
    /// As [`Engine::assemble`]; [`Error::Argument`] for a stream of another device or context, or one
    /// that is captured in a graph, where no memory can be allocated; [`Error::Cuda`].
    ///
    /// ```
    /// use windrow::{Collate, Device, Engine};
    /// if let Ok(engine) = Engine::cuda(0) {
    ///     let (stream, collate) = (engine.stream(0)?, Collate::stack().device(Device::Cuda(0)));
    ///     let batch = engine.assemble_on(&[[1, 2], [3, 4]], &collate, &stream)?;
    ///     assert_eq!(batch.data().device(), Device::Cuda(0));
    /// }
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn assemble_on<S: Samples + ?Sized>(
        &self,
        samples: &S,
        collate: &Collate,
        stream: &Stream,
    ) -> Result<Batch> {
        self.assemble_with(samples, collate, Some(*stream))
    }

    /// Assembles as [`Engine::assemble`] does, on this stream if there is one; a batch without a plan ignores it.
    fn assemble_with<S: Samples + ?Sized>(
        &self,
        samples: &S,
        collate: &Collate,
        stream: Option<Stream>,
    ) -> Result<Batch> {
        let begin = self.shared.counters.now();
        let rows = samples.to_rows(Engine::table_limits(collate));
        let small = rows.and_then(|rows| self.small_rows(rows, collate, None, begin, None));
        if let Some(LeafOutput { data: Some(data), fields }) = small {
            return Ok(Batch::new(data, fields));
        }
        let (samples, collate) = (samples.to_list(), self.placed(collate));
        let leaf = Leaf { samples: &samples, collate: &collate, path: "", out: None };
        let options = RunOptions { stream, ..RunOptions::default() };
        let mut filled = self.run_with(self.plan_leaves(&[leaf], begin)?, options)?;
        match filled.pop().and_then(LeafOutput::into_batch) {
            Some(batch) => Ok(batch),
            None => unreachable!("a plan of one leaf without an output gives one tensor"),
        }
    }

    /// Assembles one batch into the caller's memory, which must have exactly the batch's shape and dtype. Returns the lengths,
    /// offsets and mask; the data stays where it is.
    ///
    /// # Errors
    /// As [`Engine::assemble`]; [`Error::Shape`], [`Error::DType`] or [`Error::Device`] if the output does not fit;
    /// [`Error::Layout`] if it is read-only or shared, overlaps a sample, or has elements that overlap.
    ///
    /// ```
    /// use windrow::{plan::Target, Collate, Engine};
    /// let mut memory = [0; 4];
    /// let mut out = Target::from_slice(&mut memory, &[2, 2])?;
    /// Engine::host().assemble_into(&[[1, 2], [3, 4]], &Collate::stack(), &mut out)?;
    /// assert_eq!(memory, [1, 2, 3, 4]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn assemble_into<S: Samples + ?Sized>(
        &self,
        samples: &S,
        collate: &Collate,
        out: &mut impl AsTarget,
    ) -> Result<Fields> {
        let (begin, target) = (self.shared.counters.now(), out.as_target()?);
        let rows = samples.to_rows(Engine::table_limits(collate));
        let small =
            rows.and_then(|rows| self.small_rows(rows, collate, Some(&target), begin, None));
        if let Some(filled) = small {
            return Ok(filled.fields);
        }
        let (samples, collate) = (samples.to_list(), self.placed(collate));
        let leaf = Leaf { samples: &samples, collate: &collate, path: "", out: Some(&target) };
        let mut filled = self.run(self.plan_leaves(&[leaf], begin)?)?;
        filled.pop().map(|filled| filled.fields).ok_or(Error::Empty)
    }

    /// Plans leaves as [`Plan::for_leaves`] does, without the engine's device, which [`Engine::placed`] sets;
    /// counted as a stage that began at `begin`, whose time is not summed if that is `None`.
    ///
    /// # Errors
    /// As [`Plan::for_leaves`].
    pub(super) fn plan_leaves<'s, 'a: 's>(
        &self,
        leaves: &[Leaf<'s, 'a>],
        begin: Option<Instant>,
    ) -> Result<Plan<'s>> {
        let _span = Span::timed(Stage::Plan, begin, &self.shared.counters.plan_ns);
        Plan::for_leaves(leaves)
    }

    /// Plans leaves as [`Plan::partly_in_arena`] does, without the engine's device, which [`Engine::placed`] sets; counted as a
    /// stage that began at `begin`, whose time is not summed if that is `None`.
    ///
    /// # Errors
    /// As [`Plan::partly_in_arena`].
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn plan_in_arena<'s, 'a: 's>(
        &self,
        leaves: &[Leaf<'s, 'a>],
        is_in: impl Fn(usize) -> bool,
        begin: Option<Instant>,
    ) -> Result<Plan<'s>> {
        let _span = Span::timed(Stage::Plan, begin, &self.shared.counters.plan_ns);
        Plan::partly_in_arena(leaves, is_in)
    }

    /// Runs a plan, once: outputs that it was planned with are borrowed until it is done.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Argument`] if threads cannot be started; [`Error::Layout`] if another plan with one of its
    /// outputs runs at the same time. For work on a device as [`Engine::assemble_on`], and [`Error::Device`] for leaves on several
    /// devices.
    ///
    /// ```
    /// use windrow::{Collate, Engine, Plan, SampleView};
    /// let rows = [SampleView::from([1u8, 2].as_slice()), SampleView::from([3u8, 4].as_slice())];
    /// let outputs = Engine::host().run(Plan::new(&rows, &Collate::stack())?)?;
    /// assert_eq!(outputs.len(), 1);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn run(&self, plan: Plan<'_>) -> Result<Vec<LeafOutput>> {
        self.run_with(plan, RunOptions::default())
    }

    /// Runs a plan as [`Engine::run`] does, with options for streams, owners and memory.
    ///
    /// # Errors
    /// As [`Engine::run`]; [`Error::Argument`] for a limit of 0 blocks; [`Error::Layout`], [`Error::Device`] or
    /// [`Error::DType`] for memory given for an arena that is read-only, shared, too small, elsewhere, or not bytes.
    ///
    /// ```
    /// use windrow::engine::RunOptions;
    /// use windrow::{Collate, Engine, Plan};
    /// let plan = Plan::new(&[[1u8, 2], [3, 4]], &Collate::stack())?;
    /// let outputs = Engine::host().run_with(plan, RunOptions::default())?;
    /// assert_eq!(outputs[0].data.as_ref().expect("no out").shape(), [2, 2]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn run_with(&self, mut plan: Plan<'_>, mut options: RunOptions) -> Result<Vec<LeafOutput>> {
        let counters = &self.shared.counters;
        let span = Span::timed(Stage::Run, counters.now(), &counters.run_ns);
        options.check()?;
        // Before `_bools`, which writes when it is dropped.
        let _in_use = plan.use_targets()?;
        let tally = Tally::for_plan(&plan);
        let written = plan.outputs().iter();
        let _bools =
            BoolSlices::of(written.map(|output| (output.out, &output.layout, output.is_bools)));
        let mut filled: Vec<LeafOutput> = Vec::with_capacity(plan.batch_shapes().len());
        for batch_shape in plan.batch_shapes() {
            filled.push(LeafOutput { data: None, fields: Fields::new(batch_shape)? });
        }
        let executor = self.executor_of(&plan, &options)?;
        let current = executor.as_ref().map(|executor| executor.enter()).transpose()?;
        if let (Some(executor), Some(current), true) =
            (&executor, &current, plan.has_mapped_samples())
        {
            if !executor.reads_mapped(current, false)? {
                plan.reroute(false)?;
            }
        }
        // A call that a capture does not allow is refused here, before it can invalidate the capture.
        let device = match (&executor, &current) {
            (Some(executor), Some(current)) => {
                Some((&**executor, current, executor.launch_stream(current, &plan, &options)?))
            }
            _ => None,
        };
        // All host memory is allocated first: without it nothing is written, on a device either.
        let arena = self.host_arena(&plan, &mut options)?;
        let placements = plan.placements(arena.as_ref());
        let (mut tensors, ahead) = self.host_outputs(&plan, &placements, &mut options)?;
        let arena = match device {
            Some(device) => arena.or(self.run_on_device(
                device,
                &plan,
                &placements,
                &options,
                &mut filled,
                &mut tensors,
            )?),
            None => arena,
        };
        if !(0..plan.outputs().len()).all(|index| plan.is_device_output(index)) {
            self.run_on_host(&plan, &placements, &mut tensors, ahead)?;
        }
        counters.count(&tally);
        span.note(&tally);
        drop(span);
        for (output, tensor) in plan.outputs().iter().zip(tensors) {
            if let Some(tensor) = tensor {
                filled[output.leaf].set(output.role, tensor);
            }
        }
        if let (Some(arena), Some(memory)) = (&plan.arena, arena) {
            bind_arena(arena, &memory, &mut filled)?;
        }
        Ok(filled)
    }

    /// The memory of a plan's arena, if that is on the host: the caller's, which leaves the options and is checked, else new
    /// memory.
    fn host_arena(&self, plan: &Plan<'_>, options: &mut RunOptions) -> Result<Option<Tensor>> {
        let arena = plan.arena.as_ref().filter(|arena| !arena.device.is_cuda());
        let Some(arena) = arena else { return Ok(None) };
        match options.arena.take() {
            Some(mut given) => arena.accept(&mut given).map(Some),
            None => {
                let layout = arena.layout().clone();
                self.host_tensor(DType::U8, layout, arena.device, options).map(Some)
            }
        }
    }

    /// Allocates each output that the host writes and that has no memory, or takes over the copy that is in progress; the
    /// options then have none. `None` for outputs that the device writes or that have a place.
    fn host_outputs(
        &self,
        plan: &Plan<'_>,
        placements: &[Option<*mut u8>],
        options: &mut RunOptions,
    ) -> Result<HostOutputs> {
        let mut tensors = SmallVec::with_capacity(plan.outputs().len());
        // Most calls have none.
        let mut ahead = Vec::new();
        if !options.ahead.is_empty() {
            ahead.resize_with(plan.outputs().len(), || None);
        }
        let mut shared = self.shared_pinned(plan, placements, options)?;
        for (index, output) in plan.outputs().iter().enumerate() {
            let is_new = placements[index].is_none() && !plan.is_device_output(index);
            let mut rows = options.ahead.get_mut(output.leaf);
            let rows = rows.as_mut().filter(|_| output.role == Role::Data && is_new);
            let rows = rows.and_then(|rows| rows.take()).filter(|rows| rows.fits(output));
            tensors.push(match rows.is_none() && is_new {
                true => {
                    let device = plan.batch_shapes()[output.leaf].device;
                    let is_part = device == Device::Pinned && is_shared(output.bytes());
                    Some(match shared.as_mut().filter(|_| is_part) {
                        Some(shared) => shared.take(output)?,
                        None => {
                            let layout = output.layout.clone();
                            self.host_tensor(output.dtype, layout, device, options)?
                        }
                    })
                }
                false => None,
            });
            if let Some(rows) = rows {
                ahead[index] = Some(rows);
            }
        }
        Ok((tensors, ahead))
    }

    /// Writes the outputs that are on the host, and returns when they are written. The block of a pipelined copy
    /// becomes the tensor of its output.
    fn run_on_host(
        &self,
        plan: &Plan<'_>,
        placements: &[Option<*mut u8>],
        tensors: &mut [Option<Tensor>],
        mut ahead: Vec<Option<PipelinedCopy>>,
    ) -> Result<()> {
        let mut addresses = Vec::with_capacity(plan.outputs().len());
        for (index, tensor) in tensors.iter_mut().enumerate() {
            let rows = ahead.get_mut(index).and_then(Option::take);
            let output = &plan.outputs()[index];
            if let Some(block) = rows.and_then(PipelinedCopy::finish) {
                *tensor = Some(block.into_tensor(output.dtype, output.layout.clone()));
                addresses.push(None);
                continue;
            }
            let is_whole = |tensor: &Tensor| tensor.nbytes() as u64 == output.bytes();
            debug_assert!(plan.is_device_output(index) || tensor.as_ref().is_none_or(is_whole));
            let place = placements[index].or(tensor.as_ref().map(Tensor::data_ptr));
            addresses.push(place.filter(|_| !plan.is_device_output(index)));
        }
        debug_assert_eq!(addresses.len(), plan.outputs().len());
        // SAFETY: an address is that of memory just allocated for the output's compact layout, which
        // nothing else has seen, that of its place in an arena (`Arena::accept`), or that of the target
        // the plan borrows, whose layout the output has.
        #[allow(unsafe_code)]
        let outputs = unsafe { Outputs::new(addresses) };
        if self.shared.reference {
            host::run_reference(plan, &outputs);
        } else {
            let work = host::Work::new(plan, &outputs, self.streaming_stores());
            let threads = if work.wants_threads() { self.shared.threads.helpers()? } else { None };
            work.run(threads.as_ref());
        }
        Ok(())
    }

    /// Uninitialised memory on the host for a compact layout; page-locked if `device` is, then from the options' allocator if it
    /// gives any. `device` is no CUDA device.
    pub(super) fn host_tensor(
        &self,
        dtype: DType,
        layout: Layout,
        device: Device,
        options: &RunOptions,
    ) -> Result<Tensor> {
        if device == Device::Pinned {
            if let Some(tensor) = options.pinned_tensor(dtype, &layout) {
                self.shared.counters.lend(bytes_of(dtype, layout.shape()));
                return Ok(tensor);
            }
        }
        debug_assert!(!device.is_cuda(), "others are refused where a plan is made");
        self.memory(self.shared.ordinal(), dtype, layout, device, false)
    }

    /// The executor of a device; errors as of [`Engine::stream`].
    pub(super) fn executor(&self, ordinal: u32) -> Result<Arc<cuda::Executor>> {
        self.shared.devices.executor(ordinal)
    }

    /// Zeroed memory from the output pool. On a device it is zeroed in the order of [`Engine::stream`].
    ///
    /// # Errors
    /// For device and page-locked memory [`Error::NoDriver`], and [`Error::Argument`] for a device that is not there; as
    /// [`Layout::try_new`] for an impossible shape; [`Error::OutOfMemory`]; [`Error::Cuda`].
    ///
    /// ```
    /// use windrow::{DType, Device, Engine};
    /// let tensor = Engine::host().empty(DType::F32, &[2, 3], Device::Cpu)?;
    /// assert_eq!((tensor.shape(), tensor.nbytes()), (&[2, 3][..], 24));
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn empty(&self, dtype: DType, shape: &[i64], device: Device) -> Result<Tensor> {
        self.memory(self.shared.ordinal(), dtype, Layout::compact(dtype, shape)?, device, true)
    }

    /// Memory for a compact layout, zeroed or not initialised: page-locked memory through the device `ordinal`, memory of a
    /// device in the order of [`Engine::stream`]. Errors as of [`Engine::empty`].
    pub(super) fn memory(
        &self,
        ordinal: u32,
        dtype: DType,
        layout: Layout,
        device: Device,
        is_zeroed: bool,
    ) -> Result<Tensor> {
        let bytes = bytes_of(dtype, layout.shape());
        let tensor = match device {
            Device::Cuda(ordinal) => {
                return self.executor(ordinal)?.memory(dtype, layout, bytes, is_zeroed)
            }
            Device::Pinned if !crate::HAS_CUDA => return Err(Error::host_only(device)),
            Device::Pinned => self.executor(ordinal)?.pinned(bytes)?.into_tensor(dtype, layout),
            Device::Cpu => self.shared.memory.allocate(bytes)?.into_tensor(dtype, layout),
        };
        if is_zeroed {
            debug_assert_eq!(tensor.nbytes() as u64, bytes);
            // SAFETY: memory just taken for this layout, which nothing else has.
            #[allow(unsafe_code)]
            unsafe {
                tensor.data_ptr().write_bytes(0, tensor.nbytes());
            }
        }
        Ok(tensor)
    }

    /// Counters since the engine was made or since they were reset. Times are measured from the first call of this or of
    /// [`Engine::reset_stats`] on.
    ///
    /// ```
    /// use windrow::{Collate, Engine};
    /// let engine = Engine::host();
    /// engine.reset_stats();
    /// engine.assemble(&[[1u8, 2], [3, 4]], &Collate::stack())?;
    /// assert_eq!(engine.stats().batches, 1);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.shared.counters.watch();
        let stats = self.shared.counters.snapshot(self.shared.memory.stats());
        let (device_bytes, pinned_bytes) = self.shared.devices.bytes();
        let (waits, wait_time) = self.shared.devices.waits();
        Stats { waits, wait_time, device_bytes, pinned_bytes, ..stats }
    }

    /// Sets the counters to 0; the figures of pools, and of memory, stay. Times are measured from then on.
    ///
    /// ```
    /// let engine = windrow::Engine::host();
    /// engine.assemble(&[[1u8, 2], [3, 4]], &windrow::Collate::stack())?;
    /// engine.reset_stats();
    /// assert_eq!(engine.stats().batches, 0);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn reset_stats(&self) {
        self.shared.counters.watch();
        self.shared.counters.reset();
        self.shared.devices.reset_waits();
    }

    /// Gives free output memory back to the system. Waits for the devices that the engine has used.
    ///
    /// ```
    /// let engine = windrow::Engine::host();
    /// drop(engine.assemble(&[[0u8; 1 << 16]; 4], &windrow::Collate::stack())?);
    /// engine.empty_cache();
    /// assert_eq!(engine.stats().pool.free_bytes, 0);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn empty_cache(&self) {
        self.shared.memory.clear();
        self.shared.devices.clear();
    }

    /// Threads that work on a large batch, the calling one included: see [`Engine::builder`].
    ///
    /// ```
    /// let engine = windrow::Engine::builder().threads(2).build()?;
    /// assert_eq!(engine.num_threads(), 2);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn num_threads(&self) -> usize {
        self.shared.threads.count()
    }
}
