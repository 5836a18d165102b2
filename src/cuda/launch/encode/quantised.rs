//! Descriptors of elements that are divided by scales of groups, or multiplied: an item is a group, or four short ones.

use bytemuck::{bytes_of, cast_slice};

use super::super::loops::{Extent, SampleLoop};
use super::super::output_desc::{scale_flags, Head, Quantised, ScaleRule, Work};
use super::super::segment::OutputSegment;
use super::super::table_writer::too_large;
use super::{divisor, Builder, Coefficients};
use crate::plan::Groups;
use crate::tensor::{DType, Result};

/// Elements of the longest group that 8 lanes take, and such groups of a warp.
const MAX_TEAM_ELEMS: u64 = 128;
const TEAMS: u64 = 4;
/// Elements of a row that kernels count in 32 bits, blocks of them, too.
const MAX_ROW_ELEMS: u64 = 1 << 31;

impl Builder<'_> {
    pub(super) fn quantised(&mut self, mut head: Head, segment: &OutputSegment<'_>) -> Result<()> {
        let (Some(scales), Some((cols, outer))) = (&segment.scales, segment.loops.split_last())
        else {
            return Ok(());
        };
        let mut rule = ScaleRule { rows: 1, step: scales.step, ..ScaleRule::default() };
        match scales.scaling.quantize() {
            Some(quantize) => {
                (rule.least, rule.largest) = (quantize.eps32(), quantize.largest());
                if quantize.scale_dtype == DType::F8E8M0FNU {
                    rule.flags |= scale_flags::POWERS;
                    rule.exponent = quantize.exponent();
                }
            }
            None => {
                let given = scales.scaling.given.as_deref().unwrap_or_default();
                rule.flags |= scale_flags::GIVEN;
                rule.given = self.table.column(cast_slice(given))?;
            }
        }
        let mut nest = self.nest(&mut head, segment, cols, outer, 1, &Coefficients::default())?;
        let most = (0..segment.num_samples()).map(|index| segment.step_of(index)).max();
        let extent = |dim: &SampleLoop| match dim.extent {
            Extent::Fixed(extent) => extent,
            Extent::Joined(unit) => unit.saturating_mul(most.unwrap_or(0)),
        };
        if extent(cols) >= MAX_ROW_ELEMS {
            return Err(too_large("elements of a scale"));
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
                if rows >= 1 << 31 {
                    return Err(too_large("rows of a sample"));
                }
                (nest.piece, nest.pieces, nest.by_pieces) = (u32::MAX, 1, divisor(1)?);
                (nest.items, nest.by_items) = (1, divisor(1)?);
                (segment.num_samples() as u64, rows.saturating_mul(extent(cols)))
            }
            Groups::Blocks { block, .. } => {
                nest.piece = block.min(MAX_ROW_ELEMS) as u32;
                if outer.len() != scales.outer_steps.len() && scales.out != 0 {
                    return Err(too_large("loops"));
                }
                let pieces = |cols: u64| cols.div_ceil(block);
                (self.items(&mut nest, segment, cols, outer, 1, pieces)?, block)
            }
        };
        (rule.block_step, nest.rows) = (scales.block_step, 0);
        let mut items = groups;
        if group_elems <= MAX_TEAM_ELEMS {
            (nest.rows, items) = (TEAMS as u8, groups.div_ceil(TEAMS));
        }
        if groups >= 1 << 31 {
            return Err(too_large("scales"));
        }
        let position = self.table.push_bytes(bytes_of(&rule))?;
        self.table.push_bytes(cast_slice(&scales.outer_steps))?;
        let work = Quantised { nest, scales: scales.out, rule: position, groups: groups as u32 };
        self.enter(head, Work::Quantised(work), items)
    }
}
