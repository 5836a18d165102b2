//! Arithmetic and conversions of floats. The host's own are correctly rounded, as a GPU's are.

use half::{bf16, f16};

use crate::probe::{check, check_p, check_pair, State, JOINS};

const NAN: u32 = 0x7FFF_FFFF;

fn bits(value: f32) -> u32 {
    if value.is_nan() {
        NAN
    } else {
        value.to_bits()
    }
}
fn f(s: &State, register: usize, lane: usize) -> f32 {
    f32::from_bits(s.r(register, lane))
}
fn d(s: &State, register: usize, lane: usize) -> f64 {
    f64::from_bits(s.pair(register, lane))
}

#[test]
pub fn float32() {
    check("FADD R0, R2, R4", |s, l| bits(f(s, 2, l) + f(s, 4, l)));
    check("FADD R0, R2, -8388608 /* 0xcb000000 */", |s, l| bits(f(s, 2, l) - 8_388_608.0));
    check("FADD R0, |R2|, -R4", |s, l| bits(f(s, 2, l).abs() - f(s, 4, l)));
    check("FMUL R0, R2, R4", |s, l| bits(f(s, 2, l) * f(s, 4, l)));
    check("FFMA R0, R2, R4, R6", |s, l| bits(f(s, 2, l).mul_add(f(s, 4, l), f(s, 6, l))));
    for modifier in ["RP", "RM", "RZ"] {
        check(&format!("FFMA.{modifier} R0, R2, R4, R6"), |s, l| {
            let [x, y, z] = [2, 4, 6].map(|register| f(s, register, l));
            let near = x.mul_add(y, z);
            // The distance of the nearest number from the exact one.
            let (product, z) = (f64::from(x) * f64::from(y), f64::from(z));
            let sum = product + z;
            let of_z = sum - product;
            let rest = (sum - f64::from(near)) + ((product - (sum - of_z)) + (z - of_z));
            let goes_up = modifier == "RP" || modifier == "RZ" && near < 0.0;
            let goes_down = modifier == "RM" || modifier == "RZ" && near > 0.0;
            bits(match near.is_finite() {
                true if rest > 0.0 && goes_up => near.next_up(),
                true if rest < 0.0 && goes_down => near.next_down(),
                _ => near,
            })
        });
    }
    check_p("FCHK P0, R2, R4", |s, l| {
        let [over, under] = [2, 4].map(|register| (s.r(register, l) >> 23 & 255) as i32);
        !(26..255).contains(&over)
            || !(2..=251).contains(&under)
            || !(-100..=125).contains(&(over - under))
    });
    check("FMUL.RZ R0, R2, 0.3 /* 0x3e99999a */", |s, l| {
        let exact = f64::from(f(s, 2, l)) * f64::from(f32::from_bits(0x3E99_999A));
        let near = exact as f32;
        let is_away = f64::from(near).abs() > exact.abs();
        bits(if is_away { f32::from_bits(near.to_bits() - 1) } else { near })
    });
    check("MUFU.RCP R0, R2", |s, l| bits(1.0 / f(s, 2, l)));
    check("MUFU.RSQ R0, R2", |s, l| bits(1.0 / f(s, 2, l).sqrt()));
    let flushed = |x: f32| if x.is_subnormal() { 0f32.copysign(x) } else { x };
    check("FADD.FTZ R0, R2, R4", move |s, l| {
        bits(flushed(flushed(f(s, 2, l)) + flushed(f(s, 4, l))))
    });
    check_p("FSETP.NEU.FTZ.AND P0, PT, R2, RZ, PT", move |s, l| flushed(f(s, 2, l)) != 0.0);
    check("FSEL R0, R2, R4, P1", |s, l| s.r(if s.p(1, l) { 2 } else { 4 }, l));
    check("FMNMX R0, R2, R4, PT", |s, l| {
        let (x, y) = (f(s, 2, l), f(s, 4, l));
        match (x.is_nan(), y.is_nan()) {
            (true, true) => NAN,
            (true, false) => y.to_bits(),
            (false, true) => x.to_bits(),
            _ if x == y => if x.is_sign_negative() { x } else { y }.to_bits(),
            _ => x.min(y).to_bits(),
        }
    });
    let most = |all: &[f32]| {
        let nan = all.iter().any(|x| x.is_nan());
        bits(if nan { f32::NAN } else { all.iter().fold(0.0, |most, x| x.abs().max(most)) })
    };
    check("FMNMX.NAN R0, |R2|, |R4|, !PT", move |s, l| most(&[f(s, 2, l), f(s, 4, l)]));
    check("FMNMX3.NAN R0, |R2|, |R4|, |R6|, !PT", move |s, l| {
        most(&[f(s, 2, l), f(s, 4, l), f(s, 6, l)])
    });
    check("FMNMX3 R0, |R2|, |R4|, |R6|, !PT", |s, l| {
        let all = [f(s, 2, l), f(s, 4, l), f(s, 6, l)];
        bits(all.iter().fold(f32::NAN, |most, x| x.abs().max(most)))
    });
}

#[test]
pub fn comparisons() {
    type Holds = fn(f64, f64) -> bool;
    let unordered = |x: f64, y: f64| x.is_nan() || y.is_nan();
    let all: [(&str, Holds); 14] = [
        ("LT", |x, y| x < y),
        ("LE", |x, y| x <= y),
        ("GT", |x, y| x > y),
        ("GE", |x, y| x >= y),
        ("EQ", |x, y| x == y),
        ("NE", |x, y| x < y || x > y),
        ("NUM", |x, y| !x.is_nan() && !y.is_nan()),
        ("NAN", |x, y| x.is_nan() || y.is_nan()),
        ("LTU", |x, y| !(x >= y)),
        ("LEU", |x, y| !(x > y)),
        ("GTU", |x, y| !(x <= y)),
        ("GEU", |x, y| !(x < y)),
        ("EQU", |x, y| !(x < y || x > y)),
        ("NEU", |x, y| x != y),
    ];
    for (name, holds) in all {
        for (join, joined) in JOINS {
            check_p(&format!("FSETP.{name}.{join} P0, PT, R2, R4, P1"), |s, l| {
                joined(holds(f(s, 2, l).into(), f(s, 4, l).into()), s.p(1, l))
            });
            check_p(&format!("DSETP.{name}.{join} P0, PT, R2, R4, P1"), |s, l| {
                joined(holds(d(s, 2, l), d(s, 4, l)), s.p(1, l))
            });
        }
    }
    check_p("FSETP.NAN.AND P0, PT, R2, R2, PT", move |s, l| {
        unordered(f(s, 2, l).into(), f(s, 2, l).into())
    });
    check_p("DSETP.GE.AND P0, PT, R2, 128 /* 0x40600000 */, PT", |s, l| d(s, 2, l) >= 128.0);
}

#[test]
pub fn float64() {
    let wide = |value: f64| if value.is_nan() { 0xFFF8_0000_0000_0000 } else { value.to_bits() };
    check_pair("DADD R0, R2, R4", move |s, l| wide(d(s, 2, l) + d(s, 4, l)));
    check_pair("DMUL R0, R2, -R4", move |s, l| wide(d(s, 2, l) * -d(s, 4, l)));
    check_pair("DFMA R0, R2, R4, R6", move |s, l| wide(d(s, 2, l).mul_add(d(s, 4, l), d(s, 6, l))));
}

#[test]
pub fn float16_pairs() {
    let h = |s: &State, register, lane, k| f16::from_bits((s.r(register, lane) >> (16 * k)) as u16);
    let to = |value: f64| {
        let half = f16::from_f64(value);
        if half.is_nan() {
            0x7FFF
        } else {
            u32::from(half.to_bits())
        }
    };
    let pair = |f: &dyn Fn(u32) -> f64| to(f(0)) | to(f(1)) << 16;
    check("HADD2 R0, R2, -1024, -1024 /* 0xe400e400 */", move |s, l| {
        pair(&|k| f64::from(h(s, 2, l, k)) - 1024.0)
    });
    check("HADD2 R0, R2, R4.H1_H1", move |s, l| {
        pair(&|k| f64::from(h(s, 2, l, k)) + f64::from(h(s, 4, l, 1)))
    });
    check("HMUL2 R0, R2, R4", move |s, l| {
        pair(&|k| f64::from(h(s, 2, l, k)) * f64::from(h(s, 4, l, k)))
    });
    let most = |all: &[f16]| match all.iter().any(|x| x.is_nan()) {
        true => 0x7FFF,
        false => to(all.iter().map(|x| f64::from(*x).abs()).fold(0.0, f64::max)),
    };
    check("HMNMX2.NAN R0, |R2|, |R4|, !PT", move |s, l| {
        let at = |k| most(&[h(s, 2, l, k), h(s, 4, l, k)]);
        at(0) | at(1) << 16
    });
    check("VHMNMX.NAN R0, |R2|, |R4|, |R6|, !PT", move |s, l| {
        let at = |k| most(&[h(s, 2, l, k), h(s, 4, l, k), h(s, 6, l, k)]);
        at(0) | at(1) << 16
    });
    check("HFMA2 R0, -RZ, RZ, 0, 5.9604644775390625e-08 /* 0x1 */", |_, _| 1);
    check("HFMA2 R0, R2, R4, R6", move |s, l| {
        let at = |register, k| f64::from(h(s, register, l, k));
        pair(&|k| at(2, k) * at(4, k) + at(6, k))
    });
    check("HFMA2.MMA R0, R2, 256, 256, -RZ /* 0x5c005c00 */", move |s, l| {
        pair(&|k| f64::from(h(s, 2, l, k)) * 256.0)
    });
    check("HADD2.F32 R0, -RZ, R2.H0_H0", move |s, l| bits(h(s, 2, l, 0).to_f32()));
    check("HADD2.F32 R0, -RZ, R2.H1_H1", move |s, l| bits(h(s, 2, l, 1).to_f32()));
}

#[test]
pub fn integers_to_floats() {
    check("I2F R0, R2", |s, l| (s.r(2, l) as i32 as f32).to_bits());
    check("I2FP.F32.U32 R0, R2", |s, l| (s.r(2, l) as f32).to_bits());
    check("I2FP.F32.S32 R0, R2", |s, l| (s.r(2, l) as i32 as f32).to_bits());
    check("I2F.U8 R0, R2.B2", |s, l| f32::from((s.r(2, l) >> 16) as u8).to_bits());
    check("I2F.S8 R0, R2", |s, l| f32::from(s.r(2, l) as i8).to_bits());
    check("I2F.U16 R0, R2.H1", |s, l| f32::from((s.r(2, l) >> 16) as u16).to_bits());
    check("I2F.S16 R0, R2", |s, l| f32::from(s.r(2, l) as i16).to_bits());
    check("I2F.U64 R0, R2", |s, l| (s.pair(2, l) as f32).to_bits());
    check("I2F.S64 R0, R2", |s, l| (s.pair(2, l) as i64 as f32).to_bits());
    check("I2F.U64.RP R0, R2", |s, l| {
        let near = s.pair(2, l) as f32;
        let is_less = (near as u128) < u128::from(s.pair(2, l));
        near.to_bits() + u32::from(is_less)
    });
    check("I2F.U16.RZ R0, R2", |s, l| f32::from(s.r(2, l) as u16).to_bits());
    check_pair("I2F.F64 R0, R2", |s, l| f64::from(s.r(2, l) as i32).to_bits());
    check_pair("I2F.F64.U32 R0, R2", |s, l| f64::from(s.r(2, l)).to_bits());
    check_pair("I2F.F64.S16 R0, R2", |s, l| f64::from(s.r(2, l) as i16).to_bits());
    check_pair("I2F.F64.U64 R0, R2", |s, l| (s.pair(2, l) as f64).to_bits());
    check_pair("I2F.F64.S64 R0, R2", |s, l| (s.pair(2, l) as i64 as f64).to_bits());
}

#[test]
pub fn floats_to_integers() {
    // Rust's casts cut off and saturate too, and make 0 of NaN.
    check("F2I.TRUNC.NTZ R0, R2", |s, l| f(s, 2, l) as i32 as u32);
    check("F2I.U32.TRUNC.NTZ R0, R2", |s, l| f(s, 2, l) as u32);
    check("F2I.FTZ.U32.TRUNC.NTZ R0, R2", |s, l| f(s, 2, l) as u32);
    check_pair("F2I.U64.TRUNC R0, R2", |s, l| match f(s, 2, l) {
        x if x.is_nan() => 1 << 63,
        x => x as u64,
    });
    check_pair("F2I.S64.F64.TRUNC R0, R2", |s, l| match d(s, 2, l) {
        x if x.is_nan() => 1 << 63,
        x => x as i64 as u64,
    });
    check("F2I.F64.TRUNC R0, R2", |s, l| match d(s, 2, l) {
        x if x.is_nan() => 1 << 31,
        x => x as i32 as u32,
    });
    check("F2I.U32.F64.TRUNC R0, R2", |s, l| match d(s, 2, l) {
        x if x.is_nan() => 1 << 31,
        x => x as u32,
    });
}

/// The value of a float8 with `fraction` bits of fraction, which is no special one.
fn float8_value(code: u32, fraction: i32) -> f64 {
    let bias = (1 << (6 - fraction)) - 1;
    let (exponent, size) =
        ((code & 0x7F) as i32 >> fraction, f64::from(code & ((1 << fraction) - 1)));
    let size = if exponent == 0 { size } else { size + f64::from(1 << fraction) };
    let size = size * 2f64.powi(exponent.max(1) - bias - fraction);
    if code & 0x80 == 0 {
        size
    } else {
        -size
    }
}

/// The nearest float8 whose value is at most `most`, by trying all: of two the one with an even code.
fn float8_near(x: f32, fraction: i32, most: f64) -> u32 {
    if x.is_nan() {
        return 0x7F;
    }
    let size = f64::from(x.abs()).min(most);
    let codes = (0..0x7F).filter(|&code| float8_value(code, fraction) <= most);
    let away = |code: u32| (float8_value(code, fraction) - size).abs();
    let by = |a: &u32, b: &u32| away(*a).total_cmp(&away(*b)).then((a & 1).cmp(&(b & 1)));
    codes.min_by(by).expect("a code") | u32::from(x.is_sign_negative()) << 7
}

#[test]
pub fn between_floats() {
    let half = |x: f32| if x.is_nan() { 0x7FFF } else { u32::from(f16::from_f32(x).to_bits()) };
    let bfloat = |x: f32| if x.is_nan() { 0x7FFF } else { u32::from(bf16::from_f32(x).to_bits()) };
    check("F2FP.F16.F32.PACK_AB R0, R2, R4", move |s, l| half(f(s, 2, l)) << 16 | half(f(s, 4, l)));
    check("F2FP.BF16.F32.PACK_AB R0, R2, -R4", move |s, l| {
        bfloat(f(s, 2, l)) << 16 | bfloat(-f(s, 4, l))
    });
    let [small, large] = [(3, 448.0), (2, 57344.0)]
        .map(|(fraction, most)| move |x: f32| float8_near(x, fraction, most));
    check("F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R0, R2, R4, R6", move |s, l| {
        s.r(6, l) << 16 | small(f(s, 2, l)) << 8 | small(f(s, 4, l))
    });
    check("F2FP.SATFINITE.E5M2.F32.PACK_AB_MERGE_C R0, R2, -R4, RZ", move |s, l| {
        large(f(s, 2, l)) << 8 | large(-f(s, 4, l))
    });
    let halves = |two: u32| {
        let half = |code: u32| match float8_value(code, 3) {
            _ if code & 0x7F == 0x7F => 0x7FFF,
            value => u32::from(f16::from_f64(value).to_bits()),
        };
        half(two & 0xFF) | half(two >> 8 & 0xFF) << 16
    };
    check("F2FP.F16.E4M3.UNPACK_B R0, R2", move |s, l| halves(s.r(2, l)));
    check("F2FP.F16.E4M3.UNPACK_B R0, R2.H1", move |s, l| halves(s.r(2, l) >> 16));
    check("F2F.F16.F32 R0, R2", move |s, l| half(f(s, 2, l)));
    check("F2F.F32.F64 R0, R2", |s, l| bits(d(s, 2, l) as f32));
    check("F2F.F32.F64.RZ R0, R2", |s, l| {
        let exact = d(s, 2, l);
        let near = exact as f32;
        let is_away = f64::from(near).abs() > exact.abs();
        bits(if is_away { f32::from_bits(near.to_bits() - 1) } else { near })
    });
    check_pair("F2F.F64.F32 R0, R2", |s, l| match f(s, 2, l) {
        x if x.is_nan() => 0x7FFF_FFFF_FFFF_FFFF,
        x => f64::from(x).to_bits(),
    });
}
