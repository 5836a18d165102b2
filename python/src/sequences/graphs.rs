//! Graphs joined to one of disconnected parts: what `windrow.structure.concat_graphs` gives, all entries in one call. Entries on
//! a device are joined and raised there, by one launch.
//!
//! Rust for `windrow.structure` alone. Callgrind, 64 graphs: 411 524 instructions, and 516 572 before it wrote the indices of nodes
//! itself. 256 graphs of 200 to 400 nodes take 2.21 ms, `np.concatenate` with increments added in Python 3.02 (EPYC).

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::borrow::Cow;
use std::sync::Arc;

use windrow::bindings::add_per_sample;
use windrow::observe::Stage;
use windrow::{Batch, Collate, DType, Device, Engine, Error, SampleList, Tensor};

use crate::collate::job::Job;
use crate::collate::run::Run;
use crate::engine::default::default_engine;
use crate::ground::batch::PyBatch;
use crate::ground::errors::{quoted, to_py_err, OrPyErr};
use crate::ground::iterables::items_of;
use crate::ground::logging::LogScope;
use crate::ground::reserve::{space_for, try_vec};
use crate::ground::tensor::PyTensor;
use crate::import::importer::Reading;
use crate::import::integers::integers;
use crate::import::tensor::tensor_of;
use crate::ownership::copy::copy_of;
use crate::ownership::owners::Owners;
use crate::samples::pieces::push;
use crate::sequences::packing::numbers_of;
use crate::sequences::token_columns::KeyColumn;
use crate::sequences::uploaded_numbers::UploadedNumbers;

/// The number for each graph that is added to the values of the graphs after it; `None`: one more than its largest value.
type Steps = Option<Vec<i64>>;

/// One entry of all graphs.
struct GraphEntry {
    name: String,
    /// The dim that it is joined along; `None` for entries without dims, which become one.
    dim: Option<usize>,
    steps: Steps,
    /// The start of each graph along `dim`, and the end of the last one.
    offsets: Vec<i64>,
    /// The device that it is on.
    device: Option<Device>,
}

/// Joins graphs; ValueError for none, KeyError for a graph without a key of `dims`.
///
/// Args:
///     graphs: mappings of array-likes.
///     dims: by key, the dim that the entry is joined along; negative ones count from the end.
///     steps: by key, what a graph raises the values of later ones by: a number for each graph, ``"nodes"``, or
///         ``"ends"``, one more than its largest value. Entries without a key here are not raised.
///     nodes: the key whose length is the number of nodes, or the numbers.
///     follow: keys that get ``<key>_batch`` and ``<key>_ptr``.
///
/// Returns:
///     dict: a batch by key; tensors under ``batch``, ``ptr`` and those of ``follow``.
#[pyfunction]
#[pyo3(name = "_join_graphs", signature = (graphs, dims, steps, nodes, follow, /))]
pub(crate) fn join_graphs<'py>(
    graphs: &Bound<'py, PyAny>,
    dims: &Bound<'py, PyDict>,
    steps: &Bound<'py, PyDict>,
    nodes: &Bound<'py, PyAny>,
    follow: Vec<String>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = graphs.py();
    let _log_scope = LogScope::for_call(py);
    let engine = default_engine();
    let span = engine.enter(Stage::Import);
    let graphs = items_of(graphs)?;
    if graphs.is_empty() {
        return Err(to_py_err(py, &Error::Empty));
    }
    let mut columns = try_vec(dims.len())?;
    for (key, _) in dims.iter() {
        columns.push(KeyColumn::read(&graphs, key.extract()?, &key)?);
    }
    let counts = counts_of(&graphs, &columns, nodes)?;
    let (mut entries, mut jobs) = (try_vec(columns.len())?, try_vec(columns.len())?);
    for (column, (key, dim)) in columns.into_iter().zip(dims.iter()) {
        let steps = steps.get_item(&key)?.map(|steps| steps_of(&steps, &counts)).transpose()?;
        let steps = steps.unwrap_or(Some(Vec::new()));
        let (entry, collate) = entry_of(py, &column, dim.extract()?, steps)?;
        let mut job = column.job(collate);
        if entry.device.is_some() {
            increment(py, engine, &entry, &mut job)?;
        }
        entries.push(entry);
        jobs.push(job);
    }
    let nodes = added_up(counts.iter().copied()).or_py_err(py)?;
    let members = members_of(py, &entries, follow, nodes)?;
    let device = entries.iter().find_map(|entry| entry.device);
    if let Some(device) = device {
        member_jobs(py, &members, device, &mut jobs)?;
    }
    let mut batches = Run::new(py, engine, span.end()).jobs(&mut jobs)?.into_iter();
    let result = PyDict::new(py);
    for (entry, batch) in entries.iter().zip(&mut batches) {
        if entry.device.is_none() {
            add_increments_on_host(&batch, entry)
                .map_err(|error| to_py_err(py, &error.at_path(&entry.name)))?;
        }
        result.set_item(&entry.name, Bound::new(py, PyBatch::from(batch))?)?;
    }
    for (names, offsets) in &members {
        let tensors = match device {
            None => membership(offsets).or_py_err(py)?.into(),
            Some(_) => Vec::from_iter(batches.by_ref().take(2).map(|batch| batch.data().clone())),
        };
        for (name, tensor) in names.iter().zip(tensors) {
            result.set_item(name, Bound::new(py, PyTensor::from(tensor))?)?;
        }
    }
    Ok(result)
}

/// The number of nodes of each graph: extents along dim 0 of the entry `nodes`, KeyError for a graph without it, ShapeError for
/// one without dims; or given numbers, ValueError for one below 0. That given numbers are as many as graphs is left to the caller.
fn counts_of<'py>(
    graphs: &[Bound<'py, PyAny>],
    columns: &[KeyColumn],
    nodes: &Bound<'py, PyAny>,
) -> PyResult<Vec<i64>> {
    let py = nodes.py();
    if let Ok(key) = nodes.cast::<PyString>() {
        let name: String = key.extract()?;
        let entry;
        let column = match columns.iter().find(|column| column.name() == name) {
            Some(column) => column,
            None => {
                entry = KeyColumn::read(graphs, &name, key)?;
                &entry
            }
        };
        return column.rows().map_err(|error| column.error(py, error));
    }
    let counts = numbers_of(nodes, "num_nodes")?;
    match counts.iter().enumerate().find(|(_, count)| **count < 0) {
        None => Ok(counts),
        Some((index, count)) => {
            let text = format!("sample {index}: num_nodes gives {count} nodes");
            Err(PyValueError::new_err(text))
        }
    }
}

/// The increments of `"ends"`, of any other string, which stands for the numbers of nodes, or of integers. That these are as many
/// as graphs is left to the caller.
fn steps_of(steps: &Bound<'_, PyAny>, counts: &[i64]) -> PyResult<Steps> {
    match steps.extract::<&str>() {
        Ok("ends") => Ok(None),
        Ok(_) => Ok(Some(counts.to_vec())),
        Err(_) => Ok(Some(numbers_of(steps, "increments")?)),
    }
}

/// How an entry is joined, and in which dtype: Python's numbers in that of [`KeyColumn::dtype`], bools as int64 if a graph before
/// the last one has an increment other than 0 or, for `"ends"`, an element. A `dim` that samples do not have is left to the plan to
/// refuse. A column has at least one sample, else this panics.
fn entry_of(
    py: Python<'_>,
    column: &KeyColumn,
    dim: i64,
    steps: Steps,
) -> PyResult<(GraphEntry, Collate)> {
    let list = &column.samples.list;
    let first = list.meta(0);
    let before_last = 0..list.len() - 1;
    let is_raised = match &steps {
        Some(steps) => steps.iter().take(before_last.len()).any(|&step| step != 0),
        None => before_last.into_iter().any(|index| list.meta(index).layout.numel() > 0),
    };
    let of_numbers = if column.is_of_numbers() { column.dtype(py)? } else { None };
    let is_bool = of_numbers.unwrap_or(first.dtype) == DType::Bool;
    let dtype = if is_raised && is_bool { Some(DType::I64) } else { of_numbers };
    let ndim = first.layout.ndim();
    let (mut collate, mut place) = (Collate::stack(), None);
    if ndim > 0 {
        collate = Collate::concat(dim);
        let dim = if dim < 0 { dim.saturating_add(ndim as i64) } else { dim };
        // Another one is refused by the call itself.
        place = Some(usize::try_from(dim).unwrap_or(usize::MAX));
    }
    if let Some(dtype) = dtype {
        collate = collate.cast(dtype);
    }
    let extent = |index: usize| {
        place.map_or(1, |dim| list.meta(index).layout.shape().get(dim).copied().unwrap_or(0))
    };
    let offsets = added_up((0..list.len()).map(extent)).or_py_err(py)?;
    let device = Some(first.device).filter(|device| matches!(device, Device::Cuda(_)));
    let name = column.name().to_owned();
    Ok((GraphEntry { name, dim: place, steps, offsets, device }, collate))
}

/// Adds increments to the options of a job on a device. If they depend on the largest values, samples are copied to the host
/// first.
fn increment(py: Python<'_>, engine: &Engine, entry: &GraphEntry, job: &mut Job) -> PyResult<()> {
    let steps = match &entry.steps {
        Some(steps) => Cow::Borrowed(steps),
        None => {
            let collate = Collate::clone(&job.collate).device(Device::Cpu);
            let mut copy = [Job::for_leaf(Arc::clone(&job.samples), collate, job.path.clone())];
            let batches = Run::new(py, engine, engine.now()).jobs(&mut copy)?;
            Cow::Owned(ends_of(batches[0].data(), entry).or_py_err(py)?)
        }
    };
    if let Some(starts) = starts_of(entry, &steps).or_py_err(py)? {
        job.collate = Arc::new(Collate::clone(&job.collate).increments(starts));
    }
    Ok(())
}

/// The sum of the increments before each graph, which is added to its values; `None` if all are 0, or fewer are given
/// than graphs less one.
fn starts_of(entry: &GraphEntry, steps: &[i64]) -> windrow::Result<Option<Vec<i64>>> {
    let before_last = entry.offsets.len() - 2;
    let starts = added_up(steps.get(..before_last).unwrap_or(&[]).iter().copied())?;
    Ok(starts.iter().any(|&start| start != 0).then_some(starts))
}

/// Raises the values of a batch on the host, in place; errors are also those of [`add_per_sample`], as DType for sums that do not
/// fit. The caller ensures that nothing else refers to the batch.
fn add_increments_on_host(batch: &Batch, entry: &GraphEntry) -> windrow::Result<()> {
    let steps = match &entry.steps {
        Some(steps) => Cow::Borrowed(steps),
        None => Cow::Owned(ends_of(batch.data(), entry)?),
    };
    let Some(starts) = starts_of(entry, &steps)? else { return Ok(()) };
    // SAFETY: a batch that was made in this call; nothing else refers to it yet.
    #[allow(unsafe_code)]
    unsafe {
        add_per_sample(batch.data(), entry.dim.unwrap_or(0), &entry.offsets, &starts)
    }
}

/// One more than the largest value of each sample, at most the largest int64; 0 for samples without values. Values are cast to int64
/// first: uint64 wraps, fractions are cut off. `data` is on the host.
fn ends_of(data: &Tensor, entry: &GraphEntry) -> windrow::Result<Vec<i64>> {
    let copy = match data.layout().numel() {
        0 => None,
        _ => Some(copy_of(data, &Collate::stack().cast(DType::I64), None)?),
    };
    let values = copy.as_ref().map_or(Ok(&[][..]), |copy| copy.as_slice::<i64>())?;
    let (shape, dim) = (data.shape(), entry.dim.unwrap_or(0));
    let inner = shape.iter().skip(dim + 1).product::<i64>() as usize;
    let row = shape.get(dim).map_or(1, |&extent| extent as usize) * inner;
    let mut ends = space_for(entry.offsets.len())?;
    for part in entry.offsets.windows(2) {
        let part = part[0] as usize * inner..part[1] as usize * inner;
        let parts = values.chunks_exact(row.max(1)).flat_map(|row| &row[part.clone()]);
        ends.push(parts.max().map_or(0, |most| most.saturating_add(1)));
    }
    Ok(ends)
}

/// 0, and the sum of the numbers up to and with each; [`Error::TooLarge`] beyond int64.
fn added_up(numbers: impl ExactSizeIterator<Item = i64>) -> windrow::Result<Vec<i64>> {
    let mut sums = space_for(numbers.len() + 1)?;
    let mut sum = 0i64;
    sums.push(sum);
    for number in numbers {
        let too_large = || Error::too_large("numbers of nodes, or increments: beyond int64".into());
        sum = sum.checked_add(number).ok_or_else(too_large)?;
        sums.push(sum);
    }
    Ok(sums)
}

/// Members of a batch: the names of the index of each element's sample and of the offsets, and the offsets.
type Members = ([String; 2], Vec<i64>);

/// The members of the entries that `follow` names, and last those of the nodes, whose offsets are `nodes`; KeyError for a name
/// that is no entry.
fn members_of(
    py: Python<'_>,
    entries: &[GraphEntry],
    follow: Vec<String>,
    nodes: Vec<i64>,
) -> PyResult<Vec<Members>> {
    let mut members = try_vec(follow.len() + 1)?;
    for name in follow {
        let Some(entry) = entries.iter().find(|entry| entry.name == name) else {
            let key = quoted(PyString::new(py, &name).as_any())?;
            return Err(PyKeyError::new_err(format!("follow_batch: no graph has the key {key}")));
        };
        let names = [format!("{name}_batch"), format!("{name}_ptr")];
        members.push((names, entry.offsets.clone()));
    }
    members.push((["batch", "ptr"].map(str::to_owned), nodes));
    Ok(members)
}

/// Appends two jobs for each of the members, which is at least one: the index of each element's
/// sample, and the offsets, int64, on this device. Their samples are parts of numbers that are uploaded here.
fn member_jobs(
    py: Python<'_>,
    members: &[Members],
    device: Device,
    jobs: &mut Vec<Job>,
) -> PyResult<()> {
    let mut numbers = UploadedNumbers::default();
    let count = members[0].1.len() as i64 - 1;
    let indices = numbers.add(0..count).or_py_err(py)?;
    let mut firsts = try_vec(members.len())?;
    for (_, offsets) in members {
        firsts.push(numbers.add(offsets.iter().copied()).or_py_err(py)?);
    }
    let numbers = numbers.upload(py, device)?;
    for ((names, offsets), first) in members.iter().zip(firsts) {
        let [mut index, mut starts] = [SampleList::new(), SampleList::new()];
        let mut write = || {
            index.reserve(offsets.len())?;
            for (sample, part) in (0..).zip(offsets.windows(2)) {
                let length = [part[1] - part[0]];
                push(&mut index, &numbers.tensor, indices + sample, &length, Some(&[0]))?;
            }
            push(&mut starts, &numbers.tensor, first, &[count + 1], None)
        };
        write().or_py_err(py)?;
        for (name, list) in names.iter().zip([index, starts]) {
            jobs.push(numbers.job(name, DType::I64, &Owners::default(), list)?);
        }
    }
    Ok(())
}

/// The index of each element's sample, and the offsets: int64, on the host.
fn membership(offsets: &[i64]) -> windrow::Result<[Tensor; 2]> {
    let total = offsets.last().copied().unwrap_or(0) as usize;
    let mut samples = space_for(total)?;
    for (sample, part) in offsets.windows(2).enumerate() {
        samples.resize(part[1] as usize, sample as i64);
    }
    let mut starts = space_for(offsets.len())?;
    starts.extend_from_slice(offsets);
    let shapes = [samples.len() as i64, starts.len() as i64];
    Ok([Tensor::from_vec(samples, &shapes[..1])?, Tensor::from_vec(starts, &shapes[1..])?])
}

/// Adds to each sample's part of a batch a number of its own, in place, on the host.
///
/// Args:
///     batch: row-major, of integers or real numbers, in memory that nothing else uses meanwhile.
///     offsets: where the samples begin along `dim`, and where the last one ends.
///     starts: one for each sample, or one for each block before `dim`, sample by sample.
///     path: of the leaf, for errors.
///
/// Raises:
///     DTypeError: a sum that the dtype does not hold, or a dtype that has no sums.
///     LayoutError: memory that is read-only or has gaps. DeviceError: memory of a device.
///     ValueError: `offsets` or `starts` that do not fit the batch.
///
/// The batch is then as it was.
#[pyfunction]
pub(crate) fn _add_per_sample(
    batch: &Bound<'_, PyAny>,
    offsets: &Bound<'_, PyAny>,
    starts: &Bound<'_, PyAny>,
    dim: usize,
    path: &str,
) -> PyResult<()> {
    let py = batch.py();
    let batch = tensor_of(batch, "batch", Reading { path, rows: false, ..Reading::default() })?;
    let (offsets, _) = integers(offsets, "offsets", 1)?;
    let (starts, _) = integers(starts, "starts", 1)?;
    // SAFETY: a batch that its caller has just made; nothing else refers to it yet.
    #[allow(unsafe_code)]
    unsafe { add_per_sample(&batch, dim, &offsets, &starts) }
        .map_err(|error| to_py_err(py, &error.at_path(path)))
}
