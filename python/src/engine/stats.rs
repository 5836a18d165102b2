//! Counters, and memory that is kept for later.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

use crate::engine::default::{default_engine, index_engine};

/// The counters of an engine, and `workers` as they are given, as a `windrow.Stats`.
pub(super) fn stats_of<'py>(
    py: Python<'py>,
    engine: &windrow::Engine,
    workers: Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    static STATS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let stats = py.detach(|| engine.stats());
    let dict = PyDict::new(py);
    set_fields!(dict, stats, [batches, samples, moves, bytes_in, bytes_out]);
    set_fields!(dict, stats, [data_bytes, padding_bytes]);
    dict.set_item("padding_waste", stats.padding_waste())?;
    set_fields!(dict, stats, [paths, views, launches, bytes_to_device, bytes_to_host, waits]);
    dict.set_item("import_seconds", stats.import_time.as_secs_f64())?;
    dict.set_item("plan_seconds", stats.plan_time.as_secs_f64())?;
    dict.set_item("run_seconds", stats.run_time.as_secs_f64())?;
    dict.set_item("wait_seconds", stats.wait_time.as_secs_f64())?;
    dict.set_item("pool_bytes", stats.pool.free_bytes)?;
    dict.set_item("pool_used_bytes", stats.pool.used_bytes)?;
    dict.set_item("pool_hits", stats.pool.hits)?;
    dict.set_item("pool_misses", stats.pool.misses)?;
    set_fields!(dict, stats, [device_bytes, lent_bytes]);
    dict.set_item("pinned_bytes", stats.pinned_bytes.0)?;
    dict.set_item("pinned_used_bytes", stats.pinned_bytes.1)?;
    dict.set_item("workers", workers)?;
    STATS.import(py, "windrow._stats", "Stats")?.call((), Some(&dict))
}

/// Counters of the default engine since it was made or since `reset_stats`. The seconds are measured from the first call of `stats`
/// or `reset_stats` on.
///
/// Returns:
///     Stats: an attribute for each counter. It prints as a table, and is a mapping of the same names.
///
/// Examples:
///     >>> import windrow as wr
///     >>> wr.reset_stats()
///     >>> batch = wr.pad([[1.5], [2.5, 3.5]])
///     >>> stats = wr.stats()
///     >>> stats.samples, stats.padding_waste, stats["samples"]
///     (2, 0.25, 2)
#[pyfunction]
pub(crate) fn stats(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let workers = PyDict::new(py);
    #[cfg(target_os = "linux")]
    for (name, count) in windrow::workers::stats() {
        workers.set_item(name, count)?;
    }
    let (locked, locked_bytes) = windrow::bindings::lock_stats();
    workers.set_item("locked", locked)?;
    workers.set_item("locked_bytes", locked_bytes)?;
    stats_of(py, default_engine(), workers)
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
