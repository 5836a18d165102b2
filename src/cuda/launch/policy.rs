//! Numbers of a launch that tuning may change. Those that the kernels are compiled with are in kernels/policy.h.

use super::kernel_abi::{LARGE_BYTES, SMALL_BYTES};
use crate::tensor::{Error, Result};

/// A policy whose numbers are also set by their names.
macro_rules! named_policy {
    ($($(#[$about:meta])* $field:ident: $number:ty = $value:expr,)*) => {
        policy! { $($(#[$about])* $field: $number = $value,)* }

        impl Policy {
            /// Sets the number of this name, if there is one.
            fn set(&mut self, name: &str, number: u32) -> Option<()> {
                match name {
                    $(stringify!($field) => self.$field = number.into(),)*
                    _ => return None,
                }
                Some(())
            }
        }
    };
}

named_policy! {
    /// Threads of a block: what the kernels were compiled for.
    threads: u32 = 256,
    /// Bytes of a sample that is one row from which on it is written as such, and elements of a row among those of a sample:
    /// below, finding the row costs more than finding each element of a box.
    min_row_bytes: u64 = 128,
    min_row_elems: u64 = 256,
    /// Rows that are not longer share a warp.
    max_team_bytes: u64 = 2048,
    /// The longest of them, as a multiple of the bound on their average: 8 lanes write it, turn by turn. Chosen, as no GPU has timed it.
    max_team_skew: u64 = 16,
    /// The largest item of family small_copy.
    max_small_copy_bytes: u64 = 8 << 10,
    /// The smallest and the largest item of rows, in bytes of output.
    min_item_bytes: u64 = 4 << 10,
    max_item_bytes: u64 = 20 << 10,
    /// Output that could be written while a warp finds its item.
    setup_bytes: u64 = 3 << 9,
    /// Resident warps of a multiprocessor for the kernel of common families, and for the others, which have more registers.
    warps_per_sm: u64 = 32,
    any_warps_per_sm: u64 = 24,
    /// Samples from which on their addresses are written as 32-bit multiples of a common divisor.
    min_ids: u64 = 256,
    /// The largest table that goes with the parameters of a launch; others are uploaded.
    inline_bytes: u64 = LARGE_BYTES as u64,
    /// The largest parameters for which the kernel of small ones is launched.
    small_bytes: u64 = SMALL_BYTES as u64,
    /// Not 0: the kernel of all families also runs launches that the kernel of common ones could run.
    always_any: u64 = 0,
    /// Elements from which on a descriptor's columns and offsets are counted in 64 bits: at most 2^31.
    wide_from: u64 = 1 << 31,
    /// A column of lengths that are all below it has 16 bits: at most 2^16.
    narrow_below: u64 = 1 << 16,
}

/// Warps that are resident at once, and how many of them keep the memory busy whatever kernel they are of: by the timing
/// model of `make gpu-model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WarpSlots {
    pub all: u64,
    pub enough: u64,
}

/// For trials: numbers that go over those in use, as in `max_item_bytes=4096,min_ids=0`.
const TRIAL: &str = "WINDROW_CUDA_POLICY";

/// The smallest item of family small_copy.
const MIN_SMALL_COPY_BYTES: u64 = 1 << 10;

/// Items are cut at multiples of what a warp stores at once.
const TURN_BYTES: u64 = 512;

impl Policy {
    /// The numbers in use, with those of the environment's trial in their place.
    ///
    /// # Errors
    /// [`Error::Argument`] for a trial that does not make sense.
    pub fn from_env() -> Result<Policy> {
        match std::env::var(TRIAL) {
            Ok(trial) => POLICY.with(&trial),
            Err(_) => Ok(POLICY),
        }
    }

    fn with(mut self, trial: &str) -> Result<Policy> {
        let refuse = |why: &str| Error::argument(format!("{TRIAL}={trial}: {why}"));
        for part in trial.split(',').filter(|part| !part.trim().is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| refuse("NAME=NUMBER,..."))?;
            let number: u32 = value.trim().parse().map_err(|_| refuse("a number is missing"))?;
            let name = name.trim();
            self.set(name, number).ok_or_else(|| refuse(&format!("there is no {name}")))?;
        }
        let is_sound = (1..=1024).contains(&self.threads)
            && self.threads % 32 == 0
            && (TURN_BYTES..=self.max_item_bytes).contains(&self.min_item_bytes)
            && self.max_item_bytes <= 1 << 20
            && (MIN_SMALL_COPY_BYTES..=1 << 20).contains(&self.max_small_copy_bytes)
            && [self.warps_per_sm, self.any_warps_per_sm]
                .iter()
                .all(|warps| (1..=64).contains(warps))
            && self.inline_bytes <= LARGE_BYTES as u64
            && self.small_bytes <= SMALL_BYTES as u64
            && self.wide_from <= 1 << 31
            && self.narrow_below <= 1 << 16;
        is_sound.then_some(self).ok_or_else(|| refuse("out of range"))
    }

    /// Warps of a kernel of common families, or of all.
    pub fn warp_slots(&self, num_sms: u32, has_any: bool) -> WarpSlots {
        let num_sms = u64::from(num_sms.max(1));
        let warps = if has_any { self.any_warps_per_sm } else { self.warps_per_sm };
        let enough = (self.warps_per_sm * num_sms * 2 / 5).max(1);
        WarpSlots { all: warps * num_sms, enough }
    }

    /// Bytes of an item where `rows` rows of `row_bytes` are cut by `slots` warps at a time, each into
    /// pieces of their own: a multiple of `planes` turns of a warp. All slots are busy until the end if
    /// the number of items is just below a multiple of theirs, which matters more than the set-up that
    /// larger items save. Fewer items than slots share the memory's bandwidth, which some of the slots use
    /// up as long as items are small: a large one waits for its own loads.
    pub fn item_bytes(&self, rows: u64, row_bytes: u64, slots: WarpSlots, planes: u64) -> u64 {
        let turn = TURN_BYTES * planes;
        let cost = |bytes: u64| {
            let items = rows.saturating_mul(row_bytes.div_ceil(bytes)).max(1);
            let busy = match items < slots.all && bytes <= 2 * self.min_item_bytes {
                true => items.max(slots.enough),
                false => items.next_multiple_of(slots.all),
            };
            busy.saturating_mul(bytes.min(row_bytes) + self.setup_bytes)
        };
        let turns = self.min_item_bytes.div_ceil(turn)..=(self.max_item_bytes / turn).max(1);
        // The largest of the cheapest.
        let sizes = turns.map(|turns| turns * turn);
        sizes.min_by_key(|&bytes| (cost(bytes), u64::MAX - bytes)).unwrap_or(turn)
    }

    /// Bytes of an item of many short samples, `total` bytes in all: as large as may be while each slot has
    /// an item.
    pub fn small_copy_bytes(&self, total: u64, slots: WarpSlots) -> u64 {
        (total / slots.all / TURN_BYTES * TURN_BYTES)
            .clamp(MIN_SMALL_COPY_BYTES, self.max_small_copy_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_go_over_the_numbers_in_use() {
        let trial = POLICY.with("max_item_bytes=8192, min_ids=0").unwrap();
        assert_eq!(trial, Policy { max_item_bytes: 8192, min_ids: 0, ..POLICY });
        for wrong in ["item=1", "min_ids", "min_ids=many", "min_item_bytes=65536", "threads=100"] {
            assert!(matches!(POLICY.with(wrong), Err(Error::Argument(_))), "{wrong}");
        }
    }

    #[test]
    fn items_come_in_whole_waves() {
        let policy = POLICY;
        let slots = policy.warp_slots(132, false);
        assert_eq!((slots.all, slots.enough), (4224, 1689));
        assert_eq!(policy.warp_slots(132, true), WarpSlots { all: 3168, ..slots });
        let waves = |rows: u64, row_bytes: u64, planes| {
            let bytes = policy.item_bytes(rows, row_bytes, slots, planes);
            (bytes, rows * row_bytes.div_ceil(bytes))
        };
        // W1: one wave, all but full. W2: a row each.
        assert_eq!(waves(256, 3 * 50_176 * 2, 3), (19968, 4096));
        assert_eq!(waves(4096, 16 << 10, 1), (20480, 4096));
        // W5b: larger items for fewer warps than there are slots.
        assert_eq!(waves(256, 28_224 * 2, 1), (8192, 1792));
        // A small batch is cut finer, a large one is not.
        assert_eq!(waves(1, 1 << 20, 1), (4096, 256));
        assert_eq!(waves(1, 1 << 30, 1).0, 19968);
        // Rows of 77 bytes, and of 512.
        let short = [7_700_000, 64 << 20].map(|total| policy.small_copy_bytes(total, slots));
        assert_eq!(short, [1536, 8192]);
        assert!(7_700_000u64.div_ceil(1536) >= slots.all);
    }
}
