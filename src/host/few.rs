//! Rows of small batches, written one after the other by the calling thread.
#![allow(unsafe_code)] // Raw rows.

use crate::collate::{MaskBits, Side};
use crate::host::prefetch::prefetch;
use crate::host::rows::{self, RowFn};
use crate::samples::Rows;
use crate::tensor::{DType, Tensor};

/// Where a row is along its own dim 0, and what fills the rest.
#[derive(Clone, Copy)]
pub(crate) struct RowPadding {
    pub extent: i64,
    pub side: Side,
    pub value: [u8; 16],
}

/// How many rows ahead memory is asked for.
const AHEAD: usize = 4;

/// Writes numbers to a tensor of int32 or int64.
///
/// # Safety
/// A tensor of one dim in memory that nothing else has, with room for as many as there are.
pub(crate) unsafe fn write_numbers(tensor: &Tensor, numbers: impl Iterator<Item = i64>) {
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

/// Writes all rows one after the other, or each within its padding, and a mask of the places along their dim 0.
///
/// # Safety
/// The rows are alive; `data` is row-major memory that nothing else has, with room for all of them, or for each with
/// its padding, and the mask has an element of its dtype for each place of these.
pub(crate) unsafe fn write_rows(
    rows: &Rows<'_>,
    padding: Option<&RowPadding>,
    mask: Option<&(Tensor, MaskBits)>,
    data: &Tensor,
) {
    let (meta, to) = (rows.meta(), data.dtype());
    let rest = meta.layout.shape().get(1..).unwrap_or_default();
    let elems = rest.iter().product::<i64>() as usize;
    let (src_size, size) = (meta.dtype.size(), to.size());
    let (src_unit, unit) = (elems * src_size, elems * size);
    let cast: Option<RowFn> = (meta.dtype != to).then(|| rows::cast_row(meta.dtype, to));
    let write = |src: *const u8, dst: *mut u8, length: usize| {
        // SAFETY: a row's own elements, and their place in the output.
        unsafe {
            match cast {
                None => copy_short(src, dst, length * unit),
                Some(_) if length * elems == 0 => {}
                Some(cast) => cast(src, src_size as isize, dst, size as isize, length * elems),
            }
        }
    };
    let ask = |index: usize| {
        if index < rows.len() {
            let (src, length) = rows.at(index);
            prefetch(src, length as usize * src_unit);
        }
    };
    let mut dst = data.data_ptr();
    if let (Some(addresses), None) = (rows.alike().filter(|_| padding.is_none()), cast) {
        let bytes = data.nbytes() / rows.len();
        // SAFETY: rows of so many bytes each, and memory for all of them.
        return unsafe {
            match bytes.div_ceil(16) {
                1 if bytes == 16 => copy_alike::<1>(addresses, dst, bytes),
                2 => copy_alike::<2>(addresses, dst, bytes),
                3 => copy_alike::<3>(addresses, dst, bytes),
                4 => copy_alike::<4>(addresses, dst, bytes),
                5 => copy_alike::<5>(addresses, dst, bytes),
                6 => copy_alike::<6>(addresses, dst, bytes),
                7 => copy_alike::<7>(addresses, dst, bytes),
                8 => copy_alike::<8>(addresses, dst, bytes),
                _ => copy_alike::<0>(addresses, dst, bytes),
            }
        };
    }
    let Some(padding) = padding else {
        for index in 0..rows.len() {
            ask(index + AHEAD);
            let (src, length) = rows.at(index);
            write(src, dst, length as usize);
            dst = dst.wrapping_add(length as usize * unit);
        }
        return;
    };
    let extent = padding.extent;
    let fill = |dst: *mut u8, places: i64| {
        // SAFETY: places of the row that no element of it goes to.
        unsafe {
            rows::fill_row(dst, size as isize, size, &padding.value, places as usize * elems)
        };
    };
    let mask = mask.map(|(mask, bits)| (mask.data_ptr(), bits, bits.dtype.size()));
    // Bytes are set twice, which takes fewer calls than setting each in its part of the row.
    if let Some((mask, bits, 1)) = mask {
        // SAFETY: an element for each place of each row.
        unsafe { mask.write_bytes(bits.padding[0], rows.len() * extent as usize) };
    }
    for index in 0..rows.len() {
        ask(index + AHEAD);
        let (src, length) = rows.at(index);
        let lead = padding.side.lead(length, extent);
        let (cut, lead, real) = ((-lead).max(0) as usize, lead.max(0), length.min(extent));
        let place = |at: i64| dst.wrapping_add(at as usize * unit);
        if lead > 0 {
            fill(place(0), lead);
        }
        write(src.wrapping_add(cut * src_unit), place(lead), real as usize);
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

/// Copies rows of one size one after the other: of `N` blocks of 16 bytes, the last two of which may overlap, or for 0 of
/// any size.
///
/// # Safety
/// So many bytes at each address, at most `16 * N` and more than one block less, and as many for each at `dst`, which
/// nothing else has.
unsafe fn copy_alike<const N: usize>(addresses: &[*const u8], mut dst: *mut u8, bytes: usize) {
    let mut copy = |src: *const u8| {
        // SAFETY: the caller's promise, here and below.
        unsafe {
            if N == 0 {
                copy_short(src, dst, bytes);
            }
            for block in 0..N {
                let at = if block + 1 < N { 16 * block } else { bytes - 16 };
                let block = src.add(at).cast::<[u8; 16]>().read_unaligned();
                dst.add(at).cast::<[u8; 16]>().write_unaligned(block);
            }
        }
        dst = dst.wrapping_add(bytes);
    };
    let (first, last) = addresses.split_at(addresses.len().saturating_sub(AHEAD));
    for (&src, &ahead) in first.iter().zip(addresses.iter().skip(AHEAD)) {
        prefetch(ahead, if N == 0 { bytes } else { 16 * N });
        copy(src);
    }
    last.iter().for_each(|&src| copy(src));
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
        let from: Vec<u8> = (0..6000).map(|i| (i * 7 % 251) as u8).collect();
        for bytes in 1..=131 {
            for count in [1, AHEAD - 1, AHEAD, AHEAD + 1, 3 * AHEAD] {
                let rows: Vec<&[u8]> =
                    (0..count).map(|row| &from[row * 331..][..bytes]).rev().collect();
                let list: SampleList<'_> = rows.iter().map(|&row| SampleView::from(row)).collect();
                let batch = Engine::host().assemble(&list, &Collate::stack()).unwrap();
                assert_eq!(batch.data().as_slice::<u8>().unwrap(), rows.concat());
            }
        }
    }
}
