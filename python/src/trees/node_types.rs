//! The types that are containers: mappings, dataclasses, and the classes of `windrow._nodes`.

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};

use crate::ground::errors::{answered, array_hint, at, class_name};
use crate::ground::iterables::{entries, list_of};
use crate::import::importer::Reading;
use crate::import::routes::{route_of, ImportRoute};
use crate::import::tensor::tensor_of;
use crate::trees::container::{Maker, NodeType, Registered};

/// A maker of containers like the first of the samples, which holds no child of it.
pub(super) fn maker_of(
    first: &Bound<'_, PyAny>,
    node_type: &NodeType,
    path: &str,
) -> PyResult<Maker> {
    static LIKE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let py = first.py();
    let import = || py.import("windrow._like").map(Bound::unbind);
    let module = LIKE.get_or_try_init(py, import)?.bind(py);
    let (function, like) = match node_type {
        NodeType::Sequence(..) | NodeType::Named(..) => {
            ("sequence_like", module.call_method1("sequence_template", (first, path))?)
        }
        NodeType::Dataclass(fields) => {
            ("object_like", module.call_method1("object_template", (first, fields, path))?)
        }
        NodeType::Mapping(keys) | NodeType::Registered(Registered { names: keys, .. }) => {
            ("mapping_like", module.call_method1("mapping_template", (first, keys, path))?)
        }
    };
    Ok(Maker { function: module.getattr(function)?.unbind(), like: Some(like.unbind()) })
}

/// Whether an object is a dict, list or tuple, of no other class.
pub(super) fn is_builtin(object: &Bound<'_, PyAny>) -> bool {
    object.cast_exact::<PyDict>().is_ok()
        || object.cast_exact::<PyList>().is_ok()
        || object.cast_exact::<PyTuple>().is_ok()
}

/// The names of a dataclass's fields, in order; None for another class.
pub(crate) fn dataclass_fields(class: &Bound<'_, PyType>) -> PyResult<Option<Vec<Py<PyAny>>>> {
    let py = class.py();
    if !class.hasattr(intern!(py, "__dataclass_fields__"))? {
        return Ok(None);
    }
    let fields = py.import("dataclasses")?.call_method1("fields", (class,))?;
    entries(&fields, |field| Ok(field.getattr("name")?.unbind())).map(Some)
}

/// The children of a column.
pub(super) enum Entries<'py> {
    /// A dict for each sample.
    Samples(Vec<Bound<'py, PyAny>>),
    /// A list for each name, of as many as there are samples.
    Columns(Bound<'py, PyDict>),
}

impl<'py> Entries<'py> {
    /// The children of the first sample, by name; `None` without samples.
    pub fn into_first(self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self {
            Entries::Samples(samples) => Ok(samples.into_iter().next()),
            Entries::Columns(columns) => {
                let first = PyDict::new(py);
                for (name, column) in entries(&columns.items(), |item| item.extract())? {
                    let (name, column): (Bound<'py, PyAny>, Bound<'py, PyAny>) = (name, column);
                    first.set_item(name, column.get_item(0)?)?;
                }
                Ok(Some(first.into_any()))
            }
        }
    }
}

/// A column of objects of one class that `windrow._nodes` knows, opened.
pub(super) struct FlattenedClass<'py> {
    pub children: Entries<'py>,
    pub unflatten: Bound<'py, PyAny>,
    /// Form and arguments of children that are not stacked, by name.
    pub forms: Option<Bound<'py, PyDict>>,
    /// The name of the class, if its leaves have to be torch tensors.
    pub tensors: Option<String>,
    /// Flattens further objects as these, if that does not depend on all of a column.
    pub flatten_more: Option<Bound<'py, PyAny>>,
}

/// The function that takes apart objects of a registered class or of one that `windrow._nodes`
/// knows; `None` for other classes, for dict, list and tuple themselves, and for array-likes.
/// `is_last`: no other rule makes the class a container. Then it is looked for among the nodes of
/// pytrees, else among classes of libraries.
pub(crate) fn flattener_of<'py>(
    object: &Bound<'py, PyAny>,
    is_last: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    static FIND: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = object.py();
    if is_builtin(object)
        || !matches!(route_of(object)?.0, ImportRoute::Protocols | ImportRoute::Row)
    {
        return Ok(None);
    }
    let find = || py.import("windrow._nodes")?.getattr("find").map(Bound::unbind);
    let find = FIND.get_or_try_init(py, find)?.bind(py);
    let flattener = find.call1((object.get_type(), is_last))?;
    Ok((!flattener.is_none()).then_some(flattener))
}

/// Opens a column of objects of the flattener's class, by its Python code, whose errors are passed on; TypeError or ValueError if
/// that returns something else.
pub(super) fn call_flattener<'py>(
    flattener: &Bound<'py, PyAny>,
    samples: Vec<Bound<'py, PyAny>>,
    path: &str,
    sep: &str,
) -> PyResult<FlattenedClass<'py>> {
    let flattened = flattener.call1((list_of(flattener.py(), samples)?, path, sep))?;
    let (children, unflatten, forms, tensors, flatten_more): (Bound<'py, PyAny>, _, _, _, _) =
        flattened.extract()?;
    let children = match children.cast_into::<PyDict>() {
        Ok(columns) => Entries::Columns(columns),
        Err(error) => Entries::Samples(error.into_inner().extract()?),
    };
    Ok(FlattenedClass { children, unflatten, forms, tensors, flatten_more })
}

/// TypeError for a class that passes for a mapping (`is_mapping`) or a dataclass, but has the
/// attributes of a TensorDict or tensorclass: what else such objects hold would be lost.
pub(crate) fn check_known(class: &Bound<'_, PyType>, path: &str, is_mapping: bool) -> PyResult<()> {
    let is_tensordict = match is_mapping {
        true => class.hasattr("batch_size")? && class.hasattr("batch_dims")?,
        false => class.hasattr("_is_tensorclass")?,
    };
    if is_tensordict {
        return Err(unknown(class, path, &hint_for(class)?.unwrap_or_default())?);
    }
    Ok(())
}

/// The error of reading a column of leaves. A TypeError becomes one that says how to give an object as the first, if that is of a
/// class that could be a container and is no array-like.
pub(crate) fn in_place_of(error: PyErr, first: &Bound<'_, PyAny>, path: &str) -> PyResult<PyErr> {
    let (py, class) = (first.py(), first.get_type());
    let is_array_like =
        || PyResult::Ok(answered(py, tensor_of(first, "sample", Reading::default()))?.is_ok());
    // Others have a hint of their own.
    let is_plain =
        matches!(route_of(first)?.0, ImportRoute::Protocols) && array_hint(&class)?.is_empty();
    let is_refusal = is_plain && error.get_type(py).is(py.get_type::<PyTypeError>());
    let hint = if is_refusal { hint_for(&class)? } else { None };
    match hint {
        Some(hint) if !is_array_like()? => unknown(&class, path, &hint),
        _ => Ok(error),
    }
}

/// The advice for an object of a class that `collate` does not know, by `windrow._hints`; `None` for classes of
/// Python's own that hold nothing.
fn hint_for(class: &Bound<'_, PyType>) -> PyResult<Option<String>> {
    class.py().import("windrow._hints")?.call_method1("in_place_of", (class,))?.extract()
}

/// The TypeError of a container of an unknown class, with what to give instead.
fn unknown(class: &Bound<'_, PyType>, path: &str, hint: &str) -> PyResult<PyErr> {
    Ok(PyTypeError::new_err(format!(
        "sample 0{}: expected an array-like or a container that wr.collate knows, got {}; give {hint}",
        at(path),
        class_name(class)?
    )))
}
