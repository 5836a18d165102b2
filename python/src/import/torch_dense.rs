//! A dense torch tensor of the host's memory, read from the words of its C++ object: the function of torch's
//! exchange table takes longer than all else of an import.
//!
//! As in `torch_words`, the words are found by trial on tensors that torch makes for it, and believed only if they
//! agree with what torch says of every one of these.
#![allow(unsafe_code)] // Words of foreign objects.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use windrow::DType;

use crate::import::torch_words::{word, MEMORY, STORAGE, TENSOR};

/// Shapes and strides of more dims are not within the object.
const MAX_DIMS: usize = 5;

/// How far an object is searched, in words.
const SEARCHED: std::ops::Range<usize> = 4..20;

/// Numbers that torch has for dtypes are below this.
const NUM_TYPES: usize = 64;

/// Where the words are.
pub(crate) struct Dense {
    /// The number of dims; then the extents, then the strides, room for [`MAX_DIMS`] each.
    dims: usize,
    /// The element that the tensor begins with, of those in its storage.
    offset: usize,
    /// Bytes to the number of the dtype, of 16 bits.
    dtype: usize,
    /// The dtype of each number.
    dtypes: [Option<DType>; NUM_TYPES],
    /// Dispatch keys, and those of a tensor that is dense, on the host and torch's own kind.
    keys: usize,
    plain: usize,
}

/// The fields of a dense tensor.
pub(crate) struct DenseFields<'a> {
    pub data: *mut u8,
    pub dtype: DType,
    pub shape: &'a [i64],
    pub strides: &'a [i64],
}

impl Dense {
    /// Of torch, if its tensors are laid out so. `keys`: where they have their dispatch keys.
    pub fn of(py: Python<'_>, keys: usize) -> Option<&'static Dense> {
        static FOUND: PyOnceLock<Option<Dense>> = PyOnceLock::new();
        // On a thread of its own, as modes, which are a thread's, make other tensors.
        let found = FOUND.get_or_init(py, || {
            let probe = move || Python::attach(|py| Dense::probe(py, keys).ok().flatten());
            py.detach(|| std::thread::Builder::new().spawn(probe).ok()?.join().ok()?)
        });
        found.as_ref()
    }

    /// The fields of a tensor, if it is dense, on the host, in memory, and of few dims.
    ///
    /// # Safety
    /// A live object of torch's own tensor class; attached.
    #[inline]
    pub unsafe fn fields_of<'a>(&self, object: *mut ffi::PyObject) -> Option<DenseFields<'a>> {
        // SAFETY: words of a live tensor, found in others of its class; its storage lives with it.
        unsafe {
            let tensor = word(object.expose_provenance(), TENSOR);
            if tensor == 0 || word(tensor, self.keys) != self.plain {
                return None;
            }
            let (storage, ndim) = (word(tensor, STORAGE), word(tensor, self.dims));
            if storage == 0 || ndim > MAX_DIMS {
                return None;
            }
            let number = std::ptr::with_exposed_provenance::<u8>(tensor)
                .add(self.dtype)
                .cast::<u16>()
                .read();
            let dtype = self.dtypes.get(usize::from(number)).copied().flatten()?;
            let memory = std::ptr::with_exposed_provenance_mut::<u8>(word(storage, MEMORY));
            if memory.is_null() {
                return None;
            }
            let data = memory.wrapping_add(word(tensor, self.offset).wrapping_mul(dtype.size()));
            let dims = std::ptr::with_exposed_provenance::<i64>(tensor).add(self.dims + 1);
            let shape = std::slice::from_raw_parts(dims, ndim);
            let strides = std::slice::from_raw_parts(dims.add(MAX_DIMS), ndim);
            Some(DenseFields { data, dtype, shape, strides })
        }
    }

    fn probe(py: Python<'_>, keys: usize) -> PyResult<Option<Dense>> {
        let cases = py.import("windrow._torch_probe")?.call_method0("dense")?;
        let cases = cases.try_iter()?.map(|case| case?.extract()).collect::<PyResult<Vec<_>>>()?;
        // SAFETY: the cases hold tensors that torch has just made.
        Ok(unsafe { Dense::find(&cases, keys) })
    }

    /// # Safety
    /// The objects of all cases are live torch tensors.
    unsafe fn find(cases: &[DenseCase<'_>], keys: usize) -> Option<Dense> {
        // SAFETY: a tensor has more words than are searched.
        unsafe {
            let address = |case: &DenseCase<'_>| word(case.0.as_ptr().expose_provenance(), TENSOR);
            let first = cases.first()?;
            let plain = word(address(first), keys);
            // The shapes of others are elsewhere.
            let has_dims = |case: &DenseCase<'_>, at: usize| {
                let dims = |from: usize, of: &[i64]| {
                    let is_there =
                        |(i, &dim): (usize, &i64)| word(address(case), from + i) == dim as usize;
                    of.iter().enumerate().all(is_there)
                };
                let is_far = case.2.len() > MAX_DIMS;
                word(address(case), at) == case.2.len()
                    && (is_far || dims(at + 1, &case.2) && dims(at + 1 + MAX_DIMS, &case.3))
            };
            let dims =
                SEARCHED.into_iter().find(|&at| cases.iter().all(|case| has_dims(case, at)))?;
            let behind = dims + 1 + 2 * MAX_DIMS;
            let offset = (behind..behind + 4)
                .find(|&at| cases.iter().all(|case| word(address(case), at) == case.4))?;
            let number = |case: &DenseCase<'_>, at: usize| {
                std::ptr::with_exposed_provenance::<u8>(address(case)).add(at).cast::<u16>().read()
            };
            // The numbers of dtypes tell them apart, and are as many.
            let table_of = |at: usize| {
                let mut table = [None; NUM_TYPES];
                for case in cases {
                    let dtype: DType = case.1.parse().ok()?;
                    let place = table.get_mut(usize::from(number(case, at)))?;
                    if place.is_some_and(|other| other != dtype) {
                        return None;
                    }
                    *place = Some(dtype);
                }
                Some((at, table))
            };
            let bytes = (8 * (offset + 1)..8 * (offset + 4)).step_by(2);
            let (dtype, dtypes) = bytes.into_iter().find_map(table_of)?;
            let dense = Dense { dims, offset, dtype, dtypes, keys, plain };
            let agrees = |case: &DenseCase<'_>| match dense.fields_of(case.0.as_ptr()) {
                None => !case.6,
                Some(fields) => {
                    case.6
                        && fields.data.addr() == case.5
                        && fields.dtype.name() == case.1
                        && fields.shape == &case.2[..]
                        && fields.strides == &case.3[..]
                }
            };
            cases.iter().all(agrees).then_some(dense)
        }
    }
}

/// A tensor, and what torch says of it: dtype, shape, strides, offset, address, and whether it is plain.
type DenseCase<'py> = (Bound<'py, PyAny>, String, Vec<i64>, Vec<i64>, usize, usize, bool);
