//! The buffer protocol.
#![allow(unsafe_code)] // Buffer views are raw structs.

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use windrow::{Device, Layout, Tensor};

use crate::ground::dtype::format_of;
use crate::ground::errors::DeviceError;

/// DeviceError for a tensor on a device, which `what` cannot read.
pub(super) fn on_host(tensor: &Tensor, what: &str) -> PyResult<()> {
    match tensor.device() {
        Device::Cuda(ordinal) => Err(DeviceError::new_err(format!(
            "{what} reads host memory, and this is on cuda:{ordinal}; assemble it with \
             device=\"cpu\", or take .torch(), .cupy() or .jax() of it"
        ))),
        _ => Ok(()),
    }
}

/// Whether the elements are without gaps, the first dim's next to each other; one dim without gaps is row-major too.
fn is_column_major(tensor: &Tensor) -> bool {
    let turned = |dims: &[i64]| dims.iter().rev().copied().collect::<Vec<_>>();
    let (shape, strides) = (turned(tensor.shape()), turned(tensor.strides()));
    Layout::try_new(tensor.dtype(), &shape, Some(&strides)).is_ok_and(|layout| layout.is_compact())
}

/// Fills in a buffer view; format, shape and strides that `flags` do not ask for are NULL. DeviceError for a tensor on a device;
/// BufferError for a dtype without a format, also where none is asked for, for read-only memory that is to be written, and for
/// memory in another order than is requested: then its `obj` is NULL.
///
/// # Safety
/// `view` is the view that Python passed to `bf_getbuffer` of `owner`, which holds `tensor`.
pub(crate) unsafe fn get_buffer(
    tensor: &Tensor,
    owner: Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("no view to fill in"));
    }
    // SAFETY: Python's view; NULL marks a failed request.
    unsafe { (*view).obj = std::ptr::null_mut() };
    on_host(tensor, "the buffer protocol")?;
    let wants = |flag: c_int| flags & flag == flag;
    let Some(format) = format_of(tensor.dtype()) else {
        return Err(PyBufferError::new_err(format!("{} has no buffer format", tensor.dtype())));
    };
    if wants(ffi::PyBUF_WRITABLE) && tensor.is_read_only() {
        return Err(PyBufferError::new_err("the memory is read-only"));
    }
    let row_major = tensor.layout().is_compact();
    let is_in_order = if wants(ffi::PyBUF_F_CONTIGUOUS) {
        is_column_major(tensor)
    } else if wants(ffi::PyBUF_ANY_CONTIGUOUS) {
        row_major || is_column_major(tensor)
    } else {
        row_major || wants(ffi::PyBUF_STRIDES) && !wants(ffi::PyBUF_C_CONTIGUOUS)
    };
    if !is_in_order {
        return Err(PyBufferError::new_err("the memory does not have the requested order"));
    }
    let size = tensor.dtype().size();
    let ndim = tensor.shape().len();
    let strides = tensor.strides().iter().map(|&stride| stride as isize * size as isize);
    let dims: Box<[isize]> =
        tensor.shape().iter().map(|&extent| extent as isize).chain(strides).collect();
    debug_assert_eq!(dims.len(), 2 * ndim);
    let dims = Box::into_raw(Box::new(dims));
    // SAFETY: Python's view, filled in once; `internal` owns the dims until `release_buffer`.
    unsafe {
        let (shape, strides) = ((**dims).as_mut_ptr(), (**dims).as_mut_ptr().add(ndim));
        (*view).buf = tensor.data_ptr().cast();
        (*view).len = tensor.nbytes() as isize;
        (*view).readonly = c_int::from(tensor.is_read_only());
        (*view).itemsize = size as isize;
        (*view).format = if wants(ffi::PyBUF_FORMAT) {
            format.as_ptr().cast_mut()
        } else {
            std::ptr::null_mut()
        };
        (*view).ndim = ndim as c_int;
        (*view).shape = if wants(ffi::PyBUF_ND) { shape } else { std::ptr::null_mut() };
        (*view).strides = if wants(ffi::PyBUF_STRIDES) { strides } else { std::ptr::null_mut() };
        (*view).suboffsets = std::ptr::null_mut();
        (*view).internal = dims.cast();
        (*view).obj = owner.into_ptr();
    }
    Ok(())
}

/// Frees what [`get_buffer`] allocated for a view; the reference to the owner is Python's to release.
///
/// # Safety
/// `view` was filled in by [`get_buffer`] and is released once.
pub(crate) unsafe fn release_buffer(view: *mut ffi::Py_buffer) {
    debug_assert!(!view.is_null());
    // SAFETY: `internal` is the box that `get_buffer` left there.
    unsafe {
        debug_assert!(!(*view).internal.is_null());
        drop(Box::from_raw((*view).internal.cast::<Box<[isize]>>()));
    }
}
