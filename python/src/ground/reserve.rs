//! Lists whose growth can fail: a lack of memory is a MemoryError.

use std::collections::TryReserveError;

use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
/// `try_vec` with the error of the library.
pub(crate) use windrow::bindings::try_vec as space_for;

/// An empty list with capacity for `count` items.
pub(crate) fn try_vec<T>(count: usize) -> PyResult<Vec<T>> {
    let mut items = Vec::new();
    items.try_reserve_exact(count).map_err(|_| {
        PyMemoryError::new_err(format!("could not allocate a list of {count} entries"))
    })?;
    Ok(items)
}

/// Appends to a list that grows with the samples; MemoryError where it cannot.
#[inline]
pub(crate) fn push_to<T>(items: &mut Vec<T>, item: T) -> PyResult<()> {
    items.try_reserve(1).map_err(out_of_memory)?;
    items.push(item);
    Ok(())
}

/// The MemoryError for a list that cannot grow.
#[cold]
pub(crate) fn out_of_memory(_: TryReserveError) -> PyErr {
    PyMemoryError::new_err("could not allocate a longer list")
}

/// MemoryError unless there are 4 KiB for a few small allocations that follow: one that fails ends the process.
pub(crate) fn check_small_memory() -> PyResult<()> {
    // The compiler would leave the allocation out otherwise.
    std::hint::black_box(try_vec::<u8>(4 << 10)?);
    Ok(())
}
