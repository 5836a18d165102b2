//! Stage 2. What the batch looks like: form, dtype, transform, place.

mod affine;
mod pad;
mod ragged;
mod transform;

use std::sync::Arc;

use crate::tensor::{DType, Device, Error, Result};

pub use affine::Affine;
pub(crate) use pad::MaskBits;
pub use pad::{Mask, Pad, PerDim, Side};
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

    /// The name of this one.
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
    fn new(form: Form) -> Collate {
        let transform = Transform::default();
        Collate { form, dtype: None, transform, device: None, increments: None }
    }

    /// Equal shapes to `[N, *shape]`.
    pub fn stack() -> Collate {
        Collate::new(Form::Stack)
    }

    /// Samples that are equal but for `dim`, joined along it, with lengths and offsets.
    pub fn concat(dim: i64) -> Collate {
        Collate::new(Form::Concat { dim })
    }

    /// Samples of equal rank to `[N, *max]`, with lengths and perhaps a mask.
    pub fn pad(pad: Pad) -> Collate {
        Collate::new(Form::Pad(pad))
    }

    /// Samples that are equal but for dim 0 to values, offsets and lengths.
    pub fn ragged(ragged: Ragged) -> Collate {
        Collate::new(Form::Ragged(ragged))
    }

    /// The dtype of the batch; without it, all samples must share a dtype, which is kept.
    ///
    /// Integers and bools wrap to an integer dtype. Floats are truncated toward zero and saturate in an integer dtype, where
    /// NaN becomes 0. In bool, every value except 0 is true, NaN included. A floating-point dtype is rounded to once, to
    /// nearest even, with overflow to infinity. Complex, float8, int4, uint4 and float4 samples are never cast.
    #[must_use]
    pub fn cast(mut self, dtype: DType) -> Collate {
        self.dtype = Some(dtype);
        self
    }

    /// Arithmetic and axis order on the way. Arithmetic on integers or bools needs a dtype by
    /// [`Collate::cast`].
    #[must_use]
    pub fn transform(mut self, transform: Transform) -> Collate {
        self.transform = transform;
        self
    }

    /// The device to place the batch on; without it, where the samples are.
    #[must_use]
    pub fn device(mut self, device: Device) -> Collate {
        self.device = Some(device);
        self
    }

    /// Adds to the elements of each sample a number of its own, on the way to or from a device: whole numbers, modulo a power
    /// of two. Batches on the host are raised by [`raise_rows`](crate::bindings::raise_rows), which finds sums that do not fit.
    #[doc(hidden)]
    #[must_use]
    pub fn increments(mut self, increments: impl Into<Arc<[i64]>>) -> Collate {
        self.increments = Some(increments.into());
        self
    }

    /// The form asked for.
    pub fn form(&self) -> &Form {
        &self.form
    }
}

/// A dim counted from the front or, if negative, from the end.
pub(crate) fn resolve_dim(name: &str, dim: i64, ndim: usize) -> Result<usize> {
    let from_front = if dim < 0 { dim + ndim as i64 } else { dim };
    if (0..ndim as i64).contains(&from_front) {
        Ok(from_front as usize)
    } else {
        Err(Error::Argument(format!("{name}={dim} for samples of {ndim} dims")))
    }
}
