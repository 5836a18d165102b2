//! Batches of worker processes in memory that is used again: `windrow::workers` with torch's tensors. Linux alone has it.

pub(crate) mod locked;
pub(crate) mod parcel;
pub(crate) mod receive;

use std::os::fd::AsRawFd;

use pyo3::exceptions::{PyMemoryError, PyOSError};
use pyo3::prelude::*;
use windrow::bindings::reap_copies;
use windrow::workers::{self, Refusal};
use windrow::{DType, Layout, Tensor};

use crate::ground::errors::OrPyErr;
use crate::ground::tensor::PyTensor;

/// Makes the pool of this process, which has none yet, for at most `limit` bytes; or takes over,
/// whatever the limit, one of the parent's whose worker has ended. OSError: the system refuses.
#[pyfunction]
pub(crate) fn _start_pool(limit: u64) -> PyResult<()> {
    workers::start(limit).map_err(PyOSError::new_err)
}

#[pyfunction]
pub(crate) fn _has_pool() -> bool {
    workers::is_started()
}

/// Ends the pool of this process: what was sent and not read is lost. `is_left`: its memory is kept for a worker that the reader
/// forks.
#[pyfunction]
pub(crate) fn _close_pool(py: Python<'_>, is_left: bool) {
    py.detach(|| workers::close(is_left));
}

/// Gives back the memory of workers that have ended, but for what is in use.
#[pyfunction]
pub(crate) fn _empty_pools(py: Python<'_>) {
    py.detach(|| {
        reap_copies();
        workers::sweep();
    });
}

/// The descriptor of the pool of this process, which the pool keeps and closes. None: there is no
/// pool, a reader has mapped it, or it was taken over from another worker.
#[pyfunction]
pub(crate) fn _pool_file() -> Option<i32> {
    workers::file().map(|file| file.as_raw_fd())
}

/// Tensors of these dtypes and shapes in the pool, not initialised. None: there is no room below the limit of bytes, or windrow
/// has no such dtype. MemoryError: the system has no memory.
#[pyfunction]
pub(crate) fn _allocate_in_pool(
    py: Python<'_>,
    outputs: Vec<(String, Vec<i64>)>,
    limit: u64,
) -> PyResult<Option<Vec<PyTensor>>> {
    let mut layouts = Vec::with_capacity(outputs.len());
    for (name, shape) in outputs {
        let Some(dtype) = DType::from_name(&name) else { return Ok(None) };
        layouts.push((dtype, Layout::compact(dtype, &shape).or_py_err(py)?));
    }
    let tensors = allocated(py, &layouts, limit)?;
    Ok(tensors.map(|tensors| tensors.into_iter().map(PyTensor::from).collect()))
}

/// Tensors of these layouts in the pool, not initialised; `None` if there is no room below `limit` bytes, MemoryError if the
/// system has no memory.
fn allocated(
    py: Python<'_>,
    outputs: &[(DType, Layout)],
    limit: u64,
) -> PyResult<Option<Vec<Tensor>>> {
    match py.detach(|| workers::allocate(outputs, limit)) {
        Ok(tensors) => Ok(Some(tensors)),
        Err(Refusal::Limit) => Ok(None),
        Err(Refusal::Memory(error)) => Err(PyMemoryError::new_err(format!(
            "no memory for a batch of a worker process: {error}"
        ))),
    }
}
