//! [`StreamingStores`]: which outputs are written around the caches on this machine.
//!
//! A store into a line that is in no cache reads the line first, only to write over it, and puts another out of the caches. A
//! streaming store does neither, but goes to memory at once. Which is faster depends on the machine and on how fast elements come:
//!
//! - *copies* have nothing between load and store. Intel's servers, from Ice Lake on, stop reading lines that are written as a whole
//!   once memory is the bottleneck, and there streaming stores lose. On Zen they win.
//! - *padded* rows begin anywhere, so that the ends of each are written by plain stores beside streaming ones.
//! - *computed* elements (casts, normalisation, transposition) come too slowly for the processor to find that out.
//!
//! | machine | copies | padded | computed | evidence |
//! |---|---|---|---|---|
//! | AMD EPYC, Zen 4, 32 MB of L3 | 32 MiB | 32 MiB | 32 MiB | 51 MB in rows of 2 KiB 5.4 ms, plain 7.6; docs/performance-method.md |
//! | Intel Xeon, Sapphire and Emerald Rapids | never | never | 32 MiB | 38.5 MB stacked 2.3 to 2.6 ms, plain 1.4; 154 MB normalised 5.1 to 5.6, plain 8.9 |
//!
//! A server of Intel with AVX-512 and fast short `rep movsb` (Ice Lake and newer) has the row of the Xeon, any other machine that of the
//! EPYC.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;

use crate::host::machine::{as_file_name, Machine};
use crate::host::POLICY;
use crate::plan::page_copies::{read_limits, write_limits};
use crate::plan::{ElementOp, OutputPlan, Starts};
use crate::tensor::{Error, Result};

/// The smallest outputs, in bytes, that are written around the caches; `u64::MAX` for none. As text, `copies=never,padded=never,computed=33554432`.
///
/// ```
/// let stores: windrow::engine::StreamingStores = "copies=never,padded=never,computed=1048576".parse()?;
/// assert_eq!(stores.computed, 1 << 20);
/// # Ok::<(), windrow::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamingStores {
    /// The limit for bytes that are moved.
    pub copies: u64,
    /// The limit for rows with padding, and for masks.
    pub padded: u64,
    /// The limit for elements that are cast, transformed or permuted.
    pub computed: u64,
}

/// A policy, and who says so.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChosenStores {
    /// The policy.
    pub stores: StreamingStores,
    /// An environment variable, a file or the name of the processor.
    pub source: String,
    /// The environment variable or the file that is not followed, because it cannot be read, and why.
    pub refused: Option<String>,
}

const NEVER: u64 = u64::MAX;
const LARGE: u64 = POLICY.streaming_bytes;
const VARIABLE: &str = "WINDROW_STREAMING_STORES";

impl StreamingStores {
    /// All large outputs.
    #[cfg(test)]
    pub const ALL: StreamingStores =
        StreamingStores { copies: LARGE, padded: LARGE, computed: LARGE };

    /// Chooses by the name and features of the processor.
    fn for_machine(machine: &Machine) -> StreamingStores {
        let is_xeon =
            machine.vendor == "GenuineIntel" && machine.has("avx512f") && machine.has("fsrm");
        let of_others = if is_xeon { NEVER } else { LARGE };
        StreamingStores { copies: of_others, padded: of_others, computed: LARGE }
    }

    /// The policy of this process: of `WINDROW_STREAMING_STORES`, else of the file that `python -m windrow calibrate` writes, else by
    /// what the processor says of itself. A file that cannot be opened counts as missing. If the first of the two that is there
    /// has no policy, the processor decides, and `source` and `refused` say so. Read once.
    ///
    /// ```
    /// let chosen = windrow::engine::StreamingStores::chosen();
    /// println!("chosen by {}", chosen.source);
    /// ```
    pub fn chosen() -> &'static ChosenStores {
        static CHOSEN: OnceLock<ChosenStores> = OnceLock::new();
        CHOSEN.get_or_init(|| {
            let machine = Machine::current();
            let variable =
                std::env::var(VARIABLE).ok().map(|text| (VARIABLE.to_owned(), text.parse()));
            let file = || {
                let path = StreamingStores::file()?;
                let text = std::fs::read_to_string(&path).ok()?;
                Some((path.display().to_string(), stores_in_file(&text)))
            };
            match variable.or_else(file) {
                Some((source, Ok(stores))) => ChosenStores { stores, source, refused: None },
                Some((source, Err(error))) => {
                    let refused = format!("{source} is not read: {error}");
                    let source = format!("{}; {refused}", machine.name);
                    let stores = StreamingStores::for_machine(machine);
                    ChosenStores { stores, source, refused: Some(refused) }
                }
                None => ChosenStores {
                    stores: StreamingStores::for_machine(machine),
                    source: machine.name.clone(),
                    refused: None,
                },
            }
        })
    }

    /// The file of measurements of this machine: `WINDROW_CALIBRATION`, else `windrow/<processor>.json` in the user's cache folder.
    ///
    /// ```
    /// match windrow::engine::StreamingStores::file() {
    ///     Some(file) => println!("{}", file.display()),
    ///     None => println!("no home folder"),
    /// }
    /// ```
    pub fn file() -> Option<PathBuf> {
        calibration_file(&Machine::current().file_name())
    }

    /// Whether an output is written around the caches: it has at least the limit of its kind in bytes, and its rows are
    /// long enough. The caller checks that its memory was written before.
    pub(crate) fn are_for(&self, output: &OutputPlan<'_>) -> bool {
        let runs = match &output.ranges {
            Some(ranges) => ranges.len() as u64,
            None if output.bytes_only => output.num_samples() as u64,
            None => 0,
        };
        output.bytes() >= self.least(output)
            && output.bytes() / runs.max(1) >= POLICY.min_streamed_run_bytes
    }

    /// The bytes of the smallest output of this kind that is written around the caches; scaled ones never are.
    fn least(&self, output: &OutputPlan<'_>) -> u64 {
        let is_cut = || match &*output.nests {
            [nest] => output.dims[nest.dims.clone()].iter().any(|dim| !dim.is_whole()),
            _ => matches!(output.starts, Starts::Rows { .. }),
        };
        match output.op {
            _ if output.bytes_only => self.copies,
            ElementOp::Read { .. } if !is_cut() => self.computed,
            ElementOp::Rescale | ElementOp::Scales => NEVER,
            _ => self.padded,
        }
    }
}

impl fmt::Display for StreamingStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StreamingStores { copies, padded, computed } = *self;
        write_limits(f, [("copies", copies), ("padded", padded), ("computed", computed)])
    }
}

impl FromStr for StreamingStores {
    type Err = Error;

    /// Reads `copies=BYTES,padded=BYTES,computed=BYTES` in any order; [`Error::Argument`] for any other text.
    fn from_str(text: &str) -> Result<StreamingStores> {
        let read = || {
            let limits: Vec<(String, u64)> = read_limits(text)?;
            let value = |name: &str| Some(limits.iter().find(|(key, _)| key == name)?.1);
            let stores = StreamingStores {
                copies: value("copies")?,
                padded: value("padded")?,
                computed: value("computed")?,
            };
            (limits.len() == 3).then_some(stores)
        };
        read().ok_or_else(|| {
            let expected = "copies=BYTES,padded=BYTES,computed=BYTES, each a whole number or never";
            Error::argument(format!("streaming stores are {expected}, got {text:?}"))
        })
    }
}

/// The file of measurements of a processor or device: `WINDROW_CALIBRATION`, else one of this name in the user's cache folder;
/// `None` without such a folder. The file need not exist.
pub fn calibration_file(name: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(path) = set("WINDROW_CALIBRATION") {
        return Some(path.into());
    }
    let home = || set("HOME").map(PathBuf::from);
    let folder = match () {
        () if cfg!(windows) => set("LOCALAPPDATA").map(PathBuf::from),
        () if cfg!(target_os = "macos") => home().map(|home| home.join("Library/Caches")),
        () => set("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(home()?.join(".cache"))),
    };
    Some(folder?.join(Path::new("windrow")).join(as_file_name(name) + ".json"))
}

/// The text of this name in a file of measurements, which no JSON library is needed for: `None` if the first `"name"` in it is
/// not followed by a text. Escapes stay as they are.
pub fn text_in_file<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("\"{name}\""))?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
    Some(rest.split_once('"')?.0)
}

/// The policy in a file of measurements. [`Error::Argument`] if it has none that can be parsed.
fn stores_in_file(text: &str) -> Result<StreamingStores> {
    let missing = || Error::argument("it has no text \"streaming_stores\"".to_owned());
    text_in_file(text, "streaming_stores").ok_or_else(missing)?.parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_text() {
        for text in
            ["copies=never,padded=never,computed=33554432", "copies=0,padded=1,computed=never"]
        {
            assert_eq!(text.parse::<StreamingStores>().expect("a policy").to_string(), text);
        }
        for text in [
            "",
            "copies=1",
            "copies=1,padded=2,computed=x",
            "copies=1,padded=2,computed=-1",
            "copies=1,padded=2,computed=3,more=4",
        ] {
            let error = text.parse::<StreamingStores>().expect_err(text);
            assert!(error.to_string().contains("never"), "{error}");
        }
    }

    #[test]
    fn machines_set_the_limits() {
        let machine =
            |text: &str| StreamingStores::for_machine(&Machine::from_cpuinfo(text)).to_string();
        let all = "copies=33554432,padded=33554432,computed=33554432";
        assert_eq!(machine("vendor_id: AuthenticAMD\nflags: avx512f fsrm"), all);
        assert_eq!(machine("vendor_id: GenuineIntel\nflags: avx2 fsrm"), all);
        assert_eq!(machine(""), all);
        let xeon = machine("vendor_id: GenuineIntel\nflags: avx512f fsrm");
        assert_eq!(xeon, "copies=never,padded=never,computed=33554432");
    }

    #[test]
    fn files_of_measurements() {
        let stores = stores_in_file(
            r#"{"cpu": "x", "host": {"streaming_stores": "copies=1,padded=2,computed=3"}}"#,
        );
        assert_eq!(
            stores.expect("a policy"),
            StreamingStores { copies: 1, padded: 2, computed: 3 }
        );
        for text in [
            "",
            "[]",
            "{}",
            r#"{"host": {"streaming_stores": 5}}"#,
            r#"{"host": {"streaming_stores": "x"}}"#,
        ] {
            assert!(stores_in_file(text).is_err(), "{text}");
        }
    }
}
