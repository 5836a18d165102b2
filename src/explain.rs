//! [`Explain`]: the account of a plan, and the names of the ways in which data moves.

use std::fmt;

use crate::arena::Arena;
use crate::field::{saturating_sum, Field, Op, Role};
use crate::geometry::Class;
use crate::host::Tiling;
use crate::kinds::Kind;
use crate::plan::Plan;
use crate::sample::SampleList;
use crate::spec::{bytes_of, Placement};
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
    /// What the launch writes, and how; `None` without one.
    pub launch: Option<Launch>,
    /// Bytes that cross from the host to a device, those of the launch's table included if it is uploaded.
    pub bytes_to_device: u64,
    /// Bytes that cross from a device to the host, which the call waits for.
    pub bytes_to_host: u64,
    /// Bytes of the one allocation of all leaves; 0 without one.
    pub arena_bytes: u64,
    /// Those of them that are between tensors, so that each begins aligned.
    pub arena_gap_bytes: u64,
    /// Shape and dtype of each leaf's data.
    pub outputs: Vec<(Vec<i64>, DType)>,
    /// How the data of each leaf moves.
    pub paths: Vec<&'static str>,
    /// Where each leaf is in its tree, if the caller said so: see [`Explain::named`].
    pub names: Vec<String>,
}

/// The one launch of a batch that is on a device, or comes from one: see [`Explain::launch`]. How work is
/// cut depends on the device; without a driver it is cut as for an H200.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Launch {
    /// Pieces of work, each for one warp.
    pub items: u64,
    /// Bytes of the table that tells the kernel what to do.
    pub table_bytes: u64,
    /// Whether the table is copied to the device before the launch; else it goes with its parameters.
    pub is_uploaded: bool,
    /// What it writes. A tensor has several parts where its samples need different loops.
    pub parts: Vec<LaunchPart>,
}

/// What a launch writes of one tensor by one family of loops.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LaunchPart {
    /// The leaf; `None` for the zeros between tensors of an arena.
    pub leaf: Option<usize>,
    /// `"data"`, `"mask"`, `"batch_index"`, `"lengths"`, `"offsets"` or `"gap"`.
    pub output: &'static str,
    /// The loops that write it: `"rows"` (samples of whole 16-byte vectors), `"pages"` (the same, multiples
    /// of 2 KiB), `"short"` (samples of up to 2 KiB, at any byte), `"line"` (rows of adjacent elements),
    /// `"planar"` (u8 pixels to planes), `"box"` (any strides, any cast), `"values"` (numbers known on the
    /// host).
    pub family: &'static str,
    /// Samples of it; 0 for values.
    pub samples: usize,
    /// Pieces of work.
    pub items: u64,
    /// How samples are found: by `"addresses"` of 8 bytes, or by `"ids"` of 4, multiples of a distance;
    /// `None` where nothing is read.
    pub sources: Option<&'static str>,
}

impl Explain {
    /// `views`: of each leaf, whether it is handed out as a view. Those that are not named are not.
    pub(crate) fn new(plan: &Plan<'_>, views: &[bool]) -> Explain {
        let is_view = |leaf: usize| views.get(leaf) == Some(&true);
        let fields = || plan.fields.iter().filter(|field| !is_view(field.leaf));
        let data = || fields().filter(|field| field.role == Role::Data);
        let launch = launch_of(plan, is_view);
        let uploaded = launch.iter().filter(|launch| launch.is_uploaded);
        let table_bytes = saturating_sum(uploaded.map(|launch| launch.table_bytes));
        let paths: Vec<&'static str> = plan
            .paths()
            .enumerate()
            .map(|(leaf, path)| if is_view(leaf) { Path::View } else { path }.name())
            .collect();
        let path = match paths.split_first() {
            Some((first, rest)) if rest.iter().any(|path| path != first) => "mixed",
            Some((first, _)) => first,
            None => Path::Gather.name(),
        };
        let written = saturating_sum(data().map(Field::bytes));
        let padding_bytes = plan.padding_bytes();
        Explain {
            path,
            samples: plan.specs.first().map_or(0, |spec| spec.num_samples),
            leaves: plan.specs.len(),
            bytes_read: saturating_sum(fields().map(Field::bytes_read)),
            bytes_written: saturating_sum(fields().map(Field::bytes)),
            padding_bytes,
            padding_waste: share(padding_bytes, written),
            ranges: data().map(num_ranges).sum(),
            tiles: Tiling::new(plan, |field| !is_view(field.leaf)).count(),
            launches: usize::from(launch.is_some()),
            launch,
            bytes_to_device: saturating_sum(data().map(|field| bytes_to_device(plan, field)))
                .saturating_add(table_bytes),
            bytes_to_host: saturating_sum(data().map(|field| bytes_to_host(plan, field))),
            arena_bytes: plan.arena_bytes(),
            arena_gap_bytes: plan.arena.as_ref().map_or(0, Arena::gap_bytes),
            outputs: plan.specs.iter().map(|spec| (spec.shape.to_vec(), spec.dtype)).collect(),
            paths,
            names: Vec::new(),
        }
    }

    fn write_launch(&self, f: &mut fmt::Formatter<'_>, launch: &Launch) -> fmt::Result {
        let Launch { items, table_bytes, is_uploaded, parts } = launch;
        let way = if *is_uploaded { "uploaded" } else { "in the parameters" };
        write!(f, "\nlaunch         {items} items, table of {table_bytes} bytes {way}")?;
        for part in parts {
            let name = part.leaf.and_then(|leaf| self.names.get(leaf)).map_or("", String::as_str);
            let space = if name.is_empty() { "" } else { " " };
            write!(f, "\npart           {name}{space}{}: {}", part.output, part.family)?;
            if part.samples > 0 {
                write!(f, ", {} samples", part.samples)?;
            }
            if let Some(sources) = part.sources {
                write!(f, " by {sources}")?;
            }
            write!(f, ", {} items", part.items)?;
        }
        Ok(())
    }

    /// With the names of the leaves, in the order in which they were planned.
    #[must_use]
    pub fn named(self, names: impl IntoIterator<Item = String>) -> Explain {
        Explain { names: names.into_iter().collect(), ..self }
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

/// How the data of a leaf moves: what [`Explain::path`] says of each.
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

fn num_ranges(field: &Field<'_>) -> usize {
    match &field.ranges {
        Some(ranges) => ranges.len(),
        None if field.bytes_only => field.data.len(),
        None => 0,
    }
}

/// The launch of the leaves that are not handed out as views. A run that would be refused makes none.
#[cfg(feature = "cuda")]
fn launch_of(plan: &Plan<'_>, is_view: impl Fn(usize) -> bool) -> Option<Launch> {
    crate::cuda::launch_of(plan, is_view).unwrap_or_default()
}

#[cfg(not(feature = "cuda"))]
fn launch_of(_: &Plan<'_>, _: impl Fn(usize) -> bool) -> Option<Launch> {
    None
}

/// Whether host samples become the batch on a device by the copy alone.
pub(crate) fn is_upload(plan: &Plan<'_>, field: &Field<'_>) -> bool {
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
    let is_uploaded = |field: &Field<'_>| {
        let spec = &plan.specs[field.leaf];
        let crosses = spec.source == Device::Cpu && matches!(spec.device, Device::Cuda(_));
        crosses && matches!(field.op, Op::Read { .. }) && field.numel() > 0
    };
    let fields = plan.fields.iter().enumerate().filter(|(_, field)| is_uploaded(field));
    let bytes = |field: &Field<'_>| sample_bytes(&plan.lists[field.leaf]);
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

fn path_of(plan: &Plan<'_>, field: &Field<'_>) -> Path {
    let spec = &plan.specs[field.leaf];
    match (spec.source, spec.device) {
        (Device::Cpu, Device::Cuda(_)) if is_upload(plan, field) => return Path::Upload,
        (Device::Cpu, Device::Cuda(_)) => return Path::Staged,
        (Device::Pinned, Device::Cuda(_)) if is_copied(plan, field) => return Path::CopiedPinned,
        (Device::Pinned, Device::Cuda(_)) => return Path::DirectPinned,
        (Device::Cuda(_), Device::Cpu | Device::Pinned) => return Path::Download,
        _ => {}
    }
    let casts = |class: &Class| class.dtype != field.dtype;
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
    /// How the data of each leaf moves. To be asked before a run, which changes what is planned.
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
        saturating_sum(data.map(Field::bytes))
    }

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
        for (leaf, (shape, dtype)) in self.outputs.iter().enumerate() {
            let name = self.names.get(leaf).map_or("", String::as_str);
            let space = if name.is_empty() { "" } else { " " };
            write!(f, "output         {name}{space}{} {dtype}", crate::error::Tuple(shape))?;
            match self.path {
                "mixed" => writeln!(f, ", {}", self.paths[leaf])?,
                _ => writeln!(f)?,
            }
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
        if let Some(launch) = &self.launch {
            self.write_launch(f, launch)?;
        }
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
