//! Graphs joined to one of disconnected parts: what `windrow.structure.concat_graphs` gives, all entries in one call.

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use windrow::{raise_rows, Batch, Collate, DType, Device, Error, Hint, Mismatch, Stage, Tensor};

use crate::collate::columns::{space_for, Column};
use crate::collate::run::{run, Arena};
use crate::engine::default::default_engine;
use crate::ground::batch::PyBatch;
use crate::ground::errors::{quoted, to_py_err, OrPyErr};
use crate::ground::iterables::items_of;
use crate::ground::logging::Records;
use crate::ground::reserve::room_for;
use crate::ground::tensor::PyTensor;
use crate::import::integers::integers;
use crate::ownership::copy::copy_of;

/// What the values of a graph raise those of the graphs after it by.
enum Steps {
    /// A number for each graph.
    Given(Vec<i64>),
    /// One more than the largest value.
    Ends,
}

/// One entry of all graphs.
struct Entry {
    name: String,
    /// The dim that it is joined along; `None` for entries without dims, which become one.
    dim: Option<usize>,
    steps: Steps,
}

/// Joins graphs, at least one.
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
#[pyo3(signature = (graphs, dims, steps, nodes, follow, /))]
pub(crate) fn join_graphs<'py>(
    graphs: &Bound<'py, PyAny>,
    dims: &Bound<'py, PyDict>,
    steps: &Bound<'py, PyDict>,
    nodes: &Bound<'py, PyAny>,
    follow: Vec<String>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = graphs.py();
    let _records = Records::of_call(py);
    let engine = default_engine();
    let span = engine.enter(Stage::Import);
    let graphs = items_of(graphs)?;
    if graphs.is_empty() {
        return Err(to_py_err(py, &Error::Empty));
    }
    let mut columns = room_for(dims.len())?;
    for (key, _) in dims.iter() {
        let column = Column::read(&graphs, key.extract()?, &key)?;
        require_host(&column).map_err(|error| column.error(py, error))?;
        columns.push(column);
    }
    let counts = counts_of(&graphs, &columns, nodes)?;
    let (mut entries, mut jobs) = (room_for(columns.len())?, room_for(columns.len())?);
    for (column, (key, dim)) in columns.into_iter().zip(dims.iter()) {
        let steps = match steps.get_item(&key)? {
            Some(steps) => steps_of(&steps, &counts)?,
            None => Steps::Given(Vec::new()),
        };
        let (entry, collate) = entry_of(py, &column, dim.extract()?, steps)?;
        entries.push(entry);
        jobs.push(column.job(collate));
    }
    let batches = run(py, engine, &mut jobs, Arena::No, span.end())?;
    let result = PyDict::new(py);
    let mut boundaries = room_for(entries.len())?;
    for (entry, batch) in entries.iter().zip(batches) {
        let offsets = offsets_of(&batch, entry, graphs.len()).or_py_err(py)?;
        raise(&batch, entry, &offsets)
            .map_err(|error| to_py_err(py, &error.at_path(&entry.name)))?;
        result.set_item(&entry.name, Bound::new(py, PyBatch::from(batch))?)?;
        boundaries.push(offsets);
    }
    for name in follow {
        let Some(index) = entries.iter().position(|entry| entry.name == name) else {
            let key = quoted(PyString::new(py, &name).as_any())?;
            return Err(PyKeyError::new_err(format!("follow_batch: no graph has the key {key}")));
        };
        let names = [format!("{name}_batch"), format!("{name}_ptr")];
        set_membership(&result, names, &boundaries[index])?;
    }
    let names = ["batch", "ptr"].map(str::to_owned);
    set_membership(&result, names, &added_up(&counts).or_py_err(py)?)?;
    Ok(result)
}

/// Refuses samples on a device.
fn require_host(column: &Column) -> windrow::Result<()> {
    let list = &column.samples.list;
    let count = if list.is_uniform() { list.len().min(1) } else { list.len() };
    let mut devices = (0..count).map(|index| list.meta(index).device).enumerate();
    match devices.find(|(_, device)| matches!(device, Device::Cuda(_))) {
        None => Ok(()),
        Some((index, device)) => {
            let hint = Hint::Text("concat_graphs takes samples on the host: .cpu()");
            let found = Mismatch::new(Some(index), "host memory", device.to_string());
            Err(Error::Device(Box::new(found.with_hint(hint))))
        }
    }
}

/// The number of nodes of each graph.
fn counts_of<'py>(
    graphs: &[Bound<'py, PyAny>],
    columns: &[Column],
    nodes: &Bound<'py, PyAny>,
) -> PyResult<Vec<i64>> {
    let py = nodes.py();
    if let Ok(key) = nodes.cast::<PyString>() {
        let name: String = key.extract()?;
        let own;
        let column = match columns.iter().find(|column| column.name() == name) {
            Some(column) => column,
            None => {
                own = Column::read(graphs, &name, key)?;
                &own
            }
        };
        return column.rows().map_err(|error| column.error(py, error));
    }
    let (counts, _) = integers(nodes, "num_nodes", 1)?;
    match counts.iter().enumerate().find(|(_, count)| **count < 0) {
        None => Ok(counts),
        Some((index, count)) => {
            let text = format!("sample {index}: num_nodes gives {count} nodes");
            Err(PyValueError::new_err(text))
        }
    }
}

fn steps_of(steps: &Bound<'_, PyAny>, counts: &[i64]) -> PyResult<Steps> {
    match steps.extract::<&str>() {
        Ok("ends") => Ok(Steps::Ends),
        Ok(_) => Ok(Steps::Given(counts.to_vec())),
        Err(_) => Ok(Steps::Given(integers(steps, "increments", 1)?.0)),
    }
}

/// How an entry is joined, and in which dtype: bools that are raised become int64.
fn entry_of(py: Python<'_>, column: &Column, dim: i64, steps: Steps) -> PyResult<(Entry, Collate)> {
    let list = &column.samples.list;
    let first = list.meta(0);
    let before_last = 0..list.len() - 1;
    let is_raised = match &steps {
        Steps::Given(steps) => steps.iter().take(before_last.len()).any(|&step| step != 0),
        Steps::Ends => before_last.into_iter().any(|index| list.meta(index).layout.numel() > 0),
    };
    let dtype = match column.is_of_numbers() {
        true => column.dtype(py)?,
        false => (is_raised && first.dtype == DType::Bool).then_some(DType::I64),
    };
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
    Ok((Entry { name: column.name().to_owned(), dim: place, steps }, collate))
}

/// Where the samples of an entry begin along its dim, and where the last one ends.
fn offsets_of(batch: &Batch, entry: &Entry, count: usize) -> windrow::Result<Vec<i64>> {
    let mut all = space_for(count + 1)?;
    match batch.offsets().filter(|_| entry.dim.is_some()) {
        Some(offsets) => all.extend_from_slice(offsets.as_slice::<i64>()?),
        None => all.extend(0..=count as i64),
    }
    Ok(all)
}

/// Raises the values of a batch that nothing else refers to yet.
fn raise(batch: &Batch, entry: &Entry, offsets: &[i64]) -> windrow::Result<()> {
    let (dim, own) = (entry.dim.unwrap_or(0), offsets.len() - 1);
    let ends;
    let steps = match &entry.steps {
        Steps::Given(steps) => steps,
        Steps::Ends => {
            ends = ends_of(batch.data(), dim, offsets)?;
            &ends
        }
    };
    let starts = added_up(steps.get(..own - 1).unwrap_or(&[]))?;
    if starts.iter().all(|&start| start == 0) {
        return Ok(());
    }
    // SAFETY: a batch that was made in this call; nothing else refers to it yet.
    #[allow(unsafe_code)]
    unsafe {
        raise_rows(batch.data(), dim, offsets, &starts)
    }
}

/// One more than the largest value of each sample, 0 for those without values.
fn ends_of(data: &Tensor, dim: usize, offsets: &[i64]) -> windrow::Result<Vec<i64>> {
    let own = match data.layout().numel() {
        0 => None,
        _ => Some(copy_of(data, &Collate::stack().cast(DType::I64), None)?),
    };
    let values = own.as_ref().map_or(Ok(&[][..]), |own| own.as_slice::<i64>())?;
    let shape = data.shape();
    let inner = shape.iter().skip(dim + 1).product::<i64>() as usize;
    let row = shape.get(dim).map_or(1, |&extent| extent as usize) * inner;
    let mut ends = space_for(offsets.len())?;
    for part in offsets.windows(2) {
        let part = part[0] as usize * inner..part[1] as usize * inner;
        let parts = values.chunks_exact(row.max(1)).flat_map(|row| &row[part.clone()]);
        ends.push(parts.max().map_or(0, |most| most.saturating_add(1)));
    }
    Ok(ends)
}

/// 0, and the sum of the numbers up to each.
fn added_up(numbers: &[i64]) -> windrow::Result<Vec<i64>> {
    let mut sums = space_for(numbers.len() + 1)?;
    let mut sum = 0i64;
    sums.push(sum);
    for number in numbers {
        let too_large = || Error::TooLarge("numbers of nodes, or increments: beyond int64".into());
        sum = sum.checked_add(*number).ok_or_else(too_large)?;
        sums.push(sum);
    }
    Ok(sums)
}

/// The sample of each place, and where each sample begins.
fn set_membership(result: &Bound<'_, PyDict>, names: [String; 2], offsets: &[i64]) -> PyResult<()> {
    let py = result.py();
    let tensors = membership(offsets).or_py_err(py)?;
    for (name, tensor) in names.into_iter().zip(tensors) {
        result.set_item(name, Bound::new(py, PyTensor::from(tensor))?)?;
    }
    Ok(())
}

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
