//! Watches the memory of samples that are kept: their owners can still move it.
#![allow(unsafe_code)] // Words of foreign objects.

use std::collections::HashSet;
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use windrow::tensor::Owner;
use windrow::Tensor;

use crate::ground::batch::tensor_in;
use crate::ground::errors::answered;
use crate::ground::modules::loaded;
use crate::import::importer::{HeldStorage, Importer};
use crate::import::numpy_layout::data_word;
use crate::import::routes::{may_have_words, route_of, torch_api, ImportRoute, Lazy};
use crate::ownership::holder::{held_by, unmoved, watches_of, HeldObjects, Holder};
use crate::ownership::owners::Owners;
use crate::ownership::storage_watch::{address_in, StorageWatch, StorageWatches};
use crate::private_layouts::torch_layout::reader_made;

impl Importer<'_> {
    /// Has `storage` be that of a torch tensor, `None` if it has none, and ends its sharing with lazy clones; leaves it as it is
    /// for any other object. Errors as of [`own_memory`], and of the watch of a storage.
    #[inline]
    pub fn hold_storage(&mut self, object: &Bound<'_, PyAny>, lazy: Lazy) -> PyResult<()> {
        let is_last = match (lazy, &self.storage) {
            (Lazy::No, _) => true,
            // Rows of one tensor have one.
            (Lazy::Layout(torch), Some(HeldStorage { watch: StorageWatch::Word(word, _), .. })) => {
                debug_assert!(may_have_words(object));
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

    /// Does what [`Importer::hold_storage`] does, for a torch tensor whose storage is not the last one. On an error `storage` is
    /// `None`.
    #[inline(never)]
    fn hold_another(&mut self, object: &Bound<'_, PyAny>, lazy: Lazy) -> PyResult<()> {
        self.storage = None;
        own_memory(object, lazy)?;
        let (word, storage) = match lazy {
            Lazy::Layout(torch) => {
                debug_assert!(may_have_words(object));
                // The object first: to ask for it may run Python's code, which may exchange the storage.
                // SAFETY: as above.
                let storage = unsafe { torch.storage_object(object) };
                let storage = storage.and_then(|found| match found {
                    Some(storage) => Ok(storage),
                    None => untyped_storage(object),
                });
                debug_assert!(may_have_words(object));
                // SAFETY: as above.
                (unsafe { torch.memory_of(object.as_ptr()) }, storage)
            }
            _ => (None, untyped_storage(object)),
        };
        let object = match storage {
            Ok(object) => object,
            // A tensor that has none has its own word for that.
            answer => return answered(self.py, answer).map(drop),
        };
        let watch = match word {
            // SAFETY: as above.
            Some(word) => StorageWatch::Word(word, unsafe { address_in(word) }),
            None => StorageWatch::for_storage(&object)?,
        };
        self.storage = Some(HeldStorage { object: object.unbind(), watch });
        Ok(())
    }

    /// Lets go of the storage if the last sample, which was lent, is not in its memory: a subclass of torch's tensors may lend
    /// any, and give any storage for its own. torch's own table lends that of the storage.
    #[inline(never)]
    pub fn check_lender(&mut self, route: ImportRoute, lazy: Lazy) -> PyResult<()> {
        let Some(storage) = &self.storage else { return Ok(()) };
        if let (ImportRoute::Exchange { api, .. }, Lazy::Layout(_)) = (route, lazy) {
            if torch_api(self.py)?.is_some_and(|of_torch| std::ptr::eq(of_torch, api)) {
                return Ok(());
            }
        }
        let data = self.list.address(self.list.len() - 1).addr();
        if !has_address(storage.object.bind(self.py), data)? {
            self.storage = None;
        }
        Ok(())
    }

    /// Appends the watch of the last sample's memory: where it is, if its owner can move it.
    #[inline]
    pub fn watch_storage(
        &mut self,
        object: &Bound<'_, PyAny>,
        route: ImportRoute,
        lazy: Lazy,
    ) -> PyResult<()> {
        let position = self.list.len() - 1;
        match (lazy, route) {
            (Lazy::No, ImportRoute::Array | ImportRoute::ArrayStruct) => {
                debug_assert!(loaded(self.py, "numpy", "ndarray")
                    .ok()
                    .flatten()
                    .is_none_or(|class| object.is_instance(&class).unwrap_or(true)));
                let (word, data) = (data_word(object.as_ptr()), self.list.address(position).addr());
                // SAFETY: of NumPy's array, which the caller keeps.
                match unsafe { address_in(word) } == data {
                    // SAFETY: as above.
                    true => unsafe { self.watches.push_word(self.py, position, word, data) },
                    false => self.watches.push_immovable(self.py, position),
                }
            }
            (Lazy::No, _) => {
                let is_own = matches!(route, ImportRoute::Tensor | ImportRoute::Batch);
                let tensor = if is_own { tensor_in(object) } else { None };
                let watches = tensor.and_then(|tensor| watches_of(tensor.owner()));
                self.watches.push(self.py, position, StorageWatches::combined(watches))
            }
            _ => match self.storage.as_ref().map(|storage| &storage.watch) {
                // SAFETY: of a storage that is held.
                Some(&StorageWatch::Word(word, address)) => unsafe {
                    self.watches.push_word(self.py, position, word, address)
                },
                Some(watch) => self.watches.push(self.py, position, watch.clone()),
                None => self.watches.push_immovable(self.py, position),
            },
        }
    }
}

/// Ends copy-on-write sharing of a torch tensor's memory, as torch does before it lends memory that may be
/// written to. Does nothing for [`Lazy::No`]. An ordinary exception of torch's is ignored: the reader of the tensor refuses it.
/// `MemoryError`, `RecursionError` and exceptions outside of `Exception` are passed on.
pub(crate) fn own_memory(object: &Bound<'_, PyAny>, lazy: Lazy) -> PyResult<()> {
    let is_own = match lazy {
        Lazy::No => true,
        Lazy::Layout(torch) => {
            debug_assert!(may_have_words(object));
            // SAFETY: a live object of a class that has words.
            unsafe { !torch.may_be_shared(object.as_ptr()) }
        }
        Lazy::Methods => false,
    };
    if is_own {
        return Ok(());
    }
    // One without memory is for its reader to refuse.
    answered(object.py(), object.call_method0(intern!(object.py(), "data_ptr"))).map(drop)
}

/// Ends copy-on-write sharing as [`own_memory`] does, for all torch tensors and storages that own a tensor's memory,
/// through lists, views and earlier results too. Ends at the first error that [`own_memory`] passes on. Runs no Python code
/// where all of the memory has words and none of it is shared.
pub(crate) fn own_all_memory(py: Python<'_>, tensor: &Tensor) -> PyResult<()> {
    match watches_of(tensor.owner()) {
        Some(watches) if !are_own(py, watches) => {
            own_memory_of(py, vec![Arc::clone(tensor.owner())], Vec::new())
        }
        _ => Ok(()),
    }
}

/// The tensor, for a library that may write to its memory or keep it: what torch tensors have lent is not shared with lazy
/// clones afterwards. LayoutError if that, or anything else, has moved it.
pub(crate) fn lent<'t>(py: Python<'_>, tensor: &'t Tensor) -> PyResult<&'t Tensor> {
    own_all_memory(py, tensor)?;
    unmoved(py, tensor)
}

/// Whether no memory with these watches is shared copy-on-write, by its words alone; false where only torch can say that.
/// Makes no reader: words of storages have been read by the one that is there, all others belong to NumPy's arrays.
fn are_own(py: Python<'_>, watches: &StorageWatches) -> bool {
    let torch = reader_made(py);
    // SAFETY: words of objects that are kept with the watches.
    let is_own = |word| torch.is_none_or(|torch| unsafe { !torch.is_word_of_shared(word) });
    watches.all_words(&is_own)
}

/// Ends copy-on-write sharing as [`own_all_memory`] does, for the samples of a list.
pub(crate) fn own_list_memory(
    py: Python<'_>,
    owners: &Owners,
    watches: &StorageWatches,
) -> PyResult<()> {
    match are_own(py, watches) {
        true => Ok(()),
        false => {
            let objects = owners.objects().map(|kept| kept.bind(py).clone()).collect();
            own_memory_of(py, owners.shared().to_vec(), objects)
        }
    }
}

/// Ends copy-on-write sharing as [`own_memory`] does, for all torch tensors and storages among these and what they
/// hold; each is looked at once. Ends at the first error that [`own_memory`] or the look-up of an object's type gives.
fn own_memory_of<'py>(
    py: Python<'py>,
    mut owners: Vec<Owner>,
    mut objects: Vec<Bound<'py, PyAny>>,
) -> PyResult<()> {
    let mut seen = HashSet::new();
    let add =
        |held: HeldObjects<'_>, owners: &mut Vec<Owner>, objects: &mut Vec<Bound<'py, PyAny>>| {
            owners.extend(held.tensors.iter().map(Tensor::owner).chain(held.owners).cloned());
            let held = held.objects.into_iter().flatten();
            objects.extend(held.map(|object| object.bind(py).clone()));
        };
    loop {
        if let Some(owner) = owners.pop() {
            if seen.insert(Arc::as_ptr(&owner).addr()) {
                add(held_by(&owner), &mut owners, &mut objects);
            }
            continue;
        }
        let Some(object) = objects.pop() else { return Ok(()) };
        if !seen.insert(object.as_ptr().addr()) {
            continue;
        }
        let (route, lazy) = route_of(&object)?;
        if let Ok(holder) = object.cast_exact::<Holder>() {
            add(holder.get().held(), &mut owners, &mut objects);
        } else if let Some(tensor) = tensor_in(&object) {
            owners.push(Arc::clone(tensor.owner()));
        } else {
            let is_storage = matches!(route, ImportRoute::Protocols) && is_storage(&object)?;
            own_memory(&object, if is_storage { Lazy::Methods } else { lazy })?;
        }
    }
}

/// The storage of a torch tensor; of an object of a class of its own that which torch has, whatever the class gives.
fn untyped_storage<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let (py, name) = (object.py(), intern!(object.py(), "untyped_storage"));
    let is_plain = loaded(py, "torch", "Tensor")?.is_some_and(|class| object.get_type().is(&class));
    let base = loaded(py, "torch._C", "TensorBase")?.filter(|_| !is_plain);
    let Some(base) = base.filter(|base| object.is_instance(base).unwrap_or(false)) else {
        return object.call_method0(name);
    };
    let overrides_off = py.import("torch._C")?.call_method0("DisableTorchFunction")?;
    overrides_off.call_method0("__enter__")?;
    let storage = base.call_method1(name, (object,));
    overrides_off.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
    storage
}

/// Whether an address is in the memory of a torch storage; false for an object of any other class, subclasses too.
fn has_address(storage: &Bound<'_, PyAny>, address: usize) -> PyResult<bool> {
    let class = loaded(storage.py(), "torch", "UntypedStorage")?;
    if !class.is_some_and(|class| storage.get_type().is(&class)) {
        return Ok(false);
    }
    let start: usize = storage.call_method0(intern!(storage.py(), "data_ptr"))?.extract()?;
    let nbytes: usize = storage.call_method0(intern!(storage.py(), "nbytes"))?.extract()?;
    Ok(address.checked_sub(start).is_some_and(|offset| offset < nbytes))
}

/// Whether an object is an untyped storage of torch's.
fn is_storage(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    match loaded(object.py(), "torch", "UntypedStorage")? {
        Some(class) => object.is_instance(&class),
        None => Ok(false),
    }
}
