//! Interfaces that are looked up on each object: `__dlpack__`, the CUDA array interface, the buffer
//! protocol, `__array_interface__`.
#![allow(unsafe_code)] // Capsules, buffer views and addresses enter here.

use std::ffi::{c_int, c_void, CStr};

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};
use windrow::dlpack::{
    self, DLDeviceType, ForeignTensor, ManagedTensor, DLTENSOR, DLTENSOR_VERSIONED, USED_DLTENSOR,
    USED_DLTENSOR_VERSIONED,
};
use windrow::{DType, Device, Dims, Error, Mismatch, Stream, MAX_NDIM};

use crate::containers::is_sequence;
use crate::errors::{attribute, class_name, in_words, not_array_like, shown};
use crate::export::{dtype_of_format, dtype_of_kind, dtype_of_typestr, typestr_of};
use crate::import::Importer;
use crate::keep::Buffer;
use crate::stream::from_handle;

/// NumPy's `PyArrayInterface`, see "The array interface protocol" in its documentation.
#[repr(C)]
struct ArrayStruct {
    two: c_int,
    ndim: c_int,
    kind: u8,
    item_bytes: c_int,
    flags: c_int,
    shape: *const isize,
    strides: *const isize,
    data: *mut c_void,
    descr: *mut c_void,
}

const _: () = assert!(size_of::<ArrayStruct>() == 56);

impl ArrayStruct {
    const C_CONTIGUOUS: c_int = 0x1;
    const NOT_SWAPPED: c_int = 0x200;
    const WRITABLE: c_int = 0x400;
}

impl<'py> Importer<'py> {
    /// Interfaces that are looked up on the object, in this order; the first refusal is the one
    /// reported if none works.
    pub fn import_by_protocol(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        self.ahead = None;
        let mut refusal: Option<PyErr> = None;
        if let Some(method) = object.getattr_opt(intern!(self.py, "__dlpack__"))? {
            match self.import_dlpack(object, &method, index) {
                Err(error) if may_try_next(self.py, &error) => refusal = Some(error),
                done => return done,
            }
        }
        if let Some(found) = object.getattr_opt(intern!(self.py, "__cuda_array_interface__"))? {
            match self.import_cuda_array_interface(object, found, index) {
                Err(error) if may_try_next(self.py, &error) => refusal = refusal.or(Some(error)),
                done => return done,
            }
        }
        // SAFETY: a live object; the answer is a flag.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0 {
            match self.import_buffer(object, index) {
                Err(error) if may_try_next(self.py, &error) => refusal = refusal.or(Some(error)),
                done => return done,
            }
        }
        if let Some(found) = object.getattr_opt(intern!(self.py, "__array_interface__"))? {
            match self.import_array_interface(object, found, index) {
                Err(error) if may_try_next(self.py, &error) => refusal = refusal.or(Some(error)),
                done => return done,
            }
        }
        Err(match refusal {
            None => not_array_like((!self.lone).then_some(index), &self.path, object),
            Some(error) if error.get_type(self.py).is(self.py.get_type::<PyBufferError>()) => {
                self.wrap(error, index)
            }
            Some(error) => error,
        })
    }

    /// A NumPy array by its `__array_struct__`; whatever is unusual about it goes the long way.
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
        // SAFETY: as above; it lives as long as the capsule.
        let array = unsafe { &*pointer.cast::<ArrayStruct>() };
        let item_bytes = array.item_bytes as usize;
        let dtype = match dtype_of_kind(array.kind, item_bytes) {
            _ if array.flags & ArrayStruct::NOT_SWAPPED == 0 => None,
            None => named_dtype(object, item_bytes)?,
            known => known,
        };
        let (Some(dtype), ndim @ 0..=64) = (dtype, array.ndim) else {
            return self.import_by_protocol(object, index);
        };
        let dims = |dims: *const isize| -> &[i64] {
            match ndim {
                0 => &[],
                // SAFETY: an entry for each dim, alive as long as the capsule. The engine builds for
                // 64-bit targets only, where `isize` is as wide as `i64`.
                _ => unsafe { std::slice::from_raw_parts(dims.cast(), ndim as usize) },
            }
        };
        let shape = dims(array.shape);
        let mut strides: Option<Dims> = None;
        if array.flags & ArrayStruct::C_CONTIGUOUS == 0 {
            let (size, bytes) = (dtype.size() as i64, dims(array.strides));
            let whole = |(&extent, &stride): (&i64, &i64)| extent <= 1 || stride % size == 0;
            if !shape.contains(&0) && !shape.iter().zip(bytes).all(whole) {
                return self.import_by_protocol(object, index);
            }
            strides = Some(bytes.iter().map(|stride| stride / size).collect());
        }
        let foreign = ForeignTensor {
            data: array.data.cast(),
            dtype,
            device: Device::Cpu,
            shape,
            strides: strides.as_deref(),
            read_only: array.flags & ArrayStruct::WRITABLE == 0,
        };
        self.push(&foreign, index)?;
        self.push_ahead();
        Ok(())
    }

    fn import_dlpack(
        &mut self,
        object: &Bound<'py, PyAny>,
        method: &Bound<'py, PyAny>,
        index: usize,
    ) -> PyResult<()> {
        let (device_type, device_id): (i32, i32) =
            object.call_method0(intern!(self.py, "__dlpack_device__"))?.extract()?;
        let kind = dlpack::DLDeviceType(device_type);
        let device = dlpack::DLDevice { device_type: kind, device_id };
        let place = dlpack::device_from_dl(device).map_err(|error| self.error(error, index))?;
        let on_device = place != Device::Cpu;
        // The producer orders this stream behind his work. It is always named: what a producer does
        // when it is not differs from library to library.
        let stream = on_device.then(|| self.stream.unwrap_or(Stream::LEGACY));
        let handle = stream.map(Stream::handle);
        let kwargs = match &mut self.dlpack_kwargs[usize::from(on_device)] {
            Some(kwargs) => &*kwargs,
            place => {
                let kwargs = PyDict::new(self.py);
                kwargs.set_item("stream", handle)?;
                kwargs.set_item("max_version", (1, 3))?;
                &*place.insert(kwargs)
            }
        };
        // Producers older than these arguments refuse them.
        let is_type_error = |error: &PyErr| error.is_instance_of::<PyTypeError>(self.py);
        let capsule = match method.call((), Some(kwargs)) {
            Err(error) if is_type_error(&error) => {
                let stream_only = PyDict::new(self.py);
                stream_only.set_item("stream", handle)?;
                match method.call((), Some(&stream_only)) {
                    // Without a stream a device's memory cannot be waited for.
                    Err(again) if is_type_error(&again) && !on_device => {
                        method.call0().map_err(|last| in_words(self.py, last, || error))?
                    }
                    done => done?,
                }
            }
            done => done?,
        };
        let Ok(capsule) = capsule.cast_into::<PyCapsule>() else {
            return Err(PyTypeError::new_err(format!(
                "sample {index}: __dlpack__ did not return a capsule"
            )));
        };
        self.consume(&capsule, kind, index)?;
        if let Some(stream) = stream {
            self.keep.order.behind(stream);
            self.keep.order.current.get_or_insert(stream);
        }
        Ok(())
    }

    /// Takes the tensor out of a capsule. Until it is found fit the capsule keeps it.
    fn consume(
        &mut self,
        capsule: &Bound<'py, PyCapsule>,
        announced: DLDeviceType,
        index: usize,
    ) -> PyResult<()> {
        let named = |name: &CStr| capsule.pointer_checked(Some(name)).ok();
        let managed = if let Some(pointer) = named(DLTENSOR_VERSIONED) {
            // SAFETY: a capsule of this name holds such a tensor, alive while the capsule is unused.
            let foreign = unsafe { dlpack::read_versioned(pointer.as_ptr().cast()) };
            self.check(foreign, index)?;
            rename(capsule, USED_DLTENSOR_VERSIONED)?;
            // SAFETY: renamed, so the tensor is ours.
            let managed = unsafe { ManagedTensor::from_versioned(pointer.as_ptr().cast()) };
            managed.map_err(|error| self.error(error, index))?
        } else if let Some(pointer) = named(DLTENSOR) {
            // SAFETY: as above; the legacy struct begins with the tensor.
            let foreign = unsafe { dlpack::read_tensor(pointer.as_ptr().cast()) };
            self.check(foreign, index)?;
            rename(capsule, USED_DLTENSOR)?;
            // SAFETY: as above.
            unsafe { ManagedTensor::from_legacy(pointer.as_ptr().cast()) }
        } else {
            let used = named(USED_DLTENSOR_VERSIONED).or_else(|| named(USED_DLTENSOR)).is_some();
            let what = if used {
                "a DLPack capsule that was already consumed"
            } else {
                "a capsule that is not DLPack's"
            };
            return Err(PyValueError::new_err(format!("sample {index}: {what}")));
        };
        let mut foreign = managed.tensor().map_err(|error| self.error(error, index))?;
        let is_cuda = |kind| matches!(kind, DLDeviceType::CUDA | DLDeviceType::CUDA_MANAGED);
        if is_cuda(managed.device_type()) != is_cuda(announced) {
            let (expected, got) = (announced.to_string(), managed.device_type().to_string());
            let mismatch = Mismatch::new(Some(index), expected, got);
            return Err(self.error(Error::Device(Box::new(mismatch)), index));
        }
        if let Device::Cuda(_) = foreign.device {
            self.check_device(&foreign, index)?;
        }
        // Producers of page-locked memory say so here or there.
        let kind = match managed.device_type() {
            DLDeviceType::CPU => announced,
            kind => kind,
        };
        self.place(&mut foreign, kind, index)?;
        self.push(&foreign, index)?;
        self.keep.managed.push(managed);
        Ok(())
    }

    /// A kernel that reads an address which is no device memory ends all work of the process on that
    /// device, so a producer is not simply believed.
    fn check_device(&self, foreign: &ForeignTensor<'_>, index: usize) -> PyResult<()> {
        if foreign.shape.contains(&0) {
            return Ok(());
        }
        match windrow::device_of(foreign.data.addr()) {
            Ok(device) if device == foreign.device => Ok(()),
            Ok(device) => {
                let expected = format!("memory of {}, as the producer says", foreign.device);
                let got = match device {
                    Device::Cpu => "an address that the driver does not know".to_owned(),
                    other => format!("memory of {other}"),
                };
                let mismatch = Mismatch::new(Some(index), expected, got);
                Err(self.error(Error::Device(Box::new(mismatch)), index))
            }
            // Without a driver nothing will be read.
            Err(Error::NoDriver(_)) => Ok(()),
            Err(error) => Err(self.error(error, index)),
        }
    }

    fn check(&self, foreign: windrow::Result<ForeignTensor<'_>>, index: usize) -> PyResult<()> {
        foreign
            .and_then(|foreign| foreign.layout())
            .map(drop)
            .map_err(|error| self.error(error, index))
    }

    fn import_buffer(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        // NumPy's word for a dtype that the protocol has no letter for is a ValueError.
        let no_letter = |error: PyErr| match error.is_instance_of::<PyValueError>(self.py) {
            true => shown(error.value(self.py)).map_or_else(|error| error, PyBufferError::new_err),
            false => error,
        };
        let buffer = Buffer::new(object, ffi::PyBUF_FULL_RO).map_err(no_letter)?;
        let view = buffer.view();
        let format = match view.format.is_null() {
            true => c"B",
            // SAFETY: a filled-in format is a C string that lives as long as the view.
            false => unsafe { CStr::from_ptr(view.format) },
        };
        let Some(dtype) = dtype_of_format(format.to_bytes(), view.itemsize as usize) else {
            let got = format!("buffer format {format:?} of {} bytes", view.itemsize);
            return Err(self.layout_error(index, "a native number format", &got));
        };
        if !view.suboffsets.is_null() {
            return Err(self.layout_error(index, "strided memory", "a buffer with suboffsets"));
        }
        let ndim = view.ndim as usize;
        // ctypes leaves strides out where they follow from the shape.
        let ints = |pointer: *const isize| -> Option<Vec<i64>> {
            let entry = |d: usize| {
                // SAFETY: not NULL, so it has an entry for each of `ndim` dims.
                unsafe { *pointer.add(d) as i64 }
            };
            (!pointer.is_null()).then(|| (0..ndim).map(entry).collect())
        };
        let whole = || (0..ndim).map(|_| (view.len / view.itemsize.max(1)) as i64).collect();
        let shape: Vec<i64> = ints(view.shape).unwrap_or_else(whole);
        let strides = ints(view.strides)
            .map(|strides| self.in_elements(&shape, &strides, dtype, index))
            .transpose()?;
        let (data, read_only) = (view.buf.cast(), view.readonly != 0);
        let foreign = ForeignTensor {
            data,
            dtype,
            device: Device::Cpu,
            shape: &shape,
            strides: strides.as_deref(),
            read_only,
        };
        self.push(&foreign, index)?;
        self.keep.buffers.push(buffer);
        Ok(())
    }

    fn import_array_interface(
        &mut self,
        object: &Bound<'py, PyAny>,
        found: Bound<'py, PyAny>,
        index: usize,
    ) -> PyResult<()> {
        let interface = found.cast_into::<PyDict>()?;
        let (dtype, shape, strides) =
            self.described(object, &interface, "__array_interface__", index)?;
        let optional =
            |key: &str| interface.get_item(key).map(|item| item.filter(|item| !item.is_none()));
        let (data, read_only) = match optional("data")? {
            Some(pair) if pair.is_instance_of::<PyTuple>() => {
                let (address, read_only): (usize, bool) = pair.extract()?;
                (std::ptr::with_exposed_provenance_mut::<u8>(address), read_only)
            }
            // Without an address the memory is that of a buffer, or the object's own.
            holder => {
                let buffer = Buffer::new(holder.as_ref().unwrap_or(object), ffi::PyBUF_SIMPLE)?;
                let offset: i64 = optional("offset")?.map_or(Ok(0), |offset| offset.extract())?;
                let view = buffer.view();
                let layout = windrow::Layout::try_new(dtype, &shape, strides.as_deref());
                let span = layout.map_err(|error| self.error(error, index))?.byte_span(dtype);
                let fits = offset.checked_add(span.start).is_some_and(|low| low >= 0)
                    && offset.checked_add(span.end).is_some_and(|high| high <= view.len as i64);
                if !fits {
                    let got = format!("{} bytes from {offset} on", span.end.abs_diff(span.start));
                    return Err(self.layout_error(
                        index,
                        &format!("at most {} bytes", view.len),
                        &got,
                    ));
                }
                let data = view.buf.cast::<u8>().wrapping_offset(offset as isize);
                let read_only = view.readonly != 0;
                self.keep.buffers.push(buffer);
                (data, read_only)
            }
        };
        if data.is_null() && !shape.contains(&0) {
            return Err(self.layout_error(index, "an address", "NULL with elements"));
        }
        let foreign = ForeignTensor {
            data,
            dtype,
            device: Device::Cpu,
            shape: &shape,
            strides: strides.as_deref(),
            read_only,
        };
        self.push(&foreign, index)?;
        // The interface may belong to a temporary; the object itself is kept by the caller.
        self.keep.objects.push(interface.into_any().unbind());
        Ok(())
    }

    /// The CUDA array interface, versions 2 and 3: it names no device and keeps nothing alive.
    fn import_cuda_array_interface(
        &mut self,
        object: &Bound<'py, PyAny>,
        found: Bound<'py, PyAny>,
        index: usize,
    ) -> PyResult<()> {
        let interface = found.cast_into::<PyDict>()?;
        let (dtype, shape, strides) =
            self.described(object, &interface, "__cuda_array_interface__", index)?;
        let Some(data) = interface.get_item("data")? else {
            return Err(PyTypeError::new_err(format!(
                "sample {index}: __cuda_array_interface__ has no \"data\""
            )));
        };
        let (address, read_only): (usize, bool) = data.extract()?;
        let is_empty = shape.contains(&0);
        if address == 0 && !is_empty {
            return Err(self.layout_error(index, "an address", "NULL with elements"));
        }
        let device = match is_empty {
            // An address without memory says nothing: empty samples lie where the others do.
            true => match self.list.is_empty() {
                true => Device::Cuda(0),
                false => self.list.kind(0).device,
            },
            false => {
                let device = windrow::device_of(address);
                device.map_err(|error| self.error(error, index))?
            }
        };
        if device == Device::Cpu {
            let mismatch = Mismatch::new(
                Some(index),
                "memory of a CUDA device",
                "an address that the driver does not know",
            );
            return Err(self.error(Error::Device(Box::new(mismatch)), index));
        }
        let stream = match interface.get_item("stream")?.filter(|stream| !stream.is_none()) {
            None => None,
            Some(stream) => match stream.extract::<i64>()? {
                0 => {
                    return Err(PyValueError::new_err(format!(
                    "sample {index}: stream 0 in a CUDA array interface; the default streams are \
                         1 (legacy) and 2 (per thread)"
                )))
                }
                handle => Some(from_handle(handle)?),
            },
        };
        let data = std::ptr::with_exposed_provenance_mut::<u8>(address);
        let strides = strides.as_deref();
        let foreign = ForeignTensor { data, dtype, device, shape: &shape, strides, read_only };
        self.push(&foreign, index)?;
        if let Some(stream) = stream {
            self.keep.order.behind(stream);
            self.keep.order.current.get_or_insert(stream);
        }
        // The interface may belong to a temporary; the object itself is kept by the caller.
        self.keep.objects.push(interface.into_any().unbind());
        Ok(())
    }

    /// Dtype, shape and strides, in elements, of an array interface of either kind.
    fn described(
        &self,
        object: &Bound<'py, PyAny>,
        interface: &Bound<'py, PyDict>,
        name: &str,
        index: usize,
    ) -> PyResult<(DType, Vec<i64>, Option<Vec<i64>>)> {
        let required = |key: &str| {
            interface.get_item(key)?.ok_or_else(|| {
                PyTypeError::new_err(format!("sample {index}: {name} has no \"{key}\""))
            })
        };
        let shape = dims_of(&required("shape")?)?;
        let typestr: String = required("typestr")?.extract()?;
        let dtype = match dtype_of_typestr(typestr.as_bytes()) {
            Some(dtype) => Some(dtype),
            None => {
                let is_swapped =
                    typestr.starts_with(if cfg!(target_endian = "little") { '>' } else { '<' });
                match typestr.get(2..).filter(|_| !is_swapped).and_then(|size| size.parse().ok()) {
                    Some(size) => named_dtype(object, size)?,
                    None => None,
                }
            }
        };
        let Some(dtype) = dtype else {
            let got = format!("typestr {typestr:?}");
            return Err(self.layout_error(index, "a native number format", &got));
        };
        let optional =
            |key: &str| interface.get_item(key).map(|item| item.filter(|item| !item.is_none()));
        if optional("mask")?.is_some() {
            return Err(self.layout_error(index, "an array without a mask", "a masked array"));
        }
        let strides = optional("strides")?.map(|strides| dims_of(&strides)).transpose()?;
        let strides =
            strides.map(|strides| self.in_elements(&shape, &strides, dtype, index)).transpose()?;
        Ok((dtype, shape, strides))
    }

    /// Byte strides to element strides.
    fn in_elements(
        &self,
        shape: &[i64],
        strides: &[i64],
        dtype: DType,
        index: usize,
    ) -> PyResult<Vec<i64>> {
        let size = dtype.size() as i64;
        let used = |d: usize| !shape.contains(&0) && shape.get(d).is_some_and(|&extent| extent > 1);
        if strides.iter().enumerate().any(|(d, stride)| used(d) && stride % size != 0) {
            return Err(self.layout_error(
                index,
                "strides of whole elements",
                &format!("byte strides {strides:?}"),
            ));
        }
        Ok(strides.iter().map(|stride| stride / size).collect())
    }
}

/// The dtype of an array by its name: that is how NumPy knows the types of ml_dtypes.
fn named_dtype(array: &Bound<'_, PyAny>, item_bytes: usize) -> PyResult<Option<DType>> {
    let dtype = attribute(array, "dtype")?;
    let name = dtype.map_or(Ok(None), |dtype| attribute(&dtype, "name"))?;
    let known = name.and_then(|name| name.extract::<String>().ok()?.parse().ok());
    // The others go by kind and byte order.
    Ok(known.filter(|&known: &DType| typestr_of(known).is_none() && known.size() == item_bytes))
}

/// A sequence of dims, of which one more than there can be is read: it may say anything of its length,
/// and have no end.
fn dims_of(dims: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    if !is_sequence(dims)? {
        let class = class_name(&dims.get_type())?;
        return Err(PyTypeError::new_err(format!("expected a sequence of ints, got {class}")));
    }
    dims.try_iter()?.take(MAX_NDIM + 1).map(|entry| entry?.extract()).collect()
}

fn rename(capsule: &Bound<'_, PyCapsule>, name: &'static CStr) -> PyResult<()> {
    // SAFETY: a valid capsule and a name that lives for ever.
    match unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), name.as_ptr()) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(capsule.py())),
    }
}

/// Whether another interface may do where this one refused.
fn may_try_next(py: Python<'_>, error: &PyErr) -> bool {
    let class = error.get_type(py);
    class.is(py.get_type::<PyBufferError>()) || class.is(py.get_type::<PyTypeError>())
}
