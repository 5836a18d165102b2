//! Rows of small batches, written one after the other by the calling thread.
//!
//! The problem: a row may take no longer than a call of a function, so that the tables of a plan, other threads and even a
//! `memcpy` of some bytes show. Samples here are row-major and differ in dim 0 at most: a row is an address and a length.
//!
//! ```text
//! rows anywhere    |## 0 ##|   |### 1 ###|# 2 #|     |#### 3 ####|
//! joined           |## 0 ##|### 1 ###|# 2 #|#### 3 ####|             1 and 2 are neighbours: min_run_rows of these are one row
//! padded           |## 0 ##. . . .|### 1 ###. . .|# 2 #. . . . .|    padding on the way, while the line is in the first cache
//! mask of bytes     1 1 1 1 0 0 0  1 1 1 1 1 0 0  1 1 1 0 0 0 0      all of it is padding's value first, then each row is set
//! ```
//!
//! ```text
//! write_rows: from two of the smallest tiles on, with helpers: ranges of rows, whose starts in the output are added up before
//!     with padding       write_padded   of each row: padding in front, what is not cut off, padding behind, its mask
//!     rows of one size   write_alike    one row if all have one pitch and are numbers or a run, else `uniform_rows`
//!     other rows         write_joined   neighbours as one row; after a row without any, some rows without a look for them
//! a row that is moved: up to 32 bytes by two loads that may overlap, more by the system's copy
//! a row that is cast:  the vector loop for its pair of dtypes
//! ```
//!
//! A plan would be simpler, since it writes such batches, too: a stack of 8 rows of 128 float32 takes 3.2 times as long by one
//! (Xeon, one thread). A copy for each row would be simpler than a look for neighbours: 100 000 Arrow lists of 1 to 20 int32 take
//! 4.0 ms row by row and 1.1 with the look (Zen 4).
#![allow(unsafe_code)] // Raw rows.

use std::ops::Range;

use crate::collate::{MaskBits, Side};
use crate::host::parallel_for;
use crate::host::policy::POLICY;
use crate::host::prefetch::prefetch;
use crate::host::rows;
use crate::host::simd::Cast;
use crate::host::threads::Helpers;
use crate::host::uniform_rows::{cast_all, copy_all, copy_short};
use crate::samples::{EachRow, SampleRows, TensorMeta};
use crate::tensor::{CastTo, DType, Tensor};

/// The extent along dim 0 that each row is padded or cut to, the side of the padding, and its bits.
#[derive(Clone, Copy)]
pub(crate) struct RowPadding {
    pub extent: i64,
    pub side: Side,
    pub value: [u8; 16],
}

/// Row-major memory that rows are written to.
pub(crate) struct RowsMemory {
    pub data: *mut u8,
    pub bytes: usize,
    pub to: CastTo,
}

// SAFETY: an address, from which each thread writes places of its own (`write_rows`).
unsafe impl Sync for RowsMemory {}

/// The distance of the prefetch, in rows.
const AHEAD: usize = POLICY.rows_ahead;

/// The number of adjacent rows from which on they are one copy.
const MIN_RUN_ROWS: usize = POLICY.min_run_rows;

/// Writes numbers from the first element of a tensor on, of one dim without gaps and of int32,
/// which gets their low 32 bits, or int64. Without a tensor it does nothing.
///
/// # Safety
/// Memory that nothing else has, with room for as many as there are.
#[inline(always)] // Else code elsewhere decides whether it is: a ragged batch of 1024 rows then takes 1.07 of the instructions.
pub(crate) unsafe fn write_numbers(tensor: Option<&Tensor>, numbers: impl Iterator<Item = i64>) {
    let Some(tensor) = tensor else { return };
    debug_assert!(
        matches!(tensor.dtype(), DType::I32 | DType::I64) && tensor.layout().is_compact()
    );
    let (data, numel) = (tensor.data_ptr(), tensor.layout().numel());
    debug_assert!(data.addr() % tensor.dtype().size() == 0);
    // SAFETY: the caller's promise; the memory is aligned for every dtype.
    unsafe {
        match tensor.dtype() {
            DType::I32 => numbers.enumerate().for_each(|(index, number)| {
                debug_assert!((index as i64) < numel);
                data.cast::<i32>().add(index).write(number as i32);
            }),
            _ => numbers.enumerate().for_each(|(index, number)| {
                debug_assert!((index as i64) < numel);
                data.cast::<i64>().add(index).write(number);
            }),
        }
    }
}

/// Writes all rows one after the other, or each within its padding, and a mask of the places along
/// their dim 0, which only padded rows have: on the calling thread and, from two of the smallest
/// tiles on, on those that help. A row longer than the extent of the padding is cut on the side of
/// the padding. All is written on return.
///
/// # Safety
/// The rows are alive; nothing else has the memory, which all of them fill, or each with its padding, and the mask, which has
/// an element of its dtype for each place of these.
pub(crate) unsafe fn write_rows(
    rows: &SampleRows<'_>,
    padding: Option<&RowPadding>,
    mask: Option<(&Tensor, &MaskBits)>,
    memory: &RowsMemory,
    threads: Option<&Helpers>,
) {
    let writer = Writer::new(rows.meta(), memory.to);
    let num_places = |padding: Option<&RowPadding>| match padding {
        Some(padding) => padding.extent * rows.len() as i64,
        None => (0..rows.len()).map(|index| rows.at(index).1).sum(),
    };
    debug_assert_eq!(num_places(padding) as usize * writer.units()[1], memory.bytes);
    debug_assert!(mask.is_none_or(|(mask, _)| mask.layout().numel() == num_places(padding)));
    // SAFETY: the caller's promise; every range is written once, to its own place.
    let write = |range: Range<usize>, places: i64| unsafe {
        let dst = memory.data.wrapping_add(places as usize * writer.units()[1]);
        let alike = rows.alike().map(|addresses| &addresses[range.clone()]);
        match (padding, alike) {
            (Some(padding), _) => write_padded(rows, range, &writer, padding, mask, dst),
            (None, Some(addresses)) => {
                write_alike(addresses, &writer, rows.at(0).1 as usize, dst);
            }
            (None, None) => write_joined(rows, range, &writer, dst),
        }
    };
    let count = memory.bytes / POLICY.min_tile_bytes as usize;
    if threads.is_none() || count < 2 {
        return write(0..rows.len(), 0);
    }
    let step = rows.len().div_ceil(count);
    // The start of each range along dim 0 of the output.
    let mut places = 0;
    let begin: Vec<(usize, i64)> = (0..rows.len())
        .step_by(step)
        .map(|first| {
            let begin = (first, places);
            let range = first..rows.len().min(first + step);
            places += match padding {
                Some(padding) => padding.extent * range.len() as i64,
                None => range.map(|index| rows.at(index).1).sum(),
            };
            begin
        })
        .collect();
    parallel_for(begin.len(), threads, |part| {
        let (first, places) = begin[part];
        write(first..rows.len().min(first + step), places);
    });
}

/// How the elements of rows become those of the output.
struct Writer {
    /// `None` where they are only moved.
    cast: Option<Cast>,
    /// The dtype of a sample, and what elements become.
    from: DType,
    to: CastTo,
    /// Elements of one place along dim 0.
    elems: usize,
    /// Bytes of an element, of a sample and of the output.
    sizes: [usize; 2],
}

impl Writer {
    /// The writer of row-major samples with this metadata, whose extent of dim 0 may differ.
    fn new(meta: &TensorMeta, to: CastTo) -> Writer {
        let rest = meta.layout.shape().get(1..).unwrap_or_default();
        Writer {
            cast: (meta.dtype != to.dtype).then(|| rows::cast_elems(meta.dtype, to)),
            from: meta.dtype,
            to,
            elems: rest.iter().product::<i64>() as usize,
            sizes: [meta.dtype.size(), to.dtype.size()],
        }
    }

    /// Bytes of one place along dim 0: `[sample, output]`.
    fn units(&self) -> [usize; 2] {
        self.sizes.map(|size| size * self.elems)
    }

    /// Copies or casts `places` places along dim 0 from `src` to `dst`.
    ///
    /// # Safety
    /// They are there on both sides.
    #[inline]
    unsafe fn write(&self, src: *const u8, dst: *mut u8, places: usize) {
        let ([_, size], count) = (self.sizes, places * self.elems);
        // SAFETY: the caller's promise.
        unsafe {
            match self.cast {
                None => copy_short(src, dst, count * size),
                Some(_) if count == 0 => {}
                Some(cast) => cast(src, dst, count),
            }
        }
    }
}

/// Writes rows of this number of places each, one after the other.
///
/// # Safety
/// The rows are alive, and the writer's elements are theirs; `dst` has room for all of them, which nothing else has.
unsafe fn write_alike(addresses: &[*const u8], writer: &Writer, places: usize, dst: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        if write_as_one(addresses, writer, places, dst) {
            return;
        }
        match writer.cast {
            None => copy_all(addresses, dst, places * writer.units()[1]),
            Some(cast) => cast_all(addresses, dst, places * writer.elems, writer.sizes, cast),
        }
    }
}

/// Writes rows of this number of places as one row, if there are two or more and they have one pitch: numbers, or rows without
/// gaps between them. Returns whether it did; else nothing is written.
///
/// # Safety
/// The rows are alive, and the writer's elements are theirs; `dst` has room for all of them, which nothing else has.
#[inline]
unsafe fn write_as_one(
    addresses: &[*const u8],
    writer: &Writer,
    places: usize,
    dst: *mut u8,
) -> bool {
    let ([first, second, ..], [size, to]) = (addresses, writer.sizes) else { return false };
    let (step, elems) = (second.addr().wrapping_sub(first.addr()) as isize, places * writer.elems);
    let is_run = step == (elems * size) as isize;
    let are_even = |pair: &[*const u8]| pair[0].wrapping_offset(step) == pair[1];
    if !(is_run || elems == 1) || !addresses.windows(2).all(are_even) {
        return false;
    }
    // SAFETY: all elements of all rows, and as many of the output.
    unsafe {
        match is_run {
            true => writer.write(*first, dst, addresses.len() * places),
            false => {
                let row = rows::cast_row(writer.from, writer.to);
                row(*first, step, dst, to as isize, addresses.len());
            }
        }
    }
    true
}

/// Prefetches the memory of row `index`, whose places along dim 0 have `unit` bytes, if there is such a row.
#[inline]
fn prefetch_row(rows: EachRow<'_>, index: usize, unit: usize) {
    if index < rows.len() {
        let (src, length) = rows.at(index);
        prefetch(src, length as usize * unit);
    }
}

/// Writes rows one after the other, from `dst` on: rows that are adjacent in memory as one, the others row by row.
///
/// # Safety
/// The rows are alive, and the writer's elements are theirs; `dst` has room for all rows of the range, which nothing
/// else has.
unsafe fn write_joined(
    rows: &SampleRows<'_>,
    mut range: Range<usize>,
    writer: &Writer,
    mut dst: *mut u8,
) {
    let ([src_unit, unit], each) = (writer.units(), rows.each());
    while !range.is_empty() {
        let (end, places) = each.run_at(range.clone(), src_unit);
        let is_run = end - range.start >= MIN_RUN_ROWS;
        // The rows after a miss are not searched for runs: a look at each row costs more than it finds.
        let next_look = range.end.min(range.start + POLICY.rows_between_looks);
        let end = if is_run { end } else { next_look };
        // SAFETY: the elements of all these rows, and their places in the output.
        dst = unsafe {
            match is_run {
                true => {
                    writer.write(each.at(range.start).0, dst, places as usize);
                    dst.wrapping_add(places as usize * unit)
                }
                false => write_apart(rows, range.start..end, writer, dst),
            }
        };
        range.start = end;
    }
}

/// Writes rows one after the other, from `dst` on, each by itself. Returns the end of the last one.
///
/// # Safety
/// As [`write_joined`].
// The function is out of line for the reason of `write_padded`.
#[inline(never)]
unsafe fn write_apart(
    rows: &SampleRows<'_>,
    range: Range<usize>,
    writer: &Writer,
    mut dst: *mut u8,
) -> *mut u8 {
    let ([src_unit, unit], rows) = (writer.units(), rows.each());
    for index in range {
        prefetch_row(rows, index + AHEAD, src_unit);
        let (src, length) = rows.at(index);
        // SAFETY: a row's own elements, and their place in the output.
        unsafe { writer.write(src, dst, length as usize) };
        dst = dst.wrapping_add(length as usize * unit);
    }
    dst
}

/// Writes each row within its padding, and its mask. A mask of bytes is set to the value of padding as a whole, then the real
/// part of each row is set: this takes fewer calls than each part of a row by itself.
///
/// # Safety
/// The rows are alive, and the writer's elements are theirs; `dst` has room for each row of the range with its padding, and
/// the mask an element of its dtype for each place of all rows; nothing else has either.
// Inlined into its caller it takes more instructions for a row.
#[inline(never)]
unsafe fn write_padded(
    rows: &SampleRows<'_>,
    range: Range<usize>,
    writer: &Writer,
    padding: &RowPadding,
    mask: Option<(&Tensor, &MaskBits)>,
    mut dst: *mut u8,
) {
    let (extent, [src_unit, unit], size) = (padding.extent, writer.units(), writer.sizes[1]);
    let rows = rows.each();
    let fill_with = rows::fill_of(size, &padding.value);
    let fill = |dst: *mut u8, places: i64| {
        // SAFETY: places of the row that no element of it goes to.
        unsafe { fill_with(dst, &padding.value, places as usize * writer.elems) };
    };
    debug_assert!(mask.is_none_or(|(mask, bits)| mask.dtype() == bits.dtype));
    debug_assert!(mask.is_none_or(|(mask, _)| range.end as i64 * extent <= mask.layout().numel()));
    let mask = mask.map(|(mask, bits)| (mask.data_ptr(), bits, bits.dtype.size()));
    if let Some((mask, bits, 1)) = mask {
        let (first, places) = (range.start * extent as usize, range.len() * extent as usize);
        // SAFETY: an element for each place of each row.
        unsafe { mask.add(first).write_bytes(bits.padding[0], places) };
    }
    for index in range {
        prefetch_row(rows, index + AHEAD, src_unit);
        let (src, length) = rows.at(index);
        let (mut cut, mut lead, real) = (0, 0, length.min(extent));
        if padding.side != Side::Right {
            let before = padding.side.lead(length, extent);
            (cut, lead) = ((-before).max(0) as usize, before.max(0));
        }
        let place = |at: i64| dst.wrapping_add(at as usize * unit);
        if lead > 0 {
            fill(place(0), lead);
        }
        debug_assert!(lead + real <= extent && cut as i64 + real <= length);
        // SAFETY: the row's own elements, as many as there is room for.
        unsafe { writer.write(src.wrapping_add(cut * src_unit), place(lead), real as usize) };
        if lead + real < extent {
            fill(place(lead + real), extent - lead - real);
        }
        let first = |mask: *mut u8, size| mask.wrapping_add(index * extent as usize * size);
        match mask {
            // SAFETY: the elements of a row in the mask, which has one for each place of it.
            Some((mask, bits, 1)) => unsafe {
                first(mask, 1).add(lead as usize).write_bytes(bits.real[0], real as usize);
            },
            // SAFETY: as above.
            Some((mask, bits, size)) => unsafe {
                write_mask(first(mask, size), bits, lead as usize, real as usize, extent as usize);
            },
            None => {}
        }
        dst = place(extent);
    }
}

/// The mask of a row: `extent` elements from `first` on, of which `real` ones after `lead` others are data.
///
/// # Safety
/// There is memory for them.
unsafe fn write_mask(first: *mut u8, bits: &MaskBits, lead: usize, real: usize, extent: usize) {
    debug_assert!(lead + real <= extent);
    let size = bits.dtype.size();
    let fill = |at: usize, value: &[u8; 16], count: usize| {
        // SAFETY: `at + count <= extent`.
        unsafe { rows::fill_row(first.add(at * size), size as isize, size, value, count) };
    };
    fill(0, &bits.padding, lead);
    fill(lead, &bits.real, real);
    fill(lead + real, &bits.padding, extent - lead - real);
}
