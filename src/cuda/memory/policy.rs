//! Tuning numbers of the memory of devices: page-locked memory, what is kept until a device has finished, what waits for it.

policy! {
    /// The page-locked memory that host samples go through: its first size, and the largest.
    min_ring_bytes: usize = 1 << 20,
    max_ring_bytes: usize = 16 << 20,
    /// The most events that a call for a piece of it queries: two, so that more pieces are given back than taken.
    max_ring_queries: usize = 2,
    /// The most events that a call queries to drop the owners of earlier batches: two, so that more are dropped than kept.
    max_keep_alive_queries: usize = 2,
    /// The size of the smallest page-locked block; larger ones are powers of two.
    min_pinned_bytes: usize = 64 << 10,
    /// Page-locked blocks that others had, of one size and of all, from which on all devices are waited for instead of more
    /// memory being locked: once for all of these blocks.
    max_spare_pinned: usize = 16,
    max_spare_pinned_bytes: usize = 256 << 20,
    /// The most freed blocks of device memory that are parked for their streams; the oldest go back to the pool.
    max_parked: usize = 64,
    /// Freed blocks whose streams cannot be asked about wait until these are named, or the device is idle. The next call waits for
    /// that if they are more than `min_idle` blocks, as a loop needs to run ahead, and more than one part in `idle_share` of the
    /// device's memory.
    idle_share: u64 = 64,
    min_idle: usize = 4,
}
