//! A plan as the kernels read it: one table of 8-byte words.

use bytemuck::{bytes_of, cast_slice, Pod};
use smallvec::SmallVec;

use super::encode::{Builder, Encoded, PartFamily};
use super::field::{Field, Loop, FIELD_WORDS};
use super::numbers::Values;
use super::parameters::{ParameterPool, Parameters};
use super::params::Header;
use super::part::{parts_of, Part};
use super::policy::Policy;
use super::words::{SourceWords, TableColumn};
use crate::plan::{OutputPlan, Plan};
use crate::tensor::Result;

/// The table of a launch.
#[derive(Debug)]
pub(crate) struct Table {
    words: Vec<u64>,
    header: Header,
    /// Columns behind the words that a device writes: those of samples that it chooses.
    chosen: Vec<TableColumn>,
    /// Words with these.
    num_words: u64,
    sources: SmallVec<[SourceWords; 1]>,
    has_any: bool,
}

impl Table {
    /// The table of these parts, in their order, then of the values that have bytes. `num_sms` multiprocessors share the
    /// items, of which the policy says how large they are.
    pub fn new(
        parts: &[Part<'_>],
        values: &[Values<'_>],
        num_sms: u32,
        policy: &Policy,
    ) -> Result<Table> {
        let values = || values.iter().filter(|values| !values.bytes.is_empty());
        let parts = parts.iter().map(|part| PartFamily::of(part, policy));
        let parts: SmallVec<[PartFamily<'_>; 1]> = parts.collect();
        let has_any = policy.always_any != 0 || !parts.iter().all(PartFamily::is_common);
        let num_fields = parts.len() + values().count();
        let mut builder = Builder::new(num_fields, num_sms, has_any, policy);
        for part in &parts {
            builder.part(part)?;
        }
        for values in values() {
            builder.metadata(values)?;
        }
        let Encoded { words, num_fields, num_items, chosen, num_words, sources, has_any } =
            builder.finish()?;
        let header = Header { table: 0, num_items, last_field: num_fields.saturating_sub(1) };
        Ok(Table { words, header, chosen, num_words, sources, has_any })
    }

    /// Columns that a device writes.
    pub fn chosen(&self) -> &[TableColumn] {
        &self.chosen
    }

    /// Bytes of the table with these columns.
    pub fn chosen_bytes(&self) -> u64 {
        self.num_words * 8
    }

    /// Its fields, as the kernels read them.
    pub fn fields(&self) -> impl Iterator<Item = Field> + '_ {
        let fields = self.words.chunks_exact(FIELD_WORDS);
        fields.take(self.header.last_field as usize + 1).map(Field::read)
    }

    /// Whether it goes with the parameters of the launch; else it is uploaded.
    pub fn is_inline(&self, policy: &Policy) -> bool {
        self.bytes() <= policy.inline_bytes
    }

    /// Whether it takes a kernel of all families, which has more registers: see [`Family::is_common`](super::field::Family::is_common).
    pub fn has_any(&self) -> bool {
        self.has_any
    }

    /// Warps that the launch needs.
    pub fn num_items(&self) -> u32 {
        self.header.num_items
    }

    /// Where it has the addresses of samples that are all alike.
    pub fn sources(&self) -> &[SourceWords] {
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

    /// The parameters of a launch, for the table inside them (`None`) or at a device address.
    pub fn parameters<'p>(
        &self,
        table: Option<u64>,
        pool: &'p ParameterPool,
        policy: &Policy,
    ) -> Parameters<'p> {
        let header = Header { table: table.unwrap_or(0), ..self.header };
        let words = match table {
            None => &self.words[..],
            Some(_) => &self.words[..header.field_words()],
        };
        pool.with(cast_slice(bytes_of(&header)), words, policy)
    }
}

/// The parts of outputs that have elements, each with its address.
pub(crate) fn parts<'p>(
    plan: &'p Plan<'_>,
    outputs: impl Iterator<Item = (&'p OutputPlan<'p>, u64)>,
) -> SmallVec<[Part<'p>; 1]> {
    let mut parts = SmallVec::new();
    for (output, out) in outputs.filter(|(output, _)| output.numel() > 0) {
        parts_of(plan, output, out, &mut parts);
    }
    parts
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;

/// Structs of the table are made of whole words.
const _: () = {
    const fn in_words<T: Pod>() -> bool {
        size_of::<T>() % 16 == 0
    }
    assert!(FIELD_WORDS % 2 == 0 && in_words::<Header>());
    assert!(size_of::<Loop>() % 8 == 0);
};
