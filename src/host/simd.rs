//! The kernels: loops over contiguous elements, each compiled for any processor, for AVX2 with FMA and F16C, and for AVX-512.
//!
//! The problem: 15 dtypes on either side are far more pairs than loops can be written by hand, and a binary runs on processors of
//! many kinds. So there is one body for each operation, generic over the types and the instruction set, in a form that the
//! compiler vectorises. Each body is inlined into the methods of [`Isa`], which have the `target_feature`s of the set.
//!
//! ```text
//! with_isa! (isa.rs)           the best of Plain, Avx2, Avx512 that the processor runs and that gains for this pair
//!     Isa::cast                Avx2::cast::<S, D>, with target_feature
//!         cast_body::<I, S, D>
//!             bfloat16 to float8                from_bf16
//!             float8 to 16-bit floats           tables of 128 bytes with VBMI, else to_half in 16-bit lanes
//!             16- or 8-bit floats, no float32   two casts by way of float32, rounded to odd, a block on the stack at a time
//!             float32 to and from float16       F16C, in x86.rs
//!             integers and bools                16 at a time, or 8; the last ones of a row may be converted twice
//!             else                              a loop over `convert`
//! ```
//!
//! All are bit for bit what [`convert`] and `mul_add` give one element at a time, which would be all that is needed if time did
//! not matter. AVX-512 makes casts to bfloat16 1.3 to 1.6 times and from float8 1.5 to 2.4 times as fast, others up to 15 %
//! slower: `gains_from_avx512` has the pairs. 4096 rows of 512 e4m3fn become bfloat16 in 0.44 ms by tables, 0.51 without VBMI and
//! 0.67 with AVX2 alone (Emerald Rapids, one core); integers cast 8 or 32 at once take 1.18 and 1.11 of the time (Zen 4).
#![allow(
    unsafe_code,
    reason = "unaligned rows behind raw pointers; instructions chosen at run time"
)]

use std::mem::MaybeUninit;

use super::convert::{convert, Elem, NumberKind, BF16};
use crate::collate::Affine;
use crate::host::policy::POLICY;
use crate::tensor::{overlap, DType};

mod quantize;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

use quantize::{amax_body, quantise_body, quantise_run_body};
pub(super) use quantize::{BlockRun, Float, Magnitude, Quantised};

/// Elements handled at a time.
pub(super) const BLOCK: usize = POLICY.block_elems;

/// Room for a block between two passes, of any width up to 16.
#[repr(C, align(64))]
pub(super) struct Scratch<const BYTES: usize>(MaybeUninit<[u8; BYTES]>);

impl<const BYTES: usize> Scratch<BYTES> {
    /// Uninitialised memory.
    #[inline(always)]
    pub(super) fn new() -> Self {
        Scratch(MaybeUninit::uninit())
    }

    /// The address of the first byte.
    #[inline(always)]
    pub(super) fn at(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// An element at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<T>(T);

/// Elements that are read.
///
/// # Safety
/// `n` initialised elements are at `src` and nothing writes to them meanwhile.
#[inline(always)]
unsafe fn input<'a, T>(src: *const u8, n: usize) -> &'a [Unaligned<T>] {
    // SAFETY: by the contract above; `Unaligned` needs no alignment.
    unsafe { std::slice::from_raw_parts(src.cast(), n) }
}

/// Elements that are written.
///
/// # Safety
/// `n` elements may be written at `dst` and nothing else touches them meanwhile.
#[inline(always)]
unsafe fn output<'a, T>(dst: *mut u8, n: usize) -> &'a mut [MaybeUninit<Unaligned<T>>] {
    // SAFETY: by the contract above; `Unaligned` needs no alignment, `MaybeUninit` no value.
    unsafe { std::slice::from_raw_parts_mut(dst.cast(), n) }
}

/// Whether this processor has the instructions of the compilation `I`.
#[inline]
fn is_supported<I: Isa>() -> bool {
    #[cfg(avx512)]
    if I::AVX512 {
        return super::isa::detects_avx512();
    }
    #[cfg(target_arch = "x86_64")]
    if I::AVX2 {
        return super::isa::detects_avx2();
    }
    !I::AVX2
}

/// Whether so many bytes at `src` and at `dst` have none in common.
#[inline]
pub(super) fn are_disjoint(
    src: *const u8,
    src_bytes: usize,
    dst: *const u8,
    dst_bytes: usize,
) -> bool {
    let (src, dst) = (src.addr(), dst.addr());
    !overlap(&(src..src + src_bytes), &(dst..dst + dst_bytes))
}

/// `n` elements from `src` to `dst`, both contiguous, at any address and disjoint.
pub(super) type Cast = unsafe fn(src: *const u8, dst: *mut u8, n: usize);

/// The pairs of a block of elements.
#[derive(Clone, Copy)]
pub(super) struct Pairs<T> {
    pub(super) a: *const T,
    pub(super) b: *const T,
    /// 0: one pair for all. Otherwise element `i` takes pair `i % period`, and the period is a multiple of 8 or not
    /// below the length of the block.
    pub(super) period: usize,
}

/// `x * a + b` for `n <= BLOCK` contiguous elements, converted and stored.
pub(super) type Fma<T> = unsafe fn(x: *const u8, dst: *mut u8, n: usize, pairs: Pairs<T>);

/// The type in which a transform is computed.
pub(super) trait Real: Elem {
    /// The factors and the offsets of all pairs.
    fn coefficients(affine: &Affine) -> (&[Self], &[Self]);
    /// `self * a + b`, rounded once.
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
    /// Whether loops for AVX2, such as those of `x86`, may be used.
    const AVX2: bool;
    /// Whether this is the compilation for AVX-512.
    const AVX512: bool;

    /// Converts elements, as [`Cast`] does.
    ///
    /// # Safety
    /// The processor runs this compilation; `n` elements at `src` and room for as many at `dst`, contiguous, at any
    /// address and disjoint.
    unsafe fn cast<S: Elem, D: Elem>(src: *const u8, dst: *mut u8, n: usize);

    /// Converts elements to float32, rounded to odd.
    ///
    /// # Safety
    /// The processor runs this compilation; `n` elements at `src` and room for as many floats at `dst`, contiguous, at
    /// any address and disjoint.
    unsafe fn odd<S: Elem>(src: *const u8, dst: *mut u8, n: usize);

    /// Computes `x * a + b` as [`Fma`] does.
    ///
    /// # Safety
    /// The processor runs this compilation; at most `BLOCK` elements at `x` and room for as many at `dst`, contiguous,
    /// at any address and disjoint; coefficients for the whole period of `pairs`.
    unsafe fn fma<T: Real, D: Elem>(x: *const u8, dst: *mut u8, n: usize, pairs: Pairs<T>);

    /// `n` pixels of `C` elements to `C` rows, `plane` bytes apart.
    ///
    /// # Safety
    /// The processor runs this compilation; `n` pixels at `src`, and room for `n` elements in each of the rows at
    /// `dst`, at any address and disjoint.
    unsafe fn split<T: Copy, const C: usize>(src: *const u8, dst: *mut u8, plane: isize, n: usize);

    /// The largest magnitude, as its bits; one above `last`, a NaN, counts as 0, and without
    /// elements it is 0.
    ///
    /// # Safety
    /// The processor runs this compilation; `n` elements at `src`, contiguous, at any address.
    unsafe fn amax<B: Magnitude>(src: *const u8, n: usize, last: B) -> B;

    /// `x / scale` in float32, rounded to nearest even and saturated.
    ///
    /// # Safety
    /// The processor runs this compilation; `n` elements at `src` and room for as many at `dst`, contiguous, at any
    /// address and disjoint.
    unsafe fn quantise<S: Float, D: Quantised>(src: *const u8, dst: *mut u8, n: usize, scale: f32);

    /// Blocks of `n` elements in all, each by a scale that is found and written.
    ///
    /// # Safety
    /// As of [`Isa::quantise`]; room for the scales of all blocks.
    unsafe fn quantise_run<S: Float, D: Quantised>(
        src: *const u8,
        dst: *mut u8,
        n: usize,
        run: &BlockRun<'_>,
    );
}

/// The body of [`Isa::cast`].
///
/// # Safety
/// The processor runs this compilation; `n` elements at `src` and room for as many at `dst`, contiguous, at any address
/// and disjoint.
#[inline(always)]
unsafe fn cast_body<I: Isa, S: Elem, D: Elem>(src: *const u8, dst: *mut u8, n: usize) {
    if matches!(S::DTYPE, DType::BF16) && D::DTYPE.is_float8() {
        debug_assert_eq!(size_of::<S>(), size_of::<BF16>());
        // SAFETY: the caller's pointers are good for `n` elements, here of bfloat16, and disjoint.
        let (src, dst) = unsafe { (input::<BF16>(src, n), output::<D>(dst, n)) };
        for (d, s) in dst.iter_mut().zip(src) {
            d.write(Unaligned(match I::AVX512 {
                true => D::from_bf16::<true>(s.0),
                false => D::from_bf16::<false>(s.0),
            }));
        }
        return;
    }
    if S::DTYPE.is_float8() && matches!(D::DTYPE, DType::F16 | DType::BF16) {
        #[cfg(avx512)]
        if I::AVX512 && super::isa::detects_vbmi() {
            let tables = match D::DTYPE {
                DType::F16 => S::halves::<10>(),
                _ => S::halves::<7>(),
            };
            // SAFETY: the processor has been asked; the pointers are those that the caller gave.
            return unsafe { x86::widen_float8(tables, src, dst, n) };
        }
        debug_assert_eq!(size_of::<D>(), size_of::<u16>());
        // SAFETY: the caller's pointers are good for `n` elements, here of 16 bits at `dst`, and disjoint.
        let (src, dst) = unsafe { (input::<S>(src, n), output::<u16>(dst, n)) };
        for (d, s) in dst.iter_mut().zip(src) {
            d.write(Unaligned(match D::DTYPE {
                DType::F16 => { s.0 }.to_half::<10>(),
                _ => { s.0 }.to_half::<7>(),
            }));
        }
        return;
    }
    let through = matches!((S::KIND, D::KIND), (NumberKind::Half, _) | (_, NumberKind::Half))
        && !matches!(S::KIND, NumberKind::Single)
        && !matches!(D::KIND, NumberKind::Single);
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
        if matches!((S::DTYPE, D::DTYPE), (DType::F32, DType::F16)) {
            // SAFETY: the caller is the AVX2 compilation; the pointers are those it was given.
            return unsafe { x86::narrow(src, dst, n) };
        }
        if matches!((S::DTYPE, D::DTYPE), (DType::F16, DType::F32)) {
            // SAFETY: as above.
            return unsafe { x86::widen(src, dst, n) };
        }
    }
    // SAFETY: the caller's pointers are good for `n` elements and disjoint.
    let (src, dst) = unsafe { (input::<S>(src, n), output::<D>(dst, n)) };
    if matches!((S::KIND, D::KIND), (NumberKind::Integral, NumberKind::Integral)) {
        return match size_of::<S>() == 8 || size_of::<D>() == 8 {
            true => cast_integers::<S, D, 8>(src, dst),
            false => cast_integers::<S, D, 16>(src, dst),
        };
    }
    for (d, s) in dst.iter_mut().zip(src) {
        d.write(Unaligned(convert(s.0)));
    }
}

/// Converts all integers of `src`, `N` at a time: the last `N` may be converted twice, so that a
/// row ends without a loop of its own. Fewer than `N` in all are converted one by one.
#[inline(always)]
fn cast_integers<S: Elem, D: Elem, const N: usize>(
    src: &[Unaligned<S>],
    dst: &mut [MaybeUninit<Unaligned<D>>],
) {
    let (Some(last), count) = (src.last_chunk::<N>(), src.len()) else {
        for (d, s) in dst.iter_mut().zip(src) {
            d.write(Unaligned(convert(s.0)));
        }
        return;
    };
    // All of them are read before the first is written: then they fit into vectors.
    let each = |src: &[Unaligned<S>; N]| src.map(|x| MaybeUninit::new(Unaligned(convert(x.0))));
    for (d, s) in dst.chunks_exact_mut(N).zip(src.chunks_exact(N)) {
        if let (Ok(d), Ok(s)) = (<&mut [MaybeUninit<Unaligned<D>>; N]>::try_from(d), s.try_into()) {
            *d = each(s);
        }
    }
    if let Some(d) = dst[..count].last_chunk_mut::<N>() {
        *d = each(last);
    }
}

/// The body of [`Isa::odd`].
///
/// # Safety
/// The processor runs this compilation; `n` elements at `src` and room for as many floats at `dst`, contiguous, at any
/// address and disjoint.
#[inline(always)]
unsafe fn odd_body<I: Isa, S: Elem>(src: *const u8, dst: *mut u8, n: usize) {
    if matches!(S::KIND, NumberKind::Half)
        || (S::KIND == NumberKind::Integral && size_of::<S>() <= 2)
    {
        // SAFETY: the caller's promises; these types are exact in float32.
        return unsafe { I::cast::<S, f32>(src, dst, n) };
    }
    // SAFETY: the caller's pointers are good for `n` elements and disjoint.
    let (src, dst) = unsafe { (input::<S>(src, n), output::<f32>(dst, n)) };
    for (d, s) in dst.iter_mut().zip(src) {
        d.write(Unaligned({ s.0 }.to_f32_odd()));
    }
}

/// The body of [`Isa::fma`].
///
/// # Safety
/// The processor runs this compilation; at most `BLOCK` elements at `x` and room for as many at `dst`, contiguous, at
/// any address and disjoint; coefficients for the whole period of `pairs`.
#[inline(always)]
unsafe fn fma_body<I: Isa, T: Real, D: Elem>(
    x: *const u8,
    dst: *mut u8,
    n: usize,
    pairs: Pairs<T>,
) {
    let Pairs { a, b, period } = pairs;
    debug_assert!(n <= BLOCK && (period % 8 == 0 || period >= n));
    debug_assert!(!a.is_null() && a.is_aligned() && !b.is_null() && b.is_aligned());
    #[cfg(target_arch = "x86_64")]
    if I::AVX2 && T::KIND == NumberKind::Single {
        debug_assert!(T::DTYPE == DType::F32);
        let pairs = Pairs { a: a.cast(), b: b.cast(), period };
        if D::DTYPE == DType::F16 {
            // SAFETY: the caller is the AVX2 compilation and `T` is float32.
            return unsafe { x86::fma_narrow(x, dst, n, pairs) };
        }
        if period > 0 && D::DTYPE == DType::F32 {
            // SAFETY: as above.
            return unsafe { x86::fma_tiled(x, dst, n, pairs) };
        }
        if period > 0 {
            let mut wide = Scratch::<{ BLOCK * 4 }>::new();
            // SAFETY: as above, and `n <= BLOCK`.
            return unsafe {
                x86::fma_tiled(x, wide.at(), n, pairs);
                I::cast::<f32, D>(wide.at(), dst, n);
            };
        }
    }
    // SAFETY: the caller's pointers are good for `n` elements and disjoint.
    let (src, dst) = unsafe { (input::<T>(x, n), output::<D>(dst, n)) };
    if period == 0 {
        // SAFETY: there is one pair at least.
        let (a, b) = unsafe { (*a, *b) };
        for (d, s) in dst.iter_mut().zip(src) {
            d.write(Unaligned(convert({ s.0 }.fused(a, b))));
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
            d.write(Unaligned(convert({ s.0 }.fused(a, b))));
        }
        return;
    }
    for (dst, src) in dst.chunks_mut(period).zip(src.chunks(period)) {
        fma_period(src, dst, a, b);
    }
}

/// `x * a + b` of elements with a pair each, eight at a time: the length of a period is then no obstacle to vectorising. There
/// are as many pairs as elements or more, a multiple of eight.
#[inline(always)]
fn fma_period<T: Real, D: Elem>(
    src: &[Unaligned<T>],
    dst: &mut [MaybeUninit<Unaligned<D>>],
    a: &[T],
    b: &[T],
) {
    let pairs = a.chunks_exact(8).zip(b.chunks_exact(8));
    for ((d, s), (a, b)) in dst.chunks_mut(8).zip(src.chunks(8)).zip(pairs) {
        if let (Ok(d), Ok(s)) = (
            <&mut [MaybeUninit<Unaligned<D>>; 8]>::try_from(&mut *d),
            <&[Unaligned<T>; 8]>::try_from(s),
        ) {
            let x: [T; 8] = s.map(|x| x.0);
            let y: [D; 8] = std::array::from_fn(|i| convert(x[i].fused(a[i], b[i])));
            *d = y.map(|y| MaybeUninit::new(Unaligned(y)));
            continue;
        }
        for (((d, s), &a), &b) in d.iter_mut().zip(s).zip(a).zip(b) {
            d.write(Unaligned(convert({ s.0 }.fused(a, b))));
        }
    }
}

/// The body of [`Isa::split`].
///
/// # Safety
/// The processor runs this compilation; `n` pixels at `src`, and room for `n` elements in each of the rows at `dst`, at any
/// address and disjoint.
#[inline(always)]
unsafe fn split_body<I: Isa, T: Copy, const C: usize>(
    src: *const u8,
    dst: *mut u8,
    plane: isize,
    n: usize,
) {
    let (width, row) = (size_of::<T>(), |c: isize| dst.wrapping_offset(plane * c));
    debug_assert!(C < 2 || plane.unsigned_abs() >= n * width);
    debug_assert!((0..C as isize).all(|c| are_disjoint(src, n * C * width, row(c), n * width)));
    #[cfg(target_arch = "x86_64")]
    let start = if I::AVX2 && C == 3 && size_of::<T>() == 1 {
        // SAFETY: the caller is the AVX2 compilation; `C` is 3 and the elements are bytes.
        unsafe { x86::split_3_bytes(src, dst, plane, n) }
    } else {
        0
    };
    #[cfg(not(target_arch = "x86_64"))]
    let start = 0;
    // SAFETY: `n` pixels of `C` elements are at `src`, and each row takes `n` elements.
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

/// Writes one compilation: an [`Isa`] whose methods have its `target_feature`s and the bodies.
macro_rules! compile {
    ($isa:ident $avx2:literal $avx512:literal $(#[$feature:meta])*) => {
        pub(super) struct $isa;

        impl Isa for $isa {
            const AVX2: bool = $avx2;
            const AVX512: bool = $avx512;

            $(#[$feature])*
            #[inline(never)]
            unsafe fn cast<S: Elem, D: Elem>(src: *const u8, dst: *mut u8, n: usize) {
                debug_assert!(is_supported::<$isa>());
                debug_assert!(are_disjoint(src, n * size_of::<S>(), dst, n * size_of::<D>()));
                // SAFETY: the caller's promises.
                unsafe { cast_body::<$isa, S, D>(src, dst, n) }
            }
            $(#[$feature])*
            #[inline(never)]
            unsafe fn odd<S: Elem>(src: *const u8, dst: *mut u8, n: usize) {
                debug_assert!(is_supported::<$isa>());
                debug_assert!(are_disjoint(src, n * size_of::<S>(), dst, n * size_of::<f32>()));
                // SAFETY: the caller's promises.
                unsafe { odd_body::<$isa, S>(src, dst, n) }
            }
            $(#[$feature])*
            #[inline(never)]
            unsafe fn fma<T: Real, D: Elem>(x: *const u8, dst: *mut u8, n: usize, pairs: Pairs<T>) {
                debug_assert!(is_supported::<$isa>());
                debug_assert!(are_disjoint(x, n * size_of::<T>(), dst, n * size_of::<D>()));
                // SAFETY: the caller's promises.
                unsafe { fma_body::<$isa, T, D>(x, dst, n, pairs) }
            }
            $(#[$feature])*
            #[inline(never)]
            unsafe fn split<T: Copy, const C: usize>(
                src: *const u8, dst: *mut u8, plane: isize, n: usize,
            ) {
                debug_assert!(is_supported::<$isa>());
                // SAFETY: the caller's promises.
                unsafe { split_body::<$isa, T, C>(src, dst, plane, n) }
            }
            $(#[$feature])*
            #[inline(never)]
            unsafe fn amax<B: Magnitude>(src: *const u8, n: usize, last: B) -> B {
                debug_assert!(is_supported::<$isa>());
                // SAFETY: the caller's promises.
                unsafe { amax_body::<B>(src, n, last) }
            }
            $(#[$feature])*
            #[inline(never)]
            unsafe fn quantise<S: Float, D: Quantised>(
                src: *const u8, dst: *mut u8, n: usize, scale: f32,
            ) {
                debug_assert!(is_supported::<$isa>());
                debug_assert!(are_disjoint(src, n * size_of::<S>(), dst, n * size_of::<D>()));
                // SAFETY: the caller's promises.
                unsafe { quantise_body::<S, D>(src, dst, n, scale) }
            }
            $(#[$feature])*
            #[inline(never)]
            unsafe fn quantise_run<S: Float, D: Quantised>(
                src: *const u8, dst: *mut u8, n: usize, run: &BlockRun<'_>,
            ) {
                debug_assert!(is_supported::<$isa>());
                debug_assert!(are_disjoint(src, n * size_of::<S>(), dst, n * size_of::<D>()));
                // SAFETY: the caller's promises.
                unsafe { quantise_run_body::<S, D>(src, dst, n, run) }
            }
        }
    };
}

compile!(Plain false false);
#[cfg(target_arch = "x86_64")]
compile!(Avx2 true false #[target_feature(enable = "avx2,fma,f16c")]);
#[cfg(avx512)]
compile!(Avx512 true true #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]);
