//! The header and the table of a launch, as in kernels/params.h, which says what each field means.

use bytemuck::{Pod, Zeroable};
use rustacuda_derive::DeviceCopy;

use crate::tensor::DType;

/// The operation on a real element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Op {
    Read = 0,
    Const = 1,
    Index = 2,
    Affine = 3,
    Raise = 4,
}

/// Bits for the properties of a loop that differ from sample to sample.
pub(crate) mod varies {
    pub const LO: u16 = 1;
    pub const HI: u16 = 2;
    pub const SRC_STRIDE: u16 = 4;
    pub const EXTENT: u16 = 8;
    pub const NARROW_LO: u16 = 16;
    pub const NARROW_HI: u16 = 32;
}

/// [`Field::flags`]: bits.
pub(crate) mod flags {
    pub const WIDE: u8 = 1;
    pub const BY_ID: u8 = 2;
    pub const JOINT: u8 = 4;
    pub const ALIGNED_SOURCES: u8 = 8;
    pub const VARIED: u8 = 16;
    pub const MIXED: u8 = 32;
}

/// How elements are written whose pair of dtypes has no loop of its own: `loop` of a `Family::Strided` or `Family::ContiguousGeneric`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ElementLoop {
    Whole = 0,
    Singles = 1,
    OddSingles = 2,
    Doubles = 3,
    Slow = 4,
}

impl ElementLoop {
    /// Of elements at multiples of their sizes that are not only moved.
    pub fn of_cast(from: DType, to: DType, affine: bool) -> ElementLoop {
        let is_whole = |dtype: DType| dtype == DType::Bool || dtype.is_integer();
        if !affine && is_whole(from) && is_whole(to) {
            return ElementLoop::Whole;
        }
        if [from, to].contains(&DType::F64) {
            return ElementLoop::Doubles;
        }
        // Integers that float32 rounds are beyond the range of float16.
        let is_long = matches!(from, DType::I32 | DType::I64 | DType::U32 | DType::U64);
        match is_long && to == DType::BF16 && !affine {
            true => ElementLoop::OddSingles,
            false => ElementLoop::Singles,
        }
    }
}

/// Bytes of an item of `Family::Rows` and `Family::AlignedCopy`.
pub(crate) const MOVE_BYTES: u64 = 2048;

/// The kernels' number of a dtype that is only moved.
pub(crate) const MOVED: u8 = 13;

/// The kernels' number of a dtype; those that are only moved share one.
pub(crate) fn code_of(dtype: DType) -> u8 {
    match dtype.native() {
        DType::Bool => 0,
        DType::I8 => 1,
        DType::I16 => 2,
        DType::I32 => 3,
        DType::I64 => 4,
        DType::U8 => 5,
        DType::U16 => 6,
        DType::U32 => 7,
        DType::U64 => 8,
        DType::F16 => 9,
        DType::BF16 => 10,
        DType::F32 => 11,
        DType::F64 => 12,
        _ => MOVED,
    }
}

/// The casts of adjacent elements that have a loop over vectors, with or without x * a + b: WINDROW_CASTS of
/// kernels/casts.cuh, in its order.
#[rustfmt::skip]
const CASTS: [(DType, DType, bool); 56] = {
    use DType::{BF16, F16, F32, F64, I16, I32, I64, I8, U16, U32, U8};
    [
        (U8, I32, false), (U8, I64, false), (I8, I32, false), (I8, I64, false),
        (U16, I32, false), (U16, I64, false), (I16, I32, false), (I16, I64, false),
        (I32, I64, false), (U32, I64, false), (I64, I32, false),
        (U8, F16, false), (U8, F32, false), (I16, F32, false),
        (U8, F16, true), (U8, BF16, true), (U8, F32, true), (I8, F16, true), (I8, BF16, true), (I8, F32, true),
        (U16, F16, true), (U16, BF16, true), (U16, F32, true), (I16, F16, true), (I16, BF16, true), (I16, F32, true),
        (F32, F16, false), (F32, BF16, false), (F16, F32, false), (F16, BF16, false), (BF16, F32, false), (BF16, F16, false),
        (F32, F16, true), (F32, BF16, true), (F32, F32, true), (F16, F16, true), (F16, BF16, true), (F16, F32, true),
        (BF16, F16, true), (BF16, BF16, true), (BF16, F32, true),
        (F64, F16, false), (F64, BF16, false), (F64, F32, false), (F64, F16, true), (F64, BF16, true), (F64, F32, true),
        (F64, F64, true), (F64, I64, false), (F16, F64, false), (BF16, F64, false), (F32, F64, false),
        (U8, F64, false), (I16, F64, false), (I32, F64, false), (I64, F64, false),
    ]
};

/// The number of the loop over vectors that casts adjacent elements, if there is one: cast_number() of
/// kernels/casts.cuh.
pub(crate) fn loop_of(from: DType, to: DType, affine: bool) -> Option<u8> {
    let number = |affine| {
        let at = CASTS.iter().position(|&cast| cast == (from, to, affine));
        at.map(|at| at as u8 + 1)
    };
    // Without a map, most small integers go through one that changes nothing.
    let is_small = matches!(from, DType::U8 | DType::I8 | DType::U16 | DType::I16);
    number(affine).or_else(|| number(true).filter(|_| is_small))
}

/// The number of the loop over vectors that raises adjacent whole numbers of so many bytes, if there is one: kRaised32 and
/// kRaised64 of kernels/casts.cuh.
pub(crate) fn raised_loop_of(size: usize) -> Option<u8> {
    let last = CASTS.len() as u8;
    match size {
        4 => Some(last + 1),
        8 => Some(last + 2),
        _ => None,
    }
}

/// A divisor as the multiplication that stands for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct Divisor {
    mul: u32,
    shift: u32,
}

impl Divisor {
    /// By Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994): with
    /// 2^l the next power of two, `n / d = (mulhi(n, 2^32 (2^l - d) / d + 1) + n) / 2^l`. The sum
    /// does not overflow for `n` below 2^31. None for 0 and what is not below 2^31.
    pub fn new(divisor: u64) -> Option<Divisor> {
        if divisor == 0 || divisor >= 1 << 31 {
            return None;
        }
        let shift = divisor.next_power_of_two().trailing_zeros();
        let mul = (((1u64 << shift) - divisor) << 32) / divisor + 1;
        Some(Divisor { mul: mul as u32, shift })
    }
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct Loop {
    pub extent: u64,
    pub lo: u64,
    pub hi: u64,
    pub src_stride: i64,
    pub dst_stride: i64,
    pub by_blocks: Divisor,
    pub block: u32,
    pub varies: u16,
    pub channel_step: u16,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable, DeviceCopy)]
#[repr(C, align(16))]
pub(crate) struct Field {
    pub out: u64,
    pub first_item: u32,
    pub family: u8,
    pub op: u8,
    pub from: u8,
    pub to: u8,
    pub from_size: u8,
    pub to_size: u8,
    pub log_map: u8,
    pub r#loop: u8,
    pub flags: u8,
    pub hint_shift: u8,
    pub log_to: u8,
    pub log_step: u8,
    pub num_samples: u32,
    pub data: u32,
    pub base: u64,
    pub stride: u64,
    pub step: i64,
    pub places: u32,
    pub offsets: u32,
    pub items: u32,
    pub first: u32,
    pub hints: u32,
    pub pieces: u32,
    pub by_items: Divisor,
    pub by_pieces: Divisor,
    pub piece: u32,
    pub samples: u32,
    pub outer: u32,
    pub num_outer: u32,
    pub cols: Loop,
    pub affine: u32,
    pub channels: u32,
    pub plane: i64,
    pub planes: u32,
    pub channel_first: u32,
    pub by_channels: Divisor,
    pub rounds: u32,
    pub value: u32,
    pub fill: [u8; 16],
}

#[derive(Clone, Copy, Debug, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct Header {
    /// 0: the table follows in the parameters.
    pub table: u64,
    pub num_items: u32,
    pub last_field: u32,
}

impl Header {
    /// How many words of a table that is uploaded go with the parameters, too: those of its fields, or of as many as large
    /// parameters have room for. There is one at least.
    pub fn field_words(&self) -> usize {
        (self.last_field as usize + 1).min(MOST_FIELDS) * (size_of::<Field>() / 8)
    }
}

/// A column that [`Select`]'s kernel writes.
#[derive(Clone, Copy, Debug, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct Column {
    pub position: u32,
    pub values: u32,
    pub count: u32,
    pub is_wide: u16,
    pub is_address: u16,
}

/// Parameters of the kernel that makes a table of indices.
#[derive(Clone, Copy, Debug, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct Select {
    pub words: u64,
    pub table: u64,
    pub indices: u64,
    pub index_step: i64,
    pub addresses: u64,
    pub first: u64,
    pub step: i64,
    pub kinds: u64,
    pub num_listed: u64,
    pub found: u64,
    pub call: u64,
    pub slot: u32,
    pub num_samples: u32,
    pub num_kinds: u32,
    pub num_columns: u32,
    pub first_word: u32,
    pub num_words: u32,
    pub index_bytes: u32,
    pub reserved: u32,
}

/// Where in a table the columns begin that a device writes: behind all that goes with the parameters of a launch.
pub(crate) const CHOSEN_WORDS: u64 = 4096;

/// The two sizes of parameters that there are kernels for.
pub(crate) const SMALL_BYTES: usize = 4096;
pub(crate) const LARGE_BYTES: usize = 32752;

/// The most fields that parameters have room for. Where there are more, the kernel of all families and large parameters reads
/// them from the table.
pub(crate) const MOST_FIELDS: usize = (LARGE_BYTES - size_of::<Header>()) / size_of::<Field>();

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Divisor>() == 8);
    assert!(size_of::<Loop>() == 56 && offset_of!(Loop, block) == 48);
    assert!(size_of::<Field>() == 224 && offset_of!(Field, base) == 32);
    assert!(offset_of!(Field, cols) == 112 && offset_of!(Field, fill) == 208);
    assert!(size_of::<Header>() == 16);
    assert!(size_of::<Column>() == 16 && size_of::<Select>() == 120);
    assert!(offset_of!(Select, call) == 80 && offset_of!(Select, index_bytes) == 112);
    assert!(CHOSEN_WORDS as usize * 8 >= LARGE_BYTES);
    assert!(SMALL_BYTES % 16 == 0 && LARGE_BYTES % 16 == 0 && LARGE_BYTES <= 32764);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_by_multiplication_is_exact() {
        let divide = |n: u32, by: Divisor| {
            (((u64::from(n) * u64::from(by.mul)) >> 32) as u32 + n) >> by.shift
        };
        let edges = |n: u64| [n.saturating_sub(1), n, n + 1];
        let divisors = (0..31).flat_map(|bit| edges(1 << bit)).chain([3, 7, 100, 224, 150_528]);
        for divisor in divisors.filter(|d| (1..1 << 31).contains(d)) {
            let by = Divisor::new(divisor).unwrap();
            let multiples = [1, 2, 3, 1000].map(|k| divisor * k);
            let dividends = multiples.into_iter().flat_map(edges).chain([0, (1 << 31) - 1]);
            for n in dividends.filter(|n| *n < 1 << 31) {
                assert_eq!(u64::from(divide(n as u32, by)), n / divisor, "{n} / {divisor}");
            }
        }
        assert_eq!([Divisor::new(0), Divisor::new(1 << 31)], [None, None]);
    }
}
