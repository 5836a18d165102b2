//! SampleRows within padding, and a mask of what is real.
//!
//! A part of a row that one value fills is written by stores of a pattern, the last of which overlaps the one before it,
//! so that the shortest parts take no call.

use std::ops::Range;

use super::{copy_short, RowPadding, Writer, AHEAD};
use crate::collate::MaskBits;
use crate::host::prefetch::prefetch;
#[cfg(target_arch = "x86_64")]
use crate::host::simd::has_avx2;
use crate::samples::SampleRows;
use crate::tensor::Tensor;

/// Bytes of a store.
const BLOCK: usize = 32;

/// A value that fills places, again and again.
#[derive(Clone, Copy)]
struct Filling([u8; BLOCK]);

impl Filling {
    /// Of the first bytes of a value: a power of two, at most 16.
    fn new(value: &[u8; 16], mut size: usize) -> Filling {
        let mut all = u128::from_le_bytes(*value);
        if size < 16 {
            all &= (1 << (8 * size)) - 1;
        }
        while size < 16 {
            all |= all << (8 * size);
            size *= 2;
        }
        let (half, mut both) = (all.to_le_bytes(), [0; BLOCK]);
        both[..16].copy_from_slice(&half);
        both[16..].copy_from_slice(&half);
        Filling(both)
    }

    /// Fills so many bytes.
    ///
    /// # Safety
    /// They may be written, and are a multiple of the value's size.
    #[inline(always)]
    unsafe fn write(&self, dst: *mut u8, bytes: usize) {
        let Filling(pattern) = *self;
        // SAFETY: the caller's promise; the pattern fits at every multiple of the value's size, which `BLOCK` is too.
        unsafe {
            if bytes <= BLOCK {
                return copy_short(self.0.as_ptr(), dst, bytes);
            }
            let (mut at, last) = (dst, dst.add(bytes - BLOCK));
            while at < last {
                at.cast::<[u8; BLOCK]>().write_unaligned(pattern);
                at = at.add(BLOCK);
            }
            last.cast::<[u8; BLOCK]>().write_unaligned(pattern);
        }
    }
}

/// Each row within its padding, and its mask.
///
/// # Safety
/// As [`write_rows`](super::write_rows).
pub(super) unsafe fn write_padded(
    rows: &SampleRows<'_>,
    range: Range<usize>,
    writer: &Writer,
    padding: &RowPadding,
    mask: Option<&(Tensor, MaskBits)>,
    dst: *mut u8,
) {
    let padded = PaddedRows { rows, range, padding };
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: the feature was just found; the rest is the caller's promise.
        return unsafe { padded.write_wide(writer, mask, dst) };
    }
    // SAFETY: the caller's promise.
    unsafe { padded.write(writer, mask, dst) }
}

/// A range of rows, each within padding.
struct PaddedRows<'p> {
    rows: &'p SampleRows<'p>,
    range: Range<usize>,
    padding: &'p RowPadding,
}

/// Of a row: the places before its elements, and those of its elements that there is room for.
struct Part {
    lead: usize,
    real: usize,
    /// Elements before these, which are left out.
    cut: usize,
}

impl PaddedRows<'_> {
    /// As [`PaddedRows::write`], by registers of 32 bytes.
    ///
    /// # Safety
    /// As there; for processors that have AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn write_wide(&self, writer: &Writer, mask: Option<&(Tensor, MaskBits)>, dst: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.write(writer, mask, dst) }
    }

    /// As [`write_padded`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn write(&self, writer: &Writer, mask: Option<&(Tensor, MaskBits)>, dst: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            self.write_data(writer, dst);
            if let Some((mask, bits)) = mask {
                self.write_mask(mask, bits);
            }
        }
    }

    fn extent(&self) -> usize {
        self.padding.extent as usize
    }

    #[inline(always)]
    fn part(&self, length: i64) -> Part {
        let RowPadding { extent, side, .. } = self.padding;
        let lead = side.lead(length, *extent);
        let real = length.min(*extent) as usize;
        Part { lead: lead.max(0) as usize, real, cut: (-lead).max(0) as usize }
    }

    /// # Safety
    /// As [`write_padded`].
    #[inline(always)]
    unsafe fn write_data(&self, writer: &Writer, mut dst: *mut u8) {
        let (rows, extent, [from, to]) = (self.rows, self.extent(), writer.units());
        let filling = Filling::new(&self.padding.value, writer.sizes[1]);
        // As many lines of each row, so that the number of them is foreseen.
        let mean = rows.extents()[2] as usize / rows.len() * from;
        for index in self.range.clone() {
            if index + AHEAD < rows.len() {
                prefetch(rows.at(index + AHEAD).0, mean);
            }
            let (src, length) = rows.at(index);
            let Part { lead, real, cut } = self.part(length);
            // SAFETY: the row's own elements, as many as there is room for, and the places around them, which no
            // element goes to.
            unsafe {
                if lead > 0 {
                    filling.write(dst, lead * to);
                }
                writer.write(src.wrapping_add(cut * from), dst.add(lead * to), real);
                let end = lead + real;
                filling.write(dst.add(end * to), (extent - end) * to);
                dst = dst.add(extent * to);
            }
        }
    }

    /// A mask of bytes is set as a whole to what padding has and then the real part of each row, which takes fewer stores
    /// than each part of a row by itself.
    ///
    /// # Safety
    /// As [`write_padded`].
    #[inline(always)]
    unsafe fn write_mask(&self, mask: &Tensor, bits: &MaskBits) {
        let (extent, size) = (self.extent(), bits.dtype.size());
        let [real_bits, padding] =
            [&bits.real, &bits.padding].map(|value| Filling::new(value, size));
        // SAFETY: an element for each place of each row, here and below.
        unsafe {
            let mut dst = mask.data_ptr().add(self.range.start * extent * size);
            if size == 1 {
                dst.write_bytes(bits.padding[0], self.range.len() * extent);
            }
            for index in self.range.clone() {
                let Part { lead, real, .. } = self.part(self.rows.at(index).1);
                real_bits.write(dst.add(lead * size), real * size);
                if size > 1 {
                    let end = lead + real;
                    padding.write(dst, lead * size);
                    padding.write(dst.add(end * size), (extent - end) * size);
                }
                dst = dst.add(extent * size);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_size_fill_any_number_of_places() {
        let value: [u8; 16] = std::array::from_fn(|byte| byte as u8 + 1);
        for size in [1, 2, 4, 8, 16] {
            let filling = Filling::new(&value, size);
            for count in 0..=200 / size {
                let bytes = count * size;
                let mut to = vec![0xAA; bytes + 8];
                // SAFETY: `bytes` are behind the first 3.
                unsafe { filling.write(to[3..].as_mut_ptr(), bytes) };
                let filled = value[..size].repeat(count);
                assert_eq!(to, [&[0xAA; 3], &filled[..], &[0xAA; 5]].concat(), "{count} of {size}");
            }
        }
    }
}
