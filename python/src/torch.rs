//! `collate_torch`: a list of trees to one tree of torch tensors, by the rules of `default_collate`.
//!
//! Python says what each type is (`rules`), this walks the trees and assembles all leaves in one plan.
//! A column that the engine does not take, or that torch would make something else of, goes to torch's
//! own function: it knows what the result is, or which error is due.

use std::sync::Arc;
use std::time::Instant;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyTuple, PyType};
use windrow::{Device, Span, Spec, Stage, Tensor};

use crate::assemble::{arena_bytes, run, Arena, Job};
use crate::batch::PyBatch;
use crate::errors::{attribute, is_answer, OrPyErr};
use crate::export;
use crate::import::Reading;
use crate::logging::Records;
use crate::options::{CopyMode, Options};
use crate::samples::{entries, items_of, Imported};
use crate::sources::AutogradWord;
use crate::specs::Specs;
use crate::tensor::tensor_of;

/// What `rules.kinds` and `rules.classify` say of a type. The numbers are those of `windrow.torch`.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Tensor,
    Array,
    Number,
    /// Strings: the column itself.
    Text,
    Mapping,
    Named,
    Sequence,
    /// For torch's function.
    Other,
}

impl Kind {
    fn read(code: &Bound<'_, PyAny>) -> PyResult<Kind> {
        use Kind::*;
        let all = [Tensor, Array, Number, Text, Mapping, Named, Sequence, Other];
        let code = code.extract::<usize>()?;
        all.get(code).copied().ok_or_else(|| PyTypeError::new_err(format!("kind {code}")))
    }
}

/// The same place of every sample.
struct Column<'py> {
    items: Vec<Bound<'py, PyAny>>,
    /// The object that torch's functions are given: made of the items if it is not there yet.
    whole: Option<Bound<'py, PyAny>>,
    /// It is then a tuple, as `zip` gives, rather than a list.
    zipped: bool,
}

impl<'py> Column<'py> {
    fn object(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match (&self.whole, self.zipped) {
            (Some(whole), _) => whole.clone(),
            (None, true) => PyTuple::new(py, &self.items)?.into_any(),
            (None, false) => PyList::new(py, &self.items)?.into_any(),
        })
    }
}

enum Node<'py> {
    /// A position in the list of jobs.
    Leaf(usize),
    Done(Bound<'py, PyAny>),
    /// The first sample's mapping, and the children by key.
    Mapping(Bound<'py, PyAny>, Vec<(Bound<'py, PyAny>, Node<'py>)>),
    Named(Bound<'py, PyType>, Vec<Node<'py>>),
    Sequence(Bound<'py, PyAny>, Vec<Node<'py>>),
}

/// A leaf for the engine.
struct Leaf<'py> {
    job: Job,
    /// A spec names it, so that there may be lengths, offsets or a mask.
    is_named: bool,
    out: Option<Bound<'py, PyAny>>,
}

struct Walk<'a, 'py> {
    py: Python<'py>,
    rules: &'a Bound<'py, PyAny>,
    kinds: Bound<'py, PyDict>,
    /// Gives memory for outputs; without it the engine does.
    allocate: Option<Bound<'py, PyAny>>,
    /// All outputs lie in one allocation, which `allocate` gives by the byte.
    in_arena: bool,
    common: Option<&'a Bound<'py, PyDict>>,
    options: Options<'py>,
    /// The caller says on which device the batch shall lie.
    is_placed: bool,
    specs: Specs<'a, 'py>,
    leaves: Vec<Leaf<'py>>,
    /// torch's first.
    error: Option<PyErr>,
}

/// As `collate`, by the rules of torch's ``default_collate``; see ``windrow.torch``.
#[pyfunction]
#[pyo3(signature = (samples, rules, spec = None, *, sep = ".", **common), text_signature = "(samples, rules, spec=None, *, sep='.', device=None, stream=None, engine=None)")]
pub(crate) fn collate_torch<'py>(
    samples: &Bound<'py, PyAny>,
    rules: &Bound<'py, PyAny>,
    spec: Option<&Bound<'py, PyAny>>,
    sep: &str,
    common: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = samples.py();
    let _records = Records::of_call(py);
    // What torch does first, with the error of an empty or unfit batch.
    samples.get_item(0)?;
    let column = Column { items: items_of(samples)?, whole: Some(samples.clone()), zipped: false };
    let allocate = rules.getattr(intern!(py, "allocate"))?;
    let mut walk = Walk {
        py,
        rules,
        kinds: rules.getattr(intern!(py, "kinds"))?.cast_into::<PyDict>()?,
        allocate: (!allocate.is_none()).then_some(allocate),
        in_arena: rules.getattr(intern!(py, "arena"))?.is_truthy()?,
        common,
        options: Options::parse("collate", common)?,
        is_placed: matches!(common, Some(common) if common.contains("device")?),
        specs: Specs::new(spec, sep)?,
        leaves: Vec::new(),
        error: None,
    };
    let engine = walk.options.engine.clone();
    let span = engine.enter(Stage::Import);
    let tree = walk.node(column, String::new())?;
    walk.specs.all_used()?;
    if let Some(error) = walk.error {
        return Err(error);
    }
    let results = if walk.in_arena { walk.run_in_arena(span)? } else { walk.run(span)? };
    walk.build(&tree, &results)
}

impl<'py> Walk<'_, 'py> {
    fn node(&mut self, column: Column<'py>, path: String) -> PyResult<Node<'py>> {
        self.specs.down(&path)?;
        let node = self.node_at(column, path);
        self.specs.up();
        node
    }

    fn node_at(&mut self, column: Column<'py>, path: String) -> PyResult<Node<'py>> {
        let first = column.items[0].clone();
        match self.kind_of(&first)? {
            Kind::Text => Ok(Node::Done(column.object(self.py)?)),
            Kind::Mapping => self.mapping(first, &column.items, &path),
            Kind::Named => {
                let children = self.transposed(&column.items, &path)?;
                Ok(Node::Named(first.get_type(), children))
            }
            Kind::Sequence => {
                let len = first.len()?;
                for sample in &column.items[1..] {
                    if sample.len()? != len {
                        return Err(PyRuntimeError::new_err(
                            "each element in list of batch should be of equal size",
                        ));
                    }
                }
                let children = self.transposed(&column.items, &path)?;
                Ok(Node::Sequence(first, children))
            }
            kind => self.leaf(kind, column, path),
        }
    }

    fn kind_of(&self, sample: &Bound<'py, PyAny>) -> PyResult<Kind> {
        match self.kinds.get_item(sample.get_type())? {
            Some(kind) => Kind::read(&kind),
            None => Kind::read(&self.rules.call_method1(intern!(self.py, "classify"), (sample,))?),
        }
    }

    /// The keys of the first sample rule; others are not looked at.
    fn mapping(
        &mut self,
        first: Bound<'py, PyAny>,
        samples: &[Bound<'py, PyAny>],
        path: &str,
    ) -> PyResult<Node<'py>> {
        let keys = entries(&first, Ok)?;
        // Sample by sample, while a mapping is in a cache; a column ends at its first error, which is
        // due only when all columns before it are done.
        let mut columns: Vec<PyResult<Vec<_>>> =
            keys.iter().map(|_| Ok(Vec::with_capacity(samples.len()))).collect();
        for sample in samples {
            let dict = sample.cast_exact::<PyDict>().ok();
            for (key, column) in keys.iter().zip(&mut columns) {
                let Ok(items) = column else { continue };
                let found = dict.map_or(Ok(None), |dict| dict.get_item(key));
                // Not there: as the mapping itself says it.
                match found.and_then(|found| found.map_or_else(|| sample.get_item(key), Ok)) {
                    Ok(item) => items.push(item),
                    Err(error) if is_answer(self.py, &error) => *column = Err(error),
                    Err(error) => return Err(error),
                }
            }
        }
        let mut children = Vec::with_capacity(keys.len());
        for (key, items) in keys.into_iter().zip(columns) {
            let path = self.specs.join(path, &key)?;
            let column = Column { items: items?, whole: None, zipped: false };
            children.push((key, self.node(column, path)?));
        }
        Ok(Node::Mapping(first, children))
    }

    /// The children of sequences, as `zip` gives them: up to the shortest.
    fn transposed(
        &mut self,
        samples: &[Bound<'py, PyAny>],
        path: &str,
    ) -> PyResult<Vec<Node<'py>>> {
        let rows = samples.iter().map(items_of).collect::<PyResult<Vec<_>>>()?;
        let len = rows.iter().map(Vec::len).min().unwrap_or(0);
        let fields = attribute(&samples[0], "_fields")?;
        let mut rows: Vec<_> = rows.into_iter().map(Vec::into_iter).collect();
        let mut children = Vec::with_capacity(len);
        for position in 0..len {
            let items = rows.iter_mut().filter_map(Iterator::next).collect();
            let key = match &fields {
                Some(fields) => fields.get_item(position)?,
                None => position.into_pyobject(self.py)?.into_any(),
            };
            let path = self.specs.join(path, &key)?;
            children.push(self.node(Column { items, whole: None, zipped: true }, path)?);
        }
        Ok(children)
    }

    fn leaf(&mut self, kind: Kind, column: Column<'py>, path: String) -> PyResult<Node<'py>> {
        if let Some((form, kwargs)) = self.specs.find(&path, self.common)? {
            let mut options = Options::parse(&form, Some(&kwargs))?;
            options.may_start = !self.in_arena;
            if self.any_requires_grad(kind, &column.items)? {
                return Err(PyRuntimeError::new_err(format!(
                    "{path:?}: a sample requires grad, which no batch of windrow carries on; detach() it"
                )));
            }
            let job = self.job(options, column.items, &path)?;
            self.leaves.push(Leaf { job, is_named: true, out: None });
            return Ok(Node::Leaf(self.leaves.len() - 1));
        }
        let refusal = match self.try_leaf(kind, &column, &path)? {
            Ok(node) => return Ok(node),
            Err(refusal) => refusal,
        };
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
        kind: Kind,
        column: &Column<'py>,
        path: &str,
    ) -> PyResult<Result<Node<'py>, Option<PyErr>>> {
        let items = &column.items;
        let of_one_type = || {
            let class = items[0].get_type();
            items.iter().all(|item| item.get_type().is(&class))
        };
        let job = if kind == Kind::Other {
            return Ok(Err(None));
        } else if kind == Kind::Number {
            let Some(row) = of_one_type().then(|| numbers(items)).transpose()?.flatten() else {
                return Ok(Err(None));
            };
            if self.allocate.is_none() && !self.is_placed && !self.in_arena {
                return Ok(Ok(Node::Done(export::torch(self.py, &row)?)));
            }
            let rows = Imported::rows_of(row).or_py_err(self.py)?;
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
        if !of_one_type() || (kind == Kind::Tensor && self.any_requires_grad(kind, items)?) {
            return Ok(Err(None));
        }
        let kinds = job.samples.list.kinds();
        let first = &kinds[0];
        // torch promotes, and refuses what NumPy steps through backwards or has a dtype of others.
        let is_alike = kinds.iter().all(|kind| {
            kind.dtype == first.dtype
                && kind.device == first.device
                && kind.layout.shape() == first.layout.shape()
                && kind.layout.strides().iter().all(|&stride| stride >= 0)
        });
        let is_foreign = kind == Kind::Array && export::typestr_of(first.dtype).is_none();
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
        self.leaves.push(Leaf { job, is_named: false, out: None });
        Ok(Ok(Node::Leaf(self.leaves.len() - 1)))
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
        Job::new(options, path, |reading| {
            let (imported, ahead) = Imported::from_objects(self.py, items, reading)?;
            Ok((Arc::new(imported), ahead))
        })
    }

    /// `kind`: of the first. Under a spec samples of other libraries may be among them.
    fn any_requires_grad(&self, kind: Kind, items: &[Bound<'py, PyAny>]) -> PyResult<bool> {
        let (first, is_tensor) = (&items[0], kind == Kind::Tensor);
        let plain = if is_tensor { AutogradWord::of(first) } else { None };
        for item in items {
            let is_plain = match is_tensor {
                true => plain.is_some_and(|word| word.is_null(item)),
                // What is like a first that is no tensor is none either.
                false => item.get_type().is(first.get_type()),
            };
            if is_plain {
                continue;
            }
            let asked = item.getattr_opt(intern!(self.py, "requires_grad"))?;
            if asked.map_or(Ok(false), |asked| asked.is_truthy())? {
                return Ok(true);
            }
        }
        Ok(false)
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
            let spec = Spec::new(&job.samples.list, &job.collate)
                .map_err(|error| error.at_path(&job.path))
                .or_py_err(py)?;
            outputs.append((spec.dtype.name(), PyTuple::new(py, spec.shape.iter())?))?;
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
                None => export::torch(self.py, batch.data())?,
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
            let bytes = arena_bytes(&jobs).or_py_err(py)?;
            let tensor = allocate.call1((bytes,))?;
            arena = Arena::Given(tensor_of(&tensor, Reading::OWNED)?);
            segment = Some(tensor);
        }
        let batches = run(py, &self.options.engine, &mut jobs, arena, import.end())?;
        let results = batches.into_iter().map(|batch| {
            let batch = Bound::new(py, PyBatch::from(batch))?;
            self.rules.call_method1(intern!(py, "views"), (batch, &segment))
        });
        results.collect()
    }

    fn build(
        &self,
        node: &Node<'py>,
        results: &[Bound<'py, PyAny>],
    ) -> PyResult<Bound<'py, PyAny>> {
        let all = |children: &[Node<'py>]| {
            children.iter().map(|child| self.build(child, results)).collect::<PyResult<Vec<_>>>()
        };
        match node {
            Node::Leaf(position) => Ok(results[*position].clone()),
            Node::Done(done) => Ok(done.clone()),
            Node::Named(class, children) => class.call1(PyTuple::new(self.py, all(children)?)?),
            Node::Sequence(first, children) => {
                let list = PyList::new(self.py, all(children)?)?;
                if first.is_instance_of::<PyTuple>() || first.is_exact_instance_of::<PyList>() {
                    return Ok(list.into_any());
                }
                self.rules.call_method1(intern!(self.py, "sequence"), (first, list))
            }
            Node::Mapping(first, children) => {
                let dict = PyDict::new(self.py);
                for (key, child) in children {
                    dict.set_item(key, self.build(child, results)?)?;
                }
                if first.is_exact_instance_of::<PyDict>() {
                    return Ok(dict.into_any());
                }
                self.rules.call_method1(intern!(self.py, "mapping"), (first, dict))
            }
        }
    }
}

/// Python numbers of one type as a row; not those beyond 64 bits.
fn numbers(items: &[Bound<'_, PyAny>]) -> PyResult<Option<Tensor>> {
    let shape = [items.len() as i64];
    let row = if items[0].is_instance_of::<PyBool>() {
        let values = items.iter().map(|item| item.extract::<bool>());
        Tensor::from_vec(values.collect::<PyResult<Vec<bool>>>()?, &shape)
    } else if items[0].is_instance_of::<PyFloat>() {
        let values = items.iter().map(|item| item.extract::<f64>());
        Tensor::from_vec(values.collect::<PyResult<Vec<f64>>>()?, &shape)
    } else if items[0].is_instance_of::<PyInt>() {
        let values = items.iter().map(|item| item.extract::<i64>());
        let Ok(values) = values.collect::<PyResult<Vec<i64>>>() else { return Ok(None) };
        Tensor::from_vec(values, &shape)
    } else {
        return Ok(None);
    };
    row.map(Some).or_py_err(items[0].py())
}
