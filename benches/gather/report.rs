//! Tables and JSON.

use std::process::Command;

use super::catalogue::Entry;
use super::contenders::{Contender, BUS_COPY, COPY, COPY16, EMPTY, WINDROW};
use super::gpu::{describe, Outcome, Timed};
use super::options::Options;
use super::targets::{self, Target};
use super::trials::Trials;
use super::workloads::{Lie, Workload};

/// Runs of one contender.
pub struct Series {
    pub name: String,
    pub is_cold: bool,
    /// The contender's output is the batch.
    pub is_batch: bool,
    runs: Vec<Timed>,
}

impl Series {
    pub fn new(contender: &Contender<'_>, is_cold: bool) -> Series {
        let Contender { name, is_batch, .. } = *contender;
        Series { name: name.to_owned(), is_cold, is_batch, runs: Vec::new() }
    }

    pub fn push(&mut self, timed: Timed) {
        self.runs.push(timed);
    }

    /// 10th, 50th and 90th percentile.
    fn spread(&self, of: impl Fn(&Timed) -> f64) -> [f64; 3] {
        let mut values: Vec<f64> = self.runs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1) as f64;
        [0.1, 0.5, 0.9]
            .map(|part| values.get((part * last).round() as usize).copied().unwrap_or(0.0))
    }

    pub fn device_us(&self) -> [f64; 3] {
        self.spread(|run| run.device_us)
    }

    pub fn host_us(&self) -> [f64; 3] {
        self.spread(|run| run.host_us)
    }

    fn late(&self) -> usize {
        self.runs.iter().filter(|run| run.late).count()
    }
}

/// One workload.
pub struct Block {
    pub family: &'static str,
    pub title: String,
    pub lie: Lie,
    pub name: String,
    pub num_samples: usize,
    pub bytes_moved: u64,
    num_leaves: usize,
    source_bytes: u64,
    /// The launches of one call of windrow.
    pub launches: u64,
    uploaded: u64,
    absent: Vec<String>,
    pub series: Vec<Series>,
}

impl Block {
    pub fn series(&self, name: &str, is_cold: bool) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name && series.is_cold == is_cold)
    }

    pub fn median(&self, name: &str, is_cold: bool) -> Option<f64> {
        self.series(name, is_cold).map(|series| series.device_us()[1])
    }

    /// How much of the speed of a plain copy a contender reaches.
    pub fn share(&self, name: &str, of: &str, is_cold: bool) -> Option<f64> {
        Some(self.median(of, is_cold)? / self.median(name, is_cold)?)
    }

    /// The same of the better of a copy by the driver and one by a kernel; over the bus, of the former.
    pub fn share_of_roof(&self, name: &str, is_cold: bool) -> Option<f64> {
        let share = |copy| self.share(name, copy, is_cold);
        let copies = [share(COPY), share(COPY16).filter(|_| self.lie != Lie::Pinned)];
        copies.into_iter().flatten().min_by(f64::total_cmp).or_else(|| share(BUS_COPY))
    }

    fn print(&self) {
        let megabytes = self.bytes_moved as f64 / 1e6;
        println!(
            "\n{} ({} samples, {megabytes:.1} MB; launches {}, bytes to the device {})",
            self.name, self.num_samples, self.launches, self.uploaded
        );
        for reason in &self.absent {
            println!("  left out: {reason}");
        }
        println!(
            "  {:<34} {:<5} {:>10} {:>21} {:>8} {:>8} {:>10} {:>5} {:>5}",
            "", "L2", "median us", "p10..p90", "GB/s", "of roof", "host us", "runs", "late"
        );
        for series in &self.series {
            let [low, median, high] = series.device_us();
            let (speed, share) = match series.name.as_str() {
                EMPTY => (String::new(), String::new()),
                name => (
                    format!("{:.0}", self.bytes_moved as f64 / median / 1e3),
                    self.share_of_roof(name, series.is_cold)
                        .map_or(String::new(), |s| format!("{s:.3}")),
                ),
            };
            println!(
                "  {:<34} {:<5} {median:>10.1} {:>21} {speed:>8} {share:>8} {:>10.1} {:>5} {:>5}",
                series.name,
                if series.is_cold { "cold" } else { "warm" },
                format!("{low:.1}..{high:.1}"),
                series.host_us()[1],
                series.runs.len(),
                series.late(),
            );
        }
    }

    /// A line for scripts without a JSON reader: name, percentiles of windrow's cold runs, median of a copy.
    fn line(&self) -> Option<String> {
        let [low, median, high] = self.series(WINDROW, true)?.device_us();
        let copy = self.median(COPY, true).unwrap_or_default();
        Some(format!("{}\t{low:.3}\t{median:.3}\t{high:.3}\t{copy:.3}\n", self.name))
    }

    fn json(&self) -> String {
        let series = |series: &Series| {
            let [low, median, high] = series.device_us();
            let [host_low, host, host_high] = series.host_us();
            let told =
                |ratio: Option<f64>| ratio.map_or("null".into(), |ratio| format!("{ratio:.4}"));
            // Above 1: windrow is faster by this factor.
            let ours = self.share(WINDROW, &series.name, series.is_cold);
            format!(
                "{{\"name\": {}, \"is_batch\": {}, \"cold\": {}, \"runs\": {}, \"late\": {}, \
                 \"device_us\": [{low:.3}, {median:.3}, {high:.3}], \
                 \"host_us\": [{host_low:.3}, {host:.3}, {host_high:.3}], \
                 \"of_roof\": {}, \"over_windrow\": {}}}",
                text(&series.name),
                series.is_batch,
                series.is_cold,
                series.runs.len(),
                series.late(),
                told(self.share_of_roof(&series.name, series.is_cold)),
                told(ours),
            )
        };
        let all: Vec<String> = self.series.iter().map(series).collect();
        let absent: Vec<String> = self.absent.iter().map(|reason| text(reason)).collect();
        format!(
            "  {{\"family\": {}, \"title\": {}, \"lie\": {}, \"samples\": {}, \"leaves\": {}, \
             \"bytes\": {}, \"source_bytes\": {}, \"launches\": {}, \"bytes_to_device\": {}, \
             \"absent\": [{}], \"series\": [\n    {}]}}",
            text(self.family),
            text(&self.title),
            text(self.lie.label()),
            self.num_samples,
            self.num_leaves,
            self.bytes_moved,
            self.source_bytes,
            self.launches,
            self.uploaded,
            absent.join(", "),
            all.join(",\n    ")
        )
    }
}

/// All workloads, and where they were run.
pub struct Report<'a> {
    options: &'a Options,
    trials: Option<&'a Trials>,
    /// Few runs or no GPU: nothing is judged.
    quick: bool,
    machine: Vec<(&'static str, String)>,
    blocks: Vec<Block>,
    /// The contenders that gave a wrong batch.
    wrong: Vec<String>,
    /// Workloads that there was no time for.
    left_out: Vec<String>,
}

impl<'a> Report<'a> {
    pub fn new(options: &'a Options, trials: Option<&'a Trials>) -> Report<'a> {
        let (gpu, driver_cuda, num_sms, l2) = describe();
        let quick = options.quick || gpu.starts_with("cudasim");
        let image = std::env::var("WINDROW_CUDA_IMAGE").ok();
        let image = image.map(|path| path.rsplit('/').next().unwrap_or_default().to_owned());
        let machine = vec![
            ("gpu", gpu),
            ("cuda of the driver", driver_cuda),
            ("multiprocessors", num_sms.to_string()),
            ("L2 bytes", l2.to_string()),
            ("driver", smi("driver_version")),
            ("clocks at the start (SM, memory)", smi("clocks.sm,clocks.mem")),
            ("power limit", smi("power.limit")),
            ("date", said(Command::new("date").args(["-u", "+%F"]))),
            ("commit", std::env::var("WINDROW_COMMIT").unwrap_or_else(|_| "not told".into())),
            ("WINDROW_CUDA_POLICY", std::env::var("WINDROW_CUDA_POLICY").unwrap_or_default()),
            ("WINDROW_CUDA_IMAGE", image.unwrap_or_default()),
        ];
        for (key, value) in &machine {
            println!("{key}: {value}");
        }
        if quick {
            println!("--quick or a simulated driver: these times mean nothing.");
        }
        for (name, reason) in trials.map_or(&[][..], Trials::skipped) {
            println!("SKIP {name}: {reason}");
        }
        let (blocks, wrong, left_out) = Default::default();
        Report { options, trials, quick, machine, blocks, wrong, left_out }
    }

    pub fn begin(
        &mut self,
        entry: &Entry,
        workload: &Workload,
        absent: &[String],
        launches: u64,
        uploaded: u64,
    ) {
        if let Some(block) = self.blocks.last() {
            block.print();
        }
        self.blocks.push(Block {
            family: entry.family,
            title: entry.title.clone(),
            lie: entry.lie,
            name: entry.name(),
            num_samples: workload.num_samples(),
            bytes_moved: workload.bytes_moved(),
            num_leaves: workload.parts.len(),
            source_bytes: workload.source_bytes(),
            launches,
            uploaded,
            absent: absent.to_vec(),
            series: Vec::new(),
        });
    }

    pub fn add(&mut self, series: Series) {
        if let Some(block) = self.blocks.last_mut() {
            block.series.push(series);
        }
    }

    /// Outputs of the last workload that differ from the host engine's.
    pub fn wrong(&mut self, wrong: Vec<String>) {
        let name = self.blocks.last().map_or("", |block| &block.name);
        self.wrong.extend(wrong.iter().map(|wrong| format!("{name}: {wrong}")));
    }

    /// The names of workloads that were not begun.
    pub fn left_out(&mut self, names: Vec<String>) {
        self.left_out = names;
    }

    fn targets(&self) -> Vec<Target> {
        match self.trials {
            Some(_) => Vec::new(),
            None => targets::from_blocks(&self.blocks),
        }
    }

    /// # Errors
    /// If a batch was wrong.
    pub fn finish(mut self) -> Outcome {
        if let Some(block) = self.blocks.last() {
            block.print();
        }
        self.machine.push(("clocks at the end (SM, memory)", smi("clocks.sm,clocks.mem")));
        if let Some(path) = &self.options.table {
            let lines = match self.trials {
                Some(trials) => trials.table(&self.blocks),
                None => self.blocks.iter().filter_map(Block::line).collect(),
            };
            write(path, &lines)?;
        }
        match self.trials {
            Some(trials) => print!("\n{}", trials.summary(&self.blocks)),
            None => println!(
                "\nTargets, judged on medians{}",
                if self.quick { ": not these" } else { "" }
            ),
        }
        for target in &self.targets() {
            println!("  {}", target.line(self.quick));
        }
        if let ([first, ..], Some(seconds)) = (&self.left_out[..], self.options.budget) {
            let count = self.left_out.len();
            println!("\nNo time was left of {seconds} s for {count} workloads, from {first:?} on.");
        }
        self.save()?;
        match self.wrong.is_empty() {
            true => Ok(()),
            false => Err(self.wrong.join("; ")),
        }
    }

    /// Writes all figures so far, so that a run that is stopped keeps them.
    pub fn save(&self) -> Outcome {
        let Some(path) = &self.options.json else { return Ok(()) };
        let machine: Vec<String> = self
            .machine
            .iter()
            .map(|(key, value)| format!("{}: {}", text(key), text(value)))
            .collect();
        let blocks: Vec<String> = self.blocks.iter().map(Block::json).collect();
        let targets = self.targets();
        let targets: Vec<String> = targets.iter().map(|target| target.json(self.quick)).collect();
        let texts =
            |all: &[String]| all.iter().map(|one| text(one)).collect::<Vec<String>>().join(", ");
        let all = format!(
            "{{\"times_mean_nothing\": {}, \"machine\": {{{}}},\n{}\"workloads\": [\n{}],\n\
             \"targets\": [\n  {}],\n\"wrong\": [{}], \"left_out\": [{}]}}\n",
            self.quick,
            machine.join(", "),
            self.trials.map(Trials::json).unwrap_or_default(),
            blocks.join(",\n"),
            targets.join(",\n  "),
            texts(&self.wrong),
            texts(&self.left_out)
        );
        write(path, &all)
    }
}

fn write(path: &str, text: &str) -> Outcome {
    std::fs::write(path, text).map_err(|error| format!("{path}: {error}"))
}

/// A string of JSON.
pub fn text(plain: &str) -> String {
    let mut quoted = String::from("\"");
    for character in plain.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            c if c.is_control() => quoted.push(' '),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

/// Within 20 seconds: a GPU that has fallen off the bus lets nvidia-smi wait without end.
fn smi(query: &str) -> String {
    said(Command::new("timeout").args([
        "20",
        "nvidia-smi",
        &format!("--query-gpu={query}"),
        "--format=csv,noheader",
        "-i",
        "0",
    ]))
}

fn said(command: &mut Command) -> String {
    match command.output() {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "not told".into(),
    }
}
