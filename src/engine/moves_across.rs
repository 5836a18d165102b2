//! `copy_many` with sides on several devices: a call for each device, and by way of the host for what goes from one to another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::engine::Engine;
use super::moves::MoveOptions;
use crate::collate::AnyTransform;
use crate::cuda::Executor;
use crate::explain::Explain;
use crate::run_options::RunOptions;
use crate::samples::SampleList;
use crate::tensor::{bytes_of, Device, Error, Places, Result, Stream};

/// The most bytes that are on the host at a time on their way from one device to another, unless one pair has more.
const MOST_ACROSS_BYTES: u64 = 256 << 20;

/// Pairs begin at multiples of this in memory in between.
const ALIGN: u64 = 64;

impl Engine {
    /// Copies pairs as [`Engine::copy_lists`] does, which were planned, and so checked, with sides on several devices.
    ///
    /// # Errors
    /// [`Error::Argument`] for a stream, which is of one device; as [`Engine::copy_lists`].
    ///
    /// # Safety
    /// As of [`Engine::copy_lists`].
    #[allow(unsafe_code)]
    pub(super) unsafe fn copy_across(
        &self,
        dsts: &SampleList<'_>,
        srcs: &SampleList<'_>,
        options: &MoveOptions,
    ) -> Result<()> {
        if options.run.stream.is_some() {
            let text = "a stream is of one device, and the sides are on several";
            return Err(Error::argument(text.to_owned()));
        }
        let Calls { of_one, between, ordinals } = Calls::new(dsts, srcs);
        // Page-locked pairs without a side on a device are the host's, behind what has been enqueued for them.
        for ordinal in ordinals.into_iter().filter(|_| of_one.contains_key(&None)) {
            let executor = self.executor(ordinal)?;
            let producers = producers_on(&executor, &options.run)?;
            executor.settle(&RunOptions { producers, ..RunOptions::default() })?;
        }
        for (device, pairs) in of_one {
            let (to, from) = (dsts.take(pairs.iter().copied())?, srcs.take(pairs)?);
            // SAFETY: the caller's promise.
            unsafe { self.copy_part(&to, &from, device, options)? };
        }
        for (way, pairs) in between {
            for part in parts_of(dsts, &pairs) {
                let (dsts, srcs) =
                    (dsts.take(part.iter().copied())?, srcs.take(part.iter().copied())?);
                // SAFETY: the caller's promise.
                unsafe { self.copy_by_host(&dsts, &srcs, way, options)? };
            }
        }
        Ok(())
    }

    /// Moves pairs from one device to another, by way of page-locked memory. Blocks until they are on the host.
    ///
    /// # Safety
    /// As of [`Engine::copy_lists`].
    #[allow(unsafe_code)]
    unsafe fn copy_by_host(
        &self,
        dsts: &SampleList<'_>,
        srcs: &SampleList<'_>,
        (to, from): (u32, u32),
        options: &MoveOptions,
    ) -> Result<()> {
        let (offsets, bytes) = places_between(dsts)?;
        let between = self.unwritten(bytes, Device::Pinned)?;
        debug_assert_eq!(between.nbytes() as u64, bytes);
        // SAFETY: parts of a block that nothing else has seen. It outlives both calls: the first one waits for its end, and the
        // second one keeps the block.
        let list = unsafe { list_between(dsts, &offsets, between.data_ptr())? };
        let mut up = MoveOptions {
            run: options.run.for_part(),
            out_owners: options.out_owners.clone(),
            ..MoveOptions::default()
        };
        up.run.keep.push(Arc::clone(between.owner()));
        // SAFETY: the caller's promise, and memory of our own.
        unsafe {
            self.copy_part(&list, srcs, Some(from), options)?;
            // Page-locked destinations are written in the order of the stream.
            let executor = self.executor(from)?;
            executor.settle(&RunOptions::default())?;
            self.copy_part(dsts, &list, Some(to), &up)
        }
    }

    /// The account of what [`Engine::copy_across`] would do, each byte read and written counted once.
    ///
    /// # Errors
    /// As [`Engine::explain_lists`].
    #[cfg(feature = "unstable-bindings")]
    pub(super) fn explain_across(
        &self,
        dsts: &SampleList<'_>,
        srcs: &SampleList<'_>,
        transform: &AnyTransform,
    ) -> Result<Explain> {
        let taken = |pairs: &[i64]| -> Result<_> {
            Ok((dsts.take(pairs.iter().copied())?, srcs.take(pairs.iter().copied())?))
        };
        let Calls { of_one, between, .. } = Calls::new(dsts, srcs);
        let mut calls: Vec<Explain> = Vec::new();
        for pairs in of_one.values() {
            let (dsts, srcs) = taken(pairs)?;
            calls.push(self.explain_lists(&dsts, &srcs, transform, None)?);
        }
        for part in between.values().flat_map(|pairs| parts_of(dsts, pairs)) {
            let (dsts, srcs) = taken(part)?;
            let (offsets, _) = places_between(&dsts)?;
            let begin = std::ptr::without_provenance(ALIGN as usize);
            // SAFETY: nothing is read or written.
            #[allow(unsafe_code)]
            let list = unsafe { list_between(&dsts, &offsets, begin)? };
            let down = self.explain_lists(&list, &srcs, transform, None)?;
            let up = self.explain_lists(&dsts, &list, &AnyTransform::default(), None)?;
            calls.push(Explain { bytes_written: 0, ..down });
            calls.push(Explain { bytes_read: 0, ..up });
        }
        Ok(Explain::for_calls(calls))
    }

    /// Moves pairs of one device, on the engine's own stream: behind what their producers have enqueued there, and before what
    /// these enqueue later. `device` `None`: pairs without a side on one.
    ///
    /// # Safety
    /// As of [`Engine::copy_lists`].
    #[allow(unsafe_code)]
    unsafe fn copy_part(
        &self,
        dsts: &SampleList<'_>,
        srcs: &SampleList<'_>,
        device: Option<u32>,
        options: &MoveOptions,
    ) -> Result<()> {
        let transform = options.transform.clone();
        let mut part_options = MoveOptions { transform, ..MoveOptions::default() };
        let executor = device.map(|ordinal| self.executor(ordinal)).transpose()?;
        if let Some(executor) = &executor {
            part_options.run =
                options.run.for_part().producers(producers_on(executor, &options.run)?);
            part_options.out_owners.clone_from(&options.out_owners);
        }
        let producers = part_options.run.producers.clone();
        // SAFETY: the caller's promise.
        unsafe { self.copy_lists(dsts, srcs, part_options)? };
        let Some(executor) = executor else { return Ok(()) };
        let stream = executor.stream()?;
        producers.iter().try_for_each(|&producer| executor.order(&[stream], producer))
    }
}

/// The producers whose streams are of an executor's device.
fn producers_on(executor: &Executor, options: &RunOptions) -> Result<Vec<Stream>> {
    let mut producers = Vec::new();
    for &producer in &options.producers {
        if executor.has_stream(producer)? {
            producers.push(producer);
        }
    }
    Ok(producers)
}

/// The pairs of each call.
struct Calls {
    /// Pairs with one device between them, or none, by its ordinal.
    of_one: BTreeMap<Option<u32>, Vec<i64>>,
    /// Pairs from one device to another, by the ordinals of their destinations and sources.
    between: BTreeMap<(u32, u32), Vec<i64>>,
    ordinals: BTreeSet<u32>,
}

impl Calls {
    /// The pairs by the devices of their sides.
    fn new(dsts: &SampleList<'_>, srcs: &SampleList<'_>) -> Calls {
        let (mut of_one, mut between): (BTreeMap<_, Vec<i64>>, BTreeMap<_, Vec<i64>>) =
            Default::default();
        let mut ordinals = BTreeSet::new();
        for pair in 0..dsts.len() {
            let (to, from) = (ordinal_in(dsts, pair), ordinal_in(srcs, pair));
            ordinals.extend(to.into_iter().chain(from));
            let pairs = match (to, from) {
                (Some(to), Some(from)) if to != from => between.entry((to, from)).or_default(),
                _ => of_one.entry(to.or(from)).or_default(),
            };
            pairs.push(pair as i64);
        }
        Calls { of_one, between, ordinals }
    }
}

/// Cuts pairs into runs of at most [`MOST_ACROSS_BYTES`] bytes together, or of one pair.
fn parts_of<'p>(dsts: &SampleList<'_>, pairs: &'p [i64]) -> Vec<&'p [i64]> {
    let (mut parts, mut rest) = (Vec::new(), pairs);
    while !rest.is_empty() {
        let mut bytes = 0u64;
        let fits = |&&pair: &&i64| {
            bytes = bytes.saturating_add(bytes_at(dsts, pair));
            bytes <= MOST_ACROSS_BYTES
        };
        let (part, others) = rest.split_at(rest.iter().take_while(fits).count().max(1));
        parts.push(part);
        rest = others;
    }
    parts
}

/// The offset of each pair in memory in between, in bytes, and the bytes of that memory.
fn places_between(dsts: &SampleList<'_>) -> Result<(Vec<u64>, u64)> {
    let mut places = Places::new(ALIGN);
    let too_large = || Error::too_large("the pairs are beyond 64 bits together".to_owned());
    let place = |pair| places.place(bytes_at(dsts, pair)).ok_or_else(too_large);
    let offsets = (0..dsts.len() as i64).map(place).collect::<Result<Vec<u64>>>()?;
    Ok((offsets, places.end()))
}

/// Tensors of the destinations' dtypes and shapes, row-major in page-locked memory.
///
/// # Safety
/// The memory from `begin` to the end of the last place may be written to for as long as the list is used.
#[allow(unsafe_code)]
unsafe fn list_between<'l>(
    dsts: &SampleList<'_>,
    offsets: &[u64],
    begin: *const u8,
) -> Result<SampleList<'l>> {
    debug_assert_eq!(offsets.len(), dsts.len());
    let mut list = SampleList::new();
    list.reserve(dsts.len())?;
    for (pair, &offset) in offsets.iter().enumerate() {
        let meta = dsts.meta(pair);
        let data = begin.wrapping_add(offset as usize);
        // SAFETY: within the caller's memory, of which nothing is read before it is written.
        unsafe { list.push(data, meta.dtype, Device::Pinned, meta.layout.shape(), None)? };
    }
    Ok(list)
}

/// The CUDA device that a tensor is on; `None` on the host.
fn ordinal_in(list: &SampleList<'_>, pair: usize) -> Option<u32> {
    list.meta(pair).device.ordinal()
}

/// Bytes of a tensor without gaps.
fn bytes_at(list: &SampleList<'_>, pair: i64) -> u64 {
    let meta = list.meta(pair as usize);
    bytes_of(meta.dtype, meta.layout.shape())
}
