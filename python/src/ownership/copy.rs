//! Copies of single tensors by the engine itself.

use windrow::engine::RunOptions;
use windrow::plan::Leaf;
use windrow::tensor::Owner;
use windrow::{Collate, Engine, Error, Plan, SampleList, Stream, Tensor};

use crate::engine::default::index_engine;
use crate::ownership::holder::producers_of;
use crate::ownership::producers::Producers;

/// Returns a batch of one tensor by a form, behind all pending writes to it: a stack has a dim 0 of
/// extent 1. The copy is complete on the host, and enqueued on a device: on `stream`, without one
/// on the stream of the tensor's producers. The user's counters leave it out.
pub(crate) fn copy_of(
    tensor: &Tensor,
    collate: &Collate,
    stream: Option<Stream>,
) -> windrow::Result<Tensor> {
    copy_by(index_engine(), tensor, collate, stream)
}

/// Copies as `copy_of` does, and counts in the counters of `engine`.
pub(crate) fn copy_by(
    engine: &Engine,
    tensor: &Tensor,
    collate: &Collate,
    stream: Option<Stream>,
) -> windrow::Result<Tensor> {
    let mut one = SampleList::new();
    one.push_view(&tensor.into())?;
    copied(engine, &one, collate, stream, producers_of(tensor), Vec::new())
}

/// Samples as one tensor, by a form, behind the work of these producers: complete on the host, and enqueued on a device, which holds
/// `owners` until it has read them. The user's counters leave it out.
pub(crate) fn copy_of_list(
    samples: &SampleList<'static>,
    collate: &Collate,
    producers: Producers,
    owners: Vec<Owner>,
) -> windrow::Result<Tensor> {
    copied(index_engine(), samples, collate, None, producers, owners)
}

/// Returns the data of a batch of these samples: see [`copy_by`] and [`copy_of_list`].
fn copied(
    engine: &Engine,
    samples: &SampleList<'_>,
    collate: &Collate,
    stream: Option<Stream>,
    producers: Producers,
    owners: Vec<Owner>,
) -> windrow::Result<Tensor> {
    let mut options = RunOptions::default();
    options.stream = stream.or(producers.current);
    options.keep = owners;
    options.keep.extend(producers.owners_to_hold());
    options.producers = producers.streams;
    let leaf = Leaf { samples, collate, path: "", out: None };
    let filled = engine.run_with(Plan::for_leaves(&[leaf])?, options)?;
    filled.into_iter().find_map(|filled| filled.data).ok_or(Error::Empty)
}
