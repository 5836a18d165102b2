//! `copy_many`: many tensors written to as many others.

use super::engine::Engine;
use crate::collate::Transform;
use crate::host;
use crate::observe::{Span, Stage, Tally};
use crate::plan::{AsTarget, Moves, Target};
use crate::samples::{SampleList, Samples};
use crate::tensor::{Device, Error, Hint, Mismatch, MoveSide, Result};

impl Engine {
    /// Writes source `i` to destination `i`, for all pairs at once. The two have the same shape, any strides and any alignment;
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
    /// [`Error::Argument`] for another number of sources than of destinations; [`Error::Shape`];
    /// [`Error::DType`] for a cast of complex, float8 or smaller elements;
    /// [`Error::Layout`] for a destination that is read-only or shared, whose elements overlap each other, or of foreign byte order;
    /// [`Error::Overlap`] for a destination that shares bytes with another one, or with any source but its own identical one;
    /// [`Error::Device`] for memory on a device; [`Error::OutOfMemory`].
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
        // SAFETY: targets are memory that may be written to, by nothing else.
        #[allow(unsafe_code)]
        unsafe {
            self.copy_lists(&list, &srcs.to_list(), &Transform::default())
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
        transform: &Transform,
    ) -> Result<()> {
        let counters = &self.shared.counters;
        let begin = counters.now();
        let plan = Span::timed(Stage::Plan, begin, &counters.plan_ns);
        let moves = Moves::new(dsts, srcs, transform)?;
        if let Some(&pair) = moves.on_device.first() {
            return Err(on_device(dsts, srcs, pair));
        }
        let span = Span::timed(Stage::Run, plan.end(), &counters.run_ns);
        let (bytes_in, bytes_out) = moves.traffic();
        let samples = moves.num_pairs as u64;
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
}

fn on_device(dsts: &SampleList<'_>, srcs: &SampleList<'_>, pair: usize) -> Error {
    let device = dsts.meta(pair).device;
    let (side, got) = match device {
        Device::Cuda(_) => (MoveSide::Destination, device),
        _ => (MoveSide::Source, srcs.meta(pair).device),
    };
    let found = Mismatch::new(None, "host memory", got.to_string());
    let hint = Hint::Text("collate(out=) writes samples of a device");
    Error::Device(Box::new(found.with_hint(hint))).at_side(side, pair)
}
