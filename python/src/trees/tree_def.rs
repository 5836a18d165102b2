//! [`TreeDef`]: the structure of a tree that was flattened, which puts others in place of the leaves.
//!
//! ```text
//! unflatten: go through the nodes from the last to the first; a container takes its children from the top of a stack
//! ```

use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;

use crate::ground::reserve::{push_to, try_vec};
use crate::ownership::holder::Visited;
use crate::trees::container::Container;

/// The containers of a tree and the places of its leaves.
#[derive(Default)]
pub(crate) struct TreeDef {
    /// Each before its children.
    nodes: Vec<TreeNode>,
    num_leaves: usize,
}

pub(super) enum TreeNode {
    Leaf,
    /// A container and its path.
    Container(Arc<Container>, String),
}

impl TreeDef {
    /// Adds the next node of the walk: a container before its children.
    pub(super) fn push(&mut self, node: TreeNode) -> PyResult<()> {
        self.num_leaves += usize::from(matches!(node, TreeNode::Leaf));
        push_to(&mut self.nodes, node)
    }

    /// The container that all samples are; `None` if they are a leaf.
    pub fn root(&self) -> Option<&Container> {
        match self.nodes.first() {
            Some(TreeNode::Container(root, _)) => Some(root),
            _ => None,
        }
    }

    /// The nodes of the tree, each before its children: containers, and `None` for each leaf.
    pub fn containers(&self) -> impl Iterator<Item = Option<&Container>> {
        self.nodes.iter().map(|node| match node {
            TreeNode::Leaf => None,
            TreeNode::Container(container, _) => Some(&**container),
        })
    }

    /// Shows the collector the references of the containers that no other tree has.
    pub fn visit(&self, visit: &PyVisit<'_>) -> Visited {
        self.nodes.iter().try_for_each(|node| match node {
            TreeNode::Container(container, _) if Arc::strong_count(container) == 1 => {
                container.visit(visit)
            }
            _ => Ok(()),
        })
    }

    /// Flattens what has the structure of this tree: `open` gives the children of a container,
    /// `leaf` takes each leaf with its number, from 0 on and in order. The first error of either
    /// ends the walk. `open` has to give as many children as the container has, which is not
    /// checked.
    pub fn flatten_up_to<T>(
        &self,
        root: T,
        mut open: impl FnMut(&Container, &str, T) -> PyResult<Vec<T>>,
        mut leaf: impl FnMut(usize, T) -> PyResult<()>,
    ) -> PyResult<()> {
        let (mut columns, mut num_leaves) = (vec![root], 0);
        for node in &self.nodes {
            let Some(column) = columns.pop() else { break };
            match node {
                TreeNode::Container(container, path) => {
                    columns.extend(open(container, path, column)?.into_iter().rev());
                }
                TreeNode::Leaf => {
                    leaf(num_leaves, column)?;
                    num_leaves += 1;
                }
            }
        }
        Ok(())
    }

    /// Makes something of each leaf, by its number, and of each container with what was made of its children, which are in order.
    /// The last leaf is the first to be made. The walk that made the tree ended without an error, or this can panic.
    pub fn fold<'s, T>(
        &'s self,
        mut leaf: impl FnMut(usize) -> PyResult<T>,
        mut close: impl FnMut(&'s Arc<Container>, Vec<T>) -> PyResult<T>,
    ) -> PyResult<T> {
        let (mut made, mut position): (Vec<T>, _) = (try_vec(self.nodes.len())?, self.num_leaves);
        for node in self.nodes.iter().rev() {
            let next = match node {
                TreeNode::Leaf => {
                    position -= 1;
                    leaf(position)?
                }
                TreeNode::Container(container, _) => {
                    let children = made.drain(made.len() - container.len()..).rev().collect();
                    close(container, children)?
                }
            };
            made.push(next);
        }
        made.pop().ok_or_else(|| PyRuntimeError::new_err("a tree without a root"))
    }

    /// Makes a tree of leaves. `leaf` gives a leaf by its number; it is called for the last one first. As for
    /// [`TreeDef::fold`], the walk ended without an error.
    pub fn unflatten<'py>(
        &self,
        py: Python<'py>,
        leaf: impl FnMut(usize) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.fold(leaf, |container, children| container.unflatten(py, children))
    }
}
