//! References as Python's garbage collector sees them.
//!
//! The collector counts what refers to an object, so that each reference is shown to it once. An owner that several hold is not
//! shown: the objects behind it count as used from elsewhere, and stay. Objects of ours therefore have [owners of their
//! own](with_own_references), each with a reference to what keeps the memory, and share no owner that has references.
//!
//! Whether an owner has one holder must not change while the collector runs. Owners are cloned by attached threads; a thread that is
//! detached clones only what it holds a clone of, and may drop that.
#![allow(unsafe_code)] // A reference within a buffer view.

use std::sync::Arc;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use windrow::{Device, Owner, Tensor};

use crate::ownership::owner::{ImportOwner, ListOwner};
use crate::ownership::owners::{Keepers, PyOwner};

pub(crate) type Visited = Result<(), PyTraverseError>;

/// Shows the references of an owner that nothing else holds.
pub(crate) fn visit_owner(owner: &Owner, visit: &PyVisit<'_>) -> Visited {
    if Arc::strong_count(owner) > 1 {
        return Ok(());
    }
    if let Some(list) = owner.downcast_ref::<ListOwner>() {
        return list.kept.visit(visit);
    }
    if let Some(keepers) = owner.downcast_ref::<Keepers>() {
        return keepers.visit(visit);
    }
    let Some(owner) = owner.downcast_ref::<ImportOwner>() else { return Ok(()) };
    owner.objects.iter().try_for_each(|object| visit.call(object))?;
    for buffer in &owner.buffers {
        let exporter = &raw const buffer.view().obj;
        // SAFETY: a reference of the view's, or NULL, for which `Option` has a place.
        visit.call(unsafe { &*exporter.cast::<Option<Py<PyAny>>>() })?;
    }
    owner.tensors.iter().try_for_each(|tensor| visit_tensor(tensor, visit))
}

/// As [`visit_owner`], of a tensor on the host: work on a device, of threads that are detached, holds owners too.
pub(crate) fn visit_tensor(tensor: &Tensor, visit: &PyVisit<'_>) -> Visited {
    match tensor.device() {
        Device::Cpu => visit_owner(tensor.owner(), visit),
        _ => Ok(()),
    }
}

#[pymethods]
impl PyOwner {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Visited {
        visit_owner(self.owner(), &visit)
    }
}

/// The same tensor, for another object, under an owner with references of its own.
pub(crate) fn with_own_references(py: Python<'_>, tensor: &Tensor) -> Tensor {
    if tensor.device() != Device::Cpu {
        return tensor.clone();
    }
    let owner: Owner = match tensor.owner().downcast_ref::<ListOwner>() {
        Some(list) => Arc::new(list.clone()),
        None => match tensor.owner().downcast_ref::<ImportOwner>().map(|owner| owner.clone_ref(py))
        {
            Some(Some(owner)) => Arc::new(owner),
            _ => return tensor.clone(),
        },
    };
    let (data, dtype, layout) = (tensor.data_ptr(), tensor.dtype(), tensor.layout().clone());
    // SAFETY: the same memory, which the references keep.
    unsafe { Tensor::new_unchecked(owner, data, dtype, Device::Cpu, layout, tensor.is_read_only()) }
}
