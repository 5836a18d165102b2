//! Counters, and memory that is kept for later.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::engine::default::{default_engine, index_engine};

/// The counters of an engine.
pub(super) fn stats_of<'py>(
    py: Python<'py>,
    engine: &windrow::Engine,
) -> PyResult<Bound<'py, PyDict>> {
    let stats = py.detach(|| engine.stats());
    let dict = PyDict::new(py);
    dict.set_item("batches", stats.batches)?;
    dict.set_item("samples", stats.samples)?;
    dict.set_item("moves", stats.moves)?;
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
    dict.set_item("lent_bytes", stats.lent_bytes)?;
    dict.set_item("pinned_bytes", stats.pinned_bytes.0)?;
    dict.set_item("pinned_used_bytes", stats.pinned_bytes.1)?;
    Ok(dict)
}

/// Counters of the default engine since it was made or since `reset_stats`.
///
/// Returns:
///     dict: counts: ``batches`` (each leaf of a tree is one), ``samples``, ``moves`` (those of them that are pairs of `copy_many`, in no
///     batch), ``paths`` (a dict: batches by path, named as in `explain`), ``views``, ``launches`` and ``waits`` (for a device). Bytes: ``bytes_in``, ``bytes_out``, ``data_bytes``, ``padding_bytes``,
///     ``bytes_to_device``, ``bytes_to_host`` and ``lent_bytes`` (outputs in torch's memory). ``padding_waste``: share of padding in
///     the data, 0 to 1. Bytes at present: ``pool_bytes`` (free), ``pool_used_bytes``, ``device_bytes`` (in use), ``pinned_bytes``
///     (free) and ``pinned_used_bytes``. ``pool_hits`` and ``pool_misses`` count from the start of the engine. Seconds of the calling
///     threads: ``import_seconds``, ``plan_seconds``, ``run_seconds`` and ``wait_seconds``, part of which is also in ``run_seconds``.
///     The first three are measured from the first call of `stats` or `reset_stats` on. ``workers``: what worker processes of torch's
///     loaders have counted that this process reads from: ``batches`` (or single tensors) by way of their pools and their ``bytes``;
///     how often there was no room (``refused``) and the batch went torch's way; ``blocks`` that were made; ``pool_bytes`` at present.
///     Of these blocks this process has page-locked so many (``locked``), and ``locked_bytes`` are at present.
#[pyfunction]
pub(crate) fn stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let stats = stats_of(py, default_engine())?;
    let workers = PyDict::new(py);
    #[cfg(target_os = "linux")]
    for (name, count) in windrow::workers::stats() {
        workers.set_item(name, count)?;
    }
    let (locked, locked_bytes) = windrow::bindings::lock_stats();
    workers.set_item("locked", locked)?;
    workers.set_item("locked_bytes", locked_bytes)?;
    stats.set_item("workers", workers)?;
    Ok(stats)
}

/// Sets the counters of the default engine to 0, except ``pool_hits``, ``pool_misses``, ``workers`` and the bytes at present. Times are measured
/// from then on.
#[pyfunction]
pub(crate) fn reset_stats(py: Python<'_>) {
    py.detach(|| default_engine().reset_stats());
}

/// Gives the default engine's free output memory back to the system and the devices, for which it
/// waits, and releases samples that were still being read. So goes the memory of workers that have ended, which the next ones
/// could have taken over.
#[pyfunction]
pub(crate) fn empty_cache(py: Python<'_>) {
    py.detach(|| {
        default_engine().empty_cache();
        index_engine().empty_cache();
        windrow::bindings::reap_copies();
        #[cfg(target_os = "linux")]
        windrow::workers::sweep();
    });
}
