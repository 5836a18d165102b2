//! Export by DLPack: `__dlpack__` and `__dlpack_device__`.
#![allow(unsafe_code)] // Capsules.

use std::ffi::{c_void, CStr};

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple};
use windrow::dlpack::{
    device_to_dl, DLDeviceType, ManagedTensor, DLTENSOR, DLTENSOR_VERSIONED, FLAG_IS_COPIED,
};
use windrow::{Collate, DType, Device, Stream, Tensor};

use crate::ground::errors::{in_words, OrPyErr};
use crate::ground::logging::exporting;
use crate::ground::stream::from_handle;
use crate::ownership::copy::copy_of;
use crate::ownership::ready::ready_on;

/// `__dlpack_device__`: page-locked memory says here what it is; in a capsule, where torch refuses
/// that, it is host memory.
pub(crate) fn dlpack_device(tensor: &Tensor) -> (i32, i32) {
    let device = device_to_dl(tensor.device());
    match tensor.device() {
        Device::Pinned => (DLDeviceType::CUDA_HOST.0, 0),
        _ => (device.device_type.0, device.device_id),
    }
}

/// The stream that a consumer named, or the legacy default stream for memory of a device; `None` for -1, with which it waits by
/// itself, and for memory of the host. TypeError for what is no int; ValueError for 0, other negative ones, and any stream for
/// memory of the host.
fn consumer_stream(
    py: Python<'_>,
    tensor: &Tensor,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Stream>> {
    let handle: Option<i64> = stream
        .map(|stream| stream.extract())
        .transpose()
        .map_err(|e| in_words(py, e, || PyTypeError::new_err("stream must be None or an int")))?;
    match (tensor.device(), handle) {
        (Device::Cuda(_), None) => Ok(Some(Stream::LEGACY)),
        (Device::Cuda(_), Some(-1)) | (_, None) => Ok(None),
        (Device::Cuda(_), Some(0)) => Err(PyValueError::new_err(
            "stream=0 is ambiguous; the default streams are 1 (legacy) and 2 (per thread)",
        )),
        (Device::Cuda(_), Some(handle)) => from_handle(handle).map(Some),
        (_, Some(handle)) => Err(PyValueError::new_err(format!(
            "stream={handle} for host memory, which has no streams"
        ))),
    }
}

/// `__dlpack__`: a capsule of the tensor, or of a copy for another device or `copy=True`, ready on the consumer's stream.
/// BufferError for what a capsule of that version, on that device or without a copy cannot be; TypeError and ValueError for
/// arguments that are none.
pub(crate) fn dlpack<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    stream: Option<&Bound<'py, PyAny>>,
    max_version: Option<&Bound<'py, PyAny>>,
    dl_device: Option<&Bound<'py, PyAny>>,
    copy: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let _stage = exporting(py);
    let stream = consumer_stream(py, tensor, stream)?;
    let versioned = max_version.map_or(Ok(false), is_versioned)?;
    let target =
        dl_device.map_or_else(|| Ok(tensor.device()), |device| target_of(tensor, device))?;
    let copy = copy
        .map(|copy| copy.cast::<PyBool>().map(|copy| copy.is_true()))
        .transpose()
        .map_err(|_| PyTypeError::new_err("copy must be None, True or False"))?;
    let moves = target != tensor.device();
    if moves && copy == Some(false) {
        return Err(PyBufferError::new_err(format!(
            "memory of {} is read on the host through a copy, and copy=False forbids one",
            tensor.device()
        )));
    }
    let copies = moves || copy == Some(true);
    let copied;
    let tensor = if copies {
        copied = py.detach(|| duplicate(tensor, target, stream)).or_py_err(py)?;
        &copied
    } else {
        tensor
    };
    if tensor.is_read_only() && !versioned {
        return Err(PyBufferError::new_err(
            "read-only memory can be exported from DLPack 1.0 on only; ask with max_version",
        ));
    }
    if tensor.dtype().is_padded() && !versioned {
        return Err(padded(tensor.dtype()));
    }
    if let Some(stream) = stream {
        ready_on(tensor, stream).or_py_err(py)?;
    }
    capsule_of(py, tensor, versioned, copies)
}

/// The BufferError of a consumer that could take a value in a byte of its own for a part of one.
pub(super) fn padded(dtype: DType) -> PyErr {
    let text = format!("DLPack says by a flag, from 1.0 on, that {dtype} has a byte for each value; ask with max_version");
    PyBufferError::new_err(text)
}

/// Whether a consumer takes versioned capsules, from 1.0 on; TypeError for what is no tuple of two ints.
fn is_versioned(max_version: &Bound<'_, PyAny>) -> PyResult<bool> {
    let pair = max_version.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2);
    match pair.and_then(|pair| pair.extract::<(i64, i64)>().ok()) {
        Some((major, _)) => Ok(major >= 1),
        None => Err(PyTypeError::new_err("max_version must be None or a tuple of two ints")),
    }
}

/// The device that a consumer asks for: the memory's own, or the host, which page-locked memory is; BufferError for any other.
fn target_of(tensor: &Tensor, dl_device: &Bound<'_, PyAny>) -> PyResult<Device> {
    let asked: (i64, i64) = dl_device.extract().map_err(|e| {
        let refuse = || PyTypeError::new_err("dl_device must be None or a tuple of two ints");
        in_words(dl_device.py(), e, refuse)
    })?;
    let is = |(device_type, id): (i32, i32)| asked == (i64::from(device_type), i64::from(id));
    match tensor.device() {
        Device::Pinned if is((DLDeviceType::CPU.0, 0)) => Ok(Device::Pinned),
        _ if is((DLDeviceType::CPU.0, 0)) => Ok(Device::Cpu),
        device if is(dlpack_device(tensor)) => Ok(device),
        device => {
            let text = format!("cannot export memory of {device} to device {asked:?}");
            Err(PyBufferError::new_err(text))
        }
    }
}

/// A capsule of a tensor, which it keeps; that a legacy one can express the tensor is not checked.
fn capsule_of<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    versioned: bool,
    is_copied: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let (pointer, name): (*mut c_void, &CStr) = if versioned {
        let flags = if is_copied { FLAG_IS_COPIED } else { 0 };
        (tensor.to_dlpack_with(flags).as_ptr().cast(), DLTENSOR_VERSIONED)
    } else {
        (tensor.to_dlpack_legacy().as_ptr().cast(), DLTENSOR)
    };
    // SAFETY: a non-NULL pointer, a static name, and a destructor that knows it.
    let capsule = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(drop_capsule)) };
    if capsule.is_null() {
        // SAFETY: the export just made, which nothing else has.
        unsafe { give_back(pointer, versioned) };
    }
    // SAFETY: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

/// Gives an export back.
///
/// # Safety
/// `managed` is an export nothing has taken, of the kind that `versioned` says.
unsafe fn give_back(managed: *mut c_void, versioned: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        match versioned {
            true => drop(ManagedTensor::from_versioned(managed.cast())),
            false => drop(ManagedTensor::from_legacy(managed.cast())),
        }
    }
}

// A capsule that was consumed has another name, and nothing is left to free. The deleters raise
// nothing, and what they release leaves an exception in flight as it is (`Holder`).
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    for (name, versioned) in [(DLTENSOR_VERSIONED, true), (DLTENSOR, false)] {
        // SAFETY: called by Python with a capsule; the name says what it holds.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 1 {
                give_back(ffi::PyCapsule_GetPointer(capsule, name.as_ptr()), versioned);
            }
        }
    }
}

/// A row-major copy in memory of its own on a device, behind what still writes the tensor, on `stream` or one of its producers'
/// or ours: complete on the host, enqueued on a device.
pub(super) fn duplicate(
    tensor: &Tensor,
    device: Device,
    stream: Option<Stream>,
) -> windrow::Result<Tensor> {
    copy_of(tensor, &Collate::stack().device(device), stream)?.select(0)
}
