//! Loops that the compiler does not find by itself.
#![allow(unused_unsafe, reason = "these intrinsics are unsafe in Rust 1.85 and safe since")]

use std::arch::x86_64::*;

use super::super::convert::{convert, F16};
use super::{are_disjoint, Pairs};
use crate::host::isa::detects_avx2;
use crate::host::policy::POLICY;

/// float32 to float16.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; `n` elements at `src` and room for as many at `dst`, contiguous and disjoint.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn narrow(src: *const u8, dst: *mut u8, n: usize) {
    let whole = n - n % 16;
    for i in (0..whole).step_by(16) {
        // SAFETY: `i + 16 <= n`, and the loads and stores take any address.
        unsafe {
            let x = src.add(i * 4).cast::<f32>();
            let low = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(x));
            let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(x.add(8)));
            let both = _mm256_set_m128i(high, low);
            _mm256_storeu_si256(dst.add(i * 2).cast(), both);
        }
    }
    for i in whole..n {
        // SAFETY: `i < n`.
        unsafe {
            let x = src.add(i * 4).cast::<f32>().read_unaligned();
            dst.add(i * 2).cast::<F16>().write_unaligned(convert(x));
        }
    }
}

/// float16 to float32.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; `n` elements at `src` and room for as many at `dst`, contiguous and disjoint.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn widen(src: *const u8, dst: *mut u8, n: usize) {
    let whole = n - n % 16;
    for i in (0..whole).step_by(16) {
        // SAFETY: `i + 16 <= n`, and the loads and stores take any address.
        unsafe {
            let x = src.add(i * 2).cast::<__m128i>();
            let y = dst.add(i * 4).cast::<f32>();
            _mm256_storeu_ps(y, _mm256_cvtph_ps(_mm_loadu_si128(x)));
            _mm256_storeu_ps(y.add(8), _mm256_cvtph_ps(_mm_loadu_si128(x.add(1))));
        }
    }
    for i in whole..n {
        // SAFETY: `i < n`.
        unsafe {
            let x = src.add(i * 2).cast::<F16>().read_unaligned();
            dst.add(i * 4).cast::<f32>().write_unaligned(convert(x));
        }
    }
}

/// float32 multiply-add to float16.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; `n` elements at `x` and room for as many at `dst`, contiguous and disjoint;
/// coefficients for the whole period of `pairs`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn fma_narrow(x: *const u8, dst: *mut u8, n: usize, pairs: Pairs<f32>) {
    let Pairs { a, b, period } = pairs;
    debug_assert!(period % 8 == 0 || period >= n);
    let whole = n - n % 8;
    let mut phase = 0;
    debug_assert!(!a.is_null() && !b.is_null());
    // SAFETY: pair 0 exists.
    let (a0, b0) = unsafe { (_mm256_set1_ps(*a), _mm256_set1_ps(*b)) };
    for i in (0..whole).step_by(8) {
        // SAFETY: `i + 8 <= n`; the period is a multiple of 8, or not below `n`, so that
        // `phase + 8` pairs exist.
        unsafe {
            let (va, vb) = if period == 0 {
                (a0, b0)
            } else {
                (_mm256_loadu_ps(a.add(phase)), _mm256_loadu_ps(b.add(phase)))
            };
            let y = _mm256_fmadd_ps(_mm256_loadu_ps(x.add(i * 4).cast()), va, vb);
            let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(y);
            _mm_storeu_si128(dst.add(i * 2).cast(), half);
        }
        phase = if phase + 8 >= period { 0 } else { phase + 8 };
    }
    for i in whole..n {
        // SAFETY: `i < n`; `phase + n % 8` pairs exist, as above.
        unsafe {
            let at = if period == 0 { 0 } else { phase + i - whole };
            let x = x.add(i * 4).cast::<f32>().read_unaligned();
            let y: F16 = convert(x.mul_add(*a.add(at), *b.add(at)));
            dst.add(i * 2).cast::<F16>().write_unaligned(y);
        }
    }
}

/// float32 multiply-add to float32, with more than one pair.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; `n` elements at `x` and room for as many at `dst`, contiguous and disjoint;
/// coefficients for the whole period of `pairs`, which is not 0.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn fma_tiled(x: *const u8, dst: *mut u8, n: usize, pairs: Pairs<f32>) {
    let Pairs { a, b, period } = pairs;
    debug_assert!(period > 0 && (period % 8 == 0 || period >= n));
    let whole = n - n % 8;
    let mut phase = 0;
    for i in (0..whole).step_by(8) {
        // SAFETY: `i + 8 <= n`; `phase + 8` pairs exist, as in `fma_narrow`.
        unsafe {
            let (va, vb) = (_mm256_loadu_ps(a.add(phase)), _mm256_loadu_ps(b.add(phase)));
            let y = _mm256_fmadd_ps(_mm256_loadu_ps(x.add(i * 4).cast()), va, vb);
            _mm256_storeu_ps(dst.add(i * 4).cast(), y);
        }
        phase = if phase + 8 >= period { 0 } else { phase + 8 };
    }
    for i in whole..n {
        // SAFETY: `i < n`; `phase + n % 8` pairs exist, as above.
        unsafe {
            let at = phase + i - whole;
            let x = x.add(i * 4).cast::<f32>().read_unaligned();
            let y = x.mul_add(*a.add(at), *b.add(at));
            dst.add(i * 4).cast::<f32>().write_unaligned(y);
        }
    }
}

/// An order for each channel of three, and masks of the bytes from the second and the third vector. A channel takes
/// other positions in each of the three vectors of 48 bytes, so two blends gather it and one shuffle puts it in order.
/// Both lanes do so side by side.
static SPLIT: [[[u8; 32]; 3]; 3] = {
    let mut tables = [[[0; 32]; 3]; 3];
    let mut at = 0;
    while at < 48 {
        let (channel, vector, position) = (at % 3, at / 16, at % 16);
        tables[channel][0][at / 3] = POSITIONS[position];
        tables[channel][0][at / 3 + 16] = POSITIONS[position];
        if vector > 0 {
            tables[channel][vector][position] = 0xFF;
            tables[channel][vector][position + 16] = 0xFF;
        }
        at += 1;
    }
    tables
};

const POSITIONS: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Splits pixels of three bytes, 32 at a time; returns how many it did.
///
/// # Safety
/// AVX2, FMA and F16C; `n` pixels at `src`, `n` bytes in each of the three rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn split_3_bytes(src: *const u8, dst: *mut u8, plane: isize, n: usize) -> usize {
    let whole = n - n % 32;
    // SAFETY: `i + 32 <= n`, hence 96 bytes are read at `3 * i` and 32 written in each row; the
    // loads and stores take any address.
    unsafe {
        let load = |table: &[u8; 32]| _mm256_loadu_si256(table.as_ptr().cast());
        let pair = |p: *const u8| _mm256_loadu2_m128i(p.add(48).cast(), p.cast());
        for i in (0..whole).step_by(32) {
            let p = src.add(3 * i);
            let (first, second, third) = (pair(p), pair(p.add(16)), pair(p.add(32)));
            for (c, [order, from_second, from_third]) in SPLIT.iter().enumerate() {
                let mixed = _mm256_blendv_epi8(first, second, load(from_second));
                let mixed = _mm256_blendv_epi8(mixed, third, load(from_third));
                let row = dst.wrapping_offset(plane * c as isize).add(i);
                _mm256_storeu_si256(row.cast(), _mm256_shuffle_epi8(mixed, load(order)));
            }
        }
    }
    whole
}

/// A copy that does not pass through the caches on its way to `dst`; the fence is the caller's.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; `len` bytes at `src` and room for as many at `dst`, disjoint.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::host) unsafe fn stream(src: *const u8, dst: *mut u8, len: usize) {
    const AHEAD: usize = POLICY.streamed_ahead_bytes;
    let head = dst.align_offset(32).min(len);
    let body = (len - head) / 128 * 128;
    debug_assert!(detects_avx2() && are_disjoint(src, len, dst, len));
    debug_assert!(body == 0 || dst.wrapping_add(head).addr() % 32 == 0);
    // SAFETY: `head + body <= len`; the stores go to multiples of 32. A prefetch may name any
    // address.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, head);
        for i in (head..head + body).step_by(128) {
            let (s, d) = (src.add(i), dst.add(i));
            _mm_prefetch::<_MM_HINT_NTA>(s.wrapping_add(AHEAD).cast());
            _mm_prefetch::<_MM_HINT_NTA>(s.wrapping_add(AHEAD + 64).cast());
            let v0 = _mm256_loadu_si256(s.cast());
            let v1 = _mm256_loadu_si256(s.add(32).cast());
            let v2 = _mm256_loadu_si256(s.add(64).cast());
            let v3 = _mm256_loadu_si256(s.add(96).cast());
            _mm256_stream_si256(d.cast(), v0);
            _mm256_stream_si256(d.add(32).cast(), v1);
            _mm256_stream_si256(d.add(64).cast(), v2);
            _mm256_stream_si256(d.add(96).cast(), v3);
        }
        let done = head + body;
        std::ptr::copy_nonoverlapping(src.add(done), dst.add(done), len - done);
    }
}

/// float8 to floats of 16 bits: `tables` has their low and their high bytes, for codes without a sign. e4m3fn to bfloat16 on Emerald
/// Rapids, 64 Mi elements: 15.3 ms, 27.7 by AVX-512 without tables. float32s gained nothing.
///
/// # Safety
/// The processor has AVX-512 with BW and VBMI; `n` elements at `src` and room for as many at `dst`, contiguous and disjoint.
#[cfg(avx512)]
#[allow(clippy::incompatible_msrv)] // Compilers that have them set `avx512`: build.rs.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) unsafe fn widen_float8(tables: &[[u8; 128]; 2], src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: a table is two vectors.
    let [low, high] = tables.each_ref().map(|table| unsafe {
        let half: *const __m512i = table.as_ptr().cast();
        [_mm512_loadu_si512(half), _mm512_loadu_si512(half.add(1))]
    });
    // Bytes are interleaved within the quarters of a vector.
    let quarters = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    let sign = _mm512_set1_epi8(i8::MIN);
    let widened = |codes| {
        let codes = _mm512_permutexvar_epi64(quarters, codes);
        let bottom = _mm512_permutex2var_epi8(low[0], codes, low[1]);
        let top = _mm512_permutex2var_epi8(high[0], codes, high[1]);
        // `top | codes & sign`.
        let top = _mm512_ternarylogic_epi64::<0xF8>(top, codes, sign);
        [_mm512_unpacklo_epi8(bottom, top), _mm512_unpackhi_epi8(bottom, top)]
    };
    let whole = n - n % 64;
    for i in (0..whole).step_by(64) {
        // SAFETY: `i + 64 <= n`, and the loads and stores take any address.
        unsafe {
            let [first, second] = widened(_mm512_loadu_si512(src.add(i).cast()));
            let to: *mut __m512i = dst.add(2 * i).cast();
            _mm512_storeu_si512(to, first);
            _mm512_storeu_si512(to.add(1), second);
        }
    }
    let lanes = !(u64::MAX << (n - whole));
    let (src, to) = (src.wrapping_add(whole), dst.wrapping_add(2 * whole));
    // SAFETY: `n - whole` lanes are read and written.
    unsafe {
        let [first, second] = widened(_mm512_maskz_loadu_epi8(lanes, src.cast()));
        _mm512_mask_storeu_epi16(to.cast(), lanes as u32, first);
        _mm512_mask_storeu_epi16(to.wrapping_add(64).cast(), (lanes >> 32) as u32, second);
    }
}

/// Whether [`write_squares`] takes a block of elements of `width` bytes, any power of two below 16:
/// its rows, at offsets `from` in bytes, are neighbours in the source, and they fill 16 bytes, its
/// places 32. The processor is not asked.
pub(in crate::host) fn are_squares(width: usize, places: &[isize], from: &[isize]) -> bool {
    let mut rows = from.iter().enumerate();
    width < 16
        && from.len() * width >= 16
        && places.len() * width >= 32
        && rows.all(|(row, &from)| from == (row * width) as isize)
}

/// Writes rows that are neighbours in the source, of elements of `W` bytes: `N` rows of two squares of `N` elements at a time, each
/// square within a half of the vectors. The last of each may overlap those before.
///
/// # Safety
/// - The processor has AVX2; `W * N` is 16.
/// - There are elements at all places of as many rows as there are in `to`, and room for as many without gaps from `dst + to[i]`
///   on, elsewhere: at least `N` rows and `2 * N` places.
#[target_feature(enable = "avx2")]
pub(in crate::host) unsafe fn write_squares<const W: usize, const N: usize>(
    src: *const u8,
    places: &[isize],
    dst: *mut u8,
    to: &[isize],
) {
    debug_assert!(detects_avx2());
    debug_assert!(W * N == 16 && places.len() >= 2 * N && to.len() >= N);
    for at in (0..places.len()).step_by(2 * N) {
        let at = at.min(places.len() - 2 * N);
        let (first, second) = (&places[at..at + N], &places[at + N..at + 2 * N]);
        for row in (0..to.len()).step_by(N) {
            let row = row.min(to.len() - N);
            // SAFETY: the caller's promise: 16 bytes are `N` elements, of neighbours from `row` on.
            unsafe {
                let from = src.add(row * W);
                let load = |place: isize| _mm_loadu_si128(from.offset(place).cast());
                let mut lines: [__m256i; N] = std::array::from_fn(|line| {
                    _mm256_set_m128i(load(second[line]), load(first[line]))
                });
                // Each step brings elements that are half a square apart side by side.
                let mut apart = N / 2;
                while apart > 0 {
                    lines = std::array::from_fn(|line| {
                        let (one, other) = (lines[line / 2], lines[line / 2 + N / 2]);
                        match (line % 2, W) {
                            (0, 1) => _mm256_unpacklo_epi8(one, other),
                            (_, 1) => _mm256_unpackhi_epi8(one, other),
                            (0, 2) => _mm256_unpacklo_epi16(one, other),
                            (_, 2) => _mm256_unpackhi_epi16(one, other),
                            (0, 4) => _mm256_unpacklo_epi32(one, other),
                            (_, 4) => _mm256_unpackhi_epi32(one, other),
                            (0, _) => _mm256_unpacklo_epi64(one, other),
                            _ => _mm256_unpackhi_epi64(one, other),
                        }
                    });
                    apart /= 2;
                }
                for (line, &to) in lines.into_iter().zip(&to[row..row + N]) {
                    _mm256_storeu_si256(dst.offset(to).add(at * W).cast(), line);
                }
            }
        }
    }
}
