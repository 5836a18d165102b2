//! `collate`: a list of trees to one tree of batches, all leaves in one plan.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::{Batch, Stage};

use crate::collate::branch::{is_list_or_tuple, uneven, Branch};
use crate::collate::containers::{check_depth, fold, in_place_of, opener_of};
use crate::collate::job::Job;
use crate::collate::leaves::{Leaves, Node};
use crate::collate::options::Options;
use crate::collate::run::{run, Arena};
use crate::collate::specs::Specs;
use crate::collate::table::nodes_of_table;
use crate::ground::arguments::unfit;
use crate::ground::batch::PyBatch;
use crate::ground::errors::{not_array_like, Whose};
use crate::ground::iterables::{check_list, is_mapping, is_text, items_of, list_of, no_list};
use crate::ground::logging::Records;
use crate::ground::tensor::PyTensor;
use crate::import::importer::Reading;
use crate::samples::arrow::{is_arrow, read, ArrowColumn, Content};
use crate::samples::imported::Imported;

/// What a call of `collate` is given.
enum Source<'py> {
    Samples(Vec<Bound<'py, PyAny>>),
    /// The columns of a table, whose rows are trees of dicts.
    Columns(Vec<ArrowColumn<'py>>),
}

impl Source<'_> {
    fn is_empty(&self) -> bool {
        match self {
            Source::Samples(samples) => samples.is_empty(),
            Source::Columns(columns) => columns.iter().all(|column| match &column.content {
                Content::Samples(samples) => samples.list.is_empty(),
                Content::Texts(texts) => texts.is_empty(),
            }),
        }
    }
}

/// A list of trees to one tree of the same shape, every tensor leaf a `Batch`, in one call.
///
/// Args:
///     samples: a list of trees of dict (and other mappings), list, tuple, namedtuple, dataclass, attrs and pydantic
///         classes, TensorDict and tensorclass, graphs of PyTorch Geometric, PyTrees of torch or optree, and classes of `register_node`, which
///         keep their types; `Data` and `HeteroData` become a `Batch`. In those of tensordict and PyTorch Geometric results are
///         torch tensors. str and bytes leaves become lists; Python floats float64, ints int64. Or an Arrow
///         table or record batch, of pyarrow, polars, pandas or others: the list of its rows, dicts of its columns.
///     spec (dict): leaf path, with globs, to `Stack`, `Concat`, `Pad` or
///         `Ragged`. An exact path goes before a glob, an earlier glob before a later one.
///         Unnamed leaves are stacked. A list or tuple of Python numbers is a container of as many
///         leaves, and one leaf, of one dim, where a key is exactly its path.
///     sep (str): joins the keys of a path.
///     arena (bool): all tensors of all leaves in one allocation, each at a multiple of 64 bytes (256 in
///         page-locked memory and on a device), zeros between them: `Batch.arena`. One copy moves the
///         whole tree, and it pickles as one buffer; `Batch.arena_layout` says what is where.
///     out: a tree of the same shape to write to.
///     common: as for `stack`; a spec's own arguments go first.
///
/// Raises:
///     ValueError: ``arena=True`` with ``out`` or ``copy=False``. DeviceError: with leaves in several places.
///     KeyError, ValueError, TypeError: a missing key, an uneven length, a None leaf, with the path
///         and the sample; and whatever the leaf's form raises, with ``.path``.
///     TypeError: a mapping or text in place of the list; a container of a class that is not registered, with
///         what to give instead. ValueError: a spec other than `Stack` within TensorDict and tensorclass.
///     ValueError: a spec that names no leaf, or only leaves of str and bytes.
///     RecursionError: trees of more than 256 levels, as those of a container that holds itself.
///
/// Examples:
///     >>> import windrow as wr
///     >>> batch = wr.collate([{"x": [1, 2.5], "id": "a"}, {"x": [3, 4.5], "id": "b"}])
///     >>> memoryview(batch["x"][1]).tolist(), batch["id"]
///     ([2.5, 4.5], ['a', 'b'])
///     >>> batch = wr.collate([{"ids": [1, 2]}, {"ids": [3]}], {"ids": wr.Pad()})
///     >>> memoryview(batch["ids"]).tolist()
///     [[1, 2], [3, 0]]
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
    build(&tree, &batches.collect::<PyResult<Vec<_>>>()?)
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
    let sep = match sep {
        Some(sep) => sep.extract().map_err(|error| unfit(&sep, "sep", "a string", error))?,
        None => ".".to_owned(),
    };
    let in_arena = match arena {
        Some(arena) => arena.extract().map_err(|error| unfit(&arena, "arena", "a bool", error))?,
        None => false,
    };
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
) -> PyResult<(Vec<Node<'py>>, Vec<Job>)> {
    let py = samples.py();
    let source = match is_arrow(samples)? {
        true => Source::Columns(read(samples, sep, "")?.columns),
        false => {
            check_list(samples)?;
            Source::Samples(items_of(samples).map_err(|error| no_list(samples, error))?)
        }
    };
    if source.is_empty() {
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
    let mut leaves = Leaves { py, common, stream, may_start, specs, jobs: Vec::new() };
    let tree = match source {
        Source::Samples(samples) => nodes_of(&mut leaves, samples, options.out.clone())?,
        Source::Columns(columns) => nodes_of_table(&mut leaves, columns, options.out.clone())?,
    };
    leaves.specs.all_used()?;
    Ok((tree, leaves.jobs))
}

/// All nodes, each before its children. Walked without recursion: a thread's stack may be small.
fn nodes_of<'py>(
    leaves: &mut Leaves<'_, 'py>,
    samples: Vec<Bound<'py, PyAny>>,
    out: Option<Bound<'py, PyAny>>,
) -> PyResult<Vec<Node<'py>>> {
    let mut nodes = Vec::new();
    let mut open = vec![Branch::root(samples, out)];
    while let Some(branch) = open.pop() {
        check_depth(branch.depth, &branch.path)?;
        let (first_child, tensors) = (open.len(), branch.within.tensors.clone());
        nodes.push(node(leaves, branch, &mut open)?);
        for child in &mut open[first_child..] {
            let own = &mut child.within.tensors;
            *own = own.take().or_else(|| tensors.clone());
        }
        open[first_child..].reverse();
    }
    Ok(nodes)
}

/// One node; its children go to `open`.
fn node<'py>(
    leaves: &mut Leaves<'_, 'py>,
    branch: Branch<'py>,
    open: &mut Vec<Branch<'py>>,
) -> PyResult<Node<'py>> {
    let first = branch.samples[0].clone();
    if is_text(&first) {
        if let Some(index) = branch.samples.iter().position(|sample| !is_text(sample)) {
            return Err(uneven(&branch.path, index, &first, &branch.samples[index]));
        }
        leaves.specs.pass(&branch.path);
        return Ok(Node::Pass(list_of(leaves.py, branch.samples)?));
    }
    if let Some(opener) = opener_of(&first, false)? {
        return branch.opened(&opener, &leaves.specs, open).map(Node::Container);
    }
    if is_mapping(&first)? {
        return branch.mapping(&first, &leaves.specs, open).map(Node::Container);
    }
    if is_list_or_tuple(&first) && !leaves.specs.names(&branch.path) {
        return branch.sequence(&first, &leaves.specs, open).map(Node::Container);
    }
    if let Some(container) = branch.dataclass(&first, &leaves.specs, open)? {
        return Ok(Node::Container(container));
    }
    match opener_of(&first, true)? {
        Some(opener) => branch.opened(&opener, &leaves.specs, open).map(Node::Container),
        None => leaf(leaves, branch),
    }
}

fn leaf<'py>(leaves: &mut Leaves<'_, 'py>, branch: Branch<'py>) -> PyResult<Node<'py>> {
    let Branch { samples, path, out, within, .. } = branch;
    if let Some(index) = samples.iter().position(|sample| sample.is_none()) {
        return Err(not_array_like(Whose::Sample(index), &path, &samples[index]));
    }
    let (py, first, rows) = (leaves.py, samples[0].clone(), leaves.specs.names(&path));
    let node = leaves.add(&path, out, &within, |reading| {
        let (column, ahead) = Imported::from_objects(py, samples, Reading { rows, ..reading })?;
        Ok((Arc::new(column), ahead))
    });
    node.map_err(|error| in_place_of(error, &first, &path).unwrap_or_else(|e| e))
}

fn build<'py>(nodes: &[Node<'py>], batches: &[Bound<'py, PyBatch>]) -> PyResult<Bound<'py, PyAny>> {
    let num_children = |node: &Node<'py>| match node {
        Node::Container(container) => container.len(),
        Node::Leaf(_) | Node::Pass(_) => 0,
    };
    fold(nodes, num_children, |node, children| match node {
        Node::Leaf(position) => Ok(batches[*position].clone().into_any()),
        Node::Pass(list) => Ok(list.clone().into_any()),
        Node::Container(container) => container.with(children),
    })
}
