//! The CUDA engine beside plain copies of the same bytes and other ways to gather them.
//!
//! ```text
//! cargo bench --features cuda --bench gather -- [--only TEXT]... [--budget SECONDS] [--warm] [--quick]
//!     [--json FILE] [--table FILE]
//!     --trials FILE [--images DIR]   windrow with other numbers beside itself, see trials.rs
//!     --count [--scale N] [--pairs]  each of counted.rs once, for the emulator of machine code to count; N divides
//!                                    the numbers of samples; pairs of dtypes in place of workloads
//! ```
//!
//! Workloads come by what their figures are worth, see catalogue.rs; `--only`, which may come again, picks those whose name
//! has the text. With `--budget` none begins that may not end in time; those that are left out are named. The JSON has
//! all figures. The table is for scripts that read no JSON: of each workload its name, windrow's 10th, 50th and 90th
//! percentile, and the median of a copy.
//!
//! Time on the device is that between two events on one stream, which is kept busy until all is
//! enqueued; time on the host is that until all is enqueued. Contenders take turns. Cold: each run
//! takes the next of several sets of sources and outputs, together more than 200 MB. `--warm`: beside that, runs that
//! come right behind one on the same set. Outputs are compared with the host engine's batch before
//! anything is timed, and windrow's after it too: a contender that is wrong is not timed, and the bench fails in the end.
//! Bytes are those read plus those written, in 1e9.
//!
//! Page-locked samples (W8): bytes are those that cross the bus. The stream is not kept busy before, so
//! that what the host does counts too, and every run is `late`. windrow is timed as it chooses by the
//! samples' size, and made to go either way.
//!
//! Peers that need a kernel or NVIDIA's headers are in libpeers.so, see peers.cu. `--quick` shows that
//! everything works, on the simulated driver too; its times mean nothing.

#![allow(unsafe_code, reason = "driver calls, samples and outputs at raw addresses")]

#[macro_use]
mod gpu;
mod catalogue;
mod contenders;
mod counted;
mod measure;
mod moves;
mod options;
mod peers;
mod report;
mod targets;
mod trials;
mod verify;
mod workloads;

use std::process::ExitCode;

use contenders::Contender;
use gpu::{device, Gpu, Outcome};
use options::{Budget, Options};
use report::Report;
use trials::Trials;
use windrow::Engine;

fn main() -> ExitCode {
    let options = match Options::from_command_line() {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gather: {error}");
            return ExitCode::from(2);
        }
    };
    let mut budget = Budget::new(options.budget);
    let Some(engine) = device::engine() else { return ExitCode::SUCCESS };
    let done = match options.count {
        true => counted::run(engine, &options),
        false => run(engine, &options, &mut budget),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gather: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(engine: &Engine, options: &Options, budget: &mut Budget) -> Outcome {
    let gpu = Gpu::new()?;
    let trials = options.trials.as_deref();
    let trials = trials.map(|file| Trials::read(file, options.images.as_deref())).transpose()?;
    let mut report = Report::new(options, trials.as_ref());
    let mut entries = options.entries()?.into_iter();
    while budget.begin() {
        let Some(entry) = entries.next() else { break };
        let workload = entry.make();
        let sets = measure::sets(&workload, options.quick)?;
        let (mut contenders, mut reasons) = match &trials {
            Some(trials) => (trials.contenders(&gpu, engine, &workload), Vec::new()),
            None => contenders::for_workload(&gpu, engine, &workload, &sets),
        };
        let verified =
            |contender: &Contender<'_>| verify::all(&gpu, &workload, &sets[0], contender);
        let before = engine.stats();
        let mut outcomes = vec![verified(&contenders[0])];
        // The check made two batches.
        let calls = |now: u64, before: u64| (now - before) / 2;
        let launches = calls(engine.stats().launches, before.launches);
        let uploaded = calls(engine.stats().bytes_to_device, before.bytes_to_device);
        outcomes.extend(contenders[1..].iter().map(verified));
        let mut wrong: Vec<String> =
            outcomes.iter().filter_map(|outcome| outcome.clone().err()).collect();
        let mut outcomes = outcomes.iter();
        contenders.retain(|_| outcomes.next().is_some_and(Result::is_ok));
        reasons.extend(wrong.iter().cloned());
        report.begin(&entry, &workload, &reasons, launches, uploaded);
        for is_cold in [true, false].into_iter().filter(|is_cold| *is_cold || options.warm) {
            let all = measure::all(&gpu, &sets, &contenders, &workload, is_cold, options.quick)?;
            all.into_iter().for_each(|series| report.add(series));
        }
        if let Some(first) = contenders.first() {
            wrong.extend(verified(first).err());
        }
        report.wrong(wrong);
        report.save()?;
        budget.end();
    }
    report.left_out(entries.map(|entry| entry.name()).collect());
    report.finish()
}
