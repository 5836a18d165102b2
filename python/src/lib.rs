//! The Python package `windrow`: thin bindings with the names of the engine.
//!
//! import (any array-like to a sample) -> options (keyword arguments to a `Collate`) -> assemble
//! (the calls) -> tensor and batch (the results) -> export (DLPack and friends). On devices, order is
//! kept across all of these: who wrote the samples is waited for, who reads the batch waits.

mod arrow;
mod assemble;
mod batch;
mod columns;
mod containers;
mod engine;
mod errors;
mod exchange;
mod export;
mod import;
mod integers;
mod interfaces;
mod keep;
mod logging;
mod number;
mod number_words;
mod numpy_api;
mod numpy_words;
mod options;
mod order;
mod owners;
mod packing;
mod pickle;
mod pieces;
mod places;
mod protocols;
mod rows;
mod samples;
mod sources;
mod specs;
mod stream;
mod tensor;
mod torch;
mod torch_dense;
mod torch_memory;
mod torch_words;
mod tree;
mod windows;

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Types, caches and the default engine are the process's: objects would cross from one interpreter
/// to another, and be let go under the lock of the wrong one.
fn refuse_subinterpreters(py: Python<'_>) -> PyResult<()> {
    // SAFETY: attached, so there is a current interpreter; the main one has the number 0.
    #[allow(unsafe_code)]
    let id = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    match id {
        0 => Ok(()),
        -1 => Err(PyErr::fetch(py)),
        _ => Err(PyImportError::new_err(
            "windrow works in the main interpreter only, not in a subinterpreter: use processes",
        )),
    }
}

#[pymodule(gil_used = false)]
fn _windrow(m: &Bound<'_, PyModule>) -> PyResult<()> {
    refuse_subinterpreters(m.py())?;
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
        wrap_pyfunction!(arrow::arrow_columns, m)?,
        wrap_pyfunction!(torch::collate_torch, m)?,
        wrap_pyfunction!(columns::pad_columns, m)?,
        wrap_pyfunction!(columns::pack_columns, m)?,
        wrap_pyfunction!(columns::pack_rows_of, m)?,
        wrap_pyfunction!(containers::check_list, m)?,
        wrap_pyfunction!(tensor::asarray, m)?,
        wrap_pyfunction!(windows::windows, m)?,
        wrap_pyfunction!(windows::crops, m)?,
        wrap_pyfunction!(pickle::_tensor_of_bytes, m)?,
        wrap_pyfunction!(pickle::_batch_of_fields, m)?,
        wrap_pyfunction!(engine::cuda_available, m)?,
        wrap_pyfunction!(engine::devices, m)?,
        wrap_pyfunction!(engine::cuda_build, m)?,
        wrap_pyfunction!(engine::watchers, m)?,
        wrap_pyfunction!(logging::set_logging, m)?,
        wrap_pyfunction!(engine::stats, m)?,
        wrap_pyfunction!(engine::reset_stats, m)?,
        wrap_pyfunction!(engine::empty_cache, m)?,
        wrap_pyfunction!(sources::import_route, m)?,
        wrap_pyfunction!(packing::_pack, m)?,
        wrap_pyfunction!(packing::_token_budget, m)?,
        wrap_pyfunction!(packing::_buckets, m)?,
        wrap_pyfunction!(packing::_balance, m)?,
    ] {
        m.add_function(function)?;
    }
    Ok(())
}
