//! The nodes of the trees that `collate_torch` walks, and the tree that they make.

use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};

use crate::ground::iterables::list_of;
use crate::trees::container::Container;
use crate::trees::containers::fold;

/// What `rules.kinds` and `rules.classify` say of a type. The numbers are those of `windrow.torch`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum NodeType {
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

impl NodeType {
    pub fn read(code: &Bound<'_, PyAny>) -> PyResult<NodeType> {
        use NodeType::*;
        let all =
            [Tensor, Array, Number, Text, Mapping, Named, Sequence, Other, Stacked, Class, Fields];
        let code = code.extract::<usize>()?;
        all.get(code).copied().ok_or_else(|| PyTypeError::new_err(format!("kind {code}")))
    }
}

pub(super) enum Node<'py> {
    /// A position in the list of jobs.
    Leaf(usize),
    Done(Bound<'py, PyAny>),
    /// The first sample's mapping, and its keys.
    Mapping(Bound<'py, PyAny>, Vec<Bound<'py, PyAny>>),
    /// So many children.
    Named(Bound<'py, PyType>, usize),
    Sequence(Bound<'py, PyAny>, usize),
    /// By the rules of `windrow.collate`.
    Class(Arc<Container>),
}

/// The tree of results, by torch's rules of containers.
pub(super) fn build<'py>(
    rules: &Bound<'py, PyAny>,
    nodes: &[Node<'py>],
    results: &[Bound<'py, PyAny>],
) -> PyResult<Bound<'py, PyAny>> {
    let py = rules.py();
    let num_children = |node: &Node<'py>| match node {
        Node::Leaf(_) | Node::Done(_) => 0,
        Node::Mapping(_, keys) => keys.len(),
        Node::Named(_, len) | Node::Sequence(_, len) => *len,
        Node::Class(container) => container.len(),
    };
    fold(nodes, num_children, |node, children| match node {
        Node::Leaf(position) => Ok(results[*position].clone()),
        Node::Done(done) => Ok(done.clone()),
        Node::Named(class, _) => class.call1(list_of(py, children)?.as_sequence().to_tuple()?),
        Node::Class(container) => container.with(py, children),
        Node::Sequence(first, _) => {
            let list = list_of(py, children)?;
            if first.is_instance_of::<PyTuple>() || first.is_exact_instance_of::<PyList>() {
                return Ok(list.into_any());
            }
            rules.call_method1(intern!(py, "sequence"), (first, list))
        }
        Node::Mapping(first, keys) => {
            let dict = PyDict::new(py);
            for (key, child) in keys.iter().zip(children) {
                dict.set_item(key, child)?;
            }
            if first.is_exact_instance_of::<PyDict>() {
                return Ok(dict.into_any());
            }
            rules.call_method1(intern!(py, "mapping"), (first, dict))
        }
    })
}

/// Refuses sequences of several lengths, as torch does.
pub(super) fn check_lengths(samples: &[Bound<'_, PyAny>]) -> PyResult<()> {
    let len = samples[0].len()?;
    for sample in &samples[1..] {
        if sample.len()? != len {
            let text = "each element in list of batch should be of equal size";
            return Err(PyRuntimeError::new_err(text));
        }
    }
    Ok(())
}
