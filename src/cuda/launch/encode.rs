//! The descriptors of a table, and what they refer to, as words.
//!
//! The problem: a warp knows the number of its item and no more. The table of 8-byte words has to lead it to a descriptor, a
//! sample and a row, and has to be small: one that the parameters of a launch have no room for is uploaded.
//!
//! ```text
//! words    | descriptor 0 | descriptor 1 | ... | addresses or ids | coefficients | columns of numbers | loops | first items
//!            head: out, dtypes, op, first item   ^                  ^              ^                    ^       ^
//!            work: the body of its family, with the positions of these
//! chosen   | from word DEVICE_COLUMNS_START on: columns that a device writes for the samples that it selects
//! ```
//!
//! ```text
//! SegmentFamily::new  the family, by the loops and by what the addresses of all samples are multiples of
//! Builder::new        zeros for as many descriptors as there are segments and metadata
//! segment             the head; where samples are: a device column, or addresses, or ids behind one base;
//!                     factors and offsets of a map, or increments; by the family its body, columns and number of items
//! metadata            lengths and offsets, by the column that loops refer to if there is such a one
//! enter               the descriptor goes to its place; its items follow those of the descriptors before it
//! ```
//!
//! Everything is found by position, so that one table serves in the parameters and in memory, and `launch_cache` can write other
//! addresses into it. Addresses alone would be simpler than ids: the 100 000 rows of W3 take 400 KB by 32-bit ids and 800 KB by
//! addresses. Lists of fewer than `min_ids` samples have addresses.

mod families;
mod nest;
mod quantized;

use bytemuck::cast_slice;
use smallvec::SmallVec;

use super::family::{family_of, Family};
use super::host_metadata::MetadataSegment;
use super::kernel_abi::{
    add_loop_of, code_of, loop_of, DEVICE_COLUMNS_START, MOVED, MOVE_BYTES, SATURATE,
};
use super::loops::SampleLoop;
use super::output_desc::{
    flags, Contiguous, Divisor, ElementLoop, Head, Metadata, Op, OutputDesc, Planar, Work,
    DESC_WORDS,
};
use super::policy::{Policy, WarpSlots};
use super::segment::{address_of, OutputSegment, SegmentAddresses};
use super::table_writer::{
    base_of, too_large, write_sources, AddressColumn, DeviceColumn, TableWriter,
};
use crate::plan::ElementOp;
use crate::tensor::{DType, Error, Result};

/// The contents of a table.
pub(crate) struct Encoded {
    pub words: Vec<u64>,
    pub num_descs: u32,
    pub num_items: u32,
    /// Columns that a device writes, from [`DEVICE_COLUMNS_START`] on, and how many words there are with them.
    pub chosen: Vec<DeviceColumn>,
    pub num_words: u64,
    /// The address column of each segment whose samples are all alike.
    pub sources: SmallVec<[AddressColumn; 1]>,
}

/// A segment, and the family of kernels that writes it.
pub(crate) struct SegmentFamily<'p> {
    segment: &'p OutputSegment<'p>,
    addresses: SegmentAddresses<'p>,
    address_bits: u64,
    family: Family,
}

impl<'p> SegmentFamily<'p> {
    /// Chooses the family by the loops, and by the addresses of all samples.
    pub fn new(segment: &'p OutputSegment<'p>, policy: &Policy) -> SegmentFamily<'p> {
        let addresses = segment.addresses();
        let address_bits = segment.address_bits(&addresses);
        let family = family_of(&segment.work(address_bits), policy);
        SegmentFamily { segment, addresses, address_bits, family }
    }

    pub fn is_quantised(&self) -> bool {
        self.family == Family::Quantised
    }

    /// Same as [`Family::is_common`].
    pub fn is_common(&self) -> bool {
        self.family.is_common()
    }
}

/// Rows whose elements are adjacent in the source and in the output.
struct AdjacentRows<'l> {
    pub loops: &'l [SampleLoop],
    /// The number of planes that pixels are split into; 0 if they are not.
    pub planes: u64,
    pub address_bits: u64,
}

pub(crate) struct Builder<'b> {
    table: TableWriter,
    num_descs: u32,
    num_items: u64,
    slots: WarpSlots,
    sources: SmallVec<[AddressColumn; 1]>,
    policy: &'b Policy,
}

impl<'b> Builder<'b> {
    /// `is_common`: the launch takes the kernel of common families.
    pub fn new(num_descs: usize, num_sms: u32, is_common: bool, policy: &'b Policy) -> Builder<'b> {
        Builder {
            table: TableWriter::new(num_descs * DESC_WORDS),
            num_descs: 0,
            num_items: 0,
            slots: policy.warp_slots(num_sms, !is_common),
            sources: SmallVec::new(),
            policy,
        }
    }

    /// The contents of the table, of as many descriptors as were entered.
    ///
    /// # Errors
    /// [`Error::TooLarge`] where a device chooses samples and options take more than the parameters of a launch.
    pub fn finish(self) -> Result<Encoded> {
        let Builder { table, num_descs, num_items, sources, .. } = self;
        let TableWriter { words, chosen, next, .. } = table;
        if !chosen.is_empty() && words.len() as u64 > DEVICE_COLUMNS_START {
            return Err(too_large("words of options"));
        }
        let num_items = num_items as u32;
        Ok(Encoded { words, num_descs, num_items, chosen, num_words: next, sources })
    }

    /// Adds the descriptor of numbers that are written as they are, or widened from 16 or 32 bits.
    pub fn metadata(&mut self, values: &MetadataSegment) -> Result<()> {
        let MetadataSegment { shape, numbers, .. } = values;
        let (count, size) = (values.count(), values.dtype.size());
        let mut head =
            Head { out: values.out, from_size: size as u8, to_size: size as u8, ..Head::default() };
        head.data = if values.is_selected {
            let each = shape[1..].iter().product::<i64>() as usize;
            let numbers = numbers.iter().copied().chain(std::iter::repeat_n(0, each)).collect();
            self.table.chosen(shape[0] as usize, DeviceColumn::new(numbers, each, true))?
        } else if values.field.is_none() {
            self.table.push_words(std::iter::repeat_n(0, count.div_ceil(8)))?
        } else {
            let short = numbers.iter().map(|&number| u32::try_from(number).ok());
            match short.collect::<Option<Vec<u32>>>() {
                Some(short) => {
                    let narrow_below = self.policy.narrow_below;
                    let (position, is_narrow) = self.table.lengths(&short, narrow_below)?;
                    head.from_size = if is_narrow { 2 } else { 4 };
                    position
                }
                None => self.table.push_words(numbers.iter().map(|&number| number as u64))?,
            }
        };
        let (count, piece) = (count as u64, MOVE_BYTES / size as u64);
        let work = Metadata { count, piece: piece as u32, ..Metadata::default() };
        self.enter(head, Work::Metadata(work), count.div_ceil(piece))
    }

    /// Adds the descriptor of a segment, with all that it refers to.
    ///
    /// # Errors
    /// [`Error::Argument`] for samples that a device selects and that are in several segments; [`Error::TooLarge`].
    pub fn segment(&mut self, segment_family: &SegmentFamily<'_>) -> Result<()> {
        let &SegmentFamily { segment, ref addresses, address_bits, family } = segment_family;
        if segment.list.is_some() && segment.samples.is_some() {
            return Err(Error::argument(
                "the samples of this list differ in dtype, or in strides that no loops have in common; indices \
                 on a device need samples of one dtype that are contiguous"
                    .to_owned(),
            ));
        }
        let mut head = head_of(segment)?;
        if addresses_are_read(segment.op) {
            head.data = self.table.position()?;
            match (segment.list, addresses) {
                (Some(list), _) => {
                    let offsets = DeviceColumn::new(segment.offsets(list), 1, true);
                    let column = DeviceColumn { is_address: true, ..offsets };
                    head.data = self.table.chosen(segment.num_samples(), column)?;
                }
                (None, &SegmentAddresses::Alike { data, src_offset }) => {
                    let address = move |data| address_of(data, src_offset);
                    self.sources(&mut head, family, data, address);
                    let count = self.table.words.len() as u32 - head.data;
                    self.sources.push(AddressColumn {
                        desc: self.num_descs,
                        family,
                        first: head.data,
                        count,
                        src_offset,
                        bits: address_bits,
                        is_by_id: head.flags & flags::BY_ID != 0,
                    });
                }
                (None, SegmentAddresses::Each(each)) => {
                    self.sources(&mut head, family, each, |address| address)
                }
            }
        }
        let coefficients = self.coefficients(segment)?;
        match family {
            Family::Rows | Family::AlignedCopy | Family::SmallCopy => {
                self.packed(head, segment, family)
            }
            Family::PlacedRows | Family::PlacedCopy => self.placed(head, segment, family),
            Family::ScalarFallback => {
                self.scalar_fallback(head, segment, address_bits, &coefficients)
            }
            Family::Quantised => self.quantised(head, segment),
            Family::Strided | Family::Metadata => {
                self.strided(head, segment, address_bits, &coefficients)
            }
            Family::Planar => {
                let [planes, rest @ ..] = &segment.loops[..] else {
                    return Err(too_large("loops"));
                };
                let (plane, planes) = (planes.dst_stride, planes.fixed().unwrap_or(0) as u32);
                let work = |nest| Work::Planar(Planar { nest, plane, planes, ..Planar::default() });
                let rows = AdjacentRows { loops: rest, planes: planes.into(), address_bits };
                self.adjacent(head, segment, &rows, &coefficients, work)
            }
            Family::ContiguousCast => {
                let cast = cast_of(segment);
                let work =
                    |nest| Work::ContiguousCast(Contiguous { nest, cast, ..Contiguous::default() });
                let rows = AdjacentRows { loops: &segment.loops, planes: 0, address_bits };
                self.adjacent(head, segment, &rows, &coefficients, work)
            }
            Family::ContiguousGeneric => {
                let kind =
                    ElementLoop::for_cast(segment.from, segment.to, segment.affine.is_some()) as u8;
                let work = |nest| {
                    Work::ContiguousGeneric(Contiguous { nest, kind, ..Contiguous::default() })
                };
                let rows = AdjacentRows { loops: &segment.loops, planes: 0, address_bits };
                self.adjacent(head, segment, &rows, &coefficients, work)
            }
        }
    }

    /// Appends addresses; or if they are many and [`base_of`] has a base, how many times a power of two each is behind it. The
    /// head then has the base, the stride and flag `BY_ID`; where the addresses are, the caller enters.
    fn sources<T: Copy>(
        &mut self,
        head: &mut Head,
        family: Family,
        samples: &[T],
        address: impl Fn(T) -> u64 + Copy,
    ) {
        let words = &mut self.table.words;
        let is_by_id = samples.len() as u64 >= self.policy.min_ids;
        let base = is_by_id.then(|| base_of(samples, address, family)).flatten();
        let (first, each) = (words.len(), if base.is_some() { 2 } else { 1 });
        if let Some((base, shift)) = base {
            (head.base, head.stride) = (base, 1 << shift);
            head.flags |= flags::BY_ID;
        }
        words.resize(first + samples.len().div_ceil(each), 0);
        write_sources(&mut words[first..], samples, address, base);
    }

    /// Appends the factors and offsets of a map, in float64 if a side of the cast is that, else in float32; or increments;
    /// nothing for a segment without them.
    fn coefficients(&mut self, segment: &OutputSegment<'_>) -> Result<Coefficients> {
        if let Some(affine) = segment.affine {
            let is_wide = [segment.from, segment.to].contains(&DType::F64);
            let position = match is_wide {
                true => self.table.push_bytes(cast_slice(&[affine.a(), affine.b()].concat()))?,
                false => {
                    self.table.push_bytes(cast_slice(&[affine.a32(), affine.b32()].concat()))?
                }
            };
            return Ok(Coefficients {
                position,
                log_bytes: if is_wide { 3 } else { 2 },
                channels: affine.channels() as u32,
                by_channels: divisor(affine.channels() as u64)?,
            });
        }
        let Some(increments) = segment.increments else { return Ok(Coefficients::default()) };
        let position = self.table.push_bytes(cast_slice(increments))?;
        Ok(Coefficients { position, log_bytes: 3, ..Coefficients::default() })
    }

    /// Puts the next descriptor into its place at the beginning of the table; its items follow
    /// those of the others. [`Error::TooLarge`] from 2^31 items on, all together.
    fn enter(&mut self, mut head: Head, work: Work, items: u64) -> Result<()> {
        head.first_item = self.num_items as u32;
        self.num_items = self.num_items.saturating_add(items);
        if self.num_items >= 1 << 31 {
            return Err(too_large("pieces of work"));
        }
        let place = self.num_descs as usize * DESC_WORDS;
        OutputDesc { head, work }.write(&mut self.table.words[place..][..DESC_WORDS]);
        self.num_descs += 1;
        Ok(())
    }
}

/// The position of affine coefficients or increments in the table, and their properties.
#[derive(Default)]
struct Coefficients {
    position: u32,
    log_bytes: u8,
    channels: u32,
    by_channels: Divisor,
}

/// The head of a descriptor, which is the same for all families.
fn head_of(segment: &OutputSegment<'_>) -> Result<Head> {
    let (op, value) = match segment.op {
        ElementOp::Read { .. } if segment.affine.is_some() => (Op::Affine, 0),
        ElementOp::Read { .. } if segment.increments.is_some() => (Op::AddPerSample, 0),
        ElementOp::Read { .. } | ElementOp::Rescale | ElementOp::Scales => (Op::Read, 0),
        // A one of any dtype of masks has no bits beyond these.
        ElementOp::Const([a, b, c, d, ..]) => (Op::Const, u32::from_le_bytes([a, b, c, d])),
        ElementOp::Index => (Op::Index, 0),
    };
    let to = code_of(segment.to);
    let from = match segment.increments {
        _ if segment.is_move() => to,
        Some(_) if segment.is_of_one_dtype() => MOVED,
        _ => code_of(segment.from),
    };
    let saturates =
        matches!(segment.op, ElementOp::Read { saturate: true, .. }) && !segment.is_move();
    Ok(Head {
        out: segment.out,
        op: op as u8,
        from,
        to: if saturates { to | SATURATE } else { to },
        from_size: if addresses_are_read(segment.op) { segment.from.size() as u8 } else { 0 },
        to_size: segment.to.size() as u8,
        log_to: segment.to.size().ilog2() as u8,
        value,
        num_samples: u32::try_from(segment.num_samples()).map_err(|_| too_large("samples"))?,
        ..Head::default()
    })
}

/// An element over and over.
fn repeated(bits: [u8; 16], size: usize) -> [u8; 16] {
    std::array::from_fn(|at| bits[at % size])
}

/// The number of the loop over vectors that writes rows of adjacent elements; 0 if bytes are moved,
/// or if there is no such loop.
fn cast_of(segment: &OutputSegment<'_>) -> u8 {
    let number = match segment.increments {
        _ if segment.is_move() => None,
        Some(_) if segment.is_of_one_dtype() => add_loop_of(segment.to.size()),
        _ => loop_of(segment.from, segment.to, segment.affine.is_some()),
    };
    number.unwrap_or(0)
}

/// A divisor; 0 becomes 1. [`Error::TooLarge`] from 2^31 on.
fn divisor(divisor: u64) -> Result<Divisor> {
    Divisor::new(divisor.max(1)).ok_or_else(|| too_large("rows of a sample"))
}

/// Whether the operation reads elements of samples.
fn addresses_are_read(op: ElementOp) -> bool {
    matches!(op, ElementOp::Read { .. } | ElementOp::Rescale)
}
