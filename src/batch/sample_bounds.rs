//! [`SampleBounds`]: where each sample is in the data of a batch.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::collate::Side;
use crate::plan::{BatchShape, Placement};
use crate::tensor::{small_vec, Dims, Error, Layout, Offsets, Result, Tensor};

/// The bounds of each sample's real part in the data of a batch.
#[derive(Clone, Debug)]
pub struct SampleBounds(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// Sample `i` is row `i`.
    Rows,
    /// Sample `i` is in row `i`, within padding.
    Padded {
        /// The padded dims: their position in a sample's row, and the side that padding is on.
        dims: SmallVec<[(usize, Side); 4]>,
        /// The real length of each sample along each of these dims, `[N, k]` row-major; empty where only a device
        /// knows them.
        lengths: Arc<[i64]>,
    },
    /// Sample `i` is `offsets[i]..offsets[i + 1]` along a dim.
    Joined { dim: usize, offsets: Offsets },
}

impl SampleBounds {
    /// Sample `i` is row `i`, as in a stack.
    ///
    /// ```
    /// use windrow::batch::{Fields, SampleBounds};
    /// use windrow::{Batch, Tensor};
    /// let data = Tensor::from_vec(vec![1i32, 2, 3, 4], &[2, 2])?;
    /// let batch = Batch::try_new(data, Fields::with_bounds(2, SampleBounds::rows()))?;
    /// assert_eq!(batch.sample(1)?.as_slice::<i32>()?, [3, 4]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn rows() -> SampleBounds {
        SampleBounds(Kind::Rows)
    }

    /// Sample `i` is in row `i`, within padding. `dims`: the padded dims, by their position in a sample's row, and the side
    /// that padding is on; each dim once. `lengths`: the real length of each sample along each of these dims, `[N, k]` row-major;
    /// none at all if only a device knows them, and [`Batch::sample`](crate::Batch::sample) is then an error.
    ///
    /// ```
    /// use windrow::batch::{Fields, SampleBounds};
    /// use windrow::{Batch, Side, Tensor};
    /// let data = Tensor::from_vec(vec![1i32, 0, 2, 3], &[2, 2])?;
    /// let bounds = SampleBounds::padded([(0, Side::Right)], [1, 2]);
    /// let batch = Batch::try_new(data, Fields::with_bounds(2, bounds))?;
    /// assert_eq!(batch.sample(0)?.as_slice::<i32>()?, [1]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn padded(
        dims: impl IntoIterator<Item = (usize, Side)>,
        lengths: impl Into<Arc<[i64]>>,
    ) -> SampleBounds {
        SampleBounds(Kind::Padded { dims: small_vec(dims.into_iter()), lengths: lengths.into() })
    }

    /// Sample `i` is `offsets[i]..offsets[i + 1]` along a dim of the data.
    ///
    /// ```
    /// use windrow::batch::{Fields, SampleBounds};
    /// use windrow::{tensor::Offsets, Batch, Tensor};
    /// let data = Tensor::from_vec(vec![1i32, 2, 3], &[3])?;
    /// let bounds = SampleBounds::joined(0, Offsets::from_lengths([1, 2])?);
    /// let batch = Batch::try_new(data, Fields::with_bounds(2, bounds))?;
    /// assert_eq!(batch.sample(1)?.as_slice::<i32>()?, [2, 3]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn joined(dim: usize, offsets: Offsets) -> SampleBounds {
        SampleBounds(Kind::Joined { dim, offsets })
    }

    /// Whether these are the bounds of [`SampleBounds::rows`]; false for padded ones, even without
    /// a padded dim.
    pub fn are_rows(&self) -> bool {
        matches!(self.0, Kind::Rows)
    }

    /// Where each sample begins along dim 0, if samples are joined along it.
    pub(crate) fn row_offsets(&self) -> Option<&Offsets> {
        match &self.0 {
            Kind::Joined { dim: 0, offsets } => Some(offsets),
            _ => None,
        }
    }

    /// The bounds of the samples in a batch of this shape.
    pub(super) fn new(batch_shape: &BatchShape) -> SampleBounds {
        SampleBounds(match &batch_shape.placement {
            Placement::Rows => Kind::Rows,
            Placement::Joined { dim, offsets } => {
                Kind::Joined { dim: *dim, offsets: offsets.clone() }
            }
            Placement::Padded(padded) => Kind::Padded {
                dims: small_vec(padded.dims.iter().filter_map(|d| {
                    Some((batch_shape.permute.iter().position(|&p| p == d)?, padded.sides[d]))
                })),
                lengths: match batch_shape.is_selected {
                    true => Arc::default(),
                    false => Arc::clone(&padded.lengths),
                },
            },
        })
    }

    /// What an error says of the bounds: no offsets or lengths, which may be many.
    pub(super) fn summary(&self) -> String {
        match &self.0 {
            Kind::Rows => "rows".to_owned(),
            Kind::Padded { dims, lengths } => {
                format!("{} lengths along {} padded dims", lengths.len(), dims.len())
            }
            Kind::Joined { dim, offsets } => {
                let (count, total) = (offsets.num_samples(), offsets.total());
                format!("{count} samples joined along dim {dim}, {total} places together")
            }
        }
    }

    /// Whether all parts are in data of this shape, and are as many; a dim is padded once, and joined parts have to fill
    /// their dim. Of lengths that only a device knows it is taken for granted.
    pub(super) fn fit(&self, num_samples: usize, shape: &[i64]) -> bool {
        let has_rows = shape.first() == Some(&(num_samples as i64));
        match &self.0 {
            Kind::Rows => has_rows,
            Kind::Padded { dims, lengths } => {
                let rows = || lengths.chunks_exact(dims.len().max(1));
                let is_known = num_samples.checked_mul(dims.len()) == Some(lengths.len());
                has_rows
                    && (is_known || lengths.is_empty())
                    && dims.iter().enumerate().all(|(k, &(dim, _))| {
                        let extent = shape[1..].get(dim);
                        let is_one_of = |other: &(usize, Side)| other.0 == dim;
                        !dims[..k].iter().any(is_one_of)
                            && extent.is_some_and(|extent| {
                                rows().all(|row| (0..=*extent).contains(&row[k]))
                            })
                    })
            }
            Kind::Joined { dim, offsets } => {
                offsets.num_samples() == num_samples && shape.get(*dim) == Some(&offsets.total())
            }
        }
    }

    /// The real part of sample `index`, which is below their number, in data that the parts fit. Padding is left out, on
    /// both sides for [`Side::Center`].
    ///
    /// # Errors
    /// [`Error::Argument`] if only a device knows the lengths.
    pub(super) fn view(&self, data: &Tensor, index: usize) -> Result<Tensor> {
        match &self.0 {
            Kind::Rows => data.select(index as i64),
            Kind::Joined { dim, offsets } => {
                let ends = &offsets.as_slice()[index..index + 2];
                narrow(data, &[(*dim, ends[0], ends[1] - ends[0])])
            }
            Kind::Padded { dims, lengths } => {
                let row = data.select(index as i64)?;
                if lengths.is_empty() && !dims.is_empty() {
                    let text = "sample lengths are on the device: slice `data` by `lengths` there";
                    return Err(Error::argument(text.to_owned()));
                }
                let real = |(k, &(dim, side)): (usize, &(usize, Side))| {
                    let length = lengths[index * dims.len() + k];
                    (dim, side.lead(length, row.shape()[dim]), length)
                };
                let parts: SmallVec<[_; 4]> = dims.iter().enumerate().map(real).collect();
                narrow(&row, &parts)
            }
        }
    }

    /// The kind and its few numbers, and its column of lengths or offsets, for a pickle.
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn to_numbers(&self) -> (Vec<i64>, &[i64]) {
        match &self.0 {
            Kind::Rows => (vec![0], &[]),
            Kind::Padded { dims, lengths } => {
                let dims = dims.iter().flat_map(|&(dim, side)| [dim as i64, side as i64]);
                (std::iter::once(1).chain(dims).collect(), lengths)
            }
            Kind::Joined { dim, offsets } => (vec![2, *dim as i64], offsets.as_slice()),
        }
    }

    /// The parts that [`SampleBounds::to_numbers`] gave.
    ///
    /// # Errors
    /// [`Error::Argument`] for a header that it never gives, and for offsets that [`Offsets::try_new`] refuses. Lengths are not
    /// checked, and rows ignore the column.
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn from_numbers(header: &[i64], column: Vec<i64>) -> Result<SampleBounds> {
        let refuse = || Error::argument(format!("no parts of a batch: {header:?}"));
        let dim_of = |dim: &i64| usize::try_from(*dim).map_err(|_| refuse());
        let side_of = |side: &i64| {
            let sides = [Side::Right, Side::Left, Side::Center];
            sides.into_iter().find(|known| *known as i64 == *side).ok_or_else(refuse)
        };
        match header {
            [0] => Ok(SampleBounds::rows()),
            [1, dims @ ..] if dims.len() % 2 == 0 => {
                let each = dims.chunks(2).map(|pair| Ok((dim_of(&pair[0])?, side_of(&pair[1])?)));
                Ok(SampleBounds::padded(each.collect::<Result<Vec<_>>>()?, column))
            }
            [2, dim] => Ok(SampleBounds::joined(dim_of(dim)?, Offsets::try_new(column)?)),
            _ => Err(refuse()),
        }
    }
}

/// A view of `length` places from `start` on along each dim in `parts`, `(dim, start, length)`, and
/// of all of the other dims. The caller keeps parts within their dims: others are elements from elsewhere in the tensor, or
/// an error of [`Layout::try_new`] or [`Tensor::view`].
fn narrow(tensor: &Tensor, parts: &[(usize, i64, i64)]) -> Result<Tensor> {
    let mut shape: Dims = tensor.shape().into();
    let mut first = 0i64;
    for &(dim, start, length) in parts {
        shape[dim] = length;
        // The sum leaves 64 bits only along a dim of extent 1, whose stride may be anything: a part that begins behind
        // it is empty.
        first = first.wrapping_add(start.wrapping_mul(tensor.strides()[dim]));
    }
    tensor.view(first, Layout::try_new(tensor.dtype(), &shape, Some(tensor.strides()))?)
}
