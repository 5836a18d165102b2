//! [`Machine`]: what the processor says of itself.

use std::fs::File;
use std::io::Read;
use std::sync::OnceLock;

/// The processor, as Linux describes it; elsewhere, and where that cannot be read, without any of it.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// The processor's name, such as "AMD EPYC 9R14", or "unknown".
    pub name: String,
    /// The vendor, such as "GenuineIntel"; empty if it is not known.
    pub vendor: String,
    flags: Vec<String>,
}

impl Machine {
    /// The machine that this process runs on, read once.
    pub fn current() -> &'static Machine {
        static HERE: OnceLock<Machine> = OnceLock::new();
        HERE.get_or_init(|| {
            // The first processor's part: all of it takes the system milliseconds where there are hundreds.
            let mut text = Vec::new();
            let read = |file: File| file.take(8 << 10).read_to_end(&mut text);
            let _ = File::open("/proc/cpuinfo").and_then(read);
            Machine::from_cpuinfo(&String::from_utf8_lossy(&text))
        })
    }

    /// Reads the description from the lines of `/proc/cpuinfo`.
    pub(super) fn from_cpuinfo(text: &str) -> Machine {
        let value = |key: &str| {
            let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
            pairs.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
        };
        let flags = value("flags").unwrap_or_default();
        Machine {
            name: value("model name").unwrap_or_else(|| "unknown".to_owned()),
            vendor: value("vendor_id").unwrap_or_default(),
            flags: flags.split_whitespace().map(str::to_owned).collect(),
        }
    }

    /// Whether the line `flags` of `/proc/cpuinfo` has a feature. ARM's has no such line: false.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|feature| feature == flag)
    }

    /// The processor's name as the name of a file, as [`as_file_name`] makes it.
    pub fn file_name(&self) -> String {
        as_file_name(&self.name)
    }
}

/// A name as the name of a file: its ASCII letters, in lower case, and digits, with a hyphen for whatever is between
/// them.
pub(super) fn as_file_name(name: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().map(kept).collect();
    let words: Vec<&str> = name.split('-').filter(|word| !word.is_empty()).collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_cpuinfo() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Gold 6454S\nflags\t\t: fpu avx512f fsrm\n";
        let machine = Machine::from_cpuinfo(text);
        assert_eq!(machine.file_name(), "intel-r-xeon-r-gold-6454s");
        assert!(machine.has("avx512f") && machine.has("fsrm") && !machine.has("avx"));
        let nothing = Machine::from_cpuinfo("Serial : 1");
        assert_eq!((nothing.name.as_str(), nothing.vendor.as_str()), ("unknown", ""));
        assert!(!Machine::current().name.is_empty());
    }
}
