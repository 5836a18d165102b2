//! Where the memory of samples is that are kept, which their owners can still move.
#![allow(unsafe_code)] // Words of foreign objects.

use std::collections::HashSet;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::{ffi, intern};
use windrow::{Owner, Tensor};

use crate::ground::errors::is_answer;
use crate::ground::modules::loaded;
use crate::ground::reserve::push_to;
use crate::import::importer::Importer;
use crate::import::keepers::tensor_in;
use crate::import::routes::{route_of, ImportRoute, Lazy};
use crate::import::torch_words::TorchWords;
use crate::ownership::owner::{places_of, ImportOwner, ListOwner};
use crate::ownership::owners::{Keepers, PyOwner};
use crate::ownership::places::{Ask, Place};

impl Importer<'_> {
    /// Holds the storage of a torch tensor, which the tensor itself can exchange for another.
    #[inline]
    pub fn hold_storage(&mut self, object: &Bound<'_, PyAny>, lazy: Lazy) -> PyResult<()> {
        match lazy {
            Lazy::No => Ok(()),
            Lazy::Words(words) if self.is_last_storage(words, object) => Ok(()),
            _ => self.hold_another(object, lazy),
        }
    }

    /// Whether a tensor has the storage of the one before it, as rows of one tensor have.
    #[inline]
    fn is_last_storage(&self, words: &TorchWords, object: &Bound<'_, PyAny>) -> bool {
        // SAFETY: a live object of a class that has words.
        unsafe { words.memory_of(object.as_ptr()) == self.last_storage }
    }

    #[inline(never)]
    fn hold_another(&mut self, object: &Bound<'_, PyAny>, lazy: Lazy) -> PyResult<()> {
        self.last_storage = std::ptr::null();
        let storage = match lazy {
            // SAFETY: as above, here and below.
            Lazy::Words(words) => unsafe { words.storage_of(object) },
            _ => object.call_method0(intern!(self.py, "untyped_storage")),
        };
        let storage = match storage {
            Ok(storage) => storage,
            // The tensor has none, and its own word for that.
            Err(error) if is_answer(self.py, &error) => return Ok(()),
            Err(error) => return Err(error),
        };
        own_memory(object, lazy)?;
        self.last_storage = match lazy {
            // SAFETY: as above.
            Lazy::Words(words) => unsafe { words.memory_of(object.as_ptr()) },
            _ => storage.as_ptr().cast(),
        };
        match self.is_per_sample {
            true => self.storage = Some(storage.unbind()),
            false => push_to(&mut self.owner.objects, storage.unbind())?,
        }
        Ok(())
    }

    /// Remembers where the memory of the last sample is, if its owner can move it.
    #[inline]
    pub fn remember_place(
        &mut self,
        object: &Bound<'_, PyAny>,
        route: ImportRoute,
        lazy: Lazy,
    ) -> PyResult<()> {
        let position = self.list.len() - 1;
        match (lazy, route) {
            (Lazy::Words(words), _) => {
                // SAFETY: a live object of a class that has words.
                let word = unsafe { words.memory_of(object.as_ptr()) };
                if word == self.last_storage && !word.is_null() {
                    // SAFETY: of a storage that is held.
                    return self.places.push(position, unsafe { Place::at(word) });
                }
            }
            (Lazy::No, ImportRoute::Array | ImportRoute::ArrayStruct) => {
                // SAFETY: NumPy's array, which the caller keeps, begins with the address of its data.
                let place = unsafe { Place::at(object.as_ptr().wrapping_add(1).cast()) };
                if place.address() == self.list.address(position).addr() {
                    return self.places.push(position, place);
                }
            }
            _ => return self.remember_other(object, position, route, lazy),
        }
        self.places.push_still(position)
    }

    #[inline(never)]
    fn remember_other(
        &mut self,
        object: &Bound<'_, PyAny>,
        position: usize,
        route: ImportRoute,
        lazy: Lazy,
    ) -> PyResult<()> {
        match (lazy, route) {
            (Lazy::Ask, _) if !self.last_storage.is_null() => {
                let storage: *mut ffi::PyObject = self.last_storage.cast_mut().cast();
                // SAFETY: held since just now.
                let ask = unsafe { Bound::from_borrowed_ptr(self.py, storage) };
                let address = ask.call_method0(intern!(self.py, "data_ptr"))?.extract()?;
                self.places.push_asked(position, Ask::Storage(storage, address))
            }
            _ => match tensor_in(object, route) {
                Some(tensor) => self.places.push_tensor(position, places_of(tensor.owner())),
                None => self.places.push_still(position),
            },
        }
    }
}

/// Gives a torch tensor that shares its memory copy-on-write memory of its own, as torch does where memory is lent that may be
/// written to.
pub(crate) fn own_memory(object: &Bound<'_, PyAny>, lazy: Lazy) -> PyResult<()> {
    let is_own = match lazy {
        Lazy::No => true,
        // SAFETY: a live object of a class that has words.
        Lazy::Words(words) => unsafe { !words.may_be_shared(object.as_ptr()) },
        Lazy::Ask => false,
    };
    if is_own {
        return Ok(());
    }
    match object.call_method0(intern!(object.py(), "data_ptr")) {
        // One without memory is for its reader to refuse.
        Err(error) if !is_answer(object.py(), &error) => Err(error),
        _ => Ok(()),
    }
}

/// As [`own_memory`], of all torch tensors and storages that a tensor is over, by way of lists, views and earlier results too.
pub(crate) fn own_all_memory(py: Python<'_>, tensor: &Tensor) -> PyResult<()> {
    let (mut owners, mut seen) = (vec![Arc::clone(tensor.owner())], HashSet::new());
    while let Some(owner) = owners.pop() {
        if !seen.insert(Arc::as_ptr(&owner).addr()) {
            continue;
        }
        for object in objects_of(py, &owner, &mut owners) {
            let (route, lazy) = route_of(&object)?;
            if let Ok(owner) = object.cast_exact::<PyOwner>() {
                owners.push(Arc::clone(owner.get().owner()));
            } else if let Some(tensor) = tensor_in(&object, route) {
                owners.push(Arc::clone(tensor.owner()));
            } else {
                let is_storage = matches!(route, ImportRoute::Protocols) && is_storage(&object)?;
                own_memory(&object, if is_storage { Lazy::Ask } else { lazy })?;
            }
        }
    }
    Ok(())
}

fn is_storage(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    match loaded(object.py(), "torch", "UntypedStorage")? {
        Some(class) => object.is_instance(&class),
        None => Ok(false),
    }
}

/// The objects that an owner has; the owners that it has are added to `owners`.
fn objects_of<'py>(
    py: Python<'py>,
    owner: &Owner,
    owners: &mut Vec<Owner>,
) -> Vec<Bound<'py, PyAny>> {
    if let Some(ImportOwner { objects, tensors, .. }) = owner.downcast_ref() {
        owners.extend(tensors.iter().map(|tensor| Arc::clone(tensor.owner())));
        return objects.iter().map(|object| object.bind(py).clone()).collect();
    }
    if let Some(list) = owner.downcast_ref::<ListOwner>() {
        owners.extend(list.owners.iter().cloned());
        return list.kept.get().map(|kept| kept.bind(py).clone()).into_iter().collect();
    }
    let keepers = owner.downcast_ref::<Keepers>().into_iter().flat_map(Keepers::objects);
    keepers.map(|kept| kept.bind(py).clone()).collect()
}
