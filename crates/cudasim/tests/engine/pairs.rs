//! Two driver calls of a batch fail: every call of it, and every one that follows then, to the end of
//! the batch.

use std::env;

use windrow::Error;

use crate::faults::{
    check, traced, watched, without_contexts, Call, Setting, CALLS, INVALID_HANDLE, LAUNCH_FAILED,
    OUT_OF_MEMORY, UNKNOWN,
};
use crate::rig::{engine, start};

/// Set, it takes all pairs and all codes; else one pair in [`STEP`], of the first codes.
const ALL: &str = "CUDASIM_TEST_PAIRS";
const STEP: usize = 13;

const CODES: &[[u32; 2]] =
    &[[INVALID_HANDLE; 2], [OUT_OF_MEMORY, UNKNOWN], [UNKNOWN, LAUNCH_FAILED]];

/// What these are for is lost without them: memory that may still be written to is not given back.
fn is_needed_to_release(function: &str) -> bool {
    matches!(
        function,
        "cuCtxPushCurrent_v2" | "cuCtxSynchronize" | "cuStreamSynchronize" | "cuEventSynchronize"
    )
}

#[test]
#[ignore = "unfinished: the second fault does not always hit the call that it is named for, as events are used again"]
fn pairs_of_calls_of_a_batch_fail() {
    let is_all = env::var_os(ALL).is_some();
    let codes = if is_all { CODES } else { &CODES[..1] };
    for &codes in codes {
        for call in CALLS {
            watched(|| {
                for with_needed in [false, true] {
                    let count = pairs(call, codes, with_needed, if is_all { 1 } else { STEP });
                    println!("{}, {codes:?}, {with_needed}: {count} pairs", call.name);
                }
            });
        }
    }
}

/// The pairs of one kind of call, of which neither or one is among the needed ones.
fn pairs(call: &Call, codes: [u32; 2], with_needed: bool, step: usize) -> usize {
    let gpu = start();
    let setting = Setting::new(&gpu);
    let before = without_contexts(&gpu);
    let engine = engine();
    let run = || (call.run)(&setting, &engine);
    for _ in 0..3 {
        check(&setting, call, run().unwrap(), call.name);
    }
    let traced = |k: usize| {
        // What is done by then decides what is asked for: each call finds the same.
        gpu.sim.synchronize_all();
        gpu.sim.fail_call(k as u64, codes[0]);
        let functions = traced(&gpu, || drop(run()));
        gpu.sim.clear_faults();
        functions
    };
    let (mut seen, mut count) = (0, 0);
    for first in 1..=traced(0).len() {
        let functions = traced(first);
        for second in first + 1..=functions.len() {
            let names = [&functions[first - 1], &functions[second - 1]];
            if names.iter().any(|name| is_needed_to_release(name)) != with_needed {
                continue;
            }
            seen += 1;
            if seen % step != 0 {
                continue;
            }
            count += 1;
            let what = format!("{}: {codes:?} from calls {first}, {second}, {names:?}", call.name);
            gpu.sim.synchronize_all();
            gpu.sim.fail_call(first as u64, codes[0]);
            gpu.sim.fail_call(second as u64, codes[1]);
            match run() {
                Ok(batch) if gpu.sim.pending_faults() == 0 => {
                    gpu.sim.clear_faults();
                    check(&setting, call, batch, &what);
                }
                Ok(batch) => drop(batch),
                Err(Error::Cuda(e)) => assert!(codes.contains(&e.code), "{what}: {e}"),
                Err(Error::OutOfMemory { .. }) if codes.contains(&OUT_OF_MEMORY) => {}
                Err(error) => panic!("{what}: {error}"),
            }
            gpu.sim.clear_faults();
            let again = run().unwrap_or_else(|error| panic!("{what}, then {error}"));
            check(&setting, call, again, &what);
            assert_eq!(gpu.sim.take_errors(), [""; 0], "{what}");
        }
    }
    engine.empty_cache();
    drop(engine);
    gpu.sim.check_memory();
    assert_eq!(gpu.sim.take_errors(), [""; 0], "{}", call.name);
    if !with_needed && !codes.contains(&LAUNCH_FAILED) {
        assert_eq!(without_contexts(&gpu), before, "{}, {codes:?}", call.name);
    }
    count
}
