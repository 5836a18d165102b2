//! The assembling calls: import, plan, run without the interpreter lock, hand out.

use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::{
    Batch, Collate, Device, Engine, Error, Fields, Leaf, Mismatch, OutputMemory, Owner, Plan,
    RowsAhead, RunOptions, Stage, Stream, Target, Tensor,
};

use crate::collate::options::{CopyMode, Options};
use crate::collate::torch_memory::TorchMemory;
use crate::collate::tree;
use crate::engine::PyExplain;
use crate::ground::batch::PyBatch;
use crate::ground::errors::{is_answer, to_caller, to_py_err};
use crate::ground::logging::Records;
use crate::import::importer::Reading;
use crate::import::routes::{increment_version, is_torch};
use crate::import::tensor::tensor_of;
use crate::ownership::keep::{refuses_writes, Keep};
use crate::ownership::order::Order;
use crate::ownership::places::Held;
use crate::samples::imported::Imported;
use crate::samples::read::samples_of;

/// One leaf, ready to be planned.
pub(crate) struct Job {
    /// Dropped first: it reads the samples.
    ahead: Option<RowsAhead>,
    pub samples: Arc<Imported>,
    pub collate: Collate,
    pub path: String,
    /// A leaf of a tree, whose form a spec says.
    in_tree: bool,
    pub out: Option<Tensor>,
    /// The torch tensor that it is.
    torch_out: Option<Py<PyAny>>,
    pub stream: Option<Stream>,
    pub copy: CopyMode,
}

impl Job {
    /// The samples of a call without trees.
    fn of_call(
        options: Options<'_>,
        import: impl FnOnce(Reading<'_>) -> PyResult<(Arc<Imported>, Option<RowsAhead>)>,
    ) -> PyResult<Job> {
        Ok(Job { in_tree: false, ..Job::new(options, "", import)? })
    }

    /// A leaf of samples that are there, all of whose options are said.
    pub fn of_leaf(samples: Arc<Imported>, collate: Collate, path: String) -> Job {
        let (out, torch_out, stream) = (None, None, None);
        let (ahead, copy) = (None, CopyMode::Always);
        Job { ahead, samples, collate, path, in_tree: true, out, torch_out, stream, copy }
    }

    /// Imports the samples of a leaf with `import`, which may copy ahead by engine and options.
    pub fn new(
        options: Options<'_>,
        path: &str,
        import: impl FnOnce(Reading<'_>) -> PyResult<(Arc<Imported>, Option<RowsAhead>)>,
    ) -> PyResult<Job> {
        let may_start =
            options.may_start && options.out.is_none() && options.copy == CopyMode::Always;
        let stacker = may_start.then_some((&options.engine, &options.collate));
        let (owned, stream) = (options.may_view(), options.stream);
        let (samples, ahead) = import(Reading { path, owned, stream, stacker, rows: true })?;
        let (mut out, mut torch_out) = (None, None);
        if let Some(given) = options.out {
            out = Some(output_of(&given, path, stream)?);
            torch_out = out.as_ref().map_or(Ok(None), |out| torch_of(given.py(), out))?;
        }
        let (collate, copy) = (options.collate, options.copy);
        let path = path.to_owned();
        Ok(Job { ahead, samples, collate, path, in_tree: true, out, torch_out, stream, copy })
    }

    /// Writes to memory of no history that was found after the samples were read.
    pub fn write_to(&mut self, out: &Bound<'_, PyAny>) -> PyResult<()> {
        self.out = Some(output_of(out, &self.path, self.stream)?);
        self.ahead = None;
        Ok(())
    }
}

/// An error of these jobs, in the words of the caller.
pub(crate) fn told<'j>(
    py: Python<'_>,
    error: &Error,
    jobs: impl IntoIterator<Item = &'j Job>,
) -> PyErr {
    let is_its = |job: &&Job| job.in_tree && error.mismatch().is_some_and(|m| m.path == job.path);
    to_caller(py, error, jobs.into_iter().find(is_its).map(|job| job.collate.form()))
}

/// The memory of `out=`, refused if it must not be written to.
fn output_of(out: &Bound<'_, PyAny>, path: &str, stream: Option<Stream>) -> PyResult<Tensor> {
    let reading = Reading { path, stream, rows: false, ..Reading::OWNED };
    let tensor = tensor_of(out, "out", reading)?;
    if tensor.is_read_only() || refuses_writes(out)? {
        let mismatch = Mismatch::new(None, "writable memory", "read-only memory");
        return Err(to_py_err(out.py(), &Error::Layout(Box::new(mismatch)).at_path(path)));
    }
    Ok(tensor)
}

/// The torch tensor whose memory an output is, by way of `asarray` and earlier results too.
fn torch_of(py: Python<'_>, output: &Tensor) -> PyResult<Option<Py<PyAny>>> {
    let mut owner = output.owner();
    while let Some(Keep { objects, tensors, .. }) = owner.downcast_ref::<Keep>() {
        for object in objects {
            if is_torch(object.bind(py))? {
                return Ok(Some(object.clone_ref(py)));
            }
        }
        let [inner] = &tensors[..] else { break };
        owner = inner.owner();
    }
    Ok(None)
}

/// Whether all outputs of a call are in one allocation.
pub(crate) enum Arena {
    No,
    /// The engine's, or torch's on a device.
    Own,
    /// Of the caller's, on the host, [`arena_bytes`] long.
    Given(Tensor),
}

impl Arena {
    pub fn of(in_arena: bool) -> Arena {
        match in_arena {
            true => Arena::Own,
            false => Arena::No,
        }
    }
}

/// How large the arena of these jobs will be.
pub(crate) fn arena_bytes(jobs: &[Job]) -> windrow::Result<u64> {
    let leaves: Vec<_> = jobs.iter().map(|job| leaf_of(job, None)).collect();
    Ok(Plan::in_arena(&leaves)?.arena_bytes())
}

/// Plans all jobs as one and runs them, without the interpreter lock. `begin`: when the import ended.
pub(crate) fn run(
    py: Python<'_>,
    engine: &Engine,
    jobs: &mut [Job],
    arena: Arena,
    begin: Instant,
) -> PyResult<Vec<Batch>> {
    let (mut memory, mut has_begun) = (None, false);
    let batches = py.detach(|| run_jobs(engine, jobs, arena, begin, &mut memory, &mut has_begun));
    if has_begun {
        for out in jobs.iter().filter_map(|job| job.torch_out.as_ref()) {
            increment_version(out.bind(py))?;
        }
    }
    batches.map_err(|error| {
        let error = told(py, &error, &*jobs);
        match memory.as_ref().and_then(|memory| memory.take_raised()) {
            Some(cause) if is_answer(py, &cause) => {
                error.set_cause(py, Some(cause));
                error
            }
            Some(cause) => cause,
            None => error,
        }
    })
}

fn run_jobs(
    engine: &Engine,
    jobs: &mut [Job],
    arena: Arena,
    begin: Instant,
    memory: &mut Option<Arc<TorchMemory>>,
    has_begun: &mut bool,
) -> windrow::Result<Vec<Batch>> {
    let in_arena = !matches!(arena, Arena::No);
    let is_plain = |job: &Job| {
        matches!(job, Job { ahead: None, out: None, stream: None, copy: CopyMode::Always, .. })
    };
    if !in_arena && jobs.iter().all(is_plain) {
        let leaves: Vec<_> = jobs.iter().map(|job| leaf_of(job, None)).collect();
        if let Some(batches) = engine.assemble_small(&leaves, begin) {
            return Ok(batches);
        }
    }
    let ahead: Vec<Option<RowsAhead>> = jobs.iter_mut().map(|job| job.ahead.take()).collect();
    let jobs = &*jobs;
    let targets: Vec<Option<Target<'_>>> =
        jobs.iter().map(|job| job.out.as_ref().map(target_of)).collect();
    let mut batches: Vec<Option<Batch>> = Vec::with_capacity(jobs.len());
    // Of those that are no views.
    let mut leaves: Vec<Leaf<'_, '_>> = Vec::with_capacity(jobs.len());
    let mut run_options = RunOptions::default();
    if let Arena::Given(memory) = arena {
        run_options.arena = Some(memory);
    }
    for ((job, out), ahead) in jobs.iter().zip(&targets).zip(ahead) {
        let leaf = leaf_of(job, out.as_ref());
        let view = match may_view(job, in_arena)? {
            true => view_of(engine, job, &leaf)?,
            false => None,
        };
        if view.is_none() {
            leaves.push(leaf);
            run_options.ahead.push(ahead);
        }
        batches.push(view);
    }
    let plan = match in_arena {
        true => engine.plan_in_arena(&leaves, begin)?,
        false => engine.plan(&leaves, begin)?,
    };
    order_work(engine, jobs, &plan, memory, &mut run_options)?;
    let stream = run_options.stream;
    *has_begun = true;
    let filled = engine.run_with(plan, run_options)?;
    // torch's memory does not record its writers by itself.
    let is_elsewhere = memory.as_ref().is_some_and(|memory| Some(memory.stream()) != stream);
    let missing = jobs.iter().zip(&mut batches).filter(|(_, batch)| batch.is_none());
    for ((job, batch), mut filled) in missing.zip(filled) {
        if is_elsewhere {
            let Fields { lengths, offsets, mask, batch_index, arena, .. } = &mut filled.fields;
            let fields = [lengths, offsets, mask, batch_index, arena];
            fields.into_iter().flatten().for_each(|field| **field = written_on(field, stream));
        }
        let data = match (filled.data, &job.out) {
            (Some(data), _) if is_elsewhere => written_on(&data, stream),
            (Some(data), _) => data,
            (None, Some(out)) => written_on(out, stream),
            (None, None) => return Err(Error::Empty),
        };
        *batch = Some(Batch::new(data, filled.fields));
    }
    batches.into_iter().map(|batch| batch.ok_or(Error::Empty)).collect()
}

/// Whether a leaf may be handed out as it is.
fn may_view(job: &Job, in_arena: bool) -> windrow::Result<bool> {
    match (job.copy, in_arena) {
        (CopyMode::Never, true) => {
            let why = "copy=False asks for a view, arena=True for a copy".to_owned();
            Err(Error::Argument(why).at_path(&job.path))
        }
        (mode, _) => Ok(mode != CopyMode::Always && !in_arena),
    }
}

/// Where work on a device is enqueued, what it waits for and what is held until it is done. Nothing
/// for work on the host.
fn order_work(
    engine: &Engine,
    jobs: &[Job],
    plan: &Plan<'_>,
    memory: &mut Option<Arc<TorchMemory>>,
    options: &mut RunOptions,
) -> windrow::Result<()> {
    let asked = jobs.iter().find_map(|job| job.stream);
    let devices = plan.specs().iter().flat_map(|spec| [spec.source, spec.device]);
    let ordinal = devices.into_iter().find_map(|device| match device {
        Device::Cuda(ordinal) => Some(ordinal),
        _ => None,
    });
    let Some(ordinal) = ordinal else {
        return match asked {
            Some(_) if !plan.specs().is_empty() => Err(Error::Argument(
                "stream= is for batches on a CUDA device; host memory has no streams".into(),
            )),
            _ => Ok(()),
        };
    };
    // Outputs first: their memory may be in use by what was enqueued where it was allocated.
    let mut order = Order::default();
    for out in jobs.iter().filter_map(|job| job.out.as_ref()) {
        let mut own = Order::of(out);
        if block_of(&own).is_some() {
            // The engine itself orders the work behind and before others on memory of its own.
            own.tensors.clear();
        }
        order.merge(own);
        options.keep.push(Arc::clone(out.owner()));
    }
    for job in jobs {
        order.merge(Order::of_owners(job.samples.owners.shared()));
        if job.samples.list.kinds().iter().any(|kind| kind.device != Device::Cpu) {
            options.keep.push(Arc::clone(job.samples.owners.shared()) as Owner);
        }
    }
    let tensors = order.tensors.iter().map(|tensor| Arc::clone(tensor.owner()));
    options.keep.extend(tensors);
    if plan.specs().iter().any(|spec| is_cuda(spec.device)) {
        *memory = TorchMemory::for_samples(engine, &order, ordinal)?;
    }
    options.stream = match asked.or(order.current) {
        Some(stream) => Some(stream),
        None => Some(memory.as_ref().map_or_else(|| engine.stream(ordinal), |m| Ok(m.stream()))?),
    };
    options.memory = memory.clone().map(|memory| memory as Arc<dyn OutputMemory>);
    options.producers = order.producers;
    Ok(())
}

/// An output that is written when the stream has come so far.
fn written_on(out: &Tensor, stream: Option<Stream>) -> Tensor {
    let (Device::Cuda(_), Some(stream)) = (out.device(), stream) else { return out.clone() };
    let mut order = Order::of(out);
    order.behind(stream);
    order.current = Some(stream);
    Keep::around(out, order, None)
}

fn is_cuda(device: Device) -> bool {
    matches!(device, Device::Cuda(_))
}

fn leaf_of<'s>(job: &'s Job, out: Option<&'s Target<'s>>) -> Leaf<'s, 'static> {
    Leaf { samples: &job.samples.list, collate: &job.collate, path: &job.path, out }
}

fn target_of(out: &Tensor) -> Target<'_> {
    // SAFETY: the tensor is writable (`output_of`); that nothing else touches it during the call is the
    // contract of `out=`.
    #[allow(unsafe_code)]
    let target = unsafe {
        Target::from_raw_parts(out.data_ptr(), out.dtype(), out.device(), out.layout().clone())
    };
    match block_of(&Order::of(out)) {
        Some(owner) => target.owned_by(owner),
        None => target,
    }
}

/// The owner of memory that is windrow's own.
fn block_of(order: &Order) -> Option<&Owner> {
    match &order.tensors[..] {
        [only] => Some(only.owner()),
        _ => None,
    }
}

/// The samples' own memory, if they form the batch there.
fn view_of(engine: &Engine, job: &Job, leaf: &Leaf<'_, '_>) -> windrow::Result<Option<Batch>> {
    let plan = Plan::for_leaves(&[*leaf])?;
    let Some(data) = view_in(&plan, 0, leaf, job.copy)? else { return Ok(None) };
    let spec = &plan.specs()[0];
    let layout = windrow::Layout::compact(spec.dtype, &spec.shape)?;
    let owners = &job.samples.owners;
    let (owners, lone) = (Arc::clone(owners.shared()), owners.others());
    let owner: Owner = Arc::new(Held { owners, lone, places: job.samples.places.clone() });
    let read_only = job.samples.list.is_read_only();
    // SAFETY: the samples are there one after the other, and their owners are held.
    #[allow(unsafe_code)]
    let tensor = unsafe {
        Tensor::new_unchecked(owner, data.cast_mut(), spec.dtype, spec.device, layout, read_only)
    };
    engine.count_view(spec.num_samples);
    Ok(Some(Batch::new(tensor, Fields::new(spec)?)))
}

/// Where a leaf of a plan that the call may hand out as it is does lie, if it can.
fn view_in(
    plan: &Plan<'_>,
    position: usize,
    leaf: &Leaf<'_, '_>,
    mode: CopyMode,
) -> windrow::Result<Option<*const u8>> {
    match plan.as_view(position).filter(|_| leaf.out.is_none()) {
        None if mode == CopyMode::Never => {
            let why = "copy=False, but the samples do not form the whole batch in memory";
            Err(Error::NotAView(why.to_owned()).at_path(leaf.path))
        }
        view => Ok(view),
    }
}

fn assemble(
    form: &str,
    samples: &Bound<'_, PyAny>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyBatch> {
    assemble_with(form, samples.py(), kwargs, |reading| samples_of(samples, reading))
}

/// A batch of what is imported.
pub(crate) fn assemble_with(
    form: &str,
    py: Python<'_>,
    kwargs: Option<&Bound<'_, PyDict>>,
    import: impl FnOnce(Reading<'_>) -> PyResult<(Arc<Imported>, Option<RowsAhead>)>,
) -> PyResult<PyBatch> {
    let _records = Records::of_call(py);
    let options = Options::parse(form, kwargs)?;
    let engine = options.engine.clone();
    let span = engine.enter(Stage::Import);
    let job = Job::of_call(options, import)?;
    let mut batches = run(py, &engine, &mut [job], Arena::No, span.end())?;
    Ok(PyBatch::from(batches.remove(0)))
}

/// Samples of equal shape along a new dim 0.
///
/// Args:
///     samples: a list of array-likes, or a `SampleList`, or an Arrow array or column, which is the list of its
///         rows: numbers, lists, fixed-size lists and tensors; bools are unpacked. Python numbers are array-likes without dims,
///         lists and tuples of them array-likes of one dim: ints int64, floats (ints among them) float64,
///         bools bool. An empty list has the dtype of its neighbours, float64 if all are empty.
///     dtype: of the batch; if None, all samples must share a dtype, which is kept.
///     device (str): device to place the batch on, ``"cpu"``, ``"pinned"``, ``"cuda"`` or ``"cuda:1"``;
///         None: where the samples are.
///     out: a writable array-like of exactly the result's shape, dtype and device. If it is a torch tensor
///         that was saved for ``backward``, ``backward`` raises, as after any operation in place.
///     stream: of a CUDA device, for the work to be enqueued on: a handle, a torch or CuPy stream,
///         or an object with ``__cuda_stream__``; None: the one that ``out`` or the samples were
///         written on, else one of the engine's own.
///     transform (Transform): arithmetic and axis order on the way. Arithmetic on integers or bools needs
///         ``dtype``: a floating-point one, or an integer one, which truncates and saturates.
///     copy (bool or None): None may return a view where the samples already form the batch in
///         memory, False must.
///     engine (Engine): None: the default one.
///
/// Returns:
///     Batch: ``data[N, *shape]``.
///
/// Raises:
///     ShapeError, DTypeError, DeviceError, LayoutError: a sample, or ``out``, does not fit; nothing
///         was written. A torch tensor that requires grad is a LayoutError while torch's grad mode is on:
///         ``detach()`` it, or call within ``torch.no_grad()``.
///     ValueError: no samples, or an argument that is wrong by itself.
///     CudaUnavailable: a device was asked for, and there is no driver, or this process was forked
///         after its parent had begun to use one. CudaError: a call of the driver failed.
///     TypeError: a sample is not an array-like, or a list with something else than numbers, such as
///         None or another list, in it.
///
/// Examples:
///     >>> import windrow as wr
///     >>> batch = wr.stack([b"abc", b"def"], dtype="int32")
///     >>> batch.shape, batch.dtype
///     ((2, 3), 'int32')
///     >>> memoryview(batch).tolist()
///     [[97, 98, 99], [100, 101, 102]]
#[pyfunction]
#[pyo3(signature = (samples, **kwargs), text_signature = "(samples, *, dtype=None, device=None, out=None, stream=None, transform=None, copy=True, engine=None)")]
pub(crate) fn stack(
    samples: &Bound<'_, PyAny>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyBatch> {
    assemble("stack", samples, kwargs)
}

/// Samples that are equal but for ``dim``, joined along it. ``common`` as for `stack`.
///
/// Returns:
///     Batch: ``data``, ``lengths`` int64 ``[N]`` and ``offsets`` int64 ``[N + 1]`` along ``dim``.
///
/// Examples:
///     >>> import windrow as wr
///     >>> batch = wr.concat([b"ab", b"cde"])
///     >>> batch.shape, memoryview(batch.offsets).tolist()
///     ((5,), [0, 2, 5])
#[pyfunction]
#[pyo3(signature = (samples, **kwargs), text_signature = "(samples, *, dim=0, dtype=None, device=None, out=None, stream=None, transform=None, copy=True, engine=None)")]
pub(crate) fn concat(
    samples: &Bound<'_, PyAny>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyBatch> {
    assemble("concat", samples, kwargs)
}

/// Samples of equal rank, filled up to the largest. ``common`` as for `stack`.
///
/// Args:
///     value: number that padding holds; it must be exact in an integer dtype, and is not transformed.
///     side: "right", "left" or "center"; one string, or one for each dim.
///     dims: the dims to pad, an int or ints.
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
/// a `ShapeError`. If nothing is named, the dims that differ are padded: name them if ``lengths`` and
/// ``mask`` are to have the same shape in every batch. Samples of one dim have only that one to pad; those
/// of two and more need ``dims`` for one ``size`` or ``multiple_of``.
///
/// Returns:
///     Batch: ``data[N, *max]``, ``lengths`` int64 ``[N]`` when one dim is padded, else ``[N, k]``,
///     and ``mask`` ``[N, *padded dims]``.
///
/// Raises:
///     ShapeError: samples differ in a dim that is not named, or are larger than ``size``.
///     ValueError: one ``size`` or ``multiple_of`` for samples of two and more dims, without ``dims``.
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
#[pyo3(signature = (samples, **kwargs), text_signature = "(samples, *, value=0, side='right', dims=None, size=None, multiple_of=1, truncate=False, mask=None, mask_dtype='bool', dtype=None, device=None, out=None, stream=None, transform=None, copy=True, engine=None)")]
pub(crate) fn pad(
    samples: &Bound<'_, PyAny>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyBatch> {
    assemble("pad", samples, kwargs)
}

/// Samples that are equal but for dim 0, one after the other. ``common`` as for `stack`.
///
/// Returns:
///     Batch: ``data`` = values ``[sum, *rest]``, ``offsets[N + 1]``, ``lengths`` int64 ``[N]``,
///     ``max_length`` (int) and, if asked for, ``batch_index`` int64 ``[sum]``.
///
/// Examples:
///     >>> import windrow as wr
///     >>> batch = wr.ragged([b"ab", b"", b"c"], batch_index=True)
///     >>> memoryview(batch.offsets).tolist(), memoryview(batch.batch_index).tolist(), batch.max_length
///     ([0, 2, 2, 3], [0, 0, 2], 2)
#[pyfunction]
#[pyo3(signature = (samples, **kwargs), text_signature = "(samples, *, offsets_dtype='int64', batch_index=False, dtype=None, device=None, out=None, stream=None, transform=None, copy=True, engine=None)")]
pub(crate) fn ragged(
    samples: &Bound<'_, PyAny>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyBatch> {
    assemble("ragged", samples, kwargs)
}

/// The plan of a call, without running it: path, bytes read and written, tiles, launches, padding,
/// bytes of an arena. Raises what the call would. ``form`` is ``"stack"``, ``"concat"``, ``"pad"``,
/// ``"ragged"`` or ``"collate"``, then with its ``spec``, ``sep`` and ``arena``.
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
        tree::jobs_of(samples, kwargs)?
    } else {
        let options = Options { may_start: false, ..Options::parse(form, kwargs)? };
        (vec![Job::of_call(options, |reading| samples_of(samples, reading))?], false)
    };
    let explain = py.detach(|| -> windrow::Result<_> {
        let may_view = jobs.iter().map(|job| may_view(job, in_arena));
        let may_view = may_view.collect::<windrow::Result<Vec<bool>>>()?;
        let targets: Vec<_> = jobs.iter().map(|job| job.out.as_ref().map(target_of)).collect();
        let leaves = jobs.iter().zip(&targets).map(|(job, out)| leaf_of(job, out.as_ref()));
        let leaves: Vec<_> = leaves.collect();
        let plan = match in_arena {
            true => Plan::in_arena(&leaves)?,
            false => Plan::for_leaves(&leaves)?,
        };
        let is_view = |(position, may_view): (usize, bool)| match may_view {
            true => Ok(view_in(&plan, position, &leaves[position], jobs[position].copy)?.is_some()),
            false => Ok(false),
        };
        let views = may_view.into_iter().enumerate().map(is_view);
        let views = views.collect::<windrow::Result<Vec<bool>>>()?;
        Ok(plan.explain_with(&views).named(jobs.iter().map(|job| job.path.clone())))
    });
    Ok(PyExplain(explain.map_err(|error| told(py, &error, &jobs))?))
}

/// Raises what a call of ``form`` with these arguments would, without samples.
#[pyfunction]
#[pyo3(signature = (form, /, **kwargs))]
pub(crate) fn check_options(form: &str, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
    Options::parse(form, kwargs).map(drop)
}
