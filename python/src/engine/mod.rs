//! `Engine`, `explain` results, counters and what the machine has.

use std::sync::OnceLock;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use windrow::{DType, Device, EngineOptions, Explain, Launch};

use crate::collate::options::{int_within, none_unknown};
use crate::ground::errors::OrPyErr;
use crate::ground::logging;

/// An engine with a thread pool and an output memory pool of its own. The module's functions use a
/// default one.
///
/// Args:
///     threads (int): threads for a large batch, the calling one included, from 1 to 4096; None: one for
///         each core.
///     device (str): where batches are assembled if the call does not say; None: where the samples are.
///     pool_bytes (int): free output memory to keep, in bytes; None: 1 GiB.
#[pyclass(name = "Engine", module = "windrow", frozen)]
pub(crate) struct PyEngine {
    engine: windrow::Engine,
    device: Option<Device>,
}

impl Drop for PyEngine {
    /// An engine waits for its work on devices, which others may need the interpreter lock for.
    fn drop(&mut self) {
        let engine = std::mem::replace(&mut self.engine, default_engine().clone());
        let mut held = Some(engine);
        Python::try_attach(|py| {
            let engine = held.take();
            py.detach(|| drop(engine));
        });
    }
}

impl PyEngine {
    pub fn engine(&self) -> &windrow::Engine {
        &self.engine
    }
}

#[pymethods]
impl PyEngine {
    #[new]
    #[pyo3(
        signature = (threads = None, device = None, pool_bytes = None, **unknown),
        text_signature = "(threads=None, device=None, pool_bytes=None)"
    )]
    fn new(
        py: Python<'_>,
        threads: Option<&Bound<'_, PyAny>>,
        device: Option<&Bound<'_, PyAny>>,
        pool_bytes: Option<&Bound<'_, PyAny>>,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyEngine> {
        none_unknown("Engine", unknown, &["threads", "device", "pool_bytes"])?;
        let most = windrow::Engine::MAX_THREADS as u64;
        let threads = threads.map(|threads| int_within(threads, "threads", 1..=most));
        let bytes = pool_bytes.map(|bytes| int_within(bytes, "pool_bytes", 0..=u64::MAX));
        let mut options = EngineOptions::default();
        options.threads = threads.transpose()?.map(|threads| threads as usize);
        options.pool_bytes = bytes.transpose()?;
        options.device = device.map(device_of).transpose()?;
        let engine = windrow::Engine::with_options(options);
        if let Some(device) = options.device {
            // Said here rather than at the first batch.
            py.detach(|| engine.empty(DType::U8, &[0], device)).or_py_err(py)?;
        }
        Ok(PyEngine { engine, device: options.device })
    }

    /// Counters of this engine, as those of `stats`.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats_of(py, &self.engine)
    }

    /// Sets the counters to 0.
    fn reset_stats(&self, py: Python<'_>) {
        py.detach(|| self.engine.reset_stats());
    }

    /// Gives free output memory back to the system.
    fn empty_cache(&self, py: Python<'_>) {
        py.detach(|| self.engine.empty_cache());
    }

    /// Threads for a large batch.
    #[getter]
    fn threads(&self) -> usize {
        self.engine.num_threads()
    }

    fn __repr__(&self) -> String {
        let device = self.device.map_or_else(|| "None".to_owned(), |device| device.to_string());
        format!("Engine(threads={}, device={device})", self.engine.num_threads())
    }
}

/// A device by its name or by an object that prints as one, as torch's do.
pub(crate) fn device_of(device: &Bound<'_, PyAny>) -> PyResult<Device> {
    device.str()?.to_string().parse().or_py_err(device.py())
}

/// The engine of the module's functions.
pub(crate) fn default_engine() -> &'static windrow::Engine {
    static ENGINE: OnceLock<windrow::Engine> = OnceLock::new();
    ENGINE.get_or_init(windrow::Engine::host)
}

/// The engine for our own small copies: index arrays, `copy=True`. Kept out of the user's counters.
pub(crate) fn index_engine() -> &'static windrow::Engine {
    static ENGINE: OnceLock<windrow::Engine> = OnceLock::new();
    ENGINE.get_or_init(windrow::Engine::host)
}

/// The plan of a call, not run. ``str()`` is a readable account, `as_dict` the same as data.
#[pyclass(name = "Explain", module = "windrow", frozen)]
pub(crate) struct PyExplain(pub Explain);

#[pymethods]
impl PyExplain {
    /// Keys: path, samples, leaves, bytes_read, bytes_written, padding_bytes, padding_waste (share of
    /// the data, 0 to 1), ranges, tiles, launches, launch, bytes_to_device, bytes_to_host, arena_bytes,
    /// arena_gap_bytes (between tensors); and for each leaf outputs (shape and dtype), paths and names
    /// (where it is in its tree, ``""`` for a plain list).
    ///
    /// ``launch`` is None on the host, else a dict of the one launch: items (pieces of work, each for one
    /// warp), table_bytes, table_uploaded (else the table goes with the launch's parameters) and
    /// parts, a list of dicts: leaf (None for the zeros between tensors of an arena), output (``"data"``,
    /// ``"mask"``, ...), family (``"rows"``, ``"pages"``, ``"short"``, ``"line"``, ``"planar"``, ``"box"``
    /// or ``"values"``), samples, items and sources (``"addresses"``, ``"ids"``, None where nothing is read).
    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let explain = &self.0;
        let dict = PyDict::new(py);
        dict.set_item("path", explain.path)?;
        dict.set_item("samples", explain.samples)?;
        dict.set_item("leaves", explain.leaves)?;
        dict.set_item("bytes_read", explain.bytes_read)?;
        dict.set_item("bytes_written", explain.bytes_written)?;
        dict.set_item("padding_bytes", explain.padding_bytes)?;
        dict.set_item("padding_waste", explain.padding_waste)?;
        dict.set_item("ranges", explain.ranges)?;
        dict.set_item("tiles", explain.tiles)?;
        dict.set_item("launches", explain.launches)?;
        dict.set_item("launch", explain.launch.as_ref().map(|l| launch_dict(py, l)).transpose()?)?;
        dict.set_item("bytes_to_device", explain.bytes_to_device)?;
        dict.set_item("bytes_to_host", explain.bytes_to_host)?;
        dict.set_item("arena_bytes", explain.arena_bytes)?;
        dict.set_item("arena_gap_bytes", explain.arena_gap_bytes)?;
        let outputs = explain
            .outputs
            .iter()
            .map(|(shape, dtype)| Ok((PyTuple::new(py, shape)?, dtype.name())));
        dict.set_item("outputs", outputs.collect::<PyResult<Vec<_>>>()?)?;
        dict.set_item("paths", &explain.paths)?;
        dict.set_item("names", &explain.names)?;
        Ok(dict)
    }

    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let missing = || {
            pyo3::exceptions::PyAttributeError::new_err(format!(
                "'Explain' has no attribute '{name}'"
            ))
        };
        self.as_dict(py)?.get_item(name)?.ok_or_else(missing)
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }
}

fn launch_dict<'py>(py: Python<'py>, launch: &Launch) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("items", launch.items)?;
    dict.set_item("table_bytes", launch.table_bytes)?;
    dict.set_item("table_uploaded", launch.is_uploaded)?;
    let parts = launch.parts.iter().map(|part| {
        let dict = PyDict::new(py);
        dict.set_item("leaf", part.leaf)?;
        dict.set_item("output", part.output)?;
        dict.set_item("family", part.family)?;
        dict.set_item("samples", part.samples)?;
        dict.set_item("items", part.items)?;
        dict.set_item("sources", part.sources)?;
        Ok(dict)
    });
    dict.set_item("parts", parts.collect::<PyResult<Vec<_>>>()?)?;
    Ok(dict)
}

/// What watches the calls: ``logging`` (a bool, see `set_logging`) and ``nvtx`` (None while ranges go to
/// a profiler, else why not).
#[pyfunction]
pub(crate) fn watchers(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("logging", logging::is_on())?;
    dict.set_item("nvtx", py.detach(windrow::nvtx_state).err())?;
    Ok(dict)
}

/// Whether there is a CUDA device to assemble batches on. Starts the driver: workers that are to use
/// it have to be spawned, not forked, from then on.
#[pyfunction]
pub(crate) fn cuda_available(py: Python<'_>) -> bool {
    py.detach(|| windrow::devices().is_ok_and(|devices| !devices.is_empty()))
}

/// What ``device=`` takes on this machine: a dict each with ``device`` (``"cpu"``, ``"cuda:0"``) and
/// ``name``; of CUDA devices also ``index``, ``compute_capability`` (a tuple), ``multiprocessors`` and
/// ``total_memory`` (bytes). Starts the driver, as `cuda_available`.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let entry = |device: Device, name: &str| -> PyResult<Bound<'_, PyDict>> {
        let entry = PyDict::new(py);
        entry.set_item("device", device.to_string())?;
        entry.set_item("name", name)?;
        Ok(entry)
    };
    let found = py.detach(windrow::devices).unwrap_or_default();
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

/// ``toolkit``, ``targets`` of the kernels and ``driver`` (newest CUDA version it supports).
///
/// Raises:
///     CudaUnavailable: with the reason and the cure.
#[pyfunction]
pub(crate) fn cuda_build(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let build = py.detach(windrow::cuda_build).or_py_err(py)?;
    let dict = PyDict::new(py);
    dict.set_item("toolkit", build.toolkit)?;
    dict.set_item("targets", build.targets)?;
    dict.set_item("driver", build.driver)?;
    Ok(dict)
}

fn stats_of<'py>(py: Python<'py>, engine: &windrow::Engine) -> PyResult<Bound<'py, PyDict>> {
    let stats = py.detach(|| engine.stats());
    let dict = PyDict::new(py);
    dict.set_item("batches", stats.batches)?;
    dict.set_item("samples", stats.samples)?;
    dict.set_item("bytes_in", stats.bytes_in)?;
    dict.set_item("bytes_out", stats.bytes_out)?;
    dict.set_item("data_bytes", stats.data_bytes)?;
    dict.set_item("padding_bytes", stats.padding_bytes)?;
    dict.set_item("padding_waste", stats.padding_waste())?;
    dict.set_item("paths", &stats.paths)?;
    dict.set_item("views", stats.views)?;
    dict.set_item("launches", stats.launches)?;
    dict.set_item("bytes_to_device", stats.bytes_to_device)?;
    dict.set_item("bytes_to_host", stats.bytes_to_host)?;
    dict.set_item("waits", stats.waits)?;
    dict.set_item("import_seconds", stats.import_time.as_secs_f64())?;
    dict.set_item("plan_seconds", stats.plan_time.as_secs_f64())?;
    dict.set_item("run_seconds", stats.run_time.as_secs_f64())?;
    dict.set_item("wait_seconds", stats.wait_time.as_secs_f64())?;
    dict.set_item("pool_bytes", stats.pool.free_bytes)?;
    dict.set_item("pool_used_bytes", stats.pool.used_bytes)?;
    dict.set_item("pool_hits", stats.pool.hits)?;
    dict.set_item("pool_misses", stats.pool.misses)?;
    dict.set_item("device_bytes", stats.device_bytes)?;
    dict.set_item("pinned_bytes", stats.pinned_bytes.0)?;
    dict.set_item("pinned_used_bytes", stats.pinned_bytes.1)?;
    Ok(dict)
}

/// What the default engine did since it was made or `reset_stats`.
///
/// Counts: batches (a tree has one for each leaf), samples, paths (batches by how their data moved, in
/// the words of `explain`; a dict), views, launches, waits (for a device). Bytes: bytes_in, bytes_out,
/// data_bytes, padding_bytes, padding_waste (share of the data, 0 to 1), bytes_to_device, bytes_to_host,
/// and now: pool_bytes (free), pool_used_bytes, device_bytes (in use), pinned_bytes (free),
/// pinned_used_bytes; with pool_hits and pool_misses. Seconds of the calling threads: import_seconds,
/// plan_seconds, run_seconds, and wait_seconds, which are part of these.
#[pyfunction]
pub(crate) fn stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    stats_of(py, default_engine())
}

/// Sets the counters of the default engine to 0.
#[pyfunction]
pub(crate) fn reset_stats(py: Python<'_>) {
    py.detach(|| default_engine().reset_stats());
}

/// Gives the default engine's free output memory back to the system and the devices, for which it
/// waits, and releases samples that were still being read.
#[pyfunction]
pub(crate) fn empty_cache(py: Python<'_>) {
    py.detach(|| {
        default_engine().empty_cache();
        index_engine().empty_cache();
    });
}
