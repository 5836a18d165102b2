//! Lists of Python ints and floats, read from the words of these objects.
//!
//! The problem: a sample may be a list of numbers, each an object of its own, and a call for each takes longer than to read it.
//! How the words are laid out differs between releases of CPython.
//!
//! ```text
//! byte    0      8       16      24
//! list    refs | class | size  | items -> o0 o1 o2 ...        a tuple has its items there, in place of their address
//! float   refs | class | value
//! int     refs | class | size  | digit 0      since 3.12: digits << 3 | immortal << 2 | sign: 0, 1 for zero, 2 if negative
//!                                             before: the number of digits, negative for a negative number
//! ```
//!
//! ```text
//! read: the class of the first item says whether all are to be ints or floats
//!       while items are of that class, and ints have one digit of 30 bits at most: append the value
//!       any other item: the values are taken back, and None
//! ```
//!
//! A reader is made once, and is on only if it reads lists and tuples that were made for it as they are (`agrees`). A call of
//! `PyLong_AsLongLong` or `PyFloat_AsDouble` for each number would be simpler: a sample of 16 ints takes 302 ns so, and 63 here.
#![allow(unsafe_code)] // Words of foreign objects.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};
use windrow::DType;

use crate::private_layouts::{check_python, Reason};

/// Bytes from the start of an object to its class, to the size of a variable one or the value of a float, and to what follows:
/// the digits of an int, the items of a tuple, the address of a list's.
const CLASS: usize = 8;
const SIZE: usize = 16;
const REST: usize = 24;

/// Reads numbers as a release has them.
#[derive(Clone, Copy)]
pub(crate) struct NumberReader {
    /// An int has its sign and number of digits in the lowest bits of its size, as since 3.12; else it has a size of that sign.
    has_tag: bool,
}

/// # Safety
/// Reads a `T` at an offset in bytes from the start of a live object.
#[inline(always)]
unsafe fn at<T: Copy>(object: *mut ffi::PyObject, bytes: usize) -> T {
    debug_assert!(!object.is_null() && object.wrapping_byte_add(bytes).cast::<T>().is_aligned());
    // SAFETY: the caller's promise.
    unsafe { object.byte_add(bytes).cast::<T>().read() }
}

/// The reader of this interpreter, or why there is none.
pub(crate) fn reader(py: Python<'_>) -> &Result<NumberReader, Reason> {
    static FOUND: PyOnceLock<Result<NumberReader, Reason>> = PyOnceLock::new();
    FOUND.get_or_init(py, || {
        check_python(py)?;
        let reader = NumberReader { has_tag: py.version_info().minor >= 12 };
        match reader.agrees(py) {
            Ok(true) => Ok(reader),
            _ => Err("its numbers are laid out in another way".to_owned()),
        }
    })
}

impl NumberReader {
    /// Appends the values of a list or tuple of ints of one digit, which has 30 bits, or of floats, and gives their dtype.
    /// `None`, and nothing is appended, for an empty one, one with anything else, and one longer than the capacity that is left.
    #[inline(never)] // As a part of the loop over samples its own loop takes a tenth more instructions.
    pub fn read(
        self,
        sequence: &Bound<'_, PyAny>,
        is_list: bool,
        chunk: &mut Vec<[u8; 8]>,
    ) -> Option<DType> {
        // SAFETY: attached, so that nothing changes the sequence or its items before this returns: no Python code runs meanwhile.
        let items = unsafe { items(sequence.as_ptr(), is_list) };
        let free = chunk.capacity() - chunk.len();
        let (first, start) = (*items.first().filter(|_| items.len() <= free)?, chunk.len());
        let (int, float) = (&raw const ffi::PyLong_Type, &raw const ffi::PyFloat_Type);
        let is_of = |item: *mut ffi::PyObject, class: *const ffi::PyTypeObject| {
            // SAFETY: a live object has a class.
            std::ptr::eq(unsafe { at::<*const ffi::PyTypeObject>(item, CLASS) }, class)
        };
        let mut push = |value: [u8; 8]| {
            chunk.push(value);
            true
        };
        let dtype = if is_of(first, int) { DType::I64 } else { DType::F64 };
        let is_whole = items.iter().all(|&item| match dtype {
            DType::I64 if is_of(item, int) => {
                // SAFETY: an int, as its class says.
                unsafe { self.int(item) }.is_some_and(|value| push(value.to_ne_bytes()))
            }
            DType::F64 if is_of(item, float) => {
                // SAFETY: a float, as its class says.
                push(unsafe { at::<f64>(item, SIZE) }.to_ne_bytes())
            }
            _ => false,
        });
        if !is_whole {
            chunk.truncate(start);
            return None;
        }
        Some(dtype)
    }

    /// The value of an int of one digit; `None` for a larger one.
    ///
    /// # Safety
    /// A live object of Python's own int.
    #[inline(always)]
    unsafe fn int(self, object: *mut ffi::PyObject) -> Option<i64> {
        // SAFETY: every int has room for one digit.
        let (size, digit): (isize, u32) = unsafe {
            debug_assert!(ffi::PyLong_CheckExact(object) != 0);
            (at(object, SIZE), at(object, REST))
        };
        let digit = i64::from(digit);
        // The third bit says that the object is immortal.
        match (self.has_tag, if self.has_tag { size & !0b100 } else { size }) {
            (true, 0b1_000) | (false, 1) => Some(digit),
            (true, 0b1) | (false, 0) => Some(0),
            (true, 0b1_010) | (false, -1) => Some(-digit),
            _ => None,
        }
    }

    /// Whether it reads what was put into objects made for it, and leaves others alone.
    fn agrees(self, py: Python<'_>) -> PyResult<bool> {
        const ONE_DIGIT: i64 = (1 << 30) - 1;
        let (ints, floats) = ([0, 1, -1, 5, -1000, ONE_DIGIT, -ONE_DIGIT], [-2.5, 0.0, 1e300]);
        let read = |sequence: Bound<'_, PyAny>| {
            let mut chunk = Vec::with_capacity(ints.len());
            let dtype = self.read(&sequence, sequence.is_instance_of::<PyList>(), &mut chunk);
            (dtype, chunk)
        };
        let of_ints = (Some(DType::I64), ints.map(i64::to_ne_bytes).to_vec());
        let of_floats = (Some(DType::F64), floats.map(f64::to_ne_bytes).to_vec());
        Ok(read(PyList::new(py, ints)?.into_any()) == of_ints
            && read(PyTuple::new(py, ints)?.into_any()) == of_ints
            && read(PyList::new(py, floats)?.into_any()) == of_floats
            && read(PyList::new(py, [ONE_DIGIT + 1])?.into_any()) == (None, Vec::new()))
    }
}

/// The items of a list or a tuple.
///
/// # Safety
/// A live object of one of these classes or their subclasses, which is not changed meanwhile.
unsafe fn items<'a>(object: *mut ffi::PyObject, is_list: bool) -> &'a [*mut ffi::PyObject] {
    // SAFETY: both have the number of their items; a list has their address, a tuple has them in that place.
    unsafe {
        debug_assert!(match is_list {
            true => ffi::PyList_Check(object) != 0,
            false => ffi::PyTuple_Check(object) != 0,
        });
        let items: *const *mut ffi::PyObject = match is_list {
            true => at(object, REST),
            false => object.byte_add(REST).cast(),
        };
        match at::<usize>(object, SIZE) {
            0 => &[],
            count => {
                debug_assert!(!items.is_null());
                std::slice::from_raw_parts(items, count)
            }
        }
    }
}
