//! Conversions of single elements, by exact integer arithmetic on their bits.

use windrow::tensor::Scalar;
use windrow::DType;

/// The bits of one element, in the low `dtype.size()` bytes.
pub type Bits = u128;

/// The value of an arithmetic dtype's bits.
#[derive(Clone, Copy, Debug)]
enum Num {
    /// `mag * 2^exp`, negated if `neg`.
    Exact {
        neg: bool,
        mag: u128,
        exp: i32,
    },
    Infinite {
        neg: bool,
    },
    /// The payload is left-aligned in 64 bits, so that its top bit is the quiet bit.
    Nan {
        neg: bool,
        payload: u64,
    },
}

/// Bits of the exponent and of the fraction.
fn float_parts(dtype: DType) -> Option<(u32, u32)> {
    match dtype {
        DType::F16 => Some((5, 10)),
        DType::BF16 => Some((8, 7)),
        DType::F32 => Some((8, 23)),
        DType::F64 => Some((11, 52)),
        DType::F8E4M3FN => Some((4, 3)),
        DType::F8E5M2 => Some((5, 2)),
        _ => None,
    }
}

fn is_signed(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64)
}

fn low(bits: u32) -> u128 {
    (1 << bits) - 1
}

fn decode(dtype: DType, bits: Bits) -> Num {
    let width = 8 * dtype.size() as u32;
    let Some((exponent_bits, fraction_bits)) = float_parts(dtype) else {
        if dtype == DType::Bool {
            return Num::Exact { neg: false, mag: u128::from(bits & 0xff != 0), exp: 0 };
        }
        let neg = is_signed(dtype) && bits >> (width - 1) & 1 == 1;
        let mag = if neg { (1 << width) - bits } else { bits };
        return Num::Exact { neg, mag, exp: 0 };
    };
    let neg = bits >> (width - 1) & 1 == 1;
    let field = (bits >> fraction_bits & low(exponent_bits)) as i32;
    let fraction = bits & low(fraction_bits);
    let bias = (1 << (exponent_bits - 1)) - 1;
    let fraction_exp = 1 - bias - fraction_bits as i32;
    let has_numbers = dtype == DType::F8E4M3FN && fraction != low(fraction_bits);
    if field as u128 == low(exponent_bits) && !has_numbers {
        if dtype.is_float8() && fraction != 0 {
            return Num::Nan { neg, payload: 1 << 63 };
        }
        let payload = (fraction as u64) << (64 - fraction_bits);
        return if fraction == 0 { Num::Infinite { neg } } else { Num::Nan { neg, payload } };
    }
    match field {
        0 => Num::Exact { neg, mag: fraction, exp: fraction_exp },
        _ => Num::Exact { neg, mag: fraction | 1 << fraction_bits, exp: fraction_exp + field - 1 },
    }
}

/// The code behind that of the largest finite number: an infinity, or the NaN of float8_e4m3fn, which has none.
fn infinity_of(dtype: DType, exponent_bits: u32, fraction_bits: u32) -> Bits {
    match dtype {
        DType::F8E4M3FN => 0x7f,
        _ => low(exponent_bits) << fraction_bits,
    }
}

/// Converts to a float format, to nearest even.
fn encode_float(dtype: DType, num: Num) -> Bits {
    let (exponent_bits, fraction_bits) = float_parts(dtype).expect("a float");
    let infinity = infinity_of(dtype, exponent_bits, fraction_bits);
    let sign = |neg: bool| u128::from(neg) << (exponent_bits + fraction_bits);
    match num {
        Num::Infinite { neg } => sign(neg) | infinity,
        Num::Nan { neg, .. } if dtype.is_float8() => sign(neg) | infinity | 2,
        Num::Nan { neg, payload } => {
            let quiet = 1 << (fraction_bits - 1);
            sign(neg) | infinity | quiet | u128::from(payload >> (64 - fraction_bits))
        }
        Num::Exact { neg, mag: 0, .. } => sign(neg),
        Num::Exact { neg, mag, exp } => {
            let bias = (1 << (exponent_bits - 1)) - 1;
            let leading = exp + 127 - mag.leading_zeros() as i32;
            let binade = leading.max(1 - bias);
            // The value in units of the last place of its binade.
            let shift = binade - fraction_bits as i32 - exp;
            let units = match shift {
                ..=0 => mag << -shift,
                1..=127 => {
                    let (whole, rest, half) =
                        (mag >> shift, mag & low(shift as u32), 1 << (shift - 1));
                    whole + u128::from(rest > half || rest == half && whole & 1 == 1)
                }
                _ => 0,
            };
            // A normal number carries its implicit bit into the exponent field; so does rounding up.
            let bits = (((binade + bias - 1) as u128) << fraction_bits) + units;
            sign(neg) | bits.min(infinity)
        }
    }
}

/// Converts to an integer: wraps an integer, truncates and saturates a float.
fn encode_integer(dtype: DType, num: Num, from_float: bool) -> Bits {
    let width = 8 * dtype.size() as u32;
    let (least, most) = match is_signed(dtype) {
        true => (-(1i128 << (width - 1)), (1i128 << (width - 1)) - 1),
        false => (0, (1i128 << width) - 1),
    };
    let value = match num {
        Num::Nan { .. } => 0,
        Num::Infinite { neg } => [most, least][usize::from(neg)],
        Num::Exact { neg, mag, exp } => {
            let whole = match exp {
                ..=-128 => 0,
                -127..=0 => mag >> -exp,
                _ if mag == 0 => 0,
                1..=70 => mag << exp.min(60),
                _ => 1 << 100,
            };
            let value = if neg { -(whole as i128) } else { whole as i128 };
            if from_float {
                value.clamp(least, most)
            } else {
                value
            }
        }
    };
    value as u128 & low(width)
}

fn encode(dtype: DType, num: Num, from_float: bool) -> Bits {
    match dtype {
        DType::Bool => u128::from(!matches!(num, Num::Exact { mag: 0, .. })),
        _ if float_parts(dtype).is_some() => encode_float(dtype, num),
        _ => encode_integer(dtype, num, from_float),
    }
}

/// A cast, as the contract describes it.
pub fn cast(src: DType, dst: DType, bits: Bits) -> Bits {
    if src == dst {
        return bits;
    }
    encode(dst, decode(src, bits), float_parts(src).is_some())
}

/// The same to float8 whose largest number all larger ones become.
pub fn cast_saturating(src: DType, dst: DType, bits: Bits) -> Bits {
    let code = cast(src, dst, bits);
    let largest = if dst == DType::F8E4M3FN { 0x7e } else { 0x7b };
    match src == dst || code & 0x7f <= largest || is_nan(src, bits) {
        true => code,
        false => code & 0x80 | largest,
    }
}

fn is_nan(dtype: DType, bits: Bits) -> bool {
    matches!(decode(dtype, bits), Num::Nan { .. })
}

/// One multiply-add, in float64 if source or result is, else in float32; rounded once more by `cast_last`.
pub fn affine(
    [src, dst]: [DType; 2],
    bits: Bits,
    (a, b): (f64, f64),
    cast_last: fn(DType, DType, Bits) -> Bits,
) -> Bits {
    if src == DType::F64 || dst == DType::F64 {
        let x = f64::from_bits(cast(src, DType::F64, bits) as u64);
        cast_last(DType::F64, dst, x.mul_add(a, b).to_bits().into())
    } else {
        let x = f32::from_bits(cast(src, DType::F32, bits) as u32);
        cast_last(DType::F32, dst, x.mul_add(a as f32, b as f32).to_bits().into())
    }
}

/// The bits of a padding value that the dtype can hold.
pub fn scalar(value: Scalar, dtype: DType) -> Bits {
    let float = |x: f64| u128::from(x.to_bits());
    let part = |dtype: DType, value: f64| cast(DType::F64, dtype, float(value));
    match (dtype, value) {
        (DType::C64 | DType::C128, value) => {
            let half = if dtype == DType::C64 { DType::F32 } else { DType::F64 };
            match value {
                Scalar::Complex(re, im) => part(half, re) | part(half, im) << (8 * half.size()),
                real => scalar(real, half),
            }
        }
        (_, Scalar::Int(value)) if dtype.is_arithmetic() => {
            let num = Num::Exact { neg: value < 0, mag: value.unsigned_abs(), exp: 0 };
            encode(dtype, num, false)
        }
        (_, Scalar::Float(value)) if dtype.is_arithmetic() => part(dtype, value),
        (_, Scalar::Int(0)) => 0,
        (_, Scalar::Int(1)) => match dtype {
            DType::F8E3M4 => 0x30,
            DType::F8E4M3 => 0x38,
            DType::F8E4M3B11FNUZ => 0x58,
            DType::F8E4M3FNUZ | DType::F8E5M2FNUZ => 0x40,
            DType::F8E8M0FNU => 0x7f,
            DType::I4 | DType::U4 => 0x01,
            DType::F4E2M1FNX2 => 0x22,
            other => panic!("{other} is not only moved"),
        },
        (dtype, value) => panic!("{value} in {dtype} is not in the table"),
    }
}

/// Bits that are worth a try: zeros, ends of the range, powers of two and their neighbours, ties,
/// infinities and NaN of both kinds.
pub fn edges(dtype: DType) -> Vec<Bits> {
    let width = 8 * dtype.size() as u32;
    let Some((exponent_bits, fraction_bits)) = float_parts(dtype) else {
        let mut edges = vec![0, 1, low(width), low(width - 1), 1 << (width - 1)];
        for bit in 0..width {
            let power = 1u128 << bit;
            edges.extend([
                power - 1,
                power,
                power + 1,
                low(width) - power,
                low(width) ^ (power - 1),
            ]);
        }
        edges.retain(|&bits| bits <= low(width));
        return edges;
    };
    if width == 8 {
        let all = 0..=0xff;
        return all.filter(|&code| !(cfg!(miri) && is_nan(dtype, code))).collect();
    }
    let infinity = low(exponent_bits) << fraction_bits;
    let mut edges =
        vec![0, 1, 2, infinity - 1, 1 << fraction_bits, (1 << fraction_bits) - 1, infinity];
    if !cfg!(miri) {
        // Miri picks the payload of a computed NaN at random.
        edges.extend([
            infinity + 1,
            infinity | 1 << (fraction_bits - 1),
            infinity | 5 << (fraction_bits - 4),
        ]);
    }
    for value in [
        0.5,
        1.0,
        1.5,
        2.5,
        3.5,
        127.5,
        255.0,
        256.0,
        32768.0,
        65504.0,
        65519.0,
        65520.0,
        // The last finite numbers of float8, what is rounded to them, and what is not.
        447.0,
        448.0,
        464.0,
        465.0,
        57344.0,
        61408.0,
        61440.0,
        2147483647.5,
    ] {
        edges.push(cast(DType::F64, dtype, u128::from(f64::to_bits(value))));
    }
    for power in
        [-160, -25, -24, -17, -16, -14, -10, -9, -6, 7, 8, 15, 16, 24, 31, 32, 53, 63, 64, 127]
    {
        let bits = cast(DType::F64, dtype, u128::from(2f64.powi(power).to_bits()));
        let finite = bits.clamp(1, infinity - 2);
        edges.extend([finite - 1, finite, finite + 1]);
    }
    let sign = 1 << (exponent_bits + fraction_bits);
    let negative: Vec<_> = edges.iter().map(|bits| bits | sign).collect();
    edges.extend(negative);
    edges
}
