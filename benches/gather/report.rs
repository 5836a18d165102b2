//! Tables, verdicts, JSON.

use std::fmt::Write as _;
use std::process::Command;

use super::contenders::{BATCH, BUS_COPY, COPY, COPY16, DIRECT, EMPTY, RING, WINDROW};
use super::gpu::{describe, Outcome, Timed};
use super::workloads::Workload;

/// Runs of one contender.
pub struct Series {
    pub name: &'static str,
    pub is_cold: bool,
    runs: Vec<Timed>,
}

impl Series {
    pub fn new(name: &'static str, is_cold: bool) -> Series {
        Series { name, is_cold, runs: Vec::new() }
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

    fn device_us(&self) -> [f64; 3] {
        self.spread(|run| run.device_us)
    }

    fn host_us(&self) -> [f64; 3] {
        self.spread(|run| run.host_us)
    }

    fn late(&self) -> usize {
        self.runs.iter().filter(|run| run.late).count()
    }
}

struct Block {
    name: String,
    num_samples: usize,
    bytes_moved: u64,
    absent: Vec<String>,
    series: Vec<Series>,
}

impl Block {
    fn series(&self, name: &str, is_cold: bool) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name && series.is_cold == is_cold)
    }

    fn median(&self, name: &str, is_cold: bool) -> Option<f64> {
        self.series(name, is_cold).map(|series| series.device_us()[1])
    }

    /// How much of the speed of a plain copy a contender reaches.
    fn share(&self, name: &str, of: &str, is_cold: bool) -> Option<f64> {
        Some(self.median(of, is_cold)? / self.median(name, is_cold)?)
    }

    fn share_of_copy(&self, name: &str, is_cold: bool) -> Option<f64> {
        let share = |copy| self.share(name, copy, is_cold);
        share(COPY).or_else(|| share(BUS_COPY))
    }

    fn print(&self) {
        let megabytes = self.bytes_moved as f64 / 1e6;
        println!("\n{} ({} samples, {megabytes:.1} MB)", self.name, self.num_samples);
        for reason in &self.absent {
            println!("  left out: {reason}");
        }
        println!(
            "  {:<34} {:<5} {:>10} {:>21} {:>8} {:>8} {:>10} {:>5} {:>5}",
            "", "L2", "median us", "p10..p90", "GB/s", "of copy", "host us", "runs", "late"
        );
        for series in &self.series {
            let [low, median, high] = series.device_us();
            let (speed, share) = match series.name {
                EMPTY => (String::new(), String::new()),
                name => (
                    format!("{:.0}", self.bytes_moved as f64 / median / 1e3),
                    self.share_of_copy(name, series.is_cold)
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

    fn json(&self) -> String {
        let series = |series: &Series| {
            let [low, median, high] = series.device_us();
            let [host_low, host, host_high] = series.host_us();
            let told =
                |ratio: Option<f64>| ratio.map_or("null".into(), |ratio| format!("{ratio:.4}"));
            // Above 1: windrow is faster by this factor.
            let ours = self.share(WINDROW, series.name, series.is_cold);
            format!(
                "{{\"name\": {}, \"cold\": {}, \"runs\": {}, \"late\": {}, \
                 \"device_us\": [{low:.3}, {median:.3}, {high:.3}], \
                 \"host_us\": [{host_low:.3}, {host:.3}, {host_high:.3}], \
                 \"of_copy\": {}, \"of_copy_kernel\": {}, \"over_windrow\": {}}}",
                text(series.name),
                series.is_cold,
                series.runs.len(),
                series.late(),
                told(self.share_of_copy(series.name, series.is_cold)),
                told(self.share(series.name, COPY16, series.is_cold)),
                told(ours),
            )
        };
        let all: Vec<String> = self.series.iter().map(series).collect();
        let absent: Vec<String> = self.absent.iter().map(|reason| text(reason)).collect();
        format!(
            "  {{\"name\": {}, \"samples\": {}, \"bytes\": {}, \"absent\": [{}], \"series\": [\n    {}]}}",
            text(&self.name),
            self.num_samples,
            self.bytes_moved,
            absent.join(", "),
            all.join(",\n    ")
        )
    }
}

/// All workloads, and where they were run.
pub struct Report {
    /// Few runs or no GPU: nothing is judged.
    quick: bool,
    machine: Vec<(&'static str, String)>,
    blocks: Vec<Block>,
}

impl Report {
    pub fn new(quick: bool) -> Report {
        let (gpu, driver_cuda, num_sms, l2) = describe();
        let quick = quick || gpu.starts_with("cudasim");
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
        ];
        for (key, value) in &machine {
            println!("{key}: {value}");
        }
        if quick {
            println!("--quick or a simulated driver: these times mean nothing.");
        }
        Report { quick, machine, blocks: Vec::new() }
    }

    pub fn begin(&mut self, workload: &Workload, absent: &[String]) {
        if let Some(block) = self.blocks.last() {
            block.print();
        }
        self.blocks.push(Block {
            name: workload.name.clone(),
            num_samples: workload.num_samples(),
            bytes_moved: workload.bytes_moved,
            absent: absent.to_vec(),
            series: Vec::new(),
        });
    }

    pub fn add(&mut self, series: Series) {
        if let Some(block) = self.blocks.last_mut() {
            block.series.push(series);
        }
    }

    pub fn finish(mut self, json: Option<&str>) -> Outcome {
        if let Some(block) = self.blocks.last() {
            block.print();
        }
        self.machine.push(("clocks at the end (SM, memory)", smi("clocks.sm,clocks.mem")));
        let targets = self.targets();
        println!("\nTargets, judged on medians{}", if self.quick { ": not these" } else { "" });
        for target in &targets {
            println!("  {}", target.line(self.quick));
        }
        let Some(path) = json else { return Ok(()) };
        let machine: Vec<String> = self
            .machine
            .iter()
            .map(|(key, value)| format!("{}: {}", text(key), text(value)))
            .collect();
        let blocks: Vec<String> = self.blocks.iter().map(Block::json).collect();
        let targets: Vec<String> = targets.iter().map(|target| target.json(self.quick)).collect();
        let all = format!(
            "{{\"times_mean_nothing\": {}, \"machine\": {{{}}},\n\"workloads\": [\n{}],\n\"targets\": [\n  {}]}}\n",
            self.quick,
            machine.join(", "),
            blocks.join(",\n"),
            targets.join(",\n  ")
        );
        std::fs::write(path, all).map_err(|error| format!("{path}: {error}"))
    }

    /// What the project asks of itself.
    fn targets(&self) -> Vec<Target> {
        let mut all = Vec::new();
        for block in &self.blocks {
            let at_least = if block.name.contains("of 512 B") { 0.80 } else { 0.90 };
            if block.name.starts_with("64 MiB") && !block.name.ends_with("contiguous") {
                let found = block.share(WINDROW, COPY, true);
                all.push(Target::new(&block.name, "of a device copy, cold", at_least, true, found));
            }
            if let Some(of) = block.name.strip_suffix("scattered") {
                let control =
                    self.blocks.iter().find(|block| block.name == format!("{of}contiguous"));
                let control = control.and_then(|control| control.median(WINDROW, true));
                let ours = block.median(WINDROW, true);
                let found = control.zip(ours).map(|(control, ours)| ours / control);
                all.push(Target::new(&block.name, "times contiguous, cold", 1.05, false, found));
            }
            if block.name.starts_with("small") {
                let found = block.share(EMPTY, WINDROW, false);
                all.push(Target::new(
                    &block.name,
                    "times an empty launch, warm",
                    2.0,
                    false,
                    found,
                ));
            }
            for (other, what) in [
                (DIRECT, "times as fast as read by the kernel"),
                (RING, "times as fast as through the ring"),
                (BATCH, "times as fast as cuMemcpyBatchAsync"),
            ] {
                let found = block.share(WINDROW, other, true);
                if found.is_some() && block.series(BUS_COPY, true).is_some() {
                    all.push(Target::new(&block.name, what, 0.95, true, found));
                }
            }
            let bound = 10.0 + 0.02 * block.num_samples as f64;
            let found = block.series(WINDROW, true).map(|series| series.host_us()[1]);
            all.push(Target::new(&block.name, "us on the host a call", bound, false, found));
        }
        all
    }
}

struct Target {
    name: String,
    what: &'static str,
    bound: f64,
    at_least: bool,
    found: Option<f64>,
}

impl Target {
    fn new(
        name: &str,
        what: &'static str,
        bound: f64,
        at_least: bool,
        found: Option<f64>,
    ) -> Target {
        Target { name: name.into(), what, bound, at_least, found }
    }

    fn verdict(&self, quick: bool) -> &'static str {
        match self.found {
            None => "not measured",
            Some(_) if quick => "not judged",
            Some(found) if (found >= self.bound) == self.at_least || found == self.bound => {
                "reached"
            }
            Some(_) => "MISSED",
        }
    }

    fn line(&self, quick: bool) -> String {
        let mut line = format!("{:<12} {}: ", self.verdict(quick), self.name);
        let side = if self.at_least { "at least" } else { "at most" };
        let found = self.found.map_or("nothing".into(), |found| format!("{found:.3}"));
        let _ = write!(line, "{found} {}, wanted {side} {:.2}", self.what, self.bound);
        line
    }

    fn json(&self, quick: bool) -> String {
        format!(
            "{{\"workload\": {}, \"what\": {}, \"bound\": {}, \"at_least\": {}, \"found\": {}, \"verdict\": {}}}",
            text(&self.name),
            text(self.what),
            self.bound,
            self.at_least,
            self.found.map_or("null".into(), |found| format!("{found:.4}")),
            text(self.verdict(quick))
        )
    }
}

/// A string of JSON.
fn text(plain: &str) -> String {
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

fn smi(query: &str) -> String {
    said(Command::new("nvidia-smi").args([
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
