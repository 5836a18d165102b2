//! Columns of tokenized features: what `windrow.sequence` makes batches of, all rows of all keys in one call.

use std::sync::Arc;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyList, PyTuple};
use windrow::{
    Batch, Collate, DType, Device, Error, Facet, Form, Hint, Layout, Mismatch, Pad, SampleList,
    Stage, Tensor,
};

use crate::collate::job::Job;
use crate::collate::options::Options;
use crate::collate::run::{run, Arena};
use crate::engine::default::default_engine;
use crate::ground::arguments::scalar_of;
use crate::ground::batch::PyBatch;
use crate::ground::errors::{quoted, to_py_err, DTypeError, OrPyErr};
use crate::ground::iterables::items_of;
use crate::ground::logging::Records;
use crate::ground::reserve::room_for;
use crate::ground::tensor::PyTensor;
use crate::import::importer::Reading;
use crate::import::integers::integers;
use crate::ownership::copy::copy_of;
use crate::samples::imported::Imported;

/// The entries of all samples under one key.
struct Column {
    name: String,
    samples: Imported,
    /// Whether they are lists and tuples of Python numbers.
    are_rows: bool,
    /// Whether the first is a Python float.
    is_float: bool,
}

impl Column {
    fn read<'py>(
        samples: &[Bound<'py, PyAny>],
        name: &str,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Column> {
        let py = key.py();
        let mut items = room_for(samples.len())?;
        for (index, sample) in samples.iter().enumerate() {
            let missing = || {
                let key = quoted(key)?;
                Ok(PyKeyError::new_err(format!("sample {index}: the key {key} is missing")))
            };
            // Plain dicts are asked directly: a lookup by the protocol costs twice as much.
            let item = match sample.cast_exact::<PyDict>() {
                Ok(dict) => dict.get_item(key)?,
                Err(_) => match sample.get_item(key) {
                    Err(error) if error.is_instance_of::<PyKeyError>(py) => None,
                    item => Some(item?),
                },
            };
            match item {
                Some(item) => items.push(item),
                None => return missing().and_then(Err),
            }
        }
        let is_row = |item: &Bound<'_, PyAny>| {
            item.is_instance_of::<PyList>() || item.is_instance_of::<PyTuple>()
        };
        let are_rows = items.iter().all(is_row);
        let is_float = items.first().is_some_and(|item| item.is_instance_of::<PyFloat>());
        let reading = Reading { path: name, rows: true, ..Reading::default() };
        let (samples, _) = Imported::from_objects(py, items, reading)?;
        Ok(Column { name: name.to_owned(), samples, are_rows, is_float })
    }

    /// int64 for whole numbers, float32 for Python's others; `None`, the samples' own, for the rest.
    fn dtype(&self, py: Python<'_>) -> PyResult<Option<DType>> {
        if self.is_float {
            return Ok(Some(DType::F32));
        }
        let list = &self.samples.list;
        let is_whole = |dtype: DType| dtype.is_integer() || self.are_rows && dtype == DType::Bool;
        // An empty list says nothing of its dtype.
        let is_told = list.filled_dtypes().all(is_whole);
        if is_told && list.filled_dtypes().any(|dtype| dtype == DType::U64) {
            self.check_range(py)?;
        }
        Ok(match (is_told, self.are_rows) {
            (true, _) => Some(DType::I64),
            (false, true) => Some(DType::F32),
            (false, false) => None,
        })
    }

    /// Refuses numbers beyond int64, which a cast would make negative.
    fn check_range(&self, py: Python<'_>) -> PyResult<()> {
        let list = &self.samples.list;
        for index in (0..list.len()).filter(|&index| list.kind(index).dtype == DType::U64) {
            let sample = self.samples.sample(index);
            let host =
                copy_of(&sample, &Collate::stack().device(Device::Cpu), None).or_py_err(py)?;
            let most = host.as_slice::<u64>().or_py_err(py)?.iter().copied().max().unwrap_or(0);
            if i64::try_from(most).is_err() {
                let got = format!("the number {most}");
                let mismatch = Mismatch::new(Some(index), DType::I64, got);
                return Err(self.error(py, Error::DType(Box::new(mismatch))));
            }
        }
        Ok(())
    }

    /// Sequences of one dim. A tokenizer that gives tensors gives ``[1, L]``.
    fn flatten(&mut self, py: Python<'_>) -> PyResult<()> {
        let list = &self.samples.list;
        if list.kinds_ndim() == Some(1) {
            return Ok(());
        }
        let mut flat = SampleList::new();
        flat.reserve(list.len()).or_py_err(py)?;
        for index in 0..list.len() {
            let meta = list.kind(index);
            let (shape, strides) = match (meta.layout.shape(), meta.layout.strides()) {
                (shape @ [_], strides) => (shape, strides),
                ([1, shape @ ..], [_, strides @ ..]) if shape.len() == 1 => (shape, strides),
                (shape, _) => {
                    let (expected, got) = ("shape (L,) or (1, L)", Facet::from(shape));
                    let mismatch = Mismatch::new(Some(index), expected, got);
                    return Err(self.error(py, Error::Shape(Box::new(mismatch))));
                }
            };
            // SAFETY: a sample of the list, without a dim of one place.
            #[allow(unsafe_code)]
            let pushed = unsafe {
                flat.push(list.address(index), meta.dtype, meta.device, shape, Some(strides))
            };
            pushed.or_py_err(py)?;
        }
        self.samples.list = flat;
        Ok(())
    }

    fn error(&self, py: Python<'_>, error: Error) -> PyErr {
        to_py_err(py, &error.at_path(&self.name))
    }

    fn job(self, collate: Collate) -> Job {
        Job::of_leaf(Arc::new(self.samples), collate, self.name)
    }
}

/// What `pad_tokens` gives but for the mask: by name, every column padded, and columns of single numbers stacked.
/// ``keys``: of the features, by name; ``values``: of padding, by name; ``options``: of `pad`, None to stack all;
/// ``masked``: the column that has a mask, int64 as what tokenizers give.
#[pyfunction]
#[pyo3(signature = (features, keys, values, options, masked, /))]
pub(crate) fn pad_columns<'py>(
    features: &Bound<'py, PyAny>,
    keys: &Bound<'py, PyDict>,
    values: &Bound<'py, PyDict>,
    options: Option<&Bound<'py, PyDict>>,
    masked: Option<&str>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = features.py();
    let _records = Records::of_call(py);
    let engine = default_engine();
    let span = engine.enter(Stage::Import);
    let pad = options.map(|options| Options::parse("pad", Some(options))).transpose()?;
    let pad = pad.as_ref().and_then(|options| match options.collate.form() {
        Form::Pad(pad) => Some(pad),
        _ => None,
    });
    let samples = items_of(features)?;
    let mut jobs = room_for(keys.len())?;
    for (name, key) in keys.iter() {
        let column = Column::read(&samples, name.extract()?, &key)?;
        let dtype = column.dtype(py)?;
        let is_single = column.samples.list.kinds_ndim() == Some(0);
        let mut collate = match pad.filter(|_| !is_single) {
            None => Collate::stack(),
            Some(pad) => {
                let value = values.get_item(&name)?;
                let value = value.map(|value| scalar_of(&value)).transpose()?;
                let mut pad: Pad = pad.clone().value(value.unwrap_or_default());
                if masked == Some(column.name.as_str()) {
                    pad = pad.mask(windrow::Mask::Real).mask_dtype(DType::I64);
                }
                Collate::pad(pad)
            }
        };
        if let Some(dtype) = dtype {
            collate = collate.cast(dtype);
        }
        jobs.push(column.job(collate));
    }
    let batches = run(py, engine, &mut jobs, Arena::No, span.end())?;
    let result = PyDict::new(py);
    for ((name, _), batch) in keys.iter().zip(batches) {
        result.set_item(name, Bound::new(py, PyBatch::from(batch))?)?;
    }
    Ok(result)
}

/// What `pack_tokens` gives: ids, labels, positions and perhaps the sample of each, int64 and int32 ``[1, total]``;
/// where each sequence begins, int32 ``[N + 1]``; and the length of the longest.
#[pyfunction]
#[pyo3(signature = (features, ids, labels, separator, start, wants_index, /))]
#[allow(clippy::type_complexity)]
pub(crate) fn pack_columns<'py>(
    features: &Bound<'py, PyAny>,
    ids: &Bound<'py, PyAny>,
    labels: Option<&Bound<'py, PyAny>>,
    separator: i64,
    start: i64,
    wants_index: bool,
) -> PyResult<(PyTensor, PyTensor, PyTensor, Option<PyTensor>, PyTensor, i64)> {
    let batches = joined(features, ids, labels, "pack_tokens")?;
    pack(&batches, separator, start, wants_index).or_py_err(features.py())
}

/// Ids, and labels if there are any, int64 and ragged, with as many labels as ids.
fn joined<'py>(
    features: &Bound<'py, PyAny>,
    ids: &Bound<'py, PyAny>,
    labels: Option<&Bound<'py, PyAny>>,
    caller: &str,
) -> PyResult<Vec<Batch>> {
    let py = features.py();
    let _records = Records::of_call(py);
    let engine = default_engine();
    let span = engine.enter(Stage::Import);
    let samples = items_of(features)?;
    let mut jobs = Vec::new();
    for (name, key) in [("input_ids", Some(ids)), ("labels", labels)] {
        let Some(key) = key else { continue };
        let mut column = Column::read(&samples, name, key)?;
        let device = column.samples.list.device();
        if let Some(Device::Cuda(_)) = device {
            let got = device.map(|device| device.to_string()).unwrap_or_default();
            let found = Mismatch::new(Some(0), "host memory", got);
            let hint = Hint::Text(match caller {
                "pack_rows" => "pack_rows takes samples on the host: .cpu()",
                _ => "pack_tokens takes samples on the host: .cpu()",
            });
            return Err(column.error(py, Error::Device(Box::new(found.with_hint(hint)))));
        }
        column.flatten(py)?;
        if column.dtype(py)? != Some(DType::I64) {
            let text = format!("{name:?} holds numbers that are not whole");
            return Err(DTypeError::new_err(text));
        }
        jobs.push(column.job(Collate::ragged().offsets_i32().cast(DType::I64)));
    }
    let batches = run(py, engine, &mut jobs, Arena::No, span.end())?;
    check_labels(&batches).or_py_err(py)?;
    Ok(batches)
}

fn check_labels(batches: &[Batch]) -> windrow::Result<()> {
    let [Some(own), Some(others)] = [0, 1].map(|column| batches.get(column)?.lengths()) else {
        return Ok(());
    };
    let mut pairs = own.as_slice::<i64>()?.iter().zip(others.as_slice::<i64>()?).enumerate();
    match pairs.find(|(_, (own, other))| own != other) {
        None => Ok(()),
        Some((index, (own, other))) => {
            let found = Mismatch::new(Some(index), &[*own][..], &[*other][..]);
            let found = found.with_hint(Hint::Text("there is a label for each id"));
            Err(Error::Shape(Box::new(found)).at_path("labels"))
        }
    }
}

/// An empty list with room for so many numbers.
fn space_for<T>(count: usize) -> windrow::Result<Vec<T>> {
    let mut numbers = Vec::new();
    let bytes = (count as u64).saturating_mul(size_of::<T>() as u64);
    numbers.try_reserve_exact(count).map_err(|_| Error::OutOfMemory { bytes })?;
    Ok(numbers)
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
    let batches = joined(features, ids, labels, "pack_rows")?;
    let (counts, _) = integers(counts, "counts", 1)?;
    rows_of(&batches, &counts, max_tokens, pads).or_py_err(features.py())
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

#[allow(clippy::type_complexity)]
fn pack(
    batches: &[Batch],
    separator: i64,
    start: i64,
    wants_index: bool,
) -> windrow::Result<(PyTensor, PyTensor, PyTensor, Option<PyTensor>, PyTensor, i64)> {
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
