//! The leaves of the trees of one call: flattened to columns, made jobs of one plan, and put back as what the jobs give.

use std::rc::Rc;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::bindings::PipelinedCopy;

use crate::collate::forms::form_of;
use crate::collate::job::Job;
use crate::collate::options::Options;
use crate::collate::options_cache::CopyMode;
use crate::collate::specs::Specs;
use crate::ground::errors::{at, located};
use crate::ground::iterables::list_of;
use crate::ground::reserve::try_vec;
use crate::import::importer::Reading;
use crate::samples::column_import::ImportedColumn;
use crate::samples::imported::Imported;
use crate::samples::leaf_columns::{import_leaf, LeafColumn};
use crate::samples::trees::Trees;
use crate::trees::container::{ColumnPlace, Container};
use crate::trees::flatten::{Classified, TreeDef};

/// The same place of every sample.
pub(super) struct NodeInput<'py> {
    pub column: Column<'py>,
    /// The rules of the class of the container around it.
    pub within: Within<'py>,
}

pub(super) enum Column<'py> {
    /// Not yet looked at. What torch's functions are given for it, unless that is a list.
    Objects(Vec<Bound<'py, PyAny>>, Given<'py>),
    /// A leaf that was read with others of its container.
    Read(ImportedColumn),
    /// A leaf that was imported before.
    Imported(Arc<Imported>),
    /// Taken apart before, as in a list of trees.
    Container(Arc<Container>, Vec<Column<'py>>),
    /// A leaf that becomes this object.
    Passed(Bound<'py, PyAny>),
    /// Why it could not be read.
    Failed(Box<PyErr>),
}

#[derive(Clone)]
pub(super) enum Given<'py> {
    List,
    /// As `zip` gives them.
    Tuple,
    Object(Bound<'py, PyAny>),
}

impl<'py> Given<'py> {
    /// The object that torch's functions are given for these samples.
    pub fn object(
        self,
        py: Python<'py>,
        samples: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Given::Object(object) => Ok(object),
            Given::List => Ok(list_of(py, samples)?.into_any()),
            Given::Tuple => Ok(list_of(py, samples)?.as_sequence().to_tuple()?.into_any()),
        }
    }
}

impl<'py> Column<'py> {
    pub fn from_objects(objects: Vec<Bound<'py, PyAny>>) -> Column<'py> {
        Column::Objects(objects, Given::List)
    }

    /// The columns of samples that were taken apart before.
    pub fn from_trees(py: Python<'py>, trees: &Trees) -> PyResult<Column<'py>> {
        let (tree, columns) = trees.parts();
        let leaf = |leaf: usize| match &columns[leaf] {
            LeafColumn::Tensors(samples) => Ok(Column::Imported(Arc::clone(samples))),
            LeafColumn::Objects(objects) => {
                let mut samples = try_vec(objects.len())?;
                samples.extend(objects.iter().map(|object| object.bind(py).clone()));
                Ok(Column::from_objects(samples))
            }
        };
        tree.fold(leaf, |container, children| {
            Ok(Column::Container(Arc::clone(container), children))
        })
    }

    /// The samples of a leaf.
    fn import(
        self,
        py: Python<'py>,
        reading: Reading<'_>,
    ) -> PyResult<(Arc<Imported>, Option<PipelinedCopy>)> {
        match self {
            Column::Objects(samples, _) => {
                let place = ColumnPlace::new(reading.path, "");
                import_leaf(samples, place, |samples| {
                    let (samples, ahead) = Imported::from_objects(py, samples, 0, reading)?;
                    Ok((Arc::new(samples), ahead))
                })
            }
            Column::Read(column) => column.import(py, reading),
            Column::Imported(samples) => {
                samples.check_in_place(py, reading.path)?;
                Ok((samples, None))
            }
            Column::Failed(error) => Err(*error),
            Column::Container(..) | Column::Passed(_) => {
                Err(PyValueError::new_err("a leaf without samples"))
            }
        }
    }
}

/// The rules that a class has for the leaves in it.
#[derive(Clone, Default)]
pub(super) struct Within<'py> {
    /// The class whose leaves are torch tensors, if they are: those without a form are made such ones.
    pub tensors: Option<Rc<str>>,
    /// Form and arguments of this one.
    pub form: Option<Rc<(String, Bound<'py, PyDict>)>>,
}

impl<'py> Within<'py> {
    /// The rules for children that their container has no rules for.
    fn around(&self) -> Within<'py> {
        Within { tensors: self.tensors.clone(), form: None }
    }

    /// A container of these columns, taken apart before.
    pub fn container<L>(
        &self,
        container: Arc<Container>,
        columns: Vec<Column<'py>>,
    ) -> Classified<NodeInput<'py>, L> {
        let node = |column| NodeInput { column, within: self.around() };
        Classified::Container(container, columns.into_iter().map(node).collect())
    }

    /// The rules for the children of a column that was opened, by its class.
    pub fn of_children(
        &self,
        py: Python<'py>,
        container: &Container,
        tensors: Option<String>,
        forms: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Vec<Within<'py>>> {
        let around = Within { tensors: tensors.map(Rc::from), form: None };
        let around = if around.tensors.is_some() { around } else { self.around() };
        let mut children = try_vec(container.len())?;
        children.resize(container.len(), around);
        let Some(forms) = forms else { return Ok(children) };
        for (child, within) in children.iter_mut().enumerate() {
            let form = container.key(py, child).map_or(Ok(None), |key| forms.get_item(key))?;
            within.form = form.map(|form| form.extract().map(Rc::new)).transpose()?;
        }
        Ok(children)
    }

    /// Form and arguments of a leaf for which a spec or its class has them.
    ///
    /// # Errors
    /// A spec of another form for a leaf that is to be a torch tensor.
    fn options(
        &self,
        specs: &mut Specs<'_, 'py>,
        common: Option<&Bound<'py, PyDict>>,
        path: &str,
    ) -> PyResult<Option<Options<'py>>> {
        let named = specs.find(path, common)?;
        let own = self.form.as_deref();
        let form = own.map_or("stack", |(form, _)| form.as_str());
        if let (Some(class), Some((given, _))) = (&self.tensors, &named) {
            if given != form {
                return Err(PyValueError::new_err(format!(
                    "the spec{} is that of wr.{given}: leaves within {class} are torch tensors, which wr.{form} makes",
                    at(path)
                )));
            }
        }
        let Some((form, own)) = own else {
            let parse =
                |(form, kwargs): (String, _)| Options::parse(form_of(&form)?, Some(&kwargs));
            return named.map(parse).transpose();
        };
        let given = named.as_ref().map(|(_, kwargs)| kwargs).or(common);
        let kwargs = given.map_or_else(|| Ok(PyDict::new(own.py())), |given| given.copy())?;
        kwargs.update(own.as_mapping())?;
        Options::parse(form_of(form)?, Some(&kwargs)).map(Some)
    }
}

/// The leaves of one call.
pub(super) struct Leaves<'a, 'py> {
    pub py: Python<'py>,
    /// Options of the call, and of leaves that no spec names.
    pub options: Options<'py>,
    /// Options of the call, which those of a spec are added to.
    pub common: Option<&'a Bound<'py, PyDict>>,
    pub specs: Specs<'a, 'py>,
    pub jobs: Vec<Job>,
}

/// The result of a leaf.
pub(super) enum ResultLeaf<'py> {
    /// The result of the next job.
    Job(JobResult),
    /// A list of the samples of this number of jobs.
    List(usize),
    Object(Bound<'py, PyAny>),
    /// A tree in its place.
    Tree(TreeDef, Vec<ResultLeaf<'py>>),
}

/// The form in which a job's batch is returned.
#[derive(Clone, Copy)]
pub(super) enum JobResult {
    Batch,
    /// A torch tensor, in a class whose leaves are such.
    Torch,
    /// Its one sample.
    Sample,
}

impl<'py> Leaves<'_, 'py> {
    /// Form and arguments of a leaf for which a spec or its class has them.
    pub fn options_of(
        &mut self,
        within: &Within<'py>,
        path: &str,
    ) -> PyResult<Option<Options<'py>>> {
        let mut options = within.options(&mut self.specs, self.common, path)?;
        if let Some(options) = &mut options {
            if options.stream != self.options.stream {
                let text = "stream= is an argument of the call, not of a leaf";
                return Err(PyValueError::new_err(text));
            }
            options.may_start = self.options.may_start;
        }
        Ok(options)
    }

    /// Adds the jobs of a leaf; without `options` it is one by those of the call.
    pub fn add(
        &mut self,
        options: Option<&Options<'py>>,
        path: String,
        column: Column<'py>,
        within: &Within<'py>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<ResultLeaf<'py>> {
        if let Some(options) = options.filter(|options| options.is_list) {
            let out = out.or(options.out.as_ref()).filter(|out| !out.is_none());
            check_list(self.py, options, &path, out.is_some())?;
            // Samples that already form the batch are copied all the same.
            let copy = CopyMode::Always;
            let options = Options { out: None, copy, may_start: false, ..options.clone() };
            let job = self.job(Some(&options), path, column, within, None)?;
            let first = self.jobs.len();
            self.jobs.extend(job.singles(self.py)?);
            return Ok(ResultLeaf::List(self.jobs.len() - first));
        }
        let job = self.job(options, path, column, within, out)?;
        self.jobs.push(job);
        Ok(ResultLeaf::Job(match within.tensors.is_some() && within.form.is_none() {
            true => JobResult::Torch,
            false => JobResult::Batch,
        }))
    }

    /// A job of the samples of a leaf; without `options` by those of the call.
    pub fn job(
        &self,
        options: Option<&Options<'py>>,
        path: String,
        column: Column<'py>,
        within: &Within<'py>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Job> {
        let out_of_spec = options.and_then(|options| options.out.as_ref());
        let options = options.unwrap_or(&self.options);
        if options.collate.is_quantised() {
            if let Some(class) = &within.tensors {
                let text = format!(
                    "leaf{}: leaves within {class} are torch tensors, which have no scales",
                    at(&path)
                );
                return Err(located(self.py, PyValueError::new_err(text), None, &path));
            }
        }
        let rows = self.specs.names(&path);
        let out = out.or(out_of_spec);
        let import = |reading: Reading<'_>| column.import(self.py, Reading { rows, ..reading });
        let mut job = Job::new(options, out, path, import)?;
        job.is_form_fixed = within.tensors.is_some();
        Ok(job)
    }
}

/// Refuses options for samples that stay separate.
fn check_list(py: Python<'_>, options: &Options<'_>, path: &str, has_out: bool) -> PyResult<()> {
    let is_rescaled = options.collate.is_quantised() || options.collate.is_dequantised();
    let refused = match (has_out, options.copy) {
        _ if is_rescaled => {
            "wr.List has no place for scales: give another spec, or another transform="
        }
        (true, _) => "out= has no place for the tensors of wr.List: give None there",
        (_, CopyMode::Never) => "copy=False asks for a view, wr.List for a copy",
        _ => return Ok(()),
    };
    let error = PyValueError::new_err(format!("leaf{}: {refused}", at(path)));
    Err(located(py, error, None, path))
}

/// The tree of results. `job`: gives what each job made, the last one first.
pub(super) fn unflatten<'py>(
    py: Python<'py>,
    tree: &TreeDef,
    mut leaves: Vec<ResultLeaf<'py>>,
    job: &mut dyn FnMut(JobResult) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    tree.unflatten(py, |_| match leaves.pop() {
        Some(ResultLeaf::Job(result)) => job(result),
        Some(ResultLeaf::List(count)) => {
            let list = (0..count).map(|_| job(JobResult::Sample)).collect::<PyResult<Vec<_>>>()?;
            Ok(list_of(py, list.into_iter().rev())?.into_any())
        }
        Some(ResultLeaf::Object(object)) => Ok(object),
        Some(ResultLeaf::Tree(tree, leaves)) => unflatten(py, &tree, leaves, job),
        None => Err(PyValueError::new_err("a tree with more leaves than results")),
    })
}
