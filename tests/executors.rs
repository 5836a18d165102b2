//! One list of cases on every executor: boundaries of sizes, addresses, dtypes, forms and layouts.
#![cfg(not(miri))]
#![allow(clippy::cast_possible_wrap, reason = "extents of a few elements")]

use crate::common::ask::Form;
use crate::common::ask::SIDES;
use crate::common::runner::{is_emulated, swept};
use crate::common::sample::ordered;
use crate::common::{runner, Ask, PadAsk, Sample};
use windrow::collate::PerDim;
use windrow::tensor::Scalar;
use windrow::{DType, Mask, Side};

/// Lengths around every width of a vector, a cache line and a block.
const LENGTHS: &[i64] = &[
    0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023,
    1024, 1025,
];

/// Every form for samples of one dim.
fn forms() -> Vec<Ask> {
    let mut forms = vec![Ask::stack(), Ask::concat(0), Ask::concat(-1), Ask::ragged()];
    forms.push(Ask::new(Form::Ragged { offsets_i32: true, batch_index: false }));
    forms.extend(SIDES.map(Ask::side));
    forms.push(Ask::pad(PadAsk {
        multiple_of: PerDim::All(8),
        mask: Some(Mask::Pad),
        ..PadAsk::default()
    }));
    for side in SIDES {
        forms.push(Ask::pad(PadAsk::cut(side, PerDim::All(Some(7)))));
    }
    forms
}

#[test]
fn every_length_in_every_form() {
    let kinds: [(DType, Option<DType>, bool); 7] = [
        (DType::U8, None, false),
        (DType::F32, None, false),
        (DType::C128, None, false),
        (DType::I32, Some(DType::I64), false),
        (DType::F32, Some(DType::F16), false),
        (DType::U8, Some(DType::F32), true),
        (DType::U8, Some(DType::F16), true),
    ];
    for (dtype, to, scaled) in kinds {
        for &length in LENGTHS {
            let lengths = [length, (length + 1) % 1025, length.max(1) - 1];
            for ask in forms() {
                let of = |i: usize| match ask.form {
                    Form::Stack => length,
                    _ => lengths[i],
                };
                let samples: Vec<_> =
                    (0..3).map(|i| Sample::rich(dtype, &[of(i)], 7 * i as u64)).collect();
                let mut ask = ask.clone();
                ask.cast = to;
                if scaled {
                    ask = ask.scaled();
                }
                runner().check(
                    &format!("{dtype} to {to:?}, about {length}: {ask:?}"),
                    &samples,
                    &ask,
                );
            }
        }
    }
}

#[test]
fn mirrored_rows_of_every_length() {
    let order = [2, 0, 1];
    // Lengths around one and two vectors of every size of pixel, and around a block of some.
    let widths = (1..=18).chain([31, 32, 33, 34, 341, 342, 4097]);
    let sizes = widths.flat_map(|width| [1, 2, 3, 4, 5].map(|c| (width, c)));
    for (width, channels) in swept(3, sizes) {
        if width < 300 || channels % 2 == 1 {
            let shape = [2, width, channels];
            // The columns of an image are read from right to left, in rows without gaps.
            let strides = [width * channels, -channels, 1];
            let mirrored = |dtype, seed| Sample::strided(dtype, &shape, &strides, seed);
            let name = format!("{shape:?} mirrored");
            for dtype in [DType::U8, DType::I16, DType::F32, DType::F64] {
                let samples = [mirrored(dtype, 1), mirrored(dtype, 2)];
                runner().check(&name, &samples, &Ask::stack());
                runner().check(&name, &samples, &Ask::stack().permute(&order));
                if width > 40 {
                    break;
                }
            }
            let samples = [mirrored(DType::U8, 3), mirrored(DType::U8, 4)];
            let plain = Ask::stack().cast(DType::F32);
            runner().check(&name, &samples, &plain);
            runner().check(&name, &samples, &plain.clone().scaled());
            for dim in [0, 2] {
                let normalised = plain.clone().normalised(shape[dim] as usize, dim as i64);
                runner().check(&name, &samples, &normalised);
                runner().check(&name, &samples, &normalised.permute(&order));
            }
        }
    }
}

#[test]
fn turned_samples_of_every_size() {
    // Lengths around the vectors of each width of element, and around a block.
    let extents = |to: i64| (1..=to).chain([47, 49, 64, 65, 256, 257]);
    let widths = [DType::U8, DType::I16, DType::F32, DType::F64, DType::C128];
    let sizes = extents(18).flat_map(|a| extents(34).map(move |b| (a, b)));
    for (rows, columns) in swept(7, sizes) {
        if rows * columns > 5000 {
            continue;
        }
        for (place, dtype) in widths.into_iter().enumerate() {
            let samples: Vec<_> = (0..2).map(|i| Sample::new(dtype, &[rows, columns], i)).collect();
            let name = format!("{rows} x {columns} of {dtype}");
            runner().check(&name, &samples, &Ask::stack().permute(&[1, 0]));
            if (rows + columns) as usize % widths.len() == place && dtype.is_arithmetic() {
                let to = Ask::stack().cast(DType::F16).permute(&[1, 0]);
                runner().check(&name, &samples, &to);
                runner().check(&name, &samples, &to.normalised(rows as usize, 0));
            }
        }
    }
}

#[test]
fn permuted_samples_of_many_dims() {
    let reversed = |ndim: i64| (0..ndim).rev().collect::<Vec<_>>();
    // As many dims as there may be have 65 536 elements at least, which an emulator takes half a minute for: there one sample is
    // moved and cast.
    let most_dims = (vec![2; 16], reversed(16));
    if is_emulated() {
        let samples = [Sample::new(DType::F32, &most_dims.0, 1)];
        for ask in [Ask::stack(), Ask::stack().cast(DType::I32)] {
            runner().check("16 dims", &samples, &ask.permute(&most_dims.1));
        }
    }
    let most_dims = (!is_emulated()).then_some(most_dims);
    let shapes = most_dims.into_iter().chain([
        (vec![8; 4], vec![1, 0, 3, 2]),
        (vec![8; 4], vec![2, 3, 0, 1]),
        (vec![4; 6], reversed(6)),
        (vec![32; 3], vec![1, 0, 2]),
        (vec![3, 5, 7, 11, 13], vec![4, 2, 0, 3, 1]),
        (vec![6, 5, 4, 3, 2, 7, 2], vec![6, 5, 0, 1, 3, 2, 4]),
        // Runs of bytes that are short, just short enough, and too long for it.
        (vec![9, 5, 31, 3], vec![1, 0, 2, 3]),
        (vec![4, 9, 64], vec![1, 0, 2]),
        (vec![4, 9, 68], vec![1, 0, 2]),
    ]);
    let dtypes = [DType::U8, DType::U16, DType::F32, DType::F64, DType::C64, DType::C128];
    let cases = shapes.flat_map(|case| dtypes.map(|dtype| (case.clone(), dtype)));
    for ((shape, order), dtype) in swept(5, cases) {
        let samples: Vec<_> = (0..2).map(|i| Sample::new(dtype, &shape, i)).collect();
        let name = format!("{shape:?} of {dtype} as {order:?}");
        runner().check(&name, &samples, &Ask::stack().permute(&order));
        if dtype.is_arithmetic() && dtype.size() != 2 {
            let to = Ask::stack().cast(DType::I32).permute(&order);
            runner().check(&name, &samples, &to);
        }
    }
}

#[test]
fn rows_of_every_length_with_channels() {
    for &length in LENGTHS {
        let shape = [length % 5, length, 3];
        let samples: Vec<_> = (0..2).map(|i| Sample::rich(DType::U8, &shape, i)).collect();
        for (dim, order) in [(2, [2, 0, 1]), (2, [0, 1, 2]), (2, [0, 2, 1]), (-1, [1, 0, 2])] {
            let ask = Ask::stack().cast(DType::F32).normalised(3, dim).permute(&order);
            runner().check(&format!("{shape:?}, {order:?}"), &samples, &ask);
        }
    }
}

#[test]
fn every_dtype_in_every_form() {
    for &dtype in DType::ALL {
        for mut ask in forms() {
            let is_stack = matches!(ask.form, Form::Stack);
            let samples: Vec<_> = [5, 0, 9, 1]
                .iter()
                .map(|&n| Sample::new(dtype, &[if is_stack { 6 } else { n }], n as u64 * 40))
                .collect();
            runner().check(&format!("{dtype}, {ask:?}"), &samples, &ask);
            if let Form::Pad(pad) = &mut ask.form {
                pad.dims = Some(vec![0]);
            }
            if ask.permute.is_none()
                && !matches!(&ask.form, Form::Pad(pad) if pad.size != PerDim::All(None))
            {
                ask.permute = Some(if matches!(ask.form, Form::Ragged { .. }) {
                    vec![0, 2, 1]
                } else {
                    vec![2, 0, 1]
                });
                if matches!(ask.form, Form::Concat(-1)) {
                    ask.form = Form::Concat(-3);
                }
                let shape = |n: i64| [if is_stack { 4 } else { n }, 3, 2];
                let samples: Vec<_> =
                    [2, 0, 5].iter().map(|&n| Sample::new(dtype, &shape(n), 3)).collect();
                runner().check(&format!("{dtype}, {ask:?}"), &samples, &ask);
            }
        }
    }
}

/// Lines with loops around them of as many coordinates as their sample has: rows with gaps between, moved, cast by a loop of their
/// own and by that of any pair.
#[test]
fn rows_with_gaps_joined_along_an_outer_dim() {
    use DType::{F32, I16, I32, I64, I8};
    for (from, to) in [(F32, F32), (I32, I64), (I16, F32), (F32, I8)] {
        for inner in [&[300][..], &[2, 300], &[2, 3, 260]] {
            let samples: Vec<_> = [3, 1, 7, 0, 2]
                .iter()
                .map(|&n| {
                    let shape = [&[n], inner].concat();
                    let mut strides = vec![1];
                    for &extent in shape[1..].iter().rev() {
                        strides.push(strides[strides.len() - 1] * (extent + 5));
                    }
                    strides.reverse();
                    Sample::strided(from, &shape, &strides, n as u64)
                })
                .collect();
            let name = format!("{from} to {to}, rows {inner:?}");
            runner().check(&name, &samples, &Ask::ragged().cast(to));
            runner().check(&name, &samples, &Ask::side(Side::Left).cast(to));
        }
    }
}

/// Rows of a box are samples: elements of a lane are of as many. Their numbers are those where its last ones are few.
#[test]
fn many_samples_of_a_few_elements() {
    use DType::{BF16, F16, F32, F64, I16, I32, I64, I8, U8};
    let casts = [
        (U8, U8),
        (U8, I16),
        (F16, F16),
        (F16, I8),
        (F32, F32),
        (F32, BF16),
        (I64, I64),
        (F64, I32),
    ];
    for (from, to) in casts {
        for num_samples in [255, 300, 700] {
            let samples: Vec<_> =
                (0..num_samples).map(|i| Sample::rich(from, &[3], i as u64)).collect();
            let name = format!("{num_samples} of {from} to {to}");
            runner().check(&name, &samples, &Ask::stack().cast(to));
        }
    }
}

#[test]
fn misaligned_sources() {
    for misalign in 1..16 {
        for dtype in [DType::U8, DType::I16, DType::F32, DType::F64, DType::C128] {
            let samples: Vec<_> =
                [33, 65, 7].iter().map(|&n| Sample::misaligned(dtype, &[n], misalign, 5)).collect();
            let mut asks = vec![Ask::ragged(), Ask::concat(0), Ask::side(Side::Left)];
            if dtype.is_arithmetic() {
                asks.push(Ask::side(Side::Center).cast(DType::F16));
                asks.push(Ask::ragged().cast(DType::F32).scaled());
            }
            for ask in asks {
                runner().check(&format!("{dtype} at {misalign}, {ask:?}"), &samples, &ask);
            }
        }
    }
}

/// Rows shorter than a warp, from any place in a word; each that ends with a vector of the batch may be read to its end alone.
#[test]
fn short_rows_at_any_address() {
    for length in [24, 25, 40, 63, 120] {
        let row = |i: usize| Sample::misaligned(DType::U8, &[length], i, i as u64);
        let samples: Vec<_> = (0..9).map(row).collect();
        runner().check(&format!("{length} bytes"), &samples, &Ask::stack());
    }
}

#[test]
fn strided_sources() {
    let shape = [4, 3, 5];
    let mut layouts = vec![vec![0, 0, 0], vec![0, 5, 1], vec![15, 0, 1], vec![15, 5, 0]];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for gap in [0, 1, 2] {
            layouts.push(ordered(&shape, &order, gap));
        }
    }
    for mut strides in layouts.clone() {
        strides[1] = -strides[1];
        layouts.push(strides.clone());
        strides[0] = -strides[0];
        strides[2] = -strides[2];
        layouts.push(strides);
    }
    for strides in layouts {
        for (src, dst) in
            [(DType::U8, DType::U8), (DType::F64, DType::F64), (DType::I16, DType::F32)]
        {
            let samples: Vec<_> =
                (0..2).map(|i| Sample::strided(src, &shape, &strides, i)).collect();
            let permuted = Ask::stack().cast(dst).permute(&[2, 0, 1]);
            for ask in [Ask::stack(), Ask::concat(1), Ask::ragged(), permuted] {
                let ask = ask.cast(dst);
                runner().check(&format!("{src}, strides {strides:?}, {ask:?}"), &samples, &ask);
            }
            let ask = Ask::pad(PadAsk {
                size: PerDim::Each(vec![Some(6), Some(2), Some(5)]),
                side: PerDim::Each(vec![Side::Left, Side::Left, Side::Right]),
                truncate: true,
                ..PadAsk::default()
            });
            runner().check(
                &format!("{src}, strides {strides:?}, cut"),
                &samples,
                &ask.cast(dst).normalised(5, 2),
            );
        }
    }
}

#[test]
fn mixed_layouts_in_one_batch() {
    let shape = [3, 4, 3];
    let samples: Vec<_> = [[0, 1, 2], [2, 0, 1], [1, 0, 2], [0, 1, 2]]
        .iter()
        .enumerate()
        .map(|(i, order)| {
            Sample::strided(DType::U8, &shape, &ordered(&shape, order, i as i64 % 2), 3)
        })
        .collect();
    for ask in
        [Ask::stack(), Ask::stack().permute(&[2, 0, 1]), Ask::concat(-1), Ask::side(Side::Left)]
    {
        runner().check(&format!("{ask:?}"), &samples, &ask);
        runner().check(
            &format!("{ask:?}, float16"),
            &samples,
            &ask.cast(DType::F16).normalised(3, 2),
        );
    }
}

#[test]
fn concat_along_every_dim_with_every_order() {
    for dim in 0..3 {
        let samples: Vec<_> = [2, 0, 5, 1]
            .iter()
            .map(|&n| {
                let mut shape = [3, 4, 2];
                shape[dim] = n;
                Sample::rich(DType::I16, &shape, n as u64)
            })
            .collect();
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            for dst in [DType::I16, DType::F32] {
                let ask = Ask::concat(dim as i64 - 3).cast(dst).permute(&order);
                runner().check(&format!("{ask:?}"), &samples, &ask);
                runner().check(&format!("{ask:?}, scaled"), &samples, &ask.scaled());
            }
        }
    }
}

/// Samples whose loops have the same extents and write to different places, among others.
#[test]
fn concat_of_samples_of_different_layouts() {
    let orders = [[0, 1, 2], [1, 0, 2], [0, 2, 1]];
    let layouts = || orders.into_iter().flat_map(|order| (0..4).map(move |dim| (order, dim)));
    let sample = |shape: [i64; 3], (order, mirrored): ([usize; 3], usize)| {
        let mut strides = ordered(&shape, &order, 0);
        strides.iter_mut().skip(mirrored).take(1).for_each(|stride| *stride = -*stride);
        Sample::strided(DType::U8, &shape, &strides, mirrored as u64)
    };
    for dim in 0..3 {
        for (one, other) in layouts().flat_map(|one| layouts().map(move |other| (one, other))) {
            let (mut short, long) = ([3, 3, 15], [3, 3, 15]);
            short[dim] /= 3;
            let samples = [sample(short, one), sample(long, other)];
            let name = format!("concat along {dim}, {one:?}, {other:?}");
            runner().check(&name, &samples, &Ask::concat(dim as i64));
        }
    }
}

/// Rows that are lines, teams, boxes and large on a device; masks longer and shorter than their data.
#[test]
fn masks_of_every_dtype() {
    let list = |dtype, shapes: &[&[i64]]| -> Vec<Sample> {
        shapes.iter().zip(0..).map(|(shape, seed)| Sample::new(dtype, shape, seed)).collect()
    };
    let lists = [
        list(DType::U8, &[&[3], &[0], &[9], &[1]]),
        list(DType::F64, &[&[40, 2], &[33, 2]]),
        list(DType::I32, &[&[3, 5, 2], &[4, 1, 2], &[0, 6, 2]]),
        list(DType::U16, &[&[70_000], &[1], &[65_537]]),
    ];
    for dtype in [DType::Bool, DType::U8, DType::I32, DType::I64, DType::F16, DType::F32] {
        for (samples, side) in lists.iter().zip(SIDES.iter().cycle()) {
            for mask in [Mask::Real, Mask::Pad] {
                let side = PerDim::All(*side);
                let pad = PadAsk { side, mask: Some(mask), ..PadAsk::default() };
                let ask = Ask::pad(pad).mask_dtype(dtype);
                runner().check(&format!("{dtype} {mask:?}"), samples, &ask);
            }
        }
        let turned = Ask::side(Side::Center).permute(&[2, 0, 1]).mask_dtype(dtype);
        runner().check(&format!("{dtype} turned"), &lists[2], &turned);
    }
}

#[test]
fn samples_without_elements_or_dims() {
    for shape in [&[][..], &[0], &[0, 4], &[4, 0], &[2, 0, 3], &[1], &[1, 1, 1]] {
        let samples: Vec<_> = (0..3).map(|i| Sample::new(DType::F32, shape, 5 * i)).collect();
        let mut asks = vec![
            Ask::stack(),
            Ask::side(Side::Left),
            Ask::side(Side::Right).cast(DType::F16).scaled(),
        ];
        if !shape.is_empty() {
            asks.extend([
                Ask::concat(0),
                Ask::concat(-1),
                Ask::ragged(),
                Ask::ragged().cast(DType::U8).scaled(),
            ]);
            let dims = Some((0..shape.len() as i64).collect());
            let pad = PadAsk {
                dims,
                size: PerDim::All(Some(5)),
                side: PerDim::All(Side::Center),
                ..PadAsk::default()
            };
            asks.push(Ask::pad(pad.clone()));
            let pad = PadAsk { size: PerDim::All(Some(0)), truncate: true, ..pad };
            asks.push(Ask::pad(pad));
        }
        for ask in asks {
            runner().check(&format!("{shape:?}, {ask:?}"), &samples, &ask);
            runner().check(&format!("one of {shape:?}, {ask:?}"), &samples[..1], &ask);
        }
    }
}

#[test]
fn values_of_padding_are_exact() {
    let samples = [Sample::new(DType::I64, &[1], 0), Sample::new(DType::I64, &[3], 9)];
    let big = (1i128 << 53) + 1;
    let cases = [
        (DType::I64, Scalar::Int(-big)),
        (DType::U64, Scalar::Int(u64::MAX.into())),
        (DType::I8, Scalar::Int(-128)),
        (DType::Bool, Scalar::Int(1)),
        (DType::F16, Scalar::Float(1.0 + 1.0 / 2048.0 + 1e-9)),
        (DType::BF16, Scalar::Float(1.0 + 1.0 / 256.0 + 1e-12)),
        (DType::F32, Scalar::Float(f64::NEG_INFINITY)),
        (DType::F64, Scalar::Float(-0.0)),
        (DType::F64, Scalar::Float(f64::NAN)),
    ];
    for (dtype, value) in cases {
        let ask = Ask::pad(PadAsk { value, ..PadAsk::default() }).cast(dtype);
        runner().check(&format!("{value} in {dtype}"), &samples, &ask);
    }
    for dtype in [DType::C64, DType::C128] {
        let samples = [Sample::new(dtype, &[1], 0), Sample::new(dtype, &[3], 9)];
        let ask = Ask::pad(PadAsk { value: Scalar::Complex(1.5, -2.0), ..PadAsk::default() });
        runner().check(&format!("{dtype}"), &samples, &ask);
    }
}

#[test]
fn integers_of_padding_are_rounded_once() {
    // Just above a tie, by less than a float64 holds.
    let (single, half) = ((1 << 62) + (1 << 38) + 1, (1 << 62) + (1 << 54) + 1);
    for (dtype, value) in [(DType::F32, single), (DType::BF16, half), (DType::C64, single)] {
        let samples = [Sample::new(dtype, &[1], 0), Sample::new(dtype, &[3], 9)];
        let ask = Ask::pad(PadAsk { value: Scalar::Int(value), ..PadAsk::default() });
        runner().check(&format!("{value} in {dtype}"), &samples, &ask);
    }
}

#[test]
fn neighbours_in_memory_are_merged() {
    // One buffer in slices, in order and in reverse.
    let whole = Sample::new(DType::U16, &[64, 10], 3);
    let engine = windrow::Engine::host();
    let tensor = engine.assemble(&[whole.view()], &windrow::Collate::stack()).unwrap();
    let rows = tensor.sample(0).unwrap();
    let rows: Vec<_> = (0..64).map(|i| rows.select(i).unwrap()).collect();
    let views: Vec<_> = rows.iter().map(windrow::SampleView::from).collect();
    let stack = windrow::Collate::stack();
    let plan = windrow::Plan::new(&views, &stack).unwrap();
    assert_eq!((plan.explain().path, plan.explain().ranges), ("memcpy", 1));
    let backwards: Vec<_> = views.iter().rev().cloned().collect();
    let plan = windrow::Plan::new(&backwards, &stack).unwrap();
    assert_eq!((plan.explain().path, plan.explain().ranges), ("gather", 64));
    for (name, engine) in runner().engines() {
        let batch = engine.assemble(&backwards, &windrow::Collate::concat(0)).unwrap();
        let mut want = Vec::new();
        rows.iter().rev().for_each(|row| want.extend_from_slice(row.as_slice::<u16>().unwrap()));
        assert_eq!(batch.data().as_slice::<u16>().unwrap(), want, "{name}");
    }
    // Two ranges: the second half, then the first.
    let halves = [&views[32..], &views[..32]].concat();
    let plan = windrow::Plan::new(&halves, &stack).unwrap();
    assert_eq!((plan.explain().path, plan.explain().ranges), ("gather", 2));
    let want: Vec<_> =
        (32..64).chain(0..32).flat_map(|i| rows[i].as_slice::<u16>().unwrap().to_vec()).collect();
    for (name, engine) in runner().engines() {
        // A small stack goes without a plan, and so without ranges.
        for collate in [&stack, &windrow::Collate::concat(0)] {
            let batch = engine.assemble(&halves, collate).unwrap();
            assert_eq!(batch.data().as_slice::<u16>().unwrap(), want, "{name}, {collate:?}");
        }
    }
}

#[test]
fn ranges_of_neighbours_across_tiles() {
    // More than one tile: some begin inside a range, some hold several.
    let whole: Vec<u16> = (0..600 * 997u32).map(|i| (i % 65_521) as u16).collect();
    let parts = [590..600, 300..590, 0..1, 1..3, 3..7, 200..300, 7..200, 598..600];
    let mut expected = Vec::new();
    let mut views = Vec::new();
    for part in &parts {
        expected.extend_from_slice(&whole[part.start * 997..part.end * 997]);
        for row in part.clone() {
            let row = &whole[row * 997..][..997];
            views.push(windrow::SampleView::from_slice(row, &[997]).unwrap());
        }
    }
    for collate in [windrow::Collate::stack(), windrow::Collate::concat(0)] {
        let plan = windrow::Plan::new(&views, &collate).unwrap();
        // The three parts from row 0 on are one.
        assert_eq!((plan.explain().path, plan.explain().ranges), ("gather", 6));
        for (name, engine) in runner().engines() {
            let batch = engine.assemble(&views, &collate).unwrap();
            let got = batch.data().as_slice::<u16>().unwrap();
            let differs = expected.iter().zip(got).position(|(want, got)| want != got);
            assert_eq!((got.len(), differs), (expected.len(), None), "{name}, {collate:?}");
        }
    }
}

#[test]
fn pixels_that_become_one_short_row() {
    for shape in [[2, 2, 9], [1, 3, 9], [4, 2, 9], [2, 3, 9], [2, 2, 0], [2, 4, 1]] {
        let samples = [
            Sample::rich(DType::U8, &shape, 1),
            Sample::rich(DType::U8, &[shape[0], shape[1], 12], 2),
        ];
        let pad = PadAsk {
            dims: Some(vec![2]),
            side: PerDim::Each(vec![Side::Right, Side::Right, Side::Center]),
            truncate: true,
            ..PadAsk::default()
        };
        for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]] {
            for to in [DType::Bool, DType::F32, DType::F16] {
                for ask in [Ask::pad(pad.clone()), Ask::stack()] {
                    let stacks = matches!(ask.form, Form::Stack);
                    let samples = if stacks { &samples[1..] } else { &samples[..] };
                    let ask = ask.cast(to).normalised(shape[1] as usize, 1).permute(&order);
                    runner().check(&format!("{shape:?}, {order:?} to {to}"), samples, &ask);
                }
            }
        }
    }
}
