//! Increments: a number for each sample, added to its elements on a device, as the edges of joined graphs need.
#![cfg(not(miri))]
#![allow(clippy::cast_possible_wrap, reason = "a few samples")]

use crate::common::{runner, Ask, Sample};
use windrow::{DType, Side};

/// Numbers of their own, among them those that wrap around.
fn increments(count: usize) -> Vec<i64> {
    let of = |i: usize| match i % 5 {
        0 => 1_000_003 * i as i64,
        1 => -7 * i as i64,
        2 => i64::MAX - i as i64,
        3 => 0,
        _ => i64::MIN + 99,
    };
    (0..count).map(of).collect()
}

#[test]
fn samples_that_are_raised() {
    let check = |name: &str, samples: &[Sample], ask: Ask| {
        let ask = Ask { increments: increments(samples.len()), ..ask };
        runner().check_raised(name, samples, &ask);
    };
    for dtype in [DType::I64, DType::I32, DType::U64, DType::U32, DType::I16, DType::U8] {
        for lengths in [&[3, 0, 1, 260, 5][..], &[0, 0], &[1], &[7, 7, 7], &[4000, 33, 0, 2]] {
            let edges = |misalign: usize| -> Vec<Sample> {
                let of = |(i, &length): (usize, &i64)| {
                    Sample::misaligned(dtype, &[2, length], misalign, i as u64)
                };
                lengths.iter().enumerate().map(of).collect()
            };
            let name = format!("{dtype}, {lengths:?}");
            check(&name, &edges(0), Ask::concat(1));
            check(&format!("{name}, behind their places"), &edges(1), Ask::concat(-1));
            let of = |(i, &length): (usize, &i64)| Sample::rich(dtype, &[length, 3], i as u64);
            let rows: Vec<Sample> = lengths.iter().enumerate().map(of).collect();
            check(&format!("{name}, rows"), &rows, Ask::ragged());
            check(&format!("{name}, padded"), &rows, Ask::side(Side::Left));
            // Pairs side by side, which are no rows of adjacent numbers.
            let of = |(i, &length): (usize, &i64)| {
                Sample::strided(dtype, &[2, length], &[1, 2], i as u64)
            };
            let pairs: Vec<Sample> = lengths.iter().enumerate().map(of).collect();
            check(&format!("{name}, pairs"), &pairs, Ask::concat(1));
        }
        let numbers: Vec<_> = (0..70).map(|i| Sample::rich(dtype, &[], i)).collect();
        check(&format!("{dtype}, numbers"), &numbers, Ask::stack());
    }
}

#[test]
fn samples_that_are_cast_and_raised() {
    let pairs = [
        (DType::Bool, DType::I64),
        (DType::I32, DType::I64),
        (DType::I64, DType::I32),
        (DType::U8, DType::I16),
        (DType::F32, DType::I32),
    ];
    for (from, to) in pairs {
        let of = |(i, length): (usize, i64)| Sample::rich(from, &[2, length], i as u64);
        let samples: Vec<_> = [3, 0, 40, 513].into_iter().enumerate().map(of).collect();
        let ask = Ask { increments: increments(samples.len()), ..Ask::concat(1).cast(to) };
        runner().check_raised(&format!("{from} to {to}"), &samples, &ask);
    }
}

#[test]
fn increments_that_are_refused() {
    let samples = [Sample::new(DType::I64, &[2], 1), Sample::new(DType::I64, &[3], 2)];
    let floats = [Sample::new(DType::F32, &[2], 1)];
    let refused = |samples: &[Sample], collate: windrow::Collate, why: &str| {
        let views = crate::common::sample::views(samples);
        let error = windrow::Plan::new(&views, &collate).expect_err(why);
        assert_eq!(error.to_string(), why);
    };
    let ragged = || windrow::Collate::ragged(windrow::Ragged::new()).device(windrow::Device::Cpu);
    refused(&samples, ragged().increments([1]), "1 increments for 2 samples");
    let scaled = ragged().transform(windrow::Transform::new().scale(2.0)).cast(DType::I64);
    refused(
        &samples,
        scaled.increments([1, 2]),
        "increments cannot be combined with scale, mean or std",
    );
    let why = "sample 0: expected an integer dtype, because increments are added to the elements, got float32";
    refused(&floats, ragged().increments([1]), why);
    refused(&samples, ragged().increments([1, 2]), "sample 0: expected a device, got cpu");
}
