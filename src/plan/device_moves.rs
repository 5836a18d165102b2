//! [`TransferGroup`]: pairs with a side on a device that are one output of a plan, in which each destination has its own address.
//!
//! ```text
//! from               to        mode          the kernel                      beside it
//! device             device    Within        reads and writes in place
//! page-locked        device    ReadPinned    reads over the bus
//! page-locked, 28 K  device    Copied        nothing                         copies to where the bytes go
//! page-locked, 28 K  device    PinnedStaged  reads the copies                copies as they are
//! pageable           device    Staged        reads the copy                  all sources in one copy
//! device             host      Landed        writes one block                one copy back, spread by the host
//! ```
//!
//! Pageable memory of a MiB and more, which would need as much memory of the device again, goes by itself: as a leaf of its own,
//! unless its elements are scaled.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use smallvec::smallvec;

use crate::plan::batch_shape::BatchShape;
use crate::plan::loops::{Dim, LoopNest};
use crate::plan::moves::Moves;
use crate::plan::output::{packed_output, ElementOp, OutputPlan, Starts};
use crate::plan::page_copies::least_copied_bytes;
use crate::plan::pair_classes::{packed, PairClass};
use crate::plan::path::Path;
use crate::plan::policy::POLICY;
use crate::plan::role::Role;
use crate::plan::scaling::Scaling;
use crate::samples::{SampleList, TensorMeta};
use crate::tensor::{bytes_of, DType, Device, Dims, Layout, Offsets, Result};

/// How pairs get from one side to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TransferMode {
    Within,
    ReadPinned,
    Copied,
    PinnedStaged,
    Staged,
    Landed,
    /// Pairs without a side on a device: the host copies them itself, and a plan has them for its account alone.
    OnHost,
}

/// Pairs of one mode, to destinations of one dtype; if a device scales their elements, of one class and with scales of one
/// layout.
#[derive(Debug)]
pub(crate) struct TransferGroup {
    mode: TransferMode,
    dtype: DType,
    pairs: Vec<usize>,
}

/// A transfer group as a plan has it.
pub(super) struct PlannedGroup<'s> {
    pub list: SampleList<'s>,
    pub batch_shape: BatchShape,
    pub output: OutputPlan<'s>,
    pub path: Path,
    pub crossing: Crossing,
    /// The scales that are found.
    pub scales: Option<(OutputPlan<'s>, Crossing)>,
}

/// The part of a transfer group that crosses between host and device, beside what the kernel reads itself.
pub(super) enum Crossing {
    Nothing,
    /// Each pair as it is: address to, address from, and bytes.
    Copied(Vec<(u64, u64, usize)>),
    /// The sources row-major, and the output as it is read from these at address 0.
    Staged {
        is_pinned: bool,
        packed: OutputPlan<'static>,
        offsets: Offsets,
        read: OutputPlan<'static>,
    },
    /// The output as it is written row-major, and as it is read from that at address 0.
    Landed {
        compact: OutputPlan<'static>,
        read: OutputPlan<'static>,
    },
}

impl<'s> Moves<'s> {
    /// Pairs on a device, cut into rounds: a round ends with the pair by which its memory there
    /// beside the pairs, of staged sources and of results that land on the host, reaches
    /// `max_staging_bytes`. `reads_mapped` as of [`Moves::on_device_by_mode`].
    pub fn rounds(&self, reads_mapped: bool) -> Vec<&[usize]> {
        let bytes = |meta: &TensorMeta| bytes_of(meta.dtype, meta.layout.shape());
        let staging_bytes_of = |class: &PairClass<'_>| match mode_of(class, reads_mapped) {
            Some(TransferMode::Staged | TransferMode::PinnedStaged) => bytes(class.src),
            // The scales that are found land too.
            Some(TransferMode::Landed) => {
                let scales = class.scaling().map_or(0, Scaling::found_bytes);
                bytes(class.dst).saturating_add(scales)
            }
            _ => 0,
        };
        let staging_bytes: Vec<u64> = self.all.classes.iter().map(staging_bytes_of).collect();
        let (mut rounds, mut begin, mut round_bytes) = (Vec::new(), 0, 0);
        for (at, &pair) in self.on_device.iter().enumerate() {
            round_bytes += staging_bytes[self.all.id_of(pair)];
            if round_bytes >= POLICY.max_staging_bytes {
                rounds.push(&self.on_device[begin..=at]);
                (begin, round_bytes) = (at + 1, 0);
            }
        }
        rounds.extend(Some(&self.on_device[begin..]).filter(|rest| !rest.is_empty()));
        rounds
    }

    /// Pairs of a round as transfer groups, and those that are leaves of their own, as ranges of the numbers
    /// of neighbours that are alike. `reads_mapped`: whether kernels may read page-locked memory
    /// where it is.
    pub fn on_device_by_mode(
        &self,
        round: &[usize],
        dsts: &SampleList<'_>,
        reads_mapped: bool,
    ) -> (Vec<TransferGroup>, Vec<Range<usize>>) {
        self.by_mode(round.iter().copied(), dsts, reads_mapped)
    }

    /// The transfer groups and leaves of [`Moves::on_device_by_mode`] for all pairs, on the host too, to which something is
    /// written.
    pub fn all_by_mode(
        &self,
        [dsts, srcs]: [&SampleList<'_>; 2],
        reads_mapped: bool,
    ) -> (Vec<TransferGroup>, Vec<Range<usize>>) {
        let is_written = |pair: &usize| {
            let is_there = self.all.class_of(*pair).dst.layout.numel() > 0;
            is_there && !self.all.is_done(*pair, dsts, srcs)
        };
        self.by_mode((0..self.num_pairs).filter(is_written), dsts, reads_mapped)
    }

    /// The pairs as transfer groups, and those that are leaves of their own, as ranges of neighbours that are alike.
    fn by_mode(
        &self,
        pairs: impl Iterator<Item = usize>,
        dsts: &SampleList<'_>,
        reads_mapped: bool,
    ) -> (Vec<TransferGroup>, Vec<Range<usize>>) {
        let modes: Vec<Option<TransferMode>> =
            self.all.classes.iter().map(|class| mode_of(class, reads_mapped)).collect();
        let mut groups: Vec<TransferGroup> = Vec::new();
        let mut scaled: HashMap<(TransferMode, usize, u32), usize> = HashMap::new();
        let mut alone = Vec::new();
        for pair in pairs {
            let class = self.all.id_of(pair);
            let dtype = self.all.classes[class].dst.dtype;
            let Some(mode) = modes[class] else {
                alone.push(pair);
                continue;
            };
            if let (true, Some(scales)) = (mode != TransferMode::OnHost, &self.device_scales) {
                let at =
                    *scaled.entry((mode, class, scales.layout_of(pair))).or_insert(groups.len());
                match groups.get_mut(at) {
                    Some(group) => group.pairs.push(pair),
                    None => groups.push(TransferGroup { mode, dtype, pairs: vec![pair] }),
                }
                continue;
            }
            match groups.iter_mut().find(|group| (group.mode, group.dtype) == (mode, dtype)) {
                Some(group) => group.pairs.push(pair),
                None => groups.push(TransferGroup { mode, dtype, pairs: vec![pair] }),
            }
        }
        (groups, self.runs_of(dsts, &alone))
    }

    /// Ascending numbers of pairs as ranges of such numbers: neighbours of one class whose compact destinations are one after the
    /// other. With bytes between them others may be there, beside which rows with gaps count as sharing memory.
    fn runs_of(&self, dsts: &SampleList<'_>, pairs: &[usize]) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for &pair in pairs {
            let TensorMeta { dtype, layout, .. } = self.all.class_of(pair).dst;
            let follows = |run: &&mut Range<usize>| {
                let step = dsts.address(pair).addr().wrapping_sub(dsts.address(pair - 1).addr());
                run.end == pair
                    && self.all.id_of(run.start) == self.all.id_of(pair)
                    && layout.is_compact()
                    && step as u64 == bytes_of(*dtype, layout.shape())
            };
            match runs.last_mut().filter(follows) {
                Some(run) => run.end = pair + 1,
                None => runs.push(pair..pair + 1),
            }
        }
        runs
    }

    /// Plans a transfer group as leaf number `leaf` of a plan; errors as of [`Plan::for_moves`](crate::plan::Plan).
    pub(super) fn planned_group<'a: 's>(
        &self,
        group: &TransferGroup,
        leaf: usize,
        dsts: &SampleList<'a>,
        srcs: &SampleList<'a>,
    ) -> Result<PlannedGroup<'s>> {
        let list = srcs.take(group.pairs.iter().map(|&pair| pair as i64))?;
        let pairs = GroupPairs::new(self, group, leaf)?;
        let addresses = |of: &SampleList<'_>| -> Vec<*const u8> {
            group.pairs.iter().map(|&pair| of.address(pair)).collect()
        };
        let places = addresses(dsts);
        let op = match pairs.classes[0].scaling() {
            Some(_) => ElementOp::Rescale,
            None => ElementOp::Read { affine: self.affine.is_some(), saturate: false },
        };
        let nest = |_, class: &PairClass<'_>, table: &mut Vec<Dim>| {
            class.nest_between(class.src, class.dst, table)
        };
        let output = pairs.output(addresses(srcs), Some(places.clone()), op, nest);
        let packed_src = |class: &PairClass<'_>| packed(class.src);
        let packed_dst = |class: &PairClass<'_>| packed(class.dst);
        let crossing = match group.mode {
            TransferMode::Within | TransferMode::ReadPinned | TransferMode::OnHost => {
                Crossing::Nothing
            }
            TransferMode::Copied => {
                let bytes = |pair: usize| {
                    let TensorMeta { dtype, layout, .. } = self.all.class_of(pair).dst;
                    bytes_of(*dtype, layout.shape()) as usize
                };
                let copy = |&pair: &usize| {
                    let [to, from] = [dsts, srcs].map(|list| list.address(pair).addr() as u64);
                    (to, from, bytes(pair))
                };
                Crossing::Copied(group.pairs.iter().map(copy).collect())
            }
            TransferMode::PinnedStaged | TransferMode::Staged => {
                let (packed, offsets) = packed_output(&list)?;
                let data = offsets.as_slice()[..group.pairs.len()].iter();
                let data = data.map(|&at| std::ptr::without_provenance(at as usize)).collect();
                let metas = pairs.each(packed_src)?;
                let read = pairs.output(data, Some(places), op, |at, class, table| {
                    class.nest_between(&metas[at], class.dst, table)
                });
                let is_pinned = group.mode == TransferMode::PinnedStaged;
                Crossing::Staged { is_pinned, packed, offsets, read }
            }
            TransferMode::Landed => {
                let metas = pairs.each(packed_dst)?;
                let compact = pairs.output(addresses(srcs), None, op, |at, class, table| {
                    class.nest_between(class.src, &metas[at], table)
                });
                let size = group.dtype.size() as u64;
                let at = |sample: usize| (compact.starts.elems(sample).start * size) as usize;
                let data =
                    (0..group.pairs.len()).map(|sample| std::ptr::without_provenance(at(sample)));
                let data = data.collect();
                let moved = ElementOp::MOVED;
                let read = pairs.output(data, Some(places), moved, |at, class, table| {
                    LoopNest::for_pair(&metas[at], class.dst, table)
                });
                Crossing::Landed { compact, read }
            }
        };
        let path = match group.mode {
            TransferMode::Within | TransferMode::OnHost => Path::within(&output),
            TransferMode::ReadPinned => Path::DirectPinned,
            TransferMode::Copied | TransferMode::PinnedStaged => Path::CopiedPinned,
            TransferMode::Staged => Path::Staged,
            TransferMode::Landed => Path::Download,
        };
        let mut batch_shape = pairs.batch_shape(self);
        let mut scales = None;
        if group.mode == TransferMode::OnHost {
            (batch_shape.source, batch_shape.device) = (Device::Cpu, Device::Cpu);
        } else if let Some(device_scales) = &self.device_scales {
            let class = pairs.classes[0];
            batch_shape.scaling = device_scales.scaling(class, &group.pairs).map(Box::new);
            let lands = group.mode == TransferMode::Landed;
            let found =
                device_scales.output(class, (&group.pairs, leaf), addresses(srcs), lands)?;
            scales = found.map(|(placed, landed)| match landed {
                Some((compact, read)) => (placed, Crossing::Landed { compact, read }),
                None => (placed, Crossing::Nothing),
            });
        }
        Ok(PlannedGroup { list, batch_shape, output, path, crossing, scales })
    }
}

/// The mode of a class's pairs; `None` if they are leaves of their own.
fn mode_of(class: &PairClass<'_>, reads_mapped: bool) -> Option<TransferMode> {
    let PairClass { dst, src, .. } = class;
    let bytes = |meta: &TensorMeta| bytes_of(meta.dtype, meta.layout.shape());
    // A leaf of its own has no scales.
    let is_scaled = class.scaling().is_some();
    let is_together = |meta: &TensorMeta| is_scaled || bytes(meta) < POLICY.max_together_bytes;
    match (src.device, dst.device) {
        (Device::Cpu | Device::Pinned, Device::Cpu | Device::Pinned) => Some(TransferMode::OnHost),
        (Device::Cuda(_), Device::Cuda(_)) => Some(TransferMode::Within),
        (Device::Cuda(_), _) => is_together(dst).then_some(TransferMode::Landed),
        (Device::Cpu, _) => is_together(src).then_some(TransferMode::Staged),
        (Device::Pinned, _) => {
            let mut table = Vec::new();
            let nest = class.nest_between(src, dst, &mut table);
            let is_run = class.transformed.is_none() && nest.is_bytes(dst.dtype, &table);
            let least = match dst.device {
                Device::Cuda(ordinal) => least_copied_bytes(ordinal, class.count as u64),
                _ => POLICY.min_copied_bytes,
            };
            let is_copied = !reads_mapped || bytes(src) >= least;
            match () {
                () if is_copied && is_run => Some(TransferMode::Copied),
                () if is_copied && src.layout.is_compact() => Some(TransferMode::PinnedStaged),
                () if reads_mapped => Some(TransferMode::ReadPinned),
                () => is_scaled.then_some(TransferMode::Staged),
            }
        }
    }
}

/// The pairs of a group by their classes.
struct GroupPairs<'m, 's> {
    classes: Vec<&'m PairClass<'s>>,
    /// The class of each pair, by position; empty if there is one class.
    ids: Vec<u32>,
    group: &'m TransferGroup,
    leaf: usize,
    layout: Layout,
    /// The start of each pair among the elements of all; `None` if all have as many.
    offsets: Option<Offsets>,
}

impl<'m, 's> GroupPairs<'m, 's> {
    /// The pairs of a group that has one at least.
    fn new(
        moves: &'m Moves<'s>,
        group: &'m TransferGroup,
        leaf: usize,
    ) -> Result<GroupPairs<'m, 's>> {
        let mut local = vec![u32::MAX; moves.all.classes.len()];
        let (mut classes, mut ids) = (Vec::new(), Vec::with_capacity(group.pairs.len()));
        for &pair in &group.pairs {
            let id = &mut local[moves.all.id_of(pair)];
            if *id == u32::MAX {
                *id = classes.len() as u32;
                classes.push(moves.all.class_of(pair));
            }
            ids.push(*id);
        }
        let numel = |class: &PairClass<'_>| class.dst.layout.numel();
        let are_alike = classes.iter().all(|class| numel(class) == numel(classes[0]));
        let offsets = match are_alike {
            true => None,
            false => {
                Some(Offsets::from_lengths(ids.iter().map(|&id| numel(classes[id as usize])))?)
            }
        };
        let total = match &offsets {
            Some(offsets) => offsets.total(),
            None => numel(classes[0]).saturating_mul(group.pairs.len() as i64),
        };
        if classes.len() == 1 {
            ids = Vec::new();
        }
        // Rows of scaled elements are told apart.
        let shape: Dims = match classes[0].scaling() {
            Some(_) if group.mode != TransferMode::OnHost => {
                let extents = classes[0].dst.layout.shape().iter().copied();
                std::iter::once(group.pairs.len() as i64).chain(extents).collect()
            }
            _ => smallvec![total],
        };
        let layout = Layout::compact(group.dtype, &shape)?;
        Ok(GroupPairs { classes, ids, group, leaf, layout, offsets })
    }

    /// The result of `meta` for each class, in their order.
    fn each(&self, meta: impl Fn(&PairClass<'_>) -> Result<TensorMeta>) -> Result<Vec<TensorMeta>> {
        self.classes.iter().map(|class| meta(class)).collect()
    }

    /// Pairs read at `data` and written to `places`, or row-major one after the other. `nest`: the loops of the class at a position.
    fn output<'o>(
        &self,
        data: Vec<*const u8>,
        places: Option<Vec<*const u8>>,
        op: ElementOp,
        nest: impl Fn(usize, &PairClass<'_>, &mut Vec<Dim>) -> LoopNest,
    ) -> OutputPlan<'o> {
        let mut dims = Vec::new();
        let classes = self.classes.iter().enumerate();
        let classes: Vec<LoopNest> =
            classes.map(|(at, class)| nest(at, class, &mut dims)).collect();
        let bytes_only = op == ElementOp::MOVED
            && classes.iter().all(|nest| nest.is_bytes(self.group.dtype, &dims));
        let size = if places.is_none() { self.group.dtype.size() as i64 } else { 0 };
        let starts = match &self.offsets {
            Some(offsets) => Starts::Joined { offsets: offsets.clone(), unit: 1, step: size },
            None => {
                let elems = self.classes[0].dst.layout.numel();
                Starts::Rows { elems: elems as u64, step: elems * size }
            }
        };
        OutputPlan {
            leaf: self.leaf,
            data: Cow::Owned(data),
            places: Cow::Owned(places.unwrap_or_default()),
            nest_ids: Cow::Owned(self.ids.clone()),
            nests: classes,
            dims,
            bytes_only,
            ..OutputPlan::new(Role::Data, self.group.dtype, self.layout.clone(), op, starts)
        }
    }

    /// The batch shape that stands for all destinations, with the fields that plans read.
    fn batch_shape(&self, moves: &Moves<'_>) -> BatchShape {
        let first = self.classes[0];
        let bytes = bytes_of(self.group.dtype, self.layout.shape());
        let device = match first.dst.device {
            device @ Device::Cuda(_) => device,
            // The destinations of a small group land together.
            _ if bytes <= POLICY.chunk_bytes => Device::Pinned,
            _ => Device::Cpu,
        };
        BatchShape {
            shape: self.layout.shape().into(),
            affine: moves.affine.clone(),
            bytes,
            data_bytes: bytes,
            permute: smallvec![0],
            ..BatchShape::moved_rows(
                self.group.dtype,
                self.group.pairs.len(),
                [first.src.device, device],
            )
        }
    }
}
