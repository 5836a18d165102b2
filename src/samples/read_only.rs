//! [`ReadOnly`]: which samples of a list must not be written to.

use std::ops::Range;

use crate::tensor::{try_vec, Result};

/// Positions of samples that must not be written to, neighbours as one range, in order. In most lists there are none, or all are.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadOnly(Vec<Range<usize>>);

impl ReadOnly {
    /// Marks of all samples, those that follow too.
    pub fn all() -> ReadOnly {
        ReadOnly(std::iter::once(0..usize::MAX).collect())
    }

    /// All samples, those that follow too, if `are`; else none.
    pub fn all_if(are: bool) -> ReadOnly {
        if are {
            ReadOnly::all()
        } else {
            ReadOnly::default()
        }
    }

    /// The position of the first marked sample.
    pub fn first(&self) -> Option<usize> {
        self.0.first().map(|range| range.start)
    }

    /// Whether the sample at this position is marked.
    pub fn has(&self, index: usize) -> bool {
        let at = self.0.partition_point(|range| range.end <= index);
        self.0.get(at).is_some_and(|range| range.start <= index)
    }

    /// Whether all positions below `len` are among them; for a `len` of 0, whether position 0 is.
    pub fn has_all(&self, len: usize) -> bool {
        self.0.first().is_some_and(|range| range.start == 0 && range.end >= len)
    }

    /// Marks positions, none of which is before a marked one.
    pub fn push(&mut self, added: Range<usize>) {
        match self.0.last_mut() {
            Some(last) if last.end >= added.start => last.end = last.end.max(added.end),
            _ if added.is_empty() => {}
            _ => self.0.push(added),
        }
    }

    /// Sets or removes the mark of one sample.
    pub fn set(&mut self, index: usize, is: bool) {
        if self.has(index) == is {
            return;
        }
        let at = self.0.partition_point(|range| range.end <= index);
        if is {
            let follows = at > 0 && self.0[at - 1].end == index;
            let leads = self.0.get(at).is_some_and(|range| range.start == index + 1);
            match (follows, leads) {
                (true, true) => self.0[at - 1].end = self.0.remove(at).end,
                (true, false) => self.0[at - 1].end = index + 1,
                (false, true) => self.0[at].start = index,
                (false, false) => self.0.insert(at, index..index + 1),
            }
            return;
        }
        let rest = index + 1..self.0[at].end;
        self.0[at].end = index;
        if !rest.is_empty() {
            self.0.insert(at + 1, rest);
        }
        if self.0[at].is_empty() {
            self.0.remove(at);
        }
    }

    /// Keeps the flags of the first `len` samples alone.
    pub fn truncate(&mut self, len: usize) {
        self.0.retain_mut(|range| {
            range.end = range.end.min(len);
            range.start < range.end
        });
    }

    /// Adds those of the first `count` samples of another list, behind the `len` of this one; a mark of all samples that follow
    /// ends there.
    pub fn extend(&mut self, len: usize, other: &ReadOnly, count: usize) {
        if other.0.is_empty() && self.0.last().is_none_or(|range| range.end <= len) {
            return;
        }
        self.truncate(len);
        let mut others = other.clone();
        others.truncate(count);
        others.0.iter().for_each(|range| self.push(len + range.start..len + range.end));
    }

    /// The flags of the samples at these valid positions of `len`; negative ones count from the end.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn take(&self, indices: &[i64], len: usize) -> Result<ReadOnly> {
        if self.0.is_empty() || self.has_all(usize::MAX) {
            return Ok(self.clone());
        }
        if self.has_all(len) {
            let mut taken = ReadOnly(try_vec(1)?);
            taken.push(0..indices.len());
            return Ok(taken);
        }
        let mut taken = ReadOnly(try_vec(indices.len().min(self.0.len()))?);
        for (at, &index) in indices.iter().enumerate() {
            let position = if index < 0 { index + len as i64 } else { index };
            if self.has(position as usize) {
                taken.push(at..at + 1);
            }
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_single_positions() {
        let mut seed = 1u64;
        let mut below = |end: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % end
        };
        for _ in 0..500 {
            let (mut ranges, mut each) = (ReadOnly::default(), Vec::new());
            for index in 0..20 {
                let is = below(2) == 0;
                each.push(is);
                if is {
                    ranges.push(index..index + 1);
                }
            }
            for _ in 0..10 {
                let (index, is) = (below(20) as usize, below(2) == 0);
                ranges.set(index, is);
                each[index] = is;
                let pairs = || ranges.0.windows(2).all(|pair| pair[0].end < pair[1].start);
                assert!(pairs() && ranges.0.iter().all(|range| !range.is_empty()), "{ranges:?}");
                assert!(
                    (0..20).all(|index| ranges.has(index) == each[index]),
                    "{ranges:?} {each:?}"
                );
                assert_eq!(ranges.first(), each.iter().position(|&is| is));
                assert_eq!(ranges.has_all(20), each.iter().all(|&is| is));
            }
            let indices: Vec<i64> = (0..30).map(|_| below(40) as i64 - 20).collect();
            let taken = ranges.take(&indices, 20).unwrap();
            for (at, &index) in indices.iter().enumerate() {
                assert_eq!(taken.has(at), each[index.rem_euclid(20) as usize]);
            }
            let mut joined = ranges.clone();
            joined.extend(20, &taken, 30);
            joined.extend(50, &ReadOnly::all(), 2);
            joined.extend(52, &ReadOnly::default(), 3);
            assert!((0..20).all(|index| joined.has(index) == ranges.has(index)));
            assert!((0..30).all(|at| joined.has(20 + at) == taken.has(at)));
            assert!((50..55).all(|index| joined.has(index) == (index < 52)));
            joined.truncate(21);
            assert!(!joined.has(21));
        }
        let mut all = ReadOnly::all();
        assert!(all.has_all(9) && all.has(1000) && ReadOnly::all_if(false).first().is_none());
        all.extend(5, &ReadOnly::default(), 5);
        assert!(all.has(4) && !all.has(5));
    }
}
