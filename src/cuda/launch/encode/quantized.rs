//! Descriptors of elements that are divided by scales of groups, or multiplied: an item is the groups of a warp, up to 32 side by
//! side, times a run of neighbours.

use bytemuck::{bytes_of, cast_slice};

use super::super::loops::{Extent, SampleLoop};
use super::super::output_desc::{scale_flags, Head, Quantised, ScaleRule, Work};
use super::super::segment::{OutputSegment, SampleStarts};
use super::super::table_writer::too_large;
use super::{divisor, Builder, Coefficients};
use crate::plan::{rows_too_long, Groups, DEVICE_COUNT};
use crate::tensor::{DType, Result};

/// Elements of a lane that are written together, and the lanes of a warp.
const CHUNK: u64 = 16;
const LANES: u64 = 32;
/// The most groups that the same lanes take, one after the other.
const MAX_RUN: u64 = 8;

impl Builder<'_> {
    /// Elements that are divided by scales, which the same descriptor finds and writes, or
    /// multiplied by given ones; nothing is added for a segment without scales or loops.
    /// [`Error::TooLarge`](crate::Error::TooLarge) for rows, groups and samples beyond the kernels'
    /// counts.
    pub(super) fn quantised(&mut self, mut head: Head, segment: &OutputSegment<'_>) -> Result<()> {
        let (Some(scales), Some((cols, outer))) = (&segment.scales, segment.loops.split_last())
        else {
            return Ok(());
        };
        let mut rule = ScaleRule { rows: 1, run: 1, step: scales.step, ..ScaleRule::default() };
        match scales.scaling.quantize() {
            Some(quantize) => {
                (rule.least, rule.largest) = (quantize.eps32(), quantize.largest());
                if quantize.scale_dtype == DType::F8E8M0FNU {
                    rule.flags |= scale_flags::POWERS;
                    rule.exponent = quantize.exponent();
                }
            }
            None => {
                rule.flags |= scale_flags::GIVEN;
                if let SampleStarts::Placed { .. } = segment.starts {
                    rule.flags |= scale_flags::BY_INDEX;
                }
                rule.given = self.table.column(cast_slice(&scales.given))?;
            }
        }
        let mut nest = self.nest(&mut head, segment, cols, outer, 1, &Coefficients::default())?;
        let most = segment.longest_step();
        let extent = |dim: &SampleLoop| match dim.extent {
            Extent::Fixed(extent) => extent,
            Extent::Joined(unit) => unit.saturating_mul(most),
        };
        if extent(cols) >= DEVICE_COUNT {
            return Err(rows_too_long(extent(cols)));
        }
        let (groups, group_elems) = match scales.scaling.groups {
            Groups::Sample => {
                rule.flags |= scale_flags::OF_SAMPLE;
                let unit = |dim: &SampleLoop| match dim.extent {
                    Extent::Fixed(extent) => extent,
                    Extent::Joined(unit) => {
                        rule.flags |= scale_flags::JOINED_ROWS;
                        unit
                    }
                };
                let rows = outer.iter().map(extent).fold(1, u64::saturating_mul);
                rule.rows = outer.iter().map(unit).fold(1, u64::saturating_mul) as u32;
                if rows >= DEVICE_COUNT {
                    return Err(too_large("rows of a sample"));
                }
                (nest.piece, nest.pieces, nest.by_pieces) = (u32::MAX, 1, divisor(1)?);
                (nest.items, nest.by_items) = (1, divisor(1)?);
                (segment.num_samples() as u64, rows.saturating_mul(extent(cols)))
            }
            Groups::Blocks { block, .. } => {
                nest.piece = block.min(DEVICE_COUNT) as u32;
                if outer.len() != scales.outer_steps.len() && scales.out != 0 {
                    return Err(too_large("loops"));
                }
                let pieces = |cols: u64| cols.div_ceil(block);
                let groups = self.items(&mut nest, segment, cols, outer, 1, pieces)?;
                if let (0, Some(pieces)) = (extent(cols) % block, cols.fixed().map(pieces)) {
                    // Enough for all warps come before longer runs.
                    let enough = groups.div_ceil(self.slots.all * groups_per_warp(block)).max(1);
                    let most = 1 << (pieces | MAX_RUN).trailing_zeros();
                    rule.run = most.min(1 << enough.ilog2()) as u32;
                }
                (groups, block)
            }
        };
        if groups >= DEVICE_COUNT {
            return Err(too_large("scales"));
        }
        let per_warp = groups_per_warp(group_elems);
        (rule.block_step, nest.rows) = (scales.block_step, (LANES / per_warp).ilog2() as u8);
        let items = groups.div_ceil(per_warp * u64::from(rule.run));
        let position = self.table.push_bytes(bytes_of(&rule))?;
        // Kernels read one for each outer loop, whether it leads to other scales or not.
        let mut outer_steps = scales.outer_steps.clone();
        outer_steps.resize(outer.len(), 0);
        self.table.push_bytes(cast_slice(&outer_steps))?;
        let work = Quantised { nest, scales: scales.out, rule: position, groups: groups as u32 };
        self.enter(head, Work::Quantised(work), items)
    }
}

/// The number of groups of `elems` elements that a warp has side by side, a power of two: a group
/// has a lane for each chunk, rounded up to a power of two; one of more chunks than lanes has the
/// warp.
fn groups_per_warp(elems: u64) -> u64 {
    LANES / elems.div_ceil(CHUNK).clamp(1, LANES).next_power_of_two()
}
