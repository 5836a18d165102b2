//! Row-major NumPy arrays and dense torch tensors of the host's, read from the words of their objects one after the other: no
//! Python code runs, and no reference is counted.
#![allow(unsafe_code)] // Structs of foreign objects.

use std::ops::Range;

use pyo3::ffi;
use pyo3::prelude::*;
use windrow::bindings::prefetch;
use windrow::{DType, Device, SampleList};

use crate::import::numpy_words::{array_fields, prefetch_dims, ArrayStruct};
use crate::import::routes::{route_of, ImportRoute, Lazy};
use crate::import::torch_dense::Dense;
use crate::import::torch_words::{TorchWords, FARTHEST};

/// How many places ahead the dims of an array are asked for, and twice as many its object.
const ARRAYS_AHEAD: usize = 8;

/// How all samples of a list are read.
pub(super) enum Reader {
    Array,
    Dense(&'static TorchWords, &'static Dense),
}

/// An address, a dtype, a shape, and strides unless row-major.
type RawArray<'a> = (*const u8, DType, &'a [i64], Option<&'a [i64]>);

impl Reader {
    /// The reader of objects of a class, of which this is one; `None` for other classes. Runs Python code unless the class [is
    /// known](known_route).
    pub fn of(first: &Bound<'_, PyAny>) -> PyResult<Option<Reader>> {
        route_of(first).map(Reader::by)
    }

    /// As [`Reader::of`], by the route of the class.
    pub fn by(route: (ImportRoute, Lazy)) -> Option<Reader> {
        match route {
            (ImportRoute::Array, Lazy::No) => Some(Reader::Array),
            (ImportRoute::Exchange { dense: Some(dense), .. }, Lazy::Words(words)) => {
                Some(Reader::Dense(words, dense))
            }
            _ => None,
        }
    }

    /// The samples of a range of objects; those behind it are asked for too. `None` if one is of another class or not to be
    /// read so, for samples without memory for the list, and for those whose stack reads and writes more than `most_bytes`.
    ///
    /// ```text
    /// until all samples are in the list:
    ///     read one; of another class, or not to be read that way: None
    ///     the first of a stack that is too large: None
    ///     a row that differs from the last one in its length: append address and length
    ///     any other: append it with its layout, then those behind it that differ from it in their address alone
    /// ```
    ///
    /// # Safety
    /// The objects are alive, this is for the class, and nothing runs Python code until the list is dropped or the objects are
    /// held.
    #[inline]
    pub unsafe fn list(
        &self,
        class: *mut ffi::PyTypeObject,
        objects: &[*mut ffi::PyObject],
        range: Range<usize>,
        most_bytes: u64,
    ) -> Option<SampleList<'static>> {
        let (mut list, end) = (SampleList::new(), range.end);
        list.reserve(range.len()).ok()?;
        let mut last: Option<(DType, &[i64], &[i64])> = None;
        let read = |index: usize| {
            // SAFETY: the caller's promise. A live object has a type.
            unsafe {
                self.prefetch_ahead(class, |steps| objects.get(index + steps).copied());
                let object = *objects.get(index)?;
                let read = (ffi::Py_TYPE(object) == class).then(|| self.read(object)).flatten()?;
                // It is copied next, by one thread; here several bring it.
                Some(read)
            }
        };
        loop {
            let index = range.start + list.len();
            if index == end {
                return Some(list);
            }
            let (data, dtype, shape, strides) = read(index)?;
            if index == range.start && bytes_moved(range.len(), dtype, shape) > most_bytes {
                return None;
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
                    return None;
                }
            }
            if !is_row {
                // Those behind it that are like it, as most are, without another look at the list for each.
                let alike = (index + 1..end).map_while(|index| {
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
    }

    /// Asks for the memory of the first objects, which [`Reader::list`] then reads.
    ///
    /// # Safety
    /// As for [`Reader::list`].
    pub unsafe fn prefetch_first(
        &self,
        class: *mut ffi::PyTypeObject,
        objects: &[*mut ffi::PyObject],
    ) {
        const { assert!(FARTHEST >= 2 * ARRAYS_AHEAD) };
        for before in (1..=FARTHEST).rev() {
            let at = |steps: usize| objects.get(steps.checked_sub(before)?).copied();
            // SAFETY: the caller's promise.
            unsafe { self.prefetch_ahead(class, at) };
        }
    }

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
                    if let Some(object) = at(2 * ARRAYS_AHEAD) {
                        prefetch(object.cast(), 1);
                    }
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

/// Without a call, for a few entries.
#[inline]
fn are_same(one: &[i64], other: &[i64]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a == b)
}

/// Whether shapes differ in the extent of dim 0 and in nothing else, and the first has elements: without any, a list of rows takes
/// whatever strides for row-major ones.
#[inline]
fn differ_in_dim_0(one: &[i64], other: &[i64]) -> bool {
    match (one, other) {
        ([first, one @ ..], [of_other, other @ ..]) => {
            first != of_other && *first != 0 && are_same(one, other)
        }
        _ => false,
    }
}

/// Bytes that a stack of so many samples reads and writes at least.
#[inline]
fn bytes_moved(count: usize, dtype: DType, shape: &[i64]) -> u64 {
    let sizes = [2, count as i64, dtype.size() as i64];
    sizes.iter().chain(shape).fold(1, |all, &n| all.saturating_mul(n as u64))
}
