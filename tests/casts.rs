//! Casts on every executor: every pair of dtypes, and the values that a cast gets wrong first.
#![cfg(not(miri))]
#![allow(clippy::cast_possible_wrap, reason = "extents of a few elements")]

use crate::common::convert::cast;
use crate::common::{runner, Ask, Paint, Sample, ARITHMETIC};
use windrow::{DType, Side};

#[test]
fn every_pair_of_dtypes() {
    let numel = 600;
    for &src in ARITHMETIC {
        let samples: Vec<_> = (0..2).map(|i| Sample::rich(src, &[numel / 4, 4], 100 + i)).collect();
        for &dst in ARITHMETIC {
            let name = format!("{src} to {dst}");
            runner().check(&name, &samples, &Ask::stack().cast(dst));
            runner().check(
                &format!("{name}, planes"),
                &samples,
                &Ask::stack().cast(dst).permute(&[1, 0]),
            );
            runner().check(
                &format!("{name}, scaled"),
                &samples,
                &Ask::concat(0).cast(dst).scaled(),
            );
            runner().check(
                &format!("{name}, channels"),
                &samples,
                &Ask::stack().cast(dst).normalised(4, 1),
            );
        }
    }
}

/// Adjacent elements, at lengths around those where vectors and turns of a warp are full, and at odd addresses.
#[test]
fn rows_of_every_pair_of_dtypes() {
    let lengths = [127, 128, 129, 255, 256, 257, 511, 513, 1023, 1024, 1025];
    for (index, &src) in ARITHMETIC.iter().enumerate() {
        for (at, &dst) in ARITHMETIC.iter().enumerate() {
            let misalign = (3 * index + at) % 16;
            let samples: Vec<_> = lengths
                .iter()
                .map(|&n| Sample::misaligned(src, &[n], misalign, n as u64))
                .collect();
            let name = format!("{src} to {dst} at {misalign}");
            runner().check(&name, &samples, &Ask::ragged().cast(dst));
            runner().check(
                &format!("{name}, scaled"),
                &samples,
                &Ask::concat(0).cast(dst).scaled(),
            );
            let aligned: Vec<_> =
                lengths.iter().map(|&n| Sample::rich(src, &[n], n as u64)).collect();
            runner().check(&name, &aligned, &Ask::side(Side::Left).cast(dst));
        }
    }
}

/// Samples of few elements, and of one: more than a warp has lanes, and so many that a device finds them by ids.
#[test]
fn scalars_of_every_pair_of_dtypes() {
    for &src in ARITHMETIC {
        let of = |shape: &[i64], count| -> Vec<_> {
            (0..count).map(|i| Sample::rich(src, shape, 7 * i)).collect()
        };
        let (scalars, triples) = (of(&[], 300), of(&[3], 50));
        for &dst in ARITHMETIC {
            for (what, samples) in [("scalars", &scalars), ("triples", &triples)] {
                let name = format!("{what} of {src} to {dst}");
                runner().check(&name, samples, &Ask::stack().cast(dst));
                let name = format!("{name}, scaled");
                runner().check(&name, samples, &Ask::stack().cast(dst).scaled());
            }
        }
        // The elements have gaps between them: a device takes rows of many samples together.
        for count in [9, 300] {
            let gaps: Vec<_> = (0..count).map(|i| Sample::strided(src, &[3], &[2], i)).collect();
            for dst in [src, DType::I16, DType::F32, DType::F64] {
                let name = format!("{count} of {src} with gaps to {dst}");
                runner().check(&name, &gaps, &Ask::stack().cast(dst));
            }
        }
        // Words of every size, and casts of what is not aligned.
        for misalign in [1, 2, 4, 8] {
            let moved: Vec<_> =
                (0..40).map(|i| Sample::misaligned(src, &[2], misalign, i)).collect();
            let name = format!("{src} at {misalign}");
            runner().check(&name, &moved, &Ask::stack());
            runner().check(&name, &moved, &Ask::stack().cast(DType::I32));
        }
    }
}

/// Elements of a sample in the order of another dim, which a device writes by tiles of 8 rows and 4 columns if all of them are
/// whole: of NaNs and none, with rows beyond whole tiles, and where addresses or columns allow of no tile.
#[test]
fn transposes_of_every_pair_of_dtypes() {
    for &src in ARITHMETIC {
        let rich = |shape: &[i64], seed| Sample::rich(src, shape, seed);
        // Neighbouring numbers, of which float16 has all and some are negative or no whole ones.
        let plain = |shape: &[i64]| {
            let mut sample = rich(shape, 0);
            for (at, coords) in coords_of(shape).enumerate() {
                sample.put(&coords, bits_of_number(src, at));
            }
            sample
        };
        let samples = [
            vec![rich(&[72, 20], 1), rich(&[72, 20], 2)],
            vec![plain(&[72, 20]), plain(&[72, 20])],
            vec![plain(&[68, 24]), rich(&[68, 24], 3)],
            vec![rich(&[66, 9], 4), plain(&[66, 9])],
            vec![Sample::misaligned(src, &[64, 16], 4, 5), plain(&[64, 16])],
        ];
        for &dst in ARITHMETIC {
            for (at, samples) in samples.iter().enumerate() {
                let ask = Ask::stack().cast(dst).permute(&[1, 0]);
                runner().check(&format!("{src} to {dst}, samples {at}"), samples, &ask);
            }
        }
    }
}

/// More rows than a box has, and samples of many sizes that are joined or padded.
#[test]
fn transposes_of_many_sizes() {
    use DType::{Bool, BF16, F16, F64, I16, I64, I8, U8};
    for (src, dst) in [(U8, U8), (I64, Bool), (F64, F16), (I16, I8), (BF16, I16), (I64, BF16)] {
        let turned =
            |rows: i64| Sample::strided(src, &[rows, 128], &[1, rows], rows.unsigned_abs());
        let check = |what: &str, samples: &[Sample], ask: Ask| {
            runner().check(&format!("{src} to {dst}, {what}"), samples, &ask.cast(dst));
        };
        for rows in [4100, 4104] {
            check("long", &[turned(rows)], Ask::stack());
        }
        let sizes = [8, 32, 12, 7, 100].map(turned);
        check("joined", &sizes, Ask::concat(0));
        check("ragged", &sizes, Ask::ragged());
        check("padded", &sizes, Ask::side(Side::Left));
        check("channels", &sizes[..1], Ask::stack().normalised(128, 1));
    }
}

/// All coordinates of a shape.
fn coords_of(shape: &[i64]) -> impl Iterator<Item = [i64; 2]> {
    let [rows, cols] = [shape[0], shape[1]];
    (0..rows).flat_map(move |row| (0..cols).map(move |col| [row, col]))
}

/// A number from -30 to 30 of a dtype, by quarters if it is a float.
fn bits_of_number(dtype: DType, at: usize) -> u128 {
    let number = (at * 7 % 241) as f64 / 4.0 - 30.0;
    match dtype {
        DType::F64 => number.to_bits().into(),
        DType::F32 => (number as f32).to_bits().into(),
        DType::F16 => half::f16::from_f64(number).to_bits().into(),
        DType::BF16 => half::bf16::from_f64(number).to_bits().into(),
        DType::Bool => u128::from(at % 3 == 0),
        _ if dtype.is_float8() => cast(DType::F64, dtype, number.to_bits().into()),
        _ => (number as i128) as u128,
    }
}

/// A long sample and a short one of neighbouring numbers from `first` on, with `odd` in each place of a vector.
fn among_numbers(dtype: DType, first: u128, odd: u128) -> [Sample; 2] {
    [4096, 7].map(|length: i64| {
        let mut sample = Sample::new(dtype, &[length], 0);
        (0..length)
            .for_each(|i| sample.put(&[i], if i % 9 == 0 { odd } else { first + i as u128 % 50 }));
        sample
    })
}

/// All elements of a vector that has a NaN are converted once more, one by one.
#[test]
fn lone_nans() {
    for (src, one, nan) in [
        (DType::F16, 0x3C00, 0x7C01),
        (DType::BF16, 0x3F80, 0x7F81),
        (DType::F32, 0x3F80_0000, 0x7F80_0001),
        (DType::F64, 0x3FF0_0000_0000_0000, 0x7FF0_0000_0000_0001),
    ] {
        for sample in among_numbers(src, one, nan) {
            for dst in [DType::F16, DType::BF16, DType::F32, DType::F64] {
                let (name, samples) = (format!("{src} to {dst}"), [sample.clone(), sample.clone()]);
                runner().check(&name, &samples, &Ask::stack().cast(dst));
                let scaled = Ask::stack().cast(dst).scaled();
                runner().check(&format!("{name}, scaled"), &samples, &scaled);
            }
        }
    }
}

/// Numbers around the middle between two of 16 bits, closer to it than those of float32: rounded once, beside a NaN too.
#[test]
fn middles_of_float64() {
    let (one, nan) = (0x3FF0_0000_0000_0000, 0x7FF0_0000_0000_0001);
    for (dst, middle) in [(DType::F16, 1 << 41), (DType::BF16, 1 << 44)] {
        for first in [one + middle - 25, one + 3 * middle - 25] {
            for odd in [one, nan] {
                for sample in among_numbers(DType::F64, first, odd) {
                    let name = format!("{first:#x} to {dst}, and {odd:#x}");
                    runner().check(&name, &[sample], &Ask::stack().cast(dst));
                }
            }
        }
    }
}

/// Maps whose coefficients float32 has no room for, which float64 samples or results have applied in float64. Others are
/// refused: errors.rs.
#[test]
fn maps_beyond_float32() {
    use DType::{Bool, BF16, F16, F32, F64, I32, I64, U8};
    for from in [F64, F32, F16, I32, U8] {
        let samples = [Sample::rich(from, &[257], 1), Sample::misaligned(from, &[257], 3, 2)];
        let planes = [Sample::rich(from, &[9, 20], 3), Sample::rich(from, &[9, 20], 4)];
        let all = [F16, BF16, F32, F64, I64, U8, Bool];
        for to in all.into_iter().filter(|&to| [from, to].contains(&F64)) {
            let ask = Ask { scale: 1e300, ..Ask::stack().cast(to) };
            runner().check(&format!("{from} to {to}"), &samples, &ask);
            runner().check(&format!("{from} to {to}, turned"), &planes, &ask.permute(&[1, 0]));
        }
    }
}

/// All values of 16 bits into both float8 dtypes, and all codes of these back.
#[test]
fn float8_of_every_value_of_sixteen_bits() {
    const FLOAT8: [DType; 2] = [DType::F8E4M3FN, DType::F8E5M2];
    let all = |dtype, rows: i64| {
        let mut sample = Sample::new(dtype, &[rows, 256], 0);
        for at in 0..256 * rows {
            sample.put(&[at / 256, at % 256], at as u128);
        }
        [sample]
    };
    for to in FLOAT8 {
        for from in [DType::F16, DType::BF16] {
            let samples = all(from, 256);
            runner().check(&format!("{from} to {to}"), &samples, &Ask::stack().cast(to));
            let ask = Ask::stack().saturate(to);
            runner().check(&format!("{from} to {to}, saturated"), &samples, &ask);
            let turned = ask.permute(&[1, 0]);
            runner().check(&format!("{from} to {to}, turned"), &samples, &turned);
        }
        for &dtype in ARITHMETIC {
            let samples = all(to, 1);
            runner().check(&format!("{to} to {dtype}"), &samples, &Ask::stack().cast(dtype));
            let turned = Ask::stack().cast(dtype).permute(&[1, 0]);
            runner().check(&format!("{to} to {dtype}, turned"), &samples, &turned);
        }
    }
}

/// Float32 at each bound between two codes of a float8 and beside it, with all exponents: a bound has zeros in its lower half.
#[test]
fn float8_of_bounds_in_float32() {
    let lows: [u128; 4] = [0, 1, 0x5A5A, 0xFFFF];
    let mut sample = Sample::new(DType::F32, &[1024, 256], 0);
    for at in 0..1024 * 256 {
        let bits = (at as u128 % 65536) << 16 | lows[at as usize / 65536];
        sample.put(&[at / 256, at % 256], bits);
    }
    let samples = [sample];
    for to in [DType::F8E4M3FN, DType::F8E5M2] {
        for ask in [Ask::stack().cast(to), Ask::stack().saturate(to)] {
            runner().check(&format!("to {to}, {ask:?}"), &samples, &ask);
            let turned = ask.permute(&[1, 0]);
            runner().check(&format!("to {to}, {turned:?}"), &samples, &turned);
        }
    }
}

#[test]
fn saturated_casts_of_every_form() {
    let long = |src, i: u64| Sample::rich(src, &[301 + i as i64, 4], 100 + i);
    for &src in ARITHMETIC {
        let samples = [long(src, 0), long(src, 3), long(src, 1)];
        let scalars: Vec<_> = (0..40).map(|i| Sample::rich(src, &[], 7 * i)).collect();
        let gaps: Vec<_> = (0..9).map(|i| Sample::strided(src, &[70], &[2], i)).collect();
        for dst in [DType::F8E4M3FN, DType::F8E5M2] {
            let name = |what: &str| format!("{src} to {dst}, saturated, {what}");
            for (what, ask) in [
                ("joined", Ask::concat(0)),
                ("ragged", Ask::ragged()),
                ("padded", Ask::side(Side::Left)),
            ] {
                let ask = ask.saturate(dst);
                runner().check(&name(what), &samples, &ask);
                runner().check(&name(what), &samples, &ask.clone().scaled());
                runner().check(&name(what), &samples, &ask.normalised(4, 1));
            }
            for (what, samples) in [("scalars", &scalars), ("gaps", &gaps)] {
                runner().check(&name(what), samples, &Ask::stack().saturate(dst));
                runner().check(&name(what), samples, &Ask::stack().saturate(dst).scaled());
            }
            let planes = Ask::stack().saturate(dst).permute(&[1, 0]);
            runner().check(&name("planes"), &samples[..1], &planes);
        }
    }
}

#[test]
fn bools_of_any_byte_count_as_true() {
    let samples = [Sample::laid_out(DType::Bool, &[300], &[1], 1, Paint::Bytes, 0)];
    for dst in [DType::Bool, DType::U8, DType::I64, DType::F16, DType::F64] {
        runner().check(&format!("painted bools to {dst}"), &samples, &Ask::stack().cast(dst));
    }
}

#[test]
fn mixed_dtypes_with_a_cast() {
    let samples: Vec<_> = ARITHMETIC.iter().map(|&dtype| Sample::rich(dtype, &[3, 5], 9)).collect();
    for &dst in ARITHMETIC {
        for ask in [Ask::stack(), Ask::concat(1), Ask::ragged(), Ask::side(Side::Left)] {
            runner().check(&format!("all to {dst}, {ask:?}"), &samples, &ask.clone().cast(dst));
            runner().check(
                &format!("all to {dst}, {ask:?}, scaled"),
                &samples,
                &ask.cast(dst).scaled(),
            );
        }
    }
}

#[test]
fn a_transform_that_does_nothing_is_a_cast() {
    let samples = [Sample::rich(DType::I64, &[3, 50], 0), Sample::rich(DType::I64, &[3, 50], 9)];
    for dst in [DType::F16, DType::U8, DType::I64] {
        let mut ask = Ask::stack().cast(dst);
        (ask.mean, ask.std) = (vec![0.0; 3], vec![1.0; 3]);
        runner().check(&format!("identity to {dst}"), &samples, &ask);
    }
}
