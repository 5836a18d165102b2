//! `copy_many`: many tensors written to as many others. Two lists of plain tensors are read as columns, all else one by one.

use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use windrow::bindings::MoveOptions;
use windrow::{
    Device, Engine, Error, Explain, Mismatch, MoveSide, SampleList, Stage, Stream, Transform,
};

use crate::collate::job::{is_frozen, torch_of_object, torch_of_owner, FROZEN};
use crate::collate::options::{engine_of, transform_of};
use crate::collate::run::{ATTACHED_BYTES, SAMPLE_BYTES};
use crate::engine::default::default_engine;
use crate::ground::arguments::int_within;
use crate::ground::batch::tensor_in;
use crate::ground::errors::{at, of_pair, to_py_err, OrPyErr};
use crate::ground::iterables::{check_list, in_a_row, is_text, items_of, list_of, tuple_from};
use crate::ground::logging::Records;
use crate::ground::modules::increment_version;
use crate::ground::reserve::{push_to, room_for};
use crate::ground::stream::stream_of;
use crate::import::columns::{borrowed_pairs, objects_of};
use crate::import::importer::{Importer, Reading};
use crate::import::places::{own_all_memory, own_list_memory};
use crate::import::routes::{is_array, is_nested, is_tensor, route_of, Lazy};
use crate::import::tensor::table_of;
use crate::ownership::places::moved;
use crate::ownership::ready::refuse_within;
use crate::samples::arrow::{is_arrow, samples_in};
use crate::samples::imported::Imported;
use crate::samples::list::{ListSamples, PySampleList};
use crate::samples::trees::is_tree;
use crate::trees::container::ColumnPlace;
use crate::trees::flatten::{flatten, Opened, TreeDef, TreeRules};
use crate::trees::outputs::TreeNames;
use crate::trees::rules;

/// Joins the names of a path.
const SEP: &str = ".";

/// Writes source ``i`` into destination ``i``, for all pairs in one call: weights into a model, rows of a batch into tensors of their
/// own, rows into places of a table, in host, page-locked and device memory, mixed as it comes.
///
/// A side is a list or tuple of array-likes; a `SampleList`, also from ``take``; a `Batch`, for its samples, the real parts; one
/// array-like, for its rows along dim 0; or, if both sides are, a tree as `collate` takes for one sample, in which mappings match by
/// key and sequences by position. A list of dicts is a tree.
///
/// The shapes of a pair are equal; strides and alignment may be any. Where dtypes differ, elements are cast: integers to integers
/// wrap, floats to integers truncate toward zero and saturate (NaN becomes 0), anything to bool is ``!= 0``; complex and
/// smaller dtypes, and float8 but for e4m3fn and e5m2, are moved, never cast. A pair that is the same memory and dtype is left as it is.
///
/// Torch tensors that are written to are to torch as after ``copy_``: if one was saved for ``backward``, ``backward`` raises.
///
/// Args:
///     dsts: the destinations, in memory that may be written to.
///     srcs: as many sources.
///     transform (Transform): arithmetic and axis order on the way; a destination has the shape of the result.
///     stream: of the CUDA device that a side is on, to enqueue the work on: a handle, a torch or CuPy stream, or an object with
///         ``__cuda_stream__``; None: the one that destinations or sources were written on, else one of the engine's own.
///     engine (Engine): None: the default one.
///     max_blocks (int): without effect so far.
///
/// Raises:
///     ValueError: another number of sources than of destinations; a destination that shares bytes with another one, as where ids
///         repeat in ``table.take(ids)``, or with any source but its own identical one; a ``stream`` beside memory without one, or
///         beside sides on two devices.
///     ShapeError, DTypeError: a pair that does not fit.
///     LayoutError: a destination that is read-only, a Python number or of foreign byte order, or whose elements overlap each other; a
///         torch tensor that requires grad while torch's grad mode is on: call within ``torch.no_grad()``.
///     DeviceError: sides on several devices.
///     CudaUnavailable, CudaError: as for `stack`.
///     TypeError: what is no side, or no array-like. KeyError: trees of different keys.
///     RuntimeError: an inference tensor as destination outside of inference mode.
///
/// On return, destinations on the host are written and sources in pageable memory are read. Work on a device is in the order of the
/// stream, and its memory is kept until it is done; who uses a destination on another stream orders that behind it. Beside a side on
/// the device, or with ``stream``, pairs of page-locked memory wait for what is on the stream; alone they are copied at once. All sources
/// of a device, and all that go to it, are one launch; pageable memory below 1 MiB a tensor goes to the device in one copy, and
/// comes back in one, which is waited for. Ids in device memory are refused on both sides.
///
/// All of them are raised before a byte is written, with the position of the pair as ``.index``, ``.side`` (``"destination"`` or
/// ``"source"``; ``"destination"`` where the two do not fit) and, in trees, ``.path``.
///
/// Examples:
///     >>> import windrow as wr
///     >>> a, b = bytearray(2), bytearray(3)
///     >>> wr.copy_many([a, b], [b"xy", b"abc"])
///     >>> bytes(a), bytes(b)
///     (b'xy', b'abc')
///     >>> table = wr.stack([b"....", b"....", b"...."])
///     >>> wr.copy_many(wr.SampleList(table).take([2, 0]), [b"last", b"head"])
///     >>> [bytes(row) for row in table]
///     [b'head', b'....', b'last']
///     >>> model = {"w": memoryview(bytearray(8)).cast("f"), "n": bytearray(1)}
///     >>> wr.copy_many(model, {"n": b"!", "w": [1, 2]})
///     >>> model["w"].tolist(), model["n"]
///     ([1.0, 2.0], bytearray(b'!'))
#[pyfunction]
#[pyo3(signature = (dsts, srcs, *, transform = None, stream = None, engine = None, max_blocks = None))]
pub(crate) fn copy_many(
    dsts: &Bound<'_, PyAny>,
    srcs: &Bound<'_, PyAny>,
    transform: Option<&Bound<'_, PyAny>>,
    stream: Option<&Bound<'_, PyAny>>,
    engine: Option<&Bound<'_, PyAny>>,
    max_blocks: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let py = dsts.py();
    let _records = Records::of_call(py);
    let transform = transform.map_or_else(|| Ok(Transform::default()), transform_of)?;
    let engine = engine.map_or_else(|| Ok(default_engine().clone()), engine_of)?;
    check_blocks(max_blocks)?;
    let stream = stream.map(stream_of).transpose()?;
    let span = engine.enter(Stage::Import);
    // SAFETY: `copy_columns` runs no Python code, and keeps the samples before this thread is detached.
    #[allow(unsafe_code)]
    if let Some((lists, are_torch)) = unsafe { borrowed_pairs(dsts, srcs) }? {
        span.end();
        if stream.is_some() {
            return Err(no_stream());
        }
        return copy_columns(&engine, dsts, srcs, &lists, are_torch, &transform);
    }
    let pairs = Pairs::read(dsts, srcs, stream)?;
    span.end();
    copy_pairs(py, &engine, pairs, transform, stream)
}

/// Pairs that were read one by one.
fn copy_pairs(
    py: Python<'_>,
    engine: &Engine,
    Pairs { dsts, srcs, paths }: Pairs,
    transform: Transform,
    stream: Option<Stream>,
) -> PyResult<()> {
    check_counts(py, dsts.samples.list.len(), srcs.samples.list.len())?;
    let (to, from) = (&dsts.samples.list, &srcs.samples.list);
    if stream.is_some() {
        one_device(py, [to, from])?;
    }
    let options = match dsts.samples.ordinal().or(srcs.samples.ordinal()) {
        None if stream.is_some() && !has_pinned([to, from]) => return Err(no_stream()),
        None => {
            let mut options = MoveOptions { transform, ..MoveOptions::default() };
            options.run.stream = stream;
            options
        }
        Some(ordinal) => ordered(engine, &dsts.samples, &srcs.samples, stream, ordinal)
            .map(|options| MoveOptions { transform, ..options })
            .or_py_err(py)?,
    };
    // Reading the sources may have run code that moved a destination.
    if let Some(index) = dsts.samples.places.find_moved(py)? {
        return Err(to_py_err(py, &moved(index).at_side(MoveSide::Destination, index)));
    }
    // On a device, and for a stream, the call may wait, which keeps no other thread waiting.
    let is_on_host =
        stream.is_none() && dsts.samples.ordinal().or(srcs.samples.ordinal()).is_none();
    let is_quick = is_on_host && is_quick(to, from);
    copy(py, engine, to, from, options, is_quick).map_err(|error| pair_error(py, error, &paths))?;
    match dsts.torch.is_empty() {
        true => Ok(()),
        false => {
            let torch = dsts.torch.into_iter().map(|tensor| tensor.into_bound(py));
            increment_version(list_of(py, torch)?.as_any())
        }
    }
}

/// As `copy_many`, of lists of leaves with these paths.
pub(super) fn copy_leaves(
    engine: &Engine,
    dsts: &Bound<'_, PyList>,
    srcs: &Bound<'_, PyList>,
    paths: Vec<String>,
) -> PyResult<()> {
    let py = dsts.py();
    let span = engine.enter(Stage::Import);
    let dsts = Side::of_objects(py, items_of(dsts)?, &paths, MoveSide::Destination, None)?;
    let srcs = Side::of_objects(py, items_of(srcs)?, &paths, MoveSide::Source, None)?;
    span.end();
    copy_pairs(py, engine, Pairs { dsts, srcs, paths }, Transform::default(), None)
}

/// Both sides are columns, which the caller's lists keep as long as no Python code runs.
fn copy_columns(
    engine: &Engine,
    dsts: &Bound<'_, PyAny>,
    srcs: &Bound<'_, PyAny>,
    [to, from]: &[SampleList<'static>; 2],
    are_torch: bool,
    transform: &Transform,
) -> PyResult<()> {
    let py = dsts.py();
    let is_quick = is_quick(to, from);
    let held = match is_quick {
        true => None,
        false => Some((objects_of(dsts, to.len())?, objects_of(srcs, from.len())?)),
    };
    let options = MoveOptions { transform: transform.clone(), ..MoveOptions::default() };
    copy(py, engine, to, from, options, is_quick).or_py_err(py)?;
    match (are_torch, held) {
        (false, _) => Ok(()),
        (true, None) => increment_version(dsts),
        (true, Some((written, _))) => {
            let written = written.into_iter().map(|tensor| tensor.into_bound(py));
            increment_version(list_of(py, written)?.as_any())
        }
    }
}

/// Whether so little is read and written that to release the interpreter lock would take longer.
fn is_quick(to: &SampleList<'_>, from: &SampleList<'_>) -> bool {
    let bytes = |list: &SampleList<'_>| {
        let of = |id: u32| {
            let meta = &list.metas()[id as usize];
            meta.dtype.size() as u64 * meta.layout.numel() as u64
        };
        match (list.meta_ids(), list.is_empty()) {
            (_, true) => 0,
            (None, false) => of(0).saturating_mul(list.len() as u64),
            (Some(ids), false) => ids.iter().map(|&id| of(id)).fold(0, u64::saturating_add),
        }
    };
    let most = ATTACHED_BYTES.max(SAMPLE_BYTES.saturating_mul(to.len() as u64));
    bytes(to).saturating_add(bytes(from)) <= most
}

fn copy(
    py: Python<'_>,
    engine: &Engine,
    to: &SampleList<'static>,
    from: &SampleList<'static>,
    options: MoveOptions,
    is_quick: bool,
) -> windrow::Result<()> {
    // SAFETY: destinations were found to be writable as they were read; that nothing else touches them during the call is its
    // contract.
    #[allow(unsafe_code)]
    let copy = || unsafe { engine.copy_lists(to, from, options) };
    match is_quick {
        true => copy(),
        false => py.detach(copy),
    }
}

/// An error of pairs that have these paths, if they are leaves of trees.
fn pair_error(py: Python<'_>, error: Error, paths: &[String]) -> PyErr {
    let index = error.mismatch().and_then(|mismatch| mismatch.index);
    let path = index.and_then(|index| paths.get(index)).map_or("", String::as_str);
    to_py_err(py, &error.at_path(path))
}

/// `explain` of pairs: `arguments` are those of `copy_many`, with ``dsts``.
pub(super) fn explain_pairs(
    srcs: &Bound<'_, PyAny>,
    arguments: Option<&Bound<'_, PyDict>>,
) -> PyResult<Explain> {
    const NAMES: [&str; 5] = ["dsts", "transform", "stream", "engine", "max_blocks"];
    let py = srcs.py();
    let mut given: [Option<Bound<'_, PyAny>>; 5] = Default::default();
    for (name, value) in arguments.into_iter().flatten() {
        let name: String = name.extract()?;
        let Some(at) = NAMES.iter().position(|known| *known == name) else {
            let text = format!("copy_many has no argument {name:?}; it has {}", NAMES.join(", "));
            return Err(PyTypeError::new_err(text));
        };
        given[at] = Some(value).filter(|value| !value.is_none());
    }
    let [dsts, transform, stream, engine, blocks] = given;
    let Some(dsts) = dsts else {
        let text = "copy_many needs dsts=, the destinations, beside the sources";
        return Err(PyTypeError::new_err(text));
    };
    let transform = transform.as_ref().map_or_else(|| Ok(Transform::default()), transform_of)?;
    engine.as_ref().map(engine_of).transpose()?;
    check_blocks(blocks.as_ref())?;
    let stream = stream.as_ref().map(stream_of).transpose()?;
    let Pairs { dsts, srcs, paths } = Pairs::read(&dsts, srcs, stream)?;
    let (to, from) = (&dsts.samples.list, &srcs.samples.list);
    check_counts(py, to.len(), from.len())?;
    let explain = py.detach(|| Engine::explain_lists(to, from, &transform));
    explain.map_err(|error| pair_error(py, error, &paths))
}

fn check_blocks(blocks: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    blocks.map_or(Ok(()), |blocks| {
        int_within(blocks, "max_blocks", 1..=u64::from(u32::MAX)).map(drop)
    })
}

fn no_stream() -> PyErr {
    PyValueError::new_err("stream= is for tensors on a CUDA device; host memory has no streams")
}

fn has_pinned(sides: [&SampleList<'_>; 2]) -> bool {
    let is_pinned =
        |list: &SampleList<'_>| list.metas().iter().any(|meta| meta.device == Device::Pinned);
    sides.into_iter().any(is_pinned)
}

/// A stream is of one device.
fn one_device(py: Python<'_>, sides: [&SampleList<'_>; 2]) -> PyResult<()> {
    let devices = sides.into_iter().flat_map(|list| list.metas()).map(|meta| meta.device);
    let mut devices = devices.filter(|device| matches!(device, Device::Cuda(_)));
    let Some(first) = devices.next() else { return Ok(()) };
    match devices.find(|device| *device != first) {
        None => Ok(()),
        Some(other) => {
            let text =
                format!("stream= is of one device, and the sides are on {first} and {other}");
            Err(of_pair(py, PyValueError::new_err(text), MoveSide::Destination, None, ""))
        }
    }
}

/// Where work on a device is enqueued, what it waits for and what is held until it is done.
fn ordered(
    engine: &Engine,
    dsts: &Imported,
    srcs: &Imported,
    asked: Option<Stream>,
    ordinal: u32,
) -> windrow::Result<MoveOptions> {
    let mut options = MoveOptions::default();
    // Destinations first: their memory may be in use by what was enqueued where it was allocated.
    let mut producers = dsts.producers();
    // The engine itself orders the work behind and before others on memory of its own.
    let run = &mut options.run;
    for tensor in std::mem::take(&mut producers.tensors) {
        match tensor.device() {
            Device::Cuda(_) => options.out_owners.push(Arc::clone(tensor.owner())),
            _ => run.keep.push(Arc::clone(tensor.owner())),
        }
    }
    producers.merge(srcs.producers());
    for samples in [dsts, srcs].into_iter().filter(|samples| !samples.is_on_host()) {
        run.keep.extend(samples.owners.keep());
    }
    run.keep.extend(producers.keep());
    let stream = match asked.or(producers.current) {
        Some(stream) => stream,
        None => engine.stream(ordinal)?,
    };
    refuse_within(&producers, ordinal, stream)?;
    run.stream = Some(stream);
    run.producers = producers.streams;
    Ok(options)
}

fn check_counts(py: Python<'_>, dsts: usize, srcs: usize) -> PyResult<()> {
    if dsts == srcs {
        return Ok(());
    }
    let text = format!("{dsts} destinations for {srcs} sources");
    Err(of_pair(py, PyValueError::new_err(text), MoveSide::Destination, None, ""))
}

/// One side of all pairs.
struct Side {
    samples: Arc<Imported>,
    /// The torch tensors among destinations.
    torch: Vec<Py<PyAny>>,
}

/// Both sides, and the path of each pair, if they are trees.
struct Pairs {
    dsts: Side,
    srcs: Side,
    paths: Vec<String>,
}

impl Pairs {
    fn read(
        dsts: &Bound<'_, PyAny>,
        srcs: &Bound<'_, PyAny>,
        stream: Option<Stream>,
    ) -> PyResult<Pairs> {
        match (is_tree_side(dsts)?, is_tree_side(srcs)?) {
            (true, true) => Pairs::of_trees(dsts, srcs, stream),
            (false, false) => {
                let dsts = Side::read(dsts, MoveSide::Destination, stream)?;
                let srcs = Side::read(srcs, MoveSide::Source, stream)?;
                Ok(Pairs { dsts, srcs, paths: Vec::new() })
            }
            (is_first, _) => {
                let names = ("destinations", "sources");
                let (tree, other) = if is_first { names } else { (names.1, names.0) };
                let text = format!(
                    "the {tree} are a tree and the {other} are none; give trees of one structure, or two lists of array-likes"
                );
                Err(of_pair(dsts.py(), PyTypeError::new_err(text), MoveSide::Destination, None, ""))
            }
        }
    }

    /// Flattens the sources as the destinations are.
    fn of_trees(
        dsts: &Bound<'_, PyAny>,
        srcs: &Bound<'_, PyAny>,
        stream: Option<Stream>,
    ) -> PyResult<Pairs> {
        let py = dsts.py();
        let names = TreeNames { name: "srcs", like: "destinations" };
        let (_, paths, destinations, sources) = flatten_both(dsts, Some(srcs), names)?;
        let dsts = Side::of_objects(py, destinations, &paths, MoveSide::Destination, stream)?;
        let srcs = Side::of_objects(py, sources, &paths, MoveSide::Source, stream)?;
        Ok(Pairs { dsts, srcs, paths })
    }
}

/// Whether a side is a tree, or a list of trees.
fn is_tree_side(side: &Bound<'_, PyAny>) -> PyResult<bool> {
    if side.is_exact_instance_of::<PyList>() || side.is_exact_instance_of::<PyTuple>() {
        return side.try_iter()?.next().map_or(Ok(false), |first| is_tree(&first?));
    }
    if side.is_instance_of::<PySampleList>() || is_array(side)? || is_arrow(side)? {
        return Ok(false);
    }
    is_tree(side)
}

/// A tree, the paths of its leaves, its leaves, and those of another tree at the same places, none without one.
type FlatPair<'py> = (TreeDef, Vec<String>, Vec<Bound<'py, PyAny>>, Vec<Bound<'py, PyAny>>);

/// Flattens a tree by [`PairRules`], and another one as it is.
pub(super) fn flatten_both<'py>(
    tree: &Bound<'py, PyAny>,
    other: Option<&Bound<'py, PyAny>>,
    names: TreeNames,
) -> PyResult<FlatPair<'py>> {
    let py = tree.py();
    let flat = flatten(py, &mut PairRules, tree.clone(), String::new(), SEP);
    flat.end?;
    let (paths, leaves): (Vec<_>, Vec<_>) = flat.leaves.into_iter().unzip();
    let mut others = room_for(leaves.len())?;
    if let Some(other) = other {
        flat.tree.flatten_up_to(
            other.clone(),
            |container, path, other| container.outputs(other, ColumnPlace::new(path, SEP), names),
            |_, leaf| push_to(&mut others, leaf),
        )?;
    }
    Ok((flat.tree, paths, leaves, others))
}

/// The leaves of one tree: what is no container.
struct PairRules;

impl<'py> TreeRules<'py> for PairRules {
    type Column = Bound<'py, PyAny>;
    type Leaf = Bound<'py, PyAny>;

    fn open(
        &mut self,
        object: Bound<'py, PyAny>,
        place: ColumnPlace<'_>,
        _: bool,
    ) -> PyResult<Opened<Self::Column, Self::Leaf>> {
        if is_text(&object) {
            return Ok(Opened::Leaf(object));
        }
        let samples = [object];
        let opened = rules::open(&samples, place, false, None)?;
        let [object] = samples;
        Ok(match opened {
            None => Opened::Leaf(object),
            Some(opened) => {
                let columns = opened.columns.into_lists()?.into_iter();
                let children = columns.filter_map(|column| column.into_iter().next()).collect();
                Opened::Container(Arc::new(opened.container), children)
            }
        })
    }
}

impl Side {
    fn read(given: &Bound<'_, PyAny>, side: MoveSide, stream: Option<Stream>) -> PyResult<Side> {
        let py = given.py();
        if let Ok(list) = given.cast_exact::<PySampleList>() {
            return Side::of_list(py, list.get(), side);
        }
        let is_list =
            given.is_exact_instance_of::<PyList>() || given.is_exact_instance_of::<PyTuple>();
        if is_list {
            return Side::of_objects(py, items_of(given)?, &[], side, stream);
        }
        if !is_array(given)? {
            if is_arrow(given)? {
                let samples = samples_in(given, "")?;
                return match side {
                    MoveSide::Source => Ok(Side { samples: Arc::new(samples), torch: Vec::new() }),
                    MoveSide::Destination => {
                        Err(read_only(py, "an Arrow array, which no one writes to"))
                    }
                };
            }
            check_list(given)?;
        }
        if is_nested(given)? {
            let parts = tuple_from(&given.call_method0("unbind")?)?;
            return Side::of_objects(py, in_a_row(&parts)?, &[], side, stream);
        }
        if is_tensor(given)? {
            return Side::of_table(given, side, stream);
        }
        Side::of_objects(py, in_a_row(&tuple_from(given)?)?, &[], side, stream)
    }

    /// The rows of one tensor.
    fn of_table(
        given: &Bound<'_, PyAny>,
        side: MoveSide,
        stream: Option<Stream>,
    ) -> PyResult<Side> {
        let py = given.py();
        if side == MoveSide::Source {
            let reading = Reading { rows: false, stream, ..Reading::default() };
            let table = table_of(given, "srcs", reading)?;
            return Ok(Side {
                samples: Arc::new(Imported::rows_of(py, table)?),
                torch: Vec::new(),
            });
        }
        own_memory_in(given)?;
        let table = table_of(given, "dsts", Reading { rows: false, stream, ..Reading::OWNED })?;
        if table.is_read_only() {
            return Err(read_only(py, "read-only memory"));
        }
        let torch = written(py, torch_of_owner(py, table.owner())?, None, "")?;
        let samples = Arc::new(Imported::rows_of(py, table)?);
        Ok(Side { samples, torch: torch.into_iter().collect() })
    }

    /// Samples that were imported before.
    fn of_list(py: Python<'_>, list: &PySampleList, side: MoveSide) -> PyResult<Side> {
        if let ListSamples::Trees(trees) = list.snapshot() {
            let class = trees.class(py)?;
            let text = format!(
                "the samples of a list are trees ({class}); give a tree of lists, one for each leaf"
            );
            return Err(of_pair(py, PyTypeError::new_err(text), side, None, ""));
        }
        let samples = list.leaves(py)?;
        list.check_resident(py)?;
        let mut torch = Vec::new();
        if side == MoveSide::Destination {
            own_list_memory(py, &samples.owners, &samples.places)?;
            if let Some(index) = samples.list.first_read_only() {
                if samples.list.is_all_read_only() {
                    return Err(read_only(py, "a SampleList in read-only memory"));
                }
                let found = Mismatch::new(Some(index), "writable memory", "read-only memory");
                return Err(to_py_err(py, &Error::Layout(Box::new(found)).at_side(side, index)));
            }
            for tensor in samples.owners.tensors() {
                torch.extend(written(py, Some(tensor.clone_ref(py)), None, "")?);
            }
            for kept in samples.owners.objects() {
                torch.extend(written(py, torch_of_object(py, kept)?, None, "")?);
            }
            for owner in samples.owners.shared().iter() {
                torch.extend(written(py, torch_of_owner(py, owner)?, None, "")?);
            }
        }
        match samples.places.find_moved(py)? {
            None => Ok(Side { samples, torch }),
            Some(index) => Err(to_py_err(py, &moved(index).at_side(side, index))),
        }
    }

    /// Array-likes, with the path of each if they are leaves of a tree.
    fn of_objects(
        py: Python<'_>,
        objects: Vec<Bound<'_, PyAny>>,
        paths: &[String],
        side: MoveSide,
        stream: Option<Stream>,
    ) -> PyResult<Side> {
        let path_of = |index: usize| paths.get(index).map_or("", String::as_str);
        let mut torch = Vec::new();
        let reading = match side {
            MoveSide::Source => {
                Reading { side: Some(side), rows: true, stream, ..Reading::default() }
            }
            MoveSide::Destination => {
                objects.iter().try_for_each(own_memory_in)?;
                Reading { side: Some(side), rows: false, stream, ..Reading::OWNED }
            }
        };
        if side == MoveSide::Destination {
            for (index, object) in objects.iter().enumerate() {
                let found = match tensor_in(object) {
                    Some(tensor) => torch_of_owner(py, tensor.owner())?,
                    None => match route_of(object)?.1 {
                        Lazy::No => None,
                        _ => Some(object.clone().unbind()),
                    },
                };
                if let Some(found) = written(py, found, Some(index), path_of(index))? {
                    push_to(&mut torch, found)?;
                }
            }
        }
        let mut importer = Importer::new(py, reading);
        importer.paths = paths.to_vec();
        importer.import_objects(objects, 0, None)?;
        let (samples, _) = Imported::from_importer(importer)?;
        Ok(Side { samples: Arc::new(samples), torch })
    }
}

/// Has a tensor of ours that is to be written to own its memory, which may have come to be shared with a lazy clone.
fn own_memory_in(object: &Bound<'_, PyAny>) -> PyResult<()> {
    tensor_in(object).map_or(Ok(()), |tensor| own_all_memory(object.py(), tensor))
}

/// A torch tensor that is written to, refused if it must not be here.
#[allow(unsafe_code)]
fn written(
    py: Python<'_>,
    torch: Option<Py<PyAny>>,
    index: Option<usize>,
    path: &str,
) -> PyResult<Option<Py<PyAny>>> {
    let Some(tensor) = torch else { return Ok(None) };
    let object = tensor.bind(py);
    let is_plain = match route_of(object)?.1 {
        // SAFETY: a live object of a class that has words. Inference tensors have other keys than plain ones.
        Lazy::Words(torch) => unsafe { torch.fields_of(object.as_ptr()) }.is_some(),
        _ => false,
    };
    if !is_plain && is_frozen(object)? {
        let whose = index.map_or("dsts".to_owned(), |index| format!("destination {index}"));
        let text = format!("{whose}{}: {FROZEN}", at(path));
        let error = PyRuntimeError::new_err(text);
        return Err(of_pair(py, error, MoveSide::Destination, index, path));
    }
    Ok(Some(tensor))
}

/// The refusal of a side as a whole.
fn read_only(py: Python<'_>, got: &str) -> PyErr {
    let mismatch = Mismatch::of("dsts", "writable memory", got);
    let error = to_py_err(py, &Error::Layout(Box::new(mismatch)));
    of_pair(py, error, MoveSide::Destination, None, "")
}
