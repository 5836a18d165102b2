//! Streams and batches that work on device memory has to wait for. They are kept with whatever keeps that memory
//! alive, because samples may be read, and tensors handed on, long after they were imported.

use std::collections::HashSet;
use std::sync::Arc;

use windrow::bindings::End;
use windrow::dlpack::DLPackExchangeAPI;
use windrow::tensor::Owner;
use windrow::{Stream, Tensor};

/// Work that may still be writing.
#[derive(Clone, Default)]
pub(crate) struct Producers {
    /// Streams with work that others have enqueued.
    pub streams: Vec<Stream>,
    /// The stream that the producer keeps using, and so the one for windrow's work: what the producer
    /// enqueues later runs after it.
    pub current: Option<Stream>,
    /// Ends of calls of ours on streams that may be gone.
    pub ends: Vec<End>,
    /// Tensors of our own, which know when they are written.
    pub tensors: Vec<Tensor>,
    /// The capture of torch's current stream that the memory was written beside, of samples on the host: no part of its graph.
    pub made_beside: Option<u64>,
    /// torch's table, if samples are torch's: the outputs are too.
    pub torch: Option<&'static DLPackExchangeAPI>,
}

impl Producers {
    /// Adds a stream, once.
    pub fn add(&mut self, stream: Stream) {
        if !self.streams.contains(&stream) {
            self.streams.push(stream);
        }
    }

    /// Adds the stream that a producer keeps using, which is [`Producers::current`] unless there is one.
    pub fn follow(&mut self, stream: Stream) {
        self.add(stream);
        self.current.get_or_insert(stream);
    }

    /// The owners that work on the memory holds until it is done: our own tensors and ends of calls.
    pub fn owners_to_hold(&self) -> Vec<Owner> {
        let tensors = self.tensors.iter().map(|tensor| Arc::clone(tensor.owner()));
        tensors.chain(self.ends.iter().map(|end| Arc::new(end.clone()) as Owner)).collect()
    }

    /// Adds the work of `other`; its `current`, `torch` and `made_beside` count only where this has none.
    pub fn merge(&mut self, other: &Producers) {
        self.merge_streams(other);
        for end in &other.ends {
            if !self.ends.iter().any(|known| known.id() == end.id()) {
                self.ends.push(end.clone());
            }
        }
        for tensor in &other.tensors {
            // The samples of one batch come one after the other.
            if self.tensors.last().is_none_or(|last| owner_id(last) != owner_id(tensor)) {
                self.tensors.push(tensor.clone());
            }
        }
    }

    /// Adds the work of all `others`, as many as samples, as [`Producers::merge`] does; a tensor of an owner once.
    pub fn merge_all<'p>(&mut self, others: impl IntoIterator<Item = &'p Producers>) {
        let mut known: HashSet<usize> = self.ends.iter().map(End::id).collect();
        known.extend(self.tensors.iter().map(owner_id));
        for other in others {
            self.merge_streams(other);
            self.ends.extend(other.ends.iter().filter(|end| known.insert(end.id())).cloned());
            let tensors = other.tensors.iter().filter(|tensor| known.insert(owner_id(tensor)));
            self.tensors.extend(tensors.cloned());
        }
    }

    /// Adds what [`Producers::merge`] adds but ends and tensors.
    fn merge_streams(&mut self, other: &Producers) {
        self.current = self.current.or(other.current);
        self.torch = self.torch.or(other.torch);
        self.made_beside = self.made_beside.or(other.made_beside);
        other.streams.iter().for_each(|&stream| self.add(stream));
    }
}

/// A number that tensors of one owner have and no others meanwhile.
fn owner_id(tensor: &Tensor) -> usize {
    Arc::as_ptr(tensor.owner()).cast::<()>().addr()
}
