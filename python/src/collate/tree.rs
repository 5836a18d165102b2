//! `collate`: a list of trees to one tree of batches, all leaves in one plan.

use std::borrow::Cow;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use windrow::observe::Stage;
use windrow::{Batch, Engine, Stream};

use crate::collate::forms::COLLATE;
use crate::collate::job::Job;
use crate::collate::leaves::{
    unflatten, ClassRules, Column, JobResult, Leaves, NodeInput, ResultLeaf,
};
use crate::collate::options::Options;
use crate::collate::run::{own_borrowed_samples, ArenaMemory, Run};
use crate::collate::specs::Specs;
use crate::collate::tree_rules::OurRules;
use crate::export::libraries::torch;
use crate::ground::arguments::unfit;
use crate::ground::batch::PyBatch;
use crate::ground::errors::OrPyErr;
use crate::ground::iterables::{check_list, items_of, no_list};
use crate::ground::logging::LogScope;
use crate::ground::reserve::try_vec;
use crate::ground::tensor::PyTensor;
use crate::import::importer::Reading;
use crate::import::routes::{is_tensor, route_of, ImportRoute};
use crate::import::storages::lent;
use crate::samples::column_import::Borrowed;
use crate::samples::list::{ListSamples, PySampleList};
use crate::samples::list_import::import_samples;
use crate::samples::table_trees::table_in;
use crate::trees::container::{ColumnPlace, Container};
use crate::trees::flatten::flatten;
use crate::trees::flatten_like::OUT;
use crate::trees::tree_def::TreeDef;

/// Collates a list of trees into one tree of the same shape, in which every tensor leaf is a `Batch`, in one call.
///
/// Args:
///     samples: a list of trees of dict (and other mappings), list, tuple, namedtuple, dataclass, attrs and pydantic
///         classes, TensorDict and tensorclass, graphs of PyTorch Geometric, PyTrees of torch or optree, and classes of
///         `register_node`, which keep their types, as copies of
///         the first sample for which no initialiser, converter or validator runs; `Data` and `HeteroData` become PyTorch Geometric's own ``Batch``. Results in
///         classes of tensordict and PyTorch Geometric are torch tensors. str and bytes leaves become lists, Python floats float64, ints int64. Also a `SampleList`,
///         in which trees are taken apart once, or an Arrow table or record batch of pyarrow, polars, pandas or
///         others, which is the list of its rows: dicts of its columns.
///     spec (dict): leaf path, with globs, to `Stack`, `Concat`, `Pad`, `Ragged` or `List`; or one of these, for all leaves. A path is the
///         keys, attributes and positions that lead to the leaf, such as ``"tokens"``, ``"target.boxes"`` or, in a tuple, ``"0"``. An exact
///         path goes before a glob, an earlier glob before a later one.
///         Unnamed leaves are stacked. Each leaf is padded to its own longest sample. A list or tuple of Python numbers is a container of as many
///         leaves, and one leaf, of one dim, where a key is exactly its path.
///     sep (str): joins the keys of a path.
///     arena (bool): all tensors of all leaves in one allocation, each at a multiple of 64 bytes (256 in
///         page-locked memory and on a device), zeros between them: `Batch.arena`. One copy moves the
///         whole tree, and it pickles as one buffer; `Batch.arena_layout` says what is where.
///     out: a tree of the same shape to write to: of arrays, tensors or the batches of an earlier call.
///     common: as for `stack`; a spec's own arguments take precedence, ``engine`` among them: leaves of several engines are
///         planned for each.
///
/// Returns:
///     A tree of the samples' structure: a `Batch` for each tensor leaf (a list of tensors by `List`, a torch tensor within classes of tensordict and PyTorch
///     Geometric), a list for each leaf of str or bytes.
///
/// Raises:
///     KeyError, ValueError, TypeError: a missing key, an uneven length or a None leaf, with the path and the sample; and whatever
///         the leaf's form raises, with ``.path``.
///     TypeError: a mapping or text in place of the list, or a container of an unknown class, with what to give instead.
///     ValueError: ``arena=True`` with ``out``, ``copy=False`` or leaves of several engines; a spec that names no leaf, or only leaves of str and bytes; a spec of
///         another form within TensorDict, tensorclass or graphs of PyTorch Geometric; ``stream`` in a spec.
///     DeviceError: ``arena=True`` with leaves in several places.
///     RecursionError: trees of more than 256 levels, such as a container that holds itself.
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
#[pyo3(signature = (samples, spec = None, *, sep = None, arena = None, **common), text_signature = "(samples, spec=None, *, sep='.', arena=False, dtype=None, device=None, out=None, stream=None, transform=None, saturate=False, copy=True, engine=None)")]
pub(crate) fn collate<'py>(
    samples: &Bound<'py, PyAny>,
    spec: Option<&Bound<'py, PyAny>>,
    sep: Option<&Bound<'py, PyAny>>,
    arena: Option<&Bound<'py, PyAny>>,
    common: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = samples.py();
    let _log_scope = LogScope::for_call(py);
    let (sep, arena) = (sep_of(sep)?, is_in_arena(arena)?);
    let options = Options { may_start: !arena, ..Options::parse(&COLLATE, common)? };
    let engine = options.engine.clone();
    let span = engine.enter(Stage::Import);
    let Import { tree, leaves, mut jobs, borrowed } = import(samples, spec, &sep, common, options)?;
    let run = Run { py, engine: &engine, arena: ArenaMemory::new(arena), begin: span.end() };
    let mut batches = match borrowed {
        Some(borrowed) => run.borrowed(&mut jobs, borrowed)?,
        None => run.jobs(&mut jobs)?,
    };
    drop(jobs);
    // The arena is returned for `arena=True` alone: otherwise it has only the leaves of `List`.
    let arena = batches.iter().find_map(Batch::arena).filter(|_| arena);
    let arena = arena.map(|arena| Bound::new(py, PyTensor::from(arena.clone()))).transpose()?;
    unflatten(py, &tree, leaves, &mut |result| {
        let gone = || PyValueError::new_err("a leaf without a batch");
        let batch = batches.pop().ok_or_else(gone)?;
        Ok(match result {
            JobResult::Batch => {
                Bound::new(py, PyBatch::in_arena(batch, arena.as_ref()))?.into_any()
            }
            JobResult::Torch => torch(py, lent(py, batch.data())?)?,
            JobResult::Sample => {
                let sample = batch.sample(0).or_py_err(py)?;
                Bound::new(py, PyTensor::from(sample))?.into_any()
            }
        })
    })
}

/// The jobs that a call of `collate` with these arguments would plan, with their samples held, whether in an arena, and the engine
/// of the call. Nothing is copied.
pub(crate) fn jobs_of(
    samples: &Bound<'_, PyAny>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<(Vec<Job>, bool, Engine)> {
    let common = kwargs.map_or_else(|| Ok(PyDict::new(samples.py())), |kwargs| kwargs.copy())?;
    let take = |name: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
        let item = common.get_item(name)?;
        if item.is_some() {
            common.del_item(name)?;
        }
        Ok(item.filter(|item| !item.is_none()))
    };
    let (spec, sep, arena) = (take("spec")?, take("sep")?, take("arena")?);
    let (sep, in_arena) = (sep_of(sep.as_ref())?, is_in_arena(arena.as_ref())?);
    let options = Options { may_start: false, ..Options::parse(&COLLATE, Some(&common))? };
    let engine = options.engine.clone();
    let made = import(samples, spec.as_ref(), &sep, Some(&common), options)?;
    let Import { mut jobs, borrowed, .. } = made;
    borrowed.map_or(Ok(()), |borrowed| own_borrowed_samples(borrowed, &mut jobs))?;
    Ok((jobs, in_arena, engine))
}

/// The separator between the keys of a path, "." if none is given; TypeError for what is no string.
fn sep_of<'a>(sep: Option<&'a Bound<'_, PyAny>>) -> PyResult<Cow<'a, str>> {
    let Some(sep) = sep else {
        return Ok(Cow::Borrowed("."));
    };
    match sep.cast::<PyString>() {
        Ok(sep) => sep.to_cow(),
        Err(error) => Err(unfit(sep, "sep", "a string", error.into())),
    }
}

/// The bool of `arena=`, false if it is not given; TypeError for what is no bool.
fn is_in_arena(arena: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
    match arena {
        Some(arena) => arena.extract().map_err(|error| unfit(arena, "arena", "a bool", error)),
        None => Ok(false),
    }
}

/// The leaves of a call, imported.
struct Import<'py> {
    tree: TreeDef,
    leaves: Vec<ResultLeaf<'py>>,
    jobs: Vec<Job>,
    /// The columns that keep the samples of all jobs alive until Python code runs, if they are borrowed.
    borrowed: Option<Borrowed<'py>>,
}

/// Flattens the samples and reads all leaves; the error of a leaf comes before that of the structure.
fn import<'py>(
    samples: &Bound<'py, PyAny>,
    spec: Option<&Bound<'py, PyAny>>,
    sep: &str,
    common: Option<&Bound<'py, PyDict>>,
    mut options: Options<'py>,
) -> PyResult<Import<'py>> {
    let py = samples.py();
    let column = column_of(samples, sep, options.stream)?;
    let root = NodeInput { column, within: ClassRules::default() };
    let out = options.out.take();
    let common = common.map(|common| common.copy()).transpose()?;
    if let Some(common) = common.as_ref().filter(|_| out.is_some()) {
        // The tree of outputs is taken apart as the samples are.
        common.del_item("out")?;
    }
    let (specs, jobs) = (Specs::new(spec, sep)?, Vec::new());
    let mut leaves = Leaves { py, options, common: common.as_ref(), specs, jobs };
    let may_borrow = leaves.specs.is_empty() && out.is_none() && leaves.options.is_copy();
    let mut rules = OurRules::new(&leaves, may_borrow);
    let flat = flatten(py, &mut rules, root, String::new(), sep);
    let borrowed = rules.borrowed;
    let mut outs = try_vec(flat.leaves.len())?;
    if let Some(out) = out {
        let open = |container: &Container, path: &str, out| {
            container.outputs(out, ColumnPlace::new(path, sep), OUT)
        };
        flat.tree.flatten_up_to(out, open, |_, out| {
            outs.push(out);
            Ok(())
        })?;
    }
    let (mut made, mut outs) = (try_vec(flat.leaves.len())?, outs.into_iter());
    leaves.jobs = try_vec(flat.leaves.len())?;
    for (path, NodeInput { column, within }) in flat.leaves {
        let out = outs.next();
        if let Column::Passed(list) = column {
            leaves.specs.pass(&path);
            made.push(ResultLeaf::Object(list));
            continue;
        }
        let options = leaves.options_of(&within, &path)?;
        made.push(leaves.add(options.as_ref(), path, column, &within, out.as_ref())?);
    }
    flat.end?;
    leaves.specs.all_used()?;
    Ok(Import { tree: flat.tree, leaves: made, jobs: leaves.jobs, borrowed })
}

/// The samples of a call, as one column. ValueError for none, TypeError for a mapping or text in place of a list.
fn column_of<'py>(
    samples: &Bound<'py, PyAny>,
    sep: &str,
    stream: Option<Stream>,
) -> PyResult<Column<'py>> {
    if let Some(column) = read_before(samples, sep)? {
        return Ok(column);
    }
    // What lends its memory without being a class of arrays: its items would lose their dtype.
    if matches!(route_of(samples)?.0, ImportRoute::Protocols) && is_tensor(samples)? {
        let reading = Reading { stream, ..Reading::OWNED };
        let (imported, _) = import_samples(samples, reading)?;
        return match imported.list.is_empty() {
            true => Err(no_samples()),
            false => Ok(Column::Imported(Arc::new(imported))),
        };
    }
    check_list(samples)?;
    let samples = items_of(samples).map_err(|error| no_list(samples, error))?;
    match samples.len() {
        0 => Err(no_samples()),
        _ => Ok(Column::from_objects(samples)),
    }
}

/// The samples of a `SampleList` or an Arrow table, as one column; `None` for any other object. ValueError for none, and the
/// IndexError that indices of the list on a device have had.
pub(super) fn read_before<'py>(
    samples: &Bound<'py, PyAny>,
    sep: &str,
) -> PyResult<Option<Column<'py>>> {
    let py = samples.py();
    if let Ok(list) = samples.cast_exact::<PySampleList>() {
        list.get().check_resident(py)?;
        return match list.get().snapshot(py) {
            samples if samples.len() == 0 => Err(no_samples()),
            ListSamples::Leaves(samples) => Ok(Some(Column::Imported(samples))),
            ListSamples::Trees(trees) => Column::from_trees(py, &trees).map(Some),
        };
    }
    match table_in(samples, sep)? {
        Some(table) if table.len() == 0 => {
            let text = "cannot assemble an empty list of samples: a table without rows";
            Err(PyValueError::new_err(text))
        }
        Some(table) => Column::from_trees(py, &table).map(Some),
        None => Ok(None),
    }
}

/// The ValueError for an empty list of samples.
fn no_samples() -> PyErr {
    PyValueError::new_err("cannot assemble an empty list of samples")
}
