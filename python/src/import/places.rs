//! Where the memory of samples is that are kept, which their owners can still move.
#![allow(unsafe_code)] // Words of foreign objects.

use std::collections::HashSet;
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use windrow::{Owner, Tensor};

use crate::ground::errors::answered;
use crate::ground::modules::loaded;
use crate::ground::reserve::push_to;
use crate::import::importer::{HeldStorage, Importer};
use crate::import::keepers::tensor_in;
use crate::import::numpy_struct::data_word;
use crate::import::routes::{route_of, ImportRoute, Lazy};
use crate::ownership::owner::{places_of, ImportOwner, ListOwner};
use crate::ownership::owners::{Keepers, PyOwner};
use crate::ownership::places::{address_in, Place};

impl Importer<'_> {
    /// Holds the storage of a torch tensor.
    #[inline]
    pub fn hold_storage(&mut self, object: &Bound<'_, PyAny>, lazy: Lazy) -> PyResult<()> {
        let is_last = match (lazy, &self.storage) {
            (Lazy::No, _) => true,
            // Rows of one tensor have one.
            (Lazy::Words(torch), Some(HeldStorage { place: Place::Word(word, _), .. })) => {
                // SAFETY: a live object of a class that has words.
                unsafe { torch.memory_of(object.as_ptr()) == Some(*word) }
            }
            _ => false,
        };
        match is_last {
            true => Ok(()),
            false => self.hold_another(object, lazy),
        }
    }

    #[inline(never)]
    fn hold_another(&mut self, object: &Bound<'_, PyAny>, lazy: Lazy) -> PyResult<()> {
        self.storage = None;
        own_memory(object, lazy)?;
        let (word, storage) = match lazy {
            // SAFETY: as above.
            Lazy::Words(torch) => unsafe {
                (torch.memory_of(object.as_ptr()), torch.storage_object(object))
            },
            _ => (None, object.call_method0(intern!(self.py, "untyped_storage"))),
        };
        // A tensor that has none has its own word for that.
        let Ok(object) = answered(self.py, storage)? else { return Ok(()) };
        let place = match word {
            // SAFETY: as above.
            Some(word) => Place::Word(word, unsafe { address_in(word) }),
            None => Place::of_storage(&object)?,
        };
        if !self.is_per_sample() {
            push_to(&mut self.owner.objects, object.clone().unbind())?;
        }
        self.storage = Some(HeldStorage { object: object.unbind(), place });
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
            (Lazy::No, ImportRoute::Array | ImportRoute::ArrayStruct) => {
                let (word, data) = (data_word(object.as_ptr()), self.list.address(position).addr());
                // SAFETY: of NumPy's array, which the caller keeps.
                match unsafe { address_in(word) } == data {
                    // SAFETY: as above.
                    true => unsafe { self.places.push_word(position, word, data) },
                    false => self.places.push_still(position),
                }
            }
            (Lazy::No, _) => {
                let places = tensor_in(object, route).and_then(|own| places_of(own.owner()));
                self.places.push_tensor(position, places)
            }
            _ => match self.storage.as_ref().map(|storage| &storage.place) {
                // SAFETY: of a storage that is held.
                Some(&Place::Word(word, address)) => unsafe {
                    self.places.push_word(position, word, address)
                },
                Some(place) => self.places.push(position, place.clone()),
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
        Lazy::Words(torch) => unsafe { !torch.may_be_shared(object.as_ptr()) },
        Lazy::Ask => false,
    };
    if is_own {
        return Ok(());
    }
    // One without memory is for its reader to refuse.
    answered(object.py(), object.call_method0(intern!(object.py(), "data_ptr"))).map(drop)
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
