//! [`PlanBody`]: what a plan writes, which plans of one list may share.

use std::sync::Arc;

use crate::collate::Collate;
use crate::plan::batch_shape::BatchShape;
use crate::plan::device_moves::PlannedGroup;
use crate::plan::output::{data_output, index_output, mask_output, OutputPlan};
use crate::plan::placement::Placement;
use crate::plan::policy::POLICY;
use crate::plan::role::Role;
use crate::plan::route::{is_mapping_stale, Route};
use crate::plan::scales_output::scales_output;
use crate::plan::target::{check_target, Leaf, Target};
use crate::samples::{Memo, SampleList};
use crate::tensor::{Error, Layout, Result};

/// The outputs of a plan; nothing changes once it is made.
#[derive(Debug, Default)]
pub(crate) struct PlanBody<'s> {
    pub batch_shapes: Vec<BatchShape>,
    pub outputs: Vec<OutputPlan<'s>>,
    /// The data that crosses between host and device, if any does.
    pub route: Option<Box<Route>>,
    /// The encoded launch, kept by an executor for the next run; `None` if the plan is not kept.
    pub launch: Option<Memo>,
}

impl<'s> PlanBody<'s> {
    /// Plans leaves; that their outputs are disjoint is the caller's to check.
    ///
    /// # Errors
    /// The errors of [`Plan::for_leaves`](crate::Plan::for_leaves), but not Layout for memory that leaves share.
    pub fn for_leaves<'a: 's>(leaves: &[Leaf<'s, 'a>]) -> Result<Arc<PlanBody<'s>>> {
        if let [leaf] = leaves {
            let body = PlanBody::cached_for_list(leaf.samples, leaf.collate, leaf.out);
            return body.map_err(|error| error.at_path(leaf.path));
        }
        PlanBody::without_cache(leaves, !is_mapping_stale()).map(Arc::new)
    }

    /// Plans leaves without a look at cached plans; errors as of [`PlanBody::for_leaves`].
    fn without_cache<'a: 's>(leaves: &[Leaf<'s, 'a>], reads_mapped: bool) -> Result<PlanBody<'s>> {
        let mut body = PlanBody::with_capacity(leaves.len());
        for leaf in leaves {
            let added = body.add(leaf.samples, leaf.collate, leaf.out);
            added.map_err(|error| error.at_path(leaf.path))?;
        }
        let samples: Vec<_> = leaves.iter().map(|leaf| leaf.samples).collect();
        body.route = Route::new(&body.batch_shapes, &body.outputs, &samples, reads_mapped)?;
        Ok(body)
    }

    /// Plans leaves, and the transfer groups of a move behind them; that their outputs are disjoint is the caller's to check. `reads_mapped`:
    /// whether kernels may read page-locked memory where it is. Gives the samples of each transfer group, too.
    ///
    /// # Errors
    /// As [`PlanBody::for_leaves`].
    pub fn for_moves<'a: 's>(
        leaves: &[Leaf<'s, 'a>],
        groups: Vec<PlannedGroup<'s>>,
        reads_mapped: bool,
    ) -> Result<(Arc<PlanBody<'s>>, Vec<SampleList<'s>>)> {
        let mut body = PlanBody::without_cache(leaves, reads_mapped)?;
        let (mut lists, mut crossings) = (Vec::new(), Vec::new());
        for PlannedGroup { list, batch_shape, output, path, crossing, scales } in groups {
            body.batch_shapes.push(batch_shape);
            crossings.push((body.outputs.len(), Some(path), crossing));
            body.outputs.push(output);
            lists.push(list);
            if let Some((scales, crossing)) = scales {
                crossings.push((body.outputs.len(), None, crossing));
                body.outputs.push(scales);
            }
        }
        body.route = Route::add_groups(body.route, &body.outputs, crossings, reads_mapped);
        Ok((Arc::new(body), lists))
    }

    /// Plans one list. If samples on a device are alike, or the device chooses them, the plan does not depend on which
    /// samples these are: from the second such plan of the list on, whatever its options, the latest is kept with the list, and
    /// used for the next batch that it [fits](CachedPlan::fits). Not with `out`, nor for [`POLICY`]'s `many_samples` that the
    /// host knows.
    ///
    /// # Errors
    /// As [`PlanBody::for_leaves`].
    pub fn cached_for_list<'a: 's>(
        samples: &'s SampleList<'a>,
        collate: &Collate,
        out: Option<&'s Target<'s>>,
    ) -> Result<Arc<PlanBody<'s>>> {
        // A plan of many samples must check for memory each time, so it is not cached.
        let is_short = samples.selection().is_some() || samples.len() < POLICY.many_samples;
        let Some(memo) = samples.plan_memo().filter(|_| out.is_none() && is_short) else {
            return PlanBody::for_list(samples, collate, out).map(Arc::new);
        };
        let cached = memo.get().and_then(|cached| cached.downcast::<CachedPlan>().ok());
        if let Some(cached) = cached.filter(|cached| cached.fits(samples, collate)) {
            return Ok(Arc::clone(&cached.body) as Arc<PlanBody<'s>>);
        }
        let body = PlanBody::for_list(samples, collate, out)?;
        if !body.is_sample_independent(samples) || !memo.seen_twice() {
            return Ok(Arc::new(body));
        }
        let body = body.into_reusable(samples);
        let cached = CachedPlan { collate: collate.clone(), body: Arc::new(body) };
        let body = Arc::clone(&cached.body);
        memo.set(Arc::new(cached));
        Ok(body)
    }

    /// Whether the plan is valid for any other samples of this list, if they are as many: no transfers, no merged copies, no
    /// increments, no given scales, or samples that a device chooses.
    fn is_sample_independent(&self, samples: &SampleList<'_>) -> bool {
        let is_fixed = |output: &OutputPlan<'_>| output.ranges.is_none();
        let has_own = |batch_shape: &BatchShape| {
            let scaling = batch_shape.scaling.as_ref();
            batch_shape.increments.is_some() || scaling.is_some_and(|found| found.given.is_some())
        };
        samples.selection().is_some()
            || self.route.is_none()
                && self.outputs.iter().all(is_fixed)
                && !self.batch_shapes.iter().any(has_own)
    }

    /// Turns the plan into one for any samples of the list, to be cached with the list.
    fn into_reusable<'o>(self, samples: &SampleList<'_>) -> PlanBody<'o> {
        let mut body = self.into_owned();
        body.launch = Some(Memo::default());
        if samples.selection().is_none() {
            body.outputs.iter_mut().for_each(OutputPlan::forget_samples);
        }
        body
    }

    /// Plans one list, which may end with the call: no plan is looked for or kept with it, and nothing is borrowed. Errors are
    /// those of [`PlanBody::for_leaves`].
    pub fn owned_for_list<'o>(
        samples: &SampleList<'_>,
        collate: &Collate,
    ) -> Result<Arc<PlanBody<'o>>> {
        PlanBody::for_list(samples, collate, None).map(|body| Arc::new(body.into_owned()))
    }

    /// Plans one list, whether a plan is kept or not; errors as of [`PlanBody::for_leaves`].
    fn for_list<'a: 's>(
        samples: &'s SampleList<'a>,
        collate: &Collate,
        out: Option<&'s Target<'s>>,
    ) -> Result<PlanBody<'s>> {
        let mut body = PlanBody::with_capacity(1);
        body.add(samples, collate, out)?;
        body.route =
            Route::new(&body.batch_shapes, &body.outputs, &[samples], !is_mapping_stale())?;
        Ok(body)
    }

    /// An empty body with room for `count` leaves.
    fn with_capacity(count: usize) -> PlanBody<'s> {
        let (batch_shapes, outputs) = (Vec::with_capacity(count), Vec::with_capacity(count));
        PlanBody { batch_shapes, outputs, route: None, launch: None }
    }

    /// Adds the batch shape and the outputs of one more leaf: data, and a mask, a batch index and scales if it has them;
    /// lengths and offsets are no outputs. Errors are those of [`PlanBody::for_leaves`], and after one the body is of no use.
    fn add<'a: 's>(
        &mut self,
        samples: &'s SampleList<'a>,
        collate: &Collate,
        out: Option<&'s Target<'s>>,
    ) -> Result<()> {
        let batch_shape = BatchShape::new(samples, collate)?;
        let selection = samples.selection();
        let planned = selection.map_or(samples, |selection| &selection.list.representatives);
        let layout = match out {
            None => Layout::compact(batch_shape.dtype, &batch_shape.shape)?,
            Some(out) => {
                let read = selection.map_or(samples, |selection| &selection.list.samples);
                check_target(out, &batch_shape, |written| read.sharing(written))?;
                out.layout.clone()
            }
        };
        let leaf = self.batch_shapes.len();
        let scales_out = out.and_then(|out| out.scales.as_deref());
        let (is_bools, out) = (out.is_some_and(|out| out.is_bools), out.map(|out| out.data));
        let data = data_output(leaf, &batch_shape, planned, layout);
        self.outputs.push(OutputPlan { out, is_bools, ..data });
        batch_shape.for_each_field(|role, dtype, shape| {
            let layout = Layout::compact(dtype, shape)?;
            match (role, &batch_shape.mask, &batch_shape.placement) {
                (Role::Mask, &Some(mask), _) => {
                    self.outputs.push(mask_output(leaf, &batch_shape, planned, mask, layout));
                }
                (Role::BatchIndex, _, Placement::Joined { offsets, .. }) => {
                    self.outputs.push(index_output(leaf, samples, offsets.clone(), layout));
                }
                (Role::Scales, ..) => {
                    let layout = scales_out.map_or(layout, |out| out.layout.clone());
                    let scales = scales_output(leaf, &batch_shape, planned, layout);
                    let out = scales_out.map(|out| out.data);
                    self.outputs.extend(scales.map(|scales| OutputPlan { out, ..scales }));
                }
                _ => {}
            }
            Ok(())
        })?;
        let is_selected = self.batch_shapes.first().is_some_and(|first| first.is_selected);
        if selection.is_some() && leaf > 0 || is_selected {
            return Err(selected_must_be_alone());
        }
        if let Some(selection) = selection {
            let num_samples = selection.indices.shape()[0] as usize;
            self.outputs.iter_mut().for_each(|output| output.select(num_samples));
        }
        self.batch_shapes.push(batch_shape);
        Ok(())
    }

    /// The same body with tables of its own.
    fn into_owned<'o>(self) -> PlanBody<'o> {
        let PlanBody { batch_shapes, outputs, route, launch } = self;
        let outputs = outputs.into_iter().map(OutputPlan::into_owned).collect();
        PlanBody { batch_shapes, outputs, route, launch }
    }
}

/// The latest plan for samples of a list.
struct CachedPlan {
    collate: Collate,
    body: Arc<PlanBody<'static>>,
}

impl CachedPlan {
    /// Whether this cached plan, of the list that keeps it or one taken from that, fits these samples and options:
    /// their number, equal options, and samples whose copies would not be merged, or that a device chooses.
    fn fits(&self, samples: &SampleList<'_>, collate: &Collate) -> bool {
        let outputs = &self.body.outputs;
        self.body.batch_shapes[0].num_samples == samples.len()
            && self.collate.is_same(collate)
            && (samples.selection().is_some() || outputs[0].is_scattered(samples.each()))
    }
}

/// The [`Error::Argument`] for selected samples beside other leaves or in an arena.
pub(super) fn selected_must_be_alone() -> Error {
    let text =
        "samples selected by a device index tensor cannot be combined with other leaves or with an arena";
    Error::argument(text.to_owned())
}
