//! windrow with other numbers beside itself: of each trial of a file an engine, all of them in this process and timed in turn,
//! with the policy's own numbers first and last. What the last takes over the first is the drift.
//!
//! The file has a trial a line: a name, what its kernels are compiled with (`-` for nothing) and what goes over the policy's
//! numbers (`-` for nothing), as scripts/gpu/runner/trials.txt. Kernels of a trial are in `DIR/NAME.fatbin`, where `--images`
//! names DIR; without them it is skipped. The JSON is that of the bench, in which a trial is a contender, with the trials and
//! the skipped ones besides. The table has a line for each trial of each workload: both names, the median in
//! microseconds, its ratio to the mean of the own ones', and the drift. Of the workloads a choice is timed.

use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use windrow::Engine;

use super::contenders::{self, Contender, COPY, WINDROW};
use super::gpu::Gpu;
use super::report::{text, Block};
use super::workloads::Workload;

/// The policy's own numbers, behind all trials.
const AGAIN: &str = "windrow, again";

/// One engine, by numbers of its own.
struct Trial {
    name: String,
    flags: String,
    policy: String,
    engine: Engine,
}

/// All of a file.
pub struct Trials {
    all: Vec<Trial>,
    again: Engine,
    /// The trials that cannot be run here, and why.
    skipped: Vec<(String, String)>,
}

impl Trials {
    pub fn read(file: &str, images: Option<&str>) -> Result<Trials, String> {
        let lines = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
        let (mut all, mut skipped) = (Vec::new(), Vec::new());
        for line in lines.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, flags, policy] = match words[..] {
                [name, flags, policy] if !name.starts_with('#') => [name, flags, policy],
                [] => continue,
                [first, ..] if first.starts_with('#') => continue,
                _ => return Err(format!("{file}: a name, flags and a policy, not {line:?}")),
            };
            let image = match flags {
                "-" => Ok(None),
                _ => image(name, images).map(Some),
            };
            let engine = match &image {
                Err(reason) => Err(reason.clone()),
                Ok(image) => engine(policy, image.as_deref()),
            };
            match engine {
                Ok(engine) => all.push(Trial {
                    name: name.to_owned(),
                    flags: flags.to_owned(),
                    policy: policy.to_owned(),
                    engine,
                }),
                // Kernels of other architectures.
                Err(reason) if flags != "-" => skipped.push((name.to_owned(), reason)),
                Err(error) => return Err(format!("{name}: {error}")),
            }
        }
        Ok(Trials { all, again: engine("-", None)?, skipped })
    }

    pub fn skipped(&self) -> &[(String, String)] {
        &self.skipped
    }

    /// All of them, and a copy; the first is `baseline`.
    pub fn contenders<'a>(
        &'a self,
        gpu: &'a Gpu,
        baseline: &'a Engine,
        workload: &'a Workload,
    ) -> Vec<Contender<'a>> {
        let by = |engine, name| contenders::by(gpu, engine, workload, name);
        let trials = self.all.iter().map(|trial| by(&trial.engine, &trial.name));
        let last = [by(&self.again, AGAIN), contenders::one_copy(gpu, workload)];
        [by(baseline, WINDROW)].into_iter().chain(trials).chain(last).collect()
    }

    /// Trial, its time and its ratio to the policy's own, of each that a workload was timed with.
    fn ratios<'b>(&'b self, block: &'b Block, baseline: &Baseline) -> Vec<(&'b str, f64, f64)> {
        let baseline_us = baseline.us;
        let of = |name: &'b str| {
            let us = block.median(name, true)?;
            Some((name, us, us / baseline_us))
        };
        self.all.iter().filter_map(|trial| of(&trial.name)).collect()
    }

    pub fn table(&self, blocks: &[Block]) -> String {
        let mut lines = String::from("trial\tworkload\tmedian us\tratio to own\tdrift\n");
        for (block, baseline) in
            blocks.iter().filter_map(|block| Some((block, Baseline::from_block(block)?)))
        {
            let mut all = self.ratios(block, &baseline);
            all.insert(0, ("own", baseline.us, 1.0));
            for (trial, us, ratio) in all {
                let drift = baseline.drift;
                let name = &block.name;
                let _ = writeln!(lines, "{trial}\t{name}\t{us:.3}\t{ratio:.4}\t{drift:.4}");
            }
        }
        lines
    }

    /// The best trial of each workload, with a star where nine of ten of its runs were faster than nine of ten of either own
    /// ones; and of each trial the geometric mean of its ratios.
    pub fn summary(&self, blocks: &[Block]) -> String {
        let mut lines = format!(
            "{:<62} {:>10} {:>7} {:>6}  {:<14} {:>7}\n",
            "", "own us", "of copy", "drift", "best", "ratio"
        );
        let mut logs = vec![(0.0, 0); self.all.len()];
        for (block, baseline) in
            blocks.iter().filter_map(|block| Some((block, Baseline::from_block(block)?)))
        {
            let ratios = self.ratios(block, &baseline);
            for (trial, _, ratio) in &ratios {
                let index = self.all.iter().position(|one| one.name == *trial);
                let (sum, count) = &mut logs[index.expect("one of all")];
                *sum += ratio.ln();
                *count += 1;
            }
            let best = ratios.iter().min_by(|a, b| a.2.total_cmp(&b.2));
            let best = best.map_or_else(Default::default, |(trial, _, ratio)| {
                let high = block.series(trial, true).map_or(f64::INFINITY, |s| s.device_us()[2]);
                let star = if high < baseline.low { "*" } else { "" };
                format!("{trial:<14} {:>7}", format!("{ratio:.3}{star}"))
            });
            let copy = block.median(COPY, true).map_or(0.0, |copy| copy / baseline.us);
            let Baseline { us, drift, .. } = baseline;
            let name: String = block.name.chars().take(62).collect();
            let _ = writeln!(lines, "{name:<62} {us:>10.1} {copy:>7.3} {drift:>6.3}  {best}");
        }
        let trials = self.all.iter().zip(&logs).filter(|(_, (_, count))| *count > 0);
        let mut means: Vec<(f64, &str)> = trials
            .map(|(trial, (sum, count))| ((sum / f64::from(*count)).exp(), trial.name.as_str()))
            .collect();
        means.sort_by(|a, b| a.0.total_cmp(&b.0));
        let _ = writeln!(lines, "All workloads, geometric mean:");
        for some in means.chunks(6) {
            let some = some.iter().map(|(mean, trial)| format!("{trial} {mean:.3}"));
            let _ = writeln!(lines, "  {}", some.collect::<Vec<String>>().join(", "));
        }
        lines
    }

    /// Members of an object.
    pub fn json(&self) -> String {
        let trial = |trial: &Trial| {
            let Trial { name, flags, policy, .. } = trial;
            let [name, flags, policy] = [name, flags, policy].map(|one| text(one));
            format!("{{\"name\": {name}, \"flags\": {flags}, \"policy\": {policy}}}")
        };
        let skip = |(name, reason): &(String, String)| {
            format!("{{\"name\": {}, \"reason\": {}}}", text(name), text(reason))
        };
        let trials: Vec<String> = self.all.iter().map(trial).collect();
        let skipped: Vec<String> = self.skipped.iter().map(skip).collect();
        format!("\"trials\": [{}],\n\"skipped\": [{}],\n", trials.join(", "), skipped.join(", "))
    }
}

/// The policy's own numbers, first and last.
struct Baseline {
    us: f64,
    drift: f64,
    /// The fastest tenth of either ends here.
    low: f64,
}

impl Baseline {
    fn from_block(block: &Block) -> Option<Baseline> {
        let [first, last] = [WINDROW, AGAIN].map(|name| block.series(name, true));
        let [first, last] = [first?.device_us(), last?.device_us()];
        let us = (first[1] + last[1]) / 2.0;
        Some(Baseline { us, drift: last[1] / first[1], low: first[0].min(last[0]) })
    }
}

fn image(name: &str, images: Option<&str>) -> Result<PathBuf, String> {
    let folder = images.ok_or("it has kernels of its own, and there is no --images")?;
    let path = Path::new(folder).join(format!("{name}.fatbin"));
    match path.is_file() {
        true => Ok(path),
        false => Err(format!("no {}", path.display())),
    }
}

/// An engine by numbers that go over those of the environment, and by kernels of its own, if there is an image.
pub fn engine(policy: &str, image: Option<&Path>) -> Result<Engine, String> {
    const NUMBERS: &str = "WINDROW_CUDA_POLICY";
    const IMAGE: &str = "WINDROW_CUDA_IMAGE";
    // Both are read while an engine is made. No other thread is at work.
    let before = [NUMBERS, IMAGE].map(env::var_os);
    if policy != "-" {
        let numbers =
            env::var(NUMBERS).map_or_else(|_| String::new(), |numbers| format!("{numbers},"));
        env::set_var(NUMBERS, numbers + policy);
    }
    if let Some(image) = image {
        env::set_var(IMAGE, image);
    }
    let engine = Engine::cuda(0).map_err(|error| error.to_string());
    for (name, value) in [NUMBERS, IMAGE].into_iter().zip(before) {
        match value {
            Some(value) => env::set_var(name, value),
            None => env::remove_var(name),
        }
    }
    engine
}
