//! [`Path`]: how the data of each leaf moves. The executors obey what is chosen here, and [`crate::Explain`]
//! reports it.

use crate::plan::batch_shape::{BatchShape, Placement};
use crate::plan::loops::LoopNest;
use crate::plan::output::{saturating_sum, Op, OutputPlan, Role};
use crate::plan::plan::Plan;
use crate::samples::{SampleList, TensorMeta};
use crate::tensor::{bytes_of, DType, Device};

/// How the data of a leaf moves: what [`crate::Explain::path`] says of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    View,
    Memcpy,
    Gather,
    Strided,
    Cast,
    Transform,
    Upload,
    Staged,
    CopiedPinned,
    DirectPinned,
    Download,
}

impl Path {
    /// In the order of their numbers.
    pub const ALL: [Path; 11] = [
        Path::View,
        Path::Memcpy,
        Path::Gather,
        Path::Strided,
        Path::Cast,
        Path::Transform,
        Path::Upload,
        Path::Staged,
        Path::CopiedPinned,
        Path::DirectPinned,
        Path::Download,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Path::View => "view",
            Path::Memcpy => "memcpy",
            Path::Gather => "gather",
            Path::Strided => "strided",
            Path::Cast => "cast",
            Path::Transform => "transform",
            Path::Upload => "upload",
            Path::Staged => "staged",
            Path::CopiedPinned => "copied pinned",
            Path::DirectPinned => "direct pinned",
            Path::Download => "download",
        }
    }
}

/// Copies that are left after neighbours were merged; 0 where bytes are not just moved.
pub(crate) fn num_ranges(output: &OutputPlan<'_>) -> usize {
    match &output.ranges {
        Some(ranges) => ranges.len(),
        None if output.bytes_only => output.num_samples(),
        None => 0,
    }
}

/// Whether host samples become the batch on a device by the copy alone.
pub(crate) fn is_upload(plan: &Plan<'_>, output: &OutputPlan<'_>) -> bool {
    let batch_shape = &plan.batch_shapes()[output.leaf];
    let crosses =
        batch_shape.source == Device::Cpu && matches!(batch_shape.device, Device::Cuda(_));
    crosses && output.role == Role::Data && output.bytes_only && output.layout.is_compact()
}

/// Bytes of host samples that go to a device in one copy: enough for the bus, and few enough that the first copy starts
/// soon.
pub(crate) const CHUNK_BYTES: u64 = 4 << 20;

/// Outputs of at most so many bytes share page-locked or device memory with others of their call, which stays as long as one
/// of them does.
const MAX_SHARED_BYTES: u64 = 16 << 10;

/// They begin as far apart as the driver's own allocations.
pub(crate) const SHARED_ALIGN: u64 = 256;

/// Whether an output of so many bytes shares memory, if its call has several of them.
pub(crate) fn is_shared(bytes: u64) -> bool {
    (1..=MAX_SHARED_BYTES).contains(&bytes)
}

/// Fields that are copied together begin at multiples of this on the device.
pub(crate) const UPLOAD_ALIGN: u64 = 256;

/// Fields whose host samples go to the device in one copy, for the kernel to work on there: the smallest first, as many
/// as one copy takes. An output alone has a copy of its own.
pub(crate) fn uploaded_together(plan: &Plan<'_>) -> Vec<usize> {
    let is_uploaded = |output: &OutputPlan<'_>| {
        let batch_shape = &plan.batch_shapes()[output.leaf];
        let crosses =
            batch_shape.source == Device::Cpu && matches!(batch_shape.device, Device::Cuda(_));
        crosses && matches!(output.op, Op::Read { .. }) && output.numel() > 0
    };
    let outputs = plan.outputs().iter().enumerate().filter(|(_, output)| is_uploaded(output));
    let bytes = |output: &OutputPlan<'_>| sample_bytes(&plan.lists[output.leaf]);
    let mut outputs: Vec<_> = outputs.map(|(index, output)| (bytes(output), index)).collect();
    if outputs.len() > 1 {
        outputs.sort_unstable();
    }
    let sums = outputs.iter().scan(0u64, |sum, (bytes, _)| {
        *sum = sum.saturating_add(*bytes).checked_next_multiple_of(UPLOAD_ALIGN)?;
        Some(*sum)
    });
    match sums.take_while(|&sum| sum <= CHUNK_BYTES).count() {
        0 | 1 => Vec::new(),
        count => outputs[..count].iter().map(|(_, index)| *index).collect(),
    }
}

/// Bytes of a sample, on average, from which page-locked samples are brought to the device by its copy
/// engine; smaller ones the kernels read over the bus themselves. Kernels get less out of the bus, and
/// a copy costs as much to start however small it is. From figures of others for one H100; the bench
/// `gather` times both ways (W8).
const MIN_COPIED_BYTES: u64 = 28 << 10;

/// Whether page-locked samples are copied to the device as they are, for the kernel to work on there.
/// In a graph they are not, for that would need memory.
pub(crate) fn is_copied(plan: &Plan<'_>, output: &OutputPlan<'_>) -> bool {
    let (batch_shape, list) = (&plan.batch_shapes()[output.leaf], &plan.lists[output.leaf]);
    batch_shape.source == Device::Pinned
        && matches!(batch_shape.device, Device::Cuda(_))
        && matches!(output.op, Op::Read { .. })
        && list.metas().iter().all(|meta| meta.layout.is_compact())
        && sample_bytes(list) >= MIN_COPIED_BYTES.saturating_mul(list.len() as u64)
}

fn sample_bytes(list: &SampleList<'_>) -> u64 {
    let bytes = |meta: &TensorMeta| bytes_of(meta.dtype, meta.layout.shape());
    saturating_sum((0..list.len()).map(|index| bytes(list.meta(index))))
}

/// Whether the batch of a leaf is on a device.
pub(crate) fn is_on_device(batch_shape: &BatchShape) -> bool {
    matches!(batch_shape.device, Device::Cuda(_))
}

/// Whether an output is run on the device: its data is read or written there, or it is written there.
pub(crate) fn is_device_output(plan: &Plan<'_>, output: usize) -> bool {
    let output = &plan.outputs()[output];
    let batch_shape = &plan.batch_shapes()[output.leaf];
    let reads = matches!(batch_shape.source, Device::Cuda(_)) && output.role == Role::Data;
    reads || is_on_device(batch_shape)
}

/// Whether the samples of an output have to be brought to the device. Other host memory, which is
/// page-locked, the kernels read themselves.
pub(crate) fn must_upload(plan: &Plan<'_>, index: usize, is_capturing: bool) -> bool {
    let output = &plan.outputs()[index];
    let reads = matches!(output.op, Op::Read { .. }) && output.numel() > 0;
    let is_pageable = plan.batch_shapes()[output.leaf].source == Device::Cpu;
    reads && (is_pageable || !is_capturing && is_copied(plan, output))
}

pub(crate) fn bytes_to_device(plan: &Plan<'_>, output: &OutputPlan<'_>) -> u64 {
    let batch_shape = &plan.batch_shapes()[output.leaf];
    let is_upload =
        batch_shape.source == Device::Cpu && matches!(batch_shape.device, Device::Cuda(_));
    match is_upload || is_copied(plan, output) {
        true => sample_bytes(&plan.lists[output.leaf]),
        false => 0,
    }
}

pub(crate) fn bytes_to_host(plan: &Plan<'_>, output: &OutputPlan<'_>) -> u64 {
    let batch_shape = &plan.batch_shapes()[output.leaf];
    let crosses = matches!(batch_shape.source, Device::Cuda(_))
        && !matches!(batch_shape.device, Device::Cuda(_));
    if crosses {
        output.bytes()
    } else {
        0
    }
}

fn path_of(plan: &Plan<'_>, output: &OutputPlan<'_>) -> Path {
    let batch_shape = &plan.batch_shapes()[output.leaf];
    match (batch_shape.source, batch_shape.device) {
        (Device::Cpu, Device::Cuda(_)) if is_upload(plan, output) => return Path::Upload,
        (Device::Cpu, Device::Cuda(_)) => return Path::Staged,
        (Device::Pinned, Device::Cuda(_)) if is_copied(plan, output) => return Path::CopiedPinned,
        (Device::Pinned, Device::Cuda(_)) => return Path::DirectPinned,
        (Device::Cuda(_), Device::Cpu | Device::Pinned) => return Path::Download,
        _ => {}
    }
    let casts = |class: &LoopNest| class.dtype != output.dtype;
    match output.op {
        Op::Read { affine: true } => Path::Transform,
        _ if output.bytes_only && num_ranges(output) == 1 => Path::Memcpy,
        _ if output.bytes_only => Path::Gather,
        _ => match &*output.class_ids {
            [] if casts(&output.classes[0]) => Path::Cast,
            ids if ids.iter().any(|&id| casts(&output.classes[id as usize])) => Path::Cast,
            _ => Path::Strided,
        },
    }
}

impl<'s> Plan<'s> {
    /// How the data of each leaf moves.
    pub(crate) fn paths<'p>(&'p self) -> impl Iterator<Item = Path> + use<'p, 's> {
        let together = uploaded_together(self);
        let data =
            self.outputs().iter().enumerate().filter(|(_, output)| output.role == Role::Data);
        data.map(move |(index, output)| match together.contains(&index) {
            true => Path::Staged,
            false => path_of(self, output),
        })
    }

    /// Bytes of the data.
    pub(crate) fn data_bytes(&self) -> u64 {
        let data = self.outputs().iter().filter(|output| output.role == Role::Data);
        saturating_sum(data.map(OutputPlan::bytes))
    }

    /// Bytes of the data that hold padding.
    pub(crate) fn padding_bytes(&self) -> u64 {
        let data = self.outputs().iter().filter(|output| output.role == Role::Data);
        // How long the samples are that a device chooses is not known here.
        data.filter(|output| output.selected.is_none())
            .filter(|output| {
                matches!(self.batch_shapes()[output.leaf].placement, Placement::Padded(_))
            })
            .map(|output| {
                let real: u64 =
                    (0..output.data.len()).map(|sample| output.class_of(sample).num_real).sum();
                output.bytes() - real * output.dtype.size() as u64
            })
            .sum()
    }

    /// Bytes of everything the plan makes, offsets and lengths included.
    pub(crate) fn output_bytes(&self) -> u64 {
        let outputs = saturating_sum(self.outputs().iter().map(OutputPlan::bytes));
        let lengths = |batch_shape: &BatchShape| {
            batch_shape.lengths.as_ref().map_or(0, |(_, shape)| bytes_of(DType::I64, shape))
        };
        outputs.saturating_add(saturating_sum(self.batch_shapes().iter().map(lengths)))
    }
}
