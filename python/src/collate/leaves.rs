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
use crate::trees::flatten::Classified;
use crate::trees::tree_def::TreeDef;

/// The objects at one place of all samples, and the rules for them.
pub(super) struct NodeInput<'py> {
    pub column: Column<'py>,
    /// The rules of the class of the container around it.
    pub within: ClassRules<'py>,
}

/// The content of one place of all samples, read or not.
pub(super) enum Column<'py> {
    /// Objects that were not looked at yet, one for each sample, and the object that torch's functions are given for them.
    Objects(Vec<Bound<'py, PyAny>>, TorchArgument<'py>),
    /// A leaf that was read together with others of its container.
    Read(ImportedColumn),
    /// A leaf that was imported before.
    Imported(Arc<Imported>),
    /// A container that was taken apart before, as in a list of trees, with the columns of its children.
    Container(Arc<Container>, Vec<Column<'py>>),
    /// A leaf whose result is this object: it has no job.
    Passed(Bound<'py, PyAny>),
    /// The error of reading it, which is raised when the leaf is imported.
    Failed(Box<PyErr>),
}

/// The object that torch's functions are given for a column: a list or tuple of its samples, or an object of the caller's.
#[derive(Clone)]
pub(super) enum TorchArgument<'py> {
    List,
    /// A tuple, the type that `zip` yields.
    Tuple,
    Object(Bound<'py, PyAny>),
}

impl<'py> TorchArgument<'py> {
    /// The object that torch's functions are given for these samples.
    pub fn object(
        self,
        py: Python<'py>,
        samples: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self {
            TorchArgument::Object(object) => Ok(object),
            TorchArgument::List => Ok(list_of(py, samples)?.into_any()),
            TorchArgument::Tuple => Ok(list_of(py, samples)?.as_sequence().to_tuple()?.into_any()),
        }
    }
}

impl<'py> Column<'py> {
    /// A column of objects that torch's functions get as a list.
    pub fn from_objects(objects: Vec<Bound<'py, PyAny>>) -> Column<'py> {
        Column::Objects(objects, TorchArgument::List)
    }

    /// The root column of a list of trees: containers, and leaves that are imported, or objects where they are texts.
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

    /// The samples of a leaf, and their copy ahead if one began. ValueError for a container and for an object that is passed on,
    /// LayoutError for samples that were imported before and whose memory has moved.
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
                samples.check_unmoved(py, reading.path)?;
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
pub(super) struct ClassRules<'py> {
    /// The name of the class around, if its leaves have to be torch tensors: the result of a leaf without `form` is one.
    pub tensors: Option<Rc<str>>,
    /// Form and arguments that the class has for this leaf.
    pub form: Option<Rc<(String, Bound<'py, PyDict>)>>,
}

impl<'py> ClassRules<'py> {
    /// The rules for children that their container has no rules for.
    fn around(&self) -> ClassRules<'py> {
        ClassRules { tensors: self.tensors.clone(), form: None }
    }

    /// A container that was taken apart into these columns, whose class has no rules for them.
    pub fn container<L>(
        &self,
        container: Arc<Container>,
        columns: Vec<Column<'py>>,
    ) -> Classified<NodeInput<'py>, L> {
        let node = |column| NodeInput { column, within: self.around() };
        Classified::Container(container, columns.into_iter().map(node).collect())
    }

    /// The rules for each child of `container`, in order: `tensors` or else the class around, and the entry of the child's key in
    /// `forms`.
    pub fn for_children(
        &self,
        py: Python<'py>,
        container: &Container,
        tensors: Option<String>,
        forms: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Vec<ClassRules<'py>>> {
        let around = ClassRules { tensors: tensors.map(Rc::from), form: None };
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

    /// Form and arguments of a leaf for which a spec or its class has them; the class's form and arguments take precedence
    /// over the spec's, its `dtype` only if it is int64. `None` if neither has: those of the call apply. Marks the spec's entry as used.
    ///
    /// # Errors
    /// ValueError for a spec of another form for a leaf that is to be a torch tensor, and for `copy=False` where the class asks
    /// for a copy.
    fn options(
        &self,
        specs: &mut Specs<'_, 'py>,
        common: Option<&Bound<'py, PyDict>>,
        path: &str,
    ) -> PyResult<Option<Options<'py>>> {
        let named = specs.find(path, common)?;
        let class_form = self.form.as_deref();
        let form = class_form.map_or("stack", |(form, _)| form.as_str());
        if let (Some(class), Some((given, _))) = (&self.tensors, &named) {
            if given != form {
                return Err(PyValueError::new_err(format!(
                    "the spec{} is that of wr.{given}: leaves within {class} are torch tensors, which wr.{form} makes",
                    at(path)
                )));
            }
        }
        let Some((form, form_kwargs)) = class_form else {
            let parse =
                |(form, kwargs): (String, _)| Options::parse(form_of(&form)?, Some(&kwargs));
            return named.map(parse).transpose();
        };
        let given = named.as_ref().map(|(_, kwargs)| kwargs).or(common);
        let kwargs =
            given.map_or_else(|| Ok(PyDict::new(form_kwargs.py())), |given| given.copy())?;
        let dtype = kwargs.get_item("dtype")?.filter(|dtype| !dtype.is_none());
        let copy = kwargs.get_item("copy")?.map(|copy| copy.extract::<Option<bool>>());
        if form_kwargs.contains("copy")? && matches!(copy, Some(Ok(Some(false)))) {
            let text =
                format!("leaf{}: copy=False asks for a view, its class for a copy", at(path));
            return Err(located(form_kwargs.py(), PyValueError::new_err(text), None, path));
        }
        kwargs.update(form_kwargs.as_mapping())?;
        // Bools that are raised become int64; the dtype of a class's floats yields to the caller's.
        let is_raised = form_kwargs.get_item("dtype")?.map_or(Ok(false), |own| own.eq("int64"))?;
        if let Some(dtype) = dtype.filter(|_| !is_raised) {
            kwargs.set_item("dtype", dtype)?;
        }
        Options::parse(form_of(form)?, Some(&kwargs)).map(Some)
    }
}

/// The leaves of one call.
pub(super) struct Leaves<'a, 'py> {
    pub py: Python<'py>,
    /// Options of the call, and of leaves that no spec names.
    pub options: Options<'py>,
    /// Keyword arguments of the call, under those of a spec.
    pub common: Option<&'a Bound<'py, PyDict>>,
    pub specs: Specs<'a, 'py>,
    pub jobs: Vec<Job>,
}

/// The result of a leaf.
pub(super) enum ResultLeaf<'py> {
    /// The result of the next job.
    Job(JobResult),
    /// A list of the one samples of the next jobs, of this number.
    List(usize),
    /// This object, without a job.
    Object(Bound<'py, PyAny>),
    /// A tree of results in place of the leaf.
    Tree(TreeDef, Vec<ResultLeaf<'py>>),
}

/// The form in which a job's batch is returned.
#[derive(Clone, Copy)]
pub(super) enum JobResult {
    Batch,
    /// A torch tensor, in a class whose leaves are such.
    Torch,
    /// The leaf's one sample.
    Sample,
}

impl<'py> Leaves<'_, 'py> {
    /// The options of a leaf by [`ClassRules::options`]; ValueError if its spec names a stream.
    pub fn options_of(
        &mut self,
        within: &ClassRules<'py>,
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

    /// Imports a leaf and appends its jobs to `jobs`: one, or for `wr.List` one for each sample. Without `options` those of the
    /// call apply, but for its `out`. `out` takes precedence over that of `options`; `wr.List` refuses both.
    pub fn add(
        &mut self,
        options: Option<&Options<'py>>,
        path: String,
        column: Column<'py>,
        within: &ClassRules<'py>,
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

    /// Imports a leaf as one job, which is not appended; `options` and `out` as for [`Leaves::add`]. A list or tuple of Python
    /// numbers is a sample where a key of the spec is exactly `path`. ValueError for scales of a leaf within a class whose leaves
    /// are torch tensors.
    pub fn job(
        &self,
        options: Option<&Options<'py>>,
        path: String,
        column: Column<'py>,
        within: &ClassRules<'py>,
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

/// ValueError for scales, `out=` and `copy=False` of samples that stay separate.
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

/// Makes the tree of results. `job` is called once for each job, the last one first, and returns its result.
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
