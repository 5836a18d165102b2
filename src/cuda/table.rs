//! A plan as the kernels read it: one table of 8-byte words.

use bytemuck::{bytes_of, cast_slice, Pod, Zeroable};

use super::params::{self, code_of, Divisor, Header, Kind};
use super::policy::Policy;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::field::{Field, Op, Starts};
use crate::geometry::{Channel, Class};
use crate::plan::Plan;

/// Numbers known on the host that a batch has on the device: lengths, offsets.
#[derive(Debug)]
pub(super) struct Values<'v> {
    pub out: u64,
    pub dtype: DType,
    pub bytes: &'v [u8],
}

/// The table of a launch.
#[derive(Debug)]
pub(super) struct Table {
    words: Vec<u64>,
    header: Header,
    /// Every field is copied or comes from the table: the lean kernel will do.
    pub gathers: bool,
}

impl Table {
    /// `places` has the output address of each field of the plan, or `None` for one that is filled in
    /// another way. `num_sms` multiprocessors share the tiles, of which the policy says how large they are.
    pub fn new(
        plan: &Plan<'_>,
        places: &[Option<u64>],
        values: &[Values<'_>],
        num_sms: u32,
        policy: &Policy,
    ) -> Result<Table> {
        let fields = || plan.fields.iter().zip(places);
        let fields = || fields().filter_map(|(field, place)| Some((field, (*place)?)));
        let fields = || fields().filter(|(field, _)| field.numel() > 0);
        let values = || values.iter().filter(|values| !values.bytes.is_empty());
        let num_fields = fields().count() + values().count();
        let total: u64 = fields().map(|(field, _)| field.bytes()).sum::<u64>()
            + values().map(|values| values.bytes.len() as u64).sum::<u64>();
        let tile_bytes = policy.tile_bytes(total, num_sms);
        let mut builder = Builder {
            words: vec![0; num_fields * size_of::<params::Field>() / 8],
            num_fields: 0,
            num_tiles: 0,
            tile_bytes,
            gathers: true,
        };
        for (field, out) in fields() {
            builder.field(plan, field, out)?;
        }
        for values in values() {
            builder.values(values)?;
        }
        let header = Header {
            table: 0,
            num_tiles: builder.num_tiles,
            num_fields: num_fields as u32,
            tile_bytes: tile_bytes as u32,
        };
        Ok(Table { words: builder.words, header, gathers: builder.gathers })
    }

    pub fn num_tiles(&self) -> u64 {
        self.header.num_tiles
    }

    /// Bytes of the table alone.
    pub fn as_bytes(&self) -> &[u8] {
        cast_slice(&self.words)
    }

    /// Bytes of the table with its header.
    pub fn bytes(&self) -> u64 {
        (size_of::<Header>() + self.as_bytes().len()) as u64
    }

    /// The parameters of a launch, for the table inside them (`None`) or at a device address; padded
    /// to the size of one of the kernels.
    pub fn parameters(&self, table: Option<u64>) -> Vec<u64> {
        let header = Header { table: table.unwrap_or(0), ..self.header };
        let mut words: Vec<u64> = cast_slice::<u8, u64>(bytes_of(&header)).to_vec();
        if table.is_none() {
            words.extend_from_slice(&self.words);
        }
        let small = words.len() * 8 <= params::SMALL_BYTES;
        words.resize(if small { params::SMALL_BYTES } else { params::LARGE_BYTES } / 8, 0);
        words
    }
}

struct Builder {
    words: Vec<u64>,
    num_fields: usize,
    num_tiles: u64,
    tile_bytes: u64,
    gathers: bool,
}

impl Builder {
    fn values(&mut self, values: &Values<'_>) -> Result<()> {
        let elem_size = values.dtype.size();
        let field = params::Field {
            out: values.out,
            numel: (values.bytes.len() / elem_size) as u64,
            data: self.push_bytes(values.bytes)?,
            kind: Kind::Table as u8,
            ..self.blank(values.dtype)
        };
        self.enter(field, values.bytes.len() as u64);
        Ok(())
    }

    fn field(&mut self, plan: &Plan<'_>, field: &Field<'_>, out: u64) -> Result<()> {
        match field.bytes_only && field.layout.is_compact() {
            true => self.copied(field, out),
            false => self.walked(plan, field, out),
        }
    }

    /// Samples that are runs of bytes, or what is left of them when neighbours are merged.
    fn copied(&mut self, field: &Field<'_>, out: u64) -> Result<()> {
        let size = field.dtype.size() as u64;
        // Tiles begin at multiples of 16, so the first may be shorter.
        let shift = out % 16;
        let mut encoded = params::Field {
            out,
            numel: field.bytes(),
            kind: Kind::Copy as u8,
            ..self.blank(field.dtype)
        };
        encoded.elem_size = 1;
        if let Some(ranges) = &field.ranges {
            encoded.data = self.push_words(ranges.iter().map(|range| range.src.addr() as u64))?;
            let mut offsets: Vec<i64> = ranges.iter().map(|range| range.dst as i64).collect();
            offsets.push(encoded.numel as i64);
            self.joined(&mut encoded, &offsets, 1, shift)?;
            (encoded.num_samples, encoded.step) = (ranges.len() as u64, 1);
        } else {
            self.samples(&mut encoded, field, size, shift)?;
        }
        self.enter(encoded, field.bytes() + shift);
        Ok(())
    }

    /// Samples that are read element by element.
    fn walked(&mut self, plan: &Plan<'_>, field: &Field<'_>, out: u64) -> Result<()> {
        self.gathers = false;
        let affine = match field.op {
            Op::Read { affine: true } => plan.specs[field.leaf].affine.as_ref(),
            _ => None,
        };
        let is_planar = matches!(field.starts, Starts::Rows { .. }) && is_planar(field);
        let f64 = DType::F64;
        let is_wide = field.dtype == f64 || field.classes.iter().any(|class| class.dtype == f64);
        let (op, value) = match field.op {
            Op::Read { affine: false } => (params::Op::Read, 0),
            Op::Read { affine: true } => (params::Op::Affine, 0),
            Op::Const(value) => (params::Op::Const, value),
            Op::Index => (params::Op::Index, 0),
        };
        let mut encoded = params::Field {
            out,
            numel: field.numel(),
            kind: if is_planar { Kind::Planar } else { Kind::Walk } as u8,
            op: op as u8,
            value,
            wide: is_wide.into(),
            fill: field.fill,
            ..self.blank(field.dtype)
        };
        encoded.aligned = (out % u64::from(encoded.elem_size) == 0).into();
        self.samples(&mut encoded, field, 1, 0)?;
        if !field.class_ids.is_empty() {
            encoded.class_ids = self.push_bytes(cast_slice(&field.class_ids))?;
        }
        let classes = field
            .classes
            .iter()
            .map(|class| self.class(field, class))
            .collect::<Result<Vec<params::Class>>>()?;
        encoded.classes = self.push_bytes(cast_slice(&classes))?;
        if let Some(affine) = affine {
            encoded.channels = affine.channels() as u32;
            encoded.affine = match is_wide {
                true => self.push_bytes(cast_slice(&[affine.a(), affine.b()].concat()))?,
                false => self.push_bytes(cast_slice(&[affine.a32(), affine.b32()].concat()))?,
            };
        }
        self.enter(encoded, field.bytes());
        Ok(())
    }

    /// Addresses and starts of the samples; elements are `scale` of what the plan counts.
    fn samples(
        &mut self,
        encoded: &mut params::Field,
        field: &Field<'_>,
        scale: u64,
        shift: u64,
    ) -> Result<()> {
        // Nothing is read for masks and indices, and the addresses of the samples may be stale.
        encoded.data = match field.op {
            Op::Read { .. } => self.push_words((0..field.data.len()).map(|sample| {
                let first = field.class_of(sample).src_offset;
                (field.data[sample].addr() as u64).wrapping_add(first as u64)
            }))?,
            _ => 0,
        };
        encoded.num_samples = field.data.len() as u64;
        match &field.starts {
            Starts::Rows { elems, step } => {
                (encoded.unit, encoded.step) = (elems * scale, *step);
                encoded.by_unit = Divisor::new(encoded.unit);
            }
            Starts::Joined { offsets, unit, step } => {
                encoded.step = *step;
                self.joined(encoded, offsets.as_slice(), unit * scale, shift)?;
            }
        }
        Ok(())
    }

    /// The boundaries of samples, and the sample that each tile begins with.
    fn joined(
        &mut self,
        encoded: &mut params::Field,
        offsets: &[i64],
        unit: u64,
        shift: u64,
    ) -> Result<()> {
        let num_samples = offsets.len() - 1;
        let tile_elems = self.tile_bytes / u64::from(encoded.elem_size);
        let num_tiles = (encoded.numel + shift).div_ceil(tile_elems);
        let mut sample = 0;
        let mut firsts: Vec<u32> = Vec::with_capacity(num_tiles as usize + 1);
        for tile in 0..num_tiles {
            let elem = (tile * tile_elems).saturating_sub(shift);
            while sample + 1 < num_samples && offsets[sample + 1] as u64 * unit <= elem {
                sample += 1;
            }
            firsts.push(sample as u32);
        }
        firsts.push(num_samples.saturating_sub(1) as u32);
        encoded.unit = unit;
        encoded.offsets = self.push_bytes(cast_slice(offsets))?;
        encoded.tile_samples = self.push_bytes(cast_slice(&firsts))?;
        Ok(())
    }

    fn class(&mut self, field: &Field<'_>, class: &Class) -> Result<params::Class> {
        let (channel, channel_dim, channel_first) = match class.channel {
            Channel::None => (params::Channel::None, 0, 0),
            Channel::Loop { dim, first, .. } => (params::Channel::Loop, dim, first),
            Channel::Inner { first } => (params::Channel::Inner, 0, first),
        };
        let loops = &field.dims[class.dims.clone()];
        let dims: Vec<params::Dim> = loops
            .iter()
            .map(|dim| params::Dim {
                extent: dim.extent,
                lo: dim.lo,
                hi: dim.hi,
                src_stride: dim.src_stride,
                dst_stride: dim.dst_stride,
                by_extent: Divisor::new(dim.extent),
            })
            .collect();
        Ok(params::Class {
            dims: self.push_bytes(cast_slice(&dims))?,
            num_dims: dims.len() as u16,
            dtype: code_of(class.dtype),
            elem_size: class.dtype.size() as u8,
            channel: channel as u8,
            reserved: 0,
            channel_dim: channel_dim as u16,
            channel_first: channel_first as u32,
        })
    }

    fn blank(&self, dtype: DType) -> params::Field {
        params::Field {
            first_tile: self.num_tiles,
            dtype: code_of(dtype),
            elem_size: dtype.size() as u8,
            ..params::Field::zeroed()
        }
    }

    /// Puts a field into its place at the beginning of the table.
    fn enter(&mut self, field: params::Field, bytes: u64) {
        let words = size_of::<params::Field>() / 8;
        let place = &mut self.words[self.num_fields * words..][..words];
        place.copy_from_slice(cast_slice(bytes_of(&field)));
        self.num_fields += 1;
        self.num_tiles += bytes.div_ceil(self.tile_bytes);
    }

    fn push_words(&mut self, words: impl Iterator<Item = u64>) -> Result<u32> {
        let position = self.position()?;
        self.words.extend(words);
        Ok(position)
    }

    fn push_bytes(&mut self, bytes: &[u8]) -> Result<u32> {
        let position = self.position()?;
        let (whole, rest) = bytes.split_at(bytes.len() / 8 * 8);
        self.words.extend(whole.chunks_exact(8).map(bytemuck::pod_read_unaligned::<u64>));
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.words.push(u64::from_ne_bytes(last));
        }
        Ok(position)
    }

    fn position(&self) -> Result<u32> {
        u32::try_from(self.words.len())
            .map_err(|_| Error::TooLarge("a table of more than 2^32 words".into()))
    }
}

/// Whether the kernel for interleaved bytes to planes is the one for a field. Others go through it
/// one pixel at a time.
fn is_planar(field: &Field<'_>) -> bool {
    let mut used = field.classes.iter().filter(|class| class.num_real > 0).peekable();
    let is_quick = match field.op {
        Op::Read { affine } => match field.dtype {
            DType::F16 | DType::BF16 | DType::F32 => true,
            DType::U8 => !affine,
            _ => false,
        },
        _ => false,
    };
    let goes_up =
        |class: &Class| field.dims[class.dims.clone()].last().is_some_and(|dim| dim.src_stride > 0);
    let fits = |class: &Class| class.planar && class.dtype == DType::U8 && goes_up(class);
    is_quick && used.peek().is_some() && used.all(fits)
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;

/// Structs of the table are made of whole words.
const _: () = {
    const fn in_words<T: Pod>() -> bool {
        size_of::<T>() % 8 == 0
    }
    assert!(in_words::<params::Field>() && in_words::<params::Class>());
    assert!(in_words::<params::Dim>() && in_words::<Header>());
};
