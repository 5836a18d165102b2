//! Injected errors, sticky errors, leaks, traces, and a child forked after cuInit.

use cudasim::Live;

use crate::gpu::Gpu;

/// A small program that gives up at the first error but releases all that it has.
fn program(gpu: &Gpu) -> Result<u32, u32> {
    fn check(code: u32) -> Result<(), u32> {
        if code == 0 {
            Ok(())
        } else {
            Err(code)
        }
    }
    let (mut stream, mut event, mut p) = (0, 0, 0);
    let mut word = 0_u32;
    let mut run = || {
        check(gpu.cuStreamCreate(&mut stream, 1))?;
        check(gpu.cuEventCreate(&mut event, 2))?;
        check(gpu.cuMemAllocAsync(&mut p, 4, stream))?;
        check(gpu.cuMemsetD32Async(p, 17, 1, stream))?;
        check(gpu.cuEventRecord(event, stream))?;
        check(gpu.cuMemcpyDtoHAsync_v2(&mut word, p, 4, stream))?;
        check(gpu.cuEventSynchronize(event))
    };
    let mut result = run();
    if p != 0 {
        result = result.and(check(gpu.cuMemFreeAsync(p, stream)));
    }
    if event != 0 {
        result = result.and(check(gpu.cuEventDestroy_v2(event)));
    }
    if stream != 0 {
        result = result.and(check(gpu.cuStreamSynchronize(stream)));
        result = result.and(check(gpu.cuStreamDestroy_v2(stream)));
    }
    result.map(|()| word)
}

#[test]
fn each_call_of_a_program_can_fail() {
    let gpu = Gpu::new();
    let calls = gpu.sim.calls();
    assert_eq!(program(&gpu), Ok(17));
    let calls = gpu.sim.calls() - calls;
    assert_eq!(calls, 11);
    for k in 1..=calls {
        gpu.sim.fail_call(k, 999);
        assert_eq!(program(&gpu), Err(999), "call {k}");
        assert_eq!(gpu.sim.pending_faults(), 0);
        gpu.sim.synchronize_all();
        let live = Live { pooled_bytes: 0, ..gpu.sim.live() };
        assert_eq!(live, Live { contexts: 1, ..Live::default() }, "call {k}");
    }
    gpu.sim.fail_function("cuMemsetD32Async", 2, 2);
    assert_eq!((program(&gpu), program(&gpu)), (Ok(17), Err(2)));
    gpu.sim.fail_call(1, 46);
    gpu.sim.clear_faults();
    assert_eq!(program(&gpu), Ok(17));
    assert_eq!(gpu.sim.take_errors(), [""; 0]);
}

#[test]
fn a_fault_of_the_device_sticks_to_its_context() {
    let gpu = Gpu::new();
    let (mut other, stream, a) = (0, gpu.stream(), gpu.alloc(1));
    gpu.cuDevicePrimaryCtxRetain(&mut other, 1);
    gpu.sim.fail_function("cuStreamSynchronize", 1, 700);
    assert_eq!(gpu.cuStreamSynchronize(stream), 700);
    assert_eq!(gpu.cuMemsetD32Async(a, 0, 1, stream), 700);
    assert_eq!(program(&gpu), Err(700));
    assert_eq!(gpu.cuMemFree_v2(a), 700);
    gpu.cuCtxSetCurrent(other);
    assert_eq!(program(&gpu), Ok(17));
    assert_eq!(gpu.cuDevicePrimaryCtxReset_v2(0), 0);
    gpu.cuDevicePrimaryCtxRetain(&mut other, 0);
    gpu.cuCtxSetCurrent(other);
    assert_eq!(program(&gpu), Ok(17));
    // Others do not stick.
    gpu.sim.fail_call(1, 46);
    assert_eq!((program(&gpu), program(&gpu)), (Err(46), Ok(17)));
}

#[test]
fn calls_are_traced_with_their_streams() {
    let gpu = Gpu::new();
    gpu.sim.trace(true);
    let stream = gpu.stream();
    gpu.cuStreamSynchronize(stream);
    gpu.cuStreamSynchronize(0);
    let expected = [
        "cuStreamCreate".into(),
        format!("cuStreamSynchronize {stream:#x}"),
        "cuStreamSynchronize".into(),
    ];
    assert_eq!(gpu.sim.take_trace(), expected);
    gpu.sim.trace(false);
    gpu.cuStreamSynchronize(0);
    assert_eq!(gpu.sim.take_trace(), [""; 0]);
}

#[test]
fn leaks_are_counted() {
    let gpu = Gpu::new();
    let none = gpu.sim.live();
    let (stream, event, a, pinned) = (gpu.stream(), gpu.event(), gpu.alloc(8), gpu.pinned(2));
    gpu.kernel("sim_fill");
    let live = gpu.sim.live();
    let leaked = Live {
        streams: 1,
        events: 1,
        modules: 1,
        device_allocations: 1,
        device_bytes: 32,
        pinned_allocations: 1,
        pinned_bytes: 8,
        ..none
    };
    assert_eq!(live, leaked);
    gpu.cuStreamDestroy_v2(stream);
    gpu.cuEventDestroy_v2(event);
    gpu.cuMemFree_v2(a);
    gpu.cuMemFreeHost(pinned.as_mut_ptr());
    assert_eq!(gpu.sim.live(), Live { modules: 1, ..none });
    gpu.cuEventDestroy_v2(event);
    assert_eq!(gpu.sim.take_errors().len(), 1);
}

#[test]
fn codes_have_their_names() {
    let gpu = Gpu::new();
    let mut name = std::ptr::null();
    assert_eq!(gpu.cuGetErrorName(700, &mut name), 0);
    // SAFETY: a static C string.
    let text = unsafe { std::ffi::CStr::from_ptr(name.cast()) };
    assert_eq!(text, c"CUDA_ERROR_ILLEGAL_ADDRESS");
    assert_eq!(gpu.cuGetErrorName(12345, &mut name), 1);
    assert!(name.is_null());
}

#[test]
fn a_child_forked_after_init_has_no_driver() {
    let gpu = Gpu::new();
    // SAFETY: the child calls the simulator, which refuses before it takes a lock, and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = gpu.cuCtxSynchronize() == 3 && gpu.cuInit(0) == 3;
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
}
