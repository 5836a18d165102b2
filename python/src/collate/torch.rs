//! `collate_torch`: a list of trees to one tree of torch tensors, by the rules of `default_collate`.
//!
//! Python says what each type is (`rules`), `trees::torch_rules` what its children are; all leaves are assembled in one plan.
//! A column that the engine does not take, or that torch would make something else of, goes to torch's
//! own function: it knows what the result is, or which error is due.

use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use windrow::observe::{Span, Stage};
use windrow::plan::BatchShape;
use windrow::{Batch, Collate, Device, Error};

use crate::collate::forms::COLLATE;
use crate::collate::job::job_error;
use crate::collate::leaves::{
    unflatten, ClassRules, Column, JobResult, Leaves, NodeInput, ResultLeaf, TorchArgument,
};
use crate::collate::options::Options;
use crate::collate::run::{arena_bytes, ArenaMemory, Run};
use crate::collate::specs::Specs;
use crate::collate::tree::read_before;
use crate::export::libraries;
use crate::export::number::row_of_numbers;
use crate::ground::batch::PyBatch;
use crate::ground::dtype::{in_other_order, typestr_of};
use crate::ground::errors::{answered, at, is_answer, OrPyErr};
use crate::ground::iterables::{is_list_or_tuple, items_of};
use crate::ground::logging::LogScope;
use crate::ground::reserve::try_vec;
use crate::ground::tensor::PyTensor;
use crate::import::importer::Reading;
use crate::import::routes::keeps_gradients;
use crate::import::tensor::tensor_of;
use crate::samples::imported::Imported;
use crate::trees::container::ColumnPlace;
use crate::trees::flatten::{flatten, Classified, TreeRules};
use crate::trees::rules::{self, FlattenedColumn};
use crate::trees::torch_rules::{open_mappings, open_namedtuples, open_sequences};
use crate::trees::tree_def::TreeDef;

/// The kind of a type, by `rules.codes` and `rules.classify`.
#[derive(Clone, Copy, PartialEq)]
enum TorchType {
    Tensor,
    Array,
    Number,
    /// Strings: the column itself is the result.
    Text,
    Mapping,
    /// A namedtuple.
    Named,
    Sequence,
    /// A type that is left to torch's function.
    Other,
    /// A class that torch's function stacks, and `windrow.collate` sooner.
    Stacked,
    /// A class that only `windrow.collate` knows.
    Class,
    /// A class like `Class`, but torch's function refuses it unless there is a spec.
    Fields,
}

/// The kinds, in the order of their codes in `torch/_registry.py`.
const KINDS: [TorchType; 11] = {
    use TorchType::*;
    [Tensor, Array, Number, Text, Mapping, Named, Sequence, Other, Stacked, Class, Fields]
};

impl TorchType {
    /// The kind of this code; TypeError for a number that no kind has, OverflowError for one below 0.
    fn read(code: &Bound<'_, PyAny>) -> PyResult<TorchType> {
        let code = code.extract::<usize>()?;
        KINDS.get(code).copied().ok_or_else(|| PyTypeError::new_err(format!("type {code}")))
    }
}

/// The rules of torch's `default_collate`, for one call.
struct TorchCall<'a, 'py> {
    leaves: Leaves<'a, 'py>,
    rules: &'a Bound<'py, PyAny>,
    /// The kind of each type that is known.
    codes: Bound<'py, PyDict>,
    /// The function that gives memory for outputs; without one the engine does.
    allocate: Option<Bound<'py, PyAny>>,
    /// Whether all outputs are in one allocation, which `allocate` gives by the byte.
    in_arena: bool,
    /// Whether the caller says on which device the batch is placed.
    is_placed: bool,
    has_spec: bool,
    /// Whether leaves without a spec are left to torch's functions.
    by_torch: bool,
    /// Whether leaves are within objects that torch's function stacks if one of them is not for the engine.
    in_stack: bool,
    /// torch's first error, which is raised unless a spec that matches no leaf is the reason.
    error: Option<PyErr>,
}

/// Collates like `collate`, by the rules of ``default_collate`` of torch; see ``windrow.torch``. A batch on the host is complete
/// at the return, the work on a device is enqueued.
#[pyfunction]
#[pyo3(name = "_collate_torch", signature = (samples, rules, spec = None, *, sep = ".", by_torch = false, **common), text_signature = "(samples, rules, spec=None, *, sep='.', by_torch=False, device=None, stream=None, engine=None)")]
pub(crate) fn collate_torch<'py>(
    samples: &Bound<'py, PyAny>,
    rules: &Bound<'py, PyAny>,
    spec: Option<&Bound<'py, PyAny>>,
    sep: &str,
    by_torch: bool,
    common: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = samples.py();
    let _log_scope = LogScope::for_call(py);
    let column = match read_before(samples, sep)? {
        Some(column) => column,
        None => {
            // torch does this first, which gives the error of an empty or unfit batch.
            samples.get_item(0)?;
            Column::Objects(items_of(samples)?, TorchArgument::Object(samples.clone()))
        }
    };
    let allocate = rules.getattr(intern!(py, "allocate"))?;
    let in_arena = rules.getattr(intern!(py, "arena"))?.is_truthy()?;
    let options = Options { may_start: !in_arena, ..Options::parse(&COLLATE, common)? };
    let engine = options.engine.clone();
    let (specs, jobs) = (Specs::new(spec, sep)?, Vec::new());
    let mut call = TorchCall {
        leaves: Leaves { py, options, common, specs, jobs },
        rules,
        codes: rules.getattr(intern!(py, "codes"))?.cast_into::<PyDict>()?,
        allocate: (!allocate.is_none()).then_some(allocate),
        in_arena,
        is_placed: matches!(common, Some(common) if common.contains("device")?),
        has_spec: spec.is_some(),
        by_torch,
        in_stack: false,
        error: None,
    };
    let span = engine.enter(Stage::Import);
    let (tree, leaves) =
        call.tree(NodeInput { column, within: ClassRules::default() }, String::new())?;
    call.leaves.specs.all_used()?;
    if let Some(error) = call.error {
        return Err(error);
    }
    let mut results = if call.in_arena { call.run_in_arena(span)? } else { call.run(span)? };
    unflatten(py, &tree, leaves, &mut |_| {
        results.pop().ok_or_else(|| PyValueError::new_err("a leaf without a batch"))
    })
}

impl<'py> TreeRules<'py> for TorchCall<'_, 'py> {
    type Column = NodeInput<'py>;
    type Leaf = (TorchType, NodeInput<'py>);

    /// The column has the kind of its first sample; a list or tuple at a path that a spec names is an array. Text is passed as it
    /// is. Objects of a class are opened as `Class`, as `Fields` with a spec, and as `Stacked` with a spec or in a stack.
    fn classify(
        &mut self,
        NodeInput { column, within }: NodeInput<'py>,
        place: ColumnPlace<'_>,
        _: bool,
    ) -> PyResult<Classified<NodeInput<'py>, Self::Leaf>> {
        let (samples, given) = match column {
            Column::Objects(samples, given) => (samples, given),
            Column::Container(container, columns) => {
                return Ok(within.container(container, columns));
            }
            Column::Failed(error) => return Err(*error),
            column => {
                return Ok(Classified::Leaf((TorchType::Other, NodeInput { column, within })))
            }
        };
        let first = &samples[0];
        let torch_type = match self.type_of(first)? {
            // A spec is for it.
            _ if is_list_or_tuple(first) && self.leaves.specs.names(place.path) => TorchType::Array,
            torch_type => torch_type,
        };
        let ((container, columns), given) = match torch_type {
            TorchType::Mapping => {
                (open_mappings(&samples, self.rules, place)?, TorchArgument::List)
            }
            TorchType::Named => (open_namedtuples(&samples, self.rules)?, TorchArgument::Tuple),
            TorchType::Sequence => (open_sequences(&samples, self.rules)?, TorchArgument::Tuple),
            TorchType::Text => {
                let column = Column::Passed(given.object(self.leaves.py, samples)?);
                return Ok(Classified::Leaf((torch_type, NodeInput { column, within })));
            }
            TorchType::Stacked if self.has_spec || self.in_stack => {
                return self.flatten_class(samples, given, within, place);
            }
            TorchType::Fields if self.has_spec => {
                return self.flatten_class(samples, given, within, place);
            }
            TorchType::Class => return self.flatten_class(samples, given, within, place),
            _ => {
                let column = Column::Objects(samples, given);
                return Ok(Classified::Leaf((torch_type, NodeInput { column, within })));
            }
        };
        let column = |column| match column {
            Ok(samples) => Column::Objects(samples, given.clone()),
            Err(error) => Column::Failed(Box::new(error)),
        };
        let columns = columns.into_iter().map(column).collect();
        Ok(within.container(Arc::new(container), columns))
    }
}

impl<'py> TorchCall<'_, 'py> {
    /// Opens a column of objects of a class by the rules of `collate`; one that they do not know is a leaf for torch's function.
    fn flatten_class(
        &self,
        samples: Vec<Bound<'py, PyAny>>,
        given: TorchArgument<'py>,
        within: ClassRules<'py>,
        place: ColumnPlace<'_>,
    ) -> PyResult<Classified<NodeInput<'py>, (TorchType, NodeInput<'py>)>> {
        let Some(flattened) = rules::flatten_container(&samples, place, false, None)? else {
            let column = Column::Objects(samples, given);
            return Ok(Classified::Leaf((TorchType::Other, NodeInput { column, within })));
        };
        let FlattenedColumn { container, columns, forms, tensors } = flattened;
        let within = within.for_children(self.leaves.py, &container, tensors, forms.as_ref())?;
        let columns = columns.into_lists()?.into_iter().map(Column::from_objects).zip(within);
        let nodes = columns.map(|(column, within)| NodeInput { column, within }).collect();
        Ok(Classified::Container(Arc::new(container), nodes))
    }

    /// The kind of a sample's type: that of `rules.codes`, else what `rules.classify` says of the sample.
    fn type_of(&self, sample: &Bound<'py, PyAny>) -> PyResult<TorchType> {
        match self.codes.get_item(sample.get_type())? {
            Some(code) => TorchType::read(&code),
            None => TorchType::read(
                &self.rules.call_method1(intern!(self.leaves.py, "classify"), (sample,))?,
            ),
        }
    }

    /// Flattens a tree and reads its leaves, whose jobs are appended. The error of a leaf comes before that of the structure.
    fn tree(
        &mut self,
        root: NodeInput<'py>,
        path: String,
    ) -> PyResult<(TreeDef, Vec<ResultLeaf<'py>>)> {
        let sep = self.leaves.specs.sep();
        let flat = flatten(self.leaves.py, self, root, path, sep);
        let mut leaves = try_vec(flat.leaves.len())?;
        for (path, (torch_type, node)) in flat.leaves {
            leaves.push(self.leaf(torch_type, node, path)?);
        }
        flat.end?;
        Ok((flat.tree, leaves))
    }

    /// Appends the job of a leaf, or takes what torch's function makes of it: of tensors that keep gradients, and with `by_torch` of
    /// each leaf without options. A passed column is the result itself. A leaf in a stack, or one with options that is not
    /// `Stacked`, does not go to torch's function: the error is the engine's refusal, unless `joined` makes a result.
    fn leaf(
        &mut self,
        torch_type: TorchType,
        NodeInput { column, within }: NodeInput<'py>,
        path: String,
    ) -> PyResult<ResultLeaf<'py>> {
        let (samples, given) = match column {
            Column::Passed(object) => {
                self.leaves.specs.pass(&path);
                return Ok(ResultLeaf::Object(object));
            }
            Column::Objects(samples, given) => (samples, given),
            column => {
                let options = self.leaves.options_of(&within, &path)?;
                return self.leaves.add(options.as_ref(), path, column, &within, None);
            }
        };
        if torch_type == TorchType::Stacked {
            return self.stacked(samples, given, within, path);
        }
        if let Some(options) = self.leaves.options_of(&within, &path)? {
            let column = Column::from_objects(samples.clone());
            let leaf = self.leaves.add(Some(&options), path, column, &within, None);
            return leaf.or_else(|refusal| self.joined(samples, &within, refusal));
        }
        // torch's function is asked first, and why only if it refuses: to say that takes longer than a small batch.
        let is_tensor = torch_type == TorchType::Tensor && !self.in_stack && !self.by_torch;
        if is_tensor && keeps_gradients(&samples[0])? {
            return self.other(samples, given, None, Some(&path));
        }
        let refusal = match self.by_torch {
            true => None,
            false => match self.try_leaf(torch_type, &samples, &path)? {
                Ok(leaf) => return Ok(leaf),
                Err(refusal) => refusal,
            },
        };
        if self.in_stack {
            let text = || format!("a leaf{} that torch assembles", at(&path));
            return Err(refusal.unwrap_or_else(|| PyTypeError::new_err(text())));
        }
        // The import of an object of an unknown type may find what is wrong.
        let unread = (torch_type == TorchType::Other).then_some(path.as_str());
        self.other(samples, given, refusal, unread)
    }

    /// Objects of a class that torch's function stacks too: it gets the column if any leaf is not for the engine, and
    /// unread with `by_torch`. An error that is no answer is passed on.
    fn stacked(
        &mut self,
        samples: Vec<Bound<'py, PyAny>>,
        given: TorchArgument<'py>,
        within: ClassRules<'py>,
        path: String,
    ) -> PyResult<ResultLeaf<'py>> {
        if self.by_torch {
            return self.other(samples, given, None, None);
        }
        let num_jobs = self.leaves.jobs.len();
        let column = Column::Objects(samples.clone(), given.clone());
        self.in_stack = true;
        let made = self.tree(NodeInput { column, within }, path);
        self.in_stack = false;
        match made {
            Err(refusal) if is_answer(self.leaves.py, &refusal) => {
                self.leaves.jobs.truncate(num_jobs);
                self.other(samples, given, Some(refusal), None)
            }
            made => made.map(|(tree, leaves)| ResultLeaf::Tree(tree, leaves)),
        }
    }

    /// The result of `rules.joined`, with gradients, of a leaf that its class has a form for and the engine refused. `refusal` is
    /// the error where there is a spec, for other leaves, and if nothing is made; errors of `rules.joined` are passed on.
    fn joined(
        &self,
        samples: Vec<Bound<'py, PyAny>>,
        within: &ClassRules<'py>,
        refusal: PyErr,
    ) -> PyResult<ResultLeaf<'py>> {
        let py = self.leaves.py;
        let Some((form, kwargs)) = within.form.as_deref().filter(|_| !self.has_spec) else {
            return Err(refusal);
        };
        if !is_answer(py, &refusal) {
            return Err(refusal);
        }
        let list = TorchArgument::List.object(py, samples)?;
        let made = self.rules.call_method1(intern!(py, "joined"), (list, form, kwargs))?;
        match made.is_none() {
            true => Err(refusal),
            false => Ok(ResultLeaf::Object(made)),
        }
    }

    /// The result of torch's function for a column. An error without a cause gets one: `refusal`, the reason why the leaf is not
    /// for the engine, or what an import of the leaf at the path `unread` finds. With a spec, the first error is kept and None takes
    /// the place of the leaf.
    fn other(
        &mut self,
        samples: Vec<Bound<'py, PyAny>>,
        given: TorchArgument<'py>,
        refusal: Option<PyErr>,
        unread: Option<&str>,
    ) -> PyResult<ResultLeaf<'py>> {
        let py = self.leaves.py;
        let unread = unread.map(|path| (path.to_owned(), Column::from_objects(samples.clone())));
        let column = given.object(py, samples)?;
        match self.rules.call_method1(intern!(py, "other"), (column,)) {
            Ok(done) => Ok(ResultLeaf::Object(done)),
            Err(error) => {
                let refusal = refusal.or_else(|| {
                    let (path, column) = unread?;
                    self.leaves.job(None, path, column, &ClassRules::default(), None).err()
                });
                // torch's error, and what is wrong with which sample.
                if let (Some(refusal), None) = (refusal, error.cause(py)) {
                    error.set_cause(py, Some(refusal));
                }
                if self.leaves.specs.is_empty() || !is_answer(py, &error) {
                    return Err(error);
                }
                // A spec that meets no leaf may be the reason, which is known at the end.
                self.error.get_or_insert(error);
                Ok(ResultLeaf::Object(py.None().into_bound(py)))
            }
        }
    }

    /// Appends the job of a leaf as torch would stack it; plain numbers may become a torch tensor at once. If the leaf
    /// is not for the engine, nothing is appended and the reason is returned, if it is known; samples that are not alike are
    /// assembled to find it. Page-locked samples become a batch in pageable memory unless the call names a device.
    fn try_leaf(
        &mut self,
        torch_type: TorchType,
        samples: &[Bound<'py, PyAny>],
        path: &str,
    ) -> PyResult<Result<ResultLeaf<'py>, Option<PyErr>>> {
        let py = self.leaves.py;
        let of_one_type = || {
            let class = samples[0].get_type();
            samples.iter().all(|sample| sample.get_type().is(&class))
        };
        let column = if torch_type == TorchType::Other {
            return Ok(Err(None));
        } else if torch_type == TorchType::Number {
            let Some(row) = of_one_type().then(|| row_of_numbers(samples)).transpose()?.flatten()
            else {
                return Ok(Err(None));
            };
            if self.allocate.is_none() && !self.is_placed && !self.in_arena {
                return Ok(Ok(ResultLeaf::Object(libraries::torch(py, &row)?)));
            }
            Column::Imported(Arc::new(Imported::from_rows(py, row)?))
        } else {
            Column::from_objects(samples.to_vec())
        };
        let within = ClassRules::default();
        let job = self.leaves.job(None, path.to_owned(), column, &within, None);
        let mut job = match answered(py, job)? {
            Ok(job) => job,
            Err(refusal) => return Ok(Err(Some(refusal))),
        };
        // Objects are looked at after the import, which prefetches their memory.
        if !of_one_type() {
            return Ok(Err(None));
        }
        let list = &job.samples.list;
        let is_swapped = |&index: &usize| !list.meta(index).dtype.is_native();
        if list.metas().iter().any(|meta| !meta.dtype.is_native()) {
            if let Some(index) = (0..list.len()).find(is_swapped) {
                // torch has no such tensors.
                let error = Error::DType(in_other_order(Some(index), list.meta(index).dtype));
                return Ok(Err(Some(job_error(py, &error.at_path(&job.path), [&job]))));
            }
        }
        let metas = list.metas();
        let first = &metas[0];
        // torch promotes, and refuses what NumPy steps through backwards or has a dtype of others.
        let is_alike = metas.iter().all(|meta| {
            meta.dtype == first.dtype
                && meta.device == first.device
                && meta.layout.shape() == first.layout.shape()
                && meta.layout.strides().iter().all(|&stride| stride >= 0)
        });
        let is_foreign = torch_type == TorchType::Array && typestr_of(first.dtype).is_none();
        let is_remote = matches!(first.device, Device::Cuda(_)) && self.allocate.is_some();
        if !is_alike {
            let engine = &self.leaves.options.engine;
            let refusal = Run::new(py, engine, engine.now()).jobs(&mut [job]).err();
            return Ok(Err(refusal));
        }
        if is_foreign || is_remote {
            return Ok(Err(None));
        }
        if first.device == Device::Pinned && !self.is_placed {
            job.collate = Arc::new(Collate::clone(&job.collate).device(Device::Cpu));
        }
        self.leaves.jobs.push(job);
        Ok(Ok(ResultLeaf::Job(JobResult::Torch)))
    }

    /// Asks for the memory of all outputs at once, by `rules.allocate_parts` if the samples of any job stay separate, else by
    /// `allocate`, and has the jobs write there. For each job the torch tensor that it writes to; `None` where the memory is
    /// windrow's, and for all jobs without `allocate`. ValueError for another number of tensors.
    fn place_outputs(&mut self) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let (py, jobs) = (self.leaves.py, &mut self.leaves.jobs);
        let Some(allocate) = self.allocate.as_ref().filter(|_| !jobs.is_empty()) else {
            return Ok(vec![None; jobs.len()]);
        };
        let (outputs, mut part_bytes) = (PyList::empty(py), try_vec(jobs.len())?);
        for job in &*jobs {
            let shape = BatchShape::new(&job.samples.list, &job.collate);
            let shape = shape.map_err(|error| job_error(py, &error.at_path(&job.path), [job]))?;
            let (extents, bytes) = (shape.shape(), shape.dtype.size() as i64);
            part_bytes.push(job.is_part().then(|| bytes * extents.iter().product::<i64>()));
            outputs.append((shape.dtype.name(), PyTuple::new(py, extents.iter())?))?;
        }
        let tensors = match part_bytes.iter().any(Option::is_some) {
            true => self.rules.call_method1("allocate_parts", (outputs, part_bytes))?,
            false => allocate.call1((outputs,))?,
        };
        let tensors: Vec<Bound<'py, PyAny>> = tensors.extract()?;
        if tensors.len() != jobs.len() {
            return Err(PyValueError::new_err("another number of tensors than of outputs"));
        }
        for (job, tensor) in jobs.iter_mut().zip(&tensors) {
            job.write_to(tensor)?;
        }
        // Memory of windrow's becomes a torch tensor when it has been written.
        let torch =
            |tensor: Bound<'py, PyAny>| (!tensor.is_instance_of::<PyTensor>()).then_some(tensor);
        Ok(tensors.into_iter().map(torch).collect())
    }

    /// A batch for each job, in order, as [`Run::jobs`]; ends the stage `import`.
    fn run_jobs(&mut self, arena: ArenaMemory, import: Span<'_>) -> PyResult<Vec<Batch>> {
        let Leaves { py, options, jobs, .. } = &mut self.leaves;
        Run { py: *py, engine: &options.engine, arena, begin: import.end() }.jobs(jobs)
    }

    /// Runs the jobs: a torch tensor for each, or what `rules.fields` makes of a batch with more than data. A single job gives its
    /// sample. `import`: the stage that ends when the outputs have their places.
    fn run(&mut self, import: Span<'_>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (outs, py) = (self.place_outputs()?, self.leaves.py);
        let batches = self.run_jobs(ArenaMemory::No, import)?.into_iter().zip(outs);
        let results = batches.zip(&self.leaves.jobs).map(|((batch, out), job)| {
            if job.is_single {
                let sample = || libraries::torch(py, &batch.sample(0).or_py_err(py)?);
                return out.map_or_else(sample, |out| out.get_item(0));
            }
            let data = out.map_or_else(|| libraries::torch(py, batch.data()), Ok)?;
            if batch.lengths().is_none() && batch.offsets().is_none() && batch.scales().is_none() {
                return Ok(data);
            }
            let batch = Bound::new(py, PyBatch::from(batch))?;
            self.rules.call_method1(intern!(py, "fields"), (data, batch))
        });
        results.collect()
    }

    /// Does what `run` does, with every tensor a view of one: of the segment that `allocate` gives, or of the engine's
    /// memory. `allocate` is not called without jobs.
    fn run_in_arena(&mut self, import: Span<'_>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (py, jobs) = (self.leaves.py, &self.leaves.jobs);
        let (mut arena, mut segment) = (ArenaMemory::Own, None);
        if let Some(allocate) = self.allocate.as_ref().filter(|_| !jobs.is_empty()) {
            let bytes = arena_bytes(jobs).map_err(|error| job_error(py, &error, jobs))?;
            let tensor = allocate.call1((bytes,))?;
            arena = ArenaMemory::Given(tensor_of(&tensor, "arena", Reading::OWNED)?);
            segment = (!tensor.is_instance_of::<PyTensor>()).then_some(tensor);
        }
        let batches = self.run_jobs(arena, import)?;
        let results = batches.into_iter().zip(&self.leaves.jobs).map(|(batch, job)| {
            let batch = Bound::new(py, PyBatch::from(batch))?;
            let tensor = self.rules.call_method1(intern!(py, "views"), (batch, &segment))?;
            if job.is_single {
                tensor.get_item(0)
            } else {
                Ok(tensor)
            }
        });
        results.collect()
    }
}
