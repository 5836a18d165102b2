//! `collate`: a list of trees to one tree of batches, all leaves in one plan.

use std::sync::Arc;

use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyMapping, PyString, PyTuple, PyType};
use windrow::{Batch, Stage, Stream};

use crate::assemble::{run, Arena, Job};
use crate::batch::PyBatch;
use crate::errors::{not_array_like, shown};
use crate::logging::Records;
use crate::options::Options;
use crate::samples::{entries, items_of, Imported};
use crate::specs::Specs;
use crate::tensor::PyTensor;

/// The shape of the trees, with a number in place of each tensor leaf.
enum Node<'py> {
    Leaf(usize),
    /// Strings and bytes, as a list.
    Pass(Bound<'py, PyList>),
    /// The first sample's mapping, and the children by key.
    Mapping(Bound<'py, PyAny>, Vec<(Bound<'py, PyAny>, Node<'py>)>),
    List(Vec<Node<'py>>),
    /// A tuple type, called with one iterable.
    Tuple(Bound<'py, PyType>, Vec<Node<'py>>),
    /// A namedtuple type, called with its fields in order.
    Named(Bound<'py, PyType>, Vec<Node<'py>>),
    /// A dataclass, called with its fields by name.
    Dataclass(Bound<'py, PyType>, Vec<(String, Node<'py>)>),
}

/// Walks all trees at once.
struct Walk<'a, 'py> {
    py: Python<'py>,
    /// Options of leaves that no spec names.
    common: Option<&'a Bound<'py, PyDict>>,
    stream: Option<Stream>,
    may_start: bool,
    specs: Specs<'a, 'py>,
    jobs: Vec<Job>,
}

/// A list of trees to one tree of the same shape, every tensor leaf a `Batch`, in one call.
///
/// Args:
///     samples: a list of trees of dict (and other mappings), list, tuple, namedtuple and dataclass.
///         str and bytes leaves become lists; Python floats float64, ints int64.
///     spec (dict): leaf path, with globs, to `Stack`, `Concat`, `Pad` or
///         `Ragged`. An exact path goes before a glob, an earlier glob before a later one.
///         Leaves nobody names are stacked.
///     sep (str): joins the keys of a path.
///     arena (bool): all tensors of all leaves in one allocation, each at a multiple of 64 bytes (256 in
///         page-locked memory and on a device), zeros between them: `Batch.arena`. One copy moves the
///         whole tree, and it pickles as one buffer; `Batch.arena_layout` says what lies where.
///     out: a tree of the same shape to write to.
///     common: as for `stack`; a spec's own arguments go first.
///
/// Raises:
///     ValueError: ``arena=True`` with ``out`` or ``copy=False``. DeviceError: with leaves in several places.
///     KeyError, ValueError, TypeError: a missing key, an uneven length, a None leaf, with the path
///         and the sample; and whatever the leaf's form raises, with ``.path``.
///     RecursionError: trees of more than 256 levels, as those of a container that holds itself.
///
/// Examples:
///     >>> import windrow as wr
///     >>> batch = wr.collate([{"x": [1, 2.5], "id": "a"}, {"x": [3, 4.5], "id": "b"}])
///     >>> memoryview(batch["x"][1]).tolist(), batch["id"]
///     ([2.5, 4.5], ['a', 'b'])
///     >>> batch = wr.collate([{"x": [1, 2.5], "id": "a"}, {"x": [3, 4.5], "id": "b"}], arena=True)
///     >>> batch["x"][0].arena.shape, batch["x"][1].arena_layout
///     ((128,), {'data': ('float64', (2,), 64)})
#[pyfunction]
#[pyo3(signature = (samples, spec = None, *, sep = ".", arena = false, **common), text_signature = "(samples, spec=None, *, sep='.', arena=False, dtype=None, device=None, out=None, stream=None, transform=None, copy=True, engine=None)")]
pub(crate) fn collate<'py>(
    samples: &Bound<'py, PyAny>,
    spec: Option<&Bound<'py, PyAny>>,
    sep: &str,
    arena: bool,
    common: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = samples.py();
    let _records = Records::of_call(py);
    let options = Options::parse("collate", common)?;
    let span = options.engine.enter(Stage::Import);
    let (tree, mut jobs) = import(samples, spec, sep, common, &options, !arena)?;
    let batches = run(py, &options.engine, &mut jobs, Arena::of(arena), span.end())?;
    let arena = batches.iter().find_map(Batch::arena);
    let arena = arena.map(|arena| Bound::new(py, PyTensor::from(arena.clone()))).transpose()?;
    let batches = batches.into_iter();
    let batches = batches.map(|batch| Bound::new(py, PyBatch::in_arena(batch, arena.as_ref())));
    build(py, &tree, &batches.collect::<PyResult<Vec<_>>>()?)
}

/// The leaves that a call of `collate` with these arguments would plan, and whether in an arena. Nothing
/// is copied yet.
pub(crate) fn jobs_of(
    samples: &Bound<'_, PyAny>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<(Vec<Job>, bool)> {
    let common = kwargs.map_or_else(|| Ok(PyDict::new(samples.py())), |kwargs| kwargs.copy())?;
    let take = |name: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
        let item = common.get_item(name)?;
        if item.is_some() {
            common.del_item(name)?;
        }
        Ok(item.filter(|item| !item.is_none()))
    };
    let (spec, sep, arena) = (take("spec")?, take("sep")?, take("arena")?);
    let sep = sep.map_or_else(|| Ok(".".to_owned()), |sep| sep.extract())?;
    let in_arena = arena.map_or(Ok(false), |arena| arena.extract())?;
    let options = Options::parse("collate", Some(&common))?;
    let (_, jobs) = import(samples, spec.as_ref(), &sep, Some(&common), &options, false)?;
    Ok((jobs, in_arena))
}

/// Reads all leaves. `may_start`: whether rows may be copied ahead of the plan.
fn import<'py>(
    samples: &Bound<'py, PyAny>,
    spec: Option<&Bound<'py, PyAny>>,
    sep: &str,
    common: Option<&Bound<'py, PyDict>>,
    options: &Options<'py>,
    may_start: bool,
) -> PyResult<(Node<'py>, Vec<Job>)> {
    let py = samples.py();
    let samples = items_of(samples)?;
    if samples.is_empty() {
        return Err(PyValueError::new_err("an empty list of samples makes no batch"));
    }
    let common = match common {
        Some(common) => {
            let common = common.copy()?;
            // The tree of outputs is taken apart on the way down.
            if common.contains("out")? {
                common.del_item("out")?;
            }
            Some(common)
        }
        None => None,
    };
    let specs = Specs::new(spec, sep)?;
    let (stream, common) = (options.stream, common.as_ref());
    let mut walk = Walk { py, common, stream, may_start, specs, jobs: Vec::new() };
    let tree = walk.node(samples, String::new(), options.out.as_ref())?;
    walk.specs.all_used()?;
    Ok((tree, walk.jobs))
}

impl<'py> Walk<'_, 'py> {
    fn node(
        &mut self,
        samples: Vec<Bound<'py, PyAny>>,
        path: String,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Node<'py>> {
        self.specs.down(&path)?;
        let node = self.node_at(samples, path, out);
        self.specs.up();
        node
    }

    fn node_at(
        &mut self,
        samples: Vec<Bound<'py, PyAny>>,
        path: String,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Node<'py>> {
        let first = &samples[0];
        if first.is_instance_of::<PyString>() || first.is_instance_of::<PyBytes>() {
            return Ok(Node::Pass(PyList::new(self.py, samples)?));
        }
        if let Ok(mapping) = first.cast::<PyMapping>() {
            return self.mapping(mapping, &samples, &path, out);
        }
        let class = first.get_type();
        if first.is_instance_of::<PyTuple>() || first.is_instance_of::<PyList>() {
            let names = |fields: Bound<'py, PyAny>| entries(&fields, |field| field.extract());
            let fields: Option<Vec<String>> =
                class.getattr_opt("_fields")?.map(names).transpose()?;
            let children = self.sequence(&samples, &path, fields.as_deref(), out)?;
            return Ok(match (fields, first.is_instance_of::<PyTuple>()) {
                (Some(_), _) => Node::Named(class, children),
                (None, true) => Node::Tuple(class, children),
                (None, false) => Node::List(children),
            });
        }
        if class.hasattr(intern!(self.py, "__dataclass_fields__"))? {
            return self.dataclass(class, &samples, &path, out);
        }
        self.leaf(samples, path, out)
    }

    fn mapping(
        &mut self,
        first: &Bound<'py, PyMapping>,
        samples: &[Bound<'py, PyAny>],
        path: &str,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Node<'py>> {
        let keys: Vec<Bound<'py, PyAny>> = first.keys()?.iter().collect();
        let mut columns: Vec<_> = keys.iter().map(|_| Vec::with_capacity(samples.len())).collect();
        // Sample by sample: a mapping is asked for all its items while it is in a cache.
        for (index, sample) in samples.iter().enumerate() {
            let Ok(mapping) = sample.cast::<PyMapping>() else {
                return Err(uneven(path, index, first.as_any(), sample));
            };
            // Plain dicts are asked directly: a lookup by the protocol costs twice as much.
            let dict = sample.cast_exact::<PyDict>().ok();
            if dict.map_or_else(|| mapping.len(), |dict| Ok(dict.len()))? != keys.len() {
                for key in mapping.keys()?.iter() {
                    if !first.contains(&key)? {
                        let what = "a key that sample 0 has not";
                        return Err(self.uneven_key(path, index, &key, what, samples)?);
                    }
                }
            }
            for (key, column) in keys.iter().zip(&mut columns) {
                let item = match dict {
                    Some(dict) => dict.get_item(key)?,
                    None => match sample.get_item(key) {
                        Err(error) if error.is_instance_of::<PyKeyError>(self.py) => None,
                        item => Some(item?),
                    },
                };
                match item {
                    Some(item) => column.push(item),
                    None => {
                        let what = "the key is missing";
                        return Err(self.uneven_key(path, index, key, what, samples)?);
                    }
                }
            }
        }
        let mut children = Vec::with_capacity(keys.len());
        for (key, column) in keys.into_iter().zip(columns) {
            let path = self.specs.join(path, &key)?;
            let out = out.map(|out| out.get_item(&key)).transpose()?;
            let child = self.node(column, path, out.as_ref())?;
            children.push((key, child));
        }
        Ok(Node::Mapping(first.as_any().clone(), children))
    }

    /// A key that not every sample has.
    fn uneven_key(
        &self,
        path: &str,
        index: usize,
        key: &Bound<'py, PyAny>,
        what: &str,
        samples: &[Bound<'py, PyAny>],
    ) -> PyResult<PyErr> {
        Ok(PyKeyError::new_err(format!(
            "sample {index} at {:?}: {what}; {} of {} samples have it",
            self.specs.join(path, key)?,
            count_with(samples, key)?,
            samples.len()
        )))
    }

    fn sequence(
        &mut self,
        samples: &[Bound<'py, PyAny>],
        path: &str,
        fields: Option<&[String]>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Node<'py>>> {
        let (first, len) = (&samples[0], samples[0].len()?);
        for (index, sample) in samples.iter().enumerate() {
            if !(sample.is_instance_of::<PyTuple>() || sample.is_instance_of::<PyList>()) {
                return Err(uneven(path, index, first, sample));
            }
            if sample.len()? != len {
                return Err(PyValueError::new_err(format!(
                    "sample {index} at {path:?}: expected {len} entries, got {}",
                    sample.len()?
                )));
            }
        }
        // Not made for as many: a subclass may say any number.
        let mut children = Vec::new();
        for position in 0..len {
            let name = fields
                .and_then(|fields| fields.get(position).cloned())
                .unwrap_or_else(|| position.to_string());
            let column = samples
                .iter()
                .map(|sample| sample.get_item(position))
                .collect::<PyResult<Vec<_>>>()?;
            let out = out.map(|out| out.get_item(position)).transpose()?;
            children.push(self.node(column, self.specs.join_name(path, &name), out.as_ref())?);
        }
        Ok(children)
    }

    fn dataclass(
        &mut self,
        class: Bound<'py, PyType>,
        samples: &[Bound<'py, PyAny>],
        path: &str,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Node<'py>> {
        let fields = self.py.import("dataclasses")?.call_method1("fields", (&class,))?;
        let mut children = Vec::new();
        for field in fields.try_iter()? {
            let name: String = field?.getattr("name")?.extract()?;
            let mut column = Vec::with_capacity(samples.len());
            for (index, sample) in samples.iter().enumerate() {
                if !sample.get_type().is(&class) {
                    return Err(uneven(path, index, &samples[0], sample));
                }
                column.push(sample.getattr(name.as_str())?);
            }
            let out = out.map(|out| out.getattr(name.as_str())).transpose()?;
            let child = self.node(column, self.specs.join_name(path, &name), out.as_ref())?;
            children.push((name, child));
        }
        Ok(Node::Dataclass(class, children))
    }

    fn leaf(
        &mut self,
        samples: Vec<Bound<'py, PyAny>>,
        path: String,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Node<'py>> {
        if let Some(index) = samples.iter().position(|sample| sample.is_none()) {
            return Err(not_array_like(Some(index), &path, &samples[index]));
        }
        let named = self.specs.find(&path, self.common)?;
        let mut options = match &named {
            Some((form, kwargs)) => Options::parse(form, Some(kwargs))?,
            None => Options::parse("stack", self.common)?,
        };
        options.out = out.cloned().or(options.out);
        options.may_start = self.may_start;
        if options.stream != self.stream {
            return Err(PyValueError::new_err("stream= is an argument of the call, not of a leaf"));
        }
        let py = self.py;
        let job = Job::new(options, &path, |reading| {
            let (column, ahead) = Imported::from_objects(py, samples, reading)?;
            Ok((Arc::new(column), ahead))
        })?;
        self.jobs.push(job);
        Ok(Node::Leaf(self.jobs.len() - 1))
    }
}

fn uneven(path: &str, index: usize, first: &Bound<'_, PyAny>, other: &Bound<'_, PyAny>) -> PyErr {
    match (shown(&first.get_type()), shown(&other.get_type())) {
        (Ok(expected), Ok(got)) => PyTypeError::new_err(format!(
            "sample {index} at {path:?}: expected {expected}, got {got}"
        )),
        (Err(error), _) | (_, Err(error)) => error,
    }
}

fn count_with(samples: &[Bound<'_, PyAny>], key: &Bound<'_, PyAny>) -> PyResult<usize> {
    samples.iter().try_fold(0, |count, sample| Ok(count + usize::from(sample.contains(key)?)))
}

fn build<'py>(
    py: Python<'py>,
    node: &Node<'py>,
    batches: &[Bound<'py, PyBatch>],
) -> PyResult<Bound<'py, PyAny>> {
    let all = |children: &[Node<'py>]| {
        children.iter().map(|child| build(py, child, batches)).collect::<PyResult<Vec<_>>>()
    };
    Ok(match node {
        Node::Leaf(position) => batches[*position].clone().into_any(),
        Node::Pass(list) => list.clone().into_any(),
        Node::List(children) => PyList::new(py, all(children)?)?.into_any(),
        Node::Tuple(class, children) => class.call1((PyTuple::new(py, all(children)?)?,))?,
        Node::Named(class, children) => class.call1(PyTuple::new(py, all(children)?)?)?,
        Node::Dataclass(class, children) => {
            let kwargs = PyDict::new(py);
            for (name, child) in children {
                kwargs.set_item(name, build(py, child, batches)?)?;
            }
            class.call((), Some(&kwargs))?
        }
        Node::Mapping(first, children) => {
            let dict = PyDict::new(py);
            for (key, child) in children {
                dict.set_item(key, build(py, child, batches)?)?;
            }
            if first.is_exact_instance_of::<PyDict>() {
                return Ok(dict.into_any());
            }
            // A copy keeps what else the mapping carries, such as a default factory.
            if first.hasattr("update")? {
                let copy = py.import("copy")?.call_method1("copy", (first,))?;
                copy.call_method1("update", (dict,))?;
                return Ok(copy);
            }
            first.get_type().call1((dict,))?
        }
    })
}
