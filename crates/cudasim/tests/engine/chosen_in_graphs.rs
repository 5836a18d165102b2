//! Graphs that choose samples by indices on the device.

use std::sync::{Arc, Mutex};

use windrow::batch::Fields;
use windrow::engine::{OutputMemory, RunOptions};
use windrow::plan::{AsTarget, Leaf};
use windrow::{
    Batch, Collate, DType, Engine, Error, Layout, Mask, Pad, Plan, SampleList, Stream, Tensor,
};

use crate::calls::traced;
use crate::capture::{end_capture, Exec};
use crate::paused_streams::{pause_own, waits};
use crate::resident::{indices, ResidentSamples};
use crate::rig::{consume, engine, on_gpu, run, Buffer, ForeignStream, Gpu, HERE};

/// A stack into a tensor, recorded in a graph.
fn captured<'g>(
    gpu: &'g Gpu,
    engine: &Engine,
    (samples, out): (&SampleList<'_>, &mut Tensor),
    lane: &ForeignStream<'_>,
) -> (Exec<'g>, Fields) {
    assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, 1), 0);
    let (target, collate) = (out.as_target().unwrap(), Collate::stack());
    let leaf = Leaf { samples, collate: &collate, path: "", out: Some(&target) };
    let mut options = RunOptions::default();
    options.stream = Some(lane.stream());
    let mut filled = engine.run_with(Plan::for_leaves(&[leaf]).unwrap(), options).unwrap();
    (end_capture(gpu, lane), filled.remove(0).fields)
}

#[test]
fn memory_of_a_graph_is_had_behind_whoever_used_it() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let list = ResidentSamples::new(gpu, &engine, DType::F32, &[&[40][..]; 5]);
        let (_memory, chosen) = indices(gpu, DType::I64, &[1, 2]);
        let out = Buffer::poisoned(gpu, 2 * 160);
        let mut tensor = out.tensor(DType::F32, &[2, 40]);
        let taken = list.resident.take(&chosen).unwrap();
        let paused = pause_own(gpu, &engine);
        drop(engine.assemble(&taken, &Collate::stack()).unwrap());
        waits(paused, || {
            assert_eq!(gpu.cuCtxSetCurrent(gpu.context), 0);
            drop(captured(gpu, &engine, (&taken, &mut tensor), &lane));
        });
    });
}

#[test]
fn a_graph_chooses_anew_each_time() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let list = ResidentSamples::new(gpu, &engine, DType::F32, &[&[40][..]; 5]);
        let (memory, chosen) = indices(gpu, DType::I64, &[0; 6]);
        let out = Buffer::poisoned(gpu, 6 * 160);
        let mut tensor = out.tensor(DType::F32, &[6, 40]);
        let taken = list.resident.take(&chosen).unwrap();
        drop(engine.assemble(&taken, &Collate::stack()).unwrap());
        let (exec, fields) = captured(gpu, &engine, (&taken, &mut tensor), &lane);
        let batch = Batch::try_new(tensor, fields).unwrap();
        for round in 0..100i64 {
            gpu.sim.set_seed(round as u64);
            let numbers: Vec<i64> =
                (0..6).map(|i| (round * 7 + i * 3) % 5 - 5 * (round % 2)).collect();
            let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
            lane.write(memory.address, &bytes);
            assert_eq!(gpu.cuGraphLaunch(exec.1, lane.handle), 0);
            assert_eq!(vec![out.read()], list.expected(&numbers, &Collate::stack()));
            batch.check().unwrap();
        }
        lane.write(memory.address, &9i64.to_ne_bytes());
        assert_eq!(gpu.cuGraphLaunch(exec.1, lane.handle), 0);
        assert_eq!(out.read()[..160], [0; 160]);
        assert!(matches!(batch.check(), Err(Error::Index(_))));
        lane.write(memory.address, &4i64.to_ne_bytes());
        assert_eq!(gpu.cuGraphLaunch(exec.1, lane.handle), 0);
        assert_eq!(out.read()[..160], list.rows.bytes[4]);
        // Reported once for each time that it is found.
        batch.check().unwrap();
        assert!(list.resident.check().is_err());
    });
}

/// Another library's allocator, in the order of a captured stream: pieces of one buffer, one after the other.
#[derive(Debug)]
struct Pieces(Stream, Mutex<u64>);

impl OutputMemory for Pieces {
    fn stream(&self) -> Stream {
        self.0
    }

    fn allocate(&self, dtype: DType, shape: &[i64], _: u32) -> windrow::Result<Option<Tensor>> {
        let layout = Layout::compact(dtype, shape)?;
        let bytes = layout.numel() as u64 * dtype.size() as u64;
        let mut next = self.1.lock().unwrap();
        let data = *next as *mut u8;
        *next += bytes.next_multiple_of(64);
        // SAFETY: the test keeps a buffer that is large enough.
        Ok(Some(unsafe { Tensor::new_unchecked(Arc::new(()), data, dtype, HERE, layout, false) }))
    }
}

#[test]
fn a_graph_pads_what_it_chooses_into_memory_of_its_streams_library() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let list = ResidentSamples::new(gpu, &engine, DType::F32, &[&[4], &[0], &[8], &[1], &[4]]);
        let (memory, chosen) = indices(gpu, DType::I64, &[0; 6]);
        let collate = Collate::pad(Pad::new().size(8).value(7).mask(Mask::Real));
        let taken = list.resident.take(&chosen).unwrap();
        drop(engine.assemble(&taken, &collate).unwrap());
        let buffer = Buffer::poisoned(gpu, 4096);
        let mut options = RunOptions::default();
        options.stream = Some(lane.stream());
        options.memory = Some(Arc::new(Pieces(lane.stream(), Mutex::new(buffer.address))));
        assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, 1), 0);
        let batch = run(&engine, &taken, &collate, options).unwrap();
        let exec = end_capture(gpu, &lane);
        for round in 0..100i64 {
            gpu.sim.set_seed(round as u64);
            let numbers: Vec<i64> = (0..6).map(|i| (round * 3 + i * 2) % 5).collect();
            let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
            lane.write(memory.address, &bytes);
            assert_eq!(gpu.cuGraphLaunch(exec.1, lane.handle), 0);
            assert_eq!(consume(&lane, &batch), list.expected(&numbers, &collate));
            batch.check().unwrap();
        }
    });
}

#[test]
fn a_graph_without_memory_for_what_it_chooses_is_refused_before_any_work() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let list = ResidentSamples::new(gpu, &engine, DType::F32, &[&[40][..]; 5]);
        let (_memory, chosen) = indices(gpu, DType::I64, &[1, 2]);
        let taken = list.resident.take(&chosen).unwrap();
        drop(engine.assemble(&taken, &Collate::stack()).unwrap());
        gpu.sim.synchronize_all();
        let (before, bytes) = (gpu.sim.live(), engine.stats().device_bytes);
        assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, 1), 0);
        for collate in [Collate::stack(), Collate::pad(Pad::new().size(50).mask(Mask::Real))] {
            let assemble = || engine.assemble_on(&taken, &collate, &lane.stream()).unwrap_err();
            let (calls, error) = traced(gpu, assemble);
            let text = error.to_string();
            assert!(matches!(error, Error::Argument(_)) && text.contains("captured"), "{text}");
            assert_eq!(calls.iter().find(|call| works(call)), None, "{calls:#?}");
        }
        assert_eq!((gpu.sim.live(), engine.stats().device_bytes), (before, bytes));
        // The capture goes on.
        drop(end_capture(gpu, &lane));
    });
}

#[test]
fn a_graph_of_the_engines_own_stream_chooses_nothing() {
    on_gpu(|gpu| {
        let engine = engine();
        let list = ResidentSamples::new(gpu, &engine, DType::F32, &[&[40][..]; 5]);
        let (_memory, chosen) = indices(gpu, DType::I64, &[1, 2]);
        let out = Buffer::poisoned(gpu, 2 * 160);
        let mut tensor = out.tensor(DType::F32, &[2, 40]);
        let taken = list.resident.take(&chosen).unwrap();
        drop(engine.assemble(&taken, &Collate::stack()).unwrap());
        gpu.sim.synchronize_all();
        let own = engine.stream(0).unwrap().handle();
        assert_eq!(gpu.cuStreamBeginCapture_v2(own, 1), 0);
        let (calls, error) = traced(gpu, || {
            engine.assemble_into(&taken, &Collate::stack(), &mut tensor).unwrap_err()
        });
        let text = error.to_string();
        assert!(text.contains("captured") && text.contains("another stream"), "{text}");
        assert_eq!(calls.iter().find(|call| works(call)), None, "{calls:#?}");
        // The capture goes on.
        let mut graph = 0;
        assert_eq!(gpu.cuStreamEndCapture(own, &mut graph), 0);
        assert_eq!(gpu.cuGraphDestroy(graph), 0);
    });
}

/// Whether a driver call takes memory, enqueues work or waits.
fn works(call: &str) -> bool {
    ["Alloc", "Launch", "Synchronize"].iter().any(|word| call.contains(word))
}

#[test]
fn too_many_layouts_for_a_graph_are_refused_before_any_memory_is_taken() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let lengths: Vec<i64> = (0..5000).map(|i| i * 7 % 5000).collect();
        let shapes: Vec<&[i64]> = lengths.iter().map(std::slice::from_ref).collect();
        let list = ResidentSamples::new(gpu, &engine, DType::U8, &shapes);
        let (_memory, chosen) = indices(gpu, DType::I32, &[4999, 0]);
        let collate = Collate::pad(Pad::new().size(5000));
        let taken = list.resident.take(&chosen).unwrap();
        drop(engine.assemble(&taken, &collate).unwrap());
        gpu.sim.synchronize_all();
        let buffer = Buffer::poisoned(gpu, 1 << 16);
        let options = || {
            let mut options = RunOptions::default();
            options.stream = Some(lane.stream());
            options.memory = Some(Arc::new(Pieces(lane.stream(), Mutex::new(buffer.address))));
            options
        };
        let (before, bytes) = (gpu.sim.live(), engine.stats().device_bytes);
        assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, 1), 0);
        let (calls, error) = traced(gpu, || run(&engine, &taken, &collate, options()).unwrap_err());
        let text = error.to_string();
        assert!(text.contains("captured") && text.contains("too many layouts"), "{text}");
        assert_eq!(calls.iter().find(|call| works(call)), None, "{calls:#?}");
        assert_eq!((gpu.sim.live(), engine.stats().device_bytes), (before, bytes));
        // The capture goes on.
        drop(end_capture(gpu, &lane));
    });
}
