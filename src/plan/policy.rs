//! Tuning numbers of plans, which are made without asking a device. `host::policy` has those of the host, `cuda::launch::policy` those of
//! launches, `cuda::memory::policy` those of memory.

policy! {
    /// Lists of fewer samples have small tables: there is no need to see first whether there is room for them.
    many_samples: usize = 1 << 14,
    /// Bytes of host samples that go to a device in one copy: enough for the bus, and few enough that the first copy starts
    /// soon.
    chunk_bytes: u64 = 4 << 20,
    /// Bytes of a sample, on average, from which page-locked samples are brought to the device by its copy engine; smaller
    /// ones the kernels read over the bus themselves. Kernels get less out of the bus, and a copy costs as much to start
    /// however small it is. From figures of others for one H100; the bench `gather` times both ways (W8).
    min_copied_bytes: u64 = 28 << 10,
    /// Bytes of a tensor from which on `copy_many` brings pageable memory to or from a device by itself and not together with
    /// others, which takes as much memory of the device: the copy then takes longer than the calls of the driver for it.
    max_together_bytes: u64 = 1 << 20,
    /// Bytes of memory that pairs of one plan may take on a device beside their own: more of them are several plans, one after the other.
    max_staging_bytes: u64 = 256 << 20,
    /// Chunks of a batch that are on their way to the host at once: one is emptied, the others are on the bus.
    chunks_under_way: usize = 4,
    /// Outputs of at most this many bytes share page-locked or device memory with others of their call, which stays as long as
    /// one of them does.
    max_shared_bytes: u64 = 16 << 10,
}

/// Parts of shared memory begin at multiples of this, as far apart as the driver's own allocations: outputs that share it,
/// and samples of several outputs that are copied together.
pub(crate) const SHARED_ALIGN: u64 = 256;

/// Whether an output of `bytes` bytes shares memory, if its call has several of them; one without bytes does not.
pub(crate) fn is_shared(bytes: u64) -> bool {
    (1..=POLICY.max_shared_bytes).contains(&bytes)
}
