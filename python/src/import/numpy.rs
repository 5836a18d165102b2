//! NumPy's arrays, by their struct.
#![allow(unsafe_code)] // Structs of foreign objects.

use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use pyo3::{ffi, intern};
use windrow::bindings::Dims;
use windrow::dlpack::ForeignTensor;
use windrow::Device;

use crate::ground::dtype::{dtype_of_kind, named_dtype};
use crate::import::importer::Importer;
use crate::import::numpy_layout::{array_fields, ArrayFields, ArrayStruct};
use crate::import::routes::{cached_route, ImportRoute};

impl<'py> Importer<'py> {
    /// Appends a NumPy array by its `__array_struct__`, or by its protocols if its dtype is not ours or a stride no whole
    /// element.
    #[inline(never)]
    pub fn import_array_struct(
        &mut self,
        object: &Bound<'py, PyAny>,
        index: usize,
    ) -> PyResult<()> {
        let capsule =
            object.getattr(intern!(self.py, "__array_struct__"))?.cast_into::<PyCapsule>()?;
        // SAFETY: NumPy's capsule, without a name, holds its struct.
        let pointer = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
        if pointer.is_null() {
            return Err(PyErr::fetch(self.py));
        }
        debug_assert!(pointer.cast::<ArrayStruct>().is_aligned());
        // SAFETY: as above; it lives as long as the capsule.
        let array = unsafe { &*pointer.cast::<ArrayStruct>() };
        let item_bytes = array.item_bytes as usize;
        let dtype = match dtype_of_kind(array.kind, item_bytes) {
            Some(known) if array.flags & ArrayStruct::NOT_SWAPPED == 0 => known.swapped(),
            None if array.flags & ArrayStruct::NOT_SWAPPED == 0 => None,
            None => named_dtype(object, item_bytes)?,
            known => known,
        };
        let (Some(dtype), ndim @ 0..=64) = (dtype, array.ndim) else {
            return self.import_by_protocol(object, index);
        };
        let dims = |dims: *const isize| -> &[i64] {
            debug_assert!(ndim == 0 || !dims.is_null() && dims.is_aligned());
            match ndim {
                0 => &[],
                // SAFETY: an entry for each dim, alive as long as the capsule. The engine builds for
                // 64-bit targets only, where `isize` is as wide as `i64`.
                _ => unsafe { std::slice::from_raw_parts(dims.cast(), ndim as usize) },
            }
        };
        let (shape, strides) = (dims(array.shape), dims(array.strides));
        let data = array.data.cast();
        self.push_array(
            object,
            ArrayFields { data, dtype, shape, strides, flags: array.flags },
            index,
        )
    }

    /// Appends a NumPy array by its struct, or by its `__array_struct__` if its dtype is not one of NumPy's own that we have.
    #[inline]
    pub fn import_array(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        debug_assert!(
            cached_route(object).is_none_or(|(route, _)| matches!(route, ImportRoute::Array))
        );
        // SAFETY: the route is that of arrays that are laid out so.
        match unsafe { array_fields(object.as_ptr()) } {
            Some(fields) => self.push_array(object, fields, index),
            None => self.import_array_struct(object, index),
        }
    }

    /// Appends an array, or reads it by its protocols if a stride is no whole number of elements.
    #[inline(always)] // As `import`.
    fn push_array(
        &mut self,
        object: &Bound<'py, PyAny>,
        array: ArrayFields<'_>,
        index: usize,
    ) -> PyResult<()> {
        let ArrayFields { data, dtype, shape, strides: bytes, flags } = array;
        let mut strides: Option<Dims> = None;
        if flags & ArrayStruct::C_CONTIGUOUS == 0 {
            let size = dtype.size() as i64;
            let whole = |(&extent, &stride): (&i64, &i64)| extent <= 1 || stride % size == 0;
            if !shape.contains(&0) && !shape.iter().zip(bytes).all(whole) {
                return self.import_by_protocol(object, index);
            }
            strides = Some(bytes.iter().map(|stride| stride / size).collect());
        }
        let (device, strides) = (Device::Cpu, strides.as_deref());
        let read_only = flags & ArrayStruct::WRITABLE == 0;
        self.push(&ForeignTensor { data, dtype, device, shape, strides, read_only }, index)?;
        self.push_ahead();
        Ok(())
    }
}
