//! One tile: a run of elements of one field, across as many samples as it covers.
#![allow(unsafe_code)] // The raw copy loops: addresses come from the plan.

use std::ops::Range;

use smallvec::SmallVec;

use crate::affine::Affine;
use crate::field::{CopyRange, Field, Op, Starts};
use crate::geometry::{Channel, Class, Dim};
use crate::host::around::Rows;
use crate::host::rows::{self, AffineFn, PlanarFn, RowFn};
use crate::host::{is_streaming, MIN_STREAMED_RUN_BYTES};
use crate::plan::Plan;

/// Writes the elements `elems` of a field.
///
/// # Safety
/// The samples of the plan are alive; every element that the field's layout reaches from `out` may be
/// written to, and no other thread writes these elements.
pub(super) unsafe fn run(plan: &Plan<'_>, field: &Field<'_>, out: *mut u8, elems: Range<u64>) {
    let size = field.dtype.size() as u64;
    let streaming = is_streaming(field);
    if let Some(ranges) = &field.ranges {
        // SAFETY: as for this function; ranges cover the output once.
        unsafe { copy_ranges(ranges, out, elems.start * size..elems.end * size, streaming) };
    } else if field.bytes_only {
        // SAFETY: as for this function.
        unsafe { copy_runs(field, out, elems, streaming) };
    } else {
        let affine = match field.op {
            Op::Read { affine: true } => plan.specs[field.leaf].affine.as_ref(),
            _ => None,
        };
        for_samples(field, elems, |sample, own| {
            let class = field.class_of(sample);
            let place = Place {
                src: field.data[sample].wrapping_offset(class.src_offset as isize),
                dst: out.wrapping_offset(field.starts.byte_offset(sample) as isize),
                dims: &field.dims[class.dims.clone()],
            };
            // SAFETY: as for this function; `own` lies inside the sample's own elements.
            unsafe { write_sample(field, class, affine, sample, &place, own, streaming) };
        });
    }
    if streaming {
        rows::stream_fence();
    }
}

/// Calls `f` with every sample that owns some of the elements, and which of its own they are.
fn for_samples(field: &Field<'_>, elems: Range<u64>, mut f: impl FnMut(usize, Range<u64>)) {
    let mut sample = field.starts.sample_at(elems.start);
    let mut at = elems.start;
    while at < elems.end {
        let own = field.starts.elems(sample);
        let end = own.end.min(elems.end);
        if at < end {
            f(sample, at - own.start..end - own.start);
            at = end;
        }
        sample += 1;
    }
}

/// # Safety
/// As [`run`]; `bytes` is in bounds of the output.
unsafe fn copy_ranges(ranges: &[CopyRange], out: *mut u8, bytes: Range<u64>, streaming: bool) {
    let first = ranges.partition_point(|range| range.dst + range.size <= bytes.start);
    for range in &ranges[first..] {
        let begin = range.dst.max(bytes.start);
        let end = (range.dst + range.size).min(bytes.end);
        if begin >= end {
            break;
        }
        // SAFETY: `begin..end` is inside both this range and the output.
        unsafe {
            let src = range.src.add((begin - range.dst) as usize);
            rows::copy_bytes(src, out.add(begin as usize), (end - begin) as usize, streaming);
        }
    }
}

/// Copies rows of `size` bytes to one after the other.
///
/// # Safety
/// That many bytes are readable at every row, and that many for each row writable at `out` by nobody
/// else.
pub(crate) unsafe fn copy_rows(data: &[*const u8], out: *mut u8, size: usize) {
    // Samples without elements may have no address.
    for (index, &row) in data.iter().enumerate().filter(|_| size > 0) {
        if let Some(&ahead) = data.get(index + 4) {
            prefetch(ahead, size);
        }
        // SAFETY: by the contract above.
        unsafe { rows::copy_bytes(row, out.add(index * size), size, false) };
    }
}

/// Every sample is one run of bytes.
///
/// # Safety
/// As [`run`], for a field that is `bytes_only`.
unsafe fn copy_runs(field: &Field<'_>, out: *mut u8, elems: Range<u64>, streaming: bool) {
    let size = field.dtype.size();
    for_samples(field, elems, |sample, own| {
        prefetch_ahead(field, sample);
        let skip = own.start as usize * size;
        let src = field.data[sample].wrapping_offset(field.class_of(sample).src_offset as isize);
        let dst = out.wrapping_offset(field.starts.byte_offset(sample) as isize);
        // SAFETY: a run of bytes holds all of the sample's elements, `own` among them.
        unsafe {
            let len = (own.end - own.start) as usize * size;
            rows::copy_bytes(src.add(skip), dst.add(skip), len, streaming);
        }
    });
}

/// Scattered small samples wait for memory: the hardware cannot guess where the next one lies.
#[inline]
fn prefetch_ahead(field: &Field<'_>, sample: usize) {
    if let (Starts::Rows { elems, .. }, Some(&ahead)) = (&field.starts, field.data.get(sample + 4))
    {
        prefetch(ahead, *elems as usize * field.dtype.size());
    }
}

/// Asks for the first lines of some bytes that are read soon.
#[inline]
pub(super) fn prefetch(data: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes.min(1024)).step_by(64) {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: a prefetch never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(data.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (data, bytes);
}

/// A sample's place: addresses of its first real element to be read and of its first element in the
/// output, and the loops between.
struct Place<'a> {
    src: *const u8,
    dst: *mut u8,
    dims: &'a [Dim],
}

/// Writes the elements `own` of one sample, padding included.
///
/// # Safety
/// As [`run`].
unsafe fn write_sample(
    field: &Field<'_>,
    class: &Class,
    affine: Option<&Affine>,
    sample: usize,
    place: &Place<'_>,
    own: Range<u64>,
    streaming: bool,
) {
    let size = field.dtype.size();
    let row_at = |dst: *mut u8, stride: isize, len: usize| Rows {
        around: streaming && stride == size as isize,
        ..Rows::one(dst, size, len)
    };
    let fill_with = |value: &[u8; 16], dst: *mut u8, stride: isize, len: usize| {
        // SAFETY: the walk stays inside the sample's place in the output.
        unsafe {
            row_at(dst, stride, len).write(|dst, _, _, len| {
                rows::fill_row(dst, stride, size, value, len);
            });
        }
    };
    let fill = |dst: *mut u8, stride: isize, len: usize| fill_with(&field.fill, dst, stride, len);
    if let Some(value) = field.op.constant(sample) {
        return walk(place, own, fill, |_, dst, dim, len, _, _| {
            fill_with(&value, dst, dim.dst_stride as isize, len);
        });
    }
    match affine {
        _ if class.planar => {
            let planar = rows::planar_row(class.dtype, field.dtype);
            // SAFETY: as for this function.
            unsafe { write_planar(planar, class, field, affine, place, own, streaming) };
        }
        _ if has_short_rows(place.dims) => {
            // SAFETY: as for this function.
            unsafe { write_short_rows(field, class, affine, place, own) };
        }
        None => {
            let is_moved = class.dtype == field.dtype;
            let row: RowFn = match is_moved {
                true => rows::copy_row(size),
                false => rows::cast_row(class.dtype, field.dtype),
            };
            let width = class.dtype.size();
            walk(place, own, fill, |src, dst, dim, len, _, _| {
                let (from, to) = (dim.src_stride as isize, dim.dst_stride as isize);
                if is_moved && goes_down(from, width) && to == size as isize {
                    // SAFETY: as below, and both rows lie without gaps.
                    return unsafe { rows::turn(src, dst, width, len) };
                }
                if is_moved && from == width as isize && to == from {
                    let around = streaming && (len * width) as u64 >= MIN_STREAMED_RUN_BYTES;
                    // SAFETY: as above.
                    return unsafe { rows::copy_bytes(src, dst, len * width, around) };
                }
                // SAFETY: the walk gives real elements only, inside the sample and its place.
                unsafe {
                    in_order(src, from, width, len, |src, from, done, len| {
                        let dst = dst.wrapping_offset(done as isize * to);
                        row_at(dst, to, len).write(|dst, _, done, len| {
                            row(src.wrapping_offset(done as isize * from), from, dst, to, len);
                        });
                    });
                }
            });
        }
        Some(affine) => {
            let row: AffineFn = rows::affine_row(class.dtype, field.dtype);
            let width = class.dtype.size();
            walk(place, own, fill, |src, dst, dim, len, column, coords| {
                let (from, to) = (dim.src_stride as isize, dim.dst_stride as isize);
                let channel_at = |done: usize| match class.channel {
                    Channel::None => (0, false),
                    Channel::Loop { dim, first, .. } => {
                        ((coords[dim] - place.dims[dim].lo) as usize + first, false)
                    }
                    Channel::Inner { first } => {
                        let column = column - dim.lo + done as u64;
                        ((column % affine.channels() as u64) as usize + first, true)
                    }
                };
                // SAFETY: as above.
                unsafe {
                    in_order(src, from, width, len, |src, from, done, len| {
                        let dst = dst.wrapping_offset(done as isize * to);
                        row_at(dst, to, len).write(|dst, _, more, len| {
                            let src = src.wrapping_offset(more as isize * from);
                            let (channel, periodic) = channel_at(done + more);
                            row(src, from, dst, to, len, affine, channel, periodic);
                        });
                    });
                }
            });
        }
    }
}

/// Whether pixels of `width` bytes are read backwards without gaps.
fn goes_down(stride: isize, width: usize) -> bool {
    stride == -(width as isize)
}

/// Calls `read` with a row of pixels as it is, or, if it goes down in memory, with blocks of it that are
/// turned round: address, stride, pixels before, pixels.
///
/// # Safety
/// `len` pixels of `width` bytes can be read from `src`, `stride` bytes apart.
unsafe fn in_order(
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
        rows::for_turned_blocks(src, width, len, |src, done, len| {
            read(src, width as isize, done, len);
        });
    }
}

/// Interleaved channels to planes, all channels of a pixel at once. Of the elements `own`, counted
/// over all planes, the pixels are those whose first channel would be counted in.
///
/// # Safety
/// As [`run`], for a class that is `planar`.
unsafe fn write_planar(
    planar: PlanarFn,
    class: &Class,
    field: &Field<'_>,
    affine: Option<&Affine>,
    place: &Place<'_>,
    own: Range<u64>,
    streaming: bool,
) {
    let (channels, dims) = (place.dims[0].extent, &place.dims[1..]);
    let plane = place.dims[0].dst_stride as isize;
    let pixels = Place { dims, ..*place };
    let size = field.dtype.size();
    let fill = |dst: *mut u8, stride: isize, len: usize| {
        for channel in 0..channels as isize {
            // SAFETY: the same pixels of every plane; the walk stays inside the first one.
            unsafe { rows::fill_row(dst.offset(channel * plane), stride, size, &field.fill, len) };
        }
    };
    let range = own.start.div_ceil(channels)..own.end.div_ceil(channels);
    let pixel = channels as usize * class.dtype.size();
    walk(&pixels, range, fill, |src, dst, dim, len, _, _| {
        // SAFETY: `len` real pixels of adjacent channels, and their places in every plane.
        unsafe {
            in_order(src, dim.src_stride as isize, pixel, len, |src, _, done, len| {
                let (dst, count) = (dst.add(done * size), channels as usize);
                Rows { plane, count, around: streaming, ..Rows::one(dst, size, len) }.write(
                    |dst, plane, done, len| {
                        planar(src.add(done * pixel), dst, plane, len, count, affine);
                    },
                );
            });
        }
    });
}

/// Rows of at most this many elements, a pixel's channels for example, are not worth a call each.
const SHORT_ROW: u64 = 8;

/// Elements of a short row's neighbours that are read at once; their outputs stay in the first cache.
const SHORT_ROW_BLOCK: usize = 256;

fn has_short_rows(dims: &[Dim]) -> bool {
    matches!(dims, [.., next, short] if short.extent <= SHORT_ROW && next.extent > short.extent)
}

/// Short rows, read along the next dim instead: for every place in the row, all its neighbours. Of the
/// elements `own` the rows are those whose first element would be counted in.
///
/// # Safety
/// As [`run`].
unsafe fn write_short_rows(
    field: &Field<'_>,
    class: &Class,
    affine: Option<&Affine>,
    place: &Place<'_>,
    own: Range<u64>,
) {
    let Some((short, dims)) = place.dims.split_last() else { return };
    let (size, step) = (field.dtype.size(), short.dst_stride as isize);
    let move_row: RowFn = match class.dtype == field.dtype {
        true => rows::copy_row(size),
        false => rows::cast_row(class.dtype, field.dtype),
    };
    let affine = affine.map(|affine| (affine, rows::affine_row(class.dtype, field.dtype)));
    let fill_from = |dst: *mut u8, stride: isize, len: usize, places: Range<u64>| {
        for place in places {
            // SAFETY: places of the short row, of as many neighbours as the walk gave.
            unsafe {
                rows::fill_row(dst.offset(place as isize * step), stride, size, &field.fill, len)
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
            if affine.is_none() && class.dtype == field.dtype {
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

/// How many rows behind the one just read those that go down in memory are asked for.
const ROWS_AHEAD: isize = 2;

/// Asks for the row [`ROWS_AHEAD`] further down. Apart, to keep the common case small.
#[inline(never)]
fn ask_ahead(src: *const u8, rows: &Dim, inner: &Dim) {
    let row_bytes = inner.src_stride.unsigned_abs().wrapping_mul(inner.hi - inner.lo) as usize;
    let stride = rows.src_stride as isize;
    let back = if inner.src_stride < 0 { row_bytes as isize } else { 0 };
    prefetch(src.wrapping_offset(ROWS_AHEAD.wrapping_mul(stride).wrapping_sub(back)), row_bytes);
}

/// Goes through the elements `range` of a place row by row. `fill` gets the padding: address, stride,
/// length. `read` gets the real elements: both addresses, the innermost loop, length, the first
/// column and the coordinates of the outer loops.
#[inline]
fn walk(
    place: &Place<'_>,
    range: Range<u64>,
    mut fill: impl FnMut(*mut u8, isize, usize),
    mut read: impl FnMut(*const u8, *mut u8, &Dim, usize, u64, &[u64]),
) {
    let Some((inner, outer)) = place.dims.split_last() else { return };
    if range.is_empty() {
        return;
    }
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
                    ask_ahead(src, dim, inner);
                }
                break;
            }
            *coord = 0;
        }
    }
}
