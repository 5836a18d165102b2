//! Checks of samples and options, made before a [`BatchShape`](super::BatchShape) is.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::collate::{resolve_dim, Collate};
use crate::plan::policy::POLICY;
use crate::samples::{SampleList, TensorMeta};
use crate::tensor::{DType, Device, Error, Facet, Hint, Mismatch, Result};

pub(super) fn no_dims(first: &TensorMeta) -> Error {
    let mismatch = Mismatch::new(Some(0), "at least one dim", first.layout.shape());
    Error::Shape(Box::new(mismatch.with_hint(Hint::Stack)))
}

pub(super) fn shape_mismatch(
    samples: &SampleList<'_>,
    index: usize,
) -> (Facet, Facet, fn(Box<Mismatch>) -> Error) {
    let shape = |i: usize| Facet::from(samples.meta(i).layout.shape());
    (shape(0), shape(index), Error::Shape)
}

fn dtype_mismatch(
    samples: &SampleList<'_>,
    index: usize,
) -> (Facet, Facet, fn(Box<Mismatch>) -> Error) {
    (samples.meta(0).dtype.into(), samples.meta(index).dtype.into(), Error::DType)
}

/// The tables of a long list are megabytes, and an allocation that fails ends the process. So there
/// has to be room for all of them before the first is made: addresses merged to ranges, and lengths
/// and offsets, each up to three times, here and in the batch.
///
/// # Errors
/// [`Error::OutOfMemory`].
pub(super) fn check_room(samples: &SampleList<'_>) -> Result<()> {
    if samples.len() < POLICY.many_samples {
        return Ok(());
    }
    let bytes = samples.len().saturating_mul(64 + 24 * samples.ndim());
    let mut room = Vec::<u8>::new();
    room.try_reserve_exact(bytes).map_err(|_| Error::OutOfMemory { bytes: bytes as u64 })?;
    // Or it would not be asked for at all.
    std::hint::black_box(&room);
    Ok(())
}

/// Where the samples are and where the batch will be.
pub(super) fn check_devices(
    samples: &SampleList<'_>,
    collate: &Collate,
) -> Result<(Device, Device)> {
    let first = samples.meta(0).device;
    let mut source = first;
    let mut found = None;
    if samples.metas().len() > 1 {
        for index in 1..samples.len() {
            match (source, samples.meta(index).device) {
                (known, own) if known == own => {}
                // Both are host memory.
                (Device::Cpu | Device::Pinned, Device::Cpu | Device::Pinned) => {
                    source = Device::Cpu;
                }
                (_, own) => {
                    let expected = || first.to_string().into();
                    Mismatch::note(&mut found, index, expected, own.to_string().into());
                }
            }
        }
    }
    if let Some(found) = found {
        let hint = Hint::Text("samples of one batch are all on the host or all on one device");
        return Err(Error::Device(Box::new(found.with_hint(hint))));
    }
    let device = collate.device.unwrap_or(source);
    match (source, device) {
        (Device::Cuda(from), Device::Cuda(to)) if from != to => {
            let found = Mismatch::new(Some(0), device.to_string(), source.to_string());
            let hint = Hint::Text("copy the samples to that device first");
            Err(Error::Device(Box::new(found.with_hint(hint))))
        }
        (Device::Cuda(_), _) | (_, Device::Cuda(_) | Device::Pinned) if !crate::HAS_CUDA => {
            let which = if device == Device::Cpu { source } else { device };
            Err(Error::host_only(which))
        }
        places => Ok(places),
    }
}

/// Arithmetic on integers gives numbers that those cannot hold: where to is the caller's to say.
pub(super) fn check_float(dtype: DType) -> Result<()> {
    if !dtype.is_integer() && dtype != DType::Bool {
        return Ok(());
    }
    let mismatch = Mismatch::new(Some(0), "a floating-point dtype for scale, mean and std", dtype);
    Err(Error::DType(Box::new(mismatch.with_hint(Hint::CastToFloat))))
}

/// Complex and float8 samples are moved as they are: no cast, no arithmetic.
pub(super) fn check_arithmetic(
    samples: &SampleList<'_>,
    used: &UsedMetas<'_>,
    dtype: DType,
    computes: bool,
) -> Result<()> {
    let fits = |meta: &TensorMeta| {
        meta.dtype == dtype && !computes || meta.dtype.is_arithmetic() && dtype.is_arithmetic()
    };
    let expected = || "bool, an integer, float16, bfloat16, float32 or float64".into();
    let got = |index: usize| match samples.meta(index).dtype {
        own if own.is_arithmetic() => Facet::Text(format!("a cast to {dtype}")),
        own => own.into(),
    };
    let hint = Hint::Text("complex and float8 are moved, never cast or transformed");
    used.check_as(fits, expected, got, hint, Error::DType)
}

pub(super) fn resolve_permute(collate: &Collate, ndim: usize) -> Result<SmallVec<[usize; 4]>> {
    let Some(order) = &collate.transform.permute else { return Ok((0..ndim).collect()) };
    let mut seen: SmallVec<[bool; 4]> = smallvec::smallvec![false; ndim];
    let mut permute = SmallVec::new();
    for &dim in order {
        let dim = resolve_dim("permute", dim, ndim)?;
        permute.push(dim);
        seen[dim] = true;
    }
    if permute.len() != ndim || seen.contains(&false) {
        return Err(Error::Argument(format!("permute={order:?} is not an order of {ndim} dims")));
    }
    Ok(permute)
}

/// The dim of the channels, the extent of which every sample must have.
pub(super) fn resolve_channel_dim(
    samples: &SampleList<'_>,
    used: &UsedMetas<'_>,
    collate: &Collate,
    channels: usize,
) -> Result<usize> {
    let shape = samples.meta(0).layout.shape();
    let channels = channels as i64;
    let dim = match collate.transform.channel_dim {
        Some(dim) => resolve_dim("channel_dim", dim, shape.len())?,
        None => {
            let mut fitting = (0..shape.len()).filter(|&d| shape[d] == channels);
            match (fitting.next(), fitting.next()) {
                (Some(dim), None) => dim,
                _ => {
                    return Err(Error::Argument(format!(
                        "mean or std has {channels} entries; channel_dim must say which dim of {} they belong to",
                        Facet::from(shape)
                    )))
                }
            }
        }
    };
    let expected = || Facet::Text(format!("{channels} channels along dim {dim}"));
    let got = |index: usize| Facet::from(samples.meta(index).layout.shape());
    let fits = |meta: &TensorMeta| meta.layout.shape()[dim] == channels;
    let hint = Hint::Text("mean and std have one entry for each channel");
    used.check_as(fits, expected, got, hint, Error::Shape)?;
    Ok(dim)
}

/// The dtype of the batch: the one asked for, or that of all samples.
pub(super) fn resolve_dtype(
    samples: &SampleList<'_>,
    used: &UsedMetas<'_>,
    collate: &Collate,
) -> Result<DType> {
    if let Some(dtype) = collate.dtype {
        return Ok(dtype);
    }
    let dtype = samples.meta(0).dtype;
    let same = |meta: &TensorMeta| meta.dtype == dtype;
    used.check(same, |index| dtype_mismatch(samples, index), Hint::Cast)?;
    Ok(dtype)
}

/// Every `TensorMeta` that some sample has, so that a check looks at these rather than at all samples.
pub(super) struct UsedMetas<'a> {
    metas: &'a [TensorMeta],
    ids: Option<&'a [u32]>,
    used: Cow<'static, [u32]>,
    num_samples: usize,
}

impl<'a> UsedMetas<'a> {
    pub fn new(samples: &'a SampleList<'_>) -> UsedMetas<'a> {
        let (metas, ids) = (samples.metas(), samples.meta_ids());
        let used = match ids {
            None => Cow::Borrowed(&[0][..]),
            Some(ids) => {
                let mut seen = vec![false; metas.len()];
                ids.iter()
                    .filter(|&&id| !std::mem::replace(&mut seen[id as usize], true))
                    .copied()
                    .collect()
            }
        };
        UsedMetas { metas, ids, used, num_samples: samples.len() }
    }

    pub fn metas(&self) -> impl Iterator<Item = &'a TensorMeta> + '_ {
        self.used.iter().map(|&id| &self.metas[id as usize])
    }

    pub fn for_each(&self, mut f: impl FnMut(&TensorMeta)) {
        match self.ids {
            None => (0..self.num_samples).for_each(|_| f(&self.metas[0])),
            Some(ids) => ids.iter().for_each(|&id| f(&self.metas[id as usize])),
        }
    }

    pub fn per_sample(&self, f: impl Fn(&TensorMeta) -> i64) -> Vec<i64> {
        let mut values = Vec::with_capacity(self.num_samples);
        self.for_each(|meta| values.push(f(meta)));
        values
    }

    pub fn check(
        &self,
        fits: impl Fn(&TensorMeta) -> bool,
        mismatch: impl Fn(usize) -> (Facet, Facet, fn(Box<Mismatch>) -> Error),
        hint: Hint,
    ) -> Result<()> {
        if self.metas().all(&fits) {
            return Ok(());
        }
        let (expected, _, error) = mismatch(0);
        self.check_as(fits, || expected.clone(), |index| mismatch(index).1, hint, error)
    }

    /// Lists the offenders if some `TensorMeta` does not fit.
    pub fn check_as(
        &self,
        fits: impl Fn(&TensorMeta) -> bool,
        expected: impl Fn() -> Facet,
        got: impl Fn(usize) -> Facet,
        hint: Hint,
        error: fn(Box<Mismatch>) -> Error,
    ) -> Result<()> {
        if self.metas().all(&fits) {
            return Ok(());
        }
        let mut found = None;
        let mut index = 0;
        self.for_each(|meta| {
            if !fits(meta) {
                Mismatch::note(&mut found, index, &expected, got(index));
            }
            index += 1;
        });
        match found {
            Some(found) => Err(error(Box::new(found.with_hint(hint)))),
            None => Ok(()),
        }
    }
}
