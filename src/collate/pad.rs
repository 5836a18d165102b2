//! [`Pad`]: what fills the batch up, where, and with which mask.

use crate::tensor::{DType, Error, Result, Scalar};

/// The side on which padding goes; with `truncate`, also the side on which elements are cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// Padding goes after the data.
    #[default]
    Right,
    /// Padding goes before the data.
    Left,
    /// Half before, half after; the odd one after.
    Center,
}

impl Side {
    /// The position of a sample's first element among `total`, where the sample has `length`. If
    /// `length` is more, it is minus the number of elements that are cut off in front, as in
    /// torch's `pad`. The odd element of [`Side::Center`] is behind, be it padding or cut off.
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
            _ => Err(Error::argument(format!(
                "side must be \"right\", \"left\" or \"center\", got \"{name}\""
            ))),
        }
    }
}

/// The elements for which a mask is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// True where data is.
    Real,
    /// True where padding is.
    Pad,
}

/// From "real" or "pad"; [`Error::Argument`] for any other name.
impl std::str::FromStr for Mask {
    type Err = Error;

    fn from_str(name: &str) -> Result<Mask> {
        match name {
            "real" => Ok(Mask::Real),
            "pad" => Ok(Mask::Pad),
            _ => Err(Error::argument(format!(
                "mask must be None, \"real\" or \"pad\", got \"{name}\""
            ))),
        }
    }
}

/// The bits a mask stores for real elements and for padding.
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
    /// Checks that there is one value for all dims, or one for each of `ndim`; else [`Error::Argument`], which names
    /// the option `name`.
    pub(crate) fn check(&self, name: &str, ndim: usize) -> Result<()> {
        match self {
            PerDim::Each(values) if values.len() != ndim => Err(Error::argument(format!(
                "{name} has {} entries for samples of {ndim} dims",
                values.len()
            ))),
            _ => Ok(()),
        }
    }

    /// Whether there is one value for all dims; false for a list, even of one.
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

    /// The value of sample dim `dim`.
    pub(crate) fn at(&self, dim: usize) -> &T {
        match self {
            PerDim::All(value) => value,
            PerDim::Each(values) => &values[dim],
        }
    }
}

/// The options of a padded batch. Sizes and sides refer to sample dims before a permutation.
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
    /// Pads with zeros on the right, up to the largest sample.
    ///
    /// ```
    /// use windrow::{assemble, Collate, Mask, Pad, Side};
    /// let pad = Pad::new().side(Side::Left).multiple_of(4).mask(Mask::Real);
    /// let batch = assemble(&[vec![1, 2], vec![3]], &Collate::pad(pad))?;
    /// assert_eq!(batch.data().as_slice::<i32>()?, [0, 0, 1, 2, 0, 0, 0, 3]);
    /// assert_eq!(batch.mask().unwrap().shape(), [2, 4]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn new() -> Pad {
        Pad::default()
    }

    /// Checks that options for each dim have `ndim` entries, and that a mask can have the mask's dtype; else
    /// [`Error::Argument`].
    pub(crate) fn check(&self, ndim: usize) -> Result<()> {
        self.check_mask()?;
        self.side.check("side", ndim)?;
        self.size.check("size", ndim)?;
        self.multiple_of.check("multiple_of", ndim)
    }

    /// Sets the value of padding; it is not transformed.
    #[must_use]
    pub fn value(mut self, value: impl Into<Scalar>) -> Pad {
        self.value = value.into();
        self
    }

    /// Sets the side of the padding, for every dim.
    #[must_use]
    pub fn side(mut self, side: Side) -> Pad {
        self.side = PerDim::All(side);
        self
    }

    /// Sets the side of the padding, for each sample dim.
    #[must_use]
    pub fn sides(mut self, sides: impl Into<Vec<Side>>) -> Pad {
        self.side = PerDim::Each(sides.into());
        self
    }

    /// Sets the dims to pad; negative ones count from the end. Without it, those that an entry of [`Pad::sizes`] or
    /// [`Pad::multiples_of`] names or, if none does, all that differ. If any is named, a difference elsewhere is an
    /// error. Samples of one dim are always padded along it.
    #[must_use]
    pub fn dims(mut self, dims: impl Into<Vec<i64>>) -> Pad {
        self.dims = Some(dims.into());
        self
    }

    /// Sets the extent of the dims that [`Pad::dims`] names, which samples of two and more dims then need.
    #[must_use]
    pub fn size(mut self, size: i64) -> Pad {
        self.size = PerDim::All(Some(size));
        self
    }

    /// Sets the extent of each sample dim, which is padded then; `None` leaves a dim as it is.
    #[must_use]
    pub fn sizes(mut self, sizes: impl Into<Vec<Option<i64>>>) -> Pad {
        self.size = PerDim::Each(sizes.into());
        self
    }

    /// Rounds the extent of the dims that [`Pad::dims`] names up, after the size: 10 to 16 by 8.
    /// Samples of two and more dims need those. Planning fails for less than 1.
    #[must_use]
    pub fn multiple_of(mut self, multiple: i64) -> Pad {
        self.multiple_of = PerDim::All(multiple);
        self
    }

    /// Rounds the extent of each sample dim, which is padded then, up, after the size; 1 leaves a dim as it is.
    #[must_use]
    pub fn multiples_of(mut self, multiples: impl Into<Vec<i64>>) -> Pad {
        self.multiple_of = PerDim::Each(multiples.into());
        self
    }

    /// Sets whether samples that are larger than the size are cut off instead of refused.
    #[must_use]
    pub fn truncate(mut self, truncate: bool) -> Pad {
        self.truncate = truncate;
        self
    }

    /// Sets that the batch has a mask, and where it is true.
    #[must_use]
    pub fn mask(mut self, mask: Mask) -> Pad {
        self.mask = Some(mask);
        self
    }

    /// Sets the dtype of the mask, which has 1 where it is true: bool, the default, uint8, int32, int64, float16 or
    /// float32.
    #[must_use]
    pub fn mask_dtype(mut self, dtype: DType) -> Pad {
        self.mask_dtype = dtype;
        self
    }

    /// Checks the dtype of the mask.
    ///
    /// # Errors
    /// [`Error::Argument`] if a mask cannot have the dtype, or if the dtype is not bool and no mask is requested.
    #[doc(hidden)]
    pub fn check_mask(&self) -> Result<()> {
        use DType::{Bool, F16, F32, I32, I64, U8};
        let (refuse, dtype) = (|text: String| Err(Error::argument(text)), self.mask_dtype);
        match (self.mask_dtype, self.mask) {
            (Bool, _) | (U8 | I32 | I64 | F16 | F32, Some(_)) => Ok(()),
            (U8 | I32 | I64 | F16 | F32, None) => {
                refuse(format!("mask_dtype={dtype}, but mask is not set"))
            }
            _ => refuse(format!(
                "mask_dtype must be bool, uint8, int32, int64, float16 or float32, got {dtype}"
            )),
        }
    }

    /// The bits of the mask; `None` if none is asked for. A dtype that [`Pad::check_mask`] has
    /// taken gives no error.
    pub(crate) fn mask_bits(&self) -> Result<Option<MaskBits>> {
        let dtype = self.mask_dtype;
        let Some(mask) = self.mask else { return Ok(None) };
        // False is 0 in every dtype, all bits of which are 0.
        let (mut one, zero) = ([0; 16], [0; 16]);
        match dtype.is_float() {
            true => one = Scalar::from(1i64).bits(dtype)?,
            false => one[0] = 1,
        }
        let (real, padding) = if mask == Mask::Real { (one, zero) } else { (zero, one) };
        Ok(Some(MaskBits { dtype, real, padding }))
    }
}
