//! [`Selection`]: samples of a list by indices that are on a device, so that the host does not know which.

use std::sync::Arc;

use crate::tensor::{Layout, Owner, Tensor};

/// A selection of samples from a list of type `L`.
#[derive(Debug)]
pub(crate) struct Selection<L> {
    /// int32 or int64, one dim; on the device of the samples.
    pub indices: Tensor,
    pub list: Arc<ResidentList<L>>,
}

impl<L> Selection<L> {
    /// The number of samples selected, one for each index.
    pub fn len(&self) -> usize {
        self.indices.shape()[0] as usize
    }

    /// The selection by the first `len` indices; `None` if they would leave the memory of `indices`.
    pub fn first(&self, len: usize) -> Option<Selection<L>> {
        let layout =
            Layout::try_new(self.indices.dtype(), &[len as i64], Some(self.indices.strides()));
        let indices = layout.and_then(|layout| self.indices.view(0, layout)).ok()?;
        Some(Selection { indices, list: Arc::clone(&self.list) })
    }
}

/// A list whose table is on a device.
#[derive(Debug)]
pub(crate) struct ResidentList<L> {
    pub samples: L,
    /// One sample for each `TensorMeta` in use.
    pub representatives: L,
    /// The list's table on the device, kept by the executor.
    pub table: Owner,
}
