//! `SampleList`: samples imported once. Its methods are in `classes/sample_list.rs`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use windrow::{Device, Resident};

use crate::engine::default::default_engine;
use crate::ground::errors::{in_words, to_py_err, OrPyErr};
use crate::ground::reserve::room_for;
use crate::ground::tensor::PyTensor;
use crate::import::importer::{Importer, Reading};
use crate::import::integers::{integers, is_list};
use crate::import::tensor::tensor_of;
use crate::ownership::owner::ListOwner;
use crate::ownership::owners::Owners;
use crate::ownership::places::{moved, Places};
use crate::samples::imported::Imported;

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
    samples: Mutex<Versioned>,
    /// Where the samples of a version are on their device, once that was asked for, to be found by indices there.
    resident: Mutex<Option<(u64, Resident<'static>)>>,
}

/// The samples as they are now.
struct Versioned {
    imported: Arc<Imported>,
    /// The number of changes so far.
    version: u64,
}

impl PySampleList {
    pub fn from_shared(imported: Arc<Imported>) -> PySampleList {
        let samples = Mutex::new(Versioned { imported, version: 0 });
        PySampleList { samples, resident: Mutex::default() }
    }

    pub fn from_imported(imported: Imported) -> PySampleList {
        PySampleList::from_shared(Arc::new(imported))
    }

    fn samples(&self) -> MutexGuard<'_, Versioned> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn resident(&self) -> MutexGuard<'_, Option<(u64, Resident<'static>)>> {
        self.resident.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The samples as they are now; appending later does not change what was taken.
    pub fn snapshot(&self) -> Arc<Imported> {
        Arc::clone(&self.samples().imported)
    }

    /// As `snapshot`, if no sample has moved since it was imported.
    pub fn in_place(&self, py: Python<'_>, path: &str) -> PyResult<Arc<Imported>> {
        let own = self.snapshot();
        self.check_resident(py)?;
        match own.places.find_moved(py)? {
            None => Ok(own),
            Some(index) => Err(to_py_err(py, &moved(index).at_path(path))),
        }
    }

    /// Raises what indices on the device were found to be wrong with.
    fn check_resident(&self, py: Python<'_>) -> PyResult<()> {
        match &*self.resident() {
            Some((_, resident)) => resident.check().or_py_err(py),
            None => Ok(()),
        }
    }

    /// What a device has of these samples, which are those of this list: made again after every change of it.
    pub fn resident_on(
        &self,
        py: Python<'_>,
        device: Device,
    ) -> PyResult<(Arc<Imported>, Resident<'static>)> {
        let (own, version) = {
            let samples = self.samples();
            (Arc::clone(&samples.imported), samples.version)
        };
        let is_current =
            |(of, made): &(u64, Resident<'static>)| *of == version && made.device() == device;
        let known = self.resident().clone().filter(is_current);
        if let Some((_, known)) = known {
            return Ok((own, known));
        }
        let list = own.list.clone();
        let made = py.detach(|| default_engine().resident(list, device)).or_py_err(py)?;
        *self.resident() = Some((version, made.clone()));
        Ok((own, made))
    }

    /// The samples at positions that are on a device, if they are and this list is known there.
    fn chosen(&self, indices: &Bound<'_, PyAny>) -> PyResult<Option<Imported>> {
        let py = indices.py();
        let Some(device) = self.resident().as_ref().map(|(_, made)| made.device()) else {
            return Ok(None);
        };
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
    pub fn taken(&self, indices: &Bound<'_, PyAny>) -> PyResult<Imported> {
        let py = indices.py();
        let own = self.snapshot();
        self.check_resident(py)?;
        if let Some(chosen) = self.chosen(indices)? {
            return Ok(chosen);
        }
        let (positions, _) = integers(indices, "indices", 1)?;
        own.taken(py, positions)
    }

    /// The position of a sample, of which a negative one counts from the end.
    pub fn position(&self, index: &Bound<'_, PyAny>) -> PyResult<usize> {
        let len = self.snapshot().list.len() as isize;
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
    pub fn imported(&self, objects: &Bound<'_, PyTuple>, start: usize) -> PyResult<Imported> {
        let own = self.snapshot();
        let mut importer = Importer::new(objects.py(), Reading::OWNED);
        importer.empty_dtype = own.list.last_dtype().unwrap_or(importer.empty_dtype);
        importer.import_tuple(objects, start, None)?;
        // What keeps samples of this list alive is there. Kept once more each time, it would be a longer chain.
        let mut per_sample = room_for(objects.len())?;
        per_sample.extend(objects.iter_borrowed().map_while(|object| {
            let tensor = object.cast_exact::<PyTensor>().ok()?;
            let held = tensor.get().inner().owner().downcast_ref::<ListOwner>()?;
            Arc::ptr_eq(&held.owners, own.owners.shared()).then(|| held.per_sample.clone())
        }));
        let Importer { list, owner, places, .. } = importer;
        let owners = match objects.len() {
            count if per_sample.len() == count => {
                Owners::from_parts(Arc::clone(own.owners.shared()), per_sample)
            }
            1 => Owners::of_one(Arc::new(owner), list.device()),
            _ => Owners::of_all(Arc::new(owner)),
        };
        Ok(Imported { list, owners, places: Places::from(places) })
    }

    pub fn add(&self, objects: &Bound<'_, PyTuple>) -> PyResult<()> {
        let added = self.imported(objects, self.snapshot().list.len())?;
        self.join(objects.py(), &added)
    }

    /// Changes the samples, in a copy if others have them as they are.
    pub fn change<T>(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&mut Imported) -> PyResult<T>,
    ) -> PyResult<T> {
        let mut samples = self.samples();
        if Arc::get_mut(&mut samples.imported).is_none() {
            samples.imported = Arc::new(samples.imported.copied().or_py_err(py)?);
        }
        samples.version += 1;
        change(Arc::get_mut(&mut samples.imported).expect("not shared"))
    }

    /// Adds the samples of another list; on an error none.
    pub fn join(&self, py: Python<'_>, other: &Imported) -> PyResult<()> {
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
    /// Has the list refer to another sample at a position, which is there.
    pub fn replace(&self, position: usize, sample: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = sample.py();
        let other = self.imported(&PyTuple::new(py, [sample])?, position)?;
        // Let go of without the lock of the list.
        let _gone = self.change(py, |own| {
            let len = own.list.len();
            own.owners.reserve(len, &other.owners, 0)?;
            let has_places = own.places.spread(len, &other.places)?;
            own.list.replace(position, &other.list, 0).or_py_err(py)?;
            let ask = if has_places { own.places.replace(position, &other.places) } else { None };
            Ok((ask, own.owners.replace(len, position, &other.owners)))
        })?;
        Ok(())
    }
}
