//! [`Circle`]: which bytes of a period many tensors reach, sorted, so that one that may be among them is looked up.

use crate::tensor::Footprint;

/// The places of tensors whose long steps are multiples of one period: columns of a table are as many arcs of one circle.
///
/// All addresses that the long steps of a tensor reach have the same remainder modulo the period: see
/// [`Footprint`]. So tensors are disjoint if their arcs are.
///
/// ```text
/// memory   aabbbc..aabbbc..aabbbc..     rows of 8 bytes, of which a, b and c are columns
/// circle   aabbbc..                     period 8, arcs 0..2, 2..5, 5..6
/// ```
#[derive(Debug)]
pub(super) struct Circle {
    /// Bytes around the circle.
    period: u64,
    /// The least step, in bytes, that counts as long.
    long: u64,
    /// The arcs in the order of their starts.
    arcs: Vec<Arc>,
    /// The farthest end among each arc and those before it.
    ends: Vec<u64>,
}

/// The bytes that a tensor reaches by its short steps.
#[derive(Clone, Copy, Debug)]
struct Arc {
    start: u64,
    reach: u64,
    /// The number that came with the tensor.
    number: usize,
}

/// The number of step lengths that are tried as the smallest long one.
const MOST_LENGTHS: usize = 8;

impl Circle {
    /// The circles that tensors may be disjoint on, by the least step that counts as long. `others`: whose steps count too.
    pub fn each<'f, 'l: 'f>(
        tensors: &'f [(usize, Footprint<'l>)],
        others: &'f [Footprint<'l>],
    ) -> impl Iterator<Item = Circle> + 'f {
        let mut lengths: Vec<u64> = Vec::new();
        for of in tensors.iter().map(|(_, of)| of).chain(others) {
            for (bytes, _) in of.steps() {
                if let Err(at) = lengths.binary_search(&bytes) {
                    if lengths.len() < MOST_LENGTHS {
                        lengths.insert(at, bytes);
                    }
                }
            }
        }
        lengths.into_iter().map(move |long| Circle::new(tensors, others, long))
    }

    /// The circle on which steps of `long` bytes and more are long.
    fn new(tensors: &[(usize, Footprint<'_>)], others: &[Footprint<'_>], long: u64) -> Circle {
        let all = tensors.iter().map(|(_, of)| of).chain(others);
        let period = all.fold(0, |period, of| of.period(long, period));
        let arc = |(number, of): &(usize, Footprint<'_>)| Arc {
            start: of.rest(period),
            reach: of.reach_below(long),
            number: *number,
        };
        let mut arcs: Vec<Arc> = tensors.iter().map(arc).collect();
        arcs.sort_unstable_by_key(|arc| (arc.start, arc.number));
        let mut farthest = 0;
        let end = |arc: &Arc| {
            farthest = arc.start.saturating_add(arc.reach).max(farthest);
            farthest
        };
        let ends = arcs.iter().map(end).collect();
        Circle { period, long, arcs, ends }
    }

    /// Pairs of neighbours, by their numbers, whose arcs are not disjoint; none if all arcs are disjoint.
    pub fn neighbours(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let count = if self.arcs.len() > 1 { self.arcs.len() } else { 0 };
        (0..count).filter_map(move |at| {
            let (one, next) = (self.arcs[at], self.arcs[(at + 1) % count]);
            let ahead = if at + 1 < count { next.start } else { next.start + self.period };
            (one.start.saturating_add(one.reach) > ahead).then_some((one.number, next.number))
        })
    }

    /// Whether a tensor's arc is disjoint from all that are here, which may overlap each other; if not, the tensor may be disjoint from
    /// theirs all the same. Its steps were counted by [`Circle::each`], which is not checked.
    pub fn is_disjoint(&self, of: &Footprint<'_>) -> bool {
        let start = of.rest(self.period);
        let (end, again) = (start.saturating_add(of.reach_below(self.long)), start + self.period);
        let next = self.arcs.partition_point(|arc| arc.start < start);
        let begins_within = |arc: Option<&Arc>, ahead: u64| {
            arc.is_some_and(|arc| arc.start.saturating_add(ahead) < end)
        };
        let reached = |count: usize| count.checked_sub(1).map_or(0, |last| self.ends[last]);
        // Either may go over the beginning of the circle.
        !begins_within(self.arcs.get(next), 0)
            && !begins_within(self.arcs.first(), self.period)
            && reached(next) <= start
            && reached(self.arcs.len()) <= again
    }
}
