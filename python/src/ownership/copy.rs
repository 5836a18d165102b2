//! Copies of single tensors by the engine itself.

use windrow::engine::RunOptions;
use windrow::plan::Leaf;
use windrow::{Collate, Engine, Error, Plan, SampleList, Stream, Tensor};

use crate::engine::default::index_engine;
use crate::ownership::holder::producers_of;

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
    let producers = producers_of(tensor);
    let mut options = RunOptions::default();
    options.stream = stream.or(producers.current);
    options.keep = producers.owners_to_hold();
    options.producers = producers.streams;
    let leaf = Leaf { samples: &one, collate, path: "", out: None };
    let filled = engine.run_with(Plan::for_leaves(&[leaf])?, options)?;
    filled.into_iter().find_map(|filled| filled.data).ok_or(Error::Empty)
}

/// Samples on the host as one tensor, by a form, complete. The user's counters leave it out.
pub(crate) fn copy_of_list(
    samples: &SampleList<'static>,
    collate: &Collate,
) -> windrow::Result<Tensor> {
    let leaf = Leaf { samples, collate, path: "", out: None };
    let filled = index_engine().run_with(Plan::for_leaves(&[leaf])?, RunOptions::default())?;
    filled.into_iter().find_map(|filled| filled.data).ok_or(Error::Empty)
}
