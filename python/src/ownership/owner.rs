//! The owners of imported memory: they keep it alive, and record where it was and which streams may still write it.
#![allow(unsafe_code)] // Tensors under other owners.

use std::sync::Arc;

use pyo3::prelude::*;
use windrow::arrow::ArrowArray;
use windrow::bindings::set_handed_out;
use windrow::dlpack::ManagedTensor;
use windrow::{Device, Owner, Stream, Tensor};

use crate::ground::errors::LayoutError;
use crate::ownership::buffer::Buffer;
use crate::ownership::numbers::NumberChunks;
use crate::ownership::owners::{Keepers, Lone, Owners, PyOwner};
use crate::ownership::places::{Places, MOVED};
use crate::ownership::producers::Producers;
use crate::ownership::release::{release, Foreign};

/// Everything that keeps the samples of one import alive.
#[derive(Default)]
pub(crate) struct ImportOwner {
    pub objects: Vec<Py<PyAny>>,
    pub managed: Vec<ManagedTensor>,
    pub buffers: Vec<Buffer>,
    pub arrays: Vec<ArrowArray>,
    pub tensors: Vec<Tensor>,
    /// The work that reads of this device memory wait for.
    pub producers: Producers,
    /// The object is a torch tensor made for this output.
    pub is_output: bool,
    /// The stream of an engine's that the memory belongs to.
    pub stream: Option<Owner>,
    /// Where the memory of objects lay, if this is around a single one.
    pub places: Places,
    /// Values of Python numbers.
    pub numbers: NumberChunks,
}

impl ImportOwner {
    /// Of a tensor, the work on which waits for `producers`.
    pub fn of(tensor: Tensor, producers: Producers) -> ImportOwner {
        let mut owner = ImportOwner::default();
        owner.tensors.push(tensor);
        owner.producers = producers;
        owner
    }

    /// The same tensor under an owner that records what it waits for.
    pub fn wrap(tensor: &Tensor, producers: Producers) -> Tensor {
        ImportOwner::around(
            tensor,
            ImportOwner::of(ImportOwner::innermost(tensor).clone(), producers),
        )
    }

    /// As [`ImportOwner::wrap`], of memory of a device that a torch tensor lends, on a stream of an engine's if one is given.
    pub fn lent(
        tensor: &Tensor,
        device: Device,
        producers: Producers,
        lender: Py<PyAny>,
        stream: Option<Owner>,
    ) -> Tensor {
        let mut owner = ImportOwner::of(ImportOwner::innermost(tensor).clone(), producers);
        owner.is_output = true;
        owner.objects.push(lender);
        owner.stream = stream;
        ImportOwner::on(device, tensor, owner)
    }

    /// With references of its own, if it has references and nothing that is held once.
    pub fn clone_ref(&self, py: Python<'_>) -> Option<ImportOwner> {
        let is_once = self.managed.is_empty()
            && self.buffers.is_empty()
            && self.arrays.is_empty()
            && self.tensors.is_empty()
            && self.numbers.is_empty();
        if !is_once || self.objects.is_empty() {
            return None;
        }
        let mut owner = ImportOwner::default();
        owner.objects = self.objects.iter().map(|object| object.clone_ref(py)).collect();
        owner.producers = self.producers.clone();
        (owner.is_output, owner.stream) = (self.is_output, self.stream.clone());
        owner.places = self.places.clone();
        Some(owner)
    }

    /// What was lent once, as an object that keeps it; `None` if nothing was.
    pub fn take_lent(&mut self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        if self.managed.is_empty() && self.buffers.is_empty() && self.numbers.is_empty() {
            return Ok(None);
        }
        let mut lent = ImportOwner::default();
        lent.managed = std::mem::take(&mut self.managed);
        lent.buffers = std::mem::take(&mut self.buffers);
        lent.numbers = std::mem::take(&mut self.numbers);
        PyOwner::object(py, Arc::new(lent)).map(Some)
    }

    fn around(tensor: &Tensor, owner: ImportOwner) -> Tensor {
        ImportOwner::on(tensor.device(), tensor, owner)
    }

    fn on(device: Device, tensor: &Tensor, owner: ImportOwner) -> Tensor {
        let (dtype, layout) = (tensor.dtype(), tensor.layout().clone());
        let (data, read_only) = (tensor.data_ptr(), tensor.is_read_only());
        // SAFETY: the same memory, whose owner the new one holds.
        unsafe { Tensor::new_unchecked(Arc::new(owner), data, dtype, device, layout, read_only) }
    }

    /// The tensor in owners that hold nothing else. A result that is an output again and again would otherwise
    /// have one more of them each time.
    fn innermost(tensor: &Tensor) -> &Tensor {
        match tensor.owner().downcast_ref::<ImportOwner>() {
            Some(ImportOwner {
                objects,
                managed,
                buffers,
                arrays,
                tensors,
                numbers,
                is_output: false,
                ..
            }) if objects.is_empty()
                && managed.is_empty()
                && buffers.is_empty()
                && arrays.is_empty()
                && numbers.is_empty() =>
            {
                match &tensors[..] {
                    [inner] => ImportOwner::innermost(inner),
                    _ => tensor,
                }
            }
            _ => tensor,
        }
    }
}

impl Drop for ImportOwner {
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

/// The owners of a list's samples, for a tensor over some of them.
#[derive(Clone)]
pub(crate) struct ListOwner {
    /// Of memory on a device.
    pub owners: Arc<Vec<Owner>>,
    /// One object that keeps the memory; none: the owners do.
    pub kept: Lone,
    pub places: Places,
}

/// The object that keeps the memory of a tensor on the host: the one of the list that it is a sample of or a view over, or the tensor.
/// A sample that is put into a list again and again would otherwise be kept by a longer and longer chain.
pub(crate) fn keeper_of(object: &Bound<'_, PyAny>, tensor: &Tensor) -> Py<PyAny> {
    let kept = tensor.owner().downcast_ref::<ListOwner>().and_then(|list| list.kept.get());
    kept.map_or_else(|| object.clone().unbind(), |kept| kept.clone_ref(object.py()))
}

/// The places of the memory that an owner keeps, if it can move.
pub(crate) fn places_of(owner: &Owner) -> Option<&Places> {
    let mut owner = owner;
    loop {
        match owner.downcast_ref::<ImportOwner>() {
            Some(owner) if !owner.places.is_empty() => return Some(&owner.places),
            // Around a tensor of ours.
            Some(ImportOwner { tensors, .. }) => match &tensors[..] {
                [inner] => owner = inner.owner(),
                _ => return None,
            },
            None => return owner.downcast_ref::<ListOwner>().map(|owner| &owner.places),
        }
    }
}

/// Whether the memory of a tensor was moved by its owner.
pub(crate) fn has_moved(py: Python<'_>, tensor: &Tensor) -> PyResult<bool> {
    match places_of(tensor.owner()) {
        Some(places) => Ok(places.find_moved(py)?.is_some()),
        None => Ok(false),
    }
}

/// A tensor to be read or handed on, if its memory is where it was.
pub(crate) fn in_place<'t>(py: Python<'_>, tensor: &'t Tensor) -> PyResult<&'t Tensor> {
    set_handed_out(tensor, true);
    match has_moved(py, tensor)? {
        false => Ok(tensor),
        true => Err(LayoutError::new_err(format!("the tensor is over {MOVED}"))),
    }
}

/// The work that a tensor waits for; none if it is on the host.
pub(crate) fn producers_of(tensor: &Tensor) -> Producers {
    if tensor.device() == Device::Cpu {
        return Producers::default();
    }
    producers_of_owner(tensor.owner()).unwrap_or_else(|| {
        let mut producers = Producers::default();
        if tensor.owner().is::<ManagedTensor>() {
            // It came through our own exchange table, whose users work on this stream.
            producers.add(Stream::LEGACY);
        } else {
            producers.tensors.push(tensor.clone());
        }
        producers
    })
}

/// The producers that an import stored with the samples' owners; `None` for other owners.
fn producers_of_owner(owner: &Owner) -> Option<Producers> {
    if let Some(owner) = owner.downcast_ref::<ImportOwner>() {
        return Some(owner.producers.clone());
    }
    let list = owner.downcast_ref::<ListOwner>()?;
    let mut producers = producers_of_owners(&list.owners);
    producers.merge(producers_of_objects(&mut list.kept.get().into_iter()));
    Some(producers)
}

/// The work that a list's samples in page-locked memory or on a device wait for.
pub(crate) fn producers_of_list(owners: &Owners) -> Producers {
    let mut producers = producers_of_owners(owners.shared());
    producers.merge(producers_of_objects(&mut owners.alone()));
    producers
}

fn producers_of_objects(objects: &mut dyn Iterator<Item = &Py<PyAny>>) -> Producers {
    let mut producers = Producers::default();
    Python::attach(|py| {
        for object in objects {
            let Ok(owner) = object.bind(py).cast_exact::<PyOwner>() else { continue };
            match owner.get().owner().downcast_ref::<Keepers>() {
                Some(keepers) => producers.merge(producers_of_objects(&mut keepers.objects())),
                None => producers_of_owner(owner.get().owner())
                    .into_iter()
                    .for_each(|own| producers.merge(own)),
            }
        }
    });
    producers
}

/// The work that all of these wait for.
pub(crate) fn producers_of_owners(owners: &[Owner]) -> Producers {
    let mut producers = Producers::default();
    for one in owners.iter().filter_map(producers_of_owner) {
        producers.merge(one);
    }
    producers
}
