//! `SampleList`: samples imported once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyIndexError, PyMemoryError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyRange, PySlice, PyTuple};
use windrow::{Device, Owner, Resident, RowsAhead, SampleList, Tensor};

use crate::arrow::{is_arrow, samples_in};
use crate::assemble::assemble_with;
use crate::batch::PyBatch;
use crate::containers::{check_list, list_of};
use crate::engine::{default_engine, device_of};
use crate::errors::{class_name, in_words, to_py_err, OrPyErr};
use crate::import::{room_for, Importer, Reading};
use crate::integers::{integers, is_list};
use crate::keep::Keep;
use crate::order::Order;
use crate::owners::Owners;
use crate::pieces::{pieces, shaped_pieces};
use crate::places::{has_moved, moved, Held, Places};
use crate::sources::is_tensor;
use crate::tensor::{tensor_of, PyTensor};

/// Samples and what keeps them alive.
#[derive(Clone, Default)]
pub(crate) struct Imported {
    pub list: SampleList<'static>,
    pub owners: Owners,
    pub places: Places,
}

impl Imported {
    /// The rows of a table.
    fn from_table(table: &Bound<'_, PyAny>, reading: Reading<'_>) -> PyResult<Imported> {
        let py = table.py();
        let table = tensor_of(table, "samples", Reading { owned: true, ..reading })?;
        Imported::rows_of(py, table)
    }

    /// The rows of a tensor of our own.
    pub fn rows_of(py: Python<'_>, table: Tensor) -> PyResult<Imported> {
        // SAFETY: the tensor, which holds the owner, is kept below.
        #[allow(unsafe_code)]
        let list = unsafe { SampleList::rows_from_raw_parts(&table) }.or_py_err(py)?;
        Imported::parts_of(table, list)
    }

    /// Samples that are parts of a tensor of our own.
    pub fn parts_of(table: Tensor, list: SampleList<'static>) -> PyResult<Imported> {
        let (order, places) = (Order::of(&table), Places::of(&table)?);
        let owners = Owners::of_all(Arc::new(Keep::of(table, order)));
        Ok(Imported { list, owners, places })
    }

    /// A sample of the list as a tensor, which keeps its memory alive.
    pub fn sample(&self, index: usize) -> Tensor {
        let (kind, data) = (self.list.kind(index), self.list.address(index).cast_mut());
        let places = self.places.take(vec![index as i64], self.list.len());
        let (owners, lone) = (Arc::clone(self.owners.shared()), self.owners.lone(index).cloned());
        let owner: Owner = Arc::new(Held { owners, lone, places });
        let (dtype, device, layout) = (kind.dtype, kind.device, kind.layout.clone());
        // SAFETY: the owners keep the memory of every sample of the list alive.
        #[allow(unsafe_code)]
        unsafe {
            Tensor::new_unchecked(owner, data, dtype, device, layout, self.list.is_read_only())
        }
    }

    /// Imports every sample of a list, tuple or other iterable; of a tensor every row.
    pub fn new(
        samples: &Bound<'_, PyAny>,
        reading: Reading<'_>,
    ) -> PyResult<(Imported, Option<RowsAhead>)> {
        let py = samples.py();
        let tuple = if let Ok(list) = samples.cast_exact::<PyList>() {
            list.as_sequence().to_tuple()?
        } else if let Ok(tuple) = samples.cast_exact::<PyTuple>() {
            tuple.clone()
        } else {
            if is_arrow(samples)? {
                return Ok((samples_in(samples, reading.path)?, None));
            }
            check_list(samples)?;
            if is_tensor(samples)? {
                return Ok((Imported::from_table(samples, reading)?, None));
            }
            tuple_from(samples)?
        };
        let mut importer = Importer::new(py, reading);
        importer.import_tuple(&tuple, 0, reading.stacker)?;
        Ok(Imported::from_importer(importer))
    }

    /// Imports objects gathered from trees.
    pub fn from_objects(
        py: Python<'_>,
        objects: Vec<Bound<'_, PyAny>>,
        reading: Reading<'_>,
    ) -> PyResult<(Imported, Option<RowsAhead>)> {
        let mut importer = Importer::new(py, reading);
        importer.import_objects(objects, reading.stacker)?;
        Ok(Imported::from_importer(importer))
    }

    /// The samples at these positions, of which negative ones count from the end.
    fn taken(&self, py: Python<'_>, positions: Vec<i64>) -> PyResult<Imported> {
        let list = self.list.take(positions.iter().copied()).or_py_err(py)?;
        let owners = self.owners.take(&positions, self.list.len())?;
        Ok(Imported { list, owners, places: self.places.take(positions, self.list.len()) })
    }

    /// The same samples, to be changed.
    fn copied(&self) -> windrow::Result<Imported> {
        let list = self.list.take(0..self.list.len() as i64)?;
        let (owners, places) = (self.owners.clone(), self.places.clone());
        Ok(Imported { list, owners, places })
    }

    fn from_importer(importer: Importer<'_>) -> (Imported, Option<RowsAhead>) {
        let owners = Owners::of_all(Arc::new(importer.keep));
        let places = Places::from(importer.places);
        (Imported { list: importer.list, owners, places }, importer.ahead)
    }
}

/// The items of a sequence. Those of a list are taken at one moment, whatever other threads do to it.
pub(crate) fn items_of<'py>(sequence: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    if let Ok(list) = sequence.cast_exact::<PyList>() {
        return in_a_row(&list.as_sequence().to_tuple()?);
    }
    if let Ok(tuple) = sequence.cast_exact::<PyTuple>() {
        return in_a_row(tuple);
    }
    entries(sequence, Ok)
}

/// What is given as the list of samples, as a tuple.
fn tuple_from<'py>(samples: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    let tuple = samples.py().get_type::<PyTuple>().call1((samples,));
    tuple.map_err(|error| no_list(samples, error))?.cast_into::<PyTuple>().map_err(PyErr::from)
}

/// In place of an error of going through what is given as the list of samples: that it is none, for a TypeError.
pub(crate) fn no_list(samples: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = samples.py();
    if !error.is_instance_of::<PyTypeError>(py) {
        return error;
    }
    match class_name(&samples.get_type()) {
        Ok(class) => {
            let text = format!("expected a list of samples, got {class}");
            let refusal = PyTypeError::new_err(text);
            // Perhaps what an iterator raised on its way.
            refusal.set_cause(py, Some(error));
            refusal
        }
        Err(error) => error,
    }
}

/// As `items_of`, as a tuple: of one there is nothing to copy.
pub(crate) fn tuple_of<'py>(sequence: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    if let Ok(tuple) = sequence.cast_exact::<PyTuple>() {
        return Ok(tuple.clone());
    }
    let list = match sequence.cast_exact::<PyList>() {
        Ok(list) => list.clone(),
        Err(_) => list_of(sequence.py(), entries(sequence, Ok)?)?,
    };
    list.as_sequence().to_tuple()
}

fn in_a_row<'py>(tuple: &Bound<'py, PyTuple>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let mut items = room_for(tuple.len())?;
    items.extend(tuple.iter());
    Ok(items)
}

/// The entries of an iterable, one by one: what it says of its length need not be so. That of a range is, and may
/// be beyond all memory.
pub(crate) fn entries<'py, T>(
    iterable: &Bound<'py, PyAny>,
    mut read: impl FnMut(Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let mut entries = match iterable.cast::<PyRange>() {
        Ok(range) => room_for(range.len()?)?,
        Err(_) => Vec::new(),
    };
    for entry in iterable.try_iter()? {
        let entry = read(entry?)?;
        if entries.try_reserve(1).is_err() {
            return Err(PyMemoryError::new_err("an iterable without an end, or beyond all memory"));
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// Either a list imported before or samples imported now.
pub(crate) fn samples_of(
    samples: &Bound<'_, PyAny>,
    reading: Reading<'_>,
) -> PyResult<(Arc<Imported>, Option<RowsAhead>)> {
    match samples.cast_exact::<PySampleList>() {
        Ok(list) => Ok((list.get().in_place(samples.py(), reading.path)?, None)),
        Err(_) => {
            let (imported, ahead) = Imported::new(samples, reading)?;
            Ok((Arc::new(imported), ahead))
        }
    }
}

/// Samples imported, checked and kept alive once. Every assembling call takes one in place of a list.
///
/// The memory of torch tensors is kept as well as the tensors: after ``x.data = ...``, ``x.set_(...)`` or
/// ``module.half()`` the list still has what was imported. Memory that its owner has moved or freed since, by
/// ``x.resize_()``, ``x.share_memory_()``, ``x.untyped_storage().resize_()`` or NumPy's ``a.resize()``, is a
/// LayoutError with the index when it is used next. Not noticed are memory that moves while a call reads it or
/// after it was handed on as an array, and what objects of other libraries do behind their own pointers.
///
/// ``samples[i] = sample`` replaces one: the list refers to the new sample from then on, no memory is written, and the old
/// one is let go of, those of the list that was given first as soon as all of them are replaced. A slice, like `take`, is
/// a list of its own that shares the samples: what is replaced or appended later does not show in it.
///
/// Args:
///     samples: an iterable of array-likes, of any shapes and dtypes; or one tensor, whose rows along
///         dim 0 are registered without anything kept for each of them; or an Arrow array, chunked array or
///         column, whose rows are the samples, in Arrow's memory.
///
/// Examples:
///     >>> import windrow as wr
///     >>> rows = wr.SampleList([b"ab", b"cd", b"ef"])
///     >>> wr.stack(rows.take([2, 0])).shape
///     (2, 2)
///     >>> rows[0] = b"xy"
///     >>> bytes(wr.stack(rows[:2]))
///     b'xycd'
#[pyclass(name = "SampleList", module = "windrow", frozen, sequence)]
pub(crate) struct PySampleList {
    imported: Mutex<Arc<Imported>>,
    /// Where its device finds the samples by indices there, once that was asked for. The list may have grown since.
    resident: Mutex<Option<Resident<'static>>>,
    /// The resident samples are no longer those of the list.
    is_replaced: AtomicBool,
}

impl PySampleList {
    /// The samples as they are now; appending later does not change what was taken.
    pub fn snapshot(&self) -> Arc<Imported> {
        Arc::clone(&self.imported.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// As `snapshot`, if no sample has moved since it was imported.
    fn in_place(&self, py: Python<'_>, path: &str) -> PyResult<Arc<Imported>> {
        let own = self.snapshot();
        if let Some(resident) = &*self.resident() {
            resident.check().or_py_err(py)?;
        }
        match own.places.find_moved(py)? {
            None => Ok(own),
            Some(index) => Err(to_py_err(py, &moved(index).at_path(path))),
        }
    }

    pub fn from_imported(imported: Imported) -> PySampleList {
        PySampleList::of(Arc::new(imported))
    }

    fn of(imported: Arc<Imported>) -> PySampleList {
        PySampleList {
            imported: Mutex::new(imported),
            resident: Mutex::default(),
            is_replaced: AtomicBool::new(false),
        }
    }

    fn resident(&self) -> MutexGuard<'_, Option<Resident<'static>>> {
        self.resident.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a device has of these samples, which are those of this list: made again if the list has grown or a sample was replaced.
    fn resident_on(
        &self,
        py: Python<'_>,
        device: Device,
    ) -> PyResult<(Arc<Imported>, Resident<'static>)> {
        let known = self.resident().clone();
        // Before the samples are looked at: a change after that sets it again.
        let is_replaced = self.is_replaced.swap(false, Ordering::AcqRel);
        let own = self.snapshot();
        if let Some(known) = known.filter(|_| !is_replaced) {
            if known.device() == device && known.len() == own.list.len() {
                return Ok((own, known));
            }
        }
        let list = own.list.clone();
        let made = py.detach(|| default_engine().resident(list, device)).or_py_err(py);
        if made.is_err() {
            self.is_replaced.store(true, Ordering::Release);
        }
        let made = made?;
        *self.resident() = Some(made.clone());
        Ok((own, made))
    }

    /// The samples at positions that are on a device, if they are and this list is known there.
    fn chosen(&self, indices: &Bound<'_, PyAny>) -> PyResult<Option<Imported>> {
        let py = indices.py();
        let Some(device) = self.resident().as_ref().map(Resident::device) else { return Ok(None) };
        if is_list(indices) {
            return Ok(None);
        }
        let tensor = tensor_of(indices, "indices", Reading::OWNED)?;
        if !matches!(tensor.device(), Device::Cuda(_)) {
            return Ok(None);
        }
        let (own, resident) = self.resident_on(py, device)?;
        let list = resident.take(&tensor).or_py_err(py)?;
        let owners = own.owners.with(Arc::clone(tensor.owner()))?;
        Ok(Some(Imported { list, owners, places: own.places.clone() }))
    }

    /// The samples at these positions.
    fn taken(&self, indices: &Bound<'_, PyAny>) -> PyResult<Imported> {
        let py = indices.py();
        let own = self.snapshot();
        if let Some(resident) = &*self.resident() {
            resident.check().or_py_err(py)?;
        }
        if let Some(chosen) = self.chosen(indices)? {
            return Ok(chosen);
        }
        let (positions, _) = integers(indices, "indices", 1)?;
        own.taken(py, positions)
    }

    /// The position of a sample, of which a negative one counts from the end.
    fn position(&self, index: &Bound<'_, PyAny>) -> PyResult<usize> {
        let len = self.__len__() as isize;
        let index: isize = index.extract().map_err(|error| {
            let text = "an index of a SampleList is an int or a slice; take(indices) takes an array of them";
            in_words(index.py(), error, || PyTypeError::new_err(text))
        })?;
        let position = if index < 0 { index + len } else { index };
        match (0..len).contains(&position) {
            true => Ok(position as usize),
            false => {
                let text = format!("index {index} in a list of {len} samples");
                Err(PyIndexError::new_err(text))
            }
        }
    }

    /// Reads objects, the first of which is number `start` of this list.
    fn imported(&self, objects: &Bound<'_, PyTuple>, start: usize) -> PyResult<Imported> {
        let own = self.snapshot();
        let mut importer = Importer::new(objects.py(), Reading::OWNED);
        importer.empty_dtype = own.list.last_dtype().unwrap_or(importer.empty_dtype);
        importer.import_tuple(objects, start, None)?;
        // What keeps samples of this list alive is there. Kept once more each time, it would be a longer chain.
        let mut lone = room_for(objects.len())?;
        lone.extend(objects.iter_borrowed().map_while(|object| {
            let tensor = object.cast_exact::<PyTensor>().ok()?;
            let held = tensor.get().inner().owner().downcast_ref::<Held>()?;
            Arc::ptr_eq(&held.owners, own.owners.shared()).then(|| held.lone.clone())
        }));
        let Importer { list, keep, places, .. } = importer;
        let owners = match objects.len() {
            count if lone.len() == count => Owners::again(Arc::clone(own.owners.shared()), lone),
            1 => Owners::of_one(Arc::new(keep), list.device()),
            _ => Owners::of_all(Arc::new(keep)),
        };
        Ok(Imported { list, owners, places: Places::from(places) })
    }

    fn add(&self, objects: &Bound<'_, PyTuple>) -> PyResult<()> {
        let added = self.imported(objects, self.__len__())?;
        self.join(objects.py(), &added)
    }

    /// Changes the samples, in a copy if others have them as they are.
    fn change<T>(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&mut Imported) -> PyResult<T>,
    ) -> PyResult<T> {
        let mut guard = self.imported.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::get_mut(&mut guard).is_none() {
            *guard = Arc::new(guard.copied().or_py_err(py)?);
        }
        change(Arc::get_mut(&mut guard).expect("not shared"))
    }

    /// Adds the samples of another list; on an error none.
    fn join(&self, py: Python<'_>, other: &Imported) -> PyResult<()> {
        self.snapshot().list.check_known().and(other.list.check_known()).or_py_err(py)?;
        self.change(py, |own| {
            let (len, added) = (own.list.len(), other.list.len());
            // First of all: a table can have more rows than there is memory for their places.
            own.list.reserve(added).or_py_err(py)?;
            own.owners.reserve(len, &other.owners, added)?;
            let list = &mut own.list;
            let rest = || list.extend(&other.list).or_py_err(py);
            own.places.extend(len, &other.places, added, rest)?;
            own.owners.extend(len, &other.owners, added);
            Ok(())
        })
    }
}

#[pymethods]
impl PySampleList {
    #[new]
    #[pyo3(signature = (samples = None))]
    fn new(samples: Option<&Bound<'_, PyAny>>) -> PyResult<PySampleList> {
        let Some(samples) = samples else {
            return Ok(PySampleList::from_imported(Imported::default()));
        };
        match samples.cast_exact::<PySampleList>() {
            // Shared until one of the two lists changes.
            Ok(list) => Ok(PySampleList::of(list.get().snapshot())),
            Err(_) => Ok(PySampleList::from_imported(Imported::new(samples, Reading::OWNED)?.0)),
        }
    }

    /// The samples at these positions, in this order, as a new list that shares their memory, and keeps
    /// alive what this one does.
    ///
    /// After `to_device`, indices on that device (int32 or int64, of any library) are neither fetched nor waited for:
    /// the work reads them in the order of their stream, in a CUDA graph each time that it is launched. The result can
    /// be stacked, or padded to a given ``size``; what else needs to know the samples is a ValueError. An index out of
    /// range gives padding (0 in a stack) and raises IndexError late: at ``Batch.check()``, and at the next use of
    /// this list.
    ///
    /// Args:
    ///     indices: an integer array-like of one dim, or a list of ints; negative ones count from the end.
    ///
    /// Raises:
    ///     IndexError: for a position that is not in the list; or that an earlier call has found on the device.
    ///     TypeError: for what is no int, a mask of bools too, and on a device for dtypes other than int32 and int64.
    ///     DeviceError: for indices on another device than the samples, after `to_device`.
    fn take(&self, indices: &Bound<'_, PyAny>) -> PyResult<PySampleList> {
        self.taken(indices).map(PySampleList::from_imported)
    }

    /// Has the device that the samples are on find them by indices there: see `take`. Uploads 8 bytes for each sample,
    /// and 4 more where samples differ in shape, once; of the rows of one table nothing. Waits for that. After an
    /// `append` or `extend` the next `take` of such indices uploads anew.
    ///
    /// Args:
    ///     device: ``"cuda"`` or ``"cuda:1"``, where all samples are: they are not moved.
    ///
    /// Returns:
    ///     SampleList: this list.
    ///
    /// Raises:
    ///     DeviceError: for samples that are elsewhere. ValueError: for an empty list.
    ///     CudaUnavailable, CudaError: as for ``windrow.stack``.
    fn to_device<'py>(
        slf: Bound<'py, Self>,
        device: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, Self>> {
        slf.get().in_place(slf.py(), "")?;
        slf.get().resident_on(slf.py(), device_of(device)?)?;
        Ok(slf)
    }

    /// A batch of the samples at these positions: as ``windrow.stack`` of ``take(indices)``, without the list
    /// between.
    ///
    /// Args:
    ///     indices: as for `take`.
    ///     common: as for ``windrow.stack``, ``out`` among them.
    ///
    /// Returns:
    ///     Batch: ``data[len(indices), *shape]``.
    ///
    /// Raises:
    ///     IndexError: for a position that is not in the list; and what ``windrow.stack`` raises, whose ``index``
    ///         is a position in ``indices``.
    ///
    /// Examples:
    ///     >>> import windrow as wr
    ///     >>> rows = wr.SampleList([b"ab", b"cd", b"ef"])
    ///     >>> bytes(rows.stack([2, 0]))
    ///     b'efab'
    #[pyo3(signature = (indices, **common), text_signature = "($self, indices, *, dtype=None, device=None, out=None, stream=None, transform=None, copy=True, engine=None)")]
    fn stack(
        &self,
        indices: &Bound<'_, PyAny>,
        common: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyBatch> {
        assemble_with("stack", indices.py(), common, |_| {
            let taken = self.taken(indices)?;
            match taken.places.find_moved(indices.py())? {
                None => Ok((Arc::new(taken), None)),
                Some(index) => Err(to_py_err(indices.py(), &moved(index))),
            }
        })
    }

    /// The consecutive pieces of one tensor, with no Python object for each of them: sample ``i`` is
    /// ``values[offsets[i]:offsets[i + 1]]``, as Arrow's lists and ragged batches are in memory.
    ///
    /// Args:
    ///     values: an array-like of at least one dim.
    ///     offsets: integers ``[N + 1]``, none below the one before it.
    ///     shapes: integers ``[N, k]``; ``values`` is then flat, row-major, and sample ``i`` has the
    ///         shape ``shapes[i]``.
    ///
    /// Raises:
    ///     ShapeError: for offsets that go back or beyond ``values``, and for a shape of another number of
    ///         elements than its piece has.
    ///
    /// Example:
    ///     >>> import windrow as wr
    ///     >>> words = wr.SampleList.split(b"abcdef", [0, 1, 4, 6])
    ///     >>> [bytes(row) for row in wr.pad(words, value=46).numpy()]
    ///     [b'a..', b'bcd', b'ef.']
    #[staticmethod]
    #[pyo3(signature = (values, offsets, shapes = None))]
    fn split(
        values: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        shapes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PySampleList> {
        let table = tensor_of(values, "values", Reading::OWNED)?;
        let (offsets, _) = integers(offsets, "offsets", 1)?;
        let list = match shapes {
            None => pieces(&table, &offsets),
            Some(shapes) => {
                let (shapes, extents) = integers(shapes, "shapes", 2)?;
                shaped_pieces(&table, &offsets, &shapes, &extents)
            }
        };
        let list = list.or_py_err(values.py())?;
        Imported::parts_of(table, list).map(PySampleList::from_imported)
    }

    /// Imports one more sample. An error names the position that it would have had.
    fn append(&self, sample: &Bound<'_, PyAny>) -> PyResult<()> {
        self.add(&PyTuple::new(sample.py(), [sample])?)
    }

    /// Imports more samples; on an error, a MemoryError too, none of them.
    ///
    /// Args:
    ///     samples: an iterable of array-likes, or another list, which is joined as it is.
    fn extend(&self, samples: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(other) = samples.cast_exact::<PySampleList>() {
            let other = other.get().snapshot();
            return self.join(samples.py(), &other);
        }
        if is_arrow(samples)? {
            return self.join(samples.py(), &samples_in(samples, "")?);
        }
        check_list(samples)?;
        self.add(&tuple_from(samples)?)
    }

    fn __len__(&self) -> usize {
        self.snapshot().list.len()
    }

    /// A sample as a tensor, or, for a slice, a list that shares the samples.
    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, own) = (index.py(), self.snapshot());
        own.list.check_known().or_py_err(py)?;
        if let Ok(slice) = index.cast::<PySlice>() {
            let taken = own.taken(py, positions_of(slice, own.list.len())?)?;
            return Ok(Bound::new(py, PySampleList::from_imported(taken))?.into_any());
        }
        let position = self.position(index)?;
        let tensor = own.sample(position);
        match has_moved(py, &tensor)? {
            false => Ok(Bound::new(py, PyTensor::from(tensor))?.into_any()),
            true => Err(to_py_err(py, &moved(position))),
        }
    }

    /// Replaces a sample: the list refers to the new one from now on, no memory is written, and the old one is let go of
    /// unless others have it. Lists that were taken before keep it.
    fn __setitem__(&self, index: &Bound<'_, PyAny>, sample: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = index.py();
        if index.is_instance_of::<PySlice>() {
            let text =
                "a slice of a SampleList cannot be assigned; assign one sample after the other";
            return Err(PyTypeError::new_err(text));
        }
        let position = self.position(index)?;
        let other = self.imported(&PyTuple::new(py, [sample])?, position)?;
        // Before the change and after it, so that no other thread takes what was resident for these samples.
        self.is_replaced.store(true, Ordering::Release);
        // Let go of without the lock of the list.
        let _gone = self.change(py, |own| {
            let len = own.list.len();
            own.owners.reserve(len, &other.owners, 0)?;
            let has_places = own.places.spread(len, &other.places)?;
            own.list.replace(position, &other.list, 0).or_py_err(py)?;
            let ask = if has_places { own.places.replace(position, &other.places) } else { None };
            Ok((ask, own.owners.replace(len, position, &other.owners)))
        })?;
        self.is_replaced.store(true, Ordering::Release);
        Ok(())
    }

    fn __repr__(&self) -> String {
        let own = self.snapshot();
        format!("SampleList({} samples, {} layouts)", own.list.len(), own.list.kinds().len())
    }
}

/// The positions of a slice of so many samples.
fn positions_of(slice: &Bound<'_, PySlice>, len: usize) -> PyResult<Vec<i64>> {
    let slice = slice.indices(len as isize)?;
    let mut positions = room_for(slice.slicelength)?;
    positions
        .extend((0..slice.slicelength as i64).map(|k| slice.start as i64 + k * slice.step as i64));
    Ok(positions)
}
