//! Sequences of tokens joined to rows: `pack_tokens`, and `pack_rows` for the rows of a plan. Here on the host.
//!
//! Rust for `windrow.sequence` alone. Callgrind, `pack_rows` of 256 sequences: 1 037 960 instructions, and 3 991 740 by the
//! concatenations that a device has. `pack_tokens` of 256 arrays takes 82 us, a few lines of NumPy 152 (EPYC).

use std::time::Instant;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use windrow::observe::Stage;
use windrow::{Batch, Collate, DType, Device, Error, Layout, Ragged, Tensor};

use crate::collate::job::Job;
use crate::collate::run::Run;
use crate::engine::default::default_engine;
use crate::ground::errors::{located, OrPyErr};
use crate::ground::iterables::{items_of, Lookup};
use crate::ground::logging::LogScope;
use crate::ground::reserve::space_for;
use crate::ground::tensor::PyTensor;
use crate::import::integers::integers;
use crate::sequences::pack_on_device::{pack_on_device, pack_rows_on_device};
use crate::sequences::packed::{check_labels, Packed, PackedTensors, RowPlan};
use crate::sequences::token_columns::KeyColumn;

/// The columns of `pack_tokens`: ids, labels, positions and perhaps the sample of each, int64 and int32 ``[1, total]``;
/// where each sequence begins, int32 ``[N + 1]``; and the length of the longest. ``separator``: the label of each first token;
/// ``start``: the first position of each sequence. ValueError without features, and beyond int32.
#[pyfunction]
#[pyo3(name = "_pack_columns", signature = (features, ids, labels, separator, start, wants_index, /))]
pub(crate) fn pack_columns<'py>(
    features: &Bound<'py, PyAny>,
    ids: &Bound<'py, PyAny>,
    labels: Option<&Bound<'py, PyAny>>,
    separator: i64,
    start: i64,
    wants_index: bool,
) -> PyResult<Packed> {
    let py = features.py();
    let _log_scope = LogScope::for_call(py);
    let (columns, begin) = columns_of(features, ids, labels)?;
    match columns[0].samples.list.device() {
        Some(device @ Device::Cuda(_)) => {
            pack_on_device(py, columns, device, (separator, start, wants_index), begin)
        }
        _ => pack(&joined(py, columns, begin)?, separator, start, wants_index).or_py_err(py),
    }
}

/// The column of ids, that of labels if there is one, and the time at which the import ended, if times are measured. KeyError
/// for a missing key, and for labels of a later sample where the first has none, TypeError for a sample that is no mapping,
/// ShapeError for another shape than ``[L]`` or ``[1, L]``, DTypeError for what is neither whole numbers nor Python's bools, and
/// for a uint64 beyond int64.
fn columns_of<'py>(
    features: &Bound<'py, PyAny>,
    ids: &Bound<'py, PyAny>,
    labels: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Vec<KeyColumn>, Option<Instant>)> {
    let py = features.py();
    let span = default_engine().enter(Stage::Import);
    let samples = items_of(features)?;
    let mut columns = Vec::new();
    for (name, key) in [("input_ids", Some(ids)), ("labels", labels)] {
        let Some(key) = key else { continue };
        let mut column = KeyColumn::read(&samples, name, key)?;
        column.flatten(py)?;
        if !matches!(column.dtype(py)?, Some(DType::I64 | DType::Bool)) {
            return Err(column.not_whole(py));
        }
        columns.push(column);
    }
    if labels.is_none() {
        refuse_labels(py, &samples)?;
    }
    Ok((columns, span.end()))
}

/// KeyError for labels of a sample where the first has none: ids would stand in for them.
fn refuse_labels(py: Python<'_>, samples: &[Bound<'_, PyAny>]) -> PyResult<()> {
    // Most samples are dicts of their ids alone. Two lookups in each, in Python, were 165 000 of the 790 000 instructions of
    // `pack_tokens` of 256 arrays.
    let has_more = |sample: &&Bound<'_, PyAny>| {
        sample.cast_exact::<PyDict>().map_or(true, |entries| entries.len() > 1)
    };
    for sample in samples.iter().filter(has_more) {
        let found = Lookup::new(sample)?.get(&PyString::new(py, "labels"))?;
        if found.is_some_and(|labels| !labels.is_none()) {
            let text = "sample 0: expected 'labels', which a later sample has, got none";
            return Err(located(py, PyKeyError::new_err(text), Some(0), "labels"));
        }
    }
    Ok(())
}

/// A batch for each column, on the host: one sequence after the other, int64, offsets int32. ShapeError for a sample with another
/// number of labels than of ids. `begin` is the time at which the import ended.
fn joined(py: Python<'_>, columns: Vec<KeyColumn>, begin: Option<Instant>) -> PyResult<Vec<Batch>> {
    let collate = || Collate::ragged(Ragged::new().offsets(DType::I32)).cast(DType::I64);
    let mut jobs: Vec<Job> = columns.into_iter().map(|column| column.job(collate())).collect();
    let batches = Run::new(py, default_engine(), begin).jobs(&mut jobs)?;
    if let [Some(ids), Some(labels)] = [0, 1].map(|column| batches.get(column)?.lengths()) {
        let lengths = [ids, labels].map(|lengths| lengths.as_slice::<i64>());
        let [ids, labels] = lengths.map(|lengths| lengths.or_py_err(py));
        check_labels(ids?, labels?).or_py_err(py)?;
    }
    Ok(batches)
}

/// The columns of `pack_rows`: ids, labels, positions and segments, int64 ``[B, max_tokens]``, and the boundaries of all
/// sequences and of the padding behind them, int32. In each row positions count from 0 within a sequence and segments from 1;
/// padding has 0 in both. ``counts``: the samples of each row, which follow each other; ``pads``: what pads ids, what pads labels,
/// and the label of a sequence's first token. ValueError for a row beyond ``max_tokens``, and for rows beyond int32. That counts
/// add up to the number of samples is not checked: samples left over are left out, and a count beyond what is left takes that.
#[pyfunction]
#[pyo3(name = "_pack_rows_of", signature = (features, ids, labels, counts, max_tokens, pads, /))]
pub(crate) fn pack_rows_of<'py>(
    features: &Bound<'py, PyAny>,
    ids: &Bound<'py, PyAny>,
    labels: Option<&Bound<'py, PyAny>>,
    counts: &Bound<'py, PyAny>,
    max_tokens: usize,
    pads: (i64, i64, i64),
) -> PyResult<PackedTensors> {
    let py = features.py();
    let _log_scope = LogScope::for_call(py);
    let (columns, begin) = columns_of(features, ids, labels)?;
    let (counts, _) = integers(counts, "counts", 1)?;
    let plan = RowPlan { counts: &counts, max_tokens, pads };
    match columns[0].samples.list.device() {
        Some(device @ Device::Cuda(_)) => pack_rows_on_device(py, columns, device, plan, begin),
        _ => rows_of(&joined(py, columns, begin)?, plan).or_py_err(py),
    }
}

/// The results of `pack_rows` on the host, from [`joined`] batches; without labels the ids are labels. [`Error::TooLarge`] for
/// rows beyond int32, [`Error::Argument`] for a row beyond `max_tokens`.
fn rows_of(batches: &[Batch], plan: RowPlan<'_>) -> windrow::Result<PackedTensors> {
    let Some(lengths) = batches[0].lengths() else { return Err(Error::Empty) };
    let lengths = lengths.as_slice::<i64>()?;
    let (total, (id_pad, label_pad, separator)) = (plan.total()?, plan.pads);
    let boundaries = plan.boundaries(lengths)?;
    let mut sources = [batches[0].data().as_slice::<i64>()?, &[]];
    sources[1] = batches.last().map_or(Ok(sources[0]), |batch| batch.data().as_slice::<i64>())?;
    let mut columns: [Vec<i64>; 4] = Default::default();
    for column in &mut columns {
        *column = space_for(total)?;
    }
    let [ids, labels, positions, segments] = &mut columns;
    let mut from = 0;
    for (row, samples) in plan.rows(lengths).enumerate() {
        for (segment, &length) in samples?.0.iter().enumerate() {
            let to = from + length as usize;
            ids.extend_from_slice(&sources[0][from..to]);
            let first = labels.len();
            labels.extend_from_slice(&sources[1][from..to]);
            if let Some(label) = labels.get_mut(first) {
                *label = separator;
            }
            positions.extend(0..length);
            segments.resize(ids.len(), segment as i64 + 1);
            from = to;
        }
        let end = (row + 1) * plan.max_tokens;
        ids.resize(end, id_pad);
        labels.resize(end, label_pad);
        positions.resize(end, 0);
        segments.resize(end, 0);
    }
    let shape = [plan.counts.len() as i64, plan.max_tokens as i64];
    let [ids, labels, positions, segments] =
        columns.map(|column| Tensor::from_vec(column, &shape).map(PyTensor::from));
    let num_boundaries = boundaries.len() as i64;
    let boundaries = Tensor::from_vec(boundaries, &[num_boundaries])?.into();
    Ok((ids?, labels?, positions?, segments?, boundaries))
}

/// The results of `pack_tokens` on the host, from [`joined`] batches; without labels the ids are labels. The offsets of the
/// batches are int32 already: no sum is checked here.
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
