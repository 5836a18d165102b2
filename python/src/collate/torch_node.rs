//! The nodes of the trees that `collate_torch` walks, and the tree that they make.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::trees::container::Container;
use crate::trees::walk::fold;

/// The kind of a type, by `rules.codes` and `rules.classify`. The numbers are those of `windrow.torch`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum TorchType {
    Tensor,
    Array,
    Number,
    /// Strings: the column itself.
    Text,
    Mapping,
    Named,
    Sequence,
    /// For torch's function.
    Other,
    /// A class that torch's function stacks, and `windrow.collate` sooner.
    Stacked,
    /// A class that only `windrow.collate` knows.
    Class,
    /// As `Class`, but torch's function is to refuse it unless there is a spec.
    Fields,
}

impl TorchType {
    pub fn read(code: &Bound<'_, PyAny>) -> PyResult<TorchType> {
        use TorchType::*;
        let all =
            [Tensor, Array, Number, Text, Mapping, Named, Sequence, Other, Stacked, Class, Fields];
        let code = code.extract::<usize>()?;
        all.get(code).copied().ok_or_else(|| PyTypeError::new_err(format!("type {code}")))
    }
}

pub(super) enum TorchNode<'py> {
    /// A position in the list of jobs.
    Leaf(usize),
    Done(Bound<'py, PyAny>),
    /// By torch's rules.
    Container(Container),
    /// By the rules of `windrow.collate`.
    Class(Arc<Container>),
    /// Objects that torch's function stacks, and their children.
    Stacked(Vec<TorchNode<'py>>),
}

/// The tree of results.
pub(super) fn build<'py>(
    rules: &Bound<'py, PyAny>,
    nodes: &[TorchNode<'py>],
    results: &[Bound<'py, PyAny>],
) -> PyResult<Bound<'py, PyAny>> {
    let num_children = |node: &TorchNode<'py>| match node {
        TorchNode::Leaf(_) | TorchNode::Done(_) | TorchNode::Stacked(_) => 0,
        TorchNode::Container(container) => container.len(),
        TorchNode::Class(container) => container.len(),
    };
    fold(nodes, num_children, |node, children| match node {
        TorchNode::Leaf(position) => Ok(results[*position].clone()),
        TorchNode::Done(done) => Ok(done.clone()),
        TorchNode::Container(container) => container.with_by_torch(rules, children),
        TorchNode::Class(container) => container.with(rules.py(), children),
        // No such node is in another.
        TorchNode::Stacked(nodes) => build(rules, nodes, results),
    })
}
