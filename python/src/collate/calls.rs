//! The assembling calls without trees: `stack`, `concat`, `pad`, `ragged`; and `explain`.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::Plan;

use crate::collate::job::{job_error, leaf_of, target_of, Job};
use crate::collate::options::Options;
use crate::collate::run::{assemble, device_of_work, made, views_in};
use crate::collate::torch_memory::Lender;
use crate::collate::tree::jobs_of;
use crate::engine::explain::PyExplain;
use crate::ground::batch::PyBatch;
use crate::samples::read::samples_of;

/// Stacks samples of equal shape along a new dim 0.
///
/// Args:
///     samples: an iterable of array-likes; or a `SampleList`; or one array, whose rows along dim 0 are the samples; or an Arrow
///         array or column, which is the list of its rows: numbers, lists, fixed-size lists and tensors; bools are unpacked.
///         Python numbers are array-likes without dims, lists and tuples of them array-likes of one dim: ints int64, floats (ints
///         among them) float64, bools bool. An empty list has the dtype of its neighbours, float64 if all are empty.
///     dtype: dtype of the batch: a name such as ``"float16"``, or a NumPy, torch or JAX dtype; if None, all samples must share a
///         dtype, which is kept.
///     device (str): device to place the batch on, ``"cpu"``, ``"pinned"``, ``"cuda"`` (which is ``"cuda:0"``)
///         or ``"cuda:1"``; None: where the samples are.
///     out: a writable array-like of exactly the result's shape, dtype and device. If it is a torch tensor
///         that was saved for ``backward``, ``backward`` raises, as after any operation in place.
///     stream: of a CUDA device, to enqueue the work on: a handle, a torch or CuPy stream,
///         or an object with ``__cuda_stream__``; None: the one that ``out`` or the samples were
///         written on, else one of the engine's own.
///     transform (Transform): arithmetic and axis order on the way. Arithmetic on integers or bools needs
///         ``dtype``: a floating-point one, or an integer one, which truncates and saturates.
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
///         ``detach()`` it, or call within ``torch.no_grad()``.
///     ValueError: no samples, an argument with a wrong value, or ``copy=False`` where the batch needs a copy.
///     TypeError: a sample is not an array-like, or is a list that contains anything but numbers, such as None or another list; or
///         an argument is unknown, has a wrong type, or names no dtype.
///     MemoryError: the batch does not fit into memory.
///     CudaUnavailable: a device was asked for, and there is no driver, or this process was forked
///         after its parent had begun to use one.
///     CudaError: a call of the driver failed.
///
/// Examples:
///     >>> import windrow as wr
///     >>> batch = wr.stack([b"abc", b"def"], dtype="int32")
///     >>> batch.shape, batch.dtype
///     ((2, 3), 'int32')
///     >>> memoryview(batch).tolist()
///     [[97, 98, 99], [100, 101, 102]]
#[pyfunction]
#[pyo3(signature = (samples, *, engine = None, **kwargs), text_signature = "(samples, *, dtype=None, device=None, out=None, stream=None, transform=None, copy=True, engine=None)")]
pub(crate) fn stack(
    samples: &Bound<'_, PyAny>,
    engine: Option<&Bound<'_, PyAny>>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyBatch> {
    assemble("stack", samples, engine, kwargs)
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
///     >>> batch = wr.concat([b"ab", b"cde"])
///     >>> batch.shape, memoryview(batch.offsets).tolist()
///     ((5,), [0, 2, 5])
#[pyfunction]
#[pyo3(signature = (samples, *, engine = None, **kwargs), text_signature = "(samples, *, dim=0, dtype=None, device=None, out=None, stream=None, transform=None, copy=True, engine=None)")]
pub(crate) fn concat(
    samples: &Bound<'_, PyAny>,
    engine: Option<&Bound<'_, PyAny>>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyBatch> {
    assemble("concat", samples, engine, kwargs)
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
///     >>> batch = wr.pad([b"a", b"bcd"], value=46, mask="real")
///     >>> bytes(batch), memoryview(batch.mask).tolist()
///     (b'a..bcd', [[True, False, False], [True, True, True]])
///     >>> images = [memoryview(bytes(3 * n)).cast("B", (3, n)) for n in (4, 5)]
///     >>> wr.pad(images, dims=1, multiple_of=8).shape
///     (2, 3, 8)
#[pyfunction]
#[pyo3(signature = (samples, *, engine = None, **kwargs), text_signature = "(samples, *, value=0, side='right', dims=None, size=None, multiple_of=1, truncate=False, mask=None, mask_dtype='bool', dtype=None, device=None, out=None, stream=None, transform=None, copy=True, engine=None)")]
pub(crate) fn pad(
    samples: &Bound<'_, PyAny>,
    engine: Option<&Bound<'_, PyAny>>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyBatch> {
    assemble("pad", samples, engine, kwargs)
}

/// Places samples that are equal except along dim 0 one after the other. ``common`` as for `stack`.
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
///     >>> batch = wr.ragged([b"ab", b"", b"c"], batch_index=True)
///     >>> memoryview(batch.offsets).tolist(), memoryview(batch.batch_index).tolist(), batch.max_length
///     ([0, 2, 2, 3], [0, 0, 2], 2)
#[pyfunction]
#[pyo3(signature = (samples, *, engine = None, **kwargs), text_signature = "(samples, *, offsets_dtype='int64', batch_index=False, dtype=None, device=None, out=None, stream=None, transform=None, copy=True, engine=None)")]
pub(crate) fn ragged(
    samples: &Bound<'_, PyAny>,
    engine: Option<&Bound<'_, PyAny>>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyBatch> {
    assemble("ragged", samples, engine, kwargs)
}

/// Plans a call without running it: path, bytes read and written, tiles, launches, padding, bytes of an arena.
///
/// Args:
///     samples: as for the call.
///     form (str): ``"stack"``, ``"concat"``, ``"pad"``, ``"ragged"`` or ``"collate"``.
///     kwargs: the arguments of that call, for ``"collate"`` also ``spec``, ``sep`` and ``arena``.
///
/// Returns:
///     Explain: the plan.
///
/// The call's errors for these arguments are raised.
///
/// Examples:
///     >>> import windrow as wr
///     >>> wr.explain([b"abc", b"d"], "pad").as_dict()["padding_bytes"]
///     2
///     >>> tree = wr.explain([{"x": [1.5], "n": 1}], "collate", dtype="float32")
///     >>> tree.names, tree.paths
///     (['x.0', 'n'], ['cast', 'cast'])
#[pyfunction]
#[pyo3(signature = (samples, form = "stack", **kwargs))]
pub(crate) fn explain(
    samples: &Bound<'_, PyAny>,
    form: &str,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyExplain> {
    let py = samples.py();
    let (jobs, in_arena) = if form == "collate" {
        jobs_of(samples, kwargs)?
    } else {
        let options = Options { may_start: false, ..Options::parse(form, kwargs)? };
        (vec![Job::of_call(options, |reading| samples_of(samples, reading))?], false)
    };
    let explain = py.detach(|| -> windrow::Result<_> {
        let targets: Vec<_> = jobs.iter().map(|job| job.out.as_ref().map(target_of)).collect();
        let leaves = jobs.iter().zip(&targets).map(|(job, out)| leaf_of(job, out.as_ref()));
        let leaves: Vec<_> = leaves.collect();
        let plan = match in_arena {
            true => Plan::in_arena(&leaves)?,
            false => Plan::for_leaves(&leaves)?,
        };
        let views = views_in(&plan, &jobs, &leaves, in_arena)?;
        device_of_work(&jobs, made(plan.batch_shapes(), &views))?;
        let views: Vec<bool> = views.iter().map(Option::is_some).collect();
        let explain = plan.explain_with(&views).named(jobs.iter().map(|job| job.path.clone()));
        Ok((explain, Lender::name_of(&plan, &jobs)?))
    });
    let (explain, device_memory) = explain.map_err(|error| job_error(py, &error, &jobs))?;
    Ok(PyExplain { explain, device_memory })
}

/// Raises what a call of ``form`` with these arguments would, without samples.
#[pyfunction]
#[pyo3(signature = (form, /, **kwargs))]
pub(crate) fn check_options(form: &str, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
    Options::parse(form, kwargs).map(drop)
}
