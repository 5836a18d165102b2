//! Pickles of tensors and batches in host memory. By protocol 5 the bytes may go beside the pickle,
//! once for each allocation: a tree in an arena is a short pickle and one buffer. Read with another
//! buffer, such as a copy on a device, the same pickle gives the same tree there.

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyTuple};
use windrow::batch::{Fields, SampleBounds};
use windrow::{Batch, Device, Tensor};

use crate::export::buffer::on_host;
use crate::export::dlpack::duplicate;
use crate::ground::batch::PyBatch;
use crate::ground::dtype::dtype_of;
use crate::ground::errors::OrPyErr;
use crate::ground::reserve::try_vec;
use crate::ground::tensor::PyTensor;
use crate::import::importer::Reading;
use crate::import::tensor::tensor_of;
use crate::ownership::holder::unmoved;

/// The return value of `__reduce_ex__`.
pub(crate) type Reduced<'py> = (Bound<'py, PyAny>, Bound<'py, PyTuple>);

/// The function of this name, which unpickles.
pub(crate) fn maker<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import(intern!(py, "windrow._windrow"))?.getattr(name)
}

/// The bytes of a tensor, row-major: in its own memory if it has no gaps, else in a copy. DeviceError for one on a device, which
/// `what` cannot read.
fn row_major(py: Python<'_>, tensor: &Tensor, what: &str) -> PyResult<Tensor> {
    on_host(tensor, what)?;
    match tensor.layout().is_compact() {
        true => tensor.bytes(),
        false => py.detach(|| duplicate(tensor, Device::Cpu, None)?.bytes()),
    }
    .or_py_err(py)
}

/// The bytes of a tensor as Python's, read without an end of the sharing with lazy clones. LayoutError for memory that was moved,
/// DeviceError for a tensor on a device.
pub(crate) fn bytes_of<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = row_major(py, unmoved(py, tensor)?, "bytes")?;
    let bytes = bytes.as_slice::<u8>().or_py_err(py)?;
    PyBytes::new_with(py, bytes.len(), |buffer| {
        buffer.copy_from_slice(bytes);
        Ok(())
    })
}

/// A tensor as its bytes, row-major, dtype and shape; DeviceError for one on a device. From protocol 5 on the bytes are a
/// `PickleBuffer` of the same memory if the tensor has no gaps.
pub(crate) fn reduce_tensor<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    protocol: i32,
) -> PyResult<Reduced<'py>> {
    let bytes = row_major(py, tensor, "a pickle")?;
    let buffer = if protocol >= 5 {
        let bytes = Bound::new(py, PyTensor::from(bytes))?;
        py.import(intern!(py, "pickle"))?.getattr(intern!(py, "PickleBuffer"))?.call1((bytes,))?
    } else {
        let bytes = bytes.as_slice::<u8>().or_py_err(py)?;
        let copy = |buffer: &mut [u8]| {
            buffer.copy_from_slice(bytes);
            Ok(())
        };
        PyByteArray::new_with(py, bytes.len(), copy)?.into_any()
    };
    let arguments = (buffer, tensor.dtype().name(), PyTuple::new(py, tensor.shape())?);
    Ok((maker(py, "_tensor_of_bytes")?, arguments.into_pyobject(py)?))
}

/// The tensor of this dtype and shape that bytes hold, from the first one on, in their memory. LayoutError where these are too
/// few.
#[pyfunction]
pub(crate) fn _tensor_of_bytes(
    memory: &Bound<'_, PyAny>,
    dtype: &Bound<'_, PyAny>,
    shape: Vec<i64>,
) -> PyResult<PyTensor> {
    let (py, dtype) = (memory.py(), dtype_of(dtype)?);
    let tensor = tensor_of(memory, "memory", Reading::OWNED)?.part(0, dtype, &shape);
    Ok(PyTensor::from(tensor.or_py_err(py)?))
}

/// A batch as its arena, the place of each field in it, and what is known of the samples; without an
/// arena the fields are tensors.
pub(crate) fn reduce_batch<'py>(batch: &Bound<'py, PyBatch>) -> PyResult<Reduced<'py>> {
    let (py, inner) = (batch.py(), batch.get().batch());
    let fields = match inner.arena() {
        Some(_) => batch.getattr(intern!(py, "arena_layout"))?.cast_into::<PyDict>()?,
        None => {
            let fields = PyDict::new(py);
            for (name, _) in batch.get().tensors() {
                fields.set_item(name, batch.getattr(name)?)?;
            }
            fields
        }
    };
    let (header, column) = inner.fields().bounds().to_numbers();
    let parts = (header.to_vec(), packed(py, column)?);
    let arena = batch.getattr(intern!(py, "arena"))?;
    let arguments = (arena, fields, parts, inner.len(), inner.max_length());
    Ok((maker(py, "_batch_of_fields")?, arguments.into_pyobject(py)?))
}

/// Numbers as bytes: 64 bits each, the lowest first.
pub(crate) fn packed<'py>(py: Python<'py>, numbers: &[i64]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, size_of_val(numbers), |bytes| {
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        Ok(())
    })
}

/// The numbers of which [`packed`] made the bytes; what is left over of the last 8 is left out.
pub(crate) fn unpacked(bytes: &[u8]) -> PyResult<Vec<i64>> {
    let mut numbers = try_vec(bytes.len() / 8)?;
    let each = bytes.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok());
    numbers.extend(each.map(i64::from_le_bytes));
    Ok(numbers)
}

/// The batch that `reduce_batch` took apart. ValueError for parts without data or with a field that batches do not have.
#[pyfunction]
pub(crate) fn _batch_of_fields(
    arena: &Bound<'_, PyAny>,
    fields: &Bound<'_, PyDict>,
    parts: (Vec<i64>, Bound<'_, PyBytes>),
    num_samples: usize,
    max_length: Option<i64>,
) -> PyResult<PyBatch> {
    let py = fields.py();
    let (header, column) = parts;
    let parts = SampleBounds::from_numbers(&header, unpacked(column.as_bytes())?).or_py_err(py)?;
    let mut made = Fields::with_bounds(num_samples, parts);
    made.max_length = max_length;
    let arena: Option<Bound<'_, PyTensor>> = arena.extract()?;
    let memory = arena.as_ref().map(|arena| arena.get().inner());
    made.arena = memory.cloned().map(Box::new);
    let mut data = None;
    for (name, field) in fields {
        let tensor = match memory {
            Some(memory) => {
                let (dtype, shape, byte_offset): (Bound<'_, PyAny>, Vec<i64>, u64) =
                    field.extract()?;
                memory.part(byte_offset, dtype_of(&dtype)?, &shape).or_py_err(py)?
            }
            None => field.cast::<PyTensor>()?.get().inner().clone(),
        };
        let place = match name.extract::<&str>()? {
            "data" => {
                data = Some(tensor);
                continue;
            }
            "lengths" => &mut made.lengths,
            "offsets" => &mut made.offsets,
            "mask" => &mut made.mask,
            "batch_index" => &mut made.batch_index,
            "scales" => &mut made.scales,
            other => return Err(PyValueError::new_err(format!("a batch has no field {other:?}"))),
        };
        *place = Some(Box::new(tensor));
    }
    let data = data.ok_or_else(|| PyValueError::new_err("a batch without data"))?;
    let batch = Batch::try_new(data, made).or_py_err(py)?;
    Ok(PyBatch::in_arena(batch, arena.as_ref()))
}
