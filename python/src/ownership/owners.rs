//! [`Owners`]: what keeps the samples of a list alive.

use std::sync::Arc;

use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use windrow::bindings::new_owners;
use windrow::tensor::Owner;
use windrow::Error;

use crate::ground::reserve::{out_of_memory, push_to, try_vec};
use crate::ownership::column::{Column, Entries, Entry};
use crate::ownership::holder::{
    producers_of_objects, producers_of_owners, Holder, Reference, Visited,
};
use crate::ownership::producers::Producers;
use crate::ownership::release::release_objects;
use crate::ownership::storage_watch::StorageWatches;

/// The owners that keep the samples of a list alive.
#[derive(Clone, Default)]
pub(crate) struct Owners {
    /// Owners for one call, or of what a device made for the samples.
    shared: Arc<Vec<Owner>>,
    /// The object that keeps a sample, if one does by itself, and is released with it.
    objects: Column<MaybeObject>,
    /// The torch tensor that a sample is, for torch to know when it has been written to: it can exchange its storage, which is what
    /// keeps the memory.
    tensors: Column<MaybeObject>,
}

/// The entry of a sample: an object, or none.
type MaybeObject = Option<Py<PyAny>>;

/// The owner of a replaced sample, and owners that no sample needs any more.
type Replaced = ([Option<MaybeObject>; 2], Option<Arc<Vec<Owner>>>);

impl Entry for MaybeObject {
    const IS_REFERENCE: bool = true;

    fn none() -> MaybeObject {
        None
    }

    fn is(&self, other: &MaybeObject) -> bool {
        self.as_ref().map(Py::as_ptr) == other.as_ref().map(Py::as_ptr)
    }

    fn copied(&self, py: Python<'_>) -> MaybeObject {
        self.as_ref().map(|object| object.clone_ref(py))
    }

    fn release(objects: Vec<MaybeObject>) {
        release_objects(objects);
    }
}

impl Owners {
    /// Returns owners with one shared owner of all samples, for one call.
    pub fn from_one(owner: Owner) -> Owners {
        Owners { shared: Arc::new(vec![owner]), ..Owners::default() }
    }

    /// Returns owners with one object that keeps all samples.
    pub fn from_object(object: Py<PyAny>) -> Owners {
        Owners { objects: Column::one(Some(object)), ..Owners::default() }
    }

    /// Owners of samples that are a tensor with this owner, or views of its memory.
    pub fn from_reference(py: Python<'_>, reference: &Reference) -> PyResult<Owners> {
        let (mut object, storage) = (reference.object.copied(py), reference.storage.copied(py));
        if let (Some(lender), Some(storage)) = (&object, storage) {
            let mut holder = Holder::default();
            holder.objects = vec![lender.clone_ref(py), storage];
            object = Some(holder.into_object(py)?);
        }
        let shared = reference.shared.clone().unwrap_or_default();
        Ok(Owners { shared, objects: Column::one(object), ..Owners::default() })
    }

    /// Owners of many samples each, and for each sample the object that keeps it by itself, or none.
    pub fn from_parts(shared: Arc<Vec<Owner>>, objects: Vec<MaybeObject>) -> Owners {
        Owners { shared, objects: Column::from(Entries(objects)), ..Owners::default() }
    }

    /// The same owners with the torch tensors that samples are, from the first one on; there are
    /// `len` samples, and those beyond `tensors` have none.
    pub fn with_tensors(self, mut tensors: Vec<MaybeObject>, len: usize) -> PyResult<Owners> {
        if tensors.is_empty() {
            return Ok(self);
        }
        tensors.try_reserve(len.saturating_sub(tensors.len())).map_err(out_of_memory)?;
        tensors.resize_with(len, || None);
        Ok(Owners { tensors: Column::from(Entries(tensors)), ..self })
    }

    /// The torch tensors that samples are.
    pub fn tensors(&self) -> impl Iterator<Item = &Py<PyAny>> {
        self.tensors.all().iter().flatten()
    }

    /// The references that the collector is to see, if no other list has them.
    pub fn visit(&self, visit: &PyVisit<'_>) -> Visited {
        let all = self.objects.0.iter().chain(&self.tensors.0);
        let unshared = all.filter(|objects| Arc::strong_count(objects) == 1);
        unshared.flat_map(|objects| &objects.0).try_for_each(|kept| visit.call(kept))
    }

    /// All objects that keep samples.
    pub fn objects(&self) -> impl Iterator<Item = &Py<PyAny>> {
        self.objects.all().iter().flatten()
    }

    /// The owners that work on a device has to hold while it reads the samples: the shared ones, and the samples' objects.
    pub fn owners_to_hold(&self) -> impl Iterator<Item = Owner> {
        let objects = self.objects.0.clone().map(|objects| objects as Owner);
        std::iter::once(Arc::clone(&self.shared) as Owner).chain(objects)
    }

    /// The owners of many samples each.
    pub fn shared(&self) -> &Arc<Vec<Owner>> {
        &self.shared
    }

    /// The work that the samples wait for; if they are `on_host`, what their shared owners know, without a look at each object.
    pub fn producers(&self, on_host: bool) -> Producers {
        let mut producers = producers_of_owners(&self.shared);
        if !on_host {
            producers.merge(&producers_of_objects(self.objects.all().iter().flatten()));
        }
        producers
    }

    /// The owner of a tensor that is sample `index`, whose memory `watches` watch: the sample's object, if any, and all shared
    /// owners.
    pub fn sample_reference(
        &self,
        py: Python<'_>,
        index: usize,
        watches: StorageWatches,
    ) -> Reference {
        let (object, shared) = (self.objects.entry(py, index), Some(Arc::clone(&self.shared)));
        Reference { object, storage: None, shared, watches }
    }

    /// The owner of a tensor over all samples. It waits for what `producers` gives, which is called
    /// only if the samples have different objects.
    ///
    /// # Errors
    /// Out of memory.
    pub fn joint_reference(
        &self,
        watches: StorageWatches,
        producers: impl FnOnce() -> Producers,
    ) -> windrow::Result<Reference> {
        let each = self.objects.all();
        let made: PyResult<_> = Python::attach(|py| {
            if each.len() < 2 {
                return Ok(self.sample_reference(py, 0, watches));
            }
            let mut holder = Holder::default();
            for object in each.iter().flatten() {
                // Neighbours often are in one storage.
                if holder.objects.last().is_none_or(|last| last.as_ptr() != object.as_ptr()) {
                    push_to(&mut holder.objects, object.clone_ref(py))?;
                }
            }
            let object = match holder.objects.len() {
                1 => holder.objects.remove(0),
                _ => {
                    holder.producers = producers();
                    holder.owners.clone_from(&self.shared);
                    holder.into_object(py)?
                }
            };
            let shared = Some(Arc::clone(&self.shared));
            Ok(Reference { object: Some(object), storage: None, shared, watches })
        });
        made.map_err(|_| Error::OutOfMemory { bytes: size_of_val(each) as u64 })
    }

    /// The owners of samples of these that a device selects: `owner` keeps all of them, `indices` their positions.
    pub fn selected(&self, owner: Owner, indices: Owner) -> Owners {
        let (shared, tensors) = (Arc::new(vec![owner, indices]), self.tensors.clone());
        Owners { shared, objects: Column::default(), tensors }
    }

    /// Keeps the owners of the first `len` samples, and all owners of many samples.
    pub fn truncate(&mut self, len: usize) {
        self.objects.truncate(len);
        self.tensors.truncate(len);
    }

    /// Returns the same owners for another list, with new references to the objects that keep samples.
    pub fn copied(&self, py: Python<'_>) -> PyResult<Owners> {
        let (objects, tensors) = (self.objects.copied(py)?, self.tensors.copied(py)?);
        Ok(Owners { shared: Arc::clone(&self.shared), objects, tensors })
    }

    /// Returns the same shared owners followed by `owner`, which holds all samples too.
    pub fn with(&self, owner: Owner) -> PyResult<Owners> {
        let mut shared = try_vec(self.shared.len() + 1)?;
        shared.extend_from_slice(&self.shared);
        shared.push(owner);
        Ok(Owners { shared: Arc::new(shared), ..self.clone() })
    }

    /// The owners of the samples at these valid positions, of `len`; negative ones count from the end. Without the shared owners
    /// if each of these samples has an object.
    pub fn take(&self, py: Python<'_>, positions: &[i64], len: usize) -> PyResult<Owners> {
        if positions.is_empty() {
            return Ok(Owners::default());
        }
        let objects = self.objects.take(py, positions, len)?;
        let tensors = self.tensors.take(py, positions, len)?;
        let mut taken = Owners { shared: Arc::clone(&self.shared), objects, tensors };
        taken.drop_unused();
        Ok(taken)
    }

    /// Takes out the shared owners, if each sample has an object that keeps it; `None` if one has not, or there are none.
    fn drop_unused(&mut self) -> Option<Arc<Vec<Owner>>> {
        let objects = self.objects.all();
        let is_used = || objects.is_empty() || objects.iter().rev().any(Option::is_none);
        (!self.shared.is_empty() && !is_used()).then(|| std::mem::take(&mut self.shared))
    }

    /// Appends the owners of `other_len` samples to the owners of `len`. After an error the caller truncates them.
    pub fn extend(
        &mut self,
        py: Python<'_>,
        len: usize,
        other: &Owners,
        other_len: usize,
    ) -> PyResult<()> {
        self.add_shared(other)?;
        self.tensors.extend(py, len, &other.tensors, other_len)?;
        self.objects.extend(py, len, &other.objects, other_len)
    }

    /// Adds the shared owners of another list that this one has not.
    fn add_shared(&mut self, other: &Owners) -> PyResult<()> {
        let added = new_owners(&self.shared, &other.shared);
        if added.is_empty() {
            return Ok(());
        }
        let shared = Arc::make_mut(&mut self.shared);
        shared.try_reserve(added.len()).map_err(out_of_memory)?;
        shared.extend_from_slice(added);
        Ok(())
    }

    /// Adds the shared owners of `other` and reserves memory for [`Owners::replace`] in a list of `len` samples. After an error
    /// the list's samples have the owners that they had, or more.
    pub fn spread(&mut self, py: Python<'_>, len: usize, other: &Owners) -> PyResult<()> {
        self.add_shared(other)?;
        self.tensors.spread(py, len, &other.tensors)?;
        self.objects.spread(py, len, &other.objects)
    }

    /// Puts the owner of another list's one sample in the place of a sample's, after `spread`. Returns the owners that may be
    /// released now, which can run any code.
    pub fn replace(&mut self, py: Python<'_>, index: usize, other: &Owners) -> Replaced {
        let tensor = self.tensors.replace(py, index, &other.tensors);
        let object = self.objects.replace(py, index, &other.objects);
        ([object, tensor], self.drop_unused())
    }
}
