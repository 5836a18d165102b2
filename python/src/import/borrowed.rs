//! Short lists that are read without anything that keeps the samples alive: the caller's list does, as long as no Python
//! code runs.
#![allow(unsafe_code)] // Structs of foreign objects.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use windrow::bindings::prefetch;
use windrow::{Collate, DType, Device, Form, SampleList};

use crate::ground::reserve::room_for;
use crate::import::numpy_words::{array_fields, prefetch_dims, ArrayStruct};
use crate::import::routes::{route_of, ImportRoute, Lazy};
use crate::import::torch_dense::Dense;
use crate::import::torch_words::{TorchWords, HAS_LOCK};

type ItemOf = unsafe extern "C" fn(*mut ffi::PyObject, ffi::Py_ssize_t) -> *mut ffi::PyObject;

/// How many places ahead the dims of an array are asked for.
const ARRAYS_AHEAD: usize = 8;

/// How all samples of a list are read.
enum Reader {
    Array,
    Dense(&'static TorchWords, &'static Dense),
}

/// The samples of a list or tuple of row-major NumPy arrays, or of dense torch tensors of the host's, all of one class.
/// `None` for everything else, for more than `most_samples`, and for stacks that read and write more than `most_bytes`, which
/// may be copied while they are read; errors are for another import to find.
///
/// ```text
/// from the first object: the class, and how objects of it are read
/// all objects of the list, each asked for ahead of its reading
/// until all samples are in the list:
///     read one; of another class, or not to be read that way: None
///     the first of a stack that is too large: None
///     a row that differs from the last one in its length: append address and length
///     any other: append it with its layout, then those behind it that differ from it in their address alone
/// ```
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
        let reader = match route_of(&first)? {
            (ImportRoute::Array, Lazy::No) => Reader::Array,
            (ImportRoute::Exchange { dense: Some(dense), .. }, Lazy::Words(words)) => {
                Reader::Dense(words, dense)
            }
            _ => return Ok(None),
        };
        (first.get_type_ptr(), reader)
    };
    let (len, mut list) = (samples.len()?, SampleList::new());
    if list.reserve(len).is_err() {
        return Ok(None);
    }
    let is_stack = matches!(collate.form(), Form::Stack);
    let mut last: Option<(DType, &[i64], &[i64])> = None;
    let mut objects = room_for(len)?;
    objects.extend((0..len).map(|index| {
        // SAFETY: an entry of a list or tuple, as nothing has changed it since it was counted.
        let object = unsafe { item_of(samples.as_ptr(), index as ffi::Py_ssize_t) };
        prefetch(object.cast(), 1);
        object
    }));
    let read = |index: usize| {
        // SAFETY: live objects, which the list holds, and a class that has words, or that of arrays. A live object has a
        // type; the reader is for those of this class.
        unsafe {
            reader.prefetch_ahead(class, |steps| objects.get(index + steps).copied());
            let object = *objects.get(index)?;
            if ffi::Py_TYPE(object) == class {
                reader.read(object)
            } else {
                None
            }
        }
    };
    while list.len() < len {
        let index = list.len();
        let Some((data, dtype, shape, strides)) = read(index) else { return Ok(None) };
        if is_stack && index == 0 {
            let sizes = [2, len as i64, dtype.size() as i64];
            let bytes =
                sizes.iter().chain(shape).fold(1u64, |all, &n| all.saturating_mul(n as u64));
            if bytes > most_bytes {
                return Ok(None);
            }
        }
        let steps = strides.unwrap_or_default();
        let is_row = last.is_some_and(|(known, extents, known_steps)| {
            known == dtype && are_same(known_steps, steps) && differ_in_dim_0(extents, shape)
        });
        last = Some((dtype, shape, steps));
        // SAFETY: as good as the producer's word, and alive as long as the list has it.
        unsafe {
            let is_pushed = is_row && list.push_row_like_last(data, shape[0]);
            if !is_pushed && list.push(data, dtype, Device::Cpu, shape, strides).is_err() {
                return Ok(None);
            }
        }
        if !is_row {
            // Those behind it that are like it, as most are, without another look at the list for each.
            let alike = (index + 1..len).map_while(|index| {
                let (data, of_next, extents, next_steps) = read(index)?;
                let is_alike = of_next == dtype
                    && are_same(extents, shape)
                    && are_same(next_steps.unwrap_or_default(), steps);
                is_alike.then_some(data)
            });
            // SAFETY: as above.
            unsafe { list.extend_like_last(alike) };
        }
    }
    Ok(Some(list))
}

/// Without a call, for a few entries.
#[inline]
fn are_same(one: &[i64], other: &[i64]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a == b)
}

/// Whether shapes differ in the extent of dim 0 and in nothing else.
#[inline]
fn differ_in_dim_0(one: &[i64], other: &[i64]) -> bool {
    match (one, other) {
        ([first, one @ ..], [of_other, other @ ..]) => first != of_other && are_same(one, other),
        _ => false,
    }
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

/// An address, a dtype, a shape, and strides unless row-major.
type RawArray<'a> = (*const u8, DType, &'a [i64], Option<&'a [i64]>);

impl Reader {
    /// Asks for the memory that the reading of the samples ahead touches. `class`: that of the samples; `at`: the object of
    /// the list so many places ahead.
    ///
    /// # Safety
    /// The objects are alive, and the class is one that this is for.
    #[inline]
    unsafe fn prefetch_ahead(
        &self,
        class: *mut ffi::PyTypeObject,
        at: impl Fn(usize) -> Option<*mut ffi::PyObject>,
    ) {
        // SAFETY: the caller's promise; a live object has a type.
        unsafe {
            match self {
                Reader::Array => {
                    if let Some(object) = at(ARRAYS_AHEAD).filter(|&x| ffi::Py_TYPE(x) == class) {
                        prefetch_dims(object);
                    }
                }
                Reader::Dense(words, _) => words.prefetch_ahead(class, false, at),
            }
        }
    }

    /// # Safety
    /// A live object of the class that this is for.
    #[inline]
    unsafe fn read<'a>(&self, object: *mut ffi::PyObject) -> Option<RawArray<'a>> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Reader::Array => {
                    let array = array_fields(object)?;
                    let is_row_major = array.flags & ArrayStruct::C_CONTIGUOUS != 0;
                    is_row_major.then_some((
                        array.data.cast_const(),
                        array.dtype,
                        array.shape,
                        None,
                    ))
                }
                Reader::Dense(words, dense) => {
                    let fields = dense.fields_of(object).filter(|_| words.has_no_grad(object))?;
                    Some((
                        fields.data.cast_const(),
                        fields.dtype,
                        fields.shape,
                        Some(fields.strides),
                    ))
                }
            }
        }
    }
}
