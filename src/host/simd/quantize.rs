//! The largest magnitude of elements, and elements divided by a scale and rounded.

use std::mem::MaybeUninit;

use super::super::convert::{convert, Elem, BF16, F16, F8};
use super::{input, output, Unaligned};
use crate::collate::Quantize;
use crate::tensor::DType;

/// A signed integer as wide as a float, whose bits without the sign are in the order of the magnitudes.
pub(in crate::host) trait Magnitude: Copy + PartialOrd + 'static {
    const ZERO: Self;

    /// The bits without the sign.
    fn without_sign(self) -> Self;
}

macro_rules! magnitudes {
    ($($t:ident),*) => {$(
        impl Magnitude for $t {
            const ZERO: $t = 0;

            #[inline(always)]
            fn without_sign(self) -> $t {
                self & $t::MAX
            }
        }
    )*};
}

magnitudes!(i8, i16, i32, i64);

/// A float whose magnitudes are compared by their bits.
pub(in crate::host) trait Float: Elem {
    type Bits: Magnitude;

    /// The last magnitude that is no NaN.
    const LAST: Self::Bits;

    /// The value in float32, to be divided. A signaling NaN may remain one: the division quiets it.
    #[inline(always)]
    fn dividend(self) -> f32 {
        convert(self)
    }
}

impl<const FRACTION: u32, const SATURATE: bool> Float for F8<FRACTION, SATURATE> {
    type Bits = i8;

    const LAST: i8 = if FRACTION == 3 { 0x7E } else { 0x7C };
}

impl Float for BF16 {
    type Bits = i16;

    const LAST: i16 = 0x7F80;

    #[inline(always)]
    fn dividend(self) -> f32 {
        self.unquieted()
    }
}

macro_rules! floats {
    ($($t:ident $bits:ident $last:literal),*) => {$(
        impl Float for $t {
            type Bits = $bits;

            const LAST: $bits = $last;
        }
    )*};
}

floats!(F16 i16 0x7C00, f32 i32 0x7F80_0000, f64 i64 0x7FF0_0000_0000_0000);

/// A type that elements are quantised to.
pub(in crate::host) trait Quantised: Elem {
    /// The value of `x`, rounded to nearest even and saturated, infinities too. NaN stays one, except that int8 has 0
    /// for it.
    fn nearest(x: f32) -> Self;
}

impl<const FRACTION: u32> Quantised for F8<FRACTION, true> {
    #[inline(always)]
    fn nearest(x: f32) -> Self {
        Self::from_f32(x)
    }
}

impl Quantised for i8 {
    /// The nearest integer, ties to even, limited to -128 and 127; NaN becomes 0.
    #[inline(always)]
    fn nearest(x: f32) -> i8 {
        // The last bit of floats from here on is a whole number: adding this rounds.
        const UNIT: f32 = 12_582_912.0;
        let x = if x.is_nan() { 0.0 } else { x };
        let x = if x > -128.0 { x } else { -128.0 };
        let x = if x < 127.0 { x } else { 127.0 };
        (x + UNIT).to_bits() as i8
    }
}

/// Elements at a time: short blocks are whole vectors, too.
const STEP: usize = 32;

/// The largest magnitude, as its bits; one above `last`, a NaN, counts as 0, and without elements
/// it is 0.
///
/// # Safety
/// The processor runs this compilation; `n` elements at `src`, at any address.
#[inline(always)]
pub(super) unsafe fn amax_body<B: Magnitude>(src: *const u8, n: usize, last: B) -> B {
    let larger = |most: B, x: Unaligned<B>| {
        let bits = { x.0 }.without_sign();
        let bits = if bits > last { B::ZERO } else { bits };
        if bits > most {
            bits
        } else {
            most
        }
    };
    // SAFETY: the caller's promise.
    let steps = unsafe { input::<B>(src, n) }.chunks_exact(STEP);
    let rest = steps.remainder();
    let mut each = [B::ZERO; STEP];
    for step in steps {
        for (most, &x) in each.iter_mut().zip(step) {
            *most = larger(*most, x);
        }
    }
    let most = each.into_iter().fold(B::ZERO, |a, b| if b > a { b } else { a });
    rest.iter().fold(most, |most, &x| larger(most, x))
}

/// `x / scale` in float32, rounded to nearest even and saturated.
///
/// # Safety
/// The processor runs this compilation; `n` elements at `src` and room for as many at `dst`, contiguous, at any address and
/// disjoint.
#[inline(always)]
pub(super) unsafe fn quantise_body<S: Float, D: Quantised>(
    src: *const u8,
    dst: *mut u8,
    n: usize,
    scale: f32,
) {
    // SAFETY: the caller's pointers are good for `n` elements and disjoint.
    let (src, dst) = unsafe { (input::<S>(src, n), output::<D>(dst, n)) };
    match scale.is_finite() {
        true => each(src, dst, |x| x / scale),
        // Processors make NaNs of either sign of two infinities.
        false => each(src, dst, |x| (x / scale).copysign(x)),
    }
}

/// Writes the nearest `D` of `divided` of each element of `src`; `dst` has as many.
#[inline(always)]
fn each<S: Float, D: Quantised>(
    src: &[Unaligned<S>],
    dst: &mut [MaybeUninit<Unaligned<D>>],
    divided: impl Fn(f32) -> f32 + Copy,
) {
    let one =
        |x: &Unaligned<S>| MaybeUninit::new(Unaligned(D::nearest(divided({ x.0 }.dividend()))));
    let mut steps = dst.chunks_exact_mut(STEP);
    for (d, s) in (&mut steps).zip(src.chunks_exact(STEP)) {
        if let (Ok(d), Ok(s)) = (
            <&mut [MaybeUninit<Unaligned<D>>; STEP]>::try_from(d),
            <&[Unaligned<S>; STEP]>::try_from(s),
        ) {
            *d = std::array::from_fn(|at| one(&s[at]));
        }
    }
    for (d, s) in steps.into_remainder().iter_mut().zip(src.chunks_exact(STEP).remainder()) {
        *d = one(s);
    }
}

/// Blocks one after the other, each with a scale of its own.
#[derive(Clone, Copy)]
pub(in crate::host) struct BlockRun<'q> {
    pub quantize: &'q Quantize,
    /// Elements of a row, not 0.
    pub row: usize,
    /// Elements of a block, not 0; the last block of a row may have fewer.
    pub block: usize,
    /// The place of the first element in its row.
    pub column: usize,
    /// The place of the first scale, and the bytes to the next one.
    pub scales: *mut u8,
    pub stride: isize,
}

/// Finds the scales of blocks, writes them, and divides by them.
///
/// # Safety
/// As of [`quantise_body`]; room for the scales of all blocks.
#[inline(always)]
pub(super) unsafe fn quantise_run_body<S: Float, D: Quantised>(
    src: *const u8,
    dst: *mut u8,
    n: usize,
    run: &BlockRun<'_>,
) {
    let BlockRun { quantize, row, block, mut column, mut scales, stride } = *run;
    let is_power = quantize.scale_dtype == DType::F8E8M0FNU;
    debug_assert_eq!(size_of::<S::Bits>(), size_of::<S>());
    debug_assert!(is_power || quantize.scale_dtype == DType::F32);
    debug_assert!(block > 0 && column < row);
    let mut done = 0;
    while done < n {
        let count = block.min(row - column).min(n - done);
        debug_assert!(!scales.is_null());
        // SAFETY: `done + count <= n`; the bits are those of an `S`; a scale for each block.
        unsafe {
            let src = src.add(done * size_of::<S>());
            let most = amax_body::<S::Bits>(src, count, S::LAST);
            let amax: f32 = convert(std::mem::transmute_copy::<S::Bits, S>(&most));
            let scale = quantize.scale_of(amax);
            match is_power {
                true => *scales = quantize.bits_of(scale)[0],
                false => scales.cast::<f32>().write_unaligned(scale),
            }
            quantise_body::<S, D>(src, dst.add(done * size_of::<D>()), count, scale);
        }
        scales = scales.wrapping_offset(stride);
        (done, column) = (done + count, column + count);
        if column == row {
            column = 0;
        }
    }
}
