//! The loops of a descriptor as the kernels read them, and how many items they are cut into.
//!
//! The problem: kernels find the row of an item, and its bounds, with few instructions and few words of the table. A number that
//! all samples share is in the loop itself; any other is a column, and the loop has its position and a bit that says so.
//!
//! ```text
//! numbers   Same       the value, no bit
//!           Each       a column with a number for each sample: of 16 bits below `narrow_below`, else of 32; of source strides 64
//!           `wide`     an extent, bound or offset of `wide_from` and more: columns have 64 bits, and kernels count in 64
//!           selected   samples that a device selects: a device column, with a number for each loop nest
//!
//! items     |p0 |p1 |p2 |         `pieces` of a row: the columns at `block` coordinates of the last outer loop, 1 of others
//!           nest.items            as many for each sample: its sample is found by a division
//! first     0   6   7   11  ...   else the first item of each sample
//! hints     the sample of every 2^shift'th item, then the last one: a search among `first` takes a step or two
//! ```
//!
//! Columns of one width would be simpler: with lengths of 32 bits the table of 4096 padded rows with mask and lengths (W2) had
//! 700 bytes more than the parameters of a launch, and its upload took 2.5 of 29 us by the model.

use bytemuck::cast_slice;

use super::super::loops::{Extent, PerSample, SampleLoop};
use super::super::output_desc::{flags, varies, Divisor, Head, Loop, Nest};
use super::super::segment::{OutputSegment, SampleStarts};
use super::super::table_writer::{hints_of, DeviceColumn};
use super::{divisor, repeated, Builder, Coefficients};
use crate::tensor::Result;

impl Builder<'_> {
    /// The loops of a descriptor, and where its samples begin, as far as [`Builder::items`] does not set them. An item
    /// takes `block` coordinates of the last outer loop. Appends columns to the table, and sets flags of `head`.
    pub(super) fn nest(
        &mut self,
        head: &mut Head,
        segment: &OutputSegment<'_>,
        cols: &SampleLoop,
        outer: &[SampleLoop],
        block: u64,
        coefficients: &Coefficients,
    ) -> Result<Nest> {
        // Kernels count columns, and offsets, in 32 bits unless that is too few.
        let is_beyond = |count: u64| count >= self.policy.wide_from;
        let is_wide = |number: &PerSample| match number {
            PerSample::Each(values) => values.iter().any(|&value| is_beyond(value as u64)),
            PerSample::Same(_) => false,
        };
        let most = segment.longest_step();
        let mut wide = outer.iter().chain([cols]).any(|dim| {
            let extent = match dim.extent {
                Extent::Fixed(extent) => extent,
                Extent::Joined(unit) => most.saturating_mul(unit),
            };
            is_beyond(extent) || is_wide(&dim.lo) || is_wide(&dim.hi)
        });
        let mut nest = Nest {
            step: segment.starts.step(),
            channel_first: segment.channel_first as u32,
            affine: coefficients.position,
            log_coefficient: coefficients.log_bytes,
            channels: coefficients.channels,
            by_channels: coefficients.by_channels,
            fill: repeated(segment.output.fill, segment.to.size()),
            ..Nest::default()
        };
        match (&segment.starts, &segment.samples) {
            (SampleStarts::Placed { ids, .. }, _) => nest.places = self.table.column(ids)?,
            (_, Some(samples)) => nest.places = self.table.column(samples)?,
            _ => {}
        }
        if let SampleStarts::Placed { lengths: Some(lengths), .. } = &segment.starts {
            let lengths = lengths.iter().map(|&length| length.into());
            nest.offsets = self.table.numbers(lengths, wide)?;
            head.flags |= flags::OF_LENGTHS;
        }
        if let SampleStarts::Joined { offsets, .. } = &segment.starts {
            wide |= offsets.last().is_some_and(|&end| is_beyond(end as u64));
            nest.offsets = self.table.numbers(offsets.iter().copied(), wide)?;
        }
        if wide {
            head.flags |= flags::WIDE;
        }
        nest.cols = self.looped(segment, cols, 1, wide)?;
        let last = outer.len().saturating_sub(1);
        let blocks =
            outer.iter().enumerate().map(|(at, dim)| (dim, if at == last { block } else { 1 }));
        let outer = blocks
            .map(|(dim, block)| self.looped(segment, dim, block, wide))
            .collect::<Result<Vec<Loop>>>()?;
        nest.num_outer = outer.len() as u8;
        let is_placed = nest.places != 0 || nest.offsets != 0;
        if is_placed || !outer.is_empty() || nest.cols.varies != 0 {
            head.flags |= flags::VARIED;
        }
        if !outer.is_empty() {
            nest.outer = self.table.push_bytes(cast_slice(&outer))?;
        }
        Ok(nest)
    }

    /// A loop as kernels read it, whose columns are appended to the table.
    fn looped(
        &mut self,
        segment: &OutputSegment<'_>,
        dim: &SampleLoop,
        block: u64,
        wide: bool,
    ) -> Result<Loop> {
        let (lo, of_lo) = self.number(segment, &dim.lo, wide, [varies::LO, varies::NARROW_LO])?;
        let (hi, of_hi) = self.number(segment, &dim.hi, wide, [varies::HI, varies::NARROW_HI])?;
        let (src_stride, of_stride) =
            self.number(segment, &dim.src_stride, true, [varies::SRC_STRIDE, 0])?;
        let mut varies = of_lo | of_hi | of_stride;
        let (extent, by_blocks) = match dim.extent {
            Extent::Fixed(extent) => (extent, divisor(extent.div_ceil(block)).unwrap_or_default()),
            Extent::Joined(unit) => {
                varies |= varies::EXTENT;
                (unit, Divisor::default())
            }
        };
        Ok(Loop {
            extent,
            lo: lo as u64,
            hi: hi as u64,
            src_stride,
            dst_stride: dim.dst_stride,
            by_blocks,
            block: block as u32,
            varies,
            channel_step: dim.is_channel.into(),
        })
    }

    /// A number of a loop, or the position of its column, and what [`varies`] has of that: a bit for columns of 32 bits, or 64 if
    /// `wide`, and one for narrow ones.
    fn number(
        &mut self,
        segment: &OutputSegment<'_>,
        number: &PerSample,
        wide: bool,
        [bit, narrow]: [u16; 2],
    ) -> Result<(i64, u16)> {
        let values = match number {
            PerSample::Same(value) => return Ok((*value, 0)),
            PerSample::Each(values) => values,
        };
        if segment.list.is_some() {
            let column = DeviceColumn::new(values.clone(), 1, wide);
            return Ok((self.table.chosen(segment.num_samples(), column)?.into(), bit));
        }
        let each = segment.each(values);
        if wide {
            let position = self.table.push_words(each.map(|value| value as u64))?;
            return Ok((position.into(), bit));
        }
        let numbers: Vec<u32> = each.map(|value| value as u32).collect();
        let (position, is_narrow) = self.table.lengths(&numbers, self.policy.narrow_below)?;
        Ok((position.into(), if is_narrow { narrow } else { bit }))
    }

    /// Cuts the rows of each sample into items: `pieces` for a row of this many columns, and one for `block` coordinates of the
    /// last outer loop. Sets the members of the nest by which kernels find their item, and returns the number of all items. If
    /// the columns are joined, the caller has set `nest.piece` before.
    pub(super) fn items(
        &mut self,
        nest: &mut Nest,
        segment: &OutputSegment<'_>,
        cols: &SampleLoop,
        outer: &[SampleLoop],
        block: u64,
        pieces: impl Fn(u64) -> u64,
    ) -> Result<u64> {
        let num_samples = segment.num_samples();
        let last = outer.len().saturating_sub(1);
        let blocks = (0..outer.len()).map(|at| if at == last { block } else { 1 });
        let blocks: Vec<u64> = blocks.collect();
        let rows = |step: u64| {
            let of = |(dim, block): (&SampleLoop, &u64)| match dim.extent {
                Extent::Fixed(extent) => extent.div_ceil(*block),
                Extent::Joined(unit) => (unit * step).div_ceil(*block),
            };
            outer.iter().zip(&blocks).map(of).fold(1, u64::saturating_mul)
        };
        if let Some(cols) = cols.fixed() {
            let pieces = pieces(cols);
            (nest.pieces, nest.by_pieces) = (pieces as u32, divisor(pieces)?);
        } else {
            nest.by_pieces = divisor(u64::from(nest.piece))?;
        }
        let is_fixed = cols.fixed().is_some() && outer.iter().all(|dim| dim.fixed().is_some());
        if let (true, Some(cols)) = (is_fixed, cols.fixed()) {
            let items = pieces(cols).saturating_mul(rows(1));
            (nest.items, nest.by_items) = (items as u32, divisor(items)?);
            return Ok(items.saturating_mul(num_samples as u64));
        }
        let mut first = Vec::with_capacity(num_samples);
        let mut total = 0u64;
        for index in 0..num_samples {
            first.push(total as u32);
            let step = segment.step_of(index);
            let cols = match cols.extent {
                Extent::Fixed(extent) => extent,
                Extent::Joined(unit) => unit * step,
            };
            total = total.saturating_add(pieces(cols).saturating_mul(rows(step)));
        }
        let (shift, hints) = hints_of(&first, total);
        nest.first = self.table.push_bytes(cast_slice(&first))?;
        nest.hints = self.table.push_bytes(cast_slice(&hints))?;
        nest.hint_shift = shift;
        Ok(total)
    }
}
