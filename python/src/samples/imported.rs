//! Samples as they were imported, and what keeps them alive.

use std::borrow::Cow;
use std::sync::Arc;

use pyo3::prelude::*;
use windrow::bindings::PipelinedCopy;
use windrow::tensor::Owner;
use windrow::{Collate, Device, SampleList, Tensor};

use crate::ground::errors::{to_py_err, OrPyErr};
use crate::ground::reserve::try_vec;
use crate::ground::tensor::PyTensor;
use crate::import::importer::{Importer, Reading};
use crate::import::rows::{has_no_numbers, said_dtype, set_empty_dtype};

use crate::ownership::column::Column;
use crate::ownership::copy::copy_of;
use crate::ownership::holder::{has_moved, producers_of, watches_of, Holder, Reference};
use crate::ownership::owners::Owners;
use crate::ownership::producers::Producers;
use crate::ownership::storage_watch::{moved, StorageWatches};

/// Samples and what keeps them alive.
#[derive(Clone, Default)]
pub(crate) struct Imported {
    pub list: SampleList<'static>,
    pub owners: Owners,
    pub watches: StorageWatches,
}

impl Imported {
    /// Samples of pageable memory that were read of these objects: one shared owner keeps all
    /// objects as long as any of the samples.
    pub fn from_list(list: SampleList<'static>, objects: Vec<Py<PyAny>>) -> Imported {
        let mut owner = Holder::default();
        owner.objects = objects;
        Imported {
            list,
            owners: Owners::from_one(Arc::new(owner)),
            watches: StorageWatches::default(),
        }
    }

    /// The rows of a tensor of our own along dim 0, without a copy; ShapeError for one without dims.
    pub fn from_rows(py: Python<'_>, table: Tensor) -> PyResult<Imported> {
        // SAFETY: the tensor, which holds the owner, is kept below.
        #[allow(unsafe_code)]
        let list = unsafe { SampleList::rows_from_raw_parts(&table) }.or_py_err(py)?;
        Imported::from_parts(py, table, list)
    }

    /// Samples that are parts of a tensor of our own (not checked), which keeps them.
    pub fn from_parts(
        py: Python<'_>,
        table: Tensor,
        list: SampleList<'static>,
    ) -> PyResult<Imported> {
        let (device, watches) =
            (table.device(), StorageWatches::combined(watches_of(table.owner())));
        let owners = match table.owner().downcast_ref::<Reference>() {
            Some(reference) if device == Device::Cpu => Owners::from_reference(py, reference)?,
            _ => {
                let producers = producers_of(&table);
                Owners::from_object(Holder::from_tensor(table, producers).into_object(py)?)
            }
        };
        Ok(Imported { list, owners, watches: Column::one(watches) })
    }

    /// A sample of the list as a tensor, which keeps its memory alive; panics for one that is not in the list. That the memory
    /// was not moved is not checked.
    pub fn sample(&self, py: Python<'_>, index: usize) -> PyResult<Tensor> {
        let (meta, data) = (self.list.meta(index), self.list.address(index).cast_mut());
        let watches = self.watches.at(py, index);
        let owner: Owner = Arc::new(self.owners.sample_reference(py, index, watches));
        let (dtype, device, layout) = (meta.dtype, meta.device, meta.layout.clone());
        // SAFETY: the owners keep the memory of every sample of the list alive.
        #[allow(unsafe_code)]
        Ok(unsafe {
            Tensor::new_unchecked(
                owner,
                data,
                dtype,
                device,
                layout,
                self.list.is_read_only_at(index),
            )
        })
    }

    /// Sample `index` as an object, in a copy if its byte order is foreign; LayoutError if its memory was moved, with
    /// the path of the leaf.
    pub fn object<'py>(
        &self,
        py: Python<'py>,
        index: usize,
        path: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let tensor = self.sample(py, index)?;
        match has_moved(py, &tensor)? {
            false if !tensor.dtype().is_native() => {
                let copy = copy_of(&tensor, &Collate::stack(), None);
                let copy = copy.and_then(|copy| copy.select(0)).or_py_err(py)?;
                Ok(Bound::new(py, PyTensor::from(copy))?.into_any())
            }
            false => Ok(Bound::new(py, PyTensor::from(tensor))?.into_any()),
            true => Err(to_py_err(py, &moved(index).at_path(path))),
        }
    }

    /// Imports objects gathered from trees. `start`: the number of the first.
    pub fn from_objects(
        py: Python<'_>,
        objects: Vec<Bound<'_, PyAny>>,
        start: usize,
        reading: Reading<'_>,
    ) -> PyResult<(Imported, Option<PipelinedCopy>)> {
        let mut importer = Importer::new(py, reading);
        importer.import_objects(objects, start, reading.stacker)?;
        Imported::from_importer(importer)
    }

    /// Imports these objects as further samples of this list, without a new owner if it has them already.
    ///
    /// # Errors
    /// The errors of the importer, which must be one for samples that are kept.
    pub fn read_more<'py>(
        &self,
        mut importer: Importer<'py>,
        objects: Vec<Bound<'py, PyAny>>,
        start: usize,
    ) -> PyResult<Imported> {
        let mut known = try_vec(objects.len())?;
        known.extend(objects.iter().map_while(|object| self.known(object)));
        let is_known = known.len() == objects.len();
        importer.empty_dtype = self.list.last_dtype().unwrap_or(importer.empty_dtype);
        importer.import_objects(objects, start, None)?;
        let (mut imported, _) = Imported::from_importer(importer)?;
        if is_known {
            imported.owners = Owners::from_parts(Arc::clone(self.owners.shared()), known);
        }
        Ok(imported)
    }

    /// The owner of an object that is a sample of this list, or a view of samples whose owners the
    /// list has: `Some(None)` if the list's shared owners alone keep it, `None` for any other
    /// object. Wrapped again on every import, owners would become a longer and longer chain.
    fn known(&self, object: &Bound<'_, PyAny>) -> Option<Option<Py<PyAny>>> {
        let tensor = object.cast_exact::<PyTensor>().ok()?;
        let held = tensor.get().inner().owner().downcast_ref::<Reference>()?;
        let is_its = Arc::ptr_eq(held.shared.as_ref()?, self.owners.shared());
        is_its.then(|| held.object.as_ref().map(|kept| kept.clone_ref(object.py())))
    }

    /// The samples at these positions, of which negative ones count from the end; IndexError for one that is not in the list.
    pub fn taken(&self, py: Python<'_>, positions: &[i64]) -> PyResult<Imported> {
        let list = self.list_of(py, positions)?;
        let owners = self.owners.take(py, positions, self.list.len())?;
        let watches = self.watches.take(py, positions, self.list.len())?;
        Ok(Imported { list, owners, watches })
    }

    /// The samples of [`Imported::taken`] for one call: in pageable memory they keep the whole list, without a
    /// reference to each sample.
    pub fn lent(self: &Arc<Self>, py: Python<'_>, positions: &[i64]) -> PyResult<Imported> {
        if !self.is_on_host() {
            return self.taken(py, positions);
        }
        let list = self.list_of(py, positions)?;
        let watches = self.watches.take(py, positions, self.list.len())?;
        Ok(Imported { list, owners: Owners::from_one(Arc::clone(self) as Owner), watches })
    }

    /// The list of the samples at these positions. Rows without numbers have the dtype of the first other sample among them, not
    /// that of samples that were left out.
    fn list_of(&self, py: Python<'_>, positions: &[i64]) -> PyResult<SampleList<'static>> {
        let mut list = self.list.take(positions.iter().copied()).or_py_err(py)?;
        let said = if list.is_uniform() { None } else { said_dtype(&list) };
        let is_other = |index| has_no_numbers(&list, index) && list.dtype_at(index) != said;
        if let Some(dtype) = said.filter(|_| (0..list.len()).any(is_other)) {
            set_empty_dtype(py, &mut list, dtype)?;
        }
        Ok(list)
    }

    /// # Errors
    /// LayoutError for a sample whose memory is elsewhere by now.
    pub fn check_unmoved(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        match self.watches.find_moved(py)? {
            None => Ok(()),
            Some(index) => Err(to_py_err(py, &moved(index).at_path(path))),
        }
    }

    /// Returns these samples, to be changed: `shared` is replaced by a copy first if others have it.
    pub fn make_mut<'a>(
        shared: &'a mut Arc<Imported>,
        py: Python<'_>,
    ) -> PyResult<&'a mut Imported> {
        if Arc::get_mut(shared).is_none() {
            *shared = Arc::new(shared.copied(py)?);
        }
        Ok(Arc::get_mut(shared).expect("not shared"))
    }

    /// Gives rows without numbers in this list the dtype of the other's samples. Returns the other list, in a copy if its rows
    /// without numbers had to get the dtype of this one's.
    fn agree_on_dtype<'o>(
        &mut self,
        py: Python<'_>,
        other: &'o SampleList<'static>,
    ) -> PyResult<Cow<'o, SampleList<'static>>> {
        // The rows have the dtype of the last sample: whatever came before had them agree with it.
        if self.list.last_dtype() == other.last_dtype() {
            return Ok(Cow::Borrowed(other));
        }
        if let Some(dtype) = said_dtype(other) {
            set_empty_dtype(py, &mut self.list, dtype)?;
        } else if let Some(dtype) = said_dtype(&self.list) {
            let mut other = other.clone();
            set_empty_dtype(py, &mut other, dtype)?;
            return Ok(Cow::Owned(other));
        }
        Ok(Cow::Borrowed(other))
    }

    /// Adds the samples of another list; on an error none. Rows without numbers may have another dtype afterwards.
    pub fn join(&mut self, py: Python<'_>, other: &Imported) -> PyResult<()> {
        let (len, added) = (self.list.len(), other.list.len());
        // First of all: a table can have more rows than there is memory for their places.
        self.list.reserve(added).or_py_err(py)?;
        let others = self.agree_on_dtype(py, &other.list)?;
        let watches = |watches: &mut StorageWatches| watches.extend(py, len, &other.watches, added);
        let joined = self
            .owners
            .extend(py, len, &other.owners, added)
            .and_then(|()| watches(&mut self.watches))
            .and_then(|()| self.list.extend(&others).or_py_err(py));
        if joined.is_err() {
            self.owners.truncate(len);
            self.watches.truncate(len);
        }
        joined
    }

    /// Puts the first sample of another list in the place of one; on an error, as for a position that is not in the list, the
    /// samples are as before, but for the dtype of rows without numbers. Returns what may be released now, which can run any
    /// code.
    pub fn replace(
        &mut self,
        py: Python<'_>,
        position: usize,
        other: &Imported,
    ) -> PyResult<impl Sized> {
        let len = self.list.len();
        let others = self.agree_on_dtype(py, &other.list)?;
        self.owners.spread(py, len, &other.owners)?;
        self.watches.spread(py, len, &other.watches)?;
        self.list.replace(position, &others, 0).or_py_err(py)?;
        let place = self.watches.replace(py, position, &other.watches);
        Ok((place, self.owners.replace(py, position, &other.owners)))
    }

    /// Keeps the first `len` samples. Owners and watches that another list shares stay as they are.
    pub fn truncate(&mut self, len: usize) {
        self.list.truncate(len);
        self.owners.truncate(len);
        self.watches.truncate(len);
    }

    /// The same samples in a list of their own, with new references to what keeps them; watches are shared until one of them
    /// changes.
    fn copied(&self, py: Python<'_>) -> PyResult<Imported> {
        let (list, owners) = (self.list.try_clone().or_py_err(py)?, self.owners.copied(py)?);
        Ok(Imported { list, owners, watches: self.watches.clone() })
    }

    /// The work that the samples wait for; in pageable memory what their shared owners know.
    pub fn producers(&self) -> Producers {
        self.owners.producers(self.is_on_host())
    }

    /// The ordinal of the first CUDA device in the metadata; `None` if there is none.
    pub fn ordinal(&self) -> Option<u32> {
        self.list.metas().iter().find_map(|meta| match meta.device {
            Device::Cuda(ordinal) => Some(ordinal),
            _ => None,
        })
    }

    /// Whether all samples are in pageable memory; true without samples.
    pub fn is_on_host(&self) -> bool {
        self.list.metas().iter().all(|meta| meta.device == Device::Cpu)
    }

    /// The samples that were read, with their owners: for each sample by its keeper if they are kept, else one for all.
    pub fn from_importer(importer: Importer<'_>) -> PyResult<(Imported, Option<PipelinedCopy>)> {
        let is_per_sample = importer.is_per_sample();
        let Importer { list, owner, keepers, tensors, watches, ahead, .. } = importer;
        let owners = match is_per_sample {
            true => Owners::from_parts(Arc::default(), keepers),
            false => Owners::from_one(Arc::new(owner)),
        };
        let owners = owners.with_tensors(tensors, list.len())?;
        Ok((Imported { list, owners, watches: StorageWatches::from(watches) }, ahead))
    }
}
