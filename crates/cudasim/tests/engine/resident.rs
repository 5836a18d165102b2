//! Samples by indices on the device: what comes of them, what it costs, and what is found late.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use windrow::engine::{Resident, RunOptions};
use windrow::{
    Batch, Collate, DType, Device, Engine, Error, Layout, Mask, Pad, Plan, Ragged, SampleList,
    SampleView, Side, Tensor, Transform,
};

use crate::calls::{count, traced};
use crate::lifetime::{counted, settle};
use crate::paused_streams::{pause_own, waits};
use crate::rig::{consume, engine, on_gpu, run, Buffer, ForeignStream, Gpu, Rows, HERE};

/// A list of samples on the device, and a copy of it on the host.
pub struct ResidentSamples<'g> {
    _memory: Vec<Buffer<'g>>,
    pub resident: Resident<'static>,
    pub rows: Rows,
}

impl<'g> ResidentSamples<'g> {
    pub fn new(
        gpu: &'g Gpu,
        engine: &Engine,
        dtype: DType,
        shapes: &[&[i64]],
    ) -> ResidentSamples<'g> {
        ResidentSamples::behind(gpu, engine, 0, dtype, shapes)
    }

    /// Each sample is `gap` bytes behind an address that is a multiple of 16.
    pub fn behind(
        gpu: &'g Gpu,
        engine: &Engine,
        gap: usize,
        dtype: DType,
        shapes: &[&[i64]],
    ) -> ResidentSamples<'g> {
        let rows = Rows::new(9 + gap as u64, dtype, shapes);
        let place =
            |bytes: &Vec<u8>| Buffer::from_bytes(gpu, &[&vec![0; gap], &bytes[..]].concat());
        let memory: Vec<Buffer<'g>> = rows.bytes.iter().map(place).collect();
        let samples = rows.at(memory.iter().map(|buffer| buffer.address + gap as u64));
        let resident = engine.resident(samples, HERE).unwrap();
        ResidentSamples { _memory: memory, resident, rows }
    }

    /// The list is a table of rows, which needs no addresses.
    pub fn table(
        gpu: &'g Gpu,
        engine: &Engine,
        dtype: DType,
        len: i64,
        shape: &[i64],
    ) -> ResidentSamples<'g> {
        let rows = Rows::new(9, dtype, &vec![shape; len as usize]);
        let memory = Buffer::from_bytes(gpu, &rows.bytes.concat());
        let table = memory.tensor(dtype, &[&[len], shape].concat());
        // SAFETY: the buffer is kept as long as the list.
        let samples = unsafe { SampleList::rows_from_raw_parts(&table) }.unwrap();
        let resident = engine.resident(samples, HERE).unwrap();
        ResidentSamples { _memory: vec![memory], resident, rows }
    }

    /// The batch of these samples by the host; of those that are not there of none, which has to be a pad.
    pub fn expected(&self, chosen: &[i64], collate: &Collate) -> Vec<Vec<u8>> {
        let len = self.rows.bytes.len() as i64;
        let mut all = Rows { dtype: self.rows.dtype, shapes: Vec::new(), bytes: Vec::new() };
        for &index in chosen {
            let index = if index < 0 { index + len } else { index };
            let (mut shape, mut bytes) = (self.rows.shapes[0].clone(), Vec::new());
            match usize::try_from(index).ok().filter(|_| index < len) {
                Some(index) => {
                    shape.clone_from(&self.rows.shapes[index]);
                    bytes.clone_from(&self.rows.bytes[index]);
                }
                None => shape.fill(0),
            }
            all.shapes.push(shape);
            all.bytes.push(bytes);
        }
        all.expected(collate)
    }
}

/// Indices on the device, all of them or every other one.
pub fn indices<'g>(gpu: &'g Gpu, dtype: DType, numbers: &[i64]) -> (Buffer<'g>, Tensor) {
    let bytes: Vec<u8> = match dtype {
        DType::I32 => numbers.iter().flat_map(|&n| (n as i32).to_ne_bytes()).collect(),
        _ => numbers.iter().flat_map(|n| n.to_ne_bytes()).collect(),
    };
    let memory = Buffer::from_bytes(gpu, &bytes);
    let tensor = memory.tensor(dtype, &[numbers.len() as i64]);
    (memory, tensor)
}

pub fn take_and(
    list: &ResidentSamples<'_>,
    engine: &Engine,
    (indices, collate): (&Tensor, &Collate),
    lane: &ForeignStream<'_>,
) -> Batch {
    let taken = list.resident.take(indices).unwrap();
    engine.assemble_on(&taken, collate, &lane.stream()).unwrap()
}

const CHOSEN: [i64; 9] = [3, 0, 0, 4, -1, 2, -5, 1, 3];

#[test]
fn indices_on_the_device_choose_samples_for_every_stack() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let channels = Transform::new().mean([0.5, 2.0, -1.0]).std([2.0, 0.5, 4.0]);
        let channels = channels.channel_dim(2).permute([2, 0, 1]);
        let shapes: [(DType, &[i64]); 7] = [
            (DType::F32, &[1024]),
            (DType::F32, &[2, 32]),
            (DType::U8, &[77]),
            (DType::I64, &[]),
            (DType::U8, &[5, 4, 3]),
            (DType::F64, &[300]),
            (DType::I16, &[0]),
        ];
        for (dtype, shape) in shapes {
            let each = ResidentSamples::new(gpu, &engine, dtype, &[shape; 5]);
            let table = ResidentSamples::table(gpu, &engine, dtype, 5, shape);
            let mut forms = vec![Collate::stack(), Collate::stack().cast(DType::F32)];
            if shape.last() == Some(&3) {
                forms.push(Collate::stack().cast(DType::F16).transform(channels.clone()));
            }
            for (list, indexed, collate) in [(&each, DType::I64), (&table, DType::I32)]
                .iter()
                .flat_map(|&(list, indexed)| forms.iter().map(move |form| (list, indexed, form)))
            {
                let (_memory, chosen) = indices(gpu, indexed, &CHOSEN);
                let batch = take_and(list, &engine, (&chosen, collate), &lane);
                assert_eq!(batch.data().shape()[0], 9);
                assert_eq!(
                    consume(&lane, &batch),
                    list.expected(&CHOSEN, collate),
                    "{dtype} {shape:?}"
                );
                batch.check().unwrap();
            }
        }
    });
}

#[test]
fn a_selection_is_truncated_with_its_indices() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let list = ResidentSamples::new(gpu, &engine, DType::F32, &[&[77][..]; 5]);
        let (_memory, chosen) = indices(gpu, DType::I64, &CHOSEN);
        let mut taken = list.resident.take(&chosen).unwrap();
        for len in [20, 4, 1] {
            taken.truncate(len);
            let batch = engine.assemble_on(&taken, &Collate::stack(), &lane.stream()).unwrap();
            let wanted = &CHOSEN[..len.min(CHOSEN.len())];
            assert_eq!((taken.len(), batch.len()), (wanted.len(), wanted.len()));
            assert_eq!(consume(&lane, &batch), list.expected(wanted, &Collate::stack()));
        }
    });
}

/// Pads to a given size, with all that a pad has.
fn pads() -> Vec<Collate> {
    let pad = |size: i64| Pad::new().size(size).value(7);
    let two = || Pad::new().dims([0, 1]).size(6).value(3);
    vec![
        Collate::pad(pad(8)),
        Collate::pad(pad(8).mask(Mask::Real).side(Side::Left)),
        Collate::pad(pad(3).truncate(true).side(Side::Center)).cast(DType::F64),
        Collate::pad(two().mask(Mask::Pad)),
    ]
}

#[test]
fn indices_on_the_device_choose_samples_for_every_pad_of_a_given_size() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        for (number, collate) in pads().iter().enumerate() {
            let flat: [&[i64]; 5] = [&[4], &[0], &[8], &[1], &[4]];
            let deep: [&[i64]; 5] = [&[4, 6], &[0, 2], &[6, 1], &[1, 5], &[4, 6]];
            for dtype in [DType::F32, DType::U8] {
                let shapes = if number == 3 { &deep } else { &flat };
                let each = ResidentSamples::new(gpu, &engine, dtype, shapes);
                let table = ResidentSamples::table(gpu, &engine, dtype, 5, shapes[0]);
                // Out of range gives padding alone.
                let wanted: Vec<i64> = CHOSEN.into_iter().chain([5, 2, -6, i64::MAX]).collect();
                let (_memory, chosen) = indices(gpu, DType::I64, &wanted);
                for list in [each, table] {
                    let batch = take_and(&list, &engine, (&chosen, collate), &lane);
                    assert_eq!(
                        consume(&lane, &batch),
                        list.expected(&wanted, collate),
                        "{collate:?}"
                    );
                    assert!(matches!(batch.check(), Err(Error::Index(_))));
                    assert!(list.resident.check().is_err());
                }
            }
        }
    });
}

#[test]
fn indices_out_of_range_are_zeros_in_a_stack_and_are_told_late() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        for (dtype, size) in
            [(DType::F32, 1024), (DType::F32, 128), (DType::U8, 77), (DType::F64, 3)]
        {
            let list = ResidentSamples::new(gpu, &engine, dtype, &[&[size][..]; 5]);
            let bad = [4, 5, 0, -6];
            let (_memory, chosen) = indices(gpu, DType::I64, &bad);
            for collate in [Collate::stack(), Collate::stack().cast(DType::F32)] {
                let batch = take_and(&list, &engine, (&chosen, &collate), &lane);
                if collate == Collate::stack() {
                    let zeros = Collate::pad(Pad::new().size(size));
                    assert_eq!(consume(&lane, &batch)[0], list.expected(&bad, &zeros)[0]);
                }
                for _ in 0..2 {
                    let Err(Error::Index(text)) = batch.check() else { panic!("not told") };
                    assert!(text.to_string().contains("list of 5 samples"), "{text}");
                    assert!(
                        text.to_string().contains("position 1")
                            || text.to_string().contains("position 3"),
                        "{text}"
                    );
                }
                // The next call with the list tells it too, once, and does nothing.
                let (calls, error) = traced(gpu, || list.resident.take(&chosen).unwrap_err());
                assert!(matches!(error, Error::Index(_)) && calls.is_empty());
                let (_memory, good) = indices(gpu, DType::I64, &[1]);
                let batch = take_and(&list, &engine, (&good, &collate), &lane);
                batch.check().unwrap();
            }
            // Samples taken before tell it as well.
            let taken = list.resident.take(&chosen).unwrap();
            drop(engine.assemble(&taken, &Collate::stack()).unwrap());
            gpu.sim.synchronize_all();
            let error = engine.assemble(&taken, &Collate::stack()).unwrap_err();
            assert!(matches!(error, Error::Index(_)));
        }
    });
}

#[test]
fn indices_on_the_device_cost_a_few_calls_however_many_there_are() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let list = ResidentSamples::new(gpu, &engine, DType::F32, &[&[4][..]; 50]);
        for collate in [Collate::stack(), Collate::pad(Pad::new().size(6).mask(Mask::Real))] {
            let mut most = Vec::new();
            for num in [256, 4096, 65_536] {
                let numbers: Vec<i64> = (0..num).map(|i| i * 7 % 50).collect();
                let (_memory, chosen) = indices(gpu, DType::I64, &numbers);
                // Two events take turns.
                for round in 0..4 {
                    gpu.sim.synchronize_all();
                    let (calls, batch) =
                        traced(gpu, || take_and(&list, &engine, (&chosen, &collate), &lane));
                    if round > 1 {
                        let waits =
                            |call: &String| call.contains("Memcpy") || call.contains("Synchronize");
                        assert!(!calls.iter().any(waits), "{calls:#?}");
                        assert_eq!(count(&calls, "cuLaunchKernel"), 2, "{calls:#?}");
                        assert!(calls.len() <= 10, "{} calls: {calls:#?}", calls.len());
                        most.push(calls.len());
                    }
                    if round == 0 {
                        assert_eq!(consume(&lane, &batch), list.expected(&numbers, &collate));
                    }
                    // The batch's resources are released with it, the event of its end too.
                    gpu.sim.synchronize_all();
                    drop(batch);
                }
            }
            assert!(most.iter().all(|&calls| calls == most[0]), "{most:?}");
            // The parameters have the same size for any number of samples.
            let tables = [256, 65_536].map(|num| {
                let (_memory, chosen) = indices(gpu, DType::I64, &vec![0; num]);
                let taken = list.resident.take(&chosen).unwrap();
                let explain = Plan::new(&taken, &collate).unwrap().explain();
                assert_eq!(explain.launches, 2);
                explain.launch.unwrap().table_bytes
            });
            assert_eq!(tables[0], tables[1]);
        }
    });
}

#[test]
fn a_list_of_more_shapes_than_parameters_hold_uploads_them() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let lengths: Vec<i64> = (0..5000).map(|i| i * 7 % 5000).collect();
        let shapes: Vec<&[i64]> = lengths.iter().map(std::slice::from_ref).collect();
        let list = ResidentSamples::new(gpu, &engine, DType::U8, &shapes);
        let (_memory, chosen) = indices(gpu, DType::I32, &[4999, 0, 17, -1, 2500]);
        let collate = Collate::pad(Pad::new().size(5000).value(3));
        let (calls, batch) = traced(gpu, || take_and(&list, &engine, (&chosen, &collate), &lane));
        assert_eq!(count(&calls, "cuMemcpyHtoDAsync_v2"), 1, "{calls:#?}");
        let expected = list.expected(&[4999, 0, 17, -1, 2500], &collate);
        assert_eq!(consume(&lane, &batch), expected);
        batch.check().unwrap();
    });
}

#[test]
fn indices_are_read_behind_their_producer_and_kept_until_then() {
    on_gpu(|gpu| {
        let (engine, lane, late) = (engine(), ForeignStream::new(gpu), ForeignStream::new(gpu));
        let list = ResidentSamples::new(gpu, &engine, DType::F32, &[&[40][..]; 5]);
        let memory = Buffer::poisoned(gpu, 3 * 8);
        let bytes: Vec<u8> = [4i64, 1, 4].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let freed = Arc::new(AtomicUsize::new(0));
        let (layout, data) =
            (Layout::compact(DType::I64, &[3]).unwrap(), memory.address as *mut u8);
        let owner = counted(&freed);
        // SAFETY: the buffer is kept for longer.
        let chosen = unsafe { Tensor::new_unchecked(owner, data, DType::I64, HERE, layout, false) };
        let paused = late.pause();
        late.write(memory.address, &bytes);
        let mut options = RunOptions::default();
        options.producers = vec![late.stream()];
        let taken = list.resident.take(&chosen).unwrap();
        let batch = run(&engine, &taken, &Collate::stack(), options).unwrap();
        drop((taken, chosen));
        settle();
        assert_eq!(freed.load(Ordering::Relaxed), 0);
        drop(paused);
        assert_eq!(consume(&lane, &batch), list.expected(&[4, 1, 4], &Collate::stack()));
        batch.check().unwrap();
        engine.empty_cache();
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_table_is_there_when_the_call_returns() {
    on_gpu(|gpu| {
        let (engine, rows) = (engine(), Rows::new(1, DType::U8, &[&[300], &[20]]));
        let memory = rows.upload(gpu);
        let samples = || rows.at(memory.iter().map(|buffer| buffer.address));
        drop(engine.resident(samples(), HERE).unwrap());
        let paused = pause_own(gpu, &engine);
        waits(paused, || drop(engine.resident(samples(), HERE).unwrap()));
    });
}

#[test]
fn what_does_not_fit_is_refused_before_any_work() {
    on_gpu(|gpu| {
        let engine = engine();
        let list = ResidentSamples::new(gpu, &engine, DType::F32, &[&[4], &[2]]);
        let (_memory, chosen) = indices(gpu, DType::I64, &[0, 1]);
        let taken = list.resident.take(&chosen).unwrap();
        let text_of = |error: Error| error.to_string();
        let out = Buffer::poisoned(gpu, 48);
        let refused = |collate: Collate| text_of(engine.assemble(&taken, &collate).unwrap_err());
        let (calls, texts) = traced(gpu, || {
            let on_host = Tensor::from_vec(vec![0i64], &[1]).unwrap();
            let layout = || Layout::compact(DType::I64, &[1]).unwrap();
            let (at, there) = (chosen.data_ptr(), Device::Cuda(1));
            // SAFETY: refused.
            let elsewhere = unsafe {
                Tensor::new_unchecked(Arc::new(()), at, DType::I64, there, layout(), false)
            };
            let short = Tensor::from_vec(vec![0i16], &[1]).unwrap();
            let (mut more, view) = (taken.clone(), SampleView::from(&on_host));
            // SAFETY: refused.
            let pushed = unsafe { more.push(on_host.data_ptr(), DType::I64, HERE, &[1], None) };
            let padded = Collate::pad(Pad::new().size(4));
            let into = |out: &mut Tensor| engine.assemble_into(&taken, &padded, out).map(drop);
            let (mut fewer, mut beyond) =
                (out.tensor(DType::F32, &[1, 4]), out.tensor(DType::F32, &[3, 4]));
            [
                refused(Collate::ragged(Ragged::new())),
                refused(Collate::pad(Pad::new())),
                refused(Collate::stack()),
                refused(Collate::pad(Pad::new().size(3))),
                refused(Collate::pad(Pad::new().size(4)).device(Device::Cpu)),
                text_of(into(&mut fewer).unwrap_err()),
                text_of(into(&mut beyond).unwrap_err()),
                text_of(taken.take([0]).unwrap_err()),
                text_of(more.push_view(&view).unwrap_err()),
                text_of(pushed.unwrap_err()),
                text_of(list.resident.take(&on_host).unwrap_err()),
                text_of(list.resident.take(&elsewhere).unwrap_err()),
                text_of(list.resident.take(&short).unwrap_err()),
                text_of(engine.resident(list.rows.on_host(), HERE).unwrap_err()),
                text_of(
                    engine.resident(list.rows.on(Device::Cuda(1), &[256, 512]), HERE).unwrap_err(),
                ),
                text_of(engine.resident(SampleList::new(), HERE).unwrap_err()),
            ]
        });
        assert!(
            calls.iter().all(|call| !call.contains("Launch") && !call.contains("Alloc")),
            "{calls:#?}"
        );
        let parts = [
            "depends on its samples",
            "pad needs a size",
            "sample 1: expected shape (4,), got (2,)",
            "sample 0: expected at most shape (3,)",
            "expected cuda:0, got cpu",
            "expected shape (2, 4), got (1, 4)",
            "expected shape (2, 4), got (3, 4)",
            "indices on a device",
            "indices on a device",
            "indices on a device",
            "indices: expected cuda:0, got cpu",
            "indices: expected cuda:0, got cuda:1",
            "indices: expected int32 or int64, got int16",
            "not moved",
            "sample 0: expected cuda:0, got cuda:1",
            "an empty list",
        ];
        assert_eq!(texts.len(), parts.len());
        assert_eq!(out.read(), [0xA5; 48]);
        for (text, part) in texts.iter().zip(parts) {
            assert!(text.contains(part), "{text:?} has no {part:?}");
        }
    });
}

#[test]
fn a_list_outlives_the_engine_that_made_it() {
    on_gpu(|gpu| {
        let (first, second, lane) = (engine(), engine(), ForeignStream::new(gpu));
        let list = ResidentSamples::new(gpu, &first, DType::F32, &[&[40][..]; 5]);
        let (_memory, chosen) = indices(gpu, DType::I64, &[4, 9, 0]);
        let taken = list.resident.take(&chosen).unwrap();
        drop(first);
        let pad = Collate::pad(Pad::new().size(40));
        for taken in [taken, list.resident.take(&chosen).unwrap()] {
            let batch = second.assemble(&taken, &Collate::stack()).unwrap();
            assert_eq!(consume(&lane, &batch)[0], list.expected(&[4, 9, 0], &pad)[0]);
            assert!(matches!(batch.check(), Err(Error::Index(_))));
            assert!(list.resident.check().is_err());
        }
    });
}
