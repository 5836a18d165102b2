//! Stage 2. The batch a [`Collate`] makes of given samples: every shape, and every error of input.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::collate::{resolve_dim, Affine, Collate, Form, MaskBits, Pad, PerDim, Side};
use crate::plan::checks::{
    check_arithmetic, check_devices, check_float, check_room, no_dims, resolve_channel_dim,
    resolve_dtype, resolve_permute, shape_mismatch, UsedMetas,
};
use crate::samples::{SampleList, TensorMeta};
use crate::tensor::{DType, Device, Dims, Error, Facet, Hint, Layout, Mismatch, Offsets, Result};

/// The batch to be made: shapes, dtypes and the place of each sample. Nothing of it is memory yet.
#[derive(Clone, Debug)]
pub struct BatchShape {
    /// Shape of the data, in the result's order of dims.
    pub shape: Dims,
    /// Dtype of the data.
    pub dtype: DType,
    /// Number of samples.
    pub num_samples: usize,
    /// Where the samples are; page-locked and other host memory together count as the latter.
    pub source: Device,
    /// Where the batch will be.
    pub device: Device,
    /// How samples are in the data.
    pub placement: Placement,
    /// The real extents, row-major, and their shape: `[N]`, or `[N, k]` if `k != 1` dims are padded. `None` for a stack.
    pub lengths: Option<(Vec<i64>, Dims)>,
    /// The largest length, for a ragged batch.
    pub max_length: Option<i64>,
    pub(crate) offsets_i32: bool,
    pub(crate) batch_index: bool,
    pub(crate) mask: Option<MaskBits>,
    pub(crate) value: [u8; 16],
    pub(crate) affine: Option<Affine>,
    /// An increment for each sample, added to its elements.
    pub(crate) increments: Option<Arc<[i64]>>,
    /// The sample dim that the channels of `affine` are along.
    pub(crate) channel_dim: Option<usize>,
    /// A device chooses the samples; `lengths` then has those of one sample for each `TensorMeta`.
    pub(crate) is_selected: bool,
    /// Result dim `k` of a sample is sample dim `permute[k]`.
    pub(crate) permute: SmallVec<[usize; 4]>,
}

/// How samples are in the data of a batch.
#[derive(Clone, Debug)]
pub enum Placement {
    /// Sample `i` is row `i` of dim 0.
    Rows,
    /// Sample `i` is row `i` of dim 0, its real part inside padding.
    Padded(Padded),
    /// Sample `i` is `offsets[i]..offsets[i + 1]` of a dim of the result.
    Joined {
        /// The dim of the result.
        dim: usize,
        /// The boundaries.
        offsets: Offsets,
    },
}

/// Which dims are padded, and how far.
#[derive(Clone, Debug)]
pub struct Padded {
    /// The extent of every sample dim in the batch, before the permutation.
    pub(crate) size: Dims,
    /// The side of every sample dim.
    pub(crate) sides: SmallVec<[Side; 4]>,
    /// The padded sample dims, ascending.
    pub(crate) dims: SmallVec<[usize; 4]>,
}

impl BatchShape {
    /// Whether the batch will be on a device.
    pub(crate) fn is_on_device(&self) -> bool {
        matches!(self.device, Device::Cuda(_))
    }

    /// Checks all samples against the options.
    ///
    /// # Errors
    /// Every error of input there is; see [`Error`].
    pub fn new(samples: &SampleList<'_>, collate: &Collate) -> Result<BatchShape> {
        if samples.is_empty() {
            return Err(Error::Empty);
        }
        if let Some(selection) = samples.selection() {
            return BatchShape::of_selection(selection, collate);
        }
        if let Some(option) = collate.misplaced {
            return Err(Error::Argument(format!("{option} is an option of a ragged batch")));
        }
        samples.check_rows(0)?;
        check_room(samples)?;
        let (source, device) = check_devices(samples, collate)?;
        let used = UsedMetas::new(samples);
        let ndim = samples.meta(0).layout.ndim();
        used.check(
            |meta| meta.layout.ndim() == ndim,
            |index| shape_mismatch(samples, index),
            Hint::Text("samples of one batch have equal rank"),
        )?;
        let mut batch_shape = BatchShape {
            shape: Dims::new(),
            dtype: resolve_dtype(samples, &used, collate)?,
            num_samples: samples.len(),
            source,
            device,
            placement: Placement::Rows,
            lengths: None,
            max_length: None,
            offsets_i32: false,
            batch_index: false,
            mask: None,
            value: [0; 16],
            affine: None,
            increments: None,
            channel_dim: None,
            is_selected: false,
            permute: resolve_permute(collate, ndim)?,
        };
        batch_shape.transform(samples, &used, collate)?;
        batch_shape.raise(collate)?;
        batch_shape.place(samples, &used, &collate.form)?;
        batch_shape.check_sizes()?;
        Ok(batch_shape)
    }

    /// The arithmetic on elements, and the channels that it differs by.
    fn transform(
        &mut self,
        samples: &SampleList<'_>,
        used: &UsedMetas<'_>,
        collate: &Collate,
    ) -> Result<()> {
        self.affine = collate.transform.affine()?;
        check_arithmetic(samples, used, self.dtype, self.affine.is_some())?;
        let channels = self.affine.as_ref().map_or(1, Affine::channels);
        if channels > 1 {
            self.channel_dim = Some(resolve_channel_dim(samples, used, collate, channels)?);
        }
        match collate.dtype.is_none() && collate.transform.computes() {
            true => check_float(self.dtype),
            false => Ok(()),
        }
    }

    /// The numbers that are added to elements.
    fn raise(&mut self, collate: &Collate) -> Result<()> {
        let Some(increments) = &collate.increments else { return Ok(()) };
        if self.affine.is_some() {
            return Err(Error::Argument("increments exclude scale, mean and std".to_owned()));
        }
        if increments.len() != self.num_samples {
            let (own, samples) = (increments.len(), self.num_samples);
            return Err(Error::Argument(format!("{own} increments for {samples} samples")));
        }
        if !self.dtype.is_integer() {
            let mismatch =
                Mismatch::new(Some(0), "integers, of which a device makes sums", self.dtype);
            return Err(Error::DType(Box::new(mismatch)));
        }
        let places = [self.source, self.device];
        if !places.iter().any(|place| matches!(place, Device::Cuda(_))) {
            let mismatch = Mismatch::new(Some(0), "a device", self.source.to_string());
            return Err(Error::Device(Box::new(mismatch)));
        }
        self.increments = Some(Arc::clone(increments));
        Ok(())
    }

    /// One check for every product of extents made from here on.
    fn check_sizes(&self) -> Result<()> {
        Layout::compact(self.dtype, &self.shape)?;
        self.mask_layout()?;
        if let (true, Placement::Joined { offsets, .. }) = (self.batch_index, &self.placement) {
            Layout::compact(DType::I64, &[offsets.total()])?;
        }
        Ok(())
    }

    /// Where samples are in the batch, and how large that makes it.
    fn place(&mut self, samples: &SampleList<'_>, used: &UsedMetas<'_>, form: &Form) -> Result<()> {
        // Not the list's: a list that was taken from may have samples of another rank.
        let ndim = samples.meta(0).layout.ndim();
        if ndim == 0 && matches!(form, Form::Concat { .. } | Form::Ragged { .. }) {
            return Err(no_dims(samples.meta(0)));
        }
        match form {
            Form::Stack => self.stack(samples, used),
            Form::Concat { dim } => self.join(samples, used, resolve_dim("dim", *dim, ndim)?),
            Form::Ragged { offsets_i32, batch_index } => {
                if self.permute[0] != 0 {
                    return Err(Error::Argument(
                        "a ragged batch joins along dim 0, so permute must leave dim 0 first"
                            .into(),
                    ));
                }
                self.join(samples, used, 0)?;
                (self.offsets_i32, self.batch_index) = (*offsets_i32, *batch_index);
                self.max_length =
                    self.lengths.as_ref().and_then(|(all, _)| all.iter().max().copied());
                if let (true, Placement::Joined { offsets, .. }) = (*offsets_i32, &self.placement) {
                    offsets.to_i32()?;
                }
                Ok(())
            }
            Form::Pad(pad) => self.pad(samples, used, pad),
        }
    }

    fn stack(&mut self, samples: &SampleList<'_>, used: &UsedMetas<'_>) -> Result<()> {
        let shape = samples.meta(0).layout.shape();
        used.check(
            |meta| meta.layout.shape() == shape,
            |index| shape_mismatch(samples, index),
            Hint::Pad,
        )?;
        self.shape.push(samples.len() as i64);
        self.shape.extend(self.permute.iter().map(|&dim| shape[dim]));
        Ok(())
    }

    fn join(&mut self, samples: &SampleList<'_>, used: &UsedMetas<'_>, dim: usize) -> Result<()> {
        let shape = samples.meta(0).layout.shape();
        let equal_but_for_dim = |meta: &TensorMeta| {
            let other = meta.layout.shape();
            shape[..dim] == other[..dim] && shape[dim + 1..] == other[dim + 1..]
        };
        let hint = Hint::Text("only the joined dim may differ");
        used.check(equal_but_for_dim, |index| shape_mismatch(samples, index), hint)?;
        let lengths: Vec<i64> = used.per_sample(|meta| meta.layout.shape()[dim]);
        let offsets = Offsets::from_lengths(lengths.iter().copied())?;
        let joined = |d: usize| if d == dim { offsets.total() } else { shape[d] };
        self.shape.extend(self.permute.iter().map(|&d| joined(d)));
        let result_dim = self.permute.iter().position(|&d| d == dim).unwrap_or(dim);
        self.placement = Placement::Joined { dim: result_dim, offsets };
        self.lengths = Some((lengths, smallvec::smallvec![samples.len() as i64]));
        Ok(())
    }

    fn pad(&mut self, samples: &SampleList<'_>, used: &UsedMetas<'_>, pad: &Pad) -> Result<()> {
        let first = samples.meta(0).layout.shape();
        let ndim = first.len();
        pad.check(ndim)?;
        self.value = pad.value.bits(self.dtype)?;

        let mut longest: Dims = first.into();
        let mut differs: SmallVec<[bool; 4]> = smallvec::smallvec![false; ndim];
        for meta in used.metas() {
            for (d, &extent) in meta.layout.shape().iter().enumerate() {
                differs[d] |= extent != first[d];
                longest[d] = longest[d].max(extent);
            }
        }
        let padded = padded_dims(pad, &differs)?;
        if let Some(unnamed) = (0..ndim).find(|&d| differs[d] && !padded[d]) {
            let fits = |meta: &TensorMeta| {
                (0..ndim).all(|d| padded[d] || meta.layout.shape()[d] == first[d])
            };
            let hint = Hint::PadDim(unnamed);
            used.check(fits, |index| shape_mismatch(samples, index), hint)?;
        }
        let mut size = longest.clone();
        for d in (0..ndim).filter(|&d| padded[d]) {
            size[d] = padded_extent(pad, d, ndim, longest[d])?;
        }
        if !pad.truncate {
            let fits = |meta: &TensorMeta| {
                meta.layout.shape().iter().zip(&size).all(|(have, room)| have <= room)
            };
            let expected = || Facet::Text(format!("at most {}", Facet::from(&size[..])));
            let got = |index: usize| Facet::from(samples.meta(index).layout.shape());
            used.check_as(fits, expected, got, Hint::Truncate, Error::Shape)?;
        }
        let dims: SmallVec<[usize; 4]> = (0..ndim).filter(|&d| padded[d]).collect();
        let real = |meta: &TensorMeta, d: usize| meta.layout.shape()[d].min(size[d]);
        self.lengths = Some(if let [only] = dims[..] {
            (used.per_sample(|meta| real(meta, only)), smallvec::smallvec![samples.len() as i64])
        } else {
            let mut lengths = Vec::with_capacity(samples.len() * dims.len());
            used.for_each(|meta| lengths.extend(dims.iter().map(|&d| real(meta, d))));
            (lengths, smallvec::smallvec![samples.len() as i64, dims.len() as i64])
        });
        self.mask = pad.mask_bits()?;
        self.shape.push(samples.len() as i64);
        self.shape.extend(self.permute.iter().map(|&d| size[d]));
        let sides = (0..ndim).map(|d| *pad.side.at(d)).collect();
        self.placement = Placement::Padded(Padded { size, sides, dims });
        Ok(())
    }

    /// The mask and its layout: the samples, then the padded dims in the result's order.
    pub(crate) fn mask_layout(&self) -> Result<Option<(MaskBits, Layout)>> {
        let (Some(mask), Placement::Padded(padded)) = (self.mask, &self.placement) else {
            return Ok(None);
        };
        let kept = self.permute.iter().filter(|&d| padded.dims.contains(d));
        let shape = kept.map(|&d| padded.size[d]);
        let shape: Dims = std::iter::once(self.num_samples as i64).chain(shape).collect();
        Ok(Some((mask, Layout::compact(mask.dtype, &shape)?)))
    }
}

/// The extent in the batch of a padded dim of `ndim`, of which the samples' largest is `longest`. One size or multiple for all is
/// for the dims in [`Pad::dims`], not for those that the other option names.
pub(crate) fn padded_extent(pad: &Pad, dim: usize, ndim: usize, longest: i64) -> Result<i64> {
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
    rounded.ok_or_else(|| Error::TooLarge(text()))
}

/// The sample dims to pad: those that `dims`, an entry of `size` or a `multiple_of` above 1 name, so that
/// the same options pad the same dims in every batch. If nothing names one, all that differ; of samples
/// of one dim always that one.
pub(crate) fn padded_dims(pad: &Pad, differs: &[bool]) -> Result<SmallVec<[bool; 4]>> {
    let ndim = differs.len();
    if pad.dims.is_none() && pad.size == PerDim::All(None) && pad.multiple_of == PerDim::All(1) {
        return Ok(if ndim == 1 { smallvec::smallvec![true] } else { differs.into() });
    }
    let refuse = |text| Err(Error::Argument(text));
    let mut named: SmallVec<[bool; 4]> = smallvec::smallvec![false; ndim];
    for &dim in pad.dims.iter().flatten() {
        let dim = resolve_dim("dims", dim, ndim)?;
        if std::mem::replace(&mut named[dim], true) {
            return refuse(format!("dims names dim {dim} twice"));
        }
    }
    let mut singles: SmallVec<[String; 2]> = SmallVec::new();
    for (d, &size) in pad.size.values().iter().enumerate() {
        match size {
            Some(size @ ..0) => return refuse(format!("size={size} is negative")),
            Some(size) if pad.size.is_one() => singles.push(format!("size={size}")),
            Some(_) => named[d] = true,
            None => {}
        }
    }
    for (d, &multiple) in pad.multiple_of.values().iter().enumerate() {
        match multiple {
            ..1 => return refuse(format!("multiple_of must be at least 1, got {multiple}")),
            1 => {}
            _ if pad.multiple_of.is_one() => singles.push(format!("multiple_of={multiple}")),
            _ => named[d] = true,
        }
    }
    match (singles.first(), &pad.dims) {
        _ if ndim == 1 => Ok(smallvec::smallvec![true]),
        (Some(one), _) if ndim == 0 => refuse(format!("{one} for samples without dims")),
        (Some(one), None) => refuse(format!(
            "{one} for samples of {ndim} dims: name those to pad in dims, or give one entry for each"
        )),
        (Some(one), Some(dims)) if dims.is_empty() => {
            refuse(format!("{one} is for the dims that dims names, which is empty"))
        }
        (_, None) if !named.contains(&true) => Ok(differs.into()),
        _ => Ok(named),
    }
}
