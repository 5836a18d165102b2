//! One place in the trees of all samples: its samples, its output, and the places below it.

use pyo3::prelude::*;
use windrow::Engine;

use crate::collate::leaves::Within;
use crate::samples::together::{read_together, Borrowed, Column, ReadColumn};
use crate::trees::container::{ColumnPlace, Container};
use crate::trees::rules::Apart;
use crate::trees::walk::Children;

/// The same place of every sample.
pub(super) struct Site<'py> {
    pub samples: Source<'py>,
    pub out: Option<Bound<'py, PyAny>>,
    /// The rules of the class of the container around it.
    pub within: Within<'py>,
}

pub(super) enum Source<'py> {
    /// Not yet looked at.
    Objects(Vec<Bound<'py, PyAny>>),
    /// A leaf that was read with others of its container.
    Read(ReadColumn),
    /// The next node of a list of trees, which has taken them apart.
    Known,
}

impl<'py> Site<'py> {
    pub fn root(samples: Source<'py>, out: Option<Bound<'py, PyAny>>) -> Site<'py> {
        Site { samples, out, within: Within::default() }
    }

    /// The children of a container that a list of trees has taken apart.
    pub fn known(
        self,
        py: Python<'py>,
        container: &Container,
        place: ColumnPlace<'_>,
        children: &mut Children<'_, Site<'py>>,
    ) -> PyResult<()> {
        let of_child = |_| (Source::Known, self.within.around());
        let samples = (0..container.len()).map(of_child);
        children_of(py, container, (samples, self.out), place, children)
    }

    /// The children of a column of containers that was taken apart; leaves among them are read by the engine's threads.
    /// `may_borrow`: if all are leaves, no Python code runs until they are assembled.
    pub fn taken_apart(
        self,
        py: Python<'py>,
        engine: &Engine,
        apart: Apart<'py>,
        place: ColumnPlace<'_>,
        children: &mut Children<'_, Site<'py>>,
        may_borrow: bool,
    ) -> PyResult<(Container, Option<Borrowed<'py>>)> {
        let Apart { container, mut columns, forms, tensors } = apart;
        // Each of these runs Python code, or may.
        if forms.is_some() || self.out.is_some() || !container.has_plain_names(py) {
            columns.hold();
        }
        let within = self.within.of_children(py, &container, tensors, forms.as_ref())?;
        let source = |column| match column {
            Column::Objects(objects) => Source::Objects(objects),
            Column::Read(read) => Source::Read(read),
        };
        let (columns, borrowed) = read_together(engine, columns, may_borrow)?;
        let samples = columns.into_iter().map(source).zip(within);
        children_of(py, &container, (samples, self.out), place, children)?;
        Ok((container, borrowed))
    }
}

fn children_of<'py>(
    py: Python<'py>,
    container: &Container,
    (samples, out): (impl Iterator<Item = (Source<'py>, Within<'py>)>, Option<Bound<'py, PyAny>>),
    place: ColumnPlace<'_>,
    children: &mut Children<'_, Site<'py>>,
) -> PyResult<()> {
    let outputs = container.outputs(out, place)?;
    children.reserve(container.len())?;
    for (child, ((samples, within), out)) in samples.zip(outputs).enumerate() {
        children.push(Site { samples, out, within }, container.path_of(py, child, place)?);
    }
    Ok(())
}
