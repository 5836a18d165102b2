//! Arrays of NumPy, torch, JAX and CuPy over a tensor's memory.
#![allow(unsafe_code)] // A function of torch's table.

use pyo3::exceptions::{PyImportError, PyUserWarning, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::bindings::set_handed_out;
use windrow::dlpack::ManagedTensor;
use windrow::error::{Hint, Mismatch};
use windrow::{DType, Device, Error, Tensor};

use crate::export::buffer::on_host;
use crate::export::dlpack::duplicate;
use crate::export::numpy_api::array_of;
use crate::ground::dtype::format_of;
use crate::ground::errors::{attribute, to_py_err, OrPyErr};
use crate::ground::logging::exporting;
use crate::ground::tensor::PyTensor;
use crate::import::routes::torch_api;
use crate::ownership::ready::{held_until_idle, lent_tensor};

/// Zero-copy NumPy array; types NumPy lacks come with those of ml_dtypes: ImportError without that package, DTypeError if it
/// lacks the type too. DeviceError for a tensor on a device. `keeper`: an object that keeps the tensor's memory and no other, if
/// there is one.
pub(crate) fn numpy<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    keeper: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let _stage = exporting(py);
    on_host(tensor, "NumPy")?;
    if let Some(array) = array_of(py, tensor, keeper)? {
        return Ok(array);
    }
    let numpy = py.import(intern!(py, "numpy"))?;
    let asarray = |tensor: Tensor| {
        numpy.call_method1(intern!(py, "asarray"), (Bound::new(py, PyTensor::from(tensor))?,))
    };
    if format_of(tensor.dtype()).is_some() {
        return asarray(tensor.clone());
    }
    let types = py.import("ml_dtypes").map_err(|_| {
        PyImportError::new_err(format!(
            "NumPy has no {}; the package ml_dtypes adds it",
            tensor.dtype()
        ))
    })?;
    let Some(dtype) = attribute(&types, tensor.dtype().name())? else {
        return Err(lacked(py, "a dtype that NumPy or ml_dtypes has", tensor.dtype(), BY_TORCH));
    };
    asarray(tensor.as_bits())?.call_method1("view", (dtype,))
}

/// Zero-copy torch tensor; where torch lends the memory, that tensor or a view of it. Warns of read-only memory; DTypeError for a
/// dtype that torch lacks, LayoutError for a stride below 0. Page-locked memory counts as handed out afterwards.
pub(crate) fn torch<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    if let Some(lent) = lent_tensor(py, tensor)? {
        return Ok(lent);
    }
    if tensor.is_read_only() {
        // The warning is that of `torch.from_numpy`.
        let text = c"this memory is read-only, which torch has no flag for: to write to the tensor is undefined; clone() it to write";
        PyErr::warn(py, &py.get_type::<PyUserWarning>(), text, 1)?;
    }
    set_handed_out(tensor, true);
    torch_of(py, tensor).map_err(|error| {
        let (dtype, torch) = (tensor.dtype(), py.import(intern!(py, "torch")));
        let expected = match torch.and_then(|torch| torch.hasattr(dtype.name())) {
            Ok(false) => "a dtype that torch has",
            Ok(true) if dtype.is_padded() => "a dtype that torch takes by DLPack",
            _ => return error,
        };
        // Torch's own words are the number of the dtype and where its code stood.
        lacked(py, expected, dtype, ".numpy() gives it by ml_dtypes")
    })
}

/// The hint where torch alone has a dtype.
const BY_TORCH: &str = ".torch() gives it";

/// The DTypeError of a dtype that another library lacks.
fn lacked(py: Python<'_>, expected: &str, dtype: DType, hint: &'static str) -> PyErr {
    let mismatch = Mismatch::for_subject("tensor", expected, dtype).with_hint(Hint::Text(hint));
    to_py_err(py, &Error::DType(Box::new(mismatch)))
}

/// A torch tensor of the same memory, by torch's exchange table or by DLPack; LayoutError for a stride below 0.
fn torch_of<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let layout = tensor.layout();
    let mut steps = layout.shape().iter().zip(layout.strides());
    if let Some((_, stride)) = steps.find(|&(&extent, &stride)| extent > 1 && stride < 0) {
        let got = format!("a stride of {stride}");
        let mismatch = Mismatch::for_subject("tensor", "strides from 0 on, as torch has them", got);
        let hint = Hint::Text("wr.stack of it copies it row-major");
        return Err(to_py_err(py, &Error::Layout(Box::new(mismatch.with_hint(hint)))));
    }
    if !matches!(tensor.device(), Device::Cuda(_)) {
        if let Some(exchanged) = through_exchange(py, tensor)? {
            return Ok(exchanged);
        }
    }
    // torch itself asks for the capsule: it names the version that it reads and, on a device, its current stream.
    let object = Bound::new(py, PyTensor::from(tensor.clone()))?;
    py.import(intern!(py, "torch"))?.call_method1(intern!(py, "from_dlpack"), (object,))
}

/// A torch tensor of host memory by torch's own exchange table: a third of what `from_dlpack` takes. `None` if torch has no
/// table, and for read-only memory, which only `from_dlpack` passes on as such.
fn through_exchange<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(take) = torch_api(py)?.and_then(|api| api.managed_tensor_to_py_object_no_sync) else {
        return Ok(None);
    };
    if tensor.is_read_only() {
        return Ok(None);
    }
    let _stage = exporting(py);
    let (managed, mut object) = (tensor.to_dlpack(), std::ptr::null_mut());
    // SAFETY: a function from torch's table, which takes the export over unless it fails; attached.
    unsafe {
        if take(managed.as_ptr(), &mut object) != 0 {
            drop(ManagedTensor::from_versioned(managed.as_ptr()));
            return Err(PyErr::fetch(py));
        }
        Bound::from_owned_ptr_or_err(py, object.cast()).map(Some)
    }
}

/// JAX array, zero-copy where JAX takes the alignment. JAX takes no memory with gaps, and may write to what it is given: of that,
/// and of read-only memory, the array is a copy, as it is of small floats and integers. DTypeError for a dtype that JAX lacks.
pub(crate) fn jax<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    match tensor.dtype() {
        DType::F4E2M1FNX2 => {
            return Err(lacked(py, "a dtype that JAX has", tensor.dtype(), BY_TORCH))
        }
        // JAX has them, and no word for them in DLPack.
        dtype if dtype.is_padded() => {
            return py.import("jax.numpy")?.call_method1("asarray", (numpy(py, tensor, None)?,));
        }
        _ => {}
    }
    let copied;
    let tensor = match tensor.is_read_only() || !tensor.layout().is_compact() {
        true => {
            copied = py.detach(|| duplicate(tensor, tensor.device(), None)).or_py_err(py)?;
            &copied
        }
        false => tensor,
    };
    // JAX names a stream, and computes on others.
    held_until_idle(tensor).or_py_err(py)?;
    let object = Bound::new(py, PyTensor::from(tensor.clone()))?;
    py.import("jax.dlpack")?.call_method1("from_dlpack", (object,))
}

/// CuPy array; of host memory a copy on the current device.
pub(crate) fn cupy<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    if let Device::Cuda(_) = tensor.device() {
        let object = Bound::new(py, PyTensor::from(tensor.clone()))?;
        return py.import("cupy")?.call_method1(intern!(py, "from_dlpack"), (object,));
    }
    py.import("cupy")?.call_method1("asarray", (numpy(py, tensor, None)?,))
}

/// `__array__` in NumPy's protocol: an array of the same memory, or a copy for another dtype or `copy=True`; ValueError if
/// `copy=False` forbids it. Other errors as of [`numpy`].
pub(crate) fn array<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    dtype: Option<&Bound<'py, PyAny>>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    let array = numpy(py, tensor, None)?;
    let array = match dtype {
        None => array,
        Some(dtype) => {
            let same = array
                .getattr("dtype")?
                .eq(py.import("numpy")?.getattr("dtype")?.call1((dtype,))?)?;
            if copy == Some(false) && !same {
                return Err(PyValueError::new_err(
                    "a cast needs a copy, and copy=False forbids one",
                ));
            }
            let kwargs = PyDict::new(py);
            kwargs.set_item("copy", false)?;
            array.call_method("astype", (dtype,), Some(&kwargs))?
        }
    };
    if copy == Some(true) {
        array.call_method0("copy")
    } else {
        Ok(array)
    }
}
