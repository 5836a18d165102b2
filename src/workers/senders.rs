//! The side that writes: the pool of this process, tensors in it, and messages of them.
#![allow(unsafe_code)] // Tensors in blocks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use super::forks;
use super::lease::Lease;
use super::memory::{Counter, Header, Memory};
use super::message::{Message, Placed};
use super::pool::{this_process, Allocation, Pool, Refusal};
use super::readers;
use super::word::{GONE, LEFT};
use crate::sync::ForkMutex;
use crate::tensor::{bytes_of, DType, Device, Layout, Owner, Tensor};

/// Tensors below this share a block: each block costs more than so few bytes. Larger ones have one of their own, so that
/// keeping a batch's labels does not keep its images.
const SMALL_BYTES: u64 = 64 << 10;
const ALIGN: u64 = 64;

#[derive(Debug, Default)]
struct Own {
    process: u64,
    pool: Option<Pool>,
}

static OWN: LazyLock<ForkMutex<Own>> = LazyLock::new(ForkMutex::default);

/// Runs with the pool of this process, if it has one, under the lock; a parent's is dropped outside of it.
fn with_pool<R>(run: impl FnOnce(&mut Option<Pool>) -> R) -> R {
    let process = forks::process();
    let (result, _inherited);
    {
        let mut slot = OWN.lock();
        let fresh = || Own { process, pool: None };
        _inherited = (slot.process != process).then(|| std::mem::replace(&mut *slot, fresh()));
        result = run(&mut slot.pool);
    }
    result
}

/// Makes the pool of this process, which has none yet (not checked), for at most `limit` bytes; or
/// takes over one of the parent's whose worker has ended, with the room that it has.
///
/// # Errors
/// Those of the system: no descriptor, no addresses.
pub fn start(limit: u64) -> io::Result<()> {
    let taken = readers::take_inherited().into_iter().find_map(Pool::take_over);
    let pool = taken.map_or_else(|| Pool::new(limit), Ok)?;
    readers::add(Arc::clone(&pool.memory));
    with_pool(|slot| *slot = Some(pool));
    Ok(())
}

/// Whether this process has a pool.
pub fn is_started() -> bool {
    with_pool(|slot| slot.is_some())
}

/// Whether this address is in a block of the pool of this process.
pub fn is_own(address: *const u8) -> bool {
    with_pool(|slot| slot.as_ref().is_some_and(|pool| pool.block_of(address).is_some()))
}

/// The descriptor of the pool, for a reader that has not mapped it yet; `None` if it has, or without a pool.
pub fn file() -> Option<Arc<OwnedFd>> {
    with_pool(|slot| {
        let pool = slot.as_ref()?;
        let is_mapped = pool.memory.header(Header::Mapped).load(Ordering::Acquire) != 0;
        pool.file.clone().filter(|_| !is_mapped)
    })
}

/// Ends the pool of this process: what was sent and not read is lost, what a reader or a thread of this process has stays
/// until it lets go. The rest of its memory goes back to the system, unless it is left for a worker that the reader forks. Such a
/// pool that a thread still has a part of stays open, and is taken over when the process has ended.
pub fn close(is_left: bool) {
    if let Some(pool) = with_pool(Option::take) {
        let memory = &pool.memory;
        match is_left {
            false => {
                memory.pool().set(this_process(GONE));
                memory.clear(true);
            }
            // Python waits for threads after this; the pool is taken over when the process has ended.
            true if memory.has_local() => {}
            true => memory.pool().set(this_process(LEFT)),
        }
    }
}

/// Tensors of these dtypes and row-major layouts, in this order, not initialised, in blocks of the
/// pool, all of which are to be `limit` bytes at most; without elements they are in none.
///
/// # Errors
/// No room below the limit, or no memory.
pub fn allocate(outputs: &[(DType, Layout)], limit: u64) -> Result<Vec<Tensor>, Refusal> {
    let bytes_of = |(dtype, layout): &(DType, Layout)| bytes_of(*dtype, layout.shape());
    let is_small = |bytes: u64| bytes < SMALL_BYTES;
    let sizes = || outputs.iter().map(bytes_of);
    let small: u64 =
        sizes().filter(|&size| is_small(size)).map(|size| size.next_multiple_of(ALIGN)).sum();
    let shared = (small > 0).then(|| block(small, limit)).transpose()?;
    let mut used = 0;
    let mut tensors = Vec::with_capacity(outputs.len());
    for ((dtype, layout), size) in outputs.iter().zip(sizes()) {
        let (owner, data): (Owner, *mut u8) = match &shared {
            Some((lease, begin)) if is_small(size) => {
                let begin = begin.wrapping_add(used as usize);
                used += size.next_multiple_of(ALIGN);
                (Arc::clone(lease) as Owner, begin)
            }
            None if is_small(size) => {
                (Arc::new(()), std::ptr::without_provenance_mut(ALIGN as usize))
            }
            _ => block(size, limit).map(|(lease, begin)| (lease as Owner, begin))?,
        };
        debug_assert!(layout.is_compact() && used <= small);
        // SAFETY: room for all elements, in a block that its claim keeps for this process as long as the lease lives; bytes of
        // any value until it is written.
        tensors.push(unsafe {
            Tensor::new_unchecked(owner, data, *dtype, Device::Cpu, layout.clone(), false)
        });
    }
    Ok(tensors)
}

/// A block of at least `bytes` with pages, and its address: for this process until the lease is
/// dropped. A refusal by the pool is counted, one by the system is not; [`Refusal::Limit`] without
/// a pool, which is not counted either.
fn block(bytes: u64, limit: u64) -> Result<(Arc<Lease>, *mut u8), Refusal> {
    let (memory, file, allocation) = with_pool(|slot| {
        let pool = slot.as_mut().ok_or(Refusal::Limit)?;
        let allocation = pool.allocate(bytes, limit);
        if allocation.is_err() {
            pool.memory.counter(Counter::Refused).fetch_add(1, Ordering::Relaxed);
        }
        Ok((Arc::clone(&pool.memory), pool.file.clone(), allocation?))
    })?;
    let Allocation { offset, bytes, life, claim, number, is_new } = allocation;
    if is_new {
        let file = file.as_ref().map(|file| file.as_fd());
        memory.create_pages(file, offset, bytes, life).map_err(|error| {
            with_pool(|slot| slot.iter_mut().for_each(|pool| pool.discard(&allocation)));
            Refusal::Memory(error)
        })?;
    } else {
        memory.map_pages(offset, bytes, life);
    }
    let data = memory.at(offset);
    Ok((Arc::new(Lease::new(memory, claim, number)), data))
}

/// Tensors that are to travel together.
#[derive(Debug, Default)]
pub struct Parcel {
    /// The blocks that they are in, by offset.
    blocks: Vec<u64>,
    tensors: Vec<Placed>,
}

impl Parcel {
    /// Adds a tensor in the pool, which must live until the parcel is sent. False: it is not in the pool.
    pub fn add(&mut self, data: *const u8, dtype: DType, layout: &Layout) -> bool {
        let place = with_pool(|slot| {
            let pool = slot.as_ref()?;
            Some((pool.block_of(data)?, pool.memory.offset_of(data)?))
        });
        let Some((block, offset)) = place else { return false };
        let known = self.blocks.iter().rposition(|&known| known == block);
        let claim = known.unwrap_or(self.blocks.len()) as u32;
        if known.is_none() {
            self.blocks.push(block);
        }
        self.tensors.push(Placed { claim, offset: offset - block, dtype, layout: layout.clone() });
        true
    }

    /// A message of all that was added, in which each block has a claim of its own; `None` if there are no claims
    /// left, or no pool.
    pub fn send(&self) -> Option<Sent> {
        with_pool(|slot| {
            let pool = slot.as_mut()?;
            let memory = Arc::clone(&pool.memory);
            let message = Message {
                origin: pool.origin,
                claims: Vec::with_capacity(self.blocks.len()),
                tensors: self.tensors.clone(),
            };
            let mut sent = Sent { memory: Some(memory), message };
            for &block in &self.blocks {
                match pool.send(block) {
                    Some(claim) => sent.message.claims.push(claim),
                    None => return Some(Err(sent)),
                }
            }
            let counter = |counter| pool.memory.counter(counter);
            let bytes = |placed: &Placed| bytes_of(placed.dtype, placed.layout.shape());
            counter(Counter::Messages).fetch_add(1, Ordering::Relaxed);
            let bytes = self.tensors.iter().map(bytes).sum();
            counter(Counter::Bytes).fetch_add(bytes, Ordering::Relaxed);
            Some(Ok(sent))
        })?
        .ok()
    }
}

/// A message on its way. Dropped before it is [handed over](Sent::hand_over), its blocks are free again.
#[derive(Debug)]
pub struct Sent {
    memory: Option<Arc<Memory>>,
    message: Message,
}

impl Sent {
    /// The message, which is read from now on; `None` if it was before.
    pub fn hand_over(&mut self) -> Option<Vec<u8>> {
        self.memory.take().map(|_| self.message.encode())
    }
}

impl Drop for Sent {
    /// Revokes the claims, unless the message was handed over.
    fn drop(&mut self) {
        if let Some(memory) = &self.memory {
            for &(claim, number) in &self.message.claims {
                memory.claim(claim).revoke(number);
            }
        }
    }
}
