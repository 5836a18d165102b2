//! Host samples to a device: gathered by all threads into page-locked chunks, which are copied while
//! the next ones are filled.
#![allow(unsafe_code)] // Copies from raw addresses.

use super::run::Run;
use crate::cuda::driver::{CopyBatch, Direction};
use crate::host::{self, Helpers};
use crate::plan::{OutputPlan, Staged, POLICY};
use crate::tensor::Result;

/// Enqueues copies of outputs whose bytes are only moved to device memory of `bytes` bytes from
/// `place` on. Each output has its offset in that memory, a multiple of its element's size. The
/// caller holds the memory, and counts the bytes. The host has read the samples at the return;
/// bytes between outputs are not set.
pub(crate) fn gathered<'p>(
    run: &mut Run<'_>,
    outputs: impl Iterator<Item = (u64, &'p OutputPlan<'p>)> + Clone,
    (place, bytes): (u64, u64),
    threads: Option<&Helpers>,
) -> Result<()> {
    debug_assert!(outputs.clone().all(|(first, output)| {
        output.layout.is_compact() && !output.has_places() && first + output.bytes() <= bytes
    }));
    let mut begin = 0;
    while begin < bytes {
        let end = bytes.min(begin + POLICY.chunk_bytes);
        let fill = |slot: *mut u8| {
            for (first, output) in outputs.clone() {
                let part = begin.max(first)..end.min(first + output.bytes());
                if part.is_empty() {
                    continue;
                }
                // Chunks hold whole elements.
                let size = output.dtype.size() as u64;
                let elems = (part.start - first) / size..(part.end - first) / size;
                let out = slot.wrapping_offset(first as i64 as isize - begin as isize);
                debug_assert_eq!((part.start - first) % size, 0);
                // SAFETY: these elements of the row-major output fall on the slot, which is ours.
                unsafe { host::run_part(output, elems, out, threads) };
            }
        };
        // SAFETY: the place has room for all outputs and is held by the caller.
        unsafe { run.copy_up(place + begin, end - begin, fill) }?;
        begin = end;
    }
    Ok(())
}

/// Enqueues a copy of `bytes` to `place` on the device, and counts them. They may change when the call has returned.
///
/// # Safety
/// The place has room for them and is held until the copy is done.
pub(crate) unsafe fn bytes(run: &mut Run<'_>, place: u64, bytes: &[u8]) -> Result<()> {
    let mut at = place;
    for chunk in bytes.chunks(POLICY.chunk_bytes as usize) {
        // SAFETY: the slot has as many bytes and is ours; the place is the caller's promise.
        unsafe {
            run.copy_up(at, chunk.len() as u64, |slot| {
                slot.copy_from_nonoverlapping(chunk.as_ptr(), chunk.len());
            })?;
        }
        at += chunk.len() as u64;
    }
    run.result.traffic.bytes_to_device += bytes.len() as u64;
    Ok(())
}

/// Enqueues copies of page-locked tensors, each given by destination, source and bytes, and counts the bytes. The plan vouches
/// for both addresses.
pub(crate) fn as_they_are(run: &mut Run<'_>, copies: &[(u64, u64, usize)]) -> Result<()> {
    let mut batch = CopyBatch::new(Direction::HostToDevice);
    for &(to, from, bytes) in copies {
        batch.push(to, from, bytes);
        run.result.traffic.bytes_to_device += bytes as u64;
    }
    // SAFETY: sides of pairs, which the maker of the plan vouched for, held until the event behind the work.
    Ok(unsafe { run.stream.copy_batch(&batch) }?)
}

/// Enqueues copies of page-locked samples, each row-major, to their offsets behind `staged.begin` in
/// memory from `base` on. The caller counts the bytes.
pub(crate) fn copied(run: &Run<'_>, staged: &Staged, base: u64) -> Result<()> {
    let mut copies = CopyBatch::new(Direction::HostToDevice);
    for (data, ends) in staged.packed.data.iter().zip(staged.offsets.as_slice().windows(2)) {
        let place = base + staged.begin + ends[0] as u64;
        copies.push(place, data.addr() as u64, (ends[1] - ends[0]) as usize);
    }
    debug_assert_eq!(staged.packed.data.len(), staged.offsets.num_samples());
    debug_assert!(staged.offsets.total() as u64 <= staged.packed.bytes());
    // SAFETY: samples are as their maker promised, and held until the event behind the work; the caller
    // holds memory for all of them.
    Ok(unsafe { run.stream.copy_batch(&copies) }?)
}
