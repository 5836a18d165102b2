//! The same bytes whatever runs a plan: each instruction set, any number of threads, the naive executor,
//! a device.

use super::isa::forced;
use crate::collate::Granularity;
use crate::{
    Batch, Collate, DType, Dequantize, Device, Engine, Layout, Mask, Pad, Quantize, Ragged,
    SampleList, SampleView, Side, Tensor, Transform,
};

const ARITHMETIC: &[DType] = DType::ALL.split_at(15).0;

/// Random bits, NaN of every kind among them; bools of 0 and 1.
fn sample(dtype: DType, shape: &[i64], seed: u64) -> Tensor {
    let layout = Layout::compact(dtype, shape).unwrap();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let bytes = state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_be_bytes();
        if dtype == DType::Bool {
            u64::from_ne_bytes(bytes.map(|byte| byte & 1))
        } else {
            u64::from_ne_bytes(bytes)
        }
    };
    let bytes = layout.numel() as usize * dtype.size();
    let words: Vec<u64> = (0..bytes.div_ceil(8)).map(|_| next()).collect();
    let whole = Tensor::from_vec(words, &[bytes.div_ceil(8) as i64]).unwrap();
    // SAFETY: the words hold at least as many bytes as the layout, and are kept by the owner.
    #[allow(unsafe_code)]
    unsafe {
        let (owner, data) = (whole.owner().clone(), whole.data_ptr());
        Tensor::new_unchecked(owner, data, dtype, Device::Cpu, layout, false)
    }
}

fn bytes(batch: &Batch) -> Vec<Vec<u8>> {
    let fields =
        [batch.lengths(), batch.offsets(), batch.mask(), batch.batch_index(), batch.scales()];
    let tensors = std::iter::once(batch.data()).chain(fields.into_iter().flatten());
    let bytes = |tensor: &Tensor| {
        assert!(tensor.layout().is_compact() && tensor.device() == Device::Cpu);
        // SAFETY: a compact tensor on the host has `nbytes` bytes.
        #[allow(unsafe_code)]
        unsafe { std::slice::from_raw_parts(tensor.data_ptr(), tensor.nbytes()) }.to_vec()
    };
    tensors.map(bytes).collect()
}

/// One for each number of threads; the naive one is apart.
fn engines() -> Vec<(String, Engine)> {
    let with = |threads| {
        (format!("{threads} threads"), Engine::builder().threads(threads).build().unwrap())
    };
    let mut engines: Vec<_> = [1, 2, 3, 8].map(with).into();
    match Engine::cuda(0) {
        Ok(engine) => engines.push(("device".to_owned(), engine)),
        Err(error) if std::env::var("WINDROW_REQUIRE_GPU").is_ok_and(|value| value == "1") => {
            panic!("WINDROW_REQUIRE_GPU=1, and there is no device: {error}")
        }
        Err(error) => eprintln!("SKIP: the CUDA engine is left out: {error}"),
    }
    engines
}

/// Large enough for several threads, of every form, and of every loop that is compiled more than once.
fn large() -> Vec<(&'static str, Vec<Tensor>, Collate)> {
    let images = |dtype| (0..6).map(|i| sample(dtype, &[150, 131, 3], i)).collect::<Vec<_>>();
    let rows = |dtype, scale: i64| {
        let length = |i: u64| 20_000 + scale * (i as i64 * 7919 % 9973);
        (0..9).map(|i| sample(dtype, &[length(i)], i)).collect::<Vec<_>>()
    };
    let planar = |dtype| (0..6).map(|i| sample(dtype, &[3, 150, 131], i)).collect::<Vec<_>>();
    let mirrored = |dtype| {
        let layout = Layout::try_new(dtype, &[150, 131, 3], Some(&[131 * 3, -3, 1])).unwrap();
        let flipped = |image: Tensor| image.view(130 * 3, layout.clone()).unwrap();
        images(dtype).into_iter().map(flipped).collect::<Vec<_>>()
    };
    let pixels = Transform::new().permute([1, 2, 0]);
    let (mean, std) = (vec![0.485, 0.456, 0.406], vec![0.229, 0.224, 0.225]);
    let normal = Transform::new().scale(1.0 / 255.0).mean(mean).std(std).channel_dim(2);
    let planes = normal.clone().permute([2, 0, 1]);
    let crop = Pad::new().sizes([Some(141), Some(160), None]).truncate(true).side(Side::Center);
    let tokens = Pad::new().value(-1).multiple_of(64).mask(Mask::Real).side(Side::Left);
    let turned = Transform::new().permute([2, 1, 0]);
    vec![
        ("copies", images(DType::U8), Collate::stack()),
        ("turned copies", images(DType::I16), Collate::stack().transform(turned)),
        ("mirrored", mirrored(DType::U8), Collate::stack()),
        ("interleaved bytes", planar(DType::U8), Collate::stack().transform(pixels.clone())),
        ("interleaved floats", planar(DType::F32), Collate::stack().transform(pixels)),
        ("planes", images(DType::U8), Collate::stack().cast(DType::F16).transform(planes.clone())),
        ("pixels", images(DType::U8), Collate::stack().cast(DType::BF16).transform(normal)),
        ("crops", images(DType::F32), Collate::pad(crop.mask(Mask::Pad)).transform(planes)),
        ("tokens", rows(DType::I32, 1), Collate::pad(tokens).cast(DType::I64)),
        (
            "values",
            rows(DType::F64, 1),
            Collate::ragged(Ragged::new().batch_index()).cast(DType::F16),
        ),
        ("joined", rows(DType::BF16, 2), Collate::concat(0).cast(DType::F32)),
    ]
}

/// Every pair of dtypes, with and without arithmetic, at lengths around those of a vector.
fn small() -> Vec<(&'static str, Vec<Tensor>, Collate)> {
    let mut cases = Vec::new();
    for &from in ARITHMETIC {
        let samples: Vec<_> =
            [1, 7, 8, 31, 33, 64, 129, 300].map(|n| sample(from, &[n], n as u64)).into();
        for &to in ARITHMETIC {
            let cast = Collate::concat(0).cast(to);
            cases.push(("cast", samples.clone(), cast.clone()));
            let scaled = Transform::new().scale(1.0 / 3.0).mean([0.3]);
            cases.push(("scaled", samples.clone(), cast.transform(scaled)));
        }
        let tables: Vec<_> = [5, 2].map(|n| sample(from, &[n, 77], n as u64)).into();
        for to in [DType::F8E4M3FN, DType::F8E5M2, DType::I8] {
            for scale in [Granularity::Sample, Granularity::Row, Granularity::Block(32)] {
                if from.is_float() {
                    let quantize = Quantize::new(to).scale(scale);
                    let collate = Collate::concat(0).transform(quantize);
                    cases.push(("quantised", tables.clone(), collate));
                }
            }
            let scales =
                Tensor::from_vec(vec![0.3f32, 7e-3, 1.0, 3e4, 0.7, 9.0, 2.5], &[7]).unwrap();
            for wide in [DType::F16, DType::BF16, DType::F32, DType::F64] {
                if from == to {
                    let given = Dequantize::new(scales.clone());
                    let collate = Collate::concat(0).cast(wide).transform(given);
                    cases.push(("dequantised", tables.clone(), collate));
                }
            }
        }
    }
    cases
}

#[test]
#[cfg(not(miri))] // Loops over every pair of dtypes, which take hours there.
fn instruction_sets_threads_and_executors_agree() {
    let (engines, naive) = (engines(), Engine::reference());
    for isa in forced::NAMES.iter().filter(|isa| !forced::is_supported(isa)) {
        eprintln!("SKIP: {isa} is not there; the best of the others runs in its place");
    }
    for (best, isa) in forced::NAMES.iter().enumerate() {
        forced::limit_to(Some(isa));
        for (position, other) in forced::NAMES.iter().enumerate() {
            let expected = position <= best && forced::is_supported(other);
            assert_eq!(forced::is_used(other), expected, "{other} under {isa}");
        }
    }
    let mut compared = 0;
    for (large, cases) in [(true, large()), (false, small())] {
        for (name, tensors, collate) in cases {
            let samples: SampleList<'_> = tensors.iter().map(SampleView::from).collect();
            let collate = collate.device(Device::Cpu);
            let want = bytes(&naive.assemble(&samples, &collate).unwrap());
            for isa in forced::NAMES {
                forced::limit_to(Some(isa));
                for (engine_name, engine) in &engines {
                    if !large && engine_name != "1 threads" && engine_name != "device" {
                        continue;
                    }
                    let batch = engine.assemble(&samples, &collate).unwrap();
                    let dtypes = (tensors[0].dtype(), batch.data().dtype());
                    assert!(want == bytes(&batch), "{name} {dtypes:?}, {isa}, {engine_name}");
                    compared += 1;
                }
            }
            forced::limit_to(None);
        }
    }
    assert!(compared >= 2 * (4 * 11 + 2 * 13 * 13 + 6 * 9), "{compared}");
}
