//! State that is kept with a list whose samples a device chooses: the plan of the last options and count, and the table of its
//! launch. It serves no other options, count, engine or memory.

use std::sync::Arc;
use std::thread;

use windrow::{Batch, Collate, DType, Engine, Layout, Mask, Pad, Plan, RunOptions, Tensor};

use crate::calls::traced;
use crate::gpu::Gpu;
use crate::resident::{indices, take_and, Listed};
use crate::rig::{consume, engine, lent_by, on_gpu, run, Buffer, Lane, HERE};

/// Lists of one shape, by addresses and by a table, and of several shapes.
fn lists<'g>(gpu: &'g Gpu, engine: &Engine) -> [Listed<'g>; 3] {
    let shapes: [&[i64]; 5] = [&[5], &[2], &[0], &[3], &[5]];
    [
        Listed::new(gpu, engine, DType::F32, &[&[32][..]; 5]),
        Listed::table(gpu, engine, DType::I16, 5, &[3, 4]),
        Listed::new(gpu, engine, DType::I32, &shapes),
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
        let (engines, lane) = ([engine(), engine()], Lane::new(gpu));
        let numbers: [&[i64]; 3] = [&[3, 0, 4, -1, 2, -5], &[1, 1, 2, 3, 0, 4], &[2]];
        let numbers = numbers.map(|numbers| (numbers, indices(gpu, DType::I64, numbers)));
        for listed in &lists(gpu, &engines[0]) {
            let taken = listed.resident.take(&numbers[0].1 .1).unwrap();
            let forms: Vec<Collate> =
                forms().into_iter().filter(|form| Plan::new(&taken, form).is_ok()).collect();
            for form in &forms {
                // Each pair of neighbours shares some of the three, and is of other indices.
                for (engine, number) in [(0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (1, 0), (1, 1)] {
                    let (numbers, (_memory, chosen)) = &numbers[number];
                    let batch = take_and(listed, &engines[engine], (chosen, form), &lane);
                    assert_eq!(consume(&lane, &batch), listed.expected(numbers, form), "{form:?}");
                    let other = take_and(listed, &engines[engine], (chosen, &forms[0]), &lane);
                    drop(other);
                    batch.check().unwrap();
                }
            }
        }
    });
}

#[test]
fn lists_do_not_share_what_is_kept() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), Lane::new(gpu));
        let (_memory, chosen) = indices(gpu, DType::I32, &[1, 0, 4]);
        // Alike in all but the samples, and those of the second are not at multiples of 16.
        let lists =
            [0, 4, 0].map(|gap| Listed::behind(gpu, &engine, gap, DType::F32, &[&[8][..]; 5]));
        for _ in 0..3 {
            for listed in &lists {
                let batch = take_and(listed, &engine, (&chosen, &Collate::stack()), &lane);
                let expected = listed.expected(&[1, 0, 4], &Collate::stack());
                assert_eq!(consume(&lane, &batch), expected);
            }
        }
    });
}

#[test]
fn memory_of_any_alignment_is_written() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), Lane::new(gpu));
        let collate = Collate::stack();
        let listed = Listed::new(gpu, &engine, DType::F32, &[&[32][..]; 5]);
        let (_memory, chosen) = indices(gpu, DType::I64, &[4, 2, 0]);
        let expected = listed.expected(&[4, 2, 0], &collate);
        let memory = Buffer::poisoned(gpu, 3 * 128 + 16);
        let at = |offset: u64| {
            let layout = Layout::compact(DType::F32, &[3, 32]).unwrap();
            let data = (memory.address + offset) as *mut u8;
            // SAFETY: of the buffer, which is kept for longer.
            unsafe { Tensor::new_unchecked(Arc::new(()), data, DType::F32, HERE, layout, false) }
        };
        for offset in [0, 4, 8, 16, 12, 0, 4] {
            let taken = listed.resident.take(&chosen).unwrap();
            let mut options = lent_by(&lane, at(offset));
            options.stream = Some(lane.stream());
            let batch = run(&engine, &taken, &collate, options).unwrap();
            assert_eq!(batch.data().data_ptr().addr() as u64, memory.address + offset);
            assert_eq!(consume(&lane, &batch), expected, "{offset}");
            let mut own = RunOptions::default();
            own.stream = Some(lane.stream());
            let batch = run(&engine, &taken, &collate, own).unwrap();
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
        let (engine, lane) = (engine(), Lane::new(gpu));
        let listed = Listed::new(gpu, &engine, DType::I32, &[&[5][..], &[2], &[0], &[3]]);
        let (_memory, chosen) = indices(gpu, DType::I64, &[3, 0, 1, 1]);
        let forms = [5, 6, 7].map(|size| Collate::pad(Pad::new().size(size).mask(Mask::Real)));
        let (resident, chosen, engine) = (&listed.resident, &chosen, &engine);
        let batches = thread::scope(|scope| {
            let each = forms.each_ref().map(|form| {
                let assemble = move || engine.assemble(&resident.take(chosen).unwrap(), form);
                scope.spawn(move || (0..25).map(|_| assemble().unwrap()).collect::<Vec<Batch>>())
            });
            each.map(|thread| thread.join().unwrap())
        });
        for (form, batches) in forms.iter().zip(&batches) {
            let expected = listed.expected(&[3, 0, 1, 1], form);
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
        let (engine, lane) = (engine(), Lane::new(gpu));
        let listed = Listed::new(gpu, &engine, DType::F32, &[&[4][..]; 5]);
        let (_memory, chosen) = indices(gpu, DType::I64, &[4, 2, 0]);
        let batch = take_and(&listed, &engine, (&chosen, &Collate::stack()), &lane);
        batch.check().unwrap();
        let (calls, ()) = traced(gpu, || drop(batch));
        assert!(calls.is_empty(), "{calls:#?}");
    });
}
