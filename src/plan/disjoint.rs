//! Whether destinations of a move are disjoint from each other and from what is read: by spans in the order of addresses.
//!
//! The problem: with n pairs a comparison of each destination with all others is O(n^2), and two tensors whose spans overlap may
//! still share nothing, as columns of one table.
//!
//! ```text
//! spans by start   |--a--|   |----b----|      |--c--|
//!                               |--d--|                   b and d overlap: only they are compared exactly
//! reach                 ^a        ^b  ^b          ^c      the largest end so far
//! ```
//!
//! ```text
//! sort destinations by start; if each starts behind the reach of those before it, all are disjoint
//! else: for each cluster of overlapping spans, compare footprints, on a circle if there are many
//! for each source: skip it if it is outside of all spans or its own destination;
//!     else binary search for the spans that begin before its end, and compare back while their reach is behind its start
//! ```
//!
//! The sort is skipped for spans that are in order already, as rows of a table are. Exact answers for two strided tensors are a
//! problem of integer programming: `Footprint` says what it answers exactly and where it may take disjoint tensors for sharing ones.

use std::ops::Range;

use crate::plan::circle::Circle;
use crate::samples::{SampleList, TensorMeta};
use crate::tensor::{try_vec, Error, Footprint, Layout, Mismatch, MoveSide, Result};

/// The addresses of a destination, from its first byte to behind its last one.
struct Span {
    start: u64,
    end: u64,
    /// The largest end of this span and of those before it.
    reach: u64,
    pair: usize,
}

/// Checks that each destination is disjoint from all others, and from all sources but its own, if that begins at the same address
/// and `is_same` says of its pair that both are alike. Elements of one destination that share memory are not found.
///
/// # Errors
/// [`Error::Overlap`] names both pairs; [`Error::OutOfMemory`].
pub(super) fn check_pairs_disjoint(
    dsts: &SampleList<'_>,
    srcs: &SampleList<'_>,
    is_same: impl Fn(usize) -> bool + Copy,
) -> Result<()> {
    if dsts.metas().iter().all(|meta| meta.layout.numel() == 0) {
        return Ok(());
    }
    let mut spans = try_vec(dsts.len())?;
    spans.extend(
        each_span(dsts)
            .enumerate()
            .filter(|(_, span)| !span.is_empty())
            .map(|(pair, Range { start, end })| Span { start, end, reach: end, pair }),
    );
    // Rows of a table are in order already.
    if !spans.is_sorted_by_key(|span| span.start) {
        spans.sort_unstable_by_key(|span| (span.start, span.pair));
    }
    let (mut reach, mut is_disjoint) = (0, true);
    for span in &mut spans {
        is_disjoint &= reach <= span.start;
        reach = reach.max(span.end);
        span.reach = reach;
    }
    if !is_disjoint && !is_table_disjoint(dsts) {
        check_destinations(dsts, &spans)?;
    }
    let Some(first) = spans.first().map(|span| span.start) else { return Ok(()) };
    let mut circles = Circles::default();
    for (source, read) in each_span(srcs).enumerate() {
        // Sources that are elsewhere take two comparisons.
        if read.is_empty() || read.end <= first || reach <= read.start {
            continue;
        }
        // The source is disjoint from all other destinations, as its own destination is.
        if is_same(source) && dsts.address(source) == srcs.address(source) {
            continue;
        }
        let source_bytes = footprint(srcs, source);
        let begun = spans.partition_point(|span| span.start < read.end);
        let mut may_share =
            spans[..begun].iter().rev().take_while(|span| span.reach > read.start).map(|s| s.pair);
        let is_beside_many = may_share.clone().nth(MANY).is_some();
        if is_beside_many
            && circles.are_disjoint(&source_bytes, &read, &spans, (dsts, srcs), is_same)
        {
            continue;
        }
        let shares = |&pair: &usize| footprint(dsts, pair).shares_with(&source_bytes);
        if let Some(pair) = may_share.by_ref().filter(shares).min() {
            return Err(not_disjoint(pair, MoveSide::Source, source));
        }
    }
    Ok(())
}

/// The largest number of overlapping spans that are compared one by one; more are looked up together.
/// Also the largest number of clusters whose circles one source is looked up on.
const MANY: usize = 16;

/// Destinations on the circles on which sources between them may be disjoint from them, made as they are asked for: of all together, and of
/// each cluster by itself, since tables of different widths have no circle in common.
#[derive(Default)]
struct Circles {
    of_all: Option<Vec<Circle>>,
    /// The range of spans of each cluster, and its circles once they are made.
    clusters: Vec<(Range<usize>, Option<Vec<Circle>>)>,
}

impl Circles {
    /// Whether a source is disjoint from all destinations by circles; if not, it may be disjoint all the same. `source`, `read`: the
    /// source's bytes and their span.
    #[cold]
    fn are_disjoint(
        &mut self,
        source: &Footprint<'_>,
        read: &Range<u64>,
        spans: &[Span],
        (dsts, srcs): (&SampleList<'_>, &SampleList<'_>),
        is_same: impl Fn(usize) -> bool,
    ) -> bool {
        let of_all = self.of_all.get_or_insert_with(|| circles_of(dsts, srcs, spans, &is_same));
        if of_all.iter().any(|circle| circle.is_disjoint(source)) {
            return true;
        }
        if self.clusters.is_empty() {
            self.clusters = clusters_of(spans).map(|spans| (spans, None)).collect();
        }
        let begins = |range: &Range<usize>| spans[range.start].start;
        let reach = |range: &Range<usize>| spans[range.end - 1].reach;
        let first = self.clusters.partition_point(|(range, _)| reach(range) <= read.start);
        let beside = &mut self.clusters[first..];
        let count = beside.partition_point(|(range, _)| begins(range) < read.end);
        count <= MANY
            && beside[..count].iter_mut().all(|(range, circles)| {
                let within = &spans[range.clone()];
                let circles =
                    circles.get_or_insert_with(|| circles_of(dsts, srcs, within, &is_same));
                circles.iter().any(|circle| circle.is_disjoint(source))
            })
    }
}

/// Runs of spans, by position, of which each begins before those in front of it have ended; a span by itself is one, too.
fn clusters_of(spans: &[Span]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut begin = 0;
    std::iter::from_fn(move || {
        let rest = spans.get(begin..).filter(|rest| !rest.is_empty())?;
        let goes_on = rest.windows(2).take_while(|pair| pair[1].start < pair[0].reach);
        let cluster = begin..begin + 1 + goes_on.count();
        begin = cluster.end;
        Some(cluster)
    })
}

/// The circles of the destinations of these spans; steps of sources that are read between them count too. There is at
/// least one span.
fn circles_of(
    dsts: &SampleList<'_>,
    srcs: &SampleList<'_>,
    spans: &[Span],
    is_same: impl Fn(usize) -> bool,
) -> Vec<Circle> {
    let (first, reach) = (spans[0].start, spans[spans.len() - 1].reach);
    let written: Vec<_> =
        spans.iter().map(|span| (span.pair, footprint(dsts, span.pair))).collect();
    let is_between = |(source, read): &(usize, Range<u64>)| {
        let is_own = is_same(*source) && dsts.address(*source) == srcs.address(*source);
        !read.is_empty() && read.end > first && read.start < reach && !is_own
    };
    let between = each_span(srcs).enumerate().filter(is_between);
    let read: Vec<_> = between.map(|(source, _)| footprint(srcs, source)).collect();
    Circle::each(&written, &read).collect()
}

/// Whether the list keeps destinations as rows of a table, and together they are one tensor whose elements have places of their
/// own. If not, they may be disjoint all the same; a list with an address for each is not looked at.
fn is_table_disjoint(dsts: &SampleList<'_>) -> bool {
    let (Some((first, step)), [meta]) = (dsts.as_table(), dsts.metas()) else { return false };
    let TensorMeta { dtype, layout, .. } = meta;
    let size = dtype.size() as i64;
    let shape: Vec<i64> = [dsts.len() as i64].iter().chain(layout.shape()).copied().collect();
    let strides: Vec<i64> = [step / size].iter().chain(layout.strides()).copied().collect();
    let whole = Layout::try_new(*dtype, &shape, Some(&strides)).ok();
    step % size == 0
        && whole.is_some_and(|whole| !Footprint::new(first, &whole, *dtype).shares_with_itself())
}

/// Checks as [`check_pairs_disjoint`] does, for destinations alone, whose spans overlap: each cluster by itself.
#[cold]
fn check_destinations(dsts: &SampleList<'_>, spans: &[Span]) -> Result<()> {
    let mut clusters = clusters_of(spans).filter(|cluster| cluster.len() > 1);
    clusters.try_for_each(|cluster| check_cluster(dsts, &spans[cluster]))
}

/// Checks that the destinations of one cluster are disjoint, else [`Error::Overlap`]: more than [`MANY`] on
/// circles first, until one shows that all are disjoint or that two share memory; what no circle settles, and fewer, in their order,
/// beside those that have not ended. Aborts on allocation failure.
fn check_cluster(dsts: &SampleList<'_>, spans: &[Span]) -> Result<()> {
    if spans.len() > MANY {
        let written: Vec<_> =
            spans.iter().map(|span| (span.pair, footprint(dsts, span.pair))).collect();
        for circle in Circle::each(&written, &[]) {
            let mut neighbours = circle.neighbours().peekable();
            if neighbours.peek().is_none() {
                return Ok(());
            }
            let share = |&(one, other): &(usize, usize)| {
                footprint(dsts, one).shares_with(&footprint(dsts, other))
            };
            // The start of the circle depends on addresses. The error must not, so the smallest pair is named.
            let pairs = neighbours.filter(share).map(|(a, b)| (a.max(b), a.min(b)));
            if let Some((second, first)) = pairs.min() {
                return Err(not_disjoint(second, MoveSide::Destination, first));
            }
        }
    }
    let mut alive: Vec<&Span> = Vec::new();
    for span in spans {
        alive.retain(|other| other.end > span.start);
        let span_bytes = footprint(dsts, span.pair);
        for other in alive.iter().map(|other| other.pair) {
            if footprint(dsts, other).shares_with(&span_bytes) {
                let (first, second) = (other.min(span.pair), other.max(span.pair));
                return Err(not_disjoint(second, MoveSide::Destination, first));
            }
        }
        alive.push(span);
    }
    Ok(())
}

/// The error of destination `pair`, which overlaps a source or another destination.
fn not_disjoint(pair: usize, side: MoveSide, other: usize) -> Error {
    let expected = format!("memory apart from {side} {other}");
    let got = format!("memory that overlaps {side} {other}");
    Mismatch::new(None, expected, got)
        .into_error(Error::Overlap)
        .at_side(MoveSide::Destination, pair)
}

/// The memory of one sample of a list, for tests of overlap.
fn footprint<'l>(list: &'l SampleList<'_>, index: usize) -> Footprint<'l> {
    let TensorMeta { dtype, layout, .. } = list.meta(index);
    Footprint::new(list.address(index), layout, *dtype)
}

/// The addresses of each sample, from its first byte to behind its last one; empty for samples without elements.
fn each_span<'l>(list: &'l SampleList<'_>) -> impl Iterator<Item = Range<u64>> + 'l {
    let span = |meta: &TensorMeta| meta.layout.byte_span(meta.dtype);
    let (metas, ids) = (list.metas(), list.meta_ids());
    let spans: Vec<Range<i64>> = metas.iter().map(span).collect();
    (0..list.len()).map(move |index| {
        let Range { start, end } = &spans[ids.map_or(0, |ids| ids[index] as usize)];
        let address = list.address(index).addr() as u64;
        address.saturating_add_signed(*start)..address.saturating_add_signed(*end)
    })
}
