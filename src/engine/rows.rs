//! Stacks whose samples are just copied, row by row: the ways that need no plan, or begin before it.

use std::time::Instant;

use super::Engine;
use crate::batch::{Batch, Fields};
use crate::collate::{Collate, Form, Transform};
use crate::explain::Path;
use crate::host::{self, RowsAhead};
use crate::kinds::Kind;
use crate::layout::{Dims, Layout};
use crate::sample::SampleList;
use crate::span::{Span, Stage};
use crate::spec::bytes_of;
use crate::stats::Tally;
use crate::tensor::Device;

impl Engine {
    /// Stacks samples on the host that are just copied, and too few bytes for other threads, without
    /// the tables of a plan, which would take longer to make. `None` if they are not such, or if
    /// anything is wrong with them, which a plan then tells. `begin`: when the work on them began.
    pub fn stack_small(
        &self,
        samples: &SampleList<'_>,
        collate: &Collate,
        begin: Instant,
    ) -> Option<Batch> {
        let kind = samples.kinds().first().filter(|_| samples.kind_ids().is_none())?;
        if samples.is_empty() || !self.is_plain_stack(collate, kind) {
            return None;
        }
        let rows = samples.len();
        samples.check_rows(0).ok()?;
        let shape: Dims =
            std::iter::once(rows as i64).chain(kind.layout.shape().iter().copied()).collect();
        let layout = Layout::compact(kind.dtype, &shape).ok()?;
        let bytes = bytes_of(kind.dtype, &shape);
        if !host::is_small(bytes.saturating_mul(2)) {
            return None;
        }
        let counters = &self.shared.counters;
        let span = Span::timed(Stage::Run, begin, &counters.run_ns);
        let block = self.shared.memory.allocate(bytes).ok()?;
        let (data, row_bytes) = (samples.data(), bytes as usize / rows);
        let follows = |pair: &[*const u8]| pair[0].wrapping_add(row_bytes) == pair[1];
        let is_one_range = row_bytes > 0 && data.windows(2).all(follows);
        // SAFETY: the samples are compact and of one shape, and the block, which is nobody else's,
        // has room for as many. Neighbours in memory are one row as long as all of them.
        #[allow(unsafe_code)]
        unsafe {
            match is_one_range {
                true => host::copy_rows(&data[..1], block.data(), bytes as usize),
                false => host::copy_rows(&data, block.data(), row_bytes),
            }
        }
        let path = if is_one_range { Path::Memcpy } else { Path::Gather };
        let tensor = block.into_tensor(kind.dtype, layout);
        let tally = Tally::of_rows(path, rows, bytes);
        counters.count(&tally);
        span.note(&tally);
        Some(Batch::new(tensor, Fields::of_rows(rows)))
    }

    /// Whether a stack of such samples is their bytes, row by row, on the host.
    fn is_plain_stack(&self, collate: &Collate, kind: &Kind) -> bool {
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
    pub fn start_rows(&self, collate: &Collate, kind: &Kind, count: usize) -> Option<RowsAhead> {
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
