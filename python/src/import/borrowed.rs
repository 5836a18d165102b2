//! Short lists that are read without anything that keeps the samples alive: the caller's list does, as long as no Python
//! code runs.
#![allow(unsafe_code)] // Structs of foreign objects.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use windrow::bindings::prefetch;
use windrow::{Collate, Form, SampleList};

use crate::ground::reserve::room_for;
use crate::import::reader::Reader;
use crate::import::torch_words::HAS_LOCK;

type ItemOf = unsafe extern "C" fn(*mut ffi::PyObject, ffi::Py_ssize_t) -> *mut ffi::PyObject;

/// The samples of a list or tuple of row-major NumPy arrays, or of dense torch tensors of the host's, all of one class.
/// `None` for everything else, for more than `most_samples`, and for stacks that read and write more than `most_bytes`, which
/// may be copied while they are read; errors are for another import to find.
///
/// # Safety
/// Until the result is dropped, or [`objects_of`] has references to the samples, no Python code runs and this thread stays attached.
pub(crate) unsafe fn borrowed(
    samples: &Bound<'_, PyAny>,
    collate: &Collate,
    most_samples: usize,
    most_bytes: u64,
) -> PyResult<Option<SampleList<'static>>> {
    let Some(item_of) = item_of(samples) else { return Ok(None) };
    if !HAS_LOCK || !(1..=most_samples).contains(&samples.len()?) {
        return Ok(None);
    }
    let (class, reader) = {
        let first = samples.get_item(0)?;
        // May run Python code, which may change the list, and so may the release of `first`; nothing below does.
        let Some(reader) = Reader::of(&first)? else { return Ok(None) };
        (first.get_type_ptr(), reader)
    };
    let len = samples.len()?;
    let most_bytes = if matches!(collate.form(), Form::Stack) { most_bytes } else { u64::MAX };
    let mut objects = room_for(len)?;
    objects.extend((0..len).map(|index| {
        // SAFETY: an entry of a list or tuple, as nothing has changed it since it was counted.
        let object = unsafe { item_of(samples.as_ptr(), index as ffi::Py_ssize_t) };
        prefetch(object.cast(), 1);
        object
    }));
    // SAFETY: live objects, which the list holds, and a class that the reader is for.
    Ok(unsafe { reader.list(class, &objects, 0..len, most_bytes) })
}

/// References to the samples of a list that was [`borrowed`], which keep them.
pub(crate) fn objects_of(samples: &Bound<'_, PyAny>, len: usize) -> PyResult<Vec<Py<PyAny>>> {
    let mut objects = room_for(len)?;
    if let Some(item_of) = item_of(samples) {
        // SAFETY: as in `borrowed`; to count a reference runs no Python code.
        objects.extend((0..len).map(|index| unsafe {
            let object = item_of(samples.as_ptr(), index as ffi::Py_ssize_t);
            Bound::from_borrowed_ptr(samples.py(), object).unbind()
        }));
    }
    Ok(objects)
}

fn item_of(samples: &Bound<'_, PyAny>) -> Option<ItemOf> {
    match () {
        () if samples.is_exact_instance_of::<PyList>() => Some(ffi::PyList_GetItem),
        () if samples.is_exact_instance_of::<PyTuple>() => Some(ffi::PyTuple_GetItem),
        () => None,
    }
}
