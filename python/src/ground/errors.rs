//! The engine's errors as Python exceptions with attributes.

use pyo3::create_exception;
use pyo3::exceptions::{
    PyBufferError, PyException, PyIndexError, PyMemoryError, PyRecursionError, PyRuntimeError,
    PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};
use windrow::collate::Form;
use windrow::error::{DriverError, ErrorValue, Hint, Mismatch, MoveSide};
use windrow::Error;

create_exception!(
    windrow,
    ShapeError,
    PyValueError,
    "A shape of samples or ``out`` does not fit. ``index``: position of the sample, None for ``out``; \
     ``path``: path of the leaf, or \"\"; ``expected`` and ``got``: what was expected and found; ``side``: of `copy_many`, \
     whose ``index`` is that of a pair, \"destination\" or \"source\", else None."
);
create_exception!(
    windrow,
    DTypeError,
    PyTypeError,
    "A dtype of samples or ``out`` does not fit. Attributes as for `ShapeError`."
);
create_exception!(
    windrow,
    DeviceError,
    PyValueError,
    "The device of samples or ``out`` does not fit. Attributes as for `ShapeError`."
);
create_exception!(
    windrow,
    LayoutError,
    PyBufferError,
    "The memory cannot be expressed or used, or its owner refuses to lend it (by a BufferError or TypeError, which is then the \
     ``__cause__``). Attributes as for `ShapeError`."
);
create_exception!(
    windrow,
    CudaError,
    PyRuntimeError,
    "A call of the CUDA driver failed. ``function``: its name; ``code``: the result, an int; ``name``: the name of that code."
);
create_exception!(
    windrow,
    CudaUnavailable,
    PyRuntimeError,
    "There is no usable CUDA driver, device or kernel, or this process may not use one: it was forked after its parent had \
     started CUDA, or is a worker."
);

/// Adds the exception classes to the module. Their attributes are None, or "" for `path`, where an error does not set them.
pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = m.py();
    for (name, class) in [
        ("ShapeError", py.get_type::<ShapeError>()),
        ("DTypeError", py.get_type::<DTypeError>()),
        ("DeviceError", py.get_type::<DeviceError>()),
        ("LayoutError", py.get_type::<LayoutError>()),
    ] {
        for attribute in ["index", "expected", "got", "side"] {
            class.setattr(attribute, py.None())?;
        }
        class.setattr("path", "")?;
        m.add(name, class)?;
    }
    let cuda = py.get_type::<CudaError>();
    for attribute in ["function", "code", "name"] {
        cuda.setattr(attribute, py.None())?;
    }
    m.add("CudaError", cuda)?;
    m.add("CudaUnavailable", py.get_type::<CudaUnavailable>())
}

/// The one way from an engine error to a Python exception, in the words of the functions: IndexError, MemoryError, a class of
/// this file, or, for overlaps and all else, ValueError.
pub(crate) fn to_py_err(py: Python<'_>, error: &Error) -> PyErr {
    to_caller(py, error, None)
}

/// How the form of a leaf of a tree is said.
#[derive(Clone)]
pub(crate) struct Spec {
    /// The class of specs for it.
    pub class: String,
    /// Whether the class that the leaf is within takes no other form.
    pub is_fixed: bool,
}

/// Converts an error as [`to_py_err`] does; if a spec is given, hints name it in place of the call.
pub(crate) fn to_caller(py: Python<'_>, error: &Error, spec: Option<Spec>) -> PyErr {
    let text = match error.mismatch() {
        Some(m) => text_of(m, spec),
        None => error.to_string(),
    };
    let with = |class: Bound<'_, PyType>, mismatch: &Mismatch| {
        mismatch_err(&class, &text, mismatch).unwrap_or_else(|error| error)
    };
    match error {
        Error::Shape(m) => with(py.get_type::<ShapeError>(), m),
        Error::DType(m) => with(py.get_type::<DTypeError>(), m),
        Error::Device(m) => with(py.get_type::<DeviceError>(), m),
        Error::Layout(m) => with(py.get_type::<LayoutError>(), m),
        Error::Overlap(m) => with(py.get_type::<PyValueError>(), m),
        Error::OutOfMemory { .. } => PyMemoryError::new_err(text),
        Error::Index(_) => PyIndexError::new_err(text),
        Error::NoDriver(_) => CudaUnavailable::new_err(text),
        Error::Cuda(e) => cuda_err(py, &text, e).unwrap_or_else(|error| error),
        _ => PyValueError::new_err(text),
    }
}

/// The text of an error, with its hint, if it has one, in Python's words.
fn text_of(mismatch: &Mismatch, spec: Option<Spec>) -> String {
    let Some(hint) = mismatch.hint else { return mismatch.to_string() };
    let call = |class: &str, arguments: &str| match mismatch.path.as_str() {
        "" => format!("spec=wr.{class}({arguments})"),
        path => format!("spec={{{path:?}: wr.{class}({arguments})}}"),
    };
    let words = match (hint, spec) {
        (Hint::Pad, None) => "wr.pad takes samples of different shapes".to_owned(),
        (Hint::Pad, Some(Spec { is_fixed: true, .. })) => {
            "within this class tensors of one shape are stacked: pad them before, or give dicts of them".to_owned()
        }
        (Hint::Pad, Some(_)) => format!("{} takes samples of different shapes", call("Pad", "")),
        (Hint::Stack, None) => "wr.stack takes samples without dims".to_owned(),
        (Hint::Stack, Some(_)) => format!("{} takes samples without dims", call("Stack", "")),
        (Hint::Cast, None) => "dtype= casts on the way".to_owned(),
        (Hint::Cast, Some(Spec { class, .. })) => {
            format!("{} casts on the way", call(&class, "dtype=..."))
        }
        (Hint::CastToFloat, _) => {
            "dtype=\"float32\" gives floats; an integer dtype truncates and saturates".to_owned()
        }
        (Hint::CastToFloat32, _) => "dtype=\"float32\" names it".to_owned(),
        (Hint::Truncate, _) => "truncate=True cuts what does not fit".to_owned(),
        (Hint::PadDim(dim), _) => format!("name dim {dim} in dims= to pad it too"),
        (Hint::Device, _) => "an arena is in one place: device= says which".to_owned(),
        (Hint::BatchDevice, _) => "device= says where the batch is made".to_owned(),
        (hint, _) => hint.to_string(),
    };
    format!("{}; {words}", Mismatch { hint: None, ..mismatch.clone() })
}

/// The class of specs for leaves of this form: its name with a capital.
pub(crate) fn class_of(form: &Form) -> String {
    let (first, rest) = form.name().split_at(1);
    format!("{}{rest}", first.to_uppercase())
}

/// An exception of this class with `index`, `path`, `expected`, `got` and `side`; `Err` with another if it cannot be made.
fn mismatch_err(class: &Bound<'_, PyType>, text: &str, m: &Mismatch) -> PyResult<PyErr> {
    let error = class.call1((text,))?;
    error.setattr("index", m.index)?;
    error.setattr("path", &m.path)?;
    error.setattr("expected", error_value(class.py(), &m.expected)?)?;
    error.setattr("got", error_value(class.py(), &m.got)?)?;
    error.setattr("side", m.side.map(|side| side.to_string()))?;
    Ok(PyErr::from_value(error))
}

/// A `CudaError` with `function`, `code` and `name`; `Err` with another if it cannot be made.
fn cuda_err(py: Python<'_>, text: &str, e: &DriverError) -> PyResult<PyErr> {
    let error = py.get_type::<CudaError>().call1((text,))?;
    error.setattr("function", e.function)?;
    error.setattr("code", e.code)?;
    error.setattr("name", &e.name)?;
    Ok(PyErr::from_value(error))
}

/// A tuple for a shape, else a str.
fn error_value<'py>(py: Python<'py>, value: &ErrorValue) -> PyResult<Bound<'py, PyAny>> {
    match value {
        ErrorValue::Shape(dims) => Ok(PyTuple::new(py, dims.iter())?.into_any()),
        other => Ok(other.to_string().into_pyobject(py)?.into_any()),
    }
}

/// Engine results to Python results.
pub(crate) trait OrPyErr<T> {
    /// The value, or the exception of the error.
    fn or_py_err(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrPyErr<T> for windrow::Result<T> {
    fn or_py_err(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| to_py_err(py, &error))
    }
}

/// Whether an error is an answer to what was asked. KeyboardInterrupt, SystemExit and their like are
/// not, nor is it one that memory or stack ran out on the way: they are passed on as they are, whatever
/// was being tried.
pub(crate) fn is_answer(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyException>(py)
        && !error.is_instance_of::<PyMemoryError>(py)
        && !error.is_instance_of::<PyRecursionError>(py)
}

/// The result, or the error that is an answer to the question; any other error is passed on.
pub(crate) fn answered<T>(py: Python<'_>, asked: PyResult<T>) -> PyResult<PyResult<T>> {
    match asked {
        Err(error) if !is_answer(py, &error) => Err(error),
        asked => Ok(asked),
    }
}

/// The error of `words` in place of one that is an answer; any other as it is.
pub(crate) fn in_words(py: Python<'_>, error: PyErr, words: impl FnOnce() -> PyErr) -> PyErr {
    if is_answer(py, &error) {
        words()
    } else {
        error
    }
}

/// A text that Python was asked for, "?" if asking failed; an error that is no answer is passed on.
fn text_in(py: Python<'_>, asked: PyResult<Bound<'_, PyString>>) -> PyResult<String> {
    let text = answered(py, asked)?.ok();
    Ok(text.map_or_else(|| "?".to_owned(), |text| text.to_string_lossy().into_owned()))
}

/// The `str` of an object, for the text of an error; as [`text_in`] where it fails.
pub(crate) fn shown(object: &Bound<'_, PyAny>) -> PyResult<String> {
    text_in(object.py(), object.str())
}

/// The `repr` of an argument, for the text of an error, its first 200 characters if it is longer; as [`text_in`] where it fails.
pub(crate) fn quoted(object: &Bound<'_, PyAny>) -> PyResult<String> {
    let text = text_in(object.py(), object.repr())?;
    Ok(match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    })
}

/// An attribute, or `None` where asking for it raises an answer; any other error is passed on.
pub(crate) fn attribute<'py>(
    object: &Bound<'py, PyAny>,
    name: &str,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(answered(object.py(), object.getattr(name))?.ok())
}

/// The name of a class with its module, without that of builtins; "?" if asking failed.
pub(crate) fn class_name(class: &Bound<'_, PyType>) -> PyResult<String> {
    text_in(class.py(), class.fully_qualified_name())
}

/// The place in a tree, for the text of an error: nothing at its root.
pub(crate) fn at(path: &str) -> String {
    match path {
        "" => String::new(),
        path => format!(" at {path:?}"),
    }
}

/// The subject of an error.
#[derive(Clone, Copy)]
pub(crate) enum ErrorSubject {
    Sample(usize),
    Argument(&'static str),
    /// One of a pair.
    Pair(MoveSide, usize),
}

impl std::fmt::Display for ErrorSubject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ErrorSubject::Sample(index) => write!(f, "sample {index}"),
            ErrorSubject::Argument(name) => f.write_str(name),
            ErrorSubject::Pair(side, index) => write!(f, "{side} {index}"),
        }
    }
}

/// The end of an error's text for an object of a class that cannot be read and has something that can; empty for other classes.
pub(crate) fn array_hint(class: &Bound<'_, PyType>) -> PyResult<&'static str> {
    // Arrow's tables; scipy.sparse; pandas, polars, Arrow's chunked arrays. The last that fits is the best.
    let hints = [
        ("__arrow_c_stream__", "; give it in place of the list: a table is the list of its rows"),
        ("toarray", "; use .toarray()"),
        ("to_numpy", "; use .to_numpy()"),
    ];
    let mut hint = "";
    for (name, text) in hints {
        if matches!(answered(class.py(), class.hasattr(name))?, Ok(true)) {
            hint = text;
        }
    }
    Ok(hint)
}

/// The TypeError of an object that is no array-like, with a hint where its class has one.
pub(crate) fn not_array_like<T>(
    subject: ErrorSubject,
    path: &str,
    object: &Bound<'_, PyAny>,
) -> PyResult<T> {
    let class = object.get_type();
    let text =
        format!("expected an array-like, got {}{}", class_name(&class)?, array_hint(&class)?);
    Err(type_error(object.py(), subject, path, &text))
}

/// A TypeError that names sample and leaf, in its text and as attributes.
pub(crate) fn type_error(py: Python<'_>, subject: ErrorSubject, path: &str, text: &str) -> PyErr {
    let text = format!("{subject}{}: {text}", at(path));
    let error = PyTypeError::new_err(text);
    match subject {
        ErrorSubject::Sample(index) => located(py, error, Some(index), path),
        ErrorSubject::Argument(_) => located(py, error, None, path),
        ErrorSubject::Pair(side, index) => at_pair(py, error, side, Some(index), path),
    }
}

/// The error with `index` and `path` as attributes: the sample, None for an argument, and the leaf. If they cannot be set, the
/// error of setting them.
pub(crate) fn located(py: Python<'_>, error: PyErr, index: Option<usize>, path: &str) -> PyErr {
    let value = error.value(py);
    match value.setattr("index", index).and_then(|()| value.setattr("path", path)) {
        Ok(()) => error,
        Err(error) => error,
    }
}

/// Sets `index`, `path` and `side` as [`located`] does; `index` is that of a pair, None for a side as a whole.
pub(crate) fn at_pair(
    py: Python<'_>,
    error: PyErr,
    side: MoveSide,
    index: Option<usize>,
    path: &str,
) -> PyErr {
    let error = located(py, error, index, path);
    match error.value(py).setattr("side", side.to_string()) {
        Ok(()) => error,
        Err(error) => error,
    }
}
