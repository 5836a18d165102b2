//! `copy_many`: many tensors written to as many others.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use super::engine::Engine;
use crate::collate::{AnyTransform, Collate};
use crate::explain::Explain;
use crate::host::{self, Helpers};
use crate::observe::{Span, Stage, Tally};
use crate::plan::{is_chosen, is_mapping_stale, AsTarget, BoolSlices, Leaf, Moves, Plan, Target};
use crate::run_options::RunOptions;
use crate::samples::{SampleList, Samples};
use crate::tensor::{Device, Error, Layout, MoveSide, Owner, Result, Stream};

/// Options of [`Engine::copy_lists`].
#[derive(Debug, Default)]
pub struct MoveOptions<'o> {
    /// The transform of each source.
    pub transform: AnyTransform,
    /// Destinations of the scales that are found: as many as there are pairs.
    pub scales_out: Option<&'o SampleList<'o>>,
    /// Options of work on a device.
    pub run: RunOptions,
    /// Owners of destinations on a device that have to know of the work: see [`Target::owned_by`].
    pub out_owners: Vec<Owner>,
}

/// Options of [`Engine::copy_many_with`].
#[derive(Debug, Default)]
pub struct CopyOptions<'t> {
    transform: AnyTransform,
    scales_out: Option<Vec<Target<'t>>>,
    run: RunOptions,
}

impl<'t> CopyOptions<'t> {
    /// The options of [`Engine::copy_many`]: no transform, no scales.
    ///
    /// ```
    /// use windrow::engine::CopyOptions;
    /// use windrow::{DType, Quantize};
    /// let options = CopyOptions::new().transform(Quantize::new(DType::F8E4M3FN));
    /// println!("{options:?}");
    /// ```
    #[must_use]
    pub fn new() -> Self {
        CopyOptions::default()
    }

    /// Sets the transform of each source: a [`Transform`](crate::Transform), a [`Quantize`](crate::Quantize) or a
    /// [`Dequantize`](crate::Dequantize). A destination has the shape of its result.
    #[must_use]
    pub fn transform(mut self, transform: impl Into<AnyTransform>) -> Self {
        self.transform = transform.into();
        self
    }

    /// Sets the targets of the scales of a [`Quantize`](crate::Quantize): for each pair memory of the scales' dtype, of
    /// the source's shape without its last dim (by row), with the number of blocks in its place (by block), or without
    /// dims (by sample). It is where the destination is: on its device, or on the host, where those of no elements
    /// always are.
    #[must_use]
    pub fn scales_out(mut self, scales: Vec<Target<'t>>) -> Self {
        self.scales_out = Some(scales);
        self
    }

    /// Sets the options of work on a device, such as its stream.
    #[must_use]
    pub fn run(mut self, run: RunOptions) -> Self {
        self.run = run;
        self
    }
}

/// Targets as samples, which are not read.
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) for a target with memory for scales, which a pair has no place for.
fn list_of_targets<'t>(side: MoveSide, targets: &[Target<'t>]) -> Result<SampleList<'t>> {
    let mut list = SampleList::new();
    list.reserve(targets.len())?;
    for (index, Target { data, dtype, device, layout, scales, .. }) in targets.iter().enumerate() {
        if scales.is_some() {
            let text = "a target with scales is for a batch; the scales of pairs go to scales_out";
            return Err(Error::argument(text.to_owned()).at_side(side, index));
        }
        let (shape, strides) = (layout.shape(), Some(layout.strides()));
        // SAFETY: memory of the targets, which are borrowed for longer than the list, and which nothing
        // reads through the list.
        #[allow(unsafe_code)]
        unsafe {
            list.push(*data, *dtype, *device, shape, strides)?;
        }
    }
    Ok(list)
}

impl Engine {
    /// Writes source `i` to destination `i`, for all pairs at once, in host, page-locked and device memory. The two have the
    /// same shape, any strides and any alignment; where they differ in dtype, elements are cast as by
    /// [`Collate::cast`](crate::Collate::cast). A pair that is the same memory and dtype is left as it is. Destinations on the
    /// host, page-locked ones too, are written when the call returns; work on a device is in stream order.
    ///
    /// ```
    /// use windrow::plan::Target;
    /// use windrow::{Engine, SampleView};
    /// let (mut weights, mut step) = ([0f32; 4], [0i64; 1]);
    /// let mut dsts = [Target::from_slice(&mut weights, &[2, 2])?, Target::from_slice(&mut step, &[])?];
    /// let srcs = [
    ///     SampleView::with_strides(&[1f64, 2.0, 3.0, 4.0], &[2, 2], &[1, 2])?,
    ///     SampleView::from_slice(&[7i32], &[])?,
    /// ];
    /// Engine::host().copy_many(&mut dsts, &srcs)?;
    /// assert_eq!((weights, step), ([1.0, 3.0, 2.0, 4.0], [7]));
    /// # Ok::<(), windrow::Error>(())
    /// ```
    ///
    /// # Errors
    /// All are found before a byte is written, and name the pair and the side.
    /// [`Error::Argument`](crate::Error::Argument) for another number of sources than of destinations;
    /// [`Error::Shape`](crate::Error::Shape); [`Error::DType`](crate::Error::DType) for a cast of elements that are only moved
    /// ([`DType::is_arithmetic`](crate::DType::is_arithmetic)); [`Error::Layout`](crate::Error::Layout) for a destination that
    /// is read-only or shared, whose elements overlap each other, or of foreign byte order;
    /// [`Error::Overlap`](crate::Error::Overlap) for a destination that shares bytes with another one, or with any source but
    /// its own identical one; [`Error::OutOfMemory`](crate::Error::OutOfMemory); for work on a device as [`Engine::assemble`].
    pub fn copy_many<S: Samples + ?Sized>(
        &self,
        dsts: &mut [impl AsTarget],
        srcs: &S,
    ) -> Result<()> {
        self.copy_many_with(dsts, srcs, CopyOptions::new())
    }

    /// Copies pairs as [`Engine::copy_many`] does, and transforms, quantises or dequantises the elements on the way.
    /// Options of memory in the run's options are for batches and have no effect.
    ///
    /// ```
    /// use windrow::engine::CopyOptions;
    /// use windrow::plan::Target;
    /// use windrow::{DType, Engine, Quantize, SampleView};
    /// let row = [1f32, -2.0, 0.5, 127.0];
    /// let (mut page, mut scale) = ([0i8; 4], [0f32; 1]);
    /// let mut dsts = [Target::from_slice(&mut page, &[4])?];
    /// let srcs = [SampleView::from_slice(&row, &[4])?];
    /// let options = CopyOptions::new()
    ///     .transform(Quantize::new(DType::I8))
    ///     .scales_out(vec![Target::from_slice(&mut scale, &[])?]);
    /// Engine::host().copy_many_with(&mut dsts, &srcs, options)?;
    /// assert_eq!((page, scale), ([1, -2, 0, 127], [1.0]));
    /// # Ok::<(), windrow::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Engine::copy_many`]; of the transform those of [`Engine::assemble`]. [`Error::Argument`](crate::Error::Argument)
    /// for a limit of 0 blocks, for a `Quantize` without scales, for scales without a `Quantize`, or of another number, and for
    /// sides on several devices beside a stream, a `Quantize` or a `Dequantize`; [`Error::Device`](crate::Error::Device) for
    /// scales to find that are not where the destination is, for given ones on a device, and for these beside ids on a device.
    pub fn copy_many_with<S: Samples + ?Sized>(
        &self,
        dsts: &mut [impl AsTarget],
        srcs: &S,
        options: CopyOptions<'_>,
    ) -> Result<()> {
        let mut targets: Vec<Target<'_>> = Vec::with_capacity(dsts.len());
        for (index, dst) in dsts.iter_mut().enumerate() {
            let target = dst.as_target();
            targets.push(target.map_err(|error| error.at_side(MoveSide::Destination, index))?);
        }
        let written = targets.iter();
        let _bools = BoolSlices::of(
            written.map(|target| (Some(target.data), &target.layout, target.is_bools)),
        );
        let CopyOptions { transform, scales_out: scales_targets, run } = options;
        run.check()?;
        let (stream, srcs) = (run.stream, srcs.to_list());
        let of_scales = |scales| list_of_targets(MoveSide::Scales, scales);
        let scales_out = scales_targets.as_deref().map(of_scales).transpose()?;
        let dsts = list_of_targets(MoveSide::Destination, &targets)?;
        let of_scales = scales_targets.iter().flatten();
        let written = targets.iter().chain(of_scales);
        let out_owners = written.filter_map(|target| target.owner.clone()).collect();
        let options = MoveOptions { transform, scales_out: scales_out.as_ref(), run, out_owners };
        // SAFETY: targets are memory that may be written to, by nothing else.
        #[allow(unsafe_code)]
        unsafe {
            self.copy_lists(&dsts, &srcs, options)?;
        }
        // Other moves wait for their copies to the host.
        match is_chosen(&dsts, &srcs)
            && dsts.metas().iter().any(|meta| meta.device == Device::Pinned)
        {
            true => self.wait_for_pinned([&dsts, &srcs], stream),
            false => Ok(()),
        }
    }

    /// Waits for this stream, else the engine's own, on each device of the sides: kernels have then written page-locked
    /// destinations, which safe code may read next. No wait while the stream is captured: a graph writes them when it is
    /// launched.
    fn wait_for_pinned(&self, sides: [&SampleList<'_>; 2], stream: Option<Stream>) -> Result<()> {
        let metas = sides.into_iter().flat_map(|side| side.metas().iter());
        let ordinals: BTreeSet<u32> = metas.filter_map(|meta| meta.device.ordinal()).collect();
        for ordinal in ordinals {
            let executor = self.shared.devices.executor_on(ordinal, stream)?;
            let stream = stream.map_or_else(|| executor.stream(), Ok)?;
            if executor.capture_of(stream)?.is_none() {
                let run = RunOptions { stream: Some(stream), ..RunOptions::default() };
                executor.settle(&run)?;
            }
        }
        Ok(())
    }

    /// Copies pairs as [`Engine::copy_many`] does, to destinations that are samples of a list, with
    /// a transform of the sources on the way. Page-locked destinations of pairs with ids on a
    /// device are written in stream order, later than the return.
    ///
    /// # Errors
    /// As [`Engine::copy_many`]; of the transform those of [`Engine::assemble`].
    ///
    /// # Safety
    /// Every element of the destinations may be written to during the call, and nothing else reads or writes it meanwhile.
    #[doc(hidden)]
    #[allow(unsafe_code)]
    pub unsafe fn copy_lists(
        &self,
        dsts: &SampleList<'_>,
        srcs: &SampleList<'_>,
        options: MoveOptions<'_>,
    ) -> Result<()> {
        let are_scales = |scales: &SampleList<'_>| scales.selection().is_some();
        if is_chosen(dsts, srcs) || options.scales_out.is_some_and(are_scales) {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_chosen(dsts, srcs, options) };
        }
        let counters = &self.shared.counters;
        let plan = Span::timed(Stage::Plan, counters.now(), &counters.plan_ns);
        let moves = Moves::new(dsts, srcs, &options.transform, options.scales_out)?;
        if moves.is_on_several() {
            drop(plan);
            // SAFETY: the caller's promise.
            return unsafe { self.copy_across(dsts, srcs, &options) };
        }
        let waits = moves.has_pinned_on_host();
        if moves.on_device.is_empty() && !waits {
            let begin = plan.end();
            let threads = self.threads_for(&moves)?;
            // SAFETY: the caller's promise.
            unsafe { self.copy_on_host(&moves, threads.as_ref(), begin) };
            return Ok(());
        }
        drop(plan);
        // The call comes before anything is enqueued, as it may fail.
        let threads = self.threads_for(&moves)?;
        let devices = &self.shared.devices;
        let named = moves.ordinal();
        let ordinal = named.unwrap_or(self.shared.ordinal());
        // Work that is enqueued already may use memory that the host is about to.
        if waits && (named.is_some() || options.run.stream.is_some()) {
            devices.executor_on(ordinal, options.run.stream)?.settle(&options.run)?;
        } else if waits {
            devices.settle()?;
        }
        // SAFETY: the caller's promise.
        unsafe {
            if !moves.on_device.is_empty() {
                self.copy_on_device(&moves, dsts, srcs, ordinal, options)?;
            }
            self.copy_on_host(&moves, threads.as_ref(), counters.now());
        }
        Ok(())
    }

    /// The threads that are to help with pairs on the host; `None` if these have too few bytes for
    /// that. Else as [`Threads::helpers`](crate::host::Threads::helpers), errors too.
    fn threads_for(&self, moves: &Moves<'_>) -> Result<Option<Helpers>> {
        let (bytes_in, bytes_out) = moves.traffic();
        match host::is_small(bytes_in.saturating_add(bytes_out)) {
            true => Ok(None),
            false => self.shared.threads.helpers(),
        }
    }

    /// Writes the pairs that are on the host; all are written when it returns. `begin`: when the stage began.
    ///
    /// # Safety
    /// As of [`Engine::copy_lists`].
    #[allow(unsafe_code)]
    unsafe fn copy_on_host(
        &self,
        moves: &Moves<'_>,
        threads: Option<&Helpers>,
        begin: Option<Instant>,
    ) {
        let counters = &self.shared.counters;
        let span = Span::timed(Stage::Run, begin, &counters.run_ns);
        let (bytes_in, bytes_out) = moves.traffic();
        let samples = (moves.num_pairs - moves.on_device.len()) as u64;
        let tally = Tally { samples, moves: samples, bytes_in, bytes_out, ..Tally::default() };
        // SAFETY: the list of sources borrows them; destinations are the caller's promise, and were found to be disjoint.
        unsafe {
            match self.shared.reference {
                true => host::run_moves_by_reference(moves),
                false => host::run_moves(moves, &self.streaming_stores(), threads),
            }
        }
        counters.count(&tally);
        span.note(&tally);
    }

    /// Enqueues the pairs that have a side on a device, as one plan for each round of theirs; waits for its copies to the host.
    ///
    /// # Safety
    /// As of [`Engine::copy_lists`].
    #[allow(unsafe_code)]
    unsafe fn copy_on_device(
        &self,
        moves: &Moves<'_>,
        dsts: &SampleList<'_>,
        srcs: &SampleList<'_>,
        ordinal: u32,
        options: MoveOptions<'_>,
    ) -> Result<()> {
        let MoveOptions { transform, mut run, out_owners, .. } = options;
        let counters = &self.shared.counters;
        let mut span = Span::timed(Stage::Plan, counters.now(), &counters.plan_ns);
        let is_pinned = srcs.metas().iter().any(|meta| meta.device == Device::Pinned);
        let reads_mapped = match is_pinned {
            true => {
                let executor = self.shared.devices.executor_on(ordinal, run.stream)?;
                let current = executor.enter()?;
                executor.reads_mapped(&current, false)?
            }
            false => true,
        };
        // The plans of the parts do not keep the owners.
        run.keep.extend_from_slice(srcs.owners());
        for round in moves.rounds(reads_mapped) {
            let (groups, runs) = moves.on_device_by_mode(round, dsts, reads_mapped);
            // SAFETY: the caller's promise.
            let alone = unsafe { AloneLeaves::new(&runs, dsts, srcs, &transform)? };
            let leaves = alone.leaves();
            let mut plan = Plan::for_moves(moves, &groups, &leaves, [dsts, srcs], reads_mapped)?;
            plan.out_owners.clone_from(&out_owners);
            drop(span);
            self.run_with(plan, run.for_part())?;
            span = Span::timed(Stage::Plan, counters.now(), &counters.plan_ns);
        }
        Ok(())
    }

    /// Returns the error that [`Engine::copy_lists`] would find without a transform before it
    /// writes anything.
    ///
    /// # Errors
    /// As [`Engine::copy_many`]; nothing is written.
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn check_lists(dsts: &SampleList<'_>, srcs: &SampleList<'_>) -> Result<()> {
        Moves::new(dsts, srcs, &AnyTransform::default(), None).map(drop)
    }

    /// The account of what a move would do, with the pairs on the host and on a device together.
    ///
    /// # Errors
    /// As [`Engine::copy_many`]; nothing is written.
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn explain_lists(
        &self,
        dsts: &SampleList<'_>,
        srcs: &SampleList<'_>,
        transform: &AnyTransform,
        scales_out: Option<&SampleList<'_>>,
    ) -> Result<Explain> {
        let moves = Moves::new(dsts, srcs, transform, scales_out)?;
        if moves.is_on_several() {
            let explain = self.explain_across(dsts, srcs, transform)?;
            return Ok(Explain { samples: moves.num_pairs, ..explain });
        }
        let reads_mapped = !is_mapping_stale();
        let (groups, runs) = moves.all_by_mode([dsts, srcs], reads_mapped);
        // SAFETY: nothing is written.
        #[allow(unsafe_code)]
        let alone = unsafe { AloneLeaves::new(&runs, dsts, srcs, transform)? };
        let plan = Plan::for_moves(&moves, &groups, &alone.leaves(), [dsts, srcs], reads_mapped)?;
        let explain = Engine::explain(&plan, &[], |_| self);
        let found = moves.scales.iter().filter_map(|scales| scales.found.as_ref());
        let scale_bytes: u64 = found.map(|(_, output)| output.bytes()).sum();
        let bytes_written = explain.bytes_written.saturating_add(scale_bytes);
        Ok(Explain { samples: moves.num_pairs, bytes_written, ..explain })
    }
}

/// Pairs that go by themselves, as leaves of a plan whose outputs are the destinations.
struct AloneLeaves<'a> {
    lists: Vec<SampleList<'a>>,
    collates: Vec<Collate>,
    targets: Vec<Target<'a>>,
}

impl<'a> AloneLeaves<'a> {
    /// A leaf for each range of pairs: a stack of the sources into the destinations, which follow each other in memory.
    ///
    /// # Safety
    /// As of [`Engine::copy_lists`], for as long as the leaves are run.
    #[allow(unsafe_code)]
    unsafe fn new(
        runs: &[Range<usize>],
        dsts: &SampleList<'a>,
        srcs: &SampleList<'a>,
        transform: &AnyTransform,
    ) -> Result<AloneLeaves<'a>> {
        let mut all = AloneLeaves { lists: Vec::new(), collates: Vec::new(), targets: Vec::new() };
        for pairs in runs {
            let dst = dsts.meta(pairs.start);
            let collate = Collate::stack().cast(dst.dtype).transform(transform.clone());
            all.collates.push(collate.device(dst.device));
            // The destinations of several pairs follow one another.
            let step = [dst.layout.numel()];
            let strides: Vec<i64> = step.iter().chain(dst.layout.strides()).copied().collect();
            let count = [pairs.len() as i64];
            let shape: Vec<i64> = count.iter().chain(dst.layout.shape()).copied().collect();
            let layout = Layout::try_new(dst.dtype, &shape, Some(&strides))?;
            let data = dsts.address(pairs.start).cast_mut();
            let bytes = dst.layout.numel() as usize * dst.dtype.size();
            debug_assert!(pairs.clone().all(|pair| {
                let from_first = dsts.address(pair).addr() - data.addr();
                from_first == (pair - pairs.start) * bytes && dsts.meta(pair) == dst
            }));
            // SAFETY: the caller's promise, for destinations that follow each other.
            let target = unsafe { Target::from_raw_parts(data, dst.dtype, dst.device, layout) };
            all.targets.push(target);
            all.lists.push(srcs.alike(pairs.clone()));
        }
        Ok(all)
    }

    /// A leaf for each list, with its options and target.
    fn leaves(&self) -> Vec<Leaf<'_, 'a>> {
        let leaf = |index: usize| Leaf {
            samples: &self.lists[index],
            collate: &self.collates[index],
            path: "",
            out: Some(&self.targets[index]),
        };
        (0..self.lists.len()).map(leaf).collect()
    }
}
