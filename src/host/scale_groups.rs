//! One tile of an output whose elements are divided or multiplied by scales that some of them share.
//!
//! The problem: a scale is known only when all elements that share it have been read, and a tile may end among them. So a tile
//! makes all elements of the scales that begin in it, some of which are beyond its end: each scale is found by one thread, in one
//! pass over elements that the second pass then has in the caches.
//!
//! ```text
//! elements   |--- scale 0 ---|--- scale 1 ---|--- scale 2 ---|
//! tiles      |       tile 0       |       tile 1       | ...
//! written    by tile 0: scales 0 and 1, all elements of both     by tile 1: scale 2, all its elements
//! ```
//!
//! ```text
//! for each sample of the tile, of the scales that begin in it:
//!     one for a sample: walk for the largest magnitude, find or look up the scale, walk to rescale
//!     one for a block:  walk once; of each row all blocks by one loop if neither side has gaps, else block by block
//! scales of no elements are written by `run_empty`, since no tile of the data has them
//! ```
//!
//! To cut at the ends of tiles would be simpler, but two threads would have to agree on a scale before either writes.
#![allow(unsafe_code)] // Raw rows: addresses come from the plan.

use std::cell::Cell;
use std::ops::Range;

use crate::collate::Quantize;
use crate::host::rows::{self, AmaxFn, RescaleFn, RunFn};
use crate::host::runs::for_samples;
use crate::host::simd::BlockRun;
use crate::host::walk::{walk, SamplePlace};
use crate::plan::{Dim, Groups, LoopNest, MoveScales, OutputPlan};

/// The scales of an output.
#[derive(Clone, Copy)]
pub(super) enum TileScales<'p> {
    /// Scales that are found by this rule, and written to this output at its address.
    Found { quantize: &'p Quantize, output: &'p OutputPlan<'p>, out: *mut u8 },
    /// Scales that are given, one after the other, those of padding too. `first` is where each pair's begin; it is
    /// empty for a batch.
    Given { scales: &'p [f32], first: &'p [usize] },
}

impl<'p> TileScales<'p> {
    /// The scales of a move's pairs: found where its plan has a rule, else given. `out` is null for found ones, since the output
    /// has the address of each pair's scales.
    pub fn for_moves(scales: &'p MoveScales<'p>) -> TileScales<'p> {
        match &scales.found {
            Some((quantize, output)) => {
                TileScales::Found { quantize, output, out: std::ptr::null_mut() }
            }
            None => TileScales::Given { scales: &scales.given, first: &scales.first },
        }
    }
}

/// The scales of one sample.
enum SampleScales<'p> {
    Found { quantize: &'p Quantize, place: SamplePlace<'p> },
    Given(&'p [f32]),
}

impl SampleScales<'_> {
    /// Writes 1 as the scale of these blocks of padding, if scales are found; does nothing if they are given.
    ///
    /// # Safety
    /// Scales of the sample.
    unsafe fn pad(&self, groups: Range<u64>) {
        let SampleScales::Found { quantize, place } = self else {
            return;
        };
        let one = quantize.bits_of(1.0);
        for group in groups {
            // SAFETY: the caller's promise.
            unsafe { write_scale(place, group, &one, quantize) };
        }
    }

    /// The places of found scales from this group on, for the caller to set row, block and column;
    /// `None` if scales are given, or their places have other than one loop.
    fn run_at(&self, group: u64) -> Option<BlockRun<'_>> {
        let SampleScales::Found { quantize, place } = self else {
            return None;
        };
        let [dim] = place.dims else { return None };
        let stride = dim.dst_stride as isize;
        debug_assert!(group < dim.extent);
        let scales = place.dst.wrapping_offset(group as isize * stride);
        Some(BlockRun { quantize, row: 0, block: 0, column: 0, scales, stride })
    }

    /// The scale of a group: found from the largest magnitude that `amax` returns, and written, or
    /// the given one, without a call of `amax`.
    ///
    /// # Safety
    /// A scale of the sample.
    #[inline]
    unsafe fn scale_of(&self, group: u64, amax: impl FnOnce() -> f32) -> f32 {
        match self {
            SampleScales::Given(scales) => scales[group as usize],
            SampleScales::Found { quantize, place } => {
                let scale = quantize.scale_of(amax());
                // SAFETY: the caller's promise.
                unsafe { write_scale(place, group, &quantize.bits_of(scale), quantize) };
                scale
            }
        }
    }
}

/// Writes the scale of a group, counted in row-major order of the sample's scales: the first of
/// `bits`, as many as the scale dtype has.
///
/// # Safety
/// The place is that of a sample's scales, of which this is one.
#[inline]
unsafe fn write_scale(place: &SamplePlace<'_>, group: u64, bits: &[u8; 16], quantize: &Quantize) {
    let (mut rest, mut dst) = (group, place.dst);
    if let [dim] = place.dims {
        dst = dst.wrapping_offset(group as isize * dim.dst_stride as isize);
    } else {
        for dim in place.dims.iter().rev() {
            dst = dst.wrapping_offset((rest % dim.extent) as isize * dim.dst_stride as isize);
            rest /= dim.extent;
        }
    }
    debug_assert!(group < place.dims.iter().map(|dim| dim.extent).product::<u64>());
    debug_assert!(quantize.scale_dtype.size() <= bits.len());
    // SAFETY: the caller's promise.
    unsafe { dst.copy_from_nonoverlapping(bits.as_ptr(), quantize.scale_dtype.size()) };
}

/// Writes the elements of an output whose scales begin among `elems`, and these scales if they are found. A found scale is 1 for
/// a block of padding, and the scale of 0 for a sample of padding alone.
///
/// # Safety
/// The samples are alive; every element that the layouts of the output and of its scales reach from their addresses may be written
/// to, and no other thread writes the elements of these scales.
pub(super) unsafe fn run(
    output: &OutputPlan<'_>,
    scales: TileScales<'_>,
    out: *mut u8,
    elems: Range<u64>,
) {
    debug_assert!(elems.end <= output.numel());
    debug_assert!(match scales {
        TileScales::Found { quantize, output: found, .. } => {
            found.dtype == quantize.scale_dtype && found.num_samples() == output.num_samples()
        }
        TileScales::Given { .. } => true,
    });
    let mut known: Option<(&LoopNest, RowFns)> = None;
    for_samples(output, elems, |sample, part| {
        let nest = output.nest_of(sample);
        let fns = match known {
            Some((of, fns)) if std::ptr::eq(of, nest) => fns,
            _ => {
                let rescale = rows::rescale_row(nest.dtype, output.to());
                match scales {
                    TileScales::Found { .. } => {
                        let run = rows::run_of(nest.dtype, output.to());
                        RowFns { amax: rows::amax_row(nest.dtype), rescale, run }
                    }
                    TileScales::Given { .. } => RowFns { amax: no_amax, rescale, run: None },
                }
            }
        };
        known = Some((nest, fns));
        let (whole, groups) = (output.starts.elems(sample), nest.groups);
        let num_elems = whole.end - whole.start;
        // The groups that begin in the tile.
        let first = groups.index_of(part.start);
        let first = first + u64::from(groups.elems(first, num_elems).start < part.start);
        let last = groups.index_of(part.end - 1);
        if first > last {
            return;
        }
        let range = groups.elems(first, num_elems).start..groups.elems(last, num_elems).end;
        let sample_scales = match scales {
            TileScales::Found { quantize, output, out } => {
                let place = SamplePlace::new(output, output.nest_of(sample), sample, out);
                SampleScales::Found { quantize, place }
            }
            TileScales::Given { scales, first } => {
                let begin = match (first.get(sample), groups) {
                    (Some(&first), _) => first,
                    (None, Groups::Sample) => sample,
                    (None, Groups::Blocks { row, per_row, .. }) => {
                        (whole.start / row * per_row) as usize
                    }
                };
                SampleScales::Given(&scales[begin..])
            }
        };
        let place = SamplePlace::new(output, nest, sample, out);
        let rescaled = Rescaled { output, nest, groups, place, scales: sample_scales, fns };
        debug_assert!(range.end <= num_elems);
        // SAFETY: as for this function; whole groups of the sample.
        unsafe {
            match groups {
                Groups::Sample => rescaled.write_sample(range),
                Groups::Blocks { row, block, .. } => rescaled.write_blocks(range, [row, block]),
            }
        }
    });
}

/// An [`AmaxFn`] for scales that are given, which nothing calls. It returns 0.
///
/// # Safety
/// None is needed.
unsafe fn no_amax(_: *const u8, _: isize, _: usize) -> f32 {
    0.0
}

/// The functions that make the rows of a sample.
#[derive(Clone, Copy)]
struct RowFns {
    amax: AmaxFn,
    rescale: RescaleFn,
    /// Makes rows without gaps whose scales are evenly spaced.
    run: Option<RunFn>,
}

/// One sample whose elements are scaled.
struct Rescaled<'r, 'p> {
    output: &'r OutputPlan<'p>,
    nest: &'r LoopNest,
    groups: Groups,
    place: SamplePlace<'r>,
    scales: SampleScales<'r>,
    fns: RowFns,
}

impl Rescaled<'_, '_> {
    /// Fills padding.
    ///
    /// # Safety
    /// `len` elements of padding.
    unsafe fn fill(&self, dst: *mut u8, stride: isize, len: usize) {
        let size = self.output.dtype.size();
        // SAFETY: the caller's promise.
        unsafe { rows::fill_row(dst, stride, size, &self.output.fill, len) };
    }

    /// Writes a sample all of whose elements have one scale. A sample of padding alone gets the scale of 0.
    ///
    /// # Safety
    /// As of [`run`]; `range` are all elements of the sample.
    unsafe fn write_sample(&self, range: Range<u64>) {
        let RowFns { amax: amax_of, rescale, .. } = self.fns;
        debug_assert!(range == (0..self.place.dims.iter().map(|dim| dim.extent).product()));
        let amax = || {
            let mut most = 0f32;
            let read = |src: *const u8, _: *mut u8, dim: &Dim, len: usize, _: u64, _: &[u64]| {
                // SAFETY: the walk gives real elements.
                let row_amax = unsafe { amax_of(src, dim.src_stride as isize, len) };
                most = most.max(row_amax);
            };
            walk(&self.place, range.clone(), |_, _, _| (), read);
            most
        };
        // SAFETY: the sample's scale; the walk gives real elements and their places, and the places of padding.
        unsafe {
            let scale = self.scales.scale_of(0, amax);
            let fill = |dst: *mut u8, stride: isize, len: usize| self.fill(dst, stride, len);
            walk(&self.place, range.clone(), fill, |src, dst, dim, len, _, _| {
                let (from, to) = (dim.src_stride as isize, dim.dst_stride as isize);
                rescale(src, from, dst, to, len, scale);
            });
        }
    }

    /// Writes blocks of rows of the last dim, which have a scale each. Each block is within a row of the walk.
    /// `row_elems` and `block` are elements.
    ///
    /// # Safety
    /// As of [`run`]; `range` are whole blocks of the sample.
    unsafe fn write_blocks(&self, range: Range<u64>, [row_elems, block]: [u64; 2]) {
        let RowFns { amax, rescale, run } = self.fns;
        let group_of = |elem: u64| self.groups.elems(self.groups.index_of(elem), range.end);
        debug_assert_eq!(group_of(range.start).start, range.start);
        debug_assert_eq!(group_of(range.end - 1).end, range.end);
        let sizes = [self.nest.dtype.size() as isize, self.output.dtype.size() as isize];
        // The next element and its group, in the order of the walk.
        let (at, group) = (Cell::new(range.start), Cell::new(self.groups.index_of(range.start)));
        let fill = |dst: *mut u8, stride: isize, len: usize| {
            let end = at.get() + len as u64;
            let next = self.groups.index_of(end - 1) + 1;
            // SAFETY: padding, and its scales.
            unsafe {
                self.fill(dst, stride, len);
                self.scales.pad(group.get()..next);
            }
            at.set(end);
            group.set(next);
        };
        walk(&self.place, range, fill, |src, dst, dim, len, _, _| {
            let (from, to) = (dim.src_stride as isize, dim.dst_stride as isize);
            let (mut src, mut dst, mut index) = (src, dst, group.get());
            let (mut column, mut left) = (at.get() % row_elems, len as u64);
            at.set(at.get() + left);
            if let (Some(run), true) = (run, [from, to] == sizes) {
                if let Some(scales) = self.scales.run_at(index) {
                    let [row, block] = [row_elems, block].map(|elems| elems as usize);
                    let blocks = BlockRun { row, block, column: column as usize, ..scales };
                    debug_assert!(matches!(&self.scales, SampleScales::Found { place, .. }
                        if self.groups.index_of(at.get() - 1) < place.dims[0].extent));
                    // SAFETY: as below, for all blocks: the last one has a scale of the sample, too.
                    unsafe { run(src, dst, len, &blocks) };
                    group.set(self.groups.index_of(at.get() - 1) + 1);
                    return;
                }
            }
            while left > 0 {
                let count = block.min(row_elems - column).min(left);
                // SAFETY: the walk gives real elements and their places; a block has one scale of the sample.
                unsafe {
                    let scale = self.scales.scale_of(index, || amax(src, from, count as usize));
                    rescale(src, from, dst, to, count as usize, scale);
                }
                src = src.wrapping_offset(count as isize * from);
                dst = dst.wrapping_offset(count as isize * to);
                (left, index, column) = (left - count, index + 1, column + count);
                if column == row_elems {
                    column = 0;
                }
            }
            group.set(index);
        });
    }
}

/// Writes those scales among `elems` whose samples have no elements: the scale of 0, and 1 for padding.
///
/// # Safety
/// Every element that the output's layout reaches from `out` may be written to, and no other thread writes these.
pub(super) unsafe fn run_empty(
    scales: &OutputPlan<'_>,
    data: &OutputPlan<'_>,
    quantize: &Quantize,
    out: *mut u8,
    elems: Range<u64>,
) {
    if data.nests.iter().all(|nest| nest.groups.are_never_empty()) {
        return;
    }
    debug_assert!(elems.end <= scales.numel());
    let (one, least) = (quantize.bits_of(1.0), quantize.bits_of(quantize.scale_of(0.0)));
    let size = scales.dtype.size();
    for_samples(scales, elems, |sample, range| {
        if !data.starts.elems(sample).is_empty() {
            return;
        }
        let place = SamplePlace::new(scales, scales.nest_of(sample), sample, out);
        let write = |value: &[u8; 16], dst: *mut u8, stride: isize, len: usize| {
            // SAFETY: the walk stays inside the sample's place in the output.
            unsafe { rows::fill_row(dst, stride, size, value, len) };
        };
        let pad = |dst: *mut u8, stride: isize, len: usize| write(&one, dst, stride, len);
        walk(&place, range, pad, |_, dst, dim, len, _, _| {
            write(&least, dst, dim.dst_stride as isize, len);
        });
    });
}
