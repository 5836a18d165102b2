//! What a binding of another language needs of an [`Engine`] beside its public methods: stages that begin before there is a
//! plan. Hidden from the documentation, and free to change.

use std::borrow::Cow;
use std::time::Instant;

use super::engine::Engine;
use crate::collate::{Collate, Form, Transform};
use crate::host::{self, RowsAhead};
use crate::observe::{Span, Stage, Tally};
use crate::plan::{Leaf, Plan};
use crate::samples::TensorMeta;
use crate::tensor::{Device, Result};

#[doc(hidden)]
impl Engine {
    /// The options with the place that a batch goes to, if that is the engine's to say.
    pub fn placed<'c>(&self, collate: &'c Collate) -> Cow<'c, Collate> {
        match self.shared.device {
            Some(device) if collate.device.is_none() => Cow::Owned(collate.clone().device(device)),
            _ => Cow::Borrowed(collate),
        }
    }

    /// Begins a stage of the engine's work that is done outside of it, such as the import of a binding.
    pub fn enter(&self, stage: Stage) -> Span<'_> {
        match self.shared.counters.time_of(stage) {
            Some(sum) => Span::timed(stage, Instant::now(), sum),
            None => Span::enter(stage),
        }
    }

    /// As [`Plan::for_leaves`], counted as a stage that began at `begin`.
    ///
    /// # Errors
    /// As [`Plan::for_leaves`].
    pub fn plan<'s, 'a: 's>(&self, leaves: &[Leaf<'s, 'a>], begin: Instant) -> Result<Plan<'s>> {
        let _span = Span::timed(Stage::Plan, begin, &self.shared.counters.plan_ns);
        Plan::for_leaves(leaves)
    }

    /// As [`Plan::in_arena`], counted as a stage that began at `begin`.
    ///
    /// # Errors
    /// As [`Plan::in_arena`].
    pub fn plan_in_arena<'s, 'a: 's>(
        &self,
        leaves: &[Leaf<'s, 'a>],
        begin: Instant,
    ) -> Result<Plan<'s>> {
        let _span = Span::timed(Stage::Plan, begin, &self.shared.counters.plan_ns);
        Plan::in_arena(leaves)
    }

    /// Starts to stack `count` samples with this metadata before all of them are known: what is pushed is
    /// copied by other threads, and [`Engine::run_with`] makes the rest. `None` if that would not
    /// pay, or if the batch is not such that rows are just copied.
    pub fn start_rows(
        &self,
        collate: &Collate,
        meta: &TensorMeta,
        count: usize,
    ) -> Option<RowsAhead> {
        let row_bytes = meta.layout.numel() as u64 * meta.dtype.size() as u64;
        if !self.is_plain_stack(collate, meta) || !RowsAhead::pays_for(row_bytes, count) {
            return None;
        }
        // Without threads or memory the plain way is taken, which says what is wrong.
        let threads = self.shared.threads.helpers().ok()??;
        let block = self.shared.memory.allocate(row_bytes.checked_mul(count as u64)?).ok()?;
        RowsAhead::start(block, row_bytes as usize, count, &threads)
    }

    /// Calls `run` once for each number below `count`, on the calling thread and on the engine's others.
    ///
    /// # Errors
    /// As [`Engine::assemble`], where threads cannot be started.
    pub fn for_each(&self, count: usize, run: impl Fn(usize) + Sync) -> Result<()> {
        let threads = self.shared.threads.helpers()?;
        host::parallel_for(count, threads.as_ref(), run);
        Ok(())
    }

    /// Notes a batch that was returned as a view of its samples' memory.
    pub fn count_view(&self, num_samples: usize) {
        self.shared.counters.count(&Tally::of_view(num_samples));
    }

    /// Whether a stack of such samples is their bytes, row by row, on the host.
    fn is_plain_stack(&self, collate: &Collate, meta: &TensorMeta) -> bool {
        collate.form == Form::Stack
            && collate.misplaced.is_none()
            && collate.increments.is_none()
            && collate.transform == Transform::default()
            && collate.dtype.is_none_or(|dtype| dtype == meta.dtype)
            && collate.device.or(self.shared.device).unwrap_or(Device::Cpu) == Device::Cpu
            && meta.device == Device::Cpu
            && meta.layout.is_compact()
            && !self.shared.reference
    }
}
