//! [`MemoryPool`]: output memory for reuse. The first touch of fresh pages costs as much as filling them.
//!
//! The problem: a loop drops a batch and allocates the next one, of nearly the same size, on any thread, and may fork meanwhile.
//! An allocator gives large blocks back to the system, which zeroes their pages once more before they are touched again.
//!
//! ```text
//! small   | 64 B: slots | 128 B: slots | ... up to min_locked_bytes |     a slot has a block, taken by one exchange of pointers
//! large   | 3 MiB | 64 MiB | 5 MiB | ...                                  oldest first, under a lock that waits for a fork
//! ```
//!
//! ```text
//! allocate   round the size up: sizes are an eighth of a power of two apart, at least 64 bytes
//!            small: a slot of this size that has a block
//!            large: the smallest that fits and is at most a quarter larger; of equal ones the one used last
//!            none: new memory; if there is none, release all free blocks and try once more
//! drop       small: into an empty slot of its size, if the cap allows; else it is freed
//!            large: behind all others; the oldest are freed until the cap is met
//! ```
//!
//! The allocator alone would be simpler: `torch.stack` of 38.5 MB takes 19 ms into fresh pages and 6 to 8 into used ones
//! (Sapphire Rapids), and a call for 256 rows by indices takes 10 550 instructions with small blocks of the allocator, 9 673 with
//! slots.
#![allow(unsafe_code)] // Allocation and release of raw blocks.

use std::alloc::{alloc, dealloc, Layout};
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::host::pages;
use crate::host::policy::POLICY;
use crate::observe::PoolStats;
use crate::sync::{ForkMutex, Guard};
use crate::tensor::{
    bytes_of, DType, Device, Error, Layout as TensorLayout, Owner, Result, Tensor,
};

/// A cache line, and enough for every dtype and vector width.
pub(crate) const ALIGN: usize = 64;

/// Free blocks, with a cap on their bytes.
#[derive(Debug)]
pub(crate) struct MemoryPool {
    /// Oldest first.
    large: ForkMutex<Vec<Raw>>,
    small: SmallBlocks,
    cap: u64,
    free_bytes: AtomicU64,
    used_bytes: AtomicU64,
    hits: AtomicU64,
    /// Blocks that were new.
    misses: AtomicU64,
}

/// Free blocks below `min_locked_bytes`, some of each size. A thread takes a block out of its slot by one exchange of
/// pointers: a fork finds no lock, and a block can be released by any thread.
#[derive(Debug)]
struct SmallBlocks([[AtomicPtr<u8>; SLOTS]; SMALL_SIZES]);

/// Blocks kept of one size.
const SLOTS: usize = POLICY.slots_of_a_size;

/// Sizes of [`block_layout`] below `min_locked_bytes`: 16 up to 1 KiB, then 8 to each power of two, less the limit itself.
const SMALL_SIZES: usize = 63;

/// A free block.
#[derive(Debug)]
struct Raw {
    data: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a raw block is owned memory that no thread reads or writes while it is free.
unsafe impl Send for Raw {}

impl Drop for Raw {
    fn drop(&mut self) {
        debug_assert!(self.layout.size() >= ALIGN);
        debug_assert_eq!(self.data.as_ptr().addr() % self.layout.align(), 0);
        // SAFETY: `data` came from `alloc` with this very layout, and is dropped once.
        unsafe { dealloc(self.data.as_ptr(), self.layout) };
    }
}

/// A block in use. Its drop returns it to the pool, on any thread.
#[derive(Debug)]
pub(crate) struct Block {
    raw: Option<Raw>,
    pool: Arc<MemoryPool>,
}

// SAFETY: the block only names memory; its writer owns it (`Engine`), its readers
// hold it alive through a tensor.
unsafe impl Sync for Block {}

impl Block {
    /// The address of the block's first byte, aligned to 64 bytes.
    pub fn data(&self) -> *mut u8 {
        self.raw.as_ref().map_or(std::ptr::null_mut(), |raw| raw.data.as_ptr())
    }
}

impl Block {
    /// Bytes of the block, at least the requested number.
    pub fn size(&self) -> u64 {
        self.raw.as_ref().map_or(0, |raw| raw.layout.size() as u64)
    }

    /// The block as a tensor that owns it. The caller gives a compact layout that the block has room for, and writes all of the
    /// tensor before it is shared.
    pub fn into_tensor(self, dtype: DType, layout: TensorLayout) -> Tensor {
        debug_assert!(layout.is_compact() && bytes_of(dtype, layout.shape()) <= self.size());
        let data = self.data();
        // SAFETY: the block holds all bytes of the compact layout, for as long as it lives.
        unsafe { Tensor::new_unchecked(Arc::new(self), data, dtype, Device::Cpu, layout, false) }
    }

    /// The block as the owner of several tensors.
    pub fn share(self) -> SharedBlock {
        let (data, size) = (self.data(), self.size());
        SharedBlock { owner: Arc::new(self), data, size, taken: 0 }
    }
}

/// A block that several tensors share, one behind the other, each at a multiple of [`ALIGN`].
pub(crate) struct SharedBlock {
    owner: Owner,
    data: *mut u8,
    size: u64,
    /// Bytes up to the end of the last tensor.
    taken: u64,
}

impl SharedBlock {
    /// A row-major tensor behind those before it. As with [`Block::into_tensor`], the caller writes it before it is shared.
    ///
    /// # Panics
    /// If it ends beyond the block.
    pub fn take(&mut self, dtype: DType, layout: TensorLayout) -> Tensor {
        let (at, bytes) =
            (self.taken.next_multiple_of(ALIGN as u64), bytes_of(dtype, layout.shape()));
        self.taken = at + bytes;
        assert!(self.taken <= self.size, "a part of {bytes} bytes at {at} of {}", self.size);
        debug_assert!(layout.is_compact());
        let (owner, data) = (Arc::clone(&self.owner), self.data.wrapping_add(at as usize));
        // SAFETY: the block holds all bytes of the compact layout from there on, as was just checked, and lives as long
        // as its owner.
        unsafe { Tensor::new_unchecked(owner, data, dtype, Device::Cpu, layout, false) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(raw) = self.raw.take() else { return };
        // Memory goes back to the system only after the lock is free.
        drop(self.pool.give_back(raw));
    }
}

impl MemoryPool {
    /// An empty pool that keeps free blocks of at most `cap` bytes in all.
    pub fn new(cap: u64) -> Arc<MemoryPool> {
        let zero = || AtomicU64::new(0);
        Arc::new(MemoryPool {
            large: ForkMutex::default(),
            small: SmallBlocks::default(),
            cap,
            free_bytes: zero(),
            used_bytes: zero(),
            hits: zero(),
            misses: zero(),
        })
    }

    /// Allocates at least `bytes` bytes of uninitialised memory, aligned to 64 bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn allocate(self: &Arc<Self>, bytes: u64) -> Result<Block> {
        let layout = block_layout(bytes).ok_or(Error::OutOfMemory { bytes })?;
        let found = match layout.size() < POLICY.min_locked_bytes {
            true => self.small.take(layout),
            false => take_best_fit(&mut self.lock(), layout.size()),
        };
        let raw = match found {
            Some(raw) => {
                self.hits.fetch_add(1, Ordering::Relaxed);
                self.free_bytes.fetch_sub(raw.layout.size() as u64, Ordering::Relaxed);
                raw
            }
            None => {
                self.misses.fetch_add(1, Ordering::Relaxed);
                self.fresh(layout).ok_or(Error::OutOfMemory { bytes })?
            }
        };
        self.used_bytes.fetch_add(raw.layout.size() as u64, Ordering::Relaxed);
        Ok(Block { raw: Some(raw), pool: Arc::clone(self) })
    }

    /// Allocates new memory of this layout; if there is none, releases the free blocks and tries once more. `None` if
    /// that fails too.
    fn fresh(&self, layout: Layout) -> Option<Raw> {
        allocate_raw(layout).or_else(|| {
            self.clear();
            allocate_raw(layout)
        })
    }

    /// Releases all free blocks.
    pub fn clear(&self) {
        let large = std::mem::take(&mut *self.lock());
        for raw in large.into_iter().chain(self.small.drain()) {
            self.free_bytes.fetch_sub(raw.layout.size() as u64, Ordering::Relaxed);
        }
    }

    /// The pool's counters: bytes free and in use, and how many allocations found a free block.
    pub fn stats(&self) -> PoolStats {
        PoolStats {
            free_bytes: self.free_bytes.load(Ordering::Relaxed),
            used_bytes: self.used_bytes.load(Ordering::Relaxed),
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
        }
    }

    /// Takes a block back and keeps it. Returns the blocks that are to be freed: a small one beyond the cap or its
    /// slots; else the oldest large ones, until the cap is met.
    fn give_back(&self, raw: Raw) -> SmallVec<[Raw; 1]> {
        let size = raw.layout.size() as u64;
        self.used_bytes.fetch_sub(size, Ordering::Relaxed);
        // The block is counted before another thread can take it, or the sum could fall below 0.
        let free_bytes = self.free_bytes.fetch_add(size, Ordering::Relaxed) + size;
        if raw.layout.size() < POLICY.min_locked_bytes {
            let refused = match free_bytes <= self.cap {
                true => self.small.keep(raw),
                false => Some(raw),
            };
            if refused.is_some() {
                self.free_bytes.fetch_sub(size, Ordering::Relaxed);
            }
            return refused.into_iter().collect();
        }
        let mut dropped = SmallVec::new();
        let mut large = self.lock();
        large.push(raw);
        while self.free_bytes.load(Ordering::Relaxed) > self.cap && !large.is_empty() {
            let oldest = large.remove(0);
            self.free_bytes.fetch_sub(oldest.layout.size() as u64, Ordering::Relaxed);
            dropped.push(oldest);
        }
        dropped
    }

    /// Locks the free large blocks; waits for a fork that is under way.
    fn lock(&self) -> Guard<'_, Vec<Raw>> {
        self.large.lock()
    }
}

/// Takes the smallest free block that fits and is not more than a quarter too large; `None` if there is none. Among
/// equal ones it takes the one used last: its pages are the likeliest to be in a cache.
fn take_best_fit(free: &mut Vec<Raw>, size: usize) -> Option<Raw> {
    let fits = |raw: &Raw| (size..=size + size / 4).contains(&raw.layout.size());
    let (position, _) = free
        .iter()
        .enumerate()
        .rev()
        .filter(|(_, raw)| fits(raw))
        .min_by_key(|(_, raw)| raw.layout.size())?;
    Some(free.remove(position))
}

impl Default for SmallBlocks {
    fn default() -> SmallBlocks {
        SmallBlocks(std::array::from_fn(|_| std::array::from_fn(|_| AtomicPtr::default())))
    }
}

impl SmallBlocks {
    /// Takes a free block of exactly this size, one of [`SMALL_SIZES`]; `None` if there is none.
    fn take(&self, layout: Layout) -> Option<Raw> {
        // The layout that the block was allocated with, which its release needs.
        debug_assert_eq!(small_layout(small_size(layout.size())), layout);
        self.0[small_size(layout.size())].iter().find_map(|slot| take(slot, layout))
    }

    /// Keeps a block; returns it if all slots of its size are full.
    fn keep(&self, raw: Raw) -> Option<Raw> {
        debug_assert_eq!(small_layout(small_size(raw.layout.size())), raw.layout);
        let raw = ManuallyDrop::new(raw);
        for slot in &self.0[small_size(raw.layout.size())] {
            let (none, data) = (ptr::null_mut(), raw.data.as_ptr());
            // Release order: earlier writes to the memory are visible to the next taker.
            if slot.compare_exchange(none, data, Ordering::Release, Ordering::Relaxed).is_ok() {
                return None;
            }
        }
        Some(ManuallyDrop::into_inner(raw))
    }

    /// Takes all blocks, each as the iterator comes to it; the caller takes their bytes off
    /// `free_bytes`.
    fn drain(&self) -> impl Iterator<Item = Raw> + '_ {
        self.0.iter().enumerate().flat_map(|(index, slots)| {
            let layout = small_layout(index);
            slots.iter().filter_map(move |slot| take(slot, layout))
        })
    }
}

impl Drop for SmallBlocks {
    fn drop(&mut self) {
        self.drain().for_each(drop);
    }
}

/// Takes the block out of a slot for blocks of this layout; `None` if there is none.
fn take(slot: &AtomicPtr<u8>, layout: Layout) -> Option<Raw> {
    if slot.load(Ordering::Relaxed).is_null() {
        return None;
    }
    let data = NonNull::new(slot.swap(ptr::null_mut(), Ordering::Acquire))?;
    Some(Raw { data, layout })
}

/// Position of a size among [`SMALL_SIZES`].
fn small_size(size: usize) -> usize {
    let power = size.next_power_of_two().max(16 * ALIGN);
    let octave = (power / (16 * ALIGN)).trailing_zeros() as usize;
    8 * octave + size / (power / 16) - 1
}

/// The layout of the blocks at a position.
fn small_layout(index: usize) -> Layout {
    let octave = (index / 8).saturating_sub(1);
    let size = (index + 1 - 8 * octave) * (ALIGN << octave);
    block_layout(size as u64).expect("less than `min_locked_bytes`")
}

/// Size and alignment of a block of at least `bytes`: an eighth of a power of two apart, so that batches of nearly the same size
/// share blocks. `None` beyond the address space.
fn block_layout(bytes: u64) -> Option<Layout> {
    let bytes = usize::try_from(bytes).ok()?.max(ALIGN);
    let step = (bytes.checked_next_power_of_two()? / 16).max(ALIGN);
    let size = bytes.checked_next_multiple_of(step)?;
    let align = if size >= POLICY.huge_page_bytes { POLICY.huge_page_bytes } else { ALIGN };
    Layout::from_size_align(size, align).ok()
}

/// Allocates memory of this layout; `None` if there is none. Large memory is asked to have huge pages.
fn allocate_raw(layout: Layout) -> Option<Raw> {
    debug_assert!(layout.size() >= ALIGN);
    // SAFETY: the size is at least `ALIGN`, never 0.
    let data = NonNull::new(unsafe { alloc(layout) })?;
    if layout.size() >= POLICY.huge_page_bytes {
        pages::prefer_huge(data.as_ptr(), layout.size());
    }
    Some(Raw { data, layout })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back() {
        let pool = MemoryPool::new(1 << 20);
        let first = pool.allocate(100_000).unwrap();
        let address = first.data();
        assert_eq!(address.addr() % 64, 0);
        drop(first);
        assert_eq!(pool.allocate(99_000).unwrap().data(), address);
        let stats = pool.stats();
        assert_eq!((stats.hits, stats.misses, stats.used_bytes), (1, 1, 0));
        assert!(stats.free_bytes >= 100_000);
        pool.clear();
        assert_eq!(pool.stats().free_bytes, 0);
    }

    #[test]
    fn the_cap_pushes_the_oldest_out() {
        let pool = MemoryPool::new(300_000);
        let blocks: Vec<_> = (0..4).map(|_| pool.allocate(100_000).unwrap()).collect();
        let newest = blocks[3].data();
        drop(blocks);
        assert!(pool.stats().free_bytes <= 300_000);
        assert_eq!(pool.allocate(100_000).unwrap().data(), newest);
        drop(pool.allocate(1 << 20).unwrap());
        assert!(pool.stats().free_bytes <= 300_000, "a block beyond the cap is not kept");
    }

    #[test]
    fn limits_of_what_is_kept() {
        let kept = |cap: u64, count: usize, bytes: usize| {
            let pool = MemoryPool::new(cap);
            let blocks: Vec<_> = (0..count).map(|_| pool.allocate(bytes as u64).unwrap()).collect();
            let used: u64 = blocks.iter().map(Block::size).sum();
            assert_eq!(pool.stats().used_bytes, used);
            drop(blocks);
            let hit = pool.allocate(bytes as u64).unwrap();
            let stats = pool.stats();
            assert_eq!(
                (stats.hits + stats.misses, stats.used_bytes),
                (count as u64 + 1, hit.size())
            );
            let free = stats.free_bytes + stats.hits * hit.size();
            drop(hit);
            assert_eq!(pool.stats().free_bytes, free, "{count} of {bytes} under {cap}");
            free
        };
        let block = block_layout(100_000).unwrap().size() as u64;
        for (cap, count, expected) in [
            (block - 1, 1, 0),
            (block, 1, block),
            (block, 3, block),
            (3 * block - 1, 3, 2 * block),
            (3 * block, 3, 3 * block),
            (3 * block, 5, 3 * block),
        ] {
            assert_eq!(kept(cap, count, 100_000), expected, "{count} blocks, {cap} bytes");
        }
        // The largest size below the limit is a step of sizes away from it.
        let limit = POLICY.min_locked_bytes;
        let below = limit - limit / 16;
        for (bytes, size) in [(1, ALIGN), (ALIGN, ALIGN), (below, below), (limit, limit)] {
            let size = size as u64;
            for (cap, count, expected) in [
                (0, 2, 0),
                (size - 1, 2, 0),
                (2 * size - 1, 2, size),
                (2 * size, 2, 2 * size),
                (1 << 20, SLOTS, SLOTS as u64 * size),
            ] {
                assert_eq!(kept(cap, count, bytes), expected, "{count} of {bytes} under {cap}");
            }
        }
        assert_eq!(kept(1 << 20, SLOTS + 1, below), (SLOTS * below) as u64, "all slots are full");
    }

    #[test]
    fn every_small_size_has_slots_of_its_own() {
        let limit = POLICY.min_locked_bytes;
        let mut sizes: Vec<_> = (1..limit)
            .step_by(ALIGN)
            .map(|bytes| block_layout(bytes as u64).unwrap().size())
            .filter(|&size| size < limit)
            .collect();
        sizes.dedup();
        let found: Vec<_> = sizes.iter().map(|&size| small_size(size)).collect();
        assert_eq!(found, (0..SMALL_SIZES).collect::<Vec<_>>());
        let layouts: Vec<_> = found.into_iter().map(small_layout).collect();
        assert!(layouts.iter().map(Layout::size).eq(sizes));
        assert!(layouts.iter().all(|layout| layout.align() == ALIGN));
    }

    #[test]
    fn small_blocks_come_back_and_are_released() {
        let pool = MemoryPool::new(1 << 20);
        let block = pool.allocate(1000).unwrap();
        let address = block.data();
        // Any thread may release a block.
        std::thread::spawn(move || drop(block)).join().unwrap();
        assert_eq!((pool.stats().free_bytes, pool.stats().used_bytes), (1024, 0));
        let again = pool.allocate(1024).unwrap();
        assert_eq!((again.data(), pool.stats().hits), (address, 1));
        assert_eq!((pool.stats().free_bytes, pool.stats().used_bytes), (0, 1024));
        drop(again);
        pool.clear();
        assert_eq!((pool.stats().free_bytes, pool.stats().used_bytes), (0, 0));
    }

    #[test]
    fn blocks_up_to_a_quarter_larger_fit() {
        let size = POLICY.min_locked_bytes as u64;
        let step = size / 8;
        let quarter = size + size / 4;
        for (free, fits) in
            [(size - step / 2, false), (size, true), (quarter, true), (quarter + step, false)]
        {
            assert_eq!(block_layout(free).unwrap().size() as u64, free);
            let pool = MemoryPool::new(1 << 30);
            drop(pool.allocate(free).unwrap());
            drop(pool.allocate(size).unwrap());
            assert_eq!(pool.stats().hits, u64::from(fits), "{free} bytes for {size}");
        }
    }

    #[test]
    fn sizes_are_an_eighth_of_a_power_of_two_apart() {
        let power = 2 * POLICY.min_locked_bytes;
        let every = if cfg!(miri) { 997 } else { 1 };
        let mut sizes: Vec<_> = (power / 2 + 1..=power)
            .step_by(every)
            .map(|bytes| {
                let size = block_layout(bytes as u64).unwrap().size();
                assert!((bytes..bytes + power / 16).contains(&size), "{bytes}: {size}");
                size
            })
            .collect();
        sizes.dedup();
        assert_eq!(sizes.len(), 8);
    }

    #[test]
    fn large_blocks_lie_at_huge_pages() {
        let step = POLICY.huge_page_bytes / 16;
        for (bytes, align) in [
            (1, ALIGN),
            (POLICY.huge_page_bytes - step, ALIGN),
            (POLICY.huge_page_bytes, POLICY.huge_page_bytes),
            (POLICY.huge_page_bytes + 1, POLICY.huge_page_bytes),
        ] {
            let layout = block_layout(bytes as u64).unwrap();
            assert!(layout.size() >= bytes && layout.align() == align, "{bytes}: {layout:?}");
        }
    }

    #[test]
    #[cfg(not(miri))] // Miri ends the program instead of answering NULL.
    fn impossible_sizes_are_errors() {
        let pool = MemoryPool::new(0);
        for bytes in [u64::MAX, 1 << 62] {
            assert!(matches!(pool.allocate(bytes), Err(Error::OutOfMemory { .. })));
        }
        assert_eq!(pool.stats().used_bytes, 0);
        assert!(!pool.allocate(0).unwrap().data().is_null());
    }
}
