//! The groups of an output's samples: as few loop nests as possible, with a column for each number that differs between samples.
//!
//! The problem: a plan has a loop nest for each distinct layout, collapsed as far as that layout allows. A kernel wants one
//! nest for all samples of a dtype, since each nest is a descriptor of its own and each descriptor has items that are only
//! partly full.
//!
//! ```text
//! rows of a pad to [N, 4, 6]   layout A, compact: one loop of 24      layout B, row pitch 8: loops 4 and 6
//! cut along the shape          A: loops 4 and 6, stride 6             B: loops 4 and 6, stride 8
//! one nest                     loops 4 and 6; the outer stride is a column [6, 8]
//! ```
//!
//! ```text
//! groups:  if all nests have the same loops: one set
//!          else cut each nest along the output's shape, put nests of equal loops into sets, and
//!               collapse two loops of a set into one wherever all of its nests allow it
//! ```
//!
//! A nest that does not divide along the shape stays in a set of its own. One descriptor for each layout would be simpler, but a
//! ragged batch has a layout for nearly every sample.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::loops::{Extent, Loops, PerSample, SampleLoop};
use crate::plan::{Channel, Dim, ElementOp, OutputPlan, Starts};
use crate::tensor::DType;

/// Samples of one dtype with the same loops.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub dtype: DType,
    /// Their numbers; `None`: all, in order.
    pub samples: Option<Vec<u32>>,
    /// Outermost first.
    pub loops: Loops,
    pub channel_first: u64,
}

/// A loop nest of the plan, cut so that its loops are those of its group.
struct Nest {
    id: u32,
    dims: SmallVec<[Dim; 4]>,
    channel: Option<usize>,
    first: usize,
}

impl Nest {
    /// A nest as the plan has it.
    fn new(output: &OutputPlan<'_>, id: u32) -> Nest {
        let nest = &output.nests[id as usize];
        let dims: SmallVec<[Dim; 4]> = output.dims[nest.dims.clone()].into();
        let (channel, first) = match nest.channel {
            Channel::None => (None, 0),
            Channel::Loop { dim, first, .. } => (Some(dim), first),
            Channel::Inner { first } => (Some(dims.len() - 1), first),
        };
        Nest { id, dims, channel, first }
    }

    /// The nest with a loop for each extent of a shape, outermost first. The shape and the nest may each lack extents of 1; the
    /// loop of one is without padding, whatever the nest has. `None` if the nest's loops do not divide along the shape.
    fn cut(&self, shape: &[u64]) -> Option<Nest> {
        let kept = self.dims.iter().enumerate().filter(|(_, dim)| dim.extent != 1);
        let mut left: SmallVec<[(usize, Dim); 4]> = kept.map(|(at, dim)| (at, *dim)).collect();
        let mut dims: SmallVec<[Dim; 4]> = SmallVec::new();
        let mut channel = None;
        for &extent in shape.iter().rev() {
            if extent == 1 {
                dims.push(Dim { extent, lo: 0, hi: 1, src_stride: 0, dst_stride: 0 });
                continue;
            }
            let (at, dim) = left.pop()?;
            if self.channel == Some(at) && channel.is_none() {
                channel = Some(dims.len());
            }
            if dim.extent == extent {
                dims.push(dim);
                continue;
            }
            let divides = |n: u64| n.checked_rem(extent) == Some(0);
            if ![dim.extent, dim.lo, dim.hi].into_iter().all(divides) {
                return None;
            }
            let step = |stride: i64| stride.wrapping_mul(extent as i64);
            dims.push(Dim { extent, lo: 0, hi: extent, ..dim });
            left.push((
                at,
                Dim {
                    extent: dim.extent / extent,
                    lo: dim.lo / extent,
                    hi: dim.hi / extent,
                    src_stride: step(dim.src_stride),
                    dst_stride: step(dim.dst_stride),
                },
            ));
        }
        dims.reverse();
        let channel = channel.map(|from_end| dims.len() - 1 - from_end);
        left.is_empty().then_some(Nest { id: self.id, dims, channel, first: self.first })
    }
}

/// Nests with as many loops, whose extents are equal but for the loop that samples are joined along.
struct Set {
    nests: Vec<Nest>,
    joined: Option<usize>,
}

impl Set {
    /// Whether a nest fits the set, which is not empty: dtype, channels and extents are those of
    /// its nests, but for the joined extent. All are cut along `shape`, whose joined extent is
    /// `None`.
    fn takes(&self, nest: &Nest, shape: &[Option<u64>], output: &OutputPlan<'_>) -> bool {
        let other = &self.nests[0];
        let dtype = |nest: &Nest| output.nests[nest.id as usize].dtype;
        let key = |nest: &Nest| (dtype(nest), nest.dims.len(), nest.channel, nest.first);
        let extents = other.dims.iter().zip(&nest.dims).zip(shape);
        key(other) == key(nest)
            && nest.dims.len() == shape.len()
            && extents.into_iter().all(|((a, b), shared)| shared.is_none() || a.extent == b.extent)
    }

    /// Makes one loop of two wherever all nests allow it.
    fn collapse(&mut self, channels: usize) {
        let mut outer = 0;
        while outer + 1 < self.nests[0].dims.len() {
            let inner = outer + 1;
            let channel = self.nests[0].channel;
            let is_periodic = channel == Some(inner)
                && inner + 1 == self.nests[0].dims.len()
                && self
                    .nests
                    .iter()
                    .all(|nest| nest.first == 0 && nest.dims[inner].extent == channels as u64);
            let is_apart = channel == Some(outer) || channel == Some(inner) && !is_periodic;
            if is_apart
                || !self.nests.iter().all(|nest| goes_on(&nest.dims[outer], &nest.dims[inner]))
            {
                outer += 1;
                continue;
            }
            for nest in &mut self.nests {
                let (over, dim) = (nest.dims.remove(outer), &mut nest.dims[outer]);
                let times = |n: u64| n.wrapping_mul(dim.extent);
                *dim = Dim {
                    extent: times(over.extent),
                    lo: times(over.lo),
                    hi: times(over.hi),
                    ..*dim
                };
                nest.channel = nest.channel.map(|at| if at > outer { at - 1 } else { at });
            }
            self.joined = self.joined.map(|at| if at > outer { at - 1 } else { at });
        }
    }
}

/// Whether `outer` goes on where `inner` ends: its only real coordinate may be anywhere in the source.
fn goes_on(outer: &Dim, inner: &Dim) -> bool {
    let reaches = |stride: i64, total: i64| {
        i64::try_from(inner.extent).ok().and_then(|n| stride.checked_mul(n)) == Some(total)
    };
    (inner.lo, inner.hi) == (0, inner.extent)
        && (outer.hi - outer.lo <= 1 || reaches(inner.src_stride, outer.src_stride))
        && (outer.extent <= 1 || reaches(inner.dst_stride, outer.dst_stride))
}

/// The groups of an output that has elements: each sample is in one of them, but joined samples without elements may be in none.
/// `joined`: the dim that samples follow each other in, if they do; `channels`: pairs of coefficients.
pub(crate) fn groups(
    output: &OutputPlan<'_>,
    joined: Option<usize>,
    channels: usize,
) -> Vec<Group> {
    grouped(output, |real, steps| {
        let nests = || real.iter().map(|&id| Nest::new(output, id));
        match alike(output, nests(), steps) {
            Some(joined) => vec![Set { nests: nests().collect(), joined }],
            None => cut(output, nests(), joined, steps, channels),
        }
    })
}

/// Like [`groups`], with a loop for each of these dims of a sample and one for its rows, the last dim, in every group. Extents of 1
/// are left out of `dims`.
pub(crate) fn groups_of_rows(
    output: &OutputPlan<'_>,
    joined: Option<usize>,
    dims: &[usize],
) -> Vec<Group> {
    let shape = output.layout.shape();
    let extents = match joined {
        Some(_) => shape,
        None => &shape[1..],
    };
    let extent = |d: usize| (joined != Some(d)).then_some(extents[d] as u64);
    let shape = dims.iter().copied().chain([extents.len() - 1]).map(extent).collect();
    let is_padding = |real: &[u32]| real.iter().all(|&id| output.nests[id as usize].num_real == 0);
    let mut has_none = false;
    let mut groups = grouped(output, |real, steps| {
        has_none = is_padding(real);
        let nests = real.iter().map(|&id| Nest::new(output, id));
        cut_along(output, nests, &shape, steps)
    });
    if let (true, [group]) = (has_none, &mut groups[..]) {
        // Extents of 1 that are padding.
        if let Some(cols) = group.loops.last_mut() {
            (cols.lo, cols.hi) = (PerSample::Same(0), PerSample::Same(0));
        }
    }
    groups
}

/// A group for each set that `sets_of` makes, all of one dtype. It gets the nests with elements, or one nest if none has any, and
/// the extents of all nests along the joined dim.
fn grouped(
    output: &OutputPlan<'_>,
    sets_of: impl FnOnce(&[u32], Option<&[i64]>) -> Vec<Set>,
) -> Vec<Group> {
    let steps = steps_of(output);
    let has_elements = |&id: &u32| {
        let is_there = steps.as_ref().is_none_or(|steps| steps[id as usize] != 0);
        is_there && output.nests[id as usize].num_real > 0
    };
    let (mut real, mut empty): (Vec<u32>, Vec<u32>) =
        used(output).into_iter().partition(has_elements);
    if real.is_empty() {
        real = empty.drain(..1).collect();
    }
    let sets = sets_of(&real, steps.as_deref());
    let mut is_only = sets.len() == 1;
    if steps.is_some() && !empty.is_empty() {
        // Nothing is written for them.
        (is_only, empty) = (false, Vec::new());
    }
    let groups = sets.iter().enumerate().map(|(number, set)| {
        let empty = if number == 0 { &empty[..] } else { &[] };
        let mut group = Group {
            dtype: output.nests[set.nests[0].id as usize].dtype,
            samples: None,
            loops: loops_of(output, set, steps.as_deref(), empty),
            channel_first: set.nests[0].first as u64,
        };
        if !is_only {
            let mut is_member = vec![false; output.nests.len()];
            set.nests
                .iter()
                .map(|nest| nest.id)
                .chain(empty.iter().copied())
                .for_each(|id| is_member[id as usize] = true);
            let samples = (0u32..).zip(&*output.nest_ids).filter(|(_, &id)| is_member[id as usize]);
            group.samples = Some(samples.map(|(sample, _)| sample).collect());
        }
        group
    });
    groups.collect()
}

/// The groups of an output whose samples are placed one by one: samples whose loops differ in source strides alone, and samples
/// that are runs of bytes. Runs are one group, which has the samples' dtype if their lengths are equal, else bytes (`U8`).
pub(crate) fn groups_of_placed(output: &OutputPlan<'_>) -> Vec<Group> {
    let mut sets: HashMap<_, Set> = HashMap::new();
    let mut order = Vec::new();
    let mut runs = Vec::new();
    let size = output.dtype.size() as u64;
    for id in used(output) {
        let nest = Nest::new(output, id);
        let loop_nest = &output.nests[id as usize];
        if matches!(output.op, ElementOp::Read { affine: false, .. })
            && loop_nest.is_bytes(output.dtype, &output.dims)
            && loop_nest.num_real.saturating_mul(size) < 1 << 31
        {
            runs.push(nest);
            continue;
        }
        let dim = |dim: &Dim| (dim.extent, (dim.extent > 1).then_some(dim.dst_stride));
        let dims: SmallVec<[_; 4]> = nest.dims.iter().map(dim).collect();
        let dtype = output.nests[id as usize].dtype;
        let key = (dtype, nest.channel, nest.first, dims);
        match sets.get_mut(&key) {
            Some(set) => set.nests.push(nest),
            None => {
                order.push(key.clone());
                sets.insert(key, Set { nests: vec![nest], joined: None });
            }
        }
    }
    let mut sets: Vec<Set> = order.iter().filter_map(|key| sets.remove(key)).collect();
    // Runs of one length are grouped like other loops.
    let are_varied = runs.iter().any(|run| run.dims[0].extent != runs[0].dims[0].extent);
    let joined = are_varied.then_some(0);
    let varied = joined.map(|_| sets.len());
    sets.extend((!runs.is_empty()).then_some(Set { nests: runs, joined }));
    let mut set_of_nest = vec![0; output.nests.len()];
    for (number, set) in sets.iter().enumerate() {
        set.nests.iter().for_each(|nest| set_of_nest[nest.id as usize] = number);
    }
    let mut members = vec![Vec::new(); sets.len()];
    if sets.len() > 1 {
        for (sample, &id) in (0u32..).zip(&*output.nest_ids) {
            members[set_of_nest[id as usize]].push(sample);
        }
    }
    let group = |(number, (set, samples)): (usize, (&Set, Vec<u32>))| Group {
        dtype: match varied == Some(number) {
            true => DType::U8,
            false => output.nests[set.nests[0].id as usize].dtype,
        },
        samples: (sets.len() > 1).then_some(samples),
        loops: match varied == Some(number) {
            true => Loops::from_iter([SampleLoop::whole(Extent::Joined(1), 1, 1)]),
            false => loops_of(output, set, None, &[]),
        },
        channel_first: set.nests[0].first as u64,
    };
    sets.iter().zip(members).enumerate().map(group).collect()
}

/// The loop nests that some sample has, in rising order.
fn used(output: &OutputPlan<'_>) -> Vec<u32> {
    let mut is_used = vec![output.nest_ids.is_empty(); output.nests.len().min(1)];
    is_used.resize(output.nests.len(), false);
    output.nest_ids.iter().for_each(|&id| is_used[id as usize] = true);
    (0u32..).zip(is_used).filter(|(_, is_used)| *is_used).map(|(id, _)| id).collect()
}

/// The extent of each nest along the joined dim, if samples are joined.
fn steps_of(output: &OutputPlan<'_>) -> Option<Vec<i64>> {
    let Starts::Joined { offsets, .. } = &output.starts else { return None };
    let mut steps = vec![0; output.nests.len()];
    for (sample, ends) in offsets.as_slice().windows(2).enumerate() {
        let id = output.nest_ids.get(sample).map_or(0, |&id| id as usize);
        steps[id] = ends[1] - ends[0];
    }
    Some(steps)
}

/// Whether nests form one set as they are, and then which loop is the joined one, if its extent varies.
#[allow(clippy::option_option)]
fn alike(
    output: &OutputPlan<'_>,
    mut nests: impl Iterator<Item = Nest>,
    steps: Option<&[i64]>,
) -> Option<Option<usize>> {
    let first = nests.next()?;
    let dtype = |nest: &Nest| output.nests[nest.id as usize].dtype;
    let key = |nest: &Nest| (dtype(nest), nest.dims.len(), nest.channel, nest.first);
    let mut joined = None;
    // Equal extents are not enough: loops of one set write at the same strides. That of a single coordinate says nothing.
    let dst_stride_of = |dim: &Dim| (dim.extent > 1).then_some(dim.dst_stride);
    let mut dst_strides: SmallVec<[Option<i64>; 4]> =
        first.dims.iter().map(dst_stride_of).collect();
    for nest in nests {
        if key(&nest) != key(&first) {
            return None;
        }
        for (at, (a, b)) in first.dims.iter().zip(&nest.dims).enumerate() {
            let stride = dst_stride_of(b);
            if stride.is_some_and(|stride| *dst_strides[at].get_or_insert(stride) != stride) {
                return None;
            }
            if a.extent == b.extent {
                continue;
            }
            // Each step has the same number of elements.
            let of = |dim: &Dim, nest: &Nest| {
                Some((u128::from(dim.extent), steps?[nest.id as usize] as u128))
            };
            let ((a, a_steps), (b, b_steps)) = (of(a, &first)?, of(b, &nest)?);
            if joined.is_some_and(|joined| joined != at)
                || a * b_steps != b * a_steps
                || a % a_steps != 0
            {
                return None;
            }
            joined = Some(at);
        }
    }
    Some(joined)
}

/// Cuts nests along the shape of a sample's output, sets those together that fit, and collapses them.
fn cut(
    output: &OutputPlan<'_>,
    nests: impl Iterator<Item = Nest>,
    joined: Option<usize>,
    steps: Option<&[i64]>,
    channels: usize,
) -> Vec<Set> {
    let shape = output.layout.shape();
    // `None` for the joined extent, which is each sample's own.
    let shape: SmallVec<[Option<u64>; 6]> = match joined {
        Some(joined) => {
            let extents = shape.iter().enumerate();
            let extents = extents.map(|(d, &extent)| (d != joined).then_some(extent as u64));
            extents.filter(|extent| *extent != Some(1)).collect()
        }
        None => shape[1..].iter().filter(|&&extent| extent != 1).map(|&e| Some(e as u64)).collect(),
    };
    let shape = if shape.is_empty() { SmallVec::from_elem(Some(1), 1) } else { shape };
    let mut sets = cut_along(output, nests, &shape, steps);
    sets.iter_mut().for_each(|set| set.collapse(channels));
    sets
}

/// Cuts nests along a shape, whose joined extent is `None`, and sets those together that fit.
fn cut_along(
    output: &OutputPlan<'_>,
    nests: impl Iterator<Item = Nest>,
    shape: &SmallVec<[Option<u64>; 6]>,
    steps: Option<&[i64]>,
) -> Vec<Set> {
    let joined = shape.iter().position(Option::is_none);
    let mut sets: Vec<Set> = Vec::new();
    for nest in nests {
        let step = steps.map(|steps| steps[nest.id as usize] as u64);
        let extents: SmallVec<[u64; 6]> =
            shape.iter().filter_map(|&extent| extent.or(step)).collect();
        let Some(nest) = nest.cut(&extents) else {
            sets.push(Set { nests: vec![nest], joined: None });
            continue;
        };
        match sets.iter_mut().find(|set| set.takes(&nest, shape, output)) {
            Some(set) => set.nests.push(nest),
            None => sets.push(Set { nests: vec![nest], joined }),
        }
    }
    sets
}

/// The loops of a set; `empty` are the nests without elements that go with it.
fn loops_of(output: &OutputPlan<'_>, set: &Set, steps: Option<&[i64]>, empty: &[u32]) -> Loops {
    let first = &set.nests[0];
    let is_varied = set.joined.is_some_and(|at| {
        set.nests.iter().any(|nest| nest.dims[at].extent != first.dims[at].extent)
    });
    // The strides of a loop with one coordinate have no meaning.
    let long = |at: usize| {
        let dims = set.nests.iter().map(|nest| &nest.dims[at]);
        dims.max_by_key(|dim| (dim.extent, dim.hi - dim.lo)).unwrap_or(&first.dims[at])
    };
    let number = |value: &dyn Fn(&Nest) -> i64, of_empty: i64| {
        let of_first = value(first);
        let same = set.nests.iter().all(|nest| value(nest) == of_first);
        if same && (empty.is_empty() || of_empty == of_first) {
            return PerSample::Same(of_first);
        }
        let mut each = vec![of_empty; output.nests.len()];
        set.nests.iter().for_each(|nest| each[nest.id as usize] = value(nest));
        PerSample::Each(each)
    };
    let one = |at: usize| {
        let (dim, long) = (&first.dims[at], long(at));
        let mut sample_loop = SampleLoop::whole(Extent::Fixed(dim.extent), 0, long.dst_stride);
        if is_varied && set.joined == Some(at) {
            let steps = steps.map_or(1, |steps| steps[first.id as usize]).max(1);
            sample_loop.extent = Extent::Joined(dim.extent / steps as u64);
        } else {
            // A sample without elements has rows that are padding.
            let is_cols = at + 1 == first.dims.len();
            let of_empty = |bound: u64| if is_cols { 0 } else { bound as i64 };
            sample_loop.lo = number(&|nest| nest.dims[at].lo as i64, of_empty(dim.lo));
            sample_loop.hi = number(&|nest| nest.dims[at].hi as i64, of_empty(dim.hi));
        }
        let src_stride = |nest: &Nest| match &nest.dims[at] {
            dim if dim.hi - dim.lo > 1 => dim.src_stride,
            _ => long.src_stride,
        };
        sample_loop.src_stride = number(&src_stride, src_stride(first));
        sample_loop.is_channel = first.channel == Some(at);
        sample_loop
    };
    (0..first.dims.len()).map(one).collect()
}
