//! `copy_many` with scales that are found or given, with sides on a device: pairs of any layouts in any places against the naive
//! executor, pair by pair, and what is refused.
#![cfg(feature = "cuda")]
#![allow(unsafe_code, reason = "pairs at raw addresses of device memory")]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "small sizes")]

use crate::common::device::{self, Bytes, PinnedBytes};
use crate::common::placed::{Copies, Placed};
use crate::common::runner::{bytes_of, POISON};
use crate::common::sample::views;
use crate::common::scaled::{any_of, block_of, FLOATS};
use crate::common::{coordinates, Random, Sample};
use windrow::bindings::MoveOptions;
use windrow::collate::{AnyTransform, Granularity, Scales};
use windrow::engine::CopyOptions;
use windrow::plan::Target;
use windrow::{
    Collate, DType, Dequantize, Device, Engine, Error, Layout, Quantize, SampleList, SampleView,
    Tensor,
};

const CUDA: Device = Device::Cuda(0);
const PLACES: [Device; 3] = [Device::Cpu, Device::Pinned, CUDA];

/// Tensors in one memory, between bytes that stay as they are.
struct Pool {
    dtype: DType,
    firsts: Vec<usize>,
    layouts: Vec<Layout>,
    /// The expected bytes of the memory.
    expected: Vec<u8>,
}

impl Pool {
    /// A tensor for each of these, of which the bytes are what it is to be, at its page of the memory, with gaps between rows if
    /// `is_apart`.
    fn new(want: &[Tensor], pages: &[usize], is_apart: bool, slack: usize) -> Pool {
        let dtype = want[0].dtype();
        let size = dtype.size();
        let layouts: Vec<Layout> = want
            .iter()
            .map(|tensor| {
                let mut strides = tensor.strides().to_vec();
                if let (true, Some(outer)) = (is_apart, strides.first_mut()) {
                    *outer = 2 * *outer + 1;
                }
                Layout::try_new(dtype, tensor.shape(), Some(&strides)).unwrap()
            })
            .collect();
        let span = |layout: &Layout| {
            let steps = layout.shape().iter().zip(layout.strides());
            1 + steps.map(|(&extent, stride)| (extent - 1).max(0) * stride).sum::<i64>() as usize
        };
        let pitch = layouts.iter().map(span).max().unwrap() * size + slack;
        let firsts: Vec<usize> = pages.iter().map(|page| 64 + slack % 16 + page * pitch).collect();
        let mut expected = vec![POISON; 128 + pitch * (1 + pages.iter().max().unwrap())];
        for ((tensor, layout), first) in want.iter().zip(&layouts).zip(&firsts) {
            let (bytes, mut at) = (bytes_of(tensor), 0);
            coordinates(tensor.shape(), |coords| {
                let steps = coords.iter().zip(layout.strides());
                let step: i64 = steps.map(|(coord, stride)| coord * stride).sum();
                let place = first + step as usize * size;
                expected[place..place + size].copy_from_slice(&bytes[at..at + size]);
                at += size;
            });
        }
        Pool { dtype, firsts, layouts, expected }
    }

    fn targets(&self, memory: *mut u8, device: Device) -> Vec<Target<'static>> {
        let places = self.firsts.iter().zip(&self.layouts);
        let target = |(&first, layout): (&usize, &Layout)| {
            let data = memory.wrapping_add(first);
            // SAFETY: within memory as large as what is expected, which lives until the work is done.
            unsafe { Target::from_raw_parts(data, self.dtype, device, layout.clone()) }
        };
        places.map(target).collect()
    }

    /// Runs `work` on targets in poisoned memory of a device, and checks all of that.
    fn check(&self, name: &str, device: Device, work: impl FnOnce(Vec<Target<'static>>)) {
        let mut host = vec![POISON; self.expected.len()];
        let after = match device {
            Device::Cpu => {
                work(self.targets(host.as_mut_ptr(), device));
                host
            }
            Device::Pinned => {
                let memory = PinnedBytes::from_bytes(&host);
                work(self.targets(memory.address, device));
                // The bytes were written when the call returned.
                // SAFETY: as many bytes.
                unsafe { std::slice::from_raw_parts(memory.address, memory.len) }.to_vec()
            }
            _ => {
                let memory = Bytes::from_bytes(&host);
                work(self.targets(memory.address as *mut u8, device));
                memory.to_host()
            }
        };
        if let Some(at) = (0..after.len()).find(|&at| after[at] != self.expected[at]) {
            let (got, want) = (after[at], self.expected[at]);
            panic!("{name}: byte {at} of {:?}: {got:#x}, expected {want:#x}", self.firsts);
        }
    }
}

/// Different numbers below twice their count.
fn pages(random: &mut Random, count: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..2 * count).collect();
    for at in (1..all.len()).rev() {
        all.swap(at, random.below(at as u64 + 1) as usize);
    }
    all.truncate(count);
    all
}

/// The way back by these scales, of blocks if that many elements have one.
fn given(scales: &[Tensor], block: Option<i64>) -> Dequantize {
    let given = Dequantize::new(Scales::Samples(scales.to_vec()));
    match block {
        Some(elems) => given.block(elems),
        None => given,
    }
}

/// All ways with a side on a device.
fn ways() -> impl Iterator<Item = (Device, Device)> {
    let all = PLACES.into_iter().flat_map(|from| PLACES.map(|to| (from, to)));
    all.filter(|&(from, to)| from == CUDA || to == CUDA)
}

/// Copies samples to these pools from everywhere to everywhere.
fn check_ways(
    engine: &Engine,
    name: &str,
    samples: &[Sample],
    transform: &AnyTransform,
    (data, scales): (&Pool, Option<&Pool>),
) {
    let placed = Placed::new(samples, &[]);
    let pinned = Copies::<PinnedBytes>::new(samples.iter().map(Sample::bytes));
    for (from, to) in ways() {
        let name = format!("{name}, {from} to {to}");
        let srcs: Vec<SampleView<'_>> = match from {
            // SAFETY: they live until the work is done.
            CUDA => unsafe { placed.views() },
            Device::Cpu => views(samples),
            _ => samples
                .iter()
                .enumerate()
                // SAFETY: as above.
                .map(|(index, sample)| unsafe { sample.view_at(pinned.address(index), from) })
                .collect(),
        };
        let launches = engine.stats().launches;
        let copy = |mut dsts: Vec<Target<'static>>, found: Option<Vec<Target<'static>>>| {
            let mut options = CopyOptions::new().transform(transform.clone());
            if let Some(found) = found {
                options = options.scales_out(found);
            }
            let copied = engine.copy_many_with(&mut dsts, &srcs, options);
            copied.unwrap_or_else(|error| panic!("{name}: {error}"));
        };
        match scales {
            Some(scales) => data.check(&name, to, |dsts| {
                scales.check(&name, to, |found| copy(dsts, Some(found)));
            }),
            None => data.check(&name, to, |dsts| copy(dsts, None)),
        }
        assert_eq!(engine.stats().launches, launches + 1, "{name}");
    }
    placed.check(name);
}

#[test]
fn random_moves_on_a_device() {
    if device::engine().is_none() {
        return;
    }
    // No other test adds to its launches.
    let engine = Engine::cuda(0).unwrap();
    let naive = Engine::reference();
    let mut random = Random::new(51);
    let wide = [DType::F16, DType::BF16, DType::F32, DType::F64];
    let mut outcomes = [0; 2];
    for case in 0..250 {
        let quantize = any_of(&mut random, 45);
        let ndim = random.below(4) as usize;
        let shapes: Vec<Vec<i64>> = (0..1 + random.below(2))
            .map(|_| (0..ndim).map(|_| [1, 2, 3, 5, 40][random.below(5) as usize]).collect())
            .collect();
        let samples: Vec<Sample> = (0..1 + random.below(7))
            .map(|_| {
                let shape = &shapes[random.below(shapes.len() as u64) as usize];
                let from = FLOATS[random.below(2) as usize * 2 + case % 3];
                let mut strides: Vec<i64> =
                    (0..ndim).map(|d| shape[d + 1..].iter().product::<i64>()).collect();
                if random.below(4) == 0 {
                    strides.iter_mut().for_each(|stride| *stride *= 3);
                }
                Sample::strided(from, shape, &strides, random.below(1000))
            })
            .collect();
        let shapes: Vec<_> = samples.iter().map(|sample| &sample.shape).collect();
        let name = format!("case {case}: {quantize:?} of {shapes:?}");
        let alone: Result<Vec<_>, Error> = views(&samples)
            .into_iter()
            .map(|view| naive.assemble(&[view], &Collate::stack().transform(quantize)))
            .collect();
        // Blocks of samples without dims are refused.
        let Ok(alone) = alone else { continue };
        let want: Vec<Tensor> = alone.iter().map(|batch| batch.data().select(0).unwrap()).collect();
        let scales = alone.iter().map(|batch| batch.scales().unwrap().select(0).unwrap());
        let found: Vec<Tensor> = scales.collect();
        let at = pages(&mut random, samples.len());
        // The scales are in the pages of one cache, or each in a random one.
        let scales_at =
            if random.below(2) == 0 { at.clone() } else { pages(&mut random, samples.len()) };
        let slack = [0, 16, 7, 64][random.below(4) as usize];
        let data = Pool::new(&want, &at, random.below(3) == 0, slack);
        let scales = Pool::new(&found, &scales_at, random.below(3) == 0, slack % 16);
        check_ways(&engine, &name, &samples, &quantize.into(), (&data, Some(&scales)));
        outcomes[0] += 1;

        let codes: Vec<Sample> = want
            .iter()
            .map(|tensor| {
                let mut sample = Sample::new(tensor.dtype(), tensor.shape(), 0);
                let (bytes, mut at) = (bytes_of(tensor), 0);
                coordinates(tensor.shape(), |coords| {
                    sample.put(coords, bytes[at].into());
                    at += 1;
                });
                sample
            })
            .collect();
        let block = block_of(&quantize);
        let to = wide[random.below(4) as usize];
        let back: Result<Vec<_>, Error> = views(&codes)
            .into_iter()
            .zip(&found)
            .map(|(view, pair_scales)| {
                let one = given(std::slice::from_ref(pair_scales), block);
                naive.assemble(&[view], &Collate::stack().cast(to).transform(one))
            })
            .collect();
        let back: Vec<Tensor> =
            back.unwrap().iter().map(|batch| batch.data().select(0).unwrap()).collect();
        let even: Vec<usize> = (0..samples.len()).collect();
        let at = if random.below(2) == 0 { even } else { pages(&mut random, samples.len()) };
        let data = Pool::new(&back, &at, random.below(3) == 0, slack);
        let name = format!("{name}, back to {to}");
        check_ways(&engine, &name, &codes, &given(&found, block).into(), (&data, None));
        outcomes[1] += 1;
    }
    assert!(outcomes.iter().all(|&count| count > 150), "{outcomes:?}");
}

/// Pages of a cache, whichever they are, are one part of the launch, and tensors in any places that scales are given for; places
/// and scales that have no order together are several.
#[test]
fn pages_of_a_cache_are_one_part() {
    if device::engine().is_none() {
        return;
    }
    let rows: Vec<Sample> = (0..40).map(|seed| Sample::rich(DType::BF16, &[3, 64], seed)).collect();
    let placed = Placed::new(&rows, &[]);
    // SAFETY: nothing is read or written.
    let srcs: SampleList<'_> = unsafe { placed.views() }.into_iter().collect();
    let list = |dtype: DType, shape: &[i64], places: &dyn Fn(usize) -> usize| {
        let mut list = SampleList::new();
        for pair in 0..rows.len() {
            let data = std::ptr::without_provenance((1 << 30) + places(pair));
            // SAFETY: as above.
            unsafe { list.push(data, dtype, CUDA, shape, None) }.unwrap();
        }
        list
    };
    let page = |pair: usize| pair * 17 % 41;
    let quantize = Quantize::new(DType::F8E4M3FN).scale(Granularity::Block(32));
    let parts =
        |dsts: &SampleList<'_>, transform: AnyTransform, scales: Option<&SampleList<'_>>| {
            let explain = Engine::host().explain_lists(dsts, &srcs, &transform, scales).unwrap();
            (explain.path, explain.bytes_written, explain.launch.unwrap().parts.len())
        };
    let pages = list(DType::F8E4M3FN, &[3, 64], &|pair| 4096 + 192 * page(pair));
    let kept = list(DType::F32, &[3, 2], &|pair| (1 << 20) + 24 * page(pair));
    let bytes = 40 * (3 * 64 + 6 * 4);
    assert_eq!(parts(&pages, quantize.into(), Some(&kept)), ("quantize", bytes, 1));
    let other = list(DType::F32, &[3, 2], &|pair| (1 << 20) + 24 * (pair * pair % 1601));
    let (_, _, count) = parts(&pages, quantize.into(), Some(&other));
    assert!((10..=40).contains(&count), "{count}");
    let codes = list(DType::F8E4M3FN, &[3, 64], &|pair| (1 << 24) + 192 * pair);
    let anywhere = list(DType::F32, &[3, 64], &|pair| (1 << 20) + 768 * (pair * pair % 1601));
    let ones = Tensor::from_vec(vec![1f32; 6], &[3, 2]).unwrap();
    let given = given(&vec![ones; rows.len()], Some(32));
    let explain = Engine::host().explain_lists(&anywhere, &codes, &given.into(), None).unwrap();
    assert_eq!(explain.launch.unwrap().parts.len(), 1);
}

#[test]
fn refusals() {
    let Some(engine) = device::engine() else { return };
    let samples = [Sample::rich(DType::F32, &[2, 4], 1), Sample::rich(DType::F32, &[0, 4], 1)];
    let placed = Placed::new(&samples, &[]);
    // SAFETY: it lives until the errors have been read.
    let there = unsafe { placed.views() };
    let memory = Bytes::from_bytes(&[POISON; 256]);
    let target = |at: u64, dtype: DType, shape: &[i64], device: Device| {
        let layout = Layout::compact(dtype, shape).unwrap();
        // SAFETY: parts of the memory, or never written.
        unsafe { Target::from_raw_parts((memory.address + at) as *mut u8, dtype, device, layout) }
    };
    let refused = |pair: usize, quantize: Quantize, [to, scales]: [Device; 2], shape: &[i64]| {
        let mut dsts = [target(0, DType::I8, &samples[pair].shape, to)];
        let scales = vec![target(64, DType::F32, shape, scales)];
        let options = CopyOptions::new().transform(quantize).scales_out(scales);
        let error = engine.copy_many_with(&mut dsts, &there[pair..=pair], options).unwrap_err();
        assert!(matches!(error, Error::Device(_)), "{error}");
        assert_eq!(memory.to_host(), [POISON; 256]);
        error.to_string()
    };
    let rows = Quantize::new(DType::I8);
    assert_eq!(
        refused(0, rows, [CUDA, Device::Cpu], &[2]),
        "scales_out 0: expected cuda:0, where the destination is, got cpu"
    );
    assert_eq!(
        refused(0, rows, [Device::Cpu, CUDA], &[2]),
        "scales_out 0: expected host memory, where the destination is, got cuda:0"
    );
    assert_eq!(
        refused(1, rows.scale(Granularity::Sample), [CUDA, CUDA], &[]),
        "scales_out 0: expected host memory for the scale of no elements, got cuda:0"
    );
    // The host reads the given scales.
    let on_device = |shape: &[i64]| {
        let layout = Layout::compact(DType::F32, shape).unwrap();
        let data = (memory.address + 128) as *mut u8;
        // SAFETY: memory of the test's, of that size.
        unsafe {
            Tensor::new_unchecked(std::sync::Arc::new(()), data, DType::F32, CUDA, layout, false)
        }
    };
    let codes = [Sample::rich(DType::I8, &[2, 4], 1)];
    let placed = Placed::new(&codes, &[]);
    // SAFETY: as above.
    let there = unsafe { placed.views() };
    let mut dsts = [target(0, DType::F32, &[2, 4], CUDA)];
    let options = CopyOptions::new().transform(Dequantize::new(vec![on_device(&[2])]));
    assert_eq!(
        engine.copy_many_with(&mut dsts, &there, options).unwrap_err().to_string(),
        "source 0: expected scales in host memory, got cuda:0; the host reads them as the call begins, and waits for no \
         device: copy them there first, as .cpu() of a torch tensor does, or stack them with device cpu"
    );
}

/// The host writes the scales of no elements, wherever the samples are; and reads page-locked ones.
#[test]
fn scales_of_nothing_and_in_page_locked_memory() {
    let Some(engine) = device::engine() else { return };
    let samples = [Sample::rich(DType::F32, &[0, 4], 1)];
    let placed = Placed::new(&samples, &[]);
    // SAFETY: it lives until the call returns.
    let there = unsafe { placed.views() };
    let mut scale = [7f32];
    let layout = Layout::compact(DType::I8, &[0, 4]).unwrap();
    // SAFETY: nothing is written.
    let mut dsts =
        [unsafe { Target::from_raw_parts(std::ptr::null_mut(), DType::I8, CUDA, layout) }];
    let quantize = Quantize::new(DType::I8).scale(Granularity::Sample).eps(127.0);
    let scales = vec![Target::from_slice(&mut scale, &[]).unwrap()];
    let options = CopyOptions::new().transform(quantize).scales_out(scales);
    engine.copy_many_with(&mut dsts, &there, options).unwrap();
    assert_eq!(scale, [1.0]);

    let pinned = PinnedBytes::from_bytes(&[2f32.to_ne_bytes(), 4f32.to_ne_bytes()].concat());
    let layout = Layout::compact(DType::F32, &[2]).unwrap();
    let owner = std::sync::Arc::new(());
    // SAFETY: page-locked memory of that size, which outlives the call.
    let scales = unsafe {
        Tensor::new_unchecked(owner, pinned.address, DType::F32, Device::Pinned, layout, false)
    };
    let codes = [[1i8, 2], [3, 4]];
    for device in [Device::Cpu, CUDA] {
        let collate = Collate::stack().cast(DType::F32).transform(Dequantize::new(scales.clone()));
        let batch = engine.assemble(&codes, &collate.device(device)).unwrap();
        let floats = [2f32, 4.0, 12.0, 16.0].map(f32::to_ne_bytes).concat();
        assert_eq!(bytes_of(batch.data()), floats, "{device}");
    }
}

/// Ids on the device of places, of sources, or of both, as the slots of a store are: a pair whose id is out of range is left out, with
/// its scales.
#[test]
fn ids_on_a_device() {
    if device::engine().is_none() {
        return;
    }
    let engine = Engine::cuda(0).unwrap();
    let naive = Engine::reference();
    let (rows, count, length) = (12i64, 7usize, 96i64);
    let tensor = |address: u64, dtype: DType, shape: &[i64]| {
        let layout = Layout::compact(dtype, shape).unwrap();
        let (owner, data) = (std::sync::Arc::new(()), address as *mut u8);
        // SAFETY: memory of the test's, of that size, that lives until the work is done.
        unsafe { Tensor::new_unchecked(owner, data, dtype, CUDA, layout, false) }
    };
    let sources = Sample::rich(DType::BF16, &[rows, 2, length], 5);
    let read = Bytes::from_bytes(sources.bytes());
    let whole = tensor(read.address, DType::BF16, &[rows, 2, length]);
    let on_host: Vec<SampleView<'_>> = {
        let views = [sources.view()];
        let list: SampleList<'_> = views.into_iter().collect();
        let row = |row: i64| {
            let at = row as usize * 2 * length as usize * 2;
            let data = list.address(0).wrapping_add(at);
            let layout = Layout::compact(DType::BF16, &[2, length]).unwrap();
            // SAFETY: a row of the sample.
            unsafe { SampleView::from_raw_parts(data, DType::BF16, Device::Cpu, layout) }
        };
        (0..rows).map(row).collect()
    };
    let ids = [[3i64, 11, 0, rows, 7, -2, 5], [1, 1, -rows - 1, 4, 11, 0, 2]];
    let on_device = ids.map(|ids| {
        Bytes::from_bytes(&ids.iter().flat_map(|id| id.to_ne_bytes()).collect::<Vec<u8>>())
    });
    let indices = |side: usize| tensor(on_device[side].address, DType::I64, &[count as i64]);
    let scales = [Granularity::Sample, Granularity::Row, Granularity::Block(32)];
    for (turn, scale) in (0..6).flat_map(|turn| scales.map(|scale| (turn, scale))) {
        let quantize = Quantize::new(DType::F8E4M3FN).scale(scale);
        let all = naive.assemble(&on_host, &Collate::stack().transform(quantize)).unwrap();
        let (codes, found) = (bytes_of(all.data()), bytes_of(all.scales().unwrap()));
        let wants = [codes, found];
        let kept = wants.each_ref().map(|want| Bytes::from_bytes(&vec![POISON; want.len()]));
        let shape = [&[rows][..], &all.scales().unwrap().shape()[1..]].concat();
        let store = tensor(kept[0].address, DType::F8E4M3FN, &[rows, 2, length]);
        let store_of_scales = tensor(kept[1].address, DType::F32, &shape);
        let (is_dst, is_src) = (turn % 3 != 1, turn % 3 != 0);
        let [data, listed_scales, read_list] = [&store, &store_of_scales, &whole]
            .map(|table| engine.resident(SampleList::rows(table).unwrap(), CUDA).unwrap());
        let [known_data, known_scales, known_read] = [&store, &store_of_scales, &whole]
            .map(|table| SampleList::rows(table).unwrap().take(0..count as i64).unwrap());
        let others = known_scales.clone();
        let [dsts, scales_out] = match is_dst {
            true => [&data, &listed_scales].map(|list| list.take(&indices(0)).unwrap()),
            false => [known_data, known_scales],
        };
        let srcs = match (is_src, turn > 2) {
            (true, _) => read_list.take(&indices(1)).unwrap(),
            (false, true) => on_host[..count].iter().cloned().collect(),
            (false, false) => known_read,
        };
        let options = MoveOptions {
            transform: quantize.into(),
            scales_out: Some(&scales_out),
            ..MoveOptions::default()
        };
        if is_dst {
            // The device would leave out one half of a pair. Nothing is written.
            let options = MoveOptions { scales_out: Some(&others), ..options };
            // SAFETY: memory of the test alone.
            let error = unsafe { engine.copy_lists(&dsts, &srcs, options) }.unwrap_err();
            assert!(error.to_string().contains("taken by the same ids"), "{error}");
        }
        let options = MoveOptions {
            transform: quantize.into(),
            scales_out: Some(&scales_out),
            ..MoveOptions::default()
        };
        // SAFETY: as above.
        unsafe { engine.copy_lists(&dsts, &srcs, options) }.unwrap();
        let place = |side: usize, is_chosen: bool, pair: usize| {
            let id = if is_chosen { ids[side][pair] } else { pair as i64 };
            let id = if id < 0 { id + rows } else { id };
            (0..rows).contains(&id).then_some(id as usize)
        };
        for (kept, want) in kept.iter().zip(&wants) {
            let mut expected = vec![POISON; want.len()];
            let step = want.len() / rows as usize;
            for pair in 0..count {
                if let (Some(to), Some(from)) = (place(0, is_dst, pair), place(1, is_src, pair)) {
                    expected[to * step..][..step].copy_from_slice(&want[from * step..][..step]);
                }
            }
            assert!(kept.to_host() == expected, "{quantize:?}, turn {turn}");
        }
        if is_dst {
            assert!(matches!(data.check(), Err(Error::Index(_))));
            assert!(matches!(listed_scales.check(), Err(Error::Index(_))));
        }
    }
    // The destinations are on the host, which asks for the ids.
    let quantize = Quantize::new(DType::I8);
    let all = naive.assemble(&on_host, &Collate::stack().transform(quantize)).unwrap();
    let read_list = engine.resident(SampleList::rows(&whole).unwrap(), CUDA).unwrap();
    let srcs = read_list.take(&indices(1)).unwrap();
    let (mut codes, mut found) = (vec![7i8; count * 2 * 96], vec![7f32; count * 2]);
    let (mut dsts, mut scales_out) = (SampleList::new(), SampleList::new());
    for (pair_codes, one) in codes.chunks_mut(2 * 96).zip(found.chunks_mut(2)) {
        // SAFETY: vectors that nothing else has until they are compared.
        unsafe {
            dsts.push(pair_codes.as_mut_ptr().cast(), DType::I8, Device::Cpu, &[2, length], None)
                .unwrap();
            scales_out.push(one.as_mut_ptr().cast(), DType::F32, Device::Cpu, &[2], None).unwrap();
        }
    }
    let options = |scales_out| MoveOptions {
        transform: quantize.into(),
        scales_out,
        ..MoveOptions::default()
    };
    // SAFETY: as above.
    unsafe { engine.copy_lists(&dsts, &srcs, options(Some(&scales_out))) }.unwrap();
    let (want, scales) = (all.data().as_slice::<i8>().unwrap(), all.scales().unwrap());
    let scales = scales.as_slice::<f32>().unwrap();
    for (pair, &id) in ids[1].iter().enumerate() {
        let id = if id < 0 { id + rows } else { id };
        let (pair_codes, one) = (&codes[pair * 192..][..192], &found[pair * 2..][..2]);
        match (0..rows).contains(&id) {
            true => {
                assert_eq!(pair_codes, &want[id as usize * 192..][..192]);
                assert_eq!(one, &scales[id as usize * 2..][..2]);
            }
            false => assert!(pair_codes.iter().all(|&code| code == 7) && one == [7.0, 7.0]),
        }
    }
    // Refused before anything is written.
    let refused = |options: MoveOptions<'_>| {
        let srcs = engine.resident(SampleList::rows(&whole).unwrap(), CUDA).unwrap();
        // SAFETY: as above.
        let copied = unsafe { engine.copy_lists(&dsts, &srcs.take(&indices(1)).unwrap(), options) };
        copied.unwrap_err().to_string()
    };
    assert_eq!(
        refused(options(None)),
        "a Quantize of a move needs scales_out, to which its scales go"
    );
    let few = scales_out.take([0]).unwrap();
    assert_eq!(refused(options(Some(&few))), "scales_out has 1 destinations of scales for 7 pairs");
    let wrong = dsts.clone();
    assert_eq!(refused(options(Some(&wrong))), "scales_out 0: expected shape (2,), got (2, 96)");
}

/// With ids on a device, scales whose layout has more loops than a launch are refused before codes are written.
#[test]
fn scales_of_too_many_loops_leave_codes_alone() {
    let Some(engine) = device::engine() else { return };
    let loops = [2i64; 13];
    let shape = [&loops[..], &[4]].concat();
    let row = [Sample::rich(DType::F32, &shape, 3)];
    let placed = Placed::new(&row, &[]);
    // SAFETY: it lives until the work is done.
    let rows: SampleList<'_> = unsafe { placed.views() }.into_iter().collect();
    let ids = Bytes::from_bytes(&0i64.to_ne_bytes());
    let (owner, layout) = (std::sync::Arc::new(()), Layout::compact(DType::I64, &[1]).unwrap());
    let at = ids.address as *mut u8;
    // SAFETY: as above.
    let ids = unsafe { Tensor::new_unchecked(owner, at, DType::I64, CUDA, layout, false) };
    let list = engine.resident(rows, CUDA).unwrap();
    let codes = Bytes::from_bytes(&[POISON; 4 << 13]);
    let found = Bytes::from_bytes(&[POISON; 4 << 15]);
    let target = |memory: &Bytes, dtype: DType, shape: &[i64], strides: Option<&[i64]>| {
        let mut list = SampleList::new();
        let data = std::ptr::without_provenance(memory.address as usize);
        // SAFETY: memory of the test alone, of that size.
        unsafe { list.push(data, dtype, CUDA, shape, strides) }.unwrap();
        list
    };
    // No two of these are one loop.
    let mut apart = [2i64; 13];
    (0..12).rev().for_each(|dim| apart[dim] = 2 * apart[dim + 1] + 1);
    let copied = |strides: Option<&[i64]>| {
        let dsts = target(&codes, DType::I8, &shape, None);
        let scales_out = target(&found, DType::F32, &loops, strides);
        let options = MoveOptions {
            transform: Quantize::new(DType::I8).into(),
            scales_out: Some(&scales_out),
            ..MoveOptions::default()
        };
        // SAFETY: as above.
        unsafe { engine.copy_lists(&dsts, &list.take(&ids).unwrap(), options) }
    };
    let error = copied(Some(&apart)).unwrap_err();
    assert!(matches!(error, Error::Argument(_)) && error.to_string().contains("at most 12 dims"));
    assert!(codes.to_host().iter().chain(&found.to_host()).all(|&byte| byte == POISON));
    copied(None).unwrap();
    assert!(codes.to_host().iter().any(|&byte| byte != POISON));
}
