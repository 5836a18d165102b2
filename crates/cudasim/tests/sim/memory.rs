//! The memory table, pools, copies of every kind, pointer attributes.

use crate::gpu::{BatchAttributes, Copy2D, Gpu, INVALID_VALUE, NOT_READY, OUT_OF_MEMORY};

const FRESH: u32 = 0xA5A5_A5A5;
const THRESHOLD: u32 = 4;
const RESERVED: u32 = 5;

fn pool(gpu: &Gpu, threshold: u64) -> usize {
    let (mut pool, mut threshold) = (0, threshold);
    // Pinned, no handle types, on a device: number 0.
    assert_eq!(gpu.cuMemPoolCreate(&mut pool, &[1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]), 0);
    assert_eq!(gpu.cuMemPoolSetAttribute(pool, THRESHOLD, &mut threshold), 0);
    pool
}

fn pool_alloc(gpu: &Gpu, size: usize, pool: usize, stream: usize) -> u64 {
    let mut p = 0;
    assert_eq!(gpu.cuMemAllocFromPoolAsync(&mut p, size, pool, stream), 0);
    p
}

#[test]
fn copies_and_fills_stay_within_an_allocation() {
    let gpu = Gpu::new();
    let (stream, a, b) = (gpu.stream(), gpu.alloc(4), gpu.alloc(4));
    let words = [0_u32; 8];
    assert_eq!(gpu.cuMemcpyHtoDAsync_v2(a, words.as_ptr(), 16, stream), 0);
    assert_eq!(gpu.cuMemcpyHtoDAsync_v2(a, words.as_ptr(), 17, stream), INVALID_VALUE);
    assert_eq!(gpu.cuMemcpyHtoDAsync_v2(a + 4, words.as_ptr(), 16, stream), INVALID_VALUE);
    assert_eq!(gpu.cuMemcpyHtoDAsync_v2(0, words.as_ptr(), 4, stream), INVALID_VALUE);
    assert_eq!(gpu.cuMemcpyDtoDAsync_v2(b, a + 1, 16, stream), INVALID_VALUE);
    assert_eq!(gpu.cuMemcpyDtoDAsync_v2(b, a, usize::MAX, stream), INVALID_VALUE);
    assert_eq!(gpu.cuMemsetD8Async(a, 1, 17, stream), INVALID_VALUE);
    assert_eq!(gpu.cuMemsetD32Async(a, 1, 5, stream), INVALID_VALUE);
    assert_eq!(gpu.cuMemsetD32Async(a + 2, 1, 1, stream), INVALID_VALUE); // not aligned
    assert_eq!(gpu.cuMemFree_v2(a), 0);
    assert_eq!(gpu.cuMemcpyDtoDAsync_v2(b, a, 4, stream), INVALID_VALUE);
    assert_eq!(gpu.sim.take_errors(), [""; 0]);
}

#[test]
fn memory_is_poisoned_and_wrong_frees_are_noted() {
    let gpu = Gpu::new();
    let a = gpu.alloc(4);
    assert_eq!(gpu.read(a, 4), [FRESH; 4]);
    assert_eq!(gpu.cuMemFree_v2(a), 0);
    // SAFETY: freed memory stays mapped for a while, as simulator memory.
    assert_eq!(unsafe { *(a as *const u32) }, 0xDDDD_DDDD);
    assert_eq!(gpu.cuMemFree_v2(a), INVALID_VALUE);
    assert_eq!(gpu.cuMemFree_v2(0), 0);
    assert_eq!(gpu.cuMemFreeAsync(gpu.alloc(1), 0), INVALID_VALUE);
    assert_eq!(gpu.sim.take_errors().len(), 2);
}

#[test]
fn writes_outside_allocations_and_to_freed_memory_are_noted() {
    if std::env::var("WINDROW_SIM_ASAN").is_ok() {
        return; // it stops the program at each of them
    }
    let gpu = Gpu::new();
    let (a, stream) = (gpu.alloc(4), gpu.stream());
    assert_eq!(gpu.fill(a, 5, 0, stream), 0);
    gpu.sim.check_memory();
    assert_eq!(gpu.sim.take_errors(), ["write past the allocation of 16 bytes"]);
    assert_eq!(gpu.cuMemFree_v2(a), 0);
    gpu.sim.take_errors();
    assert_eq!(gpu.fill(a, 4, 0, stream), 0);
    gpu.sim.check_memory();
    assert_eq!(gpu.sim.take_errors(), ["write to freed memory, block of 16 bytes"]);
    // The free of a pool's memory overtakes a kernel on another stream.
    let mut b = 0;
    gpu.cuMemAllocAsync(&mut b, 512, stream);
    gpu.cuStreamSynchronize(stream);
    let other = gpu.stream();
    gpu.sim.pause(other);
    gpu.fill(b, 4, 0, other);
    gpu.cuMemFreeAsync(b, stream);
    gpu.sim.resume(other);
    while gpu.cuStreamQuery(stream) == NOT_READY {}
    gpu.cuCtxSynchronize();
    // Found when the block is given back, unless the kernel came first after all.
    assert!(gpu.sim.take_errors().len() <= 1);
}

#[test]
fn a_stream_ordered_free_waits_for_the_work_before_it() {
    let gpu = Gpu::new();
    let (stream, out) = (gpu.stream(), gpu.alloc(4));
    let pool = pool(&gpu, u64::MAX);
    let a = pool_alloc(&gpu, 16, pool, stream);
    gpu.sim.hold();
    gpu.cuMemsetD32Async(a, 9, 4, stream);
    gpu.cuMemcpyDtoDAsync_v2(out, a, 16, stream);
    assert_eq!(gpu.cuMemFreeAsync(a, stream), 0);
    assert_eq!(gpu.cuMemFreeAsync(a, stream), INVALID_VALUE);
    assert_eq!(gpu.sim.take_errors().len(), 1);
    gpu.sim.release();
    assert_eq!(gpu.cuStreamSynchronize(stream), 0);
    assert_eq!(gpu.read(out, 4), [9; 4]);
    // SAFETY: the pool keeps the block, up to its threshold.
    assert_eq!(unsafe { *(a as *const u32) }, 0xDDDD_DDDD);
}

#[test]
fn a_pool_reuses_at_once_within_a_stream_and_later_in_others() {
    let gpu = Gpu::new();
    let (stream, other) = (gpu.stream(), gpu.stream());
    let pool = pool(&gpu, u64::MAX);
    let first = pool_alloc(&gpu, 1000, pool, stream);
    gpu.sim.hold();
    gpu.cuMemFreeAsync(first, stream);
    let second = pool_alloc(&gpu, 900, pool, stream);
    assert_eq!(first, second);
    gpu.cuMemFreeAsync(second, stream);
    let third = pool_alloc(&gpu, 1000, pool, other);
    assert_ne!(first, third);
    gpu.sim.release();
    gpu.sim.synchronize_all();
    assert_eq!(first, pool_alloc(&gpu, 1000, pool, other));
    assert_eq!(gpu.sim.take_errors(), [""; 0]);
}

#[test]
fn a_pool_gives_back_what_is_above_its_threshold() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    for (threshold, kept) in [(0, 0), (u64::MAX, 4096)] {
        let pool = pool(&gpu, threshold);
        let a = pool_alloc(&gpu, 4096, pool, stream);
        gpu.cuMemFreeAsync(a, stream);
        assert_eq!(gpu.sim.live().pooled_bytes, 4096);
        gpu.cuStreamSynchronize(stream);
        let mut reserved = 1;
        gpu.cuMemPoolGetAttribute(pool, RESERVED, &mut reserved);
        assert_eq!(reserved, kept);
        assert_eq!(gpu.cuMemPoolTrimTo(pool, 0), 0);
        assert_eq!(gpu.sim.live().pooled_bytes, 0);
        // Memory outlives its pool.
        let b = pool_alloc(&gpu, 512, pool, stream);
        assert_eq!(gpu.cuMemPoolDestroy(pool), 0);
        assert_eq!(gpu.sim.live().pools, 0);
        assert_eq!(gpu.cuMemsetD32Async(b, 1, 128, stream), 0);
        assert_eq!(gpu.cuMemFreeAsync(b, stream), 0);
        gpu.cuStreamSynchronize(stream);
    }
    let (mut available, mut total) = (0, 0);
    gpu.cuMemGetInfo_v2(&mut available, &mut total);
    assert_eq!((available, total), (64 << 20, 64 << 20));
}

#[test]
fn device_memory_ends() {
    let gpu = Gpu::new();
    let (stream, mut p, mut q) = (gpu.stream(), 0, 0);
    let pool = pool(&gpu, u64::MAX);
    let half = pool_alloc(&gpu, 32 << 20, pool, stream);
    assert_eq!(gpu.cuMemAlloc_v2(&mut p, 33 << 20), OUT_OF_MEMORY);
    assert_eq!(gpu.cuMemAlloc_v2(&mut p, 32 << 20), 0);
    assert_eq!(gpu.cuMemAllocFromPoolAsync(&mut q, 1, pool, stream), OUT_OF_MEMORY);
    gpu.cuMemFreeAsync(half, stream);
    gpu.cuStreamSynchronize(stream);
    // Memory that the pool keeps counts until it is trimmed.
    assert_eq!(gpu.cuMemAlloc_v2(&mut q, 1 << 20), OUT_OF_MEMORY);
    gpu.cuMemPoolTrimTo(pool, 0);
    assert_eq!(gpu.cuMemAlloc_v2(&mut q, 1 << 20), 0);
    assert_eq!(gpu.cuMemAlloc_v2(&mut q, 0), INVALID_VALUE);
}

#[test]
fn rectangles_are_copied_by_their_pitches() {
    let gpu = Gpu::new();
    let (stream, a) = (gpu.stream(), gpu.alloc(8));
    gpu.cuMemsetD32Async(a, 0, 8, stream);
    let rows: Vec<u32> = (0..9).collect();
    let mut copy = Copy2D {
        src_memory: 1,
        src_host: rows.as_ptr() as usize,
        src_pitch: 12,
        src_x: 4,
        src_y: 1,
        dst_memory: 2,
        dst_device: a,
        dst_pitch: 16,
        width: 8,
        height: 2,
        ..Copy2D::default()
    };
    assert_eq!(gpu.cuMemcpy2DAsync_v2(&copy, stream), 0);
    gpu.cuStreamSynchronize(stream);
    assert_eq!(gpu.read(a, 8), [4, 5, 0, 0, 7, 8, 0, 0]);
    copy.height = 3;
    assert_eq!(gpu.cuMemcpy2DAsync_v2(&copy, stream), INVALID_VALUE);
    (copy.height, copy.dst_pitch) = (2, 4);
    assert_eq!(gpu.cuMemcpy2DAsync_v2(&copy, stream), INVALID_VALUE);
}

#[test]
fn batches_of_copies_read_their_sources_as_asked() {
    let gpu = Gpu::new();
    let (stream, a) = (gpu.stream(), gpu.alloc(2));
    let source = gpu.pinned(2);
    source.copy_from_slice(&[1, 1]);
    let (dsts, sizes) = ([a, a + 4], [4, 4]);
    let srcs = [&raw const source[0] as u64, &raw const source[1] as u64];
    let orders = [2, 1].map(|order| BatchAttributes { order, ..Default::default() });
    let batch = |count: usize, sizes: &[usize; 2], stream| {
        let (dsts, srcs, sizes) = (dsts.as_ptr(), srcs.as_ptr(), sizes.as_ptr());
        let (orders, first) = (orders.as_ptr(), [0, 1]);
        gpu.cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, orders, first.as_ptr(), 2, stream)
    };
    gpu.sim.hold();
    assert_eq!(batch(2, &sizes, stream), 0);
    source.copy_from_slice(&[2, 2]);
    gpu.sim.release();
    gpu.cuStreamSynchronize(stream);
    assert_eq!(gpu.read(a, 2), [1, 2]);
    assert_eq!(batch(2, &[4, 0], stream), INVALID_VALUE);
    assert_eq!(batch(2, &[4, 8], stream), INVALID_VALUE);
    assert_eq!(batch(2, &sizes, 0), INVALID_VALUE);
}

#[test]
fn pointers_say_what_they_are() {
    let gpu = Gpu::new();
    let (a, pinned, stream) = (gpu.alloc(16), gpu.pinned(4), gpu.stream());
    let pooled = pool_alloc(&gpu, 64, pool(&gpu, 0), stream);
    let mut pageable = vec![0_u8; 4096];
    let p = pageable.as_mut_ptr();
    // Context, type, device pointer, host pointer, managed, ordinal, start, size.
    let attributes = [1, 2, 3, 4, 8, 9, 11, 12];
    let of = |p: u64| {
        let mut values = [0_u64; 8];
        let places = values.each_mut().map(|value| value as *mut u64);
        let (ids, places) = (attributes.as_ptr(), places.as_ptr());
        assert_eq!(gpu.cuPointerGetAttributes(8, ids, places, p), 0);
        values
    };
    let context = gpu.context as u64;
    assert_eq!(of(a + 4), [context, 2, a + 4, 0, 0, 0, a, 64]);
    assert_eq!(of(pooled), [0, 2, pooled, 0, 0, 0, pooled, 64]);
    let host = pinned.as_ptr() as u64;
    assert_eq!(of(host), [context, 1, host, host, 0, 0, host, 16]);
    let unknown = -2_i32 as u32;
    assert_eq!(of(p as u64), [0, 0, 0, 0, 0, unknown.into(), 0, 0]);
    assert_eq!(gpu.cuPointerGetAttribute(&mut 0, 2, p as u64), INVALID_VALUE);

    assert_eq!(gpu.cuMemHostRegister_v2(p, 4096, 0), 0);
    assert_eq!(gpu.cuMemHostRegister_v2(p, 64, 0), 712);
    assert_eq!(of(p as u64 + 8), [context, 1, p as u64 + 8, p as u64 + 8, 0, 0, p as u64, 4096]);
    assert_eq!(gpu.sim.live().registered, 1);
    assert_eq!(gpu.cuMemHostUnregister(p), 0);
    assert_eq!(gpu.cuMemHostUnregister(p), 713);
    assert_eq!(gpu.cuMemFreeHost(pinned.as_mut_ptr()), 0);
    assert_eq!(gpu.sim.live().pinned_bytes, 0);
}
