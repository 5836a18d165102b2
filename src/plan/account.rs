//! Counts the bytes and samples that a plan moves: for [`crate::Explain`] before a run, and for [`crate::Stats`] after it.

use crate::plan::batch_shape::{BatchShape, Placement};
use crate::plan::output::{saturating_sum, OutputPlan, Role};
use crate::plan::path::Path;
use crate::plan::plan::Plan;
use crate::plan::route::Upload;
use crate::tensor::{bytes_of, DType};

impl<'s> Plan<'s> {
    /// How the data of each leaf moves.
    pub(crate) fn paths<'p>(&'p self) -> impl Iterator<Item = Path> + use<'p, 's> {
        let data = self.outputs().iter().filter(|output| output.role == Role::Data);
        data.map(|output| match self.route() {
            Some(route) => route.paths[output.leaf],
            None => Path::within(output),
        })
    }

    /// Bytes of samples that are brought to the device.
    pub(crate) fn bytes_to_device(&self) -> u64 {
        let uploads = self.route().into_iter().flat_map(|route| &route.uploads);
        saturating_sum(uploads.map(|upload| match upload {
            Upload::Batch(output) => self.outputs()[*output].bytes(),
            Upload::Staged(staging) => staging.sample_bytes(),
        }))
    }

    /// Bytes of batches that are brought to the host.
    pub(crate) fn bytes_to_host(&self) -> u64 {
        let data = self.outputs().iter().filter(|output| output.role == Role::Data);
        let moved = data.zip(self.paths()).filter(|(_, path)| *path == Path::Download);
        saturating_sum(moved.map(|(output, _)| output.bytes()))
    }

    /// Bytes of the data.
    pub(crate) fn data_bytes(&self) -> u64 {
        let data = self.outputs().iter().filter(|output| output.role == Role::Data);
        saturating_sum(data.map(OutputPlan::bytes))
    }

    /// Bytes of the data that hold padding.
    pub(crate) fn padding_bytes(&self) -> u64 {
        let data = self.outputs().iter().filter(|output| output.role == Role::Data);
        // How long the samples are that a device chooses is not known here.
        let shape = |output: &OutputPlan<'_>| &self.batch_shapes()[output.leaf];
        data.filter(|output| !shape(output).is_selected)
            .filter(|output| matches!(shape(output).placement, Placement::Padded(_)))
            .map(|output| {
                let real: u64 =
                    (0..output.num_samples()).map(|sample| output.class_of(sample).num_real).sum();
                output.bytes() - real * output.dtype.size() as u64
            })
            .sum()
    }

    /// Bytes of everything the plan makes, lengths included, offsets not.
    pub(crate) fn output_bytes(&self) -> u64 {
        let outputs = saturating_sum(self.outputs().iter().map(OutputPlan::bytes));
        let lengths = |batch_shape: &BatchShape| {
            batch_shape.lengths.as_ref().map_or(0, |(_, shape)| bytes_of(DType::I64, shape))
        };
        outputs.saturating_add(saturating_sum(self.batch_shapes().iter().map(lengths)))
    }
}
