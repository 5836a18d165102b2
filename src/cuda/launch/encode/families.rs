//! The members of each family's descriptor beside its head, and how its work is cut into items.
//!
//! The problem: a warp takes one item. Large items pay once for finding their place; small ones keep all warps of the device
//! busy. What divides the work evenly depends on the family:
//!
//! ```text
//! packed, placed    | sample 0 | sample 1 | sample 2 |       all bytes in the order of the samples, cut where MOVE_BYTES end, or
//!                   | item 0 | item 1 | item 2 | ...         what the policy says for small_copy
//! scalar_fallback   all elements in the order of the samples, TURN_ELEMS to MAX_ELEMS of them; moved by the largest words
//! adjacent          |. . row . . . . . .|. . row . . .       long rows: pieces of one row, cut at multiples of 16 bytes
//!                   | p0 | p1 | p2 |                         short rows: TEAMS of them, 8 lanes each; MIXED if alignment varies
//! strided           boxes of rows and columns, or of samples and columns; each 32 elements side by side are a round
//! ```
//!
//! An item for each row would be simpler. Items in whole waves, short rows four to a warp and rows found in 32 bits took W1 from
//! 50.5 to 42.8 thread instructions for 16 bytes, W2 from 43 to 21 and W7 from 99 to 71 (sm_90, at 1/16 of their sizes).
//! scalar_fallback in place of boxes took W5 from 157.7 to 78.6, as the batch then takes the kernel of common families.

use super::super::boxes::{
    box_loops, even_rows, is_tiled, kind_of, log_columns_of, log_step_of, tiled_rows, LANES, TURNS,
};
use super::super::family::{is_team, Family};
use super::super::kernel_abi::MOVE_BYTES;
use super::super::loops::{Extent, SampleLoop};
use super::super::output_desc::{
    flags, AlignedCopy, Head, Nest, PlacedCopy, PlacedRows, Rows, ScalarFallback, SmallCopy,
    Strided, Work,
};
use super::super::segment::{OutputSegment, SampleStarts};
use super::{divisor, AdjacentRows, Builder, Coefficients};
use crate::tensor::Result;

/// Elements that a lane writes of a box, as a multiple of [`TURNS`].
const MAX_TURNS: u64 = 128;
/// Columns of a box.
const MAX_BOX_COLS: u64 = 1024;
/// Elements of small samples that a warp has under way together, and the most that it writes; bytes of the largest word that
/// moves them.
const TURN_ELEMS: u64 = 128;
const MAX_ELEMS: u64 = 1024;
const MAX_WORD: u64 = 8;
/// Short rows that a warp writes, 8 lanes each.
const TEAMS: u64 = 4;

impl Builder<'_> {
    /// Samples that are runs of bytes without gaps: items are cut from the output as a whole.
    pub(super) fn packed(
        &mut self,
        mut head: Head,
        segment: &OutputSegment<'_>,
        family: Family,
    ) -> Result<()> {
        let bytes = segment.loops[0].fixed().unwrap_or(0) * segment.to.size() as u64;
        let total = bytes * segment.num_samples() as u64;
        (head.from_size, head.to_size) = (1, 1);
        let (item, work) = match family {
            Family::SmallCopy => {
                let piece = self.policy.small_copy_bytes(total, self.slots);
                let (size, by_size) = (bytes as u32, divisor(bytes)?);
                (piece, Work::SmallCopy(SmallCopy { size, by_size, piece: piece as u32 }))
            }
            Family::AlignedCopy => {
                let items = bytes / MOVE_BYTES;
                let (items, by_items) = (items as u32, divisor(items)?);
                (MOVE_BYTES, Work::AlignedCopy(AlignedCopy { items, by_items }))
            }
            _ => {
                let vectors = bytes / 16;
                let (vectors, by_vectors) = (vectors as u32, divisor(vectors)?);
                (MOVE_BYTES, Work::Rows(Rows { vectors, by_vectors }))
            }
        };
        self.enter(head, work, total.div_ceil(item))
    }

    /// Samples that are vectors, each of which has a place of its own; nothing is added for others.
    pub(super) fn placed(
        &mut self,
        mut head: Head,
        segment: &OutputSegment<'_>,
        family: Family,
    ) -> Result<()> {
        let SampleStarts::Placed { ids, step, .. } = &segment.starts else { return Ok(()) };
        let bytes = segment.loops[0].fixed().unwrap_or(0) * segment.to.size() as u64;
        let (places, step) = (self.table.column(ids)?, *step as u64);
        (head.from_size, head.to_size) = (1, 1);
        let work = match family {
            Family::PlacedCopy => {
                let items = bytes / MOVE_BYTES;
                let (items, by_items) = (items as u32, divisor(items)?);
                Work::PlacedCopy(PlacedCopy { by_items, items, places, step })
            }
            _ => {
                let vectors = bytes / 16;
                let (vectors, by_vectors) = (vectors as u32, divisor(vectors)?);
                Work::PlacedRows(PlacedRows { by_vectors, vectors, places, step })
            }
        };
        let total = bytes * segment.num_samples() as u64;
        self.enter(head, work, total.div_ceil(MOVE_BYTES))
    }

    /// Small samples element by element; those that are moved, by the largest words that all of them are made of.
    pub(super) fn scalar_fallback(
        &mut self,
        mut head: Head,
        segment: &OutputSegment<'_>,
        address_bits: u64,
        coefficients: &Coefficients,
    ) -> Result<()> {
        let mut each = segment.loops[0].fixed().unwrap_or(0);
        if segment.is_move() {
            let bytes = each * segment.to.size() as u64;
            let word = 1u64 << (bytes | segment.out | address_bits | MAX_WORD).trailing_zeros();
            (head.from_size, head.to_size, each) = (word as u8, word as u8, bytes / word);
        }
        let total = each * segment.num_samples() as u64;
        let piece = (total / self.slots.all).next_multiple_of(TURN_ELEMS);
        let piece = piece.clamp(TURN_ELEMS, MAX_ELEMS);
        let work = ScalarFallback {
            elems: each as u32,
            by_elems: divisor(each)?,
            piece: piece as u32,
            affine: coefficients.position,
            channels: coefficients.channels,
        };
        self.enter(head, Work::ScalarFallback(work), total.div_ceil(piece))
    }

    /// Rows of adjacent elements, cut into pieces at multiples of 16 bytes. `work` is given their loops.
    pub(super) fn adjacent(
        &mut self,
        mut head: Head,
        segment: &OutputSegment<'_>,
        rows: &AdjacentRows<'_>,
        coefficients: &Coefficients,
        work: impl FnOnce(Nest) -> Work,
    ) -> Result<()> {
        let planes = rows.planes.max(1);
        let (size, num_samples) = (segment.to.size() as u64, segment.num_samples() as u64);
        let Some((cols, outer)) = rows.loops.split_last() else { return Ok(()) };
        let rows_of_sample = outer.iter().filter_map(SampleLoop::fixed).product::<u64>();
        let num_rows = rows_of_sample * num_samples;
        let row_elems = cols.fixed().unwrap_or(segment.output.numel() / num_rows.max(1));
        if segment.is_joint(rows.loops) {
            head.flags |= flags::JOINT;
        }
        let mut nest = self.nest(&mut head, segment, cols, outer, 1, coefficients)?;
        let starts = outer.iter().map(|loop_| loop_.dst_stride as u64);
        let starts =
            starts.fold(segment.out | segment.starts.step() as u64, |all, stride| all | stride);
        let longest = || match cols.extent {
            Extent::Fixed(elems) => elems * size,
            Extent::Joined(unit) => segment.longest_step() * unit * size,
        };
        if is_team(segment.op, row_elems * size, longest, outer, planes, self.policy) {
            (nest.piece, nest.rows) = (u32::MAX, TEAMS as u8);
            (nest.items, nest.by_items) = (rows_of_sample as u32, divisor(rows_of_sample)?);
            (nest.pieces, nest.by_pieces) = (1, divisor(1)?);
            let is_even =
                |loop_: &SampleLoop| loop_.src_stride.same().is_some_and(|by| by % 16 == 0);
            let is_alike = !segment.is_joined() && cols.lo.is(0) && outer.iter().all(is_even);
            if !is_alike || (starts | rows.address_bits) % 16 != 0 {
                head.flags |= flags::MIXED;
            }
            return self.enter(head, work(nest), num_rows.div_ceil(TEAMS));
        }
        let row_bytes = (row_elems * size * planes).max(1);
        let item = self.policy.item_bytes(num_rows, row_bytes, self.slots, planes);
        let piece = item / planes / size;
        nest.piece = piece as u32;
        // The first piece of a row that begins between two multiples of 16 is shorter.
        let is_even = starts % 16 == 0 && cols.fixed().is_some();
        let slack = if is_even { 0 } else { (16 / size).saturating_sub(1) };
        let items = self.items(&mut nest, segment, cols, outer, 1, |cols| match cols {
            0 => 0,
            _ => (cols + slack).div_ceil(piece),
        })?;
        self.enter(head, work(nest), items)
    }

    /// Boxes of two loops, or of one and the samples.
    pub(super) fn strided(
        &mut self,
        mut head: Head,
        segment: &OutputSegment<'_>,
        address_bits: u64,
        coefficients: &Coefficients,
    ) -> Result<()> {
        let (loops, is_of_samples) = box_loops(segment);
        let Some((cols, outer)) = loops.split_last() else { return Ok(()) };
        let num_samples = segment.num_samples() as u64;
        let num_cols = cols.fixed().unwrap_or(u64::MAX).min(MAX_BOX_COLS);
        let has_aligned_sources = address_bits % segment.from.size() as u64 == 0;
        let kind = kind_of(segment, &loops, has_aligned_sources);
        let is_tiled = is_tiled(outer.last(), cols);
        let (log_step, log_columns) = match is_tiled {
            true => (0, log_columns_of(segment, &loops, kind, address_bits)),
            false => (log_step_of(outer.last(), cols), 0),
        };
        let lanes = u64::from(LANES);
        let turns = segment.output.numel() / self.slots.enough / lanes;
        let turns = (turns >> log_columns).next_multiple_of(TURNS).clamp(TURNS, MAX_TURNS);
        let fixed_rows = outer.last().and_then(SampleLoop::fixed);
        let (rows, lane_rows, lanes_of_box) = if is_tiled {
            let (rows, of_lane) = tiled_rows(fixed_rows, turns);
            (rows, of_lane, (num_cols >> log_columns) * rows.div_ceil(of_lane))
        } else {
            (even_rows(fixed_rows, turns, log_step), 0, num_cols << log_step)
        };
        let rounds = lanes_of_box.div_ceil(lanes);
        // The rows of a box and those of a lane are below 2^15.
        let strided = Strided {
            rounds: rounds as u32,
            by_rounds: divisor(rounds)?,
            lane_rows: lane_rows as u16,
            kind: kind as u8,
            log_step: log_step as u8,
            log_columns: log_columns as u8,
            ..Strided::default()
        };
        if is_of_samples {
            let samples = rows.min(num_samples);
            let mut nest = self.nest(&mut head, segment, cols, &[], 1, coefficients)?;
            nest.piece = num_cols as u32;
            let strided = Strided { nest, samples: samples as u16, ..strided };
            let items = num_samples.div_ceil(samples).saturating_mul(rounds.max(1));
            return self.enter(head, Work::Strided(strided), items);
        }
        let mut nest = self.nest(&mut head, segment, cols, outer, rows, coefficients)?;
        nest.piece = num_cols as u32;
        let boxes =
            self.items(&mut nest, segment, cols, outer, rows, |cols| cols.div_ceil(num_cols))?;
        let items = boxes.saturating_mul(rounds.max(1));
        self.enter(head, Work::Strided(Strided { nest, ..strided }), items)
    }
}
