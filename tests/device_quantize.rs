//! Quantised and dequantised batches of a device: every form, dtype and layout against the naive executor, from the device, the
//! host and page-locked memory, into memory of the caller's, and by ids on the device.
#![cfg(feature = "cuda")]
#![allow(unsafe_code, reason = "samples at raw addresses of device memory")]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "small sizes")]

use std::sync::Arc;

use crate::common::device::{self, Bytes, PinnedBytes};
use crate::common::placed::{Copies, Placed};
use crate::common::runner::{bytes_of, is_emulated, Frame};
use crate::common::sample::{views, Paint};
use crate::common::scaled::{block_of, Case, FLOATS, QUANTISED};
use crate::common::{Random, Sample};
use windrow::batch::LeafOutput;
use windrow::collate::{Granularity, Scales};
use windrow::plan::{Leaf, Target};
use windrow::{
    Batch, Collate, DType, Dequantize, Device, Engine, Layout, Pad, Plan, Quantize, Ragged,
    SampleList, SampleView, Tensor, Transform,
};

const CUDA: Device = Device::Cuda(0);

fn both(batch: &Batch) -> [Vec<u8>; 2] {
    [bytes_of(batch.data()), bytes_of(batch.scales().expect("scales"))]
}

/// Checks a batch on the device, from wherever its samples may be, against the naive executor. Gives the naive batch.
fn check(engine: &Engine, name: &str, samples: &[Sample], collate: &Collate) -> Option<Batch> {
    let host = views(samples);
    let naive = Engine::reference().assemble(&host, collate);
    let placed = Placed::new(samples, &[]);
    // SAFETY: it lives until the results have been read.
    let there = unsafe { placed.views() };
    let naive = match naive {
        Ok(naive) => naive,
        Err(error) => {
            assert_eq!(engine.assemble(&there, collate).unwrap_err(), error, "{name}");
            return None;
        }
    };
    let want = both(&naive);
    let run = |place: &str, views: &[SampleView<'_>], collate: &Collate| {
        let batch =
            engine.assemble(views, collate).unwrap_or_else(|e| panic!("{name}, {place}: {e}"));
        assert_eq!(batch.scales().map(Tensor::device), Some(batch.data().device()), "{name}");
        let got = both(&batch);
        assert!(got[1] == want[1], "{name}, {place}: scales {:?}, got {:?}", want[1], got[1]);
        assert!(got[0] == want[0], "{name}, {place}: data {:?}, got {:?}", want[0], got[0]);
    };
    run("on the device", &there, collate);
    if is_emulated() {
        placed.check(name);
        return Some(naive);
    }
    for device in [Device::Cpu, Device::Pinned] {
        run("device to host", &there, &collate.clone().device(device));
    }
    let up = collate.clone().device(CUDA);
    run("host to device", &host, &up);
    let pinned = Copies::<PinnedBytes>::new(samples.iter().map(Sample::bytes));
    let at = |(index, sample): (usize, &Sample)| {
        // SAFETY: a copy of the sample, which lives as long.
        unsafe { sample.view_at(pinned.address(index), Device::Pinned) }
    };
    let views: Vec<_> = samples.iter().enumerate().map(at).collect();
    run("page-locked to device", &views, &up);
    placed.check(name);
    Some(naive)
}

/// The same of what is read back, by scales of the whole batch.
fn check_back(
    engine: &Engine,
    name: &str,
    batch: &Batch,
    quantize: &Quantize,
    collate: &Collate,
    to: DType,
) -> bool {
    let codes: Vec<Tensor> = (0..batch.len()).map(|i| batch.sample(i).unwrap()).collect();
    // SAFETY: tensors that live on.
    let at = |tensor: &Tensor, data| unsafe {
        SampleView::from_raw_parts(data, tensor.dtype(), tensor.device(), tensor.layout().clone())
    };
    let host: Vec<SampleView<'_>> =
        codes.iter().map(|tensor| at(tensor, tensor.data_ptr())).collect();
    let given = Dequantize::new(batch.scales().unwrap().clone());
    let given = match block_of(quantize) {
        Some(elems) => given.block(elems),
        None => given,
    };
    let collate = collate.clone().cast(to).transform(given).device(CUDA);
    let on_host = collate.clone().device(Device::Cpu);
    let naive = match Engine::reference().assemble(&host, &on_host) {
        Ok(naive) => naive,
        Err(error) => {
            assert_eq!(engine.assemble(&host, &collate).unwrap_err(), error, "{name}");
            return false;
        }
    };
    let got = engine.assemble(&host, &collate).unwrap_or_else(|e| panic!("{name}: {e}"));
    let (got, want) = (bytes_of(got.data()), bytes_of(naive.data()));
    let size = to.size();
    assert_eq!(got.len(), want.len(), "{name}");
    // NaN, too, bit by bit.
    for (at, (got, want)) in got.chunks(size).zip(want.chunks(size)).enumerate() {
        assert_eq!(got, want, "{name}: {at}");
    }
    true
}

#[test]
fn random_batches_on_a_device() {
    let Some(engine) = device::engine() else { return };
    let mut random = Random::new(490);
    let (mut outcomes, wide) = ([0; 3], [DType::F16, DType::BF16, DType::F32, DType::F64]);
    for case in 0..if is_emulated() { 600 } else { 1500 } {
        let Case { samples, collate, quantize, shape } = Case::random(&mut random);
        let name = format!("case {case}: {collate:?}, {quantize:?} of {shape:?}");
        let quantised = collate.clone().transform(quantize);
        let Some(naive) = check(engine, &name, &samples, &quantised) else {
            outcomes[0] += 1;
            continue;
        };
        outcomes[1] += 1;
        // The output has gaps between rows, at an address that is no multiple of anything.
        let frames = [naive.data(), naive.scales().unwrap()].map(|of| {
            let mut strides = of.strides().to_vec();
            if let Some(outer) = strides.first_mut() {
                *outer *= 2;
            }
            Frame::new(of.dtype(), of.shape(), &strides, 3)
        });
        let placed = Placed::new(&samples, &frames);
        // SAFETY: it lives until the results have been read.
        let there = unsafe { placed.views() };
        let (scales_at, want) = (placed.frame(1), both(&naive));
        let [data, found] = frames;
        found.check_on_device(&name, &want[1], scales_at, |scales| {
            data.check_on_device(&name, &want[0], placed.frame(0), |data| {
                let mut out = (target(data), target(scales));
                engine.assemble_into(&there, &quantised, &mut out).unwrap();
            });
        });
        // The result is copied back to the host.
        let [mut data, mut found] = [naive.data(), naive.scales().unwrap()].map(|of| {
            let mut strides = of.strides().to_vec();
            if let Some(outer) = strides.first_mut() {
                *outer *= 2;
            }
            Frame::new(of.dtype(), of.shape(), &strides, 5)
        });
        let back = quantised.clone().device(Device::Cpu);
        engine.assemble_into(&there, &back, &mut (data.target(), found.target())).unwrap();
        data.check(&name, &want[0]);
        found.check(&name, &want[1]);
        let to = wide[random.below(4) as usize];
        outcomes[2] += usize::from(check_back(engine, &name, &naive, &quantize, &collate, to));
    }
    assert!(outcomes.iter().all(|&count| count > 100), "{outcomes:?}");
}

/// The same memory again.
fn target<'t>(of: &'t mut Target<'_>) -> Target<'t> {
    use windrow::plan::AsTarget;
    of.as_target().unwrap()
}

/// Sizes around those of chunks, teams, warps and registers, at addresses of every kind.
#[test]
fn rows_of_every_length() {
    let Some(engine) = device::engine() else { return };
    let lengths =
        [1, 15, 16, 17, 31, 127, 128, 129, 255, 256, 511, 512, 513, 1024, 1025, 2100, 4097];
    let scales = [
        Granularity::Sample,
        Granularity::Row,
        Granularity::Block(32),
        Granularity::Block(128),
        Granularity::Block(300),
    ];
    let mut seed = 0;
    for (length, from) in lengths.into_iter().flat_map(|length| FLOATS.map(|from| (length, from))) {
        for misalign in [0, from.size(), 1] {
            let shape = [3, length];
            let samples: Vec<Sample> = (0..3)
                .map(|_| {
                    seed += 1;
                    Sample::laid_out(from, &shape, &[length, 1], misalign, Paint::Rich, seed)
                })
                .collect();
            let quantize = Quantize::new(QUANTISED[seed as usize % 3])
                .scale(scales[seed as usize / 3 % scales.len()]);
            let name = format!("{from}, rows of {length} + {misalign}: {quantize:?}");
            let stack = Collate::stack();
            let batch = check(engine, &name, &samples, &stack.clone().transform(quantize));
            check_back(engine, &name, &batch.unwrap(), &quantize, &stack, DType::BF16);
        }
    }
}

/// More groups than a device has lanes for, so that the same lanes take neighbouring ones; rows that are joined, and padded ones.
#[test]
fn more_groups_than_lanes() {
    let Some(engine) = device::engine() else { return };
    let host = Engine::host();
    let whole =
        [12_800, 12_800, 12_800, 12_800].map(|rows| Sample::new(DType::BF16, &[rows, 64], 1));
    let uneven = [3000, 4000, 0, 200].map(|rows| Sample::new(DType::F16, &[rows, 256], 7));
    for (samples, form, scale) in [
        (&whole, Collate::stack(), Granularity::Row),
        (&uneven, Collate::pad(Pad::new().dims([0])), Granularity::Block(128)),
    ] {
        let collate = form.transform(Quantize::new(DType::F8E4M3FN).scale(scale));
        let samples = views(samples);
        let want = both(&host.assemble(&samples, &collate).unwrap());
        let got = both(&engine.assemble(&samples, &collate.device(CUDA)).unwrap());
        assert!(got == want, "{scale:?}");
    }
}

/// Values of one magnitude, so that no lane has to divide one by one; then with NaN, an infinity, and numbers as small and as
/// large as there are.
#[test]
fn values_of_every_size() {
    let Some(engine) = device::engine() else { return };
    let mut random = Random::new(7);
    let host = Engine::reference();
    for case in 0..300 {
        let from = FLOATS[random.below(6) as usize];
        let exponent = match (from, case % 6) {
            (DType::F16 | DType::F8E4M3FN | DType::F8E5M2, _) => random.below(6) as i32,
            (_, 0) => -149 + random.below(30) as i32,
            (_, 1) => 100 + random.below(27) as i32,
            _ => random.below(20) as i32 - 10,
        };
        let mut number = || {
            let fraction = random.below(1 << 24) as f64 / f64::from(1 << 23) - 1.0;
            let smaller = random.below(24) as i32;
            (fraction * 2f64.powi(exponent - smaller)) as f32
        };
        let mut rows: Vec<[f32; 600]> = (0..5).map(|_| std::array::from_fn(|_| number())).collect();
        match case % 5 {
            0 => rows[1][300] = f32::NAN,
            1 => rows[2][599] = -f32::NAN,
            2 => rows[3][17] = f32::NEG_INFINITY,
            3 => rows[4] = [-0.0; 600],
            _ => {}
        }
        let dtype = QUANTISED[case % 3];
        let scale = [Granularity::Row, Granularity::Block(128), Granularity::Sample][case / 3 % 3];
        let mut quantize = Quantize::new(dtype).scale(scale).eps(1e-40 + 1e-30 * (case % 2) as f64);
        if dtype == DType::I8 {
            quantize = quantize.eps(1e-30);
        } else if case % 4 < 2 {
            quantize = quantize.scale_dtype(DType::F8E8M0FNU);
        }
        let collate = Collate::stack().transform(quantize);
        let cast = host.assemble(&rows, &Collate::stack().cast(from)).unwrap();
        let list = SampleList::rows(cast.data()).unwrap();
        let want = both(&host.assemble(&list, &collate).unwrap());
        let got = both(&engine.assemble(&list, &collate.device(CUDA)).unwrap());
        assert!(got == want, "case {case}: {from}, {quantize:?}");
    }
}

/// A batch of ids on the device, one of them out of range, whose place has padding.
#[test]
fn ids_on_a_device() {
    let Some(engine) = device::engine() else { return };
    let (rows, length) = (40i64, 96);
    let elems = 2 * length as usize;
    let floats: Vec<f32> =
        (0..rows as usize * elems).map(|i| (i * 37 % 1009) as f32 - 300.0).collect();
    let memory =
        Bytes::from_bytes(&floats.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>());
    let tensor = |data: u64, dtype: DType, shape: &[i64]| {
        let layout = Layout::compact(dtype, shape).unwrap();
        // SAFETY: memory of the test's, of that size.
        unsafe { Tensor::new_unchecked(Arc::new(()), data as *mut u8, dtype, CUDA, layout, false) }
    };
    let whole = tensor(memory.address, DType::F32, &[rows, 2, length]);
    let ids: Vec<i64> = (0..70).map(|i| i * 11 % rows).chain([rows]).collect();
    let bytes = Bytes::from_bytes(&ids.iter().flat_map(|id| id.to_ne_bytes()).collect::<Vec<u8>>());
    let resident =
        [0, 1].map(|_| engine.resident(SampleList::rows(&whole).unwrap(), CUDA).unwrap());
    for scale in [Granularity::Sample, Granularity::Row, Granularity::Block(32)] {
        for form in [Collate::stack(), Collate::pad(Pad::new().dims([0]).size(3))] {
            let collate = form.transform(Quantize::new(DType::F8E4M3FN).scale(scale));
            let name = format!("{collate:?}");
            // Plans are kept from the second time on.
            for count in [70, 70, 70, 71] {
                let indices = tensor(bytes.address, DType::I64, &[count]);
                let resident = &resident[usize::from(count == 71)];
                let batch = engine.assemble(&resident.take(&indices).unwrap(), &collate).unwrap();
                let got = both(&batch);
                let known = &ids[..ids.len() - 1];
                let views: Vec<_> = known
                    .iter()
                    .map(|&id| {
                        SampleView::from_slice(
                            &floats[id as usize * elems..][..elems],
                            &[2, length],
                        )
                        .unwrap()
                    })
                    .collect();
                let want = both(&Engine::reference().assemble(&views, &collate).unwrap());
                for (got, want) in got.iter().zip(&want) {
                    assert!(got[..want.len()] == want[..], "{name}");
                }
                let found = batch.check().map_err(|error| error.to_string());
                assert_eq!(found.is_err(), count == 71, "{found:?}");
                if let Err(text) = found {
                    assert!(text.contains("position 70 is out of range"), "{text}");
                    resident.take(&indices).unwrap_err();
                }
            }
        }
    }
}

/// The given scales are those of samples that the host does not know.
#[test]
fn given_scales_need_ids_on_the_host() {
    let Some(engine) = device::engine() else { return };
    let codes = Bytes::from_bytes(&[1; 12]);
    let ids = Bytes::from_bytes(&1i64.to_ne_bytes());
    let tensor = |data: u64, dtype: DType, shape: &[i64]| {
        let layout = Layout::compact(dtype, shape).unwrap();
        // SAFETY: memory of the test's, of that size.
        unsafe { Tensor::new_unchecked(Arc::new(()), data as *mut u8, dtype, CUDA, layout, false) }
    };
    let table = tensor(codes.address, DType::I8, &[3, 4]);
    let resident = engine.resident(SampleList::rows(&table).unwrap(), CUDA).unwrap();
    let samples = resident.take(&tensor(ids.address, DType::I64, &[1])).unwrap();
    let given = Dequantize::new(Tensor::from_vec(vec![1f32], &[1]).unwrap());
    let collate = Collate::stack().cast(DType::F32).transform(given);
    assert_eq!(
        engine.assemble(&samples, &collate).unwrap_err().to_string(),
        "a Dequantize needs samples selected on the host: the samples are taken by indices on a device, which the host does \
         not know; take by indices on the host instead"
    );
}

/// Batch after batch of one list, whose plan is kept.
#[test]
fn batches_of_one_list() {
    let Some(engine) = device::engine() else { return };
    let samples: Vec<Sample> =
        (0..30).map(|seed| Sample::rich(DType::BF16, &[300], seed)).collect();
    let placed = Placed::new(&samples, &[]);
    // SAFETY: it lives until the results have been read.
    let list: SampleList<'_> = unsafe { placed.views() }.into_iter().collect();
    let host = views(&samples);
    let collate =
        Collate::stack().transform(Quantize::new(DType::F8E5M2).scale(Granularity::Block(128)));
    for step in 1..6 {
        let ids: Vec<i64> = (0..11).map(|i| (i * step * 7 + step) % 30).collect();
        let batch = engine.assemble(&list.take(ids.iter().copied()).unwrap(), &collate).unwrap();
        let chosen: Vec<_> = ids.iter().map(|&id| host[id as usize].clone()).collect();
        let naive = Engine::reference().assemble(&chosen, &collate).unwrap();
        assert!(both(&batch) == both(&naive), "step {step}");
        let back = Collate::stack().cast(DType::F32);
        let given = Dequantize::new(Scales::Batch(naive.scales().unwrap().clone())).block(128);
        let codes = SampleList::rows(batch.data()).unwrap();
        let back = engine.assemble(&codes, &back.transform(given)).unwrap();
        assert_eq!(back.data().device(), CUDA);
    }
}

/// A batch of scaled leaves and of others: two launches read one table, and each leaves out what the other writes.
#[test]
fn scaled_leaves_and_others_take_two_launches() {
    if device::engine().is_none() {
        return;
    }
    // Other tests' launches are not counted.
    let engine = Engine::cuda(0).unwrap();
    let samples: Vec<Sample> =
        (0..5).map(|seed| Sample::rich(DType::F32, &[6, 48], seed)).collect();
    let placed = Placed::new(&samples, &[]);
    // SAFETY: it lives until the results have been read.
    let there: SampleList<'_> = unsafe { placed.views() }.into_iter().collect();
    let host: SampleList<'_> = views(&samples).into_iter().collect();
    let quantised = Collate::stack().transform(Quantize::new(DType::F8E4M3FN));
    let transposed = Collate::stack().transform(Transform::new().permute([1, 0]));
    let moved = Collate::ragged(Ragged::new());
    for (forms, launches) in [
        (vec![&quantised, &transposed, &moved], 2),
        (vec![&transposed, &moved, &quantised], 2),
        (vec![&quantised, &moved], 2),
        (vec![&quantised], 1),
        (vec![&transposed, &moved], 1),
        // More descriptors than parameters have room for.
        ([&quantised].repeat(160), 1),
        ([&quantised, &moved].repeat(80), 2),
        ([&quantised, &transposed].repeat(80), 2),
    ] {
        let plan = |samples| {
            let leaves: Vec<_> = forms
                .iter()
                .map(|collate| Leaf { samples, collate, path: "", out: None })
                .collect();
            Plan::for_leaves(&leaves).unwrap()
        };
        let (planned, before) = (plan(&there), engine.stats().launches);
        assert_eq!(planned.explain().launches, launches);
        let got = engine.run(planned).unwrap();
        assert_eq!(engine.stats().launches - before, launches as u64);
        let naive = Engine::reference().run(plan(&host)).unwrap();
        assert_eq!(got.len(), naive.len());
        for (leaf, (got, naive)) in got.iter().zip(&naive).enumerate() {
            let parts = |leaf: &LeafOutput| {
                [leaf.data.as_ref(), leaf.fields.scales.as_deref()].map(|part| part.map(bytes_of))
            };
            assert!(parts(got) == parts(naive), "leaf {leaf}");
        }
    }
}

#[test]
fn explain_names_the_family() {
    if device::engine().is_none() {
        return;
    }
    let row = [1f32, 2.0];
    let row = [SampleView::from_slice(&row, &[2]).unwrap()];
    let collate = Collate::stack().device(CUDA).transform(Quantize::new(DType::I8));
    let text = Plan::new(&row, &collate).unwrap().explain().to_string();
    assert!(text.contains("quantised"), "{text}");
}
