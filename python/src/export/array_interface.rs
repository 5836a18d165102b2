//! `__array_interface__` and `__cuda_array_interface__`.

use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use windrow::{Device, Stream, Tensor};

use crate::ground::dtype::typestr_of;
use crate::ground::errors::OrPyErr;
use crate::ownership::ready::ready_on;

/// `__array_interface__` of a host tensor; AttributeError for one on a device, and for a dtype without a typestr.
pub(crate) fn array_interface<'py>(
    py: Python<'py>,
    tensor: &Tensor,
) -> PyResult<Bound<'py, PyDict>> {
    let typestr =
        typestr_of(tensor.dtype()).filter(|_| !matches!(tensor.device(), Device::Cuda(_)));
    let typestr = typestr.ok_or_else(|| {
        let (dtype, device) = (tensor.dtype(), tensor.device());
        PyAttributeError::new_err(format!("{dtype} on {device} has no __array_interface__"))
    })?;
    described(py, tensor, &typestr)
}

/// `__cuda_array_interface__` of a device tensor, version 3; AttributeError for others. The legacy default stream is ordered
/// behind what still writes the tensor, and named: ours may be gone before the consumer looks.
pub(crate) fn cuda_array_interface<'py>(
    py: Python<'py>,
    tensor: &Tensor,
) -> PyResult<Bound<'py, PyDict>> {
    let typestr = typestr_of(tensor.dtype()).filter(|_| matches!(tensor.device(), Device::Cuda(_)));
    let typestr = typestr.ok_or_else(|| {
        let (dtype, device) = (tensor.dtype(), tensor.device());
        PyAttributeError::new_err(format!("{dtype} on {device} has no __cuda_array_interface__"))
    })?;
    ready_on(tensor, Stream::LEGACY).or_py_err(py)?;
    let interface = described(py, tensor, &typestr)?;
    interface.set_item("stream", Stream::LEGACY.handle())?;
    Ok(interface)
}

/// The entries that both array interfaces share, with strides in bytes, and address 0 for an empty tensor on a device.
fn described<'py>(py: Python<'py>, tensor: &Tensor, typestr: &str) -> PyResult<Bound<'py, PyDict>> {
    let size = tensor.dtype().size() as i64;
    let is_empty_on_device =
        matches!(tensor.device(), Device::Cuda(_)) && tensor.shape().contains(&0);
    let address = if is_empty_on_device { 0 } else { tensor.data_ptr().expose_provenance() };
    let interface = PyDict::new(py);
    interface.set_item("version", 3)?;
    interface.set_item("shape", PyTuple::new(py, tensor.shape())?)?;
    interface.set_item("typestr", typestr)?;
    interface.set_item("data", (address, tensor.is_read_only()))?;
    interface.set_item(
        "strides",
        PyTuple::new(py, tensor.strides().iter().map(|stride| stride * size))?,
    )?;
    Ok(interface)
}
