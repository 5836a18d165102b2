//! Device memory to pageable host memory: by page-locked chunks, which all threads empty while the next
//! ones are copied.
#![allow(unsafe_code)] // Copies between raw addresses.

use std::collections::VecDeque;
use std::sync::Arc;

use super::run::Run;
use crate::cuda::driver::PooledEvent;
use crate::cuda::memory::pinned::PinnedBlock;
use crate::host::{self, Helpers};
use crate::plan::POLICY;
use crate::tensor::Result;

/// A chunk under way.
struct Chunk {
    slot: PinnedBlock,
    reached: Arc<PooledEvent>,
    /// Bytes from the start of the whole.
    offset: u64,
    bytes: u64,
}

/// Copies `bytes` bytes from the device behind what is on the stream, and returns when the bytes are on the host. The
/// stream is not captured. The caller counts the bytes.
///
/// # Safety
/// `bytes` are readable at `from` on the device, in the order of the stream, and writable at `to` by
/// nothing else.
pub(crate) unsafe fn bytes(
    run: &mut Run<'_>,
    from: u64,
    to: *mut u8,
    bytes: u64,
    threads: Option<&Helpers>,
) -> Result<()> {
    debug_assert!(bytes == 0 || from != 0 && !to.is_null());
    let mut under_way: VecDeque<Chunk> = VecDeque::new();
    let mut begin = 0;
    while begin < bytes || !under_way.is_empty() {
        if begin < bytes && under_way.len() < POLICY.chunks_under_way {
            let chunk = POLICY.chunk_bytes.min(bytes - begin);
            let slot = run.executor.pinned.take(run.current, chunk)?;
            // SAFETY: the slot has room for the chunk and is held until the event; the rest is the
            // caller's promise.
            unsafe { run.stream.d2h(slot.as_ptr(), from + begin, chunk as usize) }?;
            let reached = run.event()?;
            under_way.push_back(Chunk { slot, reached, offset: begin, bytes: chunk });
            begin += chunk;
        } else if let Some(chunk) = under_way.pop_front() {
            chunk.reached.synchronize()?;
            // SAFETY: the chunk has arrived in the slot; its place is the caller's promise.
            unsafe {
                let to = to.add(chunk.offset as usize);
                host::copy(chunk.slot.as_ptr(), to, chunk.bytes, threads);
            }
            chunk.slot.free();
        }
    }
    Ok(())
}
