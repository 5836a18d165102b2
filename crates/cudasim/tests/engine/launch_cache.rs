//! State that is kept with a list whose samples a device chooses: the plan of the last options and count, and the table of its
//! launch. It serves no other options, count, engine or memory.

use std::sync::Arc;
use std::thread;

use windrow::engine::RunOptions;
use windrow::{
    Batch, Collate, DType, Device, Engine, Layout, Mask, Pad, Plan, Ragged, SampleList, Tensor,
    Transform,
};

use crate::calls::traced;
use crate::gpu::Gpu;
use crate::resident::{indices, take_and, ResidentSamples};
use crate::rig::{consume, engine, lent_by, on_gpu, run, Buffer, ForeignStream, Rows, HERE};

/// Lists of one shape, by addresses and by a table, and of several shapes.
fn lists<'g>(gpu: &'g Gpu, engine: &Engine) -> [ResidentSamples<'g>; 3] {
    let shapes: [&[i64]; 5] = [&[5], &[2], &[0], &[3], &[5]];
    [
        ResidentSamples::new(gpu, engine, DType::F32, &[&[32][..]; 5]),
        ResidentSamples::table(gpu, engine, DType::I16, 5, &[3, 4]),
        ResidentSamples::new(gpu, engine, DType::I32, &shapes),
    ]
}

fn forms() -> Vec<Collate> {
    let pad = |size: i64| Pad::new().dims([0]).size(size);
    vec![
        Collate::stack(),
        Collate::stack().cast(DType::F64),
        Collate::pad(pad(40)),
        Collate::pad(pad(40).value(7)),
        Collate::pad(pad(40).value(7).mask(Mask::Real)),
        Collate::pad(pad(2).truncate(true)).cast(DType::F32),
    ]
}

#[test]
fn a_plan_serves_its_own_options_count_and_engine_alone() {
    on_gpu(|gpu| {
        let (engines, lane) = ([engine(), engine()], ForeignStream::new(gpu));
        let numbers: [&[i64]; 3] = [&[3, 0, 4, -1, 2, -5], &[1, 1, 2, 3, 0, 4], &[2]];
        let numbers = numbers.map(|numbers| (numbers, indices(gpu, DType::I64, numbers)));
        for list in &lists(gpu, &engines[0]) {
            let taken = list.resident.take(&numbers[0].1 .1).unwrap();
            let forms: Vec<Collate> =
                forms().into_iter().filter(|form| Plan::new(&taken, form).is_ok()).collect();
            for form in &forms {
                // Each pair of neighbours shares some of the three, and is of other indices.
                for (engine, number) in [(0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (1, 0), (1, 1)] {
                    let (numbers, (_memory, chosen)) = &numbers[number];
                    let batch = take_and(list, &engines[engine], (chosen, form), &lane);
                    assert_eq!(consume(&lane, &batch), list.expected(numbers, form), "{form:?}");
                    let other = take_and(list, &engines[engine], (chosen, &forms[0]), &lane);
                    drop(other);
                    batch.check().unwrap();
                }
            }
        }
    });
}

#[test]
fn a_plan_serves_zeros_of_its_own_sign_alone() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let (_memory, chosen) = indices(gpu, DType::I64, &[3, 0]);
        let list = ResidentSamples::new(gpu, &engine, DType::F32, &[&[32][..]; 5]);
        let padded = |zero: f64| Collate::pad(Pad::new().size(40).value(zero));
        let scaled = |zero| Collate::stack().transform(Transform::new().scale(zero));
        for form in [&padded as &dyn Fn(f64) -> Collate, &scaled] {
            for zero in [0.0, 0.0, -0.0, 0.0] {
                let form = form(zero);
                let batch = take_and(&list, &engine, (&chosen, &form), &lane);
                assert_eq!(consume(&lane, &batch), list.expected(&[3, 0], &form), "{form:?}");
            }
        }
    });
}

#[test]
fn lists_do_not_share_what_is_kept() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let (_memory, chosen) = indices(gpu, DType::I32, &[1, 0, 4]);
        // Alike in all but the samples, and those of the second are not at multiples of 16.
        let lists = [0, 4, 0]
            .map(|gap| ResidentSamples::behind(gpu, &engine, gap, DType::F32, &[&[8][..]; 5]));
        for _ in 0..3 {
            for list in &lists {
                let batch = take_and(list, &engine, (&chosen, &Collate::stack()), &lane);
                let expected = list.expected(&[1, 0, 4], &Collate::stack());
                assert_eq!(consume(&lane, &batch), expected);
            }
        }
    });
}

/// The samples at these indices of a list.
fn rows_of(all: &Rows, chosen: &[i64]) -> Rows {
    let bytes = chosen.iter().map(|&index| all.bytes[index as usize].clone()).collect();
    let shapes = chosen.iter().map(|&index| all.shapes[index as usize].clone()).collect();
    Rows { dtype: all.dtype, shapes, bytes }
}

#[test]
fn samples_that_the_host_chooses_are_planned_by_their_own_options_count_and_places() {
    on_gpu(|gpu| {
        let (engines, lane) = ([engine(), engine()], ForeignStream::new(gpu));
        // At multiples of 16 up to the middle, 4 bytes behind them from there on.
        let all = Rows::new(3, DType::F32, &[&[8][..]; 600]);
        let place = |index: u64| 48 * index + if index < 300 { 0 } else { 4 };
        let memory = Buffer::poisoned(gpu, 48 * 600 + 36);
        for (index, bytes) in all.bytes.iter().enumerate() {
            lane.write(memory.address + place(index as u64), bytes);
        }
        let samples = all.at((0..600).map(|index| memory.address + place(index)));
        gpu.sim.synchronize_all();
        let aligned: Vec<i64> = (0..280).map(|i| i * 7 % 300).collect();
        let shifted: Vec<i64> = (0..280).map(|i| 300 + i * 11 % 300).collect();
        let mixed: Vec<i64> = (0..280).map(|i| i * 13 % 600).collect();
        let few = [vec![5, 3, 3], vec![310, 2, 599], vec![7]];
        let ragged = Collate::ragged(Ragged::new().batch_index());
        for form in forms().iter().chain([&ragged, &Collate::concat(0)]) {
            for chosen in [&aligned, &shifted, &aligned, &mixed, &shifted].into_iter().chain(&few) {
                for engine in &engines {
                    let (taken, rows) =
                        (samples.take(chosen.iter().copied()).unwrap(), rows_of(&all, chosen));
                    for samples in [&taken, &taken.clone()] {
                        let batch = engine.assemble_on(samples, form, &lane.stream()).unwrap();
                        assert_eq!(consume(&lane, &batch), rows.expected(form), "{form:?}");
                    }
                    let there = form.clone().device(Device::Cpu);
                    let batch = engine.assemble(&taken, &there).unwrap();
                    assert_eq!(consume(&lane, &batch), rows.expected(form), "{form:?}");
                }
            }
        }
    });
}

#[test]
fn neighbours_are_merged_whatever_was_planned_before() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let all = Rows::new(3, DType::U8, &[&[16][..]; 64]);
        let memory = Buffer::from_bytes(gpu, &all.bytes.concat());
        let samples = all.at((0..64).map(|index| memory.address + 16 * index));
        let stack = Collate::stack();
        let apart: Vec<i64> = (0..32).map(|i| i * 7 % 64).collect();
        let together: Vec<i64> = (20..52).collect();
        for chosen in [&apart, &apart, &together, &apart, &together] {
            let taken = samples.take(chosen.iter().copied()).unwrap();
            let explain = Plan::new(&taken, &stack).unwrap().explain();
            assert_eq!(explain.ranges, if chosen == &together { 1 } else { 32 });
            let batch = engine.assemble_on(&taken, &stack, &lane.stream()).unwrap();
            assert_eq!(consume(&lane, &batch), rows_of(&all, chosen).expected(&stack));
        }
    });
}

#[test]
fn a_list_that_has_changed_is_planned_anew() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let mut all = Rows::new(3, DType::F32, &[&[8][..], &[8], &[8], &[5], &[8]]);
        let memory = all.upload(gpu);
        let address = |index: usize| memory[index].address as *const u8;
        let mut samples = all.at(memory[..3].iter().map(|buffer| buffer.address));
        let pad = Collate::pad(Pad::new().value(3).mask(Mask::Real));
        let check = |samples: &SampleList<'_>, all: &Rows, chosen: &[i64]| {
            for _ in 0..3 {
                let batch = engine.assemble_on(samples, &pad, &lane.stream()).unwrap();
                assert_eq!(consume(&lane, &batch), rows_of(all, chosen).expected(&pad));
            }
        };
        let taken = samples.take([2, 0, 1]).unwrap();
        check(&samples, &all, &[0, 1, 2]);
        check(&taken, &all, &[2, 0, 1]);
        // SAFETY: the buffers are kept for longer.
        unsafe { samples.push(address(3), DType::F32, HERE, &[5], None) }.unwrap();
        check(&samples, &all, &[0, 1, 2, 3]);
        check(&samples.take([0, 3, 1]).unwrap(), &all, &[0, 3, 1]);
        check(&taken, &all, &[2, 0, 1]);
        let error = engine.assemble(&samples, &Collate::stack()).unwrap_err();
        assert!(error.to_string().contains("sample 3: expected shape (8,), got (5,)"), "{error}");
        samples.replace(3, &all.at([0, 0, 0, 0, memory[4].address]), 4).unwrap();
        all.bytes[3] = all.bytes[4].clone();
        all.shapes[3] = vec![8];
        check(&samples, &all, &[0, 1, 2, 3]);
    });
}

#[test]
fn threads_share_samples_that_the_host_chooses() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let all = Rows::new(3, DType::I32, &[&[5][..]; 12]);
        let memory = all.upload(gpu);
        let samples = all.at(memory.iter().map(|buffer| buffer.address));
        let forms = [5, 6, 7].map(|size| Collate::pad(Pad::new().size(size).mask(Mask::Real)));
        let chosen = |round: i64| (0..4).map(move |i| (round * 5 + i * 7) % 12);
        let (samples, engine) = (&samples, &engine);
        let batches = thread::scope(|scope| {
            let each = forms.each_ref().map(|form| {
                let assemble = move |round| {
                    engine.assemble(&samples.take(chosen(round)).unwrap(), form).unwrap()
                };
                scope.spawn(move || (0..25).map(assemble).collect::<Vec<Batch>>())
            });
            each.map(|thread| thread.join().unwrap())
        });
        for (form, batches) in forms.iter().zip(&batches) {
            for (round, batch) in (0..).zip(batches) {
                let rows = rows_of(&all, &chosen(round).collect::<Vec<_>>());
                assert_eq!(consume(&lane, batch), rows.expected(form));
            }
        }
    });
}

#[test]
fn memory_of_any_alignment_is_written() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let collate = Collate::stack();
        let list = ResidentSamples::new(gpu, &engine, DType::F32, &[&[32][..]; 5]);
        let (_memory, chosen) = indices(gpu, DType::I64, &[4, 2, 0]);
        let expected = list.expected(&[4, 2, 0], &collate);
        let memory = Buffer::poisoned(gpu, 3 * 128 + 16);
        let at = |offset: u64| {
            let layout = Layout::compact(DType::F32, &[3, 32]).unwrap();
            let data = (memory.address + offset) as *mut u8;
            // SAFETY: of the buffer, which is kept for longer.
            unsafe { Tensor::new_unchecked(Arc::new(()), data, DType::F32, HERE, layout, false) }
        };
        for offset in [0, 4, 8, 16, 12, 0, 4] {
            let taken = list.resident.take(&chosen).unwrap();
            let mut options = lent_by(&lane, at(offset));
            options.stream = Some(lane.stream());
            let batch = run(&engine, &taken, &collate, options).unwrap();
            assert_eq!(batch.data().data_ptr().addr() as u64, memory.address + offset);
            assert_eq!(consume(&lane, &batch), expected, "{offset}");
            let mut lane_options = RunOptions::default();
            lane_options.stream = Some(lane.stream());
            let batch = run(&engine, &taken, &collate, lane_options).unwrap();
            assert_eq!(consume(&lane, &batch), expected);
            let mut out: Tensor = at(offset);
            engine.assemble_into(&taken, &collate, &mut out).unwrap();
            engine.empty_cache();
            assert_eq!(memory.read()[offset as usize..][..3 * 128], expected[0]);
        }
    });
}

#[test]
fn threads_share_a_list() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let list = ResidentSamples::new(gpu, &engine, DType::I32, &[&[5][..], &[2], &[0], &[3]]);
        let (_memory, chosen) = indices(gpu, DType::I64, &[3, 0, 1, 1]);
        let forms = [5, 6, 7].map(|size| Collate::pad(Pad::new().size(size).mask(Mask::Real)));
        let (resident, chosen, engine) = (&list.resident, &chosen, &engine);
        let batches = thread::scope(|scope| {
            let each = forms.each_ref().map(|form| {
                let assemble = move || engine.assemble(&resident.take(chosen).unwrap(), form);
                scope.spawn(move || (0..25).map(|_| assemble().unwrap()).collect::<Vec<Batch>>())
            });
            each.map(|thread| thread.join().unwrap())
        });
        for (form, batches) in forms.iter().zip(&batches) {
            let expected = list.expected(&[3, 0, 1, 1], form);
            for batch in batches {
                assert_eq!(consume(&lane, batch), expected);
                batch.check().unwrap();
            }
        }
    });
}

#[test]
fn a_batch_that_was_checked_ends_without_a_call_of_the_driver() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let list = ResidentSamples::new(gpu, &engine, DType::F32, &[&[4][..]; 5]);
        let (_memory, chosen) = indices(gpu, DType::I64, &[4, 2, 0]);
        let batch = take_and(&list, &engine, (&chosen, &Collate::stack()), &lane);
        batch.check().unwrap();
        let (calls, ()) = traced(gpu, || drop(batch));
        assert!(calls.is_empty(), "{calls:#?}");
    });
}
