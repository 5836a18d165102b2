//! Blocks of worker processes, page-locked for copies to devices.
//!
//! The tensors of a batch view a block where its reader has mapped the pool, and that memory is pageable: what others copy
//! from it has been read when their call returns, as of any tensor. windrow copies from a second mapping of the same pages.
//! That alone is page-locked, nobody else has its address, and the block is kept until the copy is done: it is never written
//! by its worker while a device reads it. The driver has no other way that is right. What others copy from page-locked memory
//! is under way on streams that nobody names, when the last tensor dies; an event of the whole context (`cuCtxRecordEvent`)
//! would cover them, and ends every capture that is under way on one of them.
#![allow(unsafe_code)] // Tensors of other addresses, and a stream of another library.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use smallvec::SmallVec;

use super::super::driver::{forked, Context, Current, EventPool, Registered};
use super::keep_alive::KeepAlive;
use crate::tensor::{Device, Error, Owner, Result, Stream, Tensor};
use crate::workers::{self, Block, Mapping};

/// A second mapping of a block, page-locked. Unlocked before it is unmapped: fields are dropped in this order.
#[derive(Debug)]
struct Locked {
    _registered: Registered,
    mapping: Mapping,
}

/// The owner of a page-locked tensor's memory.
#[derive(Debug)]
struct LockedOwner {
    _pages: Owner,
    /// The lease that keeps the tensor's part of the block.
    _lease: Owner,
}

/// Page-locked at present, and in all.
static BYTES: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Why memory was not page-locked. It is not tried again.
static REFUSAL: OnceLock<Error> = OnceLock::new();

impl Locked {
    /// Page-locks a mapping, and counts it and its bytes; [`Error::Cuda`] if the driver refuses.
    fn new(current: &Current<'_>, mapping: Mapping) -> Result<Locked> {
        // SAFETY: whole pages, mapped for longer than they are registered.
        let _registered = unsafe { current.register(mapping.as_ptr(), mapping.num_bytes()) }?;
        BYTES.fetch_add(mapping.num_bytes() as u64, Ordering::Relaxed);
        COUNT.fetch_add(1, Ordering::Relaxed);
        Ok(Locked { _registered, mapping })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.mapping.num_bytes() as u64, Ordering::Relaxed);
    }
}

/// The same elements in page-locked memory, for a copy to a device alone. The first call for a
/// block page-locks it for all devices, by the context of `ordinal`, as long as the block exists.
/// `None` if the tensor is in no block of a worker process, in a forked child, or if a block could
/// not be page-locked, which is then not tried again ([`lock_refusal`] says why). The result keeps what keeps the tensor; hold
/// it until the copy is done ([`hold_until_done`]).
pub fn page_locked(tensor: &Tensor, ordinal: u32) -> Option<Tensor> {
    let span = tensor.layout().byte_span(tensor.dtype());
    let begin = tensor.data_ptr().wrapping_offset(span.start as isize);
    let block = workers::block_at(begin, (span.end - span.start) as u64)?;
    // A child's driver is its parent's: nothing is wrong with the memory.
    if REFUSAL.get().is_some() || forked().is_some() {
        return None;
    }
    let pages = match &block.kept {
        Some(pages) => Arc::clone(pages),
        None => match lock(&block, ordinal) {
            Ok(locked) => block.keep(Arc::new(locked)),
            Err(error) => {
                let _ = REFUSAL.set(error);
                return None;
            }
        },
    };
    let mapping = &pages.downcast_ref::<Locked>()?.mapping;
    let offset = block.offset_of(tensor.data_ptr());
    debug_assert!(offset as i64 + span.start >= 0);
    debug_assert!(offset as i64 + span.end <= mapping.num_bytes() as i64);
    let data = mapping.as_ptr().wrapping_add(offset);
    let owner = Arc::new(LockedOwner { _pages: pages, _lease: Arc::clone(tensor.owner()) });
    let (dtype, layout) = (tensor.dtype(), tensor.layout().clone());
    // SAFETY: the bytes of the tensor's elements, all of them in the block, of which this is another mapping; the owner keeps
    // both.
    Some(unsafe { Tensor::new_unchecked(owner, data, dtype, Device::Cpu, layout, false) })
}

/// Maps a block for a second time and page-locks that mapping; [`Error::Argument`] if the system refuses,
/// [`Error::Cuda`] if the driver does.
fn lock(block: &Block, ordinal: u32) -> Result<Locked> {
    let mapping = block.map_again().map_err(|error| unmapped(&error))?;
    Locked::new(&copies(ordinal)?.context.enter()?, mapping)
}

/// The [`Error::Argument`] for memory that cannot be mapped again.
fn unmapped(error: &std::io::Error) -> Error {
    Error::argument(format!("memory cannot be mapped for a second time: {error}"))
}

/// The reason why memory of worker processes is not page-locked; `None` if that was not tried, or not refused.
pub fn lock_refusal() -> Option<String> {
    REFUSAL.get().map(ToString::to_string)
}

/// Page-locks 64 KiB as memory of worker processes is page-locked, and unlocks them.
///
/// # Errors
/// It cannot be page-locked.
pub fn try_lock(ordinal: u32) -> Result<()> {
    let mapping = Mapping::anonymous(1 << 16).map_err(|error| unmapped(&error))?;
    Locked::new(&copies(ordinal)?.context.enter()?, mapping).map(drop)
}

/// The number of blocks that were page-locked so far, by [`try_lock`] too, and the bytes that are page-locked at present.
pub fn lock_stats() -> (u64, u64) {
    (COUNT.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed))
}

/// Copies from page-locked blocks to a device that may be under way.
#[derive(Debug)]
struct Copies {
    context: Arc<Context>,
    events: Arc<EventPool>,
    keep_alive: KeepAlive,
}

static COPIES: Mutex<BTreeMap<u32, Arc<Copies>>> = Mutex::new(BTreeMap::new());
/// Whether any [`Copies`] were ever made.
static HAS_COPIES: AtomicBool = AtomicBool::new(false);

/// The copies to a device. [`Error::NoDriver`] in a forked child, where the lock may never be released, and errors of
/// the device's context.
fn copies(ordinal: u32) -> Result<Arc<Copies>> {
    if let Some(error) = forked() {
        return Err(error);
    }
    let mut all = COPIES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(copies) = all.get(&ordinal) {
        return Ok(Arc::clone(copies));
    }
    let context = Context::primary(ordinal)?;
    let copies =
        Arc::new(Copies { context, events: Arc::default(), keep_alive: KeepAlive::default() });
    all.insert(ordinal, Arc::clone(&copies));
    HAS_COPIES.store(true, Ordering::Relaxed);
    Ok(copies)
}

/// Keeps owners until the work that is on the stream now has ended: copies from page-locked tensors. The stream is not captured,
/// which is not checked.
///
/// # Errors
/// [`Error::Argument`] for a stream of another device or context; [`Error::NoDriver`] in a forked child; [`Error::Cuda`]. Then
/// they are kept for ever.
pub fn hold_until_done(owners: Vec<Owner>, ordinal: u32, stream: Stream) -> Result<()> {
    // The owners are kept for ever, unless it is known when the copies are done.
    let owners = ManuallyDrop::new(owners);
    let copies = copies(ordinal)?;
    let current = copies.context.enter()?;
    // SAFETY: the maker of the `Stream` vouched for its handle.
    let foreign = unsafe { current.foreign_stream(stream.handle()) }?;
    let event = Arc::new(copies.events.take(&current)?);
    foreign.record(&event)?;
    let owners = SmallVec::from_vec(ManuallyDrop::into_inner(owners));
    copies.keep_alive.until(stream.handle(), event, owners);
    copies.keep_alive.reap()
}

/// Drops the owners that were held for copies that are done. Waits for no device.
pub fn reap_copies() {
    if !HAS_COPIES.load(Ordering::Relaxed) || forked().is_some() {
        return;
    }
    let all: SmallVec<[Arc<Copies>; 4]> = {
        let all = COPIES.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().cloned().collect()
    };
    for copies in all.iter().filter(|copies| !copies.keep_alive.is_empty()) {
        if let Ok(_current) = copies.context.enter() {
            // A device that fails says so to who uses it.
            let _ = copies.keep_alive.reap();
        }
    }
}
