//! The options of the command line.

use std::str::FromStr;
use std::time::{Duration, Instant};

use super::catalogue::{self, Entry};

#[derive(Default)]
pub struct Options {
    pub quick: bool,
    pub warm: bool,
    pub count: bool,
    pub pairs: bool,
    pub scale: Option<usize>,
    only: Vec<String>,
    pub budget: Option<f64>,
    pub trials: Option<String>,
    pub images: Option<String>,
    pub json: Option<String>,
    pub table: Option<String>,
}

impl Options {
    /// The options of this process. None without `--bench`: `cargo test --all-targets` starts benches too.
    pub fn from_command_line() -> Result<Option<Options>, String> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        match arguments.iter().any(|argument| argument == "--bench") {
            true => Options::from_arguments(arguments).map(Some),
            false => Ok(None),
        }
    }

    fn from_arguments(arguments: Vec<String>) -> Result<Options, String> {
        let mut options = Options::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} wants a value"));
            match argument.as_str() {
                "--bench" => {}
                "--quick" => options.quick = true,
                "--warm" => options.warm = true,
                "--count" => options.count = true,
                "--pairs" => options.pairs = true,
                "--scale" => options.scale = Some(number(&argument, &value()?)?),
                "--only" => options.only.push(value()?),
                "--budget" => options.budget = Some(number(&argument, &value()?)?),
                "--trials" => options.trials = Some(value()?),
                "--images" => options.images = Some(value()?),
                "--json" => options.json = Some(value()?),
                "--table" => options.table = Some(value()?),
                _ => return Err(format!("unknown argument {argument}")),
            }
        }
        Ok(options)
    }

    /// Whether a name has one of the texts of `--only`, if there are any.
    pub fn is_wanted(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.contains(only))
    }

    /// The workloads that are asked for.
    pub fn entries(&self) -> Result<Vec<Entry>, String> {
        let mut entries = catalogue::all(if self.quick { 64 } else { 1 });
        entries.retain(|entry| {
            self.is_wanted(&entry.name()) && (self.trials.is_none() || catalogue::is_tried(entry))
        });
        match entries.is_empty() {
            true => Err(format!("no workload has a name with one of {:?}", self.only)),
            false => Ok(entries),
        }
    }
}

fn number<T: FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{name} {text}: a number is missing"))
}

/// The time there is, since the program began.
pub struct Budget {
    start: Instant,
    seconds: Option<f64>,
    /// When the last workload began, and how long the longest took.
    begin: Instant,
    longest: Duration,
}

impl Budget {
    pub fn new(seconds: Option<f64>) -> Budget {
        let now = Instant::now();
        Budget { start: now, seconds, begin: now, longest: Duration::ZERO }
    }

    /// Whether a workload may begin now: it would end in time if it took as long as the longest, which is one of the first.
    pub fn begin(&mut self) -> bool {
        self.begin = Instant::now();
        let end = self.begin - self.start + self.longest;
        self.seconds.is_none_or(|seconds| end.as_secs_f64() <= seconds)
    }

    /// It has ended.
    pub fn end(&mut self) {
        self.longest = self.longest.max(self.begin.elapsed());
    }
}
