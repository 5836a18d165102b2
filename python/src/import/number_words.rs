//! Lists of Python ints and floats, read from the words of these objects: to ask the interpreter for one value
//! after the other takes several times as long.
//!
//! No release of Python promises where those words are. They are looked for in objects made for it, and believed
//! only if they agree with these; without them, as on interpreters without a global lock, each value is asked for.
#![allow(unsafe_code)] // Words of foreign objects.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyFloat, PyInt, PyList, PyTuple};
use windrow::DType;

/// Bytes from the start of an object to its class, to the size of a variable one, and to what follows.
const CLASS: usize = 8;
const SIZE: usize = 16;
const REST: usize = 24;

/// Where the words are that are not in the same place in every release.
#[derive(Clone, Copy)]
struct NumberWords {
    /// To the items of a tuple.
    tuple: usize,
    /// Whether an int has its sign and number of digits in the lowest bits of a word of its own, as since 3.12;
    /// else it has a size of that sign.
    has_tag: bool,
}

/// # Safety
/// A `T` at so many bytes from the start of a live object.
#[inline(always)]
unsafe fn at<T: Copy>(object: *mut ffi::PyObject, bytes: usize) -> T {
    // SAFETY: the caller's promise.
    unsafe { object.cast::<u8>().add(bytes).cast::<T>().read() }
}

impl NumberWords {
    fn of(py: Python<'_>) -> Option<NumberWords> {
        static FOUND: PyOnceLock<Option<NumberWords>> = PyOnceLock::new();
        *FOUND.get_or_init(py, || probe(py).ok().flatten())
    }

    /// The value of an int of one digit, of which there are 30 bits.
    ///
    /// # Safety
    /// A live object of Python's own int.
    #[inline(always)]
    unsafe fn int(self, object: *mut ffi::PyObject) -> Option<i64> {
        // SAFETY: every int has room for one digit.
        let (size, digit): (isize, u32) = unsafe { (at(object, SIZE), at(object, REST)) };
        let digit = i64::from(digit);
        // The third bit says that the object is immortal.
        match (self.has_tag, if self.has_tag { size & !0b100 } else { size }) {
            (true, 0b1_000) => Some(digit),
            (true, 0b1) => Some(0),
            (true, 0b1_010) => Some(-digit),
            (false, 1) => Some(digit),
            (false, 0) => Some(0),
            (false, -1) => Some(-digit),
            _ => None,
        }
    }

    /// The items of a list or a tuple.
    ///
    /// # Safety
    /// A live object of one of these classes or their subclasses, which is not changed meanwhile.
    unsafe fn items<'a>(
        self,
        object: *mut ffi::PyObject,
        is_list: bool,
    ) -> &'a [*mut ffi::PyObject] {
        // SAFETY: the number of items, and where they are.
        unsafe {
            let count: usize = at(object, SIZE);
            let items: *const *mut ffi::PyObject = match is_list {
                true => at(object, REST),
                false => object.cast::<u8>().add(self.tuple).cast(),
            };
            if count == 0 {
                &[]
            } else {
                std::slice::from_raw_parts(items, count)
            }
        }
    }
}

/// Appends the values of a list or tuple that holds ints of one digit, or floats, and nothing else; as many as there
/// is room for. `None`, and nothing is appended, if it is another, or if the words are not known.
#[inline(never)] // As a part of the loop over samples its own loop takes a tenth more instructions.
pub(crate) fn read_numbers(
    sequence: &Bound<'_, PyAny>,
    is_list: bool,
    chunk: &mut Vec<[u8; 8]>,
) -> Option<DType> {
    let words = NumberWords::of(sequence.py())?;
    // SAFETY: attached, so that nothing changes the sequence or its items before this returns: no code of Python's
    // runs meanwhile.
    let items = unsafe { words.items(sequence.as_ptr(), is_list) };
    let room = chunk.capacity() - chunk.len();
    let (first, start) = (*items.first().filter(|_| items.len() <= room)?, chunk.len());
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
            unsafe { words.int(item) }.is_some_and(|value| push(value.to_ne_bytes()))
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

/// Finds the words in objects that are made for it.
fn probe(py: Python<'_>) -> PyResult<Option<NumberWords>> {
    if size_of::<ffi::PyObject>() != SIZE {
        // Of an interpreter without a global lock, or of another implementation.
        return Ok(None);
    }
    let numbers = [0, 1, -1, 5, 1000, -1000, (1 << 30) - 1, 1 - (1 << 30)];
    let ints: Vec<_> =
        numbers.iter().map(|&number: &i64| number.into_pyobject(py)).collect::<Result<_, _>>()?;
    let (list, tuple) = (PyList::new(py, &ints)?, PyTuple::new(py, &ints)?);
    let large = (1i64 << 30).into_pyobject(py)?;
    let float = PyFloat::new(py, -2.5);
    let is_int = |int: &Bound<'_, PyInt>, class| {
        // SAFETY: a live object.
        std::ptr::eq(unsafe { at::<*const ffi::PyTypeObject>(int.as_ptr(), CLASS) }, class)
    };
    if !ints.iter().all(|int| is_int(int, &raw const ffi::PyLong_Type)) {
        return Ok(None);
    }
    // SAFETY: a list has three words behind its class, a tuple of eight items as many and more, and a float one.
    unsafe {
        let expected: Vec<_> = ints.iter().map(|int| int.as_ptr()).collect();
        let count = |object: *mut ffi::PyObject| at::<usize>(object, SIZE) == numbers.len();
        let offsets = [REST, REST + 8];
        let tuple_at = offsets
            .into_iter()
            .find(|&bytes| at::<*mut ffi::PyObject>(tuple.as_ptr(), bytes) == expected[0]);
        let Some(tuple_at) = tuple_at else { return Ok(None) };
        if !count(list.as_ptr())
            || !count(tuple.as_ptr())
            || at::<f64>(float.as_ptr(), SIZE) != -2.5
        {
            return Ok(None);
        }
        let is_right = |words: &NumberWords| {
            words.items(list.as_ptr(), true) == expected
                && words.items(tuple.as_ptr(), false) == expected
                && words.int(large.as_ptr()).is_none()
                && ints
                    .iter()
                    .zip(numbers)
                    .all(|(int, number)| words.int(int.as_ptr()) == Some(number))
        };
        let forms = [true, false].map(|has_tag| NumberWords { tuple: tuple_at, has_tag });
        Ok(forms.into_iter().find(is_right))
    }
}
