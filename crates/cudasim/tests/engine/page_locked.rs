//! Page-locked batches: which stream copies from them, and which batch has their memory next.

use std::thread;

use windrow::{Batch, Collate, DType, Device, Engine};

use crate::lifetime::settle;
use crate::rig::{
    consume, engine, hold, host_bytes, on_gpu, Buffer, ForeignStream, Gpu, Paused, Rows,
};

/// Page-locked batches of 900 bytes, as many as are released before anything waits.
pub fn all_spare(engine: &Engine, rows: &Rows) -> Vec<Batch> {
    let collate = Collate::stack().device(Device::Pinned);
    (0..16).map(|_| engine.assemble(&rows.on_host(), &collate).unwrap()).collect()
}

#[test]
fn pinned_batches_are_not_used_again_while_copied_from() {
    on_gpu(|gpu| {
        for ordinal in [0, 1] {
            copied_by_others(gpu, ordinal);
        }
    });
}

/// A stream and 900 bytes on any device, which is current then.
pub fn elsewhere(gpu: &Gpu, ordinal: i32) -> (ForeignStream<'_>, Buffer<'_>) {
    let mut there = 0;
    assert_eq!(gpu.cuDevicePrimaryCtxRetain(&mut there, ordinal), 0);
    assert_eq!(gpu.cuCtxSetCurrent(there), 0);
    (ForeignStream::new(gpu), Buffer::poisoned(gpu, 900))
}

/// Drops a page-locked batch that a stream, which stands still, is to copy.
pub fn copy_slowly<'g>(
    gpu: &'g Gpu,
    lane: &ForeignStream<'g>,
    copy: &Buffer<'_>,
    batch: Batch,
) -> Paused<'g> {
    let paused = lane.pause();
    let from = batch.data().data_ptr().cast_const().cast();
    assert_eq!(gpu.cuMemcpyHtoDAsync_v2(copy.address, from, 900, lane.handle), 0);
    paused
}

/// Another library copies a page-locked batch of device 0 to any device.
fn copied_by_others(gpu: &Gpu, ordinal: i32) {
    let engine = engine();
    let (old, new) = (Rows::new(1, DType::U8, &[&[900]]), Rows::new(2, DType::U8, &[&[900]]));
    let collate = Collate::stack().device(Device::Pinned);
    let mut batches = all_spare(&engine, &old);
    let (others, copy) = elsewhere(gpu, ordinal);
    let paused = copy_slowly(gpu, &others, &copy, batches.remove(0));
    drop(batches);
    // Finds the block, and waits for whatever may read it.
    let next = thread::scope(|scope| {
        let next = scope.spawn(|| engine.assemble(&new.on_host(), &collate).unwrap());
        settle();
        assert!(!next.is_finished());
        // Others can have theirs meanwhile.
        let _ = engine.stats();
        drop(paused);
        next.join().unwrap()
    });
    assert_eq!(copy.read(), old.bytes[0]);
    assert_eq!(host_bytes(next.data()), new.bytes[0]);
    assert_eq!(engine.stats().waits, 1);
    engine.reset_stats();
    assert_eq!(engine.stats().waits, 0);
    drop((others, copy));
    assert_eq!(gpu.cuCtxSetCurrent(gpu.context), 0);
}

#[test]
fn pinned_batches_are_samples_of_another_device() {
    on_gpu(|gpu| {
        let first = engine();
        let mut there = 0;
        assert_eq!(gpu.cuDevicePrimaryCtxRetain(&mut there, 1), 0);
        let pinned = Collate::stack().device(Device::Pinned);
        // Read by the kernel, and copied by the device's engine.
        for (seed, bytes) in [(1, 900), (2, 40_000)] {
            let second = Engine::cuda(1).unwrap();
            let rows = [3 * seed, 3 * seed + 1]
                .map(|seed| Rows::new(seed, DType::U8, &[&[bytes], &[bytes]]));
            let memory = rows[0].upload(gpu);
            let samples = rows[0].at(memory.iter().map(|b| b.address));
            let batch = first.assemble(&samples, &pinned).unwrap();
            let held = hold(gpu);
            let list = windrow::SampleList::rows(batch.data()).unwrap();
            let copy = second.assemble(&list, &Collate::stack()).unwrap();
            assert_eq!(copy.data().device(), Device::Cuda(1));
            drop(list);
            drop(batch);
            // The copy that reads the batch holds its memory: nothing else gets it.
            let next = first.assemble(&rows[1].on_host(), &pinned).unwrap();
            drop(held);
            assert_eq!(gpu.cuCtxSetCurrent(there), 0);
            let lane = ForeignStream::new(gpu);
            assert_eq!(consume(&lane, &copy), [rows[0].bytes.concat()]);
            drop((copy, lane));
            assert_eq!(gpu.cuCtxSetCurrent(gpu.context), 0);
            assert_eq!(host_bytes(next.data()), rows[1].bytes.concat());
        }
    });
}

#[test]
fn page_locked_memory_is_zeroed() {
    on_gpu(|_| {
        let (engine, rows) = (engine(), Rows::new(1, DType::U8, &[&[400]]));
        let address = |batch: Batch| batch.data().data_ptr();
        let dirty: Vec<_> = all_spare(&engine, &rows).into_iter().map(address).collect();
        let zeros = engine.empty(DType::U8, &[400], Device::Pinned).unwrap();
        assert!(dirty.contains(&zeros.data_ptr()), "the same memory again");
        assert_eq!(host_bytes(&zeros), [0; 400]);
    });
}
