//! The CUDA engine beside plain copies of the same bytes and other ways to gather them.
//!
//! ```text
//! cargo bench --features cuda --bench gather -- [--quick] [--only TEXT] [--json FILE]
//!     --sweep [--table FILE]   few workloads, cold, windrow beside a copy: for trials of other numbers
//!     --count [--scale N] [--pairs]
//!                              each of counted.rs once, for the emulator of machine code to count; N divides
//!                              the numbers of samples; pairs of dtypes in place of workloads
//! ```
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
mod catalogue;
mod contenders;
mod counted;
mod peers;
mod report;
mod targets;
mod workloads;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use catalogue::Entry;
use contenders::Contender;
use gpu::device::{self, cuMemsetD8Async};
use gpu::{check, Gpu, Outcome};
use report::{Report, Series};
use windrow::{Engine, Fields, Tensor};
use workloads::{Set, Workload};

/// All sets of a workload together: several times any L2.
const COLD_BYTES: u64 = 300_000_000;

/// The bytes of outputs before they are written.
const POISON: u8 = 0xA5;

#[derive(Default)]
struct Options {
    quick: bool,
    sweep: bool,
    count: bool,
    pairs: bool,
    scale: Option<usize>,
    only: Option<String>,
    json: Option<String>,
    table: Option<String>,
}

impl Options {
    /// The workloads that are asked for.
    fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let is_wanted = |entry: &Entry| {
            let is_named = self.only.as_ref().is_none_or(|only| entry.name().contains(only));
            is_named && (!self.sweep || catalogue::is_swept(entry))
        };
        catalogue::all(if self.quick { 64 } else { 1 }).into_iter().filter(is_wanted)
    }
}

fn options() -> Option<Options> {
    let mut options = Options::default();
    let mut is_bench = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => is_bench = true,
            "--quick" => options.quick = true,
            "--sweep" => options.sweep = true,
            "--count" => options.count = true,
            "--pairs" => options.pairs = true,
            "--scale" => options.scale = arguments.next().and_then(|text| text.parse().ok()),
            "--only" => options.only = arguments.next(),
            "--json" => options.json = arguments.next(),
            "--table" => options.table = arguments.next(),
            _ => eprintln!("unknown argument {argument}"),
        }
    }
    // `cargo test --all-targets` starts benches too, without the flag.
    is_bench.then_some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else { return ExitCode::SUCCESS };
    let Some(engine) = device::engine() else { return ExitCode::SUCCESS };
    let done = if options.count {
        let scale = counted::Scale(options.scale.unwrap_or(1).max(1));
        counted::run(engine, options.only.as_deref(), scale, options.pairs)
    } else {
        run(engine, &options)
    };
    match done {
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
    for entry in options.entries() {
        let workload = entry.make();
        let count = match options.quick {
            true => 2,
            false => COLD_BYTES.div_ceil(workload.set_bytes()).clamp(2, 512) as usize,
        };
        let sets = (0..count).map(|_| workload.set(true)).collect::<Result<Vec<_>, _>>()?;
        let (contenders, absent) = contenders::of(&gpu, engine, &workload, &sets, options.sweep);
        let before = engine.stats();
        verify(&gpu, engine, &workload, &sets[0], &contenders[..1])?;
        // `verify` makes two batches.
        let calls = |now: u64, before: u64| (now - before) / 2;
        let launches = calls(engine.stats().launches, before.launches);
        let uploaded = calls(engine.stats().bytes_to_device, before.bytes_to_device);
        report.begin(&entry, &workload, &absent, launches, uploaded);
        verify(&gpu, engine, &workload, &sets[0], &contenders[1..])?;
        for is_cold in [true, false].into_iter().filter(|is_cold| *is_cold || !options.sweep) {
            for series in measure(&gpu, &sets, &contenders, &workload, is_cold, options.quick)? {
                report.add(series);
            }
        }
        verify(&gpu, engine, &workload, &sets[0], &contenders[..1])?;
        report.save(options.json.as_deref())?;
    }
    report.finish(options.json.as_deref(), options.table.as_deref())
}

/// Compares every output, and what windrow gives besides, with the host engine's batches.
fn verify(
    gpu: &Gpu,
    engine: &Engine,
    workload: &Workload,
    set: &Set,
    contenders: &[Contender<'_>],
) -> Outcome {
    for contender in contenders.iter().filter(|contender| contender.is_batch) {
        poison(gpu, set)?;
        (contender.run)(set)?;
        gpu.synchronize()?;
        same_data(workload, set, contender.name)?;
    }
    if contenders.first().is_none_or(|contender| contender.name != contenders::WINDROW) {
        return Ok(());
    }
    let all = contenders::windrow(gpu, engine, workload, set, &set.samples)?;
    gpu.synchronize()?;
    same_fields(workload, &all)
}

fn poison(gpu: &Gpu, set: &Set) -> Outcome {
    // SAFETY: the set's own output.
    let code = unsafe { cuMemsetD8Async(set.out.address, POISON, set.out.len, gpu.stream) };
    check("cuMemsetD8Async", code)
}

fn same_data(workload: &Workload, set: &Set, name: &str) -> Outcome {
    for ((part, expected), out) in workload.parts.iter().zip(&workload.expected).zip(&set.out_at) {
        let got = device::read(*out, expected.data().nbytes());
        same(part.path, name, expected.data(), &got)?;
    }
    Ok(())
}

/// The tensors of a batch beside its data.
fn same_fields(workload: &Workload, all: &[Fields]) -> Outcome {
    for ((part, expected), fields) in workload.parts.iter().zip(&workload.expected).zip(all) {
        for (name, want, got) in [
            ("mask", expected.mask(), &fields.mask),
            ("lengths", expected.lengths(), &fields.lengths),
            ("offsets", expected.offsets(), &fields.offsets),
            ("batch_index", expected.batch_index(), &fields.batch_index),
        ] {
            if let (Some(want), Some(got)) = (want, got) {
                let got = device::read(got.data_ptr().addr() as u64, got.nbytes());
                same(part.path, name, want, &got)?;
            }
        }
    }
    Ok(())
}

fn same(path: &str, name: &str, want: &Tensor, got: &[u8]) -> Outcome {
    // SAFETY: a tensor of the host engine, row-major.
    let want = unsafe { std::slice::from_raw_parts(want.data_ptr(), want.nbytes()) };
    if want == got {
        return Ok(());
    }
    let at = want.iter().zip(got).position(|(want, got)| want != got);
    Err(format!("{name} gives a wrong batch {path}, from byte {at:?} on"))
}

fn measure(
    gpu: &Gpu,
    sets: &[Set],
    contenders: &[Contender<'_>],
    workload: &Workload,
    is_cold: bool,
    quick: bool,
) -> Result<Vec<Series>, String> {
    // Slow ones, such as a driver call for each of 100 000 samples, run less often.
    let (repeats, fewest, budget) = match quick {
        true => (2, 2, Duration::ZERO),
        false => (60, 3, Duration::from_millis(400)),
    };
    let overlaps = !workload.is_pinned();
    let mut all = Vec::new();
    let mut turn = 0;
    for contender in contenders {
        let mut host_us = 0.0;
        for _ in 0..3 {
            host_us = gpu.timed(0.0, &|| (contender.run)(&sets[0]))?.host_us;
            if quick || host_us > 50_000.0 {
                break;
            }
        }
        all.push((Series::new(contender, is_cold), host_us, Duration::ZERO));
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
