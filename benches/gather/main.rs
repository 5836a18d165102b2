//! The CUDA engine beside plain copies of the same bytes and other ways to gather them.
//!
//! `cargo bench --features cuda --bench gather -- [--quick] [--only TEXT] [--json FILE]`
//!
//! Time on the device is that between two events on one stream, which is kept busy until all is
//! enqueued; time on the host is that until all is enqueued. Contenders take turns. `cold`: each run
//! takes the next of several sets of sources and outputs, together more than 200 MB; `warm`: each run
//! comes right behind one on the same set. Outputs are compared with the host engine's batch before
//! anything is timed, and windrow's after it too. Bytes are those read plus those written, in 1e9.
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
mod contenders;
mod peers;
mod report;
mod workloads;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use contenders::Contender;
use gpu::device::{self, cuMemsetD8Async};
use gpu::{check, Gpu, Outcome};
use report::{Report, Series};
use windrow::{Engine, Tensor};
use workloads::{Set, Workload};

/// All sets of a workload together: several times any L2.
const COLD_BYTES: u64 = 300_000_000;

/// What outputs hold before they are written.
const POISON: u8 = 0xA5;

struct Options {
    quick: bool,
    only: Option<String>,
    json: Option<String>,
}

fn options() -> Option<Options> {
    let mut options = Options { quick: false, only: None, json: None };
    let mut is_bench = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => is_bench = true,
            "--quick" => options.quick = true,
            "--only" => options.only = arguments.next(),
            "--json" => options.json = arguments.next(),
            _ => eprintln!("unknown argument {argument}"),
        }
    }
    // `cargo test --all-targets` starts benches too, without the flag.
    is_bench.then_some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else { return ExitCode::SUCCESS };
    let Some(engine) = device::engine() else { return ExitCode::SUCCESS };
    match run(engine, &options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gather: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(engine: &Engine, options: &Options) -> Outcome {
    let gpu = Gpu::new()?;
    let mut report = Report::new(options.quick);
    for make in workloads::all(if options.quick { 64 } else { 1 }) {
        let workload = make();
        if options.only.as_ref().is_some_and(|only| !workload.name.contains(only)) {
            continue;
        }
        let count = match options.quick {
            true => 2,
            false => COLD_BYTES.div_ceil(workload.set_bytes()).clamp(2, 512) as usize,
        };
        let sets = (0..count).map(|_| workload.set()).collect::<Result<Vec<_>, _>>()?;
        let (contenders, absent) = contenders::of(&gpu, engine, &workload, &sets);
        report.begin(&workload, &absent);
        verify(&gpu, engine, &workload, &sets[0], &contenders)?;
        for is_cold in [true, false] {
            let overlaps = !workload.is_pinned;
            for series in measure(&gpu, &sets, &contenders, is_cold, overlaps, options.quick)? {
                report.add(series);
            }
        }
        verify(&gpu, engine, &workload, &sets[0], &contenders[..1])?;
    }
    report.finish(options.json.as_deref())
}

/// Compares every output, and what windrow gives besides, with the host engine's batch.
fn verify(
    gpu: &Gpu,
    engine: &Engine,
    workload: &Workload,
    set: &Set,
    contenders: &[Contender<'_>],
) -> Outcome {
    let expected = workload.expected();
    for contender in contenders.iter().filter(|contender| contender.is_batch) {
        // SAFETY: the set's own output.
        let code = unsafe { cuMemsetD8Async(set.out.address, POISON, set.out.len, gpu.stream) };
        check("cuMemsetD8Async", code)?;
        (contender.run)(set)?;
        gpu.synchronize()?;
        same(&workload.name, contender.name, expected.data(), &set.out.to_host())?;
    }
    let fields = contenders::windrow(gpu, engine, workload, set, &set.samples)?;
    gpu.synchronize()?;
    for (name, want, got) in
        [("mask", expected.mask(), &fields.mask), ("lengths", expected.lengths(), &fields.lengths)]
    {
        if let (Some(want), Some(got)) = (want, got) {
            let got = device::read(got.data_ptr().addr() as u64, got.nbytes());
            same(&workload.name, name, want, &got)?;
        }
    }
    Ok(())
}

fn same(workload: &str, name: &str, want: &Tensor, got: &[u8]) -> Outcome {
    // SAFETY: a tensor of the host engine, row-major.
    let want = unsafe { std::slice::from_raw_parts(want.data_ptr(), want.nbytes()) };
    match want.iter().zip(got).position(|(want, got)| want != got) {
        None if want.len() == got.len() => Ok(()),
        at => Err(format!("{workload}: {name} gives a wrong batch, from byte {at:?} on")),
    }
}

fn measure(
    gpu: &Gpu,
    sets: &[Set],
    contenders: &[Contender<'_>],
    is_cold: bool,
    overlaps: bool,
    quick: bool,
) -> Result<Vec<Series>, String> {
    // Slow ones, such as a driver call for each of 100 000 samples, run less often.
    let (repeats, fewest, budget) = match quick {
        true => (2, 2, Duration::ZERO),
        false => (60, 3, Duration::from_millis(700)),
    };
    let mut all = Vec::new();
    let mut turn = 0;
    for contender in contenders {
        let warm_ups = if quick { 1 } else { 3 };
        let mut host_us = 0.0;
        for _ in 0..warm_ups {
            host_us = gpu.timed(0.0, &|| (contender.run)(&sets[0]))?.host_us;
        }
        all.push((Series::new(contender.name, is_cold), host_us, Duration::ZERO));
    }
    for repeat in 0..repeats {
        for (contender, (series, host_us, spent)) in contenders.iter().zip(&mut all) {
            if repeat >= fewest && *spent > budget {
                continue;
            }
            let begin = Instant::now();
            turn += 1;
            let set = if is_cold { &sets[turn % sets.len()] } else { &sets[0] };
            if !is_cold {
                (contender.run)(set)?;
                gpu.synchronize()?;
            }
            // Longer waits would hide nothing more: the stream's queue is full by then.
            let delay_us = if overlaps { (2.0 * *host_us + 30.0).min(20_000.0) } else { 0.0 };
            let timed = gpu.timed(delay_us, &|| (contender.run)(set))?;
            *host_us = host_us.max(timed.host_us.min(4.0 * *host_us));
            series.push(timed);
            *spent += begin.elapsed();
        }
    }
    Ok(all.into_iter().map(|(series, ..)| series).collect())
}
