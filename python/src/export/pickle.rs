//! Pickles of tensors and batches, whose bytes are copied from a device and back to it. By protocol 5 the bytes may go beside the
//! pickle, once for each allocation: a tree in an arena is a short pickle and one buffer. Read with another
//! buffer, such as a copy on a device, the same pickle gives the same tree there.

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyTuple};
use windrow::batch::{Fields, SampleBounds};
use windrow::{Batch, Device, Error, Tensor};

use crate::export::buffer::on_host;
use crate::export::dlpack::duplicate;
use crate::ground::arguments::device_of;
use crate::ground::batch::PyBatch;
use crate::ground::dtype::dtype_of;
use crate::ground::errors::{to_py_err, DeviceError, OrPyErr};
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

/// The bytes of a tensor on the host, row-major: in its own memory if it is there and has no gaps, else in a copy.
fn row_major(py: Python<'_>, tensor: &Tensor) -> PyResult<Tensor> {
    match tensor.layout().is_compact() && !matches!(tensor.device(), Device::Cuda(_)) {
        true => tensor.bytes(),
        false => py.detach(|| duplicate(tensor, Device::Cpu, None)?.bytes()),
    }
    .or_py_err(py)
}

/// The bytes of a tensor as Python's, read without an end of the sharing with lazy clones. LayoutError for memory that was moved,
/// DeviceError for a tensor on a device.
pub(crate) fn bytes_of<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyBytes>> {
    on_host(tensor, "bytes")?;
    let bytes = row_major(py, unmoved(py, tensor)?)?;
    let bytes = bytes.as_slice::<u8>().or_py_err(py)?;
    PyBytes::new_with(py, bytes.len(), |buffer| {
        buffer.copy_from_slice(bytes);
        Ok(())
    })
}

/// A tensor as its bytes, row-major, dtype and shape, and the device that it is on. From protocol 5 on the bytes are a
/// `PickleBuffer` of the same memory if the tensor is on the host and has no gaps.
pub(crate) fn reduce_tensor<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    protocol: i32,
) -> PyResult<Reduced<'py>> {
    let bytes = row_major(py, tensor)?;
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
    let (dtype, shape) = (tensor.dtype().name(), PyTuple::new(py, tensor.shape())?);
    let arguments = match tensor.device() {
        device @ Device::Cuda(_) => (buffer, dtype, shape, device.to_string()).into_pyobject(py)?,
        _ => (buffer, dtype, shape).into_pyobject(py)?,
    };
    Ok((maker(py, "_tensor_of_bytes")?, arguments))
}

/// The tensor of this dtype and shape that bytes hold, from the first one on, in their memory; in a copy if they are on the host and
/// `device` is given. LayoutError where these are too few, DeviceError for a device that is not there.
#[pyfunction]
#[pyo3(signature = (memory, dtype, shape, device = None))]
pub(crate) fn _tensor_of_bytes(
    memory: &Bound<'_, PyAny>,
    dtype: &Bound<'_, PyAny>,
    shape: Vec<i64>,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyTensor> {
    let (py, dtype) = (memory.py(), dtype_of(dtype)?);
    let tensor = tensor_of(memory, "memory", Reading::OWNED)?.part(0, dtype, &shape);
    let tensor = tensor.or_py_err(py)?;
    Ok(PyTensor::from(match device.map(device_of).transpose()? {
        Some(device) if !matches!(tensor.device(), Device::Cuda(_)) => {
            py.detach(|| duplicate(&tensor, device, None)).map_err(|error| match error {
                Error::NoDriver(_) | Error::Argument(_) => not_there(device, &error),
                error => to_py_err(py, &error),
            })?
        }
        _ => tensor,
    }))
}

/// The DeviceError of a pickle from a device that cannot be used here.
fn not_there(device: Device, why: &Error) -> PyErr {
    DeviceError::new_err(format!(
        "a pickle of memory on {device}, which is not there ({why}): move it to the host before it is pickled"
    ))
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
