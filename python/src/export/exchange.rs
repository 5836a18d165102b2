//! Our own C exchange API: what other libraries find on `Tensor` and `Batch`.
#![allow(unsafe_code)] // C callbacks with raw pointers.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use windrow::dlpack::{
    read_tensor, read_versioned, DLDeviceType, DLManagedTensorVersioned, DLPackExchangeAPI,
    DLPackExchangeAPIHeader, DLPackVersion, DLTensor, DLPACK_EXCHANGE_API,
};
use windrow::{DType, Device, Stream, Tensor};

use crate::engine::default::default_engine;
use crate::export::dlpack::padded;
use crate::ground::batch::{tensor_in, PyBatch};
use crate::ground::errors::{shown, to_py_err, OrPyErr};
use crate::ground::tensor::PyTensor;
use crate::import::storages::lent;
use crate::ownership::ready::ready_on;

static API: DLPackExchangeAPI = DLPackExchangeAPI {
    header: DLPackExchangeAPIHeader {
        version: DLPackVersion::CURRENT,
        prev_api: std::ptr::null_mut(),
    },
    managed_tensor_allocator: Some(allocate),
    managed_tensor_from_py_object_no_sync: Some(from_py_object),
    managed_tensor_to_py_object_no_sync: Some(to_py_object),
    dltensor_from_py_object_no_sync: Some(borrow_from_py_object),
    current_work_stream: Some(current_work_stream),
};

/// Puts the table on both classes.
pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = m.py();
    let table = (&raw const API).cast_mut().cast::<c_void>();
    // SAFETY: a static table and a static name; nothing to free.
    let capsule = unsafe {
        Bound::from_owned_ptr_or_err(
            py,
            ffi::PyCapsule_New(table, DLPACK_EXCHANGE_API.as_ptr(), None),
        )?
    };
    for class in [py.get_type::<PyTensor>(), py.get_type::<PyBatch>()] {
        class.setattr("__dlpack_c_exchange_api__", &capsule)?;
    }
    Ok(())
}

/// Runs a callback that needs the interpreter; an error or a panic becomes -1 and an exception.
fn attached(f: impl FnOnce(Python<'_>) -> PyResult<()>) -> c_int {
    let body = AssertUnwindSafe(|| {
        Python::attach(|py| match f(py) {
            Ok(()) => 0,
            Err(error) => {
                error.restore(py);
                -1
            }
        })
    });
    catch_unwind(body).unwrap_or_else(|_| {
        Python::attach(|py| {
            PyRuntimeError::new_err("windrow panicked; please report it").restore(py)
        });
        -1
    })
}

/// The tensor that an object of ours is or stands for, and the object, which keeps the pointer valid. TypeError for another
/// object, LayoutError for memory that was moved.
///
/// # Safety
/// `object` is a live Python object.
unsafe fn tensor_at<'py>(
    py: Python<'py>,
    object: *mut c_void,
) -> PyResult<(Bound<'py, PyAny>, *const Tensor)> {
    // SAFETY: the caller's promise.
    let object = unsafe { Bound::from_borrowed_ptr(py, object.cast()) };
    let Some(tensor) = tensor_in(&object) else {
        let class = shown(&object.get_type())?;
        return Err(PyTypeError::new_err(format!("not a windrow tensor: {class}")));
    };
    let tensor: *const Tensor = lent(py, tensor)?;
    Ok((object, tensor))
}

/// An export of the object's tensor, which the caller owns; the legacy default stream is ordered behind what still writes it.
unsafe extern "C" fn from_py_object(
    object: *mut c_void,
    out: *mut *mut DLManagedTensorVersioned,
) -> c_int {
    attached(|py| {
        debug_assert!(!out.is_null());
        // SAFETY: the table's contract: a live object, a place for the result. The classes are
        // frozen, so the tensor stays where it is while the object lives.
        unsafe {
            let (_object, tensor) = tensor_at(py, object)?;
            ready_on(&*tensor, Stream::LEGACY).or_py_err(py)?;
            *out = (*tensor).to_dlpack().as_ptr();
        }
        Ok(())
    })
}

/// The object's tensor, borrowed: shape and strides live as long as the object. The legacy default stream is ordered behind what
/// still writes it. BufferError for a dtype that needs the flag of a versioned tensor.
unsafe extern "C" fn borrow_from_py_object(object: *mut c_void, out: *mut DLTensor) -> c_int {
    attached(|py| {
        debug_assert!(!out.is_null());
        // SAFETY: as above; the shape and strides lent belong to the object.
        unsafe {
            let (_object, tensor) = tensor_at(py, object)?;
            if (*tensor).dtype().is_padded() {
                return Err(padded((*tensor).dtype()));
            }
            ready_on(&*tensor, Stream::LEGACY).or_py_err(py)?;
            *out = (*tensor).borrow_tensor();
        }
        Ok(())
    })
}

/// A `Tensor` that owns `managed`. After a failure `managed` is still the caller's.
unsafe extern "C" fn to_py_object(
    managed: *mut DLManagedTensorVersioned,
    out: *mut *mut c_void,
) -> c_int {
    attached(|py| {
        debug_assert!(!out.is_null());
        // The struct is looked at first: a tensor is taken on success only.
        // SAFETY: the table's contract: a valid managed tensor.
        let fit = unsafe { read_versioned(managed) }.and_then(|foreign| foreign.layout());
        fit.map_err(|error| to_py_err(py, &error))?;
        // SAFETY: as above; from here on it is ours.
        let tensor =
            unsafe { Tensor::from_dlpack(managed) }.map_err(|error| to_py_err(py, &error))?;
        let object = Bound::new(py, PyTensor::from(tensor))?;
        // SAFETY: a place for the result.
        unsafe { *out = object.into_ptr().cast() };
        Ok(())
    })
}

/// Memory of the dtype, shape and device of `prototype`, not initialised, for callers that write tensors into our memory. Called
/// without the interpreter: after an error or a panic -1, and `set_error`, if it is given, has a RuntimeError. The legacy default
/// stream can write it at once.
unsafe extern "C" fn allocate(
    prototype: *mut DLTensor,
    out: *mut *mut DLManagedTensorVersioned,
    error_context: *mut c_void,
    set_error: Option<unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char)>,
) -> c_int {
    let body = AssertUnwindSafe(|| -> windrow::Result<_> {
        debug_assert!(!prototype.is_null() && prototype.is_aligned() && !out.is_null());
        // SAFETY: the table's contract: dtype, device, ndim and shape are filled in; data and strides
        // need not be, so they are taken out.
        let mut asked = unsafe { std::ptr::read(prototype) };
        asked.strides = std::ptr::null_mut();
        asked.byte_offset = 0;
        asked.data = std::ptr::NonNull::<u64>::dangling().as_ptr().cast();
        // SAFETY: as above.
        let (dtype, device, shape): (DType, Device, Vec<i64>) = unsafe {
            let read = read_tensor(&asked)?;
            (read.dtype, read.device, read.shape.to_vec())
        };
        let tensor = default_engine().empty(dtype, &shape, device)?;
        ready_on(&tensor, Stream::LEGACY)?;
        Ok(tensor)
    });
    let text = match catch_unwind(body) {
        Ok(Ok(tensor)) => {
            // SAFETY: a place for the result.
            unsafe { *out = tensor.to_dlpack().as_ptr() };
            return 0;
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "windrow panicked; please report it".to_owned(),
    };
    if let Some(set_error) = set_error {
        let text = std::ffi::CString::new(text.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the caller's function and context; the strings live through the call.
        unsafe { set_error(error_context, c"RuntimeError".as_ptr(), text.as_ptr()) };
    }
    -1
}

/// NULL, which is the legacy default stream, or no stream on the host. That stream comes behind the work on every tensor of this
/// table: the streams that batches are really written on are many, and may be gone. RuntimeError for a device that is neither the
/// host nor of CUDA.
unsafe extern "C" fn current_work_stream(
    device: DLDeviceType,
    _id: i32,
    out: *mut *mut c_void,
) -> c_int {
    if !matches!(device, DLDeviceType::CPU | DLDeviceType::CUDA | DLDeviceType::CUDA_HOST) {
        return attached(|_| {
            Err(PyRuntimeError::new_err("windrow works on the host and on CUDA devices"))
        });
    }
    debug_assert!(!out.is_null());
    // SAFETY: a place for the result. NULL is the default stream, and no stream on the host.
    unsafe { *out = std::ptr::null_mut() };
    0
}
