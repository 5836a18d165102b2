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
use windrow::{BatchShape, Collate, Device, Span, Stage};

use crate::collate::forms::COLLATE;
use crate::collate::job::{job_error, Job};
use crate::collate::leaves::Within;
use crate::collate::options::Options;
use crate::collate::parsed::CopyMode;
use crate::collate::run::{arena_bytes, run, ArenaMemory};
use crate::collate::specs::Specs;
use crate::collate::torch_node::{build, TorchNode, TorchType};
use crate::export::libraries;
use crate::export::number::row_of_numbers;
use crate::ground::batch::PyBatch;
use crate::ground::dtype::typestr_of;
use crate::ground::errors::{at, is_answer};
use crate::ground::iterables::{is_list_or_tuple, items_of, list_of};
use crate::ground::logging::Records;
use crate::import::importer::Reading;
use crate::import::tensor::tensor_of;
use crate::samples::columns;
use crate::samples::imported::Imported;
use crate::samples::table::table_in;
use crate::samples::trees::{ShapeNodeType, Trees};
use crate::trees::container::{ColumnPlace, Container};
use crate::trees::rules::{apart, Apart};
use crate::trees::torch_rules::TorchColumn;
use crate::trees::walk::{walk, Branch, Children};

/// A leaf for the engine.
struct TorchLeaf<'py> {
    job: Job,
    /// A spec or its class names its form, so that there may be lengths, offsets or a mask.
    is_named: bool,
    out: Option<Bound<'py, PyAny>>,
}

/// The same place of every sample.
struct TorchSite<'py> {
    /// An error of reading it is due when all before it are done. None: the next one of a table.
    column: Option<PyResult<TorchColumn<'py>>>,
    /// The rules of the class of the container around it.
    within: Within<'py>,
}

/// Where a column is.
struct At<'py> {
    path: String,
    depth: usize,
    within: Within<'py>,
}

struct Call<'a, 'py> {
    py: Python<'py>,
    rules: &'a Bound<'py, PyAny>,
    /// By type.
    codes: Bound<'py, PyDict>,
    /// Gives memory for outputs; without it the engine does.
    allocate: Option<Bound<'py, PyAny>>,
    /// All outputs are in one allocation, which `allocate` gives by the byte.
    in_arena: bool,
    common: Option<&'a Bound<'py, PyDict>>,
    options: Options<'py>,
    /// The caller says on which device the batch is placed.
    is_placed: bool,
    specs: Specs<'a, 'py>,
    has_spec: bool,
    /// Leaves without a spec are left to torch's functions.
    by_torch: bool,
    /// Within objects that torch's function stacks if a leaf is not for the engine.
    in_stack: bool,
    leaves: Vec<TorchLeaf<'py>>,
    /// torch's first.
    error: Option<PyErr>,
}

/// As `collate`, by the rules of ``default_collate`` of torch; see ``windrow.torch``.
#[pyfunction]
#[pyo3(signature = (samples, rules, spec = None, *, sep = ".", by_torch = false, **common), text_signature = "(samples, rules, spec=None, *, sep='.', by_torch=False, device=None, stream=None, engine=None)")]
pub(crate) fn collate_torch<'py>(
    samples: &Bound<'py, PyAny>,
    rules: &Bound<'py, PyAny>,
    spec: Option<&Bound<'py, PyAny>>,
    sep: &str,
    by_torch: bool,
    common: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = samples.py();
    let _records = Records::of_call(py);
    let table = table_in(samples, sep)?;
    let column = match &table {
        Some(table) if table.len() == 0 => {
            return Err(PyValueError::new_err("a table without rows makes no batch"));
        }
        Some(_) => None,
        None => {
            // What torch does first, with the error of an empty or unfit batch.
            samples.get_item(0)?;
            let items = items_of(samples)?;
            Some(Ok(TorchColumn { items, whole: Some(samples.clone()), zipped: false }))
        }
    };
    let allocate = rules.getattr(intern!(py, "allocate"))?;
    let mut call = Call {
        py,
        rules,
        codes: rules.getattr(intern!(py, "codes"))?.cast_into::<PyDict>()?,
        allocate: (!allocate.is_none()).then_some(allocate),
        in_arena: rules.getattr(intern!(py, "arena"))?.is_truthy()?,
        common,
        options: Options::parse(&COLLATE, common)?,
        is_placed: matches!(common, Some(common) if common.contains("device")?),
        specs: Specs::new(spec, sep)?,
        has_spec: spec.is_some(),
        by_torch,
        in_stack: false,
        leaves: Vec::new(),
        error: None,
    };
    let engine = call.options.engine.clone();
    let span = engine.enter(Stage::Import);
    let root = Branch::root(TorchSite { column, within: Within::default() });
    let tree = call.tree(root, table.as_ref())?;
    call.specs.all_used()?;
    if let Some(error) = call.error {
        return Err(error);
    }
    let results = if call.in_arena { call.run_in_arena(span)? } else { call.run(span)? };
    build(rules, &tree, &results)
}

impl<'py> Call<'_, 'py> {
    /// All nodes, each before its children.
    fn tree(
        &mut self,
        root: Branch<TorchSite<'py>>,
        table: Option<&Trees>,
    ) -> PyResult<Vec<TorchNode<'py>>> {
        let mut known = table.into_iter().flat_map(Trees::nodes);
        walk(root, |Branch { column: TorchSite { column, within }, path, depth }, children| {
            let at = At { path, depth, within };
            match column.transpose()? {
                Some(column) => self.node(column, at, children),
                None => match known.next() {
                    Some(node) => self.known_node(node, at, children),
                    None => Err(PyValueError::new_err("a table without a node")),
                },
            }
        })
    }

    /// One node; its children are visited next.
    fn node(
        &mut self,
        column: TorchColumn<'py>,
        at: At<'py>,
        children: &mut Children<'_, TorchSite<'py>>,
    ) -> PyResult<TorchNode<'py>> {
        let first = &column.items[0];
        let apart = match self.type_of(first)? {
            torch_type if is_list_or_tuple(first) && self.specs.names(&at.path) => {
                return self.leaf(torch_type, column, at);
            }
            TorchType::Text => {
                self.specs.pass(&at.path);
                return Ok(TorchNode::Done(column.object(self.py)?));
            }
            TorchType::Mapping => column.mappings()?,
            TorchType::Named => column.namedtuples()?,
            TorchType::Sequence => column.sequences()?,
            TorchType::Stacked if !self.has_spec && !self.in_stack => {
                return self.stacked(column, at);
            }
            TorchType::Stacked | TorchType::Class => return self.class(column, at, children),
            TorchType::Fields if self.has_spec => return self.class(column, at, children),
            torch_type => return self.leaf(torch_type, column, at),
        };
        let sites = apart.columns.into_iter();
        let sites =
            sites.map(|column| TorchSite { column: Some(column), within: at.within.around() });
        self.push(&apart.container, sites, &at.path, children)?;
        Ok(TorchNode::Container(apart.container))
    }

    /// The children of a container are visited next.
    fn push(
        &self,
        container: &Container,
        sites: impl Iterator<Item = TorchSite<'py>>,
        path: &str,
        children: &mut Children<'_, TorchSite<'py>>,
    ) -> PyResult<()> {
        let place = ColumnPlace { path, sep: self.specs.sep(), added_to: None };
        for (child, site) in sites.enumerate() {
            children.push(site, container.path_of(self.py, child, place)?);
        }
        Ok(())
    }

    /// A column of objects of a class that `collate` takes apart.
    fn class(
        &mut self,
        column: TorchColumn<'py>,
        at: At<'py>,
        children: &mut Children<'_, TorchSite<'py>>,
    ) -> PyResult<TorchNode<'py>> {
        let place = ColumnPlace { path: &at.path, sep: self.specs.sep(), added_to: None };
        let Some(apart) = apart(&column.items, place, false, None)? else {
            return self.leaf(TorchType::Other, column, at);
        };
        let Apart { container, columns, forms, tensors } = apart;
        let within = at.within.of_children(self.py, &container, tensors, forms.as_ref())?;
        let sites =
            columns.into_lists()?.into_iter().zip(within).map(|(items, within)| TorchSite {
                column: Some(Ok(TorchColumn { items, whole: None, zipped: false })),
                within,
            });
        self.push(&container, sites, &at.path, children)?;
        Ok(TorchNode::Class(Arc::new(container)))
    }

    /// As `class`, of objects that torch's function stacks too: it gets the column if any leaf is not for the engine.
    fn stacked(&mut self, column: TorchColumn<'py>, at: At<'py>) -> PyResult<TorchNode<'py>> {
        if self.by_torch {
            return self.other(column, None);
        }
        let whole = column.clone();
        let num_leaves = self.leaves.len();
        let At { path, depth, within } = at;
        let root = Branch { column: TorchSite { column: Some(Ok(column)), within }, path, depth };
        self.in_stack = true;
        let made = self.tree(root, None);
        self.in_stack = false;
        match made {
            Err(refusal) if is_answer(self.py, &refusal) => {
                self.leaves.truncate(num_leaves);
                self.other(whole, Some(refusal))
            }
            made => made.map(TorchNode::Stacked),
        }
    }

    /// As `node`, of a table, whose columns were read before.
    fn known_node(
        &mut self,
        (node_type, column): (&ShapeNodeType, Option<&columns::LeafColumn>),
        at: At<'py>,
        children: &mut Children<'_, TorchSite<'py>>,
    ) -> PyResult<TorchNode<'py>> {
        let py = self.py;
        match (node_type, column) {
            (ShapeNodeType::Container(container), _) => {
                let site = |_| TorchSite { column: None, within: at.within.clone() };
                self.push(container, (0..container.len()).map(site), &at.path, children)?;
                Ok(TorchNode::Class(Arc::clone(container)))
            }
            (_, Some(columns::LeafColumn::Objects(texts))) => {
                self.specs.pass(&at.path);
                let texts = list_of(py, texts.iter().map(|text| text.bind(py).clone()))?;
                Ok(TorchNode::Done(texts.into_any()))
            }
            (_, Some(columns::LeafColumn::Tensors(samples))) => {
                let options = at.within.options(&mut self.specs, self.common, &at.path)?;
                let is_named = options.is_some();
                let options = options.unwrap_or_else(|| self.plain_options());
                let job = Job::new(options, at.path, |_| Ok((Arc::clone(samples), None)))?;
                Ok(self.add(job, is_named))
            }
            (ShapeNodeType::Leaf(..), None) => {
                Err(PyValueError::new_err("a leaf without a column"))
            }
        }
    }

    fn type_of(&self, sample: &Bound<'py, PyAny>) -> PyResult<TorchType> {
        match self.codes.get_item(sample.get_type())? {
            Some(code) => TorchType::read(&code),
            None => {
                TorchType::read(&self.rules.call_method1(intern!(self.py, "classify"), (sample,))?)
            }
        }
    }

    fn add(&mut self, job: Job, is_named: bool) -> TorchNode<'py> {
        self.leaves.push(TorchLeaf { job, is_named, out: None });
        TorchNode::Leaf(self.leaves.len() - 1)
    }

    fn leaf(
        &mut self,
        torch_type: TorchType,
        column: TorchColumn<'py>,
        place: At<'py>,
    ) -> PyResult<TorchNode<'py>> {
        let At { path, within, .. } = &place;
        if let Some(mut options) = within.options(&mut self.specs, self.common, path)? {
            options.may_start = !self.in_arena;
            return match self.job(options, column.items.clone(), path) {
                Ok(job) => Ok(self.add(job, true)),
                Err(refusal) => self.joined(&column, within, refusal),
            };
        }
        let refusal = match self.by_torch {
            true => None,
            false => match self.try_leaf(torch_type, &column, path)? {
                Ok(node) => return Ok(node),
                Err(refusal) => refusal,
            },
        };
        if self.in_stack {
            let text = || format!("a leaf{} that torch assembles", at(path));
            return Err(refusal.unwrap_or_else(|| PyTypeError::new_err(text())));
        }
        self.other(column, refusal)
    }

    /// In place of a leaf that is not for the engine: a leaf of a class without a spec keeps the gradients of its samples.
    fn joined(
        &self,
        column: &TorchColumn<'py>,
        within: &Within<'py>,
        refusal: PyErr,
    ) -> PyResult<TorchNode<'py>> {
        let Some((form, kwargs)) = within.form.as_ref().filter(|_| !self.has_spec) else {
            return Err(refusal);
        };
        if !is_answer(self.py, &refusal) {
            return Err(refusal);
        }
        let list = list_of(self.py, column.items.iter().cloned())?;
        let made = self.rules.call_method1(intern!(self.py, "joined"), (list, form, kwargs))?;
        match made.is_none() {
            true => Err(refusal),
            false => Ok(TorchNode::Done(made)),
        }
    }

    /// A column for torch's function; why it is not for the engine, if that is known.
    fn other(
        &mut self,
        column: TorchColumn<'py>,
        refusal: Option<PyErr>,
    ) -> PyResult<TorchNode<'py>> {
        let column = column.object(self.py)?;
        match self.rules.call_method1(intern!(self.py, "other"), (column,)) {
            Ok(done) => Ok(TorchNode::Done(done)),
            Err(error) => {
                // torch's error, and what is wrong with which sample.
                if let (Some(refusal), None) = (refusal, error.cause(self.py)) {
                    error.set_cause(self.py, Some(refusal));
                }
                if self.specs.is_empty() || !is_answer(self.py, &error) {
                    return Err(error);
                }
                // A spec that meets no leaf may be the reason, which is known at the end.
                self.error.get_or_insert(error);
                Ok(TorchNode::Done(self.py.None().into_bound(self.py)))
            }
        }
    }

    /// The leaf for the engine, or why it is not for it, if that is known.
    fn try_leaf(
        &mut self,
        torch_type: TorchType,
        column: &TorchColumn<'py>,
        path: &str,
    ) -> PyResult<Result<TorchNode<'py>, Option<PyErr>>> {
        let items = &column.items;
        let of_one_type = || {
            let class = items[0].get_type();
            items.iter().all(|item| item.get_type().is(&class))
        };
        let job = if torch_type == TorchType::Other {
            return Ok(Err(None));
        } else if torch_type == TorchType::Number {
            let Some(row) = of_one_type().then(|| row_of_numbers(items)).transpose()?.flatten()
            else {
                return Ok(Err(None));
            };
            if self.allocate.is_none() && !self.is_placed && !self.in_arena {
                return Ok(Ok(TorchNode::Done(libraries::torch(self.py, &row)?)));
            }
            let rows = Imported::rows_of(self.py, row)?;
            Job::new(self.plain_options(), path.to_owned(), |_| Ok((Arc::new(rows), None)))
        } else {
            self.job(self.plain_options(), items.clone(), path)
        };
        let mut job = match job {
            Ok(job) => job,
            Err(refusal) if is_answer(self.py, &refusal) => return Ok(Err(Some(refusal))),
            Err(error) => return Err(error),
        };
        // Looked at after the import, which asks for their memory ahead.
        if !of_one_type() {
            return Ok(Err(None));
        }
        let metas = job.samples.list.metas();
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
            let engine = &self.options.engine;
            let refusal = run(self.py, engine, &mut [job], ArenaMemory::No, engine.now()).err();
            return Ok(Err(refusal));
        }
        if is_foreign || is_remote {
            return Ok(Err(None));
        }
        if first.device == Device::Pinned && !self.is_placed {
            job.collate = Arc::new(Collate::clone(&job.collate).device(Device::Cpu));
        }
        Ok(Ok(self.add(job, false)))
    }

    fn plain_options(&self) -> Options<'py> {
        Options {
            collate: Arc::clone(&self.options.collate),
            out: None,
            stream: self.options.stream,
            copy: CopyMode::Always,
            engine: self.options.engine.clone(),
            may_start: !self.in_arena,
        }
    }

    fn job(
        &self,
        options: Options<'py>,
        items: Vec<Bound<'py, PyAny>>,
        path: &str,
    ) -> PyResult<Job> {
        let rows = self.specs.names(path);
        Job::new(options, path.to_owned(), |reading| {
            let reading = Reading { rows, ..reading };
            let (imported, ahead) = Imported::from_objects(self.py, items, 0, reading)?;
            Ok((Arc::new(imported), ahead))
        })
    }

    /// Asks for the memory of all outputs at once.
    fn place_outputs(&mut self) -> PyResult<()> {
        let Some(allocate) = &self.allocate else { return Ok(()) };
        if self.leaves.is_empty() {
            return Ok(());
        }
        let py = self.py;
        let outputs = PyList::empty(py);
        for TorchLeaf { job, .. } in &self.leaves {
            let shape = BatchShape::new(&job.samples.list, &job.collate);
            let shape = shape.map_err(|error| job_error(py, &error.at_path(&job.path), [job]))?;
            outputs.append((shape.dtype.name(), PyTuple::new(py, shape.shape.iter())?))?;
        }
        let tensors = allocate.call1((outputs,))?;
        for (leaf, tensor) in self.leaves.iter_mut().zip(tensors.try_iter()?) {
            let tensor = tensor?;
            leaf.job.write_to(&tensor)?;
            leaf.out = Some(tensor);
        }
        Ok(())
    }

    /// `import`: the stage that ends when the outputs have their places.
    fn run(&mut self, import: Span<'_>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.place_outputs()?;
        let leaves = std::mem::take(&mut self.leaves);
        let (mut jobs, outs): (Vec<Job>, Vec<_>) =
            leaves.into_iter().map(|leaf| (leaf.job, (leaf.is_named, leaf.out))).unzip();
        let batches = run(self.py, &self.options.engine, &mut jobs, ArenaMemory::No, import.end())?;
        let results = batches.into_iter().zip(outs).map(|(batch, (is_named, out))| {
            let data = match out {
                Some(out) => out,
                None => libraries::torch(self.py, batch.data())?,
            };
            let has_fields = is_named && (batch.lengths().is_some() || batch.offsets().is_some());
            if !has_fields {
                return Ok(data);
            }
            let batch = Bound::new(self.py, PyBatch::from(batch))?;
            self.rules.call_method1(intern!(self.py, "fields"), (data, batch))
        });
        results.collect()
    }

    /// As `run`, every tensor a view of one: of the segment that `allocate` gives, or of memory of the
    /// engine's.
    fn run_in_arena(&mut self, import: Span<'_>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (py, leaves) = (self.py, std::mem::take(&mut self.leaves));
        let mut jobs: Vec<Job> = leaves.into_iter().map(|leaf| leaf.job).collect();
        let mut arena = ArenaMemory::Own;
        let mut segment = None;
        if let (Some(allocate), false) = (&self.allocate, jobs.is_empty()) {
            let bytes = arena_bytes(&jobs).map_err(|error| job_error(py, &error, &jobs))?;
            let tensor = allocate.call1((bytes,))?;
            arena = ArenaMemory::Given(tensor_of(&tensor, "arena", Reading::OWNED)?);
            segment = Some(tensor);
        }
        let batches = run(py, &self.options.engine, &mut jobs, arena, import.end())?;
        let results = batches.into_iter().map(|batch| {
            let batch = Bound::new(py, PyBatch::from(batch))?;
            self.rules.call_method1(intern!(py, "views"), (batch, &segment))
        });
        results.collect()
    }
}
