//! [`Selection`]: samples of a list by indices that are on a device, so that the host does not know which.

use std::sync::Arc;

use crate::tensor::{Owner, Tensor};

/// A selection of samples from a list of type `L`.
#[derive(Debug)]
pub(crate) struct Selection<L> {
    /// int32 or int64, one dim; on the device of the samples.
    pub indices: Tensor,
    pub list: Arc<ResidentList<L>>,
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
