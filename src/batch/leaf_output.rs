//! [`LeafOutput`]: what a run makes of each leaf of a plan.
#![allow(unsafe_code)] // Lengths, offsets and zeros into raw memory.

use std::sync::Arc;

use crate::batch::batch::{Batch, Fields};
use crate::plan::{Arena, Role};
use crate::tensor::{DType, Result, Tensor};

/// One leaf of a plan that was run.
#[derive(Debug)]
#[non_exhaustive]
pub struct LeafOutput {
    /// The data; `None` if it was written to the caller's memory.
    pub data: Option<Tensor>,
    /// Everything else of the batch.
    pub fields: Fields,
}

impl LeafOutput {
    /// The batch; `None` if its data is in memory of the caller's.
    pub(crate) fn into_batch(self) -> Option<Batch> {
        self.data.map(|data| Batch::new(data, self.fields))
    }

    /// Sets the tensor of a role.
    pub(crate) fn set(&mut self, role: Role, tensor: Tensor) {
        let field = match role {
            Role::Data => {
                self.data = Some(tensor);
                return;
            }
            Role::Mask => &mut self.fields.mask,
            Role::BatchIndex => &mut self.fields.batch_index,
            Role::Scales => &mut self.fields.scales,
            Role::Lengths => &mut self.fields.lengths,
            Role::Offsets => &mut self.fields.offsets,
        };
        *field = Some(Box::new(tensor));
    }
}

/// Makes the batches of views of the arena, once their fields have been written. On the host the rest is written here: lengths,
/// offsets, and zeros in the gaps. `memory` has the arena's layout, and nothing else uses it; a smaller one is
/// [`Error::Layout`](crate::Error::Layout). Each batch then has `memory` as its arena.
pub(crate) fn bind_arena(arena: &Arena, memory: &Tensor, filled: &mut [LeafOutput]) -> Result<()> {
    let is_host = !arena.device.is_cuda();
    for (begin, count) in arena.gaps().filter(|_| is_host) {
        let gap = memory.part(begin, DType::U8, &[count as i64])?;
        debug_assert_eq!(gap.nbytes(), count);
        debug_assert!(!gap.device().is_cuda());
        debug_assert!(!gap.data_ptr().is_null());
        // SAFETY: the gap has `count` bytes of memory on the host, which nothing else uses.
        unsafe { gap.data_ptr().write_bytes(0, count) };
    }
    for placed in arena.tensors(memory) {
        let (leaf, role, tensor) = placed?;
        let filled = &mut filled[leaf];
        if let Some(known) = filled.fields.number(role).filter(|_| is_host) {
            debug_assert_eq!((known.dtype(), known.shape()), (tensor.dtype(), tensor.shape()));
            debug_assert!(known.layout().is_compact() && tensor.layout().is_compact());
            debug_assert!(!known.device().is_cuda());
            debug_assert!(!tensor.device().is_cuda());
            debug_assert!(!Arc::ptr_eq(known.owner(), memory.owner()));
            // SAFETY: as above; the numbers are a compact tensor of the slot's dtype and shape, as
            // `Fields::new` made it, in memory of its own.
            unsafe {
                let (from, to) = (known.data_ptr(), tensor.data_ptr());
                to.copy_from_nonoverlapping(from, tensor.nbytes());
            }
        }
        filled.set(role, tensor);
        filled.fields.arena = Some(Box::new(memory.clone()));
    }
    Ok(())
}
