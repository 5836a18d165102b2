//! Stage 2. What the batch looks like: form, dtype, transform, place.

mod affine;

pub use affine::Affine;

use crate::tensor::{DType, Device, Error, Result, Scalar};

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
    /// An option of another form, which is an error when the batch is planned.
    pub(crate) misplaced: Option<&'static str>,
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
    Ragged {
        /// The offsets as int32 instead of int64.
        offsets_i32: bool,
        /// Also give each row the index of its sample.
        batch_index: bool,
    },
}

impl Collate {
    fn new(form: Form) -> Collate {
        let transform = Transform::default();
        Collate { form, dtype: None, transform, device: None, misplaced: None }
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

    /// Samples that are equal but for dim 0 to values, offsets (int64) and lengths.
    pub fn ragged() -> Collate {
        Collate::new(Form::Ragged { offsets_i32: false, batch_index: false })
    }

    /// For a ragged batch, an error of any other: offsets as int32, refused (never wrapped) beyond
    /// `i32::MAX`.
    #[must_use]
    pub fn offsets_i32(mut self) -> Collate {
        match &mut self.form {
            Form::Ragged { offsets_i32, .. } => *offsets_i32 = true,
            _ => self.misplaced = Some("offsets_i32"),
        }
        self
    }

    /// For a ragged batch, an error of any other: an int64 tensor `[sum]` with the sample that each
    /// row comes from.
    #[must_use]
    pub fn batch_index(mut self) -> Collate {
        match &mut self.form {
            Form::Ragged { batch_index, .. } => *batch_index = true,
            _ => self.misplaced = Some("batch_index"),
        }
        self
    }

    /// The dtype of the batch; if `None`, all samples must share a dtype, which is kept.
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

    /// The form asked for.
    pub fn form(&self) -> &Form {
        &self.form
    }
}

/// On which side padding goes; with `truncate`, on which side elements are cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// After the data.
    #[default]
    Right,
    /// Before the data.
    Left,
    /// Half before, half after; the odd one after.
    Center,
}

impl Side {
    /// Where the data begins in `total` places when `length` are real: negative if the first
    /// elements are cut off, like negative sizes in torch's `pad`.
    pub(crate) fn lead(self, length: i64, total: i64) -> i64 {
        match self {
            Side::Right => 0,
            Side::Left => total - length,
            Side::Center => (total - length) / 2,
        }
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Side::Right => "right",
            Side::Left => "left",
            Side::Center => "center",
        })
    }
}

impl std::str::FromStr for Side {
    type Err = Error;

    fn from_str(name: &str) -> Result<Side> {
        match name {
            "right" => Ok(Side::Right),
            "left" => Ok(Side::Left),
            "center" => Ok(Side::Center),
            _ => Err(Error::Argument(format!(
                "side=\"{name}\"; it is \"right\", \"left\" or \"center\""
            ))),
        }
    }
}

/// What is true in a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// True where data is.
    Real,
    /// True where padding is.
    Pad,
}

impl std::str::FromStr for Mask {
    type Err = Error;

    fn from_str(name: &str) -> Result<Mask> {
        match name {
            "real" => Ok(Mask::Real),
            "pad" => Ok(Mask::Pad),
            _ => Err(Error::Argument(format!("mask=\"{name}\"; it is None, \"real\" or \"pad\""))),
        }
    }
}

/// What a mask has for real elements and for padding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaskBits {
    pub dtype: DType,
    pub real: [u8; 16],
    pub padding: [u8; 16],
}

/// One option for every dim, or one for each dim of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum PerDim<T> {
    /// The same for all.
    All(T),
    /// One for each sample dim.
    Each(Vec<T>),
}

impl<T: Clone> PerDim<T> {
    pub(crate) fn check(&self, name: &str, ndim: usize) -> Result<()> {
        match self {
            PerDim::Each(values) if values.len() != ndim => Err(Error::Argument(format!(
                "{name} has {} entries for samples of {ndim} dims",
                values.len()
            ))),
            _ => Ok(()),
        }
    }

    pub(crate) fn is_one(&self) -> bool {
        matches!(self, PerDim::All(_))
    }

    /// The one value, or that of each dim.
    pub(crate) fn values(&self) -> &[T] {
        match self {
            PerDim::All(value) => std::slice::from_ref(value),
            PerDim::Each(values) => values,
        }
    }

    pub(crate) fn at(&self, dim: usize) -> &T {
        match self {
            PerDim::All(value) => value,
            PerDim::Each(values) => &values[dim],
        }
    }
}

/// The options of a padded batch. Sizes and sides speak of sample dims before a permutation.
#[derive(Clone, Debug, PartialEq)]
pub struct Pad {
    pub(crate) value: Scalar,
    pub(crate) side: PerDim<Side>,
    pub(crate) dims: Option<Vec<i64>>,
    pub(crate) size: PerDim<Option<i64>>,
    pub(crate) multiple_of: PerDim<i64>,
    pub(crate) truncate: bool,
    pub(crate) mask: Option<Mask>,
    pub(crate) mask_dtype: DType,
}

impl Default for Pad {
    fn default() -> Pad {
        Pad {
            value: Scalar::default(),
            side: PerDim::All(Side::Right),
            dims: None,
            size: PerDim::All(None),
            multiple_of: PerDim::All(1),
            truncate: false,
            mask: None,
            mask_dtype: DType::Bool,
        }
    }
}

impl Pad {
    /// Zeros on the right, up to the largest sample.
    pub fn new() -> Pad {
        Pad::default()
    }

    /// Whether what is given for each dim is given for so many, and the mask's dtype is one for a mask.
    pub(crate) fn check(&self, ndim: usize) -> Result<()> {
        self.check_mask()?;
        self.side.check("side", ndim)?;
        self.size.check("size", ndim)?;
        self.multiple_of.check("multiple_of", ndim)
    }

    /// What padding holds; not transformed.
    #[must_use]
    pub fn value(mut self, value: impl Into<Scalar>) -> Pad {
        self.value = value.into();
        self
    }

    /// The side of the padding, for every dim.
    #[must_use]
    pub fn side(mut self, side: Side) -> Pad {
        self.side = PerDim::All(side);
        self
    }

    /// The side of the padding, for each sample dim.
    #[must_use]
    pub fn sides(mut self, sides: impl Into<Vec<Side>>) -> Pad {
        self.side = PerDim::Each(sides.into());
        self
    }

    /// The dims to pad. Without it those that an entry of [`Pad::sizes`] or [`Pad::multiples_of`] names;
    /// if none is named, all that differ. If any is named, a difference elsewhere is an error.
    #[must_use]
    pub fn dims(mut self, dims: impl Into<Vec<i64>>) -> Pad {
        self.dims = Some(dims.into());
        self
    }

    /// The extent of the dims that [`Pad::dims`] names, which samples of two and more dims then need.
    #[must_use]
    pub fn size(mut self, size: i64) -> Pad {
        self.size = PerDim::All(Some(size));
        self
    }

    /// The extent of each sample dim, which is padded then; `None` names nothing.
    #[must_use]
    pub fn sizes(mut self, sizes: impl Into<Vec<Option<i64>>>) -> Pad {
        self.size = PerDim::Each(sizes.into());
        self
    }

    /// Rounds the extent of the dims that [`Pad::dims`] names up, after the size. Samples of two and
    /// more dims need those.
    #[must_use]
    pub fn multiple_of(mut self, multiple: i64) -> Pad {
        self.multiple_of = PerDim::All(multiple);
        self
    }

    /// Rounds the extent of each sample dim, which is padded then, up, after the size; 1 names nothing.
    #[must_use]
    pub fn multiples_of(mut self, multiples: impl Into<Vec<i64>>) -> Pad {
        self.multiple_of = PerDim::Each(multiples.into());
        self
    }

    /// Cuts samples that are larger than the size instead of refusing them.
    #[must_use]
    pub fn truncate(mut self, truncate: bool) -> Pad {
        self.truncate = truncate;
        self
    }

    /// Asks for a mask.
    #[must_use]
    pub fn mask(mut self, mask: Mask) -> Pad {
        self.mask = Some(mask);
        self
    }

    /// The dtype of the mask, which has 1 where it is true: bool, the default, uint8, int32, int64, float16 or
    /// float32.
    #[must_use]
    pub fn mask_dtype(mut self, dtype: DType) -> Pad {
        self.mask_dtype = dtype;
        self
    }

    /// Whether the mask's dtype is one for a mask, and that of a mask that is asked for.
    ///
    /// # Errors
    /// [`Error::Argument`].
    pub fn check_mask(&self) -> Result<()> {
        use DType::{Bool, F16, F32, I32, I64, U8};
        let refuse =
            |text: &str| Err(Error::Argument(format!("mask_dtype={}{text}", self.mask_dtype)));
        match (self.mask_dtype, self.mask) {
            (Bool, _) | (U8 | I32 | I64 | F16 | F32, Some(_)) => Ok(()),
            (U8 | I32 | I64 | F16 | F32, None) => refuse(", but no mask is asked for"),
            _ => refuse("; it is bool, uint8, int32, int64, float16 or float32"),
        }
    }

    /// What the mask has, if one is asked for.
    pub(crate) fn mask_bits(&self) -> Result<Option<MaskBits>> {
        let dtype = self.mask_dtype;
        let Some(mask) = self.mask else { return Ok(None) };
        let bits = |is_true: bool| Scalar::from(i64::from(is_true)).bits(dtype);
        let (real, padding) = (bits(mask == Mask::Real)?, bits(mask == Mask::Pad)?);
        Ok(Some(MaskBits { dtype, real, padding }))
    }
}

/// `(x * scale - mean[c]) / std[c]` for each element, then a permutation of the sample's dims.
///
/// Evaluated as one fused multiply-add `x * a[c] + b[c]` with `a = scale / std` and
/// `b = -mean / std` formed in float64: in float32, or in float64 when source or result is float64,
/// then rounded once, to nearest even. Both have to be finite, so that no `std` is 0.
///
/// Scale, mean or std on integer or bool samples need a dtype ([`Collate::cast`]): a floating-point one
/// or, if truncation toward zero and saturation are wanted, an integer one.
#[derive(Clone, Debug, PartialEq)]
pub struct Transform {
    pub(crate) scale: f64,
    pub(crate) mean: Vec<f64>,
    pub(crate) std: Vec<f64>,
    pub(crate) channel_dim: Option<i64>,
    pub(crate) permute: Option<Vec<i64>>,
}

impl Default for Transform {
    fn default() -> Transform {
        Transform {
            scale: 1.0,
            mean: Vec::new(),
            std: Vec::new(),
            channel_dim: None,
            permute: None,
        }
    }
}

impl Transform {
    /// No arithmetic, no permutation.
    pub fn new() -> Transform {
        Transform::default()
    }

    /// Multiplies before the mean is taken off: 1/255 for 8-bit images.
    #[must_use]
    pub fn scale(mut self, scale: f64) -> Transform {
        self.scale = scale;
        self
    }

    /// One mean, or one for each channel.
    #[must_use]
    pub fn mean(mut self, mean: impl Into<Vec<f64>>) -> Transform {
        self.mean = mean.into();
        self
    }

    /// One standard deviation, or one for each channel.
    #[must_use]
    pub fn std(mut self, std: impl Into<Vec<f64>>) -> Transform {
        self.std = std.into();
        self
    }

    /// The sample dim that the channels are along; without it the only dim of that extent.
    #[must_use]
    pub fn channel_dim(mut self, dim: i64) -> Transform {
        self.channel_dim = Some(dim);
        self
    }

    /// The order of the sample's dims in the batch, as for `numpy.transpose`.
    #[must_use]
    pub fn permute(mut self, dims: impl Into<Vec<i64>>) -> Transform {
        self.permute = Some(dims.into());
        self
    }

    /// Whether `scale`, `mean` or `std` is given.
    pub(crate) fn computes(&self) -> bool {
        self.scale != 1.0 || !self.mean.is_empty() || !self.std.is_empty()
    }

    /// The multiply-add, or `None` if it would change nothing.
    pub(crate) fn affine(&self) -> Result<Option<Affine>> {
        let channels = self.mean.len().max(self.std.len()).max(1);
        for (name, values) in [("mean", &self.mean), ("std", &self.std)] {
            if values.len() > 1 && values.len() != channels {
                return Err(Error::Argument(format!(
                    "{name} has {} entries where mean or std has {channels}",
                    values.len()
                )));
            }
        }
        let at = |values: &[f64], c: usize, default: f64| match values.len() {
            0 => default,
            1 => values[0],
            _ => values[c],
        };
        if self.scale == 1.0
            && self.mean.iter().all(|&m| m == 0.0)
            && self.std.iter().all(|&s| s == 1.0)
        {
            return Ok(None);
        }
        let pair = |c| {
            let std = at(&self.std, c, 1.0);
            (self.scale / std, -at(&self.mean, c, 0.0) / std)
        };
        let (a, b): (Vec<f64>, Vec<f64>) = (0..channels).map(pair).unzip();
        // Of two NaN, the sample's and one from here, each way to multiply and add keeps another.
        if let Some(c) = (0..channels).find(|&c| !a[c].is_finite() || !b[c].is_finite()) {
            return Err(Error::Argument(format!(
                "scale={}, mean={} and std={} of channel {c} give no finite factor and offset",
                self.scale,
                at(&self.mean, c, 0.0),
                at(&self.std, c, 1.0)
            )));
        }
        Ok(Some(Affine::new(a, b)))
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
