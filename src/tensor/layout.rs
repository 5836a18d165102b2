//! Shapes and strides, with every size checked in 64 bits.

use std::fmt;

use crate::tensor::dims::{Dims, Tuple, MAX_NDIM};
use crate::tensor::dtype::DType;
use crate::tensor::error::{Error, Result};

/// Shape and strides of one tensor. Strides count elements and may be zero or negative.
///
/// Invariants: every extent is at least 0, there are as many strides as extents, at most
/// [`MAX_NDIM`], and every byte offset from the first element fits in an `i64` for the dtype it was checked with.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Layout(ShapeAndStrides);

/// The most dims that need no allocation.
const INLINE_NDIM: usize = 4;

/// Extents, then strides.
#[derive(Clone, PartialEq, Eq, Hash)]
enum ShapeAndStrides {
    /// Room for [`INLINE_NDIM`] of each; unused ones are 0. A small batch makes a dozen layouts, which are copied as a
    /// whole, without a look at `ndim`.
    Inline { ndim: u8, shape: [i64; INLINE_NDIM], strides: [i64; INLINE_NDIM] },
    /// The extents, and behind them as many strides.
    Heap(Box<[i64]>),
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut both = f.debug_struct("Layout");
        both.field("shape", &self.shape()).field("strides", &self.strides()).finish()
    }
}

impl Layout {
    /// Checks a foreign shape; `strides: None` means row-major without gaps, which an empty tensor is given in any case.
    ///
    /// # Errors
    /// [`Error::Argument`] for a negative extent, a wrong number of strides or too many dims;
    /// [`Error::TooLarge`] when a size or an offset in bytes leaves 64 bits.
    ///
    /// ```
    /// use windrow::{DType, Layout};
    /// let transposed = Layout::try_new(DType::F32, &[3, 2], Some(&[1, 3]))?;
    /// assert!(!transposed.is_compact());
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn try_new(dtype: DType, shape: &[i64], strides: Option<&[i64]>) -> Result<Layout> {
        if shape.len() > MAX_NDIM {
            let ndim = shape.len();
            return Err(Error::argument(format!("{ndim} dims; at most {MAX_NDIM} are supported")));
        }
        if let Some(&extent) = shape.iter().find(|&&extent| extent < 0) {
            return Err(Error::argument(format!(
                "negative extent {extent} in shape {}",
                Tuple(shape)
            )));
        }
        let compact = compact_strides(shape);
        let too_large =
            || Error::too_large(format!("shape {} of {dtype} is beyond 64 bits", Tuple(shape)));
        let numel = checked_numel(shape).ok_or_else(too_large)?;
        numel.checked_mul(dtype.size() as i64).ok_or_else(too_large)?;
        let Some(strides) = strides else {
            return Ok(Layout::from_parts_unchecked(shape, &compact.ok_or_else(too_large)?));
        };
        if strides.len() != shape.len() {
            let (got, want) = (strides.len(), shape.len());
            return Err(Error::argument(format!("{got} strides for {want} dims")));
        }
        if numel == 0 {
            // Nothing is read through the strides of an empty tensor, so they need not make sense.
            return Ok(Layout::from_parts_unchecked(shape, &compact.ok_or_else(too_large)?));
        }
        let layout = Layout::from_parts_unchecked(shape, strides);
        layout.checked_span(dtype).ok_or_else(|| {
            Error::too_large(format!("strides {} of {dtype} reach beyond 64 bits", Tuple(strides)))
        })?;
        Ok(layout)
    }

    /// Row-major without gaps.
    ///
    /// # Errors
    /// As [`Layout::try_new`].
    ///
    /// ```
    /// use windrow::{DType, Layout};
    /// assert_eq!(Layout::compact(DType::F32, &[2, 3])?.strides(), [3, 1]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    #[inline]
    pub fn compact(dtype: DType, shape: &[i64]) -> Result<Layout> {
        match try_compact_inline(dtype, shape) {
            Some(layout) => Ok(layout),
            None => Layout::try_new(dtype, shape, None),
        }
    }

    /// A layout of as many strides as extents. Neither this nor any other invariant is checked.
    fn from_parts_unchecked(extents: &[i64], steps: &[i64]) -> Layout {
        let ndim = extents.len();
        if ndim > INLINE_NDIM {
            return Layout(ShapeAndStrides::Heap([extents, steps].concat().into()));
        }
        let (mut shape, mut strides) = ([0; INLINE_NDIM], [0; INLINE_NDIM]);
        shape[..ndim].copy_from_slice(extents);
        strides[..ndim].copy_from_slice(steps);
        Layout(ShapeAndStrides::Inline { ndim: ndim as u8, shape, strides })
    }

    /// One dim, the elements of a slice.
    #[inline]
    pub(crate) const fn from_slice<T>(data: &[T]) -> Layout {
        // A slice has at most isize::MAX bytes.
        let shape = [data.len() as i64, 0, 0, 0];
        Layout(ShapeAndStrides::Inline { ndim: 1, shape, strides: [1, 0, 0, 0] })
    }

    /// The extents.
    #[inline]
    pub fn shape(&self) -> &[i64] {
        match &self.0 {
            ShapeAndStrides::Inline { ndim, shape, .. } => &shape[..usize::from(*ndim)],
            ShapeAndStrides::Heap(both) => &both[..both.len() / 2],
        }
    }

    /// The strides, in elements.
    #[inline]
    pub fn strides(&self) -> &[i64] {
        match &self.0 {
            ShapeAndStrides::Inline { ndim, strides, .. } => &strides[..usize::from(*ndim)],
            ShapeAndStrides::Heap(both) => &both[both.len() / 2..],
        }
    }

    /// Number of dims.
    #[inline]
    pub fn ndim(&self) -> usize {
        self.shape().len()
    }

    /// Whether strides and extents are the same but for the extent of dim 0.
    #[inline]
    pub(crate) fn is_same_beyond_dim_0(&self, other: &Layout) -> bool {
        match (&self.0, &other.0) {
            (
                ShapeAndStrides::Inline { ndim, shape: [_, rest @ ..], strides },
                ShapeAndStrides::Inline {
                    ndim: other,
                    shape: [_, other_rest @ ..],
                    strides: others,
                },
            ) => {
                // The comparison has no branch for each dim: views are compared one by one.
                let differing =
                    |a: &[i64], b: &[i64]| a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
                ndim == other && (differing(strides, others) | differing(rest, other_rest)) == 0
            }
            (ShapeAndStrides::Heap(one), ShapeAndStrides::Heap(other)) => one[1..] == other[1..],
            _ => false,
        }
    }

    /// Number of elements.
    #[inline]
    pub fn numel(&self) -> i64 {
        // Checked by `try_new`, unless an extent is 0, which makes any product 0.
        self.shape().iter().fold(1, |all, &extent| all.wrapping_mul(extent))
    }

    /// Whether the elements are row-major without gaps; the stride of an extent of 1 is ignored, and an empty tensor is compact.
    pub fn is_compact(&self) -> bool {
        let mut step = 1;
        for (&extent, &stride) in self.shape().iter().zip(self.strides()).rev() {
            if extent == 0 {
                return true;
            }
            if extent != 1 {
                if stride != step {
                    return false;
                }
                step *= extent;
            }
        }
        true
    }

    /// The range of bytes that the elements occupy, relative to the first element: `start <= 0 < end`, or `0..0` when empty.
    /// All of 64 bits if it leaves them, which is possible only for a larger dtype than the layout was checked with.
    pub fn byte_span(&self, dtype: DType) -> std::ops::Range<i64> {
        self.checked_span(dtype).unwrap_or(i64::MIN..i64::MAX)
    }

    /// The span of [`Layout::byte_span`]; `None` if it does not fit 64 bits.
    fn checked_span(&self, dtype: DType) -> Option<std::ops::Range<i64>> {
        let size = dtype.size() as i64;
        if self.shape().contains(&0) {
            return Some(0..0);
        }
        let (mut low, mut high) = (0i64, 0i64);
        for (&extent, &stride) in self.shape().iter().zip(self.strides()) {
            // An extent of 1 never steps: its stride may be anything.
            let reach = if extent == 1 {
                0
            } else {
                (extent - 1).checked_mul(stride)?.checked_mul(size)?
            };
            low = low.checked_add(reach.min(0))?;
            high = high.checked_add(reach.max(0))?;
        }
        Some(low..high.checked_add(size)?)
    }
}

/// A row-major tensor that has elements and few dims, in one pass; `None` for any other, and for what is an error.
#[inline]
fn try_compact_inline(dtype: DType, extents: &[i64]) -> Option<Layout> {
    let (mut shape, mut strides, mut step) = ([0; INLINE_NDIM], [0; INLINE_NDIM], 1i64);
    if extents.len() > INLINE_NDIM {
        return None;
    }
    for (dim, &extent) in extents.iter().enumerate().rev() {
        (shape[dim], strides[dim]) = (extent, step);
        step = step.checked_mul(extent).filter(|_| extent > 0)?;
    }
    step.checked_mul(dtype.size() as i64)?;
    Some(Layout(ShapeAndStrides::Inline { ndim: extents.len() as u8, shape, strides }))
}

/// Strides of a row-major tensor without gaps; an extent of 0 counts as 1, as torch has it. `None`
/// beyond 64 bits.
pub(crate) fn compact_strides(shape: &[i64]) -> Option<Dims> {
    let mut strides: Dims = smallvec::smallvec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].checked_mul(shape[i].max(1))?;
    }
    Some(strides)
}

/// Whether strides are exactly those of a row-major tensor that has elements, for an extent of 1
/// too, where [`Layout::is_compact`] ignores them. An extent of 0 may be that of dim 0; behind it,
/// the strides that [`compact_strides`] gives are none of these.
#[inline]
pub(crate) fn are_compact(strides: &[i64], shape: &[i64]) -> bool {
    let mut elements = 1;
    strides.len() == shape.len()
        && strides.iter().zip(shape).rev().all(|(&stride, &extent)| {
            let is_next = stride == elements;
            elements = stride.wrapping_mul(extent);
            is_next
        })
}

/// The number of elements, 1 without dims, or `None` beyond 63 bits; an extent of 0 makes it 0
/// whatever the others are. That extents are at least 0 is not checked.
#[inline]
pub(crate) fn checked_numel(shape: &[i64]) -> Option<i64> {
    let mut numel = Some(1i64);
    for &extent in shape {
        if extent == 0 {
            return Some(0);
        }
        numel = numel.and_then(|numel| numel.checked_mul(extent));
    }
    numel
}

/// Bytes of a row-major tensor of this shape, whose extents are at least 0, which is not checked.
///
/// # Errors
/// [`Error::TooLarge`] beyond 63 bits; without elements, if the strides are beyond 64.
#[inline]
pub(crate) fn checked_bytes(dtype: DType, shape: &[i64]) -> Result<u64> {
    let (mut bytes, mut is_empty) = (dtype.size() as i64, false);
    for &extent in shape {
        is_empty |= extent == 0;
        bytes = match bytes.checked_mul(extent.max(1)) {
            Some(bytes) => bytes,
            None => return Layout::compact(dtype, shape).map(|_| 0),
        };
    }
    Ok(if is_empty { 0 } else { bytes as u64 })
}

/// Bytes of a tensor of this shape, which are known to fit in 63 bits; not checked. An extent of 0 makes any product 0.
#[inline]
pub(crate) fn bytes_of(dtype: DType, shape: &[i64]) -> u64 {
    shape.iter().fold(dtype.size() as u64, |all, &extent| all.wrapping_mul(extent as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_negative_and_zero_strides() {
        let layout = Layout::try_new(DType::I16, &[3, 4], Some(&[-4, 0])).unwrap();
        assert_eq!(layout.byte_span(DType::I16), -16..2);
        assert!(!layout.is_compact());
        let empty = Layout::try_new(DType::F64, &[0, 4], Some(&[i64::MAX, i64::MIN])).unwrap();
        assert_eq!(empty.byte_span(DType::F64), 0..0);
        assert_eq!(empty.strides(), [4, 1]);
    }

    #[test]
    fn extent_one_may_have_any_stride() {
        let layout = Layout::try_new(DType::F32, &[1, 5], Some(&[i64::MAX, 1])).unwrap();
        assert!(layout.is_compact());
        assert_eq!(layout.byte_span(DType::F32), 0..20);
    }

    /// Four dims are inside of the layout, five are not.
    #[test]
    fn few_and_many_dims() {
        for ndim in 0..=6 {
            let shape: Vec<i64> = (0..ndim).map(|dim| dim + 2).collect();
            let layout = Layout::compact(DType::U8, &shape).unwrap();
            let strides: Vec<i64> =
                (0..shape.len()).map(|dim| shape[dim + 1..].iter().product()).collect();
            assert_eq!((layout.shape(), layout.strides()), (&shape[..], &strides[..]));
            assert_eq!(layout, Layout::try_new(DType::U8, &shape, Some(&strides)).unwrap());
            for dim in 0..shape.len() {
                let mut other = shape.clone();
                other[dim] += 1;
                let other = Layout::try_new(DType::U8, &other, Some(&strides)).unwrap();
                assert_eq!(layout.is_same_beyond_dim_0(&other), dim == 0);
                assert_ne!(layout, other);
            }
        }
    }

    #[test]
    fn sizes_beyond_64_bits_are_refused() {
        for shape in [&[1 << 40, 1 << 40][..], &[i64::MAX], &[1 << 61]] {
            let error = Layout::compact(DType::F32, shape).unwrap_err();
            assert!(matches!(error, Error::TooLarge(_)), "{shape:?}: {error}");
        }
        let error = Layout::try_new(DType::U8, &[2, 2], Some(&[i64::MAX, i64::MAX])).unwrap_err();
        assert!(matches!(error, Error::TooLarge(_)));
        assert!(Layout::compact(DType::F32, &[0, i64::MAX, i64::MAX])
            .is_err_and(|e| matches!(e, Error::TooLarge(_))));
        assert!(Layout::try_new(DType::U8, &[-1], None).is_err());
        assert!(Layout::try_new(DType::U8, &[1; 65], None).is_err());
        assert!(Layout::try_new(DType::U8, &[1], Some(&[])).is_err());
    }
}
