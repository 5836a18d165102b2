//! Defines the conversion of one element. Everything else on the host must give the same bits.
//!
//! The code is free of branches on data, so that a loop over it can be vectorised.
#![allow(unsafe_code, reason = "the unchecked cast behind a clamp is the one that vectorises")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "wrapping, truncating and rounding casts are what this module is about"
)]

use crate::tensor::DType;

/// How a type takes part in a conversion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberKind {
    /// bool and the integers.
    Integral,
    /// Floats of 16 and 8 bits: every value is a float32.
    Half,
    Single,
    Double,
}

/// One element of an arithmetic dtype.
pub(super) trait Elem: Copy + 'static {
    const DTYPE: DType;
    const KIND: NumberKind;

    /// The value modulo 2^64. Panics if the type is not integral.
    fn to_wrapped(self) -> u64 {
        unreachable!("{} is not integral", Self::DTYPE)
    }
    /// The value modulo the range of the type; a bool is whether it is not 0. Panics if the type is not integral.
    fn from_wrapped(_: u64) -> Self {
        unreachable!("{} is not integral", Self::DTYPE)
    }
    /// The value, rounded to nearest even.
    fn to_f32(self) -> f32;
    /// Exact, or rounded to odd: rounding it again to 16 or 8 bits gives what one rounding would. By default all values are
    /// float32s.
    #[inline(always)]
    fn to_f32_odd(self) -> f32 {
        self.to_f32()
    }
    /// The value, rounded to nearest even. By default all values are float32s.
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self.to_f32().into()
    }
    /// `x`, rounded to nearest even; to an integer toward zero and saturated, with 0 for NaN; a bool is whether it is not 0.
    fn from_f32(x: f32) -> Self;
    /// Like [`Elem::from_f32`], rounded once.
    fn from_f64(x: f64) -> Self;
    /// Like [`Elem::from_f32`], from a bfloat16; with `SHIFTS` for processors that shift each 16 bits of a vector by its own count.
    #[inline(always)]
    fn from_bf16<const SHIFTS: bool>(x: BF16) -> Self {
        Self::from_f32(bf16_to_f32(x))
    }
    /// The bits of the float16 (a fraction of `TO` = 10 bits) or the bfloat16 (7) that a float8 is; exact. Panics if the type is
    /// another.
    fn to_half<const TO: u32>(self) -> u16 {
        unreachable!("{} is no float8", Self::DTYPE)
    }
    /// The low and the high bytes of all that [`Elem::to_half`] gives for codes without a sign. Panics as it does.
    #[cfg(avx512)]
    fn halves<const TO: u32>() -> &'static [[u8; 128]; 2] {
        unreachable!("{} is no float8", Self::DTYPE)
    }
}

/// Converts one element from `S` to `D`, rounded once; integral to integral by [`Elem::from_wrapped`].
#[inline(always)]
pub(super) fn convert<S: Elem, D: Elem>(x: S) -> D {
    if matches!((S::KIND, D::KIND), (NumberKind::Integral, NumberKind::Integral)) {
        D::from_wrapped(x.to_wrapped())
    } else if matches!((S::KIND, D::KIND), (NumberKind::Double, _) | (_, NumberKind::Double)) {
        D::from_f64(x.to_f64())
    } else if matches!(D::KIND, NumberKind::Half) {
        D::from_f32(x.to_f32_odd())
    } else {
        D::from_f32(x.to_f32())
    }
}

// Toward zero, saturating, NaN to 0, as `as` does; but `as` is compiled one element at a time where
// these are vectors.

/// An integer of up to 16 bits: the limits are floats, and what is between is an i32.
macro_rules! narrow {
    ($x:expr, $f:ident, $t:ident) => {{
        let x = clamp!($x, $t::MIN as $f, $t::MAX as $f);
        // SAFETY: within the limits of `$t`, hence of i32, and no NaN.
        unsafe { x.to_int_unchecked::<i32>() as $t }
    }};
}

/// i32: 2^31 is a float, and what is below it.
macro_rules! signed {
    ($x:expr, $f:ident, $t:ident) => {{
        const LIMIT: $f = 2_147_483_648.0;
        let x = clamp!($x, -LIMIT, next_below!(LIMIT, $f));
        // SAFETY: from -2^31 to below 2^31, and no NaN.
        let y = unsafe { x.to_int_unchecked::<i32>() };
        if $x >= LIMIT {
            i32::MAX
        } else {
            y
        }
    }};
}

/// u32: the upper half is brought down to i32; the difference is exact.
macro_rules! unsigned {
    ($x:expr, $f:ident, $t:ident) => {{
        const HALF: $f = 2_147_483_648.0;
        let x = clamp!($x, 0.0, next_below!(2.0 * HALF, $f));
        let y = if x >= HALF { x - HALF } else { x };
        // SAFETY: from 0 to below 2^31, and no NaN.
        let y = unsafe { y.to_int_unchecked::<i32>() } as u32;
        let y = if x >= HALF { y ^ 1 << 31 } else { y };
        if $x >= 2.0 * HALF {
            u32::MAX
        } else {
            y
        }
    }};
}

macro_rules! plain {
    ($x:expr, $f:ident, $t:ident) => {
        $x as $t
    };
}

/// The float before a positive one; `next_down` came with Rust 1.86.
macro_rules! next_below {
    ($x:expr, $f:ident) => {
        $f::from_bits($f::to_bits($x) - 1)
    };
}

/// `x` between `low` and `high`, or 0 if it is a NaN.
macro_rules! clamp {
    ($x:expr, $low:expr, $high:expr) => {{
        let (low, high) = ($low, $high);
        let x = if $x.is_nan() { 0.0 } else { $x };
        let x = if x > low { x } else { low };
        if x < high {
            x
        } else {
            high
        }
    }};
}

macro_rules! integers {
    ($($t:ident $dtype:ident $odd:ident $from32:ident $from64:ident;)*) => {$(
        impl Elem for $t {
            const DTYPE: DType = DType::$dtype;
            const KIND: NumberKind = NumberKind::Integral;

            #[inline(always)]
            #[allow(clippy::cast_lossless, clippy::cast_sign_loss, reason = "one body for all")]
            fn to_wrapped(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn from_wrapped(bits: u64) -> Self {
                bits as $t
            }
            #[inline(always)]
            fn to_f32(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn to_f32_odd(self) -> f32 {
                $odd(self.into())
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn from_f32(x: f32) -> Self {
                $from32!(x, f32, $t)
            }
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                $from64!(x, f64, $t)
            }
        }
    )*};
}

integers! {
    i8 I8 exact narrow narrow;
    i16 I16 exact narrow narrow;
    i32 I32 f64_to_odd signed signed;
    i64 I64 i64_to_odd plain plain;
    u8 U8 exact narrow narrow;
    u16 U16 exact narrow narrow;
    u32 U32 f64_to_odd unsigned unsigned;
    u64 U64 u64_to_odd plain plain;
}

#[inline(always)]
fn exact(x: f32) -> f32 {
    x
}

/// A bool as it is in memory: any byte but zero is true.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bool(u8);

impl Elem for Bool {
    const DTYPE: DType = DType::Bool;
    const KIND: NumberKind = NumberKind::Integral;

    #[inline(always)]
    fn to_wrapped(self) -> u64 {
        u64::from(self.0 != 0)
    }
    #[inline(always)]
    fn from_wrapped(bits: u64) -> Self {
        Bool(u8::from(bits != 0))
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from(u8::from(self.0 != 0))
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self.0 != 0))
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        Bool(u8::from(x != 0.0))
    }
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        Bool(u8::from(x != 0.0))
    }
}

macro_rules! floats {
    ($($t:ident $dtype:ident $kind:ident; $to32:expr, $odd:expr, $to64:expr, $from32:expr, $from64:expr;)*) => {$(
        impl Elem for $t {
            const DTYPE: DType = DType::$dtype;
            const KIND: NumberKind = NumberKind::$kind;

            #[inline(always)]
            fn to_f32(self) -> f32 {
                $to32(self)
            }
            #[inline(always)]
            fn to_f32_odd(self) -> f32 {
                $odd(self)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                $to64(self)
            }
            #[inline(always)]
            fn from_f32(x: f32) -> Self {
                $from32(x)
            }
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                $from64(x)
            }
        }
    )*};
}

/// The bits of a float16. `half::f16` is not used: its conversions from float64 round twice.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F16(u16);

/// The bits of a bfloat16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct BF16(u16);

impl BF16 {
    /// Exact, a NaN as it is.
    #[inline(always)]
    pub(super) fn unquieted(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

floats! {
    F16 F16 Half; f16_to_f32, f16_to_f32, |x| f64::from(f16_to_f32(x)), f32_to_f16, |x| f32_to_f16(f64_to_odd(x));
    BF16 BF16 Half; bf16_to_f32, bf16_to_f32, |x| f64::from(bf16_to_f32(x)), f32_to_bf16, |x| f32_to_bf16(f64_to_odd(x));
    f32 F32 Single; |x| x, |x| x, f64::from, |x| x, |x| x as f32;
    f64 F64 Double; |x| x as f32, f64_to_odd, |x| x, f64::from, |x| x;
}

/// The bits of a float8_e4m3fn (a `FRACTION` of 3 bits) or a float8_e5m2 (2). A NaN keeps its sign
/// and no payload, as in ml_dtypes. `SATURATE`: what is beyond the largest finite number, an
/// infinity too, becomes it; else a NaN in e4m3fn, which has no infinities, and an infinity in
/// e5m2.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F8<const FRACTION: u32, const SATURATE: bool>(u8);

impl<const FRACTION: u32, const SATURATE: bool> F8<FRACTION, SATURATE> {
    const BIAS: u32 = (1 << (6 - FRACTION)) - 1;
    /// The bits beyond those of all finite numbers.
    const INFINITY: u32 = if FRACTION == 3 { 0x7F } else { 0x7C };
    const NAN: u32 = if FRACTION == 3 { 0x7F } else { 0x7E };
    const LARGEST: u32 = Self::INFINITY - SATURATE as u32;
    /// Bits of a float32 that are beyond the fraction.
    const LOST: u32 = 23 - FRACTION;
    /// From one bias to the other, in the exponent of a float32; below the second one there are subnormal numbers.
    const REBIAS: u32 = (127 - Self::BIAS) << 23;
    const TINY: u32 = Self::REBIAS + (1 << 23);

    /// The bfloat16 above which a subnormal number is rounded to the code behind its own: the middle of the two, or the one before
    /// it where that goes to the even code.
    const LAST_OF: [i16; 8] = {
        let smallest = f32::from_bits((128 - Self::BIAS - FRACTION) << 23);
        let (mut last, mut code) = ([0; 8], 0);
        while code < 8 {
            let middle = (code as f32 + 0.5) * smallest;
            last[code] = (middle.to_bits() >> 16) as i16 - (code % 2) as i16;
            code += 1;
        }
        last
    };

    /// The float of 16 bits with a fraction of `TO` bits. From one power of two to the next a subnormal number is a line of its code, as
    /// the normal ones are. Each line has half the slope of the one before, so the number is the least of all lines.
    #[inline(always)]
    const fn half<const TO: u32>(self) -> u16 {
        let bits = self.0 as i8 as u16;
        let code = bits & 0x7F;
        let (gained, rebias) = (TO - FRACTION, (1 << 14) - (1 << TO) - ((Self::BIAS as u16) << TO));
        let normal = (code << gained) + rebias;
        let (mut small, mut steeper) = (normal, 1);
        while steeper <= FRACTION {
            let line = (code << (gained + steeper))
                .wrapping_add(rebias)
                .wrapping_sub((steeper as u16) << TO);
            // The steepest line of float16 leaves the word, beyond the subnormal numbers.
            small = if line < small { line } else { small };
            steeper += 1;
        }
        let small = pick_word(code == 0, 0, small);
        let finite = match (rebias, TO) {
            // The same subnormal numbers.
            (0, _) => normal,
            (_, 7) => small,
            _ => pick_word(code < 1 << FRACTION, small, normal),
        };
        let infinity = (1 << 15) - (1 << TO);
        let nan = infinity | 1 << (TO - 1);
        let special = pick_word(code > Self::INFINITY as u16 || FRACTION == 3, nan, infinity);
        pick_word(code >= Self::INFINITY as u16, special, finite) | bits & 0x8000
    }

    /// See [`Elem::halves`].
    #[cfg(avx512)]
    const fn bytes_of_halves<const TO: u32>() -> [[u8; 128]; 2] {
        let (mut tables, mut code) = ([[0; 128]; 2], 0);
        while code < 128 {
            let half = Self(code as u8).half::<TO>();
            [tables[0][code], tables[1][code]] = half.to_le_bytes();
            code += 1;
        }
        tables
    }
}

impl<const FRACTION: u32, const SATURATE: bool> Elem for F8<FRACTION, SATURATE> {
    const DTYPE: DType = if FRACTION == 3 { DType::F8E4M3FN } else { DType::F8E5M2 };
    const KIND: NumberKind = NumberKind::Half;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        let bits = u32::from(self.0);
        let code = bits & 0x7F;
        let abs = code << Self::LOST;
        let normal = abs + Self::REBIAS;
        // The fraction of a subnormal under the exponent of the smallest normal number, less that number.
        let small = (f32::from_bits(abs + Self::TINY) - f32::from_bits(Self::TINY)).to_bits();
        let finite = pick(abs < 1 << 23, small, normal);
        let special = pick(code > Self::INFINITY || FRACTION == 3, 0x7FC0_0000, 0x7F80_0000);
        let magnitude = pick(code >= Self::INFINITY, special, finite);
        f32::from_bits((bits & 0x80) << 24 | magnitude)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        let abs = bits & 0x7FFF_FFFF;
        // A carry may run into the exponent.
        let normal = abs.wrapping_sub(Self::REBIAS - (1 << (Self::LOST - 1)) + 1);
        let normal = normal.wrapping_add(abs >> Self::LOST & 1) >> Self::LOST;
        // A float32 whose last bit is the smallest number there is: adding it rounds.
        let unit = (151 - Self::BIAS - FRACTION) << 23;
        let small = (f32::from_bits(abs) + f32::from_bits(unit)).to_bits().wrapping_sub(unit);
        let finite = pick(abs < Self::TINY, small, normal).min(Self::LARGEST);
        let magnitude = match Self::LARGEST == Self::NAN {
            // The bits of a NaN are beyond those of all numbers.
            true => finite,
            false => pick(abs > 0x7F80_0000, Self::NAN, finite),
        };
        F8((bits >> 24 & 0x80 | magnitude) as u8)
    }
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        F8::from_f32(f64_to_odd(x))
    }
    /// Computes in 16 bits: a vector has twice as many of them. With AVX-512 shifts take 0.51 (e4m3fn) and 0.59 (e5m2) of the time of
    /// comparisons with AVX2, 16384 elements in the second cache of Emerald Rapids; with AVX2 they take 1.4 to 1.8 times as long.
    #[inline(always)]
    fn from_bf16<const SHIFTS: bool>(x: BF16) -> Self {
        let abs = x.0 & 0x7FFF;
        let (lost, rebias) = (7 - FRACTION as u16, (Self::REBIAS >> 16) as u16);
        let finite = if SHIFTS {
            // A subnormal number loses a bit more for each power of two that it is below the smallest normal one; from
            // `FRACTION` + 2 on it is 0.
            let below =
                ((Self::TINY >> 23) as u16).saturating_sub(abs >> 7).min(FRACTION as u16 + 2);
            let number = pick_word(below > 0, abs & 0x7F | 0x80, abs.wrapping_sub(rebias));
            let lost = lost + below;
            let rounded = number.wrapping_add((1 << (lost - 1)) - 1);
            rounded.wrapping_add(number >> lost & 1) >> lost
        } else {
            let normal = abs.wrapping_sub(rebias - (1 << (lost - 1)) + 1);
            let normal = normal.wrapping_add(abs >> lost & 1) >> lost;
            let mut small = 0;
            for code in 0..1 << FRACTION {
                small += u16::from(abs as i16 > Self::LAST_OF[code]);
            }
            pick_word(abs < (Self::TINY >> 16) as u16, small, normal)
        };
        let finite = finite.min(Self::LARGEST as u16);
        let magnitude = match Self::LARGEST == Self::NAN {
            true => finite,
            false => pick_word(abs > 0x7F80, Self::NAN as u16, finite),
        };
        F8((x.0 >> 8 & 0x80 | magnitude) as u8)
    }
    #[inline(always)]
    fn to_half<const TO: u32>(self) -> u16 {
        self.half::<TO>()
    }
    #[cfg(avx512)]
    fn halves<const TO: u32>() -> &'static [[u8; 128]; 2] {
        const { &Self::bytes_of_halves::<TO>() }
    }
}

/// `a` or `b`, as a mask and not as a jump.
#[inline(always)]
fn pick(take: bool, a: u32, b: u32) -> u32 {
    let mask = u32::from(take).wrapping_neg();
    (a & mask) | (b & !mask)
}

/// Like [`pick`], in 16 bits.
#[inline(always)]
const fn pick_word(take: bool, a: u16, b: u16) -> u16 {
    let mask = (take as u16).wrapping_neg();
    (a & mask) | (b & !mask)
}

/// Rounds to nearest even; a NaN is quieted and keeps its sign and the top of its payload, as F16C does.
#[inline(always)]
fn f32_to_f16(x: f32) -> F16 {
    let bits = x.to_bits();
    let abs = bits & 0x7FFF_FFFF;
    // Rebias the exponent by -112 and round at bit 13; a carry may run into the exponent.
    let normal = abs.wrapping_add(0xC800_0FFF).wrapping_add((abs >> 13) & 1) >> 13;
    // Below 2^-14 the spacing is 2^-24, which is that of a float32 in [0.5, 1): adding 0.5 rounds.
    let small = (f32::from_bits(abs) + 0.5).to_bits().wrapping_sub(0x3F00_0000);
    let nan = 0x7E00 | ((abs >> 13) & 0x3FF);
    let finite = pick(abs < 0x3880_0000, small, normal);
    let special = pick(abs > 0x7F80_0000, nan, 0x7C00);
    // `special` is for 65536 and above; 65520 up to there reached infinity by the carry.
    let magnitude = pick(abs >= 0x4780_0000, special, finite);
    F16(((bits >> 16) & 0x8000 | magnitude) as u16)
}

/// Exact; a NaN is quieted.
#[inline(always)]
fn f16_to_f32(x: F16) -> f32 {
    const REBIAS: u32 = 112 << 23;
    const TINY: u32 = 113 << 23;
    let bits = u32::from(x.0);
    let abs = (bits & 0x7FFF) << 13;
    let normal = abs + REBIAS;
    // The fraction of a subnormal under the exponent of 2^-14, less that 2^-14.
    let small = (f32::from_bits(abs + TINY) - f32::from_bits(TINY)).to_bits();
    let special = (abs + 2 * REBIAS) | pick(abs > 0x7C00 << 13, 0x0040_0000, 0);
    let finite = pick(abs < 0x0400 << 13, small, normal);
    let magnitude = pick(abs >= 0x7C00 << 13, special, finite);
    f32::from_bits((bits & 0x8000) << 16 | magnitude)
}

/// Rounds to nearest even; a NaN is quieted and keeps its sign and the top of its payload.
#[inline(always)]
fn f32_to_bf16(x: f32) -> BF16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF).wrapping_add((bits >> 16) & 1) >> 16;
    let nan = (bits >> 16) | 0x40;
    BF16(pick(bits & 0x7FFF_FFFF > 0x7F80_0000, nan, rounded) as u16)
}

/// Exact; a NaN is quieted.
#[inline(always)]
fn bf16_to_f32(x: BF16) -> f32 {
    let bits = u32::from(x.0) << 16;
    f32::from_bits(bits | pick(bits & 0x7FFF_FFFF > 0x7F80_0000, 0x0040_0000, 0))
}

/// Rounds to odd: toward zero, with the last bit set when anything was lost. A finite number beyond
/// those of float32 becomes the largest, which is odd. A NaN is quieted.
#[inline(always)]
fn f64_to_odd(x: f64) -> f32 {
    let near = x as f32;
    let back = f64::from(near);
    // Neither holds for a NaN, which `near` has quieted already.
    let up = back.abs() > x.abs();
    let down = back.abs() < x.abs();
    let bits = near.to_bits() - u32::from(up);
    f32::from_bits(bits | u32::from(up | down))
}

/// Like [`f64_to_odd`]; what does not fit a float64 is first made to, with a sticky bit.
#[inline(always)]
fn u64_to_odd(x: u64) -> f32 {
    // At least 42 bits remain, enough for a second rounding to odd at 24.
    let short = (x >> 11 | u64::from(x & 0x7FF != 0)) << 11;
    f64_to_odd(if x >> 53 == 0 { x } else { short } as f64)
}

/// Like [`u64_to_odd`]. The odd neighbour is the same whichever way the shift rounds.
#[inline(always)]
fn i64_to_odd(x: i64) -> f32 {
    let short = (x >> 11 | i64::from(x & 0x7FF != 0)) << 11;
    let fits = x.wrapping_add(1 << 53) as u64 >> 54 == 0;
    f64_to_odd(if fits { x } else { short } as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limits below keep `to_int_unchecked` inside of its range: a limit itself is outside.
    #[test]
    fn nothing_lies_between_a_float_and_the_one_below() {
        for power in -1022..1023 {
            let x = f64::from_bits(((power + 1023) as u64) << 52);
            let below = next_below!(x, f64);
            assert!(below < x && [below, x].contains(&(below + (x - below) / 2.0)), "{x:e}");
            let x = x as f32;
            if x.is_normal() {
                let below = next_below!(x, f32);
                assert!(below < x && [below, x].contains(&(below + (x - below) / 2.0)), "{x:e}");
            }
        }
    }

    /// Types of up to 16 bits are exact in float32, so rounding to odd changes none of them. The rows
    /// know that and do not ask.
    #[test]
    fn small_integers_are_exact_when_rounded_to_odd() {
        for x in i16::MIN..=i16::MAX {
            assert_eq!((x.to_f32_odd(), (x as u16).to_f32_odd()), (x.into(), (x as u16).into()));
            assert_eq!((x as i8).to_f32_odd(), f32::from(x as i8));
            assert_eq!((x as u8).to_f32_odd(), f32::from(x as u8));
            assert_eq!(Bool(x as u8).to_f32_odd(), f32::from(u8::from(x as u8 != 0)));
        }
    }
}
