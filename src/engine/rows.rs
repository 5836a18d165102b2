//! Stacks whose rows are copied before all of them are known.

use super::engine::Engine;
use crate::collate::{Collate, Form, Transform};
use crate::host::RowsAhead;
use crate::samples::TensorMeta;
use crate::tensor::Device;

impl Engine {
    /// Whether a stack of such samples is their bytes, row by row, on the host.
    fn is_plain_stack(&self, collate: &Collate, kind: &TensorMeta) -> bool {
        collate.form == Form::Stack
            && collate.misplaced.is_none()
            && collate.transform == Transform::default()
            && collate.dtype.is_none_or(|dtype| dtype == kind.dtype)
            && collate.device.or(self.shared.device).unwrap_or(Device::Cpu) == Device::Cpu
            && kind.device == Device::Cpu
            && kind.layout.is_compact()
            && !self.shared.reference
    }

    /// Starts to stack `count` samples of one kind before all of them are known: what is pushed is
    /// copied by other threads, and [`Engine::run_with`] makes the rest. `None` if that would not
    /// pay, or if the batch is not such that rows are just copied.
    pub fn start_rows(
        &self,
        collate: &Collate,
        kind: &TensorMeta,
        count: usize,
    ) -> Option<RowsAhead> {
        let row_bytes = kind.layout.numel() as u64 * kind.dtype.size() as u64;
        if !self.is_plain_stack(collate, kind) || !RowsAhead::pays_for(row_bytes, count) {
            return None;
        }
        // Without threads or memory the plain way is taken, which says what is wrong.
        let threads = self.shared.threads.helpers().ok()??;
        let block = self.shared.memory.allocate(row_bytes.checked_mul(count as u64)?).ok()?;
        RowsAhead::start(block, row_bytes as usize, count, &threads)
    }
}
