//! The innermost loops of the host executor: one row of elements, by dtype.
//!
//! A row is cut into blocks. A strided side is gathered or scattered through a block on the stack,
//! so that the kernels see contiguous elements only, and a transform is a conversion to the type it
//! is computed in, then a multiply-add that converts and stores. That way a pair of dtypes costs a
//! table and a few kernels, not a loop for each form.
#![allow(unsafe_code, reason = "rows are raw pointers with strides in bytes")]

use super::convert::{Bool, Elem, BF16, F16, F8};
use super::isa::with_isa;
use super::policy::POLICY;
use super::simd::{Cast, Fma, Isa, Pairs, Real, Scratch, BLOCK};
use crate::collate::Affine;
use crate::tensor::{CastTo, DType};

mod blocks;
mod interleave;
mod moves;
mod planar;
mod rescale;
mod reverse;
#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;

pub(crate) use blocks::GatherFn;
pub(crate) use interleave::{interleave_rows, InterleaveFn};
use moves::{copy, gather, swap, swap_elems};
pub(crate) use moves::{copy_bytes, fill_of, fill_row, stream_fence, FillFn};
pub(crate) use rescale::{amax_row, rescale_row, run_of, AmaxFn, RescaleFn, RunFn};
pub(crate) use reverse::{for_reversed_blocks, reverse};

/// `len` elements from `src` to `dst`.
///
/// Strides are in bytes and may be 0 or negative for the source, anything for the destination.
/// No alignment is needed. Both sides are good for all elements and disjoint.
pub(crate) type RowFn =
    unsafe fn(src: *const u8, src_stride: isize, dst: *mut u8, dst_stride: isize, len: usize);

/// Moves a row as [`RowFn`] does, with a transform.
///
/// Every element takes pair `channel`, or, if `periodic`, element `j` takes pair
/// `(channel + j) % affine.channels()`. A single pair serves all. `channel < affine.channels()`
/// unless there is a single pair.
pub(crate) type AffineFn = unsafe fn(
    src: *const u8,
    src_stride: isize,
    dst: *mut u8,
    dst_stride: isize,
    len: usize,
    affine: &Affine,
    channel: usize,
    periodic: bool,
);

/// `pixels` of `channels` contiguous elements to as many contiguous rows, `plane_stride` bytes
/// apart; row `c` takes pair `c`, or the single one. There are as many pairs as channels, or one.
pub(crate) type PlanarFn = unsafe fn(
    src: *const u8,
    dst: *mut u8,
    plane_stride: isize,
    pixels: usize,
    channels: usize,
    affine: Option<&Affine>,
);

/// Evaluates `$body` with `$t` standing for the type of an arithmetic dtype.
macro_rules! with_type {
    ($dtype:expr, $t:ident => $body:expr) => {
        with_type!(@ $dtype, $t, $body, Bool Bool, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16,
            U32 u32, U64 u64, F16 F16, BF16 BF16, F32 f32, F64 f64, F8E4M3FN F8<3, false>, F8E5M2 F8<2, false>)
    };
    (@ $dtype:expr, $t:ident, $body:expr, $($variant:ident $type:ty),*) => {
        match $dtype {
            $(DType::$variant => { type $t = $type; $body })*
            other => unreachable!("{other} is only moved"),
        }
    };
}

/// Evaluates `$body` with `$t` standing for the type of what elements become.
macro_rules! with_result {
    ($to:expr, $t:ident => $body:expr) => {
        match ($to.dtype, $to.saturate) {
            (DType::F8E4M3FN, true) => {
                type $t = F8<3, true>;
                $body
            }
            (DType::F8E5M2, true) => {
                type $t = F8<2, true>;
                $body
            }
            (dtype, _) => with_type!(dtype, $t => $body),
        }
    };
}

/// Evaluates `$body` with `$t` standing for an unsigned integer as wide as an element.
macro_rules! with_width {
    ($width:expr, $t:ident => $body:expr) => {
        with_width!(@ $width, $t, $body, 1 u8, 2 u16, 4 u32, 8 u64, 16 u128)
    };
    (@ $width:expr, $t:ident, $body:expr, $($size:literal $type:ty),*) => {
        match $width {
            $($size => { type $t = $type; $body })*
            other => unreachable!("no element has {other} bytes"),
        }
    };
}

use with_width;

/// Returns the function that moves elements of `width` bytes: 1, 2, 4, 8 or 16.
pub(crate) fn copy_row(width: usize) -> RowFn {
    with_width!(width, T => copy::<T>)
}

/// Evaluates `$body` with `$f` of the type and halves of a dtype whose bytes have an order.
macro_rules! with_turned {
    ($dtype:expr, $f:ident) => {
        match ($dtype.size(), $dtype.ordered_bytes()) {
            (2, 2) => $f::<u16, false>,
            (4, 4) => $f::<u32, false>,
            (8, 8) => $f::<u64, false>,
            (8, 4) => $f::<u64, true>,
            (16, 8) => $f::<u128, true>,
            other => unreachable!("no element of other byte order has {other:?} bytes"),
        }
    };
}

/// Returns the function that moves elements of dtype `src`, of foreign byte order, to native order.
fn swap_row(src: DType) -> RowFn {
    with_turned!(src, swap)
}

/// Returns the function that gathers elements of `width` bytes: 1, 2, 4, 8 or 16.
pub(crate) fn gather_rows(width: usize) -> GatherFn {
    with_width!(width, T => blocks::gather::<T>)
}

/// Returns the function that converts elements of either byte order to native ones; both dtypes are arithmetic, or they
/// are the same but for byte order.
pub(crate) fn cast_row(src: DType, to: CastTo) -> RowFn {
    with_isa!(src.native(), to.dtype, I => cast_row_on::<I>(src, to))
}

/// Returns the function that converts contiguous elements as [`cast_row`] does; the dtypes differ.
pub(crate) fn cast_elems(src: DType, to: CastTo) -> Cast {
    with_isa!(src.native(), to.dtype, I => cast_elems_on::<I>(src, to))
}

/// Returns the function that transforms elements of either byte order; both dtypes are arithmetic.
pub(crate) fn affine_row(src: DType, to: CastTo) -> AffineFn {
    with_isa!(src.native(), to.dtype, I => affine_row_on::<I>(src, to))
}

/// Returns the function that splits pixels into planes; both dtypes are arithmetic, or they are the same and only
/// moved. Both are of native byte order.
pub(crate) fn planar_row(src: DType, to: CastTo) -> PlanarFn {
    with_isa!(src, to.dtype, I => planar_row_on::<I>(src, to))
}

/// The function of [`cast_row`] compiled for `I`.
fn cast_row_on<I: Isa>(src: DType, to: CastTo) -> RowFn {
    if src == to.dtype {
        return copy_row(src.size());
    }
    let native = src.native();
    if native == to.dtype {
        return swap_row(src);
    }
    match src.is_native() {
        true => with_type!(native, S => with_result!(to, D => cast::<I, S, D, false>)),
        false => with_type!(native, S => with_result!(to, D => cast::<I, S, D, true>)),
    }
}

/// The function of [`cast_elems`] compiled for `I`; it copies if the dtypes are equal.
fn cast_elems_on<I: Isa>(src: DType, to: CastTo) -> Cast {
    let native = src.native();
    if src.is_native() {
        return with_type!(src, S => with_result!(to, D => I::cast::<S, D>));
    }
    if native == to.dtype {
        return with_turned!(src, swap_elems);
    }
    with_type!(native, S => with_result!(to, D => cast_swapped::<I, S, D>))
}

/// The function of [`affine_row`] compiled for `I`.
fn affine_row_on<I: Isa>(src: DType, to: CastTo) -> AffineFn {
    match src.is_native() {
        true => with_type!(src, S => with_result!(to, D => affine::<I, S, D, false>)),
        false => with_type!(src.native(), S => with_result!(to, D => affine::<I, S, D, true>)),
    }
}

/// The function of [`planar_row`] compiled for `I`.
fn planar_row_on<I: Isa>(src: DType, to: CastTo) -> PlanarFn {
    if src == to.dtype && !src.is_arithmetic() {
        return with_width!(src.size(), T => planar::planar_copy::<I, T>);
    }
    with_type!(src, S => with_result!(to, D => planar::planar::<I, S, D>))
}

/// The parameters that the code shared by all pairs of dtypes needs for one pair; `T` is the type in which
/// its transform is computed.
struct Pair<T> {
    /// Bytes of an element on both sides.
    src: usize,
    dst: usize,
    /// Source to destination, without a transform.
    cast: Cast,
    /// Source to `T`, unless it is `T`.
    load: Option<Cast>,
    /// `T` to the destination.
    fma: Fma<T>,
    /// The source is of other byte order.
    is_swapped: bool,
}

/// A table for each compilation, pair, computing type and byte order of the source.
struct PairTable<I, S, D, T, const SWAPPED: bool>(std::marker::PhantomData<(I, S, D, T)>);

impl<I: Isa, S: Elem, D: Elem, T: Real, const SWAPPED: bool> PairTable<I, S, D, T, SWAPPED> {
    const PAIR: Pair<T> = Pair {
        src: size_of::<S>(),
        dst: size_of::<D>(),
        cast: I::cast::<S, D>,
        load: if S::DTYPE as u8 == T::DTYPE as u8 { None } else { Some(I::cast::<S, T>) },
        fma: I::fma::<T, D>,
        is_swapped: SWAPPED,
    };
}

/// A row as [`RowFn`] takes it.
#[derive(Clone, Copy)]
struct Row {
    src: *const u8,
    ss: isize,
    dst: *mut u8,
    ds: isize,
    len: usize,
}

impl Row {
    /// The part of the row of `len` elements from `start` on.
    ///
    /// # Safety
    /// `start + len` is within the row.
    #[inline(always)]
    unsafe fn part(self, start: usize, len: usize) -> Row {
        debug_assert!(start + len <= self.len);
        // SAFETY: by the contract above.
        unsafe {
            let src = self.src.offset(self.ss * start as isize);
            Row { src, dst: self.dst.offset(self.ds * start as isize), len, ..self }
        }
    }
}

/// The [`RowFn`] of a pair of dtypes: elements of any strides are cast.
///
/// # Safety
/// `len` elements at `src` and at `dst`, at their strides, at any address; the two sides are disjoint; the processor
/// runs `I`. Those at `src` are of other byte order if `SWAPPED`.
unsafe fn cast<I: Isa, S: Elem, D: Elem, const SWAPPED: bool>(
    src: *const u8,
    ss: isize,
    dst: *mut u8,
    ds: isize,
    len: usize,
) {
    let (s, d) = (size_of::<S>(), size_of::<D>());
    // SAFETY: the sizes are those of the types; the rest is the caller's promise.
    unsafe {
        if !SWAPPED && ss == s as isize && ds == d as isize {
            debug_assert!(src.addr() + len * s <= dst.addr() || dst.addr() + len * d <= src.addr());
            I::cast::<S, D>(src, dst, len);
        } else {
            cast_strided([s, d], SWAPPED, I::cast::<S, D>, Row { src, ss, dst, ds, len });
        }
    }
}

/// Converts as [`cast`] does, from contiguous elements of foreign byte order.
///
/// # Safety
/// The processor runs `I`; `len` elements of other byte order at `src`, and room for as many at `dst`, contiguous, at any
/// address and disjoint.
unsafe fn cast_swapped<I: Isa, S: Elem, D: Elem>(src: *const u8, dst: *mut u8, len: usize) {
    let (ss, ds) = (size_of::<S>() as isize, size_of::<D>() as isize);
    // SAFETY: the caller's promise.
    unsafe { cast::<I, S, D, true>(src, ss, dst, ds, len) }
}

/// Casts a row block by block: a side with gaps or of other byte order goes through the stack.
///
/// # Safety
/// The row has as many elements of `s` bytes to be read as of `d` bytes to be written, at its strides, at any address
/// and disjoint; `kernel` takes such elements.
// The function is compiled once for all pairs of dtypes, not once in each.
#[inline(never)]
unsafe fn cast_strided([s, d]: [usize; 2], is_swapped: bool, kernel: Cast, row: Row) {
    debug_assert!(s <= 8 && d <= 8);
    // SAFETY: `done + n <= len`, at most `BLOCK` elements of at most 8 bytes are staged, and a
    // single element is read when there is one.
    unsafe {
        if row.ss == 0 && row.len > 0 && !is_swapped {
            let mut value = [0; 16];
            kernel(row.src, value.as_mut_ptr(), 1);
            return fill_row(row.dst, row.ds, d, &value, row.len);
        }
        let mut stage = BlockRoom::new();
        let mut done = 0;
        while done < row.len {
            let block = row.part(done, (row.len - done).min(BLOCK));
            let x = stage.gather(s, is_swapped, block);
            if row.ds == d as isize {
                kernel(x, block.dst, block.len);
            } else {
                kernel(x, stage.output.at(), block.len);
                stage.scatter(d, block);
            }
            done += block.len;
        }
    }
}

/// Room for one block on its way in and out, for strided sides.
struct BlockRoom {
    input: Scratch<{ BLOCK * 8 }>,
    output: Scratch<{ BLOCK * 8 }>,
}

impl BlockRoom {
    /// Uninitialised memory for a block on both sides.
    #[inline(always)]
    fn new() -> Self {
        BlockRoom { input: Scratch::new(), output: Scratch::new() }
    }

    /// The source as it is, if it is contiguous and of native byte order, or gathered.
    ///
    /// # Safety
    /// `row` is of at most `BLOCK` elements of `width <= 8` bytes.
    #[inline(always)]
    unsafe fn gather(&mut self, width: usize, is_swapped: bool, row: Row) -> *const u8 {
        if row.ss == width as isize && !is_swapped {
            return row.src;
        }
        let gather: RowFn = match (is_swapped, width) {
            (false, _) => copy_row(width),
            (true, 2) => swap::<u16, false>,
            (true, 4) => swap::<u32, false>,
            (true, _) => swap::<u64, false>,
        };
        debug_assert!(width <= 8 && row.len <= BLOCK);
        debug_assert!(!is_swapped || matches!(width, 2 | 4 | 8));
        // SAFETY: by the contract above; the room is of `BLOCK` elements of 8 bytes.
        unsafe { gather(row.src, row.ss, self.input.at(), width as isize, row.len) };
        self.input.at()
    }

    /// Copies `output` to where the row belongs.
    ///
    /// # Safety
    /// `row` is of at most `BLOCK` elements of `width <= 8` bytes, and as many were put in.
    #[inline(always)]
    unsafe fn scatter(&mut self, width: usize, row: Row) {
        debug_assert!(width <= 8 && row.len <= BLOCK);
        // SAFETY: by the contract above.
        unsafe { copy_row(width)(self.output.at(), width as isize, row.dst, row.ds, row.len) };
    }
}

/// The [`AffineFn`] of a pair of dtypes, computed in float64 if one of them is that, else in float32.
///
/// # Safety
/// `len` elements at `src` and at `dst`, at their strides, at any address and disjoint; `channel` is one of the pairs
/// of `affine`; the processor runs `I`. Those at `src` are of other byte order if `SWAPPED`.
#[allow(clippy::too_many_arguments, reason = "the signature of AffineFn")]
unsafe fn affine<I: Isa, S: Elem, D: Elem, const SWAPPED: bool>(
    src: *const u8,
    ss: isize,
    dst: *mut u8,
    ds: isize,
    len: usize,
    affine: &Affine,
    channel: usize,
    periodic: bool,
) {
    let row = Row { src, ss, dst, ds, len };
    // SAFETY: the tables are those of the types; the rest is the caller's promise.
    unsafe {
        if S::DTYPE == DType::F64 || D::DTYPE == DType::F64 {
            let pair = &PairTable::<I, S, D, f64, SWAPPED>::PAIR;
            affine_blocks(pair, row, affine, channel, periodic);
        } else {
            let pair = &PairTable::<I, S, D, f32, SWAPPED>::PAIR;
            affine_blocks(pair, row, affine, channel, periodic);
        }
    }
}

/// The most channels of which a few turns are laid out on the stack, to a multiple of eight.
const TILED: usize = POLICY.max_tiled_channels;

/// Transforms a row block by block; `channel` and `periodic` as of [`AffineFn`].
///
/// # Safety
/// The elements of the row are those of `pair`, at its strides, at any address, those read and those written disjoint;
/// `channel` is one of the pairs of the map.
unsafe fn affine_blocks<T: Real>(
    pair: &Pair<T>,
    row: Row,
    affine: &Affine,
    channel: usize,
    periodic: bool,
) {
    let (a, b) = T::coefficients(affine);
    let channels = a.len();
    debug_assert!(channels == 1 || channel < channels);
    let mut tile = (Scratch::<{ TILED * 8 * 8 }>::new(), Scratch::<{ TILED * 8 * 8 }>::new());
    let (mut pa, mut pb) = (a.as_ptr(), b.as_ptr());
    let (mut period, mut step, mut at) = (0, BLOCK, 0);
    if channels == 1 || !periodic {
        let only = if channels == 1 { 0 } else { channel };
        (pa, pb) = (&raw const a[only], &raw const b[only]);
    } else if channels <= TILED {
        let turns = 8 >> channels.trailing_zeros().min(3);
        period = turns * channels;
        step = BLOCK - BLOCK % period;
        let (ta, tb) = (tile.0.at().cast::<T>(), tile.1.at().cast::<T>());
        debug_assert!(period <= 8 * TILED && period % 8 == 0 && size_of::<T>() <= 8);
        debug_assert!(ta.is_aligned() && tb.is_aligned());
        let mut c = channel % channels;
        for i in 0..period.min(row.len) {
            // SAFETY: `i < 8 * TILED`, which is how many fit; the room is aligned.
            unsafe {
                ta.add(i).write(a[c]);
                tb.add(i).write(b[c]);
            }
            c = if c + 1 == channels { 0 } else { c + 1 };
        }
        (pa, pb) = (ta, tb);
    } else {
        period = usize::MAX;
        at = channel % channels;
    }
    let mut done = 0;
    while done < row.len {
        let mut n = step.min(row.len - done);
        if period == usize::MAX {
            n = n.min(channels - at);
        }
        debug_assert!(n <= BLOCK && (period != usize::MAX || at + n <= channels));
        // SAFETY: `done + n <= len` and `n <= BLOCK`. The pairs are one for all; or tiled, a whole
        // number of periods to a block, and written as far as the row is long; or `n` from `at` on,
        // and `at + n <= channels`.
        unsafe {
            let pairs = Pairs { a: pa.add(at), b: pb.add(at), period };
            affine_block(pair, row.part(done, n), pairs);
        }
        done += n;
        if period == usize::MAX {
            at = if at + n == channels { 0 } else { at + n };
        }
    }
}

/// Transforms a block of a row.
///
/// # Safety
/// At most `BLOCK` elements, those of `pair`, at the row's strides, at any address, those read and those written
/// disjoint; coefficients for the whole period of `pairs`, or for each element if these are fewer.
#[inline]
unsafe fn affine_block<T: Real>(pair: &Pair<T>, row: Row, pairs: Pairs<T>) {
    let mut stage = BlockRoom::new();
    let mut wide = Scratch::<{ BLOCK * 8 }>::new();
    debug_assert!(row.len <= BLOCK && pair.src <= 8 && pair.dst <= 8);
    debug_assert!(pairs.period % 8 == 0 || pairs.period >= row.len);
    // SAFETY: at most `BLOCK` elements of at most 8 bytes fit each of the rooms, and the kernels are
    // those of the elements they are given.
    unsafe {
        let mut x = stage.gather(pair.src, pair.is_swapped, row);
        if let Some(load) = pair.load {
            load(x, wide.at(), row.len);
            x = wide.at();
        }
        if row.ds == pair.dst as isize {
            (pair.fma)(x, row.dst, row.len, pairs);
        } else {
            (pair.fma)(x, stage.output.at(), row.len, pairs);
            stage.scatter(pair.dst, row);
        }
    }
}
