//! The rows of an Arrow table as trees: dicts of its columns.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::samples::arrow::{self, ArrowColumn};
use crate::samples::columns::{Content, LeafColumn};
use crate::samples::trees::{ShapeNode, ShapeNodeType, Trees};
use crate::trees::container::{ColumnPlace, Container};
use crate::trees::walk::{walk, Branch};

/// The rows of an object that is Arrow's.
pub(crate) fn table_in(samples: &Bound<'_, PyAny>, sep: &str) -> PyResult<Option<Trees>> {
    match arrow::is_arrow(samples)? {
        true => trees_of_table(samples.py(), arrow::read(samples, sep, "")?.columns).map(Some),
        false => Ok(None),
    }
}

/// The rows of a table: dicts of its columns, structs among them dicts again; of a single column the leaf.
pub(crate) fn trees_of_table(py: Python<'_>, columns: Vec<ArrowColumn<'_>>) -> PyResult<Trees> {
    let mut made = Vec::new();
    let nodes =
        walk(Branch::root(columns), |Branch { column: mut columns, path, depth }, children| {
            if columns.len() == 1 && columns[0].path.len() == depth {
                let (column, content) = match columns.remove(0).content {
                    arrow::ArrowContent::Texts(texts) => {
                        let texts = texts.iter().map(Bound::unbind).collect();
                        (LeafColumn::Objects(Arc::new(texts)), Content::Texts)
                    }
                    arrow::ArrowContent::Samples(samples) => {
                        (LeafColumn::Tensors(Arc::from(samples)), Content::Tensors)
                    }
                };
                made.push(column);
                return Ok(ShapeNode {
                    node_type: ShapeNodeType::Leaf(made.len() - 1, content),
                    path,
                });
            }
            let names = PyDict::new(py);
            let mut columns = columns.into_iter().peekable();
            while let Some(column) = columns.next() {
                let name = column.path[depth].clone();
                let is_struct = column.path.len() > depth + 1;
                let is_next = |next: &ArrowColumn<'_>| {
                    is_struct && next.path.len() > depth + 1 && next.path[depth] == name
                };
                let mut group = vec![column];
                while let Some(column) = columns.next_if(is_next) {
                    group.push(column);
                }
                let place = ColumnPlace { path: &path, sep: ".", added_to: None };
                let path = place.join(&name);
                if names.contains(&name)? {
                    let text = format!("two columns are named {path:?}; rename one of them");
                    return Err(PyValueError::new_err(text));
                }
                names.set_item(PyString::new(py, &name), ())?;
                children.push(group, path);
            }
            let container = Container::dict(py, names.keys().iter().collect());
            Ok(ShapeNode { node_type: ShapeNodeType::Container(Arc::new(container)), path })
        })?;
    let len = made.first().map_or(0, LeafColumn::len);
    Ok(Trees::new(nodes, made, len))
}
