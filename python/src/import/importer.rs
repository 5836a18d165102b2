//! Import: one object after the other to a sample, by the fastest route its type has.
#![allow(unsafe_code)] // Foreign pointers enter here.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{ffi, intern};
use windrow::dlpack::{
    DLDataType, DLDevice, DLDeviceType, DLPackExchangeAPI, DLTensor, ForeignTensor, ManagedTensor,
};
use windrow::{
    dlpack, Collate, DType, Device, Engine, Error, Mismatch, RowsAhead, SampleList, Stream,
};

use crate::ground::batch::PyBatch;
use crate::ground::errors::{at, is_answer, shown, to_py_err, OrPyErr, Whose};
use crate::ground::reserve::{no_room, push_to, room_for};
use crate::ground::stream::current_of;
use crate::ground::tensor::PyTensor;
use crate::import::routes::{grad_is_enabled, route_of, Lazy, Route};
use crate::import::torch_dense::Fields;
use crate::import::torch_words;
use crate::ownership::keep::Keep;
use crate::ownership::order::Order;
use crate::ownership::places::{has_moved, moved, Table};

/// How many samples ahead storage is asked for; tensors and objects twice and four times as far.
const PREFETCH_STEP: usize = 4;

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

/// How objects are read.
#[derive(Clone, Copy, Default)]
pub(crate) struct Reading<'a> {
    /// The leaf they belong to, for errors.
    pub path: &'a str,
    /// Ask for owned tensors even where a borrowed one would do: those know if they are read-only.
    pub owned: bool,
    /// Where work on them will be enqueued, if that is known.
    pub stream: Option<Stream>,
    /// May stack them meanwhile.
    pub stacker: Option<(&'a Engine, &'a Collate)>,
    /// A list or tuple of Python numbers is a sample.
    pub rows: bool,
}

impl Reading<'_> {
    /// To be kept.
    pub const OWNED: Self =
        Reading { path: "", owned: true, stream: None, stacker: None, rows: true };
}

/// Reads objects one after the other into a list.
pub(crate) struct Importer<'py> {
    pub py: Python<'py>,
    /// Copies rows while later ones are read, as long as all are alike. Dropped before `keep`.
    pub ahead: Option<RowsAhead>,
    pub list: SampleList<'static>,
    pub keep: Keep,
    /// Where the memory of samples that are kept is.
    pub places: Table,
    /// Of the storage that was held last: the word with the address of its memory, or where there is no such word
    /// the object.
    pub held: *const usize,
    /// The leaf these samples belong to, for errors.
    pub path: String,
    pub(crate) owned: bool,
    /// A list or tuple of Python numbers is a sample.
    pub rows: bool,
    /// The dtype of a row without numbers, where no sample has been read yet.
    pub empty_dtype: DType,
    /// Where work on the samples will be enqueued, if that is known.
    pub stream: Option<Stream>,
    /// The argument that the one object is: there is no list that it has a position in.
    pub lone: Option<&'static str>,
    last: Option<(*mut ffi::PyTypeObject, Route, Lazy)>,
    /// Dtype, device and number of dims of the last sample, if one like it needs no further look.
    repeat: Option<(DLDataType, DLDevice, i32)>,
    /// The last sample was a dense torch tensor, which was read without running any code of others.
    is_quiet: bool,
    /// Arguments of `__dlpack__`, for the host and for devices.
    pub dlpack_kwargs: [Option<Bound<'py, PyDict>>; 2],
}

impl<'py> Importer<'py> {
    pub fn new(py: Python<'py>, reading: Reading<'_>) -> Importer<'py> {
        Importer {
            py,
            list: SampleList::new(),
            keep: Keep::default(),
            places: Table::default(),
            held: std::ptr::null(),
            path: reading.path.to_owned(),
            owned: reading.owned,
            rows: reading.rows,
            empty_dtype: DType::F64,
            stream: reading.stream,
            lone: None,
            last: None,
            repeat: None,
            is_quiet: false,
            ahead: None,
            dlpack_kwargs: [None, None],
        }
    }

    /// Reads every sample of a tuple, which keeps them alive, the first of which is number `start` of its list.
    /// `stacker` may stack them meanwhile.
    pub fn import_tuple(
        &mut self,
        samples: &Bound<'py, PyTuple>,
        start: usize,
        stacker: Option<(&Engine, &Collate)>,
    ) -> PyResult<()> {
        self.keep.objects.push(samples.clone().into_any().unbind());
        let mut items = room_for(samples.len())?;
        items.extend(samples.iter_borrowed());
        self.import_items(&items, start, stacker)
    }

    /// Reads every object of a list of our own and keeps it alive.
    pub fn import_objects(
        &mut self,
        samples: Vec<Bound<'py, PyAny>>,
        stacker: Option<(&Engine, &Collate)>,
    ) -> PyResult<()> {
        let mut items = room_for(samples.len())?;
        items.extend(samples.iter().map(|sample| sample.as_borrowed()));
        self.import_items(&items, 0, stacker)?;
        let objects = &mut self.keep.objects;
        objects.try_reserve(samples.len()).map_err(no_room)?;
        objects.extend(samples.into_iter().map(Bound::unbind));
        Ok(())
    }

    /// Reads one object, which is number `index` of its list. The caller keeps it alive as long as `keep`.
    pub fn import_one(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        self.import_items(&[object.as_borrowed()], index, None)
    }

    /// Reads objects, the first of which is number `start` of its list.
    fn import_items(
        &mut self,
        items: &[Borrowed<'_, 'py, PyAny>],
        start: usize,
        stacker: Option<(&Engine, &Collate)>,
    ) -> PyResult<()> {
        self.list.reserve(items.len()).or_py_err(self.py)?;
        if self.owned {
            self.places.reserve(items.len())?;
        }
        let num_read = self.import_empty_rows(items, start)?;
        for (index, sample) in items.iter().enumerate().skip(num_read) {
            self.prefetch(&items[index..]);
            if let Err(error) = self.import(sample, start + index) {
                // The caller may let go of the samples now.
                self.ahead = None;
                return Err(error);
            }
            if let (0, Some((engine, collate))) = (index, stacker) {
                self.start_ahead(engine, collate, items.len());
            }
        }
        if let Some(ahead) = &mut self.ahead {
            ahead.close();
        }
        Ok(())
    }

    /// Begins to stack after the first sample. Only for samples that are read without running Python
    /// code, which might change those that are being copied.
    fn start_ahead(&mut self, engine: &Engine, collate: &Collate, count: usize) {
        let is_array = matches!(self.last, Some((_, Route::Array | Route::ArrayStruct, _)));
        if self.repeat.is_none() && !is_array && !self.is_quiet {
            return;
        }
        self.ahead = engine.start_rows(collate, self.list.kind(0), count);
        if let Some(ahead) = &mut self.ahead {
            // SAFETY: a sample just read, kept alive by the caller, as all are that follow.
            unsafe { ahead.push(self.list.address(0)) };
        }
    }

    /// Tensors made long ago are anywhere: without this an import waits for memory three times for
    /// each. First the object is asked for, later the tensor it points to, then that one's storage.
    #[inline]
    fn prefetch(&self, ahead: &[Borrowed<'_, 'py, PyAny>]) {
        let Some((class, _, Lazy::Words(_))) = self.last else { return };
        let same = |position: usize| {
            let object = ahead.get(position)?.as_ptr();
            // SAFETY: a live object has a type.
            (unsafe { ffi::Py_TYPE(object) } == class).then_some(object)
        };
        // SAFETY: live objects of a class that has words.
        unsafe {
            let [farthest, far, near] = [4, 2, 1].map(|times| same(times * PREFETCH_STEP));
            torch_words::prefetch(farthest, far, near, prefetch_line);
        }
    }

    /// Reads one object. The caller keeps it alive as long as `keep` and `ahead`. Called in one place, which it
    /// becomes a part of: a call for each sample costs a twentieth of its import.
    #[inline(always)]
    fn import(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        // SAFETY: a live object has a type.
        let class = unsafe { ffi::Py_TYPE(object.as_ptr()) };
        let (route, lazy) = match self.last {
            Some((last, route, lazy)) if last == class => (route, lazy),
            _ => {
                self.ahead = None;
                let (route, lazy) = route_of(object)?;
                self.last = Some((class, route, lazy));
                self.repeat = None;
                if let Route::Exchange { api, is_torch: true, .. } = route {
                    self.keep.order.torch = Some(api);
                }
                (route, lazy)
            }
        };
        // Before memory is lent: the answer may come from Python code of the caller's, such as a
        // `TorchFunctionMode`, which can resize the tensor.
        let asked = match lazy {
            Lazy::No => false,
            // SAFETY: a live object of a class that has words.
            Lazy::Words(words) if unsafe { words.is_plain(object.as_ptr()) } => false,
            _ => {
                self.ask_lazy(object, index)?;
                true
            }
        };
        if self.owned {
            // Before memory is lent, for the same reason.
            self.hold_storage(object, lazy)?;
        }
        self.read(object, route, asked, index)?;
        if self.owned {
            self.remember_place(object, route, lazy)?;
        }
        Ok(())
    }

    /// Reads an object by its route.
    #[inline(always)] // As `import`.
    fn read(
        &mut self,
        object: &Bound<'py, PyAny>,
        route: Route,
        asked: bool,
        index: usize,
    ) -> PyResult<()> {
        match route {
            Route::Exchange { api, is_torch, dense } => {
                let fields = dense.and_then(|dense| {
                    // SAFETY: a tensor of torch's own class, whose words were found.
                    unsafe { dense.fields_of(object.as_ptr()) }
                });
                if let Some(fields) = fields {
                    return self.push_dense(&fields, index);
                }
                let borrow =
                    api.dltensor_from_py_object_no_sync.filter(|_| is_torch || !self.owned);
                let Some(borrow) = borrow else {
                    return self.import_owned(object, api, index);
                };
                let mut tensor = std::mem::MaybeUninit::<DLTensor>::uninit();
                // SAFETY: the table belongs to the exact type of `object`; we are attached.
                if unsafe { borrow(object.as_ptr().cast(), tensor.as_mut_ptr()) } != 0 {
                    return Err(self.exchange_failed(index));
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
                let repeats = !asked
                    && !looked_up
                    && foreign.strides.is_some()
                    && !foreign.shape.contains(&0);
                self.repeat = repeats.then_some((tensor.dtype, tensor.device, tensor.ndim));
                Ok(())
            }
            Route::Tensor => {
                let tensor = object.cast::<PyTensor>()?.get().inner().clone();
                self.push_tensor(tensor, index)
            }
            Route::Batch => {
                let tensor = object.cast::<PyBatch>()?.get().inner().clone();
                self.push_tensor(tensor, index)
            }
            Route::Array => self.import_array(object, index),
            Route::ArrayStruct => self.import_array_struct(object, index),
            Route::Number => self.import_number(object, index),
            Route::Row if self.rows => self.import_row(object, index),
            Route::Row => Err(self.row_refused(object, index)),
            Route::Tracer => Err(self.traced(object, index)),
            Route::Described => self.import_described(object, index),
            Route::Masked => {
                let mask = object.getattr(intern!(self.py, "mask"))?;
                if mask.call_method0(intern!(self.py, "any"))?.is_truthy()? {
                    let (expected, got) = ("an array without a mask", "one with masked values");
                    return Err(self.layout_error(index, expected, got));
                }
                self.import_by_protocol(object, index)
            }
            Route::Protocols => self.import_by_protocol(object, index),
        }
    }

    /// A dense torch tensor of the host's.
    #[inline]
    fn push_dense(&mut self, fields: &Fields<'_>, index: usize) -> PyResult<()> {
        let &Fields { data, dtype, shape, strides } = fields;
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
            return Err(self.exchange_failed(index));
        }
        // SAFETY: the table gave us a tensor of our own.
        let managed = unsafe { ManagedTensor::from_versioned(managed) };
        let managed = managed.map_err(|error| self.error(error, index))?;
        let mut foreign = managed.tensor().map_err(|error| self.error(error, index))?;
        self.place(&mut foreign, managed.device_type(), index)?;
        self.follow(api, foreign.device, index)?;
        self.push(&foreign, index)?;
        push_to(&mut self.keep.managed, managed)
    }

    /// Page-locked and managed memory has no ordinal in DLPack, and the former may be claimed of any
    /// host memory: the driver knows. Says whether it was asked.
    pub fn place(
        &self,
        foreign: &mut ForeignTensor<'_>,
        kind: DLDeviceType,
        index: usize,
    ) -> PyResult<bool> {
        let looked_up = matches!(kind, DLDeviceType::CUDA_HOST | DLDeviceType::CUDA_MANAGED);
        if looked_up && !foreign.shape.contains(&0) {
            match windrow::device_of(foreign.data.addr()) {
                Ok(Device::Cpu) if foreign.device != Device::Cpu => {
                    let got = "an address that the driver does not know";
                    return Err(self.layout_error(index, "managed memory", got));
                }
                Ok(device) => foreign.device = device,
                // Host memory can be read without a driver.
                Err(_) if foreign.device == Device::Cpu => {}
                Err(error) => return Err(self.error(error, index)),
            }
        }
        Ok(looked_up)
    }

    /// Work goes on the stream that the library works on now: what it has enqueued comes before, and
    /// what it will enqueue after.
    #[inline]
    fn follow(&mut self, api: &DLPackExchangeAPI, device: Device, index: usize) -> PyResult<()> {
        let Device::Cuda(ordinal) = device else { return Ok(()) };
        let stream = current_of(api, ordinal).ok_or_else(|| self.exchange_failed(index))?;
        self.keep.order.behind(stream);
        self.keep.order.current.get_or_insert(stream);
        Ok(())
    }

    /// The last sample was read without running Python code: it may be copied ahead, if it is like
    /// the first.
    pub fn push_ahead(&mut self) {
        match &mut self.ahead {
            // SAFETY: just read and of the first one's kind; the caller keeps it alive.
            Some(ahead) if self.list.is_uniform() => unsafe {
                ahead.push(self.list.address(self.list.len() - 1));
            },
            _ => self.ahead = None,
        }
    }

    pub fn error(&self, error: Error, index: usize) -> PyErr {
        let error = match self.lone {
            None => error.at_index(index),
            Some(name) => error.about(name),
        };
        to_py_err(self.py, &error.at_path(&self.path))
    }

    /// The object in the text of an error.
    pub fn named(&self, index: usize) -> String {
        format!("{}{}", self.whose(index), at(&self.path))
    }

    pub fn whose(&self, index: usize) -> Whose {
        self.lone.map_or(Whose::Sample(index), Whose::Argument)
    }

    pub fn layout_error(&self, index: usize, expected: &str, got: &str) -> PyErr {
        self.error(Error::Layout(Box::new(Mismatch::new(Some(index), expected, got))), index)
    }

    /// The producer's own words, as a typed error with its cause.
    pub fn wrap(&self, cause: PyErr, index: usize) -> PyErr {
        let text = match shown(cause.value(self.py)) {
            Ok(text) => text,
            Err(error) => return error,
        };
        // torch appends a C++ backtrace.
        let first_line = text.lines().next().unwrap_or_default();
        let error = self.layout_error(index, "memory that can be expressed", first_line);
        error.set_cause(self.py, Some(cause));
        error
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

    pub fn push(&mut self, foreign: &ForeignTensor<'_>, index: usize) -> PyResult<()> {
        self.repeat = None;
        self.is_quiet = false;
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
        if has_moved(self.py, &tensor)? {
            return Err(self.error(moved(index), index));
        }
        let foreign = ForeignTensor {
            data: tensor.data_ptr(),
            dtype: tensor.dtype(),
            device: tensor.device(),
            shape: tensor.shape(),
            strides: Some(tensor.strides()),
            read_only: tensor.is_read_only(),
        };
        self.push(&foreign, index)?;
        if tensor.device() != Device::Cpu {
            self.keep.order.merge(Order::of(&tensor));
        }
        push_to(&mut self.keep.tensors, tensor)
    }

    /// torch keeps conjugation and negation as a bit beside the memory, and read raw, the values are wrong; a
    /// batch has no part in gradients.
    #[cold]
    fn ask_lazy(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        self.ahead = None;
        let requires_grad = object.getattr_opt(intern!(self.py, "requires_grad"))?;
        let requires_grad = requires_grad.map_or(Ok(false), |answer| answer.is_truthy())?;
        if requires_grad && grad_is_enabled(self.py)? {
            let got = "one that requires grad; detach() it, or call within torch.no_grad()";
            return Err(self.layout_error(index, "a tensor that does not require grad", got));
        }
        for question in [intern!(self.py, "is_neg"), intern!(self.py, "is_conj")] {
            if object.call_method0(question)?.is_truthy()? {
                let expected = "memory that holds the values";
                let got =
                    "a lazily conjugated or negated view; call resolve_conj() or resolve_neg()";
                return Err(self.layout_error(index, expected, got));
            }
        }
        Ok(())
    }
}
