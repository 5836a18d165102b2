//! [`MoveScales`]: the scales of pairs, each found in a source and written to a place of its own, or given for it.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::collate::{AnyTransform, Quantize};
use crate::plan::disjoint::check_pairs_disjoint;
use crate::plan::loops::{Dim, LoopNest};
use crate::plan::output::{ElementOp, OutputPlan, Starts};
use crate::plan::pair_classes::{given_for, PairClasses};
use crate::plan::role::Role;
use crate::plan::scales_output::nest_of_scales;
use crate::plan::scaling::{check_given, read_scales, Groups};
use crate::samples::{SampleList, TensorMeta};
use crate::tensor::{
    bytes_of, try_vec, DType, Device, Dims, Error, ErrorValue, Footprint, Layout, Mismatch,
    MoveSide, Offsets, Result,
};

/// The scales of the pairs of one output.
#[derive(Debug, Default)]
pub(crate) struct MoveScales<'s> {
    /// The rule by which they are found, and where they are written.
    pub found: Option<(Quantize, OutputPlan<'s>)>,
    /// The scales that are given, pair after pair.
    pub given: Vec<f32>,
    /// The position in `given` of each pair's first scale.
    pub first: Vec<usize>,
}

/// The rule by which a move finds scales, and their destinations; `None` if it finds none.
///
/// # Errors
/// [`Error::Argument`] for destinations in a move that finds none, or none in one that does.
pub(crate) fn scales_to_find<'t, 'l, 'a>(
    transform: &'t AnyTransform,
    scales_out: Option<&'l SampleList<'a>>,
) -> Result<Option<(&'t Quantize, &'l SampleList<'a>)>> {
    let wrong = match (transform, scales_out) {
        (AnyTransform::Quantize(quantize), Some(scales)) => return Ok(Some((quantize, scales))),
        (AnyTransform::Quantize(_), None) => {
            "a Quantize of a move needs scales_out, to which its scales go"
        }
        (_, Some(_)) => "scales_out is for the scales of a Quantize, and there is none",
        (_, None) => return Ok(None),
    };
    Err(Error::argument(wrong.to_owned()))
}

/// Checks that there are as many destinations of scales as pairs, else [`Error::Argument`].
pub(super) fn check_number(scales: &SampleList<'_>, dsts: &SampleList<'_>) -> Result<()> {
    let (num_scales, pairs) = (scales.len(), dsts.len());
    match num_scales == pairs {
        true => Ok(()),
        false => Err(Error::argument(format!(
            "scales_out has {num_scales} destinations of scales for {pairs} pairs"
        ))),
    }
}

/// Checks the destinations of scales against the pairs, whose shapes have been found.
///
/// # Errors
/// [`Error::Argument`] for scales of a move that has none, the other way round, or of another number; [`Error::Shape`],
/// [`Error::DType`], [`Error::Device`] or [`Error::Layout`] for those that do not fit; [`Error::Overlap`].
pub(super) fn check_scales_out(
    dsts: &SampleList<'_>,
    srcs: &SampleList<'_>,
    all: &PairClasses<'_>,
    transform: &AnyTransform,
    scales: Option<&SampleList<'_>>,
) -> Result<()> {
    let Some((quantize, scales)) = scales_to_find(transform, scales)? else { return Ok(()) };
    scales.check_known()?;
    check_number(scales, dsts)?;
    scales.check_rows(0)?;
    for pair in 0..dsts.len() {
        let shape = scales_shape(all, pair);
        check_scales(scales.meta(pair), dsts.meta(pair), &shape, quantize)
            .map_err(|error| error.at_side(MoveSide::Scales, pair))?;
    }
    check_scales_disjoint(dsts, srcs, scales)
}

/// Checks the destination of the scales of a pair, which have this shape; errors as of [`check_scales_out`], without a number.
pub(super) fn check_scales(
    meta: &TensorMeta,
    dst: &TensorMeta,
    shape: &[i64],
    quantize: &Quantize,
) -> Result<()> {
    let refuse = |error: fn(Box<Mismatch>) -> Error, expected: ErrorValue, got: ErrorValue| {
        Err(error(Box::new(Mismatch::new(None, expected, got))))
    };
    if meta.layout.shape() != shape {
        return refuse(Error::Shape, shape.into(), meta.layout.shape().into());
    }
    if !meta.dtype.is_native() {
        return refuse(Error::Layout, "native byte order".into(), meta.dtype.into());
    }
    if meta.dtype != quantize.scale_dtype {
        return refuse(Error::DType, quantize.scale_dtype.into(), meta.dtype.into());
    }
    if meta.layout.numel() > 0 && !is_beside(meta, dst) {
        let expected = match dst.device {
            Device::Cuda(_) if dst.layout.numel() > 0 => {
                format!("{}, where the destination is", dst.device)
            }
            Device::Cuda(_) => "host memory for the scale of no elements".to_owned(),
            _ => "host memory, where the destination is".to_owned(),
        };
        return refuse(Error::Device, expected.into(), meta.device.to_string().into());
    }
    if Footprint::new(std::ptr::null(), &meta.layout, meta.dtype).shares_with_itself() {
        let got = format!("strides {:?} for shape {shape:?}", meta.layout.strides());
        return refuse(Error::Layout, "memory whose elements do not overlap".into(), got.into());
    }
    Ok(())
}

/// Checks that scales are disjoint from each other, from all destinations and from what is read.
///
/// # Errors
/// As [`check_pairs_disjoint`].
pub(super) fn check_scales_disjoint(
    dsts: &SampleList<'_>,
    srcs: &SampleList<'_>,
    scales: &SampleList<'_>,
) -> Result<()> {
    let mut written = dsts.clone();
    written.extend(scales)?;
    check_pairs_disjoint(&written, srcs, |_| false).map_err(|mut error| {
        if let Some(mismatch) = error.mismatch_mut() {
            if let Some(pair) = mismatch.index.filter(|&index| index >= dsts.len()) {
                let named = |value: &ErrorValue| named_scales(value.to_string(), dsts.len());
                (mismatch.expected, mismatch.got) =
                    (named(&mismatch.expected), named(&mismatch.got));
                (mismatch.index, mismatch.side) = (Some(pair - dsts.len()), Some(MoveSide::Scales));
            }
        }
        error
    })
}

/// The text with the name of scales that it calls a destination behind all destinations.
fn named_scales(text: String, num_dsts: usize) -> ErrorValue {
    let named = text.rsplit_once("destination ").and_then(|(words, number)| {
        let pair = number.parse::<usize>().ok()?.checked_sub(num_dsts)?;
        Some(format!("{words}{} {pair}", MoveSide::Scales))
    });
    ErrorValue::Text(named.unwrap_or(text))
}

/// Whether scales are where whoever writes the destination writes, too: on its device, else on the host. The host writes those of
/// no elements.
fn is_beside(scales: &TensorMeta, dst: &TensorMeta) -> bool {
    match (scales.device, dst.device) {
        (Device::Cuda(at), Device::Cuda(to)) => at == to && dst.layout.numel() > 0,
        (Device::Cuda(_), _) => false,
        (_, Device::Cuda(_)) => dst.layout.numel() == 0,
        _ => true,
    }
}

/// The shape of the scales of a pair; without dims if nothing is scaled.
fn scales_shape(all: &PairClasses<'_>, pair: usize) -> Dims {
    all.class_of(pair).scaling().map(|scaling| scaling.shape[1..].into()).unwrap_or_default()
}

impl<'s> MoveScales<'s> {
    /// The scales of the pairs at these positions, which one output writes: found, given, or none by the transform.
    /// [`Error::OutOfMemory`], and the errors of given scales.
    pub(super) fn new<'a: 's>(
        pairs: &[usize],
        all: &PairClasses<'s>,
        srcs: &'s SampleList<'a>,
        transform: &AnyTransform,
        scales_out: Option<&SampleList<'a>>,
    ) -> Result<MoveScales<'s>> {
        match (transform, scales_out) {
            (AnyTransform::Quantize(quantize), Some(scales)) => {
                let output = scales_of_pairs(pairs, all, srcs, quantize, scales)?;
                Ok(MoveScales { found: Some((*quantize, output)), ..MoveScales::default() })
            }
            (AnyTransform::Dequantize(dequantize), _) => {
                let mut move_scales =
                    MoveScales { first: try_vec(pairs.len())?, ..MoveScales::default() };
                for &pair in pairs {
                    move_scales.first.push(move_scales.given.len());
                    let scales = given_for(dequantize, pair, srcs.len())?;
                    check_given(&scales, Some(pair))?;
                    let expected = scales_shape(all, pair);
                    if scales.shape() != &expected[..] {
                        let facet = |shape: &[i64]| {
                            ErrorValue::Text(format!("scales of {}", ErrorValue::from(shape)))
                        };
                        let found = Mismatch::new(None, facet(&expected), facet(scales.shape()));
                        let error = Error::Shape(Box::new(found));
                        return Err(error.at_side(MoveSide::Source, pair));
                    }
                    let bytes = bytes_of(DType::F32, scales.shape());
                    let count = scales.layout().numel() as usize;
                    let out_of_memory = |_| Error::OutOfMemory { bytes };
                    move_scales.given.try_reserve(count).map_err(out_of_memory)?;
                    read_scales(&scales, &mut move_scales.given);
                }
                Ok(move_scales)
            }
            _ => Ok(MoveScales::default()),
        }
    }
}

/// The scales of pairs, each at a place of its own.
fn scales_of_pairs<'s, 'a: 's>(
    pairs: &[usize],
    all: &PairClasses<'s>,
    srcs: &'s SampleList<'a>,
    quantize: &Quantize,
    scales: &SampleList<'a>,
) -> Result<OutputPlan<'s>> {
    let dtype = quantize.scale_dtype;
    let mut known: HashMap<(usize, u32), u32> = HashMap::new();
    let (mut nests, mut dims): (Vec<LoopNest>, Vec<Dim>) = Default::default();
    let (mut ids, mut counts) = (try_vec(pairs.len())?, try_vec(pairs.len())?);
    let (mut data, mut places) = (try_vec(pairs.len())?, try_vec(pairs.len())?);
    for &pair in pairs {
        let nest = all.class_of(pair);
        let meta_id = scales.meta_ids().map_or(0, |ids| ids[pair]);
        let meta = scales.meta(pair);
        counts.push(meta.layout.numel());
        let next = nests.len() as u32;
        let id = *known.entry((all.id_of(pair), meta_id)).or_insert(next);
        if let (true, Some(shape)) = (id == next, &nest.transformed) {
            let groups = shape.scaling.as_ref().map_or(Groups::Sample, |scaling| scaling.groups);
            let size = dtype.size() as i64;
            let strides: Dims =
                meta.layout.strides().iter().map(|stride| stride.wrapping_mul(size)).collect();
            nests.push(nest_of_scales(nest.src, shape, groups, &strides, &mut dims));
        }
        ids.push(id);
        data.push(srcs.address(pair));
        places.push(scales.address(pair));
    }
    let offsets = Offsets::from_lengths(counts)?;
    let layout = Layout::compact(dtype, &[offsets.total()])?;
    Ok(OutputPlan {
        fill: quantize.bits_of(1.0),
        data: Cow::Owned(data),
        places: Cow::Owned(places),
        nest_ids: Cow::Owned(ids),
        nests,
        dims,
        ..OutputPlan::new(
            Role::Scales,
            dtype,
            layout,
            ElementOp::Scales,
            Starts::Joined { offsets, unit: 1, step: 0 },
        )
    })
}
