//! Every wait for an event matters: without it a scenario goes wrong under some delays.

use std::env;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::rig::start;
use crate::scenarios::{misuse, ALL};

/// The scenario and the wait to leave out. It runs in a process of its own, because it may crash.
const CASE: &str = "CUDASIM_TEST_IGNORED_WAIT";
const SEEDS: u64 = 40;

/// The child: does nothing unless told to. Fails if the missing wait shows.
#[test]
fn child_with_an_ignored_wait() {
    let Ok(case) = env::var(CASE) else { return };
    let (name, n) = case.split_once(' ').unwrap();
    let scenario = ALL.iter().find(|scenario| scenario.name == name).unwrap();
    let gpu = start();
    for seed in 0..SEEDS {
        gpu.sim.clear_faults();
        gpu.sim.set_seed(seed);
        gpu.sim.set_delay_us(if seed % 2 == 0 { 1500 } else { 4000 });
        gpu.sim.ignore_wait(n.parse().unwrap());
        let outcome = (scenario.run)(&gpu, seed).and_then(|()| misuse(&gpu.sim));
        outcome.unwrap_or_else(|why| panic!("{name}, seed {seed}: {why}"));
    }
}

/// Whether the child fails, or has not ended after a while.
fn shows(name: &str, n: u64) -> bool {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "waits::child_with_an_ignored_wait"])
        .env(CASE, format!("{name} {n}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return !status.success();
        }
        if begin.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            child.wait().unwrap();
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// A wait of a scenario for each reason that the engine has to wait, by its number there, that is for nothing else.
/// (The others of a scenario are mostly said twice. The end of a batch asks events and waits for none:
/// `driver_rules::memory_behind_a_slow_stream_holds_up_nobody_else`.)
const MATTERS: &[(&str, u64, &str)] = &[
    ("producers", 1, "a batch for a stream that writes its samples"),
    ("producers", 2, "... for a second one"),
    ("legacy_stream", 1, "... for the default stream"),
    ("ordered_by_hand", 2, "a stream for another that it was ordered behind"),
    ("pinned_samples", 2, "... that writes page-locked samples"),
    ("chain_on_streams", 1, "a batch for a sample that is a batch"),
    ("chain_of_engines", 1, "... of another engine"),
    ("overwritten", 1, "an output for what was written there before"),
    ("overwritten", 4, "... for a batch of which it is a sample"),
    ("written_again", 3, "... for its consumers"),
    ("producers", 3, "a consumer of the batch"),
    ("written_again", 4, "... that was written again"),
];

#[test]
fn every_kind_of_wait_matters() {
    let silent = MATTERS.iter().filter(|(name, n, _)| !shows(name, *n));
    let silent: Vec<_> = silent.map(|(name, n, why)| format!("{name} {n}: {why}")).collect();
    assert!(silent.is_empty(), "not noticed:\n{}", silent.join("\n"));
}

/// The source of the table above: the waits that each scenario goes wrong without. Those that do
/// not show are for what another wait has seen to. Printed by `cargo test-all --test engine
/// -- --ignored --nocapture which_waits_show`, with the variables of `make test-simulated`.
#[test]
#[ignore = "a report, which takes eight minutes"]
fn which_waits_show() {
    for scenario in ALL {
        let waits = {
            let gpu = start();
            let before = gpu.sim.waits();
            (scenario.run)(&gpu, 0).unwrap();
            gpu.sim.waits() - before
        };
        let shown: Vec<u64> = (1..=waits).filter(|&n| shows(scenario.name, n)).collect();
        println!("{}: of {waits} waits {shown:?} show", scenario.name);
    }
}
