//! What work on the memory of a device has to wait for. It is kept with whatever keeps that memory
//! alive, because samples may be read, and tensors handed on, long after they were imported.

use std::sync::Arc;

use windrow::dlpack::{DLPackExchangeAPI, ManagedTensor};
use windrow::{Device, Owner, Stream, Tensor};

use crate::collate::torch_memory;
use crate::engine::default::default_engine;
use crate::ownership::keep::Keep;
use crate::ownership::places::Held;

/// Who may still be writing.
#[derive(Clone, Default)]
pub(crate) struct Order {
    /// Streams with work that others have enqueued.
    pub producers: Vec<Stream>,
    /// The one that the producer goes on to work on, and so the place for work of ours: what he
    /// enqueues later comes after it.
    pub current: Option<Stream>,
    /// Tensors of our own, which know when they are written.
    pub tensors: Vec<Tensor>,
    /// torch's table, if samples are torch's: the outputs are too.
    pub torch: Option<&'static DLPackExchangeAPI>,
}

impl Order {
    /// Adds a stream.
    pub fn behind(&mut self, stream: Stream) {
        if !self.producers.contains(&stream) {
            self.producers.push(stream);
        }
    }

    pub fn merge(&mut self, other: Order) {
        self.current = self.current.or(other.current);
        self.torch = self.torch.or(other.torch);
        for stream in other.producers {
            self.behind(stream);
        }
        for tensor in other.tensors {
            // The samples of one batch come one after the other.
            let same = |last: &Tensor| Arc::ptr_eq(last.owner(), tensor.owner());
            if !self.tensors.last().is_some_and(same) {
                self.tensors.push(tensor);
            }
        }
    }

    /// What a tensor waits for; nothing if it is on the host.
    pub fn of(tensor: &Tensor) -> Order {
        Order::of_owner(tensor.owner()).unwrap_or_else(|| {
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
    pub fn of_owner(owner: &Owner) -> Option<Order> {
        if let Some(keep) = owner.downcast_ref::<Keep>() {
            return Some(keep.order.clone());
        }
        let held = owner.downcast_ref::<Held>()?;
        Some(Order::of_owners(&held.owners))
    }

    pub fn of_owners(owners: &[Owner]) -> Order {
        let mut order = Order::default();
        for one in owners.iter().filter_map(Order::of_owner) {
            order.merge(one);
        }
        order
    }
}

/// Orders what is enqueued on a stream from now on behind all that still writes a tensor. The memory
/// stays until that work is done.
pub(crate) fn ready_on(tensor: &Tensor, stream: Stream) -> windrow::Result<()> {
    let Device::Cuda(ordinal) = tensor.device() else { return Ok(()) };
    torch_memory::used_on(tensor, ordinal, stream)?;
    let order = Order::of(tensor);
    for tensor in &order.tensors {
        // By whatever protocol it came, a handle is good for this call alone.
        tensor.ready_on_borrowed(stream)?;
    }
    default_engine().order(ordinal, &order.producers, stream)
}
