//! Tensors of Python numbers, and Python numbers of tensors.

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt, PyTuple};
use windrow::tensor::Element;
use windrow::{Collate, DType, Device, Tensor};

use crate::ground::errors::OrPyErr;
use crate::ground::reserve::try_vec;
use crate::ownership::copy::copy_of;
use crate::ownership::holder::unmoved;

/// The only element of a tensor as a Python number, from a device too.
///
/// # Errors
/// LayoutError for memory that was moved; TypeError for another number of elements than one, and for dtypes that convert to nothing, as most of float8; the engine's
/// error if the copy fails.
pub(crate) fn number_of<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let tensor = unmoved(py, tensor)?;
    let dtype = tensor.dtype();
    if !is_single(tensor) {
        let shape = PyTuple::new(py, tensor.shape())?.repr()?;
        let text = format!("only a tensor of one element is a number, not one of shape {shape}");
        return Err(PyTypeError::new_err(text));
    }
    let wide = match dtype {
        DType::Bool => DType::U8,
        DType::U64 | DType::C64 | DType::C128 => dtype,
        _ if dtype.is_integer() => DType::I64,
        _ if dtype.is_float() => DType::F64,
        _ => return Err(PyTypeError::new_err(format!("{dtype} has no Python number type"))),
    };
    let mut collate = Collate::stack().device(Device::Cpu);
    if wide != dtype {
        collate = collate.cast(wide);
    }
    // The engine itself casts and fetches it.
    let value = py.detach(|| copy_of(tensor, &collate, None)).or_py_err(py)?;
    let value = &value;
    let float = |bytes: &[u8]| match *bytes {
        [a, b, c, d] => f64::from(f32::from_ne_bytes([a, b, c, d])),
        _ => f64::from_ne_bytes(bytes.try_into().unwrap_or_default()),
    };
    Ok(match wide {
        DType::U8 => {
            (value.as_slice::<u8>().or_py_err(py)?[0] != 0).into_pyobject(py)?.to_owned().into_any()
        }
        DType::U64 => value.as_slice::<u64>().or_py_err(py)?[0].into_pyobject(py)?.into_any(),
        DType::I64 => value.as_slice::<i64>().or_py_err(py)?[0].into_pyobject(py)?.into_any(),
        DType::F64 => value.as_slice::<f64>().or_py_err(py)?[0].into_pyobject(py)?.into_any(),
        _ => {
            let bytes = value.bytes().or_py_err(py)?;
            let bytes = bytes.as_slice::<u8>().or_py_err(py)?;
            let (real, imag) = bytes.split_at(bytes.len() / 2);
            PyComplex::from_doubles(py, float(real), float(imag)).into_any()
        }
    })
}

/// Whether a tensor has exactly one element.
pub(crate) fn is_single(tensor: &Tensor) -> bool {
    tensor.layout().numel() == 1
}

/// Python numbers as a row of bools, float64 or int64, whichever the first one is. The caller gives at least one, for none
/// panics, and all of one class: an int among floats is converted, a float among ints is a TypeError. `None` for ints beyond
/// int64, and if the first one is another object.
pub(crate) fn row_of_numbers(items: &[Bound<'_, PyAny>]) -> PyResult<Option<Tensor>> {
    let first = &items[0];
    if first.is_instance_of::<PyBool>() {
        row_of::<bool>(items).map(Some)
    } else if first.is_instance_of::<PyFloat>() {
        row_of::<f64>(items).map(Some)
    } else if first.is_instance_of::<PyInt>() {
        match row_of::<i64>(items) {
            Err(error) if error.is_instance_of::<PyOverflowError>(first.py()) => Ok(None),
            row => row.map(Some),
        }
    } else {
        Ok(None)
    }
}

/// A row of at least one number on the host; the error of the first that does not convert to T.
fn row_of<'py, T>(items: &[Bound<'py, PyAny>]) -> PyResult<Tensor>
where
    T: Element + for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let mut row: Vec<T> = try_vec(items.len())?;
    for item in items {
        row.push(item.extract()?);
    }
    Tensor::from_vec(row, &[items.len() as i64]).or_py_err(items[0].py())
}
