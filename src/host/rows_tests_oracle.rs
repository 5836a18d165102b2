//! Conversions by their definitions, in integer arithmetic; and the values that tests try.

use crate::tensor::{CastTo, DType};

pub(super) const ARITHMETIC: &[DType] = DType::ALL.split_at(15).0;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }
}

/// Precision, exponent of the smallest normal number and width of a floating-point dtype.
fn format(dtype: DType) -> Option<(u32, i32, u32)> {
    match dtype {
        DType::F16 => Some((11, -14, 16)),
        DType::BF16 => Some((8, -126, 16)),
        DType::F32 => Some((24, -126, 32)),
        DType::F64 => Some((53, -1022, 64)),
        DType::F8E4M3FN => Some((4, -6, 8)),
        DType::F8E5M2 => Some((3, -14, 8)),
        _ => None,
    }
}

/// The code behind the largest finite number; float8_e4m3fn has its NaN there.
fn infinity(dtype: DType) -> u64 {
    let (p, _, width) = format(dtype).unwrap();
    if dtype == DType::F8E4M3FN {
        return 0x7F;
    }
    ((1 << (width - p)) - 1) << (p - 1)
}

pub(super) enum Value {
    /// `magnitude * 2^exponent`
    Finite(bool, u128, i32),
    Infinite(bool),
    /// Sign and payload, left-aligned in 64 bits.
    Nan(bool, u64),
}

pub(super) fn decode(dtype: DType, bits: u64) -> Value {
    let width = dtype.size() as u32 * 8;
    let negative = bits >> (width - 1) & 1 == 1;
    let Some((p, emin, _)) = format(dtype) else {
        let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
        let value = match dtype {
            DType::Bool => i128::from(bits != 0),
            _ if signed && negative => i128::from(bits) - (1 << width),
            _ => i128::from(bits),
        };
        return Value::Finite(value < 0, value.unsigned_abs(), 0);
    };
    let fraction = bits & ((1 << (p - 1)) - 1);
    let magnitude = bits & ((1 << (width - 1)) - 1);
    let field = (magnitude >> (p - 1)) as i32;
    if magnitude >= infinity(dtype) && width == 8 && magnitude != 0x7C {
        // A NaN is compared without its payload.
        Value::Nan(negative, 1 << 63)
    } else if magnitude == infinity(dtype) {
        Value::Infinite(negative)
    } else if magnitude > infinity(dtype) {
        Value::Nan(negative, fraction << (65 - p))
    } else if field == 0 {
        Value::Finite(negative, fraction.into(), emin - (p as i32 - 1))
    } else {
        let whole = u128::from(fraction) | 1 << (p - 1);
        Value::Finite(negative, whole, emin - (p as i32 - 1) + field - 1)
    }
}

/// `magnitude * 2^exponent` in a floating-point dtype, to nearest even, without its sign.
pub(super) fn round(dtype: DType, magnitude: u128, exponent: i32) -> u64 {
    let (p, emin, _) = format(dtype).unwrap();
    if magnitude == 0 {
        return 0;
    }
    let top = 127 - magnitude.leading_zeros() as i32;
    let lowest = emin - (p as i32 - 1);
    let quantum = (top + exponent).max(emin) - (p as i32 - 1);
    let shift = quantum - exponent;
    let units = if shift <= 0 {
        magnitude << -shift
    } else if shift > top + 1 {
        0
    } else {
        let (kept, rest) = (magnitude >> shift, magnitude & ((1 << shift) - 1));
        let half = 1 << (shift - 1);
        kept + u128::from(rest > half || (rest == half && kept & 1 == 1))
    };
    let bits = ((quantum - lowest) as u128) << (p - 1);
    u64::try_from(bits + units).unwrap().min(infinity(dtype))
}

/// The bits of `bits` converted.
pub(super) fn oracle(src: DType, to: impl Into<CastTo>, bits: u64) -> u64 {
    let CastTo { dtype: dst, saturate } = to.into();
    if src == dst {
        return bits;
    }
    let value = decode(src, bits);
    let width = dst.size() as u32 * 8;
    if let Some((p, _, _)) = format(dst) {
        let most = infinity(dst) - u64::from(saturate);
        let (negative, magnitude) = match value {
            Value::Finite(negative, m, e) => (negative, round(dst, m, e).min(most)),
            Value::Infinite(negative) => (negative, most),
            Value::Nan(negative, _) if dst.is_float8() => (negative, infinity(dst) | 2),
            Value::Nan(negative, payload) => {
                (negative, infinity(dst) | 1 << (p - 2) | payload >> (65 - p))
            }
        };
        return u64::from(negative) << (width - 1) | magnitude;
    }
    if dst == DType::Bool {
        return u64::from(!matches!(value, Value::Finite(_, 0, _)));
    }
    let signed = matches!(dst, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    let (low, high) =
        if signed { (-1 << (width - 1), (1 << (width - 1)) - 1) } else { (0, (1 << width) - 1) };
    let exact: i128 = match value {
        Value::Nan(..) => 0,
        Value::Infinite(negative) => [high, low][usize::from(negative)],
        Value::Finite(negative, m, e) => {
            let whole = match e {
                ..=-128 => 0,
                -127..=0 => m >> -e,
                _ if m == 0 => 0,
                _ if e > 60 => 1 << 120,
                _ => m << e,
            };
            let value = i128::try_from(whole).unwrap() * [1, -1][usize::from(negative)];
            if format(src).is_some() {
                value.clamp(low, high)
            } else {
                value
            }
        }
    };
    exact as u64 & (u64::MAX >> (64 - width))
}

pub(super) fn is_quiet_nan(dtype: DType, bits: u64) -> bool {
    let Some((p, _, width)) = format(dtype) else { return false };
    bits & (u64::MAX >> (65 - width)) >= infinity(dtype) | 1 << (p - 2)
}

/// Edges, ties of every narrower type and their neighbours, and pseudo-random values.
pub(super) fn values(dtype: DType) -> Vec<u64> {
    let mut random = Random(dtype as u64 + 1);
    let width = dtype.size() as u32 * 8;
    let all = u64::MAX >> (64 - width);
    if width == 8 {
        return (0..=255).collect();
    }
    let mut bits = vec![0, all, all >> 1, (all >> 1) + 1];
    for k in 0..width {
        for delta in [u64::MAX, 0, 1] {
            let power = 1u64 << k;
            bits.push(power.wrapping_add(delta));
            bits.push(power.wrapping_neg().wrapping_add(delta));
        }
        for _ in 0..8 {
            let near = (random.next() >> 50 | 1) << k;
            for x in [near.wrapping_sub(1), near, near.wrapping_add(1)] {
                bits.extend([x, x.wrapping_neg()]);
            }
            bits.push(random.next() >> k);
        }
    }
    let Some(_) = format(dtype) else {
        bits.iter_mut().for_each(|x| *x &= all);
        return bits;
    };
    bits.clear();
    let sign = 1 << (width - 1);
    for narrow in [DType::F16, DType::BF16, DType::F32, dtype, DType::F8E4M3FN, DType::F8E5M2] {
        // Values and midpoints of the narrower type: those are exact in a wider one.
        let (p, emin, w) = format(narrow).unwrap();
        let top = infinity(narrow);
        let pick = |at: u64| match w {
            8 => at,
            _ => random.next() & (u64::MAX >> (65 - w)) & !0x40,
        };
        let picks = (0..150).map(pick);
        for pick in picks.chain([0, 1, 2, top - 1, 1 << (p - 1), (1 << (p - 1)) - 1]) {
            let Value::Finite(_, m, e) = decode(narrow, pick.min(top - 1)) else { continue };
            assert!(emin < 0);
            for x in [round(dtype, m, e), round(dtype, 2 * m + 1, e - 1)] {
                for y in [x.wrapping_sub(1), x, x + 1] {
                    bits.push(y & (sign - 1));
                }
            }
        }
    }
    for k in [7, 8, 15, 16, 24, 31, 32, 53, 63, 64] {
        for delta in [-2, -1, 0, 1, 2] {
            let m = ((1i128 << k) * 2 + delta).unsigned_abs();
            let x = round(dtype, m, -1);
            bits.extend([x.wrapping_sub(1) & (sign - 1), x, x + 1]);
        }
    }
    let top = infinity(dtype);
    bits.extend([0, 1, top, top + 1, top - 1, sign - 1, top | sign >> 8, top | 0x155]);
    let negative: Vec<u64> = bits.iter().map(|x| x | sign).collect();
    bits.extend(negative);
    bits.extend((0..400).map(|_| random.next() & all));
    bits
}
