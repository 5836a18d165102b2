//! What of a run an [`Engine`] leaves to the executor of a device.

use std::sync::Arc;

use super::engine::Engine;
use crate::batch::Filled;
use crate::collate::Collate;
use crate::cuda;
use crate::host::{self, Outputs};
use crate::plan::{BatchShape, Leaf, Plan, Target};
use crate::run_options::RunOptions;
use crate::samples::SampleList;
use crate::tensor::{Device, Layout, Result, Tensor};

impl Engine {
    /// The executor of what of a plan is on a device.
    pub(super) fn executor_of(
        &self,
        plan: &Plan<'_>,
        options: &RunOptions,
    ) -> Result<Option<Arc<cuda::Executor>>> {
        let ordinal = cuda::ordinal_of(plan)?;
        ordinal.map(|ordinal| self.shared.devices.executor_on(ordinal, options.stream)).transpose()
    }

    /// Runs what of a plan is on a device; gives the arena, if that does.
    pub(super) fn run_on_device(
        &self,
        (executor, current, lane): (&cuda::Executor, &cuda::Current<'_>, cuda::Lane<'_>),
        plan: &Plan<'_>,
        placements: &[Option<*mut u8>],
        options: &RunOptions,
        filled: &mut [Filled],
        tensors: &mut [Option<Tensor>],
    ) -> Result<Option<Tensor>> {
        let is_host = |batch_shape: &BatchShape| {
            [batch_shape.source, batch_shape.device].contains(&Device::Cpu)
        };
        let threads = match plan.batch_shapes().iter().any(is_host) {
            true => self.shared.threads.helpers()?,
            false => None,
        };
        let host = cuda::Host { memory: &self.shared.memory, threads: threads.as_ref() };
        let done = executor.run(current, lane, plan, placements, options, host)?;
        self.shared.counters.count_traffic(done.traffic);
        for (index, tensor) in done.tensors {
            tensors[index] = Some(tensor);
        }
        for (tensor, out, layout) in done.spread {
            self.spread(&tensor, out, layout)?;
        }
        for (leaf, role, tensor) in done.numbers {
            filled[leaf].set(role, tensor);
        }
        for (filled, batch_shape) in filled.iter_mut().zip(plan.batch_shapes()) {
            if matches!(batch_shape.device, Device::Cuda(_)) {
                filled.fields.late.clone_from(&done.late);
            }
        }
        Ok(done.arena)
    }

    /// Copies a batch that came from a device to an output with gaps or in another order.
    fn spread(&self, tensor: &Tensor, out: *mut u8, layout: Layout) -> Result<()> {
        let (mut samples, collate) = (SampleList::new(), Collate::concat(0).device(Device::Cpu));
        samples.push_view(&tensor.into())?;
        // SAFETY: the output that the plan borrows.
        #[allow(unsafe_code)]
        let target = unsafe { Target::from_raw_parts(out, tensor.dtype(), Device::Cpu, layout) };
        let leaf = Leaf { samples: &samples, collate: &collate, path: "", out: Some(&target) };
        let plan = Plan::for_leaves(&[leaf])?;
        // SAFETY: as above; the plan has one output.
        #[allow(unsafe_code)]
        let outputs = unsafe { Outputs::new(vec![Some(out)]) };
        host::Work::new(&plan, &outputs).run(self.shared.threads.helpers()?.as_ref());
        Ok(())
    }
}
