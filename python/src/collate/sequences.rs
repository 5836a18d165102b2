//! Sequences of tokens joined to rows: `pack_tokens`, and `pack_rows` for the rows of a plan.

use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;
use windrow::{
    Batch, Collate, DType, Device, Error, Hint, Layout, Mismatch, Offsets, Owner, SampleList,
    Stage, Tensor,
};

use crate::collate::columns::{space_for, Column};
use crate::collate::job::Job;
use crate::collate::run::{run, Arena};
use crate::engine::default::default_engine;
use crate::ground::errors::{DTypeError, OrPyErr};
use crate::ground::iterables::items_of;
use crate::ground::logging::Records;
use crate::ground::tensor::PyTensor;
use crate::import::integers::integers;
use crate::ownership::copy::copy_by;
use crate::ownership::owner::{producers_of, ImportOwner};
use crate::ownership::owners::Owners;
use crate::ownership::places::Places;
use crate::samples::imported::Imported;
use crate::samples::pieces::push;

/// Ids, labels, positions, perhaps the sample of each, where each sequence begins, and the length of the longest.
type Packed = (PyTensor, PyTensor, PyTensor, Option<PyTensor>, PyTensor, i64);

/// What `pack_tokens` gives: ids, labels, positions and perhaps the sample of each, int64 and int32 ``[1, total]``;
/// where each sequence begins, int32 ``[N + 1]``; and the length of the longest.
#[pyfunction]
#[pyo3(signature = (features, ids, labels, separator, start, wants_index, /))]
pub(crate) fn pack_columns<'py>(
    features: &Bound<'py, PyAny>,
    ids: &Bound<'py, PyAny>,
    labels: Option<&Bound<'py, PyAny>>,
    separator: i64,
    start: i64,
    wants_index: bool,
) -> PyResult<Packed> {
    let py = features.py();
    let _records = Records::of_call(py);
    let (columns, begin) = columns_of(features, ids, labels)?;
    match columns[0].samples.list.device() {
        Some(device @ Device::Cuda(_)) => {
            pack_on_device(py, columns, device, (separator, start, wants_index), begin)
        }
        _ => pack(&joined(py, columns, begin)?, separator, start, wants_index).or_py_err(py),
    }
}

/// Ids, and labels if there are any, of one dim and whole numbers; and when they were read.
fn columns_of<'py>(
    features: &Bound<'py, PyAny>,
    ids: &Bound<'py, PyAny>,
    labels: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Vec<Column>, Instant)> {
    let py = features.py();
    let span = default_engine().enter(Stage::Import);
    let samples = items_of(features)?;
    let mut columns = Vec::new();
    for (name, key) in [("input_ids", Some(ids)), ("labels", labels)] {
        let Some(key) = key else { continue };
        let mut column = Column::read(&samples, name, key)?;
        column.flatten(py)?;
        if column.dtype(py)? != Some(DType::I64) {
            let text = format!("{name:?} holds numbers that are not whole");
            return Err(DTypeError::new_err(text));
        }
        columns.push(column);
    }
    Ok((columns, span.end()))
}

/// One sequence after the other, int64, with as many labels as ids.
fn joined(py: Python<'_>, columns: Vec<Column>, begin: Instant) -> PyResult<Vec<Batch>> {
    let collate = || Collate::ragged().offsets_i32().cast(DType::I64);
    let mut jobs: Vec<Job> = columns.into_iter().map(|column| column.job(collate())).collect();
    let batches = run(py, default_engine(), &mut jobs, Arena::No, begin)?;
    if let [Some(own), Some(others)] = [0, 1].map(|column| batches.get(column)?.lengths()) {
        let lengths = [own, others].map(|lengths| lengths.as_slice::<i64>());
        let [own, others] = lengths.map(|lengths| lengths.or_py_err(py));
        check_labels(own?, others?).or_py_err(py)?;
    }
    Ok(batches)
}

/// As `pack`, where the sequences are: one launch writes everything.
///
/// What no sequence has is uploaded before, as one range of numbers: the separator, the positions of the longest, where
/// each sequence begins, and its index. Every result is then a concatenation. Labels have two samples for each
/// sequence, the separator and all labels but the first; positions are views of the same range; and the sample of each
/// token is a view of its number with stride 0.
fn pack_on_device(
    py: Python<'_>,
    columns: Vec<Column>,
    device: Device,
    (separator, start, wants_index): (i64, i64, bool),
    begin: Instant,
) -> PyResult<Packed> {
    let engine = default_engine();
    let mut lengths: Vec<Vec<i64>> = Vec::new();
    for column in &columns {
        lengths.push(column.lengths_on(device).map_err(|error| column.error(py, error))?);
    }
    if let [own, others] = &lengths[..] {
        check_labels(own, others).or_py_err(py)?;
    }
    let lengths = &lengths[0];
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let numbers = numbers_of(lengths, longest, separator, start).or_py_err(py)?;
    // Stacked, which needs no launch: joined, its offsets would be written too.
    let to_device = Collate::stack().device(device);
    let numbers = py
        .detach(|| copy_by(engine, &numbers, &to_device, None)?.view(0, numbers.layout().clone()))
        .or_py_err(py)?;

    let owner = Arc::new(ImportOwner::of(numbers.clone(), producers_of(&numbers)));
    let (ids, labels) = (&columns[0].samples, &columns[columns.len() - 1].samples);
    let job = |name: &str, (dim, dtype), owners: &Owners, list: SampleList<'static>| {
        let owners = owners.with(Arc::clone(&owner) as Owner)?;
        let samples = Arc::new(Imported { list, owners, places: Places::default() });
        PyResult::Ok(Job::of_leaf(samples, Collate::concat(dim).cast(dtype), name.to_owned()))
    };
    let (own, long) = (Owners::default(), (1, DType::I64));
    let (begins, end) = (1 + longest, 2 + longest + lengths.len() as i64);
    let own_ids = rows(ids, lengths, None).or_py_err(py)?;
    let own_labels = rows(labels, lengths, Some(&numbers)).or_py_err(py)?;
    let positions = views(&numbers, lengths, |_| (1, 1)).or_py_err(py)?;
    let mut boundaries = SampleList::new();
    push(&mut boundaries, &numbers, begins, &[end - begins], None).or_py_err(py)?;
    let mut jobs = vec![
        job("input_ids", long, &ids.owners, own_ids)?,
        job("labels", long, &labels.owners, own_labels)?,
        job("position_ids", long, &own, positions)?,
        job("cu_seqlens", (0, DType::I32), &own, boundaries)?,
    ];
    if wants_index {
        let indices = views(&numbers, lengths, |index| (end + index as i64, 0));
        jobs.push(job("seq_idx", (1, DType::I32), &own, indices.or_py_err(py)?)?);
    }
    let batches = run(py, engine, &mut jobs, Arena::No, begin)?;
    let mut data = batches.into_iter().map(|batch| PyTensor::from(batch.data().clone()));
    match [(); 4].map(|()| data.next()) {
        [Some(ids), Some(labels), Some(positions), Some(boundaries)] => {
            Ok((ids, labels, positions, data.next(), boundaries, longest))
        }
        _ => Err(Error::Empty).or_py_err(py),
    }
}

/// The separator, positions from `start` on, where each sequence begins and the last one ends, and a number for each.
fn numbers_of(
    lengths: &[i64],
    longest: i64,
    separator: i64,
    start: i64,
) -> windrow::Result<Tensor> {
    let count = lengths.len();
    let mut numbers = space_for(2 + longest as usize + 2 * count)?;
    numbers.push(separator);
    numbers.extend((0..longest).map(|place| start.wrapping_add(place)));
    let offsets = Offsets::from_lengths(lengths.iter().copied())?;
    offsets.to_i32()?;
    numbers.extend_from_slice(offsets.as_slice());
    numbers.extend(0..count as i64);
    let shape = [numbers.len() as i64];
    Tensor::from_vec(numbers, &shape)
}

/// The sequences as ``[1, L]``; with the first of `numbers` in place of the first token of each.
fn rows(
    samples: &Imported,
    lengths: &[i64],
    numbers: Option<&Tensor>,
) -> windrow::Result<SampleList<'static>> {
    let mut list = SampleList::new();
    list.reserve(lengths.len() * if numbers.is_some() { 2 } else { 1 })?;
    for (index, &length) in lengths.iter().enumerate() {
        let meta = samples.list.meta(index);
        let stride = meta.layout.strides()[0];
        let skipped = length.min(1) * i64::from(numbers.is_some());
        if let Some(numbers) = numbers {
            push(&mut list, numbers, 0, &[1, skipped], None)?;
        }
        let step = skipped.wrapping_mul(stride).wrapping_mul(meta.dtype.size() as i64);
        let data = samples.list.address(index).wrapping_offset(step as isize);
        // SAFETY: a sample of the list, perhaps without its first element.
        #[allow(unsafe_code)]
        unsafe {
            list.push(data, meta.dtype, meta.device, &[1, length - skipped], Some(&[0, stride]))?;
        }
    }
    Ok(list)
}

/// ``[1, L]`` of these lengths in one tensor: from which element on, and by which stride.
fn views(
    numbers: &Tensor,
    lengths: &[i64],
    place: impl Fn(usize) -> (i64, i64),
) -> windrow::Result<SampleList<'static>> {
    let mut list = SampleList::new();
    list.reserve(lengths.len())?;
    for (index, &length) in lengths.iter().enumerate() {
        let (first, stride) = place(index);
        push(&mut list, numbers, first, &[1, length], Some(&[0, stride]))?;
    }
    Ok(list)
}

fn check_labels(own: &[i64], others: &[i64]) -> windrow::Result<()> {
    let mut pairs = own.iter().zip(others).enumerate();
    match pairs.find(|(_, (own, other))| own != other) {
        None => Ok(()),
        Some((index, (own, other))) => {
            let found = Mismatch::new(Some(index), &[*own][..], &[*other][..]);
            let found = found.with_hint(Hint::Text("there is a label for each id"));
            Err(Error::Shape(Box::new(found)).at_path("labels"))
        }
    }
}

/// What `pack_rows` gives: ids, labels, positions and segments, int64 ``[B, max_tokens]``, and the boundaries of all
/// sequences and of the padding behind them, int32. ``counts``: the samples of each row, which follow each other.
#[pyfunction]
#[pyo3(signature = (features, ids, labels, counts, max_tokens, pads, /))]
pub(crate) fn pack_rows_of<'py>(
    features: &Bound<'py, PyAny>,
    ids: &Bound<'py, PyAny>,
    labels: Option<&Bound<'py, PyAny>>,
    counts: &Bound<'py, PyAny>,
    max_tokens: usize,
    pads: (i64, i64, i64),
) -> PyResult<(PyTensor, PyTensor, PyTensor, PyTensor, PyTensor)> {
    let py = features.py();
    let _records = Records::of_call(py);
    let (columns, begin) = columns_of(features, ids, labels)?;
    for column in &columns {
        column
            .check_host("pack_rows takes samples on the host: .cpu()")
            .map_err(|error| column.error(py, error))?;
    }
    let batches = joined(py, columns, begin)?;
    let (counts, _) = integers(counts, "counts", 1)?;
    rows_of(&batches, &counts, max_tokens, pads).or_py_err(py)
}

fn rows_of(
    batches: &[Batch],
    counts: &[i64],
    max_tokens: usize,
    (id_pad, label_pad, separator): (i64, i64, i64),
) -> windrow::Result<(PyTensor, PyTensor, PyTensor, PyTensor, PyTensor)> {
    let Some(lengths) = batches[0].lengths() else { return Err(Error::Empty) };
    let lengths = lengths.as_slice::<i64>()?;
    let total = counts.len().checked_mul(max_tokens);
    let Some(total) = total.filter(|&total| i32::try_from(total).is_ok()) else {
        let rows = counts.len();
        return Err(Error::TooLarge(format!("{rows} rows of {max_tokens} tokens: beyond int32")));
    };
    let mut sources = [batches[0].data().as_slice::<i64>()?, &[]];
    sources[1] = batches.last().map_or(Ok(sources[0]), |batch| batch.data().as_slice::<i64>())?;
    let mut columns: [Vec<i64>; 4] = Default::default();
    for column in &mut columns {
        *column = space_for(total)?;
    }
    let [ids, labels, positions, segments] = &mut columns;
    let mut boundaries = space_for(1 + lengths.len() + counts.len())?;
    boundaries.push(0);
    let (mut sample, mut from) = (0, 0);
    for (row, &count) in counts.iter().enumerate() {
        let (end, count) = ((row + 1) * max_tokens, count as usize);
        for (segment, &length) in lengths[sample..sample + count].iter().enumerate() {
            let to = from + length as usize;
            if ids.len() + length as usize > end {
                let text = format!("row {row} of the plan has more than max_tokens={max_tokens} tokens: it was made of other lengths");
                return Err(Error::Argument(text));
            }
            ids.extend_from_slice(&sources[0][from..to]);
            let first = labels.len();
            labels.extend_from_slice(&sources[1][from..to]);
            if let Some(label) = labels.get_mut(first) {
                *label = separator;
            }
            positions.extend(0..length);
            segments.resize(ids.len(), segment as i64 + 1);
            boundaries.push(ids.len() as i32);
            from = to;
        }
        sample += count;
        if ids.len() < end {
            boundaries.push(end as i32);
        }
        ids.resize(end, id_pad);
        labels.resize(end, label_pad);
        positions.resize(end, 0);
        segments.resize(end, 0);
    }
    let shape = [counts.len() as i64, max_tokens as i64];
    let [ids, labels, positions, segments] =
        columns.map(|column| Tensor::from_vec(column, &shape).map(PyTensor::from));
    let num_boundaries = boundaries.len() as i64;
    let boundaries = Tensor::from_vec(boundaries, &[num_boundaries])?.into();
    Ok((ids?, labels?, positions?, segments?, boundaries))
}

fn pack(
    batches: &[Batch],
    separator: i64,
    start: i64,
    wants_index: bool,
) -> windrow::Result<Packed> {
    let ids = &batches[0];
    let (Some(offsets), Some(lengths)) = (ids.offsets(), ids.lengths()) else {
        return Err(Error::Empty);
    };
    let (starts, lengths) = (offsets.as_slice::<i32>()?, lengths.as_slice::<i64>()?);
    let source = batches.last().unwrap_or(ids).data();
    let source = source.as_slice::<i64>()?;
    let mut labels = space_for(source.len())?;
    labels.extend_from_slice(source);
    let mut positions = space_for(labels.len())?;
    for (&begin, &length) in starts.iter().zip(lengths) {
        if let Some(first) = labels.get_mut(begin as usize).filter(|_| length > 0) {
            *first = separator;
        }
        positions.extend((0..length).map(|place| start.wrapping_add(place)));
    }
    let shape = [1, labels.len() as i64];
    let index = match wants_index {
        true => {
            let mut index = space_for(labels.len())?;
            for (row, &length) in lengths.iter().enumerate() {
                index.resize(index.len() + length as usize, row as i32);
            }
            Some(PyTensor::from(Tensor::from_vec(index, &shape)?))
        }
        false => None,
    };
    Ok((
        ids.data().view(0, Layout::compact(DType::I64, &shape)?)?.into(),
        Tensor::from_vec(labels, &shape)?.into(),
        Tensor::from_vec(positions, &shape)?.into(),
        index,
        offsets.clone().into(),
        ids.max_length().unwrap_or(0),
    ))
}
