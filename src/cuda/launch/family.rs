//! The kernel families, and the choice of the one that writes a segment: kernels/params.h says what each takes.

use std::ops::RangeInclusive;

use super::kernel_abi::{add_loop_of, loop_of, MOVE_BYTES};
use super::loops::SampleLoop;
use super::policy::Policy;
use crate::plan::ElementOp;
use crate::tensor::DType;

/// The families, each with its number and its name.
macro_rules! families {
    ($($family:ident = $number:literal $name:literal;)*) => {
        /// How a descriptor is written.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Family {
            $($family = $number,)*
        }

        impl Family {
            /// In the order of their numbers.
            pub const ALL: &'static [Family] = &[$(Family::$family),*];

            /// Its name, as [`Explain`](crate::explain::Explain) says it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Family::$family => $name,)*
                }
            }
        }
    };
}

families! {
    Rows = 0 "rows";
    AlignedCopy = 1 "aligned_copy";
    ContiguousCast = 2 "contiguous_cast";
    Planar = 3 "planar";
    SmallCopy = 4 "small_copy";
    Strided = 5 "strided";
    Metadata = 6 "metadata";
    ContiguousGeneric = 7 "contiguous_generic";
    ScalarFallback = 8 "scalar_fallback";
    PlacedRows = 9 "placed_rows";
    PlacedCopy = 10 "placed_copy";
    Quantised = 11 "quantised";
}

impl Family {
    /// Whether the kernel of common families has it: all but strided, contiguous_generic and quantised. That kernel has fewer
    /// registers and more resident warps.
    pub fn is_common(self) -> bool {
        !matches!(self, Family::Strided | Family::ContiguousGeneric | Family::Quantised)
    }
}

/// The properties of a part that decide on its family.
#[derive(Clone, Debug)]
pub(crate) struct SegmentWork<'w> {
    pub op: ElementOp,
    pub is_move: bool,
    /// Whether elements with an increment are not cast, too; `None` without an increment.
    pub adds_per_sample: Option<bool>,
    /// The dtypes on both sides of the cast.
    pub from: DType,
    pub to: DType,
    /// Outermost first.
    pub loops: &'w [SampleLoop],
    pub num_samples: u64,
    /// Pairs of coefficients.
    pub channels: usize,
    pub out: u64,
    /// Samples begin at offsets of many lengths.
    pub is_joined: bool,
    /// All samples in order, without a gap in the output.
    pub is_dense: bool,
    /// Each sample has a place of its own, at a multiple of what `out` is one of.
    pub is_placed: bool,
    /// Bytes of all samples together.
    pub bytes: u64,
    /// All addresses of samples, by or.
    pub address_bits: u64,
}

/// Sample sizes for which a warp copies several samples. The minimum ensures that a 16-byte vector spans at most two samples.
const SMALL_COPY_BYTES: RangeInclusive<u64> = 24..=2048;

impl SegmentWork<'_> {
    /// Whether elements are copied or cast; a rescaled segment has a family of its own.
    fn reads(&self) -> bool {
        matches!(self.op, ElementOp::Read { .. })
    }

    /// Bytes of a row of the output, on average.
    fn row_bytes(&self) -> u64 {
        let outer = self.loops[..self.loops.len() - 1].iter();
        let rows =
            outer.filter_map(SampleLoop::fixed).product::<u64>().max(1) * self.num_samples.max(1);
        match self.loops[self.loops.len() - 1].fixed() {
            Some(cols) => cols * self.to.size() as u64,
            None => self.bytes / rows,
        }
    }

    /// Whether the elements of a row are adjacent in the output, and in the source if it is read; true for rows of one element.
    fn is_adjacent(&self) -> bool {
        let cols = &self.loops[self.loops.len() - 1];
        let is_one = cols.fixed() == Some(1);
        let reads = !self.reads() || cols.src_stride.is(self.from.size() as i64);
        is_one || reads && cols.dst_stride == self.to.size() as i64
    }

    /// Whether uint8 pixels of 3 or 4 channels are split into planes.
    fn is_planar(&self) -> bool {
        let [planes, .., pixels] = self.loops else { return false };
        let ElementOp::Read { affine, .. } = self.op else { return false };
        let to = match self.to {
            DType::U8 => !affine,
            DType::F16 | DType::BF16 | DType::F32 => true,
            _ => false,
        };
        let Some(channels) = planes.fixed() else { return false };
        let is_counted =
            self.channels <= 1 || planes.is_channel && self.channels as u64 == channels;
        to && self.from == DType::U8
            && (3..=4).contains(&channels)
            && planes.is_whole()
            && planes.src_stride.is(1)
            && pixels.src_stride.is(channels as i64)
            && pixels.dst_stride == self.to.size() as i64
            && is_counted
            && self.out % self.to.size() as u64 == 0
    }

    /// Samples that are one run of adjacent elements each, without gaps in the output.
    fn is_run(&self) -> bool {
        self.is_dense && self.loops.len() == 1 && self.loops[0].is_whole() && self.is_adjacent()
    }

    /// Samples of one size, each one run, that one channel at most applies to; if they are cast, all elements are at multiples of
    /// their sizes. How small they are is not asked.
    fn is_scalar_fallback(&self) -> bool {
        let cols = &self.loops[0];
        let is_aligned = self.address_bits % self.from.size() as u64 == 0
            && self.out % self.to.size() as u64 == 0;
        self.reads()
            && self.is_run()
            && !self.is_joined
            && cols.fixed().is_some()
            && self.channels <= 1
            && (self.is_move || is_aligned)
            && self.bytes < 1 << 31
    }
}

/// The family that writes a segment: the most special one that takes it. It depends on addresses up to their multiples of 16
/// alone.
pub(crate) fn family_of(work: &SegmentWork<'_>, policy: &Policy) -> Family {
    if work.op == ElementOp::Rescale {
        return Family::Quantised;
    }
    let cols = &work.loops[work.loops.len() - 1];
    let size = work.to.size() as u64;
    let is_one_run = work.loops.len() == 1 && cols.is_whole() && work.is_adjacent();
    let are_vectors = |bytes: u64| {
        (work.out | work.address_bits | bytes) % 16 == 0
            && work.bytes / 16 < 1 << 31
            && bytes < 1 << 32
    };
    if let (true, Some(cols)) = (work.is_placed && work.is_move && is_one_run, cols.fixed()) {
        let bytes = cols * size;
        if are_vectors(bytes) {
            return match bytes % MOVE_BYTES == 0 {
                true => Family::PlacedCopy,
                false => Family::PlacedRows,
            };
        }
    }
    if let (true, Some(cols), true) = (work.is_move && work.is_run(), cols.fixed(), !work.is_joined)
    {
        let bytes = cols * size;
        if are_vectors(bytes) {
            return if bytes % MOVE_BYTES == 0 { Family::AlignedCopy } else { Family::Rows };
        }
        if SMALL_COPY_BYTES.contains(&bytes) && work.out % 16 == 0 && work.bytes < 1 << 31 {
            return Family::SmallCopy;
        }
    }
    if let Some(is_of_one_dtype) = work.adds_per_sample {
        // The strided family adds to them one by one.
        let has_loop = is_of_one_dtype && add_loop_of(work.to.size()).is_some();
        return if has_loop && work.is_adjacent() {
            Family::ContiguousCast
        } else {
            Family::Strided
        };
    }
    if work.is_planar() {
        return Family::Planar;
    }
    let is_long = match work.loops.len() {
        1 => work.is_joined || work.row_bytes() >= policy.min_row_bytes,
        _ => work.row_bytes() >= policy.min_row_elems * size,
    };
    let has_one_channel = work.channels <= 1 || !cols.is_channel;
    let has_loop = match work.op {
        ElementOp::Read { .. } if work.is_move => true,
        ElementOp::Read { affine, .. } => loop_of(work.from, work.to, affine).is_some(),
        ElementOp::Const(_) | ElementOp::Index => true,
        // The quantised family writes elements with scales, and the scales.
        ElementOp::Rescale | ElementOp::Scales => false,
    };
    if is_long && has_one_channel && work.is_adjacent() {
        return if has_loop { Family::ContiguousCast } else { Family::ContiguousGeneric };
    }
    if !is_long && work.is_scalar_fallback() {
        return Family::ScalarFallback;
    }
    Family::Strided
}

/// Whether rows of an output are so short that four of them share a warp; never for planes or joined outer loops.
/// `longest`: the bytes of the longest row, of `row_bytes` on average; one far above it would be left to 8 lanes.
pub(crate) fn is_team(
    op: ElementOp,
    row_bytes: u64,
    longest: impl FnOnce() -> u64,
    outer: &[SampleLoop],
    planes: u64,
    policy: &Policy,
) -> bool {
    let most = match op {
        ElementOp::Read { .. } | ElementOp::Rescale | ElementOp::Scales => policy.max_team_bytes,
        ElementOp::Const(_) | ElementOp::Index => 2 * policy.max_team_bytes,
    };
    let is_short = planes == 1 && row_bytes <= most;
    is_short
        && outer.iter().all(|loop_| loop_.fixed().is_some())
        && longest() <= policy.max_team_skew * most
}
