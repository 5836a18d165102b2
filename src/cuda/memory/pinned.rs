//! Page-locked memory on the host.
#![allow(unsafe_code)] // A block as a tensor.

use std::sync::Arc;

use super::super::driver::{forked, Current, Pinned};
use super::policy::POLICY;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{lock, Mutex};
use crate::tensor::{bytes_of, DType, Device, Error, Layout, Result, Tensor};

/// Page-locked blocks, used again: locking pages takes longer than filling them.
#[derive(Debug, Default)]
pub(crate) struct PinnedPool {
    state: Mutex<PinnedState>,
}

#[derive(Debug, Default)]
struct PinnedState {
    free: Vec<Free>,
    used_bytes: u64,
}

#[derive(Debug)]
struct Free {
    pinned: Pinned,
    until: BlockUntil,
}

/// The work that a free block waits for before it may be written to again.
#[derive(Debug)]
enum BlockUntil {
    Now,
    /// The block was handed out: others may have copies under way on streams that windrow does not know, of any
    /// device.
    EverythingIsDone,
}

/// Page-locked host memory in use.
#[derive(Debug)]
pub(crate) struct PinnedBlock {
    pinned: Option<Pinned>,
    /// Whether others may have its address.
    is_handed_out: AtomicBool,
    pool: Arc<PinnedPool>,
}

/// One for the checker.
const MAX_SPARE: usize = if cfg!(windrow_loom) { 1 } else { POLICY.max_spare_pinned };

impl PinnedPool {
    /// Takes a block of `bytes` bytes, rounded up to a power of two and to `min_pinned_bytes`, also
    /// for none, that nothing reads any more. It is not initialised. May wait for all devices.
    /// [`Error::OutOfMemory`], [`Error::Cuda`].
    pub fn take(self: &Arc<Self>, current: &Current<'_>, bytes: u64) -> Result<PinnedBlock> {
        let size = usize::try_from(bytes).ok().and_then(usize::checked_next_power_of_two);
        let size = size.ok_or(Error::OutOfMemory { bytes })?.max(POLICY.min_pinned_bytes);
        let pinned = match self.find(current, size)? {
            Some(pinned) => pinned,
            None => self.lock(current, size)?,
        };
        lock(&self.state).used_bytes += pinned.len() as u64;
        let (is_handed_out, pool) = (AtomicBool::new(true), Arc::clone(self));
        Ok(PinnedBlock { pinned: Some(pinned), is_handed_out, pool })
    }

    /// Page-locks `size` bytes of new memory. If there is none, unused blocks are freed and the allocation is tried
    /// once more; then [`Error::OutOfMemory`].
    pub fn lock(&self, current: &Current<'_>, size: usize) -> Result<Pinned> {
        match current.pinned(size) {
            Err(error) if error.is_out_of_memory() => {
                self.clear(current)?;
                current.pinned(size).map_err(|error| match error.is_out_of_memory() {
                    true => Error::OutOfMemory { bytes: size as u64 },
                    false => error.into(),
                })
            }
            pinned => Ok(pinned?),
        }
    }

    /// Takes a free block of the size that nothing reads any more. If only blocks that were handed out have the size, waits for all
    /// devices where these are `MAX_SPARE`, or such blocks of all sizes have `max_spare_pinned_bytes`; `None` otherwise.
    fn find(&self, current: &Current<'_>, size: usize) -> Result<Option<Pinned>> {
        let fits = |free: &Free| free.pinned.len() == size;
        let foreign = |free: &Free| matches!(free.until, BlockUntil::EverythingIsDone);
        let mut state = lock(&self.state);
        if let Some(index) = state.free.iter().position(|free| fits(free) && !foreign(free)) {
            return Ok(Some(state.free.swap_remove(index).pinned));
        }
        let spare = || state.free.iter().filter(|free| foreign(free));
        let num_spare = spare().filter(|free| fits(free)).count();
        let spare_bytes: usize = spare().map(|free| free.pinned.len()).sum();
        if num_spare == 0 || num_spare < MAX_SPARE && spare_bytes < POLICY.max_spare_pinned_bytes {
            return Ok(None);
        }
        let (mut waiting, others): (Vec<Free>, Vec<Free>) =
            std::mem::take(&mut state.free).into_iter().partition(foreign);
        state.free = others;
        // The device may take its time: others can give blocks back meanwhile.
        drop(state);
        let synchronized = current.synchronize_all();
        let mut found = None;
        if synchronized.is_ok() {
            waiting.iter_mut().for_each(|free| free.until = BlockUntil::Now);
            let index = waiting.iter().position(fits);
            found = index.map(|index| waiting.swap_remove(index));
        }
        lock(&self.state).free.extend(waiting);
        synchronized?;
        Ok(found.map(|free| free.pinned))
    }

    /// Waits for all devices, then unlocks and frees what is unused, if anything is. After an error of the wait the blocks stay: work
    /// on a device may still read or write them.
    pub fn clear(&self, current: &Current<'_>) -> Result<()> {
        let free = std::mem::take(&mut lock(&self.state).free);
        if free.is_empty() {
            return Ok(());
        }
        let waited = current.synchronize_all();
        if waited.is_err() {
            lock(&self.state).free.extend(free);
        }
        waited
    }

    /// Bytes that are unused, and bytes in use.
    pub fn bytes(&self) -> (u64, u64) {
        let state = lock(&self.state);
        (state.free.iter().map(|free| free.pinned.len() as u64).sum(), state.used_bytes)
    }
}

impl PinnedBlock {
    /// The address of the block's first byte; never null.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pinned.as_ref().map_or(std::ptr::null_mut(), Pinned::as_ptr)
    }

    /// The block as a tensor that owns it. The layout is compact and has no more bytes than the block.
    pub fn into_tensor(self, dtype: DType, layout: Layout) -> Tensor {
        let data = self.as_ptr();
        debug_assert!(layout.is_compact());
        debug_assert!(
            bytes_of(dtype, layout.shape()) <= self.pinned.as_ref().map_or(0, Pinned::len) as u64
        );
        // SAFETY: the taker of the block asked for the bytes of this compact layout.
        unsafe { Tensor::new_unchecked(Arc::new(self), data, dtype, Device::Pinned, layout, false) }
    }

    /// Sets whether others may have the address of the block, which is the default. Engines keep the block as long as
    /// they read it.
    pub fn set_handed_out(&self, is_handed_out: bool) {
        self.is_handed_out.store(is_handed_out, Ordering::Relaxed);
    }

    /// Gives the pool a block that no work uses any more: it is used again without a wait for devices.
    pub fn free(self) {
        self.set_handed_out(false);
    }
}

impl Drop for PinnedBlock {
    /// Gives the block back to the pool; in a forked child it is leaked.
    fn drop(&mut self) {
        let Some(pinned) = self.pinned.take() else { return };
        if forked().is_some() {
            // The block is the parent's in a forked child, and its lock may never be released.
            return std::mem::forget(pinned);
        }
        let until = match self.is_handed_out.load(Ordering::Relaxed) {
            true => BlockUntil::EverythingIsDone,
            false => BlockUntil::Now,
        };
        let mut state = lock(&self.pool.state);
        state.used_bytes -= pinned.len() as u64;
        state.free.push(Free { pinned, until });
    }
}
