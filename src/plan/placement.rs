//! [`Placement`]: where each sample is in the data of a batch.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::collate::Side;
use crate::tensor::{DimSet, Dims, Offsets};

/// How samples are in the data of a batch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Placement {
    /// Sample `i` is row `i` of dim 0.
    Rows,
    /// Sample `i` is row `i` of dim 0, its real part inside padding.
    Padded(Padded),
    /// Sample `i` is `offsets[i]..offsets[i + 1]` of a dim of the result.
    Joined {
        /// The dim of the result.
        dim: usize,
        /// The boundaries.
        offsets: Offsets,
    },
}

/// The padded dims and their extents.
#[derive(Clone, Debug)]
pub struct Padded {
    /// The extent of every sample dim in the batch, before the permutation.
    pub(crate) size: Dims,
    /// The side of every sample dim.
    pub(crate) sides: SmallVec<[Side; 4]>,
    /// The padded sample dims.
    pub(crate) dims: DimSet,
    /// The real extents of these, row-major.
    pub(crate) lengths: Arc<[i64]>,
}
