//! The limits of a run while its stream is captured into a graph.

use std::fmt::Display;

use crate::cuda::driver::StreamRef;
use crate::plan::{Plan, Role};
use crate::run_options::RunOptions;
use crate::tensor::{Device, Error, Result};

/// The [`Error::Argument`] for an operation that a captured stream does not allow, with its hint.
pub(crate) fn refused_in_capture(what: impl Display) -> Error {
    Error::argument(format!("the stream is being captured in a graph: {what}"))
}

/// Refuses what cannot be recorded in a graph of this stream, which is being captured, by
/// [`Error::Argument`]: batches on the host, samples on the host but for page-locked ones that
/// kernels read in place, and memory of the engine for outputs, masks, `batch_index`, lengths or
/// offsets. Another library's memory may hold all of these outputs if it belongs to the stream:
/// such libraries support captures.
pub(crate) fn check_capture(
    plan: &Plan<'_>,
    options: &RunOptions,
    stream: StreamRef<'_>,
) -> Result<()> {
    let has_memory =
        options.memory.as_ref().is_some_and(|memory| memory.stream().handle() == stream.handle());
    let refuse = |what: &str| Err(refused_in_capture(what));
    for (index, output) in plan.outputs().iter().enumerate() {
        let batch_shape = &plan.batch_shapes()[output.leaf];
        if !plan.is_device_output(index) || !batch_shape.is_on_device() {
            return refuse("the samples and the batch have to be on the device");
        }
        if batch_shape.source == Device::Cpu && output.role == Role::Data {
            return refuse("samples in pageable host memory cannot be read in it");
        }
        let is_read_in_place = plan.route().is_none_or(|route| route.reads_mapped);
        if batch_shape.source == Device::Pinned && !is_read_in_place {
            return refuse(
                "kernels are not known to read page-locked memory where it is (confidential computing, or a device that was \
                 too busy to try): bring the samples to the device before",
            );
        }
        if has_memory {
            continue;
        }
        if output.out.is_none() && !output.has_places() {
            return refuse(
                "give the memory to write to (out=), and ask for no mask or batch_index",
            );
        }
        if batch_shape.has_lengths() {
            return refuse("lengths and offsets need memory: capture a stack");
        }
    }
    Ok(())
}
