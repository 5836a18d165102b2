//! Memory for what a run writes: outputs, lengths and offsets, and host memory for batches that come back.
#![allow(unsafe_code)] // A block as tensors.

use std::sync::Arc;

use super::capture::refused_in_capture;
use super::run::Run;
use crate::cuda::launch::host_metadata::MetadataSegment;
use crate::host::MemoryPool;
use crate::plan::{is_shared, OutputPlan, Plan, SHARED_ALIGN};
use crate::run_options::RunOptions;
use crate::tensor::{bytes_of, DType, Device, Error, Layout, Result, Tensor};

impl Run<'_> {
    /// Allocates one block that [`Run::output`] cuts all small outputs from, if there are several: a tree of many leaves has
    /// many of them. None if an allocator or an arena has the memory. `placements`: the memory that outputs have already;
    /// `device_outputs`: the outputs that the device reads or writes; `known`: the lengths and offsets.
    pub fn share_outputs(
        &mut self,
        plan: &Plan<'_>,
        placements: &[Option<*mut u8>],
        device_outputs: &[usize],
        options: &RunOptions,
        known: &[MetadataSegment],
    ) -> Result<()> {
        if options.memory.is_some() || plan.arena.is_some() {
            return Ok(());
        }
        let is_new =
            |index: usize| placements[index].is_none() && !plan.outputs()[index].has_places();
        let new = device_outputs.iter().filter(|&&index| is_new(index));
        let outputs = new.map(|&index| &plan.outputs()[index]);
        let outputs = outputs.filter(|output| plan.batch_shapes()[output.leaf].is_on_device());
        let metadata = known.iter().map(|known| bytes_of(known.dtype, &known.shape));
        let sizes = outputs.map(OutputPlan::bytes).chain(metadata);
        let sizes: Vec<u64> = sizes.filter(|&bytes| is_shared(bytes)).collect();
        if sizes.len() > 1 {
            let bytes = sizes.iter().map(|bytes| bytes.next_multiple_of(SHARED_ALIGN)).sum();
            self.shared = Some((self.allocate(bytes)?, 0));
        }
        Ok(())
    }

    /// Row-major memory on the device for an output: the options' allocator's if it gives any, else the run's own.
    ///
    /// # Errors
    /// [`Error::Argument`] for an allocator's tensor that does not fit; refused in a capture without an allocator's memory.
    pub fn output(&mut self, options: &RunOptions, dtype: DType, layout: Layout) -> Result<Tensor> {
        let ordinal = self.current.context().ordinal();
        let device = Device::Cuda(ordinal);
        if let Some(memory) = &options.memory {
            if let Some(tensor) = memory.allocate(dtype, layout.shape(), ordinal)? {
                let is_fit = (tensor.dtype(), tensor.device()) == (dtype, device)
                    && tensor.shape() == layout.shape()
                    && tensor.layout().is_compact()
                    && !tensor.is_read_only();
                if !is_fit {
                    return Err(Error::argument(format!(
                        "expected a row-major output of the allocator, {dtype} {:?} on {device}, got {tensor:?}",
                        layout.shape()
                    )));
                }
                self.result.traffic.lent_bytes += bytes_of(dtype, layout.shape());
                self.lent.push(Arc::clone(tensor.owner()));
                return Ok(tensor);
            }
        }
        if self.is_capturing {
            return Err(refused_in_capture("the allocator has no memory for this dtype"));
        }
        let bytes = bytes_of(dtype, layout.shape());
        let (block, begin) = match &mut self.shared {
            Some((block, used)) if is_shared(bytes) => {
                let begin = *used;
                *used += bytes.next_multiple_of(SHARED_ALIGN);
                (Arc::clone(block), begin)
            }
            _ => (self.allocate(bytes)?, 0),
        };
        let data = (block.address() + begin) as *mut u8;
        debug_assert!(layout.is_compact());
        // SAFETY: as many bytes of the block as the compact layout has; it is their owner.
        Ok(unsafe { Tensor::new_unchecked(block, data, dtype, device, layout, false) })
    }

    /// Memory on the host for an output read from the device, and its tensor unless it is the caller's (`placement`). A pinned
    /// batch gets that of the options' allocator if it gives any, else of the pool of page-locked memory; any other batch that
    /// of `host`.
    pub fn host_memory(
        &mut self,
        plan: &Plan<'_>,
        output: &OutputPlan<'_>,
        placement: Option<*mut u8>,
        options: &RunOptions,
        host: &Arc<MemoryPool>,
    ) -> Result<(*mut u8, Option<Tensor>)> {
        let device = plan.batch_shapes()[output.leaf].device;
        if let Some(out) = placement {
            return Ok((out, None));
        }
        let (dtype, layout) = (output.dtype, output.layout.clone());
        let lent = (device == Device::Pinned).then(|| options.pinned_tensor(dtype, &layout));
        let tensor = if let Some(tensor) = lent.flatten() {
            self.result.traffic.lent_bytes += output.bytes();
            self.lent.push(Arc::clone(tensor.owner()));
            tensor
        } else if device == Device::Pinned {
            let block = self.executor.pinned.take(self.current, output.bytes())?;
            block.into_tensor(dtype, layout)
        } else {
            host.allocate(output.bytes())?.into_tensor(dtype, layout)
        };
        Ok((tensor.data_ptr(), Some(tensor)))
    }

    /// Allocates memory for lengths and offsets of batches on the device, or takes an arena's, and adds their tensors to the
    /// result. The segments, those of an arena's gaps too, get their addresses.
    pub fn metadata(
        &mut self,
        plan: &Plan<'_>,
        options: &RunOptions,
        known: &mut [MetadataSegment],
    ) -> Result<()> {
        for segment in known {
            let arena = plan.arena.as_ref().zip(self.result.arena.as_ref());
            let Some((leaf, role)) = segment.field else {
                segment.out += arena.map_or(0, |(_, memory)| memory.data_ptr().addr() as u64);
                continue;
            };
            let tensor = match arena.and_then(|(arena, memory)| arena.tensor(memory, leaf, role)) {
                Some(tensor) => tensor?,
                None => {
                    let layout = Layout::compact(segment.dtype, &segment.shape)?;
                    self.output(options, segment.dtype, layout)?
                }
            };
            segment.out = tensor.data_ptr().addr() as u64;
            self.result.metadata.push((leaf, role, tensor));
        }
        Ok(())
    }
}
