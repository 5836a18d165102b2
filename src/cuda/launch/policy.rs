//! Numbers of a launch that tuning may change, for each architecture. Those that the kernels are compiled
//! with are in kernels/policy.h.

use super::kernel_abi::{LARGE_BYTES, SMALL_BYTES};
use crate::tensor::{Error, Result};

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Threads of a block: what the kernels were compiled for.
    pub threads: u32,
    /// Bytes of a sample that is one row from which on it is written as such, and elements of a row among those of a sample:
    /// below, finding the row costs more than finding each element of a box.
    pub min_row_bytes: u64,
    pub min_row_elems: u64,
    /// Rows that are not longer share a warp.
    pub max_team_bytes: u64,
    /// The largest item of family small_copy.
    pub max_small_copy_bytes: u64,
    /// The smallest and the largest item of rows, in bytes of output.
    pub min_item_bytes: u64,
    pub max_item_bytes: u64,
    /// Output that could be written while a warp finds its item.
    pub setup_bytes: u64,
    /// Resident warps of a multiprocessor for the kernel of common families, and for the others, which have more registers.
    pub warps_per_sm: u64,
    pub any_warps_per_sm: u64,
    /// Samples from which on their addresses are written as 32-bit multiples of a common divisor.
    pub min_ids: u64,
    /// The largest table that goes with the parameters of a launch; others are uploaded.
    pub inline_bytes: u64,
    /// The largest parameters for which the kernel of small ones is launched.
    pub small_bytes: u64,
    /// Not 0: the kernel of all families also runs launches that the kernel of common ones could run.
    pub always_any: u64,
    /// Elements from which on a descriptor's columns and offsets are counted in 64 bits: at most 2^31.
    pub wide_from: u64,
    /// A column of lengths that are all below it has 16 bits: at most 2^16.
    pub narrow_below: u64,
}

/// Policies, each from its compute capability on. There is one row: nothing has been measured on a GPU.
const TABLE: [((u32, u32), Policy); 1] = [(
    (0, 0),
    Policy {
        threads: 256,
        min_row_bytes: 128,
        min_row_elems: 256,
        max_team_bytes: 2048,
        max_small_copy_bytes: 8 << 10,
        min_item_bytes: 4 << 10,
        max_item_bytes: 20 << 10,
        setup_bytes: 3 << 9,
        warps_per_sm: 32,
        any_warps_per_sm: 24,
        min_ids: 256,
        inline_bytes: LARGE_BYTES as u64,
        small_bytes: SMALL_BYTES as u64,
        always_any: 0,
        wide_from: 1 << 31,
        narrow_below: 1 << 16,
    },
)];

/// Warps that are resident at once, and how many of them keep the memory busy whatever kernel they are of: by the timing
/// model of `make gpu-model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WarpSlots {
    pub all: u64,
    pub enough: u64,
}

/// For trials: numbers that go over the table's, as in `max_item_bytes=4096,min_ids=0`.
const TRIAL: &str = "WINDROW_CUDA_POLICY";

/// The smallest item of family small_copy.
const MIN_SMALL_COPY_BYTES: u64 = 1 << 10;

/// Items are cut at multiples of what a warp stores at once.
const TURN_BYTES: u64 = 512;

impl Policy {
    /// The numbers for a compute capability, with those of the environment's trial in their place.
    ///
    /// # Errors
    /// [`Error::Argument`] for a trial that does not make sense.
    pub fn for_capability(capability: (u32, u32)) -> Result<Policy> {
        let row = TABLE.iter().rev().find(|(from, _)| *from <= capability);
        let policy = row.map_or(TABLE[0].1, |(_, policy)| *policy);
        match std::env::var(TRIAL) {
            Ok(trial) => policy.with(&trial),
            Err(_) => Ok(policy),
        }
    }

    fn with(mut self, trial: &str) -> Result<Policy> {
        let refuse = |why: &str| Error::argument(format!("{TRIAL}={trial}: {why}"));
        for part in trial.split(',').filter(|part| !part.trim().is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| refuse("NAME=NUMBER,..."))?;
            let number: u32 = value.trim().parse().map_err(|_| refuse("a number is missing"))?;
            match name.trim() {
                "threads" => self.threads = number,
                "min_row_bytes" => self.min_row_bytes = number.into(),
                "min_row_elems" => self.min_row_elems = number.into(),
                "max_team_bytes" => self.max_team_bytes = number.into(),
                "max_small_copy_bytes" => self.max_small_copy_bytes = number.into(),
                "min_item_bytes" => self.min_item_bytes = number.into(),
                "max_item_bytes" => self.max_item_bytes = number.into(),
                "setup_bytes" => self.setup_bytes = number.into(),
                "warps_per_sm" => self.warps_per_sm = number.into(),
                "any_warps_per_sm" => self.any_warps_per_sm = number.into(),
                "min_ids" => self.min_ids = number.into(),
                "inline_bytes" => self.inline_bytes = number.into(),
                "small_bytes" => self.small_bytes = number.into(),
                "always_any" => self.always_any = number.into(),
                "wide_from" => self.wide_from = number.into(),
                "narrow_below" => self.narrow_below = number.into(),
                other => return Err(refuse(&format!("there is no {other}"))),
            }
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
    fn trials_go_over_the_table() {
        let policy = TABLE[0].1;
        let trial = policy.with("max_item_bytes=8192, min_ids=0").unwrap();
        assert_eq!(trial, Policy { max_item_bytes: 8192, min_ids: 0, ..policy });
        for wrong in ["item=1", "min_ids", "min_ids=many", "min_item_bytes=65536", "threads=100"] {
            assert!(matches!(policy.with(wrong), Err(Error::Argument(_))), "{wrong}");
        }
    }

    #[test]
    fn items_come_in_whole_waves() {
        let policy = TABLE[0].1;
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
