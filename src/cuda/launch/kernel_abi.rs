//! The header of a launch, what the kernels call dtypes and casts, and columns that a device writes, as in kernels/params.h.

use bytemuck::{Pod, Zeroable};
use rustacuda_derive::DeviceCopy;

use crate::tensor::DType;

/// Bytes of an item of `Family::Rows` and `Family::AlignedCopy`.
pub(crate) const MOVE_BYTES: u64 = 2048;

/// The kernels' number of a dtype that is only moved.
pub(crate) const MOVED: u8 = 15;

/// A bit beside the number of a float8 that results become: they saturate.
pub(crate) const SATURATE: u8 = 16;

/// The kernels' number of a dtype, whatever its byte order: 0 to 14 in the order of [`DType`] for those with arithmetic, and
/// [`MOVED`] for all others.
pub(crate) fn code_of(dtype: DType) -> u8 {
    match dtype.is_arithmetic() {
        true => dtype.native() as u8,
        false => MOVED,
    }
}

/// The casts of adjacent elements that have a loop over vectors, with or without x * a + b, in the order of their numbers:
/// the lines of kernels/cast_table.h.
const CASTS: &[(DType, DType, bool)] = include!(concat!(env!("OUT_DIR"), "/casts.rs"));

/// The number of the loop over vectors that casts adjacent elements, from 1 on, if there is one:
/// cast_number() of kernels/casts.cuh. Small integers without x * a + b may get a loop with it.
pub(crate) fn loop_of(from: DType, to: DType, affine: bool) -> Option<u8> {
    let number = |affine| {
        let at = CASTS.iter().position(|&cast| cast == (from, to, affine));
        at.map(|at| at as u8 + 1)
    };
    // Without a map, most small integers go through one that changes nothing.
    let is_small = matches!(from, DType::U8 | DType::I8 | DType::U16 | DType::I16);
    number(affine).or_else(|| number(true).filter(|_| is_small))
}

/// The number of the vector loop, behind those of casts, that adds an increment to integers of
/// `size` bytes, if there is one: kAddLoop32 and kAddLoop64 of kernels/casts.cuh.
pub(crate) fn add_loop_of(size: usize) -> Option<u8> {
    let last = CASTS.len() as u8;
    match size {
        4 => Some(last + 1),
        8 => Some(last + 2),
        _ => None,
    }
}

kernel_structs! {
    struct Header {
        /// 0: the table follows in the parameters.
        table: u64,
        num_items: u32,
        last_desc: u32,
    }
}

impl Header {
    /// The number of words of an uploaded table that also go with the parameters: those of all descriptors, or of as many as
    /// fit large parameters. There is one at least.
    pub fn desc_words(&self) -> usize {
        (self.last_desc as usize + 1).min(MAX_DESCS) * DESC_WORDS
    }
}

kernel_structs! {
    /// A column that [`Select`]'s kernel writes.
    struct Column {
        position: u32,
        values: u32,
        count: u32,
        is_wide: u16,
        is_address: u16,
    }

    /// Parameters of the kernel that makes a table of indices.
    struct Select {
        words: u64,
        table: u64,
        indices: u64,
        index_step: i64,
        addresses: u64,
        first: u64,
        step: i64,
        kinds: u64,
        num_listed: u64,
        found: u64,
        call: u64,
        slot: u32,
        num_samples: u32,
        num_kinds: u32,
        num_columns: u32,
        first_word: u32,
        num_words: u32,
        index_bytes: u32,
        reserved: u32,
    }

    /// A side of the pairs of [`Move`].
    struct MoveSide {
        indices: u64,
        index_step: i64,
        addresses: u64,
        first: u64,
        step: i64,
        num_listed: u64,
        found: u64,
        word: u32,
        index_bytes: u16,
        is_inline: u8,
        is_gathered: u8,
    }

    struct MoveDim {
        extent: u64,
        src_stride: i64,
        dst_stride: i64,
    }
}

/// The most loops of a pair around its rows.
pub(crate) const MOST_MOVE_DIMS: usize = 12;

kernel_structs! {
    /// Parameters of the kernel that moves pairs of which a device chooses some.
    struct Move {
        dst: MoveSide,
        src: MoveSide,
        row_units: u64,
        units: u64,
        num_items: u32,
        items: u32,
        log_unit: u32,
        num_dims: u32,
        dims: [MoveDim; MOST_MOVE_DIMS],
    }
}

/// The word of a table at which its columns that the device writes begin, behind all words that fit a launch's parameters.
pub(crate) const DEVICE_COLUMNS_START: u64 = 4096;

/// The two sizes of parameters that there are kernels for.
pub(crate) const SMALL_BYTES: usize = 4096;
pub(crate) const LARGE_BYTES: usize = 32752;

/// Words of a descriptor in a table.
pub(crate) const DESC_WORDS: usize = 28;

/// The most descriptors that parameters have room for. The kernels that have other than the common families
/// read further ones from the table.
pub(crate) const MAX_DESCS: usize = (LARGE_BYTES - size_of::<Header>()) / (8 * DESC_WORDS);

const _: () = {
    use std::mem::offset_of;
    assert!(DType::Bool as u8 == 0 && DType::F8E5M2 as u8 == MOVED - 1);
    assert!(size_of::<Header>() == 16);
    assert!(size_of::<Column>() == 16 && size_of::<Select>() == 120);
    assert!(offset_of!(Select, call) == 80 && offset_of!(Select, index_bytes) == 112);
    assert!(size_of::<MoveSide>() == 64 && offset_of!(MoveSide, is_gathered) == 63);
    assert!(size_of::<Move>() == 448 && offset_of!(Move, num_items) == 144);
    assert!(offset_of!(Move, dims) == 160);
    assert!(DEVICE_COLUMNS_START as usize * 8 >= LARGE_BYTES);
    assert!(SMALL_BYTES % 16 == 0 && LARGE_BYTES % 16 == 0 && LARGE_BYTES <= 32764);
};
