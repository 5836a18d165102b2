//! The segments of outputs whose elements are divided by scales that groups of them share, or multiplied; and of the scales.
//!
//! Scales that are found are written with the data, by the descriptor of the data. Those of samples without elements have nobody that
//! finds them: they are constants, in a segment of the output of scales.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::loops::{Extent, Loops, SampleLoop};
use super::sample_groups::{groups, groups_of_rows};
use super::segment::{sample_starts, OutputSegment, SampleStarts, SegmentScales};
use crate::cuda::memory::list_table::ListTable;
use crate::plan::{BatchShape, ElementOp, Groups, OutputPlan, Placement, Plan, Scaling, Starts};

/// The parts of an output whose elements are scaled; `scales` is the output of the scales that are found, and its address.
pub(super) fn push_rescaled_segments<'p>(
    plan: &'p Plan<'_>,
    (output, out): (&'p OutputPlan<'_>, u64),
    scales: Option<(&'p OutputPlan<'_>, u64)>,
    segments: &mut SmallVec<[OutputSegment<'p>; 1]>,
) {
    let batch_shape = &plan.batch_shapes()[output.leaf];
    let Some(scaling) = batch_shape.scaling.as_deref() else { return };
    let joined = joined_dim(output, batch_shape);
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
    for mut group in groups {
        let starts = sample_starts(output, &group);
        let mut segment_scales = SegmentScales {
            scaling,
            given: Cow::Borrowed(scaling.given.as_deref().unwrap_or_default()),
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
            (segment_scales.out, segment_scales.step) =
                (address, sample_starts(scales, &group).step());
            segment_scales.out =
                scales.places.first().map_or(segment_scales.out, |place| place.addr() as u64);
            if let Groups::Blocks { .. } = scaling.groups {
                segment_scales.block_step = stride(rows - 1);
                segment_scales.outer_steps = outer.iter().map(|&d| stride(d)).collect();
            }
        }
        if let Groups::Blocks { block, per_row, .. } = scaling.groups {
            join_rows(&mut group.loops, &mut segment_scales, block, per_row);
        }
        let segment = OutputSegment::new(output, plan.addresses(output), out, group, starts);
        let segment = OutputSegment { list, scales: Some(segment_scales), ..segment };
        match output.has_places() {
            true => push_placed(segment, scales.map(|(scales, _)| &*scales.places), segments),
            false => segments.push(segment),
        }
    }
}

/// The dim that samples follow each other in, if they do.
fn joined_dim(output: &OutputPlan<'_>, batch_shape: &BatchShape) -> Option<usize> {
    match (&output.starts, &batch_shape.placement) {
        (Starts::Joined { .. }, Placement::Joined { dim, .. }) => Some(*dim),
        _ => None,
    }
}

/// The segments of samples that each have a place, and scales at places of their own if they are found. The samples of a
/// segment are at steps from a first one, and their scales at as many steps from the first one's. So are pages of one cache, whichever
/// they are; in the worst case a segment has two samples. Scales that are given are put into the order of the samples of a segment, so that places
/// alone decide.
fn push_placed<'p>(
    segment: OutputSegment<'p>,
    places: Option<&[*const u8]>,
    segments: &mut SmallVec<[OutputSegment<'p>; 1]>,
) {
    let (output, Some(all)) = (segment.output, &segment.scales) else { return };
    let place = |sample: u32| output.places[sample as usize].addr() as u64;
    let mut order: Vec<u32> = (0..output.num_samples() as u32).collect();
    order.sort_by_key(|&sample| place(sample));
    let per_sample = all.given.len() / order.len().max(1);
    let steps = order.iter().map(|&sample| {
        let scales = places.map_or(0, |places| places[sample as usize].addr() as u64);
        [place(sample), scales]
    });
    let mut rest = &order[..];
    for run in even_runs(&steps.collect::<Vec<_>>()) {
        let (samples, others) = rest.split_at(run.ids.len());
        rest = others;
        let given = samples.iter().flat_map(|&sample| {
            let first = sample as usize * per_sample;
            &all.given[first..first + per_sample]
        });
        let run_scales = SegmentScales {
            out: run.first[1],
            step: if places.is_some() { run.steps[1] } else { per_sample as i64 },
            given: given.copied().collect(),
            ..all.clone()
        };
        segments.push(OutputSegment {
            out: run.first[0],
            samples: Some(samples.to_vec()),
            starts: SampleStarts::Placed { ids: run.ids, step: run.steps[0], lengths: None },
            scales: Some(run_scales),
            loops: segment.loops.clone(),
            ..segment
        });
    }
}

/// Places that are steps from a first one, each in two spaces: as many steps in one as in the other.
#[derive(Debug)]
struct EvenRun {
    first: [u64; 2],
    /// The step in each space; that in the first one is the largest possible.
    steps: [i64; 2],
    /// How many steps each place is behind the first one.
    ids: Vec<u32>,
}

/// Cuts places, which rise in the first space, into runs as long as they go on evenly.
fn even_runs(places: &[[u64; 2]]) -> Vec<EvenRun> {
    let mut runs = Vec::new();
    let mut rest = places;
    while let Some(&first) = rest.first() {
        let behind = |place: &[u64; 2]| {
            let [by, other] = [0, 1].map(|space| place[space].wrapping_sub(first[space]));
            (by, i128::from(other as i64))
        };
        let (mut step, mut line) = (0, None);
        let goes_on = |place: &&[u64; 2]| {
            let (by, other) = behind(place);
            let next = gcd(step, by);
            let (along, across) = *line.get_or_insert((by, other));
            let is_even = across * i128::from(by) == other * i128::from(along);
            let fits = by > 0 && is_even && by / next <= u64::from(u32::MAX);
            step = if fits { next } else { step };
            fits
        };
        let count = 1 + rest[1..].iter().take_while(goes_on).count();
        let (run, others) = rest.split_at(count);
        rest = others;
        let step = run.iter().map(|place| behind(place).0).fold(0, gcd).max(1);
        let other = run.get(1).map(behind).map_or(0, |(along, across)| {
            (across * i128::from(step) / i128::from(along.max(1))) as i64
        });
        runs.push(EvenRun {
            first,
            steps: [step as i64, other],
            ids: run.iter().map(|place| (behind(place).0 / step) as u32).collect(),
        });
    }
    runs
}

/// The largest number that divides both; the other one for 0.
fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

/// Makes one row of those of outer loops that follow each other in the source and in the output,
/// and whose scales do: rows of whole blocks of `block` elements, to fewer than 2^31 elements.
/// `per_row`: the blocks in a row of a sample.
fn join_rows(loops: &mut Loops, scales: &mut SegmentScales<'_>, block: u64, per_row: u64) {
    let is_found = scales.out != 0;
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
        let along = scales.outer_steps.last().copied().unwrap_or(0);
        let groups = (extent / block) as i64;
        if !is_one || is_found && groups > 1 && scales.block_step.checked_mul(groups) != Some(along)
        {
            return;
        }
        if groups == 1 && per_row == 1 && is_found {
            scales.block_step = along;
        }
        scales.outer_steps.pop();
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

/// Appends the scales of samples that have no elements, where scales are found: each is what `eps`
/// makes. Nothing if every sample has elements.
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
    let joined = joined_dim(output, batch_shape);
    let op = ElementOp::Const(quantize.bits_of(quantize.scale_of(0.0)));
    let list = output.selected.and_then(|_| ListTable::in_plan(plan));
    for group in groups(output, joined, 1) {
        let samples = match (has_some, group.samples.clone()) {
            (false, samples) => samples,
            (true, None) => Some(samples.clone()),
            (true, Some(in_group)) => Some(
                in_group
                    .into_iter()
                    .filter(|sample| samples.binary_search(sample).is_ok())
                    .collect(),
            ),
        };
        if samples.as_ref().is_some_and(Vec::is_empty) {
            continue;
        }
        let starts = sample_starts(output, &group);
        let segment = OutputSegment::new(output, plan.addresses(output), out, group, starts);
        segments.push(OutputSegment { op, from: output.dtype, samples, list, ..segment });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_steps_of_a_run() {
        // Pages of two caches, one of which has its scales in falling order, and a tensor of its own.
        let mut places: Vec<[u64; 2]> =
            [3, 5, 11].map(|page| [4096 + 192 * page, 100 + 12 * page]).to_vec();
        places.extend([0, 7].map(|page| [(1 << 40) + 64 * page, 5000 - 4 * page]));
        places.extend([[(1 << 40) + 64 * 9, 5000 - 4 * 9], [1 << 50, 1]]);
        let runs = even_runs(&places);
        let known: Vec<_> = runs.iter().map(|run| (run.ids.len(), run.steps)).collect();
        assert_eq!(known, [(3, [384, 24]), (3, [64, -4]), (1, [1, 0])]);
        for (run, pages) in runs.iter().zip([&places[..3], &places[3..6], &places[6..]]) {
            for (&id, place) in run.ids.iter().zip(pages) {
                for space in [0, 1] {
                    let at = run.first[space].wrapping_add_signed(run.steps[space] * i64::from(id));
                    assert_eq!(at, place[space]);
                }
            }
        }
        assert!(even_runs(&[]).is_empty());
    }

    #[test]
    fn far_places_are_runs_of_their_own() {
        let runs = even_runs(&[[0, 0], [1, 1], [1 << 33, 1 << 33], [(1 << 33) + 1, 7]]);
        assert_eq!(runs.iter().map(|run| run.ids.len()).collect::<Vec<_>>(), [2, 2]);
    }
}
