//! A descriptor of a table, as `OutputDesc` in kernels/params.h, which says what each of its members means: a head that all
//! descriptors have, and what their family has beside it.

use std::mem::offset_of;

use bytemuck::{bytes_of, cast_slice, cast_slice_mut, pod_read_unaligned, Pod, Zeroable};
use rustacuda_derive::DeviceCopy;

use super::family::Family;
pub(crate) use super::kernel_abi::DESC_WORDS;
use crate::tensor::DType;

/// The operation on a real element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Op {
    Read = 0,
    Const = 1,
    Index = 2,
    Affine = 3,
    AddPerSample = 4,
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

/// [`Head::flags`]: bits.
pub(crate) mod flags {
    pub const WIDE: u8 = 1;
    pub const BY_ID: u8 = 2;
    pub const JOINT: u8 = 4;
    pub const VARIED: u8 = 8;
    pub const MIXED: u8 = 16;
    pub const OF_LENGTHS: u8 = 32;
}

/// [`ScaleRule::flags`]: bits.
pub(crate) mod scale_flags {
    pub const GIVEN: u32 = 1;
    pub const POWERS: u32 = 2;
    pub const OF_SAMPLE: u32 = 4;
    pub const JOINED_ROWS: u32 = 8;
    pub const BY_INDEX: u32 = 16;
}

/// How elements are written whose pair of dtypes has no loop of its own: `kind` of
/// [`Strided`] and [`Contiguous`].
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
    /// The loop for aligned elements that are converted, not only moved: `Whole` between integers
    /// and bools without `affine`; else `Doubles` if a side is float64; `OddSingles` from integers
    /// of 32 or 64 bits to bfloat16 without `affine`; else `Singles`.
    pub fn for_cast(from: DType, to: DType, affine: bool) -> ElementLoop {
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

kernel_structs! {
    struct Loop {
        extent: u64,
        lo: u64,
        hi: u64,
        src_stride: i64,
        dst_stride: i64,
        by_blocks: Divisor,
        block: u32,
        varies: u16,
        channel_step: u16,
    }

    /// The head of every descriptor. The variant of the [`Work`] beside it is its family.
    struct Head {
        out: u64,
        first_item: u32,
        /// The number of the family, which [`OutputDesc::write`] enters.
        family: u8,
        op: u8,
        from: u8,
        to: u8,
        from_size: u8,
        to_size: u8,
        log_to: u8,
        flags: u8,
        value: u32,
        num_samples: u32,
        data: u32,
        base: u64,
        stride: u64,
    }

    struct Rows {
        by_vectors: Divisor,
        vectors: u32,
    }

    struct AlignedCopy {
        by_items: Divisor,
        items: u32,
    }

    struct PlacedRows {
        by_vectors: Divisor,
        vectors: u32,
        places: u32,
        step: u64,
    }

    struct PlacedCopy {
        by_items: Divisor,
        items: u32,
        places: u32,
        step: u64,
    }

    struct SmallCopy {
        by_size: Divisor,
        size: u32,
        piece: u32,
    }

    struct ScalarFallback {
        by_elems: Divisor,
        elems: u32,
        piece: u32,
        affine: u32,
        channels: u32,
    }

    struct Metadata {
        count: u64,
        piece: u32,
        reserved: u32,
    }

    /// The loops of each sample, and how they are cut into items.
    struct Nest {
        step: i64,
        places: u32,
        offsets: u32,
        items: u32,
        first: u32,
        hints: u32,
        pieces: u32,
        by_items: Divisor,
        by_pieces: Divisor,
        piece: u32,
        channel_first: u32,
        outer: u32,
        num_outer: u8,
        rows: u8,
        hint_shift: u8,
        log_coefficient: u8,
        cols: Loop,
        affine: u32,
        channels: u32,
        by_channels: Divisor,
        fill: [u8; 16],
    }

    struct Contiguous {
        nest: Nest,
        cast: u8,
        kind: u8,
        reserved: [u8; 6],
    }

    struct Planar {
        nest: Nest,
        plane: i64,
        planes: u32,
        reserved: u32,
    }

    struct Strided {
        nest: Nest,
        rounds: u32,
        samples: u16,
        lane_rows: u16,
        by_rounds: Divisor,
        kind: u8,
        log_step: u8,
        log_columns: u8,
        reserved: [u8; 5],
    }

    struct Quantised {
        nest: Nest,
        scales: u64,
        rule: u32,
        groups: u32,
    }

    /// Scales of groups, in the table; behind it are the strides of found scales.
    struct ScaleRule {
        least: f32,
        largest: f32,
        exponent: i32,
        flags: u32,
        rows: u32,
        given: u32,
        run: u32,
        reserved: u32,
        step: i64,
        block_step: i64,
    }
}

/// The families, each with the body of its descriptors.
macro_rules! works {
    ($($family:ident: $body:ident;)*) => {
        /// The body of a descriptor: the union of `OutputDesc` in kernels/params.h, whose tag is the family.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Work {
            $($family($body),)*
        }

        impl Work {
            pub fn family(&self) -> Family {
                match self {
                    $(Work::$family(_) => Family::$family,)*
                }
            }

            fn bytes(&self) -> &[u8] {
                match self {
                    $(Work::$family(body) => bytes_of(body),)*
                }
            }

            /// The body of a family, which begins these words.
            fn read(family: Family, words: &[u64]) -> Work {
                match family {
                    $(Family::$family => Work::$family(beginning_of(words)),)*
                }
            }
        }
    };
}

works! {
    Rows: Rows;
    AlignedCopy: AlignedCopy;
    ContiguousCast: Contiguous;
    Planar: Planar;
    SmallCopy: SmallCopy;
    Strided: Strided;
    Metadata: Metadata;
    ContiguousGeneric: Contiguous;
    ScalarFallback: ScalarFallback;
    PlacedRows: PlacedRows;
    PlacedCopy: PlacedCopy;
    Quantised: Quantised;
}

fn beginning_of<T: Pod>(words: &[u64]) -> T {
    pod_read_unaligned(&cast_slice(words)[..size_of::<T>()])
}

const HEAD_WORDS: usize = size_of::<Head>() / 8;

/// Positions of members among the words of a descriptor.
pub(crate) const OUT_WORD: usize = offset_of!(Head, out) / 8;
pub(crate) const BASE_WORD: usize = offset_of!(Head, base) / 8;
pub(crate) const STRIDE_WORD: usize = offset_of!(Head, stride) / 8;
pub(crate) const SCALES_WORD: usize = HEAD_WORDS + offset_of!(Quantised, scales) / 8;

/// One descriptor of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputDesc {
    pub head: Head,
    pub work: Work,
}

impl OutputDesc {
    pub fn family(&self) -> Family {
        self.work.family()
    }

    /// Puts it into [`DESC_WORDS`] words, which are zeros.
    pub fn write(&self, words: &mut [u64]) {
        let head = Head { family: self.family() as u8, ..self.head };
        let (of_head, of_work) = words.split_at_mut(HEAD_WORDS);
        of_head.copy_from_slice(cast_slice(bytes_of(&head)));
        let bytes = self.work.bytes();
        cast_slice_mut::<u64, u8>(of_work)[..bytes.len()].copy_from_slice(bytes);
    }

    /// The descriptor in [`DESC_WORDS`] words that [`OutputDesc::write`] wrote; a panic for the number of no family.
    pub fn read(words: &[u64]) -> OutputDesc {
        let (of_head, of_work) = words.split_at(HEAD_WORDS);
        let head: Head = beginning_of(of_head);
        let work = Work::read(Family::ALL[usize::from(head.family)], of_work);
        OutputDesc { head, work }
    }

    /// The loops of a family that goes row by row.
    #[cfg(test)]
    pub fn nest(&self) -> Option<&Nest> {
        match &self.work {
            Work::ContiguousCast(work) | Work::ContiguousGeneric(work) => Some(&work.nest),
            Work::Planar(work) => Some(&work.nest),
            Work::Strided(work) => Some(&work.nest),
            Work::Quantised(work) => Some(&work.nest),
            _ => None,
        }
    }
}

const _: () = {
    assert!(8 * DESC_WORDS == 224 && size_of::<Head>() == 48);
    assert!(offset_of!(Head, from_size) == 16 && offset_of!(Head, value) == 20);
    assert!(offset_of!(Head, num_samples) == 24 && offset_of!(Head, base) == 32);
    assert!(size_of::<Divisor>() == 8);
    assert!(size_of::<Loop>() == 56 && offset_of!(Loop, block) == 48);
    assert!(size_of::<Rows>() == 12 && size_of::<AlignedCopy>() == 12);
    assert!(size_of::<SmallCopy>() == 16);
    assert!(size_of::<PlacedRows>() == 24 && offset_of!(PlacedRows, step) == 16);
    assert!(size_of::<PlacedCopy>() == 24 && offset_of!(PlacedCopy, step) == 16);
    assert!(size_of::<ScalarFallback>() == 24 && offset_of!(ScalarFallback, affine) == 16);
    assert!(size_of::<Metadata>() == 16 && offset_of!(Metadata, piece) == 8);
    assert!(size_of::<Nest>() == 152 && offset_of!(Nest, piece) == 48);
    assert!(offset_of!(Nest, num_outer) == 60 && offset_of!(Nest, cols) == 64);
    assert!(offset_of!(Nest, affine) == 120 && offset_of!(Nest, fill) == 136);
    assert!(offset_of!(Contiguous, nest) == 0 && offset_of!(Planar, nest) == 0);
    assert!(size_of::<Contiguous>() == 160 && offset_of!(Contiguous, cast) == 152);
    assert!(size_of::<Planar>() == 168 && offset_of!(Planar, planes) == 160);
    assert!(size_of::<Strided>() == 176 && offset_of!(Strided, nest) == 0);
    assert!(offset_of!(Strided, by_rounds) == 160 && offset_of!(Strided, kind) == 168);
    assert!(size_of::<Quantised>() == 168 && offset_of!(Quantised, scales) == 152);
    assert!(offset_of!(Quantised, nest) == 0 && offset_of!(Quantised, groups) == 164);
    assert!(size_of::<ScaleRule>() == 48 && offset_of!(ScaleRule, flags) == 12);
    assert!(offset_of!(ScaleRule, step) == 32);
    assert!(size_of::<Head>() + size_of::<Strided>() <= 8 * DESC_WORDS);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_written_as_they_were_read() {
        for &family in Family::ALL {
            let mut words: [u64; DESC_WORDS] =
                std::array::from_fn(|at| 0x1011_1213 * (at as u64 + 7));
            cast_slice_mut::<u64, u8>(&mut words)[offset_of!(Head, family)] = family as u8;
            let desc = OutputDesc::read(&words);
            assert_eq!(desc.family(), family);
            let mut again = [0; DESC_WORDS];
            desc.write(&mut again);
            let known = size_of::<Head>() + desc.work.bytes().len();
            let [before, after] = [&words, &again].map(|words| cast_slice::<u64, u8>(words));
            assert_eq!(before[..known], after[..known], "{family:?}");
            assert!(after[known..].iter().all(|&byte| byte == 0), "{family:?}");
        }
    }

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
