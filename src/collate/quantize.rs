//! [`Quantize`] and [`Dequantize`]: elements that share a scale are divided by it, or multiplied.

use std::sync::Arc;

use super::transform::Transform;
use crate::tensor::{DType, Error, Result, Tensor};

/// The elements of a sample that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Granularity {
    /// All of them: one scale for each sample.
    Sample,
    /// A row of the last dim. If that dim is joined or padded, as with samples of one dim, the row is the sample.
    Row,
    /// Blocks of this many elements along the last dim, of which the last may be shorter.
    Block(i64),
}

/// Divides elements by a scale that is found on the way, and rounds them to float8 or int8.
///
/// The elements that share a scale ([`Granularity`]) are read for the largest magnitude among them, `amax`, in float32, float64
/// rounded to it. The scale is `max(amax, eps) / largest`, in float32, with 448 (float8_e4m3fn), 57344 (float8_e5m2) or 127
/// (int8) as `largest`; the result is `x / scale` in float32, rounded to nearest even and saturated. With float8_e8m0fnu as
/// [`Quantize::scale_dtype`] the scale is a power of two as OCP MX has it: `2^(floor(log2(max(amax, eps))) - e)`, where `e` is
/// 8 for float8_e4m3fn and 15 for float8_e5m2, and at least `2^-127`.
///
/// NaN does not count for `amax` and stays NaN, in int8 0. An infinity makes the scale infinite and the results 0, or NaN of infinities; of
/// powers of two, which have no infinity, NaN, and all results NaN. Padding has scale 1 and the value of the padding. The scales are
/// [`Batch::scales`](crate::Batch::scales), where the batch is.
///
/// A batch is quantised by the device that its samples are on or that it goes to, else on the host; so is each pair of a move.
///
/// ```
/// use windrow::collate::Granularity;
/// use windrow::{Collate, DType, Engine, Quantize};
/// let rows: [&[f32]; 2] = [&[1.0, -254.0, 3.0, 0.5], &[0.0; 4]];
/// let int8 = Quantize::new(DType::I8).scale(Granularity::Block(2));
/// let batch = Engine::host().assemble(&rows, &Collate::stack().transform(int8))?;
/// assert_eq!(batch.data().as_slice::<i8>()?, [0, -127, 127, 21, 0, 0, 0, 0]);
/// let scales = batch.scales().expect("a quantised batch has some");
/// assert_eq!((scales.shape(), scales.as_slice::<f32>()?[0]), (&[2, 2][..], 2.0));
/// # Ok::<(), windrow::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantize {
    pub(crate) dtype: DType,
    pub(crate) scale: Granularity,
    pub(crate) scale_dtype: DType,
    pub(crate) eps: f64,
}

impl Quantize {
    /// Quantises to float8_e4m3fn, float8_e5m2 or int8, with a float32 scale for each row of the last dim.
    ///
    /// ```
    /// use windrow::{assemble, Collate, DType, Quantize};
    /// let to_int8 = Quantize::new(DType::I8);
    /// let batch = assemble(&[vec![1f32, -127.0]], &Collate::stack().transform(to_int8))?;
    /// assert_eq!(batch.data().as_slice::<i8>()?, [1, -127]);
    /// assert_eq!(batch.scales().unwrap().as_slice::<f32>()?, [1.0]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn new(dtype: DType) -> Quantize {
        Quantize { dtype, scale: Granularity::Row, scale_dtype: DType::F32, eps: 1e-12 }
    }

    /// Sets which elements share a scale.
    #[must_use]
    pub fn scale(mut self, scale: Granularity) -> Quantize {
        self.scale = scale;
        self
    }

    /// Sets the dtype of the scales: float32, the default, or, with a float8 dtype, float8_e8m0fnu.
    #[must_use]
    pub fn scale_dtype(mut self, dtype: DType) -> Quantize {
        self.scale_dtype = dtype;
        self
    }

    /// Sets the least magnitude that a scale is made of, so that rows of zeros have one; the default is 1e-12.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Quantize {
        self.eps = eps;
        self
    }

    /// Checks the options by themselves.
    ///
    /// # Errors
    /// [`Error::Argument`] for another dtype, of scales too, a block of less than one element, or an `eps` that gives no scale.
    pub fn check(&self) -> Result<()> {
        let refuse = |text: String| Err(Error::argument(text));
        if !self.dtype.is_float8() && self.dtype != DType::I8 {
            let dtype = self.dtype;
            return refuse(format!(
                "Quantize: dtype must be float8_e4m3fn, float8_e5m2 or int8, got {dtype}"
            ));
        }
        if let Granularity::Block(elems @ ..1) = self.scale {
            return refuse(format!(
                "Quantize: scale must be a block of at least 1 element, got {elems}"
            ));
        }
        match self.scale_dtype {
            DType::F32 => {}
            DType::F8E8M0FNU if self.dtype.is_float8() => {}
            DType::F8E8M0FNU => {
                return refuse("Quantize: scales in e8m0 are those of float8, not of int8".into())
            }
            other => {
                return refuse(format!(
                    "Quantize: scale_dtype must be float32 or float8_e8m0fnu, got {other}"
                ))
            }
        }
        let least = self.eps32() / self.largest();
        if !least.is_finite() || least <= 0.0 {
            let eps = self.eps;
            return refuse(format!(
                "Quantize: eps must be a positive number that float32 holds, also divided by {}, got {eps}",
                self.largest()
            ));
        }
        Ok(())
    }

    /// The largest finite number of the dtype.
    pub(crate) fn largest(&self) -> f32 {
        match self.dtype {
            DType::I8 => 127.0,
            DType::F8E4M3FN => 448.0,
            _ => 57344.0,
        }
    }

    /// The exponent of [`Quantize::largest`], of a float8 dtype.
    pub(crate) fn exponent(&self) -> i32 {
        match self.dtype {
            DType::F8E4M3FN => 8,
            _ => 15,
        }
    }

    /// The least magnitude as float32.
    pub(crate) fn eps32(&self) -> f32 {
        self.eps as f32
    }

    /// The scale of elements whose largest magnitude is `amax`; `eps` stands for less, and for NaN.
    /// That of an infinity is one, or NaN in float8_e8m0fnu.
    pub(crate) fn scale_of(&self, amax: f32) -> f32 {
        let amax = amax.max(self.eps32());
        match self.scale_dtype {
            // float8_e8m0fnu has no infinity: NaN stands for it.
            DType::F8E8M0FNU if amax == f32::INFINITY => f32::NAN,
            DType::F8E8M0FNU => {
                // Subnormal numbers are below the least power all the same.
                let exponent = (amax.to_bits() >> 23) as i32 - 127 - self.exponent();
                e8m0_value((exponent.clamp(-127, 127) + 127) as u8)
            }
            _ => amax / self.largest(),
        }
    }

    /// The bits of a scale in `scale_dtype`, from the first byte on; for float8_e8m0fnu it is a power of two or NaN.
    pub(crate) fn bits_of(&self, scale: f32) -> [u8; 16] {
        let mut bits = [0; 16];
        match self.scale_dtype {
            DType::F8E8M0FNU => bits[0] = (scale.to_bits() >> 23) as u8,
            _ => bits[..4].copy_from_slice(&scale.to_ne_bytes()),
        }
        bits
    }
}

/// The value of a float8_e8m0fnu code: a power of two, or NaN for 255.
pub(crate) fn e8m0_value(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        code => f32::from_bits(u32::from(code) << 23),
    }
}

/// Multiplies elements of int8, float8_e4m3fn or float8_e5m2 with their scales, in float32, on the way to a floating-point
/// dtype, which [`Collate::cast`](super::Collate::cast) names.
///
/// ```
/// use windrow::{Collate, DType, Dequantize, Engine, Quantize, SampleList};
/// let (engine, rows): (_, [&[f32]; 2]) = (Engine::host(), [&[0.5, -2.0], &[3.0, 96.0]]);
/// let (int8, float32) = (Quantize::new(DType::I8), Collate::stack().cast(DType::F32));
/// let batch = engine.assemble(&rows, &Collate::stack().transform(int8))?;
/// let back = float32.transform(Dequantize::new(batch.scales().expect("one for each row").clone()));
/// let back = engine.assemble(&SampleList::rows(batch.data())?, &back)?;
/// for (x, y) in rows.concat().iter().zip(back.data().as_slice::<f32>()?) {
///     assert!((x - y).abs() <= 96.0 / 127.0 / 2.0);
/// }
/// # Ok::<(), windrow::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Dequantize {
    pub(crate) scales: Arc<Scales>,
    pub(crate) block: Option<i64>,
}

/// The scales of a [`Dequantize`], of a floating-point dtype or of float8_e8m0fnu.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Scales {
    /// The scales of the batch, laid out as [`Batch::scales`](crate::Batch::scales) of a batch of its form. If there
    /// are as many rows as samples, they are those of rows.
    Batch(Tensor),
    /// The scales of each sample: one without dims for all its elements, or one for each row or block.
    Samples(Vec<Tensor>),
}

impl From<Tensor> for Scales {
    fn from(scales: Tensor) -> Scales {
        Scales::Batch(scales)
    }
}

impl From<Vec<Tensor>> for Scales {
    fn from(scales: Vec<Tensor>) -> Scales {
        Scales::Samples(scales)
    }
}

impl Scales {
    /// The tensors of the scales: one of the batch, or one for each sample.
    pub(crate) fn tensors(&self) -> &[Tensor] {
        match self {
            Scales::Batch(scales) => std::slice::from_ref(scales),
            Scales::Samples(scales) => scales,
        }
    }
}

/// Equal are scales in the same memory; elements are not compared.
impl PartialEq for Scales {
    fn eq(&self, other: &Scales) -> bool {
        let is_same = |(one, other): (&Tensor, &Tensor)| {
            one.data_ptr() == other.data_ptr()
                && one.dtype() == other.dtype()
                && one.device() == other.device()
                && one.layout() == other.layout()
        };
        let (one, other_all) = (self.tensors(), other.tensors());
        std::mem::discriminant(self) == std::mem::discriminant(other)
            && one.len() == other_all.len()
            && one.iter().zip(other_all).all(is_same)
    }
}

impl Dequantize {
    /// Dequantises by the scales of samples or of rows.
    ///
    /// ```
    /// use windrow::{assemble, Collate, DType, Dequantize, Tensor};
    /// let by_scales = Dequantize::new(Tensor::from_vec(vec![0.5f32, 2.0], &[2])?);
    /// let collate = Collate::stack().transform(by_scales).cast(DType::F32);
    /// let batch = assemble(&[vec![2i8, 4], vec![3, 5]], &collate)?;
    /// assert_eq!(batch.data().as_slice::<f32>()?, [1.0, 2.0, 6.0, 10.0]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn new(scales: impl Into<Scales>) -> Dequantize {
        Dequantize { scales: Arc::new(scales.into()), block: None }
    }

    /// Sets that scales are those of blocks of `elems` elements along the last dim.
    #[must_use]
    pub fn block(mut self, elems: i64) -> Dequantize {
        self.block = Some(elems);
        self
    }

    /// Checks the options by themselves.
    ///
    /// # Errors
    /// [`Error::Argument`] for a block of less than one element.
    pub fn check(&self) -> Result<()> {
        match self.block {
            Some(elems @ ..1) => Err(Error::argument(format!(
                "Dequantize: block must be at least 1 element, got {elems}"
            ))),
            _ => Ok(()),
        }
    }
}

/// The operation on elements by their scales.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rescale {
    Quantize(Quantize),
    Dequantize(Dequantize),
}

/// A transform of samples on their way to the batch: see [`Collate::transform`](super::Collate::transform).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AnyTransform {
    /// Arithmetic and the order of dims.
    Elements(Transform),
    /// Conversion to a smaller dtype, by scales that are found.
    Quantize(Quantize),
    /// Conversion back, by scales that are given.
    Dequantize(Dequantize),
}

impl Default for AnyTransform {
    fn default() -> AnyTransform {
        AnyTransform::Elements(Transform::default())
    }
}

impl From<Transform> for AnyTransform {
    fn from(transform: Transform) -> AnyTransform {
        AnyTransform::Elements(transform)
    }
}

impl From<Quantize> for AnyTransform {
    fn from(quantize: Quantize) -> AnyTransform {
        AnyTransform::Quantize(quantize)
    }
}

impl From<Dequantize> for AnyTransform {
    fn from(dequantize: Dequantize) -> AnyTransform {
        AnyTransform::Dequantize(dequantize)
    }
}
