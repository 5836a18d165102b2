//! Raises the indices of joined graphs, for `windrow._pyg`.

use pyo3::prelude::*;
use windrow::bindings::add_per_sample;

use crate::ground::errors::to_py_err;
use crate::import::importer::Reading;
use crate::import::integers::integers;
use crate::import::tensor::tensor_of;

/// Adds to each sample's part of a batch a number of its own, in place, on the host.
///
/// Args:
///     batch: row-major, of integers or real numbers, in memory that nothing else uses meanwhile.
///     offsets: where the samples begin along `dim`, and where the last one ends.
///     starts: one for each sample, or one for each block before `dim`, sample by sample.
///     path: of the leaf, for errors.
///
/// Raises:
///     DTypeError: a sum that the dtype does not hold, or a dtype that has no sums.
///     LayoutError: memory that is read-only or has gaps. DeviceError: memory of a device.
///     ValueError: `offsets` or `starts` that do not fit the batch.
///
/// The batch is then as it was.
#[pyfunction]
pub(crate) fn _add_per_sample(
    batch: &Bound<'_, PyAny>,
    offsets: &Bound<'_, PyAny>,
    starts: &Bound<'_, PyAny>,
    dim: usize,
    path: &str,
) -> PyResult<()> {
    let py = batch.py();
    let batch = tensor_of(batch, "batch", Reading { path, rows: false, ..Reading::default() })?;
    let (offsets, _) = integers(offsets, "offsets", 1)?;
    let (starts, _) = integers(starts, "starts", 1)?;
    // SAFETY: a batch that its caller has just made; nothing else refers to it yet.
    #[allow(unsafe_code)]
    unsafe { add_per_sample(&batch, dim, &offsets, &starts) }
        .map_err(|error| to_py_err(py, &error.at_path(path)))
}
