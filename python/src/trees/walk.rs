//! The one walk of trees: `collate`, `collate_torch`, lists of trees and Arrow tables differ in what they make of a node.
//!
//! ```text
//! open = [root]
//! while a branch is taken from open:
//!     refuse it below MAX_DEPTH levels
//!     visit it: a leaf, or a container whose children go to open, the first on top
//!     append its node
//! fold: go through the nodes from the last to the first; each takes its children from the top of a stack
//! ```
//!
//! Neither half is recursive: a thread's stack may be small.

use pyo3::exceptions::{PyRecursionError, PyRuntimeError};
use pyo3::prelude::*;

use crate::ground::reserve::{no_room, room_for};

/// Deeper trees are refused: a container may hold itself.
const MAX_DEPTH: usize = 256;

/// The same place in all samples, not yet visited.
pub(crate) struct Branch<T> {
    pub column: T,
    pub path: String,
    pub depth: usize,
}

impl<T> Branch<T> {
    pub fn root(column: T) -> Branch<T> {
        Branch { column, path: String::new(), depth: 0 }
    }
}

/// The children of the branch that is visited.
pub(crate) struct Children<'a, T> {
    open: &'a mut Vec<Branch<T>>,
    depth: usize,
}

impl<T> Children<'_, T> {
    /// Whether nothing else is left to be visited. Asked before the first child is there.
    pub fn are_last(&self) -> bool {
        self.open.is_empty()
    }

    /// Has room for so many more.
    pub fn reserve(&mut self, count: usize) -> PyResult<()> {
        self.open.try_reserve(count).map_err(no_room)
    }

    pub fn push(&mut self, column: T, path: String) {
        self.open.push(Branch { column, path, depth: self.depth });
    }
}

/// All nodes of a tree, each before its children.
///
/// # Errors
/// RecursionError below [`MAX_DEPTH`] levels; those of `visit`.
pub(crate) fn walk<T, N>(
    root: Branch<T>,
    mut visit: impl FnMut(Branch<T>, &mut Children<'_, T>) -> PyResult<N>,
) -> PyResult<Vec<N>> {
    let mut nodes = Vec::new();
    let mut open = vec![root];
    while let Some(branch) = open.pop() {
        check_depth(branch.depth, &branch.path)?;
        let (first_child, depth) = (open.len(), branch.depth + 1);
        nodes.push(visit(branch, &mut Children { open: &mut open, depth })?);
        nodes.try_reserve(open.len()).map_err(no_room)?;
        open[first_child..].reverse();
    }
    Ok(nodes)
}

fn check_depth(depth: usize, path: &str) -> PyResult<()> {
    if depth < MAX_DEPTH {
        return Ok(());
    }
    let begin: String = path.chars().take(32).collect();
    Err(PyRecursionError::new_err(format!(
        "sample 0 at \"{begin}...\": more than {MAX_DEPTH} levels; perhaps a container holds itself"
    )))
}

/// Makes a tree of the nodes that `walk` gives.
pub(crate) fn fold<'py, N>(
    nodes: &[N],
    num_children: impl Fn(&N) -> usize,
    mut make: impl FnMut(&N, Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut made: Vec<Bound<'py, PyAny>> = room_for(nodes.len())?;
    for node in nodes.iter().rev() {
        let children = made.drain(made.len() - num_children(node)..).rev().collect();
        made.push(make(node, children)?);
    }
    made.pop().ok_or_else(|| PyRuntimeError::new_err("a tree without a root"))
}
