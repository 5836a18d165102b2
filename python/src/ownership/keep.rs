//! What keeps imported samples alive, and what it knows of them: where they are and who may still write them.
#![allow(unsafe_code)] // Tensors under other owners.

use std::sync::Arc;

use pyo3::prelude::*;
use windrow::arrow::ArrowArray;
use windrow::dlpack::ManagedTensor;
use windrow::{Device, Owner, Stream, Tensor};

use crate::ground::errors::LayoutError;
use crate::ownership::buffer::Buffer;
use crate::ownership::numbers::Numbers;
use crate::ownership::order::Order;
use crate::ownership::places::{Places, MOVED};
use crate::ownership::release::{release, Foreign};

/// Everything that keeps the samples of one import alive.
#[derive(Default)]
pub(crate) struct Keep {
    pub objects: Vec<Py<PyAny>>,
    pub managed: Vec<ManagedTensor>,
    pub buffers: Vec<Buffer>,
    pub arrays: Vec<ArrowArray>,
    pub tensors: Vec<Tensor>,
    /// What work on device memory among it waits for.
    pub order: Order,
    /// The object is a torch tensor made for this output.
    pub is_output: bool,
    /// Where the memory of objects lay, if this is around a single one.
    pub places: Places,
    /// Values of Python numbers.
    pub numbers: Numbers,
}

impl Keep {
    /// Keeps a tensor, the work on which waits for `order`.
    pub fn of(tensor: Tensor, order: Order) -> Keep {
        let mut keep = Keep::default();
        keep.tensors.push(tensor);
        keep.order = order;
        keep
    }

    /// The same tensor under an owner that records what it waits for, and which torch tensor lent the
    /// memory.
    pub fn around(tensor: &Tensor, order: Order, lender: Option<Py<PyAny>>) -> Tensor {
        let mut keep = Keep::of(Keep::innermost(tensor).clone(), order);
        keep.is_output = lender.is_some();
        keep.objects.extend(lender);
        let (dtype, layout) = (tensor.dtype(), tensor.layout().clone());
        let (data, device, read_only) = (tensor.data_ptr(), tensor.device(), tensor.is_read_only());
        // SAFETY: the same memory, whose owner the new one holds.
        unsafe { Tensor::new_unchecked(Arc::new(keep), data, dtype, device, layout, read_only) }
    }

    /// The tensor in a keep around nothing else. A result that is an output again and again would otherwise
    /// are in one more of them each time.
    fn innermost(tensor: &Tensor) -> &Tensor {
        match tensor.owner().downcast_ref::<Keep>() {
            Some(Keep {
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
                    [inner] => Keep::innermost(inner),
                    _ => tensor,
                }
            }
            _ => tensor,
        }
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        let foreign = Foreign {
            objects: std::mem::take(&mut self.objects),
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

/// What keeps samples of a list alive for a tensor over some of them.
pub(crate) struct Held {
    pub owners: Arc<Vec<Owner>>,
    /// What else does, for these samples alone.
    pub lone: Option<Owner>,
    pub places: Places,
}

/// Where the memory is that an owner keeps, as far as it can move.
pub(crate) fn places_of(owner: &Owner) -> Option<&Places> {
    let mut owner = owner;
    loop {
        match owner.downcast_ref::<Keep>() {
            Some(keep) if !keep.places.is_empty() => return Some(&keep.places),
            // Around a tensor of ours.
            Some(Keep { tensors, .. }) => match &tensors[..] {
                [inner] => owner = inner.owner(),
                _ => return None,
            },
            None => return owner.downcast_ref::<Held>().map(|held| &held.places),
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
    match has_moved(py, tensor)? {
        false => Ok(tensor),
        true => Err(LayoutError::new_err(format!("the tensor is over {MOVED}"))),
    }
}

/// What a tensor waits for; nothing if it is on the host.
pub(crate) fn order_of(tensor: &Tensor) -> Order {
    order_of_owner(tensor.owner()).unwrap_or_else(|| {
        let mut order = Order::default();
        if tensor.device() == Device::Cpu {
            return order;
        }
        if tensor.owner().is::<ManagedTensor>() {
            // It came through our own exchange table, whose users work on this stream.
            order.behind(Stream::LEGACY);
        } else {
            order.tensors.push(tensor.clone());
        }
        order
    })
}

/// What an import left with the samples' owners; `None` for other owners.
fn order_of_owner(owner: &Owner) -> Option<Order> {
    if let Some(keep) = owner.downcast_ref::<Keep>() {
        return Some(keep.order.clone());
    }
    let held = owner.downcast_ref::<Held>()?;
    Some(order_of_owners(&held.owners))
}

/// What all of these wait for.
pub(crate) fn order_of_owners(owners: &[Owner]) -> Order {
    let mut order = Order::default();
    for one in owners.iter().filter_map(order_of_owner) {
        order.merge(one);
    }
    order
}
