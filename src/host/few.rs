//! Rows of small batches, written one after the other by the calling thread.
//!
//! The loop asks for the memory of a row some rows before it reads it, since rows can be anywhere. Rows of one size that are
//! only moved are copied in blocks of 16 or 32 bytes, whose number is known when the loop is compiled, so that a row has no
//! branch. Others are written one by one: a row of up to 32 bytes by two loads that may overlap, a longer one by the
//! system's copy, a cast by the vector loop for its pair of dtypes. Padding is filled on the way, so that each output line
//! is written once, while it is in the first cache.
#![allow(unsafe_code)] // Raw rows.

use std::ops::Range;

use crate::collate::{MaskBits, Side};
use crate::host::isa::with_isa;
use crate::host::parallel_for;
use crate::host::policy::POLICY;
use crate::host::prefetch::prefetch;
use crate::host::rows;
use crate::host::simd::{Cast, Isa};
use crate::host::threads::Helpers;
use crate::samples::{EachRow, SampleRows, TensorMeta};
use crate::tensor::{DType, Tensor};

/// Where a row is along its own dim 0, and what fills the rest.
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
    pub dtype: DType,
}

// SAFETY: an address, from which each thread writes places of its own (`write_rows`).
unsafe impl Sync for RowsMemory {}

/// How many rows ahead memory is asked for.
const AHEAD: usize = POLICY.rows_ahead;

/// Writes numbers to a tensor of one dim, of int32 or int64, if there is one.
///
/// # Safety
/// Memory that nothing else has, with room for as many as there are.
pub(crate) unsafe fn write_numbers(tensor: Option<&Tensor>, numbers: impl Iterator<Item = i64>) {
    let Some(tensor) = tensor else { return };
    let data = tensor.data_ptr();
    // SAFETY: the caller's promise; the memory is aligned for every dtype.
    unsafe {
        match tensor.dtype() {
            DType::I32 => numbers
                .enumerate()
                .for_each(|(index, number)| data.cast::<i32>().add(index).write(number as i32)),
            _ => numbers
                .enumerate()
                .for_each(|(index, number)| data.cast::<i64>().add(index).write(number)),
        }
    }
}

/// Writes all rows one after the other, or each within its padding, and a mask of the places along their dim 0: on the
/// calling thread and on those that help.
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
    let writer = Writer::new(rows.meta(), memory.dtype);
    // SAFETY: the caller's promise; every range is written once, to its own place.
    let write = |range: Range<usize>, places: i64| unsafe {
        let dst = memory.data.wrapping_add(places as usize * writer.units()[1]);
        match (padding, rows.alike().filter(|_| writer.cast.is_none())) {
            (Some(padding), _) => write_padded(rows, range, &writer, padding, mask, dst),
            (None, Some(addresses)) => {
                copy_all(&addresses[range], dst, memory.bytes / rows.len());
            }
            (None, None) => write_joined(rows, range, &writer, dst),
        }
    };
    let count = memory.bytes / POLICY.min_tile_bytes as usize;
    if threads.is_none() || count < 2 {
        return write(0..rows.len(), 0);
    }
    let step = rows.len().div_ceil(count);
    // Where each range begins along dim 0 of the output.
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
    /// Elements of one place along dim 0.
    elems: usize,
    /// Bytes of an element, of a sample and of the output.
    sizes: [usize; 2],
}

impl Writer {
    fn new(meta: &TensorMeta, to: DType) -> Writer {
        let rest = meta.layout.shape().get(1..).unwrap_or_default();
        Writer {
            cast: (meta.dtype != to).then(|| rows::cast_elems(meta.dtype, to)),
            elems: rest.iter().product::<i64>() as usize,
            sizes: [meta.dtype.size(), to.size()],
        }
    }

    /// Bytes of one place along dim 0, of a sample and of the output.
    fn units(&self) -> [usize; 2] {
        self.sizes.map(|size| size * self.elems)
    }

    /// Writes so many places.
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

/// Asks for the memory of a row that is read soon, if there is one more.
#[inline]
fn ask(rows: EachRow<'_>, index: usize, unit: usize) {
    if index < rows.len() {
        let (src, length) = rows.at(index);
        prefetch(src, length as usize * unit);
    }
}

/// Rows one after the other, from `dst` on.
///
/// # Safety
/// The rows are alive, and the writer's elements are theirs; `dst` has room for all rows of the range, which nothing
/// else has.
unsafe fn write_joined(
    rows: &SampleRows<'_>,
    range: Range<usize>,
    writer: &Writer,
    mut dst: *mut u8,
) {
    let ([src_unit, unit], rows) = (writer.units(), rows.each());
    for index in range {
        ask(rows, index + AHEAD, src_unit);
        let (src, length) = rows.at(index);
        // SAFETY: a row's own elements, and their place in the output.
        unsafe { writer.write(src, dst, length as usize) };
        dst = dst.wrapping_add(length as usize * unit);
    }
}

/// Each row within its padding, and its mask. A mask of bytes is set as a whole to what padding has and then the real
/// part of each row, which takes fewer calls than each part of a row by itself.
///
/// # Safety
/// The rows are alive, and the writer's elements are theirs; `dst` has room for each row of the range with its padding, and
/// the mask an element of its dtype for each place of all rows; nothing else has either.
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
    let mask = mask.map(|(mask, bits)| (mask.data_ptr(), bits, bits.dtype.size()));
    if let Some((mask, bits, 1)) = mask {
        let (first, places) = (range.start * extent as usize, range.len() * extent as usize);
        // SAFETY: an element for each place of each row.
        unsafe { mask.add(first).write_bytes(bits.padding[0], places) };
    }
    for index in range {
        ask(rows, index + AHEAD, src_unit);
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
    let size = bits.dtype.size();
    let fill = |at: usize, value: &[u8; 16], count: usize| {
        // SAFETY: `at + count <= extent`.
        unsafe { rows::fill_row(first.add(at * size), size as isize, size, value, count) };
    };
    fill(0, &bits.padding, lead);
    fill(lead, &bits.real, real);
    fill(lead + real, &bits.padding, extent - lead - real);
}

/// Copies rows of `bytes` each one after the other.
///
/// # Safety
/// `bytes` bytes at each address, and as many for each at `dst`, which nothing else has.
unsafe fn copy_all(addresses: &[*const u8], dst: *mut u8, bytes: usize) {
    match (32..=256).contains(&bytes) {
        // SAFETY: the caller's promise; the processor runs what is chosen.
        true => with_isa!(I => unsafe { copy_blocked::<I>(addresses, dst, bytes) }),
        // SAFETY: as above.
        false => unsafe { copy_narrow(addresses, dst, bytes) },
    }
}

/// Copies rows of 32 to 256 bytes.
///
/// # Safety
/// The processor runs `I`; `bytes` bytes at each address, and as many for each at `dst`, which nothing else has.
#[inline(always)]
unsafe fn copy_blocked<I: Isa>(addresses: &[*const u8], dst: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if I::AVX2 {
        // SAFETY: the caller's promise, and as many blocks as are begun in a row.
        return unsafe {
            match bytes.div_ceil(32) {
                1 => copy_wide::<1>(addresses, dst, bytes),
                2 => copy_wide::<2>(addresses, dst, bytes),
                3 => copy_wide::<3>(addresses, dst, bytes),
                4 => copy_wide::<4>(addresses, dst, bytes),
                5 => copy_wide::<5>(addresses, dst, bytes),
                6 => copy_wide::<6>(addresses, dst, bytes),
                7 => copy_wide::<7>(addresses, dst, bytes),
                _ => copy_wide::<8>(addresses, dst, bytes),
            }
        };
    }
    // SAFETY: the caller's promise.
    unsafe { copy_narrow(addresses, dst, bytes) }
}

/// As [`copy_all`], on every processor.
///
/// # Safety
/// `bytes` bytes at each address, and as many for each at `dst`, which nothing else has.
unsafe fn copy_narrow(addresses: &[*const u8], dst: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise, and as many blocks as are begun in a row.
    unsafe {
        match bytes.div_ceil(16) {
            1 if bytes == 16 => copy_alike::<1, 16>(addresses, dst, bytes),
            2 => copy_alike::<2, 16>(addresses, dst, bytes),
            3 => copy_alike::<3, 16>(addresses, dst, bytes),
            4 => copy_alike::<4, 16>(addresses, dst, bytes),
            5 => copy_alike::<5, 16>(addresses, dst, bytes),
            6 => copy_alike::<6, 16>(addresses, dst, bytes),
            7 => copy_alike::<7, 16>(addresses, dst, bytes),
            8 => copy_alike::<8, 16>(addresses, dst, bytes),
            _ => copy_alike::<0, 16>(addresses, dst, bytes),
        }
    }
}

/// As [`copy_alike`], by registers of 32 bytes.
///
/// # Safety
/// The processor has AVX2. `bytes` bytes at each address, at most `32 * N` and more than 32 less, and as many for each
/// at `dst`, which nothing else has.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn copy_wide<const N: usize>(addresses: &[*const u8], dst: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_alike::<N, 32>(addresses, dst, bytes) }
}

/// Copies rows of one size one after the other: of `N` blocks of `B` bytes, the last two of which may overlap, or for an
/// `N` of 0 of any size.
///
/// # Safety
/// So many bytes at each address, at most `B * N` and more than one block less, and as many for each at `dst`, which
/// nothing else has.
#[inline(always)]
unsafe fn copy_alike<const N: usize, const B: usize>(
    addresses: &[*const u8],
    mut dst: *mut u8,
    bytes: usize,
) {
    let (first, last) = addresses.split_at(addresses.len().saturating_sub(AHEAD));
    for (&src, &ahead) in first.iter().zip(addresses.iter().skip(AHEAD)) {
        prefetch(ahead, if N == 0 { bytes } else { B * N });
        // SAFETY: the caller's promise, here and below.
        unsafe { copy_blocks::<N, B>(src, dst, bytes) };
        dst = dst.wrapping_add(bytes);
    }
    for &src in last {
        // SAFETY: as above.
        unsafe { copy_blocks::<N, B>(src, dst, bytes) };
        dst = dst.wrapping_add(bytes);
    }
}

/// One row of [`copy_alike`].
///
/// # Safety
/// `bytes` bytes at `src`, at most `B * N` and more than one block less unless `N` is 0, and as many at `dst`, which
/// nothing else has.
#[inline(always)]
unsafe fn copy_blocks<const N: usize, const B: usize>(src: *const u8, dst: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if N == 0 {
            copy_short(src, dst, bytes);
        }
        for block in 0..N {
            let at = if block + 1 < N { B * block } else { bytes - B };
            let block = src.add(at).cast::<[u8; B]>().read_unaligned();
            dst.add(at).cast::<[u8; B]>().write_unaligned(block);
        }
    }
}

/// Copies `N` to `2 * N` bytes: the first `N` and the last, which overlap in the middle.
///
/// # Safety
/// So many bytes on both sides, disjoint.
#[inline(always)]
unsafe fn ends<const N: usize>(src: *const u8, dst: *mut u8, bytes: usize) {
    // SAFETY: at least `N` bytes, at any address.
    unsafe {
        let first = src.cast::<[u8; N]>().read_unaligned();
        let last = src.add(bytes - N).cast::<[u8; N]>().read_unaligned();
        dst.cast::<[u8; N]>().write_unaligned(first);
        dst.add(bytes - N).cast::<[u8; N]>().write_unaligned(last);
    }
}

/// Copies a row, the shortest without a call.
///
/// # Safety
/// So many bytes on both sides, disjoint; of none there need be no address.
#[inline]
unsafe fn copy_short(src: *const u8, dst: *mut u8, bytes: usize) {
    if bytes > 32 {
        // SAFETY: the caller's promise.
        return unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes) };
    }
    // SAFETY: each class has at least as many bytes as are taken at either end, and at most twice as many.
    unsafe {
        match bytes {
            0 => {}
            1 => *dst = *src,
            2..=3 => ends::<2>(src, dst, bytes),
            4..=7 => ends::<4>(src, dst, bytes),
            8..=15 => ends::<8>(src, dst, bytes),
            _ => ends::<16>(src, dst, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_every_length() {
        let from: Vec<u8> = (0..200).map(|i| (i * 7 % 251) as u8).collect();
        for begin in [0, 1, 7] {
            for bytes in 0..=190 {
                let mut to = vec![0xAA; 210];
                // SAFETY: `begin + bytes` is within both.
                unsafe { copy_short(from[begin..].as_ptr(), to[5..].as_mut_ptr(), bytes) };
                assert_eq!(&to[5..5 + bytes], &from[begin..begin + bytes]);
                assert!(to[..5].iter().chain(&to[5 + bytes..]).all(|&byte| byte == 0xAA));
            }
        }
        // SAFETY: no bytes.
        unsafe { copy_short(std::ptr::null(), std::ptr::null_mut(), 0) };
    }

    #[test]
    fn alike_rows_of_every_size() {
        use crate::collate::Collate;
        use crate::samples::{SampleList, SampleView};
        use crate::Engine;
        let from: Vec<u8> = (0..3 * AHEAD * 331).map(|i| (i * 7 % 251) as u8).collect();
        for bytes in 1..=259 {
            for count in [1, AHEAD - 1, AHEAD, AHEAD + 1, 3 * AHEAD] {
                let rows: Vec<&[u8]> =
                    (0..count).map(|row| &from[row * 331..][..bytes]).rev().collect();
                let list: SampleList<'_> = rows.iter().map(|&row| SampleView::from(row)).collect();
                let batch = Engine::host().assemble(&list, &Collate::stack()).unwrap();
                assert_eq!(batch.data().as_slice::<u8>().unwrap(), rows.concat());
                let addresses: Vec<_> = rows.iter().map(|row| row.as_ptr()).collect();
                let mut to = vec![0xAA; count * bytes + 1];
                // SAFETY: rows of so many bytes, and room for all of them.
                unsafe { copy_narrow(&addresses, to.as_mut_ptr(), bytes) };
                assert_eq!(to, [rows.concat(), vec![0xAA]].concat());
            }
        }
    }
}
