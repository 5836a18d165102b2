//! The loops that lead from a sample to its place in the output, with as few dims as will do.

use smallvec::SmallVec;

use crate::plan::batch_shape::BatchShape;
use crate::plan::placement::Placement;
use crate::plan::scaling::Groups;
use crate::samples::TensorMeta;
use crate::tensor::DType;

/// One loop. Coordinates count the elements of the output; `lo..hi` of them are real, the rest is
/// padding. Strides are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dim {
    pub extent: u64,
    pub lo: u64,
    pub hi: u64,
    pub src_stride: i64,
    pub dst_stride: i64,
}

impl Dim {
    /// A loop without padding; the extent is not negative.
    pub fn whole(extent: i64, src_stride: i64, dst_stride: i64) -> Dim {
        let extent = extent as u64;
        Dim { extent, lo: 0, hi: extent, src_stride, dst_stride }
    }

    /// Whether there is no padding.
    pub fn is_whole(&self) -> bool {
        self.lo == 0 && self.hi == self.extent
    }
}

/// The source of an element's channel number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// One pair of coefficients is for all elements.
    None,
    /// The coordinate in this dim, counted from `first`, of `count` that the sample has.
    Loop { dim: usize, first: usize, count: u64 },
    /// The column, counted from `first`, modulo the number of channels.
    Inner { first: usize },
}

/// How samples of one `TensorMeta` are read.
#[derive(Clone, Debug)]
pub(crate) struct LoopNest {
    pub dtype: DType,
    /// The positions of the nest's loops in the output's table, outermost first; at least one.
    pub dims: std::ops::Range<usize>,
    /// Bytes from the sample's first element to the first one that is read.
    pub src_offset: i64,
    pub channel: Channel,
    /// The outermost loop runs over channels that are interleaved in the source: all of them can be
    /// read together, in rows that go upwards or downwards in memory.
    pub planar: bool,
    /// Real elements of a sample.
    pub num_real: u64,
    /// The elements that share a scale, if elements are scaled.
    pub groups: Groups,
}

impl LoopNest {
    /// Adds the loops of samples with this metadata in the data of a batch to `table`, or, with the loop `rows` over
    /// all of them, those of a table of such rows. `strides` are those of the output for the sample's dims, in elements
    /// and the result's order. Metadata of another rank than the batch's, which no sample has, gets a loop of nothing.
    pub fn for_data(
        meta: &TensorMeta,
        batch_shape: &BatchShape,
        rows: Option<Dim>,
        strides: &[i64],
        table: &mut Vec<Dim>,
    ) -> LoopNest {
        let mut src_offset = 0i64;
        let mut channel = Channel::None;
        let (src_size, dst_size) = (meta.dtype.size() as i64, batch_shape.dtype.size() as i64);
        let mut dims: SmallVec<[Dim; 4]> = rows.into_iter().collect();
        if meta.layout.ndim() != batch_shape.permute.len() {
            // Metadata that none of the samples taken has.
            return LoopNest::new(meta.dtype, [Dim::whole(0, 0, 0)], Channel::None, 0, table);
        }
        for (position, &d) in batch_shape.permute.iter().enumerate() {
            let (real, stride) = (meta.layout.shape()[d], meta.layout.strides()[d]);
            let (src_stride, dst_stride) =
                (stride.wrapping_mul(src_size), strides[position].wrapping_mul(dst_size));
            let (dim, cut) = placed(&batch_shape.placement, d, real, src_stride, dst_stride);
            // Strides that are never used may have any value, such as those of an empty sample or of an extent of 1.
            src_offset = cut.wrapping_mul(src_stride).wrapping_add(src_offset);
            if batch_shape.channel_dim == Some(d) {
                channel =
                    Channel::Loop { dim: dims.len(), first: cut as usize, count: real as u64 };
            }
            dims.push(dim);
        }
        let mut nest = LoopNest::new(meta.dtype, dims, channel, src_offset, table);
        nest.planar = nest.is_planar(batch_shape.dtype, table);

        if let Some(scaling) = &batch_shape.scaling {
            nest.groups = scaling.groups;
        }
        nest
    }

    /// Adds the loops from a source to a destination of its shape to `table`, in the order of the memory that is
    /// written.
    pub fn for_pair(src: &TensorMeta, dst: &TensorMeta, table: &mut Vec<Dim>) -> LoopNest {
        let [from, to] = [src, dst].map(|meta| meta.dtype.size() as i64);
        let strides = src.layout.strides().iter().zip(dst.layout.strides());
        let dim = |(&extent, (&src, &dst)): (&i64, (&i64, &i64))| {
            Dim::whole(extent, src.wrapping_mul(from), dst.wrapping_mul(to))
        };
        let mut dims: SmallVec<[Dim; 4]> =
            src.layout.shape().iter().zip(strides).map(dim).collect();
        // Nothing steps along an extent of 1, so that its strides may be anything.
        dims.retain(|dim| dim.extent != 1);
        dims.sort_by_key(|dim| std::cmp::Reverse(dim.dst_stride.unsigned_abs()));
        let mut nest = LoopNest::new(src.dtype, dims, Channel::None, 0, table);
        nest.planar = nest.is_planar(dst.dtype, table);
        nest
    }

    /// Adds the loops of samples with this metadata to `table`, copied as bytes in row-major order and native byte
    /// order.
    pub fn for_bytes(meta: &TensorMeta, table: &mut Vec<Dim>) -> LoopNest {
        let (size, ordered) = (meta.dtype.size() as i64, meta.dtype.ordered_bytes() as i64);
        let mut step = size;
        // Bytes of other order are read backwards, those of complex elements part by part.
        let (mut dims, src_offset): (SmallVec<[Dim; 4]>, i64) = match meta.dtype.is_native() {
            true => (smallvec::smallvec![Dim::whole(size, 1, 1)], 0),
            false => {
                let parts = Dim::whole(size / ordered, ordered, ordered);
                (smallvec::smallvec![Dim::whole(ordered, -1, 1), parts], ordered - 1)
            }
        };
        for (&extent, &stride) in meta.layout.shape().iter().zip(meta.layout.strides()).rev() {
            dims.push(Dim::whole(extent, stride.wrapping_mul(size), step));
            // An empty sample is neither read nor written.
            step = step.wrapping_mul(extent);
        }
        LoopNest::new(DType::U8, dims.into_iter().rev(), Channel::None, src_offset, table)
    }

    /// Adds the loops of samples with this metadata in the mask of a padded batch to `table`: only the padded dims, and
    /// nothing is read. `strides`: bytes from place to place in the mask. Other ranks as of [`LoopNest::for_data`].
    pub fn for_mask(
        meta: &TensorMeta,
        batch_shape: &BatchShape,
        strides: &[i64],
        table: &mut Vec<Dim>,
    ) -> LoopNest {
        let Placement::Padded(padded) = &batch_shape.placement else {
            unreachable!("only a pad has a mask")
        };
        if meta.layout.ndim() != batch_shape.permute.len() {
            return LoopNest::new(DType::Bool, [Dim::whole(0, 0, 0)], Channel::None, 0, table);
        }
        let kept = batch_shape.permute.iter().filter(|&&d| padded.dims.contains(d));
        let dims: SmallVec<[Dim; 4]> = kept
            .zip(strides)
            .map(|(&d, &stride)| {
                placed(&batch_shape.placement, d, meta.layout.shape()[d], 0, stride).0
            })
            .collect();
        LoopNest::new(DType::Bool, dims, Channel::None, 0, table)
    }

    /// The nest of these loops, outermost first, which go to the end of the table as the fewest
    /// that visit the same elements in the same order, one of extent 1 if nothing else is left.
    /// `channel` names a dim by its position in `dims`; the nest's names the loop that this became,
    /// and is `Inner` if it is the innermost. The caller sets `planar` and `groups`.
    pub fn new(
        dtype: DType,
        dims: impl IntoIterator<Item = Dim>,
        channel: Channel,
        src_offset: i64,
        table: &mut Vec<Dim>,
    ) -> LoopNest {
        let channel_dim = match channel {
            Channel::Loop { dim, .. } => Some(dim),
            _ => None,
        };
        let start = table.len();
        let mut num_real = 1u64;
        let mut channel = channel;
        // The channel dim's position among the collapsed dims, once it has been seen.
        let mut channel_at = None;
        for (position, dim) in dims.into_iter().enumerate() {
            num_real = num_real.saturating_mul(dim.hi - dim.lo);
            let is_channel = channel_dim == Some(position);
            if dim.extent == 1 && dim.is_whole() && !is_channel {
                continue;
            }
            let mergeable =
                table.len() > start && !is_channel && channel_at != Some(table.len() - 1);
            match table.last_mut() {
                Some(outer) if mergeable && steps_over(outer, &dim) => *outer = merged(outer, &dim),
                _ => {
                    if is_channel {
                        channel_at = Some(table.len());
                    }
                    table.push(dim);
                }
            }
        }
        if table.len() == start {
            table.push(Dim::whole(1, 0, 0));
        }
        if let (Some(at), Channel::Loop { first, count, .. }) = (channel_at, channel) {
            channel = Channel::Loop { dim: at - start, first, count };
            if at + 1 == table.len() {
                channel = Channel::Inner { first };
                // Rows of all channels become one row with their number as its period.
                let whole = table[at].extent == count;
                while let ([.., outer, inner], true) = (&table[start..], whole) {
                    if !steps_over(outer, inner) {
                        break;
                    }
                    let row = merged(outer, inner);
                    table.truncate(table.len() - 2);
                    table.push(row);
                }
            }
        }
        LoopNest {
            dtype,
            dims: start..table.len(),
            src_offset,
            channel,
            planar: false,
            num_real,
            groups: Groups::Sample,
        }
    }

    /// Whether a sample is one run of bytes, the same in source and output, which has this dtype: no padding, cast or stride.
    pub fn is_bytes(&self, dtype: DType, table: &[Dim]) -> bool {
        let [dim] = &table[self.dims.clone()] else { return false };
        let size = dtype.size() as i64;
        let steps = dim.extent <= 1 || (dim.src_stride == size && dim.dst_stride == size);
        self.dtype == dtype && dim.is_whole() && steps
    }

    /// Whether the nest is planar, as [`LoopNest::planar`] defines it; `dtype` is the output's.
    fn is_planar(&self, dtype: DType, table: &[Dim]) -> bool {
        let [channels, .., pixels] = &table[self.dims.clone()] else { return false };
        if !self.dtype.is_native() {
            return false;
        }
        let size = self.dtype.size() as i64;
        (2..=4).contains(&channels.extent)
            && channels.is_whole()
            && channels.src_stride == size
            && pixels.src_stride.unsigned_abs() == size as u64 * channels.extent
            && pixels.dst_stride == dtype.size() as i64
            && matches!(self.channel, Channel::None | Channel::Loop { dim: 0, first: 0, .. })
    }
}

/// A sample dim in the output: its loop, and how many elements are cut off before it.
pub(super) fn placed(
    placement: &Placement,
    d: usize,
    real: i64,
    src_stride: i64,
    dst_stride: i64,
) -> (Dim, i64) {
    let Placement::Padded(padded) = placement else {
        return (Dim::whole(real, src_stride, dst_stride), 0);
    };
    let size = padded.size[d];
    let lead = padded.sides[d].lead(real, size);
    let lo = lead.max(0);
    let hi = lo + real.min(size);
    (
        Dim { extent: size as u64, lo: lo as u64, hi: hi as u64, src_stride, dst_stride },
        (-lead).max(0),
    )
}

/// Whether `outer` goes on where `inner` ends, in source and output, so that both are one loop.
fn steps_over(outer: &Dim, inner: &Dim) -> bool {
    let reach = |stride: i64| i64::try_from(inner.extent).ok().and_then(|n| stride.checked_mul(n));
    inner.is_whole()
        && reach(inner.src_stride) == Some(outer.src_stride)
        && reach(inner.dst_stride) == Some(outer.dst_stride)
}

/// The one loop that two are, of which [`steps_over`] is true.
fn merged(outer: &Dim, inner: &Dim) -> Dim {
    Dim {
        // An output without elements may have extents beyond 64 bits together; it is never walked.
        extent: outer.extent.wrapping_mul(inner.extent),
        lo: outer.lo.wrapping_mul(inner.extent),
        hi: outer.hi.wrapping_mul(inner.extent),
        ..*inner
    }
}
