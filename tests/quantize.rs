//! Elements divided by scales that are found, and multiplied by scales that are given: every form against the naive executor,
//! values that a scale gets wrong first, and every refusal.
#![allow(unsafe_code, reason = "outputs at raw addresses")]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "small sizes")]

use crate::common::runner::Frame;
use crate::common::sample::views;
use crate::common::scaled::{any_of, block_of, Case, FLOATS};
use crate::common::{Random, Sample};
use windrow::bindings::MoveOptions;
use windrow::collate::Granularity;
use windrow::engine::CopyOptions;
use windrow::plan::Target;
use windrow::{
    Batch, Collate, DType, Dequantize, Device, Engine, Error, Layout, Pad, Quantize, Ragged,
    SampleList, SampleView, Side, Tensor,
};

fn bytes(tensor: &Tensor) -> Vec<u8> {
    tensor.bytes().unwrap().as_slice::<u8>().unwrap().to_vec()
}

fn quantised(engine: &Engine, samples: &[SampleView<'_>], collate: &Collate) -> [Vec<u8>; 2] {
    let batch = engine.assemble(samples, collate).unwrap();
    [bytes(batch.data()), bytes(batch.scales().expect("scales"))]
}

#[test]
fn random_batches() {
    let mut random = Random::new(49);
    let (host, naive) = (Engine::host(), Engine::reference());
    let mut outcomes = [0; 3];
    for case in 0..if cfg!(miri) { 10 } else { 3000 } {
        let Case { samples, collate, quantize, shape } = Case::random(&mut random);
        let views = views(&samples);
        let collate = collate.transform(quantize);
        let name = format!("case {case}: {collate:?} of {shape:?}");
        let batch = match naive.assemble(&views, &collate) {
            Ok(batch) => batch,
            Err(error) => {
                assert_eq!(host.assemble(&views, &collate).unwrap_err(), error, "{name}");
                assert!(matches!(error, Error::Argument(_)), "{error}, {name}");
                outcomes[0] += 1;
                continue;
            }
        };
        let scales = batch.scales().expect("scales");
        let want = [bytes(batch.data()), bytes(scales)];
        assert_eq!(quantised(&host, &views, &collate), want, "{name}");
        outcomes[1] += 1;
        // The output has gaps between rows.
        let mut frames = [batch.data(), scales].map(|of| {
            let mut strides = of.strides().to_vec();
            if let Some(outer) = strides.first_mut() {
                *outer *= 2;
            }
            Frame::new(of.dtype(), of.shape(), &strides, 3)
        });
        let [data, found] = &mut frames;
        host.assemble_into(&views, &collate, &mut (data.target(), found.target())).unwrap();
        for (frame, want) in frames.iter().zip(&want) {
            frame.check(&name, want);
        }
        // The result is converted back.
        let back = collate.clone().cast(DType::F32);
        let given = Dequantize::new(scales.clone());
        let given = match block_of(&quantize) {
            Some(elems) => given.block(elems),
            None => given,
        };
        let codes: Vec<Tensor> = (0..batch.len()).map(|i| batch.sample(i).unwrap()).collect();
        let codes: Vec<SampleView<'_>> = codes.iter().map(view_of).collect();
        let back = back.transform(given);
        let (got, want) = (host.assemble(&codes, &back), naive.assemble(&codes, &back));
        let Ok(want) = want else {
            // A batch that was padded or cut as a whole is another one.
            assert_eq!(got.unwrap_err(), want.unwrap_err(), "{name}");
            continue;
        };
        let floats = |batch: &Batch| batch.data().as_slice::<f32>().unwrap().to_vec();
        let is_same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        let (got, want) = (floats(&got.unwrap()), floats(&want));
        assert!(got.len() == want.len() && got.iter().zip(&want).all(is_same), "{name}");
        outcomes[2] += 1;
    }
    assert!(cfg!(miri) || outcomes.iter().all(|&count| count > 200), "{outcomes:?}");
}

fn view_of(tensor: &Tensor) -> SampleView<'_> {
    // SAFETY: the tensor is borrowed.
    unsafe {
        SampleView::from_raw_parts(
            tensor.data_ptr(),
            tensor.dtype(),
            Device::Cpu,
            tensor.layout().clone(),
        )
    }
}

/// Batches that threads share, in which rows begin and end within tiles.
#[test]
#[cfg_attr(miri, ignore)]
fn large_batches_on_several_threads() {
    let samples: Vec<Sample> =
        (0..24).map(|i| Sample::rich(DType::BF16, &[37, 1000], 7 * i)).collect();
    let views = views(&samples);
    for scale in [Granularity::Sample, Granularity::Row, Granularity::Block(128)] {
        let collate = Collate::stack().transform(Quantize::new(DType::F8E4M3FN).scale(scale));
        let want = quantised(&Engine::reference(), &views, &collate);
        assert!(quantised(&Engine::host(), &views, &collate) == want, "{scale:?}");
    }
}

const QNAN: f32 = f32::NAN;

fn quantised_f32(row: &[f32], quantize: Quantize) -> (Vec<u8>, Vec<u8>) {
    let views = [SampleView::from_slice(row, &[row.len() as i64]).unwrap()];
    let collate = Collate::stack().transform(quantize);
    let [data, scales] = quantised(&Engine::host(), &views, &collate);
    assert_eq!(quantised(&Engine::reference(), &views, &collate), [data.clone(), scales.clone()]);
    (data, scales)
}

/// Zeros, NaN, infinities and subnormal numbers, each by the rule that the documentation states.
#[test]
fn values_that_scales_get_wrong_first() {
    let e4m3 = Quantize::new(DType::F8E4M3FN);
    let scale = |scales: &[u8]| f32::from_ne_bytes(scales.try_into().unwrap());
    // A row of zeros has the least scale, and stays zeros of either sign.
    let (data, scales) = quantised_f32(&[0.0, -0.0, 0.0], e4m3);
    assert_eq!((&data[..], scale(&scales)), (&[0, 0x80, 0][..], 1e-12 / 448.0));
    // NaN does not count and stays, with its sign; int8 has none.
    let (data, scales) = quantised_f32(&[QNAN, 448.0, -QNAN, -1.0], e4m3);
    assert_eq!((&data[..], scale(&scales)), (&[0x7f, 0x7e, 0xff, 0xb8][..], 1.0));
    let (data, scales) = quantised_f32(&[QNAN, 127.0, 2.5, -3.5], Quantize::new(DType::I8));
    assert_eq!((&data[..], scale(&scales)), (&[0, 127, 2, 0xfc][..], 1.0));
    let (data, scales) = quantised_f32(&[QNAN; 3], e4m3);
    assert_eq!((&data[..], scale(&scales)), (&[0x7f; 3][..], 1e-12 / 448.0));
    // An infinity makes the scale infinite.
    let (data, scales) = quantised_f32(&[f32::INFINITY, 5.0, -7.0, f32::NEG_INFINITY], e4m3);
    assert_eq!((&data[..], scale(&scales)), (&[0x7f, 0, 0x80, 0xff][..], f32::INFINITY));
    let (data, scales) = quantised_f32(&[f32::INFINITY, 5.0], Quantize::new(DType::I8));
    assert_eq!((&data[..], scale(&scales)), (&[0, 0][..], f32::INFINITY));
    // float8_e8m0fnu has no infinity: NaN stands for it.
    let mx = e4m3.scale_dtype(DType::F8E8M0FNU);
    let (data, scales) = quantised_f32(&[f32::INFINITY, 2f32.powi(127)], mx);
    assert_eq!((&data[..], &scales[..]), (&[0x7f, 0x7f][..], &[255][..]));
    // The largest magnitude may be beyond the largest number, by its fraction.
    let (data, scales) = quantised_f32(&[511.0, 256.0, 1.0], mx);
    assert_eq!((&data[..], &scales[..]), (&[0x7e, 0x78, 0x38][..], &[127][..]));
    let (data, scales) = quantised_f32(&[512.0, 1.0], mx);
    assert_eq!((&data[..], &scales[..]), (&[0x78, 0x30][..], &[128][..]));
    // Subnormal numbers count, if eps lets them; their power is the least that there is.
    let tiny = f32::from_bits(3);
    let (_, scales) = quantised_f32(&[tiny, 0.0], mx.eps(1e-40));
    assert_eq!(scales, [0]);
    let (data, scales) = quantised_f32(&[1e-39, -5e-40], e4m3.eps(1e-42));
    assert_eq!((&data[..], scale(&scales)), (&[0x7e, 0xf6][..], 1e-39 / 448.0));
    // A sample without elements has the least scale, too.
    let engine = Engine::host();
    let rows: [&[f32]; 3] = [&[], &[896.0], &[]];
    let batch = engine.assemble(&rows, &Collate::ragged(Ragged::new()).transform(e4m3)).unwrap();
    let least = 1e-12 / 448.0;
    assert_eq!(batch.scales().unwrap().as_slice::<f32>().unwrap(), [least, 2.0, least]);
}

#[test]
fn shapes_of_scales() {
    let all =
        [Sample::rich(DType::F32, &[2, 3, 300], 1), Sample::rich(DType::F32, &[4, 3, 300], 2)];
    let alike = &all[..1];
    let by = |scale| Quantize::new(DType::I8).scale(scale);
    let (sample, row, block) = (Granularity::Sample, Granularity::Row, Granularity::Block(128));
    let shape = |samples: &[Sample], collate: Collate, scale| {
        let batch =
            Engine::host().assemble(&views(samples), &collate.transform(by(scale))).unwrap();
        batch.scales().unwrap().shape().to_vec()
    };
    assert_eq!(shape(alike, Collate::stack(), sample), [1]);
    assert_eq!(shape(alike, Collate::stack(), row), [1, 2, 3]);
    assert_eq!(shape(alike, Collate::stack(), block), [1, 2, 3, 3]);
    let ragged = || Collate::ragged(Ragged::new());
    assert_eq!(shape(&all, ragged(), sample), [2]);
    assert_eq!(shape(&all, ragged(), row), [6, 3]);
    assert_eq!(shape(&all, ragged(), block), [6, 3, 3]);
    let pad = || Collate::pad(Pad::new());
    assert_eq!(shape(&all, pad(), row), [2, 4, 3]);
    assert_eq!(shape(&all, pad(), block), [2, 4, 3, 3]);
    // The last dim is joined or padded: a row is the sample.
    assert_eq!(shape(&all[..1], Collate::concat(2), row), [1]);
    assert_eq!(shape(&all, Collate::pad(Pad::new().dims([0, 2])), row), [2]);
    let numbers = [Sample::rich(DType::F32, &[], 1), Sample::rich(DType::F32, &[], 2)];
    assert_eq!(shape(&numbers, Collate::stack(), row), [2]);
}

#[test]
fn padding_has_scale_1() {
    let rows = [[1f32, 2.0], [3.0, 4.0], [5.0, -6.0]];
    let all = [
        SampleView::from_slice(rows[..2].as_flattened(), &[2, 2]).unwrap(),
        SampleView::from_slice(rows[2..].as_flattened(), &[1, 2]).unwrap(),
    ];
    let pad = || Collate::pad(Pad::new().side(Side::Left).value(-1));
    let int8 = Quantize::new(DType::I8);
    let batch = Engine::host().assemble(&all, &pad().transform(int8)).unwrap();
    let data = batch.data().as_slice::<i8>().unwrap();
    assert_eq!(data, [64, 127, 95, 127, -1, -1, 106, -127]);
    let scales = batch.scales().unwrap();
    let want = [2.0 / 127.0, 4.0 / 127.0, 1.0, 6.0 / 127.0];
    assert_eq!(scales.as_slice::<f32>().unwrap(), want);
    let mx = Quantize::new(DType::F8E4M3FN).scale_dtype(DType::F8E8M0FNU);
    let batch = Engine::host().assemble(&all, &pad().transform(mx)).unwrap();
    assert_eq!(bytes(batch.scales().unwrap())[2], 127);
}

#[test]
fn scales_that_are_given() {
    let codes: [&[i8]; 2] = [&[2, 3, 4], &[5, 6, 7]];
    let engine = Engine::host();
    let tensor = |scales: &[f32], shape: &[i64]| Tensor::from_vec(scales.to_vec(), shape).unwrap();
    let floats = |collate: Collate| -> Vec<f32> {
        let batch = engine.assemble(&codes, &collate.cast(DType::F32)).unwrap();
        batch.data().as_slice().unwrap().to_vec()
    };
    let by = |given: Dequantize| Collate::stack().transform(given);
    let rows = [1.0, 1.5, 2.0, 50.0, 60.0, 70.0];
    assert_eq!(floats(by(Dequantize::new(tensor(&[0.5, 10.0], &[2])))), rows);
    let each = vec![tensor(&[0.5], &[]), tensor(&[10.0], &[])];
    assert_eq!(floats(by(Dequantize::new(each))), rows);
    let blocks = tensor(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    assert_eq!(floats(by(Dequantize::new(blocks).block(2))), [2.0, 3.0, 8.0, 15.0, 18.0, 28.0]);
    let each = vec![tensor(&[1.0, 2.0], &[2]), tensor(&[3.0, 4.0], &[2])];
    assert_eq!(floats(by(Dequantize::new(each).block(2))), [2.0, 3.0, 8.0, 15.0, 18.0, 28.0]);
    // The scales of a list go with their samples into padding.
    let samples = [
        SampleView::from_slice(&codes[0][..2], &[2, 1]).unwrap(),
        SampleView::from_slice(&codes[1][..1], &[1, 1]).unwrap(),
    ];
    let each = vec![tensor(&[10.0, 100.0], &[2]), tensor(&[1000.0], &[1])];
    for (side, want) in
        [(Side::Right, [20.0, 300.0, 5000.0, -1.0]), (Side::Left, [20.0, 300.0, -1.0, 5000.0])]
    {
        let pad = Collate::pad(Pad::new().side(side).value(-1)).cast(DType::F32);
        let batch = engine.assemble(&samples, &pad.transform(Dequantize::new(each.clone())));
        assert_eq!(batch.unwrap().data().as_slice::<f32>().unwrap(), want);
    }
    // Cut samples have the scales of what is left.
    let pad = Collate::pad(Pad::new().side(Side::Left).dims([0]).size(1).truncate(true));
    let pad = pad.cast(DType::F32).transform(Dequantize::new(each));
    let batch = engine.assemble(&samples, &pad).unwrap();
    assert_eq!(batch.data().as_slice::<f32>().unwrap(), [300.0, 5000.0]);
}

/// The one error that every executor gives.
fn refused(samples: &[SampleView<'_>], collate: &Collate) -> Error {
    let error = Engine::host().assemble(samples, collate).unwrap_err();
    assert_eq!(Engine::reference().assemble(samples, collate).unwrap_err(), error);
    error
}

#[test]
fn refusals() {
    let (floats, ints) = ([1f32, 2.0, 3.0, 4.0], [1i32, 2, 3, 4]);
    let row = [SampleView::from_slice(&floats, &[4]).unwrap()];
    let mixed = [row[0].clone(), SampleView::from_slice(&ints, &[4]).unwrap()];
    let int8 = Quantize::new(DType::I8);
    let text =
        |samples: &[SampleView<'_>], collate: Collate| refused(samples, &collate).to_string();
    let stack = |quantize: Quantize| Collate::stack().transform(quantize);
    assert_eq!(
        text(&mixed, stack(int8)),
        "sample 1: expected floating-point samples to quantise, got int32; a scale is found of floats: cast integers first"
    );
    assert_eq!(
        text(&row, stack(int8).cast(DType::F32)),
        "Quantize has a dtype of its own, which excludes another, float32"
    );
    assert_eq!(
        text(&row, stack(Quantize::new(DType::U8))),
        "Quantize: dtype must be float8_e4m3fn, float8_e5m2 or int8, got uint8"
    );
    assert_eq!(
        text(&row, stack(int8.scale(Granularity::Block(0)))),
        "Quantize: scale must be a block of at least 1 element, got 0"
    );
    assert_eq!(
        text(&row, stack(int8.scale_dtype(DType::F8E8M0FNU))),
        "Quantize: scales in e8m0 are those of float8, not of int8"
    );
    assert_eq!(
        text(&row, stack(int8.scale_dtype(DType::F16))),
        "Quantize: scale_dtype must be float32 or float8_e8m0fnu, got float16"
    );
    for eps in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-50, 1e300, 1e-44] {
        let text = text(&row, stack(int8.eps(eps)));
        assert_eq!(
            text,
            format!("Quantize: eps must be a positive number that float32 holds, also divided by 127, got {eps}")
        );
    }
    let joined = "blocks of 2 elements are along the last dim, which is the one that is joined or padded here: a sample has one scale";
    let blocks = int8.scale(Granularity::Block(2));
    for form in [Collate::ragged(Ragged::new()), Collate::concat(0), Collate::pad(Pad::new())] {
        assert_eq!(text(&row, form.transform(blocks)), joined);
    }
    // The samples are a list of codes.
    let codes = [1i8, 2, 3, 4];
    let codes = [SampleView::from_slice(&codes, &[4]).unwrap()];
    let scales = |shape: &[i64]| {
        let numel = shape.iter().product::<i64>() as usize;
        Tensor::from_vec(vec![1f32; numel], shape).unwrap()
    };
    let given = |given: Dequantize| Collate::stack().cast(DType::F32).transform(given);
    assert_eq!(
        text(&codes, Collate::stack().transform(Dequantize::new(scales(&[1])))),
        "dtype: expected float16, bfloat16, float32 or float64 for what is dequantised, got none; .cast(DType::F32) names it"
    );
    assert_eq!(
        text(&codes, given(Dequantize::new(scales(&[1]))).cast(DType::I32)),
        "dtype: expected float16, bfloat16, float32 or float64 for what is dequantised, got int32; .cast(DType::F32) names it"
    );
    assert_eq!(
        text(&row, given(Dequantize::new(scales(&[1])))),
        "sample 0: expected int8, float8_e4m3fn or float8_e5m2 samples, got float32; Dequantize is the way back from these"
    );
    assert_eq!(
        text(&codes, given(Dequantize::new(scales(&[2])))),
        "scales: expected shape (1,), got (2,)"
    );
    assert_eq!(
        text(&codes, given(Dequantize::new(vec![scales(&[2])]).block(3).block(4))),
        "sample 0: expected scales of shape (1,), got scales of shape (2,)"
    );
    assert_eq!(
        text(&codes, given(Dequantize::new(vec![scales(&[]); 2]))),
        "2 scales for 1 samples"
    );
    assert_eq!(
        text(&codes, given(Dequantize::new(scales(&[1])).block(0))),
        "Dequantize: block must be at least 1 element, got 0"
    );
    let ints = Tensor::from_vec(vec![1i32], &[1]).unwrap();
    assert_eq!(
        text(&codes, given(Dequantize::new(ints))),
        "scales: expected scales of a floating-point dtype or float8_e8m0fnu, got int32"
    );
    // Outputs that do not fit; nothing is written.
    let (mut data, mut found) = ([7i8; 4], [7f32; 2]);
    let mut out = (
        windrow::plan::Target::from_slice(&mut data, &[1, 4]).unwrap(),
        windrow::plan::Target::from_slice(&mut found, &[2]).unwrap(),
    );
    let error = Engine::host().assemble_into(&row, &stack(int8), &mut out).unwrap_err();
    assert_eq!(error.to_string(), "out of the scales: expected shape (1,), got (2,)");
    drop(out);
    assert_eq!((data, found), ([7; 4], [7.0; 2]));
    let mut out = (
        windrow::plan::Target::from_slice(&mut data, &[1, 4]).unwrap(),
        windrow::plan::Target::from_slice(&mut found[..1], &[1]).unwrap(),
    );
    let error = Engine::host().assemble_into(&codes, &Collate::stack(), &mut out).unwrap_err();
    assert_eq!(error.to_string(), "out has memory for scales, which only a Quantize gives");
}

#[test]
fn scales_beyond_64_bits() {
    let one = |shape: &[i64]| {
        let e8m0 = DType::F8E8M0FNU;
        let scale = Tensor::from_vec(vec![127u8], &[1]).unwrap().part(0, e8m0, &[1]).unwrap();
        scale.view(0, Layout::try_new(e8m0, shape, Some(&vec![0; shape.len()])).unwrap())
    };
    let many = [1 << 31, 1 << 30];
    let side = |extent| [Some(extent), Some(extent), None];
    let pad = |extent| Collate::pad(Pad::new().sizes(side(extent)));
    let empty = [many[0], many[1], 0];
    for (shape, count, scales, collate) in [
        (&[many[0], many[1], 1], 8, &many, Collate::stack()),
        (&empty, 8, &many, Collate::stack()),
        (&empty, 8, &many, Collate::concat(0)),
        (&[1, 1, 1], 1, &[1, 1], pad(1 << 40)),
        (&[1, 1, 0], 1, &[1, 1], pad(1 << 40)),
        (&[1, 1, 1], 1, &[1, 1], pad((1 << 32) + 1)),
    ] {
        let sample = SampleView::with_strides(&[7i8], shape, &[0; 3]).unwrap();
        let dequantize = Dequantize::new(vec![one(scales).unwrap(); count]);
        let error = refused(&vec![sample; count], &collate.cast(DType::F32).transform(dequantize));
        assert!(matches!(error, Error::TooLarge(_)), "{shape:?}: {error}");
    }
}

/// Pairs of any shapes and dtypes, each scale at a place of its own, against the naive executor and against stacks of one.
#[test]
fn pairs_have_given_scales_of_their_own() {
    let shapes: [&[i64]; 3] = [&[3, 0], &[2, 2], &[1, 3]];
    let codes = [vec![], vec![1i8, 2, 3, 4], vec![5, 6, 7]];
    let given = [vec![9.0f32, 9.0, 9.0], vec![2.0, 4.0], vec![0.5]];
    for engine in [Engine::host(), Engine::reference()] {
        let srcs: SampleList<'_> = codes
            .iter()
            .zip(shapes)
            .map(|(sample_codes, shape)| SampleView::from_slice(sample_codes, shape).unwrap())
            .collect();
        let mut out = [vec![], vec![0f32; 4], vec![0f32; 3]];
        let mut dsts = SampleList::new();
        for (buffer, shape) in out.iter_mut().zip(shapes) {
            // SAFETY: vectors that nothing else has until they are compared.
            unsafe { dsts.push(buffer.as_mut_ptr().cast(), DType::F32, Device::Cpu, shape, None) }
                .unwrap();
        }
        let scales = given.iter().map(|pair_scales| {
            Tensor::from_vec(pair_scales.clone(), &[pair_scales.len() as i64]).unwrap()
        });
        let transform = Dequantize::new(windrow::collate::Scales::Samples(scales.collect())).into();
        let options = MoveOptions { transform, ..MoveOptions::default() };
        // SAFETY: as above.
        unsafe { engine.copy_lists(&dsts, &srcs, options) }.unwrap();
        assert_eq!(out, [vec![], vec![2.0, 4.0, 12.0, 16.0], vec![2.5, 3.0, 3.5]]);
    }
}

#[test]
fn random_moves() {
    let mut random = Random::new(50);
    let engines = [Engine::host(), Engine::reference()];
    for case in 0..if cfg!(miri) { 5 } else { 400 } {
        let quantize = any_of(&mut random, 45);
        let collate = Collate::stack().transform(quantize);
        let samples: Vec<Sample> = (0..1 + random.below(5))
            .map(|_| {
                let shape: Vec<i64> = (0..random.below(4))
                    .map(|_| [0, 1, 2, 3, 40][random.below(5) as usize])
                    .collect();
                Sample::rich(FLOATS[random.below(6) as usize], &shape, random.below(1000))
            })
            .collect();
        let all = views(&samples);
        let alone: Vec<_> = all
            .iter()
            .map(|view| engines[0].assemble(std::slice::from_ref(view), &collate))
            .collect();
        if alone.iter().any(Result::is_err) {
            continue;
        }
        let alone: Vec<Batch> = alone.into_iter().map(Result::unwrap).collect();
        let list: SampleList<'_> = all.iter().cloned().collect();
        for engine in &engines {
            let frame = |of: &Tensor| {
                let (shape, strides) = (&of.shape()[1..], &of.strides()[1..]);
                let strides: Vec<i64> = strides.iter().map(|stride| 2 * stride).collect();
                Frame::new(of.dtype(), shape, &strides, 5)
            };
            let mut data: Vec<Frame> = alone.iter().map(|batch| frame(batch.data())).collect();
            let mut found: Vec<Frame> =
                alone.iter().map(|batch| frame(batch.scales().unwrap())).collect();
            let [dsts, scales] = [&mut data, &mut found].map(|frames| {
                let mut list = SampleList::new();
                frames.iter_mut().for_each(|frame| frame.add_to(&mut list));
                list
            });
            let options = MoveOptions {
                transform: quantize.into(),
                scales_out: Some(&scales),
                ..MoveOptions::default()
            };
            // SAFETY: frames that nothing else has.
            unsafe { engine.copy_lists(&dsts, &list, options) }.unwrap();
            for (index, batch) in alone.iter().enumerate() {
                let name = format!(
                    "pair {index} of case {case}: {quantize:?}, {:?}",
                    samples[index].shape
                );
                data[index].check(&name, &bytes(batch.data()));
                found[index].check(&name, &bytes(batch.scales().unwrap()));
            }
        }
    }
}

#[test]
fn targets_of_copy_many_with() {
    let x = [3f32, -6.0, 0.25, 1.0, 2.0, 4.0];
    let srcs = [SampleView::from_slice(&x, &[2, 3]).unwrap()];
    let quantize = Quantize::new(DType::I8).scale(Granularity::Row);
    let want = Engine::reference().assemble(&srcs, &Collate::stack().transform(quantize)).unwrap();
    let (mut codes, mut scales) = ([7i8; 6], [7f32; 2]);
    let refused = |number: usize, shape: &[i64]| {
        let (mut codes, mut scales) = ([7i8; 6], [[7f32; 2]; 2]);
        let mut targets: Vec<Target<'_>> = scales
            .iter_mut()
            .map(|buffer| {
                Target::from_slice(&mut buffer[..shape.iter().product::<i64>() as usize], shape)
            })
            .collect::<Result<_, _>>()
            .unwrap();
        targets.truncate(number);
        let mut dsts = [Target::from_slice(&mut codes, &[2, 3]).unwrap()];
        let options = CopyOptions::new().transform(quantize).scales_out(targets);
        let error = Engine::host().copy_many_with(&mut dsts, &srcs, options).unwrap_err();
        assert_eq!((codes, scales), ([7; 6], [[7.0; 2]; 2]));
        error.to_string()
    };
    assert_eq!(refused(2, &[2]), "scales_out has 2 destinations of scales for 1 pairs");
    assert_eq!(refused(1, &[1]), "scales_out 0: expected shape (2,), got (1,)");
    let mut dsts = [Target::from_slice(&mut codes, &[2, 3]).unwrap()];
    let options = CopyOptions::new().transform(quantize).scales_out(vec![Target::from_slice(
        &mut scales,
        &[2],
    )
    .unwrap()]);
    Engine::host().copy_many_with(&mut dsts, &srcs, options).unwrap();
    assert_eq!(codes, want.data().as_slice::<i8>().unwrap());
    assert_eq!(scales, want.scales().unwrap().as_slice::<f32>().unwrap());
    let mut back = [7f32; 6];
    let mut dsts = [Target::from_slice(&mut back, &[2, 3]).unwrap()];
    let srcs = [SampleView::from_slice(&codes, &[2, 3]).unwrap()];
    let given = Dequantize::new(vec![Tensor::from_vec(scales.to_vec(), &[2]).unwrap()]);
    let options = CopyOptions::new().transform(given);
    Engine::host().copy_many_with(&mut dsts, &srcs, options).unwrap();
    let want: Vec<f32> = (0..6).map(|i| f32::from(codes[i]) * scales[i / 3]).collect();
    assert_eq!(back, want[..]);
}
