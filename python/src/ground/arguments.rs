//! Keyword arguments: numbers, one value or one for each dim, devices, and what is said of those that do not fit.

use std::ops::RangeInclusive;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyDict, PyFloat, PyInt, PyString};
use windrow::collate::PerDim;
use windrow::tensor::Scalar;
use windrow::Device;

use crate::ground::errors::{attribute, in_words, is_answer, quoted, shown, LayoutError, OrPyErr};
use crate::ground::iterables::entries;
use crate::ground::modules::{grad_is_enabled, has_tangent, requires_grad};

/// The refusal of a keyword argument that `call` does not take, in the words of `windrow._hints`.
pub(crate) fn unexpected(py: Python<'_>, call: &str, key: &str) -> PyErr {
    let ask = || py.import("windrow._hints")?.call_method1("unexpected", (call, key));
    ask().map_or_else(|error| error, PyErr::from_value)
}

/// Refuses the rest of the keyword arguments, if there is any.
pub(crate) fn none_unknown(call: &str, unknown: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
    match unknown.and_then(|unknown| unknown.keys().iter().next()) {
        Some(key) => Err(unexpected(key.py(), call, &key.extract::<String>()?)),
        None => Ok(()),
    }
}

/// A call of a class with these keyword arguments, as text.
pub(crate) fn call_text(class: &str, kwargs: &Bound<'_, PyDict>) -> PyResult<String> {
    let items = kwargs.iter().map(|(key, value)| Ok(format!("{key}={}", value.repr()?)));
    Ok(format!("{class}({})", items.collect::<PyResult<Vec<_>>>()?.join(", ")))
}

/// The refusal of an argument that must be `what`, after `error` of its conversion: ValueError for an int beyond 64 bits, else
/// TypeError. An error that is no answer is returned as it is.
pub(crate) fn unfit(item: &Bound<'_, PyAny>, name: &str, what: &str, error: PyErr) -> PyErr {
    let py = item.py();
    match (is_answer(py, &error), quoted(item)) {
        (false, _) => error,
        (true, Err(aborted)) => aborted,
        (true, Ok(item)) if error.is_instance_of::<PyOverflowError>(py) => {
            PyValueError::new_err(format!("{name}={item} is beyond 64 bits"))
        }
        (true, Ok(item)) => PyTypeError::new_err(format!("{name} must be {what}, got {item}")),
    }
}

/// An int of a range; ValueError for one beyond it, TypeError for anything else, bools too.
pub(crate) fn int_within(
    item: &Bound<'_, PyAny>,
    name: &str,
    range: RangeInclusive<u64>,
) -> PyResult<u64> {
    let (py, is_bool) = (item.py(), item.is_instance_of::<PyBool>());
    match item.extract::<u64>() {
        Ok(int) if !is_bool && range.contains(&int) => Ok(int),
        Err(error) if !is_answer(py, &error) => Err(error),
        found => {
            let (least, most) = range.into_inner();
            let text =
                format!("{name} must be an int from {least} to {most}, got {}", quoted(item)?);
            let is_int = found.err().is_none_or(|e| e.is_instance_of::<PyOverflowError>(py));
            Err(match is_int && !is_bool {
                true => PyValueError::new_err(text),
                false => PyTypeError::new_err(text),
            })
        }
    }
}

/// The position that an index has among `len`, of which a negative one counts from the end; None if it is none of them.
/// `words` are for what is no int.
pub(crate) fn position_of(
    index: &Bound<'_, PyAny>,
    len: usize,
    words: &'static str,
) -> PyResult<Option<usize>> {
    let index = match index.extract::<isize>() {
        Ok(index) => index,
        Err(error) if error.is_instance_of::<PyOverflowError>(index.py()) => return Ok(None),
        Err(error) => return Err(in_words(index.py(), error, || PyTypeError::new_err(words))),
    };
    let position = if index < 0 { index + len as isize } else { index };
    Ok(usize::try_from(position).ok().filter(|position| *position < len))
}

/// A single option, or one for each entry of an iterable that is no string; bools are refused. TypeError, or ValueError for ints
/// beyond 64 bits.
pub(crate) fn per_dim<'py, T>(
    item: &Bound<'py, PyAny>,
    name: &str,
    what: &str,
) -> PyResult<PerDim<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let py = item.py();
    let refuse = |error: PyErr| match error.is_instance_of::<LayoutError>(py) {
        true => error,
        false => unfit(item, name, what, error),
    };
    if item.is_exact_instance_of::<PyInt>() || item.is_exact_instance_of::<PyString>() {
        // To ask these for an iterator costs more than all else of a small call.
        return item.extract::<T>().map(PerDim::All).map_err(refuse);
    }
    let no_bool = |item: &Bound<'py, PyAny>| match item.is_instance_of::<PyBool>() {
        true => Err(PyTypeError::new_err("a bool")),
        false => item.extract::<T>(),
    };
    refuse_grad(item, name)?;
    match item.try_iter() {
        Ok(_) if !item.is_instance_of::<PyString>() => {
            let entry_of = |entry: Bound<'py, PyAny>| {
                refuse_grad(&entry, name)?;
                no_bool(&entry)
            };
            entries(item, entry_of).map(PerDim::Each).map_err(refuse)
        }
        Err(error) if !is_answer(py, &error) => Err(error),
        _ => no_bool(item).map(PerDim::All).map_err(refuse),
    }
}

/// LayoutError for a torch tensor whose gradient is recorded, or that has a tangent: the number that it is read as has neither.
fn refuse_grad(item: &Bound<'_, PyAny>, name: &str) -> PyResult<()> {
    if item.is_exact_instance_of::<PyFloat>() || item.is_exact_instance_of::<PyInt>() {
        return Ok(());
    }
    let cure = if requires_grad(item)? && grad_is_enabled(item.py())? {
        "a tensor that requires grad, which a number does not; detach() it, or call within torch.no_grad()"
    } else if has_tangent(item)? {
        "a dual tensor, and a number has no tangent; unpack_dual(tensor).primal of torch.autograd.forward_ad has none"
    } else {
        return Ok(());
    };
    Err(LayoutError::new_err(format!("{name} is {cure}")))
}

/// A number, or an int; TypeError for a bool of Python. `T` decides on NumPy's bool, which `f64` takes.
pub(crate) struct NoBool<T>(pub T);

impl<'a, 'py, T> FromPyObject<'a, 'py> for NoBool<T>
where
    T: FromPyObject<'a, 'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(item: Borrowed<'a, 'py, PyAny>) -> PyResult<NoBool<T>> {
        match item.is_instance_of::<PyBool>() {
            true => Err(PyTypeError::new_err("a bool is no number here")),
            false => T::extract(item).map(NoBool),
        }
    }
}

/// The number of an argument, as of [`NoBool`]; the errors of [`unfit`].
pub(crate) fn number_argument<'py, T>(
    item: &Bound<'py, PyAny>,
    name: &str,
    what: &str,
) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    refuse_grad(item, name)?;
    item.extract().map(|NoBool(number)| number).map_err(|error| unfit(item, name, what, error))
}

/// A number, exactly as given: ints up to 128 bits, ValueError beyond; TypeError for what is no number. A bool of Python is the
/// `Int` 0 or 1.
pub(crate) fn scalar_of(value: &Bound<'_, PyAny>) -> PyResult<Scalar> {
    if let Ok(float) = value.cast::<PyFloat>() {
        return Ok(Scalar::Float(float.value()));
    }
    if let Ok(complex) = value.cast::<PyComplex>() {
        return Ok(Scalar::Complex(complex.real(), complex.imag()));
    }
    if let Ok(bool) = value.cast::<PyBool>() {
        return Ok(Scalar::from(bool.is_true()));
    }
    if value.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!("value must be a number, got {}", value.repr()?)));
    }
    refuse_grad(value, "value")?;
    // PyO3 reads an i128 by `>>` and `&`, which other classes may lack; `__index__` gives an int first.
    let int = match value.is_exact_instance_of::<PyInt>() {
        true => None,
        false => attribute(value, "__index__")?.map(|index| index.call0()),
    };
    let int = match int {
        Some(Err(error)) if !is_answer(value.py(), &error) => return Err(error),
        Some(Ok(int)) => Some(int),
        _ => None,
    };
    match int.as_ref().unwrap_or(value).extract::<i128>() {
        Ok(int) => Ok(Scalar::Int(int)),
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => {
            Err(PyValueError::new_err(format!("value={} is beyond every dtype", shown(value)?)))
        }
        Err(error) if !is_answer(value.py(), &error) => Err(error),
        Err(_) => float_or_complex(value).map_err(|error| {
            let refuse =
                |value| PyTypeError::new_err(format!("value must be a number, got {value}"));
            in_words(value.py(), error, || value.repr().map_or_else(|error| error, refuse))
        }),
    }
}

/// A number of another library, such as NumPy's complex64, whose `float` is its real part with a warning. A complex one whose
/// imaginary part is +0.0 is a `Float`.
fn float_or_complex(value: &Bound<'_, PyAny>) -> PyResult<Scalar> {
    let Some(complex) = attribute(value, "__complex__")? else {
        return value.extract().map(Scalar::Float);
    };
    let complex = complex.call0()?.cast_into::<PyComplex>()?;
    // Real numbers have `__complex__` too.
    Ok(match (complex.real(), complex.imag()) {
        (real, imag) if imag.to_bits() == 0 => Scalar::Float(real),
        (real, imag) => Scalar::Complex(real, imag),
    })
}

/// A device by its name or by an object that prints as one, as torch's do; ValueError for texts that [`Device`] does not parse,
/// which takes `cpu:0` and `cuda`, too.
pub(crate) fn device_of(device: &Bound<'_, PyAny>) -> PyResult<Device> {
    device.str()?.to_string().parse().or_py_err(device.py())
}
