//! [`OutputPlan`]: one tensor that a plan writes, as flat tables.

use std::borrow::Cow;
use std::ops::Range;

use crate::collate::MaskBits;
use crate::plan::batch_shape::BatchShape;
use crate::plan::loops::{Channel, Dim, LoopNest};
use crate::plan::placement::Placement;
use crate::plan::role::Role;
use crate::samples::{SampleList, TensorMeta};
use crate::tensor::Result;
use crate::tensor::{bytes_of, checked_numel, CastTo, DType, Device, Dims, Layout, Offsets};

/// One tensor to write.
#[derive(Debug)]
pub(crate) struct OutputPlan<'s> {
    /// Position of the leaf it belongs to.
    pub leaf: usize,
    pub role: Role,
    pub dtype: DType,
    /// The caller's memory, if the leaf was planned with some.
    pub out: Option<*mut u8>,
    /// Whether that is a slice of Rust's `bool`.
    pub is_bools: bool,
    /// Shape and strides of the output.
    pub layout: Layout,
    pub op: ElementOp,
    /// Bits of the padding.
    pub fill: [u8; 16],
    /// Address of each sample; of rows of a table that are read as one sample, that of the first.
    pub data: Cow<'s, [*const u8]>,
    /// The address of each sample's first element in the output, if each sample has memory of its own; else empty: see `starts`.
    pub places: Cow<'s, [*const u8]>,
    /// Position of each sample's nest in `nests`; empty if all have the first.
    pub nest_ids: Cow<'s, [u32]>,
    pub nests: Vec<LoopNest>,
    pub dims: Vec<Dim>,
    pub starts: Starts,
    /// Whether every sample is one run of bytes to be moved.
    pub bytes_only: bool,
    /// Whether every sample is one run of bytes to be moved, and a row of a table that is read as one sample.
    pub is_table_of_runs: bool,
    /// The copies that are left when neighbours are merged, if that at least halves them.
    pub ranges: Option<Vec<CopyRange>>,
    /// How many samples there are, if plans of several share the output: `data` then has none of them, or, where a device
    /// chooses them, one of each class.
    pub selected: Option<usize>,
}

// SAFETY: samples are read through under the promise of `SampleList`, whose own impls these mirror;
// `out` is written to by one run at a time (`Plan::use_targets`), while the plan borrows its `Target`, and
// `places` by the one call whose destinations they are.
#[allow(unsafe_code)]
unsafe impl Send for OutputPlan<'_> {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for OutputPlan<'_> {}

/// The operation on each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementOp {
    /// Bytes are moved, or cast where the class has another dtype, or put through the affine map of
    /// the leaf's batch shape if `affine`. `saturate`: results beyond the largest finite number become it.
    Read { affine: bool, saturate: bool },
    /// Elements are divided or multiplied by the scales of the leaf's batch shape, and rounded; into float8 they saturate.
    Rescale,
    /// The output of the data writes scales of its elements; here those of no elements are written.
    Scales,
    /// Real elements become these bits.
    Const([u8; 16]),
    /// Real elements become the position of their sample, as int64.
    Index,
}

impl ElementOp {
    /// Elements are moved or cast.
    pub const MOVED: ElementOp = ElementOp::Read { affine: false, saturate: false };

    /// The bits that real elements of a sample become, where nothing is read.
    pub fn constant(self, sample: usize) -> Option<[u8; 16]> {
        match self {
            ElementOp::Read { .. } | ElementOp::Rescale | ElementOp::Scales => None,
            ElementOp::Const(bits) => Some(bits),
            ElementOp::Index => {
                let mut bits = [0; 16];
                bits[..8].copy_from_slice(&(sample as i64).to_ne_bytes());
                Some(bits)
            }
        }
    }
}

/// One copy of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyRange {
    pub src: *const u8,
    /// Bytes from the start of the output.
    pub dst: u64,
    pub size: u64,
}

/// The start of each sample's elements, in the order of the work and in the output.
#[derive(Clone, Debug)]
pub(crate) enum Starts {
    /// Sample `i` has `elems` elements, `step` bytes after the sample before.
    Rows { elems: u64, step: i64 },
    /// Sample `i` begins at `offsets[i] * unit` elements and `offsets[i] * step` bytes.
    Joined { offsets: Offsets, unit: u64, step: i64 },
}

impl Starts {
    /// The sample that element `elem` of all, which is below their number, belongs to; empty samples own none.
    pub fn sample_at(&self, elem: u64) -> usize {
        match self {
            Starts::Rows { elems, .. } => (elem / elems) as usize,
            Starts::Joined { offsets, unit, .. } => {
                offsets.as_slice().partition_point(|&start| start as u64 * unit <= elem) - 1
            }
        }
    }

    /// The range of elements of the output that a sample owns, its padding included.
    pub fn elems(&self, sample: usize) -> Range<u64> {
        match self {
            Starts::Rows { elems, .. } => sample as u64 * elems..(sample as u64 + 1) * elems,
            Starts::Joined { offsets, unit, .. } => {
                let ends = &offsets.as_slice()[sample..sample + 2];
                ends[0] as u64 * unit..ends[1] as u64 * unit
            }
        }
    }

    /// Bytes from the start of the output to a sample's first element. The product fits 64 bits in an output with elements,
    /// and is not checked.
    pub fn byte_offset(&self, sample: usize) -> i64 {
        match self {
            Starts::Rows { step, .. } => sample as i64 * step,
            Starts::Joined { offsets, step, .. } => offsets.as_slice()[sample] * step,
        }
    }
}

impl OutputPlan<'_> {
    /// An output without samples, whose elements are read one by one: the plan of each kind fills in the rest.
    pub fn new<'o>(
        role: Role,
        dtype: DType,
        layout: Layout,
        op: ElementOp,
        starts: Starts,
    ) -> OutputPlan<'o> {
        OutputPlan {
            leaf: 0,
            role,
            dtype,
            out: None,
            is_bools: false,
            layout,
            op,
            fill: [0; 16],
            data: Cow::Borrowed(&[]),
            places: Cow::Borrowed(&[]),
            nest_ids: Cow::Borrowed(&[]),
            nests: Vec::new(),
            dims: Vec::new(),
            starts,
            bytes_only: false,
            is_table_of_runs: false,
            ranges: None,
            selected: None,
        }
    }

    /// The same output with the addresses of these samples; `nest` makes the loop nest of each `TensorMeta`.
    fn with_samples<'s>(
        self,
        samples: &'s SampleList<'_>,
        nest: impl Fn(&TensorMeta, &mut Vec<Dim>) -> LoopNest,
    ) -> OutputPlan<'s> {
        let mut output = self.into_owned();
        let metas = samples.metas().iter();
        output.nests = metas.map(|meta| nest(meta, &mut output.dims)).collect();
        output.data = samples.data();
        output.nest_ids = Cow::Borrowed(samples.meta_ids().unwrap_or_default());
        output
    }

    /// The same output with tables of its own.
    pub fn into_owned<'o>(self) -> OutputPlan<'o> {
        OutputPlan {
            data: Cow::Owned(self.data.into_owned()),
            places: Cow::Owned(self.places.into_owned()),
            nest_ids: Cow::Owned(self.nest_ids.into_owned()),
            leaf: self.leaf,
            role: self.role,
            dtype: self.dtype,
            out: self.out,
            is_bools: self.is_bools,
            layout: self.layout,
            op: self.op,
            fill: self.fill,
            nests: self.nests,
            dims: self.dims,
            starts: self.starts,
            bytes_only: self.bytes_only,
            is_table_of_runs: self.is_table_of_runs,
            ranges: self.ranges,
            selected: self.selected,
        }
    }

    /// The same output, which was planned with samples in memory at address 0, read from memory at this address: the samples
    /// and the sources of `ranges` move, the places do not.
    pub fn read_from(&self, memory: *const u8) -> OutputPlan<'_> {
        let further = |address: &*const u8| memory.wrapping_add(address.addr());
        let ranges = self.ranges.as_ref().map(|ranges| {
            let moved = |range: &CopyRange| CopyRange { src: further(&range.src), ..*range };
            ranges.iter().map(moved).collect()
        });
        OutputPlan {
            data: self.data.iter().map(further).collect(),
            places: Cow::Borrowed(&self.places),
            nest_ids: Cow::Borrowed(&self.nest_ids),
            layout: self.layout.clone(),
            nests: self.nests.clone(),
            dims: self.dims.clone(),
            starts: self.starts.clone(),
            ranges,
            ..*self
        }
    }

    /// Whether each sample has memory of its own to go to.
    pub fn has_places(&self) -> bool {
        !self.places.is_empty()
    }

    /// The address of a sample's first element in an output at `out`.
    #[inline]
    pub fn place_of(&self, sample: usize, out: *mut u8) -> *mut u8 {
        match self.places.get(sample) {
            Some(place) => place.cast_mut(),
            None => out.wrapping_offset(self.starts.byte_offset(sample) as isize),
        }
    }

    /// Drops the sample addresses, whose number it keeps in `selected`, and all nests but the first, so that the plan can be
    /// reused for other samples of that layout. The other tables stay. The samples are uniform and their
    /// copies are not merged: there are no `nest_ids` and no `ranges`.
    pub fn forget_samples(&mut self) {
        self.selected = Some(self.data.len());
        self.data = Cow::Owned(Vec::new());
        // Further nests are those of other layouts.
        self.nests.truncate(1);
    }

    /// Whether copies of these samples, all of the first loop nest, would stay separate, because
    /// the output merges none or merging would save less than half. There is a sample; where copies
    /// are merged, a single one gives `false`.
    pub fn is_scattered(&self, data: &[*const u8]) -> bool {
        let is_merged = self.bytes_only && self.layout.is_compact();
        !is_merged || are_scattered(data, self.nests[0].num_real * self.dtype.size() as u64)
    }

    /// The dtype that elements are cast to, and whether the cast saturates: a read by its flag, `Rescale` into float8 only.
    pub fn to(&self) -> CastTo {
        let saturate = match self.op {
            ElementOp::Read { saturate, .. } => saturate,
            ElementOp::Rescale => self.dtype.is_float8(),
            _ => false,
        };
        CastTo { dtype: self.dtype, saturate }
    }

    /// Number of samples, whether the output has their addresses or not.
    pub fn num_samples(&self) -> usize {
        self.selected.unwrap_or(self.data.len())
    }

    /// Elements of the output, padding included.
    pub fn numel(&self) -> u64 {
        self.layout.numel() as u64
    }

    /// Bytes of the output, padding included.
    pub fn bytes(&self) -> u64 {
        bytes_of(self.dtype, self.layout.shape())
    }

    /// Bytes read of the samples; at most, if a device chooses them. 0 for [`ElementOp::Scales`], too.
    pub fn bytes_read(&self) -> u64 {
        let (ElementOp::Read { .. } | ElementOp::Rescale) = self.op else { return 0 };
        // Broadcast samples may be read more often than there are bytes to count it in.
        let of = |nest: &LoopNest| nest.num_real.saturating_mul(nest.dtype.size() as u64);
        match &*self.nest_ids {
            // The device selects the samples: an upper bound.
            _ if self.selected.is_some() => {
                let most = self.nests.iter().map(of).max().unwrap_or(0);
                most.saturating_mul(self.num_samples() as u64)
            }
            [] => of(&self.nests[0]).saturating_mul(self.data.len() as u64),
            ids => saturating_sum(ids.iter().map(|&id| of(&self.nests[id as usize]))),
        }
    }

    /// The loops of a sample.
    pub fn nest_of(&self, sample: usize) -> &LoopNest {
        &self.nests[self.nest_ids.get(sample).map_or(0, |&id| id as usize)]
    }
}

/// The output of a leaf's data, which has this layout of the batch's shape, from all of these samples. Rows of a table are one
/// sample if each is one run of elements (see [`rows_of_table`]).
pub(crate) fn data_output<'s>(
    leaf: usize,
    batch_shape: &BatchShape,
    samples: &'s SampleList<'_>,
    layout: Layout,
) -> OutputPlan<'s> {
    let size = batch_shape.dtype.size() as i64;
    let strides = layout.strides();
    let (starts, sample_strides): (_, Dims) = match &batch_shape.placement {
        Placement::Joined { dim, offsets } => {
            let unit = joined_unit(&layout, *dim);
            let step = strides[*dim].wrapping_mul(size);
            (Starts::Joined { offsets: offsets.clone(), unit, step }, strides.into())
        }
        _ => {
            let step = strides[0].wrapping_mul(size);
            (Starts::Rows { elems: row_elems(&layout), step }, strides[1..].into())
        }
    };
    let mut dims = Vec::new();
    // One more where a device chooses samples: that of none.
    let mut nests = Vec::with_capacity(samples.metas().len() + 1);
    let mut nest = |meta| LoopNest::for_data(meta, batch_shape, None, &sample_strides, &mut dims);
    nests.extend(samples.metas().iter().map(&mut nest));
    let (mut starts, mut data, mut is_table_of_runs) = (starts, None, false);
    if let (Some((first, rows)), [row]) = (rows_of_table(batch_shape, samples, &layout), &*nests) {
        // A row that is one run of elements: the table is a run of these.
        if row.dims.len() == 1 {
            is_table_of_runs =
                batch_shape.affine.is_none() && row.is_bytes(batch_shape.dtype, &dims);
            dims.clear();
            let meta = &samples.metas()[0];
            nests[0] =
                LoopNest::for_data(meta, batch_shape, Some(rows), &sample_strides, &mut dims);
            starts = Starts::Rows { elems: layout.numel() as u64, step: 0 };
            data = Some(Cow::Owned(vec![first]));
        }
    }
    let affine = batch_shape.affine.is_some();
    let mut output = OutputPlan {
        leaf,
        fill: batch_shape.value,
        data: data.unwrap_or_else(|| samples.data()),
        nest_ids: Cow::Borrowed(samples.meta_ids().unwrap_or_default()),
        nests,
        dims,
        is_table_of_runs,
        ..OutputPlan::new(
            Role::Data,
            batch_shape.dtype,
            layout,
            match &batch_shape.scaling {
                Some(_) => ElementOp::Rescale,
                None => ElementOp::Read { affine, saturate: batch_shape.saturate },
            },
            starts,
        )
    };
    let is_kept = !affine && batch_shape.increments.is_none() && batch_shape.scaling.is_none();
    output.bytes_only =
        is_kept && all_used(&output, |nest| nest.is_bytes(batch_shape.dtype, &output.dims));
    if output.bytes_only && output.layout.is_compact() {
        output.ranges = merged_ranges(&output);
    }
    output
}

/// The address of the first sample and the loop over all of them, if the list has them as rows of a table on the host, and they
/// are stacked on the host into an output with elements, without increments or scaling. Single addresses of one pitch are no
/// table: `None`.
fn rows_of_table(
    batch_shape: &BatchShape,
    samples: &SampleList<'_>,
    layout: &Layout,
) -> Option<(*const u8, Dim)> {
    let is_plain = matches!(batch_shape.placement, Placement::Rows)
        && [batch_shape.source, batch_shape.device] == [Device::Cpu; 2]
        && batch_shape.increments.is_none()
        && batch_shape.scaling.is_none()
        && layout.numel() > 0;
    let (first, step) = samples.as_table().filter(|_| is_plain)?;
    let to = layout.strides()[0].wrapping_mul(batch_shape.dtype.size() as i64);
    Some((first, Dim::whole(samples.len() as i64, step, to)))
}

// Strides and single extents of an output without elements may be beyond 64 bits when multiplied, and
// nothing is ever reached through them: hence the wrapping products, and the zeros below.

/// Elements of one row of dim 0; 0 beyond 63 bits. There is a dim 0.
pub(super) fn row_elems(layout: &Layout) -> u64 {
    checked_numel(&layout.shape()[1..]).unwrap_or(0) as u64
}

/// The product of all extents but that of the joined dim: elements for one step along it. 0 if the output has no elements.
pub(super) fn joined_unit(layout: &Layout, dim: usize) -> u64 {
    if layout.numel() == 0 {
        return 0;
    }
    let others = layout.shape().iter().enumerate().filter(|&(d, _)| d != dim);
    others.map(|(_, &extent)| extent as u64).product()
}

/// A sum of byte counts, for accounts only.
pub(crate) fn saturating_sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// Whether `fits` holds for the nests of all samples. Without `nest_ids` the first nest is asked alone; with fewer samples than
/// nests, those of the samples; else all nests, so that it may be false because of a nest that no sample has.
fn all_used(output: &OutputPlan<'_>, fits: impl Fn(&LoopNest) -> bool) -> bool {
    match &*output.nest_ids {
        [] => fits(&output.nests[0]),
        ids if ids.len() < output.nests.len() => {
            ids.iter().all(|&id| fits(&output.nests[id as usize]))
        }
        _ => output.nests.iter().all(fits),
    }
}

/// The copies of a row-major `bytes_only` output, one for samples that are neighbours in the source as they are in the output;
/// `None` if that saves less than half of them.
fn merged_ranges(output: &OutputPlan<'_>) -> Option<Vec<CopyRange>> {
    let size = output.dtype.size() as u64;
    let ranges = || {
        let ranges = (0..output.data.len()).map(|sample| {
            let elems = output.starts.elems(sample);
            let src =
                output.data[sample].wrapping_offset(output.nest_of(sample).src_offset as isize);
            CopyRange { src, dst: elems.start * size, size: (elems.end - elems.start) * size }
        });
        ranges.filter(|range| range.size > 0)
    };
    if output.data.len() < 2 {
        return None;
    }
    // Scattered samples are looked for first, so that the usual scattered list costs half a pass and no memory.
    let most = output.data.len() / 2;
    let is_scattered = match &output.starts {
        Starts::Rows { elems, .. } if output.nest_ids.is_empty() && *elems > 0 => {
            are_scattered(&output.data, elems * size)
        }
        _ => {
            let mut end = None;
            let begins_anew = |range: &CopyRange| {
                end.replace(range.src.wrapping_add(range.size as usize)) != Some(range.src)
            };
            ranges().filter(begins_anew).nth(most).is_some()
        }
    };
    if is_scattered {
        return None;
    }
    let mut merged: Vec<CopyRange> = Vec::new();
    for range in ranges() {
        match merged.last_mut() {
            Some(last) if last.src.wrapping_add(last.size as usize) == range.src => {
                last.size += range.size
            }
            _ => merged.push(range),
        }
    }
    Some(merged)
}

/// Whether merging adjacent samples of `bytes` bytes would save less than half of the copies;
/// `false` for a single sample. There is a sample.
fn are_scattered(data: &[*const u8], bytes: u64) -> bool {
    let (bytes, mut left) = (bytes as usize, data.len() / 2);
    // The loop compares 64 at a time, without a branch for each.
    let mut pairs = data.chunks(64).zip(data[1..].chunks(64));
    pairs.any(|(chunk, next)| {
        let is_apart = |(one, next): (&*const u8, &*const u8)| one.wrapping_add(bytes) != *next;
        let apart = chunk.iter().zip(next).map(|pair| u32::from(is_apart(pair))).sum::<u32>();
        left = left.saturating_sub(apart as usize);
        left == 0
    })
}

/// The output of a padded leaf's mask, which has this row-major layout.
pub(crate) fn mask_output<'s>(
    leaf: usize,
    batch_shape: &BatchShape,
    samples: &'s SampleList<'_>,
    mask: MaskBits,
    layout: Layout,
) -> OutputPlan<'s> {
    let size = mask.dtype.size() as i64;
    let strides: Dims =
        layout.strides()[1..].iter().map(|stride| stride.wrapping_mul(size)).collect();
    let elems = row_elems(&layout);
    let starts = Starts::Rows { elems, step: (elems as i64).wrapping_mul(size) };
    let op = ElementOp::Const(mask.real);
    let output = OutputPlan::new(Role::Mask, mask.dtype, layout, op, starts);
    let nest =
        |meta: &TensorMeta, dims: &mut _| LoopNest::for_mask(meta, batch_shape, &strides, dims);
    OutputPlan { leaf, fill: mask.padding, ..output.with_samples(samples, nest) }
}

/// The output of a leaf's batch index, which has this row-major layout: `offsets` are those of the joined dim 0.
pub(crate) fn index_output<'s>(
    leaf: usize,
    samples: &'s SampleList<'_>,
    offsets: Offsets,
    layout: Layout,
) -> OutputPlan<'s> {
    let starts = Starts::Joined { offsets, unit: 1, step: 8 };
    let output = OutputPlan::new(Role::BatchIndex, DType::I64, layout, ElementOp::Index, starts);
    let nest = |meta: &TensorMeta, dims: &mut _| {
        let rows = meta.layout.shape().first().copied().unwrap_or(0);
        LoopNest::new(DType::I64, [Dim::whole(rows, 0, 8)], Channel::None, 0, dims)
    };
    OutputPlan { leaf, ..output.with_samples(samples, nest) }
}

/// The samples row-major in native byte order, one after the other, as bytes; and the byte at which
/// each begins.
///
/// # Errors
/// [`Error::TooLarge`](crate::Error::TooLarge), [`Error::OutOfMemory`](crate::Error::OutOfMemory).
pub(crate) fn packed_output(samples: &SampleList<'_>) -> Result<(OutputPlan<'static>, Offsets)> {
    let bytes = |index: usize| {
        let meta = samples.meta(index);
        bytes_of(meta.dtype, meta.layout.shape()) as i64
    };
    let offsets = Offsets::from_lengths((0..samples.len()).map(bytes))?;
    let layout = Layout::compact(DType::U8, &[offsets.total()])?;
    let starts = Starts::Joined { offsets: offsets.clone(), unit: 1, step: 1 };
    let output = OutputPlan::new(Role::Data, DType::U8, layout, ElementOp::MOVED, starts);
    let mut output = output.with_samples(samples, LoopNest::for_bytes);
    output.bytes_only = all_used(&output, |nest| nest.is_bytes(DType::U8, &output.dims));
    Ok((output.into_owned(), offsets))
}
