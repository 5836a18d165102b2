//! The forms as calls: the signature, documentation and options of `stack`, `concat`, `pad` and `ragged`.

use std::sync::Arc;
use std::time::Instant;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use windrow::collate::PerDim;
use windrow::observe::Stage;
use windrow::samples::TensorMeta;
use windrow::{Batch, Collate, DType, Pad, Ragged, Side};

use crate::collate::job::{output_of, target_of, torch_of, Job};
use crate::collate::options::{CallForm, Kwargs, Options, LIST};
use crate::collate::run::{Run, ATTACHED_BYTES, ATTACHED_SAMPLES};
use crate::ground::arguments::{per_dim, scalar_of, NoBool};
use crate::ground::batch::PyBatch;
use crate::ground::errors::{quoted, OrPyErr};
use crate::ground::logging::LogScope;
use crate::ground::modules::increment_version;
use crate::import::column_reader::{borrowed, objects_of};
use crate::samples::imported::Imported;
use crate::samples::list::PySampleList;
use crate::samples::list_import::samples_of;

/// `collate`, whose leaves are stacked where no spec says otherwise.
pub(crate) const COLLATE: CallForm =
    CallForm { name: "collate", options: |_| Ok(Collate::stack()) };
pub(crate) const STACK: CallForm = CallForm { name: "stack", ..COLLATE };
const CONCAT: CallForm = CallForm { name: "concat", options: concat_options };
pub(crate) const PAD: CallForm =
    CallForm { name: "pad", options: |kwargs| pad_options(kwargs).map(Collate::pad) };
const RAGGED: CallForm =
    CallForm { name: "ragged", options: |kwargs| ragged_options(kwargs).map(Collate::ragged) };

const FORMS: [&CallForm; 5] = [&STACK, &CONCAT, &PAD, &RAGGED, &COLLATE];

/// The form of `wr.List`, whose samples stay separate.
const SEPARATE: CallForm = CallForm { name: LIST, ..COLLATE };

/// The form of this name, that of `wr.List` included; ValueError for any other name.
pub(crate) fn form_of(name: &str) -> PyResult<&'static CallForm> {
    if name == LIST {
        return Ok(&SEPARATE);
    }
    FORMS.into_iter().find(|form| form.name == name).ok_or_else(|| unknown_form(name))
}

/// The ValueError of a name that is no form, with the names that `explain` takes: those of the calls and `copy_many`.
pub(crate) fn unknown_form(name: &str) -> PyErr {
    let names = FORMS.iter().map(|form| form.name).chain(["copy_many"]);
    let names: Vec<_> = names.map(|name| format!("{name:?}")).collect();
    let (last, others) = names.split_last().expect("forms");
    PyValueError::new_err(format!("form must be {} or {last}, got {name:?}", others.join(", ")))
}

/// Stacks samples of equal shape along a new dim 0.
///
/// Args:
///     samples: an iterable of array-likes; or a `SampleList`; or one array, whose rows along dim 0 are the samples; or an Arrow
///         array or column, which is the list of its rows: numbers, lists, fixed-size lists and tensors; bools are unpacked.
///         Python numbers are array-likes without dims, lists and tuples of them array-likes of one dim: ints int64, floats (ints
///         among them) float64, bools bool. An empty list has the dtype of its neighbours, float64 if all are empty.
///         Arrays of foreign byte order are turned round as they are read; the batch is native.
///     dtype: dtype of the batch: a name such as ``"float16"``, or a NumPy, torch or JAX dtype, or an object with
///         ``__dlpack_data_type__``; if None, all samples must share a dtype, which is kept. Floats are rounded to once, to nearest
///         even. What is too large becomes infinite, in float8_e4m3fn NaN, as ml_dtypes has it. To an integer dtype floats are
///         truncated, and saturate, NaN is 0, and integers wrap: 1.5 is 1, without an error.
///     device (str): device to place the batch on, ``"cpu"``, ``"pinned"``, ``"cuda"`` (which is ``"cuda:0"``)
///         or ``"cuda:1"``; None: where the samples are.
///     out: a writable array-like of exactly the result's shape, dtype and device, of a `Quantize` a pair of them ``(data, scales)``. Any strides,
///         such as those of a part of a larger array. Lengths, offsets and a mask are new tensors all the same. Not needed to save
///         allocations: memory of batches that have died is used again. If it is a torch tensor
///         that was saved for ``backward``, ``backward`` raises, as after any operation in place.
///     stream: of a CUDA device, to enqueue the work on: a handle, a torch or CuPy stream,
///         or an object with ``__cuda_stream__``; None: the one that ``out`` or the samples were
///         written on, else one of the engine's own.
///     transform (Transform, Quantize or Dequantize): arithmetic and axis order on the way, or scales that are found or given.
///         Arithmetic on integers or bools needs ``dtype``: a floating-point one, or an integer one, which truncates and saturates.
///     saturate (bool): of a batch in float8_e4m3fn or float8_e5m2: values beyond the largest finite one (448, 57344), infinities
///         among them, become it; NaN stays NaN. Samples of that dtype without arithmetic are moved as they are.
///     copy (bool or None): True: a copy. None: may return a view where the samples already form the batch in memory. False: a
///         view, or ValueError.
///     engine (Engine): None: the default one.
///
/// Returns:
///     Batch: ``data[N, *shape]``.
///
/// Raises:
///     ShapeError, DTypeError, DeviceError, LayoutError: a sample, or ``out``, does not fit; nothing
///         was written. A torch tensor that requires grad is a LayoutError while torch's grad mode is on:
///         ``detach()`` it, or call within ``torch.no_grad()``; ``windrow.torch.ops`` keeps gradients. A dual tensor of forward-mode AD
///         is one in every mode.
///     ValueError: no samples, an argument with a wrong value, ``saturate`` for a batch of another dtype than float8_e4m3fn and
///         float8_e5m2, or ``copy=False`` where the batch needs a copy.
///     TypeError: a sample is not an array-like, or is a list that contains anything but numbers, such as None or another list; or
///         an argument is unknown, has a wrong type, or names no dtype.
///     MemoryError: the batch does not fit into memory.
///     CudaUnavailable: a device was asked for, and there is no driver, or this process was forked
///         after its parent had begun to use one.
///     CudaError: a call of the driver failed.
///
/// Examples:
///     >>> import windrow as wr
///     >>> batch = wr.stack([[1, 2, 3], [4, 5, 6]], dtype="int32")
///     >>> batch.shape, batch.dtype
///     ((2, 3), 'int32')
///     >>> memoryview(batch).tolist()
///     [[1, 2, 3], [4, 5, 6]]
#[pyfunction]
#[pyo3(signature = (samples, *, engine = None, **kwargs), text_signature = "(samples, *, dtype=None, device=None, out=None, stream=None, transform=None, saturate=False, copy=True, engine=None)")]
pub(crate) fn stack(
    samples: &Bound<'_, PyAny>,
    engine: Option<&Bound<'_, PyAny>>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyBatch> {
    assemble(&STACK, samples, engine, kwargs)
}

/// Joins samples that are equal except along ``dim``. ``common`` as for `stack`.
///
/// Args:
///     dim (int): sample dim to join along; a negative one counts from the end.
///
/// Returns:
///     Batch: ``data``, ``lengths`` int64 ``[N]`` and ``offsets`` int64 ``[N + 1]`` along ``dim``.
///
/// Raises:
///     ShapeError: samples differ in rank or in another dim, or have no dims.
///     ValueError: ``dim`` is not a dim of the samples.
///
/// Examples:
///     >>> import windrow as wr
///     >>> batch = wr.concat([[1, 2], [3, 4, 5]])
///     >>> batch.shape, memoryview(batch.offsets).tolist()
///     ((5,), [0, 2, 5])
#[pyfunction]
#[pyo3(signature = (samples, *, engine = None, **kwargs), text_signature = "(samples, *, dim=0, dtype=None, device=None, out=None, stream=None, transform=None, saturate=False, copy=True, engine=None)")]
pub(crate) fn concat(
    samples: &Bound<'_, PyAny>,
    engine: Option<&Bound<'_, PyAny>>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyBatch> {
    assemble(&CONCAT, samples, engine, kwargs)
}

/// `concat` along `dim`, 0 if it is not given.
fn concat_options(kwargs: &mut Kwargs<'_, '_>) -> PyResult<Collate> {
    let dim = kwargs.extract::<NoBool<i64>>("dim", "an int")?;
    Ok(Collate::concat(dim.map_or(0, |NoBool(dim)| dim)))
}

/// Pads samples of equal rank to the largest. ``common`` as for `stack`.
///
/// Args:
///     value: number that padding holds; it is not transformed. An integer dtype must hold it exactly; a float dtype rounds it.
///     side: "right", "left" or "center"; one string, or one for each sample dim.
///     dims: the sample dims to pad, an int or ints, each named once; negative ones count from the end.
///     size: extent of the dims in ``dims``, or an int or None (the longest) for each sample dim. A
///         sample that does not fit is an error.
///     multiple_of: what the extents of the dims in ``dims`` are rounded up to, or an int for each sample
///         dim; applied after ``size``.
///     truncate (bool): cut what does not fit, on the side where padding goes.
///     mask: None, "real" (True where data is) or "pad" (True where padding is).
///     mask_dtype: of the mask, which has 1 where it is True: "bool", "uint8", "int32", "int64" (what tokenizers of
///         transformers give), "float16" or "float32". Written in the same pass.
///
/// ``dims``, and an entry of ``size`` or a ``multiple_of`` above 1 that is given for its dim, name dims.
/// Exactly the named dims are padded, whether samples differ there or not, and a difference elsewhere is
/// a `ShapeError`. If nothing is named, all dims in which samples differ are padded; samples of one dim are always padded along it.
/// Name the dims if ``lengths`` and ``mask`` must have the same shape in every batch. Samples of two or more dims need ``dims`` for a
/// single ``size`` or ``multiple_of``. All of these refer to the dims before ``Transform.permute``.
///
/// Returns:
///     Batch: ``data[N, *max]``, ``lengths`` int64 ``[N]`` when one dim is padded, else ``[N, k]`` in the order of the sample's dims,
///     and ``mask`` ``[N, *padded dims]`` in the order of the result's dims.
///
/// Raises:
///     ShapeError: samples differ in a dim that is not named, or are larger than ``size``.
///     ValueError: one ``size`` or ``multiple_of`` for samples of two or more dims, without ``dims``; ``mask_dtype`` without ``mask``;
///         a ``value`` that the dtype cannot hold.
///
/// Examples:
///     >>> import windrow as wr
///     >>> batch = wr.pad([[1], [2, 3, 4]], value=-1, mask="real")
///     >>> memoryview(batch).tolist(), memoryview(batch.mask).tolist()
///     ([[1, -1, -1], [2, 3, 4]], [[True, False, False], [True, True, True]])
///     >>> images = [memoryview(bytes(3 * n)).cast("B", (3, n)) for n in (4, 5)]
///     >>> wr.pad(images, dims=1, multiple_of=8).shape
///     (2, 3, 8)
#[pyfunction]
#[pyo3(signature = (samples, *, engine = None, **kwargs), text_signature = "(samples, *, value=0, side='right', dims=None, size=None, multiple_of=1, truncate=False, mask=None, mask_dtype='bool', dtype=None, device=None, out=None, stream=None, transform=None, saturate=False, copy=True, engine=None)")]
pub(crate) fn pad(
    samples: &Bound<'_, PyAny>,
    engine: Option<&Bound<'_, PyAny>>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyBatch> {
    assemble(&PAD, samples, engine, kwargs)
}

/// The options of `pad`; TypeError for an argument of a wrong type, ValueError for a wrong value.
fn pad_options(kwargs: &mut Kwargs<'_, '_>) -> PyResult<Pad> {
    let mut pad = Pad::new();
    if let Some(value) = kwargs.raw("value")? {
        pad = pad.value(scalar_of(&value)?);
    }
    if let Some(side) = kwargs.get("side")? {
        let py = side.py();
        pad = match per_dim::<String>(&side, "side", "a string, or one for each dim")? {
            PerDim::All(side) => pad.side(side.parse::<Side>().or_py_err(py)?),
            PerDim::Each(sides) => {
                let sides = sides.iter().map(|side| side.parse::<Side>().or_py_err(py));
                pad.sides(sides.collect::<PyResult<Vec<_>>>()?)
            }
        };
    }
    if let Some(dims) = kwargs.get("dims")? {
        pad = match per_dim::<i64>(&dims, "dims", "an int or ints")? {
            PerDim::All(dim) => pad.dims([dim]),
            PerDim::Each(dims) => pad.dims(dims),
        };
    }
    if let Some(size) = kwargs.get("size")? {
        pad = match per_dim::<Option<i64>>(&size, "size", "an int, or an int or None for each dim")?
        {
            PerDim::All(size) => size.map_or(pad.clone(), |size| pad.size(size)),
            PerDim::Each(sizes) => pad.sizes(sizes),
        };
    }
    if let Some(multiple) = kwargs.get("multiple_of")? {
        pad = match per_dim::<i64>(&multiple, "multiple_of", "an int, or one for each dim")? {
            PerDim::All(multiple) => pad.multiple_of(multiple),
            PerDim::Each(multiples) => pad.multiples_of(multiples),
        };
    }
    if let Some(truncate) = kwargs.extract::<bool>("truncate", "a bool")? {
        pad = pad.truncate(truncate);
    }
    if let Some(mask) = kwargs.get("mask")? {
        let name = match mask.is_instance_of::<PyString>() {
            true => mask.extract::<String>()?,
            false => {
                let text =
                    format!("mask must be None, \"real\" or \"pad\", got {}", quoted(&mask)?);
                return Err(PyValueError::new_err(text));
            }
        };
        pad = pad.mask(name.parse().or_py_err(mask.py())?);
    }
    use DType::{Bool, F16, F32, I32, I64, U8};
    if let Some(dtype) = kwargs.dtype_among("mask_dtype", &[Bool, U8, I32, I64, F16, F32])? {
        pad = pad.mask_dtype(dtype);
        pad.check_mask().map_err(|error| PyValueError::new_err(error.to_string()))?;
    }
    Ok(pad)
}

/// Joins samples that are equal except along dim 0, and says where each begins. ``common`` as for `stack`.
///
/// Args:
///     offsets_dtype: ``"int64"`` or ``"int32"``.
///     batch_index (bool): adds the position of the sample that each row comes from.
///
/// Returns:
///     Batch: ``data`` = values ``[sum, *rest]``, ``offsets`` ``[N + 1]`` of ``offsets_dtype``, ``lengths`` int64 ``[N]``,
///     ``max_length`` (int) and, if requested, ``batch_index`` int64 ``[sum]``.
///
/// Raises:
///     ShapeError: samples differ beyond dim 0, or have no dims.
///     ValueError: offsets do not fit int32, or ``permute`` moves dim 0.
///
/// Examples:
///     >>> import windrow as wr
///     >>> batch = wr.ragged([[5, 6], [], [7]], batch_index=True)
///     >>> memoryview(batch.offsets).tolist(), memoryview(batch.batch_index).tolist(), batch.max_length
///     ([0, 2, 2, 3], [0, 0, 2], 2)
#[pyfunction]
#[pyo3(signature = (samples, *, engine = None, **kwargs), text_signature = "(samples, *, offsets_dtype='int64', batch_index=False, dtype=None, device=None, out=None, stream=None, transform=None, saturate=False, copy=True, engine=None)")]
pub(crate) fn ragged(
    samples: &Bound<'_, PyAny>,
    engine: Option<&Bound<'_, PyAny>>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyBatch> {
    assemble(&RAGGED, samples, engine, kwargs)
}

/// The options of `ragged`; TypeError for an argument of a wrong type, ValueError for a dtype that offsets cannot have.
fn ragged_options(kwargs: &mut Kwargs<'_, '_>) -> PyResult<Ragged> {
    let mut ragged = Ragged::new();
    if let Some(dtype) = kwargs.dtype_among("offsets_dtype", &[DType::I32, DType::I64])? {
        ragged = ragged.offsets(dtype);
    }
    if kwargs.extract::<bool>("batch_index", "a bool")?.unwrap_or(false) {
        ragged = ragged.batch_index();
    }
    Ok(ragged)
}

/// Raises what a call of ``form`` with these arguments would, without samples.
#[pyfunction]
#[pyo3(name = "_check_options", signature = (form, /, **kwargs))]
pub(crate) fn check_options(form: &str, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
    Options::parse(form_of(form)?, kwargs).map(drop)
}

/// A batch of samples that were imported before or are imported now.
fn assemble(
    form: &CallForm,
    samples: &Bound<'_, PyAny>,
    engine: Option<&Bound<'_, PyAny>>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyBatch> {
    let py = samples.py();
    let _log_scope = LogScope::for_call(py);
    let options = Options::for_call(form, engine, kwargs)?;
    let engine = options.engine.clone();
    let span = engine.enter(Stage::Import);
    let collate = &options.collate;
    let list = match options.is_plain() {
        // SAFETY: below, `assemble_small_list` runs no Python code, this thread stays attached, and then the samples are kept.
        #[allow(unsafe_code)]
        true => unsafe { borrowed(samples, collate, ATTACHED_SAMPLES, ATTACHED_BYTES) }?,
        false => None,
    };
    let Some(list) = list else {
        let mut job = [Job::for_call(&options, |reading| samples_of(samples, reading))?];
        return only(Run::new(py, &engine, span.end()).jobs(&mut job));
    };
    let begin = span.end();
    if let Some(batch) = engine.assemble_small_list(&list, collate, begin, ATTACHED_BYTES) {
        return Ok(PyBatch::from(batch));
    }
    let objects = objects_of(samples, list.len(), Bound::unbind)?;
    let kept = Arc::new(Imported::from_list(list, objects));
    let mut job = [Job::for_call(&options, |_| Ok((kept, None)))?];
    only(Run::new(py, &engine, begin).detached(&mut job))
}

/// The first batch of a call that makes one; panics without batches.
fn only(batches: PyResult<Vec<Batch>>) -> PyResult<PyBatch> {
    batches.map(|mut batches| PyBatch::from(batches.remove(0)))
}

/// A stack of the samples of a list at these positions. For a small one of rows of one table no list of them is made; all
/// else, errors too, goes as for a list that was taken.
pub(crate) fn stack_taken(
    list: &PySampleList,
    indices: &Bound<'_, PyAny>,
    engine: Option<&Bound<'_, PyAny>>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyBatch> {
    let py = indices.py();
    let _log_scope = LogScope::for_call(py);
    let options = Options::for_call(&STACK, engine, kwargs)?;
    let engine = options.engine.clone();
    let span = engine.enter(Stage::Import);
    let (imported, positions) = list.asked_for(indices)?;
    let begin = span.end();
    let samples = match positions {
        None => imported,
        Some(positions) => {
            if let Some(batch) = small_of_table(py, &imported, &positions, &options, begin)? {
                return Ok(PyBatch::from(batch));
            }
            match options.is_copy() {
                true => Arc::new(imported.lent(py, &positions)?),
                false => Arc::new(imported.taken(py, &positions)?),
            }
        }
    };
    samples.check_unmoved(py, "")?;
    let mut job = [Job::for_call(&options, |_| Ok((samples, None)))?];
    only(Run::new(py, &engine, begin).jobs(&mut job))
}

/// The stack of rows of one table. `None`, with nothing written, leaves it to a job, which finds the errors too: for samples of
/// several layouts or owners, a view, a stream, an `out` that is refused, memory that was moved, a position that is not in the
/// list, and what `Engine::assemble_taken` leaves to plans. Raises the version of a torch `out`.
fn small_of_table(
    py: Python<'_>,
    imported: &Imported,
    positions: &[i64],
    options: &Options<'_>,
    begin: Option<Instant>,
) -> PyResult<Option<Batch>> {
    if !options.is_copy() || !imported.list.is_uniform() || imported.watches.all().len() > 1 {
        return Ok(None);
    }
    // One that cannot be written to is refused once the samples were found to be there.
    let out = options.out.as_ref().map(|out| output_of(out, "", None));
    let Ok(out) = out.transpose() else { return Ok(None) };
    if imported.watches.find_moved(py)?.is_some() {
        return Ok(None);
    }
    let (engine, list, collate) = (&options.engine, &imported.list, &options.collate);
    let take = || {
        let target = out.as_ref().map(target_of);
        engine.assemble_taken(list, positions, collate, target.as_ref(), begin)
    };
    let bytes = |meta: &TensorMeta| meta.dtype.size() as u64 * meta.layout.numel() as u64;
    let row_bytes = list.metas().first().map_or(0, bytes);
    let most_rows = ATTACHED_BYTES / 2 / row_bytes.max(1);
    let is_short = positions.len() as u64 <= most_rows.min(ATTACHED_SAMPLES as u64);
    let Some(filled) = (if is_short { take() } else { py.detach(take) }) else { return Ok(None) };
    if let Some(torch) = out.as_ref().map_or(Ok(None), |out| torch_of(py, out))? {
        increment_version(torch.bind(py))?;
    }
    filled.data.or(out).map(|data| Batch::try_new(data, filled.fields)).transpose().or_py_err(py)
}
