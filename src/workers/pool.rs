//! The pool of a worker: which blocks it has, which of them are free, and claims for messages.
//!
//! The problem: the reader frees a block by one word at any moment, or is killed before it does, and nobody may wait for the
//! other. So only the worker allocates, and a block is free when the words of all its claims say so.
//!
//! ```text
//! memory   | header, claims |== block 0 ==|    gap    |= block 1 =|====== block 2 ======|      gap ...     ROOM times the limit
//! claims   of block 0: LOCAL      of block 1: FREE      of block 2: HELD, SENT      spare: of no block
//! ```
//!
//! ```text
//! allocate    the size rounded up; the smallest free block of up to MOST_LARGER times that
//!             else a block in the first gap that is large enough, after free blocks were removed if the limit is in the way
//!             a claim of the block, LOCAL
//! send        another claim of the same block, SENT: tensors of this process and those of the message end by themselves
//! take_over   of a worker that has ended: blocks are told by their first claims; those with claims that are HELD stay in use
//! ```
//!
//! A file of shared memory for each batch would be simpler, as torch's own are: its pages are zeroed and mapped twice, so that a
//! batch took about as long as by `default_collate`. With pools images take a fourth to an eighth of that (two persistent
//! workers).
#![allow(unsafe_code)] // Calls of the system.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::memory::{Counter, Header, Life, Memory, FIRST_BLOCK, NUM_CLAIMS, PAGE};
use super::message::Origin;
use super::word::{Holder, LEFT, OPEN};

/// A free block of up to this many times the size is taken: batches of many sizes need half the memory that exact sizes need.
const MOST_LARGER: u64 = 2;
/// Addresses for each byte of the limit, so that gaps between blocks do not matter.
const ROOM: u64 = 4;

/// Why there is no block.
#[derive(Debug)]
pub enum Refusal {
    /// More than the limit would be in use, or the pool has no claim or no address range left.
    Limit,
    /// The system has none.
    Memory(io::Error),
}

/// A block, and those that may use it.
#[derive(Debug)]
struct Block {
    offset: u64,
    bytes: u64,
    /// [`Life::number`].
    life: u64,
    claims: Vec<u32>,
}

/// A block for tensors of this process, by a claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allocation {
    pub offset: u64,
    pub bytes: u64,
    pub life: u64,
    pub claim: u32,
    pub number: u64,
    /// Whether the block has no pages yet.
    pub is_new: bool,
}

/// The pool that this process allocates from.
#[derive(Debug)]
pub(super) struct Pool {
    pub memory: Arc<Memory>,
    /// A pool that was taken over has none, and needs none: its reader has mapped it.
    pub file: Option<Arc<OwnedFd>>,
    pub origin: Origin,
    /// The blocks by offset.
    blocks: Vec<Block>,
    /// Claims that no block has.
    spare: Vec<u32>,
    bytes: u64,
}

impl Pool {
    /// An empty one, for at most `limit` bytes. `InvalidInput` where they need 2^46 addresses, `Unsupported` where blocks would
    /// not begin with pages; else errors of the system.
    pub fn new(limit: u64) -> io::Result<Pool> {
        // SAFETY: the call takes no pointer.
        if unsafe { libc::sysconf(libc::_SC_PAGESIZE) } != PAGE as libc::c_long {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "pages of other than 4 KiB"));
        }
        let rounded =
            limit.checked_next_multiple_of(PAGE).and_then(|limit| limit.checked_mul(ROOM));
        let bytes = rounded.and_then(|bytes| bytes.checked_add(FIRST_BLOCK + PAGE));
        let bytes = bytes.filter(|&bytes| bytes < 1 << 46).ok_or(io::ErrorKind::InvalidInput)?;
        let name = c"windrow-worker";
        // SAFETY: the name is NUL-terminated; the descriptor is owned here alone.
        let file = unsafe {
            match libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) {
                -1 => return Err(io::Error::last_os_error()),
                file => OwnedFd::from_raw_fd(file),
            }
        };
        // SAFETY: the descriptor is open, and the call takes no pointer.
        if unsafe { libc::ftruncate(file.as_raw_fd(), bytes as i64) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let memory = Memory::map(file.as_fd(), bytes)?;
        memory.set_key(random()?);
        memory.pool().set(this_process(OPEN));
        let origin = Origin::new(&memory, &file)?;
        let (memory, file) = (Arc::new(memory), Some(Arc::new(file)));
        let (blocks, spare) = (Vec::new(), Vec::new());
        Ok(Pool { memory, file, origin, blocks, spare, bytes: 0 })
    }

    /// The pool of a worker that has ended, with its blocks and their pages: what its reader still
    /// has stays so, and what was sent and not read is lost. `None` if the worker has not ended, or
    /// if the pool is gone or somebody else's by now.
    pub fn take_over(memory: Arc<Memory>) -> Option<Pool> {
        let holder = memory.pool().get();
        let may_take = match holder.state {
            OPEN => is_gone(holder.process),
            state => state == LEFT,
        };
        if !may_take || !memory.pool().take(holder, this_process(OPEN)) {
            return None;
        }
        memory.forget_pages();
        let (mut blocks, mut held, mut spare) = (Vec::new(), Vec::new(), Vec::new());
        for claim in memory.claims() {
            let is_held = memory.claim(claim).free_unless_used(false);
            let (offset, bytes) = memory.block_of_claim(claim);
            match memory.life(claim) {
                Some(life) if life.is_first && memory.contains(offset, bytes) => {
                    blocks.push(Block { offset, bytes, life: life.number, claims: vec![claim] })
                }
                _ if is_held => held.push((offset, claim)),
                _ => spare.push(claim),
            }
        }
        blocks.sort_unstable_by_key(|block| block.offset);
        let bytes = blocks.iter().map(|block| block.bytes).sum();
        let origin = Origin::without_file(&memory);
        let mut pool = Pool { memory, file: None, origin, blocks, spare, bytes };
        for (offset, claim) in held {
            if let Some(index) = pool.block_at(offset) {
                pool.blocks[index].claims.push(claim);
            }
        }
        Some(pool)
    }

    /// A block of at least `bytes` with no other user, claimed for tensors of this process; all blocks have at most `limit`
    /// bytes. The caller makes its pages, if it is new.
    pub fn allocate(&mut self, bytes: u64, limit: u64) -> Result<Allocation, Refusal> {
        let bytes = size_class(bytes).ok_or(Refusal::Limit)?;
        let fits = bytes..=bytes.saturating_mul(MOST_LARGER);
        let mut best: Option<usize> = None;
        for index in 0..self.blocks.len() {
            let size = self.blocks[index].bytes;
            let is_better = best.is_none_or(|best| size < self.blocks[best].bytes);
            if fits.contains(&size) && is_better && self.is_free(index) {
                best = Some(index);
                if size == bytes {
                    break;
                }
            }
        }
        let (index, is_new) = match best {
            Some(index) => (index, false),
            None => (self.add_block(bytes, limit)?, true),
        };
        let Some(claim) = self.claim_for(index) else {
            if is_new {
                self.remove(index);
            }
            return Err(Refusal::Limit);
        };
        let Block { offset, bytes, life, .. } = self.blocks[index];
        let number = self.memory.claim(claim).claim();
        Ok(Allocation { offset, bytes, life, claim, number, is_new })
    }

    /// Adds a block without pages and claims, for which free ones may be removed; returns its index.
    fn add_block(&mut self, bytes: u64, limit: u64) -> Result<usize, Refusal> {
        if self.bytes.saturating_add(bytes) > limit {
            self.drop_free(bytes, limit);
        }
        if self.bytes.saturating_add(bytes) > limit {
            return Err(Refusal::Limit);
        }
        let (index, offset) = self.gap(bytes).ok_or(Refusal::Limit)?;
        let life = self.memory.counter(Counter::Blocks).fetch_add(1, Ordering::Relaxed) + 1;
        self.blocks.insert(index, Block { offset, bytes, life, claims: Vec::new() });
        self.bytes += bytes;
        self.publish_bytes();
        Ok(index)
    }

    /// The first place between blocks, or behind them, with so much room: the index of a block there, and its offset; `None`
    /// without one.
    fn gap(&self, bytes: u64) -> Option<(usize, u64)> {
        let mut begin = FIRST_BLOCK;
        for (index, block) in self.blocks.iter().enumerate() {
            if block.offset - begin >= bytes {
                return Some((index, begin));
            }
            begin = block.offset + block.bytes;
        }
        (self.memory.bytes() - begin >= bytes).then_some((self.blocks.len(), begin))
    }

    /// Removes free blocks of any size, from the lowest offset on, until `wanted` bytes more fit
    /// below the limit or no block is free.
    fn drop_free(&mut self, wanted: u64, limit: u64) {
        let mut index = 0;
        while index < self.blocks.len() && self.bytes.saturating_add(wanted) > limit {
            match self.is_free(index) {
                true => self.remove(index),
                false => index += 1,
            }
        }
    }

    /// Removes a free block: its pages go back to the system, and its claims become spare.
    fn remove(&mut self, index: usize) {
        let block = self.blocks.remove(index);
        self.memory.remove_pages(block.offset, block.bytes);
        for &claim in &block.claims {
            self.memory.set_life(claim, None);
        }
        self.memory.header(Header::Removed).fetch_add(1, Ordering::Release);
        self.spare.extend(block.claims);
        self.bytes -= block.bytes;
        self.publish_bytes();
    }

    /// Ends an allocation whose pages could not be made, which nothing has used, and removes its block.
    pub fn discard(&mut self, allocation: &Allocation) {
        self.memory.release(allocation.claim, allocation.number);
        if let Some(index) = self.block_at(allocation.offset) {
            self.remove(index);
        }
    }

    /// Publishes the bytes of all blocks to the reader.
    fn publish_bytes(&self) {
        self.memory.counter(Counter::BlockBytes).store(self.bytes, Ordering::Relaxed);
    }

    /// Whether no claim of the block is in use. A free block keeps its first claim; the others become spare.
    fn is_free(&mut self, index: usize) -> bool {
        let (memory, claims) = (&self.memory, &mut self.blocks[index].claims);
        let is_free = claims.iter().all(|&claim| memory.claim(claim).is_free());
        if is_free && claims.len() > 1 {
            self.spare.extend(claims.drain(1..));
        }
        is_free
    }

    /// A free claim, of this block from now on; `None` if all are in use.
    fn claim_for(&mut self, index: usize) -> Option<u32> {
        let block = &mut self.blocks[index];
        let is_free = |&claim: &u32| self.memory.claim(claim).is_free();
        // A block that stays in use and is sent again and again needs no more claims than are in use.
        if let Some(&claim) = block.claims.iter().find(|claim| is_free(claim)) {
            return Some(claim);
        }
        let claim = match self.spare.pop() {
            Some(claim) => claim,
            None => {
                let claim = self.memory.claims().end;
                if claim == NUM_CLAIMS {
                    return None;
                }
                self.memory
                    .header(Header::NumClaims)
                    .store(u64::from(claim) + 1, Ordering::Relaxed);
                claim
            }
        };
        self.memory.set_block_of_claim(claim, block.offset, block.bytes);
        let life = Life { number: block.life, is_first: block.claims.is_empty() };
        self.memory.set_life(claim, Some(life));
        block.claims.push(claim);
        Some(claim)
    }

    /// The index of the block that contains this offset, at its begin or inside; `None` if none does.
    fn block_at(&self, offset: u64) -> Option<usize> {
        let behind = self.blocks.partition_point(|block| block.offset <= offset);
        let index = behind.checked_sub(1)?;
        let Block { offset: begin, bytes, .. } = self.blocks[index];
        (offset - begin < bytes).then_some(index)
    }

    /// The offset of the block that has this address; `None` if none has.
    pub fn block_of(&self, address: *const u8) -> Option<u64> {
        let index = self.block_at(self.memory.offset_of(address)?)?;
        Some(self.blocks[index].offset)
    }

    /// A claim for a message and its number, of a block that tensors of this process keep in use. `None` if all claims are in
    /// use, or for an offset in no block.
    pub fn send(&mut self, offset: u64) -> Option<(u32, u64)> {
        let index = self.block_at(offset)?;
        let claim = self.claim_for(index)?;
        Some((claim, self.memory.claim(claim).send()))
    }
}

/// Rounds up to whole pages and to four sizes to a power of two: above four pages at most a fifth is unused. `None` beyond 64
/// bits.
fn size_class(bytes: u64) -> Option<u64> {
    let bytes = bytes.max(PAGE);
    let step = (bytes.checked_next_power_of_two()? / 8).max(PAGE);
    bytes.checked_next_multiple_of(step)
}

/// The holder of a pool of this process, by the process's id, in this state.
pub(super) fn this_process(state: u64) -> Holder {
    Holder { process: u64::from(std::process::id()), state }
}

/// Whether a process does not exist any more.
pub(super) fn is_gone(process: u64) -> bool {
    // SAFETY: the call takes no pointer; signal 0 is sent to nobody.
    let asked = unsafe { libc::kill(process as i32, 0) };
    asked != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// A key for a pool, from the system.
fn random() -> io::Result<u128> {
    let mut key = [0u8; 16];
    // SAFETY: room for as many bytes.
    match unsafe { libc::getrandom(key.as_mut_ptr().cast(), key.len(), 0) } {
        16 => Ok(u128::from_ne_bytes(key)),
        _ => Err(io::Error::last_os_error()),
    }
}
