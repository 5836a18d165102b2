//! Input that is wrong on a device: typed errors, nothing written, and the engine goes on.

use std::sync::Arc;

use windrow::engine::RunOptions;
use windrow::plan::{Leaf, Target};
use windrow::{
    Collate, DType, Device, Engine, Error, Layout, Plan, Ragged, SampleList, SampleView, Stream,
    Tensor,
};

use crate::calls::traced;
use crate::resident::indices;
use crate::rig::{
    consume, engine, host_bytes, lent_by, on_gpu, run, Buffer, ForeignStream, Gpu, Rows, HERE,
};

const THERE: Device = Device::Cuda(1);

fn view(address: u64, dtype: DType, shape: &[i64], device: Device) -> SampleView<'static> {
    let layout = Layout::compact(dtype, shape).unwrap();
    // SAFETY: the tests keep the memory, or expect an error before it is read.
    unsafe { SampleView::from_raw_parts(address as *const u8, dtype, device, layout) }
}

fn target(address: u64, shape: &[i64], device: Device) -> Target<'static> {
    let layout = Layout::compact(DType::U8, shape).unwrap();
    // SAFETY: as above.
    unsafe { Target::from_raw_parts(address as *mut u8, DType::U8, device, layout) }
}

/// A good batch, to see that the engine still works.
fn still_works(gpu: &Gpu, engine: &Engine) {
    let (rows, lane) = (Rows::new(9, DType::U8, &[&[30], &[40]]), ForeignStream::new(gpu));
    let batch = engine.assemble(&rows.on_host(), &Collate::ragged(Ragged::new())).unwrap();
    assert_eq!(consume(&lane, &batch), rows.expected(&Collate::ragged(Ragged::new())));
    drop(batch);
}

#[test]
fn devices_that_are_not_there_or_not_the_same() {
    on_gpu(|gpu| {
        let (engine, bytes) = (engine(), Buffer::from_bytes(gpu, &[1; 64]));
        let stack = Collate::stack();
        // Two devices: see `Gpu::new`.
        let nowhere = [view(bytes.address, DType::U8, &[4], Device::Cuda(7))];
        for result in [
            engine.assemble(&nowhere, &stack.clone().device(Device::Cuda(7))).map(drop),
            engine
                .assemble(
                    &[SampleView::from_slice(&[1u8], &[1]).unwrap()],
                    &stack.clone().device(Device::Cuda(7)),
                )
                .map(drop),
            Engine::cuda(7).map(drop),
        ] {
            assert!(
                matches!(&result, Err(Error::Argument(t)) if t.to_string().contains("cuda:7")),
                "{result:?}"
            );
        }
        let other = [view(bytes.address, DType::U8, &[4], THERE)];
        let error = engine.assemble(&other, &stack).unwrap_err();
        assert!(matches!(error, Error::Device(_)), "{error}");
        let mixed = [
            view(bytes.address, DType::U8, &[4], HERE),
            view(bytes.address, DType::U8, &[4], THERE),
        ];
        let error = engine.assemble(&mixed, &stack).unwrap_err();
        assert!(matches!(error, Error::Device(_)), "{error}");

        let lists = [HERE, THERE]
            .map(|device| SampleList::from_iter([view(bytes.address, DType::U8, &[4], device)]));
        let collates = [HERE, THERE].map(|device| stack.clone().device(device));
        let leaves: Vec<_> = lists
            .iter()
            .zip(&collates)
            .map(|(samples, collate)| Leaf { samples, collate, path: "", out: None })
            .collect();
        let error = engine.run(Plan::for_leaves(&leaves).unwrap()).unwrap_err();
        assert!(matches!(error, Error::Device(_)), "{error}");
        still_works(gpu, &engine);
    });
}

#[test]
fn outputs_on_the_wrong_device_or_over_a_sample() {
    on_gpu(|gpu| {
        let (engine, memory) = (engine(), Buffer::from_bytes(gpu, &[3; 256]));
        let samples = [view(memory.address, DType::U8, &[64], HERE)];
        let mut host = [0u8; 64];
        let mut pageable = Target::from_slice(&mut host[..], &[1, 64]).unwrap();
        let mut there = target(memory.address + 128, &[1, 64], THERE);
        for out in [&mut pageable, &mut there] {
            let error = engine.assemble_into(&samples, &Collate::stack(), out).unwrap_err();
            assert!(matches!(error, Error::Device(_)), "{error}");
        }
        let mut over = target(memory.address + 63, &[1, 64], HERE);
        let error = engine.assemble_into(&samples, &Collate::stack(), &mut over).unwrap_err();
        assert!(matches!(error, Error::Layout(_)), "{error}");
        let mut small = target(memory.address + 128, &[1, 63], HERE);
        let error = engine.assemble_into(&samples, &Collate::stack(), &mut small).unwrap_err();
        assert!(matches!(error, Error::Shape(_)), "{error}");
        assert_eq!(memory.read(), [3; 256]);
        let mut beside = target(memory.address + 64, &[1, 64], HERE);
        engine.assemble_into(&samples, &Collate::stack(), &mut beside).unwrap();
        assert_eq!(memory.read(), [3; 256]);
        still_works(gpu, &engine);
    });
}

#[test]
fn small_stacks_on_the_host_are_not_read_from_the_device_in_place() {
    on_gpu(|gpu| {
        // The simulator's device memory could be: what is counted tells.
        let (engine, rows) = (engine(), Rows::new(3, DType::I16, &[&[5, 2], &[5, 2]]));
        let memory = rows.upload(gpu);
        let samples = rows.at(memory.iter().map(|buffer| buffer.address));
        let batch = engine.assemble(&samples, &Collate::stack().device(Device::Cpu)).unwrap();
        assert_eq!(host_bytes(batch.data()), rows.expected(&Collate::stack())[0]);
        let stats = engine.stats();
        assert_eq!((stats.launches, stats.bytes_to_host), (1, 40));
    });
}

#[test]
fn memory_that_is_not_what_was_asked_for() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let rows = Rows::new(4, DType::I32, &[&[4, 3]]);
        let memory = Buffer::from_bytes(gpu, &[3; 96]);
        let lent = |dtype, device, shape: &[i64], strides, is_read_only| {
            let layout = Layout::try_new(dtype, shape, strides).unwrap();
            let data = memory.address as *mut u8;
            // SAFETY: the buffer outlives the tensor.
            unsafe {
                Tensor::new_unchecked(Arc::new(()), data, dtype, device, layout, is_read_only)
            }
        };
        let (asked, by_columns) = ([1, 4, 3], [12, 1, 4]);
        for wrong in [
            lent(DType::F32, HERE, &asked, None, false),
            lent(DType::I32, THERE, &asked, None, false),
            lent(DType::I32, Device::Cpu, &asked, None, false),
            lent(DType::I32, HERE, &[1, 3, 4], None, false),
            lent(DType::I32, HERE, &asked, Some(&by_columns[..]), false),
            lent(DType::I32, HERE, &asked, None, true),
        ] {
            let options = lent_by(&lane, wrong);
            let error = run(&engine, &rows.on_host(), &Collate::stack(), options).unwrap_err();
            assert!(
                matches!(&error, Error::Argument(t) if t.to_string().contains("allocator")),
                "{error}"
            );
        }
        assert_eq!(memory.read(), [3; 96]);
        still_works(gpu, &engine);
    });
}

/// Batched copies need a created stream, not a default one.
#[test]
fn large_page_locked_samples_on_the_default_streams() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let rows = Rows::new(5, DType::U8, &[&[30_000], &[30_001]]);
        let pinned = rows.pinned(gpu);
        pinned.fill(&rows);
        let samples = rows.on(Device::Pinned, &pinned.addresses);
        // SAFETY: the calling thread's own stream.
        let thread_stream = unsafe { Stream::from_raw(2) };
        for stream in [Stream::LEGACY, thread_stream, engine.stream(0).unwrap()] {
            let batch =
                engine.assemble_on(&samples, &Collate::ragged(Ragged::new()), &stream).unwrap();
            assert_eq!(consume(&lane, &batch), rows.expected(&Collate::ragged(Ragged::new())));
        }
        assert_eq!(engine.stats().bytes_to_device, 3 * 60_001);
    });
}

#[test]
fn streams_of_others_and_streams_that_are_gone() {
    on_gpu(|gpu| {
        let engine = engine();
        let rows = Rows::new(1, DType::U8, &[&[16]]);
        let memory = rows.upload(gpu);
        let samples = rows.at([memory[0].address]);
        let mut there = 0;
        assert_eq!(gpu.cuDevicePrimaryCtxRetain(&mut there, 1), 0);
        assert_eq!(gpu.cuCtxSetCurrent(there), 0);
        let foreign = gpu.stream();
        assert_eq!(gpu.cuCtxSetCurrent(gpu.context), 0);
        let gone = gpu.stream();
        assert_eq!(gpu.cuStreamDestroy_v2(gone), 0);
        let batch = engine.assemble(&samples, &Collate::stack()).unwrap();
        let (_memory, chosen) = indices(gpu, DType::I64, &[0, 0]);
        let taken = engine.resident(samples.clone(), HERE).unwrap().take(&chosen).unwrap();
        for (handle, is_foreign) in [(foreign, true), (gone, false)] {
            // SAFETY: the simulator looks handles up before it uses them.
            let stream = unsafe { Stream::from_raw(handle) };
            let mut behind = RunOptions::default();
            behind.producers = vec![stream];
            let (calls, results) = traced(gpu, || {
                [
                    engine.assemble_on(&samples, &Collate::stack(), &stream).map(drop),
                    engine.assemble_on(&taken, &Collate::stack(), &stream).map(drop),
                    run(&engine, &samples, &Collate::stack(), behind).map(drop),
                    batch.data().ready_on(stream),
                ]
            });
            let works =
                |call: &String| ["Alloc", "Launch", "Memcpy"].iter().any(|w| call.contains(w));
            assert!(!calls.iter().any(works), "{calls:#?}");
            for result in results {
                match result {
                    Err(Error::Argument(text)) => {
                        assert!(is_foreign && text.to_string().contains("context"))
                    }
                    Err(Error::Cuda(e)) => assert!(!is_foreign && e.code == 400, "{e}"),
                    other => panic!("{other:?}"),
                }
            }
        }
        drop(batch);
        assert_eq!(gpu.sim.take_errors().len(), 4); // each use of the stream that is gone
        assert_eq!(gpu.cuStreamDestroy_v2(foreign), 0);
        still_works(gpu, &engine);
    });
}

#[test]
fn whose_memory_an_address_is() {
    on_gpu(|gpu| {
        let place = |address: u64| windrow::device::device_of(address as usize).unwrap();
        let here = Buffer::from_bytes(gpu, &[1; 64]);
        let (mut there, mut context) = (0, 0);
        assert_eq!(gpu.cuDevicePrimaryCtxRetain(&mut context, 1), 0);
        assert_eq!(gpu.cuCtxSetCurrent(context), 0);
        assert_eq!(gpu.cuMemAlloc_v2(&mut there, 64), 0);
        assert_eq!((place(here.address + 63), place(there)), (HERE, THERE));
        assert_eq!(gpu.cuMemFree_v2(there), 0);
        assert_eq!(gpu.cuCtxSetCurrent(gpu.context), 0);
        let mut pages = vec![0_u8; 8192];
        let address = pages.as_ptr() as u64;
        assert_eq!(place(address), Device::Cpu);
        assert_eq!(gpu.cuMemHostRegister_v2(pages.as_mut_ptr(), 8192, 0), 0);
        assert_eq!(place(address), Device::Pinned);
        assert_eq!(gpu.cuMemHostUnregister(pages.as_mut_ptr()), 0);
        // Freed memory is not taken for device memory, so importers refuse it.
        let freed = here.address;
        drop(here);
        assert_eq!([address, there, freed, 0].map(place), [Device::Cpu; 4]);
        still_works(gpu, &engine());
    });
}

#[test]
fn nothing_to_read() {
    on_gpu(|gpu| {
        let (engine, lane, bytes) =
            (engine(), ForeignStream::new(gpu), Buffer::from_bytes(gpu, &[5; 8]));
        let empty = || view(0, DType::F32, &[0, 3], HERE);
        let batch = engine.assemble(&[empty(), empty()], &Collate::stack()).unwrap();
        assert_eq!(batch.data().shape(), [2, 0, 3]);
        batch.data().ready_on(lane.stream()).unwrap();
        batch.data().synchronize().unwrap();
        drop(batch);
        let some = view(bytes.address, DType::F32, &[1, 2], HERE);
        let none = view(0, DType::F32, &[0, 2], HERE);
        let batch = engine.assemble(&[none, some], &Collate::ragged(Ragged::new())).unwrap();
        assert_eq!(consume(&lane, &batch)[0], [5; 8]);
        drop(batch);
        let none: [SampleView<'_>; 0] = [];
        assert_eq!(engine.assemble(&none, &Collate::stack()).unwrap_err(), Error::Empty);
        still_works(gpu, &engine);
    });
}
