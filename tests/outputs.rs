//! Memory of the caller's as output: what is taken, what is refused, and that a refusal writes nothing.
//! Also extreme layouts, which must be errors or batches but never panics.
#![allow(unsafe_code, reason = "outputs and samples at raw addresses")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::common::runner::{bytes_of, Frame};
use crate::common::sample::views;
use crate::common::{runner, Ask, PadAsk, Paint, Sample};
use windrow::batch::Fields;
use windrow::collate::PerDim;
use windrow::error::ErrorValue;
use windrow::plan::{AsTarget, Leaf, Target};
use windrow::{
    Collate, DType, Device, Engine, Error, Layout, Mask, Pad, Plan, Ragged, SampleList, SampleView,
    Samples, Side, Tensor,
};

fn two_rows() -> [Sample; 2] {
    [Sample::new(DType::U8, &[3], 1), Sample::new(DType::U8, &[3], 4)]
}

/// Assembles two rows of three bytes into a target; gives the error of every executor.
fn refused(frame: &mut Frame) -> Error {
    let samples = two_rows();
    let mut last = None;
    for (name, engine) in runner().engines() {
        let error = engine
            .assemble_into(&views(&samples), &Collate::stack(), &mut frame.target())
            .expect_err("a refusal");
        assert!(frame.is_untouched(), "{name}: {error}");
        last = Some(error);
    }
    last.unwrap()
}

#[test]
fn outputs_of_the_wrong_kind() {
    let mut frame = Frame::new(DType::U8, &[3, 2], &[2, 1], 0);
    let error = refused(&mut frame);
    assert_eq!(error.to_string(), "out: expected shape (2, 3), got (3, 2)");
    let mismatch = error.mismatch().unwrap();
    assert!(matches!(error, Error::Shape(_)));
    assert_eq!((mismatch.index, &mismatch.expected), (None, &ErrorValue::from(&[2i64, 3][..])));
    let mut frame = Frame::new(DType::U8, &[6], &[1], 0);
    assert!(matches!(refused(&mut frame), Error::Shape(_)), "shapes are not broadcast");
    let mut frame = Frame::new(DType::I8, &[2, 3], &[3, 1], 0);
    let error = refused(&mut frame);
    assert!(matches!(error, Error::DType(_)));
    assert_eq!(error.to_string(), "out: expected uint8, got int8; .cast(DType) casts on the way");
}

#[test]
fn outputs_whose_elements_share_memory() {
    for strides in [[0, 1], [3, 0], [2, 1], [1, 1], [1, -1], [-2, 1], [0, 0]] {
        let mut frame = Frame::new(DType::U8, &[2, 3], &strides, 0);
        let error = refused(&mut frame);
        assert!(matches!(error, Error::Layout(_)), "{strides:?}");
        let text = format!(
            "out: expected memory whose elements do not overlap, got strides {strides:?} for shape [2, 3]"
        );
        assert_eq!(error.to_string(), text);
    }
    let samples = two_rows();
    for strides in [[3, 1], [1, 2], [-3, 1], [3, -1], [-1, -2], [100, 7]] {
        let mut frame = Frame::new(DType::U8, &[2, 3], &strides, 3);
        Engine::host()
            .assemble_into(&views(&samples), &Collate::stack(), &mut frame.target())
            .unwrap();
        frame.check(&format!("{strides:?}"), &[1, 2, 3, 4, 5, 6]);
    }
}

#[test]
fn outputs_that_overlap_samples() {
    let mut memory = vec![9u8; 64];
    let address = memory.as_mut_ptr();
    for (name, engine) in runner().engines() {
        for (from, overlaps) in [(0, true), (5, true), (11, true), (12, false)] {
            let layout = Layout::compact(DType::U8, &[6]).unwrap();
            // SAFETY: both are in `memory`, which lives on; the engine refuses if they overlap.
            let (sample, mut target) = unsafe {
                (
                    SampleView::from_raw_parts(address.add(6), DType::U8, Device::Cpu, layout),
                    Target::from_raw_parts(
                        address.add(from),
                        DType::U8,
                        windrow::Device::Cpu,
                        Layout::compact(DType::U8, &[2, 6]).unwrap(),
                    ),
                )
            };
            let other = SampleView::from_slice(&[1u8, 2, 3, 4, 5, 6], &[6]).unwrap();
            let result = engine.assemble_into(&[other, sample], &Collate::stack(), &mut target);
            assert_eq!(result.is_err(), overlaps, "{name} at {from}");
            if let Err(error) = result {
                assert!(matches!(error, Error::Layout(_)));
                let text = "sample 1: expected memory apart from out, got memory that overlaps out";
                assert_eq!(error.to_string(), text);
                // SAFETY: nothing writes to `memory` now.
                assert!(unsafe { std::slice::from_raw_parts(address, 64) }
                    .iter()
                    .all(|&byte| byte == 9));
            }
        }
        // SAFETY: as above.
        unsafe { address.write_bytes(9, 64) };
    }
    drop(memory);
}

/// Columns of one table: rows of samples and rows of the output take turns and share no byte.
#[test]
fn outputs_between_samples() {
    const PITCH: usize = 12;
    let columns = |out: usize, sample: usize, length: i64| {
        let mut table: Vec<u8> = (0..8 * PITCH as u8).collect();
        let address = table.as_mut_ptr();
        let layout = |shape: &[i64], strides: &[i64]| {
            Layout::try_new(DType::U8, shape, Some(strides)).unwrap()
        };
        let views: Vec<_> = [5, 0, 3]
            .map(|row| {
                let layout = layout(&[2, length], &[PITCH as i64, 1]);
                // SAFETY: two rows inside of the table, which lives on; the engine refuses an output over them.
                unsafe {
                    let data = address.add(row * PITCH + sample);
                    SampleView::from_raw_parts(data, DType::U8, Device::Cpu, layout)
                }
            })
            .into();
        let layout = layout(&[3, 2, length], &[2 * PITCH as i64, PITCH as i64, 1]);
        // SAFETY: as above.
        let mut target =
            unsafe { Target::from_raw_parts(address.add(out), DType::U8, Device::Cpu, layout) };
        let made = Engine::host().assemble_into(&views, &Collate::stack(), &mut target);
        drop(views);
        made.map(|_| table)
    };
    for (out, sample, length) in [(0, 4, 4), (4, 0, 4), (8, 4, 4), (0, 6, 6), (6, 0, 6), (3, 11, 1)]
    {
        let table = columns(out, sample, length).unwrap();
        let length = length as usize;
        for (at, &byte) in table.iter().enumerate() {
            let (row, column) = (at / PITCH, at % PITCH);
            let from =
                [5, 6, 0, 1, 3, 4].get(row).filter(|_| (out..out + length).contains(&column));
            let want = from.map_or(at, |from| from * PITCH + sample + column - out);
            assert_eq!(usize::from(byte), want, "row {row}, column {column}");
        }
    }
    for (out, sample, length) in [(0, 3, 4), (3, 0, 4), (0, 5, 6), (3, 3, 1)] {
        let error = columns(out, sample, length).unwrap_err();
        let text = "sample 0: expected memory apart from out, got memory that overlaps out";
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn outputs_of_two_leaves() {
    let mut memory = vec![9u8; 24];
    let address = memory.as_mut_ptr();
    let collate = Collate::stack();
    let sample = |from: usize| {
        let layout = Layout::compact(DType::U8, &[4]).unwrap();
        // SAFETY: inside of `memory`, which lives on; outputs over it are refused.
        let view = unsafe {
            SampleView::from_raw_parts(address.add(from), DType::U8, Device::Cpu, layout)
        };
        SampleList::from_iter([view])
    };
    let target = |from: usize| {
        let layout = Layout::compact(DType::U8, &[1, 4]).unwrap();
        // SAFETY: as above.
        unsafe { Target::from_raw_parts(address.add(from), DType::U8, Device::Cpu, layout) }
    };
    // The first leaf is read at 4 and written at 8.
    for (read, written, overlap) in [
        (0, 12, None),
        (0, 11, Some(("out at \"b\": ", "the output at \"a\""))),
        (0, 16, None),
        (4, 16, None),
        (11, 16, Some(("sample 0 at \"b\": ", "the output at \"a\""))),
        (12, 16, None),
        (12, 4, Some(("sample 0 at \"a\": ", "the output at \"b\""))),
        (12, 0, None),
    ] {
        let (samples, targets) = ([sample(4), sample(read)], [target(8), target(written)]);
        let leaf = |i: usize, path| Leaf {
            samples: &samples[i],
            collate: &collate,
            path,
            out: Some(&targets[i]),
        };
        let leaves = [leaf(0, "a"), leaf(1, "b")];
        let small = Engine::host().assemble_small(&leaves, None, u64::MAX);
        assert_eq!(small.is_none(), overlap.is_some(), "{read} to {written}");
        let planned = Plan::for_leaves(&leaves);
        let text = overlap.map(|(at, whose)| {
            format!("{at}expected memory apart from {whose}, got memory that overlaps {whose}")
        });
        assert_eq!(planned.err().map(|error| error.to_string()), text, "{read} to {written}");
    }
    drop(memory);
}

#[test]
fn plans_of_one_output_on_two_threads() {
    let (engine, stack, mut memory) = (Engine::host(), Collate::stack(), vec![0u8; 1 << 20]);
    let samples = [1, 2].map(|byte| Sample::flat(1 << 20, byte));
    let lists = samples.each_ref().map(|sample| SampleList::from_iter([sample.view()]));
    // In some rounds both runs are at the same time.
    let mut rounds = (0..2000).map(|_| {
        let out = Target::from_slice(&mut memory, &[1, 1 << 20]).unwrap();
        let leaf = |samples| Leaf { samples, collate: &stack, path: "", out: Some(&out) };
        let plans = lists.each_ref().map(|list| Plan::for_leaves(&[leaf(list)]).unwrap());
        let results = std::thread::scope(|scope| {
            plans.map(|plan| scope.spawn(|| engine.run(plan))).map(|run| run.join().unwrap())
        });
        assert!(results.iter().any(Result::is_ok));
        assert!(memory.iter().all(|byte| *byte == memory[0]), "one batch, not two mixed");
        results.into_iter().find_map(Result::err)
    });
    let refused = rounds.find_map(|error| error).expect("two runs at the same time");
    let text = "out: expected memory that no other run uses, got memory in use";
    assert_eq!(refused.to_string(), text);
}

/// The data and what else there is of a batch, as bytes.
fn all_bytes(data: &[i64], fields: &Fields) -> Vec<Vec<u8>> {
    let Fields { lengths, offsets, mask, batch_index, .. } = fields;
    let fields = [lengths, offsets, mask, batch_index].into_iter().flatten();
    let data = data.iter().flat_map(|x| x.to_ne_bytes()).collect();
    std::iter::once(data).chain(fields.map(|field| bytes_of(field))).collect()
}

/// A batch of new memory, and one of the caller's, of which neither may need a plan.
fn made_both_ways<S: Samples + ?Sized>(samples: &S, collate: &Collate) -> Vec<Vec<u8>> {
    let engine = Engine::host();
    engine.reset_stats();
    let batch = engine.assemble(samples, collate).unwrap();
    let new = all_bytes(batch.data().as_slice().unwrap(), batch.fields());
    let mut out = vec![7i64; batch.data().shape().iter().product::<i64>() as usize];
    let mut target = Target::from_slice(&mut out, batch.data().shape()).unwrap();
    let fields = engine.assemble_into(samples, collate, &mut target).unwrap();
    assert_eq!(fields.max_length, batch.max_length());
    assert_eq!(all_bytes(&out, &fields), new, "{collate:?}");
    assert_eq!(engine.stats().plan_time, Duration::ZERO, "{collate:?}");
    assert_eq!(engine.stats().bytes_out % 2, 0, "both are counted");
    new
}

#[test]
fn small_batches_into_outputs() {
    let long: Vec<i32> = (0..40).collect();
    let uneven: [&[i32]; 4] = [&[1, 2, 3], &[], &long, &[4]];
    let even: [&[i32]; 3] = [&long, &long[..], &[5; 40]];
    let pad = |side| Pad::new().value(-1).side(side).mask(Mask::Real);
    let forms = [
        Collate::concat(0),
        Collate::ragged(Ragged::new().batch_index()),
        Collate::pad(pad(Side::Right)),
        Collate::pad(pad(Side::Left).size(7).truncate(true)),
        Collate::stack(),
    ];
    for (rows, forms) in [(&uneven[..], &forms[..4]), (&even, &forms), (&[&[][..]; 2], &forms)] {
        for collate in forms.iter().map(|form| form.clone().cast(DType::I64)) {
            let views: Vec<_> = rows.iter().map(|&row| SampleView::from(row)).collect();
            let list: SampleList<'_> = views.iter().cloned().collect();
            let of_views = made_both_ways(&views, &collate);
            assert_eq!(made_both_ways(rows, &collate), of_views, "{collate:?}");
            assert_eq!(made_both_ways(&list, &collate), of_views, "{collate:?}");
        }
    }
    let none: [&[i32]; 0] = [];
    assert!(matches!(Engine::host().assemble(&none, &Collate::stack()), Err(Error::Empty)));
}

#[test]
fn a_column_of_a_table_as_output_of_a_small_batch() {
    let (engine, rows) = (Engine::host(), [&[1i32, 2][..], &[3, 4]]);
    let mut table = [0i32; 10];
    let layout = Layout::try_new(DType::I32, &[2, 2], Some(&[5, 1])).unwrap();
    // SAFETY: two columns of the table, which lives on and which nothing else uses meanwhile.
    let mut target = unsafe {
        Target::from_raw_parts(table.as_mut_ptr().cast(), DType::I32, Device::Cpu, layout)
    };
    engine.assemble_into(&rows, &Collate::stack(), &mut target).unwrap();
    assert_eq!(table, [1, 2, 0, 0, 0, 3, 4, 0, 0, 0]);
}

/// Its bytes may be written to by another dtype, so that it may have bools that are none.
#[test]
fn the_vector_of_a_tensor_is_not_given_back() {
    let tensor = Tensor::from_vec(vec![true, false], &[2]).unwrap();
    assert!(tensor.owner().downcast_ref::<Vec<bool>>().is_none());
    drop(tensor.as_bits());
    assert!(std::sync::Arc::clone(tensor.owner()).downcast::<Vec<bool>>().is_err());
}

/// A part of bytes as bools, whose bytes need not be 0 or 1, into slices of `bool`, whose have to be.
#[test]
fn slices_of_bools() {
    let bytes = Tensor::from_vec((0..=255u8).collect(), &[256]).unwrap();
    let table = bytes.part(0, DType::Bool, &[16, 16]).unwrap();
    let turned = Layout::try_new(DType::Bool, &[16, 16], Some(&[1, 16])).unwrap();
    let turned = table.view(0, turned).unwrap();
    let assert_bools = |memory: &[bool; 256]| {
        // SAFETY: the bytes of the array.
        let bytes = unsafe { std::slice::from_raw_parts(memory.as_ptr().cast::<u8>(), 256) };
        assert!((0..256).all(|at| bytes[at] == u8::from(at != 0)), "{bytes:?}");
    };
    for (name, engine) in runner().engines() {
        println!("{name}");
        for table in [&table, &turned] {
            let rows = SampleList::rows(table).unwrap();
            for collate in [Collate::stack(), Collate::pad(Pad::new())] {
                let mut memory = [true; 256];
                let mut out = Target::from_slice(&mut memory, &[16, 16]).unwrap();
                engine.assemble_into(&rows, &collate, &mut out).unwrap();
                assert_bools(&memory);
            }
            let (mut memory, stack) = ([true; 256], Collate::stack());
            let out = Target::from_slice(&mut memory, &[16, 16]).unwrap();
            let leaf = Leaf { samples: &rows, collate: &stack, path: "", out: Some(&out) };
            engine.run(Plan::for_leaves(&[leaf]).unwrap()).unwrap();
            assert_bools(&memory);
            let mut memory = [true; 256];
            let mut dsts = [Target::from_slice(&mut memory, &[16, 16]).unwrap()];
            engine.copy_many(&mut dsts, &[SampleView::from(table)]).unwrap();
            assert_bools(&memory);
        }
    }
}

#[test]
fn batches_as_outputs() {
    let engine = Engine::host();
    let collate = Collate::pad(Pad::new().value(-1).mask(Mask::Real)).cast(DType::I64);
    // The batch is made without a plan, with the fields in the block of the data, and with one.
    for longest in [3, 3_000_000] {
        let (first, second) = (vec![1i32; longest], vec![2i32; longest - 1]);
        let rows: [&[i32]; 2] = [&first, &second];
        let mut batch = engine.assemble(&rows, &collate).unwrap();
        let address = batch.data().data_ptr();
        engine.assemble_into(&[&second[..], &first], &collate, &mut batch).unwrap();
        let data = batch.data().as_slice::<i64>().unwrap();
        assert_eq!(batch.data().data_ptr(), address);
        assert_eq!(&data[longest - 2..=longest], [2, -1, 1]);
        assert_eq!(batch.lengths().unwrap().as_slice::<i64>().unwrap()[1], longest as i64 - 1);

        for held in [batch.data().clone(), batch.sample(0).unwrap()] {
            let error = engine.assemble_into(&rows, &collate, &mut batch).unwrap_err();
            assert!(error.to_string().contains("shared memory"), "{error}");
            drop(held);
        }
        let held = batch.mask().unwrap().clone();
        let again = engine.assemble_into(&rows, &collate, &mut batch);
        // A mask in a block of its own is not written.
        let is_shared = Arc::ptr_eq(held.owner(), batch.data().owner());
        assert_eq!(again.is_err(), is_shared);
    }
}

#[test]
fn tensors_as_outputs() {
    let engine = Engine::host();
    let samples = two_rows();
    let (samples, stack) = (views(&samples), Collate::stack());
    let mut tensor = Tensor::from_vec(vec![0u8; 6], &[2, 3]).unwrap();
    engine.assemble_into(&samples, &stack, &mut tensor).unwrap();
    assert_eq!(tensor.as_slice::<u8>().unwrap(), [1, 2, 3, 4, 5, 6]);

    let held = tensor.clone();
    let error = engine.assemble_into(&samples, &stack, &mut tensor).unwrap_err();
    assert_eq!(
        error.to_string(),
        "out: expected memory that nothing else holds, got shared memory"
    );
    drop(held);
    let watched = Arc::downgrade(tensor.owner());
    assert!(matches!(tensor.as_target(), Err(Error::Layout(_))), "a weak holder may come back");
    drop(watched);
    engine.assemble_into(&samples, &stack, &mut tensor).unwrap();
}

#[test]
fn weak_holders_that_come_and_go() {
    let rows = [&[1u8][..], &[2, 3]];
    let batch = Engine::host().assemble(&rows, &Collate::pad(Pad::new())).unwrap();
    let tensor = Tensor::from_vec(vec![0u8; 6], &[2, 3]).unwrap();
    for mut out in [Ok(tensor), Err(batch)] {
        let owner = out.as_ref().map_or_else(|batch| batch.data().owner(), Tensor::owner);
        let (mut strong, is_done) = (Arc::clone(owner), AtomicBool::new(false));
        let num_taken = std::thread::scope(|scope| {
            scope.spawn(|| {
                // At any time there is a reference, strong or weak.
                while !is_done.load(Ordering::Relaxed) {
                    let weak = Arc::downgrade(&strong);
                    drop(strong);
                    strong = weak.upgrade().expect("the tensor has it");
                }
            });
            let taken = (0..1 << 20).filter(|_| match &mut out {
                Ok(tensor) => tensor.as_target().is_ok(),
                Err(batch) => batch.as_target().is_ok(),
            });
            let num_taken = taken.count();
            is_done.store(true, Ordering::Relaxed);
            num_taken
        });
        assert_eq!(num_taken, 0);
    }
}

#[test]
fn outputs_that_are_read_only_or_elsewhere() {
    let engine = Engine::host();
    let samples = two_rows();
    let (samples, stack) = (views(&samples), Collate::stack());
    let owner: windrow::tensor::Owner = Arc::new(());
    let layout = Layout::compact(DType::U8, &[2, 3]).unwrap();
    let tensor_on = |device, read_only| {
        // SAFETY: the address is never used: both tensors are refused.
        unsafe {
            let data = std::ptr::dangling_mut();
            Tensor::new_unchecked(
                Arc::new(owner.clone()),
                data,
                DType::U8,
                device,
                layout.clone(),
                read_only,
            )
        }
    };
    let error =
        engine.assemble_into(&samples, &stack, &mut tensor_on(Device::Cpu, true)).unwrap_err();
    assert_eq!(error.to_string(), "out: expected writable memory, got read-only memory");
    assert!(matches!(error, Error::Layout(_)));
    let error =
        engine.assemble_into(&samples, &stack, &mut tensor_on(Device::Cuda(1), false)).unwrap_err();
    let text = "out: expected cpu, got cuda:1; .device(Device) says where the batch is made";
    assert_eq!(error.to_string(), text);
    assert!(matches!(error, Error::Device(_)));
}

#[test]
fn batches_and_slices_as_outputs() {
    let engine = Engine::host();
    let samples = two_rows();
    let (samples, stack) = (views(&samples), Collate::stack());
    let mut batch = engine.assemble(&samples, &stack).unwrap();
    let address = batch.data().data_ptr();
    let backwards: Vec<_> = samples.iter().rev().cloned().collect();
    engine.assemble_into(&backwards, &stack, &mut batch).unwrap();
    assert_eq!(batch.data().data_ptr(), address);
    assert_eq!(batch.data().as_slice::<u8>().unwrap(), [4, 5, 6, 1, 2, 3]);
    let row = batch.sample(0).unwrap();
    assert!(
        engine.assemble_into(&samples, &stack, &mut batch).is_err(),
        "a view of a row is alive"
    );
    drop(row);
    let mut slice = [0u8; 6];
    assert!(Target::from_slice(&mut slice, &[2, 4]).is_err());
    engine
        .assemble_into(&samples, &stack, &mut Target::from_slice(&mut slice, &[2, 3]).unwrap())
        .unwrap();
    assert_eq!(slice, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn zeroed_memory() {
    let engine = Engine::host();
    let dirty = Sample::new(DType::U8, &[300_000], 1);
    drop(engine.assemble(&[dirty.view()], &Collate::stack()).unwrap());
    let tensor = engine.empty(DType::U16, &[150_000], Device::Cpu).unwrap();
    assert!(tensor.as_slice::<u16>().unwrap().iter().all(|&x| x == 0));
    #[cfg(not(feature = "cuda"))]
    for device in [Device::Cuda(0), Device::Pinned] {
        let error = engine.empty(DType::U8, &[1], device).unwrap_err();
        let text = format!(
            "CUDA is not available: {device}: this build of windrow works on the host only"
        );
        assert_eq!(error.to_string(), text);
    }
    assert!(matches!(engine.empty(DType::U8, &[-1], Device::Cpu), Err(Error::Argument(_))));
    assert!(matches!(
        engine.empty(DType::U8, &[1 << 62], Device::Cpu),
        Err(Error::OutOfMemory { .. })
    ));
    assert_eq!(engine.empty(DType::F64, &[0, 3], Device::Cpu).unwrap().shape(), [0, 3]);
}

/// Runs a batch that may be refused, and its account; neither may panic.
fn survives(sample: &SampleView<'_>, count: usize, collate: &Collate) {
    let samples = vec![sample.clone(); count];
    if let Ok(plan) = Plan::new(&samples, collate) {
        let _ = plan.explain().to_string();
    }
    for (_, engine) in runner().engines() {
        if let Ok(batch) = engine.assemble(&samples, collate) {
            let _ = (batch.sample(0), bytes_of(batch.data()));
        }
    }
}

fn empty_sample(dtype: DType, shape: &[i64]) -> Option<SampleView<'static>> {
    let layout = Layout::compact(dtype, shape).ok()?;
    // SAFETY: there are no elements.
    Some(unsafe { SampleView::from_raw_parts(std::ptr::dangling(), dtype, Device::Cpu, layout) })
}

#[test]
fn vast_extents_beside_an_extent_of_zero() {
    let most = i64::MAX;
    for shape in [
        &[most, 0][..],
        &[0, most],
        &[most, most, 0],
        &[most, 0, 1],
        &[1 << 61, 0],
        &[1 << 32, 1 << 31, 0],
    ] {
        for dtype in [DType::U8, DType::F64, DType::C128] {
            let Some(sample) = empty_sample(dtype, shape) else { continue };
            for count in [1, 2] {
                for dim in 0..shape.len() as i64 {
                    survives(&sample, count, &Collate::concat(dim));
                }
                survives(&sample, count, &Collate::stack());
                survives(&sample, count, &Collate::ragged(Ragged::new()));
                survives(&sample, count, &Collate::pad(Pad::new()));
                let mask = Pad::new().mask(Mask::Real).mask_dtype(DType::I64).dims([0, 1]);
                survives(&sample, count, &Collate::pad(mask));
            }
        }
    }
}

#[test]
fn accounts_of_more_bytes_than_there_are() {
    let sample = SampleView::with_strides(&[1.0f64], &[1 << 59], &[0]).unwrap();
    let samples = [sample.clone(), sample.clone(), sample.clone(), sample];
    let collate = Collate::stack().cast(DType::U8);
    // 2^61 bytes written, 2^64 read.
    let _ = Plan::new(&samples, &collate).unwrap().explain().to_string();
}

#[test]
fn integers_of_128_bits_as_padding() {
    let sample = SampleView::from_slice(&[1u8, 2], &[2]).unwrap();
    for value in [i128::MIN, i128::MIN + 1, i128::MAX, -1] {
        for &dtype in crate::common::ARITHMETIC {
            let pad = Pad::new().size(3).value(windrow::tensor::Scalar::Int(value));
            survives(&sample, 1, &Collate::pad(pad).cast(dtype));
        }
    }
}

#[test]
fn vast_strides_of_extents_of_one() {
    let data = [1.5f32];
    for strides in [[i64::MAX, i64::MAX], [i64::MIN, i64::MAX], [i64::MIN, i64::MIN]] {
        let data = data.as_ptr().cast();
        let one = |dtype| {
            let layout = Layout::try_new(dtype, &[1, 1], Some(&strides)).unwrap();
            // SAFETY: an extent of 1 never steps, and four bytes are enough for either dtype.
            unsafe { SampleView::from_raw_parts(data, dtype, Device::Cpu, layout) }
        };
        let sample = one(DType::F32);
        for side in [Side::Left, Side::Right, Side::Center] {
            for size in [0, 1, 3] {
                let pad = Pad::new().side(side).dims([0, 1]).size(size).truncate(true);
                survives(&sample, 2, &Collate::pad(pad.clone()));
                survives(&one(DType::U8), 2, &Collate::pad(pad));
            }
        }
        for collate in [Collate::stack(), Collate::concat(1), Collate::ragged(Ragged::new())] {
            survives(&sample, 3, &collate);
        }
        let batch = Engine::host()
            .assemble(&[sample], &Collate::pad(Pad::new().sizes([Some(2); 2])))
            .unwrap();
        assert_eq!(batch.data().as_slice::<f32>().unwrap(), [1.5, 0.0, 0.0, 0.0]);
    }
}

#[test]
fn samples_of_other_kinds_that_were_not_taken() {
    let samples = [
        Sample::new(DType::U8, &[4], 1),
        Sample::new(DType::C64, &[2, 3], 2),
        Sample::new(DType::U8, &[4], 9),
        Sample::laid_out(DType::F32, &[7], &[-3], 1, Paint::Rich, 1),
    ];
    let list: windrow::SampleList<'_> = samples.iter().map(Sample::view).collect();
    let taken = list.take([2, 0, -2]).unwrap();
    for (name, engine) in runner().engines() {
        let batch = engine.assemble(&taken, &Collate::stack().cast(DType::U16)).unwrap();
        let want = [9, 10, 11, 12, 1, 2, 3, 4, 9, 10, 11, 12];
        assert_eq!(batch.data().as_slice::<u16>().unwrap(), want, "{name}");
        assert!(engine.assemble(&list, &Collate::stack()).is_err(), "{name}");
    }
}

#[test]
fn many_dims() {
    let shape = vec![1i64; windrow::tensor::MAX_NDIM - 1];
    let mut wide = shape.clone();
    (wide[0], wide[62]) = (2, 3);
    let samples: Vec<_> = (0..2).map(|i| Sample::new(DType::U8, &wide, i)).collect();
    let order: Vec<i64> = (0..63).rev().collect();
    runner().check("63 dims", &samples, &Ask::stack().permute(&order));
    let pad = PadAsk {
        multiple_of: PerDim::All(2),
        mask: None,
        dims: Some(vec![0, 62]),
        ..PadAsk::default()
    };
    runner().check("63 dims, padded", &samples, &Ask::pad(pad));
    let most = vec![1i64; windrow::tensor::MAX_NDIM];
    let sample = Sample::new(DType::U8, &most, 0);
    let error = Engine::host().assemble(&[sample.view()], &Collate::stack()).unwrap_err();
    assert_eq!(error, Error::argument("65 dims; at most 64 are supported".to_owned()));
    runner().check("64 dims", &[sample], &Ask::concat(63));
}
