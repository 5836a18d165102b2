//! [`Route`]: the data of a plan that crosses between host and device, and by which copies. The route is chosen once, when the
//! plan is made: the device's executor follows it, and [`crate::explain::Explain`] reports it.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::collate::Collate;
use crate::plan::batch_shape::BatchShape;
use crate::plan::device_moves::Crossing;
use crate::plan::output::{data_output, packed_output, saturating_sum, ElementOp, OutputPlan};
use crate::plan::path::Path;
use crate::plan::policy::{POLICY, SHARED_ALIGN};
use crate::plan::role::Role;
use crate::plan::scales_output::scales_output;
use crate::samples::{SampleList, TensorMeta};
use crate::tensor::{bytes_of, Device, Layout, Offsets, Result};

/// Whether kernels see stale copies of page-locked memory, as under confidential computing. A trial on one device sets it,
/// for all devices.
static IS_MAPPING_STALE: AtomicBool = AtomicBool::new(false);

/// Sets [`IS_MAPPING_STALE`], for the rest of the process.
pub(crate) fn set_mapping_stale() {
    IS_MAPPING_STALE.store(true, Ordering::Relaxed);
}

/// The value of [`IS_MAPPING_STALE`].
pub(crate) fn is_mapping_stale() -> bool {
    IS_MAPPING_STALE.load(Ordering::Relaxed)
}

/// The data of a plan that crosses between host and device.
#[derive(Debug, Default)]
pub(crate) struct Route {
    /// Whether kernels may read page-locked memory where it is.
    pub reads_mapped: bool,
    /// The path of each leaf's data.
    pub paths: Vec<Path>,
    /// Uploads in the order in which they are enqueued.
    pub uploads: Vec<Upload>,
    /// Bytes of the device memory from which several outputs come back in one copy.
    pub landing_bytes: u64,
    spread: Vec<Spread>,
}

/// An output whose host memory has gaps, another order of dims, or an address for each sample: it comes back row-major.
#[derive(Debug)]
pub(crate) struct Spread {
    output: usize,
    /// The offset in the memory that several outputs come back in together.
    pub landing: Option<u64>,
    /// The output as it is written on the device and comes back, row-major.
    pub compact: OutputPlan<'static>,
    /// The output as it is read from that memory, which is at address 0.
    read: OutputPlan<'static>,
}

/// An upload of host samples.
#[derive(Debug)]
pub(crate) enum Upload {
    /// Copies alone write this output; no kernel runs.
    Batch(usize),
    /// Copies alone write an output whose samples have addresses of their own: destination, source and bytes of each.
    Copied { output: usize, copies: Vec<(u64, u64, usize)> },
    /// Samples are copied as they are, and the kernel assembles them there.
    Staged(StagedBlock),
}

/// Device memory for samples of one output or of several, filled before the kernel reads them.
#[derive(Debug)]
pub(crate) struct StagedBlock {
    /// The samples are page-locked, and each is copied from where it is. In a graph they are not, for that would need
    /// memory: the kernel reads them over the bus.
    pub is_pinned: bool,
    pub bytes: u64,
    pub outputs: Vec<Staged>,
}

/// The samples of an output in memory of a [`StagedBlock`].
#[derive(Debug)]
pub(crate) struct Staged {
    pub output: usize,
    /// Bytes from the start of the memory.
    pub begin: u64,
    /// The samples row-major, one after the other, as bytes, and the start of each.
    pub packed: OutputPlan<'static>,
    pub offsets: Offsets,
    /// The output as it is read from memory at address 0.
    read: OutputPlan<'static>,
}

impl Route {
    /// The route of these outputs, each of a leaf with these samples; `None` if nothing crosses. `reads_mapped`: whether kernels
    /// may read page-locked memory where it is.
    ///
    /// # Errors
    /// [`Error::TooLarge`](crate::Error::TooLarge), [`Error::OutOfMemory`](crate::Error::OutOfMemory): samples that are
    /// brought to a device one after the other are too many for it.
    pub fn new(
        batch_shapes: &[BatchShape],
        outputs: &[OutputPlan<'_>],
        samples: &[&SampleList<'_>],
        reads_mapped: bool,
    ) -> Result<Option<Box<Route>>> {
        let crosses = |shape: &BatchShape| shape.source.is_cuda() != shape.device.is_cuda();
        if !batch_shapes.iter().any(crosses) {
            return Ok(None);
        }
        let leaves = PlannedLeaves { batch_shapes, outputs, samples, reads_mapped };
        let copied_as_one = leaves.copied_as_one();
        let mut route = Route { reads_mapped, ..Route::default() };
        for (index, output) in outputs.iter().enumerate() {
            let path = match copied_as_one.contains(&index) {
                true => Path::Staged,
                false => leaves.path_of(output),
            };
            let comes_back = path == Path::Download && output.out.is_some();
            if comes_back
                && matches!(output.role, Role::Data | Role::Scales)
                && !output.layout.is_compact()
            {
                route.spread.extend(leaves.spread(index)?);
            }
            if output.role != Role::Data {
                continue;
            }
            route.paths.push(path);
            let is_alone = output.numel() > 0 && !copied_as_one.contains(&index);
            match path {
                Path::Upload if is_alone => route.uploads.push(Upload::Batch(index)),
                Path::Staged if is_alone => route.uploads.push(leaves.staged(&[index], false)?),
                Path::CopiedPinned if is_alone => {
                    route.uploads.push(leaves.staged(&[index], true)?);
                }
                _ => {}
            }
        }
        if !copied_as_one.is_empty() {
            route.uploads.push(leaves.staged(&copied_as_one, false)?);
        }
        Ok(Some(Box::new(route)))
    }

    /// The route of a move: that of its leaves, with the transfers of its groups, whose outputs are the last of these, those of data
    /// with a path; `None` if nothing crosses.
    pub(super) fn add_groups(
        route: Option<Box<Route>>,
        outputs: &[OutputPlan<'_>],
        groups: Vec<(usize, Option<Path>, Crossing)>,
        reads_mapped: bool,
    ) -> Option<Box<Route>> {
        let crosses = |(_, path, _): &(usize, Option<Path>, Crossing)| {
            use Path::{CopiedPinned, DirectPinned, Download, Staged};
            matches!(path, Some(Staged | CopiedPinned | DirectPinned | Download))
        };
        if route.is_none() && !groups.iter().any(crosses) {
            return None;
        }
        let first = groups.first().map_or(outputs.len(), |(first, ..)| *first);
        let paths = || outputs[..first].iter().map(Path::within).collect();
        let mut route = route.unwrap_or_else(|| {
            Box::new(Route { reads_mapped, paths: paths(), ..Route::default() })
        });
        let mut shared = StagedBlock { is_pinned: false, bytes: 0, outputs: Vec::new() };
        for (output, path, crossing) in groups {
            route.paths.extend(path);
            match crossing {
                Crossing::Nothing => {}
                Crossing::Copied(copies) => route.uploads.push(Upload::Copied { output, copies }),
                Crossing::Staged { is_pinned: true, packed, offsets, read } => {
                    let bytes = packed.bytes();
                    let outputs = vec![Staged { output, begin: 0, packed, offsets, read }];
                    route.uploads.push(Upload::Staged(StagedBlock {
                        is_pinned: true,
                        bytes,
                        outputs,
                    }));
                }
                Crossing::Staged { packed, offsets, read, .. } => {
                    let begin = shared.bytes;
                    shared.bytes = (begin + packed.bytes()).next_multiple_of(SHARED_ALIGN);
                    shared.outputs.push(Staged { output, begin, packed, offsets, read });
                }
                Crossing::Landed { compact, read } => {
                    let landing = Some(route.landing_bytes);
                    route.landing_bytes += compact.bytes().next_multiple_of(SHARED_ALIGN);
                    route.spread.push(Spread { output, landing, compact, read });
                }
            }
        }
        if !shared.outputs.is_empty() {
            route.uploads.push(Upload::Staged(shared));
        }
        Some(route)
    }

    /// Whether any output is spread over host memory after it has come back.
    pub fn has_spread(&self) -> bool {
        !self.spread.is_empty()
    }

    /// Whether the host reads samples of a leaf during the call, on their way to a device.
    pub fn reads_on_host(&self, leaf: usize) -> bool {
        matches!(self.paths[leaf], Path::Upload | Path::Staged)
    }

    /// How an output is spread over its memory; `None` unless it comes back from a device to memory that is not
    /// row-major.
    pub fn spread(&self, output: usize) -> Option<&Spread> {
        self.spread.iter().find(|spread| spread.output == output)
    }
}

impl Spread {
    /// The output as it is read from the memory that the batch has come back to: `memory` is the
    /// start of that of all outputs if they come back together.
    pub fn read_at(&self, memory: *const u8) -> OutputPlan<'_> {
        self.read.read_from(memory.wrapping_add(self.landing.unwrap_or(0) as usize))
    }
}

impl StagedBlock {
    /// Bytes of the samples in the block, without the gaps between them.
    pub fn sample_bytes(&self) -> u64 {
        saturating_sum(self.outputs.iter().map(|staged| staged.packed.bytes()))
    }
}

impl Staged {
    /// The output as it is read if the block begins at this address.
    pub fn read_at(&self, memory: u64) -> OutputPlan<'_> {
        self.read.read_from(std::ptr::without_provenance((memory + self.begin) as usize))
    }
}

/// The facts from which a route is chosen.
struct PlannedLeaves<'l> {
    batch_shapes: &'l [BatchShape],
    outputs: &'l [OutputPlan<'l>],
    samples: &'l [&'l SampleList<'l>],
    reads_mapped: bool,
}

impl PlannedLeaves<'_> {
    /// The path of an output that does not cross together with others.
    fn path_of(&self, output: &OutputPlan<'_>) -> Path {
        let batch_shape = &self.batch_shapes[output.leaf];
        match (batch_shape.source, batch_shape.device) {
            (Device::Pinned, Device::Cuda(_)) if self.is_copied(output) => Path::CopiedPinned,
            (Device::Pinned, Device::Cuda(_)) if self.reads_mapped => Path::DirectPinned,
            (Device::Cpu | Device::Pinned, Device::Cuda(_))
                if output.bytes_only && output.layout.is_compact() =>
            {
                Path::Upload
            }
            (Device::Cpu | Device::Pinned, Device::Cuda(_)) => Path::Staged,
            (Device::Cuda(_), Device::Cpu | Device::Pinned) => Path::Download,
            _ => Path::within(output),
        }
    }

    /// Whether page-locked samples are copied to the device as they are, for the kernel to work on there: if all are row-major,
    /// and large on average or not to be read over the bus.
    fn is_copied(&self, output: &OutputPlan<'_>) -> bool {
        let list = self.samples[output.leaf];
        matches!(output.op, ElementOp::Read { .. } | ElementOp::Rescale)
            && list.metas().iter().all(|meta| meta.layout.is_compact())
            && (!self.reads_mapped
                || sample_bytes(list) >= POLICY.min_copied_bytes.saturating_mul(list.len() as u64))
    }

    /// Outputs whose host samples go to the device in one copy, for the kernel to work on there: the smallest first, as many as
    /// one copy takes. An output alone has a copy of its own, so there are none or several.
    fn copied_as_one(&self) -> Vec<usize> {
        let is_uploaded = |output: &OutputPlan<'_>| {
            let goes_up = matches!(self.path_of(output), Path::Upload | Path::Staged);
            let reads = matches!(output.op, ElementOp::Read { .. } | ElementOp::Rescale);
            goes_up && reads && output.numel() > 0
        };
        let outputs = self.outputs.iter().enumerate().filter(|(_, output)| is_uploaded(output));
        let bytes = |output: &OutputPlan<'_>| sample_bytes(self.samples[output.leaf]);
        let mut outputs: Vec<_> = outputs.map(|(index, output)| (bytes(output), index)).collect();
        if outputs.len() > 1 {
            outputs.sort_unstable();
        }
        let sums = outputs.iter().scan(0u64, |sum, (bytes, _)| {
            *sum = sum.saturating_add(*bytes).checked_next_multiple_of(SHARED_ALIGN)?;
            Some(*sum)
        });
        match sums.take_while(|&sum| sum <= POLICY.chunk_bytes).count() {
            0 | 1 => Vec::new(),
            count => outputs[..count].iter().map(|(_, index)| *index).collect(),
        }
    }

    /// The staging memory for the samples of these outputs; errors as of [`Route::new`].
    fn staged(&self, outputs: &[usize], is_pinned: bool) -> Result<Upload> {
        let mut staging = StagedBlock { is_pinned, bytes: 0, outputs: Vec::new() };
        for &output in outputs {
            let OutputPlan { leaf, out, ref layout, .. } = self.outputs[output];
            let (list, batch_shape) = (self.samples[leaf], &self.batch_shapes[leaf]);
            let (packed, offsets) = packed_output(list)?;
            let there = list.packed_at(&offsets, batch_shape.device)?;
            let read = data_output(leaf, batch_shape, &there, layout.clone());
            let read = OutputPlan { out, ..read.into_owned() };
            let begin = staging.bytes;
            staging.bytes += packed.bytes();
            if outputs.len() > 1 {
                staging.bytes = staging.bytes.next_multiple_of(SHARED_ALIGN);
            }
            staging.outputs.push(Staged { output, begin, packed, offsets, read });
        }
        Ok(Upload::Staged(staging))
    }

    /// How an output is spread whose memory has gaps or another order of dims; `None` for scales
    /// that are not found. Errors as of [`Route::new`].
    fn spread(&self, index: usize) -> Result<Option<Spread>> {
        let output = &self.outputs[index];
        let (leaf, dtype) = (output.leaf, output.dtype);
        let layout = Layout::compact(dtype, output.layout.shape())?;
        let whole = TensorMeta { dtype, device: Device::Cpu, layout: layout.clone() };
        let (batch_shape, samples) = (&self.batch_shapes[leaf], self.samples[leaf]);
        let compact = match output.role {
            Role::Scales => scales_output(leaf, batch_shape, samples, layout),
            _ => Some(data_output(leaf, batch_shape, samples, layout)),
        };
        let Some(compact) = compact else { return Ok(None) };
        let whole = SampleList::for_meta(&whole)?;
        let batch_shape = BatchShape::new(&whole, &Collate::concat(0))?;
        let read = data_output(leaf, &batch_shape, &whole, output.layout.clone()).into_owned();
        let compact = OutputPlan { out: output.out, ..compact.into_owned() };
        Ok(Some(Spread { output: index, landing: None, compact, read }))
    }
}

/// Bytes of all samples of a list, without gaps.
fn sample_bytes(list: &SampleList<'_>) -> u64 {
    let bytes = |meta: &TensorMeta| bytes_of(meta.dtype, meta.layout.shape());
    saturating_sum((0..list.len()).map(|index| bytes(list.meta(index))))
}
