//! [`Holder`]: everything that keeps the samples of one import alive, and the work that may still write them. [`Reference`]: what a
//! tensor has of it.
//!
//! The garbage collector counts what refers to an object, so that each reference is shown to it once. Memory that is kept after a
//! call is kept by an object: the caller's, or a holder of several and of what they lent. Every list, and every tensor on the host
//! that is an object, has references of its own to these ([`with_own_references`]). A reference that something else uses is not
//! shown, such as one that work on a device shares until it is done: the object behind it counts as used from elsewhere, and stays.
//!
//! Whether a reference is used elsewhere must not change while the collector runs. It is shared by attached threads; a thread that
//! is detached shares only what it has a share of, and may drop that.
#![allow(unsafe_code)] // Tensors under other owners, a reference within a buffer view.

use std::sync::Arc;

use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use windrow::arrow::ArrowArray;
use windrow::bindings::set_handed_out;
use windrow::dlpack::ManagedTensor;
use windrow::tensor::Owner;
use windrow::{Device, Stream, Tensor};

use crate::ground::errors::LayoutError;
use crate::ground::reserve::push_to;
use crate::ownership::buffer::Buffer;
use crate::ownership::number_chunks::NumberChunks;
use crate::ownership::producers::Producers;
use crate::ownership::release::{release, release_objects, Foreign};
use crate::ownership::storage_watch::{StorageWatches, MOVED};

pub(crate) type Visited = Result<(), PyTraverseError>;

/// Everything that keeps the samples of one import alive.
#[pyclass(frozen, name = "_Holder", module = "windrow")]
#[derive(Default)]
pub(crate) struct Holder {
    pub objects: Vec<Py<PyAny>>,
    pub managed: Vec<ManagedTensor>,
    pub buffers: Vec<Buffer>,
    pub arrays: Vec<ArrowArray>,
    pub tensors: Vec<Tensor>,
    /// Other owners of the memory, such as an engine's stream.
    pub owners: Vec<Owner>,
    /// The work that reads of this device memory wait for.
    pub producers: Producers,
    /// Whether the one object is a torch tensor that lends an output its memory.
    pub is_output: bool,
    /// The watch of a single object's memory on a device.
    pub watches: StorageWatches,
    /// Values of Python numbers.
    pub numbers: NumberChunks,
}

impl Holder {
    /// A holder of a tensor, the work on which waits for `producers`.
    pub fn from_tensor(tensor: Tensor, producers: Producers) -> Holder {
        let mut holder = Holder::default();
        holder.tensors.push(tensor);
        holder.producers = producers;
        holder
    }

    /// The same tensor under an owner that records `producers` as what it waits for, in place of those before.
    pub fn wrap(tensor: &Tensor, producers: Producers) -> Tensor {
        let holder = Holder::from_tensor(Holder::innermost(tensor).clone(), producers);
        under(Arc::new(holder), tensor, tensor.device())
    }

    /// Wraps as [`Holder::wrap`] does, for memory that a torch tensor lends to an output, as a
    /// tensor on `device`. Keeps that tensor, `lender`, and the stream of an engine if one is
    /// given.
    pub fn lent(
        tensor: &Tensor,
        device: Device,
        producers: Producers,
        lender: Py<PyAny>,
        stream: Option<Owner>,
    ) -> Tensor {
        let mut holder = Holder::from_tensor(Holder::innermost(tensor).clone(), producers);
        holder.is_output = true;
        holder.objects.push(lender);
        holder.owners.extend(stream);
        under(Arc::new(holder), tensor, device)
    }

    /// A Python object that is this holder.
    pub fn into_object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(Py::new(py, self)?.into_any())
    }

    /// Returns an object that keeps all of the holder and `object`: `object` itself, if the holder has nothing else.
    pub fn with(mut self, py: Python<'_>, object: Py<PyAny>) -> PyResult<Py<PyAny>> {
        if self.objects.is_empty() && self.tensors.is_empty() && !self.has_lent() {
            return Ok(object);
        }
        push_to(&mut self.objects, object)?;
        self.into_object(py)
    }

    /// The objects, tensors and owners of the holder, without what else it keeps.
    pub fn held(&self) -> HeldObjects<'_> {
        HeldObjects { objects: [&self.objects, &[]], tensors: &self.tensors, owners: &self.owners }
    }

    /// Whether it keeps more than objects and tensors.
    fn has_lent(&self) -> bool {
        !self.managed.is_empty()
            || !self.buffers.is_empty()
            || !self.arrays.is_empty()
            || !self.numbers.is_empty()
            || !self.owners.is_empty()
    }

    /// The tensor in holders of nothing else. A result that is an output again and again would otherwise have one more of them
    /// each time.
    fn innermost(tensor: &Tensor) -> &Tensor {
        match tensor.owner().downcast_ref::<Holder>() {
            Some(holder) if holder.objects.is_empty() && !holder.has_lent() => {
                match &holder.tensors[..] {
                    [inner] => Holder::innermost(inner),
                    _ => tensor,
                }
            }
            _ => tensor,
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let foreign = Foreign {
            objects: std::mem::take(&mut self.objects).into_iter().map(Some).collect(),
            managed: std::mem::take(&mut self.managed),
            buffers: std::mem::take(&mut self.buffers),
            arrays: std::mem::take(&mut self.arrays),
        };
        let tensors = std::mem::take(&mut self.tensors);
        if !foreign.is_empty() || !tensors.is_empty() {
            release((foreign, tensors));
        }
    }
}

#[pymethods]
impl Holder {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Visited {
        self.objects.iter().try_for_each(|object| visit.call(object))?;
        for buffer in &self.buffers {
            const { assert!(size_of::<Option<Py<PyAny>>>() == size_of::<*mut ffi::PyObject>()) };
            let exporter = &raw const buffer.view().obj;
            // SAFETY: an object that the view refers to, or NULL, for which `Option` has a place.
            unsafe {
                // CPython before 3.11.8, and 3.12.0 and 3.12.1, clear a memoryview that has lent its buffer, and crash later. One that
                // is not shown counts as used from elsewhere.
                if !(*exporter).is_null() && ffi::PyMemoryView_Check(*exporter) != 0 {
                    continue;
                }
                visit.call(&*exporter.cast::<Option<Py<PyAny>>>())?;
            }
        }
        self.tensors.iter().try_for_each(|tensor| visit_tensor(tensor, &visit))
    }
}

/// The owner of a tensor that views samples.
pub(crate) struct Reference {
    /// The object that keeps memory of the host; `None` where `shared` does.
    pub object: Option<Py<PyAny>>,
    /// The storage of a torch tensor, which can exchange it for another.
    pub storage: Option<Py<PyAny>>,
    /// The owners that all samples of a list share, of a sample or a view of one.
    pub shared: Option<Arc<Vec<Owner>>>,
    pub watches: StorageWatches,
}

impl Reference {
    fn owners(&self) -> &[Owner] {
        self.shared.as_ref().map_or(&[], |shared| shared)
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            release_objects(vec![Some(object), self.storage.take()]);
        }
    }
}

/// Shows the reference of a tensor on the host, if nothing else uses it: work on a device, of threads that are detached, shares
/// owners too.
pub(crate) fn visit_tensor(tensor: &Tensor, visit: &PyVisit<'_>) -> Visited {
    if tensor.device() != Device::Cpu || Arc::strong_count(tensor.owner()) > 1 {
        return Ok(());
    }
    match tensor.owner().downcast_ref::<Reference>() {
        Some(reference) => {
            visit.call(&reference.object).and_then(|()| visit.call(&reference.storage))
        }
        None => Ok(()),
    }
}

/// Returns the same tensor for another object. On the host its owner has new references to the Python objects.
pub(crate) fn with_own_references(py: Python<'_>, tensor: &Tensor) -> Tensor {
    match tensor.owner().downcast_ref::<Reference>() {
        Some(reference) if tensor.device() == Device::Cpu => {
            let copied =
                |object: &Option<Py<PyAny>>| object.as_ref().map(|object| object.clone_ref(py));
            let reference = Reference {
                object: copied(&reference.object),
                storage: copied(&reference.storage),
                shared: reference.shared.clone(),
                watches: reference.watches.clone(),
            };
            under(Arc::new(reference), tensor, Device::Cpu)
        }
        _ => tensor.clone(),
    }
}

/// Returns the same tensor under `owner`, which keeps its memory. No element is copied.
fn under(owner: Owner, tensor: &Tensor, device: Device) -> Tensor {
    let (dtype, layout) = (tensor.dtype(), tensor.layout().clone());
    let (data, read_only) = (tensor.data_ptr(), tensor.is_read_only());
    // SAFETY: the same memory, whose owner the new one holds, or which it has references to.
    unsafe { Tensor::new_unchecked(owner, data, dtype, device, layout, read_only) }
}

/// The object that keeps the memory of a tensor for the list that it is a sample of or a view over; `None` for other tensors. A
/// sample that is put into a list again and again would be kept by a longer and longer chain without it.
pub(crate) fn keeper_of(py: Python<'_>, tensor: &Tensor) -> Option<Py<PyAny>> {
    let reference = tensor.owner().downcast_ref::<Reference>();
    let of_list = reference.filter(|reference| reference.shared.is_some());
    of_list.and_then(|reference| reference.object.as_ref()).map(|kept| kept.clone_ref(py))
}

/// The objects, tensors and owners that keep memory for an owner.
#[derive(Clone, Copy, Default)]
pub(crate) struct HeldObjects<'a> {
    pub objects: [&'a [Py<PyAny>]; 2],
    pub tensors: &'a [Tensor],
    pub owners: &'a [Owner],
}

/// The objects, tensors and owners that keep memory for an owner; none for one that is neither a [`Holder`] nor a [`Reference`].
pub(crate) fn held_by(owner: &Owner) -> HeldObjects<'_> {
    match owner.downcast_ref::<Reference>() {
        Some(reference) => HeldObjects {
            objects: [reference.object.as_slice(), reference.storage.as_slice()],
            owners: reference.owners(),
            tensors: &[],
        },
        None => owner.downcast_ref::<Holder>().map_or_else(HeldObjects::default, Holder::held),
    }
}

/// The watches of the memory that an owner keeps, which are empty if it cannot move; `None` for other owners.
pub(crate) fn watches_of(owner: &Owner) -> Option<&StorageWatches> {
    if let Some(reference) = owner.downcast_ref::<Reference>() {
        return Some(&reference.watches);
    }
    let holder = owner.downcast_ref::<Holder>()?;
    match &holder.tensors[..] {
        // A holder of a tensor of ours has the watches of that.
        [inner] if holder.watches.is_empty() => watches_of(inner.owner()),
        _ => Some(&holder.watches),
    }
}

/// Whether the memory of a tensor was moved by its owner; false for owners without watches.
pub(crate) fn has_moved(py: Python<'_>, tensor: &Tensor) -> PyResult<bool> {
    match watches_of(tensor.owner()) {
        Some(watches) => Ok(watches.find_moved(py)?.is_some()),
        None => Ok(false),
    }
}

/// The tensor, to be read or handed on; LayoutError if its memory was moved. Page-locked memory counts as handed out afterwards,
/// in both cases.
pub(crate) fn unmoved<'t>(py: Python<'_>, tensor: &'t Tensor) -> PyResult<&'t Tensor> {
    set_handed_out(tensor, true);
    match has_moved(py, tensor)? {
        false => Ok(tensor),
        true => Err(LayoutError::new_err(format!("the tensor is over {MOVED}"))),
    }
}

/// The work that a tensor waits for; none if it is in pageable memory.
pub(crate) fn producers_of(tensor: &Tensor) -> Producers {
    if tensor.device() == Device::Cpu {
        return Producers::default();
    }
    producers_of_owner(tensor.owner()).unwrap_or_else(|| {
        let mut producers = Producers::default();
        if tensor.owner().is::<ManagedTensor>() {
            // The tensor came through our own exchange table, whose users work on this stream.
            producers.add(Stream::LEGACY);
        } else {
            producers.tensors.push(tensor.clone());
        }
        producers
    })
}

/// The producers that an import stored with the samples' owners; `None` for other owners.
fn producers_of_owner(owner: &Owner) -> Option<Producers> {
    if let Some(holder) = owner.downcast_ref::<Holder>() {
        return Some(holder.producers.clone());
    }
    let reference = owner.downcast_ref::<Reference>()?;
    let mut producers = producers_of_owners(reference.owners());
    producers.merge(&producers_of_objects(reference.object.iter()));
    Some(producers)
}

/// The work that holders among these wait for.
pub(super) fn producers_of_objects<'o>(objects: impl Iterator<Item = &'o Py<PyAny>>) -> Producers {
    let mut producers = Producers::default();
    Python::attach(|py| {
        let holders = objects.filter_map(|object| object.bind(py).cast_exact::<Holder>().ok());
        producers.merge_all(holders.map(|holder| &holder.get().producers));
    });
    producers
}

/// The work that all of these wait for.
pub(super) fn producers_of_owners(owners: &[Owner]) -> Producers {
    let mut producers = Producers::default();
    for one in owners.iter().filter_map(producers_of_owner) {
        producers.merge(&one);
    }
    producers
}
