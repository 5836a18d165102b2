//! A plan as the kernels read it: one table of 8-byte words.

use bytemuck::{bytes_of, cast_slice, Pod};
use smallvec::SmallVec;

use super::argument_pool::{ArgumentPool, KernelArguments};
use super::encode::{Builder, Encoded, SegmentFamily};
use super::host_metadata::MetadataSegment;
use super::kernel_abi::{Header, MAX_DESCS};
use super::output_desc::{Loop, OutputDesc, DESC_WORDS};
use super::policy::Policy;
use super::scaled_segments::{push_empty_scales, push_rescaled_segments};
use super::segment::{push_segments, OutputSegment};
use super::table_writer::{AddressColumn, DeviceColumn};
use crate::plan::{ElementOp, OutputPlan, Plan};
use crate::tensor::Result;

/// The table of a launch.
#[derive(Debug)]
pub(crate) struct Table {
    words: Vec<u64>,
    header: Header,
    /// Columns behind the words, which a device writes for the samples that it selects.
    chosen: Vec<DeviceColumn>,
    /// The number of words, these columns included.
    num_words: u64,
    sources: SmallVec<[AddressColumn; 1]>,
    has_quantised: bool,
    /// The kernel of all that is not quantised.
    others: Option<TableKernel>,
}

/// A kernel that a table takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableKernel {
    /// The kernel of the common families.
    Common,
    /// The kernel of all families but quantised, with more registers: see [`Family::is_common`](super::family::Family::is_common).
    Any,
    /// The kernel of the quantised family alone, with still more.
    Quantise,
}

impl Table {
    /// The table of these segments, in their order, then of the metadata that has bytes. `num_sms` multiprocessors share the
    /// items, whose sizes are in the policy.
    pub fn new(
        segments: &[OutputSegment<'_>],
        values: &[MetadataSegment],
        num_sms: u32,
        policy: &Policy,
    ) -> Result<Table> {
        let values = || values.iter().filter(|values| values.count() > 0);
        let segments = segments.iter().map(|segment| SegmentFamily::new(segment, policy));
        let segments: SmallVec<[SegmentFamily<'_>; 1]> = segments.collect();
        let has_quantised = segments.iter().any(SegmentFamily::is_quantised);
        let mut others = segments.iter().filter(|segment| !segment.is_quantised());
        let has_any = policy.always_any != 0 || others.clone().any(|other| !other.is_common());
        let has_others = others.next().is_some() || values().next().is_some();
        let num_descs = segments.len() + values().count();
        let mut builder = Builder::new(num_descs, num_sms, !has_any && !has_quantised, policy);
        for segment in &segments {
            builder.segment(segment)?;
        }
        for values in values() {
            builder.metadata(values)?;
        }
        let Encoded { words, num_descs, num_items, chosen, num_words, sources } =
            builder.finish()?;
        // Descriptors that the parameters have no room for are not read by the kernel of the common families.
        let others = match has_any || num_descs as usize > MAX_DESCS {
            _ if has_quantised && !has_others => None,
            true => Some(TableKernel::Any),
            false => Some(TableKernel::Common),
        };
        let header = Header { table: 0, num_items, last_desc: num_descs.saturating_sub(1) };
        Ok(Table { words, header, chosen, num_words, sources, has_quantised, others })
    }

    /// Columns that a device writes.
    pub fn chosen(&self) -> &[DeviceColumn] {
        &self.chosen
    }

    /// Bytes of the table up to the end of these columns, which begin at word
    /// `DEVICE_COLUMNS_START`: up to there without any.
    pub fn chosen_bytes(&self) -> u64 {
        self.num_words * 8
    }

    /// Its descriptors, as the kernels read them.
    pub fn descs(&self) -> impl Iterator<Item = OutputDesc> + '_ {
        let descs = self.words.chunks_exact(DESC_WORDS);
        descs.take(self.header.last_desc as usize + 1).map(OutputDesc::read)
    }

    /// Whether it goes with the parameters of the launch; else it is uploaded. It goes by
    /// [`Table::bytes`] alone: a table with columns that a device writes is the caller's to treat
    /// apart.
    pub fn is_inline(&self, policy: &Policy) -> bool {
        self.bytes() <= policy.inline_bytes
    }

    /// The kernels that together have all families of the table, each for a launch: two only if it
    /// has quantised and others, the quantised first. Each leaves out what the other writes.
    pub fn kernels(&self) -> &'static [TableKernel] {
        use TableKernel::{Any, Common, Quantise};
        match (self.has_quantised, self.others) {
            (true, Some(Any)) => &[Quantise, Any],
            (true, Some(_)) => &[Quantise, Common],
            (true, None) => &[Quantise],
            (false, Some(Any)) => &[Any],
            (false, _) => &[Common],
        }
    }

    /// Warps that the launch needs.
    pub fn num_items(&self) -> u32 {
        self.header.num_items
    }

    /// The columns that hold addresses of samples that are all alike, one for each descriptor of such samples.
    pub fn sources(&self) -> &[AddressColumn] {
        &self.sources
    }

    /// Bytes of the table alone.
    pub fn as_bytes(&self) -> &[u8] {
        cast_slice(&self.words)
    }

    /// Bytes of the table with its header.
    pub fn bytes(&self) -> u64 {
        (size_of::<Header>() + self.as_bytes().len()) as u64
    }

    /// The header of the launch, which goes with its parameters, beside the table.
    pub fn header(&self) -> Header {
        self.header
    }

    /// The parameters of a launch, for the table inside them (`None`), which is then inline, or at a device address.
    pub fn arguments<'p>(
        &self,
        table: Option<u64>,
        pool: &'p ArgumentPool,
        policy: &Policy,
    ) -> KernelArguments<'p> {
        let header = Header { table: table.unwrap_or(0), ..self.header };
        let words = match table {
            None => &self.words[..],
            Some(_) => &self.words[..header.desc_words()],
        };
        pool.with(cast_slice(bytes_of(&header)), words, policy)
    }
}

/// The parts of outputs that have elements, each with its address.
pub(crate) fn segments<'p>(
    plan: &'p Plan<'_>,
    outputs: impl Iterator<Item = (&'p OutputPlan<'p>, u64)>,
) -> SmallVec<[OutputSegment<'p>; 1]> {
    let mut segments = SmallVec::new();
    let outputs: SmallVec<[(&OutputPlan<'_>, u64); 4]> =
        outputs.filter(|(output, _)| output.numel() > 0).collect();
    for &(output, out) in &outputs {
        match output.op {
            ElementOp::Rescale => {
                let is_own = |scales: &OutputPlan<'_>| {
                    (scales.leaf, scales.op) == (output.leaf, ElementOp::Scales)
                };
                let scales = outputs.iter().copied().find(|(scales, _)| is_own(scales));
                push_rescaled_segments(plan, (output, out), scales, &mut segments);
            }
            ElementOp::Scales => push_empty_scales(plan, output, out, &mut segments),
            _ => push_segments(plan, output, out, &mut segments),
        }
    }
    segments
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;

/// Structs of the table are made of whole words.
const _: () = {
    const fn in_words<T: Pod>() -> bool {
        size_of::<T>() % 16 == 0
    }
    assert!(DESC_WORDS % 2 == 0 && in_words::<Header>());
    assert!(size_of::<Loop>() % 8 == 0);
};
