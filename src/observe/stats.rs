//! [`Stats`]: what an engine has done, and the counters behind it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use smallvec::{smallvec, SmallVec};

use crate::observe::stage::Stage;
use crate::plan::{saturating_sum, OutputPlan, Path, Plan};

/// The figures of an output memory pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes of blocks that wait to be used again.
    pub free_bytes: u64,
    /// Bytes of blocks that belong to living batches.
    pub used_bytes: u64,
    /// Outputs that found a block.
    pub hits: u64,
    /// Outputs that needed fresh memory.
    pub misses: u64,
}

/// The counters of an engine since it was made or reset.
///
/// The times of import, planning and running are measured from the first [`Engine::stats`](crate::Engine::stats)
/// or [`Engine::reset_stats`](crate::Engine::reset_stats) on: reading the clock would cost a small batch some percent.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Batches assembled; a tree counts one for each leaf.
    pub batches: u64,
    /// Samples assembled, and pairs of [`Engine::copy_many`](crate::Engine::copy_many).
    pub samples: u64,
    /// The pairs among `samples`; they are in no batch.
    pub moves: u64,
    /// Bytes read of samples.
    pub bytes_in: u64,
    /// Bytes of all tensors of batches (data, lengths, offsets, masks, batch indices, scales), and bytes that pairs write.
    pub bytes_out: u64,
    /// Bytes of the data of batches.
    pub data_bytes: u64,
    /// Bytes of data that are padding.
    pub padding_bytes: u64,
    /// Batches by how their data moved, by the names of [`Explain::path`](crate::explain::Explain::path); their sum is `batches`.
    pub paths: BTreeMap<&'static str, u64>,
    /// Batches that are views of their samples' memory: nothing was copied.
    pub views: u64,
    /// Kernels launched.
    pub launches: u64,
    /// Bytes copied from the host to a device.
    pub bytes_to_device: u64,
    /// Bytes copied from a device to the host.
    pub bytes_to_host: u64,
    /// Times the host waited for a device: for a batch or chunks of one, for memory to be used again,
    /// or because it was asked to.
    pub waits: u64,
    /// Bytes of batches in device memory that windrow allocated.
    pub device_bytes: u64,
    /// Bytes of outputs that another library's allocator gave ([`RunOptions::memory`](crate::engine::RunOptions::memory)).
    pub lent_bytes: u64,
    /// Bytes of page-locked host memory that windrow allocated: unused, in use.
    pub pinned_bytes: (u64, u64),
    /// Time spent importing samples, as far as a binding reports it.
    pub import_time: Duration,
    /// Time of checking and planning. Batches small enough to need no plan add nothing.
    pub plan_time: Duration,
    /// Time spent moving bytes, not counting import and planning. Work on a device is enqueued, and
    /// its own time is not in here.
    pub run_time: Duration,
    /// Time that the host waited for a device, part of it within `run_time`.
    pub wait_time: Duration,
    /// The output memory pool.
    pub pool: PoolStats,
}

/// Launches and transfers of one run on a device, and the bytes of its outputs in memory of another library's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub launches: u64,
    pub bytes_to_device: u64,
    pub bytes_to_host: u64,
    pub lent_bytes: u64,
}

impl Traffic {
    fn numbers(self) -> [u64; 4] {
        [self.launches, self.bytes_to_device, self.bytes_to_host, self.lent_bytes]
    }
}

impl Stats {
    /// `padding_bytes` as a share of the data, 0 to 1.
    pub fn padding_waste(&self) -> f64 {
        share(self.padding_bytes, self.data_bytes)
    }
}

/// The account of one run.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// The path of each leaf.
    pub paths: SmallVec<[Path; 4]>,
    pub samples: u64,
    pub moves: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub data_bytes: u64,
    pub padding_bytes: u64,
}

impl Tally {
    /// The account of a plan. Pairs count no path and no data. Call it before the run, which changes what is planned.
    pub fn for_plan(plan: &Plan<'_>) -> Tally {
        let shapes = plan.batch_shapes().iter();
        let samples = shapes.map(|batch_shape| batch_shape.num_samples as u64).sum();
        Tally {
            paths: if plan.is_move { SmallVec::new() } else { plan.paths().collect() },
            samples,
            moves: if plan.is_move { samples } else { 0 },
            bytes_in: saturating_sum(plan.outputs().iter().map(OutputPlan::bytes_read)),
            bytes_out: plan.output_bytes(),
            data_bytes: if plan.is_move { 0 } else { plan.data_bytes() },
            padding_bytes: plan.padding_bytes(),
        }
    }

    /// The account of one batch of `rows` rows of `bytes` bytes in all, each read and written once.
    pub fn for_rows(path: Path, rows: usize, bytes: u64) -> Tally {
        Tally {
            paths: smallvec![path],
            samples: rows as u64,
            bytes_in: bytes,
            bytes_out: bytes,
            data_bytes: bytes,
            ..Tally::default()
        }
    }

    /// The account of one batch that is a view, which counts no bytes.
    pub fn for_view(samples: usize) -> Tally {
        Tally::for_rows(Path::View, samples, 0)
    }

    /// All but the paths.
    fn numbers(&self) -> [u64; 6] {
        let Tally { samples, moves, bytes_in, bytes_out, data_bytes, padding_bytes, .. } = *self;
        [samples, moves, bytes_in, bytes_out, data_bytes, padding_bytes]
    }
}

/// Counters that many threads add to.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Batches by [`Path`].
    paths: [AtomicU64; Path::ALL.len()],
    /// Sums of [`Tally::numbers`].
    tallies: [AtomicU64; 6],
    /// Sums of [`Traffic::numbers`].
    traffic: [AtomicU64; 4],
    import_ns: AtomicU64,
    pub plan_ns: AtomicU64,
    pub run_ns: AtomicU64,
    /// Whether the times of stages are summed. Small batches would notice the clock, which is not read before
    /// [`Counters::watch`].
    is_watched: AtomicBool,
}

/// Adds to a counter.
fn add(counter: &AtomicU64, n: u64) {
    // An addition takes a fourth of a look at the clock, and a small call makes several.
    if n > 0 {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// Adds numbers to the counters in the same places.
fn add_each<const N: usize>(counters: &[AtomicU64; N], numbers: [u64; N]) {
    counters.iter().zip(numbers).for_each(|(counter, n)| add(counter, n));
}

impl Counters {
    /// Sums the times of stages from now on.
    pub fn watch(&self) {
        self.is_watched.store(true, Ordering::Relaxed);
    }

    /// The present time, as the begin of a stage; `None` if times are not summed.
    pub fn now(&self) -> Option<Instant> {
        self.is_watched.load(Ordering::Relaxed).then(Instant::now)
    }

    /// Adds the account of one run to the counters.
    pub fn count(&self, tally: &Tally) {
        for &path in &tally.paths {
            add(&self.paths[path as usize], 1);
        }
        add_each(&self.tallies, tally.numbers());
    }

    /// Counts the bytes of an output on the host that another library's allocator gave.
    pub fn lend(&self, bytes: u64) {
        self.count_traffic(Traffic { lent_bytes: bytes, ..Traffic::default() });
    }

    /// Adds the launches and copied bytes of a run.
    pub fn count_traffic(&self, traffic: Traffic) {
        add_each(&self.traffic, traffic.numbers());
    }

    /// The sum of a stage's nanoseconds; `None` for a stage whose time is not summed here.
    pub fn time_of(&self, stage: Stage) -> Option<&AtomicU64> {
        match stage {
            Stage::Import => Some(&self.import_ns),
            Stage::Plan => Some(&self.plan_ns),
            Stage::Run => Some(&self.run_ns),
            _ => None,
        }
    }

    /// The counters at present; waits, and memory of devices and page-locked memory, are 0 for the caller to set.
    pub fn snapshot(&self, pool: PoolStats) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let time = |counter: &AtomicU64| Duration::from_nanos(get(counter));
        let paths =
            Path::ALL.iter().zip(&self.paths).map(|(path, count)| (path.name(), get(count)));
        let paths: BTreeMap<_, _> = paths.filter(|&(_, count)| count > 0).collect();
        let [samples, moves, bytes_in, bytes_out, data_bytes, padding_bytes] =
            self.tallies.each_ref().map(get);
        let [launches, bytes_to_device, bytes_to_host, lent_bytes] =
            self.traffic.each_ref().map(get);
        Stats {
            batches: paths.values().sum(),
            samples,
            moves,
            bytes_in,
            bytes_out,
            data_bytes,
            padding_bytes,
            views: paths.get(Path::View.name()).copied().unwrap_or(0),
            paths,
            launches,
            bytes_to_device,
            bytes_to_host,
            lent_bytes,
            import_time: time(&self.import_ns),
            plan_time: time(&self.plan_ns),
            run_time: time(&self.run_ns),
            pool,
            ..Stats::default()
        }
    }

    /// Sets all counters and times to 0. Whether times are summed stays.
    pub fn reset(&self) {
        let times = [&self.import_ns, &self.plan_ns, &self.run_ns];
        let counts = self.paths.iter().chain(&self.tallies).chain(&self.traffic);
        for counter in counts.chain(times) {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// `part` of `whole`, 0 to 1; nothing of nothing is 0.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}
