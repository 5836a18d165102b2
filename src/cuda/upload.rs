//! Host samples to a device: gathered by all threads into page-locked chunks, which are copied while
//! the next ones are filled.
#![allow(unsafe_code)] // Copies from raw addresses.

use super::driver::{CopyBatch, Direction};
use super::enqueue::Run;
use crate::host::{self, Helpers, Outputs};
use crate::plan::{OutputPlan, Plan, CHUNK_BYTES, UPLOAD_ALIGN};
use crate::samples::SampleList;
use crate::tensor::{Device, Offsets, Result};

/// Enqueues the bytes of an output that is compact and is at `place`.
pub(super) fn output(
    run: &mut Run<'_>,
    plan: &Plan<'_>,
    index: usize,
    place: u64,
    threads: Option<&Helpers>,
) -> Result<()> {
    let output = &plan.outputs()[index];
    let (numel, size) = (output.numel(), output.dtype.size() as u64);
    let chunk_elems = CHUNK_BYTES / size;
    let mut begin = 0;
    while begin < numel {
        let end = numel.min(begin + chunk_elems);
        let fill = |slot: *mut u8| {
            let mut outputs = vec![None; plan.outputs().len()];
            outputs[index] = Some(slot.wrapping_offset(-((begin * size) as isize)));
            // SAFETY: the elements `begin..end` of the compact output fall on the slot, which is ours.
            let outputs = unsafe { Outputs::new(outputs) };
            host::run_part(plan, index, begin..end, &outputs, threads);
        };
        // SAFETY: the place has room for the whole output and is held by the caller.
        unsafe { run.copy_up(place + begin * size, (end - begin) * size, fill) }?;
        begin = end;
    }
    Ok(())
}

/// Brings the samples of several outputs to the device in one copy, for the kernel to work on there: these outputs, as
/// they are read there.
pub(super) fn together(
    run: &mut Run<'_>,
    plan: &Plan<'_>,
    outputs: &[usize],
    threads: Option<&Helpers>,
) -> Result<Vec<(usize, OutputPlan<'static>)>> {
    let lists = outputs.iter().map(|&output| &plan.lists[plan.outputs()[output].leaf]);
    let packed = lists.map(|list| Plan::packed(list)).collect::<Result<Vec<_>>>()?;
    let mut bytes = 0u64;
    let mut begins = Vec::with_capacity(outputs.len());
    for (_, offsets) in &packed {
        begins.push(bytes);
        bytes = (bytes + offsets.total() as u64).next_multiple_of(UPLOAD_ALIGN);
    }
    let block = run.allocate(bytes)?;
    let fill = |slot: *mut u8| {
        for ((part, _), &begin) in packed.iter().zip(&begins) {
            // SAFETY: the part's bytes fall on the slot, from `begin` on, which is ours.
            let outputs = unsafe { Outputs::new(vec![Some(slot.wrapping_add(begin as usize))]) };
            host::run_part(part, 0, 0..part.outputs()[0].numel(), &outputs, threads);
        }
    };
    // SAFETY: the block has as many bytes, and is held until the work is done.
    unsafe { run.copy_up(block.address(), bytes, fill) }?;
    let device = Device::Cuda(run.current.context().ordinal());
    let mut reread = Vec::with_capacity(outputs.len());
    for ((&output, (_, offsets)), begin) in outputs.iter().zip(&packed).zip(begins) {
        run.done.traffic.bytes_to_device += offsets.total() as u64;
        let samples = &plan.lists[plan.outputs()[output].leaf];
        let list = staged(samples, offsets, block.address() + begin, device)?;
        reread.push((output, plan.reread(output, &list)));
    }
    Ok(reread)
}

/// Enqueues bytes that are known on the host.
///
/// # Safety
/// The place has room for them and is held until the copy is done.
pub(super) unsafe fn bytes(run: &mut Run<'_>, place: u64, bytes: &[u8]) -> Result<()> {
    let mut at = place;
    for chunk in bytes.chunks(CHUNK_BYTES as usize) {
        // SAFETY: the slot has as many bytes and is ours; the place is the caller's promise.
        unsafe {
            run.copy_up(at, chunk.len() as u64, |slot| {
                slot.copy_from_nonoverlapping(chunk.as_ptr(), chunk.len());
            })?;
        }
        at += chunk.len() as u64;
    }
    run.done.traffic.bytes_to_device += bytes.len() as u64;
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

/// The same samples, row-major, where they are on the device.
pub(super) fn staged(
    samples: &SampleList<'_>,
    offsets: &Offsets,
    base: u64,
    device: Device,
) -> Result<SampleList<'static>> {
    let mut list = SampleList::new();
    list.reserve(samples.len())?;
    for (index, &offset) in offsets.as_slice()[..samples.len()].iter().enumerate() {
        let meta = samples.meta(index);
        let data = (base + offset as u64) as *const u8;
        // SAFETY: so many bytes are being copied there, in the order of the stream that reads them.
        unsafe { list.push(data, meta.dtype, device, meta.layout.shape(), None) }?;
    }
    Ok(list)
}
