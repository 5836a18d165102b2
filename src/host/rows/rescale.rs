//! Rows of elements that share a scale: their largest magnitude, and the row divided or multiplied by it.
//!
//! The problem: six dtypes on one side and up to four on the other, with strides and of either byte order, are too many loops.
//! What is common has a loop of its own, over elements without gaps; everything else goes through the stack, where it becomes
//! contiguous float32.
//!
//! ```text
//!              without gaps, native byte order        any other
//! amax         I::amax, of bits without their sign    a block is gathered, then I::amax
//! quantise     float32, bfloat16: I::quantise         rescale_blocks
//! run_of       float32, bfloat16: all blocks of a     none: `scale_groups` goes block by block
//!              row, each scale found and used at once
//! dequantise                                          rescale_blocks, whose kernel is x * scale + -0.0
//!
//! rescale_blocks: for each block of elements: gather, swap bytes, cast to float32, scale and round, scatter
//! ```
//!
//! `rescale_blocks` alone would be simpler, and is compiled once for all pairs of dtypes. Each element is read twice, to find the
//! scale and to divide by it: 4096 rows of 4096 bfloat16 are cast to float8 in 5.95 ms and quantised by row in 9.82, by blocks of
//! 128 in 11.2 (Emerald Rapids, one thread).

use super::{BlockRoom, Row};
use crate::host::convert::{convert, BF16, F16, F8};
use crate::host::isa::with_isa;
use crate::host::simd::{BlockRun, Cast, Float, Isa, Magnitude, Pairs, Quantised, Scratch, BLOCK};
use crate::tensor::{CastTo, DType};

/// The largest magnitude of `len` elements, `stride` bytes apart, rounded to the nearest float32;
/// NaN does not count, and without elements it is 0.
pub(crate) type AmaxFn = unsafe fn(src: *const u8, stride: isize, len: usize) -> f32;

/// Moves a row as [`RowFn`](super::RowFn) does, with each element divided or multiplied by a scale.
pub(crate) type RescaleFn = unsafe fn(
    src: *const u8,
    src_stride: isize,
    dst: *mut u8,
    dst_stride: isize,
    len: usize,
    scale: f32,
);

/// Contiguous blocks, each divided by a scale that is found and written.
pub(crate) type RunFn = unsafe fn(src: *const u8, dst: *mut u8, n: usize, run: &BlockRun<'_>);

/// Contiguous elements, at most [`BLOCK`] if they are multiplied, from `src` to `dst` by a scale.
type Kernel = unsafe fn(src: *const u8, dst: *mut u8, n: usize, scale: f32);

/// Evaluates `$body` with `$t` standing for the type of a floating-point dtype.
macro_rules! with_float {
    ($dtype:expr, $t:ident => $body:expr) => {
        with_float!(@ $dtype, $t, $body, F16 F16, BF16 BF16, F32 f32, F64 f64, F8E4M3FN F8<3, false>, F8E5M2 F8<2, false>)
    };
    (@ $dtype:expr, $t:ident, $body:expr, $($variant:ident $type:ty),*) => {
        match $dtype {
            $(DType::$variant => { type $t = $type; $body })*
            other => unreachable!("{other} is not quantised"),
        }
    };
}

/// Returns the function that finds the largest magnitude of elements of a floating-point dtype, of
/// either byte order. Panics for other dtypes.
pub(crate) fn amax_row(src: DType) -> AmaxFn {
    with_isa!(I => match src.is_native() {
        true => with_float!(src, S => amax::<I, S, false>),
        false => with_float!(src.native(), S => amax::<I, S, true>),
    })
}

/// Returns the function that scales elements. To float8 or int8 it divides floats, float8 too, by
/// their scale and saturates, whatever `to` says of it; it panics if `src` has no floats. To other
/// dtypes, those that are no floats counting as float32, it multiplies int8 and float8.
pub(crate) fn rescale_row(src: DType, to: CastTo) -> RescaleFn {
    let through = if to.dtype.is_float8() || to.dtype == DType::I8 { DType::F32 } else { src };
    with_isa!(through, to.dtype, I => match to.dtype {
        DType::I8 => quantise_row::<I, i8>(src),
        DType::F8E4M3FN => quantise_row::<I, F8<3, true>>(src),
        DType::F8E5M2 => quantise_row::<I, F8<2, true>>(src),
        DType::F16 => dequantise_row::<I, F16>(src),
        DType::BF16 => dequantise_row::<I, BF16>(src),
        DType::F64 => dequantise_row::<I, f64>(src),
        _ => dequantise_row::<I, f32>(src),
    })
}

/// Returns the function that quantises a run of blocks without room between two passes: float32 and bfloat16 in native
/// byte order to int8 or float8; `None` for others.
pub(crate) fn run_of(src: DType, to: CastTo) -> Option<RunFn> {
    with_isa!(DType::F32, to.dtype, I => match (src, to.dtype) {
        (DType::F32, DType::I8) => Some(I::quantise_run::<f32, i8>),
        (DType::F32, DType::F8E4M3FN) => Some(I::quantise_run::<f32, F8<3, true>>),
        (DType::F32, DType::F8E5M2) => Some(I::quantise_run::<f32, F8<2, true>>),
        (DType::BF16, DType::I8) => Some(I::quantise_run::<BF16, i8>),
        (DType::BF16, DType::F8E4M3FN) => Some(I::quantise_run::<BF16, F8<3, true>>),
        (DType::BF16, DType::F8E5M2) => Some(I::quantise_run::<BF16, F8<2, true>>),
        _ => None,
    })
}

/// The [`RescaleFn`] that divides floats of a dtype, of either byte order. Panics for other dtypes.
fn quantise_row<I: Isa, D: Quantised>(src: DType) -> RescaleFn {
    match src.is_native() {
        true => with_float!(src, S => quantise::<I, S, D, false>),
        false => with_float!(src.native(), S => quantise::<I, S, D, true>),
    }
}

/// The [`RescaleFn`] that multiplies int8 or float8; any other dtype counts as float8_e5m2.
fn dequantise_row<I: Isa, D: super::Elem>(src: DType) -> RescaleFn {
    match src {
        DType::I8 => dequantise::<I, i8, D>,
        DType::F8E4M3FN => dequantise::<I, F8<3, false>, D>,
        _ => dequantise::<I, F8<2, false>, D>,
    }
}

/// The [`AmaxFn`] of a dtype.
///
/// # Safety
/// `len` elements at `src`, `ss` bytes apart, at any address; the processor runs `I`. They are of other byte order if `SWAPPED`.
unsafe fn amax<I: Isa, S: Float, const SWAPPED: bool>(
    src: *const u8,
    ss: isize,
    len: usize,
) -> f32 {
    debug_assert_eq!(size_of::<S::Bits>(), size_of::<S>());
    // SAFETY: the caller's promise; the bits are those of an `S`.
    unsafe {
        let most = match !SWAPPED && ss == size_of::<S>() as isize {
            true => I::amax(src, len, S::LAST),
            false => amax_strided::<I, S, SWAPPED>(src, ss, len),
        };
        convert(std::mem::transmute_copy::<S::Bits, S>(&most))
    }
}

/// The largest magnitude, as its bits, of elements with gaps or of other byte order.
///
/// # Safety
/// As of [`amax`].
// Apart, for the room that it takes.
#[inline(never)]
unsafe fn amax_strided<I: Isa, S: Float, const SWAPPED: bool>(
    src: *const u8,
    ss: isize,
    len: usize,
) -> S::Bits {
    let (mut most, mut stage) = (S::Bits::ZERO, BlockRoom::new());
    for done in (0..len).step_by(BLOCK) {
        let (src, len) = (src.wrapping_offset(ss * done as isize), BLOCK.min(len - done));
        let block = Row { src, ss, dst: std::ptr::null_mut(), ds: 0, len };
        // SAFETY: `done + n <= len`, and at most `BLOCK` elements of at most 8 bytes are staged.
        let block_most =
            unsafe { I::amax(stage.gather(size_of::<S>(), SWAPPED, block), len, S::LAST) };
        most = if block_most > most { block_most } else { most };
    }
    most
}

/// How elements of a pair of dtypes are scaled.
struct Scaled {
    /// Bytes of an element on both sides.
    sizes: [usize; 2],
    is_swapped: bool,
    /// The conversion to float32, unless the source is float32.
    load: Option<Cast>,
    /// The kernel that scales float32 and stores the result.
    kernel: Kernel,
}

/// Divides elements, as float32, by a scale, rounds to nearest even and saturates: a [`RescaleFn`].
///
/// # Safety
/// `len` elements at `src` and at `dst`, at their strides, at any address and disjoint; the processor runs `I`. Those at `src` are
/// of other byte order if `SWAPPED`.
unsafe fn quantise<I: Isa, S: Float, D: Quantised, const SWAPPED: bool>(
    src: *const u8,
    ss: isize,
    dst: *mut u8,
    ds: isize,
    len: usize,
    scale: f32,
) {
    let is_direct = matches!(S::DTYPE, DType::F32 | DType::BF16) && !SWAPPED;
    // SAFETY: the sizes are those of the types; the rest is the caller's promise.
    unsafe {
        if is_direct && ss == size_of::<S>() as isize && ds == size_of::<D>() as isize {
            return I::quantise::<S, D>(src, dst, len, scale);
        }
        let scaled = Scaled {
            sizes: [size_of::<S>(), size_of::<D>()],
            is_swapped: SWAPPED,
            load: (S::DTYPE != DType::F32).then_some(I::cast::<S, f32> as Cast),
            kernel: I::quantise::<f32, D>,
        };
        rescale_blocks(&scaled, Row { src, ss, dst, ds, len }, scale);
    }
}

/// Multiplies elements by a scale in float32 and casts the product: a [`RescaleFn`].
///
/// # Safety
/// `len` elements at `src` and at `dst`, at their strides, at any address and disjoint; the processor runs `I`.
unsafe fn dequantise<I: Isa, S: super::Elem, D: super::Elem>(
    src: *const u8,
    ss: isize,
    dst: *mut u8,
    ds: isize,
    len: usize,
    scale: f32,
) {
    let scaled = Scaled {
        sizes: [size_of::<S>(), size_of::<D>()],
        is_swapped: false,
        load: Some(I::cast::<S, f32>),
        kernel: multiply::<I, D>,
    };
    // SAFETY: the sizes are those of the types; the rest is the caller's promise.
    unsafe { rescale_blocks(&scaled, Row { src, ss, dst, ds, len }, scale) };
}

/// The [`Kernel`] that multiplies float32 and casts the product.
///
/// # Safety
/// The processor runs `I`; at most `BLOCK` floats at `x` and room for as many elements at `dst`, contiguous, at any address and
/// disjoint.
unsafe fn multiply<I: Isa, D: super::Elem>(x: *const u8, dst: *mut u8, n: usize, scale: f32) {
    // Adding -0 changes nothing.
    let pairs = Pairs { a: &raw const scale, b: &raw const MINUS_ZERO, period: 0 };
    debug_assert!(n <= BLOCK);
    // SAFETY: the caller's promise; one pair for all.
    unsafe { I::fma::<f32, D>(x, dst, n, pairs) };
}

static MINUS_ZERO: f32 = -0.0;

/// Scales a row block by block, through the stack.
///
/// # Safety
/// The elements of the row are those of `scaled`, at its strides, at any address, those read and those written disjoint.
// The function is compiled once for all pairs of dtypes, not once in each.
#[inline(never)]
unsafe fn rescale_blocks(scaled: &Scaled, row: Row, scale: f32) {
    let [from, to] = scaled.sizes;
    let (mut stage, mut wide) = (BlockRoom::new(), Scratch::<{ BLOCK * 4 }>::new());
    debug_assert!(from <= 8 && to <= 8);
    debug_assert!(scaled.load.is_some() || from == size_of::<f32>());
    for done in (0..row.len).step_by(BLOCK) {
        // SAFETY: `done + n <= len`; at most `BLOCK` elements of at most 8 bytes fit the stage, and as many float32 fit `wide`;
        // the kernels are those of the elements they are given.
        unsafe {
            let block = row.part(done, BLOCK.min(row.len - done));
            let mut x = stage.gather(from, scaled.is_swapped, block);
            if let Some(load) = scaled.load {
                load(x, wide.at(), block.len);
                x = wide.at();
            }
            if block.ds == to as isize {
                (scaled.kernel)(x, block.dst, block.len, scale);
            } else {
                (scaled.kernel)(x, stage.output.at(), block.len, scale);
                stage.scatter(to, block);
            }
        }
    }
}
