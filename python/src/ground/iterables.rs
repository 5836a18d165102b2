//! Iterables of Python's: what they are, and their items.

use pyo3::exceptions::{PyKeyError, PyMemoryError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyRange, PySet, PyString, PyTuple, PyType};

use crate::ground::errors::class_name;
use crate::ground::reserve::try_vec;

/// The items of an iterable. The items of a list are taken at one moment, whatever other threads do to it.
pub(crate) fn items_of<'py>(sequence: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    if let Ok(list) = sequence.cast_exact::<PyList>() {
        return tuple_items(&list.as_sequence().to_tuple()?);
    }
    if let Ok(tuple) = sequence.cast_exact::<PyTuple>() {
        return tuple_items(tuple);
    }
    entries(sequence, Ok)
}

/// The items of any iterable that is given as the list of samples, as a tuple; TypeError that it is none.
pub(crate) fn tuple_from<'py>(samples: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    let tuple = samples.py().get_type::<PyTuple>().call1((samples,));
    tuple.map_err(|error| no_list(samples, error))?.cast_into::<PyTuple>().map_err(PyErr::from)
}

/// The error of iterating what is given as the list of samples: a TypeError becomes one that it is no list, any other stays as it
/// is.
pub(crate) fn no_list(samples: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = samples.py();
    if !error.is_instance_of::<PyTypeError>(py) {
        return error;
    }
    match class_name(&samples.get_type()) {
        Ok(class) => {
            let text = format!("expected a list of samples, got {class}");
            let refusal = PyTypeError::new_err(text);
            // The cause is the error that an iterator may have raised on its way.
            refusal.set_cause(py, Some(error));
            refusal
        }
        Err(error) => error,
    }
}

/// The items of an iterable as a tuple; a tuple itself is not copied.
pub(crate) fn tuple_of<'py>(sequence: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    if let Ok(tuple) = sequence.cast_exact::<PyTuple>() {
        return Ok(tuple.clone());
    }
    let list = match sequence.cast_exact::<PyList>() {
        Ok(list) => list.clone(),
        Err(_) => list_of(sequence.py(), entries(sequence, Ok)?)?,
    };
    list.as_sequence().to_tuple()
}

/// The items of a tuple.
pub(crate) fn tuple_items<'py>(tuple: &Bound<'py, PyTuple>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let mut items = try_vec(tuple.len())?;
    items.extend(tuple.iter());
    Ok(items)
}

/// The entries of an iterable, one by one: what it says of its length need not be so. That of a range is, and may
/// exceed the memory.
pub(crate) fn entries<'py, T>(
    iterable: &Bound<'py, PyAny>,
    mut read: impl FnMut(Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let mut entries = match iterable.cast::<PyRange>() {
        Ok(range) => try_vec(range.len()?)?,
        Err(_) => Vec::new(),
    };
    for entry in iterable.try_iter()? {
        let entry = read(entry?)?;
        if entries.try_reserve(1).is_err() {
            return Err(PyMemoryError::new_err("the iterable is infinite or too large for memory"));
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// A mapping that is asked for values under keys. It is not asked for a key that it lacks, because it may add it.
pub(crate) struct Lookup<'m, 'py> {
    mapping: &'m Bound<'py, PyAny>,
    /// The keys, if the class has the `__contains__` of `Mapping`, which asks for the value; else its own is called.
    keys: Option<Bound<'py, PyAny>>,
}

impl<'m, 'py> Lookup<'m, 'py> {
    /// Looks up how the class answers; reads all keys if it has no `__contains__` of its own.
    pub fn new(mapping: &'m Bound<'py, PyAny>) -> PyResult<Lookup<'m, 'py>> {
        static ASKS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        if mapping.is_exact_instance_of::<PyDict>() {
            return Ok(Lookup { mapping, keys: None });
        }
        let (py, name) = (mapping.py(), intern!(mapping.py(), "__contains__"));
        let asks =
            || py.import("collections.abc")?.getattr("Mapping")?.getattr(name).map(Bound::unbind);
        let asks = ASKS.get_or_try_init(py, asks)?.bind(py);
        let is_listed = mapping.get_type().getattr_opt(name)?.is_some_and(|method| method.is(asks));
        let keys = is_listed.then(|| py.get_type::<PySet>().call1((mapping,))).transpose()?;
        Ok(Lookup { mapping, keys })
    }

    /// Whether the mapping has a key.
    pub fn has(&self, key: &Bound<'py, PyAny>) -> PyResult<bool> {
        self.keys.as_ref().unwrap_or(self.mapping).contains(key)
    }

    /// The value under a key; `None` if there is no such key.
    pub fn get(&self, key: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        // Plain dicts are asked directly: a lookup by the protocol costs twice as much.
        if let Ok(dict) = self.mapping.cast_exact::<PyDict>() {
            return dict.get_item(key);
        }
        if !self.has(key)? {
            return Ok(None);
        }
        match self.mapping.get_item(key) {
            Err(error) if error.is_instance_of::<PyKeyError>(key.py()) => Ok(None),
            item => item.map(Some),
        }
    }
}

/// Whether an object is a mapping. PyO3's own check takes an interrupt for a "no".
pub(crate) fn is_mapping(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static MAPPING: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if object.is_instance_of::<PyDict>() {
        return Ok(true);
    }
    object.is_instance(MAPPING.import(object.py(), "collections.abc", "Mapping")?)
}

/// Whether an object is a sequence, a str too; see `is_mapping`.
pub(crate) fn is_sequence(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static SEQUENCE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if is_list_or_tuple(object) {
        return Ok(true);
    }
    object.is_instance(SEQUENCE.import(object.py(), "collections.abc", "Sequence")?)
}

/// Whether an object is a list or tuple, or of a class derived from one.
pub(crate) fn is_list_or_tuple(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyList>()
}

/// Whether an object is a str or bytes, or of a class derived from one. Leaves of these pass through, as a list.
pub(crate) fn is_text(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>()
}

/// Refuses a mapping, a table of columns, a sparse matrix or text as a list of samples; anything else passes, an array too.
#[pyfunction]
#[pyo3(name = "_check_list")]
pub(crate) fn check_list(samples: &Bound<'_, PyAny>) -> PyResult<()> {
    let hint = if is_list_or_tuple(samples) {
        return Ok(());
    } else if is_text(samples) {
        ""
    } else if is_mapping(samples)? {
        "; a mapping is one sample of wr.collate, which takes a list of them"
    } else if samples.hasattr("to_numpy")? && samples.hasattr("columns")? {
        // A pandas without the Arrow interface, or a place where that is not read. Iterators of such frames give columns.
        "; use .to_numpy(), or for wr.collate a list of dicts, one for each row"
    } else if samples.hasattr("toarray")? {
        "; use .toarray()"
    } else {
        return Ok(());
    };
    let class = class_name(&samples.get_type())?;
    Err(PyTypeError::new_err(format!("expected a list of samples, got {class}{hint}")))
}

/// A list of these. PyO3's own constructor panics where there is no memory for it.
pub(crate) fn list_of<'py>(
    py: Python<'py>,
    items: impl IntoIterator<Item = Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    items.into_iter().try_for_each(|item| list.append(item))?;
    Ok(list)
}
