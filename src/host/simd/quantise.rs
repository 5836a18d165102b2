//! The largest magnitude of elements, and elements divided by a scale and rounded.

use super::super::convert::{convert, Elem, BF16, F16, F8};
use super::{input, output, Loose};

/// A signed integer as wide as a float, whose bits without the sign are in the order of the magnitudes.
pub(in crate::host) trait Magnitude: Copy + PartialOrd + 'static {
    const ZERO: Self;

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
}

impl<const FRACTION: u32, const SATURATE: bool> Float for F8<FRACTION, SATURATE> {
    type Bits = i8;

    const LAST: i8 = if FRACTION == 3 { 0x7E } else { 0x7C };
}

macro_rules! floats {
    ($($t:ident $bits:ident $last:literal),*) => {$(
        impl Float for $t {
            type Bits = $bits;

            const LAST: $bits = $last;
        }
    )*};
}

floats!(F16 i16 0x7C00, BF16 i16 0x7F80, f32 i32 0x7F80_0000, f64 i64 0x7FF0_0000_0000_0000);

/// What elements are quantised to.
pub(in crate::host) trait Quantised: Elem {
    /// Rounded to nearest even and saturated.
    fn nearest(x: f32) -> Self;
}

impl<const FRACTION: u32> Quantised for F8<FRACTION, true> {
    #[inline(always)]
    fn nearest(x: f32) -> Self {
        Self::from_f32(x)
    }
}

impl Quantised for i8 {
    /// NaN becomes 0.
    #[inline(always)]
    fn nearest(x: f32) -> i8 {
        // In floats from here on, the last bit is a whole number: adding it rounds.
        const UNIT: f32 = 12_582_912.0;
        let x = if x.is_nan() { 0.0 } else { x };
        let x = if x > -128.0 { x } else { -128.0 };
        let x = if x < 127.0 { x } else { 127.0 };
        (x + UNIT).to_bits() as i8
    }
}

/// The largest magnitude of those up to `last`, or 0.
///
/// # Safety
/// The processor runs this compilation; `n` elements at `src`, at any address.
#[inline(always)]
pub(super) unsafe fn amax_body<B: Magnitude>(src: *const u8, n: usize, last: B) -> B {
    let mut most = B::ZERO;
    // SAFETY: the caller's promise.
    for x in unsafe { input::<B>(src, n) } {
        let bits = { x.0 }.without_sign();
        let bits = if bits > last { B::ZERO } else { bits };
        most = if bits > most { bits } else { most };
    }
    most
}

/// `x / scale` in float32, rounded to nearest even and saturated.
///
/// # Safety
/// The processor runs this compilation; `n` elements at `src` and room for as many at `dst`, contiguous, at any address and
/// disjoint.
#[inline(always)]
pub(super) unsafe fn quantise_body<S: Elem, D: Quantised>(
    src: *const u8,
    dst: *mut u8,
    n: usize,
    scale: f32,
) {
    // SAFETY: the caller's pointers are good for `n` elements and disjoint.
    let (src, dst) = unsafe { (input::<S>(src, n), output::<D>(dst, n)) };
    for (d, s) in dst.iter_mut().zip(src) {
        let x: f32 = convert(s.0);
        // Of two infinities processors make NaNs of either sign.
        d.write(Loose(D::nearest((x / scale).copysign(x))));
    }
}
