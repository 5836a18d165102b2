//! Views by the buffer protocol.
#![allow(unsafe_code)] // Buffer views are raw structs.

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::ground::errors::answered;
use crate::ground::reserve::try_vec;

/// A buffer view, released when dropped. The caller is attached then: `Holder` sees to it. The list has one item: the
/// view may point into itself and stays where it is, and a `Box` would end the process where there is no memory.
pub(crate) struct Buffer(Vec<ffi::Py_buffer>);

// SAFETY: a filled-in view is plain data; it is released under the interpreter lock.
unsafe impl Send for Buffer {}
// SAFETY: as above; nothing is mutated through a shared reference.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        debug_assert_eq!(self.0.len(), 1);
        // SAFETY: filled in by `PyObject_GetBuffer`, released once, attached.
        unsafe { ffi::PyBuffer_Release(self.0.as_mut_ptr()) };
    }
}

impl Buffer {
    /// Asks an object for a view of its memory; its own error if it gives none.
    pub fn new(object: &Bound<'_, PyAny>, flags: std::ffi::c_int) -> PyResult<Buffer> {
        let mut view = try_vec(1)?;
        // SAFETY: all zeros is an empty view.
        view.push(unsafe { std::mem::zeroed() });
        // SAFETY: a live object and a view to fill in; we are attached.
        match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) } {
            0 => Ok(Buffer(view)),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    /// The view that the producer filled in.
    pub fn view(&self) -> &ffi::Py_buffer {
        &self.0[0]
    }
}

/// Copies the memory of an object that gives it by the buffer protocol; false, and nothing is written, where that fails or where
/// it has another size.
pub(crate) fn copy_buffer(object: &Bound<'_, PyAny>, into: &mut [u8]) -> PyResult<bool> {
    let asked = Buffer::new(object, ffi::PyBUF_SIMPLE);
    let Ok(buffer) = answered(object.py(), asked)? else { return Ok(false) };
    let view = buffer.view();
    let has_size = usize::try_from(view.len) == Ok(into.len()) && !view.buf.is_null();
    if has_size {
        // SAFETY: the view has the size of `into`, in a row as it was asked for simply; `into` is memory of its own.
        unsafe { view.buf.cast::<u8>().copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }
    Ok(has_size)
}

/// Whether an object gives a view by the buffer protocol, and refuses one to write with BufferError or ValueError; any other
/// answer is no refusal. Some producers say so there and nowhere else.
pub(crate) fn refuses_writes(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    let refused = |flags| PyResult::Ok(answered(py, Buffer::new(object, flags))?.err());
    // SAFETY: a live object; the answer is a flag.
    let has_buffer = unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0;
    if !has_buffer || refused(ffi::PyBUF_FULL_RO)?.is_some() {
        return Ok(false);
    }
    Ok(refused(ffi::PyBUF_FULL)?.is_some_and(|error| {
        error.is_instance_of::<PyBufferError>(py) || error.is_instance_of::<PyValueError>(py)
    }))
}
