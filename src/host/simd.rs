//! The kernels: loops over contiguous elements, each compiled twice, once for AVX2, FMA and F16C.
//!
//! All are bit for bit what [`convert`] and `mul_add` give one element at a time.
#![allow(
    unsafe_code,
    reason = "unaligned rows behind raw pointers; instructions chosen at run time"
)]

use std::mem::MaybeUninit;

use super::convert::{convert, Elem, Kind, BF16, F16};
use crate::affine::Affine;
use crate::dtype::DType;

/// Elements handled at a time, so that what lies between two passes stays in the first-level cache.
pub(super) const BLOCK: usize = 256;

/// Room for a block between two passes, of any width up to 16.
#[repr(C, align(64))]
pub(super) struct Scratch<const BYTES: usize>(MaybeUninit<[u8; BYTES]>);

impl<const BYTES: usize> Scratch<BYTES> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Scratch(MaybeUninit::uninit())
    }

    #[inline(always)]
    pub(super) fn at(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// An element at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Loose<T>(T);

/// Elements that are read.
///
/// # Safety
/// `n` initialised elements lie at `src` and nobody writes to them meanwhile.
#[inline(always)]
unsafe fn input<'a, T>(src: *const u8, n: usize) -> &'a [Loose<T>] {
    // SAFETY: by the contract above; `Loose` needs no alignment.
    unsafe { std::slice::from_raw_parts(src.cast(), n) }
}

/// Elements that are written.
///
/// # Safety
/// `n` elements may be written at `dst` and nobody else touches them meanwhile.
#[inline(always)]
unsafe fn output<'a, T>(dst: *mut u8, n: usize) -> &'a mut [MaybeUninit<Loose<T>>] {
    // SAFETY: by the contract above; `Loose` needs no alignment, `MaybeUninit` no value.
    unsafe { std::slice::from_raw_parts_mut(dst.cast(), n) }
}

/// `n` elements from `src` to `dst`, both contiguous, at any address and disjoint.
pub(super) type Cast = unsafe fn(src: *const u8, dst: *mut u8, n: usize);

/// `x * a + b` for `n` contiguous elements, converted and stored.
///
/// `period` 0: one pair for all. Else element `i` takes pair `i % period`, and `period` is a
/// multiple of 8 or not below `n`.
pub(super) type Fma<T> =
    unsafe fn(x: *const u8, dst: *mut u8, n: usize, a: *const T, b: *const T, period: usize);

/// The type in which a transform is computed.
pub(super) trait Real: Elem {
    fn coefficients(affine: &Affine) -> (&[Self], &[Self]);
    fn fused(self, a: Self, b: Self) -> Self;
}

impl Real for f32 {
    fn coefficients(affine: &Affine) -> (&[f32], &[f32]) {
        (affine.a32(), affine.b32())
    }
    #[inline(always)]
    fn fused(self, a: f32, b: f32) -> f32 {
        self.mul_add(a, b)
    }
}

impl Real for f64 {
    fn coefficients(affine: &Affine) -> (&[f64], &[f64]) {
        (affine.a(), affine.b())
    }
    #[inline(always)]
    fn fused(self, a: f64, b: f64) -> f64 {
        self.mul_add(a, b)
    }
}

/// One compilation of the kernels.
pub(super) trait Isa: 'static {
    /// Whether [`x86`] may be used.
    const AVX2: bool;

    /// Conversion of [`Cast`].
    ///
    /// # Safety
    /// The processor has what this compilation needs; the pointers are as [`Cast`] says.
    unsafe fn cast<S: Elem, D: Elem>(src: *const u8, dst: *mut u8, n: usize);

    /// To float32, rounded to odd.
    ///
    /// # Safety
    /// As for [`Isa::cast`].
    unsafe fn odd<S: Elem>(src: *const u8, dst: *mut u8, n: usize);

    /// # Safety
    /// As for [`Isa::cast`]; the coefficients are as [`Fma`] says.
    unsafe fn fma<T: Real, D: Elem>(
        x: *const u8,
        dst: *mut u8,
        n: usize,
        a: *const T,
        b: *const T,
        period: usize,
    );

    /// `n` pixels of `C` elements to `C` rows, `plane` bytes apart.
    ///
    /// # Safety
    /// As for [`Isa::cast`], for each of the rows.
    unsafe fn split<T: Copy, const C: usize>(src: *const u8, dst: *mut u8, plane: isize, n: usize);
}

#[inline(always)]
unsafe fn cast_body<I: Isa, S: Elem, D: Elem>(src: *const u8, dst: *mut u8, n: usize) {
    let through = matches!((S::KIND, D::KIND), (Kind::Half, _) | (_, Kind::Half))
        && !matches!(S::KIND, Kind::Single)
        && !matches!(D::KIND, Kind::Single);
    if through {
        // The two halves of the way exist already, and use F16C where there is one.
        let mut wide = Scratch::<{ BLOCK * 4 }>::new();
        let mut done = 0;
        while done < n {
            let m = (n - done).min(BLOCK);
            // SAFETY: `done + m <= n`, and the block holds `BLOCK` float32.
            unsafe {
                I::odd::<S>(src.add(done * size_of::<S>()), wide.at(), m);
                I::cast::<f32, D>(wide.at(), dst.add(done * size_of::<D>()), m);
            }
            done += m;
        }
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if I::AVX2 {
        // SAFETY: the caller is the AVX2 compilation; the pointers are those it was given.
        match (S::DTYPE, D::DTYPE) {
            (DType::F32, DType::F16) => return unsafe { x86::narrow(src, dst, n) },
            (DType::F16, DType::F32) => return unsafe { x86::widen(src, dst, n) },
            _ => {}
        }
    }
    // SAFETY: the caller's pointers are good for `n` elements and disjoint.
    let (src, dst) = unsafe { (input::<S>(src, n), output::<D>(dst, n)) };
    for (d, s) in dst.iter_mut().zip(src) {
        d.write(Loose(convert(s.0)));
    }
}

#[inline(always)]
unsafe fn odd_body<I: Isa, S: Elem>(src: *const u8, dst: *mut u8, n: usize) {
    if matches!(S::KIND, Kind::Half) || (S::KIND == Kind::Integral && size_of::<S>() <= 2) {
        // SAFETY: the caller's promises; these types are exact in float32.
        return unsafe { I::cast::<S, f32>(src, dst, n) };
    }
    // SAFETY: the caller's pointers are good for `n` elements and disjoint.
    let (src, dst) = unsafe { (input::<S>(src, n), output::<f32>(dst, n)) };
    for (d, s) in dst.iter_mut().zip(src) {
        d.write(Loose({ s.0 }.to_f32_odd()));
    }
}

#[inline(always)]
unsafe fn fma_body<I: Isa, T: Real, D: Elem>(
    x: *const u8,
    dst: *mut u8,
    n: usize,
    a: *const T,
    b: *const T,
    period: usize,
) {
    #[cfg(target_arch = "x86_64")]
    if I::AVX2 && T::KIND == Kind::Single && D::DTYPE == DType::F16 {
        // SAFETY: the caller is the AVX2 compilation and `T` is float32.
        return unsafe { x86::fma_narrow(x, dst, n, a.cast(), b.cast(), period) };
    }
    // SAFETY: the caller's pointers are good for `n` elements and disjoint.
    let (src, dst) = unsafe { (input::<T>(x, n), output::<D>(dst, n)) };
    if period == 0 {
        // SAFETY: there is one pair at least.
        let (a, b) = unsafe { (*a, *b) };
        for (d, s) in dst.iter_mut().zip(src) {
            d.write(Loose(convert({ s.0 }.fused(a, b))));
        }
        return;
    }
    // SAFETY: there are `period` pairs, of which no more than `n` are used when it is longer.
    let (a, b) = unsafe {
        let pairs = period.min(n);
        (std::slice::from_raw_parts(a, pairs), std::slice::from_raw_parts(b, pairs))
    };
    if period >= n {
        for (((d, s), &a), &b) in dst.iter_mut().zip(src).zip(a).zip(b) {
            d.write(Loose(convert({ s.0 }.fused(a, b))));
        }
        return;
    }
    for (dst, src) in dst.chunks_mut(period).zip(src.chunks(period)) {
        let whole = dst.len() - dst.len() % 8;
        // Eight at a time: the length of the period is then no obstacle to vectorising.
        for (((d, s), a), b) in dst[..whole]
            .chunks_exact_mut(8)
            .zip(src.chunks_exact(8))
            .zip(a.chunks_exact(8))
            .zip(b.chunks_exact(8))
        {
            for i in 0..8 {
                d[i].write(Loose(convert({ s[i].0 }.fused(a[i], b[i]))));
            }
        }
        for i in whole..dst.len() {
            dst[i].write(Loose(convert({ src[i].0 }.fused(a[i], b[i]))));
        }
    }
}

#[inline(always)]
unsafe fn split_body<I: Isa, T: Copy, const C: usize>(
    src: *const u8,
    dst: *mut u8,
    plane: isize,
    n: usize,
) {
    let mut start = 0;
    #[cfg(target_arch = "x86_64")]
    if I::AVX2 && C == 3 && size_of::<T>() == 1 {
        // SAFETY: the caller is the AVX2 compilation; `C` is 3 and the elements are bytes.
        start = unsafe { x86::split_3_bytes(src, dst, plane, n) };
    }
    // SAFETY: `n` pixels of `C` elements lie at `src`, and each row takes `n` elements.
    let src = unsafe { input::<[T; C]>(src, n) };
    let rows: [*mut T; C] = std::array::from_fn(|c| dst.wrapping_offset(plane * c as isize).cast());
    for (i, pixel) in src.iter().enumerate().skip(start) {
        let pixel = pixel.0;
        for c in 0..C {
            // SAFETY: `i < n`, and row `c` takes `n` elements.
            unsafe { rows[c].add(i).write_unaligned(pixel[c]) };
        }
    }
}

/// Writes one compilation: free functions, for `target_feature` is not for trait methods, and the
/// trait that names them.
macro_rules! compile {
    ($isa:ident $module:ident $avx2:literal $(#[$feature:meta])*) => {
        pub(super) struct $isa;

        mod $module {
            use super::*;

            $(#[$feature])*
            pub(super) unsafe fn cast<S: Elem, D: Elem>(s: *const u8, d: *mut u8, n: usize) {
                // SAFETY: the caller's promises.
                unsafe { cast_body::<$isa, S, D>(s, d, n) }
            }
            $(#[$feature])*
            pub(super) unsafe fn odd<S: Elem>(s: *const u8, d: *mut u8, n: usize) {
                // SAFETY: the caller's promises.
                unsafe { odd_body::<$isa, S>(s, d, n) }
            }
            $(#[$feature])*
            pub(super) unsafe fn fma<T: Real, D: Elem>(
                x: *const u8, d: *mut u8, n: usize, a: *const T, b: *const T, period: usize,
            ) {
                // SAFETY: the caller's promises.
                unsafe { fma_body::<$isa, T, D>(x, d, n, a, b, period) }
            }
            $(#[$feature])*
            pub(super) unsafe fn split<T: Copy, const C: usize>(
                s: *const u8, d: *mut u8, plane: isize, n: usize,
            ) {
                // SAFETY: the caller's promises.
                unsafe { split_body::<$isa, T, C>(s, d, plane, n) }
            }
        }

        impl Isa for $isa {
            const AVX2: bool = $avx2;

            unsafe fn cast<S: Elem, D: Elem>(src: *const u8, dst: *mut u8, n: usize) {
                // SAFETY: the caller's promises.
                unsafe { $module::cast::<S, D>(src, dst, n) }
            }
            unsafe fn odd<S: Elem>(src: *const u8, dst: *mut u8, n: usize) {
                // SAFETY: the caller's promises.
                unsafe { $module::odd::<S>(src, dst, n) }
            }
            unsafe fn fma<T: Real, D: Elem>(
                x: *const u8, dst: *mut u8, n: usize, a: *const T, b: *const T, period: usize,
            ) {
                // SAFETY: the caller's promises.
                unsafe { $module::fma::<T, D>(x, dst, n, a, b, period) }
            }
            unsafe fn split<T: Copy, const C: usize>(
                src: *const u8, dst: *mut u8, plane: isize, n: usize,
            ) {
                // SAFETY: the caller's promises.
                unsafe { $module::split::<T, C>(src, dst, plane, n) }
            }
        }
    };
}

compile!(Plain plain false);
#[cfg(target_arch = "x86_64")]
compile!(Avx2 avx2 true #[target_feature(enable = "avx2,fma,f16c")]);

/// Whether [`Avx2`] may be used.
#[inline]
pub(super) fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Loops that the compiler does not find by itself.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe, reason = "these intrinsics are unsafe in Rust 1.85 and safe since")]
pub(super) mod x86 {
    use super::*;
    use std::arch::x86_64::*;

    /// float32 to float16.
    ///
    /// # Safety
    /// AVX2, FMA and F16C; pointers as for [`Cast`].
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
    /// AVX2, FMA and F16C; pointers as for [`Cast`].
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
    /// AVX2, FMA and F16C; pointers as for [`Fma`].
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn fma_narrow(
        x: *const u8,
        dst: *mut u8,
        n: usize,
        a: *const f32,
        b: *const f32,
        period: usize,
    ) {
        let whole = n - n % 8;
        let mut phase = 0;
        // SAFETY: pair 0 exists.
        let (a0, b0) = unsafe { (_mm256_set1_ps(*a), _mm256_set1_ps(*b)) };
        for i in (0..whole).step_by(8) {
            // SAFETY: `i + 8 <= n`; the period is a multiple of 8, or beyond `n`, so that
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
            phase += 8;
            if phase >= period {
                phase = 0;
            }
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

    /// Splits pixels of three bytes, 32 at a time; returns how many it did.
    ///
    /// # Safety
    /// AVX2, FMA and F16C; `n` pixels at `src`, `n` bytes in each of the three rows.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn split_3_bytes(
        src: *const u8,
        dst: *mut u8,
        plane: isize,
        n: usize,
    ) -> usize {
        // Of 48 bytes in three vectors, channel `c` takes other positions in each of the three, so
        // two blends gather it and one shuffle puts it in order. Both lanes do so side by side.
        let mut from_second = [[0u8; 32]; 3];
        let mut from_third = [[0u8; 32]; 3];
        let mut order = [[0u8; 32]; 3];
        for c in 0..3 {
            for i in 0..16u8 {
                let at = 3 * i + c as u8;
                let (vector, position) = (at / 16, usize::from(at % 16));
                for lane in [0, 16] {
                    order[c][lane + usize::from(i)] = at % 16;
                    from_second[c][lane + position] = if vector == 1 { 0xFF } else { 0 };
                    from_third[c][lane + position] = if vector == 2 { 0xFF } else { 0 };
                }
            }
        }
        let whole = n - n % 32;
        // SAFETY: `i + 32 <= n`, hence 96 bytes are read at `3 * i` and 32 written in each row; the
        // loads and stores take any address.
        unsafe {
            let load = |table: &[u8; 32]| _mm256_loadu_si256(table.as_ptr().cast());
            let pair = |p: *const u8| _mm256_loadu2_m128i(p.add(48).cast(), p.cast());
            for i in (0..whole).step_by(32) {
                let p = src.add(3 * i);
                let (first, second, third) = (pair(p), pair(p.add(16)), pair(p.add(32)));
                for c in 0..3 {
                    let mixed = _mm256_blendv_epi8(first, second, load(&from_second[c]));
                    let mixed = _mm256_blendv_epi8(mixed, third, load(&from_third[c]));
                    let row = dst.wrapping_offset(plane * c as isize).add(i);
                    _mm256_storeu_si256(row.cast(), _mm256_shuffle_epi8(mixed, load(&order[c])));
                }
            }
        }
        whole
    }

    /// A copy that does not pass through the caches on its way to `dst`.
    ///
    /// # Safety
    /// AVX2, FMA and F16C; pointers as for [`Cast`], of bytes.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(in super::super) unsafe fn stream(src: *const u8, dst: *mut u8, len: usize) {
        // How far ahead to fetch: a few lines beyond what the stores in flight cover.
        const AHEAD: usize = 1024;
        let head = dst.align_offset(32).min(len);
        let body = (len - head) / 128 * 128;
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
}
