//! Rows that are read backwards, as of a mirrored image: turned round block by block, in the first
//! cache, so that the loops for rows in order can go on from there.

use crate::host::isa::with_isa;
use crate::host::policy::POLICY;
use crate::host::simd::Isa;

/// Bytes of a block.
const BLOCK_BYTES: usize = POLICY.reversed_block_bytes;

/// Calls `f` with `len` pixels of `pixel` bytes in blocks: the address of a copy of the block,
/// without gaps and in the order of the row, that lasts for the call; how many pixels of the row
/// come before it; how many it has. The first pixel is at `src`, the others below it.
///
/// # Safety
/// `len` pixels can be read from `src` downwards, none larger than a block.
#[inline]
pub(crate) unsafe fn for_reversed_blocks(
    src: *const u8,
    pixel: usize,
    len: usize,
    mut f: impl FnMut(*const u8, usize, usize),
) {
    debug_assert!((1..=BLOCK_BYTES).contains(&pixel));
    let mut held = std::mem::MaybeUninit::<[u64; BLOCK_BYTES / 8]>::uninit();
    let block = BLOCK_BYTES / pixel;
    for done in (0..len).step_by(block) {
        let count = block.min(len - done);
        // SAFETY: pixels of the row, and a block that has room for them.
        unsafe { reverse(src.sub(done * pixel), held.as_mut_ptr().cast(), pixel, count) };
        f(held.as_ptr().cast(), done, count);
    }
}

/// Copies `len` pixels of `pixel` bytes in the opposite order.
///
/// # Safety
/// `len` pixels can be read from `src` downwards, and as many written from `dst` upwards, elsewhere.
pub(crate) unsafe fn reverse(src: *const u8, dst: *mut u8, pixel: usize, len: usize) {
    // The pixels begin at the last one, which is the lowest.
    debug_assert!(
        len == 0
            || (src.addr() + pixel).wrapping_sub(len * pixel).abs_diff(dst.addr()) >= len * pixel
    );
    // SAFETY: the caller's promise; the processor runs what is chosen.
    with_isa!(I => unsafe { reverse_on::<I>(src, dst, pixel, len) })
}

/// Does what [`reverse`] does, compiled for `I`.
///
/// # Safety
/// The processor runs `I`; `len` pixels can be read from `src` downwards, and as many written from `dst` upwards, elsewhere.
unsafe fn reverse_on<I: Isa>(src: *const u8, dst: *mut u8, pixel: usize, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if I::AVX2 && len > 16 / pixel && pixel <= 16 {
        // SAFETY: SSSE3 is part of AVX2; the rest is the caller's promise.
        return unsafe { turn_vectors(src, dst, pixel, len) };
    }
    for i in 0..len {
        // SAFETY: `i < len`.
        unsafe { dst.add(i * pixel).copy_from_nonoverlapping(src.sub(i * pixel), pixel) };
    }
}

/// The byte of a vector that goes to each place of it, for pixels of up to 16 bytes.
#[cfg(target_arch = "x86_64")]
static ORDERS: [[u8; 16]; 17] = {
    let mut orders = [[0x80; 16]; 17];
    let mut pixel = 1;
    while pixel <= 16 {
        let step = 16 / pixel;
        let mut place = 0;
        while place < step * pixel {
            let from = (step - 1 - place / pixel) * pixel + place % pixel;
            orders[pixel][16 - step * pixel + place] = from as u8;
            place += 1;
        }
        pixel += 1;
    }
    orders
};

/// Copies pixels in the opposite order by vectors of whole pixels.
///
/// # Safety
/// The processor has SSSE3; `len` pixels can be read from `src` downwards, and as many written from `dst` upwards,
/// elsewhere. A pixel fits a vector, and there are more than fill one.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "ssse3")]
#[allow(unused_unsafe, reason = "these intrinsics are unsafe in Rust 1.85 and safe since")]
unsafe fn turn_vectors(src: *const u8, dst: *mut u8, pixel: usize, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_shuffle_epi8, _mm_storeu_si128};
    let step = 16 / pixel;
    // A vector of `step` pixels may stick out, by less than a pixel, towards the first one, where it is
    // read as where it is written. So that one is left out, and later vectors of the source come first:
    // memory is read upwards, and what sticks out is written over. The very last vector is the one that
    // ends with the row, which the next may overlap.
    let count = (len - 1) / step;
    debug_assert!(pixel <= 16 && len > step && count * step < len);
    // SAFETY: each vector has the pixels `i..i + step` for some `i >= 1`, where `i + step <= len`: the
    // load begins at the lowest of them and ends below the end of pixel `i - 1`; the store ends with
    // the highest place and begins in that of pixel `i - 1`, which is written later.
    unsafe {
        let order = _mm_loadu_si128(ORDERS[pixel].as_ptr().cast());
        let bytes = step * pixel;
        let turn_one = |low: *const u8, high: *mut u8| {
            let pixels = _mm_shuffle_epi8(_mm_loadu_si128(low.cast::<__m128i>()), order);
            _mm_storeu_si128(high.sub(16).cast(), pixels);
        };
        turn_one(src.sub((len - 1) * pixel), dst.add(len * pixel));
        let (mut low, mut high) = (src.sub(count * bytes), dst.add(count * bytes + pixel));
        for _ in 0..count {
            turn_one(low, high);
            (low, high) = (low.add(bytes), high.sub(bytes));
        }
        dst.copy_from_nonoverlapping(src, pixel);
    }
}

#[cfg(test)]
mod tests {
    use super::reverse;

    #[test]
    fn every_pixel_and_length() {
        for pixel in 1..=17 {
            for len in 0..=50 {
                // Exactly the row: a byte that is read or written beyond it is a fault of the check.
                let src: Vec<u8> = (0..len * pixel).map(|i| (i * 7 % 251) as u8).collect();
                let mut dst = vec![0xA5; len * pixel + 2];
                let last = src.as_ptr().wrapping_add((len * pixel).saturating_sub(pixel));
                // SAFETY: `len` pixels from the last one downwards, and room for them after a byte.
                unsafe { reverse(last, dst.as_mut_ptr().add(1), pixel, len) };
                let turned: Vec<u8> = src.chunks(pixel).rev().flatten().copied().collect();
                assert_eq!(dst[1..dst.len() - 1], turned, "{len} pixels of {pixel} bytes");
                assert_eq!((dst[0], dst[dst.len() - 1]), (0xA5, 0xA5));
            }
        }
    }
}
