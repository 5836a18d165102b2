//! One node of the trees of all samples, taken apart into its children.

use pyo3::prelude::*;

use crate::collate::leaves::Within;
use crate::trees::container::{Apart, Container, Place};

/// The same place of every sample.
pub(super) struct Branch<'py> {
    pub samples: Source<'py>,
    pub path: String,
    pub out: Option<Bound<'py, PyAny>>,
    pub depth: usize,
    /// What the class of the container around it says of it.
    pub within: Within<'py>,
}

pub(super) enum Source<'py> {
    /// Not yet looked at.
    Objects(Vec<Bound<'py, PyAny>>),
    /// The next node of a list of trees, which has taken them apart.
    Known,
}

impl<'py> Branch<'py> {
    pub fn root(samples: Source<'py>, out: Option<Bound<'py, PyAny>>) -> Branch<'py> {
        Branch { samples, path: String::new(), out, depth: 0, within: Within::default() }
    }

    /// The children of a container, `samples` of each.
    pub fn children(
        self,
        py: Python<'py>,
        container: &Container,
        sep: &str,
        samples: impl IntoIterator<Item = Source<'py>>,
        open: &mut Vec<Branch<'py>>,
    ) -> PyResult<()> {
        let Branch { path, out, depth, within, .. } = self;
        let place = Place { path: &path, sep, added_to: None };
        let outputs = container.outputs(out, place)?;
        for (child, (samples, out)) in samples.into_iter().zip(outputs).enumerate() {
            let path = container.path_of(py, child, place)?;
            open.push(Branch { samples, path, out, depth: depth + 1, within: within.around() });
        }
        Ok(())
    }

    /// The children of a column of containers that was taken apart.
    pub fn taken_apart(
        self,
        py: Python<'py>,
        apart: Apart<'py>,
        sep: &str,
        open: &mut Vec<Branch<'py>>,
    ) -> PyResult<Container> {
        let Apart { container, columns, forms, tensors } = apart;
        let within = self.within.of_children(py, &container, tensors, forms.as_ref())?;
        let first_child = open.len();
        self.children(py, &container, sep, columns.into_iter().map(Source::Objects), open)?;
        for (branch, within) in open[first_child..].iter_mut().zip(within) {
            branch.within = within;
        }
        Ok(container)
    }
}
