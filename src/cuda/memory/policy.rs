//! Tuning numbers of the memory of devices: page-locked memory, what is kept until a device has finished, what waits for it.

/// See [`POLICY`].
pub(crate) struct MemoryPolicy {
    /// The page-locked memory that host samples go through: its first size, and the largest.
    pub min_ring_bytes: usize,
    pub max_ring_bytes: usize,
    /// Events that a call for some of it asks for at most: more than one piece is given back for each that is taken.
    pub max_ring_queries: usize,
    /// Events that a call asks for at most to let samples of earlier calls go: more than one batch for each that is made.
    pub max_keep_alive_queries: usize,
    /// Page-locked blocks are powers of two from here on.
    pub min_pinned_bytes: usize,
    /// Page-locked blocks that others had, of one size and of all, from which on all devices are waited for instead of more
    /// memory being locked: once for all of these blocks.
    pub max_spare_pinned: usize,
    pub max_spare_pinned_bytes: usize,
    /// Blocks of device memory that dropped batches leave at most; what was parked before goes back to the pool.
    pub max_parked: usize,
    /// The part of a device's memory that waits for the whole device at most, if more blocks do than a loop needs to run
    /// ahead.
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
