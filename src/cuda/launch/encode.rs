//! The fields of a table, and what they refer to, as words.

mod nest;

use bytemuck::{bytes_of, cast_slice, Zeroable};
use smallvec::SmallVec;

use super::boxes::{
    box_loops, even_rows, is_tiled, kind_of, log_columns_of, log_step_of, tiled_rows, LANES, TURNS,
};
use super::family::{family_of, is_team, Family};
use super::loops::SampleLoop;
use super::numbers::Values;
use super::params::{
    self, code_of, flags, loop_of, raised_loop_of, Divisor, ElementLoop, CHOSEN_WORDS, MOST_FIELDS,
    MOVED, MOVE_BYTES,
};
use super::part::{address_of, Part, PartAddresses};
use super::policy::{Policy, WarpSlots};
use super::words::{base_of, too_large, write_sources, SourceWords, TableColumn, Words};
use crate::collate::Affine;
use crate::plan::ElementOp;
use crate::tensor::{DType, Error, Result};

/// Elements that a lane writes of a box: so many times [`TURNS`].
const MAX_TURNS: u64 = 128;
/// Columns of a box.
const MAX_BOX_COLS: u64 = 1024;
/// Elements of a warp that are under way together, and the most that it writes, of small samples; bytes of the largest
/// that are moved.
const TURN_ELEMS: u64 = 128;
const MAX_ELEMS: u64 = 1024;
const MAX_WORD: u64 = 8;
/// Short rows that a warp writes, 8 lanes each.
const TEAMS: u64 = 4;

/// The contents of a table.
pub(crate) struct Encoded {
    pub words: Vec<u64>,
    pub num_fields: u32,
    pub num_items: u32,
    /// Columns that a device writes, from [`CHOSEN_WORDS`] on, and how many words there are with them.
    pub chosen: Vec<TableColumn>,
    pub num_words: u64,
    /// Of each part with samples that are all alike.
    pub sources: SmallVec<[SourceWords; 1]>,
    /// Whether it takes a kernel of all families.
    pub has_any: bool,
}

/// A part, and the family of kernels that writes it.
pub(crate) struct PartFamily<'p> {
    part: &'p Part<'p>,
    addresses: PartAddresses<'p>,
    address_bits: u64,
    family: Family,
}

impl<'p> PartFamily<'p> {
    pub fn of(part: &'p Part<'p>, policy: &Policy) -> PartFamily<'p> {
        let addresses = part.addresses();
        let address_bits = part.address_bits(&addresses);
        let family = family_of(&part.work(address_bits), policy);
        PartFamily { part, addresses, address_bits, family }
    }

    /// As [`Family::is_common`].
    pub fn is_common(&self) -> bool {
        self.family.is_common()
    }
}

pub(crate) struct Builder<'b> {
    table: Words,
    num_fields: u32,
    num_items: u64,
    slots: WarpSlots,
    sources: SmallVec<[SourceWords; 1]>,
    has_any: bool,
    policy: &'b Policy,
}

impl<'b> Builder<'b> {
    /// `has_any`: the launch takes a kernel of all families.
    pub fn new(num_fields: usize, num_sms: u32, has_any: bool, policy: &'b Policy) -> Builder<'b> {
        Builder {
            table: Words::new(num_fields * size_of::<params::Field>() / 8),
            num_fields: 0,
            num_items: 0,
            slots: policy.warp_slots(num_sms, has_any),
            sources: SmallVec::new(),
            has_any,
            policy,
        }
    }

    /// # Errors
    /// [`Error::TooLarge`] where a device chooses samples and options take more than the parameters of a launch.
    pub fn finish(self) -> Result<Encoded> {
        let Builder { table, num_fields, num_items, sources, has_any, .. } = self;
        let Words { words, chosen, next, .. } = table;
        if !chosen.is_empty() && words.len() as u64 > CHOSEN_WORDS {
            return Err(too_large("words of options"));
        }
        let num_items = num_items as u32;
        let has_any = has_any || num_fields as usize > MOST_FIELDS;
        Ok(Encoded { words, num_fields, num_items, chosen, num_words: next, sources, has_any })
    }

    /// Numbers that are written as they are, or widened from 16 or 32 bits.
    pub fn metadata(&mut self, values: &Values<'_>) -> Result<()> {
        let size = values.dtype.size();
        let mut field = params::Field {
            out: values.out,
            family: Family::Metadata as u8,
            from_size: size as u8,
            to_size: size as u8,
            piece: (MOVE_BYTES / size as u64) as u32,
            ..params::Field::zeroed()
        };
        if let Some((num_samples, count)) = values.chosen {
            let numbers = values.bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned::<i64>);
            let numbers = numbers.chain(std::iter::repeat_n(0, count)).collect();
            field.cols.extent = (num_samples * count) as u64;
            field.data = self.table.chosen(num_samples, TableColumn::of(numbers, count, true))?;
            let items = field.cols.extent.div_ceil(u64::from(field.piece));
            return self.enter(field, items);
        }
        field.cols.extent = (values.bytes.len() / size) as u64;
        let wide = || values.bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned::<i64>);
        let words = values.bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned::<u32>);
        let numbers: Option<Vec<u32>> = match values.dtype {
            DType::I64 => wide().map(|number| u32::try_from(number).ok()).collect(),
            DType::I32 => Some(words.collect()),
            _ => None,
        };
        field.data = match numbers {
            Some(numbers) => {
                let narrow_below = self.policy.narrow_below;
                let (position, is_narrow) = self.table.lengths(&numbers, narrow_below)?;
                field.from_size = if is_narrow { 2 } else { 4 };
                position
            }
            None => self.table.push_bytes(values.bytes)?,
        };
        let items = field.cols.extent.div_ceil(u64::from(field.piece));
        self.enter(field, items)
    }

    pub fn part(&mut self, own: &PartFamily<'_>) -> Result<()> {
        let &PartFamily { part, ref addresses, address_bits, family } = own;
        if part.list.is_some() && part.samples.is_some() {
            return Err(Error::Argument(
                "the samples of this list differ in dtype, or in strides that no loops have in common; indices \
                 on a device need samples of one dtype that are contiguous"
                    .to_owned(),
            ));
        }
        let mut field = field_of(part, family)?;
        if addresses_are_read(part.op) {
            if address_bits % u64::from(field.from_size) == 0 {
                field.flags |= flags::ALIGNED_SOURCES;
            }
            field.data = self.table.position()?;
            match (part.list, addresses) {
                (Some(list), _) => {
                    let offsets = TableColumn::of(part.offsets(list), 1, true);
                    let column = TableColumn { is_address: true, ..offsets };
                    field.data = self.table.chosen(part.num_samples(), column)?;
                }
                (None, &PartAddresses::Alike { data, src_offset }) => {
                    self.sources(&mut field, data, move |data| address_of(data, src_offset));
                    let count = self.table.words.len() as u32 - field.data;
                    self.sources.push(SourceWords {
                        field: self.num_fields,
                        family: field.family,
                        first: field.data,
                        count,
                        src_offset,
                        bits: address_bits,
                        is_by_id: field.flags & flags::BY_ID != 0,
                    });
                }
                (None, PartAddresses::Each(each)) => {
                    self.sources(&mut field, each, |address| address)
                }
            }
        }
        if let Some(affine) = part.affine {
            self.affine(&mut field, part, affine)?;
        }
        if let Some(increments) = part.increments {
            field.log_map = 3;
            field.affine = self.table.push_bytes(cast_slice(increments))?;
        }
        match family {
            Family::Rows | Family::AlignedCopy | Family::SmallCopy => {
                self.packed(field, part, family)
            }
            Family::Planar => {
                let [planes, rest @ ..] = &part.loops[..] else { return Err(too_large("loops")) };
                field.plane = planes.dst_stride;
                field.planes = planes.fixed().unwrap_or(0) as u32;
                self.rows(field, part, rest, address_bits)
            }
            Family::ContiguousCast | Family::ContiguousGeneric => {
                self.rows(field, part, &part.loops, address_bits)
            }
            Family::ScalarFallback => self.scalar_fallback(field, part, address_bits),
            Family::Strided | Family::Metadata => self.strided(field, part, address_bits),
        }
    }

    /// Addresses; or if they are many, how many times a power of two each is behind a base.
    fn sources<T: Copy>(
        &mut self,
        field: &mut params::Field,
        samples: &[T],
        address: impl Fn(T) -> u64 + Copy,
    ) {
        let words = &mut self.table.words;
        let is_by_id = samples.len() as u64 >= self.policy.min_ids;
        let base = is_by_id.then(|| base_of(samples, address, field.family)).flatten();
        let (first, each) = (words.len(), if base.is_some() { 2 } else { 1 });
        if let Some((base, shift)) = base {
            (field.base, field.stride) = (base, 1 << shift);
            field.flags |= flags::BY_ID;
        }
        words.resize(first + samples.len().div_ceil(each), 0);
        write_sources(&mut words[first..], samples, address, base);
    }

    fn affine(
        &mut self,
        field: &mut params::Field,
        part: &Part<'_>,
        affine: &Affine,
    ) -> Result<()> {
        let is_wide = [part.from, part.to].contains(&DType::F64);
        field.log_map = if is_wide { 3 } else { 2 };
        field.channels = affine.channels() as u32;
        field.by_channels = divisor(affine.channels() as u64)?;
        field.affine = match is_wide {
            true => self.table.push_bytes(cast_slice(&[affine.a(), affine.b()].concat()))?,
            false => self.table.push_bytes(cast_slice(&[affine.a32(), affine.b32()].concat()))?,
        };
        Ok(())
    }

    /// Samples that are runs of bytes without gaps: items are cut from the output as a whole.
    fn packed(&mut self, mut field: params::Field, part: &Part<'_>, family: Family) -> Result<()> {
        let bytes = part.loops[0].fixed().unwrap_or(0) * part.to.size() as u64;
        let total = bytes * part.num_samples() as u64;
        let (item, unit) = match family {
            Family::SmallCopy => (self.policy.small_copy_bytes(total, self.slots), 1),
            _ => (MOVE_BYTES, 16),
        };
        (field.from_size, field.to_size, field.piece) = (1, 1, item as u32);
        field.cols.extent = bytes / unit;
        field.cols.block = 1;
        field.cols.by_blocks = divisor(field.cols.extent)?;
        if family == Family::AlignedCopy {
            field.items = (bytes / item) as u32;
            field.by_items = divisor(bytes / item)?;
        }
        self.enter(field, total.div_ceil(item))
    }

    /// Small samples element by element; those that are moved, by the largest words that all of them are made of.
    fn scalar_fallback(
        &mut self,
        mut field: params::Field,
        part: &Part<'_>,
        address_bits: u64,
    ) -> Result<()> {
        let mut each = part.loops[0].fixed().unwrap_or(0);
        if part.is_move() {
            let bytes = each * part.to.size() as u64;
            let word = 1u64 << (bytes | part.out | address_bits | MAX_WORD).trailing_zeros();
            (field.from_size, field.to_size, each) = (word as u8, word as u8, bytes / word);
        }
        let total = each * part.num_samples() as u64;
        let piece = (total / self.slots.all).next_multiple_of(TURN_ELEMS);
        let piece = piece.clamp(TURN_ELEMS, MAX_ELEMS);
        field.piece = piece as u32;
        field.cols.extent = each;
        field.cols.by_blocks = divisor(each)?;
        self.enter(field, total.div_ceil(piece))
    }

    /// Rows of adjacent elements, cut into pieces at multiples of 16 bytes.
    fn rows(
        &mut self,
        mut field: params::Field,
        part: &Part<'_>,
        loops: &[SampleLoop],
        address_bits: u64,
    ) -> Result<()> {
        let planes = u64::from(field.planes).max(1);
        let (size, num_samples) = (u64::from(field.to_size), part.num_samples() as u64);
        let Some((cols, outer)) = loops.split_last() else { return Ok(()) };
        let num_rows = outer.iter().filter_map(SampleLoop::fixed).product::<u64>() * num_samples;
        let row_elems = cols.fixed().unwrap_or(part.output.numel() / num_rows.max(1));
        if part.is_joint(loops) {
            field.flags |= flags::JOINT;
        }
        self.nest(&mut field, part, cols, outer, 1)?;
        let starts = outer.iter().map(|own| own.dst_stride as u64);
        let starts = starts.fold(part.out | part.places.step() as u64, |all, stride| all | stride);
        if is_team(part.op, row_elems * size, outer, planes, self.policy) {
            let rows = outer.iter().filter_map(SampleLoop::fixed).product::<u64>();
            (field.samples, field.piece) = (TEAMS as u32, u32::MAX);
            (field.items, field.by_items) = (rows as u32, divisor(rows)?);
            (field.pieces, field.by_pieces) = (1, divisor(1)?);
            let is_even = |own: &SampleLoop| own.src_stride.same().is_some_and(|by| by % 16 == 0);
            let is_alike = !part.is_joined() && cols.lo.is(0) && outer.iter().all(is_even);
            if !is_alike || (starts | address_bits) % 16 != 0 {
                field.flags |= flags::MIXED;
            }
            return self.enter(field, num_rows.div_ceil(TEAMS));
        }
        let row_bytes = (row_elems * size * planes).max(1);
        let item = self.policy.item_bytes(num_rows, row_bytes, self.slots, planes);
        let piece = item / planes / size;
        field.piece = piece as u32;
        // The first piece of a row that begins between two multiples of 16 is shorter.
        let is_even = starts % 16 == 0 && cols.fixed().is_some();
        let slack = if is_even { 0 } else { (16 / size).saturating_sub(1) };
        self.items(field, part, cols, outer, 1, |cols| match cols {
            0 => 0,
            _ => (cols + slack).div_ceil(piece),
        })
    }

    /// Boxes of two loops, or of one and the samples.
    fn strided(
        &mut self,
        mut field: params::Field,
        part: &Part<'_>,
        address_bits: u64,
    ) -> Result<()> {
        let (loops, is_of_samples) = box_loops(part);
        let Some((cols, outer)) = loops.split_last() else { return Ok(()) };
        let num_samples = part.num_samples() as u64;
        let num_cols = cols.fixed().unwrap_or(u64::MAX).min(MAX_BOX_COLS);
        let kind = kind_of(part, &loops, field.flags & flags::ALIGNED_SOURCES != 0);
        let is_tiled = is_tiled(outer.last(), cols);
        let (log_step, log_columns) = match is_tiled {
            true => (0, log_columns_of(part, &loops, kind, address_bits)),
            false => (log_step_of(outer.last(), cols), 0),
        };
        let lanes = u64::from(LANES);
        let turns = part.output.numel() / self.slots.enough / lanes;
        let turns = (turns >> log_columns).next_multiple_of(TURNS).clamp(TURNS, MAX_TURNS);
        let fixed_rows = outer.last().and_then(SampleLoop::fixed);
        let (rows, lanes_of_box) = if is_tiled {
            let (rows, of_lane) = tiled_rows(fixed_rows, turns);
            field.planes = of_lane as u32;
            (rows, (num_cols >> log_columns) * rows.div_ceil(of_lane))
        } else {
            (even_rows(fixed_rows, turns, log_step), num_cols << log_step)
        };
        field.r#loop = kind as u8;
        field.log_step = log_step as u8;
        field.log_map = log_columns as u8;
        field.rounds = lanes_of_box.div_ceil(lanes) as u32;
        field.piece = num_cols as u32;
        if is_of_samples {
            let rows = rows.min(num_samples);
            self.nest(&mut field, part, cols, &[], 1)?;
            field.samples = rows as u32;
            return self.enter(field, num_samples.div_ceil(rows));
        }
        self.nest(&mut field, part, cols, outer, rows)?;
        self.items(field, part, cols, outer, rows, |cols| cols.div_ceil(num_cols))
    }

    /// Puts a field into its place at the beginning of the table.
    fn enter(&mut self, mut field: params::Field, items: u64) -> Result<()> {
        field.first_item = self.num_items as u32;
        let items = items.saturating_mul(field.rounds.max(1).into());
        self.num_items = self.num_items.saturating_add(items);
        if self.num_items >= 1 << 31 {
            return Err(too_large("pieces of work"));
        }
        let words = size_of::<params::Field>() / 8;
        let place = &mut self.table.words[self.num_fields as usize * words..][..words];
        place.copy_from_slice(cast_slice(bytes_of(&field)));
        self.num_fields += 1;
        Ok(())
    }
}

/// The entries of a field that every family has.
fn field_of(part: &Part<'_>, family: Family) -> Result<params::Field> {
    let (op, value) = match part.op {
        ElementOp::Read { .. } if part.affine.is_some() => (params::Op::Affine, 0),
        ElementOp::Read { .. } if part.increments.is_some() => (params::Op::Raise, 0),
        ElementOp::Read { .. } => (params::Op::Read, 0),
        // A one of any dtype of masks has no bits beyond these.
        ElementOp::Const([a, b, c, d, ..]) => (params::Op::Const, u32::from_le_bytes([a, b, c, d])),
        ElementOp::Index => (params::Op::Index, 0),
    };
    let is_move = part.is_move();
    let to = code_of(part.to);
    let (from, r#loop) = match (is_move, part.increments) {
        (true, _) => (to, 0),
        (_, Some(_)) if part.is_of_one_dtype() => {
            (MOVED, raised_loop_of(part.to.size()).unwrap_or(0))
        }
        _ if family == Family::ContiguousGeneric => {
            let kind = ElementLoop::of_cast(part.from, part.to, part.affine.is_some());
            (code_of(part.from), kind as u8)
        }
        _ => {
            let number = loop_of(part.from, part.to, part.affine.is_some());
            (code_of(part.from), number.unwrap_or(0))
        }
    };
    Ok(params::Field {
        out: part.out,
        family: family as u8,
        op: op as u8,
        from,
        to,
        from_size: if addresses_are_read(part.op) { part.from.size() as u8 } else { 0 },
        to_size: part.to.size() as u8,
        log_to: part.to.size().ilog2() as u8,
        value,
        r#loop,
        num_samples: u32::try_from(part.num_samples()).map_err(|_| too_large("samples"))?,
        channel_first: part.channel_first as u32,
        fill: repeated(part.output.fill, part.to.size()),
        ..params::Field::zeroed()
    })
}

/// An element over and over.
fn repeated(bits: [u8; 16], size: usize) -> [u8; 16] {
    std::array::from_fn(|at| bits[at % size])
}

fn divisor(divisor: u64) -> Result<Divisor> {
    Divisor::new(divisor.max(1)).ok_or_else(|| too_large("rows of a sample"))
}

fn addresses_are_read(op: ElementOp) -> bool {
    matches!(op, ElementOp::Read { .. })
}
