//! Lists whose allocation can fail.

use crate::tensor::error::{Error, Result};

/// An empty vector with capacity for `count` entries; [`Error::OutOfMemory`] without memory.
pub fn try_vec<T>(count: usize) -> Result<Vec<T>> {
    let mut entries = Vec::new();
    entries.try_reserve_exact(count).map_err(|_| out_of_memory::<T>(count))?;
    Ok(entries)
}

/// The [`Error::OutOfMemory`] for `count` entries.
#[cold]
pub(crate) fn out_of_memory<T>(count: usize) -> Error {
    Error::OutOfMemory { bytes: (count as u64).saturating_mul(size_of::<T>() as u64) }
}
