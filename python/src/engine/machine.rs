//! Facts about the machine: devices, the CUDA build, observers.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::bindings::{calibration_file, PageCopies};
use windrow::engine::StreamingStores;
use windrow::Device;

use crate::engine::default::default_engine;
use crate::ground::errors::OrPyErr;
use crate::ground::logging;

/// The observers of calls: ``logging`` (a bool, see `set_logging`) and ``nvtx`` (None if ranges go to
/// a profiler, else the reason why not).
#[pyfunction]
#[pyo3(name = "_observers")]
pub(crate) fn observers(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("logging", logging::is_on())?;
    dict.set_item("nvtx", py.detach(windrow::observe::nvtx_state).err())?;
    Ok(dict)
}

/// Whether there is a CUDA device to assemble batches on. Starts the driver: from then on, worker
/// processes that use it must be spawned, not forked.
#[pyfunction]
pub(crate) fn cuda_available(py: Python<'_>) -> bool {
    py.detach(|| windrow::device::devices().is_ok_and(|devices| !devices.is_empty()))
}

/// Whether kernels of a device read page-locked memory as the host has it; under confidential computing they do not, and what lies
/// there is copied. Starts the driver. CudaUnavailable or CudaError: the device cannot be used.
#[pyfunction]
pub(crate) fn _reads_page_locked(py: Python<'_>, ordinal: u32) -> PyResult<bool> {
    py.detach(|| default_engine().reads_mapped(ordinal)).or_py_err(py)
}

/// Lets CUDA calls that would end another thread's capture be made on this thread from now on, by whatever library: they do not
/// touch what is captured. Does nothing without a driver.
#[pyfunction]
pub(crate) fn _relax_captures(py: Python<'_>) {
    py.detach(windrow::bindings::relax_captures);
}

/// The values of ``device=`` on this machine, a list of dicts with ``device`` (``"cpu"``; with a GPU also ``"pinned"`` and
/// ``"cuda:0"``) and ``name``; for CUDA devices also ``index``, ``compute_capability`` (a tuple of two ints), ``multiprocessors``
/// and ``total_memory`` (bytes). Starts the driver, as `cuda_available` does.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let entry = |device: Device, name: &str| -> PyResult<Bound<'_, PyDict>> {
        let entry = PyDict::new(py);
        entry.set_item("device", device.to_string())?;
        entry.set_item("name", name)?;
        Ok(entry)
    };
    let found = py.detach(windrow::device::devices).unwrap_or_default();
    let mut all = vec![entry(Device::Cpu, "host memory")?];
    if !found.is_empty() {
        all.push(entry(Device::Pinned, "page-locked host memory")?);
    }
    for (index, info) in found.iter().enumerate() {
        let entry = entry(info.device, &info.name)?;
        entry.set_item("index", index)?;
        entry.set_item("compute_capability", info.compute_capability)?;
        entry.set_item("multiprocessors", info.num_multiprocessors)?;
        entry.set_item("total_memory", info.total_bytes)?;
        all.push(entry);
    }
    Ok(all)
}

/// Returns which outputs are written around the caches, as a text for `Engine`, and the source of that choice.
#[pyfunction]
pub(crate) fn _streaming_stores() -> (String, String) {
    let chosen = StreamingStores::chosen();
    (chosen.stores.to_string(), chosen.source.clone())
}

/// The file that ``python -m windrow calibrate`` writes of the processor, or of a device and driver of this name; it need not
/// exist. None: the user has no cache folder.
#[pyfunction]
#[pyo3(signature = (name = None))]
pub(crate) fn _calibration_file(name: Option<&str>) -> Option<PathBuf> {
    name.map_or_else(StreamingStores::file, calibration_file)
}

/// Returns from which size in bytes on page-locked pairs go to a device by its copy engine, by their number; None: it
/// was not measured.
#[pyfunction]
pub(crate) fn _page_copies(ordinal: u32) -> Option<String> {
    PageCopies::for_device(ordinal).map(|copies| copies.to_string())
}

/// Has all pairs of a device go by this text, or by None as if it had not been measured. ValueError for another text.
#[pyfunction]
#[pyo3(signature = (ordinal, text))]
pub(crate) fn _set_page_copies(py: Python<'_>, ordinal: u32, text: Option<&str>) -> PyResult<()> {
    let copies = text.map(str::parse).transpose().or_py_err(py)?;
    PageCopies::set(ordinal, copies);
    Ok(())
}

/// ``toolkit``, ``targets`` of the kernels and ``driver`` (newest CUDA version it supports).
///
/// Raises:
///     CudaUnavailable: with the reason and the cure.
#[pyfunction]
#[pyo3(name = "_cuda_build")]
pub(crate) fn cuda_build(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let build = py.detach(windrow::device::cuda_build).or_py_err(py)?;
    let dict = PyDict::new(py);
    set_fields!(dict, build, [toolkit, targets, driver]);
    Ok(dict)
}
