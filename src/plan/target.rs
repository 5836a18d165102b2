//! [`Target`]: memory of the caller's that a batch is assembled into.

use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crate::collate::Collate;
use crate::plan::batch_shape::BatchShape;
use crate::samples::SampleList;
use crate::tensor::{
    overlap, DType, Device, Element, Error, Footprint, Hint, Layout, Mismatch, Owner, Result,
    Tensor,
};

/// Memory to write to, borrowed for as long as the call takes.
#[derive(Debug)]
pub struct Target<'t> {
    pub(crate) data: *mut u8,
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
    pub(crate) device: Device,
    /// The owner of memory on a device; windrow's own blocks record the work on them.
    pub(crate) owner: Option<Owner>,
    /// The memory for the scales of a batch that is quantised. Shared, so that a target is given on and dropped in line: a box of its
    /// own kind would take a call each.
    pub(crate) scales: Option<Rc<Target<'t>>>,
    /// Whether the memory is a slice of Rust's `bool`: see [`BoolSlices`].
    pub(crate) is_bools: bool,
    /// Set while a run writes the memory and that for scales: plans of one target may run on several threads.
    in_use: AtomicBool,
    memory: PhantomData<&'t mut [u8]>,
}

/// One run's use of a target, which keeps other runs away until it is dropped.
#[derive(Debug)]
pub(crate) struct InUse<'t>(&'t AtomicBool);

impl<'t> InUse<'t> {
    /// Marks a target as in use.
    ///
    /// # Errors
    /// [`Error::Layout`] if another run uses it.
    pub fn new(in_use: &'t AtomicBool) -> Result<InUse<'t>> {
        if in_use.swap(true, Ordering::Acquire) {
            let (expected, got) = ("memory that no other run uses", "memory in use");
            return Err(Mismatch::new(None, expected, got).into_error(Error::Layout));
        }
        Ok(InUse(in_use))
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<'t> Target<'t> {
    /// A row-major output of `shape` over the whole slice.
    ///
    /// # Errors
    /// [`Error::Shape`] if the shape does not have as many elements as the slice; as [`Layout::try_new`] for an impossible
    /// shape.
    ///
    /// ```
    /// let mut memory = [0f32; 6];
    /// let target = windrow::plan::Target::from_slice(&mut memory, &[2, 3])?;
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn from_slice<T: Element>(data: &'t mut [T], shape: &[i64]) -> Result<Target<'t>> {
        let layout = Layout::compact(T::DTYPE, shape)?;
        if layout.numel() as usize != data.len() {
            let got = format!("a slice of {} elements", data.len());
            return Err(Mismatch::new(None, shape, got).into_error(Error::Shape));
        }
        let target = Target::at(data.as_mut_ptr().cast(), T::DTYPE, Device::Cpu, layout);
        Ok(Target { is_bools: T::DTYPE == DType::Bool, ..target })
    }

    /// A target that is no slice, without an owner and scales; the caller vouches for the memory.
    fn at(data: *mut u8, dtype: DType, device: Device, layout: Layout) -> Target<'t> {
        let (owner, scales, is_bools, in_use) = (None, None, false, AtomicBool::new(false));
        Target { data, dtype, layout, device, owner, scales, is_bools, in_use, memory: PhantomData }
    }

    /// An output at a raw address.
    ///
    /// # Safety
    /// Every element that `layout` reaches from `data` in the memory of `device` may be written to
    /// during `'t`, and nothing else reads or writes it meanwhile. On a CUDA device that lasts until
    /// the work enqueued is done.
    ///
    /// ```
    /// use windrow::plan::Target;
    /// use windrow::{Collate, DType, Device, Engine, Layout};
    /// let mut memory = [0i32; 4];
    /// let layout = Layout::compact(DType::I32, &[2, 2])?;
    /// // SAFETY: the array has the four elements, and nothing else uses it before the call ends.
    /// let mut target = unsafe { Target::from_raw_parts(memory.as_mut_ptr().cast(), DType::I32, Device::Cpu, layout) };
    /// Engine::host().assemble_into(&[[1, 2], [3, 4]], &Collate::stack(), &mut target)?;
    /// assert_eq!(memory, [1, 2, 3, 4]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn from_raw_parts(
        data: *mut u8,
        dtype: DType,
        device: Device,
        layout: Layout,
    ) -> Target<'t> {
        Target::at(data, dtype, device, layout)
    }

    /// The memory of a tensor that [`check_writable`] finds no fault with.
    pub(crate) fn over(tensor: &'t mut Tensor) -> Target<'t> {
        let (data, layout) = (tensor.data_ptr(), tensor.layout().clone());
        let target = Target::at(data, tensor.dtype(), tensor.device(), layout);
        target.owned_by(tensor.owner())
    }

    /// Names the owner of the memory, which the target keeps if the memory is on a CUDA device,
    /// else not. If windrow allocated that memory, the work runs after all work on streams to which
    /// the memory was handed ([`Tensor::ready_on`]), and the memory is reused or freed only after
    /// this work.
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Target<'t> {
        self.owner = self.device.is_cuda().then(|| Arc::clone(owner));
        self
    }

    /// Names the memory that the scales of a quantised batch are written to ([`Quantize`](crate::Quantize)); without it the
    /// engine takes some from its pool.
    #[must_use]
    pub fn with_scales(mut self, scales: Target<'t>) -> Target<'t> {
        self.scales = Some(Rc::new(scales));
        self
    }

    /// The mark of a run that writes the target; `None` if there is nothing to write.
    pub(crate) fn in_use(&self) -> Option<&AtomicBool> {
        self.parts().any(|part| part.layout.numel() > 0).then_some(&self.in_use)
    }

    /// The target, and the one of its scales if it has any.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Target<'t>> {
        std::iter::once(self).chain(self.scales.as_deref())
    }

    /// The memory that the target's own elements cover.
    fn footprint(&self) -> Footprint<'_> {
        Footprint::new(self.data, &self.layout, self.dtype)
    }
}

/// The addresses and lengths of slices of `bool` that a run writes. When it ends, with an error too, each element is 0 or 1, as Rust
/// requires: samples may have other bytes, which are moved as they are.
pub(crate) struct BoolSlices(Vec<(*mut u8, usize)>);

impl BoolSlices {
    /// Those among memory that a run writes, each with its layout and whether it is such a slice.
    pub fn of<'l>(
        written: impl Iterator<Item = (Option<*mut u8>, &'l Layout, bool)>,
    ) -> BoolSlices {
        let slices = written.filter(|&(.., is_bools)| is_bools);
        BoolSlices(
            slices.filter_map(|(data, layout, _)| Some((data?, layout.numel() as usize))).collect(),
        )
    }
}

impl Drop for BoolSlices {
    fn drop(&mut self) {
        for &(data, len) in &self.0 {
            // SAFETY: the bytes of a slice that the target of the run borrows, which nothing else writes any more.
            #[allow(unsafe_code)]
            let bytes = unsafe { std::slice::from_raw_parts_mut(data, len) };
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
    }
}

/// One leaf of a tree of samples: its samples, its options and perhaps its output.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'s, 'a> {
    /// The samples.
    pub samples: &'s SampleList<'a>,
    /// The options.
    pub collate: &'s Collate,
    /// The path of the leaf in the tree; empty for a plain list.
    pub path: &'s str,
    /// The memory to write to; without it the engine takes some from its pool.
    pub out: Option<&'s Target<'s>>,
}

/// An output of [`crate::Engine::assemble_into`]: a [`Target`], a [`Tensor`] or an earlier [`Batch`](crate::Batch).
pub trait AsTarget {
    /// The memory as a target.
    ///
    /// # Errors
    /// [`Error::Layout`] if it is read-only or shared.
    fn as_target(&mut self) -> Result<Target<'_>>;
}

impl AsTarget for Target<'_> {
    #[inline]
    fn as_target(&mut self) -> Result<Target<'_>> {
        Ok(Target {
            owner: self.owner.clone(),
            scales: self.scales.clone(),
            is_bools: self.is_bools,
            ..Target::at(self.data, self.dtype, self.device, self.layout.clone())
        })
    }
}

/// The data of a batch that is quantised, and its scales.
impl<D: AsTarget, S: AsTarget> AsTarget for (D, S) {
    fn as_target(&mut self) -> Result<Target<'_>> {
        let scales = self.1.as_target().map_err(|error| error.about(SCALES))?;
        Ok(self.0.as_target()?.with_scales(scales))
    }
}

impl AsTarget for Tensor {
    fn as_target(&mut self) -> Result<Target<'_>> {
        check_writable(&mut [&mut *self])?;
        Ok(Target::over(self))
    }
}

/// Checks that the first tensor, which there is, is writable memory that nothing holds but these tensors; else [`Error::Layout`].
pub(crate) fn check_writable(tensors: &mut [&mut Tensor]) -> Result<()> {
    let refuse = |expected: &str, got: &str| {
        Err(Mismatch::new(None, expected, got).into_error(Error::Layout))
    };
    if tensors[0].is_read_only() {
        return refuse("writable memory", "read-only memory");
    }
    match Tensor::is_first_unshared(tensors) {
        true => Ok(()),
        false => refuse("memory that nothing else holds", "shared memory"),
    }
}

/// The name of the memory for scales in an error.
const SCALES: &str = "out of the scales";

/// Checks that an output, and its memory for scales, fits a batch of this shape and is disjoint from all samples; not from each
/// other: see [`check_disjoint`]. `sharing`: the first sample that shares a byte with what is written.
///
/// # Errors
/// [`Error::Shape`], [`Error::Device`], [`Error::DType`]; [`Error::Layout`] for foreign byte order and shared bytes;
/// [`Error::Argument`] for scales of a batch that finds none.
pub(crate) fn check_target(
    out: &Target<'_>,
    batch_shape: &BatchShape,
    mut sharing: impl FnMut(&Footprint<'_>) -> Option<usize>,
) -> Result<()> {
    let casts = batch_shape.found_scales().is_none();
    let BatchShape { dtype, shape, device, .. } = batch_shape;
    check_memory(out, *dtype, casts, shape, *device, &mut sharing)?;
    let Some(scales) = &out.scales else { return Ok(()) };
    let Some((quantize, shape)) = batch_shape.found_scales() else {
        let text = "out has memory for scales, which only a Quantize gives";
        return Err(Error::argument(text.to_owned()));
    };
    check_memory(scales, quantize.scale_dtype, false, shape, *device, &mut sharing).map_err(
        |error| match error.sample() {
            // A sample is over the scales: that of the data was checked before.
            Some(index) => not_disjoint(Some(index), SCALES),
            None => error.about(SCALES),
        },
    )
}

/// Checks that memory is of this dtype (`casts`: the call could cast to another), shape and device, its elements disjoint from each
/// other and from all samples; else [`Error::Shape`], [`Error::Device`], [`Error::DType`] or [`Error::Layout`].
#[inline]
fn check_memory(
    out: &Target<'_>,
    dtype: DType,
    casts: bool,
    shape: &[i64],
    device: Device,
    sharing: impl FnOnce(&Footprint<'_>) -> Option<usize>,
) -> Result<()> {
    if out.layout.shape() != shape {
        return Err(Mismatch::new(None, shape, out.layout.shape()).into_error(Error::Shape));
    }
    if out.device != device {
        let (expected, got) = (device.to_string(), out.device.to_string());
        let mismatch = Mismatch::new(None, expected, got).with_hint(Hint::BatchDevice);
        return Err(mismatch.into_error(Error::Device));
    }
    if out.dtype != out.dtype.native() && out.dtype.native() == dtype {
        let mismatch = Mismatch::new(None, "native byte order", out.dtype);
        return Err(mismatch.into_error(Error::Layout));
    }
    if out.dtype != dtype {
        let mut mismatch = Mismatch::new(None, dtype, out.dtype);
        let casts = casts && dtype.is_arithmetic() && out.dtype.is_arithmetic();
        mismatch.hint = casts.then_some(Hint::Cast);
        return Err(mismatch.into_error(Error::DType));
    }
    let written = out.footprint();
    if written.shares_with_itself() {
        let got = format!("strides {:?} for shape {:?}", out.layout.strides(), out.layout.shape());
        return Err(Mismatch::new(None, "memory whose elements do not overlap", got)
            .into_error(Error::Layout));
    }
    match sharing(&written) {
        Some(index) => Err(not_disjoint(Some(index), "out")),
        None => Ok(()),
    }
}

/// Leaves of one plan are written at the same time: no output or scales may be over other ones, of the same leaf too, or over
/// the samples of another leaf. The error is [`Error::Layout`].
pub(crate) fn check_disjoint(leaves: &[Leaf<'_, '_>]) -> Result<()> {
    let outs: Vec<(usize, Footprint<'_>)> = leaves
        .iter()
        .enumerate()
        .filter_map(|(leaf, Leaf { out, .. })| out.map(|out| (leaf, out)))
        .flat_map(|(leaf, out)| out.parts().map(move |part| (leaf, part.footprint())))
        .collect();
    if let Some((first, second)) = sharing_outputs(&outs) {
        let whose = output_at(leaves[first].path);
        return Err(not_disjoint(None, &whose).at_path(leaves[second].path));
    }
    let spans = WrittenSpans::new(outs.iter().map(|(_, out)| out.span().clone()).collect());
    for (leaf, Leaf { samples, path, .. }) in leaves.iter().enumerate() {
        let others = || outs.iter().filter(|(other, _)| *other != leaf);
        if others().next().is_none() || !samples.footprints().any(|of| spans.hits(of.span())) {
            continue;
        }
        for (other, written) in others() {
            if let Some(index) = samples.sharing(written) {
                let whose = output_at(leaves[*other].path);
                return Err(not_disjoint(Some(index), &whose).at_path(path));
            }
        }
    }
    Ok(())
}

/// Two leaves whose outputs share a byte, or one twice, for its data and scales: among all such pairs that with the first second
/// leaf. Outputs are gone through by where they begin, beside those that have not ended: few are alive at once, but for columns
/// of one table.
fn sharing_outputs(outs: &[(usize, Footprint<'_>)]) -> Option<(usize, usize)> {
    let mut order: Vec<_> = outs.iter().filter(|(_, out)| !out.span().is_empty()).collect();
    order.sort_by_key(|(_, out)| out.span().start);
    let (mut alive, mut found): (Vec<&(usize, Footprint<'_>)>, _) = (Vec::new(), None);
    for out in order {
        alive.retain(|other| other.1.span().end > out.1.span().start);
        for other in alive.iter().filter(|other| out.1.shares_with(&other.1)) {
            let pair = (out.0.max(other.0), out.0.min(other.0));
            found = Some(found.map_or(pair, |found: (usize, usize)| found.min(pair)));
        }
        alive.push(out);
    }
    found.map(|(second, first)| (first, second))
}

/// The spans of all written memory, so that a sample is looked up once and not in each output.
struct WrittenSpans(Vec<Range<i128>>);

impl WrittenSpans {
    /// The union of spans, as ascending ranges that do not touch.
    fn new(mut spans: Vec<Range<i128>>) -> WrittenSpans {
        spans.retain(|span| !span.is_empty());
        spans.sort_unstable_by_key(|span| span.start);
        spans.dedup_by(|next, last| {
            let joins = next.start <= last.end;
            if joins {
                last.end = last.end.max(next.end);
            }
            joins
        });
        WrittenSpans(spans)
    }

    /// Whether one of these bytes may be written: gaps within a span count as written.
    fn hits(&self, bytes: &Range<i128>) -> bool {
        let at = self.0.partition_point(|span| span.end <= bytes.start);
        self.0.get(at).is_some_and(|span| overlap(span, bytes))
    }
}

/// The name of a leaf's output in an error.
fn output_at(path: &str) -> String {
    if path.is_empty() {
        "out".to_owned()
    } else {
        format!("the output at {path:?}")
    }
}

/// The error of sample `index`, or of an output if there is none, that overlaps the memory of `output`.
fn not_disjoint(index: Option<usize>, output: &str) -> Error {
    let (expected, got) =
        (format!("memory apart from {output}"), format!("memory that overlaps {output}"));
    Mismatch::new(index, expected, got).into_error(Error::Layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target of `rows` rows of one pitch, at an address that is never read.
    fn target(start: usize, rows: i64, row: i64) -> Target<'static> {
        let layout = Layout::try_new(DType::U8, &[rows, row], Some(&[10, 1])).unwrap();
        let data = std::ptr::without_provenance_mut(1000 + start);
        Target::at(data, DType::U8, Device::Cpu, layout)
    }

    #[test]
    fn one_run_at_a_time_uses_a_target() {
        let target = target(0, 1, 1);
        let first = InUse::new(&target.in_use).unwrap();
        let error = InUse::new(&target.in_use).unwrap_err();
        assert_eq!(
            error.to_string(),
            "out: expected memory that no other run uses, got memory in use"
        );
        drop(first);
        InUse::new(&target.in_use).unwrap();
    }

    #[test]
    fn outputs_that_share_bytes_are_found() {
        let (mut seed, mut outcomes) = (7u64, [0, 0]);
        let mut below = |end: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % end
        };
        for _ in 0..2000 {
            let spans: Vec<_> = (0..2 + below(5))
                .map(|_| (below(90) as usize, 1 + below(3) as i64, below(5) as i64))
                .collect();
            let outs: Vec<_> =
                spans.iter().map(|&(start, rows, row)| target(start, rows, row)).collect();
            let outs: Vec<_> =
                outs.iter().enumerate().map(|(leaf, out)| (leaf, out.footprint())).collect();
            let pairs =
                (0..outs.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
            let naive = pairs
                .into_iter()
                .find(|&(first, second)| outs[first].1.shares_with(&outs[second].1));
            assert_eq!(sharing_outputs(&outs), naive, "{spans:?}");
            outcomes[usize::from(naive.is_some())] += 1;
        }
        assert!(outcomes.iter().all(|&count| count > 100), "{outcomes:?}");
    }

    #[test]
    fn what_is_written_is_found() {
        let spans = [4..8, 20..24, 8..10, 30..40, 12..12, 32..35, 21..23];
        let written = WrittenSpans::new(spans.to_vec());
        assert_eq!(written.0.len(), 3);
        for begin in 0..45 {
            for end in begin..46 {
                let any = spans.iter().any(|span| overlap(span, &(begin..end)));
                assert_eq!(written.hits(&(begin..end)), any, "{begin}..{end}");
            }
        }
        assert!(!WrittenSpans::new(Vec::new()).hits(&(0..1)));
    }
}
