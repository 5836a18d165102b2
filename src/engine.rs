//! Stage 4. [`Engine`]: runs plans, owns threads and output memory.

use std::sync::Arc;
use std::time::Instant;

use crate::batch::{Batch, Fields};
use crate::collate::{Collate, Form, Transform};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::host::{self, Block, MemoryPool, Outputs, RowsAhead, Threads, DEFAULT_POOL_BYTES};
use crate::kinds::Kind;
use crate::layout::Layout;
use crate::plan::{Leaf, Plan, Role};
use crate::sample::Samples;
use crate::spec::bytes_of;
use crate::stats::{Counters, Stats};
use crate::target::AsTarget;
use crate::tensor::{Device, Tensor};

/// Assembles batches. Cheap to clone: clones share threads, memory and counters.
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
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    threads: Threads,
    memory: Arc<MemoryPool>,
    counters: Counters,
    reference: bool,
}

/// One leaf of a plan that was run.
#[derive(Debug)]
pub struct Filled {
    /// The data; `None` if it was written to memory of the caller's.
    pub data: Option<Tensor>,
    /// Everything else of the batch.
    pub fields: Fields,
}

/// How an engine of its own threads and memory is made.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Threads, the calling one included; `None` is one for each core this process may use.
    pub threads: Option<usize>,
    /// Bytes of free output memory to keep; `None` is 1 GiB.
    pub pool_bytes: Option<u64>,
}

impl Engine {
    /// The host executor with threads of its own, one for each core.
    pub fn host() -> Engine {
        Engine::with_options(EngineOptions::default())
    }

    /// The host executor in the caller's thread pool.
    pub fn host_with(pool: Arc<rayon::ThreadPool>) -> Engine {
        Engine::new(Threads::Given(pool), DEFAULT_POOL_BYTES, false)
    }

    /// The host executor with a number of threads and a cap on kept memory.
    pub fn with_options(options: EngineOptions) -> Engine {
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        let count = options.threads.unwrap_or_else(available).max(1);
        Engine::new(Threads::own(count), options.pool_bytes.unwrap_or(DEFAULT_POOL_BYTES), false)
    }

    /// The naive executor, one element at a time: the judge in tests, of no other use.
    pub fn reference() -> Engine {
        Engine::new(Threads::own(1), 0, true)
    }

    fn new(threads: Threads, pool_bytes: u64, reference: bool) -> Engine {
        let memory = MemoryPool::new(pool_bytes);
        let counters = Counters::default();
        Engine { shared: Arc::new(Shared { threads, memory, counters, reference }) }
    }

    /// Assembles one batch.
    ///
    /// # Errors
    /// Every error of input, see [`Error`]; [`Error::OutOfMemory`] if the output does not fit.
    pub fn assemble<'a, S: Samples<'a> + ?Sized>(
        &self,
        samples: &S,
        collate: &Collate,
    ) -> Result<Batch> {
        let samples = samples.to_list();
        let leaf = Leaf { samples: &samples, collate, path: "", out: None };
        let mut filled = self.run(Plan::for_leaves(&[leaf])?)?;
        match filled.pop() {
            Some(Filled { data: Some(data), fields }) => Ok(Batch::new(data, fields)),
            _ => unreachable!("a plan of one leaf without an output gives one tensor"),
        }
    }

    /// Assembles one batch into memory of the caller's, which must have exactly the batch's shape and
    /// dtype. Lengths, offsets and mask come back; the data stays where it is.
    ///
    /// # Errors
    /// As [`Engine::assemble`], and if the output does not fit, is read-only or shared, or overlaps a
    /// sample. Nothing is written then.
    pub fn assemble_into<'a, S: Samples<'a> + ?Sized>(
        &self,
        samples: &S,
        collate: &Collate,
        out: &mut impl AsTarget,
    ) -> Result<Fields> {
        let samples = samples.to_list();
        let target = out.as_target()?;
        let leaf = Leaf { samples: &samples, collate, path: "", out: Some(&target) };
        let mut filled = self.run(Plan::for_leaves(&[leaf])?)?;
        filled.pop().map(|filled| filled.fields).ok_or(Error::Empty)
    }

    /// Starts to stack `count` samples of one kind before all of them are known: what is pushed is
    /// copied by other threads, and [`Engine::run_ahead`] makes the rest. `None` if that would not
    /// pay, or if the batch is not such that rows are just copied.
    pub fn start_rows(&self, collate: &Collate, kind: &Kind, count: usize) -> Option<RowsAhead> {
        let row_bytes = kind.layout.numel() as u64 * kind.dtype.size() as u64;
        let is_plain = collate.form == Form::Stack
            && collate.transform == Transform::default()
            && collate.dtype.is_none_or(|dtype| dtype == kind.dtype)
            && collate.device.unwrap_or(Device::Cpu) == Device::Cpu
            && kind.device == Device::Cpu
            && kind.layout.is_compact();
        if !is_plain || self.shared.reference || !RowsAhead::pays_for(row_bytes, count) {
            return None;
        }
        // Without threads or memory the plain way is taken, which says what is wrong.
        let threads = self.shared.threads.helpers().ok()??;
        let block = self.shared.memory.allocate(row_bytes * count as u64).ok()?;
        Some(RowsAhead::start(block, row_bytes as usize, count, &threads))
    }

    /// Runs a plan, once: outputs that it was planned with are borrowed until it is done.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; nothing has been written then.
    pub fn run(&self, plan: Plan<'_>) -> Result<Vec<Filled>> {
        self.run_ahead(plan, Vec::new())
    }

    /// As [`Engine::run`], with what was copied ahead for each leaf. Rows that turned out not to be
    /// those of the plan are let go.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn run_ahead(
        &self,
        mut plan: Plan<'_>,
        mut ahead: Vec<Option<RowsAhead>>,
    ) -> Result<Vec<Filled>> {
        let begin = Instant::now();
        let mut tensors = Vec::with_capacity(plan.fields.len());
        let mut addresses = Vec::with_capacity(plan.fields.len());
        for field in &mut plan.fields {
            let mut rows = ahead.get_mut(field.leaf).filter(|_| field.role == Role::Data);
            let rows = rows.as_mut().and_then(|rows| rows.take()).filter(|rows| rows.fits(field));
            let copied = rows.and_then(RowsAhead::finish);
            field.done = copied.is_some();
            let tensor = match (field.out, copied) {
                (Some(_), _) => None,
                (None, Some(block)) => Some(block),
                (None, None) => Some(self.shared.memory.allocate(field.bytes())?),
            }
            .map(|block| tensor_of(block, field.dtype, field.layout.clone()));
            addresses.push(field.out.unwrap_or_else(|| {
                tensor.as_ref().map_or_else(std::ptr::null_mut, Tensor::data_ptr)
            }));
            tensors.push((field.leaf, field.role, tensor));
        }
        // SAFETY: an address is that of memory just allocated for the field's compact layout, which
        // nobody else has seen, or that of the target the plan borrows, whose layout the field has.
        #[allow(unsafe_code)]
        let outputs = unsafe { Outputs::new(addresses) };
        if self.shared.reference {
            host::run_reference(&plan, &outputs);
        } else {
            let work = host::Work::new(&plan);
            let threads = if work.wants_threads() { self.shared.threads.helpers()? } else { None };
            work.run(&outputs, threads.as_deref());
        }
        self.shared.counters.count(&plan, begin.elapsed());
        let mut filled: Vec<Filled> = plan
            .specs
            .iter()
            .map(|spec| Ok(Filled { data: None, fields: Fields::new(spec)? }))
            .collect::<Result<_>>()?;
        for (leaf, role, tensor) in tensors {
            match role {
                Role::Data => filled[leaf].data = tensor,
                Role::Mask => filled[leaf].fields.mask = tensor,
                Role::BatchIndex => filled[leaf].fields.batch_index = tensor,
            }
        }
        Ok(filled)
    }

    /// Zeroed memory from the output pool.
    ///
    /// # Errors
    /// [`Error::NoDriver`] for memory that is not the host's; as [`Layout::try_new`] for an impossible
    /// shape; [`Error::OutOfMemory`].
    pub fn empty(&self, dtype: DType, shape: &[i64], device: Device) -> Result<Tensor> {
        if device != Device::Cpu {
            return Err(Error::NoDriver(format!("memory on {device} asked of a host-only build")));
        }
        let layout = Layout::compact(dtype, shape)?;
        let mut block = self.shared.memory.allocate(bytes_of(dtype, shape))?;
        block.zero();
        Ok(tensor_of(block, dtype, layout))
    }

    /// Notes a batch that was handed out as a view of its samples' memory.
    pub fn count_view(&self, num_samples: usize) {
        self.shared.counters.count_view(num_samples);
    }

    /// What was done since the engine was made or the counters were reset.
    pub fn stats(&self) -> Stats {
        self.shared.counters.snapshot(self.shared.memory.stats())
    }

    /// Sets the counters to 0; the pool's figures of memory stay.
    pub fn reset_stats(&self) {
        self.shared.counters.reset();
    }

    /// Gives free output memory back to the system.
    pub fn empty_cache(&self) {
        self.shared.memory.empty();
    }

    /// Threads that work on a large batch, the calling one included.
    pub fn num_threads(&self) -> usize {
        self.shared.threads.count()
    }
}

/// A block as a tensor. Whoever made the block sees to it that it is written in full before anybody
/// else sees the tensor.
fn tensor_of(block: Block, dtype: DType, layout: Layout) -> Tensor {
    debug_assert!(layout.is_compact() && bytes_of(dtype, layout.shape()) <= block.size());
    let data = block.data();
    // SAFETY: the block holds all bytes of the compact layout, for as long as it lives, and is the
    // owner.
    #[allow(unsafe_code)]
    unsafe {
        Tensor::new_unchecked(Arc::new(block), data, dtype, Device::Cpu, layout, false)
    }
}
