//! The walk through one sample's elements, row by row, from any element to any other.
//!
//! The problem: a tile may begin and end within a row, each loop may have padding on both sides, and strides may be negative. A
//! function for each case would repeat this arithmetic in every writer.
//!
//! ```text
//! dims   outer: extent 3, real 1..3       inner: extent 6, real 1..4
//!
//!          column 0 1 2 3 4 5
//! row 0           . . . . . .             a whole row of padding: fill
//! row 1           . # # # . .             fill 1, read 3, fill 2
//! row 2           . # # # . .
//! ```
//!
//! ```text
//! coords, column = position of range.start
//! for each row until range.end:
//!     src, dst = sum of coordinate * stride over the outer loops; the row is real if all coordinates are
//!     fill what is left of the real columns, read the real ones, fill what is right of them
//!     advance coords like an odometer
//! ```
//!
//! Addresses are summed anew for each row, so that a carry of the odometer needs no correction of running sums. Rows that go down in memory are prefetched, because the
//! hardware prefetches ascending rows alone: without it they take 1.23 of the time (docs/performance-method.md).
#![allow(unsafe_code)] // Rows that go down in memory.

use std::ops::Range;

use smallvec::SmallVec;

use crate::host::policy::POLICY;
use crate::host::prefetch::prefetch;
use crate::host::rows;
use crate::plan::{Dim, LoopNest, OutputPlan};

/// A sample's place: addresses of its first real element to be read and of its first element in the
/// output, and the loops between.
pub(super) struct SamplePlace<'a> {
    pub src: *const u8,
    pub dst: *mut u8,
    pub dims: &'a [Dim],
}

impl<'a> SamplePlace<'a> {
    /// The place of a sample in an output at `out`; `nest` is the sample's.
    #[inline]
    pub fn new(
        output: &'a OutputPlan<'_>,
        nest: &LoopNest,
        sample: usize,
        out: *mut u8,
    ) -> SamplePlace<'a> {
        SamplePlace {
            src: output.data[sample].wrapping_offset(nest.src_offset as isize),
            dst: output.place_of(sample, out),
            dims: &output.dims[nest.dims.clone()],
        }
    }
}

/// Whether pixels of `width` bytes are read backwards without gaps.
pub(super) fn goes_down(stride: isize, width: usize) -> bool {
    stride == -(width as isize)
}

/// Calls `read` with a row of pixels as it is, or, if it goes down in memory, with blocks of it that are
/// turned round: address, stride, pixels before, pixels. A block is a copy that lasts for the call.
///
/// # Safety
/// `len` pixels of `width` bytes can be read from `src`, `stride` bytes apart.
pub(super) unsafe fn in_order(
    src: *const u8,
    stride: isize,
    width: usize,
    len: usize,
    mut read: impl FnMut(*const u8, isize, usize, usize),
) {
    if !goes_down(stride, width) {
        return read(src, stride, 0, len);
    }
    // SAFETY: the caller's promise, for a row that goes down.
    unsafe {
        rows::for_reversed_blocks(src, width, len, |src, done, len| {
            read(src, width as isize, done, len);
        });
    }
}

/// Prefetches a row further down. Apart, to keep the common case small.
#[inline(never)]
fn prefetch_row_ahead(src: *const u8, rows: &Dim, inner: &Dim) {
    let row_bytes = inner.src_stride.unsigned_abs().wrapping_mul(inner.hi - inner.lo) as usize;
    let stride = rows.src_stride as isize;
    let back = if inner.src_stride < 0 { row_bytes as isize } else { 0 };
    prefetch(
        src.wrapping_offset(POLICY.reversed_rows_ahead.wrapping_mul(stride).wrapping_sub(back)),
        row_bytes,
    );
}

/// Goes through the elements `range` of a place, padding counted, row by row and in order. `fill`
/// gets the padding: address, stride, length. `read` gets the real elements: both addresses, the
/// innermost loop, length, the first column and the coordinates of the outer loops, which all begin
/// with the padding. A place without dims has no elements.
#[inline]
pub(super) fn walk(
    place: &SamplePlace<'_>,
    range: Range<u64>,
    mut fill: impl FnMut(*mut u8, isize, usize),
    mut read: impl FnMut(*const u8, *mut u8, &Dim, usize, u64, &[u64]),
) {
    let Some((inner, outer)) = place.dims.split_last() else { return };
    if range.is_empty() {
        return;
    }
    // The promises of the callers, who write through `fill` and `read`, rest on these.
    debug_assert!(range.end <= place.dims.iter().map(|dim| dim.extent).product::<u64>());
    debug_assert!(place.dims.iter().all(|dim| dim.lo <= dim.hi && dim.hi <= dim.extent));
    let mut coords: SmallVec<[u64; 8]> = smallvec::smallvec![0; outer.len()];
    let mut row = range.start / inner.extent;
    for (coord, dim) in coords.iter_mut().zip(outer).rev() {
        *coord = row % dim.extent;
        row /= dim.extent;
    }
    let mut at = range.start;
    let mut column = range.start % inner.extent;
    let dst_stride = inner.dst_stride as isize;
    while at < range.end {
        let end = inner.extent.min(column + (range.end - at));
        let (mut src, mut dst, mut is_real) = (place.src, place.dst, true);
        for (&coord, dim) in coords.iter().zip(outer) {
            is_real &= (dim.lo..dim.hi).contains(&coord);
            src = src.wrapping_offset(
                (coord.wrapping_sub(dim.lo) as i64).wrapping_mul(dim.src_stride) as isize,
            );
            dst = dst.wrapping_offset((coord as i64 * dim.dst_stride) as isize);
        }
        let to = |column: u64| dst.wrapping_offset(column as isize * dst_stride);
        let (lo, hi) = if is_real { (inner.lo, inner.hi) } else { (end, end) };
        if column < lo.min(end) {
            fill(to(column), dst_stride, (lo.min(end) - column) as usize);
        }
        let (from, until) = (column.max(lo), end.min(hi));
        if from < until {
            let src = src.wrapping_offset((from - inner.lo) as isize * inner.src_stride as isize);
            read(src, to(from), inner, (until - from) as usize, from, &coords);
        }
        let tail = column.max(hi);
        if tail < end {
            fill(to(tail), dst_stride, (end - tail) as usize);
        }
        at += end - column;
        column = 0;
        for (coord, dim) in coords.iter_mut().zip(outer).rev() {
            *coord += 1;
            if *coord < dim.extent {
                // The hardware fetches ahead what goes up in memory; rows that go down are asked for.
                if dim.src_stride < 0 {
                    prefetch_row_ahead(src, dim, inner);
                }
                break;
            }
            *coord = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Row-major dims of extent, first and last real coordinate, and bytes from one to the next in the source.
    fn dims_of(dims: &[(u64, u64, u64, i64)]) -> Vec<Dim> {
        let dim = |&(extent, lo, hi, src_stride)| Dim { extent, lo, hi, src_stride, dst_stride: 1 };
        let mut dims: Vec<Dim> = dims.iter().map(dim).collect();
        for outer in (1..dims.len()).rev() {
            dims[outer - 1].dst_stride = dims[outer].dst_stride * dims[outer].extent as i64;
        }
        dims
    }

    /// The offset of an element in the source; `None` for padding.
    fn offset(dims: &[Dim], index: u64) -> Option<i64> {
        let (mut rest, mut at) = (index, Some(0));
        for dim in dims.iter().rev() {
            let coord = rest % dim.extent;
            rest /= dim.extent;
            at = at
                .filter(|_| (dim.lo..dim.hi).contains(&coord))
                .map(|at| at + (coord - dim.lo) as i64 * dim.src_stride);
        }
        at
    }

    /// Every part of a place by coordinates: the offset that each element is read at, or padding.
    #[test]
    fn every_range_of_elements_and_no_others() {
        for dims in [
            &[(7, 0, 7, 1)][..],
            &[(7, 2, 5, -3)],
            &[(3, 0, 3, 40), (4, 1, 3, -6), (5, 2, 4, 1)],
            &[(2, 0, 1, -9), (3, 0, 3, 3), (6, 0, 5, 2)],
            &[(3, 1, 1, 5), (4, 0, 4, 1)],
            &[(2, 0, 2, -20), (5, 4, 4, 1)],
        ] {
            let dims = dims_of(dims);
            let numel = dims.iter().map(|dim| dim.extent).product::<u64>();
            let mut out = vec![0u8; numel as usize];
            // Addresses only: nothing is read.
            let (src, dst) = (std::ptr::without_provenance::<u8>(1 << 20), out.as_mut_ptr());
            let place = SamplePlace { src, dst, dims: &dims };
            for (begin, end) in (0..=numel).flat_map(|a| (a..=numel).map(move |b| (a, b))) {
                let seen = RefCell::new(vec![Vec::new(); numel as usize]);
                let note =
                    |to: *mut u8, stride: isize, len: usize, at: &dyn Fn(i64) -> Option<i64>| {
                        assert!(len > 0, "called for nothing");
                        for i in 0..len {
                            let place = to.addr() - dst.addr() + i * stride as usize;
                            seen.borrow_mut()[place].push(at(i as i64));
                        }
                    };
                walk(
                    &place,
                    begin..end,
                    |to, stride, len| note(to, stride, len, &|_| None),
                    |from, to, dim, len, column, coords| {
                        let first = from.addr() as i64 - src.addr() as i64;
                        note(to, dim.dst_stride as isize, len, &|i| {
                            Some(first + i * dim.src_stride)
                        });
                        let mut index = 0;
                        for (coord, dim) in coords.iter().chain([&column]).zip(&dims) {
                            index = index * dim.extent + coord;
                        }
                        assert_eq!(index, (to.addr() - dst.addr()) as u64, "coordinates");
                    },
                );
                let expected: Vec<_> = (0..numel)
                    .map(|index| {
                        Vec::from_iter((begin..end).contains(&index).then(|| offset(&dims, index)))
                    })
                    .collect();
                assert_eq!(seen.into_inner(), expected, "{begin}..{end} of {dims:?}");
            }
        }
    }
}
