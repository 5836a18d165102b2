//! Arrays made by NumPy's C API, whose table of functions keeps its order from release to release: to have
//! `numpy.asarray` ask for the memory costs four times as much.
//!
//! The table is believed only if an array made by it is what `numpy.asarray` makes of the same tensor.
#![allow(unsafe_code)] // Foreign functions.

use std::ffi::{c_int, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyCapsule;
use windrow::bindings::Dims;
use windrow::{DType, Device, Tensor};

use crate::ground::errors::OrPyErr;
use crate::ground::tensor::PyTensor;
use crate::import::numpy_layout::{dtype_of_number, MAX_NUMBER};

type DescrFromType = unsafe extern "C" fn(c_int) -> *mut ffi::PyObject;
type NewFromDescr = unsafe extern "C" fn(
    *mut ffi::PyTypeObject,
    *mut ffi::PyObject,
    c_int,
    *const isize,
    *const isize,
    *mut c_void,
    c_int,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;
type SetBaseObject = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> c_int;

/// Entries of the table.
const ARRAY_TYPE: usize = 2;
const DESCR_FROM_TYPE: usize = 45;
const NEW_FROM_DESCR: usize = 94;
const SET_BASE_OBJECT: usize = 282;

const WRITABLE: c_int = 0x400;

/// The entries of the table that windrow uses.
struct Api {
    class: *mut ffi::PyTypeObject,
    descr_from_type: DescrFromType,
    new_from_descr: NewFromDescr,
    set_base_object: SetBaseObject,
}

// SAFETY: functions, and a type that lives as long as the process; used attached only.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

/// NumPy's number for a dtype; `None` if NumPy itself lacks it.
fn number_of(dtype: DType) -> Option<c_int> {
    (0..=MAX_NUMBER).find(|&number| dtype_of_number(number) == Some(dtype))
}

/// An array over a tensor on the host (not checked), whose base is `keeper` or a new object. `None` where `numpy.asarray` has to
/// make it: there is no table that can be believed, NumPy itself lacks the dtype, or the tensor has no elements.
pub(crate) fn array_of<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    keeper: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    static FOUND: PyOnceLock<Option<Api>> = PyOnceLock::new();
    let found = FOUND.get_or_init(py, || Api::find(py).ok().flatten());
    found.as_ref().map_or(Ok(None), |api| api.make(py, tensor, keeper))
}

impl Api {
    /// The table of the NumPy that can be imported; `None` if its arrays are not those of `numpy.asarray`, Python's error if
    /// there is no NumPy or no table.
    fn find(py: Python<'_>) -> PyResult<Option<Api>> {
        let module = match py.import("numpy._core._multiarray_umath") {
            Ok(module) => module,
            Err(_) => py.import("numpy.core._multiarray_umath")?,
        };
        let capsule = module.getattr("_ARRAY_API")?.cast_into::<PyCapsule>()?;
        // SAFETY: NumPy's capsule, without a name, holds the table, which has more entries in every release that
        // has dtypes of 16 bits.
        let api = unsafe {
            let table: *const *mut c_void =
                ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()).cast();
            if table.is_null() {
                return Err(PyErr::fetch(py));
            }
            let entries = [ARRAY_TYPE, DESCR_FROM_TYPE, NEW_FROM_DESCR, SET_BASE_OBJECT];
            debug_assert!(entries.iter().all(|&entry| !(*table.add(entry)).is_null()));
            Api {
                class: (*table.add(ARRAY_TYPE)).cast(),
                descr_from_type: std::mem::transmute::<*mut c_void, DescrFromType>(
                    *table.add(DESCR_FROM_TYPE),
                ),
                new_from_descr: std::mem::transmute::<*mut c_void, NewFromDescr>(
                    *table.add(NEW_FROM_DESCR),
                ),
                set_base_object: std::mem::transmute::<*mut c_void, SetBaseObject>(
                    *table.add(SET_BASE_OBJECT),
                ),
            }
        };
        let numpy = py.import("numpy")?;
        let is_known = std::ptr::eq(api.class.cast(), numpy.getattr("ndarray")?.as_ptr());
        Ok((is_known && api.agrees(py)?).then_some(api))
    }

    /// Whether an array of each dtype of NumPy's own is what NumPy makes of the tensor by itself.
    fn agrees(&self, py: Python<'_>) -> PyResult<bool> {
        let numpy = py.import("numpy")?;
        let bytes = Tensor::from_vec(vec![0u8; 96], &[96]).or_py_err(py)?;
        for dtype in DType::ALL.iter().copied().filter(|&dtype| number_of(dtype).is_some()) {
            let Ok(tensor) = bytes.part(0, dtype, &[2, 3]) else { return Ok(false) };
            let Some(made) = self.make(py, &tensor, None)? else { return Ok(false) };
            let object = Bound::new(py, PyTensor::from(tensor))?;
            let asked = numpy.call_method1("asarray", (object,))?;
            for name in ["__array_interface__", "dtype", "strides"] {
                if !made.getattr(name)?.eq(asked.getattr(name)?)? {
                    return Ok(false);
                }
            }
            let flags =
                |array: &Bound<'_, PyAny>| array.getattr("flags")?.getattr("num")?.extract::<i64>();
            if flags(&made)? != flags(&asked)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes the array of [`array_of`]; `None` for a dtype that NumPy lacks, and for an empty tensor.
    fn make<'py>(
        &self,
        py: Python<'py>,
        tensor: &Tensor,
        keeper: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(number) = number_of(tensor.dtype()).filter(|_| tensor.nbytes() > 0) else {
            return Ok(None);
        };
        let size = tensor.dtype().size() as i64;
        let strides: Dims = tensor.strides().iter().map(|stride| stride * size).collect();
        let shape = tensor.shape();
        let flags = if tensor.is_read_only() { 0 } else { WRITABLE };
        let owner = match keeper {
            Some(keeper) => keeper.clone(),
            None => Bound::new(py, PyTensor::from(tensor.clone()))?.into_any(),
        };
        debug_assert_eq!(strides.len(), shape.len());
        debug_assert!(!matches!(tensor.device(), Device::Cuda(_)));
        // SAFETY: functions of the table; a dtype and an owner that they take over, an entry for each dim in shape
        // and strides, as wide as `isize` on the 64-bit targets that the engine builds for, and memory that the
        // owner keeps.
        unsafe {
            let descr = (self.descr_from_type)(number);
            if descr.is_null() {
                return Err(PyErr::fetch(py));
            }
            let array = (self.new_from_descr)(
                self.class,
                descr,
                shape.len() as c_int,
                shape.as_ptr().cast(),
                strides.as_ptr().cast(),
                tensor.data_ptr().cast(),
                flags,
                std::ptr::null_mut(),
            );
            let array = Bound::from_owned_ptr_or_err(py, array)?;
            if (self.set_base_object)(array.as_ptr(), owner.into_ptr()) != 0 {
                return Err(PyErr::fetch(py));
            }
            Ok(Some(array))
        }
    }
}
