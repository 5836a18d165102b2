//! Rules of real drivers that a simulator could ignore: modules go with their last user, a wait for the whole device ends captures,
//! and the handle of a destroyed stream must not be queried.

use std::thread;

use windrow::engine::RunOptions;
use windrow::{Collate, DType, Engine, Pad, SampleList, SampleView, Stream};

use crate::calls::{count, traced};
use crate::capture::{end_capture, GLOBAL};
use crate::lifetime::settle;
use crate::paused_streams::{pause_own, waits};
use crate::rig::{consume, engine, lent_by, on_gpu, run, Buffer, ForeignStream, Gpu, Rows, HERE};

fn on(lane: &ForeignStream<'_>) -> RunOptions {
    let mut options = RunOptions::default();
    options.stream = Some(lane.stream());
    options
}

/// Zeros on the device, whose memory is the engine's: nothing has to be held until they are read.
fn own_rows(engine: &Engine, count: usize) -> Vec<windrow::Tensor> {
    (0..count).map(|_| engine.empty(DType::U8, &[300], HERE).unwrap()).collect()
}

#[test]
fn engines_of_one_device_share_a_module() {
    on_gpu(|gpu| {
        let before = gpu.sim.live().modules;
        let engines = [(); 3].map(|()| Engine::cuda(0).unwrap());
        let after = gpu.sim.live().modules;
        assert!(after == 1 && before <= 1, "{before} {after}");
        drop(engines);
        assert_eq!(gpu.sim.live().modules, 1);
    });
}

#[test]
fn a_graph_outlives_its_engine() {
    on_gpu(|gpu| {
        let (engine, lane) = (Engine::cuda(0).unwrap(), ForeignStream::new(gpu));
        let rows = Rows::new(1, DType::U8, &[&[300], &[300]]);
        let (memory, out) = (rows.upload(gpu), Buffer::poisoned(gpu, 600));
        let samples = rows.at(memory.iter().map(|b| b.address));
        assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, GLOBAL), 0);
        let mut options = on(&lane);
        options.memory = lent_by(&lane, out.tensor(DType::U8, &[2, 300])).memory;
        run(&engine, &samples, &Collate::stack(), options).unwrap();
        let exec = end_capture(gpu, &lane);
        drop(engine);
        let others = [(); 3].map(|()| Engine::cuda(0).unwrap());
        assert_eq!(gpu.cuGraphLaunch(exec.1, lane.handle), 0);
        assert_eq!(out.read(), rows.bytes.concat());
        drop(others);
    });
}

#[test]
fn an_engine_ends_while_its_work_is_queued() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let tensors = own_rows(&engine, 2);
        let samples: SampleList<'_> = tensors.iter().map(SampleView::from).collect();
        drop(run(&engine, &samples, &Collate::stack(), on(&lane)).unwrap());
        let paused = lane.pause();
        let batch = run(&engine, &samples, &Collate::stack(), on(&lane)).unwrap();
        drop(samples);
        drop(engine);
        drop(paused);
        assert_eq!(consume(&lane, &batch), [vec![0; 600]]);
    });
}

#[test]
fn order_within_a_capture_leaves_it_alone() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let (from, to) = (Buffer::from_bytes(gpu, &[1; 64]), Buffer::poisoned(gpu, 64));
        let engine_stream = engine.stream(0).unwrap();
        assert_eq!(engine.capture_of(0, lane.stream()).unwrap(), None);
        assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, GLOBAL), 0);
        let capture = engine.capture_of(0, lane.stream()).unwrap();
        assert!(capture.is_some() && engine.capture_of(0, engine_stream).unwrap().is_none());
        // A graph cannot wait for what is outside of it.
        engine.order(0, &[engine_stream, lane.stream()], lane.stream()).unwrap();
        assert_eq!(gpu.cuMemcpyDtoDAsync_v2(to.address, from.address, 64, lane.handle), 0);
        let exec = end_capture(gpu, &lane);
        assert_eq!(gpu.cuGraphLaunch(exec.1, lane.handle), 0);
        assert_eq!(to.read(), [1; 64]);
        assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, GLOBAL), 0);
        assert_ne!(engine.capture_of(0, lane.stream()).unwrap(), capture);
        drop(end_capture(gpu, &lane));
    });
}

/// The driver refuses to say whether the legacy stream is captured while a blocking one is.
#[test]
fn the_legacy_stream_is_in_no_capture() {
    on_gpu(|gpu| {
        let (engine, mut blocking) = (engine(), 0);
        engine.stream(0).unwrap();
        assert_eq!(gpu.cuStreamCreate(&mut blocking, 0), 0);
        assert_eq!(gpu.cuStreamBeginCapture_v2(blocking, GLOBAL), 0);
        assert_ne!(gpu.cuStreamIsCapturing(0, &mut 0), 0);
        assert_eq!(engine.capture_of(0, Stream::LEGACY).unwrap(), None);
        let mut graph = 0;
        assert_eq!(gpu.cuStreamEndCapture(blocking, &mut graph), 0);
        assert_eq!(gpu.cuGraphDestroy(graph), 0);
        assert_eq!(gpu.cuStreamDestroy_v2(blocking), 0);
    });
}

/// A capture that others make goes on while `work` runs.
fn beside_a_capture(gpu: &Gpu, work: impl FnOnce()) {
    let (lane, from) = (ForeignStream::new(gpu), Buffer::from_bytes(gpu, &[1; 64]));
    let to = Buffer::poisoned(gpu, 64);
    assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, GLOBAL), 0);
    let (calls, ()) = traced(gpu, work);
    assert_eq!(count(&calls, "cuCtxSynchronize"), 0, "{calls:#?}");
    assert_eq!(gpu.cuMemcpyDtoDAsync_v2(to.address, from.address, 64, lane.handle), 0);
    let exec = end_capture(gpu, &lane);
    assert_eq!(gpu.cuGraphLaunch(exec.1, lane.handle), 0);
    assert_eq!(to.read(), [1; 64]);
}

#[test]
fn a_batch_on_the_stream_of_another_thread_is_dropped_beside_a_capture() {
    on_gpu(|gpu| {
        let (engine, rows) = (engine(), Rows::new(3, DType::U8, &[&[400]]));
        let memory = rows.upload(gpu);
        // SAFETY: each thread has such a stream.
        let thread_stream = unsafe { Stream::from_raw(2) };
        let samples = rows.at([memory[0].address]);
        let batch = engine.assemble(&samples, &Collate::stack()).unwrap();
        batch.data().ready_on(thread_stream).unwrap();
        beside_a_capture(gpu, || {
            thread::scope(|scope| scope.spawn(|| drop(batch)).join().unwrap());
        });
        // The memory goes back when that stream is named again, behind what is on it.
        drop(engine.assemble_on(&samples, &Collate::stack(), &thread_stream).unwrap());
        engine.empty_cache();
        assert_eq!(gpu.sim.live().pooled_bytes, 0);
    });
}

#[test]
fn memory_that_the_stream_of_another_thread_reads_is_given_to_nobody() {
    on_gpu(|gpu| {
        let (engine, quick) = (engine(), ForeignStream::new(gpu));
        let (rows, others) = ([3, 4].map(|seed| Rows::new(seed, DType::U8, &[&[400]]))).into();
        let (memory, other_memory) = (Rows::upload(&rows, gpu), Rows::upload(&others, gpu));
        let copy = Buffer::poisoned(gpu, 400);
        let batch = engine.assemble(&rows.at([memory[0].address]), &Collate::stack()).unwrap();
        // SAFETY: each thread has such a stream.
        batch.data().ready_on(unsafe { Stream::from_raw(2) }).unwrap();
        gpu.sim.synchronize_all();
        let (gate, event) = (ForeignStream::new(gpu), gpu.event());
        let paused = gate.pause();
        gate.linger();
        assert_eq!(gpu.cuEventRecord(event, gate.handle), 0);
        assert_eq!(gpu.cuStreamWaitEvent(2, event, 0), 0);
        assert_eq!(gpu.cuEventDestroy_v2(event), 0);
        let from = batch.data().data_ptr() as u64;
        assert_eq!(gpu.cuMemcpyDtoDAsync_v2(copy.address, from, 400, 2), 0);
        thread::scope(|scope| scope.spawn(|| drop(batch)).join().unwrap());
        let samples = others.at([other_memory[0].address]);
        let batches = [(); 4].map(|()| {
            settle();
            engine.assemble_on(&samples, &Collate::stack(), &quick.stream()).unwrap()
        });
        settle();
        drop(paused);
        assert_eq!(copy.read(), rows.bytes[0]);
        drop(batches);
    });
}

#[test]
fn memory_that_lies_unused_is_given_back_beside_a_capture() {
    on_gpu(|gpu| {
        // 64 MiB in all: see `Gpu::new`.
        let (engine, samples) = (engine(), Buffer::poisoned(gpu, 20 << 20));
        let view = |bytes: i64| Rows { dtype: DType::U8, shapes: vec![vec![bytes]], bytes: vec![] };
        let of = |bytes| view(bytes).at([samples.address]);
        drop(engine.assemble(&of(20 << 20), &Collate::stack()).unwrap());
        drop(engine.assemble(&of(18 << 20), &Collate::pad(Pad::new())).unwrap());
        beside_a_capture(gpu, || {
            let large = engine.assemble_on(&of(19 << 20), &Collate::stack(), &Stream::LEGACY);
            drop(large.unwrap());
            assert!(!engine.trim(0, false).unwrap());
        });
    });
}

/// Uses a batch on a stream, by a copy of it to memory of others.
type Use = fn(&Engine, &windrow::Batch, &ForeignStream<'_>, &Buffer<'_>);

#[test]
fn memory_behind_a_slow_stream_holds_up_nobody_else() {
    let handed: Use = |_, batch, slow, copy| {
        batch.data().ready_on(slow.stream()).unwrap();
        slow.copy(copy, batch.data());
    };
    let read: Use = |engine, batch, slow, copy| {
        let mut options = lent_by(slow, copy.tensor(DType::U8, &[1, 3000]));
        options.stream = Some(slow.stream());
        let samples = SampleList::rows(batch.data()).unwrap();
        drop(run(engine, &samples, &Collate::stack(), options).unwrap());
    };
    on_gpu(|gpu| {
        for use_it in [handed, read] {
            let (engine, slow, quick) =
                (engine(), ForeignStream::new(gpu), ForeignStream::new(gpu));
            let (rows, copy) = (Rows::new(1, DType::U8, &[&[3000]]), Buffer::poisoned(gpu, 3000));
            let (memory, stack) = (rows.upload(gpu), Collate::stack());
            let samples = rows.at([memory[0].address]);
            let [first, second] = [(); 2].map(|()| engine.assemble(&samples, &stack).unwrap());
            let places = [&first, &second].map(|batch| batch.data().data_ptr());
            let paused = slow.pause();
            use_it(&engine, &first, &slow, &copy);
            drop(first);
            consume(&quick, &second);
            drop(second);
            // The memory of the second batch is there for others, that of the first one is not.
            let batches = [(); 4].map(|()| {
                settle();
                let batch = engine.assemble_on(&samples, &stack, &quick.stream()).unwrap();
                assert_eq!(consume(&quick, &batch), rows.bytes);
                batch
            });
            let others: Vec<_> = batches.iter().map(|batch| batch.data().data_ptr()).collect();
            assert!(!others.contains(&places[0]), "memory that is still read");
            assert!(others.contains(&places[1]), "memory that is done with");
            drop(paused);
            assert_eq!(copy.read(), rows.bytes[0]);
        }
    });
}

#[test]
fn a_stream_that_is_gone_is_not_asked_for_anything() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let [old, new] = [1, 2].map(|seed| Rows::new(seed, DType::U8, &[&[3000]]));
        let (old_memory, new_memory) = (old.upload(gpu), new.upload(gpu));
        let (before, after) = (old.at([old_memory[0].address]), new.at([new_memory[0].address]));
        let mut batch = engine.assemble(&before, &Collate::stack()).unwrap();
        let reader = ForeignStream::new(gpu);
        batch.data().ready_on_borrowed(reader.stream()).unwrap();
        drop(reader);
        engine.assemble_into(&after, &Collate::stack(), &mut batch).unwrap();
        assert_eq!(consume(&lane, &batch), new.bytes);
    });
}

/// The next stream may have its handle, and another library gives out memory by that.
#[test]
fn a_stream_that_others_have_memory_of_ends_behind_its_work() {
    on_gpu(|gpu| {
        let (engine, rows) = (engine(), Rows::new(1, DType::U8, &[&[3000]]));
        drop(engine.assemble(&rows.on_host(), &Collate::stack().device(HERE)).unwrap());
        let owner = engine.stream_owner(0).unwrap();
        let paused = pause_own(gpu, &engine);
        let batch = engine.assemble(&rows.on_host(), &Collate::stack().device(HERE)).unwrap();
        drop(batch);
        waits(paused, || drop((engine, owner)));
    });
}
