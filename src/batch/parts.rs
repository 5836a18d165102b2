//! [`Parts`]: where each sample is in the data of a batch.

use std::sync::Arc;

use smallvec::{smallvec, SmallVec};

use crate::collate::Side;
use crate::plan::{BatchShape, Placement};
use crate::tensor::{few, Dims, Error, Layout, Offsets, Result, Tensor};

/// Where each sample's real part is in the data of a batch.
#[derive(Clone, Debug)]
pub enum Parts {
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
    Joined {
        /// The dim of the data.
        dim: usize,
        /// The boundaries.
        offsets: Offsets,
    },
}

impl Parts {
    pub(super) fn new(batch_shape: &BatchShape) -> Parts {
        match &batch_shape.placement {
            Placement::Rows => Parts::Rows,
            Placement::Joined { dim, offsets } => {
                Parts::Joined { dim: *dim, offsets: offsets.clone() }
            }
            Placement::Padded(padded) => Parts::Padded {
                dims: few(padded.dims.iter().filter_map(|d| {
                    Some((batch_shape.permute.iter().position(|&p| p == d)?, padded.sides[d]))
                })),
                lengths: match batch_shape.is_selected {
                    true => Arc::default(),
                    false => Arc::clone(&padded.lengths),
                },
            },
        }
    }

    /// Whether all parts are in data of this shape.
    pub(super) fn fit(&self, num_samples: usize, shape: &[i64]) -> bool {
        let has_rows = shape.first() == Some(&(num_samples as i64));
        match self {
            Parts::Rows => has_rows,
            Parts::Padded { dims, lengths } => {
                let rows = || lengths.chunks_exact(dims.len().max(1));
                let is_known = num_samples.checked_mul(dims.len()) == Some(lengths.len());
                has_rows
                    && (is_known || lengths.is_empty())
                    && dims.iter().enumerate().all(|(k, &(dim, _))| {
                        let room = shape[1..].get(dim);
                        room.is_some_and(|room| rows().all(|row| (0..=*room).contains(&row[k])))
                    })
            }
            Parts::Joined { dim, offsets } => {
                offsets.num_samples() == num_samples && shape.get(*dim) == Some(&offsets.total())
            }
        }
    }

    /// The real part of one of the samples in data that the parts fit.
    pub(super) fn view(&self, data: &Tensor, index: usize) -> Result<Tensor> {
        match self {
            Parts::Rows => data.select(index as i64),
            Parts::Joined { dim, offsets } => {
                let ends = &offsets.as_slice()[index..index + 2];
                narrow(data, &[(*dim, ends[0], ends[1] - ends[0])])
            }
            Parts::Padded { dims, lengths } => {
                let row = data.select(index as i64)?;
                if lengths.is_empty() && !dims.is_empty() {
                    let text = "the lengths of samples taken by indices on a device are there too: `data` has the \
                                whole rows, `lengths` how long they are";
                    return Err(Error::Argument(text.to_owned()));
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

    /// The kind and what little it has, and its column of numbers, for a pickle.
    #[doc(hidden)]
    pub fn to_numbers(&self) -> (SmallVec<[i64; 8]>, &[i64]) {
        match self {
            Parts::Rows => (smallvec![0], &[]),
            Parts::Padded { dims, lengths } => {
                let dims = dims.iter().flat_map(|&(dim, side)| [dim as i64, side as i64]);
                (std::iter::once(1).chain(dims).collect(), lengths)
            }
            Parts::Joined { dim, offsets } => (smallvec![2, *dim as i64], offsets.as_slice()),
        }
    }

    /// The parts that [`Parts::to_numbers`] gave.
    ///
    /// # Errors
    /// [`Error::Argument`] for numbers that it never gives.
    #[doc(hidden)]
    pub fn from_numbers(few: &[i64], column: Vec<i64>) -> Result<Parts> {
        let refuse = || Error::Argument(format!("no parts of a batch: {few:?}"));
        let dim_of = |dim: &i64| usize::try_from(*dim).map_err(|_| refuse());
        let side_of = |side: &i64| {
            let sides = [Side::Right, Side::Left, Side::Center];
            sides.into_iter().find(|known| *known as i64 == *side).ok_or_else(refuse)
        };
        match few {
            [0] => Ok(Parts::Rows),
            [1, dims @ ..] if dims.len() % 2 == 0 => {
                let each = dims.chunks(2).map(|pair| Ok((dim_of(&pair[0])?, side_of(&pair[1])?)));
                Ok(Parts::Padded { dims: each.collect::<Result<_>>()?, lengths: column.into() })
            }
            [2, dim] => Ok(Parts::Joined { dim: dim_of(dim)?, offsets: Offsets::try_new(column)? }),
            _ => Err(refuse()),
        }
    }
}

/// `length` places from `start` on along each dim named.
fn narrow(tensor: &Tensor, parts: &[(usize, i64, i64)]) -> Result<Tensor> {
    let mut shape: Dims = tensor.shape().into();
    let mut first = 0;
    for &(dim, start, length) in parts {
        shape[dim] = length;
        first += start * tensor.strides()[dim];
    }
    tensor.view(first, Layout::try_new(tensor.dtype(), &shape, Some(tensor.strides()))?)
}
