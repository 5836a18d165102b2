//! The loops of a segment that are the rows and columns of its boxes, and how their elements are written.
//!
//! The problem: memory is read and written in sectors of 32 bytes. Stores fill sectors if neighbouring lanes have neighbours
//! in the output, loads if the neighbours in the source belong to one warp. In a transposed source these are neighbours along
//! different loops.
//!
//! ```text
//! loop w: output stride 1, source stride C  -> columns, dealt to lanes        w   0   1   2   3
//! loop c: output stride W, source stride 1  -> rows, taken by a lane    c 0       L0  L1  L2  L3    a store: one row
//!                                                                       c 1       L0  L1  L2  L3    a lane's loads: one column
//! ```
//!
//! ```text
//! box_loops:  columns  the loop of the least output stride
//!             rows     a loop of less source stride than the columns, else that of the next output stride
//!             neither rows nor outer loops, small even samples in order: the rows are whole samples
//!             no rows, a loop over many times all channels: times become rows, channels columns
//!             lanes along the columns alone idle no more than down the rows: these are the rows of a box of one column
//! log_step:   log2 of the rows that 32 lanes cover at once; 0 with tiles, whose lanes have adjacent rows
//! ```
//!
//! One loop for each box would be simpler. A lane of a transposed source would then have elements of as many sectors as it has
//! turns. Tiles of 8 rows and 4 columns make results of 8 and 16 bits by whole words: float64 to int16 takes a warp 203
//! instructions in place of 408 (docs/gpu-performance.md).

use super::loops::{Extent, Loops, PerSample, SampleLoop};
use super::output_desc::ElementLoop;
use super::segment::{OutputSegment, SampleStarts};
use crate::plan::ElementOp;
use crate::tensor::DType;

/// Lanes of a warp, and the elements of a lane that are under way together in a box.
pub(crate) const LANES: u32 = 32;
pub(crate) const TURNS: u64 = 8;
/// Rows of a box with tiles, or somewhat more.
const MAX_TILED_ROWS: u64 = 4096;

/// Whether the source stride is less along the rows of a box than along its columns, and not 0.
fn is_transposed(rows: &SampleLoop, cols: &SampleLoop) -> bool {
    largest(&rows.src_stride) < largest(&cols.src_stride) && !rows.src_stride.is(0)
}

/// The largest magnitude that a number has in any sample.
fn largest(number: &PerSample) -> u64 {
    match number {
        PerSample::Same(value) => value.unsigned_abs(),
        PerSample::Each(values) => {
            values.iter().map(|value| value.unsigned_abs()).max().unwrap_or(0)
        }
    }
}

/// Whether a box has tiles: its rows are closer in the source than its columns, so that a lane has adjacent rows, and all samples
/// have the same number of columns, two for each lane at least. Padding is not asked for.
pub(crate) fn is_tiled(rows: Option<&SampleLoop>, cols: &SampleLoop) -> bool {
    rows.is_some_and(|rows| is_transposed(rows, cols))
        && cols.fixed().is_some_and(|num_cols| num_cols >= 2 * u64::from(LANES))
}

/// Log2 of the rows of a box from one element of a lane to its next: the fewest that times the
/// columns are a multiple of 32, so that turns are whole, and whole sectors of the output, too; 0
/// if each sample has its own columns. Only a transposed source is better read along its own
/// adjacent elements: 0 with tiles.
pub(crate) fn log_step_of(rows: Option<&SampleLoop>, cols: &SampleLoop) -> u32 {
    if is_tiled(rows, cols) {
        return 0;
    }
    let num_cols = cols.fixed().unwrap_or(u64::from(LANES));
    LANES.ilog2().saturating_sub(num_cols.trailing_zeros())
}

/// Log2 of the adjacent columns of a lane in a box with tiles: 2 for moves and casts to 1 or 2 bytes, but not of float8, without
/// padding, whose tiles are read and written as vectors; else 0.
pub(crate) fn log_columns_of(
    segment: &OutputSegment<'_>,
    loops: &[SampleLoop],
    kind: ElementLoop,
    address_bits: u64,
) -> u32 {
    let [outer @ .., rows, cols] = loops else { return 0 };
    let (from, to) = (segment.from.size() as u64, segment.to.size() as u64);
    let (Some(num_rows), Some(num_cols)) = (rows.fixed(), cols.fixed()) else { return 0 };
    // Elements of a column are read as vectors: vector_of() of kernels/tile.cuh.
    let vector = (4 * from).min(16);
    let others = || outer.iter().chain([cols]);
    let strides = others().map(|dim| dim.src_stride.same().map_or(1, |stride| stride as u64));
    let is_vector = rows.src_stride.is(from as i64)
        && strides.fold(address_bits, |all, stride| all | stride) % vector == 0;
    let places = outer.iter().chain([rows]).map(|dim| dim.dst_stride as u64);
    let places =
        places.fold(segment.out | segment.starts.step() as u64, |all, stride| all | stride);
    let is_even = cols.dst_stride == to as i64 && (places | (num_cols * to)) % (4 * to) == 0;
    // A last tile that would be cut off begins before.
    let has_tiles = num_rows >= TURNS && (num_rows <= MAX_TILED_ROWS || num_rows % TURNS == 0);
    let is_cast = matches!(segment.op, ElementOp::Read { affine: false, .. })
        && !matches!(kind, ElementLoop::Slow | ElementLoop::OddSingles)
        && (segment.is_move() || ![segment.from, segment.to].into_iter().any(DType::is_float8));
    let is_whole = loops.iter().all(SampleLoop::is_whole);
    match is_cast && is_whole && has_tiles && is_vector && is_even && to <= 2 {
        true => 2,
        false => 0,
    }
}

/// Rows of a box with tiles, all up to some [`MAX_TILED_ROWS`], and rows of a lane, about `turns`. `all`: the number of rows, if
/// all samples have the same number, which is not 0; else both results are `turns`.
pub(crate) fn tiled_rows(all: Option<u64>, turns: u64) -> (u64, u64) {
    let Some(all) = all else { return (turns, turns) };
    let even = all.div_ceil(all.div_ceil(turns)).next_multiple_of(TURNS);
    (all.min(MAX_TILED_ROWS.next_multiple_of(even)), even)
}

/// Rows of a box without tiles: about `turns` for each lane. `all` is as for [`tiled_rows`].
pub(crate) fn even_rows(all: Option<u64>, turns: u64, log_step: u32) -> u64 {
    let rows = turns << log_step;
    let Some(all) = all else { return rows };
    let even = |blocks: u64| all.div_ceil(blocks).next_multiple_of(TURNS << log_step);
    let blocks = ((all + rows / 2) / rows).max(1);
    // The last one finds its box, too, if it is short.
    let is_short = (1..=even(blocks) / 4).contains(&(all % even(blocks)));
    even(blocks - u64::from(is_short && blocks > 1)).min(all).max(1)
}

/// How the elements of a box are written: `Slow` if they have 16 bytes, any is unaligned, or
/// samples have increments; else `Whole` if nothing is converted, and what
/// [`ElementLoop::for_cast`] says if something is.
pub(crate) fn kind_of(
    segment: &OutputSegment<'_>,
    loops: &[SampleLoop],
    has_aligned_sources: bool,
) -> ElementLoop {
    let (from, to) = (segment.from, segment.to);
    let loops = || loops.iter().filter(|dim| dim.fixed() != Some(1));
    let places = segment.out | segment.starts.step() as u64;
    let places = loops().fold(places, |all, dim| all | dim.dst_stride as u64);
    let is_multiple = |number: &PerSample| match number {
        PerSample::Same(value) => value % from.size() as i64 == 0,
        PerSample::Each(values) => values.iter().all(|value| value % from.size() as i64 == 0),
    };
    let is_read = matches!(segment.op, ElementOp::Read { .. });
    let reads_aligned =
        !is_read || has_aligned_sources && loops().all(|dim| is_multiple(&dim.src_stride));
    let is_unaligned = places % to.size() as u64 != 0 || !reads_aligned;
    if to.size() == 16 || is_unaligned || segment.increments.is_some() {
        return ElementLoop::Slow;
    }
    match is_read && !segment.is_move() {
        true => ElementLoop::for_cast(from, to, segment.affine.is_some()),
        false => ElementLoop::Whole,
    }
}

/// The loops of a segment in the order of its boxes: outer ones, then the rows of a box, then its
/// columns; a loop of extent 1 stands for rows or columns that it has not. True with the columns
/// alone: the rows of a box are whole samples.
pub(crate) fn box_loops(segment: &OutputSegment<'_>) -> (Loops, bool) {
    // Strides of a box have 32 bits, for up to 32 coordinates at a time.
    let is_short = |stride: u64| stride < 1 << 26;
    let fits = |dim: &SampleLoop| {
        is_short(largest(&dim.src_stride)) && is_short(dim.dst_stride.unsigned_abs())
    };
    let nothing = || SampleLoop::whole(Extent::Fixed(1), 0, 0);
    let mut rest = segment.loops.clone();
    rest.retain(|dim| dim.fixed() != Some(1) || !dim.is_whole());
    let mut take = |key: &dyn Fn(&SampleLoop) -> u64| {
        let fitting =
            rest.iter().enumerate().filter(|(_, dim)| fits(dim) && dim.fixed() != Some(1));
        // The inner one of two alike.
        let best = fitting.min_by_key(|(at, dim)| (key(dim), usize::MAX - at)).map(|(at, _)| at);
        best.map(|at| rest.remove(at))
    };
    let cols = take(&|dim| dim.dst_stride.unsigned_abs()).unwrap_or_else(nothing);
    let is_even = |dim: &SampleLoop| {
        let numbers = [&dim.lo, &dim.hi, &dim.src_stride];
        dim.fixed().is_some_and(|extent| extent < 512)
            && dim.lo.is(0)
            && numbers.iter().all(|number| number.same().is_some())
    };
    let is_in_order = segment.samples.is_none()
        && segment.op != ElementOp::Index
        && matches!(segment.starts, SampleStarts::Rows(step) if is_short(step.unsigned_abs()));
    let inner = |dim: &SampleLoop| match largest(&dim.src_stride) {
        stride if stride > 0 && stride < largest(&cols.src_stride) => (0, stride),
        _ => (1, dim.dst_stride.unsigned_abs()),
    };
    let rows = take(&|dim| {
        let (rank, stride) = inner(dim);
        rank << 63 | stride.min(i64::MAX as u64)
    });
    if rows.is_none()
        && rest.is_empty()
        && is_even(&cols)
        && is_in_order
        && segment.num_samples() > 1
    {
        return (Loops::from_iter([cols]), true);
    }
    let (rows, cols) = match rows.is_none().then(|| by_channels(segment, &cols)).flatten() {
        Some((rows, cols)) if fits(&rows) => (Some(rows), cols),
        _ => (rows, cols),
    };
    // The rest of an item's number is the outermost coordinate, whose extent has no limit.
    let is_of_cols = rows.as_ref().is_none_or(|rows| is_across(segment, rows, &cols));
    let [rows, cols] = match (is_of_cols, rows) {
        (true, rows) => {
            rest.extend(rows);
            [cols, nothing()]
        }
        (false, rows) => [rows.unwrap_or_else(nothing), cols],
    };
    rest.sort_by_key(|dim| dim.fixed().is_some());
    rest.push(rows);
    rest.push(cols);
    (rest, false)
}

/// A loop over many times all channels as one over the times, and one over the channels: a lane then has elements of one channel.
/// `None` for other loops.
fn by_channels(segment: &OutputSegment<'_>, dim: &SampleLoop) -> Option<(SampleLoop, SampleLoop)> {
    let channels = segment.affine?.channels() as u64;
    let (extent, src_stride) = (dim.fixed()?, dim.src_stride.same()?);
    if !dim.is_channel || !dim.is_whole() || extent <= channels || extent % channels != 0 {
        return None;
    }
    let over = |stride: i64| stride.checked_mul(channels as i64);
    let (of_src, of_dst) = (over(src_stride)?, over(dim.dst_stride)?);
    let times = SampleLoop::whole(Extent::Fixed(extent / channels), of_src, of_dst);
    let each = SampleLoop::whole(Extent::Fixed(channels), src_stride, dim.dst_stride);
    Some((times, SampleLoop { is_channel: true, ..each }))
}

/// Whether lanes go along the columns rather than down the rows: by the turns that are taken in vain, which
/// count half where the source is transposed.
fn is_across(segment: &OutputSegment<'_>, rows: &SampleLoop, cols: &SampleLoop) -> bool {
    let samples = segment.num_samples().max(1) as u64;
    let fixed = segment.loops.iter().filter_map(SampleLoop::fixed).product::<u64>().max(1);
    let extent =
        |dim: &SampleLoop| dim.fixed().unwrap_or(segment.output.numel() / samples / fixed).max(1);
    let (num_rows, num_cols) = (extent(rows), extent(cols));
    let log_step = log_step_of(Some(rows), cols);
    let lanes = u64::from(LANES);
    let down = (num_cols << log_step).div_ceil(lanes) * num_rows.div_ceil(TURNS << log_step);
    let across = num_rows.saturating_mul(num_cols.div_ceil(TURNS * lanes));
    if is_transposed(rows, cols) {
        down > across.saturating_mul(2)
    } else {
        down >= across
    }
}
