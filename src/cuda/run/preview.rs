//! The launch that a run of a plan would make, for [`Explain`](crate::explain::Explain): the very table that it
//! would send, decoded. Memory that a run would allocate is assumed to begin where the driver's does, at
//! a multiple of 512.

use super::devices::ordinal_of;
use crate::cuda::driver;
use crate::cuda::launch::host_metadata::{host_metadata, MetadataSegment};
use crate::cuda::launch::launch_outputs::LaunchOutputs;
use crate::cuda::launch::output_desc::{flags, Op, OutputDesc};
use crate::cuda::launch::policy::Policy;
use crate::cuda::launch::segment::OutputSegment;
use crate::cuda::launch::table::{segments, Table};
use crate::plan::{Launch, Plan, SegmentReport, Upload};
use crate::tensor::Result;

/// Placeholder address for outputs that are not allocated yet.
const ASSUMED: u64 = 1 << 40;

/// The multiprocessors of an H100 and an H200, for a preview without a driver.
const MULTIPROCESSORS: u32 = 132;

/// The launch of a plan, if it makes one. `is_view` says which leaves are not assembled. Starts the driver, if there is one.
///
/// # Errors
/// Errors of a run that making the plan does not find: leaves on several devices, a table that is too large, a trial of the
/// launch policy that does not make sense. Only the run finds that a device has no kernels.
pub(crate) fn launch_of(
    plan: &Plan<'_>,
    is_view: impl Fn(usize) -> bool,
) -> Result<Option<Launch>> {
    let Some(ordinal) = ordinal_of(plan)? else { return Ok(None) };
    let device = driver::device_count().and_then(|_| driver::describe(ordinal));
    let num_sms = device.map_or(MULTIPROCESSORS, |device| device.num_multiprocessors);
    let policy = Policy::from_env()?;

    let outputs = assumed_outputs(plan, &is_view);
    let segments = segments(plan, outputs.outputs(plan));

    let mut metadata = host_metadata(plan)?;
    metadata
        .retain(|known| known.count() > 0 && known.field.is_none_or(|(leaf, _)| !is_view(leaf)));

    let table = Table::new(&segments, &metadata, num_sms, &policy)?;
    if table.num_items() == 0 {
        return Ok(None);
    }
    Ok(Some(Launch {
        items: table.num_items().into(),
        num_kernels: table.kernels().len(),
        table_bytes: table.as_bytes().len() as u64,
        is_uploaded: !table.is_inline(&policy),
        parts: described(&table, &segments, &metadata),
    }))
}

/// Describes each descriptor of a table: parts of outputs, numbers, then gaps, which count as one.
fn described(
    table: &Table,
    segments: &[OutputSegment<'_>],
    metadata: &[MetadataSegment],
) -> Vec<SegmentReport> {
    let labels =
        segments.iter().map(|segment| (Some(segment.output.leaf), segment.output.role.name()));
    let known = metadata.iter().map(|known| match known.field {
        Some((leaf, role)) => (Some(leaf), role.name()),
        None => (None, "gap"),
    });
    let labels = labels.chain(known);
    let ends = table.descs().skip(1).map(|desc| desc.head.first_item).chain([table.num_items()]);
    let segments = labels.zip(table.descs().zip(ends));
    let segments = segments.map(|((leaf, output), (desc, end))| SegmentReport {
        leaf,
        output,
        family: desc.family().name(),
        samples: desc.head.num_samples as usize,
        items: u64::from(end - desc.head.first_item),
        sources: sources_of(&desc),
    });
    let mut segments: Vec<SegmentReport> = segments.collect();
    segments.dedup_by(|next, first| {
        let are_gaps = next.leaf.is_none() && first.leaf.is_none();
        first.items += if are_gaps { next.items } else { 0 };
        are_gaps
    });
    segments
}

/// The outputs that the launch writes: in the caller's memory on the device, or at [`ASSUMED`] and the offset in the arena, so
/// that outputs outside an arena share one address. Views, and outputs that uploads copy or the host writes, have none.
fn assumed_outputs<'p>(plan: &'p Plan<'_>, is_view: impl Fn(usize) -> bool) -> LaunchOutputs<'p> {
    let mut outputs = LaunchOutputs::unassigned(plan.outputs().len());
    for (index, output) in plan.outputs().iter().enumerate() {
        let on_device = plan.batch_shapes()[output.leaf].is_on_device();
        let out = output.out.filter(|_| on_device).map(|out| out.addr() as u64);
        let is_own = plan.is_device_output(index) && !is_view(output.leaf);
        outputs.addresses[index] =
            is_own.then(|| out.unwrap_or_else(|| ASSUMED + arena_offset(plan, index)));
    }
    for upload in plan.route().into_iter().flat_map(|route| &route.uploads) {
        match upload {
            Upload::Batch(output) | Upload::Copied { output, .. } => {
                outputs.addresses[*output] = None
            }
            Upload::Staged(staging) => outputs.stage(staging, ASSUMED),
        }
    }
    outputs
}

/// The offset of an output in the arena of its plan, in bytes; 0 without an arena.
fn arena_offset(plan: &Plan<'_>, index: usize) -> u64 {
    let places = plan.arena.iter().flat_map(|arena| arena.places(std::ptr::null_mut()));
    places.filter(|(output, _)| *output == index).map(|(_, place)| place.addr() as u64).sum()
}

/// How kernels find the samples of a descriptor: by `addresses`, or by the `ids` of a device; `None` if it reads none.
fn sources_of(desc: &OutputDesc) -> Option<&'static str> {
    let head = desc.head;
    let reads = head.op != Op::Const as u8 && head.op != Op::Index as u8;
    match (reads && head.num_samples > 0, head.flags & flags::BY_ID != 0) {
        (false, _) => None,
        (true, false) => Some("addresses"),
        (true, true) => Some("ids"),
    }
}
