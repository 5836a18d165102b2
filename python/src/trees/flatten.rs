//! The one walk of trees. A list of trees is one tree of columns: the same place of every sample. It is flattened to its leaves by
//! [`TreeRules`], which differ for `collate`, `collate_torch`, lists of trees and Arrow tables; a [`TreeDef`] keeps the structure.
//!
//! ```text
//! open = [root]
//! while a column is taken from open:
//!     refuse it below MAX_DEPTH levels
//!     open it by the rules: a leaf, or a container whose children are next
//! ```
//!
//! It is not recursive: a thread's stack may be small.

use std::sync::Arc;

use pyo3::exceptions::PyRecursionError;
use pyo3::prelude::*;

use crate::ground::reserve::push_to;
use crate::trees::container::{ColumnPlace, Container};
use crate::trees::tree_def::{TreeDef, TreeNode};

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
    let mut flat = Flat { tree: TreeDef::default(), leaves: Vec::new(), end: Ok(()) };
    flat.end = flat.fill(py, rules, (root, path), sep);
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
                    self.tree.push(TreeNode::Leaf)?;
                }
                Classified::Container(container, children) => {
                    num_left += children.len();
                    let node = TreeNode::Container(Arc::clone(&container), path.clone());
                    self.tree.push(node)?;
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
