//! `collate`: a list of trees to one tree of batches, all leaves in one plan.

use std::borrow::Cow;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use windrow::bindings::RowsAhead;
use windrow::{Batch, Stage};

use crate::collate::forms::COLLATE;
use crate::collate::job::{BorrowedLeaves, Job};
use crate::collate::leaves::{Leaves, ResultNode, Within};
use crate::collate::options::Options;
use crate::collate::run::{run, run_borrowed, ArenaMemory};
use crate::collate::site::{Site, Source};
use crate::collate::specs::Specs;
use crate::export::libraries::torch;
use crate::ground::arguments::unfit;
use crate::ground::batch::PyBatch;
use crate::ground::iterables::{check_list, items_of, list_of, no_list};
use crate::ground::logging::Records;
use crate::ground::reserve::{no_room, room_for};
use crate::ground::tensor::PyTensor;
use crate::import::importer::Reading;
use crate::ownership::owner::in_place;
use crate::samples::columns::{are_texts, import_leaf, Content, LeafColumn};
use crate::samples::imported::Imported;
use crate::samples::list::{ListSamples, PySampleList};
use crate::samples::table::table_in;
use crate::samples::trees::{ShapeNodeType, Trees};
use crate::trees::container::ColumnPlace;
use crate::trees::rules::apart;
use crate::trees::walk::{fold, walk, Branch, Children};

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
///     spec (dict): leaf path, with globs, to `Stack`, `Concat`, `Pad` or
///         `Ragged`. An exact path goes before a glob, an earlier glob before a later one.
///         Unnamed leaves are stacked. A list or tuple of Python numbers is a container of as many
///         leaves, and one leaf, of one dim, where a key is exactly its path.
///     sep (str): joins the keys of a path.
///     arena (bool): all tensors of all leaves in one allocation, each at a multiple of 64 bytes (256 in
///         page-locked memory and on a device), zeros between them: `Batch.arena`. One copy moves the
///         whole tree, and it pickles as one buffer; `Batch.arena_layout` says what is where.
///     out: a tree of the same shape to write to.
///     common: as for `stack`; a spec's own arguments take precedence, ``engine`` among them: leaves of several engines are
///         planned for each.
///
/// Returns:
///     A tree of the samples' structure: a `Batch` for each tensor leaf (a torch tensor within classes of tensordict and PyTorch
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
#[pyo3(signature = (samples, spec = None, *, sep = None, arena = None, **common), text_signature = "(samples, spec=None, *, sep='.', arena=False, dtype=None, device=None, out=None, stream=None, transform=None, copy=True, engine=None)")]
pub(crate) fn collate<'py>(
    samples: &Bound<'py, PyAny>,
    spec: Option<&Bound<'py, PyAny>>,
    sep: Option<&Bound<'py, PyAny>>,
    arena: Option<&Bound<'py, PyAny>>,
    common: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = samples.py();
    let _records = Records::of_call(py);
    let (sep, arena) = (sep_of(sep)?, is_in_arena(arena)?);
    let options = Options::parse(&COLLATE, common)?;
    let span = options.engine.enter(Stage::Import);
    let (tree, mut jobs, borrowed) = import(samples, spec, &sep, common, &options, !arena)?;
    let (engine, arena) = (&options.engine, ArenaMemory::of(arena));
    let batches = match borrowed {
        Some(borrowed) => run_borrowed(py, engine, &mut jobs, borrowed, arena, span.end())?,
        None => run(py, engine, &mut jobs, arena, span.end())?,
    };
    let arena = batches.iter().find_map(Batch::arena);
    let arena = arena.map(|arena| Bound::new(py, PyTensor::from(arena.clone()))).transpose()?;
    build(py, &tree, batches, arena.as_ref())
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
    let (sep, in_arena) = (sep_of(sep.as_ref())?, is_in_arena(arena.as_ref())?);
    let options = Options::parse(&COLLATE, Some(&common))?;
    let (_, mut jobs, borrowed) =
        import(samples, spec.as_ref(), &sep, Some(&common), &options, false)?;
    if let Some(borrowed) = borrowed {
        borrowed.hold(&mut jobs)?;
    }
    Ok((jobs, in_arena))
}

/// The separator between the keys of a path.
fn sep_of<'a>(sep: Option<&'a Bound<'_, PyAny>>) -> PyResult<Cow<'a, str>> {
    let Some(sep) = sep else {
        return Ok(Cow::Borrowed("."));
    };
    match sep.cast::<PyString>() {
        Ok(sep) => sep.to_cow(),
        Err(error) => Err(unfit(sep, "sep", "a string", error.into())),
    }
}

fn is_in_arena(arena: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
    match arena {
        Some(arena) => arena.extract().map_err(|error| unfit(arena, "arena", "a bool", error)),
        None => Ok(false),
    }
}

/// The tree of results, its leaves, and those of them whose samples are borrowed.
type Read<'py> = (Vec<ResultNode<'py>>, Vec<Job>, Option<BorrowedLeaves<'py>>);

/// Reads all leaves. `may_start`: whether rows may be copied ahead of the plan.
fn import<'py>(
    samples: &Bound<'py, PyAny>,
    spec: Option<&Bound<'py, PyAny>>,
    sep: &str,
    common: Option<&Bound<'py, PyDict>>,
    options: &Options<'py>,
    may_start: bool,
) -> PyResult<Read<'py>> {
    let py = samples.py();
    let samples = samples_in(samples, sep)?;
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
    let (common, jobs, borrowed) = (common.as_ref(), Vec::new(), None);
    let mut leaves = Leaves { py, options, common, may_start, specs, jobs, borrowed };
    let tree = match samples {
        TreeInput::Objects(samples) => {
            nodes_of(&mut leaves, Source::Objects(samples), options.out.clone(), None)?
        }
        TreeInput::List(ListSamples::Trees(trees)) => {
            nodes_of(&mut leaves, Source::Known, options.out.clone(), Some(&trees))?
        }
        TreeInput::List(ListSamples::Leaves(samples)) => {
            let import = |reading: Reading<'_>| known_leaf(py, samples, reading.path);
            vec![leaves.add(String::new(), options.out.clone(), &Within::default(), import)?]
        }
    };
    leaves.specs.all_used()?;
    Ok((tree, leaves.jobs, leaves.borrowed))
}

/// The input of a call of `collate`.
enum TreeInput<'py> {
    Objects(Vec<Bound<'py, PyAny>>),
    List(ListSamples),
}

impl TreeInput<'_> {
    fn is_empty(&self) -> bool {
        match self {
            TreeInput::Objects(samples) => samples.is_empty(),
            TreeInput::List(samples) => samples.len() == 0,
        }
    }
}

fn samples_in<'py>(samples: &Bound<'py, PyAny>, sep: &str) -> PyResult<TreeInput<'py>> {
    if let Ok(list) = samples.cast_exact::<PySampleList>() {
        list.get().check_resident(samples.py())?;
        return Ok(TreeInput::List(list.get().snapshot()));
    }
    if let Some(trees) = table_in(samples, sep)? {
        return Ok(TreeInput::List(ListSamples::Trees(trees)));
    }
    check_list(samples)?;
    Ok(TreeInput::Objects(items_of(samples).map_err(|error| no_list(samples, error))?))
}

/// A leaf that was imported before, if its memory is where it was.
fn known_leaf(
    py: Python<'_>,
    samples: Arc<Imported>,
    path: &str,
) -> PyResult<(Arc<Imported>, Option<RowsAhead>)> {
    samples.check_in_place(py, path)?;
    Ok((samples, None))
}

/// All nodes, each before its children. `trees`: what has taken the samples apart already.
fn nodes_of<'py>(
    leaves: &mut Leaves<'_, 'py>,
    samples: Source<'py>,
    out: Option<Bound<'py, PyAny>>,
    trees: Option<&Trees>,
) -> PyResult<Vec<ResultNode<'py>>> {
    let mut known = trees.into_iter().flat_map(Trees::nodes);
    let py = leaves.py;
    walk(Branch::root(Site::root(samples, out)), |branch, children| {
        let Branch { column: mut site, path, .. } = branch;
        match std::mem::replace(&mut site.samples, Source::Known) {
            Source::Objects(samples) => node(leaves, (site, &path), samples, children),
            Source::Read(column) => {
                leaves.add(path, site.out, &site.within, |reading| column.import(py, reading))
            }
            Source::Known => match known.next() {
                Some(node) => known_node(leaves, (site, &path), node, children),
                None => Err(PyValueError::new_err("a list of trees without a node")),
            },
        }
    })
}

/// One node; its children are visited next.
fn node<'py>(
    leaves: &mut Leaves<'_, 'py>,
    (site, path): (Site<'py>, &str),
    samples: Vec<Bound<'py, PyAny>>,
    children: &mut Children<'_, Site<'py>>,
) -> PyResult<ResultNode<'py>> {
    let py = leaves.py;
    let place = ColumnPlace { path, sep: leaves.specs.sep(), added_to: None };
    if are_texts(&samples, place)? {
        leaves.specs.pass(path);
        return Ok(ResultNode::Pass(list_of(py, samples)?));
    }
    let rows = leaves.specs.names(path);
    let readers = Some(&leaves.options.engine);
    if let Some(mut apart) = apart(&samples, place, rows, readers)? {
        apart.columns.keep(samples);
        // What is below then runs no Python code.
        let may_borrow =
            children.are_last() && leaves.specs.is_empty() && leaves.options.is_plain();
        let engine = &leaves.options.engine;
        let (container, samples) =
            site.taken_apart(py, engine, apart, place, children, may_borrow)?;
        let first = leaves.jobs.len();
        leaves.jobs.try_reserve(container.len()).map_err(no_room)?;
        leaves.borrowed = samples.map(|samples| BorrowedLeaves { first, samples });
        return Ok(ResultNode::Container(Arc::new(container)));
    }
    import_leaf(samples, place, |samples| {
        leaves.add(path.to_owned(), site.out, &site.within, |reading| {
            let reading = Reading { rows, ..reading };
            let (column, ahead) = Imported::from_objects(py, samples, 0, reading)?;
            Ok((Arc::new(column), ahead))
        })
    })
}

/// As `node`, of samples that were taken apart before.
fn known_node<'py>(
    leaves: &mut Leaves<'_, 'py>,
    (site, path): (Site<'py>, &str),
    (node_type, column): (&ShapeNodeType, Option<&LeafColumn>),
    children: &mut Children<'_, Site<'py>>,
) -> PyResult<ResultNode<'py>> {
    let py = leaves.py;
    match (node_type, column) {
        (ShapeNodeType::Container(container), _) => {
            let place = ColumnPlace { path, sep: leaves.specs.sep(), added_to: None };
            site.known(py, container, place, children)?;
            Ok(ResultNode::Container(Arc::clone(container)))
        }
        (ShapeNodeType::Leaf(_, content), Some(LeafColumn::Objects(objects))) => {
            let objects = objects.iter().map(|object| object.bind(py).clone());
            if matches!(content, Content::Texts) {
                leaves.specs.pass(path);
                return Ok(ResultNode::Pass(list_of(py, objects)?));
            }
            let mut samples = room_for(objects.len())?;
            samples.extend(objects);
            node(leaves, (site, path), samples, children)
        }
        (_, Some(LeafColumn::Tensors(samples))) => {
            let import = |reading: Reading<'_>| known_leaf(py, Arc::clone(samples), reading.path);
            leaves.add(path.to_owned(), site.out, &site.within, import)
        }
        (ShapeNodeType::Leaf(..), None) => Err(PyValueError::new_err("a leaf without a column")),
    }
}

fn build<'py>(
    py: Python<'py>,
    nodes: &[ResultNode<'py>],
    batches: Vec<Batch>,
    arena: Option<&Bound<'py, PyTensor>>,
) -> PyResult<Bound<'py, PyAny>> {
    let num_children = |node: &ResultNode<'py>| match node {
        ResultNode::Container(container) => container.len(),
        ResultNode::Leaf { .. } | ResultNode::Pass(_) => 0,
    };
    // Each is one leaf's.
    let mut batches: Vec<_> = batches.into_iter().map(Some).collect();
    let mut leaf = |position: usize, is_torch: bool| match batches[position].take() {
        Some(batch) if is_torch => torch(py, in_place(py, batch.data())?),
        Some(batch) => Ok(Bound::new(py, PyBatch::in_arena(batch, arena))?.into_any()),
        None => Err(PyValueError::new_err("two leaves of one batch")),
    };
    fold(nodes, num_children, |node, children| match node {
        &ResultNode::Leaf { position, is_torch } => leaf(position, is_torch),
        ResultNode::Pass(list) => Ok(list.clone().into_any()),
        ResultNode::Container(container) => container.with(py, children),
    })
}
