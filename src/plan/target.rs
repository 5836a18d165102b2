//! [`Target`]: memory of the caller's that a batch is assembled into.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use crate::collate::Collate;
use crate::plan::batch_shape::BatchShape;
use crate::samples::SampleList;
use crate::tensor::{DType, Device, Element, Error, Layout, Mismatch, Owner, Result, Tensor};

/// Memory to write to, borrowed for as long as the call takes.
#[derive(Debug)]
pub struct Target<'t> {
    pub(crate) data: *mut u8,
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
    pub(crate) device: Device,
    /// The owner of memory on a device; windrow's own blocks record the work on them.
    pub(crate) owner: Option<Owner>,
    memory: PhantomData<&'t mut [u8]>,
}

impl<'t> Target<'t> {
    /// A row-major output of `shape` over the whole slice.
    ///
    /// # Errors
    /// [`Error::Shape`] if the shape does not have as many elements as the slice; as [`Layout::try_new`] for an impossible
    /// shape.
    pub fn from_slice<T: Element>(data: &'t mut [T], shape: &[i64]) -> Result<Target<'t>> {
        let layout = Layout::compact(T::DTYPE, shape)?;
        if layout.numel() as usize != data.len() {
            let got = format!("a slice of {} elements", data.len());
            return Err(Error::Shape(Box::new(Mismatch::new(None, shape, got))));
        }
        let (data, dtype, device) = (data.as_mut_ptr().cast(), T::DTYPE, Device::Cpu);
        Ok(Target { data, dtype, layout, device, owner: None, memory: PhantomData })
    }

    /// An output at a raw address.
    ///
    /// # Safety
    /// Every element that `layout` reaches from `data` in the memory of `device` may be written to
    /// during `'t`, and nothing else reads or writes it meanwhile. On a CUDA device that lasts until
    /// the work enqueued is done.
    #[allow(unsafe_code)]
    pub unsafe fn from_raw_parts(
        data: *mut u8,
        dtype: DType,
        device: Device,
        layout: Layout,
    ) -> Target<'t> {
        Target { data, dtype, layout, device, owner: None, memory: PhantomData }
    }

    /// Names the owner of the memory. If it is device memory that windrow allocated, the work runs after all work on streams
    /// to which the memory was handed ([`Tensor::ready_on`]), and the memory is reused or freed only after this work.
    #[must_use]
    pub fn owned_by(mut self, owner: &Owner) -> Target<'t> {
        self.owner = matches!(self.device, Device::Cuda(_)).then(|| Arc::clone(owner));
        self
    }

    /// Whether it is memory of the host for a tensor of this dtype and layout, a row-major one.
    pub(crate) fn is_dense(&self, dtype: DType, layout: &Layout) -> bool {
        let is_alike = self.dtype == dtype && self.layout.shape() == layout.shape();
        is_alike && self.device == Device::Cpu && self.layout.is_compact()
    }

    /// The addresses it reaches.
    fn span(&self) -> Range<i128> {
        absolute(self.data, &self.layout, self.dtype)
    }
}

/// One leaf of a tree of samples: its samples, its options and perhaps its output.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'s, 'a> {
    /// The samples.
    pub samples: &'s SampleList<'a>,
    /// The options.
    pub collate: &'s Collate,
    /// Where the leaf is in the tree; empty for a plain list.
    pub path: &'s str,
    /// The memory to write to; without it the engine takes some from its pool.
    pub out: Option<&'s Target<'s>>,
}

/// An output of [`crate::Engine::assemble_into`]: a [`Target`], a [`Tensor`] or an earlier [`Batch`](crate::Batch).
pub trait AsTarget {
    /// The memory.
    ///
    /// # Errors
    /// [`Error::Layout`] if it is read-only or shared.
    fn as_target(&mut self) -> Result<Target<'_>>;
}

impl AsTarget for Target<'_> {
    fn as_target(&mut self) -> Result<Target<'_>> {
        Ok(Target {
            data: self.data,
            dtype: self.dtype,
            layout: self.layout.clone(),
            device: self.device,
            owner: self.owner.clone(),
            memory: PhantomData,
        })
    }
}

impl AsTarget for Tensor {
    fn as_target(&mut self) -> Result<Target<'_>> {
        target_of(self, 1)
    }
}

/// A tensor's memory as a target. `own`: references to its owner that the caller has exclusively, the tensor's included.
///
/// # Errors
/// [`Error::Layout`] if the memory is read-only or there are other references.
pub(crate) fn target_of(tensor: &mut Tensor, own: usize) -> Result<Target<'_>> {
    let refuse = |expected: &str, got: &str| {
        Err(Error::Layout(Box::new(Mismatch::new(None, expected, got))))
    };
    if tensor.is_read_only() {
        return refuse("writable memory", "read-only memory");
    }
    if Arc::strong_count(tensor.owner()) + Arc::weak_count(tensor.owner()) != own {
        return refuse("memory that nothing else holds", "shared memory");
    }
    let (data, dtype, device) = (tensor.data_ptr(), tensor.dtype(), tensor.device());
    let layout = tensor.layout().clone();
    let target = Target { data, dtype, layout, device, owner: None, memory: PhantomData };
    Ok(target.owned_by(tensor.owner()))
}

pub(crate) fn check_target(
    out: &Target<'_>,
    batch_shape: &BatchShape,
    samples: &SampleList<'_>,
) -> Result<()> {
    if out.layout.shape() != &batch_shape.shape[..] {
        return Err(Error::Shape(Box::new(Mismatch::new(
            None,
            &batch_shape.shape[..],
            out.layout.shape(),
        ))));
    }
    if out.device != batch_shape.device {
        let (expected, got) = (batch_shape.device.to_string(), out.device.to_string());
        return Err(Error::Device(Box::new(Mismatch::new(None, expected, got))));
    }
    if out.dtype != batch_shape.dtype {
        return Err(Error::DType(Box::new(Mismatch::new(None, batch_shape.dtype, out.dtype))));
    }
    if elements_overlap(&out.layout) {
        let got = format!("strides {:?} for shape {:?}", out.layout.strides(), out.layout.shape());
        return Err(Error::Layout(Box::new(Mismatch::new(
            None,
            "elements with a place of their own",
            got,
        ))));
    }
    let own = out.span();
    match overlapping(samples, |other| overlap(&own, other)) {
        Some(index) => Err(not_apart(Some(index), "out")),
        None => Ok(()),
    }
}

/// Leaves of one plan are written at the same time: no output may be over another one, or over the
/// samples of another leaf.
pub(crate) fn check_apart(leaves: &[Leaf<'_, '_>]) -> Result<()> {
    let mut outs: Vec<(usize, &Target<'_>, Range<i128>)> = Vec::new();
    for (leaf, out) in leaves.iter().enumerate().filter_map(|(i, leaf)| Some((i, leaf.out?))) {
        let span = out.span();
        let shared =
            outs.iter().find(|(_, other, of)| overlap(&span, of) && !side_by_side(out, other));
        if let Some((other, ..)) = shared {
            return Err(not_apart(None, &output_at(leaves[*other].path)).at_path(leaves[leaf].path));
        }
        outs.push((leaf, out, span));
    }
    let written = WrittenSpans::new(outs.iter().map(|(.., span)| span.clone()).collect());
    for (leaf, Leaf { samples, path, .. }) in leaves.iter().enumerate() {
        let others = || outs.iter().filter(|(other, ..)| *other != leaf);
        if others().next().is_none() || overlapping(samples, |of| written.hits(of)).is_none() {
            continue;
        }
        for (other, _, span) in others() {
            if let Some(index) = overlapping(samples, |of| overlap(span, of)) {
                let whose = output_at(leaves[*other].path);
                return Err(not_apart(Some(index), &whose).at_path(path));
            }
        }
    }
    Ok(())
}

/// Where anything is written, so that a sample is looked up once and not in each output.
struct WrittenSpans(Vec<Range<i128>>);

impl WrittenSpans {
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

    fn hits(&self, bytes: &Range<i128>) -> bool {
        let at = self.0.partition_point(|span| span.end <= bytes.start);
        self.0.get(at).is_some_and(|span| overlap(span, bytes))
    }
}

fn output_at(path: &str) -> String {
    if path.is_empty() {
        "out".to_owned()
    } else {
        format!("the output at {path:?}")
    }
}

fn not_apart(index: Option<usize>, whose: &str) -> Error {
    let (expected, got) =
        (format!("memory apart from {whose}"), format!("memory that overlaps {whose}"));
    Error::Layout(Box::new(Mismatch::new(index, expected, got)))
}

/// The first sample whose bytes are among those.
fn overlapping(samples: &SampleList<'_>, hit: impl Fn(&Range<i128>) -> bool) -> Option<usize> {
    (0..samples.len()).find(|&index| {
        let meta = samples.meta(index);
        hit(&absolute(samples.address(index), &meta.layout, meta.dtype))
    })
}

fn overlap(one: &Range<i128>, other: &Range<i128>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

/// Whether two outputs are columns of one table: rows as far apart, and within a row different bytes.
fn side_by_side(one: &Target<'_>, other: &Target<'_>) -> bool {
    let row = |target: &Target<'_>| -> Option<(i128, Range<i128>)> {
        let (shape, strides) = (target.layout.shape(), target.layout.strides());
        let pitch = i128::from(*strides.first()?) * target.dtype.size() as i128;
        let row = Layout::try_new(target.dtype, &shape[1..], Some(&strides[1..])).ok()?;
        Some((pitch, absolute(target.data, &row, target.dtype)))
    };
    let (Some((pitch, a)), Some((other_pitch, b))) = (row(one), row(other)) else { return false };
    if pitch != other_pitch || pitch == 0 {
        return false;
    }
    // Where the second row begins, seen from the first, within the pitch.
    let pitch = pitch.abs();
    let ahead = (b.start - a.start).rem_euclid(pitch);
    a.end - a.start <= ahead && ahead + (b.end - b.start) <= pitch
}

fn absolute(data: *const u8, layout: &Layout, dtype: DType) -> Range<i128> {
    let span = layout.byte_span(dtype);
    let base = data.addr() as i128;
    base + i128::from(span.start)..base + i128::from(span.end)
}

/// Whether two indices may reach the same element: true unless every stride, taken by size, steps
/// over all that the smaller ones reach.
fn elements_overlap(layout: &Layout) -> bool {
    let mut dims: Vec<(u64, u64)> = layout
        .strides()
        .iter()
        .zip(layout.shape())
        .filter(|(_, &extent)| extent > 1)
        .map(|(stride, &extent)| (stride.unsigned_abs(), extent as u64))
        .collect();
    dims.sort_unstable();
    let mut reach = 0u64;
    layout.numel() > 0
        && dims.into_iter().any(|(stride, extent)| {
            let overlaps = stride <= reach;
            reach = reach.saturating_add((extent - 1).saturating_mul(stride));
            overlaps
        })
}

#[cfg(test)]
mod tests {
    use super::*;

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
