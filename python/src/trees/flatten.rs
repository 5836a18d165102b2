//! The one walk of trees. A list of trees is one tree of columns: the same place of every sample. It is flattened to its leaves by
//! [`TreeRules`], which differ for `collate`, `collate_torch`, lists of trees and Arrow tables, and [`TreeDef`] puts others in place of
//! the leaves.
//!
//! ```text
//! flatten: open = [root]
//!          while a column is taken from open:
//!              refuse it below MAX_DEPTH levels
//!              open it by the rules: a leaf, or a container whose children are next
//! unflatten: go through the nodes from the last to the first; a container takes its children from the top of a stack
//! ```
//!
//! None of it is recursive: a thread's stack may be small.

use std::sync::Arc;

use pyo3::exceptions::{PyRecursionError, PyRuntimeError};
use pyo3::gc::PyVisit;
use pyo3::prelude::*;

use crate::ground::reserve::{push_to, try_vec};
use crate::ownership::holder::Visited;
use crate::trees::container::{ColumnPlace, Container};

/// Deeper trees are refused: a container may hold itself.
const MAX_DEPTH: usize = 256;

/// Rules that decide which column is a leaf and what the children of a container are.
pub(crate) trait TreeRules<'py> {
    /// The same place of every sample.
    type Column;
    type Leaf;

    /// Classifies a column, and opens it if it is one of containers. `is_only`: all leaves will be of this column, as there is no
    /// leaf yet and no other column is left.
    fn classify(
        &mut self,
        column: Self::Column,
        place: ColumnPlace<'_>,
        is_only: bool,
    ) -> PyResult<Classified<Self::Column, Self::Leaf>>;
}

pub(crate) enum Classified<C, L> {
    Leaf(L),
    /// A container, and a column for each of its children.
    Container(Arc<Container>, Vec<C>),
}

/// A tree that was flattened.
pub(crate) struct Flat<L> {
    pub tree: TreeDef,
    /// The leaves with their paths, in order.
    pub leaves: Vec<(String, L)>,
    /// The error that ended the walk, which is due when the leaves before it are done.
    pub end: PyResult<()>,
}

/// The containers of a tree and the places of its leaves.
pub(crate) struct TreeDef {
    /// Each before its children.
    nodes: Vec<TreeNode>,
    num_leaves: usize,
}

enum TreeNode {
    Leaf,
    /// A container and its path.
    Container(Arc<Container>, String),
}

/// A container whose children are visited.
struct Open<C> {
    container: Arc<Container>,
    path: String,
    children: std::iter::Enumerate<std::vec::IntoIter<C>>,
}

/// Flattens a tree of columns. `path` is the path of the root, `sep` joins the names of a path. An
/// error ends the walk and is in [`Flat::end`], beside the leaves before it.
pub(crate) fn flatten<'py, R: TreeRules<'py>>(
    py: Python<'py>,
    rules: &mut R,
    root: R::Column,
    path: String,
    sep: &str,
) -> Flat<R::Leaf> {
    let tree = TreeDef { nodes: Vec::new(), num_leaves: 0 };
    let mut flat = Flat { tree, leaves: Vec::new(), end: Ok(()) };
    flat.end = flat.fill(py, rules, (root, path), sep);
    flat.tree.num_leaves = flat.leaves.len();
    flat
}

impl<L> Flat<L> {
    /// Appends nodes and leaves up to the first error.
    fn fill<'py, R: TreeRules<'py, Leaf = L>>(
        &mut self,
        py: Python<'py>,
        rules: &mut R,
        root: (R::Column, String),
        sep: &str,
    ) -> PyResult<()> {
        let mut open: Vec<Open<R::Column>> = Vec::new();
        let (mut next, mut num_left) = (Some(root), 0);
        loop {
            let (column, path) = if let Some(root) = next.take() {
                root
            } else {
                let Some(Open { container, path, children }) = open.last_mut() else {
                    return Ok(());
                };
                let Some((child, column)) = children.next() else {
                    open.pop();
                    continue;
                };
                num_left -= 1;
                (column, container.path_of(py, child, ColumnPlace::new(path, sep))?)
            };
            check_depth(open.len(), &path)?;
            let is_only = self.leaves.is_empty() && num_left == 0;
            match rules.classify(column, ColumnPlace::new(&path, sep), is_only)? {
                Classified::Leaf(leaf) => {
                    push_to(&mut self.leaves, (path, leaf))?;
                    push_to(&mut self.tree.nodes, TreeNode::Leaf)?;
                }
                Classified::Container(container, children) => {
                    num_left += children.len();
                    let node = TreeNode::Container(Arc::clone(&container), path.clone());
                    push_to(&mut self.tree.nodes, node)?;
                    open.push(Open { container, path, children: children.into_iter().enumerate() });
                }
            }
        }
    }
}

/// RecursionError for [`MAX_DEPTH`] containers around a column.
fn check_depth(depth: usize, path: &str) -> PyResult<()> {
    if depth < MAX_DEPTH {
        return Ok(());
    }
    let begin: String = path.chars().take(32).collect();
    Err(PyRecursionError::new_err(format!(
        "sample 0 at \"{begin}...\": more than {MAX_DEPTH} levels; perhaps a container holds itself"
    )))
}

impl TreeDef {
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
