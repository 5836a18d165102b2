//! Batches of samples that are chosen on a device: what the host can say of them without knowing which.

use crate::collate::{Collate, Form};
use crate::plan::batch_shape::{BatchShape, Placement};
use crate::plan::loops::{Channel, Dim, LoopNest};
use crate::plan::output::OutputPlan;
use crate::samples::{SampleList, Selection};
use crate::tensor::{Device, Error, Layout, Mismatch, Result};

impl BatchShape {
    /// The batch of any samples of the list. Lengths are those of one sample of each kind.
    ///
    /// # Errors
    /// Those of a batch of all samples of the list; [`Error::Argument`] where the shape of the batch depends on
    /// which samples these are.
    pub(super) fn of_selection(
        selection: &Selection<SampleList<'_>>,
        collate: &Collate,
    ) -> Result<BatchShape> {
        let refuse = |what: &str| {
            Err(Error::Argument(format!(
                "{what}: the samples are taken by indices on a device, which the host does not know; take by \
                 indices on the host instead"
            )))
        };
        if !matches!(collate.form, Form::Stack | Form::Pad(_)) {
            return refuse("a joined batch has a size that depends on its samples");
        }
        let listed = &selection.listed;
        let planned = BatchShape::new(&listed.one_of_each, collate);
        // The position of an offender is that in the whole list.
        let mut spec = planned.map_err(|error| {
            BatchShape::new(&listed.samples, collate).map_or_else(|told| told, |_| error)
        })?;
        if let (Placement::Padded(padded), Form::Pad(pad)) = (&spec.placement, &collate.form) {
            if padded.dims.iter().any(|&dim| pad.size.at(dim).is_none()) {
                return refuse("pad needs a size for each padded dim");
            }
        }
        if spec.device != spec.source {
            let (expected, got) = (spec.source.to_string(), spec.device.to_string());
            return Err(Error::Device(Box::new(Mismatch::of("device", expected, got))));
        }
        debug_assert!(matches!(spec.source, Device::Cuda(_)));
        let num_samples = selection.indices.shape()[0];
        spec.is_selected = true;
        spec.num_samples = num_samples as usize;
        spec.shape[0] = num_samples;
        if let Some((_, shape)) = &mut spec.lengths {
            shape[0] = num_samples;
        }
        Layout::compact(spec.dtype, &spec.shape)?;
        Ok(spec)
    }
}

impl OutputPlan<'_> {
    /// Has the field written for so many samples, each of them like one of those that it was planned with, or
    /// without elements where the index is of none.
    pub(super) fn select(&mut self, num_samples: usize) {
        let nothing = [Dim::whole(0, 0, 0)];
        let dtype = self.classes[0].dtype;
        self.classes.push(LoopNest::new(dtype, nothing, Channel::None, 0, &mut self.dims));
        self.data.to_mut().push(std::ptr::null());
        self.class_ids = (0..self.classes.len() as u32).collect();
        self.ranges = None;
        self.selected = Some(num_samples);
    }
}
