//! [`Places`]: where tensors are that share one allocation.

/// Places in one allocation, one after the other, each at a multiple of the alignment.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    align: u64,
    end: u64,
}

impl Places {
    /// An empty layout; `align` is in bytes, at least 1, and need not be a power of two.
    pub fn new(align: u64) -> Places {
        Places { align, end: 0 }
    }

    /// Adds a tensor of `bytes` bytes and returns its first byte; `None`, and no tensor added, beyond 63 bits.
    pub fn place(&mut self, bytes: u64) -> Option<u64> {
        let begin = self.aligned_end()?;
        let end = begin.checked_add(bytes).filter(|&end| i64::try_from(end).is_ok())?;
        self.end = end;
        Some(begin)
    }

    /// The end of the last tensor, in bytes; 0 without one.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The start of the next tensor; `None` beyond 63 bits.
    pub fn aligned_end(&self) -> Option<u64> {
        let end = self.end.checked_next_multiple_of(self.align)?;
        i64::try_from(end).is_ok().then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_begin_at_multiples() {
        let mut places = Places::new(64);
        assert_eq!([3, 0, 64, 1].map(|bytes| places.place(bytes)), [0, 64, 64, 128].map(Some));
        assert_eq!((places.end(), places.aligned_end()), (129, Some(192)));
        let mut places = Places::new(1);
        assert_eq!([3, 0, 2].map(|bytes| places.place(bytes)), [0, 3, 3].map(Some));
    }

    #[test]
    fn what_is_beyond_63_bits_has_no_place() {
        let mut places = Places::new(64);
        let most = i64::MAX as u64;
        assert_eq!(places.place(most + 1), None);
        assert_eq!(
            (places.place(most), places.aligned_end(), places.place(0)),
            (Some(0), None, None)
        );
        assert_eq!(Places::new(0).place(1), None);
    }
}
