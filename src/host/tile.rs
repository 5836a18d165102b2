//! One tile: a run of elements of one output, across as many samples as it covers.
//!
//! The problem: outputs differ in layout, dtype and arithmetic, and each combination has a fastest loop. A tile is cut by output
//! bytes and knows no samples, so it may begin and end within a row:
//!
//! ```text
//! output   |-- sample 0 --|-- sample 1 --|-- sample 2 --|-- sample 3 --|
//! tiles    |    tile 0       |     tile 1      |     tile 2      | ...
//! ```
//!
//! ```text
//! run: write<streaming> around the caches if the output is large enough, else write<cached>
//! write:
//!     merged ranges of bytes       copy_ranges   neighbouring samples are one copy
//!     samples that are only moved  copy_runs     one copy of bytes for each sample
//!     masks, indices, constants    write_constants
//!     anything else                write_samples: for each sample, one of
//!         a whole sample of one row, cast    cast_all          alike samples in one loop
//!         a short row                        write_short_row   padding, row, padding, without the walk
//!         pixels to planes                   write_planar
//!         a short innermost loop             short_inner_dims
//!         another order than the output's    transpose
//!         rows                               walk, a row function of the pair of dtypes
//! ```
//!
//! `write` is compiled twice, by `STREAMING`, so that outputs that stay in the caches do not pay for a test in each row. The row
//! function, and whether a sample is transposed, are looked up once for samples that share a loop nest. One loop over all elements
//! would be far simpler, and is what `reference` does: it is the oracle that each of these paths is compared with. The limits are
//! in `policy` and measured in docs/performance-method.md, and each path on a named case in "The paths of the host, one by one"
//! there: rows of 4 to 36 int32 padded to int64 take 1.23 to 1.36 of the time without `write_short_row`, rows of 17 float32 to
//! float16 1.76 without `cast_all`, images to float16 planes 7.4 without `write_planar`, (8, 8, 8, 8) with dims reversed 15 without
//! `transpose`, CHW to HWC 4.6 without `short_inner_dims` (Xeon, one thread).
#![allow(unsafe_code)] // The raw copy loops: addresses come from the plan.

use std::ops::Range;

use crate::collate::Affine;
use crate::host::pages::is_resident;
use crate::host::rows::{self, AffineFn, FillFn, PlanarFn, RowFn};
use crate::host::runs::{copy_ranges, copy_runs, for_samples, for_uniform_samples, prefetch_ahead};
use crate::host::short_inner_dims::{has_short_rows, write_short_rows};
use crate::host::streaming::WrittenRows;
use crate::host::transpose::{write_transposed, Transposition};
use crate::host::uniform_rows::cast_all;
use crate::host::walk::{goes_down, in_order, walk, SamplePlace};
use crate::host::{StreamingStores, POLICY};
use crate::plan::{Channel, Dim, ElementOp, LoopNest, OutputPlan};

/// Writes the elements `elems` of an output, put through `affine` if there is one, and issues the
/// fence if it writes around the caches. The output has no scales.
///
/// # Safety
/// The samples of the plan are alive; every element that the output's layout reaches from `out` may be
/// written to, and no other thread writes these elements.
pub(super) unsafe fn run(
    output: &OutputPlan<'_>,
    affine: Option<&Affine>,
    out: *mut u8,
    elems: Range<u64>,
    stores: &StreamingStores,
) {
    let end = (elems.end * output.dtype.size() as u64) as usize;
    debug_assert!(elems.start <= elems.end && elems.end <= output.numel());
    debug_assert!(output.has_places() || !out.is_null());
    debug_assert!(!matches!(output.op, ElementOp::Rescale | ElementOp::Scales));
    // Two compilations, so that outputs that stay in the caches do not pay for the others.
    // SAFETY: as for this function.
    unsafe {
        let is_resident = || !output.places.is_empty() || is_resident(out.wrapping_add(end));
        if stores.are_for(output) && is_resident() {
            write::<true>(output, affine, out, elems);
            rows::stream_fence();
        } else {
            write::<false>(output, affine, out, elems);
        }
    }
}

/// Writes elements as [`run`] does, around the caches if `STREAMING`; the caller issues the fence.
///
/// # Safety
/// The samples are alive; every element that the output's layout reaches from `out` may be written to, and no other
/// thread writes these elements.
unsafe fn write<const STREAMING: bool>(
    output: &OutputPlan<'_>,
    affine: Option<&Affine>,
    out: *mut u8,
    elems: Range<u64>,
) {
    let size = output.dtype.size() as u64;
    let last = output.ranges.as_ref().and_then(|ranges| ranges.last());
    debug_assert!(last.is_none_or(|last| last.dst + last.size == output.bytes()));
    // SAFETY: as for this function; ranges cover the output once.
    unsafe {
        if let Some(ranges) = &output.ranges {
            copy_ranges::<STREAMING>(ranges, out, elems.start * size..elems.end * size);
        } else if output.bytes_only {
            copy_runs::<STREAMING>(output, out, elems);
        } else if let ElementOp::Read { .. } = output.op {
            write_samples::<STREAMING>(output, affine, out, elems);
        } else {
            write_constants::<STREAMING>(output, out, elems);
        }
    }
}

/// Writes samples of which nothing is read, padding included.
///
/// # Safety
/// Every element that the output's layout reaches from `out` may be written to, and no other thread writes these
/// elements. The output's op has a constant.
unsafe fn write_constants<const STREAMING: bool>(
    output: &OutputPlan<'_>,
    out: *mut u8,
    elems: Range<u64>,
) {
    let size = output.dtype.size();
    debug_assert!(output.op.constant(0).is_some());
    let write = |value: &[u8; 16], dst: *mut u8, stride: isize, len: usize| {
        // SAFETY: the walk stays inside the sample's place in the output.
        unsafe { fill::<STREAMING>(value, dst, stride, size, len) };
    };
    for_samples(output, elems, |sample, range| {
        let place = SamplePlace::new(output, output.nest_of(sample), sample, out);
        let value = output.op.constant(sample).unwrap_or(output.fill);
        let fill = |dst: *mut u8, stride: isize, len: usize| write(&output.fill, dst, stride, len);
        walk(&place, range, fill, |_, dst, dim, len, _, _| {
            write(&value, dst, dim.dst_stride as isize, len);
        });
    });
}

/// Writes samples that are read, padding included.
///
/// # Safety
/// The samples are alive; every element that the output's layout reaches from `out` may be written to, and no other
/// thread writes these elements.
unsafe fn write_samples<const STREAMING: bool>(
    output: &OutputPlan<'_>,
    affine: Option<&Affine>,
    out: *mut u8,
    elems: Range<u64>,
) {
    // The way to write is found once for samples that are alike.
    let mut known: Option<(&LoopNest, Option<Box<Transposition>>, RowFn)> = None;
    let fill = rows::fill_of(output.dtype.size(), &output.fill);
    let write = |sample: usize, range: Range<u64>| {
        let nest = output.nest_of(sample);
        let place = SamplePlace::new(output, nest, sample, out);
        if !known.as_ref().is_some_and(|(of, ..)| std::ptr::eq(*of, nest)) {
            let is_other = nest.planar || has_short_rows(place.dims);
            let transposed = match is_other {
                true => None,
                false => Transposition::for_sample(output, nest, affine),
            };
            let row = match known {
                Some((of, _, row)) if of.dtype == nest.dtype => row,
                _ => rows::cast_row(nest.dtype, output.to()),
            };
            known = Some((nest, transposed, row));
        }
        let Some((_, transposed, row)) = &known else { return };
        prefetch_ahead(output, sample);
        // SAFETY: as for this function; `range` is inside the sample's own elements.
        unsafe {
            match (place.dims, affine) {
                ([dim], None) if is_short(output, nest, &range) => {
                    write_short_row(output, &place, dim, *row, fill, range);
                }
                _ => {
                    write_sample::<STREAMING>(
                        output,
                        nest,
                        affine,
                        transposed.as_deref(),
                        &place,
                        range,
                    );
                }
            }
        }
    };
    let [nest, ..] = &*output.nests else { return };
    let [dim] = &output.dims[nest.dims.clone()] else { return for_samples(output, elems, write) };
    let sizes = [nest.dtype.size(), output.dtype.size()];
    let is_run = affine.is_none()
        && output.nest_ids.is_empty()
        && nest.dtype != output.dtype
        && dim.is_whole()
        && [dim.src_stride, dim.dst_stride] == sizes.map(|size| size as i64);
    let is_long = dim.extent * sizes[1] as u64 >= POLICY.min_streamed_run_bytes;
    if STREAMING && is_long || !is_run {
        return for_samples(output, elems, write);
    }
    let cast = rows::cast_elems(nest.dtype, output.to());
    for_uniform_samples(output, elems, write, |addresses, dst_offset, bytes| {
        debug_assert_eq!(bytes, dim.extent as usize * sizes[1]);
        // SAFETY: whole samples, which are runs of elements on both sides, one after the other.
        unsafe {
            cast_all(addresses, out.wrapping_offset(dst_offset), bytes / sizes[1], sizes, cast);
        }
    });
}

/// Whether the elements of `range` have so few bytes that a choice of how to write them costs as much as they do.
#[inline]
fn is_short(output: &OutputPlan<'_>, nest: &LoopNest, range: &Range<u64>) -> bool {
    let size = output.dtype.size().max(nest.dtype.size()) as u64;
    (range.end - range.start) * size < POLICY.min_streamed_run_bytes
}

/// Writes the elements `range` of a sample that is one row, padding included.
///
/// # Safety
/// - The sample is alive, and `place` is its own: every element that its loop reaches may be read.
/// - Every element that `range` reaches from `place.dst` may be written and is not accessed by anything else.
/// - `row` takes the sample's elements to those of the output, and `fill` writes what is between them.
#[inline]
unsafe fn write_short_row(
    output: &OutputPlan<'_>,
    place: &SamplePlace<'_>,
    dim: &Dim,
    row: RowFn,
    fill: FillFn,
    range: Range<u64>,
) {
    let (from, to) = (dim.src_stride as isize, dim.dst_stride as isize);
    debug_assert!(range.end <= dim.extent);
    let at = |column: u64| place.dst.wrapping_offset(column as isize * to);
    let (lo, hi) = (dim.lo.clamp(range.start, range.end), dim.hi.clamp(range.start, range.end));
    // The whole range is padding in front if nothing is read.
    let lo = if lo < hi { lo } else { range.end };
    // SAFETY: parts of `range`; those from `lo` to `hi` are real.
    unsafe {
        let size = output.dtype.size();
        let fill = |dst: *mut u8, len: u64| match to == size as isize {
            true => fill(dst, &output.fill, len as usize),
            false => rows::fill_row(dst, to, size, &output.fill, len as usize),
        };
        if range.start < lo {
            fill(at(range.start), lo - range.start);
        }
        if lo < hi {
            let src = place.src.wrapping_offset((lo - dim.lo) as isize * from);
            row(src, from, at(lo), to, (hi - lo) as usize);
            if hi < range.end {
                fill(at(hi), range.end - hi);
            }
        }
    }
}

/// Writes the elements `range` of one sample, padding included:
///
/// ```text
/// channels of a pixel to planes:  all channels of a stretch of pixels at once
/// short rows:                     along the next dim, see `short_inner_dims`
/// another order than the output's: block by block, see `transpose`
/// otherwise, for every row that the walk gives: its padding is filled, and of its real elements
///     a row that goes down in memory is turned round (1), a row without gaps copied (2),
///     and any other moved, cast or transformed by the row function of its dtypes, around the caches if it is large
/// ```
///
/// 1. Moved elements are turned round in one step; others in blocks that are then read in order.
/// 2. Only where nothing is converted.
///
/// Pixels to planes are written as a whole, if their first element is in `range`, else not at all: see [`write_planar`].
///
/// # Safety
/// - The sample is alive, and `place` is its own: every element that its loops reach may be read.
/// - Every element that `range` reaches from `place.dst` may be written and is not accessed by anything else.
unsafe fn write_sample<const STREAMING: bool>(
    output: &OutputPlan<'_>,
    nest: &LoopNest,
    affine: Option<&Affine>,
    transposed: Option<&Transposition>,
    place: &SamplePlace<'_>,
    range: Range<u64>,
) {
    // SAFETY: as for this function.
    let write_rows = |range: Range<u64>| unsafe {
        match affine {
            None => move_rows::<STREAMING>(output, nest, place, range),
            Some(affine) => transform_rows::<STREAMING>(output, nest, affine, place, range),
        }
    };
    // SAFETY: as above.
    unsafe {
        match transposed {
            _ if nest.planar => {
                let planar = rows::planar_row(nest.dtype, output.to());
                write_planar(planar, nest, output, affine, place, range, STREAMING);
            }
            _ if has_short_rows(place.dims) => {
                // Of the rows at its ends, the range may have a part.
                let extent = place.dims.last().map_or(1, |short| short.extent);
                let begin = range.start.next_multiple_of(extent).min(range.end);
                let end = (range.end / extent * extent).max(begin);
                if begin < end {
                    write_short_rows(output, nest, affine, place, begin..end);
                }
                for part in [range.start..begin, end..range.end] {
                    if !part.is_empty() {
                        write_rows(part);
                    }
                }
            }
            Some(whole) => {
                let (value, size) = (&output.fill, output.dtype.size());
                let fill = |dst, stride, len| fill::<STREAMING>(value, dst, stride, size, len);
                let sample = (output, nest, affine);
                write_transposed(whole, sample, place, range, fill, write_rows);
            }
            None => write_rows(range),
        }
    }
}

/// A row of the output, written around the caches if it has no gaps.
#[inline]
fn row_at<const STREAMING: bool>(
    dst: *mut u8,
    stride: isize,
    size: usize,
    len: usize,
) -> WrittenRows {
    WrittenRows {
        streaming: STREAMING && stride == size as isize,
        ..WrittenRows::one(dst, size, len)
    }
}

/// Fills a row of `len` elements with one value, around the caches if `STREAMING` and the row has no gaps.
///
/// # Safety
/// `len` elements of `size` bytes may be written from `dst` on, `stride` bytes apart.
#[inline]
unsafe fn fill<const STREAMING: bool>(
    value: &[u8; 16],
    dst: *mut u8,
    stride: isize,
    size: usize,
    len: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        row_at::<STREAMING>(dst, stride, size, len)
            .write(|dst, _, _, len| rows::fill_row(dst, stride, size, value, len));
    }
}

/// Writes the elements `range` of one sample by rows that are moved or cast, padding included.
///
/// # Safety
/// - The sample is alive, and `place` is its own: every element that its loops reach may be read.
/// - Every element that `range` reaches from `place.dst` may be written and is not accessed by anything else.
unsafe fn move_rows<const STREAMING: bool>(
    output: &OutputPlan<'_>,
    nest: &LoopNest,
    place: &SamplePlace<'_>,
    range: Range<u64>,
) {
    let (size, width) = (output.dtype.size(), nest.dtype.size());
    let is_moved = nest.dtype == output.dtype;
    let row: RowFn = match is_moved {
        true => rows::copy_row(size),
        false => rows::cast_row(nest.dtype, output.to()),
    };
    // SAFETY: the walk stays inside the sample's place in the output.
    let fill = |dst, stride, len| unsafe {
        fill::<STREAMING>(&output.fill, dst, stride, size, len);
    };
    walk(place, range, fill, |src, dst, dim, len, _, _| {
        let (from, to) = (dim.src_stride as isize, dim.dst_stride as isize);
        if is_moved && goes_down(from, width) && to == size as isize {
            // SAFETY: as below, and both rows are without gaps.
            return unsafe { rows::reverse(src, dst, width, len) };
        }
        if is_moved && from == width as isize && to == from {
            let streaming = STREAMING && (len * width) as u64 >= POLICY.min_streamed_run_bytes;
            // SAFETY: as above.
            return unsafe { rows::copy_bytes(src, dst, len * width, streaming) };
        }
        // SAFETY: the walk gives real elements only, inside the sample and its place.
        unsafe {
            in_order(src, from, width, len, |src, from, done, len| {
                let dst = dst.wrapping_offset(done as isize * to);
                row_at::<STREAMING>(dst, to, size, len).write(|dst, _, done, len| {
                    row(src.wrapping_offset(done as isize * from), from, dst, to, len);
                });
            });
        }
    });
}

/// Writes the elements `range` of one sample by rows that are put through the affine map, padding included.
///
/// # Safety
/// - The sample is alive, and `place` is its own: every element that its loops reach may be read.
/// - Every element that `range` reaches from `place.dst` may be written and is not accessed by anything else.
unsafe fn transform_rows<const STREAMING: bool>(
    output: &OutputPlan<'_>,
    nest: &LoopNest,
    affine: &Affine,
    place: &SamplePlace<'_>,
    range: Range<u64>,
) {
    let (size, width) = (output.dtype.size(), nest.dtype.size());
    let row: AffineFn = rows::affine_row(nest.dtype, output.to());
    // SAFETY: the walk stays inside the sample's place in the output.
    let fill = |dst, stride, len| unsafe {
        fill::<STREAMING>(&output.fill, dst, stride, size, len);
    };
    walk(place, range, fill, |src, dst, dim, len, column, coords| {
        let (from, to) = (dim.src_stride as isize, dim.dst_stride as isize);
        let channel_at = |done: usize| match nest.channel {
            Channel::None => (0, false),
            Channel::Loop { dim, first, .. } => {
                ((coords[dim] - place.dims[dim].lo) as usize + first, false)
            }
            Channel::Inner { first } => {
                let column = column - dim.lo + done as u64;
                ((column % affine.channels() as u64) as usize + first, true)
            }
        };
        // SAFETY: the walk gives real elements only, inside the sample and its place.
        unsafe {
            in_order(src, from, width, len, |src, from, done, len| {
                let dst = dst.wrapping_offset(done as isize * to);
                row_at::<STREAMING>(dst, to, size, len).write(|dst, _, more, len| {
                    let src = src.wrapping_offset(more as isize * from);
                    let (channel, periodic) = channel_at(done + more);
                    row(src, from, dst, to, len, affine, channel, periodic);
                });
            });
        }
    });
}

/// Writes interleaved channels to planes, all channels of a pixel at once, padding included.
/// `range` counts elements pixel by pixel, all channels of one before the next, although the output
/// has them plane by plane: pixels are written whose first channel is in it.
///
/// # Safety
/// - The sample is alive, and `place` is its own: every element that its loops reach may be read.
/// - These pixels may be written in every plane from `place.dst` on; nothing else accesses them.
/// - The nest is `planar`.
unsafe fn write_planar(
    planar: PlanarFn,
    nest: &LoopNest,
    output: &OutputPlan<'_>,
    affine: Option<&Affine>,
    place: &SamplePlace<'_>,
    range: Range<u64>,
    streaming: bool,
) {
    let (channels, dims) = (place.dims[0].extent, &place.dims[1..]);
    debug_assert!(nest.planar && place.dims[0].src_stride == nest.dtype.size() as i64);
    let plane = place.dims[0].dst_stride as isize;
    let pixels = SamplePlace { dims, ..*place };
    let size = output.dtype.size();
    let fill = |dst: *mut u8, stride: isize, len: usize| {
        for channel in 0..channels as isize {
            // SAFETY: the same pixels of every plane; the walk stays inside the first one.
            unsafe { rows::fill_row(dst.offset(channel * plane), stride, size, &output.fill, len) };
        }
    };
    let pixel_range = range.start.div_ceil(channels)..range.end.div_ceil(channels);
    let pixel = channels as usize * nest.dtype.size();
    walk(&pixels, pixel_range, fill, |src, dst, dim, len, _, _| {
        // SAFETY: `len` real pixels of adjacent channels, and their places in every plane.
        unsafe {
            in_order(src, dim.src_stride as isize, pixel, len, |src, _, done, len| {
                let (dst, count) = (dst.add(done * size), channels as usize);
                WrittenRows { plane, count, streaming, ..WrittenRows::one(dst, size, len) }.write(
                    |dst, plane, done, len| {
                        planar(src.add(done * pixel), dst, plane, len, count, affine);
                    },
                );
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collate, Pad, Plan, SampleView};

    #[test]
    fn a_tile_writes_its_own_elements_only() {
        let all: Vec<u32> = (1..=1000).collect();
        let of = |begin: usize| {
            SampleView::from_slice(&all[begin..begin + 100], &[100]).expect("a hundred")
        };
        let (halves, scattered) = ([of(500), of(600), of(0), of(100)], [of(0), of(300), of(7)]);
        // Ranges of neighbours, runs of bytes, rows of elements, padding.
        let cases = [
            (&halves[..], Collate::stack()),
            (&scattered[..], Collate::concat(0)),
            (
                &scattered[..],
                Collate::stack()
                    .cast(crate::DType::U32)
                    .transform(crate::Transform::new().scale(0.5)),
            ),
            (&scattered[..], Collate::pad(Pad::new().size(150))),
        ];
        for (case, (samples, collate)) in cases.iter().enumerate() {
            let plan = Plan::new(*samples, collate).expect("a sound batch");
            let output = &plan.outputs()[0];
            assert_eq!(output.ranges.as_ref().map(Vec::len), (case == 0).then_some(2));
            let numel = output.numel();
            let run_into = |elems: Range<u64>| {
                let mut out = vec![u32::MAX; numel as usize];
                // SAFETY: the output's elements have four bytes each, as those of `out`.
                unsafe {
                    run(
                        output,
                        plan.affine_of(output),
                        out.as_mut_ptr().cast(),
                        elems,
                        &StreamingStores::ALL,
                    )
                };
                out
            };
            let whole = run_into(0..numel);
            assert!(!whole.contains(&u32::MAX), "case {case}");
            for elems in [0..1, 1..2, 99..101, 100..200, 150..250, 199..200, 200..201, 280..numel] {
                let got = run_into(elems.clone());
                for (at, (&got, &whole)) in got.iter().zip(&whole).enumerate() {
                    let want = if elems.contains(&(at as u64)) { whole } else { u32::MAX };
                    assert_eq!(got, want, "element {at} of {elems:?}, case {case}");
                }
            }
        }
    }
}
