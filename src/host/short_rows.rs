//! Samples whose rows are short, as the channels of a pixel are.
#![allow(unsafe_code)] // Raw rows.

use std::ops::Range;

use crate::collate::Affine;
use crate::host::rows::{self, RowFn};
use crate::host::walk::{goes_down, walk, Place};
use crate::plan::{Channel, Dim, LoopNest, OutputPlan};

/// Rows of at most this many elements, a pixel's channels for example, are not worth a call each.
const SHORT_ROW: u64 = 8;

/// Elements of a short row's neighbours that are read at once; their outputs stay in the first cache.
const SHORT_ROW_BLOCK: usize = 256;

pub(super) fn has_short_rows(dims: &[Dim]) -> bool {
    matches!(dims, [.., next, short] if short.extent <= SHORT_ROW && next.extent > short.extent)
}

/// Short rows, read along the next dim instead: for every place in the row, all its neighbours. Of the
/// elements `own` the rows are those whose first element would be counted in.
///
/// # Safety
/// As [`run`].
pub(super) unsafe fn write_short_rows(
    output: &OutputPlan<'_>,
    class: &LoopNest,
    affine: Option<&Affine>,
    place: &Place<'_>,
    own: Range<u64>,
) {
    let Some((short, dims)) = place.dims.split_last() else { return };
    let (size, step) = (output.dtype.size(), short.dst_stride as isize);
    let move_row: RowFn = match class.dtype == output.dtype {
        true => rows::copy_row(size),
        false => rows::cast_row(class.dtype, output.dtype),
    };
    let affine = affine.map(|affine| (affine, rows::affine_row(class.dtype, output.dtype)));
    let fill_from = |dst: *mut u8, stride: isize, len: usize, places: Range<u64>| {
        for place in places {
            // SAFETY: places of the short row, of as many neighbours as the walk gave.
            unsafe {
                rows::fill_row(dst.offset(place as isize * step), stride, size, &output.fill, len)
            };
        }
    };
    let is_whole = short.lo == 0 && short.hi == short.extent;
    let interleave = rows::interleave_rows(size, short.extent as usize)
        .filter(|_| is_whole && step == size as isize);
    // Whole pixels in the opposite order, an image mirrored left to right: turned round at once.
    let pixel = short.extent as usize * class.dtype.size();
    let is_mirrored = is_whole
        && step == size as isize
        && short.src_stride == class.dtype.size() as i64
        && dims.last().is_some_and(|next| {
            goes_down(next.src_stride as isize, pixel)
                && next.dst_stride == short.extent as i64 * size as i64
        })
        && !matches!(class.channel, Channel::Loop { dim, .. } if dim + 1 == dims.len());
    let mut held = [std::mem::MaybeUninit::<u64>::uninit(); 4 * SHORT_ROW_BLOCK];
    let range = own.start.div_ceil(short.extent)..own.end.div_ceil(short.extent);
    let fill =
        |dst: *mut u8, stride: isize, len: usize| fill_from(dst, stride, len, 0..short.extent);
    walk(&Place { dims, ..*place }, range, fill, |src, dst, next, len, column, coords| {
        let (from, to) = (next.src_stride as isize, next.dst_stride as isize);
        let read = |place: u64, done: usize, dst: *mut u8, to: isize, len: usize| {
            let src = src
                .wrapping_offset((place - short.lo) as isize * short.src_stride as isize)
                .wrapping_offset(done as isize * from);
            let (channel, periodic) = match class.channel {
                Channel::None => (0, false),
                // Several pixels may have become one row.
                Channel::Inner { first } => {
                    let channels = affine.map_or(1, |(affine, _)| affine.channels());
                    ((place - short.lo) as usize % channels + first, false)
                }
                Channel::Loop { dim, first, .. } if dim < coords.len() => {
                    ((coords[dim] - dims[dim].lo) as usize + first, false)
                }
                Channel::Loop { first, .. } => ((column - next.lo) as usize + done + first, true),
            };
            // SAFETY: real elements of the sample, `len` neighbours from `done` on, and their places
            // in the output or in `held`.
            unsafe {
                match affine {
                    Some((affine, row)) => row(src, from, dst, to, len, affine, channel, periodic),
                    None => move_row(src, from, dst, to, len),
                }
            }
        };
        if is_mirrored {
            let (channel, periodic) = match class.channel {
                Channel::None => (0, false),
                Channel::Inner { first } => (first, true),
                Channel::Loop { dim, first, .. } => {
                    ((coords[dim] - dims[dim].lo) as usize + first, false)
                }
            };
            let width = class.dtype.size() as isize;
            if affine.is_none() && class.dtype == output.dtype {
                // SAFETY: as below.
                return unsafe { rows::turn(src, dst, pixel, len) };
            }
            // SAFETY: `len` whole pixels, and as many places in the output without gaps.
            return unsafe {
                rows::for_turned_blocks(src, pixel, len, |src, done, count| {
                    let dst = dst.wrapping_offset(done as isize * to);
                    let len = count * short.extent as usize;
                    match affine {
                        Some((affine, row)) => {
                            row(src, width, dst, step, len, affine, channel, periodic);
                        }
                        None => move_row(src, width, dst, step, len),
                    }
                });
            };
        }
        fill_from(dst, to, len, 0..short.lo);
        fill_from(dst, to, len, short.hi..short.extent);
        for done in (0..len).step_by(SHORT_ROW_BLOCK) {
            let count = SHORT_ROW_BLOCK.min(len - done);
            let dst = dst.wrapping_offset(done as isize * to);
            match interleave.filter(|_| to == step * short.extent as isize) {
                Some(interleave) => {
                    let (row_bytes, held) =
                        (SHORT_ROW_BLOCK * size, held.as_mut_ptr().cast::<u8>());
                    for place in 0..short.extent {
                        read(
                            place,
                            done,
                            held.wrapping_add(place as usize * row_bytes),
                            step,
                            count,
                        );
                    }
                    // SAFETY: at most four rows of a block of at most eight bytes each were filled in,
                    // and the pixels are those of this part of the output.
                    unsafe { interleave(held, row_bytes, dst, count) };
                }
                None => {
                    for place in short.lo..short.hi {
                        read(place, done, dst.wrapping_offset(place as isize * step), to, count);
                    }
                }
            }
        }
    });
}
