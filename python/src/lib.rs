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
//! - `trees`: the one walk of trees (`flatten`), its rules for containers: windrow's (`rules`), torch's (`torch_rules`), classes
//!   (`node_types`), and the structure that it leaves (`tree_def`);
//! - `samples`: `SampleList`, of array-likes and of trees, Arrow columns, windows and pieces of arrays;
//! - `collate`: the calls, from keyword arguments to batches: `options` -> `job` (one leaf) -> `run` (all as one plan);
//!   `tree` and `torch` are `collate` by windrow's rules and by torch's, `leaves` what they share;
//! - `sequences`: tokens padded and packed, graphs joined, plans of batches by lengths;
//! - `moves`: `copy_many`, parts of one buffer, uploads of `Staging`;
//! - `explain`: the plan of a form, of `collate` or of `copy_many`;
//! - `classes`: the methods of `Tensor`, `Batch` and `SampleList`.
//!
//! A list of dicts becomes a plan in these steps. The tree is flattened and grouped container by container, its leaves are read one
//! after the other, and from the plan on each step is done for all leaves before the next one begins:
//!
//! | step | module | result |
//! |---|---|---|
//! | arguments | `collate::options`, `collate::specs` | options of the call and of leaves |
//! | flatten | `trees::flatten`, which asks `collate::tree_rules`, on `trees::rules` and `trees::dicts`, what a column is | a `TreeDef`, and for each leaf a column of objects |
//! | group | `samples::column_import`, for each container that was opened: `import::column_reader` | columns that were read at once, by the engine's threads |
//! | leaves | `collate::leaves`: options by path, `import` of columns that were not read, `collate::job` | jobs |
//! | plan and run | `collate::run` | batches |
//! | unflatten | `trees::tree_def`, `trees::container` | the tree of batches |

mod classes;
mod collate;
mod engine;
mod explain;
mod export;
mod ground;
mod import;
mod moves;
mod ownership;
mod private_layouts;
mod samples;
mod sequences;
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
mod _windrow {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::collate::{
        forms::check_options, forms::concat, forms::pad, forms::ragged, forms::stack,
        patterns::_patterns_of, torch::collate_torch, tree::collate,
    };
    #[pymodule_export]
    use crate::engine::{
        machine::_calibration_file, machine::_page_copies, machine::_reads_page_locked,
        machine::_relax_captures, machine::_set_page_copies, machine::_streaming_stores,
        machine::cuda_available, machine::cuda_build, machine::devices, machine::observers,
        stats::empty_cache, stats::reset_stats, stats::stats,
    };
    #[pymodule_export]
    use crate::explain::explain;
    #[pymodule_export]
    use crate::moves::{
        copy_many::_check_leaves, copy_many::_copy_leaves, copy_many::copy_many,
        one_buffer::_copy_parts, one_buffer::_device_name, one_buffer::_flatten,
        one_buffer::_leaf_bytes, one_buffer::_leaf_tensors, one_buffer::_parts,
        one_buffer::_places, one_buffer::_unwritten,
    };
    #[pymodule_export]
    use crate::sequences::{
        graphs::_add_per_sample, graphs::join_graphs, pack::pack_columns, pack::pack_rows_of,
        packing::_balance, packing::_buckets, packing::_pack, packing::_token_budget,
        token_columns::pad_columns,
    };
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use crate::workers::{
        _allocate_in_pool, _close_pool, _empty_pools, _has_pool, _pool_file, _start_pool,
        locked::_hold_copies, locked::_page_lock_refusal, locked::_page_locked,
        locked::_try_page_lock, receive::_receive,
    };
    #[pymodule_export]
    use crate::{
        export::pickle::_batch_of_fields, export::pickle::_tensor_of_bytes,
        ground::iterables::check_list, ground::logging::set_logging, ground::modules::has_tangent,
        import::routes::import_route, import::tensor::asarray, private_layouts::_private_layouts,
        samples::arrow::arrow_columns, samples::arrow::is_arrow, samples::pickle::_list_of_groups,
        samples::pickle::_list_of_trees, samples::windows::crops, samples::windows::windows,
    };

    /// Adds all but the functions. Classes are the process's: a subinterpreter is refused before one is made.
    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::refuse_subinterpreters(m.py())?;
        crate::private_layouts::read_switch();
        m.add("__version__", env!("CARGO_PKG_VERSION"))?;
        m.add_class::<crate::ground::tensor::PyTensor>()?;
        m.add_class::<crate::ground::batch::PyBatch>()?;
        m.add_class::<crate::samples::list::PySampleList>()?;
        m.add_class::<crate::collate::transform::PyTransform>()?;
        m.add_class::<crate::collate::quantize::PyQuantize>()?;
        m.add_class::<crate::collate::quantize::PyDequantize>()?;
        m.add_class::<crate::moves::one_buffer::PyStructure>()?;
        m.add_class::<crate::moves::staging::PyStaging>()?;
        m.add_class::<crate::engine::engine::PyEngine>()?;
        m.add_class::<crate::engine::explain::PyExplain>()?;
        #[cfg(target_os = "linux")]
        m.add_class::<crate::workers::parcel::PyParcel>()?;
        #[cfg(target_os = "linux")]
        m.add_class::<crate::workers::parcel::PySent>()?;
        crate::ground::errors::register(m)?;
        crate::export::exchange::register(m)
    }
}
