//! [`Scalar`]: a padding value that reaches every dtype exactly, without a detour through float.

use std::cmp::Reverse;

use half::{bf16, f16};

use crate::tensor::dtype::DType;
use crate::tensor::error::{Error, Result};

/// A number as given by the caller.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Scalar {
    /// Any integer of 64 bits, signed or not; bool as 0 and 1.
    Int(i128),
    /// A floating-point number.
    Float(f64),
    /// Real and imaginary part.
    Complex(f64, f64),
}

impl Scalar {
    /// The signs of its parts, which `==` does not compare of zeros: a negative one is true. `[false; 2]` for integers.
    pub(crate) fn signs(self) -> [bool; 2] {
        match self {
            Scalar::Int(_) => [false; 2],
            Scalar::Float(value) => [value.is_sign_negative(), false],
            Scalar::Complex(re, im) => [re.is_sign_negative(), im.is_sign_negative()],
        }
    }
}

impl Default for Scalar {
    fn default() -> Self {
        Scalar::Int(0)
    }
}

macro_rules! from_int {
    ($($t:ty)*) => { $(impl From<$t> for Scalar {
        fn from(value: $t) -> Self { Scalar::Int(i128::from(value)) }
    })* };
}
from_int!(i8 i16 i32 i64 u8 u16 u32 u64 bool);

impl From<f64> for Scalar {
    fn from(value: f64) -> Self {
        Scalar::Float(value)
    }
}

impl From<f32> for Scalar {
    fn from(value: f32) -> Self {
        Scalar::Float(value.into())
    }
}

impl Scalar {
    /// The bits of this number in `dtype`, in the first `dtype.size()` bytes; the others are 0. `dtype` has this machine's
    /// byte order.
    ///
    /// # Errors
    /// [`Error::Argument`] if an integer dtype cannot hold it exactly, if a finite number would become infinite, if it is complex
    /// and `dtype` is not, or if a float8 or float4 dtype lacks it (NaN, infinity, sign). Floating-point dtypes round to
    /// nearest even.
    pub fn bits(self, dtype: DType) -> Result<[u8; 16]> {
        let refuse = || Error::argument(format!("value={self} is not representable in {dtype}"));
        let mut bits = [0u8; 16];
        let mut put = |bytes: &[u8]| bits[..bytes.len()].copy_from_slice(bytes);
        if dtype == DType::Bool || dtype.is_integer() || dtype.is_padded() {
            let value = self.as_int().ok_or_else(refuse)?;
            let (low, high) = int_range(dtype);
            if !(low..=high).contains(&value) {
                return Err(refuse());
            }
            put(&value.to_le_bytes()[..dtype.size()]);
            if dtype.is_padded() {
                bits[0] &= 0xf;
            }
            return Ok(bits);
        }
        let (re, im) = self.as_complex();
        let finite_stays_finite =
            |rounded: f64, exact: f64| !exact.is_finite() || rounded.is_finite();
        match dtype {
            DType::C64 | DType::C128 => {
                if dtype == DType::C64 {
                    let pair = [self.to_f32(), im as f32];
                    if !finite_stays_finite(pair[0].into(), re)
                        || !finite_stays_finite(pair[1].into(), im)
                    {
                        return Err(refuse());
                    }
                    put(&pair[0].to_ne_bytes());
                    bits[4..8].copy_from_slice(&pair[1].to_ne_bytes());
                } else {
                    put(&re.to_ne_bytes());
                    bits[8..16].copy_from_slice(&im.to_ne_bytes());
                }
                return Ok(bits);
            }
            _ if matches!(self, Scalar::Complex(..)) => return Err(refuse()),
            DType::F64 => put(&re.to_ne_bytes()),
            DType::F32 => put(&self.to_f32().to_ne_bytes()),
            DType::F16 => put(&f16::from_f32(self.to_odd_f32()).to_ne_bytes()),
            DType::BF16 => put(&bf16::from_f32(self.to_odd_f32()).to_ne_bytes()),
            DType::F4E2M1FNX2 => put(&[float4_pair(re).ok_or_else(refuse)?]),
            _ => put(&[float8_code(dtype, re).ok_or_else(refuse)?]),
        }
        let rounded = match dtype {
            DType::F32 => f32::from_ne_bytes([bits[0], bits[1], bits[2], bits[3]]).into(),
            DType::F16 => f16::from_ne_bytes([bits[0], bits[1]]).to_f64(),
            DType::BF16 => bf16::from_ne_bytes([bits[0], bits[1]]).to_f64(),
            _ => 0.0,
        };
        if finite_stays_finite(rounded, re) {
            Ok(bits)
        } else {
            Err(refuse())
        }
    }

    /// The number as an integer; `None` if it has a fraction, is complex, or is a float that no dtype's integers reach.
    fn as_int(self) -> Option<i128> {
        match self {
            Scalar::Int(value) => Some(value),
            // No integer dtype reaches beyond 2^64, so the cast below cannot saturate unnoticed.
            Scalar::Float(value) if value.fract() == 0.0 && value.abs() <= 1.9e19 => {
                Some(value as i128)
            }
            _ => None,
        }
    }

    /// The number, or the real part, rounded once, to nearest even. An integer does not go through float64.
    pub(crate) fn to_f32(self) -> f32 {
        match self {
            Scalar::Int(value) => value as f32,
            Scalar::Float(value) | Scalar::Complex(value, _) => value as f32,
        }
    }

    /// float32 with the lost bits folded into the last one, so that rounding the result once more, to
    /// 16 bits, equals rounding the number once (Boldo and Melquiond, 2008).
    pub(crate) fn to_odd_f32(self) -> f32 {
        let nearest = self.to_f32();
        let (exact, beyond) = match self {
            // A float32 of this size is an integer of fewer than 128 bits.
            Scalar::Int(value) => {
                (nearest as i128 == value, (nearest as i128).unsigned_abs() > value.unsigned_abs())
            }
            Scalar::Float(value) | Scalar::Complex(value, _) => {
                let wide = f64::from(nearest);
                (wide == value || value.is_nan(), wide.abs() > value.abs())
            }
        };
        if exact {
            nearest
        } else {
            f32::from_bits((nearest.to_bits() - u32::from(beyond)) | 1)
        }
    }

    /// Real and imaginary part, of which an integer is rounded to float64.
    fn as_complex(self) -> (f64, f64) {
        match self {
            Scalar::Int(value) => (value as f64, 0.0),
            Scalar::Float(value) => (value, 0.0),
            Scalar::Complex(re, im) => (re, im),
        }
    }
}

impl std::fmt::Display for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Scalar::Int(value) => value.fmt(f),
            Scalar::Float(value) if *value == 0.0 || (1e-5..1e16).contains(&value.abs()) => {
                value.fmt(f)
            }
            // The number is not printed as hundreds of zeros.
            Scalar::Float(value) => write!(f, "{value:e}"),
            Scalar::Complex(re, im) => write!(f, "{re}{im:+}j"),
        }
    }
}

/// The smallest and the largest value of bool or an integer dtype, int4 and uint4 included.
fn int_range(dtype: DType) -> (i128, i128) {
    match dtype {
        DType::Bool => (0, 1),
        DType::I4 => (-8, 7),
        DType::U4 => (0, 15),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => (0, (1 << (8 * dtype.size())) - 1),
        _ => (-(1 << (8 * dtype.size() - 1)), (1 << (8 * dtype.size() - 1)) - 1),
    }
}

/// A byte with the code of the float4 nearest to `value` in both halves; on a tie the even code. `None` for NaN and beyond 6.
fn float4_pair(value: f64) -> Option<u8> {
    const MAGNITUDES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let distance = |code: u8| (MAGNITUDES[usize::from(code)] - value.abs()).abs();
    let nearest =
        |a: &u8, b: &u8| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1)));
    let code = (0..8).min_by(nearest).filter(|_| value.abs() <= MAGNITUDES[7])?;
    Some((code | u8::from(value.is_sign_negative()) << 3) * 0x11)
}

/// The code of the float8 nearest to `value`; on a tie the even code, of float8_e8m0fnu the larger. The code of a NaN is that of
/// the quiet one. A zero without its sign, or without a code of its own, is the nearest there is. `None` if the type has no NaN,
/// no infinity, no such sign, or no magnitude to which a cast rounds the value.
fn float8_code(dtype: DType, value: f64) -> Option<u8> {
    let codes = (0..=255u8).map(|code| (code, float8_value(dtype, code)));
    if value.is_nan() {
        // The quiet one has the top bit of the mantissa alone.
        let nans = codes.filter(|(_, candidate)| candidate.is_nan()).map(|(code, _)| code);
        return nans.min_by_key(|code| Reverse(code.trailing_zeros()));
    }
    let same = |candidate: f64| {
        candidate == value && candidate.is_sign_negative() == value.is_sign_negative()
    };
    if let Some((code, _)) = codes.clone().find(|&(_, candidate)| same(candidate)) {
        return Some(code);
    }
    if !value.is_finite() {
        return None;
    }
    let candidates = codes.filter(|(_, candidate)| candidate.is_finite());
    let fits =
        |candidate: f64| value == 0.0 || candidate.is_sign_negative() == value.is_sign_negative();
    let candidates = candidates.filter(|&(_, candidate)| fits(candidate));
    let largest = candidates.clone().map(|(_, candidate)| candidate.abs()).fold(0.0, f64::max);
    let below = candidates.clone().map(|(_, candidate)| candidate.abs());
    let below = below.filter(|&candidate| candidate < largest).fold(0.0, f64::max);
    // The next magnitude would be as far from the largest as the one below, but for powers of two.
    let half = if dtype == DType::F8E8M0FNU { 0.0 } else { (largest - below) / 2.0 };
    let distance = |candidate: f64| (candidate - value).abs();
    let on_tie = |a: u8, b: u8| match dtype {
        DType::F8E8M0FNU => b.cmp(&a),
        _ => (a & 1).cmp(&(b & 1)),
    };
    let (code, _) = candidates
        .min_by(|(a, x), (b, y)| distance(*x).total_cmp(&distance(*y)).then(on_tie(*a, *b)))?;
    let beyond = value.abs() - largest;
    (beyond <= 0.0 || beyond < half || beyond == half && code & 1 == 0).then_some(code)
}

/// The value of a code of one of the eight float8 dtypes, after the table of formats in the
/// `ml_dtypes` documentation; any other dtype counts as float8_e5m2fnuz.
fn float8_value(dtype: DType, code: u8) -> f64 {
    if dtype == DType::F8E8M0FNU {
        return if code == 0xff { f64::NAN } else { 2f64.powi(i32::from(code) - 127) };
    }
    let (mantissa_bits, bias, finite, unsigned_zero) = match dtype {
        DType::F8E3M4 => (4, 3, false, false),
        DType::F8E4M3 => (3, 7, false, false),
        DType::F8E4M3B11FNUZ => (3, 11, true, true),
        DType::F8E4M3FN => (3, 7, true, false),
        DType::F8E4M3FNUZ => (3, 8, true, true),
        DType::F8E5M2 => (2, 15, false, false),
        _ => (2, 16, true, true),
    };
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = ((code & 0x7f) >> mantissa_bits, code & ((1 << mantissa_bits) - 1));
    let top = (1 << (7 - mantissa_bits)) - 1;
    if unsigned_zero && code == 0x80 || (finite && !unsigned_zero && code & 0x7f == 0x7f) {
        return f64::NAN;
    }
    if !finite && exponent == top {
        return if mantissa == 0 { sign * f64::INFINITY } else { f64::NAN };
    }
    let fraction = f64::from(mantissa) / f64::from(1 << mantissa_bits);
    match exponent {
        0 => sign * fraction * 2f64.powi(1 - bias),
        _ => sign * (1.0 + fraction) * 2f64.powi(i32::from(exponent) - bias),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_exact() {
        let max = Scalar::from(u64::MAX).bits(DType::U64).unwrap();
        assert_eq!(max[..8], [0xff; 8]);
        let value = (1i64 << 53) + 1;
        assert_eq!(Scalar::from(value).bits(DType::I64).unwrap()[..8], value.to_ne_bytes());
        for (value, dtype) in [
            (Scalar::from(256), DType::U8),
            (Scalar::from(-1), DType::U64),
            (Scalar::from(2), DType::Bool),
            (Scalar::from(0.5), DType::I32),
            (Scalar::from(f64::NAN), DType::I8),
            (Scalar::from(1e30), DType::I64),
            (Scalar::from(65536), DType::F16),
            (Scalar::from(1e39), DType::F32),
            (Scalar::Complex(0.0, 1.0), DType::F64),
            (Scalar::from(-1), DType::F8E8M0FNU),
            (Scalar::from(f64::INFINITY), DType::F8E4M3FN),
            (Scalar::from(500), DType::F8E4M3FN),
            (Scalar::from(8), DType::I4),
            (Scalar::from(-1), DType::U4),
            (Scalar::from(0.5), DType::U4),
            (Scalar::from(6.5), DType::F4E2M1FNX2),
            (Scalar::from(f64::NAN), DType::F4E2M1FNX2),
        ] {
            let error = value.bits(dtype).unwrap_err();
            assert!(error.to_string().contains(dtype.name()), "{error}");
        }
        assert_eq!(Scalar::from(-100.0).bits(DType::I8).unwrap()[0], 156);
    }

    #[test]
    fn numbers_in_errors_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (-2.5, "-2.5"),
            (70_000.0, "70000"),
            (1e300, "1e300"),
            (-3e-7, "-3e-7"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(Scalar::Float(value).to_string(), text);
        }
    }

    #[test]
    fn sixteen_bit_floats_are_rounded_once() {
        // Just above the tie between 1 and 1 + 2^-10: through float32 it would fall back onto the tie.
        let above = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(Scalar::from(above).bits(DType::F16).unwrap()[..2], 0x3c01u16.to_ne_bytes());
        assert_eq!(
            Scalar::from(1.0 + 2f64.powi(-11)).bits(DType::F16).unwrap()[..2],
            0x3c00u16.to_ne_bytes()
        );
    }

    #[test]
    fn integers_reach_float32_in_one_step() {
        // 2^63 + 2^39 + 1 is just above a tie of float32; float64 would round it onto the tie.
        let value = Scalar::Int((1 << 63) + (1 << 39) + 1);
        let up = 9_223_373_136_366_403_584f32;
        assert_eq!(value.bits(DType::F32).unwrap()[..4], up.to_ne_bytes());
    }

    #[test]
    fn codes_of_one_byte() {
        for (dtype, value, code) in [
            (DType::F8E4M3FN, 1.0, 0x38),
            (DType::F8E4M3FN, 448.0, 0x7e),
            (DType::F8E4M3FN, f64::NAN, 0x7f),
            (DType::F8E5M2, -1.0, 0xbc),
            (DType::F8E5M2, f64::INFINITY, 0x7c),
            (DType::F8E5M2, -0.0, 0x80),
            (DType::F8E4M3FNUZ, 1.0, 0x40),
            (DType::F8E4M3FNUZ, -0.0, 0x00),
            (DType::F8E4M3FNUZ, f64::NAN, 0x80),
            (DType::F8E8M0FNU, 1.0, 0x7f),
            (DType::F8E8M0FNU, 0.0, 0x00),
            (DType::F8E4M3FN, 1.0625, 0x38),
            (DType::F8E4M3FN, 1.1875, 0x3a),
            (DType::F8E3M4, 15.5, 0x6f),
            (DType::I4, -1.0, 0x0f),
            (DType::I4, 7.0, 0x07),
            (DType::U4, 15.0, 0x0f),
            (DType::F4E2M1FNX2, 0.0, 0x00),
            (DType::F4E2M1FNX2, 1.25, 0x22),
            (DType::F4E2M1FNX2, 1.75, 0x44),
            (DType::F4E2M1FNX2, -6.0, 0xff),
        ] {
            assert_eq!(Scalar::from(value).bits(dtype).unwrap()[0], code, "{dtype} {value}");
        }
    }
}
