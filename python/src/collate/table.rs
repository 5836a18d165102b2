//! The columns of an Arrow table as a tree of dicts.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::collate::branch::{check_keys, child_of};
use crate::collate::containers::Container;
use crate::collate::leaves::{Leaves, Node, Within};
use crate::samples::arrow::{ArrowColumn, Content};

/// The nodes of a table: a dict of its columns, structs among them dicts again; of a single column the leaf.
pub(super) fn nodes_of_table<'py>(
    leaves: &mut Leaves<'_, 'py>,
    columns: Vec<ArrowColumn<'py>>,
    out: Option<Bound<'py, PyAny>>,
) -> PyResult<Vec<Node<'py>>> {
    let mut nodes = Vec::new();
    let mut open = vec![(columns, String::new(), out, 0)];
    while let Some((mut columns, path, out, depth)) = open.pop() {
        if columns.len() == 1 && columns[0].path.len() == depth {
            nodes.push(match columns.remove(0).content {
                Content::Texts(texts) => {
                    leaves.specs.pass(&path);
                    Node::Pass(texts)
                }
                Content::Samples(samples) => {
                    let within = Within::default();
                    leaves.add(&path, out, &within, |_| Ok((Arc::from(samples), None)))?
                }
            });
            continue;
        }
        let (first_child, mut names) = (open.len(), Vec::<Bound<'py, PyAny>>::new());
        let names_seen = PyDict::new(leaves.py);
        let mut columns = columns.into_iter().peekable();
        while let Some(column) = columns.next() {
            let name = column.path[depth].clone();
            let is_struct = column.path.len() > depth + 1;
            let is_next = |next: &ArrowColumn<'py>| {
                is_struct && next.path.len() > depth + 1 && next.path[depth] == name
            };
            let mut group = vec![column];
            while let Some(column) = columns.next_if(is_next) {
                group.push(column);
            }
            let key = PyString::new(leaves.py, &name).into_any();
            let path = leaves.specs.join_name(&path, &name);
            if names_seen.contains(&key)? {
                let text = format!("two columns are named {path:?}; rename one of them");
                return Err(PyValueError::new_err(text));
            }
            names_seen.set_item(&key, ())?;
            let out = child_of(out.as_ref(), &path, |out| out.get_item(&key))?;
            open.push((group, path, out, depth + 1));
            names.push(key);
        }
        let dict = PyDict::new(leaves.py).into_any();
        check_keys(out.as_ref(), &path, &names, names_seen.as_any(), &leaves.specs)?;
        nodes.push(Node::Container(Container::Mapping(dict, names)));
        open[first_child..].reverse();
    }
    Ok(nodes)
}
