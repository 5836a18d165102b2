//! [`PageCopies`]: from which size on page-locked pairs go to a device by copies of its own engine, and not by a kernel that
//! reads them over the bus, as it was measured on a machine.
//!
//! The problem: a copy engine gets more out of the bus than kernels do, but each copy costs as much to start however small it is.
//! From which size on it pays depends on the device, its driver and the number of pairs, which are as many copies or one launch.
//!
//! ```text
//! 16=never,128=65536,1024=0      as `python -m windrow calibrate` writes it, for a device and its driver
//! pairs        1 .. 127          128 .. 1023           1024 ..
//! copied       never             from 64 KiB a pair    always
//! ```
//!
//! One size for all would be simpler, and is what a device has that was not measured: `min_copied_bytes`, from figures of others.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::RwLock;

use crate::plan::policy::POLICY;
use crate::tensor::{Error, Result};

/// Limits `(pairs, bytes)`: for `pairs` pairs or more, up to the next limit, copies are faster from `bytes` bytes a pair
/// on; `u64::MAX` is never. They ascend by `pairs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageCopies(Vec<(u64, u64)>);

/// The limits of devices that were measured, by ordinal.
static MEASURED: RwLock<BTreeMap<u32, PageCopies>> = RwLock::new(BTreeMap::new());

impl PageCopies {
    /// Sets the limits of a device for the whole process; `None` forgets them. Does nothing if the lock is poisoned.
    pub fn set(ordinal: u32, copies: Option<PageCopies>) {
        if let Ok(mut measured) = MEASURED.write() {
            match copies {
                Some(copies) => measured.insert(ordinal, copies),
                None => measured.remove(&ordinal),
            };
        }
    }

    /// The limits of a device; `None` if it was not measured, or if the lock is held, as it may be for ever in a forked
    /// child.
    pub fn for_device(ordinal: u32) -> Option<PageCopies> {
        MEASURED.try_read().ok()?.get(&ordinal).cloned()
    }

    /// The bytes of [`least_copied_bytes`] by these numbers; fewer pairs than the first number use the first limit.
    fn least_bytes(&self, count: u64) -> u64 {
        let at = self.0.partition_point(|&(pairs, _)| pairs <= count);
        self.0.get(at.saturating_sub(1)).map_or(POLICY.min_copied_bytes, |&(_, bytes)| bytes)
    }
}

/// The bytes of a pair from which on `count` of them are copied to a device by its copy engine. In a forked child the lock may be
/// one that is never released: then as of a device that was not measured.
pub(super) fn least_copied_bytes(ordinal: u32, count: u64) -> u64 {
    let measured = MEASURED.try_read().ok();
    let copies = measured.as_ref().and_then(|measured| measured.get(&ordinal));
    copies.map_or(POLICY.min_copied_bytes, |copies| copies.least_bytes(count))
}

impl fmt::Display for PageCopies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_limits(f, self.0.iter().copied())
    }
}

/// Writes measured limits as `NAME=BYTES,...`; `u64::MAX` bytes are `never`.
pub(crate) fn write_limits<N: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    limits: impl IntoIterator<Item = (N, u64)>,
) -> fmt::Result {
    for (index, (name, bytes)) in limits.into_iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        match bytes {
            u64::MAX => write!(f, "{comma}{name}=never")?,
            bytes => write!(f, "{comma}{name}={bytes}")?,
        }
    }
    Ok(())
}

/// Reads what [`write_limits`] writes, with spaces around names and bytes too, in the order of the
/// text; `None` for anything else.
pub(crate) fn read_limits<N: FromStr>(text: &str) -> Option<Vec<(N, u64)>> {
    let pair = |pair: &str| {
        let (name, bytes) = pair.split_once('=')?;
        let bytes = match bytes.trim() {
            "never" => u64::MAX,
            bytes => bytes.parse().ok()?,
        };
        Some((name.trim().parse().ok()?, bytes))
    };
    text.split(',').map(pair).collect()
}

impl FromStr for PageCopies {
    type Err = Error;

    /// Reads what [`fmt::Display`] writes, with ascending counts; [`Error::Argument`] for any other text.
    fn from_str(text: &str) -> Result<PageCopies> {
        let is_ordered = |pairs: &Vec<(u64, u64)>| pairs.windows(2).all(|two| two[0].0 < two[1].0);
        read_limits(text).filter(is_ordered).map(PageCopies).ok_or_else(|| {
            let expected = "COUNT=BYTES,..., with rising counts, and each a whole number or never";
            Error::argument(format!("page copies are {expected}, got {text:?}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_by_number() {
        let text = "16=never,128=65536,1024=0";
        let copies: PageCopies = text.parse().unwrap();
        assert_eq!(copies.to_string(), text);
        for (count, least) in
            [(1, u64::MAX), (127, u64::MAX), (128, 65536), (1023, 65536), (1024, 0), (9999, 0)]
        {
            assert_eq!(copies.least_bytes(count), least);
        }
        for wrong in ["", "16", "16=-1", "a=1", "16=1,16=2", "128=1,16=2", "16=1,"] {
            assert!(wrong.parse::<PageCopies>().is_err(), "{wrong}");
        }
    }
}
