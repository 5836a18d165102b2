//! [`Scaling`]: which elements of a batch share a scale, and where the scales are.
//!
//! The problem: the plan, the loops of the host and the kernels have to agree on the scale of each element, whether it is found
//! or given, in samples of any layout, with padding, from any element on.
//!
//! The elements of a sample are counted in its own order, padding among them, as the loops of its `LoopNest` go. Elements that
//! share a scale follow each other in that order: all of a sample, a row of the last dim, or a block of one. So the scale of an
//! element is found by arithmetic ([`Groups::index_of`]), and scales are counted in the same order (`scales_output`).
//!
//! ```text
//! a sample (2, 5)   e0 e1 e2 e3 e4   e5 e6 e7 e8 e9     Groups                                   scales of N samples
//! one for a sample  0  0  0  0  0    0  0  0  0  0      Sample                                   (N)
//! one for a row     0  0  0  0  0    1  1  1  1  1      Blocks { row: 5, block: 5, per_row: 1 }  (N, 2)
//! blocks of 2       0  0  1  1  2    3  3  4  4  5      Blocks { row: 5, block: 2, per_row: 3 }  (N, 2, 3)
//! ```
//!
//! Scales that are given are read when the plan is made, as float32 in this order, with 1 for padding. A list with the scale of
//! each element would need no arithmetic, but is as long as the sample.

use std::sync::Arc;

use crate::collate::{e8m0_value, Dequantize, Granularity, Quantize, Rescale, Scales};
use crate::plan::checks::UsedMetas;
use crate::plan::placement::Placement;
use crate::tensor::{
    bytes_of, checked_bytes, checked_numel, try_vec, DType, Device, Dims, Error, ErrorValue, Hint,
    Layout, Mismatch, Result, Tensor,
};

/// Elements of a row, and scales of a launch, that a device counts are fewer.
pub(crate) const DEVICE_COUNT: u64 = 1 << 31;

/// The [`Error::TooLarge`] of rows of too many elements for a device.
pub(crate) fn rows_too_long(elems: u64) -> Error {
    Error::too_large(format!(
        "rows of {elems} elements: a device has scales for rows of fewer than 2^31; pass parts of a row as samples of their own, or \
         samples and batch on the host"
    ))
}

/// The scaling of the elements of a batch by scales that groups of them share.
#[derive(Clone, Debug)]
pub(crate) struct Scaling {
    pub rescale: Rescale,
    pub groups: Groups,
    /// The shape of the scales of the batch.
    pub shape: Dims,
    /// Scales that are given, in the order in which they are counted; padding has 1.
    pub given: Option<Arc<[f32]>>,
}

/// The extents of a batch whose elements are scaled.
pub(super) struct BatchExtents<'b> {
    pub placement: &'b Placement,
    pub shape: &'b [i64],
    pub num_samples: usize,
    /// Dims of a sample.
    pub ndim: usize,
}

/// The elements of a sample that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Groups {
    /// All of them.
    Sample,
    /// Blocks of `block` elements, the last of each row shorter; `per_row` of them in a row of `row` elements.
    Blocks { row: u64, block: u64, per_row: u64 },
}

impl Groups {
    /// The number of the group of element `elem` of a sample, both counted row-major from 0.
    #[inline]
    pub fn index_of(self, elem: u64) -> u64 {
        match self {
            Groups::Sample => 0,
            Groups::Blocks { row, block, per_row } => elem / row * per_row + elem % row / block,
        }
    }

    /// The range of elements of a group, in a sample of `num_elems` elements.
    #[inline]
    pub fn elems(self, group: u64, num_elems: u64) -> std::ops::Range<u64> {
        match self {
            Groups::Sample => 0..num_elems,
            Groups::Blocks { row, block, per_row } => {
                let (begin, within) = (group / per_row * row, group % per_row * block);
                begin + within..begin + row.min(within.saturating_add(block))
            }
        }
    }

    /// Whether no group is ever empty: true of blocks of rows that have elements, false of
    /// [`Groups::Sample`], since a sample may have none.
    pub fn are_never_empty(self) -> bool {
        matches!(self, Groups::Blocks { row: 1.., .. })
    }
}

impl Scaling {
    /// The scaling of a batch whose samples are placed, never `None`; given scales are read by this
    /// call.
    ///
    /// # Errors
    /// [`Error::Argument`] for blocks along a last dim that is joined or padded; [`Error::TooLarge`] for given scales of more than
    /// 63 bits of bytes, and the errors of `given_scales`.
    pub(super) fn new(
        used: &UsedMetas<'_>,
        rescale: &Rescale,
        shape: &BatchExtents<'_>,
    ) -> Result<Option<Box<Scaling>>> {
        let granularity = match rescale {
            Rescale::Quantize(quantize) => quantize.scale,
            Rescale::Dequantize(Dequantize { block: Some(block), .. }) => {
                Granularity::Block(*block)
            }
            Rescale::Dequantize(_) => Granularity::Row,
        };
        let mut groups = groups_of(granularity, shape)?;
        let scaling = |groups| Scaling {
            rescale: rescale.clone(),
            groups,
            shape: scales_shape(groups, granularity, shape),
            given: None,
        };
        let Rescale::Dequantize(dequantize) = rescale else {
            return Ok(Some(Box::new(scaling(groups))));
        };
        if dequantize.block.is_none()
            && are_of_samples(&dequantize.scales, shape, &scaling(groups).shape)
        {
            groups = Groups::Sample;
        }
        let mut scaling = scaling(groups);
        checked_bytes(DType::F32, &scaling.shape)?;
        scaling.given = Some(given_scales(used, &dequantize.scales, &scaling, shape)?);
        Ok(Some(Box::new(scaling)))
    }

    /// The number of scales.
    pub fn num_scales(&self) -> u64 {
        self.shape.iter().fold(1, |all, &extent| all.saturating_mul(extent as u64))
    }

    /// The bytes of the scales that are found; 0 if they are given.
    pub fn found_bytes(&self) -> u64 {
        self.quantize().map_or(0, |quantize| bytes_of(quantize.scale_dtype, &self.shape))
    }

    /// The rule by which scales are found; `None` if they are given.
    pub fn quantize(&self) -> Option<&Quantize> {
        match &self.rescale {
            Rescale::Quantize(quantize) => Some(quantize),
            Rescale::Dequantize(_) => None,
        }
    }
}

/// The dtypes in which given scales multiply, as an error says what it expected.
pub(super) const DEQUANTISED: &str =
    "float16, bfloat16, float32 or float64 for what is dequantised";

/// Whether a dtype is one of [`DEQUANTISED`].
pub(super) fn is_dequantised(dtype: DType) -> bool {
    dtype.is_float() && !dtype.is_float8()
}

/// The dtype of a batch whose elements are scaled: that of the quantisation, or the `dtype` that is
/// asked for, which dequantised samples need.
///
/// # Errors
/// [`Error::Argument`] for a dtype beside a quantisation; [`Error::DType`] for samples that the
/// rescale does not take, and for a dequantisation to a dtype that is not one of [`DEQUANTISED`],
/// or to none; those of `check` of the options.
pub(super) fn result_dtype(
    used: &UsedMetas<'_>,
    rescale: &Rescale,
    dtype: Option<DType>,
) -> Result<DType> {
    let name = match rescale {
        Rescale::Quantize(quantize) => quantize.check().map(|()| "Quantize")?,
        Rescale::Dequantize(dequantize) => dequantize.check().map(|()| "Dequantize")?,
    };
    let check = |expected: &'static str, fits: &dyn Fn(DType) -> bool, hint| {
        let got = |index: usize| used.meta(index).dtype.into();
        used.check_as(|dtype, _| fits(dtype.native()), || expected.into(), got, hint, Error::DType)
    };
    match (rescale, dtype) {
        (Rescale::Quantize(_), Some(dtype)) => {
            let text = format!("{name} has a dtype of its own, which excludes another, {dtype}");
            Err(Error::argument(text))
        }
        (Rescale::Quantize(quantize), None) => {
            let hint = Hint::Text("a scale is found of floats: cast integers first");
            check("floating-point samples to quantise", &DType::is_float, hint)?;
            Ok(quantize.dtype)
        }
        (Rescale::Dequantize(_), dtype) => {
            let hint = Hint::Text("Dequantize is the way back from these");
            let fits = |dtype: DType| dtype.is_float8() || dtype == DType::I8;
            check("int8, float8_e4m3fn or float8_e5m2 samples", &fits, hint)?;
            match dtype.filter(|&dtype| is_dequantised(dtype)) {
                Some(dtype) => Ok(dtype),
                None => {
                    let got = dtype.map_or("none".to_owned(), |dtype| dtype.to_string());
                    let mismatch = Mismatch::for_subject("dtype", DEQUANTISED, got);
                    Err(Error::DType(Box::new(mismatch.with_hint(Hint::CastToFloat32))))
                }
            }
        }
    }
}

/// The groups of elements of samples in this batch that share a scale. Where the last dim is joined
/// or padded, or samples have no dims, rows are [`Groups::Sample`] and blocks an
/// [`Error::Argument`].
fn groups_of(granularity: Granularity, shape: &BatchExtents<'_>) -> Result<Groups> {
    let ndim = shape.ndim;
    // The extents of samples are those of the batch but for dims that are joined or padded.
    let row = match &shape.placement {
        Placement::Rows if ndim > 0 => Some(shape.shape[ndim]),
        Placement::Padded(padded) if ndim > 0 && !padded.dims.contains(ndim - 1) => {
            Some(padded.size[ndim - 1])
        }
        Placement::Joined { dim, .. } if dim + 1 < ndim => Some(shape.shape[ndim - 1]),
        _ => None,
    };
    let Some(row) = row.map(|row| row as u64) else {
        return match granularity {
            Granularity::Block(elems) => Err(Error::argument(format!(
                "blocks of {elems} elements are along the last dim, which is the one that is joined or padded here: a sample \
                 has one scale"
            ))),
            _ => Ok(Groups::Sample),
        };
    };
    Ok(match granularity {
        Granularity::Sample => Groups::Sample,
        Granularity::Row => Groups::Blocks { row, block: row, per_row: 1 },
        Granularity::Block(elems) => {
            let block = elems as u64;
            Groups::Blocks { row, block, per_row: row.div_ceil(block) }
        }
    })
}

/// The shape of the scales of the batch.
fn scales_shape(groups: Groups, granularity: Granularity, shape: &BatchExtents<'_>) -> Dims {
    match groups {
        Groups::Sample => smallvec::smallvec![shape.num_samples as i64],
        Groups::Blocks { per_row, .. } => {
            let rest = shape.shape.len() - 1;
            let mut scales = Dims::from_slice(&shape.shape[..rest]);
            if let Granularity::Block(_) = granularity {
                scales.push(per_row as i64);
            }
            scales
        }
    }
}

/// Whether given scales are one for each sample: a tensor of that one extent, which is not the
/// shape `of_rows` of one scale for each row, or a tensor without dims for each sample.
fn are_of_samples(scales: &Scales, shape: &BatchExtents<'_>, of_rows: &[i64]) -> bool {
    match scales {
        Scales::Batch(scales) => {
            scales.shape() != of_rows && scales.shape() == [shape.num_samples as i64]
        }
        Scales::Samples(scales) => {
            scales.len() == shape.num_samples && scales.iter().all(|scale| scale.shape().is_empty())
        }
    }
}

/// The extents of the scales tensor of sample `index`, whose shape is `sample`; how many places
/// each of its dims is shifted by in the batch; and the extents of the sample's part there. All are
/// empty for [`Groups::Sample`].
fn own_scales(
    scaling: &Scaling,
    shape: &BatchExtents<'_>,
    sample: &[i64],
    index: usize,
) -> [Dims; 3] {
    let Groups::Blocks { per_row, .. } = scaling.groups else { return Default::default() };
    let rest = shape.ndim - 1;
    let mut extents = Dims::from_slice(&sample[..rest]);
    let (mut lead, mut extents_in_batch): (Dims, Dims) =
        (smallvec::smallvec![0; rest], extents.clone());
    match &shape.placement {
        Placement::Padded(padded) => {
            for d in 0..rest {
                lead[d] = padded.sides[d].lead(extents[d], padded.size[d]);
                extents_in_batch[d] = padded.size[d];
            }
        }
        Placement::Joined { dim, offsets } => {
            let ends = &offsets.as_slice()[index..index + 2];
            extents_in_batch[*dim] = ends[1] - ends[0];
        }
        Placement::Rows => {}
    }
    if scaling.shape.len()
        > rest + usize::from(!matches!(shape.placement, Placement::Joined { .. }))
    {
        [&mut extents, &mut extents_in_batch]
            .into_iter()
            .for_each(|extents| extents.push(per_row as i64));
        lead.push(0);
    }
    [extents, lead, extents_in_batch]
}

/// Checks that given scales, of sample `index` or of all, are in host memory and of a dtype of scales; else
/// [`Error::Device`] or [`Error::DType`].
pub(super) fn check_given(scales: &Tensor, index: Option<usize>) -> Result<()> {
    let refuse = |error: fn(Box<Mismatch>) -> Error, expected: &str, got: ErrorValue| {
        let mismatch = Mismatch::for_subject("scales", expected, got);
        Err(error(Box::new(Mismatch { index, ..mismatch })))
    };
    if let Device::Cuda(_) = scales.device() {
        let got = scales.device().to_string();
        let mismatch = Mismatch::for_subject("scales", "scales in host memory", got);
        let hint = "the host reads them as the call begins, and waits for no device: copy them there first, as .cpu() of a torch \
                    tensor does, or stack them with device cpu";
        let mismatch = Mismatch { index, ..mismatch.with_hint(Hint::Text(hint)) };
        return Err(Error::Device(Box::new(mismatch)));
    }
    if !(scales.dtype().is_float() || scales.dtype() == DType::F8E8M0FNU) {
        let expected = "scales of a floating-point dtype or float8_e8m0fnu";
        return refuse(Error::DType, expected, scales.dtype().into());
    }
    Ok(())
}

/// Reads given scales, whose bytes were found to fit in 63 bits, as float32 in the order of the batch's groups, with 1 for
/// padding; the errors of [`check_given`], [`Error::Shape`], [`Error::Argument`] for another number of tensors than samples,
/// [`Error::OutOfMemory`].
fn given_scales(
    used: &UsedMetas<'_>,
    scales: &Scales,
    scaling: &Scaling,
    shape: &BatchExtents<'_>,
) -> Result<Arc<[f32]>> {
    let is_of_each = matches!(scales, Scales::Samples(_));
    if let Scales::Samples(all) = scales {
        if all.len() != shape.num_samples {
            let (count, samples) = (all.len(), shape.num_samples);
            return Err(Error::argument(format!("{count} scales for {samples} samples")));
        }
    }
    for (index, tensor) in scales.tensors().iter().enumerate() {
        let index = is_of_each.then_some(index);
        check_given(tensor, index)?;
        let expected: Dims = match index {
            None => scaling.shape.clone(),
            Some(index) => {
                let [extents, ..] = own_scales(scaling, shape, &used.shape_of(index), index);
                extents
            }
        };
        if tensor.shape() != &expected[..] {
            let facet = |shape: &[i64]| match is_of_each {
                true => ErrorValue::Text(format!("scales of {}", ErrorValue::from(shape))),
                false => ErrorValue::from(shape),
            };
            let mismatch = Mismatch::for_subject("scales", facet(&expected), facet(tensor.shape()));
            // A Dequantize without a length of blocks reads scales of rows.
            let is_by_row = matches!(scaling.groups, Groups::Blocks { per_row: 1, .. });
            let of_blocks = tensor.shape().split_last().map(|(_, shape)| shape);
            let is_of_blocks = !expected.is_empty() && of_blocks == Some(&expected[..]);
            let hint = (is_by_row && is_of_blocks)
                .then_some(Hint::Text("scales of blocks need the length of a block"));
            return Err(Error::Shape(Box::new(Mismatch { index, hint, ..mismatch })));
        }
    }
    let count = scales.tensors().iter().map(|tensor| tensor.layout().numel() as usize).sum();
    let mut table = try_vec(count)?;
    match scales {
        Scales::Batch(whole) => match &shape.placement {
            Placement::Joined { dim, offsets } if *dim > 0 && scaling.groups != Groups::Sample => {
                for index in 0..shape.num_samples {
                    let ends = &offsets.as_slice()[index..index + 2];
                    let mut extents = Dims::from_slice(whole.shape());
                    extents[*dim] = ends[1] - ends[0];
                    let layout = Layout::try_new(whole.dtype(), &extents, Some(whole.strides()))?;
                    let first = ends[0].wrapping_mul(whole.strides()[*dim]);
                    read_scales(&whole.view(first, layout)?, &mut table);
                }
            }
            _ => read_scales(whole, &mut table),
        },
        Scales::Samples(all) => {
            for (index, tensor) in all.iter().enumerate() {
                let [extents, lead, extents_in_batch] =
                    own_scales(scaling, shape, &used.shape_of(index), index);
                if extents == extents_in_batch {
                    read_scales(tensor, &mut table);
                } else {
                    let mut values = Vec::new();
                    read_scales(tensor, &mut values);
                    place_scales(&values, [&extents, &lead, &extents_in_batch], &mut table)?;
                }
            }
        }
    }
    Ok(table.into())
}

/// Adds all scales of a tensor in host memory to `table`, row-major, as float32.
pub(super) fn read_scales(scales: &Tensor, table: &mut Vec<f32>) {
    if let Ok(all) = scales.as_slice::<f32>() {
        return table.extend_from_slice(all);
    }
    let numel = scales.layout().numel();
    let (shape, strides) = (scales.shape(), scales.strides());
    for index in 0..numel {
        let (mut rest, mut at) = (index, 0);
        for (&extent, &stride) in shape.iter().zip(strides).rev() {
            at += rest % extent * stride;
            rest /= extent;
        }
        table.push(scale_at(scales, at));
    }
}

/// The scale at `elem` elements from a tensor's first, as float32; the tensor is in host memory.
fn scale_at(scales: &Tensor, elem: i64) -> f32 {
    let size = scales.dtype().size();
    let mut bytes = [0u8; 16];
    let from = scales.data_ptr().wrapping_offset(elem as isize * size as isize);
    debug_assert!(!matches!(scales.device(), Device::Cuda(_)) && size <= bytes.len());
    debug_assert!(scales.layout().byte_span(scales.dtype()).contains(&(elem * size as i64)));
    // SAFETY: an element of the tensor's layout, in host memory (`check_given`), which the tensor keeps.
    #[allow(unsafe_code)]
    unsafe {
        from.copy_to_nonoverlapping(bytes.as_mut_ptr(), size);
    }
    if !scales.dtype().is_native() {
        bytes[..size].reverse();
    }
    match scales.dtype().native() {
        DType::F8E8M0FNU => e8m0_value(bytes[0]),
        DType::F16 => half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        DType::BF16 => half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        DType::F64 => f64::from_le_bytes(std::array::from_fn(|i| bytes[i])) as f32,
        _ => f32::from_le_bytes(std::array::from_fn(|i| bytes[i])),
    }
}

/// Adds the scales of a padded sample to `table`, with 1 where its padding is; [`Error::OutOfMemory`].
fn place_scales(
    values: &[f32],
    [extents, lead, extents_in_batch]: [&[i64]; 3],
    table: &mut Vec<f32>,
) -> Result<()> {
    let count = checked_numel(extents_in_batch).unwrap_or(0);
    let out_of_memory = |_| Error::OutOfMemory { bytes: 4 * count as u64 };
    table.try_reserve(count as usize).map_err(out_of_memory)?;
    for index in 0..count {
        let (mut rest, mut at, mut step, mut is_real) = (index, 0, 1, true);
        for d in (0..extents_in_batch.len()).rev() {
            let coord = rest % extents_in_batch[d] - lead[d];
            rest /= extents_in_batch[d];
            is_real &= (0..extents[d]).contains(&coord);
            at += coord * step;
            step *= extents[d];
        }
        table.push(if is_real { values[at as usize] } else { 1.0 });
    }
    Ok(())
}
