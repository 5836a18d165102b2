//! Objects by the exchange table of their type.
#![allow(unsafe_code)] // Functions of foreign tables.

use pyo3::prelude::*;
use windrow::dlpack::{DLPackExchangeAPI, DLTensor, ManagedTensor};
use windrow::{dlpack, Device, Error, Hint, Mismatch};

use crate::ground::errors::is_answer;
use crate::ground::reserve::push_to;
use crate::ground::stream::current_of;
use crate::import::importer::Importer;
use crate::import::routes::shapeless;
use crate::import::torch_dense::{Dense, DenseFields};

impl<'py> Importer<'py> {
    /// Reads an object by the exchange table of its type; a dense torch tensor of the host's without a call.
    #[inline(always)] // A call for each sample costs a twentieth of its import.
    pub fn import_exchanged(
        &mut self,
        object: &Bound<'py, PyAny>,
        api: &DLPackExchangeAPI,
        is_torch: bool,
        dense: Option<&Dense>,
        asked: bool,
        index: usize,
    ) -> PyResult<()> {
        let fields = dense.and_then(|dense| {
            // SAFETY: a tensor of torch's own class, whose words were found.
            unsafe { dense.fields_of(object.as_ptr()) }
        });
        if let Some(fields) = fields {
            return self.push_dense(&fields, index);
        }
        let borrow = api.dltensor_from_py_object_no_sync.filter(|_| is_torch || !self.owned);
        let Some(borrow) = borrow else {
            return self.import_owned(object, api, index);
        };
        let mut tensor = std::mem::MaybeUninit::<DLTensor>::uninit();
        // SAFETY: the table belongs to the exact type of `object`; we are attached.
        if unsafe { borrow(object.as_ptr().cast(), tensor.as_mut_ptr()) } != 0 {
            return Err(self.export_failed(object, index));
        }
        // SAFETY: filled in by the call. Not moved: loads as wide as a move's wait for the
        // narrow stores that were just made.
        let tensor = unsafe { tensor.assume_init_ref() };
        if self.push_repeated(tensor) {
            return Ok(());
        }
        self.ahead = None;
        // SAFETY: as above; valid while the object lives and is not resized.
        let foreign = unsafe { dlpack::read_tensor(tensor) };
        let mut foreign = foreign.map_err(|error| self.error(error, index))?;
        let looked_up = self.place(&mut foreign, tensor.device.device_type, index)?;
        self.follow(api, foreign.device, index)?;
        self.push(&foreign, index)?;
        let repeats =
            !asked && !looked_up && foreign.strides.is_some() && !foreign.shape.contains(&0);
        self.repeat = repeats.then_some((tensor.dtype, tensor.device, tensor.ndim));
        Ok(())
    }

    /// A dense torch tensor of the host's.
    #[inline]
    fn push_dense(&mut self, fields: &DenseFields<'_>, index: usize) -> PyResult<()> {
        let &DenseFields { data, dtype, shape, strides } = fields;
        // SAFETY: as good as torch's word, as in `push`; alive while the object is and is not resized.
        let pushed = unsafe { self.list.push(data, dtype, Device::Cpu, shape, Some(strides)) };
        pushed.map_err(|error| self.error(error, index))?;
        self.is_quiet = true;
        self.push_ahead();
        Ok(())
    }

    /// The usual case, kept short: a tensor like the one before it, which was found fit.
    #[inline]
    fn push_repeated(&mut self, tensor: &DLTensor) -> bool {
        let &DLTensor { data, device, ndim, dtype, shape, strides, byte_offset } = tensor;
        if self.repeat != Some((dtype, device, ndim))
            || byte_offset != 0
            || data.is_null()
            || shape.is_null()
            || strides.is_null()
        {
            return false;
        }
        // SAFETY: arrays of `ndim` entries, a number that was found fit with the tensor before; the
        // sample itself is as good as the producer's word, as in `push`.
        unsafe {
            let dims =
                |dims: *mut i64| std::slice::from_raw_parts(dims.cast_const(), ndim as usize);
            let same = self.list.push_if_same(data.cast(), dims(shape), dims(strides));
            match &mut self.ahead {
                Some(ahead) if same && self.list.is_uniform() => ahead.push(data.cast()),
                Some(_) => self.ahead = None,
                None => {}
            }
            same
        }
    }

    /// An owned tensor from an exchange table, for types whose borrowed ones do not say all.
    fn import_owned(
        &mut self,
        object: &Bound<'py, PyAny>,
        api: &DLPackExchangeAPI,
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
        self.place(&mut foreign, managed.device_type(), index)?;
        self.follow(api, foreign.device, index)?;
        self.push(&foreign, index)?;
        self.is_lent = true;
        push_to(&mut self.owner.managed, managed)
    }

    /// Work goes on the stream that the library works on now: what it has enqueued comes before, and
    /// what it will enqueue after.
    #[inline]
    fn follow(&mut self, api: &DLPackExchangeAPI, device: Device, index: usize) -> PyResult<()> {
        let Device::Cuda(ordinal) = device else { return Ok(()) };
        let stream = current_of(api, ordinal).ok_or_else(|| self.exchange_failed(index))?;
        self.owner.producers.add(stream);
        self.owner.producers.current.get_or_insert(stream);
        Ok(())
    }

    /// The error of a tensor that could not be had, in our words where the reason is known.
    fn export_failed(&self, object: &Bound<'py, PyAny>, index: usize) -> PyErr {
        let cause = self.exchange_failed(index);
        match shapeless(object) {
            Ok(Some((got, cure))) => {
                let found = Mismatch::new(Some(index), "a dense tensor", got);
                let found = found.with_hint(Hint::Text(cure));
                let error = self.error(Error::Layout(Box::new(found)), index);
                error.set_cause(self.py, Some(cause));
                error
            }
            Ok(None) => cause,
            Err(error) => error,
        }
    }

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
