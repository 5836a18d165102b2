//! The Python package `windrow`: thin bindings with the names of the engine.
//!
//! Each folder uses only those above it (`scripts/ci/module_cycles.py`, in `make lint`):
//!
//! - `ground`: errors, logging, dtypes, streams, arguments, iterables, the objects `Tensor` and `Batch`;
//! - `private_layouts`: readers of words of CPython's and torch's objects, behind one switch;
//! - `engine`: `Engine`, its counters and plans, what the machine has;
//! - `ownership`: what keeps imported memory alive, where it was, and which streams may still write it;
//! - `import`: any array-like to a sample, by the fastest route that its type has;
//! - `export`: DLPack, the buffer protocol, arrays of the libraries, pickles;
//! - `workers`: tensors of worker processes;
//! - `trees`: the one walk of trees (`flatten`) and its rules for containers: windrow's (`rules`), torch's (`torch_rules`), classes
//!   (`node_types`);
//! - `samples`: `SampleList`, of array-likes and of trees, Arrow columns, windows and pieces of arrays;
//! - `collate`: the calls, from keyword arguments to batches: `options` -> `job` (one leaf) -> `run` (all as one plan);
//!   `tree` and `torch` are `collate` by windrow's rules and by torch's, `leaves` what they share;
//! - `classes`: the methods of `Tensor`, `Batch` and `SampleList`.
//!
//! A list of dicts becomes a plan in these steps. The tree is flattened and grouped container by container, its leaves are read one
//! after the other, and from the plan on each step is done for all leaves before the next one begins:
//!
//! | step | module | result |
//! |---|---|---|
//! | arguments | `collate::options`, `collate::specs` | options of the call and of leaves |
//! | flatten | `trees::flatten`, which asks the rules of `collate::tree` what a column is; those use `trees::rules` and `trees::dicts` | a `TreeDef`, and for each leaf a column of objects |
//! | group | `samples::column_import`, for each container that was opened: `import::column_reader` | columns that were read at once, by the engine's threads |
//! | leaves | `collate::leaves`: options by path, `import` of columns that were not read, `collate::job` | jobs |
//! | plan and run | `collate::run` | batches |
//! | unflatten | `trees::flatten`, `trees::container` | the tree of batches |

mod classes;
mod collate;
mod engine;
mod export;
mod ground;
mod import;
mod ownership;
mod private_layouts;
mod samples;
mod trees;
#[cfg(target_os = "linux")]
mod workers;

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
    private_layouts::read_switch();
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<ground::tensor::PyTensor>()?;
    m.add_class::<ground::batch::PyBatch>()?;
    m.add_class::<samples::list::PySampleList>()?;
    m.add_class::<collate::transform::PyTransform>()?;
    m.add_class::<collate::quantize::PyQuantize>()?;
    m.add_class::<collate::quantize::PyDequantize>()?;
    m.add_class::<collate::one_buffer::PyStructure>()?;
    m.add_class::<collate::staging::PyStaging>()?;
    m.add_class::<engine::engine::PyEngine>()?;
    m.add_class::<engine::explain::PyExplain>()?;
    ground::errors::register(m)?;
    export::exchange::register(m)?;
    collate::forms::register(m)?;
    collate::torch::register(m)?;
    #[cfg(target_os = "linux")]
    workers::register(m)?;
    for function in [
        wrap_pyfunction!(collate::explain::explain, m)?,
        wrap_pyfunction!(collate::tree::collate, m)?,
        wrap_pyfunction!(collate::moves::copy_many, m)?,
        wrap_pyfunction!(collate::one_buffer::_flatten, m)?,
        wrap_pyfunction!(collate::one_buffer::_leaf_tensors, m)?,
        wrap_pyfunction!(collate::one_buffer::_leaf_bytes, m)?,
        wrap_pyfunction!(collate::moves::_copy_leaves, m)?,
        wrap_pyfunction!(collate::moves::_check_leaves, m)?,
        wrap_pyfunction!(collate::one_buffer::_copy_parts, m)?,
        wrap_pyfunction!(collate::one_buffer::_unwritten, m)?,
        wrap_pyfunction!(collate::one_buffer::_parts, m)?,
        wrap_pyfunction!(collate::one_buffer::_places, m)?,
        wrap_pyfunction!(samples::arrow::arrow_columns, m)?,
        wrap_pyfunction!(samples::arrow::is_arrow, m)?,
        wrap_pyfunction!(collate::torch::collate_torch, m)?,
        wrap_pyfunction!(collate::graphs::_add_per_sample, m)?,
        wrap_pyfunction!(collate::patterns::_patterns_of, m)?,
        wrap_pyfunction!(collate::token_columns::pad_columns, m)?,
        wrap_pyfunction!(collate::graphs::join_graphs, m)?,
        wrap_pyfunction!(collate::sequences::pack_columns, m)?,
        wrap_pyfunction!(collate::sequences::pack_rows_of, m)?,
        wrap_pyfunction!(ground::iterables::check_list, m)?,
        wrap_pyfunction!(ground::modules::has_tangent, m)?,
        wrap_pyfunction!(import::tensor::asarray, m)?,
        wrap_pyfunction!(samples::windows::windows, m)?,
        wrap_pyfunction!(samples::windows::crops, m)?,
        wrap_pyfunction!(export::pickle::_tensor_of_bytes, m)?,
        wrap_pyfunction!(export::pickle::_batch_of_fields, m)?,
        wrap_pyfunction!(samples::pickle::_list_of_groups, m)?,
        wrap_pyfunction!(samples::pickle::_list_of_trees, m)?,
        wrap_pyfunction!(engine::machine::cuda_available, m)?,
        wrap_pyfunction!(engine::machine::devices, m)?,
        wrap_pyfunction!(engine::machine::_relax_captures, m)?,
        wrap_pyfunction!(engine::machine::_streaming_stores, m)?,
        wrap_pyfunction!(engine::machine::_calibration_file, m)?,
        wrap_pyfunction!(engine::machine::_page_copies, m)?,
        wrap_pyfunction!(engine::machine::_set_page_copies, m)?,
        wrap_pyfunction!(engine::machine::_reads_page_locked, m)?,
        wrap_pyfunction!(engine::machine::cuda_build, m)?,
        wrap_pyfunction!(engine::machine::observers, m)?,
        wrap_pyfunction!(ground::logging::set_logging, m)?,
        wrap_pyfunction!(engine::stats::stats, m)?,
        wrap_pyfunction!(engine::stats::reset_stats, m)?,
        wrap_pyfunction!(engine::stats::empty_cache, m)?,
        wrap_pyfunction!(import::routes::import_route, m)?,
        wrap_pyfunction!(private_layouts::_private_layouts, m)?,
        wrap_pyfunction!(collate::packing::_pack, m)?,
        wrap_pyfunction!(collate::packing::_token_budget, m)?,
        wrap_pyfunction!(collate::packing::_buckets, m)?,
        wrap_pyfunction!(collate::packing::_balance, m)?,
    ] {
        m.add_function(function)?;
    }
    Ok(())
}
