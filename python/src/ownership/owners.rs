//! [`Owners`]: what keeps the samples of a list alive.

use std::sync::Arc;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use windrow::bindings::new_owners;
use windrow::{Device, Error, Owner};

use crate::ground::reserve::{no_room, push_to, room_for};
use crate::ownership::release::{release, Foreign};

/// The owners that keep the samples of a list alive.
#[derive(Clone, Default)]
pub(crate) struct Owners {
    /// Of memory on a device, or for one call.
    shared: Arc<Vec<Owner>>,
    /// Of all samples that have none by themselves.
    all: Lone,
    /// Of one sample each, which is released with it; empty if no sample has one.
    per_sample: Arc<PerSample>,
    /// How many samples have one of these.
    num_per_sample: usize,
}

/// For each sample the object that keeps it alive, if one does by itself.
#[derive(Default)]
pub(crate) struct PerSample(Vec<Option<Py<PyAny>>>);

impl Drop for PerSample {
    fn drop(&mut self) {
        let objects = std::mem::take(&mut self.0);
        if !objects.is_empty() {
            release((Foreign::of_objects(objects), Vec::new()));
        }
    }
}

/// A reference, or none, given back as those of a list.
#[derive(Default)]
pub(crate) struct Lone(Option<Py<PyAny>>);

impl Clone for Lone {
    fn clone(&self) -> Lone {
        Lone(self.0.as_ref().map(|kept| Python::attach(|py| kept.clone_ref(py))))
    }
}

impl Lone {
    pub fn new(object: Py<PyAny>) -> Lone {
        Lone(Some(object))
    }

    pub fn get(&self) -> Option<&Py<PyAny>> {
        self.0.as_ref()
    }

    pub fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.0)
    }
}

impl Keepers {
    pub fn objects(&self) -> impl Iterator<Item = &Py<PyAny>> {
        self.each.0.iter().flatten()
    }

    pub fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.each.0.iter().try_for_each(|kept| visit.call(kept))
    }
}

impl Drop for Lone {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            release((Foreign::of_objects(vec![Some(object)]), Vec::new()));
        }
    }
}

/// What keeps the samples of a list that a view is over.
pub(crate) struct Keepers {
    each: PerSample,
    /// Of the samples that have none by themselves.
    _shared: Arc<Vec<Owner>>,
}

/// An owner as an object, to keep a sample alive: the one holder of the owner.
#[pyclass(frozen, name = "_Owner", module = "windrow")]
pub(crate) struct PyOwner(Owner);

impl PyOwner {
    pub fn owner(&self) -> &Owner {
        &self.0
    }

    pub fn object(py: Python<'_>, owner: Owner) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, PyOwner(owner))?.into_any())
    }
}

/// The owner of a sample that was replaced, and those of others that none has any more.
type Replaced = (Option<Py<PyAny>>, Option<(Lone, Arc<Vec<Owner>>)>);

impl Owners {
    /// Of all samples, for one call.
    pub fn of_all(owner: Owner) -> Owners {
        Owners { shared: Arc::new(vec![owner]), ..Owners::default() }
    }

    /// Of all samples of a list, which are on this device. Work on device memory is ordered by owners that are shared.
    pub fn of_list(py: Python<'_>, owner: Owner, device: Device) -> PyResult<Owners> {
        if device != Device::Cpu {
            return Ok(Owners::of_all(owner));
        }
        Ok(Owners { all: Lone::new(PyOwner::object(py, owner)?), ..Owners::default() })
    }

    /// The references that the collector is to see, if no other list has them.
    pub fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.all.0)?;
        match Arc::strong_count(&self.per_sample) {
            1 => self.per_sample.0.iter().try_for_each(|kept| visit.call(kept)),
            _ => Ok(()),
        }
    }

    /// The objects that keep one sample each.
    pub fn alone(&self) -> impl Iterator<Item = &Py<PyAny>> {
        self.per_sample.0.iter().flatten()
    }

    /// What work on a device that reads the samples is to hold.
    pub fn keep(&self) -> impl Iterator<Item = Owner> {
        let alone = (self.num_per_sample > 0).then(|| Arc::clone(&self.per_sample) as Owner);
        std::iter::once(Arc::clone(&self.shared) as Owner).chain(alone)
    }

    /// The owners of many samples each.
    pub fn shared(&self) -> &Arc<Vec<Owner>> {
        &self.shared
    }

    /// One object that keeps all `len` samples, if it is not the owners that are shared that do.
    ///
    /// # Errors
    /// Out of memory.
    pub fn kept(&self, len: usize) -> windrow::Result<Lone> {
        if self.num_per_sample == 0 {
            return Ok(self.all.clone());
        }
        Python::attach(|py| {
            let no_room = |_| Error::OutOfMemory { bytes: (len * size_of::<Py<PyAny>>()) as u64 };
            let mut each: Vec<Option<Py<PyAny>>> = Vec::new();
            for kept in (0..len).map(|index| self.of_sample(index)) {
                // Neighbours often are in one storage.
                if each
                    .last()
                    .is_none_or(|last| last.as_ref().map(Py::as_ptr) != kept.map(Py::as_ptr))
                {
                    push_to(&mut each, kept.map(|kept| kept.clone_ref(py))).map_err(no_room)?;
                }
            }
            if let [only @ Some(_)] = &mut each[..] {
                return Ok(Lone(only.take()));
            }
            let keepers = Keepers { each: PerSample(each), _shared: Arc::clone(&self.shared) };
            PyOwner::object(py, Arc::new(keepers)).map(Lone::new).map_err(no_room)
        })
    }

    /// The object that keeps a sample.
    pub fn of_sample(&self, index: usize) -> Option<&Py<PyAny>> {
        self.per_sample.0.get(index).and_then(Option::as_ref).or(self.all.get())
    }

    /// Of many samples each, and of one sample each, if any has one.
    pub fn from_parts(shared: Arc<Vec<Owner>>, per_sample: Vec<Option<Py<PyAny>>>) -> Owners {
        let num_per_sample = per_sample.iter().flatten().count();
        let per_sample = Arc::new(PerSample(per_sample));
        Owners { shared, all: Lone::default(), per_sample, num_per_sample }
    }

    /// Keeps those of the first `len` samples.
    pub fn truncate(&mut self, len: usize) {
        if let Some(PerSample(per_sample)) = Arc::get_mut(&mut self.per_sample) {
            per_sample.truncate(len);
            self.num_per_sample = per_sample.iter().flatten().count();
        }
    }

    /// With another one, of all samples.
    pub fn with(&self, owner: Owner) -> PyResult<Owners> {
        let mut shared = room_for(self.shared.len() + 1)?;
        shared.extend_from_slice(&self.shared);
        shared.push(owner);
        Ok(Owners { shared: Arc::new(shared), ..self.clone() })
    }

    /// The owners of the samples at these valid positions, of `len`; negative ones count from the end.
    pub fn take(&self, py: Python<'_>, positions: &[i64], len: usize) -> PyResult<Owners> {
        let mut per_sample = Vec::new();
        if self.num_per_sample > 0 {
            per_sample = room_for(positions.len())?;
            per_sample.extend(positions.iter().map(|&position| {
                let position = if position < 0 { position + len as i64 } else { position };
                self.of_sample(position as usize).map(|kept| kept.clone_ref(py))
            }));
        }
        let is_shared = self.num_per_sample == 0 || per_sample.iter().any(Option::is_none);
        let shared = if is_shared { Arc::clone(&self.shared) } else { Arc::default() };
        let all = if self.num_per_sample == 0 && !positions.is_empty() {
            self.all.clone()
        } else {
            Lone::default()
        };
        Ok(Owners { all, ..Owners::from_parts(shared, per_sample) })
    }

    /// The same owners of `len` samples, that of all of them in the hands of each, so that it is released with the last.
    pub fn spread(&self, py: Python<'_>, len: usize) -> PyResult<Owners> {
        let Some(all) = self.all.get() else { return Ok(self.clone()) };
        let mut per_sample = room_for(len)?;
        let kept = |index| self.of_sample(index).unwrap_or(all).clone_ref(py);
        per_sample.extend((0..len).map(|index| Some(kept(index))));
        Ok(Owners::from_parts(Arc::clone(&self.shared), per_sample))
    }

    /// Room for those of `other_len` more samples, and for one of each sample if any of them has one.
    pub fn reserve(
        &mut self,
        py: Python<'_>,
        len: usize,
        other: &Owners,
        other_len: usize,
    ) -> PyResult<()> {
        let added = new_owners(&self.shared, &other.shared).len();
        if added > 0 {
            match Arc::get_mut(&mut self.shared) {
                Some(shared) => shared.try_reserve(added).map_err(no_room)?,
                None => {
                    let mut copy = room_for(self.shared.len() + added)?;
                    copy.extend_from_slice(&self.shared);
                    self.shared = Arc::new(copy);
                }
            }
        }
        let is_per_sample =
            self.num_per_sample + other.num_per_sample > 0 || other.all.get().is_some();
        if is_per_sample {
            let count = len + other_len;
            match Arc::get_mut(&mut self.per_sample) {
                Some(PerSample(own)) => own.try_reserve(count - own.len()).map_err(no_room)?,
                None => {
                    let mut copy = room_for(count)?;
                    let kept =
                        |kept: &Option<Py<PyAny>>| kept.as_ref().map(|kept| kept.clone_ref(py));
                    copy.extend(self.per_sample.0.iter().map(kept));
                    self.per_sample = Arc::new(PerSample(copy));
                }
            }
        }
        Ok(())
    }

    /// Adds those of `other_len` more samples to those of `len`. There is room for them.
    pub fn extend(&mut self, py: Python<'_>, len: usize, other: &Owners, other_len: usize) {
        self.add_shared(other);
        if len == 0 {
            self.all = other.all.clone();
        }
        if self.num_per_sample + other.num_per_sample == 0 {
            return;
        }
        let Some(PerSample(per_sample)) = Arc::get_mut(&mut self.per_sample) else { return };
        per_sample.resize_with(len, || None);
        let kept = |index| {
            let kept: Option<&Option<Py<PyAny>>> = other.per_sample.0.get(index);
            kept?.as_ref().map(|kept| kept.clone_ref(py))
        };
        per_sample.extend((0..other_len).map(kept));
        self.num_per_sample += other.num_per_sample;
    }

    fn add_shared(&mut self, other: &Owners) {
        let added = new_owners(&self.shared, &other.shared);
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.extend_from_slice(added);
        }
    }

    /// Puts the owner of another list's one sample in the place of a sample's, of `len`; there is room for it. Returns the
    /// owners that may be released now, which can run any code.
    pub fn replace(
        &mut self,
        py: Python<'_>,
        len: usize,
        index: usize,
        other: &Owners,
    ) -> Replaced {
        self.add_shared(other);
        if self.num_per_sample == 0 && other.of_sample(0).is_none() {
            return (None, None);
        }
        let Some(PerSample(per_sample)) = Arc::get_mut(&mut self.per_sample) else {
            return (None, None);
        };
        per_sample.resize_with(len, || None);
        let new = other.of_sample(0).map(|kept| kept.clone_ref(py));
        self.num_per_sample += usize::from(new.is_some());
        let old = std::mem::replace(&mut per_sample[index], new);
        self.num_per_sample -= usize::from(old.is_some());
        // No sample is left that the others are for.
        let is_last = self.num_per_sample == len;
        let others = || (std::mem::take(&mut self.all), std::mem::take(&mut self.shared));
        (old, is_last.then(others))
    }
}
