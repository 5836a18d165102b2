//! Import: any array-like to a sample, and what keeps its memory alive.
#![allow(unsafe_code)] // Foreign pointers enter here.

use std::ffi::CStr;

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyCapsule, PyDict, PyFloat, PyTuple};
use windrow::dlpack::{
    self, DLTensor, ForeignTensor, ManagedTensor, DLTENSOR, DLTENSOR_VERSIONED, USED_DLTENSOR,
    USED_DLTENSOR_VERSIONED,
};
use windrow::{DType, Device, Error, Mismatch, SampleList};

use crate::batch::PyBatch;
use crate::errors::{not_array_like, to_py_err, OrPyErr};
use crate::export::{dtype_of_format, dtype_of_typestr};
use crate::sources::{route_of, Route};
use crate::tensor::PyTensor;

/// Everything that keeps the samples of one import alive.
#[derive(Default)]
pub(crate) struct Keep {
    objects: Vec<Py<PyAny>>,
    managed: Vec<ManagedTensor>,
    buffers: Vec<Buffer>,
    tensors: Vec<windrow::Tensor>,
    /// Python numbers; boxed in chunks that never move.
    numbers: Vec<Vec<[u8; 8]>>,
}

impl Keep {
    pub fn object(&mut self, object: Py<PyAny>) {
        self.objects.push(object);
    }
}

impl Drop for Keep {
    /// Releases everything under one attach. After the interpreter is gone there is nothing to
    /// release it to, and it leaks.
    fn drop(&mut self) {
        let objects = std::mem::take(&mut self.objects);
        let managed = std::mem::take(&mut self.managed);
        let buffers = std::mem::take(&mut self.buffers);
        if objects.is_empty() && managed.is_empty() && buffers.is_empty() {
            return;
        }
        let mut held = Some((objects, managed, buffers));
        Python::try_attach(|_| drop(held.take()));
        std::mem::forget(held);
    }
}

/// A buffer view, released when dropped. The caller is attached then: `Keep` sees to it.
struct Buffer(Box<ffi::Py_buffer>);

// SAFETY: a filled-in view is plain data; it is released under the interpreter lock.
unsafe impl Send for Buffer {}
// SAFETY: as above; nothing is mutated through a shared reference.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: filled in by `PyObject_GetBuffer`, released once, attached.
        unsafe { ffi::PyBuffer_Release(&mut *self.0) };
    }
}

/// How many samples ahead memory is asked for.
const PREFETCH_DISTANCE: usize = 8;

#[inline]
fn prefetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Reads objects one after the other into a list.
pub(crate) struct Importer<'py> {
    py: Python<'py>,
    pub list: SampleList<'static>,
    pub keep: Keep,
    /// The leaf these samples belong to, for errors.
    path: String,
    /// Ask for owned tensors even where a borrowed one would do: those know if they are read-only.
    owned: bool,
    last: Option<(*mut ffi::PyTypeObject, Route)>,
    /// Whether objects of the last type have at least two words behind their head.
    has_two_words: bool,
    guard: Option<LazyBits<'py>>,
    dlpack_kwargs: Option<Bound<'py, PyDict>>,
}

/// torch's questions for bits that its exchange API leaves out.
struct LazyBits<'py> {
    is_neg: Bound<'py, PyAny>,
    is_conj: Bound<'py, PyAny>,
}

impl<'py> Importer<'py> {
    pub fn new(py: Python<'py>, path: &str, owned: bool) -> Importer<'py> {
        Importer {
            py,
            list: SampleList::new(),
            keep: Keep::default(),
            path: path.to_owned(),
            owned,
            last: None,
            has_two_words: false,
            guard: None,
            dlpack_kwargs: None,
        }
    }

    /// Reads every sample of a tuple, which keeps them alive.
    pub fn import_tuple(&mut self, samples: &Bound<'py, PyTuple>) -> PyResult<()> {
        self.keep.object(samples.clone().into_any().unbind());
        self.list.reserve(samples.len());
        for index in 0..samples.len() {
            self.prefetch(samples, index);
            let sample = samples.get_borrowed_item(index)?;
            self.import(&sample, index)?;
        }
        Ok(())
    }

    /// Objects made long ago lie anywhere: without this an import waits for memory three times for
    /// each. First the object is fetched, later what its own fields seem to point to.
    #[inline]
    fn prefetch(&self, samples: &Bound<'py, PyTuple>, index: usize) {
        let Some((class, Route::Exchange { .. })) = self.last else { return };
        if let Ok(far) = samples.get_borrowed_item(index + 2 * PREFETCH_DISTANCE) {
            prefetch_line(far.as_ptr().cast());
        }
        let Ok(near) = samples.get_borrowed_item(index + PREFETCH_DISTANCE) else { return };
        // SAFETY: a live object; objects of this exact type were found to have two words behind
        // their head (`has_two_words`), and a word of any value may be prefetched.
        unsafe {
            if ffi::Py_TYPE(near.as_ptr()) == class && self.has_two_words {
                let words = near.as_ptr().add(1).cast::<*const u8>();
                for word in [words.read_volatile(), words.add(1).read_volatile()] {
                    for line in 0..3 {
                        prefetch_line(word.wrapping_add(64 * line));
                    }
                }
            }
        }
    }

    /// Reads one object. The caller keeps it alive as long as `keep`.
    #[inline]
    pub fn import(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        // SAFETY: a live object has a type.
        let class = unsafe { ffi::Py_TYPE(object.as_ptr()) };
        let route = match self.last {
            Some((last, route)) if last == class => route,
            _ => {
                let route = route_of(object)?;
                self.last = Some((class, route));
                let size: usize =
                    object.get_type().getattr(intern!(self.py, "__basicsize__"))?.extract()?;
                self.has_two_words = size >= size_of::<ffi::PyObject>() + 2 * size_of::<usize>();
                route
            }
        };
        match route {
            Route::Exchange { api, may_lie } => {
                match (api.dltensor_from_py_object_no_sync, self.owned) {
                    (Some(borrow), false) => {
                        let mut tensor = std::mem::MaybeUninit::<DLTensor>::uninit();
                        // SAFETY: the table belongs to the exact type of `object`; we are attached.
                        let code = unsafe { borrow(object.as_ptr().cast(), tensor.as_mut_ptr()) };
                        if code != 0 {
                            return Err(self.exchange_failed(index));
                        }
                        // SAFETY: filled in, and valid while the object lives and is not resized.
                        let foreign = unsafe { dlpack::read_tensor(tensor.as_ptr()) };
                        let foreign = foreign.map_err(|error| self.error(error, index))?;
                        if may_lie {
                            self.check_lazy_bits(object, &foreign, index)?;
                        }
                        self.push(&foreign, index)
                    }
                    _ => {
                        let Some(export) = api.managed_tensor_from_py_object_no_sync else {
                            return self.import_by_protocol(object, index);
                        };
                        let mut managed = std::ptr::null_mut();
                        // SAFETY: as above.
                        if unsafe { export(object.as_ptr().cast(), &mut managed) } != 0 {
                            return Err(self.exchange_failed(index));
                        }
                        // SAFETY: the table gave us a tensor of our own.
                        let managed = unsafe { ManagedTensor::from_versioned(managed) };
                        let managed = managed.map_err(|error| self.error(error, index))?;
                        let foreign = managed.tensor().map_err(|error| self.error(error, index))?;
                        if may_lie {
                            self.check_lazy_bits(object, &foreign, index)?;
                        }
                        self.push(&foreign, index)?;
                        self.keep.managed.push(managed);
                        Ok(())
                    }
                }
            }
            Route::Tensor => {
                let tensor = object.cast::<PyTensor>()?.get().inner().clone();
                self.push_tensor(tensor, index)
            }
            Route::Batch => {
                let tensor = object.cast::<PyBatch>()?.get().inner().clone();
                self.push_tensor(tensor, index)
            }
            Route::Number => self.import_number(object, index),
            Route::Protocols => self.import_by_protocol(object, index),
        }
    }

    fn error(&self, error: Error, index: usize) -> PyErr {
        to_py_err(self.py, &error.at_index(index).at_path(&self.path))
    }

    fn layout_error(&self, index: usize, expected: &str, got: &str) -> PyErr {
        self.error(Error::Layout(Box::new(Mismatch::new(Some(index), expected, got))), index)
    }

    /// The producer's own words, as a typed error with its cause.
    fn wrap(&self, cause: PyErr, index: usize) -> PyErr {
        let text = cause.value(self.py).to_string();
        // torch appends a C++ backtrace.
        let first_line = text.lines().next().unwrap_or_default();
        let error = self.layout_error(index, "memory that can be expressed", first_line);
        error.set_cause(self.py, Some(cause));
        error
    }

    fn exchange_failed(&self, index: usize) -> PyErr {
        match PyErr::take(self.py) {
            Some(cause) => self.wrap(cause, index),
            None => self.layout_error(
                index,
                "memory that can be expressed",
                "a refusal without a reason",
            ),
        }
    }

    fn push(&mut self, foreign: &ForeignTensor<'_>, index: usize) -> PyResult<()> {
        if foreign.read_only {
            self.list.mark_read_only();
        }
        // SAFETY: the producer vouches for its tensor, whose owner the caller or `keep` holds.
        let pushed = unsafe {
            self.list.push(
                foreign.data,
                foreign.dtype,
                foreign.device,
                foreign.shape,
                foreign.strides,
            )
        };
        pushed.map_err(|error| self.error(error, index))
    }

    fn push_tensor(&mut self, tensor: windrow::Tensor, index: usize) -> PyResult<()> {
        let foreign = ForeignTensor {
            data: tensor.data_ptr(),
            dtype: tensor.dtype(),
            device: tensor.device(),
            shape: tensor.shape(),
            strides: Some(tensor.strides()),
            read_only: tensor.is_read_only(),
        };
        self.push(&foreign, index)?;
        self.keep.tensors.push(tensor);
        Ok(())
    }

    /// torch keeps conjugation and negation as a bit beside the memory; read raw, the values are wrong.
    #[inline]
    fn check_lazy_bits(
        &mut self,
        object: &Bound<'py, PyAny>,
        foreign: &ForeignTensor<'_>,
        index: usize,
    ) -> PyResult<()> {
        let complex = matches!(foreign.dtype, DType::C64 | DType::C128);
        // A real tensor is negated lazily as the imaginary part of a conjugate only, and then steps
        // over the real parts: its strides are even. Anything else need not be asked.
        let steps_over = || match foreign.strides {
            Some(strides) => foreign
                .shape
                .iter()
                .zip(strides)
                .all(|(&extent, &stride)| extent <= 1 || stride % 2 == 0),
            None => true,
        };
        if complex || foreign.dtype.is_float() && steps_over() {
            self.ask_lazy_bits(object, complex, index)?;
        }
        Ok(())
    }

    #[cold]
    fn ask_lazy_bits(
        &mut self,
        object: &Bound<'py, PyAny>,
        complex: bool,
        index: usize,
    ) -> PyResult<()> {
        let guard = match &self.guard {
            Some(guard) => guard,
            None => {
                let class = object.get_type();
                self.guard.insert(LazyBits {
                    is_neg: class.getattr("is_neg")?,
                    is_conj: class.getattr("is_conj")?,
                })
            }
        };
        let ask = |question: &Bound<'py, PyAny>| -> PyResult<bool> {
            let end = std::ptr::null_mut::<ffi::PyObject>();
            // SAFETY: a callable, one live argument and the end mark; we are attached.
            let answer = unsafe {
                let answer =
                    ffi::PyObject_CallFunctionObjArgs(question.as_ptr(), object.as_ptr(), end);
                Bound::from_owned_ptr_or_err(self.py, answer)?
            };
            answer.is_truthy()
        };
        if ask(&guard.is_neg)? || (complex && ask(&guard.is_conj)?) {
            let expected = "memory that holds the values";
            let got = "a lazily conjugated or negated view; call resolve_conj() or resolve_neg()";
            return Err(self.layout_error(index, expected, got));
        }
        Ok(())
    }

    fn import_number(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        let (bits, dtype) = if object.is_instance_of::<PyBool>() {
            ([u8::from(object.is_truthy()?), 0, 0, 0, 0, 0, 0, 0], DType::Bool)
        } else if object.is_instance_of::<PyFloat>() {
            (object.extract::<f64>()?.to_ne_bytes(), DType::F64)
        } else {
            let value = object.extract::<i64>().map_err(|_| {
                let mismatch = Mismatch::new(Some(index), DType::I64, format!("the int {object}"));
                self.error(Error::DType(Box::new(mismatch)), index)
            })?;
            (value.to_ne_bytes(), DType::I64)
        };
        if self.keep.numbers.last().is_none_or(|chunk| chunk.len() == chunk.capacity()) {
            self.keep.numbers.push(Vec::with_capacity(1024));
        }
        let chunk = self.keep.numbers.last_mut().expect("a chunk with room was just made");
        chunk.push(bits);
        let data = chunk[chunk.len() - 1].as_ptr();
        // SAFETY: a chunk is never grown beyond its capacity, so the number does not move.
        unsafe { self.list.push(data, dtype, Device::Cpu, &[], None) }.or_py_err(self.py)
    }

    /// Interfaces that are looked up on the object, in this order; the first refusal is the one
    /// reported if none works.
    fn import_by_protocol(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        let mut refusal: Option<PyErr> = None;
        if object.hasattr(intern!(self.py, "__dlpack__"))? {
            match self.import_dlpack(object, index) {
                Err(error) if may_try_next(self.py, &error) => refusal = Some(error),
                done => return done,
            }
        }
        if object.hasattr(intern!(self.py, "__cuda_array_interface__"))? {
            let mismatch = Mismatch::new(Some(index), "cpu", "cuda")
                .with_hint("this engine reads host memory");
            return Err(self.error(Error::Device(Box::new(mismatch)), index));
        }
        // SAFETY: a live object; the answer is a flag.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0 {
            match self.import_buffer(object, index) {
                Err(error) if may_try_next(self.py, &error) => refusal = refusal.or(Some(error)),
                done => return done,
            }
        }
        if object.hasattr(intern!(self.py, "__array_interface__"))? {
            match self.import_array_interface(object, index) {
                Err(error) if may_try_next(self.py, &error) => refusal = refusal.or(Some(error)),
                done => return done,
            }
        }
        Err(match refusal {
            None => not_array_like(Some(index), &self.path, object),
            Some(error) if error.get_type(self.py).is(self.py.get_type::<PyBufferError>()) => {
                self.wrap(error, index)
            }
            Some(error) => error,
        })
    }

    fn import_dlpack(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        let (device_type, device_id): (i32, i32) =
            object.call_method0(intern!(self.py, "__dlpack_device__"))?.extract()?;
        let device = dlpack::DLDevice { device_type: dlpack::DLDeviceType(device_type), device_id };
        let place = dlpack::device_from_dl(device).map_err(|error| self.error(error, index))?;
        if place != Device::Cpu {
            let mismatch = Mismatch::new(Some(index), "cpu", place.to_string())
                .with_hint("this engine reads host memory");
            return Err(self.error(Error::Device(Box::new(mismatch)), index));
        }
        let method = object.getattr(intern!(self.py, "__dlpack__"))?;
        let kwargs = match &self.dlpack_kwargs {
            Some(kwargs) => kwargs,
            None => {
                let kwargs = PyDict::new(self.py);
                kwargs.set_item("stream", self.py.None())?;
                kwargs.set_item("max_version", (1, 3))?;
                self.dlpack_kwargs.insert(kwargs)
            }
        };
        // Producers older than these arguments refuse them.
        let is_type_error = |error: &PyErr| error.is_instance_of::<PyTypeError>(self.py);
        let capsule = match method.call((), Some(kwargs)) {
            Err(error) if is_type_error(&error) => {
                let stream_only = PyDict::new(self.py);
                stream_only.set_item("stream", self.py.None())?;
                match method.call((), Some(&stream_only)) {
                    Err(again) if is_type_error(&again) => method.call0().map_err(|_| error)?,
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
        self.consume(&capsule, index)
    }

    /// Takes the tensor out of a capsule. Until it is found fit the capsule keeps it.
    fn consume(&mut self, capsule: &Bound<'py, PyCapsule>, index: usize) -> PyResult<()> {
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
        let foreign = managed.tensor().map_err(|error| self.error(error, index))?;
        self.push(&foreign, index)?;
        self.keep.managed.push(managed);
        Ok(())
    }

    fn check(&self, foreign: windrow::Result<ForeignTensor<'_>>, index: usize) -> PyResult<()> {
        foreign
            .and_then(|foreign| foreign.layout())
            .map(drop)
            .map_err(|error| self.error(error, index))
    }

    fn import_buffer(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        // SAFETY: all zeros is an empty view.
        let mut view: Box<ffi::Py_buffer> = Box::new(unsafe { std::mem::zeroed() });
        // SAFETY: a live object and a view to fill in; we are attached.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, ffi::PyBUF_FULL_RO) } != 0
        {
            return Err(PyErr::fetch(self.py));
        }
        let buffer = Buffer(view);
        let view = &buffer.0;
        let ndim = view.ndim as usize;
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
        let ints = |pointer: *const isize| -> Vec<i64> {
            // SAFETY: PyBUF_FULL_RO fills in shape and strides of `ndim` entries; of none nothing is read.
            (0..ndim).map(|d| unsafe { *pointer.add(d) } as i64).collect()
        };
        let (shape, strides) = (ints(view.shape), ints(view.strides));
        let strides = self.in_elements(&shape, &strides, dtype, index)?;
        let (data, read_only) = (view.buf.cast(), view.readonly != 0);
        let foreign = ForeignTensor {
            data,
            dtype,
            device: Device::Cpu,
            shape: &shape,
            strides: Some(&strides),
            read_only,
        };
        self.push(&foreign, index)?;
        self.keep.buffers.push(buffer);
        Ok(())
    }

    fn import_array_interface(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        let interface = object.getattr("__array_interface__")?.cast_into::<PyDict>()?;
        let required = |key: &str| {
            interface.get_item(key)?.ok_or_else(|| {
                PyTypeError::new_err(format!(
                    "sample {index}: __array_interface__ has no \"{key}\""
                ))
            })
        };
        let shape: Vec<i64> = required("shape")?.extract()?;
        let typestr: String = required("typestr")?.extract()?;
        // NumPy knows the types of ml_dtypes by name only.
        let by_name = || {
            object
                .getattr("dtype")
                .and_then(|dtype| dtype.getattr("name"))
                .and_then(|name| name.extract::<String>())
        };
        let dtype = match typestr.as_bytes() {
            [_, b'V', ..] => by_name().ok().and_then(|name| name.parse::<DType>().ok()),
            typestr => dtype_of_typestr(typestr),
        };
        let Some(dtype) = dtype else {
            return Err(self.layout_error(
                index,
                "a native number format",
                &format!("typestr {typestr:?}"),
            ));
        };
        let optional =
            |key: &str| interface.get_item(key).map(|item| item.filter(|item| !item.is_none()));
        if optional("mask")?.is_some() {
            return Err(self.layout_error(index, "an array without a mask", "a masked array"));
        }
        let strides: Option<Vec<i64>> =
            optional("strides")?.map(|strides| strides.extract()).transpose()?;
        let strides =
            strides.map(|strides| self.in_elements(&shape, &strides, dtype, index)).transpose()?;
        let Some((address, read_only)) =
            optional("data")?.and_then(|data| data.extract::<(usize, bool)>().ok())
        else {
            return Err(self.layout_error(index, "data as an address", "data as a buffer"));
        };
        let data = std::ptr::with_exposed_provenance_mut::<u8>(address);
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
        self.keep.object(interface.into_any().unbind());
        Ok(())
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
