//! Numbers of a launch that tuning may change, for each architecture. Those that the kernels are compiled
//! with are in kernels/policy.h.

use super::params::LARGE_BYTES;
use crate::error::{Error, Result};

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// Threads of a block: what the kernels were compiled for.
    pub threads: u32,
    /// The largest tile, in bytes of output: what the threads of a block have in flight at once.
    pub max_tile_bytes: u64,
    /// The smallest: below it a tile's set-up shows.
    pub min_tile_bytes: u64,
    /// Tiles that a small batch is cut into for each multiprocessor.
    pub tiles_per_sm: u64,
    /// Blocks of a grid for each one that can be resident; they share the tiles. 0: one for each tile.
    pub waves: u32,
    /// The largest table that goes with the parameters of a launch; others are uploaded.
    pub inline_bytes: u64,
}

/// From which compute capability on a row holds. One, so far: nothing has been measured on a GPU.
const TABLE: [((u32, u32), Policy); 1] = [(
    (0, 0),
    Policy {
        threads: 256,
        max_tile_bytes: 16 << 10,
        min_tile_bytes: 1 << 10,
        tiles_per_sm: 2,
        waves: 1,
        inline_bytes: LARGE_BYTES as u64,
    },
)];

/// For trials: numbers that go over the table's, as in `max_tile_bytes=8192,waves=0`.
const TRIAL: &str = "WINDROW_CUDA_POLICY";

impl Policy {
    /// # Errors
    /// [`Error::Argument`] for a trial that does not make sense.
    pub fn of(capability: (u32, u32)) -> Result<Policy> {
        let row = TABLE.iter().rev().find(|(from, _)| *from <= capability);
        let policy = row.map_or(TABLE[0].1, |(_, policy)| *policy);
        match std::env::var(TRIAL) {
            Ok(trial) => policy.with(&trial),
            Err(_) => Ok(policy),
        }
    }

    fn with(mut self, trial: &str) -> Result<Policy> {
        let refuse = |why: &str| Error::Argument(format!("{TRIAL}={trial}: {why}"));
        for part in trial.split(',').filter(|part| !part.trim().is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| refuse("NAME=NUMBER,..."))?;
            let number: u32 = value.trim().parse().map_err(|_| refuse("a number is missing"))?;
            match name.trim() {
                "threads" => self.threads = number,
                "max_tile_bytes" => self.max_tile_bytes = number.into(),
                "min_tile_bytes" => self.min_tile_bytes = number.into(),
                "tiles_per_sm" => self.tiles_per_sm = number.into(),
                "waves" => self.waves = number,
                "inline_bytes" => self.inline_bytes = number.into(),
                other => return Err(refuse(&format!("there is no {other}"))),
            }
        }
        let is_sound = (1..=1024).contains(&self.threads)
            && (64..=self.max_tile_bytes).contains(&self.min_tile_bytes)
            && self.max_tile_bytes <= 1 << 20
            && self.tiles_per_sm > 0
            && self.inline_bytes <= LARGE_BYTES as u64;
        is_sound.then_some(self).ok_or_else(|| refuse("out of range"))
    }

    /// Bytes of output that one tile covers, for a batch of `total` bytes.
    pub fn tile_bytes(&self, total: u64, num_sms: u32) -> u64 {
        (total / (self.tiles_per_sm * u64::from(num_sms.max(1))))
            .clamp(self.min_tile_bytes, self.max_tile_bytes)
            .next_multiple_of(64)
    }

    /// The largest grid, for a kernel of which `resident` blocks fit on the device.
    pub fn max_grid(&self, resident: u32) -> u32 {
        match self.waves {
            0 => i32::MAX as u32,
            waves => resident.saturating_mul(waves).clamp(1, i32::MAX as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_go_over_the_table() {
        let policy = TABLE[0].1;
        let trial = policy.with("max_tile_bytes=8192, waves=0").unwrap();
        assert_eq!(trial, Policy { max_tile_bytes: 8192, waves: 0, ..policy });
        assert_eq!((trial.max_grid(396), policy.max_grid(396)), (i32::MAX as u32, 396));
        for wrong in ["tile=1", "waves", "waves=many", "min_tile_bytes=65536", "threads=0"] {
            assert!(matches!(policy.with(wrong), Err(Error::Argument(_))), "{wrong}");
        }
    }

    #[test]
    fn small_batches_are_cut_finer() {
        let policy = TABLE[0].1;
        let tile = |total| policy.tile_bytes(total, 132);
        assert_eq!([tile(0), tile(1 << 20), tile(1 << 30)], [1024, 4032, 16 << 10]);
    }
}
