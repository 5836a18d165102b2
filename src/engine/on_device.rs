//! The steps of a run that an [`Engine`] delegates to a device's executor.

use std::sync::Arc;

use super::engine::Engine;
use crate::batch::LeafOutput;
use crate::cuda;
use crate::host;
use crate::plan::{BatchShape, Plan, Route};
use crate::run_options::RunOptions;
use crate::tensor::{Device, Result, Tensor};

impl Engine {
    /// The executor of the device of a plan; `None` for a plan that is all on the host, in
    /// page-locked memory too.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) for leaves on several devices; as
    /// [`Devices::executor_on`](cuda::Devices::executor_on).
    pub(super) fn executor_of(
        &self,
        plan: &Plan<'_>,
        options: &RunOptions,
    ) -> Result<Option<Arc<cuda::Executor>>> {
        let ordinal = cuda::ordinal_of(plan)?;
        ordinal.map(|ordinal| self.shared.devices.executor_on(ordinal, options.stream)).transpose()
    }

    /// Runs the outputs of a plan that a device reads or writes, and sets their tensors, metadata
    /// and completion; those that came back to be spread over the caller's memory are there at the
    /// return. Returns the memory of an arena on the device. Counts the traffic.
    pub(super) fn run_on_device(
        &self,
        (executor, current, launch_stream): (
            &cuda::Executor,
            &cuda::Current<'_>,
            cuda::LaunchStream<'_>,
        ),
        plan: &Plan<'_>,
        placements: &[Option<*mut u8>],
        options: &RunOptions,
        filled: &mut [LeafOutput],
        tensors: &mut [Option<Tensor>],
    ) -> Result<Option<Tensor>> {
        let is_host = |batch_shape: &BatchShape| {
            [batch_shape.source, batch_shape.device].contains(&Device::Cpu)
        };
        let has_spread = plan.route().is_some_and(Route::has_spread);
        // The call comes before anything is enqueued, as it may fail.
        let threads = match has_spread || plan.batch_shapes().iter().any(is_host) {
            true => self.shared.threads.helpers()?,
            false => None,
        };
        let host = cuda::Host { memory: &self.shared.memory, threads: threads.as_ref() };
        let result = executor.run(current, launch_stream, plan, placements, options, host)?;
        self.shared.counters.count_traffic(result.traffic);
        for (index, tensor) in result.tensors {
            tensors[index] = Some(tensor);
        }
        let route = plan.route();
        for (index, tensor, out) in result.spread {
            let Some(spread) = route.and_then(|route| route.spread(index)) else { continue };
            let output = spread.read_at(tensor.data_ptr());
            let end = spread.landing.unwrap_or(0) + spread.compact.bytes();
            debug_assert!(end <= tensor.nbytes() as u64);
            debug_assert_eq!(output.numel(), spread.compact.numel());
            // SAFETY: the tensor has all elements of the output, which the plan borrows.
            #[allow(unsafe_code)]
            unsafe {
                host::run_part(&output, 0..output.numel(), out, threads.as_ref());
            }
        }
        for (leaf, role, tensor) in result.metadata {
            filled[leaf].set(role, tensor);
        }
        for (filled, batch_shape) in filled.iter_mut().zip(plan.batch_shapes()) {
            if batch_shape.device.is_cuda() {
                filled.fields.completion.clone_from(&result.completion);
            }
        }
        Ok(result.arena)
    }
}
