//! Tensors of Python numbers, and Python numbers of tensors.

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt, PyTuple};
use windrow::{Collate, DType, Device, Tensor};

use crate::ground::errors::OrPyErr;
use crate::ground::reserve::try_vec;
use crate::ownership::copy::copy_of;

/// The only element of a tensor as a Python number, from a device too.
///
/// # Errors
/// TypeError for another number of elements than one, and for dtypes that convert to nothing, as most of float8.
pub(crate) fn number_of<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
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

/// Python numbers as a row of bools, float64 or int64. The caller gives at least one, all of one class: none panics, another
/// class is an error. `None` for ints beyond 64 bits and for other objects.
pub(crate) fn row_of_numbers(items: &[Bound<'_, PyAny>]) -> PyResult<Option<Tensor>> {
    let shape = [items.len() as i64];
    let row = if items[0].is_instance_of::<PyBool>() {
        let values = items.iter().map(|item| item.extract::<bool>());
        Tensor::from_vec(row_of(items.len(), values)?, &shape)
    } else if items[0].is_instance_of::<PyFloat>() {
        let values = items.iter().map(|item| item.extract::<f64>());
        Tensor::from_vec(row_of(items.len(), values)?, &shape)
    } else if items[0].is_instance_of::<PyInt>() {
        let values = items.iter().map(|item| item.extract::<i64>());
        match row_of(items.len(), values) {
            Ok(values) => Tensor::from_vec(values, &shape),
            Err(error) if error.is_instance_of::<PyOverflowError>(items[0].py()) => {
                return Ok(None)
            }
            Err(error) => return Err(error),
        }
    } else {
        return Ok(None);
    };
    row.map(Some).or_py_err(items[0].py())
}

/// The values, `len` of them; the first error, or MemoryError.
fn row_of<T>(len: usize, values: impl Iterator<Item = PyResult<T>>) -> PyResult<Vec<T>> {
    let mut row = try_vec(len)?;
    for value in values {
        row.push(value?);
    }
    Ok(row)
}
