//! Arguments that are integers: indices, offsets, lengths, boxes.
#![allow(unsafe_code)] // Numbers of foreign objects.

use std::ffi::c_int;

use pyo3::exceptions::{PyIndexError, PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyList, PyRange, PyTuple};
use windrow::bindings::Dims;
use windrow::error::ErrorValue;
use windrow::{Collate, DType, Device, Tensor};

use crate::ground::errors::{is_answer, quoted, OrPyErr};
use crate::ground::iterables::entries;
use crate::ground::reserve::try_vec;
use crate::import::importer::Reading;
use crate::import::numpy_layout::{array_fields, ArrayStruct};
use crate::import::routes::{route_of, ImportRoute};
use crate::import::tensor::table_of;
use crate::ownership::copy::copy_of;

/// The numbers of a row in memory as int64; `None` for uint64, which may wrap, and for dtypes that are no integers.
///
/// # Safety
/// `count` numbers of the dtype at `data`, aligned for it.
unsafe fn widened(dtype: DType, data: *const u8, count: usize) -> Option<PyResult<Vec<i64>>> {
    /// # Safety
    /// `count` numbers of `T` at `data`, aligned for it.
    unsafe fn values_at<T: Copy + Into<i64>>(
        data: *const u8,
        count: usize,
    ) -> Option<PyResult<Vec<i64>>> {
        debug_assert!(!data.is_null() && data.cast::<T>().is_aligned());
        // SAFETY: the caller's promise.
        let row = unsafe { std::slice::from_raw_parts(data.cast::<T>(), count) };
        Some(try_vec(count).map(|mut values| {
            values.extend(row.iter().map(|&value| value.into()));
            values
        }))
    }
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::I8 => values_at::<i8>(data, count),
            DType::I16 => values_at::<i16>(data, count),
            DType::I32 => values_at::<i32>(data, count),
            DType::I64 => values_at::<i64>(data, count),
            DType::U8 => values_at::<u8>(data, count),
            DType::U16 => values_at::<u16>(data, count),
            DType::U32 => values_at::<u32>(data, count),
            _ => None,
        }
    }
}

/// The numbers of a tensor that has some; `None` unless it is row-major, aligned, in pageable memory and of a dtype of
/// [`widened`].
fn integers_of(tensor: &Tensor) -> Option<PyResult<Vec<i64>>> {
    let (data, size) = (tensor.data_ptr().cast_const(), tensor.dtype().size());
    let is_row = tensor.device() == Device::Cpu && tensor.layout().is_compact();
    if !is_row || data.addr() % size != 0 {
        return None;
    }
    // SAFETY: elements without gaps, aligned; the tensor keeps them.
    unsafe { widened(tensor.dtype(), data, tensor.layout().numel() as usize) }
}

/// The numbers of a NumPy array of one dim, read from its struct: to make a tensor of it takes longer than all else for
/// the indices of a small batch. `None` for anything else, an empty array too.
fn integers_in(array: &Bound<'_, PyAny>) -> PyResult<Option<Vec<i64>>> {
    const IN_A_ROW: c_int = ArrayStruct::C_CONTIGUOUS | ArrayStruct::ALIGNED;
    if !matches!(route_of(array)?.0, ImportRoute::Array) {
        return Ok(None);
    }
    // SAFETY: the route is that of arrays that are laid out so.
    let Some(array) = (unsafe { array_fields(array.as_ptr()) }) else { return Ok(None) };
    match array.shape {
        &[count] if count > 0 && array.flags & IN_A_ROW == IN_A_ROW => {
            // SAFETY: `count` elements without gaps, aligned, by the array's word; the caller holds it.
            unsafe { widened(array.dtype, array.data, count as usize) }.transpose()
        }
        _ => Ok(None),
    }
}

/// One of a list of ints; IndexError beyond 63 bits, TypeError for anything else, bools too: a mask is no list of positions.
fn int_at(number: &Bound<'_, PyAny>, name: &str, position: usize) -> PyResult<i64> {
    let py = number.py();
    match number.extract() {
        Ok(int) if !number.is_instance_of::<PyBool>() => Ok(int),
        Err(error) if !is_answer(py, &error) => Err(error),
        Err(error) if error.is_instance_of::<PyOverflowError>(py) => {
            Err(PyIndexError::new_err(format!("{name}[{position}] is beyond 63 bits")))
        }
        _ => {
            let got = quoted(number)?;
            Err(PyTypeError::new_err(format!("{name}[{position}]={got}; {name} are ints")))
        }
    }
}

/// Whether an object is a list, a tuple or a range.
pub(crate) fn is_list(numbers: &Bound<'_, PyAny>) -> bool {
    numbers.is_instance_of::<PyList>()
        || numbers.is_instance_of::<PyTuple>()
        || numbers.is_instance_of::<PyRange>()
}

/// Numbers, row by row, and their shape, from an integer array-like of `ndim` dims, 1 or 2, or a list of ints or of rows of them.
/// IndexError beyond 63 bits, TypeError for anything else. Waits for numbers on a device.
pub(crate) fn integers(
    numbers: &Bound<'_, PyAny>,
    name: &'static str,
    ndim: usize,
) -> PyResult<(Vec<i64>, Dims)> {
    let py = numbers.py();
    let flat = |numbers: Vec<i64>| {
        let shape = Dims::from_slice(&[numbers.len() as i64]);
        (numbers, shape)
    };
    let is_list = is_list(numbers);
    if ndim == 1 && is_list {
        let mut position = 0..;
        return Ok(flat(entries(numbers, |number| {
            int_at(&number, name, position.next().unwrap_or_default())
        })?));
    }
    if ndim == 2 && is_list {
        let rows = entries(numbers, |row| Ok(integers(&row, name, 1)?.0))?;
        let width = rows.first().map_or(0, Vec::len);
        if rows.iter().any(|row| row.len() != width) {
            return Err(PyTypeError::new_err(format!("{name} are rows of unequal lengths")));
        }
        let mut all = try_vec(rows.len().saturating_mul(width))?;
        rows.iter().for_each(|row| all.extend_from_slice(row));
        return Ok((all, Dims::from_slice(&[rows.len() as i64, width as i64])));
    }
    if ndim == 1 {
        if let Some(numbers) = integers_in(numbers)? {
            return Ok(flat(numbers));
        }
    }
    let tensor = table_of(numbers, name, Reading::default())?;
    let shape = Dims::from_slice(tensor.shape());
    if shape.len() != ndim || !(tensor.dtype().is_integer()) {
        let dims = if ndim == 1 { "one dim" } else { "two dims" };
        let (dtype, got) = (tensor.dtype().native(), ErrorValue::from(&shape[..]));
        let text = format!("{name} are integers of {dims}, not {dtype} of {got}");
        return Err(PyTypeError::new_err(text));
    }
    if shape.contains(&0) {
        return Ok((Vec::new(), shape));
    }
    // Integers that need no cast are read without the engine.
    if let Some(values) = integers_of(&tensor).transpose()? {
        return Ok((values, shape));
    }
    // The engine itself casts, straightens and fetches them, and turns foreign byte order round.
    let collate = Collate::concat(0).cast(DType::I64).device(Device::Cpu);
    let row = py.detach(|| copy_of(&tensor, &collate, None)).or_py_err(py)?;
    let row = row.as_slice::<i64>().or_py_err(py)?;
    let mut values = try_vec(row.len())?;
    values.extend_from_slice(row);
    let is_beyond = |&value: &i64| tensor.dtype().native() == DType::U64 && value < 0;
    match values.iter().position(is_beyond) {
        Some(position) => {
            let place = match shape[..] {
                [_, width] => format!("{}, {}", position as i64 / width, position as i64 % width),
                _ => position.to_string(),
            };
            Err(PyIndexError::new_err(format!("{name}[{place}] is beyond 63 bits")))
        }
        None => Ok((values, shape)),
    }
}
