//! Which loops of a part are the rows and the columns of its boxes.

use super::loops::{Extent, Loop, Loops, Number};
use super::part::{Part, Places};
use crate::plan::Op;

/// Whether the source is adjacent along the rows of a box rather than along its columns.
pub(super) fn is_transposed(rows: &Loop, cols: &Loop) -> bool {
    largest(&rows.src_stride) < largest(&cols.src_stride) && !rows.src_stride.is(0)
}

fn largest(number: &Number) -> u64 {
    match number {
        Number::Same(value) => value.unsigned_abs(),
        Number::Each(values) => values.iter().map(|value| value.unsigned_abs()).max().unwrap_or(0),
    }
}

/// The loops of a part in the order of its boxes: outer ones, then the rows of a box, then its columns, the
/// innermost of the output. Or only the columns, where the rows are whole samples.
pub(super) fn box_loops(part: &Part<'_>) -> (Loops, bool) {
    // Strides of a box have 32 bits.
    let is_short = |stride: u64| stride < 1 << 31;
    let fits =
        |own: &Loop| is_short(largest(&own.src_stride)) && is_short(own.dst_stride.unsigned_abs());
    let nothing = || Loop::whole(Extent::Fixed(1), 0, 0);
    let mut rest = part.loops.clone();
    let mut take = |key: &dyn Fn(&Loop) -> u64| {
        let fitting =
            rest.iter().enumerate().filter(|(_, own)| fits(own) && own.fixed() != Some(1));
        // The inner one of two alike.
        let best = fitting.min_by_key(|(at, own)| (key(own), usize::MAX - at)).map(|(at, _)| at);
        best.map(|at| rest.remove(at))
    };
    let cols = take(&|own| own.dst_stride.unsigned_abs()).unwrap_or_else(nothing);
    let is_even = |own: &Loop| {
        let numbers = [&own.lo, &own.hi, &own.src_stride];
        own.fixed().is_some_and(|extent| extent < 512)
            && own.lo.is(0)
            && numbers.iter().all(|number| number.same().is_some())
    };
    let is_in_order = part.samples.is_none()
        && part.op != Op::Index
        && matches!(part.places, Places::Rows(step) if is_short(step.unsigned_abs()));
    let inner = |own: &Loop| match largest(&own.src_stride) {
        stride if stride > 0 && stride < largest(&cols.src_stride) => (0, stride),
        _ => (1, own.dst_stride.unsigned_abs()),
    };
    let rows = take(&|own| {
        let (rank, stride) = inner(own);
        rank << 63 | stride.min(i64::MAX as u64)
    });
    if rows.is_none() && rest.is_empty() && is_even(&cols) && is_in_order && part.num_samples() > 1
    {
        return (Loops::from_iter([cols]), true);
    }
    // What is left over of an item's number is the outermost coordinate, of which there may be any number.
    rest.sort_by_key(|own| own.fixed().is_some());
    rest.push(rows.unwrap_or_else(nothing));
    rest.push(cols);
    (rest, false)
}
