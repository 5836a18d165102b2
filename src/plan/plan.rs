//! [`Plan`]: what would be done, as flat tables that any executor can run.
//!
//! A plan has one [`OutputPlan`] for each tensor that is written: the data of every leaf, masks, batch
//! indices. An output is one range of bytes; sample `i` owns a contiguous run of its elements,
//! found by arithmetic (rows of equal size) or by a search in the offsets. Samples with the same `TensorMeta` share
//! a [`LoopNest`]: the loops that lead from its source to its place in the output.

use std::borrow::Cow;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::collate::{Affine, Collate};
use crate::plan::arena::Arena;
use crate::plan::batch_shape::BatchShape;
use crate::plan::device_moves::TransferGroup;
use crate::plan::moves::Moves;
use crate::plan::output::{ElementOp, OutputPlan};
use crate::plan::placement::Placement;
use crate::plan::plan_body::{selected_must_be_alone, PlanBody};
use crate::plan::role::Role;
use crate::plan::route::Route;
use crate::plan::target::{check_disjoint, InUse, Leaf, Target};
use crate::samples::{Memo, SampleList, Samples, Selection};
use crate::tensor::{
    Device, Dims, Error, Footprint, Hint, Layout, Mismatch, Owner, Result, Tensor,
};

/// A plan for one batch, or for all leaves of one tree: which bytes will be written from where. It runs once, since it has the
/// addresses of its samples and the memory of its outputs, and the engine may choose its route anew. A second plan of the same
/// [`SampleList`] is cheap: the list keeps what does not depend on addresses.
///
/// ```
/// use windrow::{Collate, Ragged, Plan, SampleView};
/// let rows = [[1f32, 2.0], [3.0, 4.0]];
/// let samples = rows.each_ref().map(|row| SampleView::from_slice(row, &[2]).unwrap());
/// let plan = Plan::new(&samples, &Collate::stack())?;
/// assert_eq!(plan.explain().path, "memcpy"); // the rows are neighbours: one range
/// # Ok::<(), windrow::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Plan<'s> {
    body: Arc<PlanBody<'s>>,
    /// The samples of each leaf, for an executor that has to move them first.
    pub(crate) lists: Vec<PlanSamples<'s>>,
    /// Owners of outputs that have to know of the work: see [`Target::owned_by`].
    pub(crate) out_owners: Vec<Owner>,
    /// The marks of the [`Target`]s that are written.
    in_use: Vec<&'s AtomicBool>,
    /// The layout of all outputs, if they share one allocation.
    pub(crate) arena: Option<Arena>,
    /// The plan writes destinations of a move, and no batch.
    pub(crate) is_move: bool,
}

/// The address of each output of a plan, as far as it is known.
pub(crate) type Placements = SmallVec<[Option<*mut u8>; 4]>;

/// The samples of a leaf. (A `Cow` would tie the plan to one lifetime.)
#[derive(Debug)]
pub(crate) enum PlanSamples<'s> {
    Borrowed(&'s SampleList<'s>),
    Owned(SampleList<'s>),
}

impl<'s> std::ops::Deref for PlanSamples<'s> {
    type Target = SampleList<'s>;

    fn deref(&self) -> &SampleList<'s> {
        match self {
            PlanSamples::Borrowed(list) => list,
            PlanSamples::Owned(list) => list,
        }
    }
}

impl<'s> Plan<'s> {
    /// Plans one batch.
    ///
    /// # Errors
    /// Every error of input; see [`BatchShape::new`].
    ///
    /// ```
    /// use windrow::{Collate, Engine, Plan};
    /// let rows = [vec![1i32, 2], vec![3, 4]];
    /// let plan = Plan::new(&rows, &Collate::stack())?;
    /// println!("{}", plan.explain());
    /// let outputs = Engine::host().run(plan)?;
    /// assert_eq!(outputs[0].data.as_ref().unwrap().shape(), [2, 2]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn new<S: Samples + ?Sized>(samples: &'s S, collate: &Collate) -> Result<Plan<'s>> {
        match samples.to_list() {
            Cow::Borrowed(samples) => {
                let body = PlanBody::cached_for_list(samples, collate, None)?;
                Ok(Plan { body, lists: vec![PlanSamples::Borrowed(samples)], ..Plan::default() })
            }
            Cow::Owned(samples) => {
                let body = PlanBody::owned_for_list(&samples, collate)?;
                Ok(Plan { body, lists: vec![PlanSamples::Owned(samples)], ..Plan::default() })
            }
        }
    }

    /// Plans all leaves of a tree as one.
    ///
    /// # Errors
    /// Every error of input, with the path of its leaf. For an output, [`Error::Shape`], [`Error::DType`] or [`Error::Device`]
    /// if it does not fit; [`Error::Layout`] if its elements overlap each other, a sample or another output.
    /// [`Error::Argument`] for samples selected by indices on a device beside other leaves.
    ///
    /// ```
    /// use windrow::plan::Leaf;
    /// use windrow::{Collate, Engine, Pad, Plan, SampleList, SampleView};
    /// let ids: SampleList = [&[1i32, 2][..], &[3]].into_iter().map(SampleView::from).collect();
    /// let labels: SampleList = [&[7u8][..], &[8]].into_iter().map(SampleView::from).collect();
    /// let (pad, stack) = (Collate::pad(Pad::new()), Collate::stack());
    /// let plan = Plan::for_leaves(&[
    ///     Leaf { samples: &ids, collate: &pad, path: "ids", out: None },
    ///     Leaf { samples: &labels, collate: &stack, path: "labels", out: None },
    /// ])?;
    /// let outputs = Engine::host().run(plan)?; // in one pass, on a device in one launch (two if one is quantised)
    /// assert_eq!(outputs[1].data.as_ref().unwrap().as_slice::<u8>()?, [7, 8]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn for_leaves<'a: 's>(leaves: &[Leaf<'s, 'a>]) -> Result<Plan<'s>> {
        let body = PlanBody::for_leaves(leaves)?;
        let targets = leaves.iter().filter_map(|leaf| leaf.out);
        let targets = targets.flat_map(Target::parts);
        let owners = targets.filter_map(|target| target.owner.clone());
        let plan = Plan {
            body,
            lists: leaves.iter().map(|leaf| PlanSamples::Borrowed(leaf.samples)).collect(),
            out_owners: owners.collect(),
            in_use: leaves.iter().filter_map(|leaf| leaf.out?.in_use()).collect(),
            arena: None,
            is_move: false,
        };
        check_disjoint(leaves)?;
        Ok(plan)
    }

    /// Plans pairs with a side on a device: transfer groups, and leaves for those that go by themselves, whose outputs were found to be
    /// disjoint. The caller sets `out_owners`. `reads_mapped`: whether kernels may read page-locked memory where it is.
    ///
    /// # Errors
    /// As [`Plan::for_leaves`].
    pub(crate) fn for_moves<'a: 's>(
        moves: &Moves<'s>,
        groups: &[TransferGroup],
        leaves: &[Leaf<'s, 'a>],
        [dsts, srcs]: [&SampleList<'a>; 2],
        reads_mapped: bool,
    ) -> Result<Plan<'s>> {
        let groups = groups.iter().enumerate();
        let groups =
            groups.map(|(at, group)| moves.planned_group(group, leaves.len() + at, dsts, srcs));
        let groups = groups.collect::<Result<Vec<_>>>()?;
        let (body, lists) = PlanBody::for_moves(leaves, groups, reads_mapped)?;
        let of_leaves = leaves.iter().map(|leaf| PlanSamples::Borrowed(leaf.samples));
        let lists = of_leaves.chain(lists.into_iter().map(PlanSamples::Owned)).collect();
        Ok(Plan { body, lists, is_move: true, ..Plan::default() })
    }

    /// Plans all leaves of a tree as one, with all tensors of all batches in one allocation, their
    /// arena: one copy moves them, one message sends them. Tensors begin at multiples of 64 bytes in
    /// host memory, of 256 in page-locked memory and on a device; between them are zeros.
    ///
    /// ```
    /// use windrow::plan::Leaf;
    /// use windrow::{Collate, DType, Engine, Plan, Ragged, SampleList, SampleView};
    /// let rows: [&[i32]; 2] = [&[1, 2, 3], &[4]];
    /// let (mut ids, mut labels) = (SampleList::new(), SampleList::new());
    /// for (row, label) in rows.iter().zip(&[7u8, 8]) {
    ///     ids.push_view(&SampleView::from_slice(row, &[row.len() as i64])?)?;
    ///     labels.push_view(&SampleView::from_slice(std::slice::from_ref(label), &[])?)?;
    /// }
    /// let (ragged, stack) = (Collate::ragged(Ragged::new()), Collate::stack());
    /// let plan = Plan::in_arena(&[
    ///     Leaf { samples: &ids, collate: &ragged, path: "ids", out: None },
    ///     Leaf { samples: &labels, collate: &stack, path: "labels", out: None },
    /// ])?;
    /// assert_eq!(plan.explain().arena_bytes, 4 * 64); // values, lengths, offsets; labels
    /// let filled = Engine::host().run(plan)?;
    /// let arena = filled[0].fields.arena.as_deref().expect("the memory of both");
    /// let copy = windrow::Tensor::from_vec(arena.as_slice::<u8>()?.to_vec(), arena.shape())?;
    /// let values = copy.part(0, DType::I32, &[4])?; // where a copy of the bytes has them
    /// assert_eq!(values.shape(), filled[0].data.as_ref().expect("no out").shape());
    /// # Ok::<(), windrow::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Plan::for_leaves`]; [`Error::Argument`] for a leaf with an output of its own, or samples selected by indices on a
    /// device; [`Error::Device`] for leaves in different places; [`Error::TooLarge`].
    pub fn in_arena<'a: 's>(leaves: &[Leaf<'s, 'a>]) -> Result<Plan<'s>> {
        Plan::partly_in_arena(leaves, |_| true)
    }

    /// Plans leaves as [`Plan::in_arena`] does, but puts only some of them into the arena: those at positions for which
    /// `is_in` is true. With none of them in it, plans as [`Plan::for_leaves`] does.
    ///
    /// # Errors
    /// As [`Plan::in_arena`], of the leaves in the arena; if there are any, for samples selected by indices on a device, whether
    /// in it or not.
    ///
    /// ```
    /// use windrow::plan::Leaf;
    /// use windrow::{Collate, Plan, SampleList, SampleView};
    /// let labels: SampleList = [&[7u8][..], &[8]].into_iter().map(SampleView::from).collect();
    /// let stack = Collate::stack();
    /// let leaf = |path| Leaf { samples: &labels, collate: &stack, path, out: None };
    /// let plan = Plan::partly_in_arena(&[leaf("x"), leaf("y")], |leaf| leaf == 0)?;
    /// assert_eq!(plan.explain().arena_bytes, 64); // x alone
    /// # Ok::<(), windrow::Error>(())
    /// ```
    #[doc(hidden)]
    pub fn partly_in_arena<'a: 's>(
        leaves: &[Leaf<'s, 'a>],
        is_in: impl Fn(usize) -> bool,
    ) -> Result<Plan<'s>> {
        let inside = || leaves.iter().enumerate().filter(|(leaf, _)| is_in(*leaf));
        if let Some((_, leaf)) = inside().find(|(_, leaf)| leaf.out.is_some()) {
            let text = "an arena allocates its outputs itself, so it cannot be combined with out=";
            return Err(Error::argument(text.to_owned()).at_path(leaf.path));
        }
        let plan = Plan::for_leaves(leaves)?;
        if !leaves.is_empty() && inside().next().is_none() {
            return Ok(plan);
        }
        if plan.selection().is_some() {
            return Err(selected_must_be_alone());
        }
        let device_of = |leaf: usize| plan.batch_shapes()[leaf].device;
        for (position, leaf) in inside() {
            let first = inside().next().map_or(position, |(first, _)| first);
            let (expected, got) = (device_of(first), device_of(position));
            if got != expected {
                let found = Mismatch::new(Some(0), expected.to_string(), got.to_string());
                let found = found.with_hint(Hint::Device);
                return Err(found.into_error(Error::Device).at_path(leaf.path));
            }
        }
        let arena = Some(Arena::new(plan.batch_shapes(), is_in)?);
        Ok(Plan { arena, ..plan })
    }

    /// The address of each output, `None` while it is not known: in the caller's memory, or in `arena`, if it is given.
    pub(crate) fn placements(&self, arena: Option<&Tensor>) -> Placements {
        let mut placements: Placements = self.outputs().iter().map(|output| output.out).collect();
        if let (Some(arena), Some(memory)) = (&self.arena, arena) {
            for (output, place) in arena.places(memory.data_ptr()) {
                placements[output] = Some(place);
            }
        }
        placements
    }

    /// Marks the targets of the plan as in use.
    ///
    /// # Errors
    /// As [`InUse::new`].
    pub(crate) fn use_targets(&self) -> Result<SmallVec<[InUse<'s>; 1]>> {
        self.in_use.iter().copied().map(InUse::new).collect()
    }

    /// The selection of the only leaf's samples by indices on a device; `None` for samples that the host knows.
    pub(crate) fn selection(&self) -> Option<&Selection<SampleList<'s>>> {
        self.lists.first().and_then(|list| list.selection())
    }

    /// Whether an output is run on the device: what it depends on is read there, or it is written there.
    pub(crate) fn is_device_output(&self, output: usize) -> bool {
        let output = &self.outputs()[output];
        let batch_shape = &self.batch_shapes()[output.leaf];
        let is_read = matches!(output.role, Role::Data | Role::Scales);
        is_read && batch_shape.source.is_cuda() || batch_shape.is_on_device()
    }

    /// The affine map of an output's elements; `None` if it has none.
    pub(crate) fn affine_of(&self, output: &OutputPlan<'_>) -> Option<&Affine> {
        match output.op {
            ElementOp::Read { affine: true, .. } => {
                self.batch_shapes()[output.leaf].affine.as_deref()
            }
            _ => None,
        }
    }

    /// The batch shape of each leaf, in their order.
    pub fn batch_shapes(&self) -> &[BatchShape] {
        &self.body.batch_shapes
    }

    /// The tensors that the plan writes.
    pub(crate) fn outputs(&self) -> &[OutputPlan<'s>] {
        &self.body.outputs
    }

    /// The address of each sample of an output; none of samples that a device chooses.
    pub(crate) fn addresses<'p>(&'p self, output: &'p OutputPlan<'_>) -> &'p [*const u8] {
        match output.selected {
            Some(_) => self.lists[output.leaf].each(),
            None => &output.data,
        }
    }

    /// The data that crosses between host and device, if any does.
    pub(crate) fn route(&self) -> Option<&Route> {
        self.body.route.as_deref()
    }

    /// Whether page-locked samples go to a batch on a device, so that the route depends on whether kernels may read them.
    pub(crate) fn has_mapped_samples(&self) -> bool {
        let crosses = |shape: &BatchShape| shape.source == Device::Pinned && shape.is_on_device();
        self.batch_shapes().iter().any(crosses)
    }

    /// Chooses the route anew, if there is one and it was chosen with another `reads_mapped`: whether kernels may read
    /// page-locked memory where it is. No other plan shares the body.
    ///
    /// # Errors
    /// As [`Route::new`].
    pub(crate) fn reroute(&mut self, reads_mapped: bool) -> Result<()> {
        if self.route().is_none_or(|route| route.reads_mapped == reads_mapped) {
            return Ok(());
        }
        let samples: Vec<&SampleList<'_>> = self.lists.iter().map(|list| &**list).collect();
        let route = Route::new(self.batch_shapes(), self.outputs(), &samples, reads_mapped)?;
        // A plan with a route is never cached with a list.
        debug_assert_eq!(Arc::strong_count(&self.body), 1);
        if let Some(body) = Arc::get_mut(&mut self.body) {
            body.route = route;
        }
        Ok(())
    }

    /// The encoded launch, kept by an executor for the next run; `None` if the plan is not kept or has an arena.
    pub(crate) fn launch(&self) -> Option<&Memo> {
        self.body.launch.as_ref().filter(|_| self.arena.is_none())
    }

    /// Bytes of the one allocation of a plan by [`Plan::in_arena`]; else 0.
    pub fn arena_bytes(&self) -> u64 {
        self.arena.as_ref().map_or(0, Arena::bytes)
    }

    /// The address of the batch of leaf `leaf`, if the samples already form it in memory, row-major without gaps, and
    /// nothing else has to be written: no mask, no batch index, no lengths or offsets on a device; else `None`. Whether
    /// the leaf has an output of its own is the caller's to check.
    pub fn as_view(&self, leaf: usize) -> Option<*const u8> {
        let mut outputs = self.outputs().iter().filter(|output| output.leaf == leaf);
        let (Some(output), None) = (outputs.next(), outputs.next()) else { return None };
        let batch_shape = &self.batch_shapes()[leaf];
        let has_numbers = batch_shape.has_lengths() && batch_shape.device.is_cuda();
        if output.selected.is_some()
            || !output.bytes_only
            || batch_shape.source != batch_shape.device
            || has_numbers
        {
            return None;
        }
        if output.bytes() == 0 {
            return output.data.first().copied();
        }
        match (&output.ranges, &*output.data) {
            (Some(ranges), _) => (ranges.len() == 1).then(|| ranges[0].src),
            (None, [only]) => Some(only.wrapping_offset(output.nest_of(0).src_offset as isize)),
            _ => None,
        }
    }

    /// The address of [`Plan::as_view`] with the layout of the batch there, which has gaps if the batch is a stack of
    /// rows of a table with gaps.
    #[doc(hidden)]
    pub fn as_laid_out_view(&self, leaf: usize) -> Option<(*const u8, Layout)> {
        let batch_shape = &self.batch_shapes()[leaf];
        if let Some(data) = self.as_view(leaf) {
            return Some((data, Layout::compact(batch_shape.dtype, &batch_shape.shape).ok()?));
        }
        let list = &self.lists[leaf];
        let (first, step) = list.as_table().filter(|_| list.selection().is_none())?;
        let meta = list.metas().first()?;
        let size = batch_shape.dtype.size() as i64;
        let is_kept = matches!(batch_shape.placement, Placement::Rows)
            && batch_shape.source == batch_shape.device
            && batch_shape.affine.is_none()
            && batch_shape.scaling.is_none()
            && batch_shape.increments.is_none()
            && meta.dtype == batch_shape.dtype
            && step % size == 0;
        let inner = batch_shape.permute.iter().map(|&dim| meta.layout.strides()[dim]);
        let strides: Dims = std::iter::once(step / size).chain(inner).collect();
        let goes_up = |(&extent, &stride): (&i64, &i64)| extent < 2 || stride > 0;
        if !is_kept || !batch_shape.shape.iter().zip(&strides).all(goes_up) {
            return None;
        }
        let layout = Layout::try_new(batch_shape.dtype, &batch_shape.shape, Some(&strides)).ok()?;
        // Rows that overlap are no batch that may be written to.
        let repeats = Footprint::new(first, &layout, batch_shape.dtype).shares_with_itself();
        (!repeats).then_some((first, layout))
    }
}
