//! Interfaces that are looked up on each object, and in which order; `__dlpack__` and the buffer protocol themselves.
//! The array interfaces are in `array_interface`.
#![allow(unsafe_code)] // Capsules, buffer views and addresses enter here.

use std::ffi::CStr;

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyCapsule, PyDict, PyType};
use pyo3::{ffi, intern};
use windrow::dlpack::{
    DLDeviceType, ForeignTensor, ManagedTensor, DLTENSOR, DLTENSOR_VERSIONED, USED_DLTENSOR,
    USED_DLTENSOR_VERSIONED,
};
use windrow::error::MoveSide;
use windrow::{dlpack, DType, Device, Error, Stream};

use crate::ground::dtype::{dtype_of_format, is_small};
use crate::ground::errors::{
    answered, attribute, class_name, in_words, is_answer, not_array_like, shown, type_error,
    LayoutError,
};
use crate::ground::modules::{grad_is_enabled, loaded, requires_grad};
use crate::ground::reserve::push_to;
use crate::import::array_interface::{ON_DEVICE, ON_HOST};
use crate::import::importer::Importer;
use crate::ownership::buffer::{refuses_writes, Buffer};

impl<'py> Importer<'py> {
    /// Appends an object by interfaces that are looked up on it: `__dlpack__`, the CUDA array
    /// interface, the buffer protocol and the array interface, in this order. The next one is tried
    /// after a refusal only ([`may_try_next`]); any other error ends the search. The first refusal
    /// is the one reported if none works, a BufferError as LayoutError; TypeError for a class, and for an object that has none.
    /// A tensor that requires grad is detached if its `__dlpack__` fails while no gradients are recorded, and no other interface
    /// is tried then.
    pub fn import_by_protocol(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        self.ahead = None;
        if object.is_instance_of::<PyType>() {
            // A class is refused: its attributes are those of its objects.
            return not_array_like(self.subject(index), &self.path, object);
        }
        let mut refusal: Option<PyErr> = None;
        if let Some(method) = object.getattr_opt(intern!(self.py, "__dlpack__"))? {
            match self.import_dlpack(object, &method, index) {
                // torch's own refuses what requires grad in every grad mode.
                Err(error)
                    if is_answer(self.py, &error)
                        && requires_grad(object)?
                        && !grad_is_enabled(self.py)? =>
                {
                    let detached = object.call_method0(intern!(self.py, "detach"))?;
                    let method = detached.getattr(intern!(self.py, "__dlpack__"))?;
                    return self.import_dlpack(&detached, &method, index);
                }
                Err(error) if may_try_next(self.py, &error) => refusal = Some(error),
                done => return done,
            }
        }
        if let Some(found) = object.getattr_opt(intern!(self.py, "__cuda_array_interface__"))? {
            match self.import_interface(object, found, ON_DEVICE, index) {
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
            match self.import_interface(object, found, ON_HOST, index) {
                Err(error) if may_try_next(self.py, &error) => refusal = refusal.or(Some(error)),
                done => return done,
            }
        }
        match refusal {
            None => not_array_like(self.subject(index), &self.path, object),
            Some(error) if error.get_type(self.py).is(self.py.get_type::<PyBufferError>()) => {
                Err(self.wrap(error, index))
            }
            Some(error) => Err(error),
        }
    }

    /// The refusal of an object that the caller has found to be a tracer, which is not checked: always an error, TypeError.
    pub fn refuse_traced(&self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        let name = class_name(&object.get_type())?;
        let text = format!(
            "expected an array-like, got {name}: inside jit, grad or vmap of JAX an array has no values \
             yet; make the batch outside"
        );
        Err(type_error(self.py, self.subject(index), &self.path, &text))
    }

    /// The exception for what a producer raised when it was asked for its memory. An array that
    /// says that it was deleted: LayoutError. A TypeError or BufferError, of a subclass too, is a
    /// refusal and is wrapped ([`Importer::wrap`]); DLPack has BufferError for that, pyarrow and
    /// unknown arguments TypeError. After any other answer an array of a dtype that no batch can
    /// have gets the error of [`Importer::foreign_dtype`]; the rest is raised as it is.
    fn refused(&self, object: &Bound<'py, PyAny>, cause: PyErr, index: usize) -> PyErr {
        let py = self.py;
        if !is_answer(py, &cause) {
            return cause;
        }
        let is_refusal =
            cause.is_instance_of::<PyTypeError>(py) || cause.is_instance_of::<PyBufferError>(py);
        let error = match is_deleted(object) {
            Ok(true) => {
                let got = "one that was deleted or donated";
                self.layout_error(index, "an array with memory", got)
            }
            _ if is_refusal => return self.wrap(cause, index),
            Ok(false) => match unfit_dtype(object) {
                Ok(Some(name)) => self.foreign_dtype(index, &format!("dtype {name}"), &name),
                Ok(None) => return cause,
                Err(error) => return error,
            },
            Err(error) => return error,
        };
        error.set_cause(py, Some(cause));
        error
    }

    /// Appends what `method`, the object's `__dlpack__`, gives. On a device it is asked to order its work before the stream of
    /// the work, or the legacy default stream, which the owner then follows. After a TypeError it is asked without `max_version`,
    /// and on the host without arguments. An owned sample is marked as read-only if [`is_immutable`] says so of the object.
    /// Errors of the object are those of [`Importer::refused`]; TypeError for another result than a capsule.
    fn import_dlpack(
        &mut self,
        object: &Bound<'py, PyAny>,
        method: &Bound<'py, PyAny>,
        index: usize,
    ) -> PyResult<()> {
        let device = object.call_method0(intern!(self.py, "__dlpack_device__"));
        let device = device.map_err(|error| self.refused(object, error, index))?;
        let (device_type, device_id): (i32, i32) = device.extract()?;
        let kind = dlpack::DLDeviceType(device_type);
        let device = dlpack::DLDevice { device_type: kind, device_id };
        let place = dlpack::device_from_dl(device).map_err(|error| self.error(error, index))?;
        let on_device = place != Device::Cpu;
        // The producer orders this stream behind its work. It is always named: what a producer does
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
        // Producers older than these arguments refuse them; classes below TypeError say something of the object.
        let type_error = self.py.get_type::<PyTypeError>();
        let is_type_error = |error: &PyErr| error.get_type(self.py).is(&type_error);
        let capsule = match method.call((), Some(kwargs)) {
            Err(error) if is_type_error(&error) => {
                let stream_only = PyDict::new(self.py);
                stream_only.set_item("stream", handle)?;
                match method.call((), Some(&stream_only)) {
                    // Memory of a device cannot be waited for without a stream.
                    Err(again) if is_type_error(&again) && !on_device => {
                        method.call0().map_err(|last| in_words(self.py, last, || error))
                    }
                    done => done,
                }
            }
            done => done,
        };
        let capsule = capsule.map_err(|error| self.refused(object, error, index))?;
        let Ok(capsule) = capsule.cast_into::<PyCapsule>() else {
            return Err(PyTypeError::new_err(format!(
                "{}: __dlpack__ did not return a capsule",
                self.named(index)
            )));
        };
        self.consume(&capsule, kind, index)?;
        // What `detach` returned may be of another class.
        let last = self.last.as_ref().filter(|(class, ..)| object.get_type().is(class));
        if let Some((.., lazy)) = last {
            self.check_dtype(object, *lazy, self.list.meta(self.list.len() - 1).dtype, index)?;
        }
        let is_known = self.list.is_read_only_at(self.list.len() - 1);
        if self.owned && !is_known && is_immutable(object)? {
            self.list.mark_last_read_only();
        }
        if let Some(stream) = stream {
            self.owner.producers.follow(stream);
        }
        Ok(())
    }

    /// Takes the tensor out of a capsule and appends it. The capsule keeps a tensor that cannot be
    /// read; after every later error the tensor is released and the capsule is used up.
    /// `announced`: by `__dlpack_device__`. ValueError for a capsule that was consumed or is not
    /// DLPack's, LayoutError for a copy where memory is to be written to, DeviceError if the tensor or
    /// the announcement alone is on a GPU, and for memory that [`Importer::check_device`] refuses. Ordinals, and kinds of host
    /// memory, are not compared.
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
            return Err(PyValueError::new_err(format!("{}: {what}", self.named(index))));
        };
        let is_written = self.side.is_some_and(MoveSide::is_written)
            || matches!(self.argument, Some("out" | "dsts" | "scales_out"));
        if is_written && managed.is_copied() {
            let got = "a copy, to which nobody looks";
            return Err(self.layout_error(index, "memory that may be written to", got));
        }
        let mut foreign = managed.tensor().map_err(|error| self.error(error, index))?;
        let is_cuda = |kind| matches!(kind, DLDeviceType::CUDA | DLDeviceType::CUDA_MANAGED);
        if is_cuda(managed.device_type()) != is_cuda(announced) {
            let (expected, got) = (announced.to_string(), managed.device_type().to_string());
            return Err(self.device_error(index, &expected, &got));
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
        self.is_lent = true;
        push_to(&mut self.owner.managed, managed)
    }

    /// DeviceError for memory of which the driver says that it is not on the producer's device: a kernel that reads an address
    /// which is no device memory ends all work of the process on that device. Without a driver, and without elements, all is
    /// well. The tensor is one of a GPU: page-locked memory that is announced as the host's would be refused.
    fn check_device(&self, foreign: &ForeignTensor<'_>, index: usize) -> PyResult<()> {
        if foreign.shape.contains(&0) {
            return Ok(());
        }
        match windrow::device::device_of(foreign.data.addr()) {
            Ok(device) if device == foreign.device => Ok(()),
            Ok(device) => {
                let expected = format!("memory of {}, as the producer says", foreign.device);
                let got = match device {
                    Device::Cpu => "an address that the driver does not know".to_owned(),
                    other => format!("memory of {other}"),
                };
                Err(self.device_error(index, &expected, &got))
            }
            // The samples are not read without a driver.
            Err(Error::NoDriver(_)) => Ok(()),
            Err(error) => Err(self.error(error, index)),
        }
    }

    /// Refuses a tensor that cannot be read, or has a layout that cannot be expressed.
    fn check(&self, foreign: windrow::Result<ForeignTensor<'_>>, index: usize) -> PyResult<()> {
        foreign
            .and_then(|foreign| foreign.layout())
            .map(drop)
            .map_err(|error| self.error(error, index))
    }

    /// Appends a view by the buffer protocol, which `owner` holds. The view is asked for to read, also where memory is to be
    /// written to; one that is read-only is pushed as such. It raises the object's own error, a ValueError as BufferError,
    /// LayoutError for suboffsets and strides of no whole elements, and the error of [`Importer::foreign_dtype`].
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
            return Err(self.foreign_dtype(index, &got, &format.to_string_lossy()));
        };
        if !view.suboffsets.is_null() {
            return Err(self.layout_error(index, "strided memory", "a buffer with suboffsets"));
        }
        let ndim = usize::try_from(view.ndim).unwrap_or_default();
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
        self.is_lent = true;
        push_to(&mut self.owner.buffers, buffer)
    }
}

/// Whether an object says that it was deleted, as a JAX array does: its own text does not say so, or names no sample. The bool
/// True says so; any other result of its `is_deleted`, and an exception, does not. What is no answer, such as KeyboardInterrupt,
/// is raised.
fn is_deleted(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let (py, ask) = (object.py(), attribute(object, "is_deleted")?);
    let answer = ask.map(|ask| answered(py, ask.call0())).transpose()?;
    Ok(matches!(answer, Some(Ok(answer)) if answer.is(PyBool::new(py, true))))
}

/// The name of a dtype that no batch can have, such as int4 or datetime64, as `dtype.name` of the array says it; `None` for other
/// dtypes, and for an object without that name.
fn unfit_dtype(array: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let dtype = attribute(array, "dtype")?;
    let name = dtype.map_or(Ok(None), |dtype| attribute(&dtype, "name"))?;
    let name = name.and_then(|name| name.extract::<String>().ok());
    Ok(name.filter(|name| is_small(name) || name.parse::<DType>().is_err()))
}

/// Gives a capsule another name.
fn rename(capsule: &Bound<'_, PyCapsule>, name: &'static CStr) -> PyResult<()> {
    // SAFETY: a valid capsule and a static name.
    match unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), name.as_ptr()) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(capsule.py())),
    }
}

/// Whether an object must not be written to, though its capsule does not say so: a JAX array, or an
/// object that gives its buffer for reading only. Legacy capsules cannot say so, and JAX has no
/// others.
fn is_immutable(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    match loaded(object.py(), "jax", "Array")? {
        Some(class) if object.is_instance(&class)? => Ok(true),
        _ => refuses_writes(object),
    }
}

/// Whether another interface may do where this one refused: the error, or the cause of a LayoutError, is a BufferError or
/// TypeError and of no subclass.
fn may_try_next(py: Python<'_>, error: &PyErr) -> bool {
    let cause = error.is_instance_of::<LayoutError>(py).then(|| error.cause(py)).flatten();
    let class = cause.as_ref().unwrap_or(error).get_type(py);
    class.is(py.get_type::<PyBufferError>()) || class.is(py.get_type::<PyTypeError>())
}
