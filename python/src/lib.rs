//! The Python package `windrow`: thin bindings with the names of the engine.
//!
//! import (any array-like to a sample) -> options (keyword arguments to a `Collate`) -> assemble
//! (the calls) -> tensor and batch (the results) -> export (DLPack and friends). On devices, order is
//! kept across all of these: who wrote the samples is waited for, who reads the batch waits.

mod assemble;
mod batch;
mod engine;
mod errors;
mod exchange;
mod export;
mod import;
mod keep;
mod logging;
mod options;
mod order;
mod pieces;
mod protocols;
mod samples;
mod sources;
mod specs;
mod stream;
mod tensor;
mod torch;
mod torch_memory;
mod tree;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _windrow(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<tensor::PyTensor>()?;
    m.add_class::<batch::PyBatch>()?;
    m.add_class::<samples::PySampleList>()?;
    m.add_class::<options::PyTransform>()?;
    m.add_class::<engine::PyEngine>()?;
    m.add_class::<engine::PyExplain>()?;
    errors::register(m)?;
    exchange::register(m)?;
    for function in [
        wrap_pyfunction!(assemble::stack, m)?,
        wrap_pyfunction!(assemble::concat, m)?,
        wrap_pyfunction!(assemble::pad, m)?,
        wrap_pyfunction!(assemble::ragged, m)?,
        wrap_pyfunction!(assemble::explain, m)?,
        wrap_pyfunction!(assemble::check_options, m)?,
        wrap_pyfunction!(tree::collate, m)?,
        wrap_pyfunction!(torch::collate_torch, m)?,
        wrap_pyfunction!(tensor::asarray, m)?,
        wrap_pyfunction!(engine::cuda_available, m)?,
        wrap_pyfunction!(engine::devices, m)?,
        wrap_pyfunction!(engine::cuda_build, m)?,
        wrap_pyfunction!(engine::watchers, m)?,
        wrap_pyfunction!(logging::set_logging, m)?,
        wrap_pyfunction!(engine::stats, m)?,
        wrap_pyfunction!(engine::reset_stats, m)?,
        wrap_pyfunction!(engine::empty_cache, m)?,
        wrap_pyfunction!(sources::import_route, m)?,
    ] {
        m.add_function(function)?;
    }
    Ok(())
}
