//! [`ChosenMove`]: pairs of which a device chooses one side or both.
//!
//! The chosen samples are not known here: all samples of a list have to be alike, and memory that they share is not looked for.

use crate::collate::{AnyTransform, Collate, Quantize};
use crate::plan::batch_shape::BatchShape;
use crate::plan::disjoint::check_pairs_disjoint;
use crate::plan::loops::{Dim, LoopNest};
use crate::plan::move_scales::{check_number, check_scales, check_scales_disjoint};
use crate::plan::pair_classes::PairClasses;
use crate::samples::{SampleList, TensorMeta};
use crate::tensor::{Device, Error, Hint, Layout, Mismatch, MoveSide, Result, Tensor};

/// Pairs of which a device chooses some, all of them alike.
#[derive(Debug)]
pub(crate) struct ChosenMove<'m> {
    pub dsts: &'m SampleList<'m>,
    pub srcs: &'m SampleList<'m>,
    /// Row-major copies of the sources in the order of pairs, which are read in their place.
    pub gathered: Option<&'m Tensor>,
    /// Bytes of an element.
    pub size: u64,
    dims: Vec<Dim>,
}

impl<'m> ChosenMove<'m> {
    /// The pairs, which [`needs_gather`] has checked; `gathered` as of the field.
    ///
    /// # Errors
    /// As [`Layout::compact`].
    pub fn new(
        dsts: &'m SampleList<'m>,
        srcs: &'m SampleList<'m>,
        gathered: Option<&'m Tensor>,
    ) -> Result<ChosenMove<'m>> {
        let (dst, src) = (first_of(dsts), first_of(srcs));
        let compact = Layout::compact(dst.dtype, dst.layout.shape())?;
        let src = match gathered {
            Some(_) => &TensorMeta { layout: compact, ..dst.clone() },
            None => src,
        };
        let mut dims = Vec::new();
        LoopNest::for_pair(src, dst, &mut dims);
        Ok(ChosenMove { dsts, srcs, gathered, size: dst.dtype.size() as u64, dims })
    }

    /// The loops around rows of adjacent bytes, and the bytes of a row: one element if elements have gaps.
    pub fn rows(&self) -> (&[Dim], u64) {
        let size = self.size as i64;
        match &self.dims[..] {
            [outer @ .., row]
                if row.extent <= 1 || (row.src_stride, row.dst_stride) == (size, size) =>
            {
                (outer, row.extent.saturating_mul(self.size))
            }
            all => (all, self.size),
        }
    }
}

/// Whether a device chooses samples of a side.
pub(crate) fn is_chosen(dsts: &SampleList<'_>, srcs: &SampleList<'_>) -> bool {
    dsts.selection().is_some() || srcs.selection().is_some()
}

/// Metadata of the first sample in a list, or in the list that a device chooses from. That list has samples.
pub(crate) fn first_of<'l>(list: &'l SampleList<'_>) -> &'l TensorMeta {
    known_of(list).meta(0)
}

/// The list, or one sample of each kind in the list that a device chooses from.
fn known_of<'l, 'a>(list: &'l SampleList<'a>) -> &'l SampleList<'a> {
    list.selection().map_or(list, |selection| &selection.list.representatives)
}

/// Whether all samples of a list, or of the list that a device chooses from, have one dtype, shape and strides.
fn are_alike(list: &SampleList<'_>) -> Result<bool> {
    Ok(match list.selection() {
        Some(selection) => selection.list.representatives.len() == 1,
        None => list.representatives()?.0.len() == 1,
    })
}

/// Checks what of a move is known without the chosen samples, and says whether the sources have to be gathered first: those with
/// a transform, of another dtype, of several layouts, or in pageable memory. Both lists have samples.
///
/// # Errors
/// [`Error::Argument`] for lists of unequal length, or for destinations that are not all alike; [`Error::Device`] for scales that
/// are given, or sides on two devices; of pairs as
/// [`Moves::new`](super::moves::Moves::new), but for what samples share that a device chooses.
pub(crate) fn needs_gather(
    dsts: &SampleList<'_>,
    srcs: &SampleList<'_>,
    transform: &AnyTransform,
) -> Result<bool> {
    if let AnyTransform::Dequantize(_) = transform {
        let device = [dsts, srcs]
            .into_iter()
            .find_map(SampleList::selection)
            .map_or_else(|| first_of(dsts).device, |selection| selection.indices.device());
        let found = Mismatch::new(None, "ids on the host", format!("ids on {device}"));
        let hint = Hint::Text(
            "a Dequantize of a move needs pairs that the host knows: take by ids on the host",
        );
        let error = found.with_hint(hint).into_error(Error::Device);
        return Err(error.at_side(MoveSide::Destination, 0));
    }
    let (dsts_are_alike, srcs_are_alike) = (are_alike(dsts)?, are_alike(srcs)?);
    if dsts.len() != srcs.len() {
        let text = format!("{} destinations for {} sources", dsts.len(), srcs.len());
        return Err(Error::argument(text));
    }
    if !dsts_are_alike {
        return Err(Error::argument(
            "ids on a device: which pairs fit depends on them, so that destinations have to be of one shape, dtype and strides; \
             take by ids on the host instead"
                .to_owned(),
        ));
    }
    let all_srcs = known_of(srcs);
    let one_dst = known_of(dsts).take([0])?;
    let all_dsts = one_dst.take(std::iter::repeat_n(0, all_srcs.len()))?;
    let given = Some(transform).filter(|transform| **transform != AnyTransform::default());
    PairClasses::new(&all_dsts, all_srcs).check(all_srcs, given)?;
    if dsts.selection().is_none() {
        check_pairs_disjoint(dsts, &SampleList::new(), |_| false)?;
    }
    let (dst, src) = (first_of(dsts), first_of(srcs));
    if src.device.is_cuda() && dst.device.is_cuda() && src.device != dst.device {
        let found = Mismatch::new(None, src.device.to_string(), dst.device.to_string());
        let hint =
            Hint::Text("ids on a device are of one device: copy the sources to that one first");
        let error = found.with_hint(hint).into_error(Error::Device);
        return Err(error.at_side(MoveSide::Destination, 0));
    }
    Ok(given.is_some() || !srcs_are_alike || src.dtype != dst.dtype || src.device == Device::Cpu)
}

/// Whether a device leaves out the same entries of both lists, if it chooses some of them: neither is chosen, or both are by the
/// same memory of ids and from as many tensors.
fn have_one_choice(a: &SampleList<'_>, b: &SampleList<'_>) -> bool {
    let choice = |list: &SampleList<'_>| {
        list.selection().map(|selection| {
            let ids = &selection.indices;
            (ids.data_ptr(), ids.dtype(), ids.strides().to_vec(), selection.list.samples.len())
        })
    };
    choice(a) == choice(b)
}

/// Checks the destinations of the scales of pairs that [`needs_gather`] has checked, all of them alike. Both lists have samples.
///
/// # Errors
/// [`Error::Argument`] for another number, for other ids than those of the destinations, for some that are not all alike, and for
/// pairs without elements; of each as [`Moves::new`](super::moves::Moves::new), but for what samples share that a device chooses.
pub(crate) fn check_chosen_scales(
    [dsts, srcs, scales]: [&SampleList<'_>; 3],
    quantize: &Quantize,
) -> Result<()> {
    check_number(scales, dsts)?;
    let (dst, meta) = (first_of(dsts), first_of(scales));
    if !are_alike(scales)? || dst.layout.numel() == 0 {
        let text = "ids on a device: scales_out has to be of one shape and strides, and pairs have to have elements; take by ids on \
                    the host instead";
        return Err(Error::argument(text.to_owned()));
    }
    let one = BatchShape::new(&known_of(srcs).take([0])?, &Collate::stack().transform(*quantize))?;
    let shape = one.found_scales().map_or(&[][..], |(_, shape)| &shape[1..]);
    let at = |error: Error| error.at_side(MoveSide::Scales, 0);
    check_scales(meta, dst, shape, quantize).map_err(at)?;
    if dst.device != Device::Cpu && meta.device != dst.device {
        let (expected, got) = (dst.device.to_string(), meta.device.to_string());
        return Err(at(Error::Device(Box::new(Mismatch::new(None, expected, got)))));
    }
    if !have_one_choice(dsts, scales) {
        let text = "ids on a device: destinations and scales_out have to be taken by the same ids, from lists of as many tensors, so \
                    that a pair is left out whole";
        return Err(Error::argument(text.to_owned()));
    }
    match dsts.selection() {
        None => check_scales_disjoint(dsts, &SampleList::new(), scales),
        Some(_) => Ok(()),
    }
}
