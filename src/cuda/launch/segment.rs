//! [`OutputSegment`]: what of an output of the plan one descriptor of the table writes.
//!
//! The problem: a descriptor has one source dtype, one loop nest and one rule for where samples begin. The samples of an output
//! may differ in all of these.
//!
//! ```text
//! output     0: float32   1: float32   2: float16   3: float32, a layout whose loops do not divide along those of the others
//! segments   A: samples 0 and 1        B: 2         C: 3                              by `sample_groups`
//!
//! starts     Rows             sample i begins i steps behind `out`
//!            Joined           offsets[i] steps behind it
//!            Placed           ids[i] steps behind a base; places that no base reaches in 32 bits are several segments
//! sources    Samples, or Ranges: bytes that follow each other in memory are one range, whatever samples they are of
//! ```
//!
//! ```text
//! push_segments   samples with places   push_placed_segments: groups by loops, and a segment for each base of `windows_of`
//!                 bytes without gaps    moved: one segment of bytes, of the ranges or of each sample
//!                 else                  a segment for each group of `sample_groups`, with map, increments and the device's list
//! ```
//!
//! A segment for each sample would be simpler, but each is a descriptor of 224 bytes, and the parameters of a launch have room
//! for 146.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::family::{Family, SegmentWork};
use super::loops::{Extent, Loops, PerSample, SampleLoop};
use super::sample_groups::{groups, groups_of_placed, Group};
use super::table_writer::base_of;
use crate::collate::Affine;
use crate::cuda::memory::list_table::ListTable;
use crate::plan::{CopyRange, ElementOp, OutputPlan, Placement, Plan, Role, Scaling, Starts};
use crate::tensor::DType;

/// The memory that samples are read from.
#[derive(Clone, Copy)]
pub(crate) enum Sources<'p> {
    Samples,
    Ranges(&'p [CopyRange]),
}

/// The start of each sample in the output.
pub(crate) enum SampleStarts<'p> {
    /// Samples start at multiples of this number of bytes.
    Rows(i64),
    /// At `offsets` times `step` bytes.
    Joined { offsets: Cow<'p, [i64]>, step: i64 },
    /// Each at its own number of times `step` bytes, and if they are bytes of many lengths, how many.
    Placed { ids: Vec<u32>, step: i64, lengths: Option<Vec<u32>> },
}

impl SampleStarts<'_> {
    /// Bytes from sample to sample, or for a step of offset, or the unit of the starts of placed samples.
    pub fn step(&self) -> i64 {
        match self {
            SampleStarts::Rows(step)
            | SampleStarts::Joined { step, .. }
            | SampleStarts::Placed { step, .. } => *step,
        }
    }
}

/// The addresses that samples of a segment are read from.
pub(crate) enum SegmentAddresses<'p> {
    /// `src_offset` bytes behind the address that the list has for each sample.
    Alike {
        data: &'p [*const u8],
        src_offset: i64,
    },
    Each(Vec<u64>),
}

impl SegmentAddresses<'_> {
    /// All of them, by or.
    fn bits(&self) -> u64 {
        match self {
            &SegmentAddresses::Alike { data, src_offset } => {
                data.iter().fold(0, |all, &data| all | address_of(data, src_offset))
            }
            SegmentAddresses::Each(each) => each.iter().fold(0, |all, address| all | address),
        }
    }
}

/// The address `src_offset` bytes behind `data`, modulo 2^64.
pub(crate) fn address_of(data: *const u8, src_offset: i64) -> u64 {
    (data.addr() as u64).wrapping_add(src_offset as u64)
}

/// The samples of an output with the same loops, or all of them.
pub(crate) struct OutputSegment<'p> {
    pub output: &'p OutputPlan<'p>,
    /// The address of each sample of the output.
    pub(super) data: &'p [*const u8],
    pub out: u64,
    pub op: ElementOp,
    pub from: DType,
    pub to: DType,
    pub loops: Loops,
    /// Numbers of the samples; `None`: all, in order.
    pub samples: Option<Vec<u32>>,
    pub sources: Sources<'p>,
    pub starts: SampleStarts<'p>,
    pub affine: Option<&'p Affine>,
    /// An increment for each sample of the output.
    pub increments: Option<&'p [i64]>,
    pub channel_first: u64,
    /// The table in which a device finds the samples that it selects.
    pub list: Option<&'p ListTable>,
    /// The scales that elements are divided by or multiplied with.
    pub scales: Option<SegmentScales<'p>>,
}

/// The scales of a segment's elements.
#[derive(Clone)]
pub(crate) struct SegmentScales<'p> {
    pub scaling: &'p Scaling,
    /// Scales that are given, in the order in which the segment counts them.
    pub given: Cow<'p, [f32]>,
    /// The address of the first one that is found.
    pub out: u64,
    /// From sample to sample, or for a step of offset: bytes of found scales, else a number of given ones.
    pub step: i64,
    /// Bytes from the found scale of a block to that of the next one, and along each outer loop.
    pub block_step: i64,
    pub outer_steps: Vec<i64>,
}

/// Appends the segments of an output that has elements and no scales: one of bytes if the output is compact and `bytes_only`, else
/// one for each group of samples with the same loops. Placed samples have one or more for each group. The output begins at
/// `out`, unless its samples are placed. Samples that a device selects are moved as bytes only if zeros fill the absent ones.
pub(crate) fn push_segments<'p>(
    plan: &'p Plan<'_>,
    output: &'p OutputPlan<'_>,
    out: u64,
    segments: &mut SmallVec<[OutputSegment<'p>; 1]>,
) {
    let list = output.selected.and_then(|_| ListTable::in_plan(plan));
    let data = plan.addresses(output);
    // A sample that is not there is moved too: it has to be what padding is.
    let sample_bytes = || output.bytes() / output.num_samples().max(1) as u64;
    let has_all = |list: &ListTable| output.fill == [0; 16] && list.zeros(sample_bytes()).is_some();
    if output.has_places() {
        let affine = plan.affine_of(output);
        return push_placed_segments(output, data, affine, segments);
    }
    if output.bytes_only && output.layout.is_compact() && list.is_none_or(has_all) {
        return segments.push(moved(output, data, out, list));
    }
    let batch_shape = plan.batch_shapes().get(output.leaf);
    let joined = match (
        &output.starts,
        output.role,
        batch_shape.map(|batch_shape| &batch_shape.placement),
    ) {
        (Starts::Joined { .. }, Role::Data, Some(Placement::Joined { dim, .. })) => Some(*dim),
        (Starts::Joined { .. }, ..) => Some(0),
        _ => None,
    };
    let affine = match output.op {
        ElementOp::Read { affine: true, .. } => {
            batch_shape.and_then(|batch_shape| batch_shape.affine.as_deref())
        }
        _ => None,
    };
    let increments = batch_shape.filter(|_| matches!(output.op, ElementOp::Read { .. }));
    let increments = increments.and_then(|batch_shape| batch_shape.increments.as_deref());
    for group in groups(output, joined, affine.map_or(1, Affine::channels)) {
        let starts = sample_starts(output, &group);
        let segment = OutputSegment::new(output, data, out, group, starts);
        segments.push(OutputSegment { affine, increments, list, ..segment });
    }
}

/// Appends the segments of an output whose samples are placed one by one: a group is one segment if one base and
/// one step reach all starts in 32 bits of steps, else one for each 2^32 bytes of places ([`windows_of`]).
fn push_placed_segments<'p>(
    output: &'p OutputPlan<'_>,
    data: &'p [*const u8],
    affine: Option<&'p Affine>,
    segments: &mut SmallVec<[OutputSegment<'p>; 1]>,
) {
    let length_of = |sample: u32| {
        let bytes = output.nest_of(sample as usize).num_real * output.dtype.size() as u64;
        u32::try_from(bytes).unwrap_or(u32::MAX)
    };
    for group in groups_of_placed(output) {
        let all = group.samples.clone();
        let all = all.unwrap_or_else(|| (0..data.len() as u32).collect());
        let place = |sample: u32| output.places[sample as usize].addr() as u64;
        let is_whole = all.len() == data.len();
        let is_varied = group.loops.iter().any(|dim| dim.fixed().is_none());
        let to = if is_varied { DType::U8 } else { output.dtype };
        for (samples, (base, shift)) in windows_of(all, place) {
            let ids = samples.iter().map(|&sample| ((place(sample) - base) >> shift) as u32);
            let lengths =
                is_varied.then(|| samples.iter().map(|&sample| length_of(sample)).collect());
            let starts = SampleStarts::Placed { ids: ids.collect(), step: 1 << shift, lengths };
            let are_all = is_whole && samples.len() == data.len();
            let group = Group { samples: (!are_all).then_some(samples), ..group.clone() };
            let segment = OutputSegment::new(output, data, base, group, starts);
            segments.push(OutputSegment { to, affine, ..segment });
        }
    }
}

/// Cuts samples into runs, each with a base and the log2 of a step: all places of a run are less
/// than 2^32 steps behind its base. One run keeps the order of the samples; several are in the
/// order of places, each less than 2^32 bytes long.
fn windows_of(
    mut samples: Vec<u32>,
    place: impl Fn(u32) -> u64 + Copy,
) -> Vec<(Vec<u32>, (u64, u32))> {
    let found = |samples: &[u32]| base_of(samples, place, Family::ContiguousCast);
    if let Some(base) = found(&samples) {
        return vec![(samples, base)];
    }
    samples.sort_unstable_by_key(|&sample| place(sample));
    let mut windows = Vec::new();
    let mut rest = &samples[..];
    while let Some(&first) = rest.first() {
        let is_near = |&sample: &u32| place(sample) - place(first) <= u64::from(u32::MAX);
        let (near, others) = rest.split_at(rest.partition_point(is_near));
        windows.extend(found(near).map(|base| (near.to_vec(), base)));
        rest = others;
    }
    windows
}

/// The starts of a group's samples in an output without places: `Rows`, too, if the group has all joined samples and they have one
/// length. `Joined` has the offsets of all samples of the output, which are looked up by a sample's number.
pub(super) fn sample_starts<'p>(output: &'p OutputPlan<'_>, group: &Group) -> SampleStarts<'p> {
    let is_varied = group.loops.iter().any(|dim| dim.fixed().is_none());
    match &output.starts {
        Starts::Rows { step, .. } => SampleStarts::Rows(*step),
        Starts::Joined { offsets, step, .. } if is_varied || group.samples.is_some() => {
            SampleStarts::Joined { offsets: Cow::Borrowed(offsets.as_slice()), step: *step }
        }
        // All samples are as long as the first.
        Starts::Joined { offsets, step, .. } => {
            SampleStarts::Rows(offsets.as_slice()[1].wrapping_mul(*step))
        }
    }
}

/// The segment of an output whose samples are runs of bytes: one for each sample, or fewer where neighbours are merged.
fn moved<'p>(
    output: &'p OutputPlan<'_>,
    data: &'p [*const u8],
    out: u64,
    list: Option<&'p ListTable>,
) -> OutputSegment<'p> {
    let size = output.dtype.size() as u64;
    let one = |extent: Extent| Loops::from_iter([SampleLoop::whole(extent, 1, 1)]);
    let rows = |bytes: u64| (one(Extent::Fixed(bytes)), SampleStarts::Rows(bytes as i64));
    let joined = |unit: u64, offsets| {
        (one(Extent::Joined(unit)), SampleStarts::Joined { offsets, step: unit as i64 })
    };
    let (loops, starts) = match (output.ranges.as_deref(), &output.starts) {
        (Some([only]), _) => rows(only.size),
        (Some(ranges), _) => {
            let ends = ranges.iter().map(|range| range.dst as i64).chain([output.bytes() as i64]);
            joined(1, ends.collect())
        }
        (None, Starts::Rows { elems, .. }) => rows(elems * size),
        (None, Starts::Joined { offsets, unit, .. }) => {
            match (&*output.nest_ids, offsets.as_slice()) {
                ([], [_, first, ..]) => rows(*first as u64 * unit * size),
                (_, offsets) => joined(unit * size, Cow::Borrowed(offsets)),
            }
        }
    };
    let group = Group { dtype: DType::U8, samples: None, loops, channel_first: 0 };
    let sources = output.ranges.as_deref().map_or(Sources::Samples, Sources::Ranges);
    let segment = OutputSegment::new(output, data, out, group, starts);
    OutputSegment { to: DType::U8, sources, list, ..segment }
}

impl<'p> OutputSegment<'p> {
    /// The samples of a group, with the loops, dtype and first channel of the group and the operation of the output; without affine
    /// map, increments, list, ranges and scales, which the caller sets.
    pub(super) fn new(
        output: &'p OutputPlan<'p>,
        data: &'p [*const u8],
        out: u64,
        group: Group,
        starts: SampleStarts<'p>,
    ) -> OutputSegment<'p> {
        OutputSegment {
            output,
            data,
            out,
            op: output.op,
            from: group.dtype,
            to: output.dtype,
            loops: group.loops,
            samples: group.samples,
            sources: Sources::Samples,
            starts,
            affine: None,
            increments: None,
            channel_first: group.channel_first,
            list: None,
            scales: None,
        }
    }
}

impl OutputSegment<'_> {
    /// The number of its samples, or of ranges of bytes where neighbours were merged.
    pub fn num_samples(&self) -> usize {
        match (self.sources, &self.samples) {
            (Sources::Ranges(ranges), _) => ranges.len(),
            (_, Some(samples)) => samples.len(),
            (_, None) => self.output.num_samples(),
        }
    }

    /// The number of its `index`th sample.
    pub fn sample(&self, index: usize) -> usize {
        self.samples.as_ref().map_or(index, |samples| samples[index] as usize)
    }

    /// The number of a loop for each sample in turn, by the loop nest of the sample. The output has several nests.
    pub fn each<'a>(&'a self, values: &'a [i64]) -> impl Iterator<Item = i64> + 'a {
        let ids = &self.output.nest_ids;
        (0..self.num_samples()).map(move |index| values[ids[self.sample(index)] as usize])
    }

    /// For samples that a device selects, one number for each loop nest of the output: the offset in bytes that is added to the
    /// address of its samples; the last nest is that of indices out of range, and has the address that is read instead.
    pub fn offsets(&self, list: &ListTable) -> Vec<i64> {
        let mut offsets: Vec<i64> = self.output.nests.iter().map(|nest| nest.src_offset).collect();
        if let Some(nothing) = offsets.last_mut() {
            *nothing = list.any_address() as i64;
        }
        offsets
    }

    /// Addresses of the samples' first elements read; an empty `Each` if nothing is read or a
    /// device chooses the samples. Those of samples without elements may be stale, and are given as
    /// that of another.
    pub fn addresses(&self) -> SegmentAddresses<'_> {
        let output = self.output;
        match (self.op, self.sources) {
            (ElementOp::Const(_) | ElementOp::Index, _) => SegmentAddresses::Each(Vec::new()),
            _ if self.list.is_some() => SegmentAddresses::Each(Vec::new()),
            (_, Sources::Ranges(ranges)) => {
                SegmentAddresses::Each(ranges.iter().map(|range| range.src.addr() as u64).collect())
            }
            (_, Sources::Samples) => match &output.nests[..] {
                [nest, ..]
                    if output.nest_ids.is_empty()
                        && self.samples.is_none()
                        && nest.num_real > 0 =>
                {
                    SegmentAddresses::Alike { data: self.data, src_offset: nest.src_offset }
                }
                _ => SegmentAddresses::Each(self.addresses_by_nest()),
            },
        }
    }

    /// The address of each sample's first element read, by its own nest; for a sample without elements, that of another one, or 0
    /// if no sample has elements.
    fn addresses_by_nest(&self) -> Vec<u64> {
        let output = self.output;
        let address = |sample: usize| {
            let nest = output.nest_of(sample);
            let first = address_of(self.data[sample], nest.src_offset);
            (nest.num_real > 0).then_some(first)
        };
        let mut any = None;
        let mut all = Vec::with_capacity(self.num_samples());
        for index in 0..self.num_samples() {
            let address = address(self.sample(index));
            any = any.or(address);
            all.push(address.or(any).unwrap_or(0));
        }
        // Empty samples before the first one that is read get its address.
        let leading = all.iter().take_while(|&&address| address == 0).count();
        all[..leading].fill(any.unwrap_or(0));
        all
    }

    /// The bits of all addresses: what they are multiples of. For samples that a device chooses, the bits are those of its list and
    /// of the nests' offsets.
    pub fn address_bits(&self, addresses: &SegmentAddresses<'_>) -> u64 {
        match (self.list, self.op, &self.output.nests[..]) {
            (Some(list), ElementOp::Read { .. } | ElementOp::Rescale, [nests @ .., _nothing]) => {
                let offsets = nests.iter().map(|nest| nest.src_offset as u64);
                offsets.fold(list.alignment | list.any_address(), |all, offset| all | offset)
            }
            _ => addresses.bits(),
        }
    }

    /// How far sample `index` goes along a joined dim, in steps of its starts; bytes for placed runs of many lengths, and 1 where
    /// all samples have one length.
    pub fn step_of(&self, index: usize) -> u64 {
        match &self.starts {
            SampleStarts::Placed { lengths: Some(lengths), .. } => lengths[index].into(),
            SampleStarts::Rows(_) | SampleStarts::Placed { .. } => 1,
            SampleStarts::Joined { offsets, .. } => {
                let ends = &offsets[self.sample(index)..][..2];
                (ends[1] - ends[0]) as u64
            }
        }
    }

    /// The largest [`step_of`](Self::step_of) of a sample; 0 without samples.
    pub fn longest_step(&self) -> u64 {
        (0..self.num_samples()).map(|index| self.step_of(index)).max().unwrap_or(0)
    }

    /// Whether samples may differ in length.
    pub fn is_joined(&self) -> bool {
        matches!(
            self.starts,
            SampleStarts::Joined { .. } | SampleStarts::Placed { lengths: Some(_), .. }
        )
    }

    /// Whether bytes are moved as they are: without affine map and increments, and with [`OutputSegment::is_of_one_dtype`].
    pub fn is_move(&self) -> bool {
        let is_read = matches!(self.op, ElementOp::Read { affine: false, .. });
        is_read && self.increments.is_none() && self.is_of_one_dtype()
    }

    /// Whether samples have the dtype of the output; integers of one size differ by name alone.
    pub fn is_of_one_dtype(&self) -> bool {
        use DType::{I16, I32, I64, I8, U16, U32, U64, U8};
        let is_integer = |dtype| matches!(dtype, I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64);
        let is_alike =
            self.from.size() == self.to.size() && is_integer(self.from) && is_integer(self.to);
        self.from == self.to || is_alike
    }

    /// The properties that decide on the family.
    pub fn work(&self, address_bits: u64) -> SegmentWork<'_> {
        let is_varied = self.loops.iter().any(|dim| dim.fixed().is_none());
        let elems = self.loops.iter().filter_map(SampleLoop::fixed).product::<u64>();
        let sample_bytes = elems * self.to.size() as u64;
        let is_dense = match self.starts {
            SampleStarts::Rows(step) => step == sample_bytes as i64,
            SampleStarts::Joined { .. } => true,
            SampleStarts::Placed { .. } => false,
        };
        let is_placed = matches!(self.starts, SampleStarts::Placed { .. });
        SegmentWork {
            op: self.op,
            is_move: self.is_move(),
            adds_per_sample: self.increments.map(|_| self.is_of_one_dtype()),
            from: self.from,
            to: self.to,
            loops: &self.loops,
            num_samples: self.num_samples() as u64,
            channels: self.affine.map_or(1, Affine::channels),
            // The alignment that all samples share, as the bits of their addresses.
            out: self.out | if is_placed { self.starts.step() as u64 } else { 0 },
            is_joined: self.is_joined(),
            is_dense: is_dense && self.samples.is_none(),
            is_placed,
            bytes: match is_varied {
                true => self.output.bytes(),
                false => sample_bytes * self.num_samples() as u64,
            },
            address_bits,
        }
    }

    /// Whether the rows of each sample follow each other in the source without a gap, whatever padding the output has: all of
    /// the output's nests are asked about, and a loop of one step has no gap. Inside a loop of many lengths, only a loop of one step.
    pub fn is_joint(&self, loops: &[SampleLoop]) -> bool {
        loops.windows(2).all(|pair| {
            let [outer, inner] = pair else { return false };
            let Some(_) = inner.fixed() else { return outer.fixed() == Some(1) };
            let ids = || 0..self.output.nests.len();
            let at = |number: &PerSample, id: usize| match number {
                PerSample::Same(value) => *value,
                PerSample::Each(values) => values[id],
            };
            ids().all(|id| {
                let real = at(&inner.hi, id) - at(&inner.lo, id);
                let goes_on =
                    at(&inner.src_stride, id).checked_mul(real) == Some(at(&outer.src_stride, id));
                goes_on || at(&outer.hi, id) - at(&outer.lo, id) <= 1 || real == 0
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_far_apart_are_told_by_several_bases() {
        for (step, odd, count) in
            [(1u64 << 20, 0, 1), (1 << 33, 0, 1), (1 << 33, 1, 9), (1 << 31, 3, 4)]
        {
            let places: Vec<u64> =
                (0..9).map(|at| 512 + (at * 4 % 9) * step + at % 2 * odd).collect();
            let place = |sample: u32| places[sample as usize];
            let windows = windows_of((0..9).collect(), place);
            let mut seen: Vec<u32> =
                windows.iter().flat_map(|(samples, _)| samples.clone()).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..9).collect::<Vec<u32>>());
            assert_eq!(windows.len(), count, "{step} {odd}");
            for (samples, (base, shift)) in windows {
                for sample in samples {
                    let steps = (place(sample) - base) >> shift;
                    assert!(u32::try_from(steps).is_ok());
                    assert_eq!(base + (steps << shift), place(sample));
                }
            }
        }
    }
}
