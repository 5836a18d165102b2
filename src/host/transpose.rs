//! Samples whose elements lie in another order than those of the output, as those of a permuted array do.
//!
//! A row of the output would be read from as many lines of memory as it has elements, and the next row from the same lines again.
//! Two groups of loops are therefore taken together, and the others lead from one block of both to the next:
//!
//! ```text
//! places:  the innermost loops of the output, until their elements, which have no gaps there, are enough for a row
//! rows:    of the other loops those with the shortest steps in the source, until a row's neighbours fill a line of it
//!
//! source, a line each     output
//! a b c d                 a e i m    row 0        a block of 4 rows and 4 places: each line of the source
//! e f g h                 b f j n    row 1        is read once, for all rows
//! i j k l                 c g k o    row 2
//! m n o p                 d h l p    row 3
//! ```
//!
//! ```text
//! merge loops that are one on both sides; nothing to do here if the innermost one is read in order
//! take places and rows; the other loops go around them, in the order of the source
//! for each step of the other loops, each part of the rows, each part of the places:
//!     moved: gather the block into the output; if rows lie far apart, by way of the stack
//!     else:  gather it on the stack, then convert it into the output row by row
//! ```
//!
//! The offsets of each group are in a table, so that it does not matter how many loops it is made of, and a loop that is longer
//! than a group is cut. Elements that have no gaps on both sides, and are only moved, count as one that is wider. Row by row, as
//! `walk` goes, is simpler, and is left for rows that are read in order: the sizes below and docs/performance-method.md have the
//! figures.
#![allow(unsafe_code)] // Raw rows.

use std::cmp::Reverse;
use std::ops::Range;

use smallvec::SmallVec;

use crate::collate::Affine;
use crate::host::policy::POLICY;
use crate::host::rows::{self, AffineFn, GatherFn, RowFn};
use crate::host::simd::Scratch;
use crate::host::walk::{walk, SamplePlace};
use crate::plan::{Channel, Dim, LoopNest, OutputPlan};

/// Elements of a row of a block at most. Zen 4, 256 x (8, 8, 8, 8) with dims reversed: of uint8 0.2 of the time of 256 elements, of
/// float32 0.9.
const MAX_PLACES: usize = 64;

/// Elements of a block whose set-up does not show.
const MIN_BLOCK: usize = 64;

/// Bytes of a vector of AVX2.
const VECTOR_BYTES: usize = 32;

/// Bytes of a line, which the rows of a block fill: as many rows as a line has elements. Zen 4, (4096, 4096) uint8 turned: 64 rows
/// take 0.77 of the time of 32.
const LINE_BYTES: usize = 64;

/// Bytes of a block: a line of each of its places.
const BLOCK_BYTES: usize = MAX_PLACES * LINE_BYTES;

/// One loop of a box. Strides are in bytes.
#[derive(Clone, Copy, Debug)]
struct Loop {
    extent: usize,
    src: isize,
    dst: isize,
    is_channel: bool,
}

type Loops = SmallVec<[Loop; 8]>;

/// Loops whose offsets are in a table. The outermost is cut into steps, the last of which may be shorter: its offsets are the first
/// of the table.
struct Group {
    src: Vec<isize>,
    dst: Vec<isize>,
    /// Offsets for one step of the loop that is cut.
    unit: usize,
    cut: Loop,
    step: usize,
}

impl Group {
    /// Takes loops off the end, as long as `fits` accepts the next one beside the number of offsets
    /// so far, up to `most` offsets. The last one may be cut, and is taken off as a whole. If none
    /// is taken, the group has the offset 0 alone.
    fn take(loops: &mut Loops, most: usize, fits: impl Fn(&Loop, usize) -> bool) -> Group {
        let mut cut = Loop { extent: 1, src: 0, dst: 0, is_channel: false };
        let (mut src, mut dst) = (Vec::with_capacity(most), Vec::with_capacity(most));
        src.push(0);
        dst.push(0);
        let (mut unit, mut step) = (1, 1);
        while let Some(last) = loops.last().copied().filter(|last| fits(last, unit)) {
            let taken = last.extent.min(most / unit);
            if taken < 2 {
                break;
            }
            repeat(&mut src, last.src, taken);
            repeat(&mut dst, last.dst, taken);
            loops.pop();
            if taken < last.extent {
                (cut, step) = (last, taken);
                break;
            }
            unit *= taken;
        }
        Group { src, dst, unit, cut, step }
    }

    /// The parts of the loop that is cut: bytes before it on both sides, and its offsets.
    fn parts(&self) -> impl Iterator<Item = (isize, isize, usize)> + '_ {
        let cut = self.cut;
        (0..cut.extent).step_by(self.step).map(move |at| {
            let len = self.step.min(cut.extent - at) * self.unit;
            (at as isize * cut.src, at as isize * cut.dst, len)
        })
    }
}

/// How a box of a sample's elements is written, block by block.
pub(super) struct Transposition {
    gather: GatherFn,
    /// Bytes of an element that is gathered.
    width: usize,
    /// The loops around the groups, in the order of the source; that of the channels is the first.
    outer: Loops,
    rows: Group,
    places: Group,
    /// Bytes from the first element of the sample to that of the box, on both sides.
    src: isize,
    dst: isize,
    channel: usize,
    has_channels: bool,
    is_staged: bool,
}

/// The conversion of elements on their way.
enum Convert<'a> {
    Move,
    Cast(RowFn),
    Affine(&'a Affine, AffineFn),
}

impl Transposition {
    /// The transposition of all elements of a sample; `None` if its rows are as fast one by one, its innermost loop is
    /// that of the channels, or no element is real.
    #[inline]
    pub fn for_sample(
        output: &OutputPlan<'_>,
        nest: &LoopNest,
        affine: Option<&Affine>,
    ) -> Option<Box<Transposition>> {
        if nest.dims.len() < 2 {
            return None;
        }
        let dims = &output.dims[nest.dims.clone()];
        let all: SmallVec<[_; 8]> = dims.iter().map(|dim| 0..dim.extent).collect();
        Transposition::for_box(output, nest, affine, &all).map(Box::new)
    }

    /// The transposition of a box of elements, given by ranges of coordinates, without those of padding; `None` as of
    /// [`Transposition::for_sample`].
    fn for_box(
        output: &OutputPlan<'_>,
        nest: &LoopNest,
        affine: Option<&Affine>,
        ranges: &[Range<u64>],
    ) -> Option<Self> {
        let is_moved = affine.is_none() && nest.dtype == output.dtype;
        let (mut width, mut size) = (nest.dtype.size(), output.dtype.size());
        let (channel_at, mut channel) = match nest.channel {
            _ if affine.is_none_or(|affine| affine.channels() == 1) => (None, 0),
            Channel::None => (None, 0),
            Channel::Loop { dim, first, .. } => (Some(dim), first),
            Channel::Inner { .. } => return None,
        };
        let (mut src, mut dst) = (0isize, 0isize);
        let mut loops = Loops::new();
        for (at, (dim, range)) in output.dims[nest.dims.clone()].iter().zip(ranges).enumerate() {
            let real = range.start.max(dim.lo)..range.end.min(dim.hi);
            if real.is_empty() {
                return None;
            }
            let (extent, first) =
                ((real.end - real.start) as usize, (real.start - dim.lo) as isize);
            let one = Loop {
                extent,
                src: dim.src_stride as isize,
                dst: dim.dst_stride as isize,
                is_channel: channel_at == Some(at),
            };
            src = src.wrapping_add(first.wrapping_mul(one.src));
            dst = dst.wrapping_add((real.start as isize).wrapping_mul(one.dst));
            if one.is_channel {
                channel += first as usize;
            }
            if extent > 1 || one.is_channel {
                loops.push(one);
            }
        }
        loops.sort_by_key(|one| Reverse(one.dst.unsigned_abs()));
        loops.dedup_by(|inner, outer| merge(outer, inner));
        if loops.len() < 2 {
            return None;
        }
        let inner =
            loops.last_mut().filter(|inner| inner.dst == size as isize && !inner.is_channel)?;
        let is_run = inner.src == inner.dst && is_moved;
        // The bytes of a line that are read at one position.
        let run_bytes = if is_run { inner.extent * size } else { width };
        if is_run {
            let wide = 1 << run_bytes.trailing_zeros().min(4);
            if run_bytes / wide > POLICY.short_row as usize {
                return None;
            }
            (width, size) = (wide, wide);
            *inner =
                Loop { extent: run_bytes / wide, src: wide as isize, dst: wide as isize, ..*inner };
            if inner.extent == 1 {
                loops.pop();
            }
        } else if inner.extent > POLICY.short_run && inner.src.unsigned_abs() <= width {
            // The source is read in order, in the opposite order, or the same element again.
            return None;
        }
        let most = (LINE_BYTES / run_bytes).max(1);
        // The loop with the shortest steps is left to the rows, where the block is large enough without others.
        let nearest = loops.iter().map(|one| one.src.unsigned_abs()).min().unwrap_or(0);
        let places = Group::take(&mut loops, MAX_PLACES, |one, count| {
            let is_left = one.src.unsigned_abs() == nearest
                && count * size >= VECTOR_BYTES
                && count * one.extent.min(most) >= MIN_BLOCK;
            one.dst == (count * size) as isize && !one.is_channel && !is_left
        });
        loops.sort_by_key(|one| (!one.is_channel, Reverse(one.src.unsigned_abs())));
        let rows = Group::take(&mut loops, most, |one, count| {
            let goes_on = count == 1 || one.src == (count * width) as isize;
            !one.is_channel && (goes_on || count * width < VECTOR_BYTES / 2)
        });
        let gather = rows::gather_rows(width);
        let has_channels = channel_at.is_some();
        let spread = rows.dst.iter().map(|dst| dst.unsigned_abs()).max().unwrap_or(0);
        let is_staged = !is_moved || width >= 4 && spread >= POLICY.staged_spread_bytes;
        Some(Transposition {
            gather,
            width,
            outer: loops,
            rows,
            places,
            src,
            dst,
            channel,
            has_channels,
            is_staged,
        })
    }

    /// Writes all elements of the box to the output, moved, cast or put through `affine`.
    ///
    /// # Safety
    /// The sample is alive, and `place` is its own: every element that the box reaches may be read, and its place written to by
    /// nothing else. The dtypes are those of the transposition.
    pub unsafe fn write(
        &self,
        output: &OutputPlan<'_>,
        nest: &LoopNest,
        affine: Option<&Affine>,
        place: &SamplePlace<'_>,
    ) {
        let convert = match affine {
            Some(affine) => Convert::Affine(affine, rows::affine_row(nest.dtype, output.to())),
            None if nest.dtype == output.dtype => Convert::Move,
            None => Convert::Cast(rows::cast_row(nest.dtype, output.to())),
        };
        debug_assert!(matches!(convert, Convert::Move) || self.width == nest.dtype.size());
        let (mut src, mut dst) =
            (place.src.wrapping_offset(self.src), place.dst.wrapping_offset(self.dst));
        let mut coords: SmallVec<[usize; 8]> = smallvec::smallvec![0; self.outer.len()];
        loop {
            let channel = match self.has_channels {
                true => self.channel + coords[0],
                false => 0,
            };
            for (row_src, row_dst, num_rows) in self.rows.parts() {
                for (place_src, place_dst, num_places) in self.places.parts() {
                    let from = src.wrapping_offset(row_src.wrapping_add(place_src));
                    let to = dst.wrapping_offset(row_dst.wrapping_add(place_dst));
                    // SAFETY: rows and places of the box.
                    unsafe {
                        self.write_block(
                            &convert,
                            output.dtype.size(),
                            channel,
                            from,
                            to,
                            num_rows,
                            num_places,
                        )
                    };
                }
            }
            let mut is_over = true;
            for (coord, one) in coords.iter_mut().zip(&self.outer).rev() {
                (src, dst) = (src.wrapping_offset(one.src), dst.wrapping_offset(one.dst));
                *coord += 1;
                if *coord < one.extent {
                    is_over = false;
                    break;
                }
                let back = one.extent as isize;
                src = src.wrapping_offset(one.src.wrapping_mul(back).wrapping_neg());
                dst = dst.wrapping_offset(one.dst.wrapping_mul(back).wrapping_neg());
                *coord = 0;
            }
            if is_over {
                return;
            }
        }
    }

    /// Writes the first places of the first rows of a block: straight to the output, or, to convert
    /// them or if `is_staged`, by way of the stack.
    /// `size`: bytes of an element of the output.
    ///
    /// # Safety
    /// They may be read from `src` on, and written from `dst` on.
    #[allow(clippy::too_many_arguments, reason = "the inner of four loops")]
    #[inline]
    unsafe fn write_block(
        &self,
        convert: &Convert<'_>,
        size: usize,
        channel: usize,
        src: *const u8,
        dst: *mut u8,
        num_rows: usize,
        num_places: usize,
    ) {
        let (places, from, to) = (
            &self.places.src[..num_places],
            &self.rows.src[..num_rows],
            &self.rows.dst[..num_rows],
        );
        if let (Convert::Move, false) = (convert, self.is_staged) {
            // SAFETY: the caller's promise.
            return unsafe { (self.gather)(src, places, from, dst, to) };
        }
        let mut scratch = Scratch::<BLOCK_BYTES>::new();
        let row_bytes = num_places * self.width;
        debug_assert!(num_rows * row_bytes <= BLOCK_BYTES);
        let held: [isize; LINE_BYTES] = std::array::from_fn(|row| (row * row_bytes) as isize);
        let stride = self.width as isize;
        // SAFETY: a block has room for all rows of all places; the rest is the caller's promise.
        unsafe {
            (self.gather)(src, places, from, scratch.at(), &held[..num_rows]);
            for (row, &to) in to.iter().enumerate() {
                let (src, dst) = (scratch.at().add(row * row_bytes), dst.wrapping_offset(to));
                match *convert {
                    Convert::Cast(cast) => cast(src, stride, dst, size as isize, num_places),
                    Convert::Affine(affine, row) => {
                        row(src, stride, dst, size as isize, num_places, affine, channel, false);
                    }
                    Convert::Move => rows::copy_bytes(src, dst, row_bytes, false),
                }
            }
        }
    }
}

/// Writes the elements `range` of a sample, padding included: a part of a sample box by box. `fill` gets padding: address,
/// stride, length. `write_rows` gets the elements of boxes that are no transposition, padding included.
///
/// # Safety
/// - The sample is alive, and `place` is its own: every element that its loops reach may be read.
/// - Every element that `range` reaches from `place.dst` may be written and is not accessed by anything else.
/// - `whole` is of such samples.
pub(super) unsafe fn write_transposed(
    whole: &Transposition,
    (output, nest, affine): (&OutputPlan<'_>, &LoopNest, Option<&Affine>),
    place: &SamplePlace<'_>,
    range: Range<u64>,
    mut fill: impl FnMut(*mut u8, isize, usize),
    mut write_rows: impl FnMut(Range<u64>),
) {
    let is_padded = place.dims.iter().any(|dim| dim.lo > 0 || dim.hi < dim.extent);
    let mut write_box = |one: &Transposition, elems: Range<u64>| {
        if is_padded {
            walk(place, elems, &mut fill, |_, _, _, _, _, _| {});
        }
        // SAFETY: real elements of those that the caller promised.
        unsafe { one.write(output, nest, affine, place) };
    };
    let numel = place.dims.iter().map(|dim| dim.extent).product::<u64>();
    debug_assert!(range.end <= numel);
    if range == (0..numel) {
        return write_box(whole, range);
    }
    for_boxes(place.dims, range, 0, &mut SmallVec::new(), &mut |ranges, elems| {
        match Transposition::for_box(output, nest, affine, ranges) {
            Some(one) => write_box(&one, elems),
            None => write_rows(elems),
        }
    });
}

/// Calls `f` with the boxes that a range of elements is made of, in order: the coordinates of each in all loops, and its
/// elements. `ranges` has the coordinates in the outermost loops; `elems` are counted within these, from element `first` of the
/// sample on.
fn for_boxes(
    dims: &[Dim],
    elems: Range<u64>,
    first: u64,
    ranges: &mut SmallVec<[Range<u64>; 8]>,
    f: &mut impl FnMut(&[Range<u64>], Range<u64>),
) {
    let at = ranges.len();
    let Some(rest) = dims.get(at + 1..).filter(|_| !elems.is_empty()) else { return };
    let unit: u64 = rest.iter().map(|dim| dim.extent).product();
    let mut part = |coords: Range<u64>, within: Range<u64>, is_whole: bool| {
        let begin = first + coords.start * unit;
        ranges.push(coords.clone());
        if is_whole {
            ranges.extend(rest.iter().map(|dim| 0..dim.extent));
            f(ranges, begin..first + coords.end * unit);
            ranges.truncate(at + 1);
        } else {
            for_boxes(dims, within, begin, ranges, f);
        }
        ranges.truncate(at);
    };
    let (mut begin, end) = (elems.start / unit, elems.end / unit);
    let (head, tail) = (elems.start % unit, elems.end % unit);
    if begin == end {
        return part(begin..begin + 1, head..tail, false);
    }
    if head > 0 {
        part(begin..begin + 1, head..unit, false);
        begin += 1;
    }
    if begin < end {
        part(begin..end, 0..0, true);
    }
    if tail > 0 {
        part(end..end + 1, 0..tail, false);
    }
}

/// Appends the same offsets `stride` further on each time, until they are there `times` times.
fn repeat(offsets: &mut Vec<isize>, stride: isize, times: usize) {
    let (mut done, end) = (offsets.len(), offsets.len() * times);
    offsets.resize(end, 0);
    let mut further = stride;
    while done < end {
        // Each step doubles what is there.
        let (before, after) = offsets.split_at_mut(done);
        for (after, before) in after.iter_mut().zip(&*before) {
            *after = before.wrapping_add(further);
        }
        (done, further) = (2 * done, further.wrapping_mul(2));
    }
}

/// Makes one loop of two, in the place of the outer one, if that goes on where the inner one ends on both sides and
/// neither is that of the channels. Returns whether it did.
fn merge(outer: &mut Loop, inner: &mut Loop) -> bool {
    let reach = |stride: isize| stride.checked_mul(inner.extent as isize);
    let goes_on = !inner.is_channel
        && !outer.is_channel
        && reach(inner.src) == Some(outer.src)
        && reach(inner.dst) == Some(outer.dst);
    if goes_on {
        *outer = Loop { extent: outer.extent * inner.extent, ..*inner };
    }
    goes_on
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_the_elements_of_a_range() {
        for extents in [&[7u64][..], &[3, 4], &[2, 3, 4], &[2, 1, 3, 2, 2], &[1, 5, 1]] {
            let dims: Vec<Dim> =
                extents.iter().map(|&extent| Dim::whole(extent as i64, 0, 0)).collect();
            let numel = extents.iter().product::<u64>();
            for (begin, end) in (0..=numel).flat_map(|a| (a..=numel).map(move |b| (a, b))) {
                let mut seen = Vec::new();
                for_boxes(&dims, begin..end, 0, &mut SmallVec::new(), &mut |ranges, elems| {
                    assert_eq!(ranges.len(), extents.len());
                    assert_eq!(elems.start, begin + seen.len() as u64, "in order");
                    let mut inside = vec![0];
                    for (range, extent) in ranges.iter().zip(extents) {
                        inside = inside
                            .iter()
                            .flat_map(|at| range.clone().map(move |coord| at * extent + coord))
                            .collect();
                    }
                    assert!(
                        inside.iter().copied().eq(elems.clone()),
                        "{ranges:?} is {elems:?} of {extents:?}"
                    );
                    seen.extend(elems);
                });
                assert!(seen.into_iter().eq(begin..end), "{begin}..{end} of {extents:?}");
            }
        }
    }

    #[test]
    fn tables_of_several_loops() {
        let one = |extent, src, dst| Loop { extent, src, dst, is_channel: false };
        let loops: Loops = SmallVec::from_slice(&[one(5, 1000, 60), one(4, 3, 15), one(3, -40, 5)]);
        for (most, unit, step, left) in [
            (1, 1, 1, 3),
            (2, 1, 2, 2),
            (3, 3, 1, 2),
            (7, 3, 2, 1),
            (12, 12, 1, 1),
            (59, 12, 4, 0),
            (64, 60, 1, 0),
        ] {
            let mut rest = loops.clone();
            let group = Group::take(&mut rest, most, |_, _| true);
            assert_eq!((group.unit, group.step, rest.len()), (unit, step, left), "at most {most}");
            let mut seen = Vec::new();
            for (src, dst, len) in group.parts() {
                assert!(len <= most && len <= group.src.len());
                seen.extend((0..len).map(|at| (src + group.src[at], dst + group.dst[at])));
            }
            let taken = &loops[rest.len()..];
            let mut expected = vec![(0, 0)];
            for one in taken {
                expected = expected
                    .iter()
                    .flat_map(|&(src, dst)| {
                        (0..one.extent as isize)
                            .map(move |at| (src + at * one.src, dst + at * one.dst))
                    })
                    .collect();
            }
            assert_eq!(seen, expected, "at most {most}");
        }
        let mut rest = loops.clone();
        let group = Group::take(&mut rest, 64, |one, count| {
            one.dst == 5 * count as isize && one.extent < 4
        });
        assert_eq!((group.unit, rest.len()), (3, 2));
    }
}
