//! Tuning numbers that hold for all devices: of plans, which are made without asking one, and of the memory that copies
//! between host and device go through. `host::policy` has those of the host, `cuda::policy` those of each architecture.

/// See [`POLICY`].
pub(crate) struct DevicesPolicy {
    /// Lists of fewer samples have small tables: there is no need to see first whether there is room for them.
    pub many_samples: usize,
    /// Bytes of host samples that go to a device in one copy: enough for the bus, and few enough that the first copy starts
    /// soon.
    pub chunk_bytes: u64,
    /// Bytes of a sample, on average, from which page-locked samples are brought to the device by its copy engine; smaller
    /// ones the kernels read over the bus themselves. Kernels get less out of the bus, and a copy costs as much to start
    /// however small it is. From figures of others for one H100; the bench `gather` times both ways (W8).
    pub min_copied_bytes: u64,
    /// Chunks of a batch that are on their way to the host at once: one is emptied, the others are on the bus.
    pub chunks_under_way: usize,
    /// The page-locked memory that host samples go through: its first size, and the largest.
    pub min_ring_bytes: usize,
    pub max_ring_bytes: usize,
    /// Events that a call for some of it asks for at most: more than one piece is given back for each that is taken.
    pub max_ring_queries: usize,
    /// Events that a call asks for at most to let samples of earlier calls go: more than one batch for each that is made.
    pub max_held_queries: usize,
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
    /// Outputs of at most so many bytes share page-locked or device memory with others of their call, which stays as long as
    /// one of them does.
    pub max_shared_bytes: u64,
}

/// The numbers in use.
pub(crate) const POLICY: DevicesPolicy = DevicesPolicy {
    many_samples: 1 << 14,
    chunk_bytes: 4 << 20,
    min_copied_bytes: 28 << 10,
    chunks_under_way: 4,
    min_ring_bytes: 1 << 20,
    max_ring_bytes: 16 << 20,
    max_ring_queries: 2,
    max_held_queries: 2,
    min_pinned_bytes: 64 << 10,
    max_spare_pinned: 16,
    max_spare_pinned_bytes: 256 << 20,
    max_parked: 64,
    idle_share: 64,
    min_idle: 4,
    max_shared_bytes: 16 << 10,
};

/// Parts of shared memory begin at multiples of this, as far apart as the driver's own allocations: outputs that share it,
/// and samples of several outputs that are copied together.
pub(crate) const SHARED_ALIGN: u64 = 256;

/// Whether an output of so many bytes shares memory, if its call has several of them.
pub(crate) fn is_shared(bytes: u64) -> bool {
    (1..=POLICY.max_shared_bytes).contains(&bytes)
}
