//! Host execution: the tiles of a plan, shared out over threads.
//!
//! Work is split by output bytes, never by sample: one large image and 100 000 short rows make
//! tiles of the same size. Threads take tiles in order from a counter, so that a slow one does not
//! hold up the batch.

mod add_per_sample;
mod convert;
#[cfg(test)]
mod determinism_tests;
mod isa;
mod machine;
#[cfg(all(test, windrow_loom))]
mod model_tests;
mod pages;
mod parallel_for;
mod pipelined_copy;
mod policy;
mod pool;
mod prefetch;
mod reference;
mod rows;
mod runs;
mod scale_groups;
mod short_inner_dims;
mod simd;
mod small_batches;
mod streaming;
mod streaming_stores;
mod threads;
mod tile;
mod transpose;
mod uniform_rows;
mod walk;

use std::sync::atomic::{AtomicPtr, Ordering};

use crate::plan::{saturating_sum, ElementOp, Moves, OutputPlan, Plan, Role};
use scale_groups::TileScales;

pub use add_per_sample::add_per_sample;
pub(crate) use parallel_for::parallel_for;
pub use pipelined_copy::PipelinedCopy;
pub(crate) use policy::POLICY;
pub(crate) use pool::{MemoryPool, ALIGN};
pub use prefetch::prefetch;
pub(crate) use reference::{run as run_reference, run_moves as run_moves_by_reference};
pub(crate) use small_batches::{write_numbers, write_rows, RowPadding, RowsMemory};
pub use streaming_stores::{calibration_file, text_in_file, ChosenStores, StreamingStores};
pub(crate) use threads::{Helpers, Threads};

/// Whether one thread alone is faster; `traffic` is the number of bytes read and written.
pub(crate) fn is_small(traffic: u64) -> bool {
    traffic < POLICY.small_bytes
}

/// Bytes of a tile: a 64th of `total` within the limits of the policy, and a multiple of 64, so that no cache line and no element
/// belongs to two tiles.
fn tile_bytes(total: u64) -> u64 {
    (total / 64).clamp(POLICY.min_tile_bytes, POLICY.max_tile_bytes).next_multiple_of(64)
}

/// The tiles of a plan: every output cut into equal runs of bytes.
#[derive(Clone, Debug)]
pub(crate) struct Tiling {
    tile_bytes: u64,
    /// The first tile of each output, and the number of all tiles at the end.
    first: Vec<usize>,
}

impl Tiling {
    /// Cuts the outputs at positions for which `is_run` is true into tiles; the others have none.
    pub fn new(plan: &Plan<'_>, is_run: impl Fn(usize) -> bool) -> Tiling {
        let total = saturating_sum(plan.outputs().iter().map(OutputPlan::bytes));
        let tile_bytes = tile_bytes(total);
        let mut count = 0;
        let mut first = Vec::with_capacity(plan.outputs().len() + 1);
        first.push(0);
        for (index, output) in plan.outputs().iter().enumerate() {
            if is_run(index) {
                count += output.bytes().div_ceil(tile_bytes) as usize;
            }
            first.push(count);
        }
        Tiling { tile_bytes, first }
    }

    /// The number of tiles of all outputs.
    pub fn count(&self) -> usize {
        self.first[self.first.len() - 1]
    }

    /// The position of a tile's output, and the elements of it that the tile has, in the order of the work.
    fn locate(&self, plan: &Plan<'_>, tile: usize) -> (usize, std::ops::Range<u64>) {
        let output = self.first.partition_point(|&first| first <= tile) - 1;
        let size = plan.outputs()[output].dtype.size() as u64;
        let begin = (tile - self.first[output]) as u64 * self.tile_bytes / size;
        (output, begin..(begin + self.tile_bytes / size).min(plan.outputs()[output].numel()))
    }
}

/// The address of each output; `None` for one that is written elsewhere.
pub(crate) struct Outputs(Vec<Option<*mut u8>>);

// SAFETY: one tile alone writes each element, and elements of one output do not share memory
// (`plan::check_target`), so threads write through these addresses to different places.
#[allow(unsafe_code)]
unsafe impl Sync for Outputs {}

impl Outputs {
    /// The addresses of a plan's outputs, by position.
    ///
    /// # Safety
    /// There is one entry for each output of the plan, and every element that the output's layout
    /// reaches from its address may be written to until the run is over, by nothing else.
    #[allow(unsafe_code)]
    pub unsafe fn new(addresses: Vec<Option<*mut u8>>) -> Outputs {
        Outputs(addresses)
    }
}

/// A plan cut into tiles.
pub(crate) struct Work<'p> {
    plan: &'p Plan<'p>,
    outputs: &'p Outputs,
    tiling: Tiling,
    stores: StreamingStores,
}

impl<'p> Work<'p> {
    /// The work on the outputs that have an address; the others are not written.
    pub fn new(plan: &'p Plan<'p>, outputs: &'p Outputs, stores: StreamingStores) -> Work<'p> {
        debug_assert_eq!(outputs.0.len(), plan.outputs().len());
        let tiling = Tiling::new(plan, |output| outputs.0[output].is_some());
        Work { plan, outputs, tiling, stores }
    }

    /// Whether the batch is large enough to share out: by the bytes read and written of all outputs of the plan, whether they
    /// have an address or not.
    pub fn wants_threads(&self) -> bool {
        let traffic = |output: &OutputPlan<'_>| output.bytes().saturating_add(output.bytes_read());
        !is_small(saturating_sum(self.plan.outputs().iter().map(traffic)))
    }

    /// Runs all tiles on the calling thread and on those of the pool, and returns when they are done.
    pub fn run(&self, threads: Option<&Helpers>) {
        parallel_for(self.tiling.count(), threads, |tile| {
            let (output, elems) = self.tiling.locate(self.plan, tile);
            let Some(out) = self.outputs.0[output] else { return };
            debug_assert!(
                elems.start < elems.end && elems.end <= self.plan.outputs()[output].numel()
            );
            debug_assert!(!out.is_null() || self.plan.outputs()[output].has_places());
            // SAFETY: the plan borrows its samples, `Outputs::new` promised the output, `locate`
            // stays inside the output, and every tile is taken once.
            #[allow(unsafe_code)]
            unsafe {
                let planned = &self.plan.outputs()[output];
                match planned.op {
                    ElementOp::Rescale | ElementOp::Scales => {
                        self.rescale(output, out, elems);
                    }
                    _ => {
                        let affine = self.plan.affine_of(planned);
                        tile::run(planned, affine, out, elems, &self.stores);
                    }
                }
            }
        });
    }
}

impl Work<'_> {
    /// Writes the elements whose scales begin among `elems`, with the scales if these are found; of an output of scales those
    /// that no element has. Does nothing if the leaf has no scaling, or if found scales have no address.
    ///
    /// # Safety
    /// As of [`tile::run`]; no other thread writes the scales of these elements either.
    #[allow(unsafe_code)]
    #[inline(never)]
    unsafe fn rescale(&self, index: usize, out: *mut u8, elems: std::ops::Range<u64>) {
        let outputs = self.plan.outputs();
        let output = &outputs[index];
        let Some(scaling) = self.plan.batch_shapes()[output.leaf].scaling.as_deref() else {
            return;
        };
        let of_leaf = |role| {
            let is_its = |other: &OutputPlan<'_>| other.leaf == output.leaf && other.role == role;
            outputs.iter().position(is_its)
        };
        // SAFETY: the caller promises the output at `out`, and `Outputs::new` promised the scales at `at`.
        unsafe {
            match (scaling.quantize(), output.op) {
                (Some(quantize), ElementOp::Scales) => {
                    let Some(data) = of_leaf(Role::Data) else { return };
                    scale_groups::run_empty(output, &outputs[data], quantize, out, elems);
                }
                (Some(quantize), _) => {
                    let Some(scales) = of_leaf(Role::Scales) else { return };
                    let Some(at) = self.outputs.0[scales] else { return };
                    let found = TileScales::Found { quantize, output: &outputs[scales], out: at };
                    scale_groups::run(output, found, out, elems);
                }
                (None, _) => {
                    let scales = scaling.given.as_deref().unwrap_or_default();
                    scale_groups::run(output, TileScales::Given { scales, first: &[] }, out, elems);
                }
            }
        }
    }
}

/// Writes the elements `elems` of an output that has no affine map and no scales, by all threads, whatever the size. `out` is
/// the address of the output, not of the first of these elements.
///
/// # Safety
/// The samples are alive, and every element that the output's layout reaches from `out` among `elems` may be written to.
#[allow(unsafe_code)]
pub(crate) unsafe fn run_part(
    output: &OutputPlan<'_>,
    elems: std::ops::Range<u64>,
    out: *mut u8,
    threads: Option<&Helpers>,
) {
    debug_assert!(elems.start <= elems.end && elems.end <= output.numel());
    let out = AtomicPtr::new(out);
    let tile_elems = POLICY.min_tile_bytes / output.dtype.size() as u64;
    let stores = &StreamingStores::chosen().stores;
    let count = (elems.end - elems.start).div_ceil(tile_elems) as usize;
    parallel_for(count, threads, |tile| {
        let begin = elems.start + tile as u64 * tile_elems;
        let part = begin..(begin + tile_elems).min(elems.end);
        // SAFETY: a part of what the caller promised, disjoint from those of other tiles.
        unsafe { tile::run(output, None, out.load(Ordering::Relaxed), part, stores) };
    });
}

/// Writes all elements of moves that are on the host, and their scales: one output after the other,
/// each by all threads, whatever the size; all are written at the return.
///
/// # Safety
/// The samples are alive, and every element that the loops of an output or of its scales reach from their places may be written
/// to, by nothing else.
#[allow(unsafe_code)]
pub(crate) unsafe fn run_moves(
    moves: &Moves<'_>,
    stores: &StreamingStores,
    threads: Option<&Helpers>,
) {
    let affine = moves.affine.as_deref();
    for (index, output) in moves.outputs.iter().enumerate() {
        let numel = output.numel();
        let scales = moves.scales.get(index);
        debug_assert_eq!(output.places.len(), output.num_samples());
        debug_assert!(scales
            .and_then(|scales| scales.found.as_ref())
            .is_none_or(|(_, found)| found.places.len() == found.num_samples()));
        let tile_elems = tile_bytes(output.bytes()) / output.dtype.size() as u64;
        parallel_for(numel.div_ceil(tile_elems) as usize, threads, |tile| {
            let begin = tile as u64 * tile_elems;
            let part = begin..(begin + tile_elems).min(numel);
            let nowhere = std::ptr::null_mut();
            // SAFETY: the caller's promise, for places that all samples have; one tile alone writes each element.
            unsafe {
                match scales {
                    None => tile::run(output, affine, nowhere, part, stores),
                    Some(scales) => {
                        scale_groups::run(output, TileScales::for_moves(scales), nowhere, part);
                    }
                }
            };
        });
        if let Some((quantize, found)) = scales.and_then(|scales| scales.found.as_ref()) {
            let (nowhere, all) = (std::ptr::null_mut(), 0..found.numel());
            // SAFETY: the caller's promise, for scales that no tile has written.
            unsafe { scale_groups::run_empty(found, output, quantize, nowhere, all) };
        }
    }
}

/// Copies `bytes` bytes by all threads, and returns when they are copied.
///
/// # Safety
/// `bytes` are readable at `from`, and writable at `to` by nothing else; they do not overlap.
#[allow(unsafe_code)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: u64, threads: Option<&Helpers>) {
    debug_assert!(from.addr().abs_diff(to.addr()) as u64 >= bytes);
    debug_assert!(bytes == 0 || !from.is_null() && !to.is_null());
    let (from, to) = (AtomicPtr::new(from.cast_mut()), AtomicPtr::new(to));
    parallel_for(bytes.div_ceil(POLICY.max_tile_bytes) as usize, threads, |tile| {
        let begin = tile as u64 * POLICY.max_tile_bytes;
        let len = POLICY.max_tile_bytes.min(bytes - begin) as usize;
        let (from, to) = (from.load(Ordering::Relaxed), to.load(Ordering::Relaxed));
        // SAFETY: a part of what the caller promised; tiles are disjoint.
        unsafe { rows::copy_bytes(from.add(begin as usize), to.add(begin as usize), len, false) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collate, DType, Mask, Pad, Ragged, SampleView};

    fn view(row: &[u8]) -> SampleView<'_> {
        SampleView::from_slice(row, &[row.len() as i64]).unwrap()
    }

    #[test]
    fn tiles_cover_each_field_once() {
        let row = vec![0f64; 100_000];
        let views = [1, 99_999, 3, 100_000]
            .map(|len| SampleView::from_slice(&row[..len], &[len as i64]).unwrap());
        for (collate, done) in [
            (Collate::ragged(Ragged::new().batch_index()), None),
            (Collate::pad(Pad::new().size(500_000).mask(Mask::Pad)), None),
            (Collate::pad(Pad::new().mask(Mask::Pad)), Some(0)),
            (Collate::pad(Pad::new().mask(Mask::Pad)), Some(1)),
        ] {
            let plan = Plan::new(&views, &collate).unwrap();
            let tiling = Tiling::new(&plan, |output| Some(output) != done);
            let mut next = vec![0; plan.outputs().len()];
            for tile in 0..tiling.count() {
                let (output, elems) = tiling.locate(&plan, tile);
                assert_eq!(elems.start, next[output], "{collate:?}");
                next[output] = elems.end;
                let bytes = (elems.end - elems.start) * plan.outputs()[output].dtype.size() as u64;
                let is_last = elems.end == plan.outputs()[output].numel();
                assert!(0 < bytes && bytes <= POLICY.max_tile_bytes, "{bytes} bytes, {collate:?}");
                assert!(
                    is_last || bytes >= POLICY.min_tile_bytes && bytes % 64 == 0,
                    "{bytes} bytes"
                );
            }
            for (index, (output, next)) in plan.outputs().iter().zip(next).enumerate() {
                let expected = if Some(index) == done { 0 } else { output.numel() };
                assert_eq!(next, expected, "{collate:?}");
            }
        }
        assert_eq!(Tiling::new(&Plan::default(), |_| true).count(), 0);
    }

    #[test]
    fn threads_are_wanted_from_a_size_on() {
        // Every byte is read once and written once.
        let half = (POLICY.small_bytes / 2) as usize;
        let row = vec![0; half];
        for (len, wanted) in [(1, false), (half - 1, false), (half, true)] {
            let views = [view(&row[..len])];
            let plan = Plan::new(&views, &Collate::stack()).unwrap();
            // SAFETY: nothing is run.
            #[allow(unsafe_code)]
            let outputs = unsafe { Outputs::new(vec![None; plan.outputs().len()]) };
            assert_eq!(
                Work::new(&plan, &outputs, StreamingStores::ALL).wants_threads(),
                wanted,
                "{len} bytes"
            );
        }
    }

    #[test]
    fn large_outputs_of_long_runs_go_around_the_caches() {
        let run = POLICY.min_streamed_run_bytes as usize;
        let count = POLICY.streaming_bytes as usize / run;
        let row = vec![0; run];
        let is_streamed = |views: &[SampleView<'_>], collate: &Collate| {
            StreamingStores::ALL.are_for(&Plan::new(views, collate).unwrap().outputs()[0])
        };
        // One row again and again: each is a run of its own.
        for (len, count, streamed) in
            [(run, count, true), (run, count - 1, false), (run - 1, 2 * count, false)]
        {
            let views = vec![view(&row[..len]); count];
            assert_eq!(is_streamed(&views, &Collate::stack()), streamed, "{count} of {len}");
        }
        // Neighbours in memory are one run, and what is converted is made in blocks.
        let whole = vec![0; POLICY.streaming_bytes as usize];
        let neighbours: Vec<_> = whole.chunks(run / 2).map(view).collect();
        assert!(is_streamed(&neighbours, &Collate::stack()));
        assert!(!is_streamed(&neighbours[1..], &Collate::stack()));
        let short = vec![view(&row[..run / 4]); 2 * count];
        assert!(is_streamed(&short, &Collate::stack().cast(DType::I16)));
    }
}
