//! What a launch is told, as kernels/params.h has it: see there for what each field means.

use bytemuck::{Pod, Zeroable};
use rustacuda_derive::DeviceCopy;

use crate::dtype::DType;

/// What is done for a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Copy = 0,
    Walk = 1,
    Planar = 2,
    Table = 3,
}

/// What a real element becomes.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Op {
    Read = 0,
    Affine = 1,
    Const = 2,
    Index = 3,
}

/// Where the channel number of an element comes from.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Channel {
    None = 0,
    Loop = 1,
    Inner = 2,
}

/// The kernels' number of a dtype; those that are only moved share one.
pub(super) fn code_of(dtype: DType) -> u8 {
    match dtype {
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
        _ => 13,
    }
}

/// A divisor and what a multiplication by it takes.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(super) struct Divisor {
    mul: u32,
    shift: u16,
    is_small: u16,
}

impl Divisor {
    /// By Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994): with
    /// 2^l the next power of two, `n / d = (mulhi(n, 2^32 (2^l - d) / d + 1) + n) / 2^l`. The sum
    /// does not overflow for `n` below 2^31.
    pub fn new(divisor: u64) -> Divisor {
        if divisor == 0 || divisor >= 1 << 31 {
            return Divisor::default();
        }
        let shift = divisor.next_power_of_two().trailing_zeros();
        let mul = (((1u64 << shift) - divisor) << 32) / divisor + 1;
        Divisor { mul: mul as u32, shift: shift as u16, is_small: 1 }
    }
}

#[derive(Clone, Copy, Debug, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(super) struct Dim {
    pub extent: u64,
    pub lo: u64,
    pub hi: u64,
    pub src_stride: i64,
    pub dst_stride: i64,
    pub by_extent: Divisor,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(super) struct Class {
    pub dims: u32,
    pub num_dims: u16,
    pub dtype: u8,
    pub elem_size: u8,
    pub channel: u8,
    pub reserved: u8,
    pub channel_dim: u16,
    pub channel_first: u32,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(super) struct Field {
    pub out: u64,
    pub numel: u64,
    pub unit: u64,
    pub step: i64,
    pub first_tile: u64,
    pub num_samples: u64,
    pub by_unit: Divisor,
    pub data: u32,
    pub class_ids: u32,
    pub classes: u32,
    pub offsets: u32,
    pub tile_samples: u32,
    pub affine: u32,
    pub channels: u32,
    pub kind: u8,
    pub op: u8,
    pub dtype: u8,
    pub elem_size: u8,
    pub value: u8,
    pub wide: u8,
    pub aligned: u8,
    pub reserved: [u8; 5],
    pub fill: [u8; 16],
}

#[derive(Clone, Copy, Debug, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(super) struct Header {
    /// 0: the table follows in the parameters.
    pub table: u64,
    pub num_tiles: u64,
    pub num_fields: u32,
    pub tile_bytes: u32,
}

/// The two sizes of parameters that there are kernels for.
pub(super) const SMALL_BYTES: usize = 4096;
pub(super) const LARGE_BYTES: usize = 32760;

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Divisor>() == 8);
    assert!(size_of::<Dim>() == 48 && offset_of!(Dim, by_extent) == 40);
    assert!(size_of::<Class>() == 16 && offset_of!(Class, channel_first) == 12);
    assert!(size_of::<Field>() == 112 && offset_of!(Field, by_unit) == 48);
    assert!(offset_of!(Field, kind) == 84 && offset_of!(Field, fill) == 96);
    assert!(size_of::<Header>() == 24);
    assert!(SMALL_BYTES % 8 == 0 && LARGE_BYTES % 8 == 0 && LARGE_BYTES <= 32764);
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
            let by = Divisor::new(divisor);
            let multiples = [1, 2, 3, 1000].map(|k| divisor * k);
            let dividends = multiples.into_iter().flat_map(edges).chain([0, (1 << 31) - 1]);
            for n in dividends.filter(|n| *n < 1 << 31) {
                assert_eq!(u64::from(divide(n as u32, by)), n / divisor, "{n} / {divisor}");
            }
        }
        assert_eq!((Divisor::new(0).is_small, Divisor::new(1 << 31).is_small), (0, 0));
    }
}
