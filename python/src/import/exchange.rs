//! Objects by the exchange table of their type.
#![allow(unsafe_code)] // Functions of foreign tables.

use std::sync::atomic::Ordering;

use pyo3::intern;
use pyo3::prelude::*;
use windrow::dlpack::{DLPackExchangeAPI, DLTensor, ManagedTensor};
use windrow::error::{Hint, Mismatch, MoveSide};
use windrow::{dlpack, DType, Device, Error};

use crate::ground::dtype::is_small;
use crate::ground::errors::{answered, attribute, is_answer, shown};
use crate::ground::modules::module;
use crate::ground::reserve::push_to;
use crate::ground::stream::current_of;
use crate::import::importer::Importer;
use crate::import::routes::{may_have_words, shapeless, Lazy};
use crate::private_layouts::torch_layout::{DenseFields, MAX_DIMS};

impl<'py> Importer<'py> {
    /// Appends an object by the exchange table of its type; a dense torch tensor of the host's without a call where its words are
    /// known. On a device its library's current stream becomes a producer. Any other way than by words ends the copy ahead.
    #[inline(always)] // A call for each sample costs a twentieth of its import.
    pub fn import_exchanged(
        &mut self,
        object: &Bound<'py, PyAny>,
        api: &DLPackExchangeAPI,
        is_torch: bool,
        lazy: Lazy,
        index: usize,
    ) -> PyResult<()> {
        if let (true, Lazy::Layout(torch)) = (is_torch, lazy) {
            debug_assert!(may_have_words(object));
            // SAFETY: a tensor of torch's own class.
            if let Some(fields) = unsafe { torch.fields_of(object.as_ptr()) } {
                return self.push_dense(&fields, index);
            }
        }
        self.ahead = None; // Code of others may move memory.
        if !is_torch {
            self.check_stops_gradient(object, index)?;
        }
        let copy = self.copy_of_shared(object, lazy)?;
        let object = copy.as_ref().unwrap_or(object);
        let borrow = api.dltensor_from_py_object_no_sync.filter(|_| is_torch || !self.owned);
        let Some(borrow) = borrow else {
            return self.import_owned(object, api, lazy, index);
        };
        let mut tensor = std::mem::MaybeUninit::<DLTensor>::uninit();
        // SAFETY: the table belongs to the exact type of `object`; we are attached.
        if unsafe { borrow(object.as_ptr().cast(), tensor.as_mut_ptr()) } != 0 {
            return Err(self.export_failed(object, index));
        }
        // SAFETY: filled in by the call. Not moved: loads as wide as a move's wait for the
        // narrow stores that were just made.
        let tensor = unsafe { tensor.assume_init_ref() };
        // SAFETY: as above; valid while the object lives and is not resized.
        let foreign = unsafe { dlpack::read_tensor(tensor) };
        let mut foreign = foreign.map_err(|error| self.error(error, index))?;
        self.check_dtype(object, lazy, foreign.dtype, index)?;
        self.place(&mut foreign, tensor.device.device_type, index)?;
        self.follow(api, foreign.device, index)?;
        self.push(&foreign, index)
    }

    /// A copy, which `owner` keeps, of a torch tensor that shares its memory with lazy clones and is only read: the table ends the
    /// sharing, which moves the tensor. `None` for others, and for one whose class makes copies of another class.
    fn copy_of_shared(
        &mut self,
        object: &Bound<'py, PyAny>,
        lazy: Lazy,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let is_written = self.side.is_some_and(MoveSide::is_written);
        if self.owned || is_written || !is_shared(object, lazy)? {
            return Ok(None);
        }
        let copy = object.call_method0(intern!(self.py, "clone"))?;
        if !copy.get_type().is(object.get_type()) {
            return Ok(None);
        }
        push_to(&mut self.owner.objects, copy.clone().unbind())?;
        Ok(Some(copy))
    }

    /// Appends a dense torch tensor of the host's.
    #[inline]
    fn push_dense(&mut self, fields: &DenseFields<'_>, index: usize) -> PyResult<()> {
        let &DenseFields { data, dtype, shape, strides } = fields;
        // Another thread may resize the tensor meanwhile.
        let (mut dims, ndim) = ([0; 2 * MAX_DIMS], shape.len());
        for (entry, dim) in dims.iter_mut().zip(shape.iter().chain(strides)) {
            *entry = dim.load(Ordering::Relaxed);
        }
        let (shape, strides) = dims[..2 * ndim].split_at(ndim);
        // SAFETY: as good as torch's word, as in `push`; alive while the object is and is not resized.
        let pushed = unsafe { self.list.push(data, dtype, Device::Cpu, shape, Some(strides)) };
        pushed.map_err(|error| self.error(error, index))?;
        self.push_ahead();
        Ok(())
    }

    /// Refuses a paddle tensor that requires grad, as its `__dlpack__` does and its exchange table does not.
    fn check_stops_gradient(&self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        let stops = object.getattr_opt(intern!(self.py, "stop_gradient"))?;
        match stops.map_or(Ok(true), |stops| stops.is_truthy())? {
            true => Ok(()),
            false => Err(self.layout_error(
                index,
                "a tensor that stops gradients",
                "one that requires gradients; detach() it",
            )),
        }
    }

    /// Appends an owned tensor from an exchange table, for types whose borrowed ones do not say whether they are read-only; by the
    /// protocols where the table gives no owned ones.
    fn import_owned(
        &mut self,
        object: &Bound<'py, PyAny>,
        api: &DLPackExchangeAPI,
        lazy: Lazy,
        index: usize,
    ) -> PyResult<()> {
        let Some(export) = api.managed_tensor_from_py_object_no_sync else {
            return self.import_by_protocol(object, index);
        };
        let mut managed = std::ptr::null_mut();
        // SAFETY: the table belongs to the exact type of `object`; we are attached.
        if unsafe { export(object.as_ptr().cast(), &mut managed) } != 0 {
            return Err(self.export_failed(object, index));
        }
        // SAFETY: the table gave us a tensor of our own.
        let managed = unsafe { ManagedTensor::from_versioned(managed) };
        let managed = managed.map_err(|error| self.error(error, index))?;
        let mut foreign = managed.tensor().map_err(|error| self.error(error, index))?;
        self.check_dtype(object, lazy, foreign.dtype, index)?;
        self.place(&mut foreign, managed.device_type(), index)?;
        self.follow(api, foreign.device, index)?;
        self.push(&foreign, index)?;
        self.is_lent = true;
        push_to(&mut self.owner.managed, managed)
    }

    /// Refuses a torch tensor of integers of 1 to 7 bits, of which torch reports that they are bytes, by its words. One without
    /// words was asked before.
    #[inline]
    pub fn check_dtype(
        &self,
        object: &Bound<'py, PyAny>,
        lazy: Lazy,
        reported: DType,
        index: usize,
    ) -> PyResult<()> {
        match lazy {
            Lazy::Layout(torch) if matches!(reported, DType::I8 | DType::U8) => {
                debug_assert!(may_have_words(object));
                // SAFETY: a live object of a class that has words.
                match unsafe { torch.dtype_of(object.as_ptr()) } == Some(reported) {
                    true => Ok(()),
                    false => self.check_small(object, index),
                }
            }
            _ => Ok(()),
        }
    }

    /// DTypeError for a torch tensor whose values have fewer bits than a byte, but for dtypes that DLPack has.
    #[cold]
    pub fn check_small(&self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        let Some(dtype) = attribute(object, "dtype")? else { return Ok(()) };
        let name = shown(&dtype)?;
        match is_small(&name) && name.trim_start_matches("torch.") != DType::F4E2M1FNX2.name() {
            true => Err(self.foreign_dtype(index, &format!("dtype {name}"), &name)),
            false => Ok(()),
        }
    }

    /// Adds the stream that the library works on now to the producers of tensors on a CUDA device, and as the one for
    /// work on a device if there is none yet: what the library has enqueued comes before that work, what it will
    /// enqueue after. LayoutError if the library does not say.
    #[inline]
    fn follow(&mut self, api: &DLPackExchangeAPI, device: Device, index: usize) -> PyResult<()> {
        let Device::Cuda(ordinal) = device else { return Ok(()) };
        let stream = current_of(api, ordinal).ok_or_else(|| self.exchange_failed(index))?;
        self.owner.producers.follow(stream);
        Ok(())
    }

    /// The error of a tensor that could not be had, in our words where the reason is known. Takes the exception that the table
    /// has set.
    fn export_failed(&self, object: &Bound<'py, PyAny>, index: usize) -> PyErr {
        let cause = self.exchange_failed(index);
        match shapeless(object) {
            Ok(Some((got, hint))) => {
                let found = Mismatch::new(Some(index), "a dense tensor", got);
                let found = found.with_hint(Hint::Text(hint));
                let error = self.error(Error::Layout(Box::new(found)), index);
                error.set_cause(self.py, Some(cause));
                error
            }
            Ok(None) => cause,
            Err(error) => error,
        }
    }

    /// The exception that a table has set, which is taken, as a LayoutError with that as cause.
    fn exchange_failed(&self, index: usize) -> PyErr {
        match PyErr::take(self.py) {
            Some(error) if !is_answer(self.py, &error) => error,
            Some(cause) => self.wrap(cause, index),
            None => self.layout_error(
                index,
                "memory that can be expressed",
                "a refusal without a reason",
            ),
        }
    }
}

/// Whether a torch tensor shares its memory with lazy clones; false for other objects.
fn is_shared(object: &Bound<'_, PyAny>, lazy: Lazy) -> PyResult<bool> {
    let py = object.py();
    match lazy {
        Lazy::No => Ok(false),
        Lazy::Layout(torch) => {
            debug_assert!(may_have_words(object));
            // SAFETY: a live object of a class that has words.
            Ok(unsafe { torch.may_be_shared(object.as_ptr()) })
        }
        Lazy::Methods => match module(py, "torch._C")? {
            Some(torch) => {
                let asked = torch.call_method1(intern!(py, "_is_cow_tensor"), (object,));
                answered(py, asked)?.map_or(Ok(false), |answer| answer.is_truthy())
            }
            None => Ok(false),
        },
    }
}
