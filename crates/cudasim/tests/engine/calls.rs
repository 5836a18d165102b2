//! The cost of a call: driver calls, copies, event queries, memory. Counted, never timed.

use std::collections::BTreeSet;

use windrow::batch::LeafOutput;
use windrow::engine::RunOptions;
use windrow::plan::Leaf;
use windrow::{Batch, Collate, DType, Device, Engine, Plan, SampleList, Stream};

use crate::capture::{end_capture, GLOBAL, RELAXED, THREAD_LOCAL};
use crate::rig::{
    consume, engine, host_bytes, on_gpu, Buffer, ForeignStream, Gpu, Paused, Rows, HERE,
};

/// The driver calls that `work` makes, and what it gives.
pub fn traced<T>(gpu: &Gpu, work: impl FnOnce() -> T) -> (Vec<String>, T) {
    gpu.sim.trace(true);
    let result = work();
    let calls = gpu.sim.take_trace();
    gpu.sim.trace(false);
    (calls, result)
}

/// How many of the calls are of a function.
pub fn count(calls: &[String], function: &str) -> usize {
    calls.iter().filter(|call| call.split(' ').next() == Some(function)).count()
}

/// A tree of many small leaves on the host: four samples of each.
pub struct Tree(pub Vec<Rows>);

impl Tree {
    pub fn new(seed: u64, leaves: u64, bytes: i64) -> Tree {
        let leaf = |leaf| Rows::new(leaves * seed + leaf, DType::U8, &[&[bytes][..]; 4]);
        Tree((0..leaves).map(leaf).collect())
    }

    pub fn assemble(&self, engine: &Engine, stream: Option<Stream>, arena: bool) -> Vec<Batch> {
        self.assemble_to(HERE, engine, stream, arena)
    }

    fn assemble_to(
        &self,
        device: Device,
        engine: &Engine,
        stream: Option<Stream>,
        arena: bool,
    ) -> Vec<Batch> {
        let lists: Vec<SampleList<'_>> = self.0.iter().map(Rows::on_host).collect();
        let collate = Collate::stack().device(device);
        let leaf = |samples| Leaf { samples, collate: &collate, path: "", out: None };
        let leaves: Vec<_> = lists.iter().map(leaf).collect();
        let plan = if arena { Plan::in_arena(&leaves) } else { Plan::for_leaves(&leaves) };
        let mut options = RunOptions::default();
        options.stream = stream;
        let batch =
            |filled: LeafOutput| Batch::try_new(filled.data.unwrap(), filled.fields).unwrap();
        engine.run_with(plan.unwrap(), options).unwrap().into_iter().map(batch).collect()
    }

    fn check(&self, lane: &ForeignStream<'_>, batches: &[Batch]) {
        for (rows, batch) in self.0.iter().zip(batches) {
            assert_eq!(consume(lane, batch), [rows.bytes.concat()]);
        }
    }
}

#[test]
fn a_tree_from_the_host_is_one_copy_and_one_launch() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        for arena in [false, true] {
            for stream in [None, Some(lane.stream())] {
                drop(Tree::new(0, 40, 4).assemble(&engine, stream, arena));
                gpu.sim.synchronize_all();
                let tree = Tree::new(1, 40, 4);
                let (calls, batches) = traced(gpu, || tree.assemble(&engine, stream, arena));
                assert_eq!(count(&calls, "cuMemcpyHtoDAsync_v2"), 1, "{calls:#?}");
                assert_eq!(count(&calls, "cuLaunchKernel"), 1, "{calls:#?}");
                assert_eq!(count(&calls, "cuMemHostAlloc"), 0, "{calls:#?}");
                assert!(count(&calls, "cuEventQuery") <= 2, "{calls:#?}");
                assert!(calls.len() <= 16, "{} calls: {calls:#?}", calls.len());
                tree.check(&lane, &batches);
            }
        }
    });
}

/// Parameters have room for 18 fields, or for 146, beside a table that is uploaded.
#[test]
fn a_tree_of_any_number_of_leaves_is_one_launch() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        for leaves in [18, 19, 146, 147, 300] {
            let list = |leaf| Rows::new(leaf, DType::U8, &vec![&[5][..]; 300]);
            let tree = Tree((0..leaves).map(list).collect());
            let (calls, batches) = traced(gpu, || tree.assemble(&engine, None, false));
            assert_eq!(count(&calls, "cuLaunchKernel"), 1, "{leaves}: {calls:#?}");
            tree.check(&lane, &batches);
        }
    });
}

#[test]
fn a_page_locked_tree_of_a_worker_is_one_block() {
    on_gpu(|gpu| {
        let engine = engine();
        for round in 0..10 {
            let tree = Tree::new(round, 40, 4);
            let assemble = || tree.assemble_to(Device::Pinned, &engine, None, false);
            let work = || std::thread::scope(|scope| scope.spawn(assemble).join().unwrap());
            let (calls, batches) = traced(gpu, work);
            let waits = |call: &&String| call.contains("Synchronize") || call.contains("Query");
            assert_eq!(calls.iter().filter(waits).count(), 0, "{calls:#?}");
            assert_eq!(count(&calls, "cuMemHostAlloc"), 1, "{calls:#?}");
            assert_eq!(engine.stats().pinned_bytes.1, 64 << 10);
            for (rows, batch) in tree.0.iter().zip(&batches) {
                assert_eq!(host_bytes(batch.data()), rows.bytes.concat());
            }
        }
    });
}

#[test]
fn a_device_far_behind_costs_no_more() {
    on_gpu(|gpu| {
        for arena in [false, true] {
            far_behind::<1>(gpu, arena);
            far_behind::<3>(gpu, arena);
        }
    });
}

/// Streams that take turns stand still.
fn far_behind<const N: usize>(gpu: &Gpu, arena: bool) {
    let (engine, lane) = (engine(), ForeignStream::new(gpu));
    let work = [(); N].map(|()| ForeignStream::new(gpu));
    for stream in &work {
        drop(Tree::new(0, 40, 4).assemble(&engine, Some(stream.stream()), arena));
    }
    gpu.sim.synchronize_all();
    let locked = engine.stats().pinned_bytes;
    let paused = work.each_ref().map(ForeignStream::pause);
    let trees: Vec<_> = (0..60).map(|seed| Tree::new(seed, 40, 4)).collect();
    let mut made = Vec::new();
    for (number, tree) in trees.iter().enumerate() {
        let stream = Some(work[number % N].stream());
        let (calls, batches) = traced(gpu, || tree.assemble(&engine, stream, arena));
        assert_eq!(count(&calls, "cuMemcpyHtoDAsync_v2"), 1, "{calls:#?}");
        assert!(count(&calls, "cuEventQuery") <= 2, "{calls:#?}");
        // Events that are under way cannot be used again: new ones are made.
        assert!(calls.len() <= 16, "{} calls: {calls:#?}", calls.len());
        made.push(batches);
    }
    assert_eq!(engine.stats().pinned_bytes, locked);
    drop(paused);
    for (tree, batches) in trees.iter().zip(&made) {
        tree.check(&lane, batches);
    }
}

/// Samples of device memory, one after the other but in reverse, so that they are not merged.
fn scattered(gpu: &Gpu, count: u64) -> (Buffer<'_>, SampleList<'static>, Vec<u8>) {
    let rows = Rows::new(7, DType::U8, &vec![&[16][..]; count as usize]);
    let memory = Buffer::from_bytes(gpu, &rows.bytes.concat());
    let samples = rows.at((0..count).rev().map(|i| memory.address + 16 * i));
    let expected = rows.bytes.iter().rev().flatten().copied().collect();
    (memory, samples, expected)
}

#[test]
fn a_stack_on_the_device_is_a_few_calls() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        for num_samples in [64, 4096] {
            let (memory, samples, expected) = scattered(gpu, num_samples);
            for round in 0..3 {
                let (calls, batch) = traced(gpu, || {
                    engine.assemble_on(&samples, &Collate::stack(), &lane.stream()).unwrap()
                });
                if round > 0 {
                    assert!(calls.len() <= 10, "{} calls: {calls:#?}", calls.len());
                    assert_eq!(count(&calls, "cuMemcpyHtoDAsync_v2"), 0, "{calls:#?}");
                }
                assert_eq!(consume(&lane, &batch), std::slice::from_ref(&expected));
            }
            drop(memory);
        }
    });
}

#[test]
fn a_batch_by_indices_of_the_host_is_a_few_calls() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let (memory, samples, all) = scattered(gpu, 8192);
        let indices: Vec<i64> = (0..4096).map(|i| i * 2477 % 8192).collect();
        let rows = indices.iter().map(|&index| &all[16 * index as usize..][..16]);
        let expected = rows.collect::<Vec<_>>().concat();
        for round in 0..3 {
            let (calls, batch) = traced(gpu, || {
                let taken = samples.take(indices.iter().copied()).unwrap();
                engine.assemble_on(&taken, &Collate::stack(), &lane.stream()).unwrap()
            });
            if round > 0 {
                assert!(calls.len() <= 12, "{} calls: {calls:#?}", calls.len());
                assert!(count(&calls, "cuMemcpyHtoDAsync_v2") <= 1, "{calls:#?}");
            }
            assert_eq!(consume(&lane, &batch), std::slice::from_ref(&expected));
        }
        drop(memory);
    });
}

#[test]
fn dropped_batches_use_each_others_memory_however_far_behind_the_device_is() {
    on_gpu(|gpu| {
        let (engine, lane) = (engine(), ForeignStream::new(gpu));
        let (memory, samples, expected) = scattered(gpu, 64);
        for stream in [lane.stream(), engine.stream(0).unwrap()] {
            let paused = Paused::stream(gpu, stream.handle());
            let mut addresses = BTreeSet::new();
            for _ in 0..8 {
                let batch = engine.assemble_on(&samples, &Collate::stack(), &stream).unwrap();
                addresses.insert(batch.data().data_ptr());
            }
            assert!(addresses.len() <= 3, "{addresses:?}");
            let batch = engine.assemble_on(&samples, &Collate::stack(), &stream).unwrap();
            drop(paused);
            assert_eq!(consume(&lane, &batch), std::slice::from_ref(&expected));
        }
        assert_eq!(engine.stats().device_bytes, 0);
        drop(memory);
    });
}

#[test]
fn page_locked_batches_in_a_loop_wait_for_nothing() {
    on_gpu(|gpu| {
        let (engine, rows) = (engine(), Rows::new(1, DType::U8, &[&[900], &[900]]));
        let collate = Collate::stack().device(Device::Pinned);
        let (calls, ()) = traced(gpu, || {
            for _ in 0..10 {
                let batch = engine.assemble(&rows.on_host(), &collate).unwrap();
                assert_eq!(host_bytes(batch.data()), rows.bytes.concat());
            }
        });
        let waits = calls.iter().filter(|call| call.contains("Synchronize")).count();
        assert_eq!((waits, engine.stats().waits), (0, 0), "{calls:#?}");
        // Locked memory does not grow without end: one wait serves many batches.
        (0..90).for_each(|_| drop(engine.assemble(&rows.on_host(), &collate).unwrap()));
        assert!(engine.stats().waits <= 100 / 16, "{}", engine.stats().waits);
        assert!(engine.stats().pinned_bytes.0 <= 16 * (64 << 10));
    });
}

#[test]
fn page_locked_batches_in_a_loop_leave_captures_alone() {
    on_gpu(|gpu| {
        let (lane, rows) = (ForeignStream::new(gpu), Rows::new(1, DType::U8, &[&[900], &[900]]));
        let (from, to) = (Buffer::from_bytes(gpu, &[1; 64]), Buffer::poisoned(gpu, 64));
        let collate = Collate::stack().device(Device::Pinned);
        for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
            let engine = engine();
            assert_eq!(gpu.cuStreamBeginCapture_v2(lane.handle, mode), 0);
            for _ in 0..10 {
                let batch = engine.assemble(&rows.on_host(), &collate).unwrap();
                assert_eq!(host_bytes(batch.data()), rows.bytes.concat());
            }
            assert_eq!(gpu.cuMemcpyDtoDAsync_v2(to.address, from.address, 64, lane.handle), 0);
            let exec = end_capture(gpu, &lane);
            lane.write(to.address, &[0; 64]);
            assert_eq!(gpu.cuGraphLaunch(exec.1, lane.handle), 0);
            assert_eq!(to.read(), [1; 64]);
        }
    });
}
