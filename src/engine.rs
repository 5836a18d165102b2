//! Stage 4. [`Engine`]: runs plans, owns threads and output memory.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::batch::{Batch, Fields};
use crate::collate::Collate;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::host::{self, Block, MemoryPool, Outputs, DEFAULT_POOL_BYTES};
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

/// Where the work is done.
#[derive(Debug)]
enum Threads {
    Given(Arc<rayon::ThreadPool>),
    /// Made at the first batch that is worth it, and again in a forked child: threads do not
    /// survive a fork.
    Own {
        count: usize,
        made: Mutex<Option<(u32, Arc<rayon::ThreadPool>)>>,
    },
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
        let threads = Threads::Own { count, made: Mutex::new(None) };
        Engine::new(threads, options.pool_bytes.unwrap_or(DEFAULT_POOL_BYTES), false)
    }

    /// The naive executor, one element at a time: the judge in tests, of no other use.
    pub fn reference() -> Engine {
        Engine::new(Threads::Own { count: 1, made: Mutex::new(None) }, 0, true)
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

    /// Runs a plan, once: outputs that it was planned with are borrowed until it is done.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; nothing has been written then.
    pub fn run(&self, plan: Plan<'_>) -> Result<Vec<Filled>> {
        let mut tensors = Vec::with_capacity(plan.fields.len());
        let mut addresses = Vec::with_capacity(plan.fields.len());
        for field in &plan.fields {
            let tensor = match field.out {
                Some(_) => None,
                None => {
                    let block = self.shared.memory.allocate(field.bytes())?;
                    Some(tensor_of(block, field.dtype, field.layout.clone()))
                }
            };
            addresses.push(field.out.unwrap_or_else(|| {
                tensor.as_ref().map_or_else(std::ptr::null_mut, Tensor::data_ptr)
            }));
            tensors.push((field.leaf, field.role, tensor));
        }
        let begin = Instant::now();
        // SAFETY: an address is that of memory just allocated for the field's compact layout, which
        // nobody else has seen, or that of the target the plan borrows, whose layout the field has.
        #[allow(unsafe_code)]
        let outputs = unsafe { Outputs::new(addresses) };
        if self.shared.reference {
            host::run_reference(&plan, &outputs);
        } else {
            let work = host::Work::new(&plan);
            let threads = if work.wants_threads() { self.threads()? } else { None };
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
        match &self.shared.threads {
            Threads::Given(pool) => pool.current_num_threads(),
            Threads::Own { count, .. } => *count,
        }
    }

    fn threads(&self) -> Result<Option<Arc<rayon::ThreadPool>>> {
        let (count, made) = match &self.shared.threads {
            Threads::Given(pool) => return Ok(Some(Arc::clone(pool))),
            Threads::Own { count: 0 | 1, .. } => return Ok(None),
            Threads::Own { count, made } => (*count, made),
        };
        let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        match &*made {
            Some((owner, pool)) if *owner == process => return Ok(Some(Arc::clone(pool))),
            // The parent's threads are not here: waiting for them, in a drop too, would never end.
            Some(_) => std::mem::forget(made.take()),
            None => {}
        }
        let builder = rayon::ThreadPoolBuilder::new().num_threads(count);
        let pool = builder.thread_name(|i| format!("windrow-{i}")).build();
        let pool = Arc::new(
            pool.map_err(|e| Error::Argument(format!("cannot start {count} threads: {e}")))?,
        );
        *made = Some((process, Arc::clone(&pool)));
        Ok(Some(pool))
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
