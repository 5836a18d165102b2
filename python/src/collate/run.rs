//! All jobs of a call as one plan, run without the interpreter lock if they take long.

use std::sync::Arc;
use std::time::Instant;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use windrow::batch::{Fields, LeafOutput};
use windrow::bindings::{set_handed_out, End, PipelinedCopy};
use windrow::engine::{OutputMemory, RunOptions};
use windrow::plan::{BatchShape, Leaf, Target};
use windrow::tensor::Owner;
use windrow::{Batch, Device, Engine, Error, Layout, Plan, Stream, Tensor};

use crate::collate::job::{block_of, job_error, leaf_of, Job};
use crate::collate::options_cache::CopyMode;
use crate::collate::torch_memory::{OutputAllocator, TorchMemory, TorchPinned};
use crate::ground::dtype::in_other_order;
use crate::ground::errors::is_answer;
use crate::ground::modules::increment_version;
use crate::ownership::holder::{producers_of, Holder};
use crate::ownership::producers::Producers;
use crate::ownership::ready::refuse_within;
use crate::samples::column_import::Borrowed;

/// Batches that read and write no more than this are made with the interpreter lock held: releasing it costs a large part of such
/// a batch, and taking it back can wait 5 ms for a thread that computes.
/// 1024 rows of 68 bytes are less.
pub(crate) const ATTACHED_BYTES: u64 = 160 << 10;

/// Batches that read and write no more than this for each sample, a line of memory each, are made with the lock held too if it
/// was held to read the samples, which takes several lines for each.
pub(crate) const SAMPLE_BYTES: u64 = 128;

/// Calls with more samples than this release the lock at once: finding out whether their batch is small takes too long.
pub(crate) const ATTACHED_SAMPLES: usize = 1024;

/// Whether all outputs of a call are in one allocation.
pub(crate) enum ArenaMemory {
    /// Each tensor has an allocation of its own.
    No,
    /// The engine's, or torch's on a device.
    Own,
    /// Memory of the caller's, on the host, [`arena_bytes`] long.
    Given(Tensor),
}

impl ArenaMemory {
    /// `Own` for an arena, else `No`.
    pub fn new(in_arena: bool) -> ArenaMemory {
        match in_arena {
            true => ArenaMemory::Own,
            false => ArenaMemory::No,
        }
    }
}

/// The bytes of the arena of these jobs, of which none has an `out`; the error of their plan if there is one.
pub(crate) fn arena_bytes(jobs: &[Job]) -> windrow::Result<u64> {
    let leaves: Vec<_> = jobs.iter().map(|job| leaf_of(job, None)).collect();
    Ok(Plan::in_arena(&leaves)?.arena_bytes())
}

/// One run of jobs.
pub(crate) struct Run<'e, 'py> {
    pub py: Python<'py>,
    /// The engine of jobs that name none.
    pub engine: &'e Engine,
    pub arena: ArenaMemory,
    /// The time at which the import ended, if times are measured.
    pub begin: Option<Instant>,
}

impl<'e, 'py> Run<'e, 'py> {
    /// A run without an arena.
    pub fn new(py: Python<'py>, engine: &'e Engine, begin: Option<Instant>) -> Run<'e, 'py> {
        Run { py, engine, arena: ArenaMemory::No, begin }
    }

    /// Plans all jobs as one and runs them, without the interpreter lock unless they are small; a batch for each job, in order. An
    /// error of input comes before anything is written.
    pub fn jobs(self, jobs: &mut [Job]) -> PyResult<Vec<Batch>> {
        let is_its =
            |job: &Job| job.engine.as_ref().is_none_or(|engine| engine.is_same(self.engine));
        match jobs.iter().all(is_its) {
            true => self.on_one(jobs),
            false => self.by_engines(jobs),
        }
    }

    /// Runs [`Run::jobs`] where specs of leaves name other engines than the call does: a plan for each engine. Refuses
    /// an arena for several. After an error the jobs are in the order of their engines.
    #[cold]
    fn by_engines(self, jobs: &mut [Job]) -> PyResult<Vec<Batch>> {
        let Run { py, engine, arena, begin } = self;
        let mut engines: Vec<Engine> = Vec::new();
        for job_engine in jobs.iter().map(|job| job.engine.as_ref().unwrap_or(engine)) {
            if !engines.iter().any(|known| known.is_same(job_engine)) {
                engines.push(job_engine.clone());
            }
        }
        let number_of = |job: &Job| {
            let job_engine = job.engine.as_ref().unwrap_or(engine);
            engines.iter().position(|known| known.is_same(job_engine))
        };
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        order.sort_by_key(|&position| number_of(&jobs[position]));
        jobs.sort_by_key(number_of);
        let parts = || jobs.chunk_by(|job, next| number_of(job) == number_of(next)).zip(&engines);
        if engines.len() > 1 {
            if !matches!(arena, ArenaMemory::No) {
                let text =
                    "an arena is one allocation of one engine: give engine= to the call, not to a spec";
                return Err(PyValueError::new_err(text));
            }
            // All errors of input are found before any engine writes.
            let targets = targets_of(jobs);
            let leaves = leaves_of(jobs, &targets);
            let check = || {
                let plan = Plan::for_leaves(&leaves)?;
                let views = views_in(&plan, jobs, &leaves, false)?;
                let (mut shapes, mut views) = (plan.batch_shapes(), &views[..]);
                for (part, _) in parts() {
                    let (part_shapes, is_view);
                    (part_shapes, shapes) = shapes.split_at(part.len());
                    (is_view, views) = views.split_at(part.len());
                    device_of_work(part, made(part_shapes, is_view))?;
                }
                Ok(())
            };
            check().map_err(|error| job_error(py, &error, &*jobs))?;
        }
        let lens: Vec<usize> = parts().map(|(part, _)| part.len()).collect();
        let (mut rest, mut arena) = (&mut *jobs, Some(arena));
        let mut made = Vec::with_capacity(order.len());
        for (engine, len) in engines.iter().zip(lens) {
            let (part, others) = std::mem::take(&mut rest).split_at_mut(len);
            rest = others;
            let arena = arena.take().unwrap_or(ArenaMemory::No);
            made.extend(Run { py, engine, arena, begin }.on_one(part)?);
        }
        // Each batch and its job go back to where the caller has them.
        for place in 0..order.len() {
            while order[place] != place {
                let from = order[place];
                made.swap(place, from);
                jobs.swap(place, from);
                order.swap(place, from);
            }
        }
        Ok(made)
    }

    /// Runs [`Run::jobs`] where all jobs are on one engine.
    fn on_one(self, jobs: &mut [Job]) -> PyResult<Vec<Batch>> {
        if jobs.iter().map(|job| job.samples.list.len()).sum::<usize>() <= ATTACHED_SAMPLES {
            if let Some(batches) = self.small(jobs, ATTACHED_BYTES) {
                have_been_written(self.py, jobs)?;
                return Ok(batches);
            }
        }
        self.detached(jobs)
    }

    /// Runs [`Run::jobs`] on one engine, for jobs without `out` whose samples are not kept alive yet: they are held if
    /// the batches are not small enough to be made before Python code runs.
    pub fn borrowed(self, jobs: &mut [Job], borrowed: Borrowed<'_>) -> PyResult<Vec<Batch>> {
        let count: usize = jobs.iter().map(|job| job.samples.list.len()).sum();
        let most_bytes = ATTACHED_BYTES.max(SAMPLE_BYTES.saturating_mul(count as u64));
        match self.small(jobs, most_bytes) {
            Some(batches) => Ok(batches),
            None => {
                own_borrowed_samples(borrowed, jobs)?;
                self.detached(jobs)
            }
        }
    }

    /// Runs [`Run::jobs`] on one engine and without the interpreter lock, however small the batches are.
    pub fn detached(self, jobs: &mut [Job]) -> PyResult<Vec<Batch>> {
        let Run { py, engine, arena, begin } = self;
        let (mut memory, mut has_begun) = (None, false);
        let batches =
            py.detach(|| run_jobs(engine, jobs, arena, begin, &mut memory, &mut has_begun));
        if has_begun {
            have_been_written(py, jobs)?;
        }
        batches.map_err(|error| {
            let error = job_error(py, &error, &*jobs);
            match memory.as_ref().and_then(|memory| memory.take_raised()) {
                Some(cause) if is_answer(py, &cause) => {
                    error.set_cause(py, Some(cause));
                    error
                }
                Some(cause) => cause,
                None => error,
            }
        })
    }

    /// Runs [`run_small`] on this engine, with the interpreter lock as it is.
    fn small(&self, jobs: &[Job], most_bytes: u64) -> Option<Vec<Batch>> {
        run_small(self.engine, jobs, &self.arena, self.begin, most_bytes)
    }
}

/// Takes references to borrowed samples, and makes all of them the owners of each job's samples.
pub(crate) fn own_borrowed_samples(borrowed: Borrowed<'_>, jobs: &mut [Job]) -> PyResult<()> {
    let owners = borrowed.into_owners()?;
    for job in jobs {
        Arc::make_mut(&mut job.samples).owners = owners.clone();
    }
    Ok(())
}

/// Raises the versions of the torch tensors that jobs write to.
fn have_been_written(py: Python<'_>, jobs: &[Job]) -> PyResult<()> {
    let mut outs = jobs.iter().flat_map(Job::torch_outs);
    outs.try_for_each(|out| increment_version(out.bind(py)))
}

/// The `out` of each job; an empty list if no job has one.
fn targets_of(jobs: &[Job]) -> Vec<Option<Target<'_>>> {
    match jobs.iter().any(|job| job.out().is_some()) {
        true => jobs.iter().map(Job::target).collect(),
        false => Vec::new(),
    }
}

/// The leaves of jobs for the engine's planner, with these outputs; an empty list stands for none.
fn leaves_of<'s>(jobs: &'s [Job], targets: &'s [Option<Target<'s>>]) -> Vec<Leaf<'s, 'static>> {
    let out = |position| targets.get(position).and_then(Option::as_ref);
    jobs.iter().enumerate().map(|(position, job)| leaf_of(job, out(position))).collect()
}

/// Assembles batches that need no plan, if they read and write at most `most_bytes`, with the interpreter lock as it is. `None`
/// leaves all jobs to a plan: for an arena, a part of one, a stream, a copy mode that may give a view, a copy ahead, and for
/// errors, which that finds.
fn run_small(
    engine: &Engine,
    jobs: &[Job],
    arena: &ArenaMemory,
    begin: Option<Instant>,
    most_bytes: u64,
) -> Option<Vec<Batch>> {
    let is_plain = |job: &Job| {
        matches!(job, Job { ahead: None, stream: None, copy: CopyMode::Always, .. })
            && !job.is_part()
    };
    if !matches!(arena, ArenaMemory::No) || !jobs.iter().all(is_plain) {
        return None;
    }
    let targets = targets_of(jobs);
    let filled = engine.assemble_small(&leaves_of(jobs, &targets), begin, most_bytes)?;
    // Collected into the memory of `filled`, without an allocation.
    filled
        .into_iter()
        .zip(jobs)
        .map(|(filled, job)| batch_of(job, filled, None, false).ok())
        .collect()
}

/// Plans and runs jobs on one engine; called without the interpreter lock. Takes the jobs' copies ahead. Sets `memory` if
/// outputs are in torch's, and `has_begun` once anything may have been written, also where it then fails.
fn run_jobs(
    engine: &Engine,
    jobs: &mut [Job],
    arena: ArenaMemory,
    begin: Option<Instant>,
    memory: &mut Option<Arc<TorchMemory>>,
    has_begun: &mut bool,
) -> windrow::Result<Vec<Batch>> {
    if let Some(batches) = run_small(engine, jobs, &arena, begin, u64::MAX) {
        *has_begun = true;
        return Ok(batches);
    }
    let in_arena = !matches!(arena, ArenaMemory::No);
    let ahead: Vec<Option<PipelinedCopy>> = jobs.iter_mut().map(|job| job.ahead.take()).collect();
    let jobs = &*jobs;
    let targets = targets_of(jobs);
    let leaves = leaves_of(jobs, &targets);
    let mut run_options = RunOptions::default();
    if let ArenaMemory::Given(memory) = arena {
        run_options.arena = Some(memory);
    }
    let mut plan = engine.plan_in_arena(&leaves, |leaf| in_arena || jobs[leaf].is_part(), begin)?;
    let views = views_in(&plan, jobs, &leaves, in_arena)?;
    let has_views = views.iter().any(Option::is_some);
    let mut batches: Vec<Option<Batch>> = Vec::with_capacity(jobs.len());
    let (mut rest, mut are_parts): (Vec<Leaf<'_, '_>>, Vec<bool>) = Default::default();
    for (position, (view, ahead)) in views.into_iter().zip(ahead).enumerate() {
        let shape = &plan.batch_shapes()[position];
        let view = view.map(|place| view_of(engine, &jobs[position], shape, place)).transpose()?;
        if view.is_none() {
            rest.push(leaves[position]);
            are_parts.push(jobs[position].is_part());
            run_options.push_ahead(ahead);
        }
        batches.push(view);
    }
    if has_views {
        plan = engine.plan_in_arena(&rest, |leaf| are_parts[leaf], None)?;
    }
    order_work(engine, jobs, &plan, memory, &mut run_options)?;
    let stream = run_options.stream;
    *has_begun = true;
    let filled = engine.run_with(plan, run_options)?;
    // torch's memory does not record its writers by itself.
    let is_elsewhere = memory.as_ref().is_some_and(|memory| Some(memory.stream()) != stream);
    let missing = jobs.iter().zip(&mut batches).filter(|(_, batch)| batch.is_none());
    for ((job, batch), filled) in missing.zip(filled) {
        *batch = Some(batch_of(job, filled, stream, is_elsewhere)?);
    }
    batches.into_iter().map(|batch| batch.ok_or(Error::Empty)).collect()
}

/// The batch that was written for a job, its `out` if it has one. Its page-locked parts are marked as not handed out, so that
/// their memory is used again at once. `is_elsewhere`: it was written on another stream than that of its memory.
fn batch_of(
    job: &Job,
    mut filled: LeafOutput,
    stream: Option<Stream>,
    is_elsewhere: bool,
) -> windrow::Result<Batch> {
    let Fields { lengths, offsets, mask, batch_index, scales, arena, .. } = &filled.fields;
    let parts = [lengths, offsets, mask, batch_index, scales, arena].into_iter().flatten();
    for part in parts.map(|part| &**part).chain(&filled.data) {
        // Nobody has asked for its address yet.
        set_handed_out(part, false);
    }
    let end = filled.fields.end();
    let written_on = |tensor: &Tensor| written_on(tensor, stream, end.as_ref());
    if is_elsewhere {
        let Fields { lengths, offsets, mask, batch_index, scales, arena, .. } = &mut filled.fields;
        let fields = [lengths, offsets, mask, batch_index, scales, arena];
        fields.into_iter().flatten().for_each(|field| **field = written_on(field));
    }
    if let Some(scales) = job.scales_out() {
        filled.fields.scales = Some(Box::new(written_on(scales)));
    }
    let data = match (filled.data, job.out()) {
        (Some(data), _) if is_elsewhere => written_on(&data),
        (Some(data), _) => data,
        (None, Some(out)) => written_on(out),
        (None, None) => return Err(Error::Empty),
    };
    Batch::try_new(data, filled.fields)
}

/// The address and layout of samples that already form the batch.
type ViewPlace = (*const u8, Layout);

/// The place of each leaf of a plan in the samples' memory if it is returned as a view, else `None`; for `copy=False`
/// the error of [`may_view`] or [`view_in`] if it cannot be.
pub(crate) fn views_in(
    plan: &Plan<'_>,
    jobs: &[Job],
    leaves: &[Leaf<'_, '_>],
    in_arena: bool,
) -> windrow::Result<Vec<Option<ViewPlace>>> {
    let view =
        |(position, (job, leaf)): (usize, (&Job, &Leaf<'_, '_>))| match may_view(job, in_arena)? {
            true => view_in(plan, position, leaf, job.copy),
            false => Ok(None),
        };
    jobs.iter().zip(leaves).enumerate().map(view).collect()
}

/// The shapes of the batches that are written, without those that are views.
pub(crate) fn made<'a>(
    shapes: &'a [BatchShape],
    views: &'a [Option<ViewPlace>],
) -> impl Iterator<Item = &'a BatchShape> {
    shapes.iter().zip(views).filter(|(_, view)| view.is_none()).map(|(shape, _)| shape)
}

/// Whether a leaf may be returned as a view; [`Error::Argument`] for `copy=False` in an arena.
fn may_view(job: &Job, in_arena: bool) -> windrow::Result<bool> {
    match (job.copy, in_arena) {
        (CopyMode::Never, true) => {
            let why = "copy=False asks for a view, arena=True for a copy".to_owned();
            Err(Error::argument(why).at_path(&job.path))
        }
        (mode, _) => Ok(mode != CopyMode::Always && !in_arena),
    }
}

/// The ordinal of the first CUDA device that these shapes name as source or output; jobs add their streams alone. `None` for work
/// on the host, [`Error::Argument`] if a job names a stream for it. `None` without shapes, also with a stream.
pub(crate) fn device_of_work<'a>(
    jobs: &[Job],
    made: impl IntoIterator<Item = &'a BatchShape>,
) -> windrow::Result<Option<u32>> {
    let mut devices = made.into_iter().flat_map(|shape| [shape.source, shape.device]).peekable();
    let has_work = devices.peek().is_some();
    let ordinal = devices.find_map(|device| match device {
        Device::Cuda(ordinal) => Some(ordinal),
        _ => None,
    });
    let is_host_work = ordinal.is_none() && has_work;
    if is_host_work && jobs.iter().any(|job| job.stream.is_some()) {
        return Err(Error::argument(
            "stream= is for batches on a CUDA device; host memory has no streams".into(),
        ));
    }
    Ok(ordinal)
}

/// Sets the stream of work on a device, the streams that it waits for, the owners that are held until it is done, and torch's
/// allocators where they apply. Work on the host gets that of page-locked memory alone. Errors are those of [`device_of_work`],
/// of [`refuse_within`], of the driver, and [`Error::Argument`] for an exception of torch's.
fn order_work(
    engine: &Engine,
    jobs: &[Job],
    plan: &Plan<'_>,
    memory: &mut Option<Arc<TorchMemory>>,
    options: &mut RunOptions,
) -> windrow::Result<()> {
    let asked = jobs.iter().find_map(|job| job.stream);
    if plan.batch_shapes().iter().any(|shape| shape.device == Device::Pinned) {
        options.pinned = TorchPinned::used()?;
    }
    let Some(ordinal) = device_of_work(jobs, plan.batch_shapes())? else {
        return Ok(());
    };
    // Outputs first: their memory may be in use by what was enqueued where it was allocated.
    let mut producers = Producers::default();
    for out in jobs.iter().flat_map(|job| job.out().into_iter().chain(job.scales_out())) {
        let mut out_producers = producers_of(out);
        if block_of(&out_producers).is_some() {
            // The engine itself orders the work behind and before others on memory of its own.
            out_producers.tensors.clear();
        }
        producers.merge(&out_producers);
        options.keep.push(Arc::clone(out.owner()));
    }
    for job in jobs {
        producers.merge(&job.samples.producers());
        if !job.samples.is_on_host() {
            options.keep.extend(job.samples.owners.owners_to_hold());
        }
    }
    options.keep.extend(producers.owners_to_hold());
    *memory = OutputAllocator::for_plan(plan, &producers)?.memory(engine, ordinal)?;
    let lent_on = memory.as_ref().map(|memory| memory.stream());
    options.stream = match (asked.or(producers.current), lent_on) {
        // Memory that is lent within a capture is for work of that capture.
        (Some(stream), Some(lent_on))
            if asked.is_none()
                && stream != lent_on
                && engine.capture_of(ordinal, lent_on)?.is_some() =>
        {
            producers.add(stream);
            Some(lent_on)
        }
        (Some(stream), _) => Some(stream),
        (None, Some(lent_on)) => Some(lent_on),
        (None, None) => Some(engine.stream(ordinal)?),
    };
    if let Some(stream) = options.stream {
        refuse_within(&producers, ordinal, stream)?;
    }
    options.memory = memory.clone().map(|memory| memory as Arc<dyn OutputMemory>);
    options.producers = producers.streams;
    Ok(())
}

/// `out` with the end of the call as what others wait for, since the stream may be gone by then. In a graph there is no such end,
/// and they wait for the stream of the capture. Host memory is returned as it is.
fn written_on(out: &Tensor, stream: Option<Stream>, end: Option<&End>) -> Tensor {
    let (Device::Cuda(_), Some(stream)) = (out.device(), stream) else { return out.clone() };
    let mut producers = producers_of(out);
    match end {
        // The end of this call is behind the ends of earlier calls.
        Some(end) => producers.ends = vec![end.clone()],
        None => {
            producers.add(stream);
            producers.current = Some(stream);
        }
    }
    Holder::wrap(out, producers)
}

/// The batch that is the samples' own memory, which it keeps alive. Counts it as a view.
fn view_of(
    engine: &Engine,
    job: &Job,
    shape: &BatchShape,
    (data, layout): ViewPlace,
) -> windrow::Result<Batch> {
    let samples = &job.samples;
    let reference =
        samples.owners.joint_reference(samples.watches.clone(), || samples.producers())?;
    let (owner, read_only): (Owner, _) = (Arc::new(reference), samples.list.is_read_only());
    // SAFETY: the samples are there in this layout, and their owners are held.
    #[allow(unsafe_code)]
    let tensor = unsafe {
        Tensor::new_unchecked(owner, data.cast_mut(), shape.dtype, shape.device, layout, read_only)
    };
    engine.count_view(shape.num_samples);
    Batch::try_new(tensor, Fields::new(shape)?)
}

/// The place of a leaf that can be returned as a view; `None` if it cannot or has an `out`. In place of `None`, for `copy=False`,
/// [`Error::Layout`] for samples of foreign byte order, else [`Error::NotAView`].
fn view_in(
    plan: &Plan<'_>,
    position: usize,
    leaf: &Leaf<'_, '_>,
    mode: CopyMode,
) -> windrow::Result<Option<ViewPlace>> {
    match plan.as_laid_out_view(position).filter(|_| leaf.out.is_none()) {
        None if mode == CopyMode::Never => {
            let mut metas = (0..leaf.samples.len()).map(|index| leaf.samples.meta(index));
            if let Some(meta) = metas.find(|meta| !meta.dtype.is_native()) {
                let error = Error::Layout(in_other_order(None, meta.dtype));
                return Err(error.about("samples").at_path(leaf.path));
            }
            let why = "copy=False, but the samples do not form the whole batch in memory";
            Err(Error::not_a_view(why.to_owned()).at_path(leaf.path))
        }
        view => Ok(view),
    }
}
