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
pub(crate) fn num_ranges(field: &OutputPlan<'_>) -> usize {
    match &field.ranges {
        Some(ranges) => ranges.len(),
        None if field.bytes_only => field.num_samples(),
        None => 0,
    }
}

/// Whether host samples become the batch on a device by the copy alone.
pub(crate) fn is_upload(plan: &Plan<'_>, field: &OutputPlan<'_>) -> bool {
    let spec = &plan.specs[field.leaf];
    let crosses = spec.source == Device::Cpu && matches!(spec.device, Device::Cuda(_));
    crosses && field.role == Role::Data && field.bytes_only && field.layout.is_compact()
}

/// Bytes of host samples that go to a device in one copy: enough for the bus, and few enough that the first copy starts
/// soon.
pub(crate) const CHUNK_BYTES: u64 = 4 << 20;

/// Fields that are copied together begin at multiples of this on the device.
pub(crate) const UPLOAD_ALIGN: u64 = 256;

/// Fields whose host samples go to the device in one copy, for the kernel to work on there: the smallest first, as many
/// as one copy takes. A field alone has a copy of its own.
pub(crate) fn uploaded_together(plan: &Plan<'_>) -> Vec<usize> {
    let is_uploaded = |field: &OutputPlan<'_>| {
        let spec = &plan.specs[field.leaf];
        let crosses = spec.source == Device::Cpu && matches!(spec.device, Device::Cuda(_));
        crosses && matches!(field.op, Op::Read { .. }) && field.numel() > 0
    };
    let fields = plan.fields.iter().enumerate().filter(|(_, field)| is_uploaded(field));
    let bytes = |field: &OutputPlan<'_>| sample_bytes(&plan.lists[field.leaf]);
    let mut fields: Vec<_> = fields.map(|(index, field)| (bytes(field), index)).collect();
    if fields.len() > 1 {
        fields.sort_unstable();
    }
    let sums = fields.iter().scan(0u64, |sum, (bytes, _)| {
        *sum = sum.saturating_add(*bytes).checked_next_multiple_of(UPLOAD_ALIGN)?;
        Some(*sum)
    });
    match sums.take_while(|&sum| sum <= CHUNK_BYTES).count() {
        0 | 1 => Vec::new(),
        count => fields[..count].iter().map(|(_, index)| *index).collect(),
    }
}

/// Bytes of a sample, on average, from which page-locked samples are brought to the device by its copy
/// engine; smaller ones the kernels read over the bus themselves. Kernels get less out of the bus, and
/// a copy costs as much to start however small it is. From figures of others for one H100; the bench
/// `gather` times both ways (W8).
const MIN_COPIED_BYTES: u64 = 28 << 10;

/// Whether page-locked samples are copied to the device as they are, for the kernel to work on there.
/// In a graph they are not, for that would need memory.
pub(crate) fn is_copied(plan: &Plan<'_>, field: &OutputPlan<'_>) -> bool {
    let (spec, list) = (&plan.specs[field.leaf], &plan.lists[field.leaf]);
    spec.source == Device::Pinned
        && matches!(spec.device, Device::Cuda(_))
        && matches!(field.op, Op::Read { .. })
        && list.kinds().iter().all(|kind| kind.layout.is_compact())
        && sample_bytes(list) >= MIN_COPIED_BYTES.saturating_mul(list.len() as u64)
}

fn sample_bytes(list: &SampleList<'_>) -> u64 {
    let bytes = |kind: &TensorMeta| bytes_of(kind.dtype, kind.layout.shape());
    saturating_sum((0..list.len()).map(|index| bytes(list.kind(index))))
}

/// Whether the batch of a leaf is on a device.
pub(crate) fn is_on_device(spec: &BatchShape) -> bool {
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
pub(crate) fn must_upload(plan: &Plan<'_>, index: usize, is_capturing: bool) -> bool {
    let field = &plan.fields[index];
    let reads = matches!(field.op, Op::Read { .. }) && field.numel() > 0;
    let is_pageable = plan.specs[field.leaf].source == Device::Cpu;
    reads && (is_pageable || !is_capturing && is_copied(plan, field))
}

pub(crate) fn bytes_to_device(plan: &Plan<'_>, field: &OutputPlan<'_>) -> u64 {
    let spec = &plan.specs[field.leaf];
    let is_upload = spec.source == Device::Cpu && matches!(spec.device, Device::Cuda(_));
    match is_upload || is_copied(plan, field) {
        true => sample_bytes(&plan.lists[field.leaf]),
        false => 0,
    }
}

pub(crate) fn bytes_to_host(plan: &Plan<'_>, field: &OutputPlan<'_>) -> u64 {
    let spec = &plan.specs[field.leaf];
    let crosses = matches!(spec.source, Device::Cuda(_)) && !matches!(spec.device, Device::Cuda(_));
    if crosses {
        field.bytes()
    } else {
        0
    }
}

fn path_of(plan: &Plan<'_>, field: &OutputPlan<'_>) -> Path {
    let spec = &plan.specs[field.leaf];
    match (spec.source, spec.device) {
        (Device::Cpu, Device::Cuda(_)) if is_upload(plan, field) => return Path::Upload,
        (Device::Cpu, Device::Cuda(_)) => return Path::Staged,
        (Device::Pinned, Device::Cuda(_)) if is_copied(plan, field) => return Path::CopiedPinned,
        (Device::Pinned, Device::Cuda(_)) => return Path::DirectPinned,
        (Device::Cuda(_), Device::Cpu | Device::Pinned) => return Path::Download,
        _ => {}
    }
    let casts = |class: &LoopNest| class.dtype != field.dtype;
    match field.op {
        Op::Read { affine: true } => Path::Transform,
        _ if field.bytes_only && num_ranges(field) == 1 => Path::Memcpy,
        _ if field.bytes_only => Path::Gather,
        _ => match &*field.class_ids {
            [] if casts(&field.classes[0]) => Path::Cast,
            ids if ids.iter().any(|&id| casts(&field.classes[id as usize])) => Path::Cast,
            _ => Path::Strided,
        },
    }
}

impl Plan<'_> {
    /// How the data of each leaf moves.
    pub(crate) fn paths(&self) -> impl Iterator<Item = Path> + '_ {
        let together = uploaded_together(self);
        let data = self.fields.iter().enumerate().filter(|(_, field)| field.role == Role::Data);
        data.map(move |(index, field)| match together.contains(&index) {
            true => Path::Staged,
            false => path_of(self, field),
        })
    }

    /// Bytes of the data.
    pub(crate) fn data_bytes(&self) -> u64 {
        let data = self.fields.iter().filter(|field| field.role == Role::Data);
        saturating_sum(data.map(OutputPlan::bytes))
    }

    /// Bytes of the data that hold padding.
    pub(crate) fn padding_bytes(&self) -> u64 {
        let data = self.fields.iter().filter(|field| field.role == Role::Data);
        // How long the samples are that a device chooses is not known here.
        data.filter(|field| field.selected.is_none())
            .filter(|field| matches!(self.specs[field.leaf].placement, Placement::Padded(_)))
            .map(|field| {
                let real: u64 =
                    (0..field.data.len()).map(|sample| field.class_of(sample).num_real).sum();
                field.bytes() - real * field.dtype.size() as u64
            })
            .sum()
    }

    /// Bytes of everything the plan makes, offsets and lengths included.
    pub(crate) fn output_bytes(&self) -> u64 {
        let fields = saturating_sum(self.fields.iter().map(OutputPlan::bytes));
        let lengths = |spec: &BatchShape| {
            spec.lengths.as_ref().map_or(0, |(_, shape)| bytes_of(DType::I64, shape))
        };
        fields.saturating_add(saturating_sum(self.specs.iter().map(lengths)))
    }
}
