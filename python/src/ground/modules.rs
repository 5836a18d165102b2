//! Modules that the program has imported by itself, and what they say.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyType};
use pyo3::{ffi, intern};

use crate::ground::errors::{answered, attribute, is_answer};

/// A module, if the program has imported it; none is imported here.
pub(crate) fn module<'py>(py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    // SAFETY: attached; the interpreter's own dict, borrowed, or NULL when that is gone.
    #[allow(unsafe_code)]
    let modules = unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyImport_GetModuleDict()) };
    let modules = modules.and_then(|modules| modules.cast_into::<PyDict>().ok());
    modules.map_or(Ok(None), |modules| modules.get_item(name))
}

/// A class of a module, if the program has imported that and it has the class.
pub(crate) fn loaded<'py>(
    py: Python<'py>,
    module: &str,
    name: &str,
) -> PyResult<Option<Bound<'py, PyType>>> {
    let Some(module) = self::module(py, module)? else { return Ok(None) };
    Ok(attribute(&module, name)?.and_then(|class| class.cast_into().ok()))
}

/// Whether torch records now what gradients need, on this thread; true where torch is not imported.
pub(crate) fn grad_is_enabled(py: Python<'_>) -> PyResult<bool> {
    let Some(torch) = module(py, "torch")? else { return Ok(true) };
    torch.call_method0("is_grad_enabled")?.is_truthy()
}

/// Whether torch records nothing now, on this thread: its grad mode is off, and there is no level of dual tensors. A torch that
/// does not tell of levels may record; false where torch is not imported.
pub(crate) fn records_nothing(py: Python<'_>) -> PyResult<bool> {
    Ok(!grad_is_enabled(py)? && !may_have_tangents(py)?)
}

/// Whether this thread is in a level of dual tensors, or torch does not tell; false where its `forward_ad` is not imported.
fn may_have_tangents(py: Python<'_>) -> PyResult<bool> {
    let Some(forward) = module(py, "torch.autograd.forward_ad")? else { return Ok(false) };
    let level = attribute(&forward, "_current_level")?;
    Ok(level.and_then(|level| level.extract::<i64>().ok()).is_none_or(|level| level >= 0))
}

/// Whether an object says of itself that it requires grad, as torch's tensors do.
pub(crate) fn requires_grad(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let answer = object.getattr_opt(intern!(object.py(), "requires_grad"))?;
    answer.map_or(Ok(false), |answer| answer.is_truthy())
}

/// Whether a torch tensor has a tangent of forward-mode AD, which neither `no_grad` nor inference mode take from it. There is none
/// outside of a level of dual tensors; a torch that does not say so is asked for the tangent.
#[pyfunction]
#[pyo3(name = "_has_tangent")]
pub(crate) fn has_tangent(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = tensor.py();
    if !may_have_tangents(py)? {
        return Ok(false);
    }
    let Some(forward) = module(py, "torch.autograd.forward_ad")? else { return Ok(false) };
    // Inference mode hides it.
    let mode = py.import(intern!(py, "torch"))?.call_method1("inference_mode", (false,))?;
    mode.call_method0("__enter__")?;
    let dual = forward.call_method1("unpack_dual", (tensor,));
    mode.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
    // torch's other layouts have no such function, and no memory of one shape either.
    let Ok(dual) = answered(py, dual)? else { return Ok(false) };
    Ok(!dual.getattr("tangent")?.is_none())
}

/// Raises the version of a torch tensor that was written to, or of each in a list, so that `backward` does not take what they
/// hold for what was saved. Does nothing where torch is not imported.
pub(crate) fn increment_version(tensors: &Bound<'_, PyAny>) -> PyResult<()> {
    let Some(graph) = module(tensors.py(), "torch.autograd.graph")? else { return Ok(()) };
    let increment =
        |tensors: &Bound<'_, PyAny>| graph.call_method1("increment_version", (tensors,)).map(drop);
    match increment(tensors) {
        // torch before 2.5 takes one tensor.
        Err(error) if is_answer(tensors.py(), &error) && tensors.is_instance_of::<PyList>() => {
            tensors.try_iter()?.try_for_each(|tensor| increment(&tensor?))
        }
        done => done,
    }
}
