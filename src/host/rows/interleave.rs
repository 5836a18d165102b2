//! Rows to interleaved pixels: the other way round from planes.
//!
//! The problem: neighbours of the output come from rows that are far apart, and stores of single elements cost most. Three rows,
//! those of colours, do not divide a vector: 16 bytes of each are 48 of the output, and each third of these begins at another
//! channel.
//!
//! ```text
//! rows        r0 r1 r2 ... r15        g0 g1 g2 ... g15        b0 b1 b2 ... b15           bytes, a half of a vector of each
//! output      r0 g0 b0 ... r5       | g5 b5 r6 ... g10      | b10 r11 g11 ... b15        three times 16
//! MERGE       of each third and row: the byte for each place, or 0x80, which makes a zero, for the places of other rows
//!
//! merge_3:    for each vector of the rows, for each third: shuffle r, shuffle g, shuffle b; their or is the third
//!             both halves of a vector are shuffled alike: the upper half makes the next 48 bytes
//! plain:      the pixels that are left, and two or four rows, whose loop the compiler vectorises itself
//! ```
//!
//! `plain` alone would be simpler: CHW to HWC, moved, took 1.6 ms for 64 images on one core of a Xeon by it, and takes 0.76 by
//! shuffles.
#![allow(unsafe_code, reason = "rows are raw pointers with strides in bytes")]

use crate::host::isa::with_isa;
use crate::host::simd::Isa;

/// Writes `len` pixels to `dst`, channel `c` of them from the row at `src + c * held`. Rows and pixels
/// are without gaps, at any alignment.
pub(crate) type InterleaveFn = unsafe fn(src: *const u8, held: usize, dst: *mut u8, len: usize);

macro_rules! pick {
    ($f:ident, $width:expr, $channels:expr) => {
        Some(match ($width, $channels) {
            (1, 2) => $f::<u8, 2>,
            (1, 3) => $f::<u8, 3>,
            (1, 4) => $f::<u8, 4>,
            (2, 2) => $f::<u16, 2>,
            (2, 3) => $f::<u16, 3>,
            (2, 4) => $f::<u16, 4>,
            (4, 2) => $f::<u32, 2>,
            (4, 3) => $f::<u32, 3>,
            (4, 4) => $f::<u32, 4>,
            (8, 2) => $f::<u64, 2>,
            (8, 3) => $f::<u64, 3>,
            (8, 4) => $f::<u64, 4>,
            _ => return None,
        })
    };
}
/// Returns the function that interleaves 2, 3 or 4 rows of elements of 1, 2, 4 or 8 bytes; `None` for other numbers.
pub(crate) fn interleave_rows(width: usize, channels: usize) -> Option<InterleaveFn> {
    with_isa!(I => interleave_on::<I>(width, channels))
}

/// The function of [`interleave_rows`] compiled for `I`.
fn interleave_on<I: Isa>(width: usize, channels: usize) -> Option<InterleaveFn> {
    #[cfg(target_arch = "x86_64")]
    if I::AVX2 {
        return pick!(with_avx2, width, channels);
    }
    pick!(plain, width, channels)
}

/// The [`InterleaveFn`] of `C` rows, for AVX2.
///
/// # Safety
/// The processor runs AVX2; `C` rows of `len` elements, `held` bytes apart, and room for `len` pixels at `dst`, all at
/// any address.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn with_avx2<T: Copy, const C: usize>(
    src: *const u8,
    held: usize,
    dst: *mut u8,
    len: usize,
) {
    // The same loop, for the compiler to vectorise with wider shuffles.
    // SAFETY: the caller's promise, and `merge_3` writes no more than `len` pixels.
    unsafe {
        let done = if C == 3 { merge_3::<T>(src, held, dst, len) } else { 0 };
        debug_assert!(done <= len);
        let width = size_of::<T>();
        plain::<T, C>(src.add(done * width), held, dst.add(done * width * C), len - done);
    }
}

/// The byte of a row's 16 that goes to each place of the 48 that the pixels take, for each of three rows, of elements
/// of 1, 2, 4 and 8 bytes; `0x80` where it is another row's. Twice, as for both halves of a vector.
#[cfg(target_arch = "x86_64")]
static MERGE: [[[[u8; 32]; 3]; 3]; 4] = {
    let mut tables = [[[[0x80; 32]; 3]; 3]; 4];
    let mut log = 0;
    while log < 4 {
        let width = 1 << log;
        let mut place = 0;
        while place < 48 {
            let (elem, within) = (place / width, place % width);
            let order = &mut tables[log][place / 16][elem % 3];
            order[place % 16] = (elem / 3 * width + within) as u8;
            order[place % 16 + 16] = order[place % 16];
            place += 1;
        }
        log += 1;
    }
    tables
};

/// Interleaves three rows as far as whole vectors go; returns how many pixels are written.
///
/// # Safety
/// The processor runs AVX2; three rows of `len` elements, `held` bytes apart, and room for `len` pixels at `dst`, all
/// at any address.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[allow(unused_unsafe, reason = "these intrinsics are unsafe in Rust 1.85 and safe since")]
unsafe fn merge_3<T>(src: *const u8, held: usize, dst: *mut u8, len: usize) -> usize {
    use std::arch::x86_64::*;
    let width = size_of::<T>();
    let orders = &MERGE[width.ilog2() as usize];
    let vectors = len * width / 32;
    // SAFETY: each row has 32 bytes for each of the vectors, and the pixels 96; the loads and stores take
    // any address. Both halves of a vector are shuffled alike: the upper one is of the next 48 bytes.
    unsafe {
        let load = |bytes: *const u8| _mm256_loadu_si256(bytes.cast());
        for i in 0..vectors {
            let row = src.add(i * 32);
            let rows = [load(row), load(row.add(held)), load(row.add(2 * held))];
            for (k, [first, second, third]) in orders.iter().enumerate() {
                let mixed = _mm256_or_si256(
                    _mm256_shuffle_epi8(rows[0], load(first.as_ptr())),
                    _mm256_shuffle_epi8(rows[1], load(second.as_ptr())),
                );
                let third = _mm256_shuffle_epi8(rows[2], load(third.as_ptr()));
                let mixed = _mm256_or_si256(mixed, third);
                let to = dst.add(i * 96 + k * 16);
                _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(mixed));
                _mm_storeu_si128(to.add(48).cast(), _mm256_extracti128_si256::<1>(mixed));
            }
        }
    }
    vectors * 32 / width
}

/// The [`InterleaveFn`] of `C` rows, pixel by pixel.
///
/// # Safety
/// `C` rows of `len` elements, `held` bytes apart, and room for `len` pixels at `dst`, all at any address.
#[inline(always)]
unsafe fn plain<T: Copy, const C: usize>(src: *const u8, held: usize, dst: *mut u8, len: usize) {
    let dst = dst.cast::<[T; C]>();
    for pixel in 0..len {
        // SAFETY: `len` elements in each row, `len` pixels of `C` elements.
        unsafe {
            let at = |c: usize| src.add(c * held).cast::<T>().add(pixel).read_unaligned();
            dst.add(pixel).write_unaligned(std::array::from_fn(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::interleave_rows;

    #[test]
    fn every_width_and_number_of_channels() {
        for width in [1, 2, 4, 8] {
            for channels in 2..=4 {
                for len in [0, 1, 2, 15, 16, 17, 31, 33, 64, 100] {
                    let held = 1000;
                    let src: Vec<u8> = (0..4 * held).map(|i| (i % 251) as u8).collect();
                    let mut dst = vec![0xA5u8; 1 + len * channels * width + 1];
                    let interleave = interleave_rows(width, channels).unwrap();
                    // SAFETY: rows of 1000 bytes hold 100 elements; `dst` holds the pixels after its
                    // first byte.
                    unsafe { interleave(src.as_ptr(), held, dst.as_mut_ptr().add(1), len) };
                    assert_eq!((dst[0], dst[dst.len() - 1]), (0xA5, 0xA5));
                    for (i, &byte) in dst[1..dst.len() - 1].iter().enumerate() {
                        let (elem, within) = (i / width, i % width);
                        let from = (elem % channels) * held + (elem / channels) * width + within;
                        assert_eq!(byte, src[from], "{width} {channels} {len} {i}");
                    }
                }
            }
        }
        assert!(interleave_rows(16, 3).is_none() && interleave_rows(1, 5).is_none());
    }
}
