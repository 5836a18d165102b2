//! Order within a stream, between streams, and with the host.

use std::ffi::c_void;
use std::sync::Mutex;

use crate::gpu::{Gpu, INVALID_VALUE, NOT_READY};

/// Gathers on one stream what an upload on another brings, behind other work; `wait`: for its event.
fn upload_and_gather(gpu: &Gpu, seed: u64, wait: bool) -> bool {
    gpu.sim.set_seed(seed);
    let (upload, work, event) = (gpu.stream(), gpu.stream(), gpu.event());
    let (src, dst, idx) = (gpu.alloc(64), gpu.alloc(64), gpu.alloc(128));
    gpu.write(src, &(0..64).map(|i| i * 10).collect::<Vec<_>>());
    let indices = gpu.pinned(128);
    for (i, pair) in indices.chunks_mut(2).enumerate() {
        pair.copy_from_slice(&[63 - i as u32, 0]);
    }
    for _ in 0..10 {
        gpu.cuMemsetD32Async(idx, u32::MAX, 128, upload);
    }
    assert_eq!(gpu.cuMemcpyHtoDAsync_v2(idx, indices.as_ptr(), 512, upload), 0);
    assert_eq!(gpu.cuEventRecord(event, upload), 0);
    if wait {
        assert_eq!(gpu.cuStreamWaitEvent(work, event, 0), 0);
    }
    assert_eq!(gpu.gather(src, dst, idx, 64, work), 0);
    assert_eq!(gpu.cuCtxSynchronize(), 0);
    gpu.read(dst, 64) == (0..64).map(|i| (63 - i) * 10).collect::<Vec<_>>()
}

#[test]
fn a_missing_wait_is_caught_and_a_right_program_passes_every_seed() {
    let gpu = Gpu::new();
    gpu.sim.set_delay_us(500);
    let caught = (0..20).filter(|&seed| !upload_and_gather(&gpu, seed, false)).count();
    // The count is 20 on a quiet machine.
    assert!(caught >= 10, "{caught} of 20");
    for seed in 0..20 {
        assert!(upload_and_gather(&gpu, seed, true), "seed {seed}");
    }
    assert_eq!(gpu.sim.take_errors(), [""; 0]);
}

#[test]
fn an_ignored_wait_shows_when_the_producer_is_held() {
    let gpu = Gpu::new();
    for seed in 0..20 {
        gpu.sim.set_seed(seed);
        let (producer, consumer, event) = (gpu.stream(), gpu.stream(), gpu.event());
        let (a, b) = (gpu.alloc(16), gpu.alloc(16));
        gpu.sim.pause(producer);
        gpu.fill(a, 16, 7, producer);
        gpu.cuEventRecord(event, producer);
        gpu.sim.ignore_wait(1);
        gpu.cuStreamWaitEvent(consumer, event, 0);
        gpu.cuMemcpyDtoDAsync_v2(b, a, 64, consumer);
        gpu.cuStreamSynchronize(consumer);
        gpu.sim.resume(producer);
        assert_eq!(gpu.cuCtxSynchronize(), 0);
        assert_eq!(gpu.read(b, 1), [0xA5A5_A5A5]);
    }
}

#[test]
fn work_of_one_stream_runs_in_order() {
    let gpu = Gpu::new();
    let (stream, a) = (gpu.stream(), gpu.alloc(8));
    gpu.sim.hold();
    for value in 0..10 {
        assert_eq!(gpu.cuMemsetD32Async(a, value, 8, stream), 0);
    }
    assert_eq!(gpu.cuStreamQuery(stream), NOT_READY);
    gpu.sim.release();
    assert_eq!(gpu.cuStreamSynchronize(stream), 0);
    assert_eq!(gpu.cuStreamQuery(stream), 0);
    assert_eq!(gpu.read(a, 8), [9; 8]);
}

#[test]
fn a_wait_takes_the_latest_record_before_it() {
    let gpu = Gpu::new();
    let (producer, early, late) = (gpu.stream(), gpu.stream(), gpu.stream());
    let (event, a, seen) = (gpu.event(), gpu.alloc(1), gpu.alloc(2));
    gpu.cuStreamWaitEvent(early, event, 0); // never recorded: nothing to wait for
    assert_eq!(gpu.cuEventQuery(event), 0);
    assert_eq!(gpu.cuStreamSynchronize(early), 0);

    gpu.cuMemsetD32Async(a, 1, 1, producer);
    gpu.cuEventRecord(event, producer);
    gpu.cuStreamWaitEvent(early, event, 0);
    gpu.cuMemcpyDtoDAsync_v2(seen, a, 4, early);
    gpu.cuStreamSynchronize(early);
    gpu.sim.pause(producer);
    gpu.cuMemsetD32Async(a, 2, 1, producer);
    gpu.cuEventRecord(event, producer); // the second record counts from here on
    assert_eq!(gpu.cuEventQuery(event), NOT_READY);
    gpu.cuStreamWaitEvent(late, event, 0);
    gpu.cuMemcpyDtoDAsync_v2(seen + 4, a, 4, late);
    assert_eq!(gpu.cuStreamQuery(late), NOT_READY);
    gpu.sim.resume(producer);
    assert_eq!(gpu.cuEventSynchronize(event), 0);
    gpu.cuStreamSynchronize(late);
    assert_eq!(gpu.read(seen, 2), [1, 2]);
}

#[test]
fn the_null_stream_orders_blocking_streams_and_no_others() {
    let gpu = Gpu::new();
    let (free, mut blocking) = (gpu.stream(), 0);
    assert_eq!(gpu.cuStreamCreate(&mut blocking, 0), 0);
    let a = gpu.alloc(1);
    // The NULL stream waits for blocking streams ...
    gpu.sim.pause(blocking);
    gpu.cuMemsetD32Async(a, 1, 1, blocking);
    gpu.cuMemsetD32Async(a, 2, 1, 0);
    assert_eq!(gpu.cuStreamQuery(0), NOT_READY);
    // ... which wait for it, while others go on.
    let (mut other, b) = (0, gpu.pinned(2));
    assert_eq!(gpu.cuStreamCreate(&mut other, 0), 0);
    gpu.cuMemcpyDtoHAsync_v2(&raw mut b[0], a, 4, other);
    assert_eq!(gpu.cuStreamQuery(other), NOT_READY);
    gpu.cuMemcpyDtoHAsync_v2(&raw mut b[1], a, 4, free);
    assert_eq!(gpu.cuStreamSynchronize(free), 0);
    assert_eq!(b[1], 0xA5A5_A5A5);
    gpu.sim.resume(blocking);
    assert_eq!(gpu.cuCtxSynchronize(), 0);
    assert_eq!(b[0], 2);
}

#[test]
fn pinned_memory_is_read_late_and_pageable_memory_at_the_call() {
    let gpu = Gpu::new();
    let (stream, a) = (gpu.stream(), gpu.alloc(2));
    let (pinned, mut pageable) = (gpu.pinned(1), [1]);
    pinned[0] = 1;
    gpu.sim.hold();
    gpu.cuMemcpyHtoDAsync_v2(a, pinned.as_ptr(), 4, stream);
    gpu.cuMemcpyHtoDAsync_v2(a + 4, pageable.as_ptr(), 4, stream);
    pinned[0] = 2;
    pageable[0] = 2;
    gpu.sim.release();
    gpu.cuStreamSynchronize(stream);
    assert_eq!(gpu.read(a, 2), [2, 1]);
    assert_eq!(pageable, [2]);
    // To pageable memory the call is synchronous.
    gpu.cuMemsetD32Async(a, 5, 1, stream);
    assert_eq!(gpu.cuMemcpyDtoHAsync_v2(pageable.as_mut_ptr(), a, 4, stream), 0);
    assert_eq!(pageable, [5]);
}

static ORDER: Mutex<Vec<usize>> = Mutex::new(Vec::new());

extern "C" fn note(data: *mut c_void) {
    ORDER.lock().unwrap().push(data as usize);
}

extern "C" fn call_cuda(context: *mut c_void) {
    // SAFETY: the address of a code on the stack of the test, which waits for this.
    let result = unsafe { &mut *context.cast::<u32>() };
    type Synchronize = unsafe extern "C" fn() -> u32;
    // SAFETY: the type is that of cuda.h.
    *result = unsafe {
        let function = cudasim::load().symbol(c"cuCtxSynchronize");
        std::mem::transmute::<*mut c_void, Synchronize>(function)()
    };
}

#[test]
fn host_functions_run_in_order_and_may_not_call_cuda() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    for i in 1..=20_usize {
        assert_eq!(gpu.cuLaunchHostFunc(stream, note, i as *mut c_void), 0);
    }
    gpu.cuStreamSynchronize(stream);
    assert_eq!(*ORDER.lock().unwrap(), (1..=20).collect::<Vec<_>>());
    let mut code = 0_u32;
    gpu.cuLaunchHostFunc(stream, call_cuda, (&raw mut code).cast());
    gpu.cuStreamSynchronize(stream);
    assert_eq!(code, 800);
    assert_eq!(gpu.sim.take_errors(), ["cuCtxSynchronize in a host function"]);
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    let gpu = Gpu::new();
    let (stream, a) = (gpu.stream(), gpu.alloc(1));
    gpu.sim.hold();
    gpu.cuMemsetD32Async(a, 3, 1, stream);
    assert_eq!(gpu.cuStreamDestroy_v2(stream), 0);
    assert_eq!(gpu.sim.live().streams, 0);
    gpu.sim.release();
    assert_eq!(gpu.cuCtxSynchronize(), 0);
    assert_eq!(gpu.read(a, 1), [3]);
    assert_eq!(gpu.cuStreamSynchronize(stream), 400);
    assert_eq!(gpu.cuStreamDestroy_v2(stream), 400);
    assert_eq!(gpu.sim.take_errors().len(), 2);
}

#[test]
fn time_between_events() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let (mut start, mut end, mut milliseconds) = (0, 0, -1.0);
    gpu.cuEventCreate(&mut start, 0);
    gpu.cuEventCreate(&mut end, 0);
    assert_eq!(gpu.cuEventElapsedTime(&mut milliseconds, start, end), 400);
    gpu.cuEventRecord(start, stream);
    gpu.sim.hold();
    gpu.cuEventRecord(end, stream);
    assert_eq!(gpu.cuEventElapsedTime(&mut milliseconds, start, end), NOT_READY);
    gpu.sim.release();
    gpu.cuStreamSynchronize(stream);
    assert_eq!(gpu.cuEventElapsedTime(&mut milliseconds, start, end), 0);
    assert!(milliseconds >= 0.0);
    assert_eq!(gpu.cuEventElapsedTime(&mut milliseconds, start, gpu.event()), 400);
    assert_eq!(gpu.cuEventCreate(&mut start, 64), INVALID_VALUE);
}

#[test]
fn two_devices_have_a_context_each() {
    let gpu = Gpu::new();
    let (mut count, mut second, mut found) = (0, 0, 0);
    assert_eq!(gpu.cuDeviceGetCount(&mut count), 0);
    assert_eq!(count, 2);
    assert_eq!(gpu.cuDevicePrimaryCtxRetain(&mut second, 1), 0);
    let (here, here_event, a) = (gpu.stream(), gpu.event(), gpu.alloc(4));
    let fill = gpu.kernel("sim_fill");

    assert_eq!(gpu.cuCtxPushCurrent_v2(second), 0);
    let (there, b) = (gpu.stream(), gpu.alloc(4));
    gpu.cuStreamGetCtx(there, &mut found);
    assert_eq!(found, second);
    gpu.cuStreamGetCtx(here, &mut found);
    assert_eq!(found, gpu.context);
    // Kernels and records stay within a context; waits and copies do not.
    assert_eq!(gpu.launch(fill, 1, 1, there, &[std::ptr::null_mut(); 3]), 400);
    assert_eq!(gpu.cuEventRecord(here_event, there), 400);
    assert_eq!(gpu.cuEventRecord(here_event, here), 0);
    assert_eq!(gpu.cuStreamWaitEvent(there, here_event, 0), 0);
    assert_eq!(gpu.cuMemcpyDtoDAsync_v2(b, a, 16, there), 0);
    assert_eq!(gpu.cuStreamSynchronize(there), 0);
    let mut ordinal = 7;
    gpu.cuPointerGetAttribute(&mut ordinal, 9, b);
    assert_eq!(ordinal as u32, 1);
    assert_eq!(gpu.cuCtxPopCurrent_v2(&mut found), 0);
    assert_eq!(found, second);
    gpu.cuCtxGetCurrent(&mut found);
    assert_eq!(found, gpu.context);

    assert_eq!(gpu.cuCtxSetCurrent(0), 0);
    assert_eq!(gpu.cuStreamSynchronize(here), 201);
    gpu.cuCtxSetCurrent(second);
    assert_eq!(gpu.cuDevicePrimaryCtxRelease_v2(1), 0);
    assert_eq!(gpu.cuCtxSynchronize(), 709);
    assert_eq!(gpu.sim.live().streams, 1);
}

#[test]
fn a_handle_that_is_used_again_has_another_number() {
    let gpu = Gpu::new();
    let number = |stream| {
        let mut id = 0;
        assert_eq!(gpu.cuStreamGetId(stream, &mut id), 0);
        id
    };
    let (stream, other) = (gpu.stream(), gpu.stream());
    let (first, second) = (number(stream), number(other));
    assert_ne!(first, second);
    assert_eq!(number(stream), first);
    assert_eq!(gpu.cuStreamDestroy_v2(stream), 0);
    gpu.sim.recycle(stream);
    assert_eq!(gpu.stream(), stream);
    assert!(![first, second].contains(&number(stream)));
}

#[test]
fn a_stream_waits_for_a_word_of_the_host() {
    let gpu = Gpu::new();
    let (stream, word, a) = (gpu.stream(), gpu.pinned(1), gpu.alloc(8));
    let address = word.as_ptr() as u64;
    word[0] = 0;
    assert_eq!(gpu.cuStreamWaitValue32_v2(stream, address, 1, 1), 801, "not >=");
    assert_eq!(gpu.cuStreamWaitValue32_v2(stream, a, 1, 0), 1, "not of the host");
    assert_eq!(gpu.cuStreamWaitValue32_v2(stream, address, 1, 0), 0);
    assert_eq!(gpu.fill(a, 8, 7, stream), 0);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(gpu.cuStreamQuery(stream), NOT_READY);
    // SAFETY: a live word, which the stream reads as one.
    unsafe { std::sync::atomic::AtomicU32::from_ptr(word.as_mut_ptr()) }
        .store(1, std::sync::atomic::Ordering::Release);
    assert_eq!(gpu.cuStreamSynchronize(stream), 0);
    assert_eq!(gpu.read(a, 2), [7, 8]);
    gpu.cuMemFreeHost(word.as_mut_ptr());
}
