//! Counts the bytes and samples that a plan moves: for [`crate::explain::Explain`] before a run, and for [`crate::Stats`] after it.

use crate::plan::batch_shape::BatchShape;
use crate::plan::output::{saturating_sum, OutputPlan};
use crate::plan::path::Path;
use crate::plan::placement::{Padded, Placement};
use crate::plan::plan::Plan;
use crate::plan::role::Role;
use crate::plan::route::Upload;

impl<'s> Plan<'s> {
    /// The path by which the data of each leaf moves, in the order of the leaves.
    pub(crate) fn paths<'p>(&'p self) -> impl Iterator<Item = Path> + use<'p, 's> {
        let data = self.outputs().iter().filter(|output| output.role == Role::Data);
        data.map(|output| match self.route() {
            Some(route) => route.paths[output.leaf],
            None => Path::within(output),
        })
    }

    /// Bytes that are copied to the device: samples, and batches that the host makes of them. Without those that kernels read
    /// over the bus.
    pub(crate) fn bytes_to_device(&self) -> u64 {
        let uploads = self.route().into_iter().flat_map(|route| &route.uploads);
        saturating_sum(uploads.map(|upload| match upload {
            Upload::Batch(output) | Upload::Copied { output, .. } => {
                self.outputs()[*output].bytes()
            }
            Upload::Staged(staging) => staging.sample_bytes(),
        }))
    }

    /// Bytes of data and scales that are copied from a device to the host.
    pub(crate) fn bytes_to_host(&self) -> u64 {
        let comes_back = |output: &&OutputPlan<'_>| {
            let path = self.route().map(|route| route.paths[output.leaf]);
            let is_moved = matches!(output.role, Role::Data | Role::Scales);
            is_moved && path == Some(Path::Download)
        };
        saturating_sum(self.outputs().iter().filter(comes_back).map(OutputPlan::bytes))
    }

    /// Bytes of the data of all leaves, padding included; the sum saturates.
    pub(crate) fn data_bytes(&self) -> u64 {
        saturating_sum(self.batch_shapes().iter().map(|batch_shape| batch_shape.data_bytes))
    }

    /// Bytes of the data that hold padding, as far as the host knows them.
    pub(crate) fn padding_bytes(&self) -> u64 {
        let real = |shape: &BatchShape| shape.num_real() * shape.dtype.size() as u64;
        saturating_sum(self.batch_shapes().iter().map(|shape| shape.data_bytes - real(shape)))
    }

    /// Bytes of all tensors that the plan makes: data, masks, scales and metadata, which pairs have not. The sum saturates.
    pub(crate) fn output_bytes(&self) -> u64 {
        match self.is_move {
            true => saturating_sum(self.outputs().iter().map(OutputPlan::bytes)),
            false => saturating_sum(self.batch_shapes().iter().map(|shape| shape.bytes)),
        }
    }
}

impl BatchShape {
    /// Elements of the data that are no padding; all of them if a device chooses the samples.
    pub(crate) fn num_real(&self) -> u64 {
        let all = || self.data_bytes / self.dtype.size() as u64;
        let Placement::Padded(Padded { size, dims, lengths, .. }) = &self.placement else {
            return all();
        };
        if self.is_selected || dims.is_empty() {
            return all();
        }
        // A batch that has elements has fewer of them than bytes.
        if self.data_bytes == 0 {
            return 0;
        }
        let rows = match dims.len() {
            1 => lengths.iter().sum::<i64>(),
            count => lengths.chunks_exact(count).map(|row| row.iter().product::<i64>()).sum(),
        };
        let whole = (0..size.len()).filter(|&dim| !dims.contains(dim)).map(|dim| size[dim]);
        (rows * whole.product::<i64>()) as u64
    }
}
