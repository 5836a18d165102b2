//! The leaves of the trees of one call, as jobs of one plan.

use std::rc::Rc;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use windrow::{RowsAhead, Stream};

use crate::collate::job::Job;
use crate::collate::options::Options;
use crate::collate::specs::Specs;
use crate::ground::errors::at;
use crate::import::importer::Reading;
use crate::samples::imported::Imported;
use crate::trees::container::Container;

/// A node of the tree of results.
pub(super) enum Node<'py> {
    /// The position of a tensor leaf.
    Leaf(usize),
    /// Strings and bytes, as a list.
    Pass(Bound<'py, PyList>),
    Container(Arc<Container>),
}

/// What a class says of the leaves in it.
#[derive(Clone, Default)]
pub(super) struct Within<'py> {
    /// The class whose leaves are torch tensors, if they are.
    pub tensors: Option<Rc<str>>,
    /// Form and arguments of this one.
    pub form: Option<(String, Bound<'py, PyDict>)>,
}

/// The leaves met so far.
pub(super) struct Leaves<'a, 'py> {
    pub py: Python<'py>,
    /// Options of leaves that no spec names.
    pub common: Option<&'a Bound<'py, PyDict>>,
    pub stream: Option<Stream>,
    pub may_start: bool,
    pub specs: Specs<'a, 'py>,
    pub jobs: Vec<Job>,
}

impl<'py> Leaves<'_, 'py> {
    /// A leaf whose samples `import` reads.
    pub fn add(
        &mut self,
        path: &str,
        out: Option<Bound<'py, PyAny>>,
        within: &Within<'py>,
        import: impl FnOnce(Reading<'_>) -> PyResult<(Arc<Imported>, Option<RowsAhead>)>,
    ) -> PyResult<Node<'py>> {
        let named = self.specs.find(path, self.common)?;
        let own = within.form.as_ref();
        let form = own.map_or("stack", |(form, _)| form.as_str());
        if let (Some(class), Some((given, _))) = (&within.tensors, &named) {
            if given != form {
                return Err(PyValueError::new_err(format!(
                    "the spec{} is that of wr.{given}: leaves within {class} are torch tensors, which wr.{form} makes",
                    at(path)
                )));
            }
        }
        let mut options = match (&named, own) {
            (Some((form, kwargs)), None) => Options::parse(form, Some(kwargs))?,
            (None, None) => Options::parse("stack", self.common)?,
            (named, Some((form, own))) => {
                let given = named.as_ref().map(|(_, kwargs)| kwargs).or(self.common);
                let kwargs =
                    given.map_or_else(|| Ok(PyDict::new(self.py)), |given| given.copy())?;
                kwargs.update(own.as_mapping())?;
                Options::parse(form, Some(&kwargs))?
            }
        };
        options.out = out.or(options.out);
        options.may_start = self.may_start;
        if options.stream != self.stream {
            return Err(PyValueError::new_err("stream= is an argument of the call, not of a leaf"));
        }
        self.jobs.push(Job::new(options, path, import)?);
        Ok(Node::Leaf(self.jobs.len() - 1))
    }
}
