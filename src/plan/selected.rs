//! Batches of samples that are chosen on a device: what the host can say of them without knowing which.

use std::borrow::Cow;

use crate::collate::{Collate, Form, Rescale};
use crate::plan::batch_shape::BatchShape;
use crate::plan::loops::{Channel, Dim, LoopNest};
use crate::plan::output::OutputPlan;
use crate::plan::placement::Placement;
use crate::samples::{SampleList, Selection};
use crate::tensor::{Error, Mismatch, Result};

impl BatchShape {
    /// The batch of any samples of the list, one for each index. Lengths are those of one sample
    /// for each `TensorMeta`.
    ///
    /// # Errors
    /// As [`BatchShape::new`] of all samples of the list; [`Error::Argument`] where the batch
    /// depends on which samples these are: increments, a Dequantize, a joined batch, a padded dim
    /// without a size; [`Error::Device`] for a batch on another device than the samples.
    pub(super) fn for_selection(
        selection: &Selection<SampleList<'_>>,
        collate: &Collate,
    ) -> Result<BatchShape> {
        let refuse = |what: &str| {
            Err(Error::argument(format!(
                "{what}: the samples are taken by indices on a device, which the host does not know; take by \
                 indices on the host instead"
            )))
        };
        if collate.increments.is_some() {
            return refuse("increments need samples selected on the host");
        }
        if let Some(Rescale::Dequantize(_)) = collate.rescale.as_deref() {
            return refuse("a Dequantize needs samples selected on the host");
        }
        if !matches!(collate.form, Form::Stack | Form::Pad(_)) {
            return refuse("a joined batch has a size that depends on its samples");
        }
        let list = &selection.list;
        let planned = BatchShape::new(&list.representatives, collate);
        // The position of an offender is that in the whole list.
        let mut batch_shape = planned.map_err(|error| {
            BatchShape::new(&list.samples, collate).map_or_else(|refusal| refusal, |_| error)
        })?;
        if let (Placement::Padded(padded), Form::Pad(pad)) = (&batch_shape.placement, &collate.form)
        {
            if padded.dims.iter().any(|dim| pad.size.at(dim).is_none()) {
                return refuse("pad needs a size for each padded dim");
            }
        }
        if batch_shape.device != batch_shape.source {
            let (expected, got) = (batch_shape.source.to_string(), batch_shape.device.to_string());
            return Err(Mismatch::for_subject("device", expected, got).into_error(Error::Device));
        }
        debug_assert!(batch_shape.source.is_cuda());
        let num_samples = selection.indices.shape()[0];
        batch_shape.is_selected = true;
        batch_shape.num_samples = num_samples as usize;
        batch_shape.shape[0] = num_samples;
        let scaling = batch_shape.scaling.as_deref_mut();
        if let Some(count) = scaling.and_then(|scaling| scaling.shape.first_mut()) {
            *count = num_samples;
        }
        batch_shape.set_bytes()?;
        Ok(batch_shape)
    }
}

impl OutputPlan<'_> {
    /// Turns the output into one of `num_samples` samples that a device chooses: each is like one of those it was
    /// planned with, or has no elements if its index is out of range.
    pub(super) fn select(&mut self, num_samples: usize) {
        let nothing = [Dim::whole(0, 0, 0)];
        let dtype = self.nests[0].dtype;
        self.nests.push(LoopNest::new(dtype, nothing, Channel::None, 0, &mut self.dims));
        let mut data = Vec::with_capacity(self.nests.len());
        data.extend_from_slice(&self.data);
        data.push(std::ptr::null());
        self.data = Cow::Owned(data);
        self.nest_ids = (0..self.nests.len() as u32).collect();
        self.ranges = None;
        self.selected = Some(num_samples);
    }
}
