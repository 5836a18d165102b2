//! [`ReadOnly`]: which samples of a list must not be written to.

use crate::tensor::{try_vec, Result};

/// Marks of samples that must not be written to. In most lists no sample is marked, or all are: then `each` is empty.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadOnly {
    /// Whether each of the first samples is marked.
    each: Vec<bool>,
    /// Whether the samples behind these are.
    rest: bool,
}

impl ReadOnly {
    /// Marks of all samples, those that follow too.
    pub fn all() -> ReadOnly {
        ReadOnly::all_if(true)
    }

    /// All samples, those that follow too, if `are`; else none.
    pub fn all_if(are: bool) -> ReadOnly {
        ReadOnly { each: Vec::new(), rest: are }
    }

    /// The position of the first marked sample.
    pub fn first(&self) -> Option<usize> {
        self.each.iter().position(|&is| is).or(self.rest.then_some(self.each.len()))
    }

    /// Whether the sample at this position is marked.
    pub fn has(&self, index: usize) -> bool {
        self.each.get(index).copied().unwrap_or(self.rest)
    }

    /// Whether all positions below `len` are among them; for a `len` of 0, whether position 0 is.
    pub fn has_all(&self, len: usize) -> bool {
        let len = len.max(1);
        self.each.iter().take(len).all(|&is| is) && (self.rest || self.each.len() >= len)
    }

    /// Sets or removes the mark of one sample.
    pub fn set(&mut self, index: usize, is: bool) {
        if self.has(index) != is {
            self.each.resize(self.each.len().max(index + 1), self.rest);
            self.each[index] = is;
        }
    }

    /// Keeps the marks of the first `len` samples alone.
    pub fn truncate(&mut self, len: usize) {
        match std::mem::take(&mut self.rest) {
            true => self.each.resize(len, true),
            false => self.each.truncate(len),
        }
    }

    /// Adds those of the first `count` samples of another list, behind the `len` of this one; a mark of all samples that follow
    /// ends there.
    pub fn extend(&mut self, len: usize, other: &ReadOnly, count: usize) {
        self.truncate(len);
        if other.first().is_some() {
            self.each.resize(len, false);
            self.each.extend((0..count).map(|index| other.has(index)));
        }
    }

    /// The marks of the samples at these valid positions of `len`; negative ones count from the end.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn take(&self, indices: &[i64], len: usize) -> Result<ReadOnly> {
        if self.each.is_empty() || self.has_all(usize::MAX) {
            return Ok(self.clone());
        }
        let mut each = try_vec(indices.len())?;
        each.extend(indices.iter().map(|&index| {
            let position = if index < 0 { index + len as i64 } else { index };
            self.has(position as usize)
        }));
        Ok(ReadOnly { each, rest: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_those_of_single_positions() {
        let mut seed = 1u64;
        let mut below = |end: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % end
        };
        for _ in 0..500 {
            let are = below(2) == 0;
            let (mut marks, mut each) = (ReadOnly::all_if(are), vec![are; 20]);
            for _ in 0..30 {
                let (index, is) = (below(20) as usize, below(2) == 0);
                marks.set(index, is);
                each[index] = is;
                assert!((0..20).all(|index| marks.has(index) == each[index]), "{marks:?} {each:?}");
                let first = each.iter().position(|&is| is).or(are.then_some(20));
                assert_eq!(marks.first(), first);
                assert_eq!(marks.has_all(20), each.iter().all(|&is| is));
            }
            let indices: Vec<i64> = (0..30).map(|_| below(40) as i64 - 20).collect();
            let taken = marks.take(&indices, 20).unwrap();
            for (at, &index) in indices.iter().enumerate() {
                assert_eq!(taken.has(at), each[index.rem_euclid(20) as usize]);
            }
            let mut joined = marks.clone();
            joined.extend(20, &taken, 30);
            joined.extend(50, &ReadOnly::all(), 2);
            joined.extend(52, &ReadOnly::default(), 3);
            assert!((0..20).all(|index| joined.has(index) == marks.has(index)));
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
