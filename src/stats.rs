//! What was done, and what would be done: the counters of an engine and the account of a plan.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::arena::Arena;
use crate::field::{saturating_sum, Field, Op, Role};
use crate::geometry::Class;
use crate::host::{PoolStats, Tiling};
use crate::kinds::Kind;
use crate::plan::Plan;
use crate::sample::SampleList;
use crate::spec::{bytes_of, Placement, Spec};
use crate::tensor::Device;
use crate::DType;

/// The account of a plan, before it is run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Explain {
    /// How the data moves: `"view"` (it does not), `"memcpy"` (one range), `"gather"` (ranges of bytes), `"strided"`,
    /// `"cast"`, `"transform"`, or `"mixed"` where leaves differ. Between host and device: `"upload"` (the samples become
    /// the batch by copies), `"staged"` (they are copied, then worked on), the same for page-locked samples
    /// `"copied pinned"`, `"direct pinned"` (read over the bus) and `"download"`.
    pub path: &'static str,
    /// Number of samples of the first leaf.
    pub samples: usize,
    /// Number of leaves.
    pub leaves: usize,
    /// Bytes read of samples.
    pub bytes_read: u64,
    /// Bytes written: data, masks, indices.
    pub bytes_written: u64,
    /// Bytes written that are padding.
    pub padding_bytes: u64,
    /// `padding_bytes` as a share of the data, 0 to 1.
    pub padding_waste: f64,
    /// Copies left after neighbours were merged; 0 where bytes are not just moved.
    pub ranges: usize,
    /// Tiles that threads take.
    pub tiles: usize,
    /// Kernel launches; 0 on the host.
    pub launches: usize,
    /// Bytes that cross from the host to a device.
    pub bytes_to_device: u64,
    /// Bytes that cross from a device to the host, which the call waits for.
    pub bytes_to_host: u64,
    /// Bytes of the one allocation of all leaves; 0 without one.
    pub arena_bytes: u64,
    /// Those of them that lie between tensors, so that each begins aligned.
    pub arena_gap_bytes: u64,
    /// Shape and dtype of each leaf's data.
    pub outputs: Vec<(Vec<i64>, DType)>,
}

impl Explain {
    pub(crate) fn new(plan: &Plan<'_>) -> Explain {
        let data = || plan.fields.iter().filter(|field| field.role == Role::Data);
        let launches = |field: &Field<'_>| on_device(plan, field) && !is_upload(plan, field);
        let has_numbers = |spec: &Spec| {
            let numbers =
                spec.lengths.is_some() || matches!(spec.placement, Placement::Joined { .. });
            numbers && matches!(spec.device, Device::Cuda(_))
        };
        let arena = plan.arena.as_ref();
        let has_gaps =
            |arena: &Arena| arena.gap_bytes() > 0 && matches!(arena.device, Device::Cuda(_));
        let launches = data().any(launches)
            || plan.specs.iter().any(has_numbers)
            || arena.is_some_and(has_gaps);
        let mut paths = data().map(|field| path_of(plan, field));
        let first = paths.next().unwrap_or("gather");
        let path = if paths.all(|path| path == first) { first } else { "mixed" };
        let written = saturating_sum(data().map(Field::bytes));
        let padding_bytes = plan.padding_bytes();
        Explain {
            path,
            samples: plan.specs.first().map_or(0, |spec| spec.num_samples),
            leaves: plan.specs.len(),
            bytes_read: saturating_sum(plan.fields.iter().map(Field::bytes_read)),
            bytes_written: saturating_sum(plan.fields.iter().map(Field::bytes)),
            padding_bytes,
            padding_waste: if written == 0 { 0.0 } else { padding_bytes as f64 / written as f64 },
            ranges: data().map(num_ranges).sum(),
            tiles: Tiling::new(plan).count(),
            launches: usize::from(launches),
            bytes_to_device: saturating_sum(data().map(|field| bytes_to_device(plan, field))),
            bytes_to_host: saturating_sum(data().map(|field| bytes_to_host(plan, field))),
            arena_bytes: plan.arena_bytes(),
            arena_gap_bytes: arena.map_or(0, Arena::gap_bytes),
            outputs: plan.specs.iter().map(|spec| (spec.shape.to_vec(), spec.dtype)).collect(),
        }
    }
}

impl Explain {
    /// The account of a batch that is a view of its samples' memory: nothing moves.
    #[must_use]
    pub fn as_view(self) -> Explain {
        Explain { path: "view", bytes_read: 0, bytes_written: 0, tiles: 0, ranges: 0, ..self }
    }
}

fn num_ranges(field: &Field<'_>) -> usize {
    match &field.ranges {
        Some(ranges) => ranges.len(),
        None if field.bytes_only => field.data.len(),
        None => 0,
    }
}

/// Whether the data of a leaf is read or written on a device.
fn on_device(plan: &Plan<'_>, field: &Field<'_>) -> bool {
    let spec = &plan.specs[field.leaf];
    [spec.source, spec.device].iter().any(|device| matches!(device, Device::Cuda(_)))
}

/// Whether host samples become the batch on a device by the copy alone.
pub(crate) fn is_upload(plan: &Plan<'_>, field: &Field<'_>) -> bool {
    let spec = &plan.specs[field.leaf];
    let crosses = spec.source == Device::Cpu && matches!(spec.device, Device::Cuda(_));
    crosses && field.role == Role::Data && field.bytes_only && field.layout.is_compact()
}

/// Bytes of a sample, on average, from which page-locked samples are brought to the device by its copy
/// engine; smaller ones the kernels read over the bus themselves. Kernels get less out of the bus, and
/// a copy costs as much to start however small it is. From figures of others for one H100; the bench
/// `gather` times both ways (W8).
const MIN_COPIED_BYTES: u64 = 28 << 10;

/// Whether page-locked samples are copied to the device as they are, for the kernel to work on there.
/// In a graph they are not, for that would need memory.
pub(crate) fn is_copied(plan: &Plan<'_>, field: &Field<'_>) -> bool {
    let (spec, list) = (&plan.specs[field.leaf], &plan.lists[field.leaf]);
    spec.source == Device::Pinned
        && matches!(spec.device, Device::Cuda(_))
        && matches!(field.op, Op::Read { .. })
        && list.kinds().iter().all(|kind| kind.layout.is_compact())
        && sample_bytes(list) >= MIN_COPIED_BYTES.saturating_mul(list.len() as u64)
}

fn sample_bytes(list: &SampleList<'_>) -> u64 {
    let bytes = |kind: &Kind| bytes_of(kind.dtype, kind.layout.shape());
    saturating_sum((0..list.len()).map(|index| bytes(list.kind(index))))
}

fn bytes_to_device(plan: &Plan<'_>, field: &Field<'_>) -> u64 {
    let spec = &plan.specs[field.leaf];
    let is_upload = spec.source == Device::Cpu && matches!(spec.device, Device::Cuda(_));
    match is_upload || is_copied(plan, field) {
        true => sample_bytes(&plan.lists[field.leaf]),
        false => 0,
    }
}

fn bytes_to_host(plan: &Plan<'_>, field: &Field<'_>) -> u64 {
    let spec = &plan.specs[field.leaf];
    let crosses = matches!(spec.source, Device::Cuda(_)) && !matches!(spec.device, Device::Cuda(_));
    if crosses {
        field.bytes()
    } else {
        0
    }
}

fn path_of(plan: &Plan<'_>, field: &Field<'_>) -> &'static str {
    let spec = &plan.specs[field.leaf];
    match (spec.source, spec.device) {
        (Device::Cpu, Device::Cuda(_)) => {
            return if is_upload(plan, field) { "upload" } else { "staged" };
        }
        (Device::Pinned, Device::Cuda(_)) => {
            return if is_copied(plan, field) { "copied pinned" } else { "direct pinned" };
        }
        (Device::Cuda(_), Device::Cpu | Device::Pinned) => return "download",
        _ => {}
    }
    let casts = |class: &Class| class.dtype != field.dtype;
    match field.op {
        Op::Read { affine: true } => "transform",
        _ if field.bytes_only && num_ranges(field) == 1 => "memcpy",
        _ if field.bytes_only => "gather",
        _ if (0..field.data.len()).any(|sample| casts(field.class_of(sample))) => "cast",
        _ => "strided",
    }
}

impl Plan<'_> {
    /// Bytes of the data that hold padding.
    pub(crate) fn padding_bytes(&self) -> u64 {
        let data = self.fields.iter().filter(|field| field.role == Role::Data);
        data.filter(|field| matches!(self.specs[field.leaf].placement, Placement::Padded(_)))
            .map(|field| {
                let real: u64 =
                    (0..field.data.len()).map(|sample| field.class_of(sample).num_real).sum();
                field.bytes() - real * field.dtype.size() as u64
            })
            .sum()
    }

    /// Bytes of everything the plan makes, offsets and lengths included.
    pub(crate) fn output_bytes(&self) -> u64 {
        let fields = saturating_sum(self.fields.iter().map(Field::bytes));
        let lengths = |spec: &crate::spec::Spec| {
            spec.lengths.as_ref().map_or(0, |(_, shape)| bytes_of(DType::I64, shape))
        };
        fields.saturating_add(saturating_sum(self.specs.iter().map(lengths)))
    }
}

impl fmt::Display for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "path           {}", self.path)?;
        writeln!(f, "samples        {}", self.samples)?;
        for (shape, dtype) in &self.outputs {
            writeln!(f, "output         {} {dtype}", crate::error::Tuple(shape))?;
        }
        writeln!(f, "bytes read     {}", self.bytes_read)?;
        writeln!(f, "bytes written  {}", self.bytes_written)?;
        writeln!(
            f,
            "padding        {} bytes, {:.1} %",
            self.padding_bytes,
            self.padding_waste * 100.0
        )?;
        writeln!(f, "ranges         {}", self.ranges)?;
        writeln!(f, "tiles          {}", self.tiles)?;
        write!(f, "launches       {}", self.launches)?;
        let crossing =
            [("to the device", self.bytes_to_device), ("to the host", self.bytes_to_host)];
        for (way, bytes) in crossing.into_iter().filter(|(_, bytes)| *bytes > 0) {
            write!(f, "\n{way:<14} {bytes} bytes")?;
        }
        if self.arena_bytes > 0 {
            let (all, gaps) = (self.arena_bytes, self.arena_gap_bytes);
            write!(f, "\narena          {all} bytes, {gaps} of them between tensors")?;
        }
        Ok(())
    }
}

/// The counters of an engine since it was made or reset.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Batches assembled; a tree counts one for each leaf.
    pub batches: u64,
    /// Samples assembled.
    pub samples: u64,
    /// Bytes read of samples.
    pub bytes_in: u64,
    /// Bytes of batches.
    pub bytes_out: u64,
    /// Bytes of batches that are padding.
    pub padding_bytes: u64,
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
    /// Bytes of batches in device memory.
    pub device_bytes: u64,
    /// Page-locked host memory of windrow's own: bytes unused, bytes in use.
    pub pinned_bytes: (u64, u64),
    /// Time spent moving bytes, not counting import and planning. Work on a device is enqueued, and
    /// its own time is not in here.
    pub run_time: Duration,
    /// The output memory pool.
    pub pool: PoolStats,
}

/// What a run on a device came with.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) struct Traffic {
    pub launches: u64,
    pub bytes_to_device: u64,
    pub bytes_to_host: u64,
}

/// Counters that many threads add to.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    batches: AtomicU64,
    samples: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    padding_bytes: AtomicU64,
    views: AtomicU64,
    launches: AtomicU64,
    bytes_to_device: AtomicU64,
    bytes_to_host: AtomicU64,
    run_ns: AtomicU64,
}

impl Counters {
    pub fn count(&self, plan: &Plan<'_>, run_time: Duration) {
        let add = |counter: &AtomicU64, n: u64| counter.fetch_add(n, Ordering::Relaxed);
        add(&self.batches, plan.specs.len() as u64);
        add(&self.samples, plan.specs.iter().map(|spec| spec.num_samples as u64).sum());
        add(&self.bytes_in, saturating_sum(plan.fields.iter().map(Field::bytes_read)));
        add(&self.bytes_out, plan.output_bytes());
        add(&self.padding_bytes, plan.padding_bytes());
        add(&self.run_ns, u64::try_from(run_time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// One batch of rows that were just copied.
    pub fn count_rows(&self, rows: usize, bytes: u64, run_time: Duration) {
        let add = |counter: &AtomicU64, n: u64| counter.fetch_add(n, Ordering::Relaxed);
        add(&self.batches, 1);
        add(&self.samples, rows as u64);
        add(&self.bytes_in, bytes);
        add(&self.bytes_out, bytes);
        add(&self.run_ns, u64::try_from(run_time.as_nanos()).unwrap_or(u64::MAX));
    }

    #[cfg(feature = "cuda")]
    pub fn count_traffic(&self, traffic: Traffic) {
        let add = |counter: &AtomicU64, n: u64| counter.fetch_add(n, Ordering::Relaxed);
        add(&self.launches, traffic.launches);
        add(&self.bytes_to_device, traffic.bytes_to_device);
        add(&self.bytes_to_host, traffic.bytes_to_host);
    }

    pub fn count_view(&self, samples: usize) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.samples.fetch_add(samples as u64, Ordering::Relaxed);
        self.views.fetch_add(1, Ordering::Relaxed);
    }

    pub fn snapshot(&self, pool: PoolStats) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            batches: get(&self.batches),
            samples: get(&self.samples),
            bytes_in: get(&self.bytes_in),
            bytes_out: get(&self.bytes_out),
            padding_bytes: get(&self.padding_bytes),
            views: get(&self.views),
            launches: get(&self.launches),
            bytes_to_device: get(&self.bytes_to_device),
            bytes_to_host: get(&self.bytes_to_host),
            waits: 0,
            device_bytes: 0,
            pinned_bytes: (0, 0),
            run_time: Duration::from_nanos(get(&self.run_ns)),
            pool,
        }
    }

    pub fn reset(&self) {
        for counter in [
            &self.batches,
            &self.samples,
            &self.bytes_in,
            &self.bytes_out,
            &self.padding_bytes,
            &self.views,
            &self.launches,
            &self.bytes_to_device,
            &self.bytes_to_host,
            &self.run_ns,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}
