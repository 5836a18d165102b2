//! `copy_many`: many tensors written to as many others.

use std::ops::Range;
use std::time::Instant;

use super::engine::Engine;
use crate::collate::{Collate, Transform};
use crate::host;
use crate::observe::{Span, Stage, Tally};
use crate::plan::{AsTarget, Leaf, Moves, Target};
use crate::run_options::RunOptions;
use crate::samples::{SampleList, Samples};
use crate::tensor::{Layout, MoveSide, Owner, Result};

/// Options of [`Engine::copy_lists`].
#[derive(Debug, Default)]
pub struct MoveOptions {
    /// What each source is put through.
    pub transform: Transform,
    /// Of work on a device.
    pub run: RunOptions,
    /// Owners of destinations on a device that have to know of the work: see [`Target::owned_by`].
    pub out_owners: Vec<Owner>,
}

impl Engine {
    /// Writes source `i` to destination `i`, for all pairs at once, in host, page-locked and device memory. The two have the same shape, any strides and any alignment;
    /// where they differ in dtype, elements are cast as by [`Collate::cast`](crate::Collate::cast). A pair that is the same memory
    /// and dtype is left as it is.
    ///
    /// ```
    /// use windrow::{Engine, SampleView, Target};
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
    /// [`Error::Argument`](crate::Error::Argument) for another number of sources than of destinations; [`Error::Shape`](crate::Error::Shape);
    /// [`Error::DType`](crate::Error::DType) for a cast of elements that are only moved ([`DType::is_arithmetic`](crate::DType::is_arithmetic));
    /// [`Error::Layout`](crate::Error::Layout) for a destination that is read-only or shared, whose elements overlap each other, or of foreign byte order;
    /// [`Error::Overlap`](crate::Error::Overlap) for a destination that shares bytes with another one, or with any source but its own identical one;
    /// [`Error::Device`](crate::Error::Device) for sides on several devices; [`Error::OutOfMemory`](crate::Error::OutOfMemory); for work on a device as [`Engine::assemble`].
    pub fn copy_many<'a, S: Samples<'a> + ?Sized>(
        &self,
        dsts: &mut [impl AsTarget],
        srcs: &S,
    ) -> Result<()> {
        let mut list = SampleList::new();
        list.reserve(dsts.len())?;
        let mut targets: Vec<Target<'_>> = Vec::with_capacity(dsts.len());
        for (index, dst) in dsts.iter_mut().enumerate() {
            let target = dst.as_target();
            targets.push(target.map_err(|error| error.at_side(MoveSide::Destination, index))?);
        }
        for Target { data, dtype, device, layout, .. } in &targets {
            let (shape, strides) = (layout.shape(), Some(layout.strides()));
            // SAFETY: memory of the targets, which are borrowed until the end of the call. It is not read.
            #[allow(unsafe_code)]
            unsafe {
                list.push(*data, *dtype, *device, shape, strides)?;
            }
        }
        let mut options = MoveOptions::default();
        options.out_owners.extend(targets.iter().filter_map(|target| target.owner.clone()));
        // SAFETY: targets are memory that may be written to, by nothing else.
        #[allow(unsafe_code)]
        unsafe {
            self.copy_lists(&list, &srcs.to_list(), options)
        }
    }

    /// As [`Engine::copy_many`], of destinations that are samples of a list, with sources put through a transform on the way.
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
        options: MoveOptions,
    ) -> Result<()> {
        let counters = &self.shared.counters;
        let begin = counters.now();
        let plan = Span::timed(Stage::Plan, begin, &counters.plan_ns);
        let moves = Moves::new(dsts, srcs, &options.transform)?;
        if !moves.on_device.is_empty() {
            drop(plan);
            // SAFETY: the caller's promise.
            unsafe {
                self.copy_on_device(&moves, dsts, srcs, options)?;
                return self.copy_on_host(&moves, counters.now());
            }
        }
        let begin = plan.end();
        // SAFETY: as above.
        unsafe { self.copy_on_host(&moves, begin) }
    }

    /// The pairs that are on the host.
    ///
    /// # Safety
    /// As of [`Engine::copy_lists`].
    #[allow(unsafe_code)]
    unsafe fn copy_on_host(&self, moves: &Moves<'_>, begin: Option<Instant>) -> Result<()> {
        let counters = &self.shared.counters;
        let span = Span::timed(Stage::Run, begin, &counters.run_ns);
        let (bytes_in, bytes_out) = moves.traffic();
        let on_device: usize = moves.on_device.iter().map(Range::len).sum();
        let samples = (moves.num_pairs - on_device) as u64;
        let tally = Tally { samples, bytes_in, bytes_out, ..Tally::default() };
        let affine = moves.affine.as_deref();
        let threads = match host::is_small(bytes_in.saturating_add(bytes_out)) {
            true => None,
            false => self.shared.threads.helpers()?,
        };
        // SAFETY: the list of sources borrows them; destinations are the caller's promise, and were found to be apart.
        unsafe {
            match self.shared.reference {
                true => host::run_moves_by_reference(&moves.outputs, affine),
                false => {
                    let stores = self.streaming_stores();
                    host::run_moves(&moves.outputs, affine, &stores, threads.as_ref());
                }
            }
        }
        counters.count(&tally);
        span.note(&tally);
        Ok(())
    }

    /// The pairs that have a side on a device, as leaves of one plan whose outputs are the destinations.
    ///
    /// # Safety
    /// As of [`Engine::copy_lists`].
    #[allow(unsafe_code)]
    unsafe fn copy_on_device(
        &self,
        moves: &Moves<'_>,
        dsts: &SampleList<'_>,
        srcs: &SampleList<'_>,
        options: MoveOptions,
    ) -> Result<()> {
        let MoveOptions { transform, mut run, out_owners } = options;
        // Its parts do not keep them.
        run.keep.extend_from_slice(srcs.owners());
        let count = moves.on_device.len();
        let (mut lists, mut collates) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut targets = Vec::with_capacity(count);
        for pairs in &moves.on_device {
            let dst = dsts.meta(pairs.start);
            let collate = Collate::stack().cast(dst.dtype).transform(transform.clone());
            collates.push(collate.device(dst.device));
            // Of several they are one after the other.
            let step = [dst.layout.numel()];
            let strides: Vec<i64> = step.iter().chain(dst.layout.strides()).copied().collect();
            let count = [pairs.len() as i64];
            let shape: Vec<i64> = count.iter().chain(dst.layout.shape()).copied().collect();
            let layout = Layout::try_new(dst.dtype, &shape, Some(&strides))?;
            let data = dsts.address(pairs.start).cast_mut();
            // SAFETY: the caller's promise, for destinations that follow each other.
            targets.push(unsafe { Target::from_raw_parts(data, dst.dtype, dst.device, layout) });
            lists.push(srcs.alike(pairs.clone()));
        }
        let leaf = |index: usize| Leaf {
            samples: &lists[index],
            collate: &collates[index],
            path: "",
            out: Some(&targets[index]),
        };
        let leaves: Vec<Leaf<'_, '_>> = (0..count).map(leaf).collect();
        let mut plan = self.plan(&leaves, self.shared.counters.now())?;
        plan.out_owners = out_owners;
        self.run_with(plan, run).map(drop)
    }
}
