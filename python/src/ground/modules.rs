//! Modules that the program has imported by itself, and what they say.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use pyo3::{ffi, intern};

use crate::ground::errors::attribute;

/// A module that is already imported.
pub(crate) fn module<'py>(py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    // SAFETY: attached; the interpreter's own dict, borrowed, or NULL when that is gone.
    #[allow(unsafe_code)]
    let modules = unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyImport_GetModuleDict()) };
    let modules = modules.and_then(|modules| modules.cast_into::<PyDict>().ok());
    modules.map_or(Ok(None), |modules| modules.get_item(name))
}

/// A class of such a module.
pub(crate) fn loaded<'py>(
    py: Python<'py>,
    module: &str,
    name: &str,
) -> PyResult<Option<Bound<'py, PyType>>> {
    let Some(module) = self::module(py, module)? else { return Ok(None) };
    Ok(attribute(&module, name)?.and_then(|class| class.cast_into().ok()))
}

/// Whether torch records now what gradients need, on this thread.
pub(crate) fn grad_is_enabled(py: Python<'_>) -> PyResult<bool> {
    let Some(torch) = module(py, "torch")? else { return Ok(true) };
    torch.call_method0("is_grad_enabled")?.is_truthy()
}

/// Whether an object says of itself that it requires grad, as torch's tensors do.
pub(crate) fn requires_grad(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let answer = object.getattr_opt(intern!(object.py(), "requires_grad"))?;
    answer.map_or(Ok(false), |answer| answer.is_truthy())
}

/// Tells torch of a tensor that was written to, so that `backward` does not take what it holds for what was
/// saved.
pub(crate) fn increment_version(tensor: &Bound<'_, PyAny>) -> PyResult<()> {
    match module(tensor.py(), "torch.autograd.graph")? {
        Some(graph) => graph.call_method1("increment_version", (tensor,)).map(drop),
        None => Ok(()),
    }
}
