//! [`Offsets`]: where each sample of a ragged batch begins.

use std::sync::Arc;

use crate::tensor::error::{Error, Result};
use crate::tensor::reserve::try_vec;

/// `N + 1` boundaries for `N` samples: the first is 0 and none is smaller than the one before.
///
/// ```text
/// lengths      3     1     2
/// values     a a a | b | c c
/// offsets    0     3   4    6
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offsets(Arc<[i64]>);

impl Offsets {
    /// Checks boundaries made elsewhere.
    ///
    /// # Errors
    /// [`Error::Argument`] if they are empty, do not begin at 0 or decrease.
    ///
    /// ```
    /// use windrow::tensor::Offsets;
    /// assert_eq!(Offsets::try_new(vec![0, 2, 5])?.lengths().collect::<Vec<_>>(), [2, 3]);
    /// assert!(Offsets::try_new(vec![0, 2, 1]).is_err());
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn try_new(boundaries: Vec<i64>) -> Result<Offsets> {
        if boundaries.first() != Some(&0) || boundaries.windows(2).any(|pair| pair[1] < pair[0]) {
            return Err(Error::argument("offsets must begin at 0 and never decrease".to_owned()));
        }
        Ok(Offsets(boundaries.into()))
    }

    /// Adds up lengths, each at least 0.
    ///
    /// # Errors
    /// [`Error::Argument`] for a negative length, [`Error::TooLarge`] when the sum leaves 64 bits,
    /// [`Error::OutOfMemory`] if there is no memory for the lower bound of `size_hint`; memory for more is not checked.
    ///
    /// ```
    /// let offsets = windrow::tensor::Offsets::from_lengths([3, 1, 2])?;
    /// assert_eq!(offsets.as_slice(), [0, 3, 4, 6]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn from_lengths(lengths: impl IntoIterator<Item = i64>) -> Result<Offsets> {
        let lengths = lengths.into_iter();
        let count = lengths.size_hint().0.saturating_add(1);
        let mut boundaries = try_vec(count)?;
        let mut total = 0i64;
        boundaries.push(0);
        for length in lengths {
            if length < 0 {
                return Err(Error::argument(format!("negative length {length}")));
            }
            total = total.checked_add(length).ok_or_else(too_long)?;
            boundaries.push(total);
        }
        Ok(Offsets(boundaries.into()))
    }

    /// Makes offsets as [`Offsets::from_lengths`] does. The caller ensures that lengths are at least 0 and that memory
    /// suffices, which is not checked; the sum is.
    pub(crate) fn from_lengths_unchecked(lengths: &[i64]) -> Result<Offsets> {
        let mut boundaries: Arc<[i64]> = std::iter::repeat_n(0, lengths.len() + 1).collect();
        let mut total = 0i64;
        if let Some([_, ends @ ..]) = Arc::get_mut(&mut boundaries) {
            for (end, &length) in ends.iter_mut().zip(lengths) {
                total = total.checked_add(length).ok_or_else(too_long)?;
                *end = total;
            }
        }
        Ok(Offsets(boundaries))
    }

    /// All boundaries, one more than there are samples.
    pub fn as_slice(&self) -> &[i64] {
        &self.0
    }

    /// Number of samples.
    pub fn num_samples(&self) -> usize {
        self.0.len() - 1
    }

    /// The last boundary: the extent of all samples together.
    pub fn total(&self) -> i64 {
        self.0[self.0.len() - 1]
    }

    /// The length of each sample.
    pub fn lengths(&self) -> impl Iterator<Item = i64> + '_ {
        self.0.windows(2).map(|pair| pair[1] - pair[0])
    }

    /// Whether int32 holds them: monotone, they all fit when the last one does.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn check_i32(&self) -> Result<()> {
        let total = self.total();
        match i32::try_from(total) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::too_large(format!(
                "offsets up to {total} do not fit in int32; ask for int64 offsets, or join fewer samples"
            ))),
        }
    }
}

/// The [`Error::TooLarge`] for lengths that add up beyond 64 bits.
fn too_long() -> Error {
    Error::too_large("the lengths add up to more than 64 bits hold".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_boundaries_are_refused() {
        for boundaries in [vec![], vec![1], vec![0, 2, 1]] {
            assert!(Offsets::try_new(boundaries).is_err());
        }
        assert_eq!(Offsets::try_new(vec![0]).unwrap().num_samples(), 0);
        let offsets = Offsets::try_new(vec![0, 3, 3, 7]).unwrap();
        assert_eq!(offsets, Offsets::from_lengths([3, 0, 4]).unwrap());
        assert_eq!(offsets.lengths().collect::<Vec<_>>(), [3, 0, 4]);
        assert_eq!((offsets.num_samples(), offsets.total()), (3, 7));
    }

    #[test]
    fn sums_are_checked() {
        assert!(matches!(Offsets::from_lengths([i64::MAX, 1]), Err(Error::TooLarge(_))));
        assert!(matches!(Offsets::from_lengths([-1]), Err(Error::Argument(_))));
        let endless = Offsets::from_lengths(std::iter::repeat(1));
        assert!(matches!(endless, Err(Error::OutOfMemory { .. })));
        let big = Offsets::from_lengths([i64::from(i32::MAX)]).unwrap();
        big.check_i32().unwrap();
        let bigger = Offsets::from_lengths([i64::from(i32::MAX) + 1]).unwrap();
        assert!(bigger.check_i32().unwrap_err().to_string().contains("int64"));
        assert_eq!(bigger.lengths().collect::<Vec<_>>(), [1 << 31]);
    }
}
