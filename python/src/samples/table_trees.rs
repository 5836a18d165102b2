//! The rows of an Arrow table as trees: dicts of its columns.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::samples::arrow::{self, ArrowColumn, ArrowContent, ArrowRows};
use crate::samples::leaf_columns::{Content, LeafColumn};
use crate::samples::trees::Trees;
use crate::trees::container::{ColumnPlace, Container};
use crate::trees::flatten::{flatten, Classified, TreeRules};

/// The rows of an object that is Arrow's; `None` for any other object. `sep` joins the names of columns in errors of reading
/// them.
pub(crate) fn table_in(samples: &Bound<'_, PyAny>, sep: &str) -> PyResult<Option<Trees>> {
    match arrow::is_arrow(samples)? {
        true => trees_of_table(samples.py(), arrow::read(samples, sep, "")?).map(Some),
        false => Ok(None),
    }
}

/// The rows of a table: dicts of its columns, structs among them dicts again; of a single column without a name the leaf.
/// ValueError for two columns of one name.
pub(crate) fn trees_of_table(py: Python<'_>, rows: ArrowRows<'_>) -> PyResult<Trees> {
    let flat = flatten(py, &mut TableRules(py), (rows.columns, 0), String::new(), ".");
    Trees::new(py, flat, Some(rows.num_rows), |_, content| {
        Ok(match content {
            ArrowContent::Texts(texts) => {
                let texts = texts.iter().map(Bound::unbind).collect();
                (Content::Texts, LeafColumn::Objects(Arc::new(texts)))
            }
            ArrowContent::Samples(samples) => {
                (Content::Tensors, LeafColumn::Tensors(Arc::from(samples)))
            }
        })
    })
}

/// Groups columns by the first of their names that the containers around them do not have.
struct TableRules<'py>(Python<'py>);

impl<'py> TreeRules<'py> for TableRules<'py> {
    /// The columns within a container, and the number of containers around them.
    type Column = (Vec<ArrowColumn<'py>>, usize);
    type Leaf = ArrowContent<'py>;

    fn classify(
        &mut self,
        (mut columns, depth): Self::Column,
        place: ColumnPlace<'_>,
        _: bool,
    ) -> PyResult<Classified<Self::Column, Self::Leaf>> {
        if columns.len() == 1 && columns[0].path.len() == depth {
            if let Some(content) = columns.remove(0).content {
                return Ok(Classified::Leaf(content));
            }
        }
        let (names, mut children) = (PyDict::new(self.0), Vec::new());
        let mut columns = columns.into_iter().peekable();
        while let Some(column) = columns.next() {
            let (name, place_in_struct) = (column.path[depth].clone(), column.places[depth]);
            let is_next = |next: &ArrowColumn<'_>| next.places[depth] == place_in_struct;
            let mut group = vec![column];
            while let Some(column) = columns.next_if(is_next) {
                group.push(column);
            }
            if names.contains(&name)? {
                let path = place.join(&name);
                let text = format!("two columns are named {path:?}; rename one of them");
                return Err(PyValueError::new_err(text));
            }
            names.set_item(name, ())?;
            children.push((group, depth + 1));
        }
        let container = Container::dict(self.0, names.keys().iter().collect());
        Ok(Classified::Container(Arc::new(container), children))
    }
}
