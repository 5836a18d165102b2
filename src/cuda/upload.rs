//! Host samples to a device: gathered by all threads into page-locked chunks, which are copied while
//! the next ones are filled.
#![allow(unsafe_code)] // Copies from raw addresses.

use std::collections::VecDeque;
use std::sync::Arc;

use super::driver::{CopyBatch, Direction, PooledEvent};
use super::run::Run;
use crate::error::Result;
use crate::host::{self, Helpers, Outputs};
use crate::offsets::Offsets;
use crate::plan::Plan;
use crate::sample::SampleList;
use crate::tensor::Device;

/// Bytes of a chunk: long enough for the bus, short enough that the first copy starts soon.
pub(super) const CHUNK_BYTES: u64 = 4 << 20;

/// Chunks under way at once: one is filled, the others wait for the bus.
pub(super) const MAX_CHUNKS: usize = 4;

/// Enqueues the bytes of a field, whose output is compact and lies at `place`.
pub(super) fn field(
    run: &mut Run<'_>,
    plan: &Plan<'_>,
    index: usize,
    place: u64,
    threads: Option<&Helpers>,
) -> Result<()> {
    let field = &plan.fields[index];
    let (numel, size) = (field.numel(), field.dtype.size() as u64);
    let chunk_elems = CHUNK_BYTES / size;
    let mut under_way: VecDeque<Arc<PooledEvent>> = VecDeque::new();
    let mut begin = 0;
    while begin < numel {
        if under_way.len() == MAX_CHUNKS {
            if let Some(oldest) = under_way.pop_front() {
                oldest.synchronize()?;
            }
        }
        let end = numel.min(begin + chunk_elems);
        let bytes = (end - begin) * size;
        let slot = run.slot(bytes)?;
        let mut outputs = vec![std::ptr::null_mut(); plan.fields.len()];
        outputs[index] = slot.as_ptr().wrapping_offset(-((begin * size) as isize));
        // SAFETY: the elements `begin..end` of the compact output fall on the slot, which is ours.
        let outputs = unsafe { Outputs::new(outputs) };
        host::run_part(plan, index, begin..end, &outputs, threads);
        // SAFETY: the slot is kept until the event; the place has room for the whole field and is
        // held by the caller.
        unsafe { run.stream.h2d(place + begin * size, slot.as_ptr(), bytes as usize) }?;
        let event = run.event()?;
        slot.free_after(Arc::clone(&event));
        under_way.push_back(event);
        begin = end;
    }
    Ok(())
}

/// Enqueues copies of page-locked samples, each row-major, to where they belong in memory from `base`
/// on.
pub(super) fn copied(
    run: &Run<'_>,
    samples: &SampleList<'_>,
    offsets: &Offsets,
    base: u64,
) -> Result<()> {
    let mut copies = CopyBatch::new(Direction::HostToDevice);
    for (index, ends) in offsets.as_slice().windows(2).enumerate() {
        let from = samples.address(index).addr() as u64;
        copies.push(base + ends[0] as u64, from, (ends[1] - ends[0]) as usize);
    }
    // SAFETY: samples are as their maker promised, and held until the event behind the work; the caller
    // holds memory for all of them.
    Ok(unsafe { run.stream.copy_batch(&copies) }?)
}

/// The same samples, row-major, where they lie on the device.
pub(super) fn staged(
    samples: &SampleList<'_>,
    offsets: &Offsets,
    base: u64,
    device: Device,
) -> Result<SampleList<'static>> {
    let mut list = SampleList::new();
    list.reserve(samples.len())?;
    for (index, &offset) in offsets.as_slice()[..samples.len()].iter().enumerate() {
        let kind = samples.kind(index);
        let data = (base + offset as u64) as *const u8;
        // SAFETY: so many bytes are being copied there, in the order of the stream that reads them.
        unsafe { list.push(data, kind.dtype, device, kind.layout.shape(), None) }?;
    }
    Ok(list)
}
