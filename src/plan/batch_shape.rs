//! Stage 2. The batch a [`Collate`] makes of given samples: every shape, and every error of input.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::collate::{resolve_dim, Affine, Collate, Form, MaskBits, Pad, PerDim, Quantize, Ragged};
use crate::plan::checks::{
    check_arithmetic, check_devices, check_float, check_room, check_width, no_dims,
    resolve_channel_dim, resolve_dtype, resolve_permute, UsedMetas,
};
use crate::plan::placement::{Padded, Placement};
use crate::plan::role::Role;
use crate::plan::scaling::{result_dtype, BatchExtents, Scaling};
use crate::samples::{SampleList, SampleRows};
use crate::tensor::{
    checked_bytes, small_vec, CastTo, DType, Device, DimSet, Dims, Error, ErrorValue, Hint,
    Mismatch, Offsets, Result,
};

/// The batch to be made: shapes, dtypes and the place of each sample. Nothing of it is memory yet.
#[derive(Clone, Debug)]
pub struct BatchShape {
    pub(crate) shape: Dims,
    /// Dtype of the data.
    pub dtype: DType,
    /// Number of samples.
    pub num_samples: usize,
    /// The device of the samples; a mix of page-locked and other host memory counts as the latter.
    pub source: Device,
    /// The device of the batch.
    pub device: Device,
    /// How samples are in the data.
    pub placement: Placement,
    /// The largest length, for a ragged batch.
    pub max_length: Option<i64>,
    pub(crate) ragged: Ragged,
    pub(crate) mask: Option<MaskBits>,
    pub(crate) value: [u8; 16],
    pub(crate) affine: Option<Box<Affine>>,
    /// An increment for each sample, added to its elements.
    pub(crate) increments: Option<Arc<[i64]>>,
    /// Results beyond the largest finite number become it.
    pub(crate) saturate: bool,
    /// The scales of elements.
    pub(crate) scaling: Option<Box<Scaling>>,
    /// The sample dim that the channels of `affine` are along.
    pub(crate) channel_dim: Option<usize>,
    /// A device chooses the samples; `lengths` then has those of one sample for each `TensorMeta`.
    pub(crate) is_selected: bool,
    /// Bytes of all tensors.
    pub(crate) bytes: u64,
    /// Bytes of the data, padding included.
    pub(crate) data_bytes: u64,
    /// Result dim `k` of a sample is sample dim `permute[k]`.
    pub(crate) permute: SmallVec<[usize; 4]>,
}

impl BatchShape {
    /// The shape of the data, in the result's order of dims.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// The rule and the shape of scales that the batch finds; `None` unless it quantises.
    pub(crate) fn found_scales(&self) -> Option<(&Quantize, &[i64])> {
        let scaling = self.scaling.as_deref()?;
        Some((scaling.quantize()?, &scaling.shape))
    }

    /// The dtype of the batch, and whether casts to it saturate.
    pub(crate) fn to(&self) -> CastTo {
        CastTo { dtype: self.dtype, saturate: self.saturate }
    }

    /// Whether the batch will be on a device.
    pub(crate) fn is_on_device(&self) -> bool {
        self.device.is_cuda()
    }

    /// The real extents, row-major, `[N]`, or `[N, k]` if `k != 1` dims are padded; `None` for a stack. If a device chooses the
    /// samples, those of one sample for each `TensorMeta`.
    pub fn lengths(&self) -> Option<Cow<'_, [i64]>> {
        match &self.placement {
            Placement::Rows => None,
            Placement::Padded(padded) => Some(Cow::Borrowed(&padded.lengths)),
            Placement::Joined { offsets, .. } => Some(offsets.lengths().collect()),
        }
    }

    /// Calls `each` with role, dtype, shape and numbers of the lengths, and of the offsets; stops at its first error.
    /// If a device chooses the samples, the shape is that of the batch, and the numbers are those of
    /// [`BatchShape::lengths`].
    pub(crate) fn for_each_metadata(
        &self,
        mut each: impl FnMut(Role, DType, &[i64], &[i64]) -> Result<()>,
    ) -> Result<()> {
        self.for_each_field(|role, dtype, shape| match (role, &self.placement) {
            (Role::Offsets, Placement::Joined { offsets, .. }) => {
                each(role, dtype, shape, offsets.as_slice())
            }
            (Role::Lengths, _) => each(role, dtype, shape, &self.lengths().unwrap_or_default()),
            _ => Ok(()),
        })
    }

    /// Whether the batch has lengths: every form but a stack.
    pub(crate) fn has_lengths(&self) -> bool {
        !matches!(self.placement, Placement::Rows)
    }

    /// The shape of the lengths: `[N]`, or `[N, k]` if `k != 1` dims are padded. `[N]` for a stack, which has no lengths.
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn lengths_shape(&self) -> Vec<i64> {
        self.lengths_dims().into_vec()
    }

    /// The extents of the lengths: `[N]`, or `[N, k]` if `k != 1` dims are padded; `[N]` for a stack.
    fn lengths_dims(&self) -> Dims {
        let mut shape: Dims = smallvec::smallvec![self.num_samples as i64];
        if let Placement::Padded(Padded { dims, .. }) = &self.placement {
            if dims.len() != 1 {
                shape.push(dims.len() as i64);
            }
        }
        shape
    }

    /// Checks all samples against the options.
    ///
    /// # Errors
    /// Every error of input there is; see [`Error`].
    ///
    /// ```
    /// use windrow::{plan::BatchShape, Collate, Pad, SampleList, Tensor};
    /// let table = Tensor::from_vec(vec![1u8, 2, 3, 4, 5, 6], &[2, 3])?;
    /// let shape = BatchShape::new(&SampleList::rows(&table)?, &Collate::pad(Pad::new().size(4)))?;
    /// assert_eq!(shape.shape(), [2, 4]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn new(samples: &SampleList<'_>, collate: &Collate) -> Result<BatchShape> {
        if samples.is_empty() {
            return Err(Error::Empty);
        }
        if let Some(selection) = samples.selection() {
            return BatchShape::for_selection(selection, collate);
        }
        samples.check_rows(0)?;
        BatchShape::from_metas(&UsedMetas::new(samples), collate)
    }

    /// The shape of [`BatchShape::new`] for rows without a list.
    pub(crate) fn for_rows(rows: &SampleRows<'_>, collate: &Collate) -> Result<BatchShape> {
        let (meta, length) = (rows.meta(), rows.at(0).1);
        BatchShape::from_metas(
            &UsedMetas::for_rows(meta, rows.len(), rows.lengths(), length),
            collate,
        )
    }

    /// The shape of [`BatchShape::new`] from the metadata of the samples.
    fn from_metas(used: &UsedMetas<'_>, collate: &Collate) -> Result<BatchShape> {
        let ndim = used.shape().len();
        check_room(used.len(), ndim)?;
        let (source, device) = check_devices(used, collate)?;
        let hint = Hint::Text("samples of one batch have equal rank");
        used.check_shapes(|shape| shape.len() == ndim, hint)?;
        let dtype = match &collate.rescale {
            None => resolve_dtype(used, collate)?,
            Some(rescale) => result_dtype(used, rescale, collate.dtype)?,
        };
        let mut batch_shape = BatchShape::moved_rows(dtype, used.len(), [source, device]);
        batch_shape.saturate = collate.saturate;
        batch_shape.permute = resolve_permute(collate, ndim)?;
        batch_shape.transform(used, collate)?;
        collate.check_saturate_in(batch_shape.dtype)?;
        if let Some(increments) = &collate.increments {
            batch_shape.set_increments(increments)?;
        }
        batch_shape.place(used, &collate.form)?;
        if let Some(rescale) = &collate.rescale {
            // A batch that is too large is refused before its scales are read.
            batch_shape.set_bytes()?;
            let extents = BatchExtents {
                placement: &batch_shape.placement,
                shape: &batch_shape.shape,
                num_samples: batch_shape.num_samples,
                ndim: batch_shape.permute.len(),
            };
            batch_shape.scaling = Scaling::new(used, rescale, &extents)?;
        }
        batch_shape.set_bytes()?;
        Ok(batch_shape)
    }

    /// A stack of `num_samples` samples that are moved unchanged between two devices; the caller sets its shape and
    /// bytes.
    pub(super) fn moved_rows(
        dtype: DType,
        num_samples: usize,
        [source, device]: [Device; 2],
    ) -> BatchShape {
        BatchShape {
            shape: Dims::new(),
            dtype,
            num_samples,
            source,
            device,
            placement: Placement::Rows,
            max_length: None,
            ragged: Ragged::default(),
            mask: None,
            value: [0; 16],
            affine: None,
            increments: None,
            saturate: false,
            scaling: None,
            channel_dim: None,
            is_selected: false,
            bytes: 0,
            data_bytes: 0,
            permute: SmallVec::new(),
        }
    }

    /// Sets the affine map and its channel dim. [`Error::DType`] or [`Error::Argument`] if samples or dtype do not
    /// allow the arithmetic, and the errors of [`resolve_channel_dim`].
    fn transform(&mut self, used: &UsedMetas<'_>, collate: &Collate) -> Result<()> {
        self.affine = match collate.transform.computes() {
            true => collate.transform.affine()?.map(Box::new),
            false => None,
        };
        check_arithmetic(used, self.dtype, self.affine.is_some())?;
        if let Some(affine) = &self.affine {
            check_width(used, self.dtype, affine)?;
        }
        let channels = self.affine.as_deref().map_or(1, Affine::channels);
        if channels > 1 {
            self.channel_dim = Some(resolve_channel_dim(used, collate, channels)?);
        }
        match collate.dtype.is_none() && collate.transform.computes() {
            true => check_float(self.dtype),
            false => Ok(()),
        }
    }

    /// Sets the increments. [`Error::Argument`] beside an affine map or for another number than that of the samples,
    /// [`Error::DType`] for a
    /// dtype that is no integer, [`Error::Device`] if neither the samples nor the batch are on a device.
    fn set_increments(&mut self, increments: &Arc<[i64]>) -> Result<()> {
        if self.affine.is_some() {
            return Err(Error::argument(
                "increments cannot be combined with scale, mean or std".to_owned(),
            ));
        }
        if increments.len() != self.num_samples {
            let (count, samples) = (increments.len(), self.num_samples);
            return Err(Error::argument(format!("{count} increments for {samples} samples")));
        }
        if !self.dtype.is_integer() {
            let mismatch = Mismatch::new(
                Some(0),
                "an integer dtype, because increments are added to the elements",
                self.dtype,
            );
            return Err(mismatch.into_error(Error::DType));
        }
        if !self.source.is_cuda() && !self.device.is_cuda() {
            let mismatch = Mismatch::new(Some(0), "a device", self.source.to_string());
            return Err(mismatch.into_error(Error::Device));
        }
        self.increments = Some(Arc::clone(increments));
        Ok(())
    }

    /// Sets the bytes of the data and of all tensors; the sum saturates. [`Error::TooLarge`] for a tensor of more than 63 bits of
    /// bytes, so that no later product of extents overflows.
    pub(super) fn set_bytes(&mut self) -> Result<()> {
        self.data_bytes = checked_bytes(self.dtype, &self.shape)?;
        let mut bytes = self.data_bytes;
        self.for_each_field(|_, dtype, shape| {
            bytes = bytes.saturating_add(checked_bytes(dtype, shape)?);
            Ok(())
        })?;
        self.bytes = bytes;
        Ok(())
    }

    /// Sets the position of samples in the batch, the batch's shape, and what the form adds; errors of the form's
    /// options and of shapes.
    fn place(&mut self, used: &UsedMetas<'_>, form: &Form) -> Result<()> {
        let ndim = used.shape().len();
        if ndim == 0 && matches!(form, Form::Concat { .. } | Form::Ragged { .. }) {
            return Err(no_dims(used.shape()));
        }
        match form {
            Form::Stack => self.stack(used),
            Form::Concat { dim } => self.join(used, resolve_dim("dim", *dim, ndim)?),
            Form::Ragged(ragged) => {
                ragged.check()?;
                if self.permute[0] != 0 {
                    return Err(Error::argument(
                        "a ragged batch joins along dim 0, so permute must leave dim 0 first"
                            .into(),
                    ));
                }
                self.join(used, 0)?;
                self.ragged = *ragged;
                let mut longest = 0;
                used.all(|_, shape| {
                    longest = shape[0].max(longest);
                    true
                });
                self.max_length = Some(longest);
                if let (DType::I32, Placement::Joined { offsets, .. }) =
                    (ragged.offsets, &self.placement)
                {
                    offsets.check_i32()?;
                }
                Ok(())
            }
            Form::Pad(pad) => self.pad(used, pad),
        }
    }

    /// Places samples as rows of a new dim 0; [`Error::Shape`] for other shapes than the first one's.
    fn stack(&mut self, used: &UsedMetas<'_>) -> Result<()> {
        let shape = used.shape();
        used.check_shapes(|extents| extents == shape, Hint::Pad)?;
        self.shape.push(used.len() as i64);
        self.permute.iter().for_each(|&dim| self.shape.push(shape[dim]));
        Ok(())
    }

    /// Places samples one after the other along sample dim `dim`; [`Error::Shape`] for samples that differ in another
    /// dim.
    fn join(&mut self, used: &UsedMetas<'_>, dim: usize) -> Result<()> {
        let shape = used.shape();
        let equal_but_for_dim =
            |other: &[i64]| shape[..dim] == other[..dim] && shape[dim + 1..] == other[dim + 1..];
        let hint = Hint::Text("only the joined dim may differ");
        used.check_shapes(equal_but_for_dim, hint)?;
        let offsets = Offsets::from_lengths_unchecked(&used.extents(dim, i64::MAX))?;
        let joined = |d: usize| if d == dim { offsets.total() } else { shape[d] };
        self.permute.iter().for_each(|&d| self.shape.push(joined(d)));
        let result_dim = self.permute.iter().position(|&d| d == dim).unwrap_or(dim);
        self.placement = Placement::Joined { dim: result_dim, offsets };
        Ok(())
    }

    /// Places samples as rows of a new dim 0 with padding, and sets its value and the mask; refuses samples that do not fit.
    fn pad(&mut self, used: &UsedMetas<'_>, pad: &Pad) -> Result<()> {
        let first = used.shape();
        let ndim = first.len();
        pad.check(ndim)?;
        self.value = pad.value.bits(self.dtype)?;

        let (mut longest, mut differing) = (Dims::from_slice(first), DimSet::default());
        used.all(|_, shape| {
            for (d, &extent) in shape.iter().enumerate() {
                if extent != first[d] {
                    differing.insert(d);
                }
                longest[d] = longest[d].max(extent);
            }
            true
        });
        let dims = padded_dims(pad, ndim, differing)?;
        if let Some(unnamed) = differing.iter().find(|&d| !dims.contains(d)) {
            let fits = |shape: &[i64]| (0..ndim).all(|d| dims.contains(d) || shape[d] == first[d]);
            used.check_shapes(fits, Hint::PadDim(unnamed))?;
        }
        let mut size = longest;
        for d in dims.iter() {
            size[d] = padded_extent(pad, d, ndim, size[d])?;
        }
        if !pad.truncate {
            let fits = |_, shape: &[i64]| shape.iter().zip(&size).all(|(have, most)| have <= most);
            let expected = || ErrorValue::Text(format!("at most {}", ErrorValue::from(&size[..])));
            let got = |index: usize| ErrorValue::from(&used.shape_of(index)[..]);
            used.check_as(fits, expected, got, Hint::Truncate, Error::Shape)?;
        }
        let of_dim = |d| used.extents(d, size[d]);
        let lengths = if dims.len() == 1 {
            dims.iter().map(of_dim).next().unwrap_or_default().into()
        } else {
            let each: SmallVec<[Cow<'_, [i64]>; 4]> = dims.iter().map(of_dim).collect();
            (0..used.len()).flat_map(|index| each.iter().map(move |all| all[index])).collect()
        };
        self.mask = pad.mask_bits()?;
        self.shape.push(used.len() as i64);
        self.permute.iter().for_each(|&d| self.shape.push(size[d]));
        let sides = small_vec((0..ndim).map(|d| *pad.side.at(d)));
        self.placement = Placement::Padded(Padded { size, sides, dims, lengths });
        Ok(())
    }

    /// The most tensors beside the data of a batch that needs no plan, which has no scales.
    pub(crate) const MAX_OTHERS: u64 = 3;

    /// Calls `each` with role, dtype and shape of every tensor beside the data; stops at its first error.
    pub(crate) fn for_each_field(
        &self,
        mut each: impl FnMut(Role, DType, &[i64]) -> Result<()>,
    ) -> Result<()> {
        if self.has_lengths() {
            each(Role::Lengths, DType::I64, &self.lengths_dims())?;
        }
        match (&self.placement, &self.mask) {
            (Placement::Joined { offsets, .. }, _) => {
                each(Role::Offsets, self.ragged.offsets, &[offsets.as_slice().len() as i64])?;
                if self.ragged.batch_index {
                    each(Role::BatchIndex, DType::I64, &[offsets.total()])?;
                }
            }
            (Placement::Padded(padded), Some(mask)) => {
                // The samples, then the padded dims in the result's order.
                let mut shape: Dims = smallvec::smallvec![self.num_samples as i64];
                let kept = self.permute.iter().filter(|&&d| padded.dims.contains(d));
                kept.for_each(|&d| shape.push(padded.size[d]));
                each(Role::Mask, mask.dtype, &shape)?;
            }
            _ => {}
        }
        if let Some((quantize, shape)) = self.found_scales() {
            each(Role::Scales, quantize.scale_dtype, shape)?;
        }
        Ok(())
    }
}

/// The extent in the batch of a padded dim of `ndim`: its size, else the samples' largest, `longest`; either is rounded up to
/// the multiple of the dim. The result may be below `longest`: the caller refuses that or truncates. One size or multiple for
/// all is for the dims in [`Pad::dims`], not for those that the other option names. [`padded_dims`] has checked `pad`.
fn padded_extent(pad: &Pad, dim: usize, ndim: usize, longest: i64) -> Result<i64> {
    let is_meant =
        |named: &i64| resolve_dim("dims", *named, ndim).is_ok_and(|resolved| resolved == dim);
    let is_in_dims = ndim == 1 || pad.dims.iter().flatten().any(is_meant);
    let size = match is_in_dims || !pad.size.is_one() {
        true => pad.size.at(dim).unwrap_or(longest),
        false => longest,
    };
    let multiple = match is_in_dims || !pad.multiple_of.is_one() {
        true => *pad.multiple_of.at(dim),
        false => 1,
    };
    let rounded = match size % multiple {
        0 => Some(size),
        rest => size.checked_add(multiple - rest),
    };
    let text = || format!("size {size} rounded up to {multiple} is beyond 64 bits");
    rounded.ok_or_else(|| Error::too_large(text()))
}

/// The sample dims to pad: those that `dims`, an entry of `size` or a `multiple_of` above 1 name,
/// so that the same options pad the same dims in every batch. If nothing names one, all that
/// differ, but none if `dims` is there and empty; of samples of one dim always that one. Refuses
/// dims out of range or named twice, negative sizes, multiples below 1, and one size or multiple
/// for all, unless [`Pad::dims`] names a dim or samples have one dim.
fn padded_dims(pad: &Pad, ndim: usize, differing: DimSet) -> Result<DimSet> {
    if pad.dims.is_none() && pad.size == PerDim::All(None) && pad.multiple_of == PerDim::All(1) {
        return Ok(if ndim == 1 { DimSet::all(1) } else { differing });
    }
    let refuse = |text| Err(Error::argument(text));
    let mut named = DimSet::default();
    for &dim in pad.dims.iter().flatten() {
        let dim = resolve_dim("dims", dim, ndim)?;
        if !named.insert(dim) {
            return refuse(format!("dims names dim {dim} twice"));
        }
    }
    let mut singles: SmallVec<[String; 2]> = SmallVec::new();
    for (d, &size) in pad.size.values().iter().enumerate() {
        match size {
            Some(size @ ..0) => return refuse(format!("size={size} is negative")),
            Some(size) if pad.size.is_one() => singles.push(format!("size={size}")),
            Some(_) => _ = named.insert(d),
            None => {}
        }
    }
    for (d, &multiple) in pad.multiple_of.values().iter().enumerate() {
        match multiple {
            ..1 => return refuse(format!("multiple_of must be at least 1, got {multiple}")),
            1 => {}
            _ if pad.multiple_of.is_one() => singles.push(format!("multiple_of={multiple}")),
            _ => _ = named.insert(d),
        }
    }
    match (singles.first(), &pad.dims) {
        _ if ndim == 1 => Ok(DimSet::all(1)),
        (Some(one), _) if ndim == 0 => refuse(format!("{one} for samples without dims")),
        (Some(one), None) => refuse(format!(
            "{one} for samples of {ndim} dims: name those to pad in dims, or give one entry for each"
        )),
        (Some(one), Some(dims)) if dims.is_empty() => {
            refuse(format!("{one} is for the dims that dims names, which is empty"))
        }
        (_, None) if named.is_empty() => Ok(differing),
        _ => Ok(named),
    }
}
