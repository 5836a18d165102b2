//! The rules by which `collate` takes trees apart: texts are leaves, a container that a spec names is one, and columns of plain arrays
//! are read as soon as their container is opened.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::collate::leaves::{Column, Leaves, NodeInput};
use crate::ground::iterables::list_of;
use crate::samples::column_import::{import_columns, Borrowed, MaybeImported};
use crate::samples::leaf_columns::are_texts;
use crate::trees::container::ColumnPlace;
use crate::trees::flatten::{Classified, TreeRules};
use crate::trees::rules::{self, FlattenedColumn};

/// The rules of `collate`.
pub(super) struct OurRules<'l, 'a, 'py> {
    leaves: &'l Leaves<'a, 'py>,
    may_borrow: bool,
    /// The columns that keep all samples alive until Python code runs, if they are borrowed.
    pub borrowed: Option<Borrowed<'py>>,
}

impl<'l, 'a, 'py> OurRules<'l, 'a, 'py> {
    /// Rules for the leaves of a call. `may_borrow`: whether no Python code runs after the samples were flattened, unless a leaf needs
    /// it to be read.
    pub fn new(leaves: &'l Leaves<'a, 'py>, may_borrow: bool) -> Self {
        OurRules { leaves, may_borrow, borrowed: None }
    }
}

impl<'py> TreeRules<'py> for OurRules<'_, '_, 'py> {
    type Column = NodeInput<'py>;
    type Leaf = NodeInput<'py>;

    fn classify(
        &mut self,
        NodeInput { column, within }: NodeInput<'py>,
        place: ColumnPlace<'_>,
        is_only: bool,
    ) -> PyResult<Classified<NodeInput<'py>, NodeInput<'py>>> {
        let (py, engine) = (self.leaves.py, &self.leaves.options.engine);
        let samples = match column {
            Column::Objects(samples, _) => samples,
            Column::Container(container, columns) => {
                return Ok(within.container(container, columns));
            }
            column => return Ok(Classified::Leaf(NodeInput { column, within })),
        };
        if are_texts(&samples, place)? {
            let column = Column::Passed(list_of(py, samples)?.into_any());
            return Ok(Classified::Leaf(NodeInput { column, within }));
        }
        let is_leaf = self.leaves.specs.names(place.path);
        let Some(flattened) = rules::flatten_container(&samples, place, is_leaf, Some(engine))?
        else {
            return Ok(Classified::Leaf(NodeInput {
                column: Column::from_objects(samples),
                within,
            }));
        };
        let FlattenedColumn { container, mut columns, forms, tensors } = flattened;
        columns.retain_all(samples);
        if forms.is_some() {
            columns.take_references();
        }
        let within = within.for_children(py, &container, tensors, forms.as_ref())?;
        let may_borrow = self.may_borrow && is_only && container.has_plain_names(py);
        let (columns, borrowed) = import_columns(engine, columns, may_borrow)?;
        self.borrowed = borrowed;
        let column =
            |column: MaybeImported<'py>| column.map_or_else(Column::from_objects, Column::Read);
        let nodes = columns.into_iter().map(column).zip(within);
        let nodes = nodes.map(|(column, within)| NodeInput { column, within }).collect();
        Ok(Classified::Container(Arc::new(container), nodes))
    }
}
