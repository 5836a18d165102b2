//! The side that reads: pools that this process has mapped, and messages to tensors.
//!
//! The problem: a message comes from another process. It may be read twice, or after its worker has ended, or name a file that is
//! another one by now. Nothing in it is taken for granted, and no bytes are copied.
//!
//! ```text
//! message    origin: process, descriptor, inode, key, bytes | claims: (claim, number) | tensors: claim, offset, dtype, layout
//!
//! open, map  /proc/PROCESS/fd/FILE, or a descriptor that was handed over: its inode has to be that, and the key in its memory
//! receive    each claim: SENT with this number becomes HELD, else the message is stale; its block has to be within the mapping
//! tensor     all its elements have to be within the block; it keeps the block's lease
//! last drop  the lease frees the claim: the worker sees that when it looks for room
//! sweep      pools whose worker has ended are closed, and their pages that nobody uses go back to the system
//! ```
//!
//! A message with the bytes themselves would be simpler, but copies each batch into the queue and out of it.
#![allow(unsafe_code)] // Tensors in memory that is found by a message; calls of the system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use super::forks;
use super::lease::Lease;
use super::memory::{Counter, Header, Mapping, Memory, NUM_CLAIMS};
use super::message::{inode_of, Message, Origin, Placed};
use super::pool::is_gone;
use super::word::{Holder, GONE, OPEN};
use crate::sync::ForkMutex;
use crate::tensor::{Device, Owner, Tensor};

/// Has a pool that nobody takes over.
const NOBODY: Holder = Holder { process: 0, state: GONE };

/// Pools that this process has mapped, its own among them.
#[derive(Debug, Default)]
struct Mapped {
    process: u64,
    pools: Vec<Arc<Memory>>,
    /// The parent's mappings when it forked, which a worker may take over.
    inherited: Vec<Arc<Memory>>,
    /// The counts of workers whose pools have been released.
    ended: [u64; Counter::ALL.len()],
}

static MAPPED: LazyLock<ForkMutex<Mapped>> = LazyLock::new(ForkMutex::default);

/// Runs with the pools of this process, under the lock. `run` drops no pool, but returns those that are to be dropped.
fn with_mapped<R>(run: impl FnOnce(&mut Mapped) -> R) -> R {
    let process = forks::process();
    // Dropped once the lock is free.
    let mut gone = Vec::new();
    let mut mapped = MAPPED.lock();
    if mapped.process != process {
        let pools = std::mem::take(&mut mapped.pools);
        gone = std::mem::replace(&mut mapped.inherited, pools);
        // Only the parent of a worker reads what that sends, and it had mapped these pools if this process is its child.
        let is_child = mapped.process + 1 == process;
        if !is_child {
            gone.append(&mut mapped.inherited);
        }
        (mapped.process, mapped.ended) = (process, Default::default());
    }
    let result = run(&mut mapped);
    drop(mapped);
    drop(gone);
    result
}

fn with_pools<R>(run: impl FnOnce(&mut Vec<Arc<Memory>>) -> R) -> R {
    with_mapped(|mapped| run(&mut mapped.pools))
}

/// The pools that the parent had mapped when it forked; the next call returns none.
pub(super) fn take_inherited() -> Vec<Arc<Memory>> {
    with_mapped(|mapped| std::mem::take(&mut mapped.inherited))
}

/// The pool of a message, if it is mapped.
pub fn mapped(origin: &Origin) -> Option<Arc<Memory>> {
    with_pools(|pools| pools.iter().find(|pool| pool.key() == origin.key).cloned())
}

/// Adds a pool to those that this process has mapped.
pub(super) fn add(memory: Arc<Memory>) {
    with_pools(|pools| pools.push(memory));
}

/// Maps the pool of a message by the descriptor that the worker has of it.
///
/// # Errors
/// It cannot be opened: the worker has ended, or is of another namespace, or not to be looked into.
pub fn open(origin: &Origin) -> io::Result<Arc<Memory>> {
    let path = format!("/proc/{}/fd/{}", origin.process, origin.file as i32);
    let name = std::ffi::CString::new(path.as_str())?;
    // The file is looked at first: in another namespace the number is that of another process, and opening a device does
    // things.
    // SAFETY: the path is NUL-terminated, and the call fills the struct in.
    let looked_at = inode_of(|stat| unsafe { libc::stat(name.as_ptr(), stat) })?;
    if looked_at != origin.inode {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    let flags = libc::O_NOCTTY | libc::O_CLOEXEC;
    let file: File = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    map(origin, &file.into())
}

/// Maps a pool as [`open`] does, by a descriptor that was handed over. The worker then knows that the pool is mapped.
/// Pools of workers that have ended are let go before. A pool that is mapped already ([`mapped`])
/// would be mapped and counted twice.
///
/// # Errors
/// It is of another file or pool, or cannot be mapped.
pub fn map(origin: &Origin, file: &OwnedFd) -> io::Result<Arc<Memory>> {
    sweep();
    // SAFETY: the call fills the struct in.
    let inode = inode_of(|stat| unsafe { libc::fstat(file.as_raw_fd(), stat) })?;
    if inode != origin.inode {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    let memory = Memory::map(file.as_fd(), origin.bytes)?;
    if memory.key() != origin.key {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let memory = Arc::new(memory);
    memory.header(Header::Mapped).store(1, Ordering::Release);
    add(Arc::clone(&memory));
    Ok(memory)
}

/// Lets pools go whose worker has ended: what is still in use goes with the last tensor. A worker
/// that is forked from now on finds none of these to take over. Claims that waited for children
/// that are gone are released, too.
pub fn sweep() {
    forks::poll();
    let ended = with_mapped(|mapped| {
        let pools = std::mem::take(&mut mapped.pools);
        let (ended, going_on): (Vec<_>, _) =
            pools.into_iter().partition(|pool| close_if_ended(pool));
        mapped.pools = going_on;
        for (&(counter, _), sum) in Counter::ALL.iter().zip(&mut mapped.ended) {
            // Blocks are there no more.
            let is_sum = !matches!(counter, Counter::BlockBytes);
            *sum += ended.iter().filter(|_| is_sum).map(|pool| pool.count(counter)).sum::<u64>();
        }
        ended
    });
    // Tensors that are still there need no more than the pages.
    ended.iter().for_each(|pool| pool.forget(|_| true));
}

/// Closes a pool that nobody allocates from, and gives back its pages that are not in use; true if it is closed, false while
/// someone allocates or has just taken it over, or its worker lives with tensors in it.
fn close_if_ended(memory: &Memory) -> bool {
    let holder = memory.pool().get();
    match holder.state {
        GONE if holder == NOBODY => return true,
        // Threads of a worker that closed it may go on.
        GONE if !is_gone(holder.process) => return !memory.has_local(),
        OPEN if !is_gone(holder.process) => return false,
        _ => {}
    }
    let is_ours = memory.pool().take(holder, NOBODY);
    if is_ours {
        memory.clear(false);
    }
    is_ours
}

/// The counts of the workers of all pools that this process has or had mapped, by name; those that
/// have ended have no bytes of blocks.
pub fn stats() -> Vec<(&'static str, u64)> {
    with_mapped(|mapped| {
        let counted = |counter| {
            let now: u64 = mapped.pools.iter().map(|pool| pool.count(counter)).sum();
            now + mapped.ended[counter as usize]
        };
        Counter::ALL.iter().map(|&(counter, name)| (name, counted(counter))).collect()
    })
}

/// Why a message has no tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The message was read before, or its worker ended before it was read.
    Stale,
    /// No worker of this version has sent it.
    Broken,
}

/// The tensors of a message. Each keeps its block: it is free when the last of them has died.
///
/// # Errors
/// See [`Unread`]; then no block is kept.
pub fn receive(memory: &Arc<Memory>, message: &Message) -> Result<Vec<Tensor>, Unread> {
    let mut blocks: Vec<(Owner, u64, u64)> = Vec::with_capacity(message.claims.len());
    for &(claim, number) in &message.claims {
        if claim >= NUM_CLAIMS {
            return Err(Unread::Broken);
        }
        if !memory.claim(claim).receive(number) {
            return Err(Unread::Stale);
        }
        let lease = Lease::new(Arc::clone(memory), claim, number);
        let (offset, bytes) = memory.block_of_claim(claim);
        let life = memory.life(claim).filter(|_| memory.contains(offset, bytes));
        memory.map_pages(offset, bytes, life.ok_or(Unread::Broken)?.number);
        blocks.push((Arc::new(lease), offset, bytes));
    }
    memory.forget_removed();
    message.tensors.iter().map(|placed| tensor(memory, &blocks, placed)).collect()
}

/// A tensor of a message, which keeps its block; [`Unread::Broken`] if it would leave the block.
fn tensor(
    memory: &Memory,
    blocks: &[(Owner, u64, u64)],
    placed: &Placed,
) -> Result<Tensor, Unread> {
    let (owner, begin, bytes) = blocks.get(placed.claim as usize).ok_or(Unread::Broken)?;
    let span = placed.layout.byte_span(placed.dtype);
    let offset = placed.offset as i128;
    if offset + i128::from(span.start) < 0 || offset + i128::from(span.end) > i128::from(*bytes) {
        return Err(Unread::Broken);
    }
    let data = memory.at(begin + placed.offset);
    let (dtype, layout) = (placed.dtype, placed.layout.clone());
    debug_assert!(memory.contains(*begin, *bytes));
    // SAFETY: all elements are in the block, as was just checked, which is in the mapping, as `receive` has checked. The lease
    // keeps both, and until it ends nobody writes to the block but who has its tensors.
    Ok(unsafe { Tensor::new_unchecked(Arc::clone(owner), data, dtype, Device::Cpu, layout, false) })
}

/// A block that this process has a tensor in.
#[derive(Debug)]
pub struct Block {
    memory: Arc<Memory>,
    offset: u64,
    bytes: u64,
    life: u64,
    /// The value that is [kept](Block::keep) with it.
    pub kept: Option<Owner>,
}

/// The block that has all of these bytes, which a tensor keeps in use; `None` for other memory.
pub fn block_at(address: *const u8, bytes: u64) -> Option<Block> {
    let (memory, at) = with_pools(|pools| {
        let mut places = pools.iter().map(|pool| (pool, pool.offset_of(address)));
        places.find_map(|(pool, at)| at.map(|at| (Arc::clone(pool), at)))
    })?;
    let (offset, bytes, life, kept) = memory.block_of(at, bytes)?;
    Some(Block { memory, offset, bytes, life, kept })
}

impl Block {
    /// Bytes from its begin to an address in it.
    pub fn offset_of(&self, address: *const u8) -> usize {
        address as usize - self.memory.at(self.offset) as usize
    }

    /// A second mapping of it: the same bytes, as long as the block is in use.
    ///
    /// # Errors
    /// Those of the system.
    pub fn map_again(&self) -> io::Result<Mapping> {
        self.memory.map_again(self.offset, self.bytes)
    }

    /// Keeps what was made of its pages, until the worker gives these back or the pool ends. Returns what is kept from now on:
    /// another thread may have been earlier.
    pub fn keep(&self, made: Owner) -> Owner {
        self.memory.keep(self.offset, self.life, made)
    }
}
