//! The executor: one launch for whatever of a plan is on a device, or two if only some outputs are
//! quantised, in the order of a stream.
#![allow(unsafe_code)] // Launches and copies between raw addresses.

use std::sync::Arc;

use super::capture::{check_capture, refused_in_capture};
use crate::cuda::driver::{
    driver_version, image, Context, Current, EventPool, Kernel, LastStream, OwnStream, StreamRef,
    Waits,
};
use crate::cuda::launch::argument_pool::ArgumentPool;
use crate::cuda::launch::policy::Policy;
use crate::cuda::memory::device::DeviceMemory;
use crate::cuda::memory::keep_alive::KeepAlive;
use crate::cuda::memory::list_table::ListTable;
use crate::cuda::memory::pinned::{PinnedBlock, PinnedPool};
use crate::cuda::memory::ring::Ring;
use crate::cuda::memory::trial::Mapping;
use crate::host::{calibration_file, text_in_file};
use crate::plan::{PageCopies, Plan};
use crate::run_options::RunOptions;
use crate::tensor::{bytes_of, DType, Device, DriverError, Error, Layout, Owner, Result, Tensor};

/// The stream that a run is enqueued on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchStream<'c> {
    pub(crate) stream: StreamRef<'c>,
    /// Work goes to a graph.
    pub(crate) is_capturing: bool,
}

/// Everything of one device: kernels, memory, a stream.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) context: Arc<Context>,
    pub(crate) policy: Policy,
    /// Kernels of the common families and of all but the quantised family, each with small and with large parameters.
    pub(crate) kernels: [[Kernel; 2]; 2],
    /// The kernel of the quantised family alone, with large parameters.
    pub(crate) quantise: Kernel,
    /// The kernels that make a table of indices.
    pub(crate) select: [Kernel; 2],
    /// The kernels that move pairs of which a device chooses some.
    pub(crate) moves: [Kernel; 2],
    pub(crate) arguments: ArgumentPool,
    pub(crate) memory: Arc<DeviceMemory>,
    pub(crate) pinned: Arc<PinnedPool>,
    pub(crate) ring: Ring,
    pub(crate) events: Arc<EventPool>,
    /// Apart: memory that others lend on it may outlive the engine.
    pub(crate) stream: Arc<OwnStream>,
    pub(crate) mapping: Mapping,
    /// The last stream of others that work went to.
    last: LastStream,
    /// Internal stream that waits on foreign producers at import, because their streams may be destroyed later.
    arrivals: OwnStream,
    pub(crate) keep_alive: Arc<KeepAlive>,
}

impl Executor {
    /// Loads the kernels, and sets the [`PageCopies`] that were measured of the device. `stream`: where the first work goes, if
    /// the caller has said so; nothing is enqueued on it.
    ///
    /// # Errors
    /// [`Error::NoDriver`], also for a device without stream-ordered memory, or that the kernels do
    /// not fit; [`Error::Argument`] for a device that is not there, or a stream that is being
    /// captured; [`Error::Cuda`].
    pub fn new(ordinal: u32, stream: Option<crate::Stream>) -> Result<Arc<Executor>> {
        let context = Context::primary(ordinal)?;
        if !context.has_pools() {
            return Err(Error::no_driver(format!(
                "cuda:{ordinal} ({}) has no stream-ordered memory, which windrow needs",
                context.info().name
            )));
        }
        let current = context.enter()?;
        if let Some(stream) = stream {
            // SAFETY: the maker of the `Stream` vouched for its handle.
            if unsafe { current.foreign_stream(stream.handle()) }?.is_capturing()? {
                return Err(refused_in_capture(
                    "this engine has not used the device yet, and what it needs cannot be loaded in a \
                     capture; assemble one batch before (or make the engine by Engine::cuda)",
                ));
            }
        }
        let policy = Policy::from_env()?;
        // A file that cannot be read counts as missing.
        if let Some(copies) = measured_copies(&context.info().name) {
            PageCopies::set(ordinal, Some(copies));
        }
        let module = current.load(image()?)?;
        let small_and_large = |name: &str| {
            let of = |size| module.kernel(&format!("windrow_{name}_{size}"));
            Ok::<_, DriverError>([of("small")?, of("large")?])
        };
        let kernels = [small_and_large("assemble")?, small_and_large("assemble_any")?];
        let quantise = module.kernel("windrow_quantise")?;
        let (select, moves) = (small_and_large("select")?, small_and_large("move")?);
        let events = Arc::new(EventPool::default());
        let stream = Arc::new(current.stream(0)?);
        let memory = DeviceMemory::new(&current, &events, &stream)?;
        let arrivals = current.stream(0)?;
        drop(current);
        let (pinned, ring, keep_alive) = (Arc::default(), Ring::default(), Arc::default());
        Ok(Arc::new(Executor {
            context,
            policy,
            kernels,
            quantise,
            select,
            moves,
            arguments: ArgumentPool::default(),
            memory,
            pinned,
            ring,
            events,
            stream,
            mapping: Mapping::default(),
            last: LastStream::default(),
            arrivals,
            keep_alive,
        }))
    }

    /// Makes the device current on the calling thread, for a run.
    ///
    /// # Errors
    /// As [`Context::enter`].
    pub fn enter(&self) -> Result<Current<'_>> {
        self.context.enter()
    }

    /// The stream of a run, and whether a graph captures it. Determined before anything else is done.
    ///
    /// # Errors
    /// [`Error::Argument`] if this plan cannot be recorded in a graph; the capture goes on. [`Error::Index`] of an
    /// earlier batch of its list.
    pub fn launch_stream<'c>(
        &'c self,
        current: &'c Current<'_>,
        plan: &Plan<'_>,
        options: &RunOptions,
    ) -> Result<LaunchStream<'c>> {
        if let Some(list) = ListTable::in_plan(plan) {
            list.check()?;
        }
        let stream = self.stream_for(current, options)?;
        let is_capturing = stream.is_capturing()?;
        if is_capturing {
            check_capture(plan, options, stream)?;
        }
        Ok(LaunchStream { stream, is_capturing })
    }

    /// The stream of the options, or the engine's own if they name none. It may be one that is
    /// being captured.
    ///
    /// # Errors
    /// [`Error::Argument`] for a stream of another device or context; [`Error::Cuda`].
    pub(super) fn stream_for<'c>(
        &'c self,
        current: &'c Current<'_>,
        options: &RunOptions,
    ) -> Result<StreamRef<'c>> {
        match options.stream {
            // The executor's own stream, whose context is known.
            Some(stream) if stream.handle() == self.stream.handle() => Ok(self.stream.on(current)),
            // SAFETY: the maker of the `Stream` vouched for its handle.
            Some(stream) => unsafe { self.last.stream(current, stream.handle()) },
            None => Ok(self.stream.on(current)),
        }
    }

    /// Waits for what is enqueued where a run would be, and where its samples were written: the host may then use the same
    /// memory.
    ///
    /// # Errors
    /// [`Error::Argument`] for a stream that is being captured in a graph, or of another device or context; [`Error::Cuda`].
    pub fn settle(&self, options: &RunOptions) -> Result<()> {
        let current = self.context.enter()?;
        let stream = self.stream_for(&current, options)?;
        if stream.is_capturing()? {
            return Err(refused_in_capture(
                "pairs without a side on the device are copied by the host, which has no part in the graph",
            ));
        }
        stream.synchronize()?;
        for producer in options.producers.iter().filter(|other| other.handle() != stream.handle()) {
            // SAFETY: the maker of the `Stream` vouched for its handle.
            unsafe { current.foreign_stream(producer.handle()) }?.synchronize()?;
        }
        Ok(())
    }

    /// The engine's own stream, for work that no stream was named for.
    pub fn stream(&self) -> Result<crate::Stream> {
        // SAFETY: a stream of ours, which lives as long as the engine.
        Ok(unsafe { crate::Stream::from_raw(self.stream.handle()) })
    }

    /// The owner that keeps the stream in existence after the engine, for memory of another library's that belongs to it. The
    /// stream's drop then waits for its work.
    pub fn stream_owner(&self) -> Owner {
        self.stream.share();
        Arc::clone(&self.stream) as Owner
    }

    /// The stream of our own that stands for foreign producers, ordered behind what is on `producer` now.
    pub fn adopt(&self, producer: crate::Stream) -> Result<crate::Stream> {
        let current = self.context.enter()?;
        // SAFETY: the maker of the `Stream` vouched for its handle.
        let first = unsafe { current.foreign_stream(producer.handle()) }?;
        self.events.order(&current, first, self.arrivals.on(&current))?;
        // SAFETY: a stream of ours, which lives as long as the engine.
        Ok(unsafe { crate::Stream::from_raw(self.arrivals.handle()) })
    }

    /// The stream of [`Executor::adopt`], ordered behind an event of another library.
    ///
    /// # Safety
    /// The handle is that of a live event.
    pub unsafe fn adopt_event(&self, event: usize) -> Result<crate::Stream> {
        let current = self.context.enter()?;
        // SAFETY: the caller's promise.
        unsafe { self.arrivals.on(&current).wait_foreign(event) }?;
        // SAFETY: a stream of ours, which lives as long as the engine.
        Ok(unsafe { crate::Stream::from_raw(self.arrivals.handle()) })
    }

    /// Orders what is enqueued on `consumer` from now on behind what is on `producers` now. In a capture, producers outside of
    /// captures are left out.
    pub fn order(&self, producers: &[crate::Stream], consumer: crate::Stream) -> Result<()> {
        let current = self.context.enter()?;
        // SAFETY: the maker of the `Stream` vouched for its handle.
        let then = unsafe { current.foreign_stream(consumer.handle()) }?;
        let is_capturing = then.capture()?.is_some();
        for producer in producers.iter().filter(|&&producer| producer != consumer) {
            // SAFETY: as above.
            let first = unsafe { current.foreign_stream(producer.handle()) }?;
            // A capture cannot wait for work outside of it.
            if !is_capturing || first.capture()?.is_some() {
                self.events.order(&current, first, then)?;
            }
        }
        Ok(())
    }

    /// Whether a stream belongs to this device; default streams belong to every device.
    pub fn has_stream(&self, stream: crate::Stream) -> Result<bool> {
        let current = self.context.enter()?;
        // SAFETY: the maker of the `Stream` vouched for its handle.
        match unsafe { current.foreign_stream(stream.handle()) } {
            Ok(_) => Ok(true),
            Err(Error::Argument(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The number of the capture that a stream is in; `None` if it is in none. [`Error::Argument`] for a stream of another
    /// device.
    pub fn capture_of(&self, stream: crate::Stream) -> Result<Option<u64>> {
        let current = self.context.enter()?;
        // SAFETY: the maker of the `Stream` vouched for its handle.
        Ok(unsafe { current.foreign_stream(stream.handle()) }?.capture()?)
    }

    /// A tensor of device memory in the order of the engine's own stream, zeroed or not initialised. `bytes` are at
    /// least those of the compact layout. [`Error::OutOfMemory`], [`Error::Cuda`].
    pub fn memory(
        &self,
        dtype: DType,
        layout: Layout,
        bytes: u64,
        is_zeroed: bool,
    ) -> Result<Tensor> {
        let current = self.context.enter()?;
        let stream = self.stream.on(&current);
        let block = Arc::new(self.memory.allocate(&current, stream, bytes)?);
        if is_zeroed {
            // SAFETY: a block of `bytes` bytes, which nothing else has.
            unsafe { stream.memset(block.address(), 0, bytes as usize) }?;
        }
        let event = Arc::new(self.events.take(&current)?);
        stream.record(&event)?;
        block.set_ready(stream, event)?;
        let (data, device) = (block.address() as *mut u8, Device::Cuda(self.context.ordinal()));
        debug_assert!(layout.is_compact() && bytes_of(dtype, layout.shape()) <= bytes);
        // SAFETY: as many bytes as the compact layout has, owned by the block.
        Ok(unsafe { Tensor::new_unchecked(block, data, dtype, device, layout, false) })
    }

    /// At least `bytes` bytes of page-locked host memory for a batch; [`Error::OutOfMemory`], [`Error::Cuda`].
    pub fn pinned(&self, bytes: u64) -> Result<PinnedBlock> {
        self.pinned.take(&self.context.enter()?, bytes)
    }

    /// Returns unused memory to the device, except blocks that unnamed streams may use, and waits
    /// for the work that used it; with `waits` it waits for the device and returns these, too. The
    /// result says whether such blocks are left. The owners of samples that have been read are
    /// dropped.
    pub fn trim(&self, waits: bool) -> Result<bool> {
        let current = self.context.enter()?;
        self.keep_alive.reap()?;
        match waits {
            true => self.memory.trim(&current)?,
            false => self.memory.trim_known(&current)?,
        }
        Ok(self.memory.has_unnamed())
    }

    /// Gives all unused memory back, page-locked memory too. Waits for the device.
    pub fn empty_cache(&self) -> Result<()> {
        let current = self.context.enter()?;
        current.synchronize()?;
        self.keep_alive.reap()?;
        self.ring.clear();
        self.pinned.clear(&current)?;
        Ok(self.memory.trim(&current)?)
    }

    /// Bytes of device memory in use; page-locked bytes unused, those of the ring among them, and in use.
    pub fn bytes(&self) -> (u64, (u64, u64)) {
        let (unused, used) = self.pinned.bytes();
        (self.memory.used_bytes(), (unused + self.ring.bytes(), used))
    }

    /// The counters of how often and how long the host waited for the device.
    pub fn waits(&self) -> &Waits {
        self.context.waits()
    }
}

/// Limits that `python -m windrow calibrate` measured on a device by this driver; `None` if it was not run.
fn measured_copies(name: &str) -> Option<PageCopies> {
    let (major, minor) = driver_version().ok()?;
    let path = calibration_file(&format!("{name} driver {major}.{minor}"))?;
    let text = std::fs::read_to_string(path).ok()?;
    text_in_file(&text, "page_copies")?.parse().ok()
}

impl Drop for Executor {
    /// Waits until the device has read all samples, and drops their owners; in a forked child they are leaked.
    fn drop(&mut self) {
        match self.context.enter() {
            Ok(_current) => self.keep_alive.finish(),
            // The objects are the parent's in a forked child, and the lock may be one that is never released.
            Err(_) => std::mem::forget(Arc::clone(&self.keep_alive)),
        }
    }
}
