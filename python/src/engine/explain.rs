//! `Explain`: the plan of a call.

use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use windrow::explain::{Explain, Launch};

/// The plan of a call that is not run. ``str()`` gives a readable account, and `as_dict` the same as data. Each key of `as_dict`
/// is an attribute too.
#[pyclass(name = "Explain", module = "windrow", frozen)]
pub(crate) struct PyExplain {
    pub explain: Explain,
    /// The allocator of outputs on a device, if there are any.
    pub device_memory: Option<&'static str>,
}

#[pymethods]
impl PyExplain {
    /// Keys: path, samples, leaves, bytes_read, bytes_written, padding_bytes, padding_waste (share of
    /// the data, 0 to 1), ranges, tiles, launches, launch, bytes_to_device, bytes_to_host, arena_bytes,
    /// arena_gap_bytes (between tensors), device_memory (whose allocator gives the memory of outputs on a device, ``"torch"``
    /// or ``"windrow"``; ``"torch"`` for page-locked ones that torch lends; else None), worker_pool (whether this is a worker process
    /// whose batches `windrow.torch.collate_fn` writes into shared memory that is used again); and for each leaf outputs (shape and dtype), paths, around_caches (whether
    /// data on the host is written by streaming stores, if its memory was written before) and names
    /// (where it is in its tree, ``""`` for a plain list).
    ///
    /// ``launch`` is None on the host and for several devices, else a dict of the launch, or of both if only some parts
    /// are ``"quantised"``: items (pieces of work, each for one warp), table_bytes, table_uploaded (else the table goes with
    /// the launch's parameters) and parts, a list of dicts: leaf (None for the zeros between tensors of an arena), output (``"data"``,
    /// ``"mask"``, ...), family (``"rows"``, ``"aligned_copy"``, ``"small_copy"``, ``"contiguous_cast"``,
    /// ``"contiguous_generic"``, ``"planar"``, ``"scalar_fallback"``, ``"strided"``, ``"placed_rows"``,
    /// ``"placed_copy"``, ``"quantised"`` or ``"metadata"``), samples, items and sources (``"addresses"``, ``"ids"``; None where
    /// nothing is read).
    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let explain = &self.explain;
        let dict = PyDict::new(py);
        set_fields!(dict, explain, [path, samples, leaves, bytes_read, bytes_written]);
        set_fields!(dict, explain, [padding_bytes, padding_waste, ranges, tiles, launches]);
        dict.set_item("launch", explain.launch.as_ref().map(|l| launch_dict(py, l)).transpose()?)?;
        set_fields!(dict, explain, [bytes_to_device, bytes_to_host, arena_bytes, arena_gap_bytes]);
        dict.set_item("device_memory", self.device_memory)?;
        dict.set_item("worker_pool", has_worker_pool())?;
        let outputs = explain
            .outputs
            .iter()
            .map(|(shape, dtype)| Ok((PyTuple::new(py, shape)?, dtype.name())));
        dict.set_item("outputs", outputs.collect::<PyResult<Vec<_>>>()?)?;
        set_fields!(dict, explain, [paths, around_caches, names]);
        Ok(dict)
    }

    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let missing = || PyAttributeError::new_err(format!("'Explain' has no attribute '{name}'"));
        self.as_dict(py)?.get_item(name)?.ok_or_else(missing)
    }

    fn __dir__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let names = slf.py().get_type::<PyAny>().call_method1("__dir__", (slf,))?;
        names.call_method1("extend", (slf.get().as_dict(slf.py())?,))?;
        Ok(names)
    }

    fn __str__(&self) -> String {
        let memory = self.device_memory.map(|name| format!("\ndevice memory  of {name}"));
        let pool = match has_worker_pool() {
            true => "\nworker pool    windrow.torch writes batches into shared memory that is used again",
            false => "",
        };
        self.explain.to_string() + &memory.unwrap_or_default() + pool
    }

    fn __repr__(&self) -> String {
        self.__str__()
    }
}

/// A launch as `as_dict` describes it.
fn launch_dict<'py>(py: Python<'py>, launch: &Launch) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    set_fields!(dict, launch, [items, table_bytes]);
    dict.set_item("table_uploaded", launch.is_uploaded)?;
    let parts = launch.parts.iter().map(|part| {
        let dict = PyDict::new(py);
        set_fields!(dict, part, [leaf, output, family, samples, items, sources]);
        Ok(dict)
    });
    dict.set_item("parts", parts.collect::<PyResult<Vec<_>>>()?)?;
    Ok(dict)
}

/// Whether this is a worker process with a pool; on Linux alone there are such.
fn has_worker_pool() -> bool {
    #[cfg(target_os = "linux")]
    let has = windrow::workers::is_started();
    #[cfg(not(target_os = "linux"))]
    let has = false;
    has
}
