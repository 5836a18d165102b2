//! Two driver calls of a batch fail: every call of it, and every one that follows then, to the end of
//! the batch.

use windrow::{Engine, Error};

use crate::faults::{
    check, traced, watched, Call, Setting, CALLS, INVALID_HANDLE, LAUNCH_FAILED, OUT_OF_MEMORY,
    UNKNOWN,
};
use crate::rig::{engine, start, Gpu};

const CODES: &[[u32; 2]] =
    &[[INVALID_HANDLE; 2], [OUT_OF_MEMORY, UNKNOWN], [UNKNOWN, LAUNCH_FAILED]];

/// Memory that may still be written to is kept where one of these fails, as it cannot be known when it is free.
fn is_needed_to_release(function: &str) -> bool {
    matches!(
        function,
        "cuCtxPushCurrent_v2" | "cuCtxSynchronize" | "cuStreamSynchronize" | "cuEventSynchronize"
    )
}

#[test]
fn pairs_of_calls_of_a_batch_fail() {
    for &codes in CODES {
        for call in CALLS {
            watched(|| println!("{}, {codes:?}: {} pairs", call.name, pairs(call, codes)));
        }
    }
}

/// Allocations of any kind that are there, once nothing is kept for later.
fn allocations(gpu: &Gpu, engine: &Engine) -> [u64; 3] {
    gpu.sim.synchronize_all();
    engine.empty_cache();
    gpu.sim.synchronize_all();
    let live = gpu.sim.live();
    [live.device_allocations, live.pinned_allocations, live.registered]
}

/// The pairs of one kind of call.
fn pairs(call: &Call, codes: [u32; 2]) -> usize {
    let gpu = start();
    let setting = Setting::new(&gpu);
    let engine = engine();
    let run = || (call.run)(&setting, &engine);
    for _ in 0..3 {
        check(&setting, call, run().unwrap(), call.name);
    }
    let mut before = allocations(&gpu, &engine);
    let mut count = 0;
    let longest = traced(&gpu, || drop(run())).len();
    for first in 1..=longest {
        // The cleanup after a failure may take more calls than a successful run.
        for second in first + 1..=longest + 8 {
            gpu.sim.synchronize_all();
            gpu.sim.fail_call(first as u64, codes[0]);
            gpu.sim.fail_call(second as u64, codes[1]);
            let mut outcome = None;
            let functions = traced(&gpu, || outcome = Some(run()));
            // Past the end there is nothing to fail.
            let is_hit = gpu.sim.pending_faults() == 0;
            gpu.sim.clear_faults();
            let hit: Vec<&str> = [first, second]
                .iter()
                .filter_map(|&at| functions.get(at - 1).map(String::as_str))
                .collect();
            count += usize::from(is_hit);
            let what = format!("{}: {codes:?} from calls {first}, {second}, {hit:?}", call.name);
            match outcome.unwrap() {
                Ok(batch) if is_hit => check(&setting, call, batch, &what),
                Ok(batch) => drop(batch),
                Err(Error::Cuda(e)) => assert!(codes.contains(&e.code), "{what}: {e}"),
                Err(Error::OutOfMemory { .. }) if codes.contains(&OUT_OF_MEMORY) => {}
                Err(error) => panic!("{what}: {error}"),
            }
            let again = run().unwrap_or_else(|error| panic!("{what}, then {error}"));
            check(&setting, call, again, &what);
            assert_eq!(gpu.sim.take_errors(), [""; 0], "{what}");
            let now = allocations(&gpu, &engine);
            // Nothing can be given back to a device that is lost.
            if hit.iter().any(|name| is_needed_to_release(name)) || codes.contains(&LAUNCH_FAILED) {
                before = now;
            }
            assert_eq!(now, before, "{what}");
        }
    }
    drop(engine);
    gpu.sim.check_memory();
    assert_eq!(gpu.sim.take_errors(), [""; 0], "{}", call.name);
    count
}
