//! Batches of worker processes in memory that is used again.
//!
//! A worker has a pool: a sparse file without a name, mapped by it and once by the process that reads. The worker alone allocates
//! blocks, and sends messages that say where tensors are; the reader writes one word when the last tensor of a block has died,
//! and the worker sees that when it looks for room. There is no lock, queue or semaphore between them, so that nothing hangs
//! and nothing is lost if either side is killed. Linux alone has such files.
//!
//! ```text
//! worker   allocate block | claim word = sent     | message ->                              | word free: reuse
//! reader                                            -> message | word = held | ... last drop: word = free
//! memory   |pool word|claims: [word, offset, bytes, life] ...|  block  |  block  |   free   |
//! ```
//!
//! A free list under a shared lock would be simpler, but a worker that is killed while it holds the lock would stop the loader.
//! A claim in state `sent` may be taken by either side, and one in state `local` ended by the worker or by who clears its pool, hence
//! by compare-exchange; a free one is written by the worker alone.
#![allow(missing_docs)] // For bindings, as `engine/bindings.rs`.

#[cfg(all(target_os = "linux", not(any(miri, windrow_loom))))]
mod forks;
#[cfg(all(target_os = "linux", not(any(miri, windrow_loom))))]
mod lease;
#[cfg(all(target_os = "linux", not(any(miri, windrow_loom))))]
mod memory;
#[cfg(all(target_os = "linux", not(any(miri, windrow_loom))))]
mod message;
#[cfg(all(test, windrow_loom))]
mod model_tests;
#[cfg(all(target_os = "linux", not(any(miri, windrow_loom))))]
mod pool;
#[cfg(all(target_os = "linux", not(any(miri, windrow_loom))))]
mod readers;
#[cfg(all(target_os = "linux", not(any(miri, windrow_loom))))]
mod senders;
#[cfg(all(test, target_os = "linux", not(any(miri, windrow_loom))))]
mod tests;
#[cfg_attr(any(not(target_os = "linux"), miri), allow(dead_code))]
mod word;

#[cfg(all(target_os = "linux", not(any(miri, windrow_loom))))]
pub use {
    memory::{Mapping, Memory},
    message::{Message, Origin},
    pool::Refusal,
    readers::{block_at, map, mapped, open, receive, stats, sweep, Block, Unread},
    senders::{allocate, close, file, is_own, is_started, start, Parcel, Sent},
};
