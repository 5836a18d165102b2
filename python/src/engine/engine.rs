//! `Engine`: a thread pool and an output memory pool of its own.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::engine::StreamingStores;
use windrow::Device;

use crate::engine::default::{default_engine, drop_detached};
use crate::engine::stats::stats_of;
use crate::ground::arguments::{device_of, int_within, none_unknown, unfit};
use crate::ground::errors::OrPyErr;

/// An engine with a thread pool and an output memory pool of its own. The module's functions use a
/// default one.
///
/// Args:
///     threads (int): threads for a batch that reads and writes 1 MiB or more, the calling one included, from 1 to 4096; None: one
///         for each core. The first such batch starts them.
///     device (str): device for batches of calls without ``device=``; None: where the samples are.
///     pool_bytes (int): free output memory to keep, that of batches that have died, in bytes; None: 1 GiB. Later batches use it.
///     streaming_stores (str): the smallest outputs on the host that are written around the caches, in bytes or ``never``:
///         ``"copies=never,padded=never,computed=33554432"``; None: of the environment variable ``WINDROW_STREAMING_STORES``, of
///         ``python -m windrow calibrate``, or by what the processor says of itself.
///
/// Raises:
///     ValueError: ``threads`` or ``pool_bytes`` is out of range, ``streaming_stores`` is no such text, or there is no such ``device``.
///     TypeError: an argument has a wrong type.
///     CudaUnavailable, CudaError: ``device`` cannot be used.
#[pyclass(name = "Engine", module = "windrow", frozen)]
pub(crate) struct PyEngine {
    engine: windrow::Engine,
    device: Option<Device>,
}

impl Drop for PyEngine {
    /// An engine waits for its work on devices, which others may need the interpreter lock for.
    fn drop(&mut self) {
        drop_detached(std::mem::replace(&mut self.engine, default_engine().clone()));
    }
}

impl PyEngine {
    pub fn engine(&self) -> &windrow::Engine {
        &self.engine
    }
}

/// The sizes of `streaming_stores=`; TypeError for what is no str, ValueError for a text that is none of them.
fn stores_of(text: &Bound<'_, PyAny>) -> PyResult<StreamingStores> {
    let unfit = |error| unfit(text, "streaming_stores", "a str", error);
    text.extract::<String>().map_err(unfit)?.parse().or_py_err(text.py())
}

#[pymethods]
impl PyEngine {
    #[new]
    #[pyo3(
        signature = (threads = None, device = None, pool_bytes = None, streaming_stores = None, **unknown),
        text_signature = "(threads=None, device=None, pool_bytes=None, streaming_stores=None)"
    )]
    fn new(
        py: Python<'_>,
        threads: Option<&Bound<'_, PyAny>>,
        device: Option<&Bound<'_, PyAny>>,
        pool_bytes: Option<&Bound<'_, PyAny>>,
        streaming_stores: Option<&Bound<'_, PyAny>>,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyEngine> {
        none_unknown("Engine", unknown)?;
        let most = windrow::Engine::MAX_THREADS as u64;
        let threads = threads.map(|threads| int_within(threads, "threads", 1..=most));
        let bytes = pool_bytes.map(|bytes| int_within(bytes, "pool_bytes", 0..=u64::MAX));
        let mut builder = windrow::Engine::builder();
        if let Some(threads) = threads.transpose()? {
            builder = builder.threads(threads as usize);
        }
        if let Some(bytes) = bytes.transpose()? {
            builder = builder.pool_bytes(bytes);
        }
        let device = device.map(device_of).transpose()?;
        if let Some(device) = device {
            builder = builder.device(device);
        }
        if let Some(stores) = streaming_stores.map(stores_of).transpose()? {
            builder = builder.streaming_stores(stores);
        }
        // A driver may take its time to start.
        let engine = py.detach(|| builder.build()).or_py_err(py)?;
        Ok(PyEngine { engine, device })
    }

    /// Counters of this engine, as those of `windrow.stats`; ``workers``, which are the process's, is empty.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        stats_of(py, &self.engine, PyDict::new(py))
    }

    /// Sets the counters to 0, as `windrow.reset_stats` does for the default engine.
    fn reset_stats(&self, py: Python<'_>) {
        py.detach(|| self.engine.reset_stats());
    }

    /// Gives free output memory back to the system and the devices, for which it waits.
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
