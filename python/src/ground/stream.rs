//! Streams as Python names them, and the current one of a library.
#![allow(unsafe_code)] // A handle is vouched for by its giver.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;
use windrow::dlpack::{DLDeviceType, DLPackExchangeAPI};
use windrow::Stream;

use crate::ground::errors::{answered, attribute, shown};

/// The stream of `stream=`: a handle, an object with `__cuda_stream__`, a torch or CuPy stream; TypeError for others, ValueError
/// for a negative handle or another version of the protocol than 0. That it is alive is left to the caller.
pub(crate) fn stream_of(object: &Bound<'_, PyAny>) -> PyResult<Stream> {
    let handle = if object.is_instance_of::<PyBool>() {
        None
    } else if let Some(handle) = handle_of(object)? {
        Some(handle)
    } else if let Some(protocol) = attribute(object, "__cuda_stream__")? {
        // A method in later drafts of the protocol, a property in the first ones.
        let answer = if protocol.is_callable() { protocol.call0()? } else { protocol };
        let (version, handle): (i64, i64) = answer.extract()?;
        if version != 0 {
            return Err(PyValueError::new_err(format!(
                "__cuda_stream__ has version {version}; only version 0 is supported"
            )));
        }
        Some(handle)
    } else {
        let named = match attribute(object, "cuda_stream")? {
            None => attribute(object, "ptr")?,
            found => found,
        };
        named.map_or(Ok(None), |named| handle_of(&named))?
    };
    match handle {
        Some(handle) => from_handle(handle),
        None => Err(PyTypeError::new_err(format!(
            "stream is an int, a torch or CuPy stream, or an object with __cuda_stream__, not {}",
            shown(&object.get_type())?
        ))),
    }
}

/// The value of an int, a bool too; `None` for any other object, and beyond 64 bits.
fn handle_of(object: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    Ok(answered(object.py(), object.extract())?.ok())
}

/// A stream by a handle that the caller was given as such, 0 and 1 the legacy default one; ValueError for a negative one.
pub(crate) fn from_handle(handle: i64) -> PyResult<Stream> {
    let handle = usize::try_from(handle)
        .map_err(|_| PyValueError::new_err(format!("stream={handle} is not a stream handle")))?;
    // SAFETY: its giver vouches for it, as the documentation of `stream=` and of the protocols asks.
    Ok(unsafe { Stream::from_raw(handle) })
}

/// Whether a stream was created, and may be destroyed: the default ones always exist.
pub(crate) fn is_borrowed(stream: Stream) -> bool {
    stream.handle() > 2
}

/// The stream that a library works on now, on the device `ordinal`: the legacy default where its table has no such function;
/// `None` after a refusal, with Python's error set.
pub(crate) fn current_of(api: &DLPackExchangeAPI, ordinal: u32) -> Option<Stream> {
    let Some(current) = api.current_work_stream else { return Some(Stream::LEGACY) };
    let mut handle = std::ptr::null_mut();
    debug_assert!(i32::try_from(ordinal).is_ok());
    // SAFETY: the table's contract: a device of this kind, a place for the answer.
    let code = unsafe { current(DLDeviceType::CUDA, ordinal as i32, &mut handle) };
    // SAFETY: the library's own stream.
    (code == 0).then(|| unsafe { Stream::from_raw(handle.addr()) })
}
