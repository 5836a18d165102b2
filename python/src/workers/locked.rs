//! Copies of batches to devices, from page-locked memory.
#![allow(unsafe_code)] // Streams by their handles.

use pyo3::intern;
use pyo3::prelude::*;
use windrow::bindings::{hold_until_done, lock_refusal, page_locked, try_lock};
use windrow::Stream;

use crate::ground::errors::OrPyErr;
use crate::ground::tensor::PyTensor;
use crate::import::importer::Reading;
use crate::import::tensor::tensor_of;

/// The elements of a torch tensor, of the same memory, page-locked, for a copy to this device and no more. None: the tensor is in
/// no block of a worker process, or its block cannot be page-locked.
#[pyfunction]
pub(crate) fn _page_locked(tensor: &Bound<'_, PyAny>, ordinal: u32) -> PyResult<Option<PyTensor>> {
    let py = tensor.py();
    // The storage's reference to the block survives an exchange of its memory by torch.
    let storage = tensor.call_method0(intern!(py, "untyped_storage"))?;
    if !storage.hasattr(intern!(py, "_windrow_block"))? {
        return Ok(None);
    }
    let read = tensor_of(tensor, "tensor", Reading::OWNED)?;
    Ok(py.detach(|| page_locked(&read, ordinal)).map(PyTensor::from))
}

/// Why memory of worker processes could not be page-locked. None: that was not tried, or not refused.
#[pyfunction]
pub(crate) fn _page_lock_refusal() -> Option<String> {
    lock_refusal()
}

/// Page-locks some memory as that of worker processes is, and lets it go.
///
/// Raises:
///     CudaError, CudaUnavailable: it cannot be page-locked.
#[pyfunction]
pub(crate) fn _try_page_lock(py: Python<'_>, ordinal: u32) -> PyResult<()> {
    py.detach(|| try_lock(ordinal)).or_py_err(py)
}

/// Keeps page-locked tensors, and so their blocks, until the work that is on the stream now has ended. Does not wait. `stream` is
/// a handle of a live stream of this device, which is not checked.
#[pyfunction]
pub(crate) fn _hold_copies(
    py: Python<'_>,
    tensors: Vec<PyRef<'_, PyTensor>>,
    ordinal: u32,
    stream: usize,
) -> PyResult<()> {
    let owners = tensors.iter().map(|tensor| tensor.inner().owner().clone()).collect();
    drop(tensors);
    // SAFETY: the stream of the transfer that calls, which has it.
    let stream = unsafe { Stream::from_raw(stream) };
    py.detach(|| hold_until_done(owners, ordinal, stream)).or_py_err(py)
}
