//! Page-locked outputs of a call that share one block.

use super::engine::Engine;
use crate::plan::{is_shared, OutputPlan, Plan, SHARED_ALIGN};
use crate::run_options::RunOptions;
use crate::tensor::{DType, Device, Layout, Result, Tensor};

/// Memory that small outputs are parts of, and how much of it is theirs by now.
pub(super) struct SharedMemory {
    memory: Tensor,
    used: u64,
}

impl Engine {
    /// Memory for all small page-locked outputs that the host writes, from the options' allocator
    /// if it gives any; `None` if there are fewer than two: a tree of many leaves has many of them,
    /// and a block of their own has 64 KiB each.
    pub(super) fn shared_pinned(
        &self,
        plan: &Plan<'_>,
        placements: &[Option<*mut u8>],
        options: &RunOptions,
    ) -> Result<Option<SharedMemory>> {
        let is_new = |index: usize| placements[index].is_none() && !plan.is_device_output(index);
        let outputs = plan.outputs().iter().enumerate();
        let outputs = outputs.filter(|(index, output)| {
            plan.batch_shapes()[output.leaf].device == Device::Pinned
                && is_shared(output.bytes())
                && is_new(*index)
        });
        let (mut count, mut bytes) = (0, 0);
        for (_, output) in outputs {
            count += 1;
            bytes += output.bytes().next_multiple_of(SHARED_ALIGN);
        }
        if count < 2 {
            return Ok(None);
        }
        let layout = Layout::compact(DType::U8, &[bytes as i64])?;
        let memory = self.host_tensor(DType::U8, layout, Device::Pinned, options)?;
        Ok(Some(SharedMemory { memory, used: 0 }))
    }
}

impl SharedMemory {
    /// Takes the memory of one of the outputs that the block was made for; call it once for each.
    pub fn take(&mut self, output: &OutputPlan<'_>) -> Result<Tensor> {
        let begin = self.used;
        self.used += output.bytes().next_multiple_of(SHARED_ALIGN);
        self.memory.part(begin, output.dtype, output.layout.shape())
    }
}
