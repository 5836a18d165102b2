//! Checks of samples and options, made before a [`BatchShape`](super::BatchShape) is.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::collate::{resolve_dim, Affine, Collate, Form};
use crate::plan::policy::POLICY;
use crate::samples::{SampleList, TensorMeta};
use crate::tensor::{
    small_vec, DType, Device, DimSet, Dims, Error, ErrorValue, Hint, Mismatch, Result,
};

/// The [`Error::Shape`] for joined samples without dims.
pub(super) fn no_dims(first: &[i64]) -> Error {
    let mismatch = Mismatch::new(Some(0), "at least one dim", first);
    mismatch.with_hint(Hint::Stack).into_error(Error::Shape)
}

/// Checks that there is memory for all tables of a long list before the first is made: addresses merged to ranges, and lengths
/// and offsets, each up to three times, here and in the batch. They are megabytes, and an allocation that fails ends the process.
/// Nothing is kept.
///
/// # Errors
/// [`Error::OutOfMemory`].
pub(super) fn check_room(samples: usize, ndim: usize) -> Result<()> {
    if samples < POLICY.many_samples {
        return Ok(());
    }
    let bytes = samples.saturating_mul(64 + 24 * ndim);
    let mut capacity = Vec::<u8>::new();
    capacity.try_reserve_exact(bytes).map_err(|_| Error::OutOfMemory { bytes: bytes as u64 })?;
    // The compiler would otherwise remove the allocation.
    std::hint::black_box(&capacity);
    Ok(())
}

/// The devices of the samples and of the batch; a mix of page-locked and other host memory counts as the latter.
///
/// # Errors
/// [`Error::Device`] for samples in several places and for a batch on another device than theirs; [`Error::Layout`] for a
/// foreign byte order where a kernel would read it; [`Error::NoDriver`] for a device or a page-locked batch in a build without
/// CUDA.
#[inline]
pub(super) fn check_devices(used: &UsedMetas<'_>, collate: &Collate) -> Result<(Device, Device)> {
    let first = used.meta(0).device;
    let mut source = first;
    let mut found = None;
    for index in used.several() {
        match (source, used.meta(index).device) {
            (known, device) if known == device => {}
            // Pageable and page-locked memory are both host memory.
            (Device::Cpu | Device::Pinned, Device::Cpu | Device::Pinned) => {
                source = Device::Cpu;
            }
            (_, device) => {
                let expected = || first.to_string().into();
                Mismatch::note(&mut found, index, expected, device.to_string().into());
            }
        }
    }
    if let Some(found) = found {
        let hint = Hint::Text("samples of one batch are all on the host or all on one device");
        return Err(found.with_hint(hint).into_error(Error::Device));
    }
    let device = collate.device.unwrap_or(source);
    if source.is_cuda() || source == Device::Pinned && device.is_cuda() {
        // The host turns elements round as it reads them; kernels do not.
        let expected = || "native byte order, in which alone a device reads samples".into();
        let fits = |from: DType, _: &[i64]| from.is_native();
        let got = |index: usize| used.meta(index).dtype.into();
        used.check_as(
            fits,
            expected,
            got,
            Hint::Text("copy them on the host first"),
            Error::Layout,
        )?;
    }
    match (source, device) {
        (Device::Cuda(from), Device::Cuda(to)) if from != to => {
            let found = Mismatch::new(Some(0), device.to_string(), source.to_string());
            let hint = Hint::Text("copy the samples to that device first");
            Err(found.with_hint(hint).into_error(Error::Device))
        }
        (Device::Cuda(_), _) | (_, Device::Cuda(_) | Device::Pinned) if !crate::HAS_CUDA => {
            let which = if device == Device::Cpu { source } else { device };
            Err(Error::host_only(which))
        }
        places => Ok(places),
    }
}

/// Refuses an integer or bool dtype, for a batch with arithmetic and no cast: arithmetic on integers gives numbers that those
/// cannot hold, so the caller has to name a dtype. The error is [`Error::DType`].
pub(super) fn check_float(dtype: DType) -> Result<()> {
    if !dtype.is_integer() && dtype != DType::Bool {
        return Ok(());
    }
    let mismatch = Mismatch::new(Some(0), "a floating-point dtype for scale, mean and std", dtype);
    Err(mismatch.with_hint(Hint::CastToFloat).into_error(Error::DType))
}

/// The error text for dtypes that the engine can only move.
pub(super) const ONLY_MOVED: &str =
    "complex and smaller dtypes, and float8 but for e4m3fn and e5m2, are moved, never cast or transformed";

/// Checks that samples are cast or computed with only if both dtypes allow arithmetic, which complex ones and most of one byte do
/// not: those are moved as they are. The error is [`Error::DType`].
#[inline]
pub(super) fn check_arithmetic(used: &UsedMetas<'_>, dtype: DType, computes: bool) -> Result<()> {
    let fits = |from: DType, _: &[i64]| {
        from.native() == dtype && !computes || from.is_arithmetic() && dtype.is_arithmetic()
    };
    let expected = || {
        "bool, an integer, float16, bfloat16, float32, float64, float8_e4m3fn or float8_e5m2".into()
    };
    let got = |index: usize| match used.meta(index).dtype {
        from if from.is_arithmetic() => ErrorValue::Text(format!("a cast to {dtype}")),
        from => from.into(),
    };
    used.check_as(fits, expected, got, Hint::Text(ONLY_MOVED), Error::DType)
}

/// Refuses coefficients beyond float32 by [`Error::Argument`]: arithmetic is in float32 unless all samples or the results are
/// float64.
pub(super) fn check_width(used: &UsedMetas<'_>, dtype: DType, affine: &Affine) -> Result<()> {
    let Some(channel) = affine.beyond_f32() else { return Ok(()) };
    if used.all(|from, _| [from.native(), dtype].contains(&DType::F64)) {
        return Ok(());
    }
    let (factor, offset) = (affine.a()[channel], affine.b()[channel] + 0.0);
    Err(Error::argument(format!(
        "the factor {factor:e} and the offset {offset:e} of channel {channel} are beyond float32, in which they are applied; \
         float64 samples or results have them applied in float64"
    )))
}

/// The sample dim of each dim of the result, in order without `permute`; [`Error::Argument`] for a `permute` that is no
/// order of `ndim` dims.
#[inline]
pub(super) fn resolve_permute(collate: &Collate, ndim: usize) -> Result<SmallVec<[usize; 4]>> {
    let Some(order) = &collate.transform.permute else { return Ok(small_vec(0..ndim)) };
    let mut seen = DimSet::default();
    let mut permute = SmallVec::new();
    for &dim in order {
        let dim = resolve_dim("permute", dim, ndim)?;
        permute.push(dim);
        seen.insert(dim);
    }
    if permute.len() != ndim || seen != DimSet::all(ndim) {
        return Err(Error::argument(format!(
            "permute={order:?} is not an order of {ndim} dims: name each of them once"
        )));
    }
    Ok(permute)
}

/// The sample dim of the channels: the one that the options name, else the only one whose extent is their number in all samples,
/// of the dims that are neither joined nor named to be padded.
///
/// # Errors
/// [`Error::Argument`] if there is no such dim; [`Error::Shape`] for samples of another extent there.
pub(super) fn resolve_channel_dim(
    used: &UsedMetas<'_>,
    collate: &Collate,
    channels: usize,
) -> Result<usize> {
    let shape = used.shape();
    let channels = channels as i64;
    let dim = match collate.transform.channel_dim {
        Some(dim) => resolve_dim("channel_dim", dim, shape.len())?,
        None => {
            let varies = |d: usize| match &collate.form {
                Form::Stack => false,
                Form::Concat { dim } => resolve_dim("dim", *dim, shape.len()) == Ok(d),
                Form::Ragged(_) => d == 0,
                Form::Pad(pad) => pad
                    .dims
                    .iter()
                    .flatten()
                    .any(|&dim| resolve_dim("dims", dim, shape.len()) == Ok(d)),
            };
            let mut fitting: SmallVec<[usize; 4]> =
                (0..shape.len()).filter(|&d| shape[d] == channels && !varies(d)).collect();
            if fitting.len() > 1 {
                fitting.retain(|d| used.all(|_, shape| shape[*d] == channels));
            }
            match fitting[..] {
                [dim] => dim,
                _ => {
                    return Err(Error::argument(format!(
                        "mean or std has {channels} entries; channel_dim must say which dim of {} they belong to",
                        ErrorValue::from(shape)
                    )))
                }
            }
        }
    };
    let expected = || ErrorValue::Text(format!("{channels} channels along dim {dim}"));
    let got = |index: usize| ErrorValue::from(&used.shape_of(index)[..]);
    let fits = |_, shape: &[i64]| shape[dim] == channels;
    let hint = Hint::Text("mean and std have one entry for each channel");
    used.check_as(fits, expected, got, hint, Error::Shape)?;
    Ok(dim)
}

/// The dtype of the batch: the one asked for, or that of all samples, in native byte order.
///
/// # Errors
/// [`Error::DType`] for a dtype of foreign byte order, or samples of several dtypes without one asked for.
#[inline]
pub(super) fn resolve_dtype(used: &UsedMetas<'_>, collate: &Collate) -> Result<DType> {
    if let Some(dtype) = collate.dtype {
        let hint = "batches are in native byte order: DType::native()";
        let refused =
            || Mismatch::for_subject("dtype", dtype.native(), dtype).with_hint(Hint::Text(hint));
        return if dtype.is_native() { Ok(dtype) } else { Err(refused().into_error(Error::DType)) };
    }
    let dtype = used.meta(0).dtype.native();
    let same = |from: DType, _: &[i64]| from.native() == dtype;
    let of = |index: usize| ErrorValue::from(used.meta(index).dtype);
    used.check_as(same, || of(0), of, Hint::Cast, Error::DType)?;
    Ok(dtype)
}

/// Every dtype and shape that some sample has. A check looks at these rather than at all samples. Rows of several lengths are
/// represented by the shortest and the longest: a check compares an extent with a fixed number or an upper bound, so if
/// both of these pass, all rows do.
pub(crate) struct UsedMetas<'a> {
    /// The first sample's, but for the extent of dim 0 of a row.
    first: &'a TensorMeta,
    /// The first sample's.
    shape: Dims,
    num_samples: usize,
    per_sample: PerSample<'a>,
}

enum PerSample<'a> {
    /// All are as the first.
    Same,
    /// The position of each, and those in use.
    Ids { metas: &'a [TensorMeta], ids: &'a [u32], used: Vec<u32> },
    /// The extent of dim 0 of each, and the shapes of the shortest and the longest.
    Rows { lengths: &'a [i64], ends: [Dims; 2] },
}

impl<'a> UsedMetas<'a> {
    /// The metas of a list, which has samples.
    pub fn new(samples: &'a SampleList<'_>) -> UsedMetas<'a> {
        if let Some((first, lengths @ [length, ..])) = samples.as_rows() {
            return UsedMetas::for_rows(first, samples.len(), lengths, *length);
        }
        let (metas, num_samples) = (samples.metas(), samples.len());
        let (first, per_sample) = match samples.meta_ids() {
            None => (&metas[0], PerSample::Same),
            Some(ids) => {
                let mut seen = vec![false; metas.len()];
                let is_new = |id: &&u32| !std::mem::replace(&mut seen[**id as usize], true);
                let used = ids.iter().filter(is_new).copied().collect();
                (&metas[ids[0] as usize], PerSample::Ids { metas, ids, used })
            }
        };
        UsedMetas { first, shape: Dims::from_slice(first.layout.shape()), num_samples, per_sample }
    }

    /// The metas of rows that differ from `first` in the extent of dim 0 alone, which is in `lengths`, or, if that is empty,
    /// `length` for all. `length` is that of the first row.
    pub fn for_rows(
        first: &'a TensorMeta,
        num_samples: usize,
        lengths: &'a [i64],
        length: i64,
    ) -> UsedMetas<'a> {
        let of_row = |length| row_shape(first.layout.shape(), length);
        let per_sample = match lengths {
            [] => PerSample::Same,
            _ => {
                let further =
                    |[least, most]: [i64; 2], &length: &i64| [least.min(length), most.max(length)];
                let [least, most] = lengths.iter().fold([length; 2], further);
                PerSample::Rows { lengths, ends: [of_row(least), of_row(most)] }
            }
        };
        UsedMetas { first, shape: of_row(length), num_samples, per_sample }
    }

    /// The shape of the first sample.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.num_samples
    }

    /// The metadata of one sample, but for the extent of dim 0 of a row.
    pub fn meta(&self, index: usize) -> &TensorMeta {
        match &self.per_sample {
            PerSample::Ids { metas, ids, .. } => &metas[ids[index] as usize],
            _ => self.first,
        }
    }

    /// The positions of the samples behind the first, if they may differ in more than the extent of dim 0; else none.
    fn several(&self) -> std::ops::Range<usize> {
        match &self.per_sample {
            PerSample::Ids { ids, .. } => 1..ids.len(),
            _ => 0..0,
        }
    }

    /// The shape of one sample.
    pub fn shape_of(&self, index: usize) -> Dims {
        match &self.per_sample {
            PerSample::Same => self.shape.clone(),
            PerSample::Ids { .. } => self.meta(index).layout.shape().into(),
            PerSample::Rows { lengths, .. } => row_shape(&self.shape, lengths[index]),
        }
    }

    /// Whether `fits` holds for the dtype and shape of every sample; it is asked once for each different metadata, and
    /// for the shortest and the longest row.
    pub fn all(&self, mut fits: impl FnMut(DType, &[i64]) -> bool) -> bool {
        match &self.per_sample {
            PerSample::Same => fits(self.first.dtype, &self.shape),
            PerSample::Ids { metas, used, .. } => used.iter().all(|&id| {
                let TensorMeta { dtype, layout, .. } = &metas[id as usize];
                fits(*dtype, layout.shape())
            }),
            PerSample::Rows { ends, .. } => ends.iter().all(|shape| fits(self.first.dtype, shape)),
        }
    }

    /// The extent of a dim of each sample, none counted for more than `most`.
    pub fn extents(&self, dim: usize, most: i64) -> Cow<'a, [i64]> {
        match &self.per_sample {
            PerSample::Rows { lengths, ends: [_, longest] } if dim == 0 => match longest[0] <= most
            {
                true => Cow::Borrowed(lengths),
                false => lengths.iter().map(|&length| length.min(most)).collect(),
            },
            PerSample::Ids { metas, ids, .. } => {
                let of = |&id: &u32| metas[id as usize].layout.shape()[dim].min(most);
                ids.iter().map(of).collect()
            }
            _ => Cow::Owned(vec![self.shape[dim].min(most); self.num_samples]),
        }
    }

    /// Checks that `fits` holds for the shape of every sample; else [`Error::Shape`] for those that it does not hold for,
    /// with the first sample's shape as the expected one.
    #[inline]
    pub fn check_shapes(&self, fits: impl Fn(&[i64]) -> bool, hint: Hint) -> Result<()> {
        let of = |index: usize| ErrorValue::from(&self.shape_of(index)[..]);
        self.check_as(|_, shape: &[i64]| fits(shape), || of(0), of, hint, Error::Shape)
    }

    /// Checks that `fits` holds for the dtype and shape of every sample; else returns an error of this class, which lists the
    /// samples that do not fit, with functions that make what was expected and what came.
    #[inline]
    pub fn check_as(
        &self,
        fits: impl Fn(DType, &[i64]) -> bool,
        expected: impl Fn() -> ErrorValue,
        got: impl Fn(usize) -> ErrorValue,
        hint: Hint,
        error: fn(Box<Mismatch>) -> Error,
    ) -> Result<()> {
        if self.all(&fits) {
            return Ok(());
        }
        let mut found = None;
        let is_wrong = |&index: &usize| !fits(self.meta(index).dtype, &self.shape_of(index));
        for index in (0..self.num_samples).filter(is_wrong) {
            Mismatch::note(&mut found, index, &expected, got(index));
        }
        match found {
            Some(found) => Err(error(Box::new(found.with_hint(hint)))),
            None => Ok(()),
        }
    }
}

/// The shape of a row like this one, with the extent `length` of dim 0.
fn row_shape(like: &[i64], length: i64) -> Dims {
    let mut shape = Dims::from_slice(like);
    shape.iter_mut().take(1).for_each(|extent| *extent = length);
    shape
}
