//! `copy_many`: many tensors written to as many others. Two lists of plain tensors are read as columns, all else one by one.

use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use windrow::bindings::MoveOptions;
use windrow::collate::AnyTransform;
use windrow::error::MoveSide;
use windrow::explain::Explain;
use windrow::observe::Stage;
use windrow::{Device, Engine, Error, SampleList, Stream, Tensor};

use crate::collate::options::engine_of;
use crate::collate::quantize::transform_of;
use crate::collate::run::{ATTACHED_BYTES, SAMPLE_BYTES};
use crate::engine::default::default_engine;
use crate::ground::arguments::int_within;
use crate::ground::errors::{at_pair, to_py_err, OrPyErr};
use crate::ground::iterables::{items_of, list_of};
use crate::ground::logging::LogScope;
use crate::ground::modules::increment_version;
use crate::ground::stream::stream_of;
use crate::import::column_reader::{borrowed_pairs, objects_of};
use crate::moves::pairs::{Pairs, Side, SideReader};
use crate::ownership::producers::Producers;
use crate::ownership::ready::refuse_within;
use crate::ownership::storage_watch::moved;
use crate::samples::imported::Imported;

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
///     transform (Transform, Quantize or Dequantize): arithmetic and axis order on the way, or scales that are found or given; a
///         destination has the shape of the result. The scales of a `Dequantize` are a list with those of each source, or an array with
///         these along dim 0.
///     scales_out: where the scales of a `Quantize` go, a side as ``dsts``: for each pair one of the scales' dtype, without dims for
///         ``"sample"`` and of 1-d sources, for rows of the source's shape without its last dim, for blocks with their number in its place;
///         where the destination is: on its device, or on the host, where those of no elements always are.
///     stream: the stream to enqueue the work on, of the CUDA device that a side is on: a handle, a torch or CuPy stream, or an object with
///         ``__cuda_stream__``; None: the one that destinations or sources were written on, else one of the engine's own.
///     engine (Engine): None: the default one.
///     max_blocks (int): the most blocks of threads of a launch, and so how much of the device's multiprocessors a move may take from
///         what else runs there: 8 leave most of an H100 to a model, at a part of the speed. None: as many as there is work for. Without
///         effect on the host.
///
/// Raises:
///     ValueError: another number of sources than of destinations; a destination that shares bytes with another one, as where ids
///         repeat in ``table.take(ids)``, or with any source but its own identical one; a ``stream`` beside memory without one, or
///         beside sides on two devices, as are a `Quantize` and a `Dequantize`.
///     ShapeError, DTypeError: a pair that does not fit.
///     LayoutError: a destination that is read-only, a Python number or of foreign byte order, or whose elements overlap each other; a
///         torch tensor that requires grad while torch's grad mode is on: call within ``torch.no_grad()``.
///     DeviceError: ids on one device beside memory of another; ids on a device beside a `Dequantize`; scales that are not where the
///         destination is, or given ones on a device.
///     CudaUnavailable, CudaError: as for `stack`.
///     TypeError: what is no side, or no array-like. KeyError: trees of different keys.
///     RuntimeError: an inference tensor as destination outside of inference mode.
///
/// On return, destinations on the host are written and sources in pageable memory are read. Work on a device is in the order of the
/// stream, and its memory is kept until it is done; who uses a destination on another stream orders that behind it. Pairs of
/// page-locked memory wait for what is on the stream, without ``stream`` and beside no side on a device for what this engine has
/// enqueued, and are copied by the host. With sides on several devices there is a launch for each, on a stream of the engine's own, and what goes from one to
/// another goes by way of page-locked memory and waits for the first of the two. All sources of a device, and all that go to it, are one launch; pageable memory below 1 MiB a tensor goes to the device in one copy, and
/// comes back in one, which is waited for.
///
/// Ids in device memory (`take` of a list after ``to_device``) may be on either side or on both; samples of a side are then all alike. The host does not read them,
/// but where destinations are in pageable memory, and in a graph each launch does. An id out of range leaves its pair out: no byte of it is
/// written, and the next use of the list raises IndexError. What the ids choose is not compared: where an id occurs twice among destinations, or a
/// destination is also read, which of them wins is not defined, as in ``index_put_``.
///
/// All of them but CudaError are raised before a byte is written, with the position of the pair as ``.index``, ``.side``
/// (``"destination"`` or ``"source"``; ``"destination"`` where the two do not fit; ``"scales_out"`` of the destinations of
/// scales) and, in trees, ``.path``.
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
#[pyo3(signature = (dsts, srcs, *, transform = None, scales_out = None, stream = None, engine = None, max_blocks = None))]
#[allow(clippy::too_many_arguments, reason = "those of Python")]
pub(crate) fn copy_many(
    dsts: &Bound<'_, PyAny>,
    srcs: &Bound<'_, PyAny>,
    transform: Option<&Bound<'_, PyAny>>,
    scales_out: Option<&Bound<'_, PyAny>>,
    stream: Option<&Bound<'_, PyAny>>,
    engine: Option<&Bound<'_, PyAny>>,
    max_blocks: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let py = dsts.py();
    let _log_scope = LogScope::for_call(py);
    let transform = transform.map_or_else(|| Ok(AnyTransform::default()), transform_of)?;
    let engine = engine.map_or_else(|| Ok(default_engine().clone()), engine_of)?;
    let max_blocks = blocks_of(max_blocks)?;
    let stream = stream.map(stream_of).transpose()?;
    let span = engine.enter(Stage::Import);
    #[allow(unsafe_code)]
    let borrowed = match scales_out {
        // SAFETY: `copy_columns` runs no Python code, and keeps the samples before this thread is detached.
        None => unsafe { borrowed_pairs(dsts, srcs) }?,
        Some(_) => None,
    };
    if let Some((lists, are_torch)) = borrowed {
        span.end();
        if stream.is_some() {
            return Err(no_stream());
        }
        return copy_columns(&engine, dsts, srcs, &lists, are_torch, &transform);
    }
    let reader = SideReader::new(MoveSide::Scales, true, stream);
    let read = |scales| reader.scales(dsts, scales);
    let Pairs { dsts, srcs, paths } = Pairs::read(dsts, srcs, stream, true)?;
    let scales = scales_out.map(read).transpose()?;
    span.end();
    let named = |pair: usize| (paths.get(pair).cloned().unwrap_or_default(), pair);
    copy_pairs(py, &engine, (dsts, srcs), &named, (transform, scales), (stream, max_blocks))
}

/// The number that errors have for a pair, and its path if the sides are trees.
type Named<'n> = &'n dyn Fn(usize) -> (String, usize);

/// Checks counts, streams and moved memory of pairs that were read one by one, orders the work, and copies them. The reader has
/// found destinations to be writable. Versions of torch destinations are raised if anything may have been written, also after
/// an error of the device.
fn copy_pairs(
    py: Python<'_>,
    engine: &Engine,
    (dsts, srcs): (Side, Side),
    named: Named<'_>,
    (transform, scales): (AnyTransform, Option<Side>),
    (stream, max_blocks): (Option<Stream>, Option<u32>),
) -> PyResult<()> {
    check_counts(py, dsts.samples.list.len(), srcs.samples.list.len())?;
    let (to, from) = (&dsts.samples.list, &srcs.samples.list);
    if stream.is_some() {
        one_device(py, [to, from])?;
    }
    let first = dsts.samples.ordinal().or(srcs.samples.ordinal());
    let used = first.and_then(|_| [to, from].into_iter().flat_map(cuda_devices).next());
    let ordinal = match used {
        Some(Device::Cuda(ordinal)) => Some(ordinal),
        _ => first,
    };
    let scales_list = scales.as_ref().map(|scales| &scales.samples.list);
    let any_pinned = has_pinned([to, from].into_iter().chain(scales_list));
    let mut options = match ordinal {
        None if stream.is_some() && !any_pinned => return Err(no_stream()),
        None => {
            let mut options = MoveOptions { transform, ..MoveOptions::default() };
            options.run.stream = stream;
            options
        }
        Some(ordinal) => {
            let written = std::iter::once(&dsts).chain(&scales).map(|side| &*side.samples);
            ordered(engine, written, &srcs.samples, stream, ordinal)
                .map(|options| MoveOptions { transform, ..options })
                .or_py_err(py)?
        }
    };
    options.run.max_blocks = max_blocks;
    // Reading the sources may have run code that moved a destination.
    if let Some(index) = dsts.samples.watches.find_moved(py)? {
        return Err(to_py_err(py, &moved(index).at_side(MoveSide::Destination, index)));
    }
    if let Some(scales) = &scales {
        if let Some(index) = scales.samples.watches.find_moved(py)? {
            return Err(to_py_err(py, &moved(index).at_side(MoveSide::Scales, index)));
        }
    }
    // On a device, and for a stream, the call may wait, which keeps no other thread waiting.
    let is_on_host = stream.is_none() && ordinal.is_none();
    let is_quick = is_on_host && is_quick(to, from) && !any_pinned;
    let options = MoveOptions { scales_out: scales_list, ..options };
    let copied = copy(py, engine, to, from, options, is_quick);
    // Errors of input come before anything is written.
    let is_late = |error: &Error| {
        matches!(error, Error::Cuda(_) | Error::OutOfMemory { .. } | Error::Index(_))
    };
    let mut written = dsts.torch;
    written.extend(scales.into_iter().flat_map(|scales| scales.torch));
    if !written.is_empty() && copied.as_ref().err().is_none_or(is_late) {
        increment_versions(py, written)?;
    }
    copied.map_err(|error| pair_error(py, error, named))
}

/// `copy_many` of leaves with these paths; errors say `numbers` in place of positions, if there are some.
#[pyfunction]
#[pyo3(signature = (dsts, srcs, paths, engine = None, numbers = None))]
pub(crate) fn _copy_leaves(
    dsts: &Bound<'_, PyList>,
    srcs: &Bound<'_, PyList>,
    paths: &Bound<'_, PyAny>,
    engine: Option<&Bound<'_, PyAny>>,
    numbers: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let py = dsts.py();
    let _log_scope = LogScope::for_call(py);
    let engine = engine.map_or_else(|| Ok(default_engine().clone()), engine_of)?;
    let span = engine.enter(Stage::Import);
    let dsts = leaf_side(dsts, paths, MoveSide::Destination, true)?;
    let srcs = leaf_side(srcs, paths, MoveSide::Source, true)?;
    span.end();
    let named = |pair: usize| name_of_leaf(pair, paths, numbers);
    copy_pairs(py, &engine, (dsts, srcs), &named, Default::default(), (None, None))
}

/// Like `_copy_leaves`, from parts of one tensor, `memory`, which keeps the samples of `list` alive.
pub(super) fn copy_parts(
    dsts: &Bound<'_, PyList>,
    memory: Tensor,
    list: SampleList<'static>,
    paths: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (py, engine) = (dsts.py(), default_engine());
    let span = engine.enter(Stage::Import);
    let dsts = leaf_side(dsts, paths, MoveSide::Destination, true)?;
    let samples = Arc::new(Imported::from_parts(py, memory, list)?);
    span.end();
    let sides = (dsts, Side { samples, torch: Vec::new() });
    let named = |pair: usize| name_of_leaf(pair, paths, None);
    copy_pairs(py, engine, sides, &named, Default::default(), (None, None))
}

/// Refuses the pairs that `_copy_leaves` refuses, and writes nothing; borrowed tensors that are read-only pass as destinations.
#[pyfunction]
#[pyo3(signature = (dsts, srcs, paths, numbers))]
pub(crate) fn _check_leaves(
    dsts: &Bound<'_, PyList>,
    srcs: &Bound<'_, PyList>,
    paths: &Bound<'_, PyAny>,
    numbers: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let py = dsts.py();
    let dsts = leaf_side(dsts, paths, MoveSide::Destination, false)?;
    let srcs = leaf_side(srcs, paths, MoveSide::Source, false)?;
    let (to, from) = (&dsts.samples.list, &srcs.samples.list);
    let checked = py.detach(|| Engine::check_lists(to, from));
    let named = |pair: usize| name_of_leaf(pair, paths, Some(numbers));
    checked.map_err(|error| pair_error(py, error, &named))
}

/// A side of leaves. Paths, which are dear to extract, are read for an error alone. `is_written`: as of [`SideReader::new`].
fn leaf_side(
    leaves: &Bound<'_, PyList>,
    paths: &Bound<'_, PyAny>,
    side: MoveSide,
    is_written: bool,
) -> PyResult<Side> {
    let reader = SideReader::new(side, is_written, None);
    let read = |paths: &[String]| reader.objects(leaves.py(), items_of(leaves)?, paths);
    read(&[]).or_else(|_| read(&paths.extract::<Vec<String>>()?))
}

/// The path and the number that errors have for a leaf: "" and its position where `paths` and `numbers` have none.
fn name_of_leaf(
    pair: usize,
    paths: &Bound<'_, PyAny>,
    numbers: Option<&Bound<'_, PyAny>>,
) -> (String, usize) {
    let path = paths.get_item(pair).and_then(|path| path.extract()).unwrap_or_default();
    let number = numbers.and_then(|all| all.get_item(pair).ok()?.extract().ok());
    (path, number.unwrap_or(pair))
}

/// Copies columns, whose objects the caller's lists keep alive as long as no Python code runs: references are taken before the
/// interpreter lock is released. Versions of torch destinations are raised afterwards, but not if the copy fails.
fn copy_columns(
    engine: &Engine,
    dsts: &Bound<'_, PyAny>,
    srcs: &Bound<'_, PyAny>,
    [to, from]: &[SampleList<'static>; 2],
    are_torch: bool,
    transform: &AnyTransform,
) -> PyResult<()> {
    let py = dsts.py();
    let is_quick = is_quick(to, from);
    let held = match is_quick {
        true => None,
        false => Some((
            objects_of(dsts, to.len(), Bound::unbind)?,
            objects_of(srcs, from.len(), Bound::unbind)?,
        )),
    };
    let options = MoveOptions { transform: transform.clone(), ..MoveOptions::default() };
    copy(py, engine, to, from, options, is_quick).or_py_err(py)?;
    match (are_torch, held) {
        (false, _) => Ok(()),
        (true, None) => increment_version(dsts),
        (true, Some((written, _))) => increment_versions(py, written),
    }
}

/// Like [`increment_version`], for each of these torch tensors.
fn increment_versions(py: Python<'_>, tensors: Vec<Py<PyAny>>) -> PyResult<()> {
    let tensors = tensors.into_iter().map(|tensor| tensor.into_bound(py));
    increment_version(list_of(py, tensors)?.as_any())
}

/// Whether at most `ATTACHED_BYTES`, or `SAMPLE_BYTES` a pair if that is more, are read and written: to release the interpreter lock
/// would take longer. The caller checks that the work is the host's.
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

/// Copies pairs, with the interpreter lock held if `is_quick`. Destinations were found to be writable; that nothing else touches
/// them during the call is left to the caller of `copy_many`.
fn copy(
    py: Python<'_>,
    engine: &Engine,
    to: &SampleList<'static>,
    from: &SampleList<'static>,
    options: MoveOptions<'_>,
    is_quick: bool,
) -> windrow::Result<()> {
    let is_writable = |list: &SampleList<'_>| list.first_read_only().is_none();
    debug_assert!(is_writable(to) && options.scales_out.is_none_or(is_writable));
    // SAFETY: destinations were found to be writable as they were read; that nothing else touches them during the call is its
    // contract.
    #[allow(unsafe_code)]
    let copy = || unsafe { engine.copy_lists(to, from, options) };
    match is_quick {
        true => copy(),
        false => py.detach(copy),
    }
}

/// An error of pairs with these names.
fn pair_error(py: Python<'_>, error: Error, named: Named<'_>) -> PyErr {
    let path = error.sample().map_or_else(String::new, |index| named(index).0);
    to_py_err(py, &error.renumbered(|pair| named(pair).1).at_path(&path))
}

/// `explain` of pairs, without a copy: `arguments` are those of `copy_many`, with ``dsts``. Errors are those that
/// `copy_many` has for the pairs; samples taken by indices on a device are a ValueError.
pub(crate) fn explain_pairs(
    srcs: &Bound<'_, PyAny>,
    arguments: Option<&Bound<'_, PyDict>>,
) -> PyResult<Explain> {
    const NAMES: [&str; 6] = ["dsts", "transform", "scales_out", "stream", "engine", "max_blocks"];
    let py = srcs.py();
    let mut given: [Option<Bound<'_, PyAny>>; 6] = Default::default();
    for (name, value) in arguments.into_iter().flatten() {
        let name: String = name.extract()?;
        let Some(at) = NAMES.iter().position(|known| *known == name) else {
            let text = format!("copy_many has no argument {name:?}; it has {}", NAMES.join(", "));
            return Err(PyTypeError::new_err(text));
        };
        given[at] = Some(value).filter(|value| !value.is_none());
    }
    let [dsts, transform, scales_out, stream, engine, blocks] = given;
    let Some(dsts) = dsts else {
        let text = "copy_many needs dsts=, the destinations, beside the sources";
        return Err(PyTypeError::new_err(text));
    };
    let transform = transform.as_ref().map_or_else(|| Ok(AnyTransform::default()), transform_of)?;
    let engine = engine.as_ref().map(engine_of).transpose()?;
    blocks_of(blocks.as_ref())?;
    let stream = stream.as_ref().map(stream_of).transpose()?;
    let reader = SideReader::new(MoveSide::Scales, false, stream);
    let scales = scales_out.map(|scales| reader.scales(&dsts, &scales)).transpose()?;
    let Pairs { dsts, srcs, paths } = Pairs::read(&dsts, srcs, stream, false)?;
    let scales = scales.as_ref().map(|scales| &scales.samples.list);
    let (to, from) = (&dsts.samples.list, &srcs.samples.list);
    check_counts(py, to.len(), from.len())?;
    if stream.is_some() {
        one_device(py, [to, from])?;
        let is_on_host = dsts.samples.ordinal().or(srcs.samples.ordinal()).is_none();
        if is_on_host && !has_pinned([to, from].into_iter().chain(scales)) {
            return Err(no_stream());
        }
    }
    let engine = engine.as_ref().unwrap_or_else(|| default_engine());
    let explain = py.detach(|| engine.explain_lists(to, from, &transform, scales));
    let named = |pair: usize| (paths.get(pair).cloned().unwrap_or_default(), pair);
    explain.map_err(|error| pair_error(py, error, &named))
}

/// The int of `max_blocks=`, 1 or more, with the errors of [`int_within`]; `None`, no limit, if it is not given. Python's None is
/// refused.
fn blocks_of(blocks: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u32>> {
    let within = |blocks| int_within(blocks, "max_blocks", 1..=u64::from(u32::MAX));
    Ok(blocks.map(within).transpose()?.map(|blocks| blocks as u32))
}

/// The error of a stream for host memory alone.
fn no_stream() -> PyErr {
    PyValueError::new_err("stream= is for tensors on a CUDA device; host memory has no streams")
}

/// Whether a side, or scales, have metadata of page-locked memory, be it of none of their samples.
fn has_pinned<'l>(mut lists: impl Iterator<Item = &'l SampleList<'static>>) -> bool {
    lists.any(|list| list.metas().iter().any(|meta| meta.device == Device::Pinned))
}

/// Refuses a stream for sides on several devices.
fn one_device(py: Python<'_>, sides: [&SampleList<'_>; 2]) -> PyResult<()> {
    match device_beside(sides) {
        None => Ok(()),
        Some((first, other)) => {
            let text =
                format!("stream= is of one device, and the sides are on {first} and {other}");
            Err(at_pair(py, PyValueError::new_err(text), MoveSide::Destination, None, ""))
        }
    }
}

/// Two devices, if samples with elements are on more than one: the first of [`cuda_devices`], and another.
fn device_beside<'l>(
    sides: impl IntoIterator<Item = &'l SampleList<'l>>,
) -> Option<(Device, Device)> {
    let mut devices = sides.into_iter().flat_map(cuda_devices);
    let first = devices.next()?;
    devices.find(|device| *device != first).map(|other| (first, other))
}

/// The CUDA devices of the samples of a side that have elements; some come more than once. An empty list gives the devices
/// of its metadata.
fn cuda_devices<'l>(list: &'l SampleList<'_>) -> impl Iterator<Item = Device> + 'l {
    let metas = list.metas();
    // A list that was taken may have metadata that none of its samples has.
    let mut is_used = vec![list.meta_ids().is_none(); metas.len()];
    list.meta_ids().into_iter().flatten().for_each(|&id| is_used[id as usize] = true);
    let used =
        metas.iter().zip(is_used).filter(|(meta, is_used)| *is_used && meta.layout.numel() > 0);
    used.map(|(meta, _)| meta.device).filter(|device| matches!(device, Device::Cuda(_)))
}

/// The options of work on the device `ordinal`: its stream, the streams that it waits for, and the owners that are held until it
/// is done. `written`: destinations, then those of scales. Sides on several devices leave the stream unset: each device then has one of the engine's; `asked` is then ignored.
/// Errors are those of [`refuse_within`] and of an engine without a stream there.
fn ordered<'i>(
    engine: &Engine,
    written: impl Iterator<Item = &'i Imported> + Clone,
    srcs: &'i Imported,
    asked: Option<Stream>,
    ordinal: u32,
) -> windrow::Result<MoveOptions<'static>> {
    let mut options = MoveOptions::default();
    // Destinations first: their memory may be in use by what was enqueued where it was allocated.
    let mut producers = Producers::default();
    written.clone().for_each(|samples| producers.merge(&samples.producers()));
    // The engine itself orders the work behind and before others on memory of its own.
    let run = &mut options.run;
    for tensor in std::mem::take(&mut producers.tensors) {
        match tensor.device() {
            Device::Cuda(_) => options.out_owners.push(Arc::clone(tensor.owner())),
            _ => run.keep.push(Arc::clone(tensor.owner())),
        }
    }
    producers.merge(&srcs.producers());
    let sides = written.chain([srcs]);
    for samples in sides.clone().filter(|samples| !samples.is_on_host()) {
        run.keep.extend(samples.owners.owners_to_hold());
    }
    run.keep.extend(producers.owners_to_hold());
    if device_beside(sides.map(|side| &side.list)).is_some() {
        // Each device has a stream of the engine's own, which its producers are ordered around.
        producers.current.into_iter().for_each(|current| producers.add(current));
        run.producers = producers.streams;
        return Ok(options);
    }
    let stream = match asked.or(producers.current) {
        Some(stream) => stream,
        None => engine.stream(ordinal)?,
    };
    refuse_within(&producers, ordinal, stream)?;
    run.stream = Some(stream);
    run.producers = producers.streams;
    Ok(options)
}

/// Refuses another number of sources than of destinations.
fn check_counts(py: Python<'_>, dsts: usize, srcs: usize) -> PyResult<()> {
    if dsts == srcs {
        return Ok(());
    }
    let text = format!("{dsts} destinations for {srcs} sources");
    Err(at_pair(py, PyValueError::new_err(text), MoveSide::Destination, None, ""))
}
