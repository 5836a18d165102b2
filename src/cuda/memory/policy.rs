//! Tuning numbers of the memory of devices: page-locked memory, what is kept until a device has finished, what waits for it.

/// See [`POLICY`].
pub(crate) struct MemoryPolicy {
    /// The page-locked memory that host samples go through: its first size, and the largest.
    pub min_ring_bytes: usize,
    pub max_ring_bytes: usize,
    /// The most events that a call for a piece of it queries: two, so that more pieces are given back than taken.
    pub max_ring_queries: usize,
    /// The most events that a call queries to drop the owners of earlier batches: two, so that more are dropped than kept.
    pub max_keep_alive_queries: usize,
    /// The size of the smallest page-locked block; larger ones are powers of two.
    pub min_pinned_bytes: usize,
    /// Page-locked blocks that others had, of one size and of all, from which on all devices are waited for instead of more
    /// memory being locked: once for all of these blocks.
    pub max_spare_pinned: usize,
    pub max_spare_pinned_bytes: usize,
    /// The most freed blocks of device memory that are parked for their streams; the oldest go back to the pool.
    pub max_parked: usize,
    /// Freed blocks that nobody's stream can be asked about wait until the device is idle. The next call waits for that if
    /// they are more than `min_idle` blocks, as a loop needs to run ahead, and more than one part in `idle_share` of the
    /// device's memory.
    pub idle_share: u64,
    pub min_idle: usize,
}

/// The numbers in use, the same for all devices.
pub(crate) const POLICY: MemoryPolicy = MemoryPolicy {
    min_ring_bytes: 1 << 20,
    max_ring_bytes: 16 << 20,
    max_ring_queries: 2,
    max_keep_alive_queries: 2,
    min_pinned_bytes: 64 << 10,
    max_spare_pinned: 16,
    max_spare_pinned_bytes: 256 << 20,
    max_parked: 64,
    idle_share: 64,
    min_idle: 4,
};
