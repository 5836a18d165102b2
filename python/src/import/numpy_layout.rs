//! A NumPy array read from its struct, which NumPy's C API lays open to extensions: `PyArrayObject_fields` and
//! the first fields of `PyArray_Descr`, the same in NumPy 1 and 2. To ask for `__array_struct__` instead costs
//! more than all else of an import.
#![allow(unsafe_code)] // Fields of foreign objects.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use windrow::bindings::prefetch;
use windrow::DType;

#[repr(C)]
struct Array {
    head: ffi::PyObject,
    data: *mut u8,
    ndim: c_int,
    shape: *const isize,
    strides: *const isize,
    base: *mut ffi::PyObject,
    descr: *const Descr,
    flags: c_int,
}

#[repr(C)]
struct Descr {
    head: ffi::PyObject,
    class: *mut ffi::PyTypeObject,
    kind: c_char,
    code: c_char,
    byte_order: c_char,
    flags: c_char,
    number: c_int,
}

/// NumPy's `PyArrayInterface`, see "The array interface protocol" in its documentation.
#[repr(C)]
pub(crate) struct ArrayStruct {
    two: c_int,
    pub ndim: c_int,
    pub kind: u8,
    pub item_bytes: c_int,
    pub flags: c_int,
    pub shape: *const isize,
    pub strides: *const isize,
    pub data: *mut c_void,
    descr: *mut c_void,
}

const _: () = assert!(size_of::<ArrayStruct>() == 56);

impl ArrayStruct {
    pub const C_CONTIGUOUS: c_int = 0x1;
    pub const ALIGNED: c_int = 0x100;
    pub const NOT_SWAPPED: c_int = 0x200;
    pub const WRITABLE: c_int = 0x400;
}

/// The fields of an array; shape and strides, in bytes, live as long as it is not reshaped.
#[derive(Clone, Copy)]
pub(crate) struct ArrayFields<'a> {
    pub data: *mut u8,
    pub dtype: DType,
    pub shape: &'a [i64],
    pub strides: &'a [i64],
    pub flags: c_int,
}

/// The dtype for one of NumPy's own numbers, with its byte order; None for others and for swapped ones that we have not.
#[inline]
fn dtype_of(descr: &Descr) -> Option<DType> {
    match descr.byte_order as u8 {
        b'=' | b'|' => dtype_of_number(descr.number),
        _ => swapped_dtype_of(descr),
    }
}

/// The dtype of an array of foreign byte order; out of line, because nearly all arrays are in native order.
#[cold]
fn swapped_dtype_of(descr: &Descr) -> Option<DType> {
    dtype_of_number(descr.number)?.swapped()
}

/// The largest of NumPy's numbers for dtypes that we have.
pub(crate) const MAX_NUMBER: c_int = 23;

/// The dtype for one of NumPy's own numbers, in native byte order; `None` for others and for those that we have not.
#[inline]
pub(crate) fn dtype_of_number(number: c_int) -> Option<DType> {
    use DType::*;
    const LONG: DType = if size_of::<c_long>() == 8 { I64 } else { I32 };
    const ULONG: DType = if size_of::<c_long>() == 8 { U64 } else { U32 };
    const FIRST: [DType; 13] = [Bool, I8, U8, I16, U16, I32, U32, LONG, ULONG, I64, U64, F32, F64];
    match number {
        0..=12 => Some(FIRST[number as usize]),
        14 => Some(C64),
        15 => Some(C128),
        MAX_NUMBER => Some(F16),
        _ => None,
    }
}

/// The fields of an array; `None` for a dtype that is not NumPy's own, or that we have not.
///
/// # Safety
/// A live NumPy array, for which [`is_laid_out`] holds; attached.
#[inline]
pub(crate) unsafe fn array_fields<'a>(object: *mut ffi::PyObject) -> Option<ArrayFields<'a>> {
    debug_assert!(!object.is_null());
    // SAFETY: the struct of a live array; its dtype lives with it. An entry for each dim; the engine builds for
    // 64-bit targets only, where `isize` is as wide as `i64`.
    unsafe {
        let array = &*object.cast::<Array>();
        debug_assert!(!array.descr.is_null());
        let dtype = dtype_of(&*array.descr)?;
        let dims = |dims: *const isize| match array.ndim {
            1..=64 => {
                debug_assert!(!dims.is_null() && dims.is_aligned());
                std::slice::from_raw_parts(dims.cast(), array.ndim as usize)
            }
            _ => &[],
        };
        let (shape, strides) = (dims(array.shape), dims(array.strides));
        Some(ArrayFields { data: array.data, dtype, shape, strides, flags: array.flags })
    }
}

/// The word of a NumPy array that has the address of its data. Nothing is read here.
pub(crate) fn data_word(array: *mut ffi::PyObject) -> NonNull<AtomicUsize> {
    let word = array.wrapping_byte_add(std::mem::offset_of!(Array, data));
    NonNull::new(word.cast()).expect("an object")
}

/// Asks for the memory of an array's shape, behind which NumPy has the strides; neither is in the
/// object.
///
/// # Safety
/// A live NumPy array, for which [`is_laid_out`] holds; attached.
#[inline]
pub(crate) unsafe fn prefetch_dims(object: *mut ffi::PyObject) {
    debug_assert!(!object.is_null());
    // SAFETY: the struct of a live array.
    prefetch(unsafe { (*object.cast::<Array>()).shape.cast() }, 1);
}

/// Whether NumPy's arrays are laid out as above: in NumPy 1 and 2. The first call imports NumPy and
/// its answer is kept; false where that import fails.
pub(crate) fn is_laid_out(py: Python<'_>) -> bool {
    static FOUND: PyOnceLock<bool> = PyOnceLock::new();
    let find = || -> PyResult<bool> {
        let version = py.import("numpy")?.getattr("__version__")?.str()?.to_string();
        Ok(version.starts_with("1.") || version.starts_with("2."))
    };
    *FOUND.get_or_init(py, || find().unwrap_or(false))
}
