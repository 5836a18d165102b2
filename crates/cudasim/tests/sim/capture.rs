//! Capture and replay.

use std::ffi::c_void;

use crate::gpu::{Gpu, INVALID_VALUE};

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;
const UNSUPPORTED: u32 = 900;
const INVALIDATED: u32 = 901;

fn end(gpu: &Gpu, stream: usize) -> Result<usize, u32> {
    let mut graph = 1;
    match gpu.cuStreamEndCapture(stream, &mut graph) {
        0 => Ok(graph),
        code => {
            assert_eq!(graph, 0);
            Err(code)
        }
    }
}

fn instantiate(gpu: &Gpu, graph: usize) -> usize {
    let mut exec = 0;
    assert_eq!(gpu.cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
    exec
}

#[test]
fn captured_work_runs_when_the_graph_is_launched() {
    let gpu = Gpu::new();
    let (stream, a, b) = (gpu.stream(), gpu.alloc(4), gpu.alloc(4));
    let source = gpu.pinned(4);
    source.fill(1);
    assert_eq!(gpu.cuStreamBeginCapture_v2(stream, THREAD_LOCAL), 0);
    let mut status = 0;
    assert_eq!(gpu.cuStreamIsCapturing(stream, &mut status), 0);
    assert_eq!(status, 1);
    assert_eq!(gpu.cuMemcpyHtoDAsync_v2(a, source.as_ptr(), 16, stream), 0);
    assert_eq!(gpu.cuMemcpyDtoDAsync_v2(b, a, 16, stream), 0);
    let graph = end(&gpu, stream).unwrap();
    assert_eq!(gpu.read(b, 1), [0xA5A5_A5A5]);
    let mut num_nodes = 0;
    assert_eq!(gpu.cuGraphGetNodes(graph, std::ptr::null_mut(), &mut num_nodes), 0);
    assert_eq!(num_nodes, 2);

    let exec = instantiate(&gpu, graph);
    assert_eq!(gpu.cuGraphDestroy(graph), 0);
    for value in 1..4 {
        source.fill(value);
        assert_eq!(gpu.cuGraphLaunch(exec, stream), 0);
        gpu.cuStreamSynchronize(stream);
        assert_eq!(gpu.read(b, 4), [value; 4]);
    }
    assert_eq!(gpu.cuGraphExecDestroy(exec), 0);
    assert_eq!(gpu.cuGraphLaunch(exec, stream), INVALID_VALUE);
    assert_eq!(gpu.sim.live().graph_execs, 0);
}

#[test]
fn a_kernel_node_keeps_its_arguments() {
    let gpu = Gpu::new();
    let (stream, a) = (gpu.stream(), gpu.alloc(4));
    let kernel = gpu.kernel("sim_fill");
    let (mut dst, mut count, mut value) = (a, 4_u64, 10_u32);
    let params: [*mut c_void; 3] =
        [(&raw mut dst).cast(), (&raw mut count).cast(), (&raw mut value).cast()];
    gpu.cuStreamBeginCapture_v2(stream, GLOBAL);
    assert_eq!(gpu.launch(kernel, 1, 4, stream, &params), 0);
    let exec = instantiate(&gpu, end(&gpu, stream).unwrap());
    (dst, count, value) = (0, 0, 0);
    assert_eq!((dst, count, value), (0, 0, 0));
    gpu.cuGraphLaunch(exec, 0);
    gpu.cuCtxSynchronize();
    assert_eq!(gpu.read(a, 4), [10, 11, 12, 13]);
}

#[test]
fn events_fork_and_join_streams() {
    let gpu = Gpu::new();
    let (origin, side) = (gpu.stream(), gpu.stream());
    let (fork, join) = (gpu.event(), gpu.event());
    let (a, b, c) = (gpu.alloc(1), gpu.alloc(1), gpu.alloc(2));
    let capture = |joins: bool| {
        gpu.cuStreamBeginCapture_v2(origin, THREAD_LOCAL);
        gpu.cuMemsetD32Async(a, 1, 1, origin);
        gpu.cuEventRecord(fork, origin);
        gpu.cuStreamWaitEvent(side, fork, 0);
        gpu.cuMemcpyDtoDAsync_v2(b, a, 4, side);
        gpu.cuEventRecord(join, side);
        if joins {
            gpu.cuStreamWaitEvent(origin, join, 0);
        }
        gpu.cuMemcpyDtoDAsync_v2(c, b, 4, origin);
        end(&gpu, origin)
    };
    assert_eq!(capture(false), Err(904));
    let exec = instantiate(&gpu, capture(true).unwrap());
    for seed in 0..20 {
        gpu.sim.set_seed(seed);
        gpu.cuMemsetD32Async(a, 0, 1, origin);
        gpu.cuMemsetD32Async(b, 0, 1, origin);
        gpu.cuMemsetD32Async(c, 0, 1, origin);
        gpu.cuGraphLaunch(exec, origin);
        gpu.cuStreamSynchronize(origin);
        assert_eq!(gpu.read(c, 1), [1]);
    }
    // The side stream is free again; the event of the capture is of no use outside it.
    assert_eq!(gpu.cuMemsetD32Async(a, 2, 1, side), 0);
    assert_eq!(gpu.cuStreamSynchronize(side), 0);
    assert_eq!(gpu.cuEventQuery(join), 907);
    assert_eq!(gpu.cuEventRecord(join, side), 0);
    assert_eq!(gpu.cuEventSynchronize(join), 0);
}

#[test]
fn nodes_without_an_order_run_in_the_one_that_the_seed_says() {
    let gpu = Gpu::new();
    let (origin, side) = (gpu.stream(), gpu.stream());
    let (fork, join, a) = (gpu.event(), gpu.event(), gpu.alloc(1));
    gpu.cuStreamBeginCapture_v2(origin, THREAD_LOCAL);
    gpu.cuEventRecord(fork, origin);
    gpu.cuStreamWaitEvent(side, fork, 0);
    gpu.cuMemsetD32Async(a, 1, 1, origin);
    gpu.cuMemsetD32Async(a, 2, 1, side);
    gpu.cuEventRecord(join, side);
    gpu.cuStreamWaitEvent(origin, join, 0);
    let exec = instantiate(&gpu, end(&gpu, origin).unwrap());
    let outcomes = |seed| {
        gpu.sim.set_seed(seed);
        let launches = (0..40).map(|_| {
            gpu.cuGraphLaunch(exec, origin);
            gpu.cuStreamSynchronize(origin);
            gpu.read(a, 1)[0]
        });
        launches.collect::<Vec<_>>()
    };
    let first = outcomes(1);
    assert!(first.contains(&1) && first.contains(&2), "{first:?}");
    assert_eq!(first, outcomes(1)); // a seed repeats
    assert_ne!(first, outcomes(2));
}

#[test]
fn forbidden_calls_fail_and_lose_the_capture() {
    let gpu = Gpu::new();
    let (stream, event, a) = (gpu.stream(), gpu.event(), gpu.alloc(1));
    let forbidden: [(&dyn Fn() -> u32, u32); 9] = [
        (&|| gpu.cuStreamSynchronize(stream), UNSUPPORTED),
        (&|| gpu.cuStreamQuery(stream), UNSUPPORTED),
        (&|| gpu.cuCtxSynchronize(), UNSUPPORTED),
        (&|| gpu.cuMemAlloc_v2(&mut 0, 4), UNSUPPORTED),
        (&|| gpu.cuMemFree_v2(a), UNSUPPORTED),
        (&|| gpu.cuMemHostAlloc(&mut std::ptr::null_mut(), 4, 0), UNSUPPORTED),
        (&|| gpu.cuMemAllocAsync(&mut 0, 4, stream), UNSUPPORTED),
        (&|| gpu.cuStreamWaitEvent(stream, event, 0), 905), // not of this capture
        (
            &|| {
                assert_eq!(gpu.cuEventRecord(event, stream), 0);
                gpu.cuEventQuery(event)
            },
            907,
        ),
    ];
    for (i, (call, code)) in forbidden.into_iter().enumerate() {
        assert_eq!(gpu.cuStreamBeginCapture_v2(stream, GLOBAL), 0);
        assert_eq!(call(), code, "call {i}");
        assert_eq!(gpu.cuMemsetD32Async(a, 0, 1, stream), INVALIDATED);
        assert_eq!(end(&gpu, stream), Err(INVALIDATED));
        assert_eq!(gpu.cuStreamSynchronize(stream), 0);
        // The end is recorded once, and as misuse: the owner of the capture learns of it, the caller need not.
        let ended = gpu.sim.take_errors();
        assert!(ended.len() == 1 && ended[0].ends_with(" ended a capture"), "call {i}: {ended:?}");
    }
    assert_eq!(end(&gpu, stream), Err(401));
}

#[test]
fn modes_say_which_threads_are_bound() {
    let gpu = Gpu::new();
    let stream = gpu.stream();
    let allocate = || gpu.cuMemAlloc_v2(&mut 0, 4);
    let elsewhere = || {
        let context = gpu.context;
        std::thread::scope(|scope| {
            let code = scope.spawn(|| {
                gpu.cuCtxSetCurrent(context);
                gpu.cuMemAlloc_v2(&mut 0, 4)
            });
            code.join().unwrap()
        })
    };
    for (mode, here, there) in
        [(GLOBAL, UNSUPPORTED, UNSUPPORTED), (THREAD_LOCAL, UNSUPPORTED, 0), (RELAXED, 0, 0)]
    {
        gpu.cuStreamBeginCapture_v2(stream, mode);
        assert_eq!(elsewhere(), there, "mode {mode}");
        assert_eq!(allocate(), here, "mode {mode}");
        assert_eq!(end(&gpu, stream).is_ok(), mode == RELAXED);
    }
    // A thread may lift its own ban.
    let mut mode = RELAXED;
    gpu.cuStreamBeginCapture_v2(stream, GLOBAL);
    assert_eq!(gpu.cuThreadExchangeStreamCaptureMode(&mut mode), 0);
    assert_eq!((mode, allocate()), (GLOBAL, 0));
    gpu.cuThreadExchangeStreamCaptureMode(&mut mode);
    assert!(end(&gpu, stream).is_ok());
    // A wait for a context that is being captured is refused all the same.
    gpu.cuStreamBeginCapture_v2(stream, RELAXED);
    assert_eq!(gpu.cuCtxSynchronize(), UNSUPPORTED);
    assert_eq!(end(&gpu, stream), Err(INVALIDATED));
}

#[test]
fn the_legacy_stream_and_captures_of_blocking_streams() {
    let gpu = Gpu::new();
    let (a, mut blocking, mut status) = (gpu.alloc(1), 0, 0);
    assert_eq!(gpu.cuStreamBeginCapture_v2(0, RELAXED), UNSUPPORTED);
    gpu.cuStreamCreate(&mut blocking, 0);
    gpu.cuStreamBeginCapture_v2(blocking, RELAXED);
    assert_eq!(gpu.cuStreamIsCapturing(0, &mut status), 906);
    assert_eq!(gpu.cuMemsetD32Async(a, 0, 1, 0), 906);
    assert_eq!(end(&gpu, blocking), Err(INVALIDATED));
    // A non-blocking stream's capture is no concern of it.
    let stream = gpu.stream();
    gpu.cuStreamBeginCapture_v2(stream, RELAXED);
    assert_eq!(gpu.cuMemsetD32Async(a, 0, 1, 0), 0);
    assert!(end(&gpu, stream).is_ok());
}
