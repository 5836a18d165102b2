//! [`Footprint`]: the bytes that a tensor reaches, and whether two tensors share any.

use std::ops::Range;

use crate::tensor::dtype::DType;
use crate::tensor::layout::Layout;

/// The bytes that a tensor reaches: an element of `size` bytes at `span.start` and at each sum of steps from there.
///
/// Two tensors of one table may lie between each other and share nothing:
///
/// ```text
/// one      oo..oo..oo..oo     rows of 2 bytes, 4 apart
/// other      xx..xx           the same, 2 bytes ahead
/// ```
///
/// Let `g` divide every step of both tensors that is long. An address, less that of the first element, leaves the same rest
/// when divided by `g` wherever the long steps lead: one of the bytes that the short steps reach. So the tensors are disjoint if
/// these bytes are disjoint within `g`. Each length of a step is tried as the least long one. For two tensors whose long steps
/// are equal, and for a row beside a table, the answer is exact; elsewhere tensors that are disjoint may count as sharing.
#[derive(Clone, Debug)]
pub(crate) struct Footprint<'l> {
    span: Range<i128>,
    /// Extents and steps in elements; none for one run of bytes.
    dims: (&'l [i64], &'l [i64]),
    size: u64,
}

impl<'l> Footprint<'l> {
    /// The footprint of a tensor whose element of indices 0 is at `data`, which is not read.
    pub fn new(data: *const u8, layout: &'l Layout, dtype: DType) -> Footprint<'l> {
        let base = data.addr() as i128;
        if layout.is_compact() {
            let bytes = i128::from(layout.numel()) * dtype.size() as i128;
            return Footprint::for_run(base..base + bytes);
        }
        let span = layout.byte_span(dtype);
        let span = base + i128::from(span.start)..base + i128::from(span.end);
        Footprint { span, dims: (layout.shape(), layout.strides()), size: dtype.size() as u64 }
    }

    /// The footprint of bytes without a gap.
    pub fn for_run(span: Range<i128>) -> Footprint<'l> {
        let size = (span.end - span.start) as u64;
        Footprint { span, dims: (&[], &[]), size }
    }

    /// The range of addresses from the first byte to behind the last one.
    pub fn span(&self) -> &Range<i128> {
        &self.span
    }

    /// The bytes of each step without its sign, and how often it is taken. Dims of one element or of stride 0 have none, nor has
    /// a compact tensor.
    pub fn steps(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let each = self.dims.0.iter().zip(self.dims.1);
        let taken = each.filter(|(&extent, &stride)| extent > 1 && stride != 0);
        taken.map(|(extent, stride)| (stride.unsigned_abs() * self.size, *extent as u64 - 1))
    }

    /// Whether any byte may be reached from both; exact as the type says.
    pub fn shares_with(&self, other: &Footprint<'_>) -> bool {
        let steps = || self.steps().chain(other.steps()).map(|(bytes, _)| bytes);
        overlap(&self.span, &other.span)
            && !steps().any(|long| {
                let period = steps().filter(|&bytes| bytes >= long).fold(0, gcd);
                self.is_apart_within(period, long, other)
            })
    }

    /// The greatest common divisor of all steps of at least `long` bytes, and of `period` if it is not 0. 0 if there are neither.
    pub fn period(&self, long: u64, period: u64) -> u64 {
        self.steps().map(|(bytes, _)| bytes).filter(|&bytes| bytes >= long).fold(period, gcd)
    }

    /// Bytes from the first one to behind the last one that steps of fewer than `long` bytes reach.
    pub fn reach_below(&self, long: u64) -> u64 {
        let short = self.steps().filter(|(bytes, _)| *bytes < long);
        self.size + short.map(|(bytes, times)| bytes * times).sum::<u64>()
    }

    /// The remainder of the lowest address divided by a period, which is not 0.
    pub fn rest(&self, period: u64) -> u64 {
        self.span.start.rem_euclid(i128::from(period)) as u64
    }

    /// Whether the bytes that steps below `long` reach are disjoint from those of the other within `period` bytes, which is not 0.
    fn is_apart_within(&self, period: u64, long: u64, other: &Footprint<'_>) -> bool {
        let ahead = (other.span.start - self.span.start).rem_euclid(i128::from(period)) as u64;
        self.reach_below(long) <= ahead && ahead.saturating_add(other.reach_below(long)) <= period
    }

    /// Whether two indices may reach the same byte: if a dim of several elements has stride 0, or a step is shorter than what
    /// shorter ones reach. False without elements.
    pub fn shares_with_itself(&self) -> bool {
        if self.dims.0.is_empty() {
            return false;
        }
        let mut steps: Vec<(u64, u64)> = self.steps().collect();
        steps.sort_unstable();
        let mut reach = self.size;
        let is_expanded = self.dims.0.iter().zip(self.dims.1).any(|(&e, &s)| e > 1 && s == 0);
        !self.span.is_empty()
            && (is_expanded
                || steps.into_iter().any(|(bytes, times)| {
                    let is_within = bytes < reach;
                    reach = reach.saturating_add(bytes.saturating_mul(times));
                    is_within
                }))
    }
}

/// Whether any address is in both ranges; an empty range shares none.
pub(crate) fn overlap<T: Copy + Ord>(one: &Range<T>, other: &Range<T>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

/// The greatest common divisor; the other number if one is 0.
fn gcd(one: u64, other: u64) -> u64 {
    let (mut one, mut other) = (one, other);
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Tensors of up to two dims with small steps.
    fn layouts() -> Vec<Layout> {
        let dims = || (0..4).flat_map(|extent| (-6..7).map(move |stride| (extent, stride)));
        let one = dims().map(|(extent, stride)| (vec![extent], vec![stride]));
        let two = dims().flat_map(|(e, s)| {
            [(2, 1), (2, 5), (3, 2), (2, -3)].map(|(f, t)| (vec![e, f], vec![s, t]))
        });
        let all = one.chain(two).chain([(vec![], vec![])]);
        all.map(|(shape, strides)| Layout::try_new(DType::I16, &shape, Some(&strides)).unwrap())
            .collect()
    }

    fn bytes(base: usize, layout: &Layout) -> BTreeSet<i64> {
        let mut all = BTreeSet::from([base as i64]);
        for (&extent, &stride) in layout.shape().iter().zip(layout.strides()) {
            let steps = all.iter().flat_map(|at| (0..extent).map(move |i| at + 2 * i * stride));
            all = steps.collect();
        }
        all.iter().flat_map(|&at| [at, at + 1]).collect()
    }

    /// Footprints are never disjoint if a byte is shared; the answer is exact for a run beside a table and for tables of
    /// one step.
    #[test]
    fn shared_bytes_are_found() {
        let layouts = layouts();
        let mut apart = 0;
        for one in &layouts {
            let one_bytes = bytes(100, one);
            let at_100 = Footprint::new(std::ptr::without_provenance(100), one, DType::I16);
            let repeats = one_bytes.len() != 2 * one.numel() as usize;
            assert!(at_100.shares_with_itself() || !repeats, "{one:?}");
            for other in layouts.iter().step_by(3) {
                for base in 84..117 {
                    let of = bytes(base, other);
                    let there =
                        Footprint::new(std::ptr::without_provenance(base), other, DType::I16);
                    let said = at_100.shares_with(&there);
                    assert_eq!(said, there.shares_with(&at_100), "{one:?} {other:?} {base}");
                    let is_shared = !one_bytes.is_disjoint(&of);
                    assert!(said || !is_shared, "{one:?} {other:?} {base}");
                    let is_table = |layout: &Layout| layout.ndim() == 1 && layout.strides() != [0];
                    let is_exact = is_table(one)
                        && (other.is_compact()
                            || is_table(other)
                                && one.strides()[0].abs() == other.strides()[0].abs());
                    assert!(said == is_shared || !is_exact, "{one:?} {other:?} {base}");
                    apart += usize::from(!said && overlap(at_100.span(), there.span()));
                }
            }
        }
        assert!(apart > 1000, "{apart}");
    }
}
