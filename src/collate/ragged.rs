//! [`Ragged`]: the numbers beside the values of a ragged batch.

use crate::tensor::{DType, Error, Result};

/// The options of a ragged batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ragged {
    pub(crate) offsets: DType,
    pub(crate) batch_index: bool,
}

impl Default for Ragged {
    fn default() -> Ragged {
        Ragged { offsets: DType::I64, batch_index: false }
    }
}

impl Ragged {
    /// A ragged batch with offsets of int64 and no batch index.
    ///
    /// ```
    /// use windrow::{assemble, Collate, DType, Ragged};
    /// let ragged = Ragged::new().offsets(DType::I32);
    /// let batch = assemble(&[vec![1, 2], vec![3]], &Collate::ragged(ragged))?;
    /// assert_eq!(batch.offsets().unwrap().as_slice::<i32>()?, [0, 2, 3]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn new() -> Ragged {
        Ragged::default()
    }

    /// Sets the dtype of the offsets: int64 or int32. Planning fails with any other, or if a boundary does not fit.
    #[must_use]
    pub fn offsets(mut self, dtype: DType) -> Ragged {
        self.offsets = dtype;
        self
    }

    /// Adds the sample index of each row, int64 `[sum]`.
    #[must_use]
    pub fn batch_index(mut self) -> Ragged {
        self.batch_index = true;
        self
    }

    /// Checks the dtype of the offsets: [`Error::Argument`] for another than int32 and int64.
    pub(crate) fn check(&self) -> Result<()> {
        match self.offsets {
            DType::I32 | DType::I64 => Ok(()),
            other => Err(Error::argument(format!("offsets are int32 or int64, not {other}"))),
        }
    }
}
