//! Samples whose rows are short, as the channels of a pixel are.
//!
//! A call for each row would cost more than its elements, so the rows are read along the next dim:
//!
//! ```text
//! for every range of neighbours that the walk gives, all of them real:
//!     if pixels are only in the opposite order: turn them round, block by block (1)
//!     fill the places of the short row that are padding, each for all neighbours
//!     for every block of SHORT_ROW_BLOCK neighbours:
//!         if whole pixels of two to four channels are written without gaps (2):
//!             read each channel to `held`, then interleave `held` into the output
//!         else:
//!             read each place of the short row straight to its stride in the output
//! ```
//!
//! 1. An image mirrored left to right goes down by one pixel: a block of pixels is turned round in registers, and then
//!    read as one row.
//! 2. Strided stores of single elements cost most: whole pixels are put together from `held` in vectors.
//!
//! Row by row, as `walk` goes, would be simpler: CHW to HWC takes 4.6 times as long (Xeon, one thread).
#![allow(unsafe_code)] // Raw rows.

use std::mem::MaybeUninit;
use std::ops::Range;

use crate::collate::Affine;
use crate::host::policy::POLICY;
use crate::host::rows::{self, AffineFn, InterleaveFn, RowFn};
use crate::host::walk::{goes_down, walk, SamplePlace};
use crate::plan::{Channel, Dim, LoopNest, OutputPlan};

/// Elements of a short row's neighbours that are read at once.
const SHORT_ROW_BLOCK: usize = POLICY.short_block_elems;

/// Rows that are interleaved at most: those that [`rows::interleave_rows`] takes.
const MAX_HELD_ROWS: usize = 4;

/// A block of each, elements of at most eight bytes.
type HeldRows = [MaybeUninit<u64>; MAX_HELD_ROWS * SHORT_ROW_BLOCK];

/// Whether there is a dim around the last one, and the last is so short and that one so long that rows are read along that one.
pub(super) fn has_short_rows(dims: &[Dim]) -> bool {
    let [.., next, short] = dims else { return false };
    let is_across = short.src_stride.unsigned_abs() > next.src_stride.unsigned_abs();
    let longest = if is_across { POLICY.short_row_across } else { POLICY.short_row };
    short.extent <= longest && next.extent > POLICY.short_run as u64
}

/// Writes whole short rows along the next dim: those of `range`, which begins and ends with one.
///
/// # Safety
/// - The sample is alive, and `place` is its own: every element that its loops reach may be read.
/// - Every element of these rows, from `place.dst` on, may be written and is not accessed by anything else.
pub(super) unsafe fn write_short_rows(
    output: &OutputPlan<'_>,
    nest: &LoopNest,
    affine: Option<&Affine>,
    place: &SamplePlace<'_>,
    range: Range<u64>,
) {
    let Some((short, dims)) = place.dims.split_last() else { return };
    let rows = ShortRows::new(output, nest, affine, short, dims);
    let mut held: HeldRows = [MaybeUninit::uninit(); MAX_HELD_ROWS * SHORT_ROW_BLOCK];
    debug_assert!(range.start % short.extent == 0 && range.end % short.extent == 0);
    let row_range = range.start / short.extent..range.end / short.extent;
    let fill = |dst: *mut u8, stride: isize, len: usize| {
        // SAFETY: the walk stays inside the sample's place in the output.
        unsafe { rows.fill(dst, stride, len, 0..short.extent) };
    };
    walk(
        &SamplePlace { dims, ..*place },
        row_range,
        fill,
        |src, dst, next, len, column, coords| {
            let range = RowRange { src, dst, next, len, column, coords };
            // SAFETY: the walk gives real neighbours only, inside the sample and its place.
            unsafe {
                match rows.is_mirrored {
                    true => rows.reverse(&range),
                    false => rows.write(&range, &mut held),
                }
            }
        },
    );
}

/// The properties that all stretches of a sample share.
struct ShortRows<'a> {
    output: &'a OutputPlan<'a>,
    nest: &'a LoopNest,
    affine: Option<(&'a Affine, AffineFn)>,
    move_row: RowFn,
    short: &'a Dim,
    /// The loops around it.
    dims: &'a [Dim],
    /// Puts whole pixels together.
    interleave: Option<InterleaveFn>,
    is_mirrored: bool,
}

/// Neighbours of the short row along the next dim, as `walk` gives them: `len` of them, from `column` of that dim on.
struct RowRange<'a> {
    src: *const u8,
    dst: *mut u8,
    next: &'a Dim,
    len: usize,
    column: u64,
    coords: &'a [u64],
}

impl<'a> ShortRows<'a> {
    /// The way in which short rows of a sample are read and written; `short` is the last loop, `dims` are the others.
    #[inline]
    fn new(
        output: &'a OutputPlan<'_>,
        nest: &'a LoopNest,
        affine: Option<&'a Affine>,
        short: &'a Dim,
        dims: &'a [Dim],
    ) -> ShortRows<'a> {
        let (size, from_size) = (output.dtype.size(), nest.dtype.size());
        let has_pixels =
            short.lo == 0 && short.hi == short.extent && short.dst_stride == size as i64;
        let is_mirrored = has_pixels
            && short.src_stride == from_size as i64
            && dims.last().is_some_and(|next| {
                goes_down(next.src_stride as isize, short.extent as usize * from_size)
                    && next.dst_stride == short.extent as i64 * size as i64
            })
            && !matches!(nest.channel, Channel::Loop { dim, .. } if dim + 1 == dims.len());
        let interleave = rows::interleave_rows(size, short.extent as usize);
        ShortRows {
            output,
            nest,
            affine: affine.map(|affine| (affine, rows::affine_row(nest.dtype, output.to()))),
            move_row: match nest.dtype == output.dtype {
                true => rows::copy_row(size),
                false => rows::cast_row(nest.dtype, output.to()),
            },
            short,
            dims,
            interleave: interleave.filter(|_| has_pixels),
            is_mirrored,
        }
    }

    /// Fills these places of the short row for `len` neighbours.
    ///
    /// # Safety
    /// They may be written from `dst` on, `stride` bytes apart.
    #[inline]
    unsafe fn fill(&self, dst: *mut u8, stride: isize, len: usize, places: Range<u64>) {
        let (size, step) = (self.output.dtype.size(), self.short.dst_stride as isize);
        debug_assert!(places.end <= self.short.extent);
        for place in places {
            // SAFETY: the caller's promise.
            unsafe {
                let dst = dst.offset(place as isize * step);
                rows::fill_row(dst, stride, size, &self.output.fill, len);
            }
        }
    }

    /// The channel at these coordinates of an outer loop, `dim`, whose first real element has channel `first`.
    #[inline]
    fn outer_channel(&self, coords: &[u64], dim: usize, first: usize) -> usize {
        (coords[dim] - self.dims[dim].lo) as usize + first
    }

    /// Writes the pixels of a range that goes down in memory.
    ///
    /// # Safety
    /// - `range` has real pixels only, and as many places in the output without gaps.
    /// - The sample is mirrored (`is_mirrored`).
    #[inline]
    unsafe fn reverse(&self, range: &RowRange<'_>) {
        let &RowRange { src, dst, next, len, coords, .. } = range;
        let width = self.nest.dtype.size();
        let pixel = self.short.extent as usize * width;
        debug_assert!(self.is_mirrored);
        if self.affine.is_none() && self.nest.dtype == self.output.dtype {
            // SAFETY: the caller's promise; nothing is converted.
            return unsafe { rows::reverse(src, dst, pixel, len) };
        }
        let (channel, periodic) = match self.nest.channel {
            Channel::None => (0, false),
            Channel::Inner { first } => (first, true),
            Channel::Loop { dim, first, .. } => (self.outer_channel(coords, dim, first), false),
        };
        let (from, to) = (width as isize, self.short.dst_stride as isize);
        // SAFETY: the caller's promise; a block has `count` of the pixels, and `dst` is the place of its first.
        unsafe {
            rows::for_reversed_blocks(src, pixel, len, |src, done, count| {
                debug_assert!(done + count <= len);
                let dst = dst.wrapping_offset(done as isize * next.dst_stride as isize);
                let len = count * self.short.extent as usize;
                match self.affine {
                    Some((affine, row)) => row(src, from, dst, to, len, affine, channel, periodic),
                    None => (self.move_row)(src, from, dst, to, len),
                }
            });
        }
    }

    /// Writes a range, padding of the short row included.
    ///
    /// # Safety
    /// `range` has real neighbours only, whose short rows may be written.
    #[inline]
    unsafe fn write(&self, range: &RowRange<'_>, held: &mut HeldRows) {
        let &RowRange { dst, next, len, .. } = range;
        let (short, size) = (self.short, self.output.dtype.size());
        let (step, to) = (short.dst_stride as isize, next.dst_stride as isize);
        debug_assert!(short.lo <= short.hi && short.hi <= short.extent);
        // SAFETY: the caller's promise, for the places before the real ones and behind them.
        unsafe {
            self.fill(dst, to, len, 0..short.lo);
            self.fill(dst, to, len, short.hi..short.extent);
        }
        let interleave = self.interleave.filter(|_| to == step * short.extent as isize);
        for done in (0..len).step_by(SHORT_ROW_BLOCK) {
            let count = SHORT_ROW_BLOCK.min(len - done);
            let dst = dst.wrapping_offset(done as isize * to);
            let Some(interleave) = interleave else {
                for place in short.lo..short.hi {
                    let dst = dst.wrapping_offset(place as isize * step);
                    // SAFETY: `count` neighbours from `done` on, and this place of each in the output.
                    unsafe { self.read(range, place, done, (dst, to), count) };
                }
                continue;
            };
            debug_assert!(short.extent as usize * SHORT_ROW_BLOCK * size <= size_of_val(held));
            let (row_bytes, held) = (SHORT_ROW_BLOCK * size, held.as_mut_ptr().cast::<u8>());
            for place in 0..short.extent {
                let row = held.wrapping_add(place as usize * row_bytes);
                // SAFETY: as above; rows of a block fit into `held`, which has room for as many as are interleaved.
                unsafe { self.read(range, place, done, (row, step), count) };
            }
            // SAFETY: the rows were just written, and the pixels are those of this block of the output.
            unsafe { interleave(held, row_bytes, dst, count) };
        }
    }

    /// Reads one place of the short row of `len` neighbours from `done` on.
    ///
    /// # Safety
    /// - `place` is real, and so are these neighbours of the range.
    /// - `len` elements may be written from `dst` on, `to` bytes apart.
    #[inline]
    unsafe fn read(
        &self,
        range: &RowRange<'_>,
        place: u64,
        done: usize,
        (dst, to): (*mut u8, isize),
        len: usize,
    ) {
        let &RowRange { src, next, column, coords, .. } = range;
        debug_assert!((self.short.lo..self.short.hi).contains(&place) && done + len <= range.len);
        let (at, from) = ((place - self.short.lo) as usize, next.src_stride as isize);
        let src = src
            .wrapping_offset(at as isize * self.short.src_stride as isize)
            .wrapping_offset(done as isize * from);
        let (channel, periodic) = match self.nest.channel {
            Channel::None => (0, false),
            // The merged loops may make several pixels one row.
            Channel::Inner { first } => {
                let channels = self.affine.map_or(1, |(affine, _)| affine.channels());
                (at % channels + first, false)
            }
            Channel::Loop { dim, first, .. } if dim < coords.len() => {
                (self.outer_channel(coords, dim, first), false)
            }
            Channel::Loop { first, .. } => ((column - next.lo) as usize + done + first, true),
        };
        // SAFETY: the caller's promise.
        unsafe {
            match self.affine {
                Some((affine, row)) => row(src, from, dst, to, len, affine, channel, periodic),
                None => (self.move_row)(src, from, dst, to, len),
            }
        }
    }
}
