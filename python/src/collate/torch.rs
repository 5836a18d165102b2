//! `collate_torch`: a list of trees to one tree of torch tensors, by the rules of `default_collate`.
//!
//! Python says what each type is (`rules`), this walks the trees and assembles all leaves in one plan.
//! A column that the engine does not take, or that torch would make something else of, goes to torch's
//! own function: it knows what the result is, or which error is due.

use std::sync::Arc;
use std::time::Instant;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use windrow::{BatchShape, Device, Span, Stage};

use crate::collate::job::{job_error, Job};
use crate::collate::options::{CopyMode, Options};
use crate::collate::run::{arena_bytes, run, Arena};
use crate::collate::specs::Specs;
use crate::collate::torch_column::{At, Branch, Column};
use crate::collate::torch_node::{build, check_lengths, Node, NodeType};
use crate::export::libraries;
use crate::export::number::row_of_numbers;
use crate::ground::batch::PyBatch;
use crate::ground::dtype::typestr_of;
use crate::ground::errors::{at, is_answer};
use crate::ground::iterables::{items_of, list_of};
use crate::ground::logging::Records;
use crate::import::importer::Reading;
use crate::import::tensor::tensor_of;
use crate::samples::columns;
use crate::samples::imported::Imported;
use crate::samples::table::table_in;
use crate::samples::trees::{Kind, Trees};
use crate::trees::container::{apart, Apart, Place};
use crate::trees::containers::check_depth;

/// A leaf for the engine.
struct Leaf<'py> {
    job: Job,
    /// A spec or its class names its form, so that there may be lengths, offsets or a mask.
    is_named: bool,
    out: Option<Bound<'py, PyAny>>,
}

struct Walk<'a, 'py> {
    py: Python<'py>,
    rules: &'a Bound<'py, PyAny>,
    types: Bound<'py, PyDict>,
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
    leaves: Vec<Leaf<'py>>,
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
            Some(Ok(Column { items, whole: Some(samples.clone()), zipped: false }))
        }
    };
    let allocate = rules.getattr(intern!(py, "allocate"))?;
    let mut walk = Walk {
        py,
        rules,
        types: rules.getattr(intern!(py, "kinds"))?.cast_into::<PyDict>()?,
        allocate: (!allocate.is_none()).then_some(allocate),
        in_arena: rules.getattr(intern!(py, "arena"))?.is_truthy()?,
        common,
        options: Options::parse("collate", common)?,
        is_placed: matches!(common, Some(common) if common.contains("device")?),
        specs: Specs::new(spec, sep)?,
        has_spec: spec.is_some(),
        by_torch,
        in_stack: false,
        leaves: Vec::new(),
        error: None,
    };
    let engine = walk.options.engine.clone();
    let span = engine.enter(Stage::Import);
    let tree = walk.tree(Branch { column, at: At::default() }, table.as_ref())?;
    walk.specs.all_used()?;
    if let Some(error) = walk.error {
        return Err(error);
    }
    let results = if walk.in_arena { walk.run_in_arena(span)? } else { walk.run(span)? };
    build(rules, &tree, &results)
}

impl<'py> Walk<'_, 'py> {
    /// All nodes, each before its children. Walked without recursion: a thread's stack may be small.
    fn tree(&mut self, root: Branch<'py>, table: Option<&Trees>) -> PyResult<Vec<Node<'py>>> {
        let mut nodes = Vec::new();
        let mut known = table.into_iter().flat_map(Trees::nodes);
        let mut open = vec![root];
        while let Some(Branch { column, at }) = open.pop() {
            let column = column.transpose()?;
            check_depth(at.depth, &at.path)?;
            let first_child = open.len();
            match (column, known.next()) {
                (Some(column), _) => self.node(column, at, &mut nodes, &mut open)?,
                (None, Some(node)) => nodes.push(self.known_node(node, at, &mut open)?),
                (None, None) => break,
            }
            open[first_child..].reverse();
        }
        Ok(nodes)
    }

    /// One node; its children go to `open`.
    fn node(
        &mut self,
        column: Column<'py>,
        at: At<'py>,
        nodes: &mut Vec<Node<'py>>,
        open: &mut Vec<Branch<'py>>,
    ) -> PyResult<()> {
        let first = column.items[0].clone();
        let is_list = first.is_instance_of::<PyTuple>() || first.is_instance_of::<PyList>();
        let node = match self.type_of(&first)? {
            node_type if is_list && self.specs.names(&at.path) => {
                self.leaf(node_type, column, at)?
            }
            NodeType::Text => {
                self.specs.pass(&at.path);
                Node::Done(column.object(self.py)?)
            }
            NodeType::Mapping => {
                let keys = column.children_by_key(&at, &self.specs, open)?;
                Node::Mapping(first, keys)
            }
            NodeType::Named => {
                let len = column.children_by_position(&at, &self.specs, open)?;
                Node::Named(first.get_type(), len)
            }
            NodeType::Sequence => {
                check_lengths(&column.items)?;
                let len = column.children_by_position(&at, &self.specs, open)?;
                Node::Sequence(first, len)
            }
            NodeType::Stacked if !self.has_spec && !self.in_stack => {
                nodes.extend(self.stacked(column, at)?);
                return Ok(());
            }
            NodeType::Stacked | NodeType::Class => self.class(column, at, open)?,
            NodeType::Fields if self.has_spec => self.class(column, at, open)?,
            node_type => self.leaf(node_type, column, at)?,
        };
        nodes.push(node);
        Ok(())
    }

    /// A column of objects of a class that `collate` takes apart.
    fn class(
        &mut self,
        column: Column<'py>,
        at: At<'py>,
        open: &mut Vec<Branch<'py>>,
    ) -> PyResult<Node<'py>> {
        let place = Place { path: &at.path, sep: self.specs.sep(), added_to: None };
        let Some(apart) = apart(&column.items, place, false)? else {
            return self.leaf(NodeType::Other, column, at);
        };
        let Apart { container, columns, forms, tensors } = apart;
        let within = at.within.of_children(self.py, &container, tensors, forms.as_ref())?;
        for (child, (items, within)) in columns.into_iter().zip(within).enumerate() {
            let path = container.path_of(self.py, child, place)?;
            let column = Column { items, whole: None, zipped: false };
            open.push(Branch { column: Some(Ok(column)), at: at.child(path, within) });
        }
        Ok(Node::Class(Arc::new(container)))
    }

    /// As `class`, of objects that torch's function stacks too: it gets the column if any leaf is not for the engine.
    fn stacked(&mut self, column: Column<'py>, at: At<'py>) -> PyResult<Vec<Node<'py>>> {
        if self.by_torch {
            return Ok(vec![self.other(column, None)?]);
        }
        let whole = column.clone();
        let num_leaves = self.leaves.len();
        self.in_stack = true;
        let made = self.tree(Branch { column: Some(Ok(column)), at }, None);
        self.in_stack = false;
        match made {
            Err(refusal) if is_answer(self.py, &refusal) => {
                self.leaves.truncate(num_leaves);
                Ok(vec![self.other(whole, Some(refusal))?])
            }
            made => made,
        }
    }

    /// As `node`, of a table, whose columns were read before.
    fn known_node(
        &mut self,
        (kind, column): (&Kind, Option<&columns::Column>),
        at: At<'py>,
        open: &mut Vec<Branch<'py>>,
    ) -> PyResult<Node<'py>> {
        let py = self.py;
        match (kind, column) {
            (Kind::Container(container), _) => {
                let place = Place { path: &at.path, sep: self.specs.sep(), added_to: None };
                for child in 0..container.len() {
                    let path = container.path_of(py, child, place)?;
                    open.push(Branch { column: None, at: at.child(path, at.within.clone()) });
                }
                Ok(Node::Class(Arc::clone(container)))
            }
            (_, Some(columns::Column::Objects(texts))) => {
                self.specs.pass(&at.path);
                let texts = list_of(py, texts.iter().map(|text| text.bind(py).clone()))?;
                Ok(Node::Done(texts.into_any()))
            }
            (_, Some(columns::Column::Tensors(samples))) => {
                let options = at.within.options(&mut self.specs, self.common, &at.path)?;
                let is_named = options.is_some();
                let options = options.unwrap_or_else(|| self.plain_options());
                let job = Job::new(options, &at.path, |_| Ok((Arc::clone(samples), None)))?;
                Ok(self.add(job, is_named))
            }
            (Kind::Leaf(..), None) => Err(PyValueError::new_err("a leaf without a column")),
        }
    }

    fn type_of(&self, sample: &Bound<'py, PyAny>) -> PyResult<NodeType> {
        match self.types.get_item(sample.get_type())? {
            Some(code) => NodeType::read(&code),
            None => {
                NodeType::read(&self.rules.call_method1(intern!(self.py, "classify"), (sample,))?)
            }
        }
    }

    fn add(&mut self, job: Job, is_named: bool) -> Node<'py> {
        self.leaves.push(Leaf { job, is_named, out: None });
        Node::Leaf(self.leaves.len() - 1)
    }

    fn leaf(
        &mut self,
        node_type: NodeType,
        column: Column<'py>,
        place: At<'py>,
    ) -> PyResult<Node<'py>> {
        let At { path, within, .. } = &place;
        if let Some(mut options) = within.options(&mut self.specs, self.common, path)? {
            options.may_start = !self.in_arena;
            let job = self.job(options, column.items, path)?;
            return Ok(self.add(job, true));
        }
        let refusal = match self.by_torch {
            true => None,
            false => match self.try_leaf(node_type, &column, path)? {
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

    /// A column for torch's function; why it is not for the engine, if that is known.
    fn other(&mut self, column: Column<'py>, refusal: Option<PyErr>) -> PyResult<Node<'py>> {
        let column = column.object(self.py)?;
        match self.rules.call_method1(intern!(self.py, "other"), (column,)) {
            Ok(done) => Ok(Node::Done(done)),
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
                Ok(Node::Done(self.py.None().into_bound(self.py)))
            }
        }
    }

    /// The leaf for the engine, or why it is not for it, if that is known.
    fn try_leaf(
        &mut self,
        node_type: NodeType,
        column: &Column<'py>,
        path: &str,
    ) -> PyResult<Result<Node<'py>, Option<PyErr>>> {
        let items = &column.items;
        let of_one_type = || {
            let class = items[0].get_type();
            items.iter().all(|item| item.get_type().is(&class))
        };
        let job = if node_type == NodeType::Other {
            return Ok(Err(None));
        } else if node_type == NodeType::Number {
            let Some(row) = of_one_type().then(|| row_of_numbers(items)).transpose()?.flatten()
            else {
                return Ok(Err(None));
            };
            if self.allocate.is_none() && !self.is_placed && !self.in_arena {
                return Ok(Ok(Node::Done(libraries::torch(self.py, &row)?)));
            }
            let rows = Imported::rows_of(self.py, row)?;
            Job::new(self.plain_options(), path, |_| Ok((Arc::new(rows), None)))
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
        let is_foreign = node_type == NodeType::Array && typestr_of(first.dtype).is_none();
        let is_remote = matches!(first.device, Device::Cuda(_)) && self.allocate.is_some();
        if !is_alike {
            let engine = &self.options.engine;
            let refusal = run(self.py, engine, &mut [job], Arena::No, Instant::now()).err();
            return Ok(Err(refusal));
        }
        if is_foreign || is_remote {
            return Ok(Err(None));
        }
        if first.device == Device::Pinned && !self.is_placed {
            job.collate = job.collate.device(Device::Cpu);
        }
        Ok(Ok(self.add(job, false)))
    }

    fn plain_options(&self) -> Options<'py> {
        Options {
            collate: self.options.collate.clone(),
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
        Job::new(options, path, |reading| {
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
        for Leaf { job, .. } in &self.leaves {
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
        let batches = run(self.py, &self.options.engine, &mut jobs, Arena::No, import.end())?;
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
        let mut arena = Arena::Own;
        let mut segment = None;
        if let (Some(allocate), false) = (&self.allocate, jobs.is_empty()) {
            let bytes = arena_bytes(&jobs).map_err(|error| job_error(py, &error, &jobs))?;
            let tensor = allocate.call1((bytes,))?;
            arena = Arena::Given(tensor_of(&tensor, "arena", Reading::OWNED)?);
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
