//! `copy_many` with ids on a device: pairs of which the host does not know all.

use super::engine::Engine;
use super::moves::MoveOptions;
use crate::collate::{AnyTransform, Collate};
use crate::cuda::ListTable;
use crate::observe::{Span, Stage, Tally};
use crate::plan::{
    check_chosen_scales, first_of, needs_gather, scales_to_find, ChosenMove, Leaf, Plan,
};
use crate::run_options::RunOptions;
use crate::samples::SampleList;
use crate::tensor::{bytes_of, DType, Device, Error, Result, Tensor};

impl Engine {
    /// Copies pairs as [`Engine::copy_lists`] does, with samples of a side that a device chooses.
    /// Page-locked destinations are written in stream order, without a wait. Sources in pageable
    /// memory, of several layouts or of another dtype, or with a transform, are gathered first;
    /// destinations in pageable memory are written by the host, which has to wait anyway and so
    /// asks for the ids.
    ///
    /// # Errors
    /// As of [`Engine::copy_lists`]; [`Error::Device`] for sides on two CUDA devices, or a
    /// [`Dequantize`](crate::Dequantize); [`Error::Argument`] for lists of unequal length, for
    /// destinations that are not all alike, for a [`Quantize`](crate::Quantize) without `scales_out`
    /// or `scales_out` without one, and in a capture, if sources are gathered; [`Error::Index`] for
    /// an id out of range of an earlier call.
    ///
    /// # Safety
    /// As of [`Engine::copy_lists`].
    #[allow(unsafe_code)]
    pub(super) unsafe fn copy_chosen(
        &self,
        dsts: &SampleList<'_>,
        srcs: &SampleList<'_>,
        options: MoveOptions,
    ) -> Result<()> {
        let counters = &self.shared.counters;
        let span = Span::timed(Stage::Plan, counters.now(), &counters.plan_ns);
        for table in [dsts, srcs].into_iter().chain(options.scales_out).filter_map(table_of) {
            table.check()?;
        }
        if dsts.is_empty() && srcs.is_empty() {
            return Ok(());
        }
        if dsts.is_empty() || srcs.is_empty() {
            let text = format!("{} destinations for {} sources", dsts.len(), srcs.len());
            return Err(Error::argument(text));
        }
        let is_gathered = needs_gather(dsts, srcs, &options.transform)?;
        if let Some((quantize, scales)) = scales_to_find(&options.transform, options.scales_out)? {
            check_chosen_scales([dsts, srcs, scales], quantize)?;
        }
        drop(span);
        let dst = first_of(dsts);
        if dst.layout.numel() == 0 {
            return Ok(());
        }
        let sides = [dst.device, first_of(srcs).device];
        let ordinal = sides.into_iter().find_map(Device::ordinal);
        let ordinal = ordinal.unwrap_or(self.shared.ordinal());
        let executor = self.shared.devices.executor_on(ordinal, options.run.stream)?;
        if dst.device == Device::Cpu {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_known(dsts, srcs, options) };
        }
        let mut run = options.run;
        let (gathered, found) = match is_gathered {
            false => (None, None),
            true => {
                let stream = run.stream.map_or_else(|| executor.stream(), Ok)?;
                if executor.capture_of(stream)?.is_some() {
                    return Err(Error::argument(
                        "the stream is being captured in a graph: ids on a device, with a cast, a transform, sources in pageable memory \
                         or of several layouts, need memory in between; cast or upload before"
                            .to_owned(),
                    ));
                }
                let collate = match options.transform {
                    AnyTransform::Quantize(quantize) => Collate::stack().transform(quantize),
                    transform => Collate::stack().cast(dst.dtype).transform(transform),
                };
                let collate = collate.device(Device::Cuda(ordinal));
                run.stream = Some(stream);
                let (data, scales) = self.one_tensor(srcs, &collate, run.for_part())?;
                (Some(data), scales)
            }
        };
        let mut moves = vec![ChosenMove::new(dsts, srcs, gathered.as_ref())?];
        if let (Some(scales), Some(found)) = (options.scales_out, &found) {
            moves.push(ChosenMove::new(scales, srcs, Some(found))?);
        }
        let span = Span::timed(Stage::Run, counters.now(), &counters.run_ns);
        // SAFETY: the caller's promise.
        let traffic = unsafe { executor.move_chosen(&moves, &run, &options.out_owners)? };
        counters.count_traffic(traffic);
        let (count, src) = (dsts.len() as u64, first_of(srcs));
        let bytes = |dtype, shape| count.saturating_mul(bytes_of(dtype, shape));
        let scale_bytes = options.scales_out.map_or(0, |scales| {
            let scale = first_of(scales);
            bytes(scale.dtype, scale.layout.shape())
        });
        let tally = Tally {
            samples: count,
            moves: count,
            bytes_in: bytes(src.dtype, src.layout.shape()),
            bytes_out: bytes(dst.dtype, dst.layout.shape()).saturating_add(scale_bytes),
            ..Tally::default()
        };
        counters.count(&tally);
        span.note(&tally);
        Ok(())
    }

    /// Waits for the ids of the sources and copies the pairs whose ids are in range, negative ones
    /// counted from the end; the next call reports the first other one.
    ///
    /// # Errors
    /// [`Error::Argument`] if a device chooses the destinations alone; as of [`Engine::copy_lists`].
    ///
    /// # Safety
    /// As of [`Engine::copy_lists`].
    #[allow(unsafe_code)]
    unsafe fn copy_known(
        &self,
        dsts: &SampleList<'_>,
        srcs: &SampleList<'_>,
        options: MoveOptions,
    ) -> Result<()> {
        let Some(selection) = srcs.selection() else {
            return Err(Error::argument("destinations of a device are on it".to_owned()));
        };
        let mut one = SampleList::new();
        one.push_view(&(&selection.indices).into())?;
        let collate = Collate::stack().cast(DType::I64).device(Device::Cpu);
        let (ids, _) = self.one_tensor(&one, &collate, options.run.for_part())?;
        let samples = &selection.list.samples;
        let len = samples.len() as i64;
        let is_there = |id: i64| (-len..len).contains(&id);
        let ids = ids.as_slice::<i64>()?;
        let known: Vec<i64> = ids.iter().copied().filter(|&id| is_there(id)).collect();
        let srcs_known = samples.take(known)?;
        let all = srcs_known.len() == dsts.len();
        let lost = ids.iter().position(|&id| !is_there(id));
        let kept = (0..ids.len()).filter(|&pair| is_there(ids[pair])).map(|pair| pair as i64);
        let some_dsts = if all { None } else { Some(dsts.take(kept.clone())?) };
        let some_scales = match options.scales_out {
            Some(scales) if !all => Some(scales.take(kept)?),
            _ => None,
        };
        let options =
            MoveOptions { scales_out: some_scales.as_ref().or(options.scales_out), ..options };
        // SAFETY: the caller's promise.
        unsafe { self.copy_lists(some_dsts.as_ref().unwrap_or(dsts), &srcs_known, options)? };
        if let (Some(lost), Some(table)) = (lost, table_of(srcs)) {
            table.note(lost as u32);
        }
        Ok(())
    }

    /// Assembles samples, of which there is at least one, into one tensor; with the scales that are found.
    fn one_tensor(
        &self,
        samples: &SampleList<'_>,
        collate: &Collate,
        options: RunOptions,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let leaf = Leaf { samples, collate, path: "", out: None };
        let filled = self.run_with(Plan::for_leaves(&[leaf])?, options)?.pop();
        let scales = filled.as_ref().and_then(|filled| filled.fields.scales.as_deref().cloned());
        Ok((filled.and_then(|filled| filled.data).ok_or(Error::Empty)?, scales))
    }
}

/// The table by which a device chooses the samples of a list; `None` if the host knows them.
fn table_of<'l>(list: &'l SampleList<'_>) -> Option<&'l ListTable> {
    list.selection().and_then(|selection| selection.list.table.downcast_ref())
}
