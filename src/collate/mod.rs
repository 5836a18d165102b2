//! Stage 2. What the batch looks like: form, dtype, transform, place.

mod affine;
mod pad;
mod quantize;
mod ragged;
mod transform;

use std::sync::Arc;

use crate::tensor::{DType, Device, Error, Result};

pub use affine::Affine;
pub(crate) use pad::MaskBits;
pub use pad::{Mask, Pad, PerDim, Side};
pub(crate) use quantize::{e8m0_value, Rescale};
pub use quantize::{AnyTransform, Dequantize, Granularity, Quantize, Scales};
pub use ragged::Ragged;
pub use transform::Transform;

/// The options of one batch.
///
/// ```
/// use windrow::{Collate, DType, Mask, Pad, Side};
/// let rows = Collate::pad(Pad::new().side(Side::Left).multiple_of(8).mask(Mask::Real)).cast(DType::I64);
/// # let _ = rows;
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Collate {
    pub(crate) form: Form,
    pub(crate) dtype: Option<DType>,
    pub(crate) transform: Transform,
    pub(crate) device: Option<Device>,
    /// An increment for each sample, added to its elements.
    pub(crate) increments: Option<Arc<[i64]>>,
    pub(crate) saturate: bool,
    /// The operation on elements by scales that some of them share.
    pub(crate) rescale: Option<Box<Rescale>>,
}

/// The form of a batch.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Form {
    /// Equal shapes along a new dim 0: `[N, *shape]`.
    Stack,
    /// Equal but for `dim`, joined along it.
    Concat {
        /// The dim that may differ; negative counts from the end.
        dim: i64,
    },
    /// Equal rank, filled up to the largest: `[N, *max]`.
    Pad(Pad),
    /// Equal but for dim 0, one after the other: `[sum, *rest]` and offsets.
    Ragged(Ragged),
}

impl Form {
    /// The names of all forms: those of Python's calls.
    pub const NAMES: [&'static str; 4] = ["stack", "concat", "pad", "ragged"];

    /// The name of this form.
    pub fn name(&self) -> &'static str {
        let [stack, concat, pad, ragged] = Form::NAMES;
        match self {
            Form::Stack => stack,
            Form::Concat { .. } => concat,
            Form::Pad(_) => pad,
            Form::Ragged(_) => ragged,
        }
    }
}

impl Collate {
    /// Whether batches have the same bits by either: equal options, with zeros of one sign.
    pub(crate) fn is_same(&self, other: &Collate) -> bool {
        let value = |form: &Form| match form {
            Form::Pad(pad) => pad.value.signs(),
            _ => [false; 2],
        };
        let mut means = self.transform.mean.iter().zip(&other.transform.mean);
        let sign = |collate: &Collate| collate.transform.scale.is_sign_negative();
        self == other
            && sign(self) == sign(other)
            && value(&self.form) == value(&other.form)
            && means.all(|(a, b)| a.is_sign_negative() == b.is_sign_negative())
    }

    /// A form without options.
    fn new(form: Form) -> Collate {
        let transform = Transform::default();
        Collate {
            form,
            dtype: None,
            transform,
            device: None,
            increments: None,
            saturate: false,
            rescale: None,
        }
    }

    /// Stacks samples of equal shape to `[N, *shape]`.
    ///
    /// ```
    /// use windrow::{assemble, Collate};
    /// let batch = assemble(&[vec![1, 2], vec![3, 4]], &Collate::stack())?;
    /// assert_eq!((batch.data().shape(), batch.lengths().is_none()), (&[2, 2][..], true));
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn stack() -> Collate {
        Collate::new(Form::Stack)
    }

    /// Joins samples, which are equal but for `dim`, along it, with lengths and offsets.
    ///
    /// ```
    /// use windrow::{assemble, Collate};
    /// let batch = assemble(&[vec![1, 2], vec![3]], &Collate::concat(0))?;
    /// assert_eq!(batch.data().as_slice::<i32>()?, [1, 2, 3]);
    /// assert_eq!(batch.lengths().unwrap().as_slice::<i64>()?, [2, 1]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn concat(dim: i64) -> Collate {
        Collate::new(Form::Concat { dim })
    }

    /// Pads samples of equal rank to `[N, *max]`, with lengths and perhaps a mask.
    ///
    /// ```
    /// use windrow::{assemble, Collate, Pad};
    /// let batch = assemble(&[vec![1, 2], vec![3]], &Collate::pad(Pad::new().value(-1)))?;
    /// assert_eq!(batch.data().as_slice::<i32>()?, [1, 2, 3, -1]);
    /// assert_eq!(batch.lengths().unwrap().as_slice::<i64>()?, [2, 1]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn pad(pad: Pad) -> Collate {
        Collate::new(Form::Pad(pad))
    }

    /// Joins samples, which are equal but for dim 0, to values, offsets and lengths.
    ///
    /// ```
    /// use windrow::{assemble, Collate, Ragged};
    /// let batch = assemble(&[vec![1, 2], vec![3]], &Collate::ragged(Ragged::new()))?;
    /// assert_eq!(batch.data().as_slice::<i32>()?, [1, 2, 3]);
    /// assert_eq!(batch.offsets().unwrap().as_slice::<i64>()?, [0, 2, 3]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn ragged(ragged: Ragged) -> Collate {
        Collate::new(Form::Ragged(ragged))
    }

    /// Sets the dtype of the batch; without it, all samples must share a dtype, which is kept.
    ///
    /// Integers and bools wrap to an integer dtype. Floats are truncated toward zero and saturate in an integer dtype, where
    /// NaN becomes 0. In bool, every value except 0 is true, NaN included. A floating-point dtype is rounded to once, to
    /// nearest even, with overflow to infinity, in float8_e4m3fn to NaN, as it has no infinity, unless results
    /// [saturate](Collate::saturate). Samples of complex, int4, uint4, float4 and other float8 dtypes are never cast.
    ///
    /// ```
    /// use windrow::{Collate, DType, Engine};
    /// let activations: [&[f32]; 1] = [&[0.3, 460.0, 470.0, f32::NAN]];
    /// let engine = Engine::host();
    /// let codes = |collate| -> windrow::Result<Vec<u8>> {
    ///     Ok(engine.assemble(&activations, &collate)?.data().bytes()?.as_slice()?.to_vec())
    /// };
    /// let cast = Collate::stack().cast(DType::F8E4M3FN);
    /// assert_eq!(codes(cast.clone())?, [0x2a, 0x7e, 0x7f, 0x7f]);
    /// assert_eq!(codes(cast.saturate())?, [0x2a, 0x7e, 0x7e, 0x7f]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    #[must_use]
    pub fn cast(mut self, dtype: DType) -> Collate {
        self.dtype = Some(dtype);
        self
    }

    /// Saturates in a batch of float8_e4m3fn or float8_e5m2: values beyond the largest finite one (448 and 57344),
    /// infinities among them, become it; NaN stays NaN. Samples of that dtype that no arithmetic is done on are moved
    /// as they are. A batch of another dtype fails with [`Error::Argument`].
    #[must_use]
    pub fn saturate(mut self) -> Collate {
        self.saturate = true;
        self
    }

    /// Checks that results of the dtype of [`Collate::cast`] can saturate, if [`Collate::saturate`]
    /// is set; without a cast nothing is checked here, nor is the dtype of a [`Quantize`].
    ///
    /// # Errors
    /// [`Error::Argument`].
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn check_saturate(&self) -> Result<()> {
        self.dtype.map_or(Ok(()), |dtype| self.check_saturate_in(dtype))
    }

    /// Checks that results of this dtype can saturate, if [`Collate::saturate`] is set; else [`Error::Argument`].
    #[inline]
    pub(crate) fn check_saturate_in(&self, dtype: DType) -> Result<()> {
        if !self.saturate || dtype.is_float8() {
            return Ok(());
        }
        let text =
            format!("saturate is for batches of float8_e4m3fn or float8_e5m2, not of {dtype}");
        Err(Error::argument(text))
    }

    /// Sets arithmetic and axis order on the way ([`Transform`]), or scales that are found ([`Quantize`]) or given
    /// ([`Dequantize`]). It replaces an earlier one of any kind. Arithmetic on integers or bools needs a dtype by
    /// [`Collate::cast`], and so does a [`Dequantize`]; a [`Quantize`] has its own.
    #[must_use]
    pub fn transform(mut self, transform: impl Into<AnyTransform>) -> Collate {
        (self.transform, self.rescale) = match transform.into() {
            AnyTransform::Elements(transform) => (transform, None),
            AnyTransform::Quantize(quantize) => {
                (Transform::default(), Some(Box::new(Rescale::Quantize(quantize))))
            }
            AnyTransform::Dequantize(dequantize) => {
                (Transform::default(), Some(Box::new(Rescale::Dequantize(dequantize))))
            }
        };
        self
    }

    /// Whether the batch has scales that are found on the way.
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn is_quantised(&self) -> bool {
        matches!(self.rescale.as_deref(), Some(Rescale::Quantize(_)))
    }

    /// Whether the scales of the samples are given, by a [`Dequantize`].
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn is_dequantised(&self) -> bool {
        matches!(self.rescale.as_deref(), Some(Rescale::Dequantize(_)))
    }

    /// Whether there is neither arithmetic nor an order of dims nor scales: elements change by a
    /// cast and by [`Collate::increments`] alone.
    #[inline]
    pub(crate) fn has_no_transform(&self) -> bool {
        self.rescale.is_none() && self.transform == Transform::default()
    }

    /// Sets the device of the batch; without it, the batch is where the samples are.
    #[must_use]
    pub fn device(mut self, device: Device) -> Collate {
        self.device = Some(device);
        self
    }

    /// Adds to the elements of each sample a number of its own, on the way to or from a device: whole numbers, modulo a power
    /// of two. Batches on the host are raised by [`add_per_sample`](crate::bindings::add_per_sample), which finds sums that do not fit.
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    #[must_use]
    pub fn increments(mut self, increments: impl Into<Arc<[i64]>>) -> Collate {
        self.increments = Some(increments.into());
        self
    }

    /// The form of the batch.
    pub fn form(&self) -> &Form {
        &self.form
    }
}

/// The position of `dim`, which is counted from the front or, if negative, from the end.
///
/// # Errors
/// [`Error::Argument`], with the option's name, for a dim that samples do not have.
pub(crate) fn resolve_dim(name: &str, dim: i64, ndim: usize) -> Result<usize> {
    let from_front = if dim < 0 { dim + ndim as i64 } else { dim };
    if (0..ndim as i64).contains(&from_front) {
        Ok(from_front as usize)
    } else {
        let cure = match ndim {
            0 => "they have none to name".into(),
            _ => format!("pass one of -{ndim} to {}", ndim - 1),
        };
        Err(Error::argument(format!("{name}={dim} for samples of {ndim} dims: {cure}")))
    }
}
