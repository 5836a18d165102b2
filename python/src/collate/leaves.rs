//! The leaves of the trees of one call, as jobs of one plan.

use std::rc::Rc;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use windrow::bindings::RowsAhead;

use crate::collate::forms::form_of;
use crate::collate::job::{BorrowedLeaves, Job};
use crate::collate::options::Options;
use crate::collate::specs::Specs;
use crate::ground::errors::at;
use crate::ground::reserve::room_for;
use crate::import::importer::Reading;
use crate::samples::imported::Imported;
use crate::trees::container::Container;

/// A node of the tree of results.
pub(super) enum ResultNode<'py> {
    /// The position of a tensor leaf, and whether it is a torch tensor in the result.
    Leaf {
        position: usize,
        is_torch: bool,
    },
    /// Strings and bytes, as a list.
    Pass(Bound<'py, PyList>),
    Container(Arc<Container>),
}

/// The rules that a class has for the leaves in it.
#[derive(Clone, Default)]
pub(super) struct Within<'py> {
    /// The class whose leaves are torch tensors, if they are: those without a form are made such ones.
    pub tensors: Option<Rc<str>>,
    /// Form and arguments of this one.
    pub form: Option<(String, Bound<'py, PyDict>)>,
}

impl<'py> Within<'py> {
    /// Of the children of a container that says nothing of them.
    pub fn around(&self) -> Within<'py> {
        Within { tensors: self.tensors.clone(), form: None }
    }

    /// The rules for the children of a column that was taken apart, by its class.
    pub fn of_children(
        &self,
        py: Python<'py>,
        container: &Container,
        tensors: Option<String>,
        forms: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Vec<Within<'py>>> {
        let tensors = tensors.map(Rc::from).or_else(|| self.tensors.clone());
        let mut children = room_for(container.len())?;
        for child in 0..container.len() {
            let form = match (forms, container.key(py, child)) {
                (Some(forms), Some(key)) => forms.get_item(key)?,
                _ => None,
            };
            let form = form.map(|form| form.extract()).transpose()?;
            children.push(Within { tensors: tensors.clone(), form });
        }
        Ok(children)
    }

    /// Form and arguments of a leaf for which a spec or its class has them.
    ///
    /// # Errors
    /// A spec of another form for a leaf that is to be a torch tensor.
    pub fn options(
        &self,
        specs: &mut Specs<'_, 'py>,
        common: Option<&Bound<'py, PyDict>>,
        path: &str,
    ) -> PyResult<Option<Options<'py>>> {
        let named = specs.find(path, common)?;
        let own = self.form.as_ref();
        let form = own.map_or("stack", |(form, _)| form.as_str());
        if let (Some(class), Some((given, _))) = (&self.tensors, &named) {
            if given != form {
                return Err(PyValueError::new_err(format!(
                    "the spec{} is that of wr.{given}: leaves within {class} are torch tensors, which wr.{form} makes",
                    at(path)
                )));
            }
        }
        match (named, own) {
            (None, None) => Ok(None),
            (Some((form, kwargs)), None) => {
                Options::parse(form_of(&form)?, Some(&kwargs)).map(Some)
            }
            (named, Some((form, own))) => {
                let given = named.as_ref().map(|(_, kwargs)| kwargs).or(common);
                let kwargs = match given {
                    Some(given) => given.copy()?,
                    None => PyDict::new(own.py()),
                };
                kwargs.update(own.as_mapping())?;
                Options::parse(form_of(form)?, Some(&kwargs)).map(Some)
            }
        }
    }
}

/// The leaves met so far.
pub(super) struct Leaves<'a, 'py> {
    pub py: Python<'py>,
    /// Of the call, and of leaves that no spec names.
    pub options: &'a Options<'py>,
    /// Options of the call, which those of a spec are added to.
    pub common: Option<&'a Bound<'py, PyDict>>,
    pub may_start: bool,
    pub specs: Specs<'a, 'py>,
    pub jobs: Vec<Job>,
    pub borrowed: Option<BorrowedLeaves<'py>>,
}

impl<'py> Leaves<'_, 'py> {
    /// A leaf whose samples `import` reads.
    pub fn add(
        &mut self,
        path: String,
        out: Option<Bound<'py, PyAny>>,
        within: &Within<'py>,
        import: impl FnOnce(Reading<'_>) -> PyResult<(Arc<Imported>, Option<RowsAhead>)>,
    ) -> PyResult<ResultNode<'py>> {
        let mut options = match within.options(&mut self.specs, self.common, &path)? {
            Some(options) => options,
            None => Options { out: None, ..self.options.clone() },
        };
        options.out = out.or(options.out);
        options.may_start = self.may_start;
        if options.stream != self.options.stream {
            return Err(PyValueError::new_err("stream= is an argument of the call, not of a leaf"));
        }
        let mut job = Job::new(options, path, import)?;
        job.is_form_fixed = within.tensors.is_some();
        self.jobs.push(job);
        let is_torch = within.tensors.is_some() && within.form.is_none();
        Ok(ResultNode::Leaf { position: self.jobs.len() - 1, is_torch })
    }
}
