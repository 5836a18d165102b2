//! [`Resident`]: a list whose table is on a device, for batches by indices that are there too.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::cuda::ListTable;
use crate::engine::engine::Engine;
use crate::samples::{ResidentList, SampleList, Selection};
use crate::tensor::Owner;
use crate::tensor::{DType, Device, Error, Hint, Mismatch, Result, Tensor};

/// A list of samples on a device, prepared so that the device finds them by indices that are on it too. Clones share it.
///
/// The device holds the address of each sample, unless the samples are rows of one table. Indices out of range are recorded
/// in 64 KiB of page-locked host memory. Samples are not moved.
#[derive(Clone, Debug)]
pub struct Resident<'a> {
    list: Arc<ResidentList<SampleList<'a>>>,
    device: Device,
}

impl Engine {
    /// Uploads what a device needs to find the samples of a list on it by indices that are there too: see
    /// [`Resident::take`]. The list's owners are those of the samples.
    ///
    /// # Errors
    /// [`Error::Empty`]; [`Error::Device`] for samples that are not all on `device`; [`Error::NoDriver`];
    /// [`Error::Argument`] for samples that were selected by indices on a device; [`Error::OutOfMemory`]; [`Error::Cuda`].
    ///
    /// ```no_run
    /// use windrow::{Collate, Device, DType, Engine, SampleList};
    /// let engine = Engine::cuda(0)?;
    /// let table = engine.empty(DType::F32, &[1000, 64], Device::Cuda(0))?;
    /// let indices = engine.empty(DType::I64, &[32], Device::Cuda(0))?; // a kernel writes them
    /// let resident = engine.resident(SampleList::rows(&table)?, Device::Cuda(0))?;
    /// let batch = engine.assemble(&resident.take(&indices)?, &Collate::stack())?; // nothing waits
    /// resident.check()?; // after it: whether an index was out of range
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn resident<'a>(&self, samples: SampleList<'a>, device: Device) -> Result<Resident<'a>> {
        if samples.is_empty() {
            return Err(Error::Empty);
        }
        samples.check_known()?;
        let Device::Cuda(ordinal) = device else {
            let got = device.to_string();
            return Err(
                Mismatch::for_subject("device", "a CUDA device", got).into_error(Error::Device)
            );
        };
        let mut found = None;
        for index in 0..if samples.is_uniform() { 1 } else { samples.len() } {
            let sample_device = samples.meta(index).device;
            if sample_device != device {
                let expected = || device.to_string().into();
                Mismatch::note(&mut found, index, expected, sample_device.to_string().into());
            }
        }
        if let Some(found) = found {
            let hint = Hint::Text(
                "samples are not moved: copy them to the device and make a list of the copies",
            );
            return Err(found.with_hint(hint).into_error(Error::Device));
        }
        self.resident_list(samples, ordinal).map(|list| Resident { list: Arc::new(list), device })
    }

    /// Makes the table of a list on a device; errors as of [`Engine::resident`].
    fn resident_list<'a>(
        &self,
        samples: SampleList<'a>,
        ordinal: u32,
    ) -> Result<ResidentList<SampleList<'a>>> {
        let (representatives, metas) = samples.representatives()?;
        let executor = self.executor(ordinal)?;
        let table: Owner = executor.list_table(&samples, &representatives, &metas)?;
        Ok(ResidentList { samples, representatives, table })
    }
}

impl<'a> Resident<'a> {
    /// The device of the samples.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The number of samples in the list.
    pub fn len(&self) -> usize {
        self.list.samples.len()
    }

    /// Whether the list is empty, which [`Engine::resident`] refuses.
    pub fn is_empty(&self) -> bool {
        self.list.samples.is_empty()
    }

    /// The samples at `indices`, int32 or int64 `[N]` on the same device: to be stacked, or padded to a given size. The host
    /// does not read the indices or wait for them; the work reads them when it runs, in a graph at each launch.
    ///
    /// Negative indices count from the end. An index out of range gives padding (the pad value, or 0 in a stack) and an
    /// [`Error::Index`] from [`Batch::check`](crate::Batch::check) and from the next call with the list.
    ///
    /// # Errors
    /// [`Error::DType`] for other indices than int32 and int64; [`Error::Shape`] for other than one dim;
    /// [`Error::Device`] for another device; [`Error::Index`] of an earlier batch.
    pub fn take(&self, indices: &Tensor) -> Result<SampleList<'a>> {
        self.check()?;
        if !matches!(indices.dtype(), DType::I32 | DType::I64) {
            let mismatch = Mismatch::for_subject("indices", "int32 or int64", indices.dtype());
            return Err(mismatch.into_error(Error::DType));
        }
        if indices.shape().len() != 1 {
            let mismatch = Mismatch::for_subject("indices", "one dim", indices.shape());
            return Err(mismatch.into_error(Error::Shape));
        }
        if indices.device() != self.device {
            let (expected, got) = (self.device.to_string(), indices.device().to_string());
            return Err(Mismatch::for_subject("indices", expected, got).into_error(Error::Device));
        }
        self.selected(indices)
    }

    /// Takes samples as [`Resident::take`] does, by indices that were checked.
    fn selected(&self, indices: &Tensor) -> Result<SampleList<'a>> {
        let table = self.list.table.downcast_ref::<ListTable>();
        let block = table.and_then(|table| table.block.clone()).map(|block| block as Owner);
        let kept = [Arc::clone(&self.list.table), Arc::clone(indices.owner())];
        let owners = kept.into_iter().chain(block);
        let (indices, list) = (indices.clone(), Arc::clone(&self.list));
        Ok(SampleList::selected(Arc::new(Selection { indices, list }), owners))
    }

    /// Whether a graph has been captured that reads the table of the list.
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn is_in_graph(&self) -> bool {
        let table = self.list.table.downcast_ref::<ListTable>();
        table.is_some_and(|table| table.is_in_graph.load(Ordering::Relaxed))
    }

    /// Returns the error of an index out of range that the device has found since the last check,
    /// once and without waiting; [`Resident::take`] is such a check.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn check(&self) -> Result<()> {
        if let Some(table) = self.list.table.downcast_ref::<ListTable>() {
            return table.check();
        }
        Ok(())
    }
}
