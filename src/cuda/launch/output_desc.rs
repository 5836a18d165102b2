//! A descriptor of a table, as `OutputDesc` in kernels/params.h, which says what each of its members means: a head that all
//! descriptors have, and what their family has beside it.

use std::mem::offset_of;

use bytemuck::{bytes_of, cast_slice, cast_slice_mut, pod_read_unaligned, Pod, Zeroable};
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
    /// The loop for aligned elements that are converted, not only moved.
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

/// The head of every descriptor. The variant of the [`Work`] beside it is its family.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct Head {
    pub out: u64,
    pub first_item: u32,
    /// As [`OutputDesc::write`] enters it.
    pub family: u8,
    pub op: u8,
    pub from: u8,
    pub to: u8,
    pub from_size: u8,
    pub to_size: u8,
    pub log_to: u8,
    pub flags: u8,
    pub value: u32,
    pub num_samples: u32,
    pub data: u32,
    pub base: u64,
    pub stride: u64,
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct Rows {
    pub by_vectors: Divisor,
    pub vectors: u32,
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct AlignedCopy {
    pub by_items: Divisor,
    pub items: u32,
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct PlacedRows {
    pub by_vectors: Divisor,
    pub vectors: u32,
    pub places: u32,
    pub step: u64,
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct PlacedCopy {
    pub by_items: Divisor,
    pub items: u32,
    pub places: u32,
    pub step: u64,
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct SmallCopy {
    pub by_size: Divisor,
    pub size: u32,
    pub piece: u32,
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct ScalarFallback {
    pub by_elems: Divisor,
    pub elems: u32,
    pub piece: u32,
    pub affine: u32,
    pub channels: u32,
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct Metadata {
    pub count: u64,
    pub piece: u32,
    pub reserved: u32,
}

/// The loops of each sample, and how they are cut into items.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct Nest {
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
    pub channel_first: u32,
    pub outer: u32,
    pub num_outer: u8,
    pub rows: u8,
    pub hint_shift: u8,
    pub log_coefficient: u8,
    pub cols: Loop,
    pub affine: u32,
    pub channels: u32,
    pub by_channels: Divisor,
    pub fill: [u8; 16],
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct Contiguous {
    pub nest: Nest,
    pub cast: u8,
    pub kind: u8,
    pub reserved: [u8; 6],
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct Planar {
    pub nest: Nest,
    pub plane: i64,
    pub planes: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct Strided {
    pub nest: Nest,
    pub rounds: u32,
    pub samples: u16,
    pub lane_rows: u16,
    pub by_rounds: Divisor,
    pub kind: u8,
    pub log_step: u8,
    pub log_columns: u8,
    pub reserved: [u8; 5],
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct Quantised {
    pub nest: Nest,
    pub scales: u64,
    pub rule: u32,
    pub groups: u32,
}

/// Scales of groups, in the table; behind it are the strides of found scales.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable, DeviceCopy)]
#[repr(C)]
pub(crate) struct ScaleRule {
    pub least: f32,
    pub largest: f32,
    pub exponent: i32,
    pub flags: u32,
    pub rows: u32,
    pub given: u32,
    pub run: u32,
    pub reserved: u32,
    pub step: i64,
    pub block_step: i64,
}

/// The families, each with its number, its name and the body of its descriptors.
macro_rules! families {
    ($($family:ident = $number:literal $name:literal: $body:ident;)*) => {
        /// How a descriptor is written.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Family {
            $($family = $number,)*
        }

        impl Family {
            /// In the order of their numbers.
            const ALL: &'static [Family] = &[$(Family::$family),*];

            /// Its name, as [`Explain`](crate::explain::Explain) says it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Family::$family => $name,)*
                }
            }
        }

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

families! {
    Rows = 0 "rows": Rows;
    AlignedCopy = 1 "aligned_copy": AlignedCopy;
    ContiguousCast = 2 "contiguous_cast": Contiguous;
    Planar = 3 "planar": Planar;
    SmallCopy = 4 "small_copy": SmallCopy;
    Strided = 5 "strided": Strided;
    Metadata = 6 "metadata": Metadata;
    ContiguousGeneric = 7 "contiguous_generic": Contiguous;
    ScalarFallback = 8 "scalar_fallback": ScalarFallback;
    PlacedRows = 9 "placed_rows": PlacedRows;
    PlacedCopy = 10 "placed_copy": PlacedCopy;
    Quantised = 11 "quantised": Quantised;
}

impl Family {
    /// Whether the kernel of common families has it: all but strided, contiguous_generic and quantised. That kernel has fewer
    /// registers and more resident warps.
    pub fn is_common(self) -> bool {
        !matches!(self, Family::Strided | Family::ContiguousGeneric | Family::Quantised)
    }
}

fn beginning_of<T: Pod>(words: &[u64]) -> T {
    pod_read_unaligned(&cast_slice(words)[..size_of::<T>()])
}

/// Words of a descriptor in a table, and of its head.
pub(crate) const DESC_WORDS: usize = 28;
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
