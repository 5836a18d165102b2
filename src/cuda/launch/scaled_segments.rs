//! The segments of outputs whose elements are divided by scales that groups of them share, or multiplied; and of the scales.
//!
//! Scales that are found are written with the data, by the descriptor of the data. Those of samples without elements have nobody that
//! finds them: they are constants, in a segment of the output of scales.

use smallvec::SmallVec;

use super::loops::{groups, groups_of_rows, Extent, Loops, SampleLoop};
use super::segment::{sample_starts, OutputSegment, SampleStarts, SegmentScales, Sources};
use crate::cuda::memory::list_table::ListTable;
use crate::plan::{ElementOp, Groups, OutputPlan, Placement, Plan, Scaling, Starts};

/// The parts of an output whose elements are scaled; `scales` is the output of the scales that are found, and its address.
pub(super) fn push_rescaled_segments<'p>(
    plan: &'p Plan<'_>,
    (output, out): (&'p OutputPlan<'_>, u64),
    scales: Option<(&'p OutputPlan<'_>, u64)>,
    segments: &mut SmallVec<[OutputSegment<'p>; 1]>,
) {
    let batch_shape = &plan.batch_shapes()[output.leaf];
    let Some(scaling) = batch_shape.scaling.as_deref() else { return };
    let joined = match (&output.starts, &batch_shape.placement) {
        (Starts::Joined { .. }, Placement::Joined { dim, .. }) => Some(*dim),
        _ => None,
    };
    // Dims of a sample in the layouts of the data and of the scales.
    let first = usize::from(joined.is_none());
    let rows = output.layout.ndim() - first;
    let is_long = |d: &usize| joined == Some(*d) || output.layout.shape()[first + d] != 1;
    let outer: Vec<usize> = (0..rows.saturating_sub(1)).filter(is_long).collect();
    let groups = match scaling.groups {
        Groups::Sample => groups(output, joined, 1),
        Groups::Blocks { .. } => groups_of_rows(output, joined, &outer),
    };
    let list = output.selected.and_then(|_| ListTable::in_plan(plan));
    for group in groups {
        let starts = sample_starts(output, &group);
        let mut own = SegmentScales {
            scaling,
            out: 0,
            step: given_step(output, scaling, &starts),
            block_step: 0,
            outer_steps: Vec::new(),
        };
        if let Some((scales, address)) = scales {
            let stride = |d: usize| {
                let stride = scales.layout.strides().get(first + d);
                stride.map_or(0, |stride| stride.wrapping_mul(scales.dtype.size() as i64))
            };
            (own.out, own.step) = (address, sample_starts(scales, &group).step());
            if let Groups::Blocks { .. } = scaling.groups {
                own.block_step = stride(rows - 1);
                own.outer_steps = outer.iter().map(|&d| stride(d)).collect();
            }
        }
        let mut loops = group.loops;
        if let Groups::Blocks { block, per_row, .. } = scaling.groups {
            join_rows(&mut loops, &mut own, block, per_row);
        }
        segments.push(OutputSegment {
            output,
            data: plan.addresses(output),
            out,
            op: output.op,
            from: group.dtype,
            to: output.dtype,
            loops,
            samples: group.samples,
            sources: Sources::Samples,
            starts,
            affine: None,
            increments: None,
            channel_first: 0,
            list,
            scales: Some(own),
        });
    }
}

/// Makes one row of those of outer loops that follow each other in the source and in the output, and whose scales do.
fn join_rows(loops: &mut Loops, own: &mut SegmentScales<'_>, block: u64, per_row: u64) {
    let is_found = own.out != 0;
    while let [.., outer, cols] = &loops[..] {
        let (Some(count), Some(extent)) = (outer.fixed(), cols.fixed()) else { return };
        let goes_on = |outer: i64, inner: i64| inner.checked_mul(extent as i64) == Some(outer);
        let (Some(from), Some(by)) = (outer.src_stride.same(), cols.src_stride.same()) else {
            return;
        };
        let is_one = outer.is_whole()
            && cols.is_whole()
            && extent % block == 0
            && goes_on(from, by)
            && goes_on(outer.dst_stride, cols.dst_stride)
            && count.checked_mul(extent).is_some_and(|all| all < 1 << 31);
        let along = own.outer_steps.last().copied().unwrap_or(0);
        let groups = (extent / block) as i64;
        if !is_one || is_found && groups > 1 && own.block_step.checked_mul(groups) != Some(along) {
            return;
        }
        if groups == 1 && per_row == 1 && is_found {
            own.block_step = along;
        }
        own.outer_steps.pop();
        let row = SampleLoop::whole(Extent::Fixed(count * extent), by, cols.dst_stride);
        loops.truncate(loops.len() - 2);
        loops.push(row);
    }
}

/// How many given scales there are from sample to sample, or for a step of offset.
fn given_step(output: &OutputPlan<'_>, scaling: &Scaling, starts: &SampleStarts<'_>) -> i64 {
    let Groups::Blocks { row, per_row, .. } = scaling.groups else { return 1 };
    let elems = match (&output.starts, starts) {
        (Starts::Rows { elems, .. }, _) => *elems,
        (Starts::Joined { unit, .. }, SampleStarts::Joined { .. }) => *unit,
        // All samples are as long as the first.
        (Starts::Joined { offsets, unit, .. }, _) => offsets.as_slice()[1] as u64 * unit,
    };
    (elems / row.max(1) * per_row) as i64
}

/// The found scales of samples that have no elements.
pub(super) fn push_empty_scales<'p>(
    plan: &'p Plan<'_>,
    output: &'p OutputPlan<'_>,
    out: u64,
    segments: &mut SmallVec<[OutputSegment<'p>; 1]>,
) {
    let batch_shape = &plan.batch_shapes()[output.leaf];
    let is_data =
        |data: &&OutputPlan<'_>| (data.leaf, data.op) == (output.leaf, ElementOp::Rescale);
    let data = plan.outputs().iter().find(is_data);
    let (Some((quantize, _)), Some(data)) = (batch_shape.found_scales(), data) else { return };
    let is_empty = |sample: u32| data.starts.elems(sample as usize).is_empty();
    let all = 0..output.num_samples() as u32;
    let has_some = data.numel() > 0;
    let samples: Vec<u32> = match (has_some, &data.starts) {
        (true, Starts::Rows { .. }) => return,
        (true, Starts::Joined { .. }) => all.filter(|&sample| is_empty(sample)).collect(),
        (false, _) => Vec::new(),
    };
    if has_some && samples.is_empty() {
        return;
    }
    let joined = match (&output.starts, &batch_shape.placement) {
        (Starts::Joined { .. }, Placement::Joined { dim, .. }) => Some(*dim),
        _ => None,
    };
    let least = quantize.bits_of(quantize.scale_of(0.0));
    for group in groups(output, joined, 1) {
        let samples = match (has_some, group.samples.clone()) {
            (false, samples) => samples,
            (true, None) => Some(samples.clone()),
            (true, Some(own)) => Some(
                own.into_iter().filter(|sample| samples.binary_search(sample).is_ok()).collect(),
            ),
        };
        if samples.as_ref().is_some_and(Vec::is_empty) {
            continue;
        }
        let starts = sample_starts(output, &group);
        segments.push(OutputSegment {
            output,
            data: plan.addresses(output),
            out,
            op: ElementOp::Const(least),
            from: output.dtype,
            to: output.dtype,
            loops: group.loops,
            samples,
            sources: Sources::Samples,
            starts,
            affine: None,
            increments: None,
            channel_first: 0,
            list: output.selected.and_then(|_| ListTable::in_plan(plan)),
            scales: None,
        });
    }
}
