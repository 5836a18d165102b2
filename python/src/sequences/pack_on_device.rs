//! `pack_tokens` and `pack_rows` where the sequences are, on a device: one launch writes everything.
//!
//! Values that no sequence has are uploaded first, as one range of numbers: the separator, padding, positions, where each sequence
//! begins, its number. Every result is then a concatenation along dim 1 of sequences and of views of that range: positions are
//! a part of it, and a number that is repeated, as padding is, is a view with stride 0. Labels have two samples for each
//! sequence, the separator and all labels but the first.
//!
//! Rust for `windrow.sequence` alone, without a figure: one launch and one copy up are counted by tests on the simulated driver, and
//! no GPU has timed them beside calls of `wr.concat` from Python.

use std::time::Instant;

use pyo3::prelude::*;
use windrow::tensor::Offsets;
use windrow::{Batch, DType, Device, Error, Layout, SampleList, Tensor};

use crate::collate::run::Run;
use crate::engine::default::default_engine;
use crate::ground::errors::OrPyErr;
use crate::ground::tensor::PyTensor;
use crate::ownership::owners::Owners;
use crate::samples::imported::Imported;
use crate::samples::pieces::push;
use crate::sequences::packed::{check_labels, Packed, PackedTensors, RowPlan};
use crate::sequences::token_columns::KeyColumn;
use crate::sequences::uploaded_numbers::{Uploaded, UploadedNumbers};

/// `pack_tokens` of columns on `device`, with the label of each first token, the first position, and whether the sequence of each
/// token is asked for. The work is enqueued, not waited for. `begin` is the time at which the import ended. The errors are those
/// of [`lengths_of`], and ValueError for more tokens than int32 counts.
pub(super) fn pack_on_device(
    py: Python<'_>,
    columns: Vec<KeyColumn>,
    device: Device,
    (separator, start, wants_index): (i64, i64, bool),
    begin: Option<Instant>,
) -> PyResult<Packed> {
    let lengths = lengths_of(py, &columns, device)?;
    let (longest, count) = (longest_of(&lengths), lengths.len() as i64);
    let mut numbers = UploadedNumbers::default();
    let make = || -> windrow::Result<_> {
        let separator = numbers.add([separator])?;
        let positions = numbers.add((0..longest).map(|place| start.wrapping_add(place)))?;
        let offsets = Offsets::from_lengths(lengths.iter().copied())?;
        offsets.check_i32()?;
        let boundaries = numbers.add(offsets.as_slice().iter().copied())?;
        Ok((separator, positions, boundaries, numbers.add(0..count)?))
    };
    let (separator, positions, boundaries, indices) = { make }().or_py_err(py)?;
    let numbers = numbers.upload(py, device)?;
    let (ids, labels) = (&columns[0].samples, &columns[columns.len() - 1].samples);
    let mut lines = [(); 4].map(|()| Line::new(&numbers));
    let [own_ids, own_labels, places, index] = &mut lines;
    let mut write = || -> windrow::Result<()> {
        for (number, &length) in lengths.iter().enumerate() {
            own_ids.sequence(ids, number, 0)?;
            own_labels.labels(labels, number, separator)?;
            places.numbers(positions, length, 1)?;
            if wants_index {
                index.numbers(indices + number as i64, length, 0)?;
            }
        }
        Ok(())
    };
    write().or_py_err(py)?;
    let [own_ids, own_labels, places, index] = lines;
    let mut begins = SampleList::new();
    push(&mut begins, &numbers.tensor, boundaries, &[count + 1], None).or_py_err(py)?;
    let no_owners = Owners::default();
    let mut jobs = vec![
        numbers.job("input_ids", DType::I64, &ids.owners, own_ids.list)?,
        numbers.job("labels", DType::I64, &labels.owners, own_labels.list)?,
        numbers.job("position_ids", DType::I64, &no_owners, places.list)?,
        numbers.job("cu_seqlens", DType::I32, &no_owners, begins)?,
    ];
    if wants_index {
        jobs.push(numbers.job("seq_idx", DType::I32, &no_owners, index.list)?);
    }
    let batches = Run::new(py, default_engine(), begin).jobs(&mut jobs)?;
    let [ids, labels, positions, boundaries, index @ ..] = &batches[..] else {
        return Err(Error::Empty).or_py_err(py);
    };
    let data = |batch: &Batch| PyTensor::from(batch.data().clone());
    let index = index.first().map(data);
    Ok((data(ids), data(labels), data(positions), index, data(boundaries), longest))
}

/// `pack_rows` of columns on `device`, enqueued. Rows that follow each other are one line, of which the results are views; where
/// each sequence begins is counted in that line, and padding counts as a sequence. `begin` is the time at which the import ended.
/// The errors are those of [`lengths_of`], and ValueError for a row beyond `max_tokens` and for more tokens than int32 counts.
pub(super) fn pack_rows_on_device(
    py: Python<'_>,
    columns: Vec<KeyColumn>,
    device: Device,
    plan: RowPlan<'_>,
    begin: Option<Instant>,
) -> PyResult<PackedTensors> {
    let lengths = lengths_of(py, &columns, device)?;
    plan.total().or_py_err(py)?;
    let begins = plan.boundaries(&lengths).or_py_err(py)?;
    let (longest, (id_pad, label_pad, separator)) = (longest_of(&lengths), plan.pads);
    let most = plan.counts.iter().copied().max().unwrap_or(0);
    let mut numbers = UploadedNumbers::default();
    let make = || -> windrow::Result<_> {
        let pads = numbers.add([id_pad, label_pad, separator])?;
        // The positions of the longest, and the segments of a row from 1 on; 0 is that of padding.
        let places = numbers.add(0..=longest.max(most))?;
        Ok((pads, places, numbers.add(begins.iter().map(|&begin| i64::from(begin)))?))
    };
    let (pads, places, boundaries) = { make }().or_py_err(py)?;
    let numbers = numbers.upload(py, device)?;
    let (ids, labels) = (&columns[0].samples, &columns[columns.len() - 1].samples);
    let lines = lines_of_rows((ids, labels), &lengths, &plan, &numbers, (pads, places));
    let [own_ids, own_labels, positions, segments] = lines.or_py_err(py)?;
    let mut all = SampleList::new();
    push(&mut all, &numbers.tensor, boundaries, &[begins.len() as i64], None).or_py_err(py)?;
    let no_owners = Owners::default();
    let mut jobs = [
        numbers.job("input_ids", DType::I64, &ids.owners, own_ids.list)?,
        numbers.job("labels", DType::I64, &labels.owners, own_labels.list)?,
        numbers.job("position_ids", DType::I64, &no_owners, positions.list)?,
        numbers.job("segment_ids", DType::I64, &no_owners, segments.list)?,
        numbers.job("cu_seqlens", DType::I32, &no_owners, all)?,
    ];
    let batches = Run::new(py, default_engine(), begin).jobs(&mut jobs)?;
    let shape = [plan.counts.len() as i64, plan.max_tokens as i64];
    let layout = Layout::compact(DType::I64, &shape).or_py_err(py)?;
    let [ids, labels, positions, segments, boundaries] = &batches[..] else {
        return Err(Error::Empty).or_py_err(py);
    };
    let rows = |line: &Batch| line.data().view(0, layout.clone()).map(PyTensor::from).or_py_err(py);
    let boundaries = boundaries.data().clone().into();
    Ok((rows(ids)?, rows(labels)?, rows(positions)?, rows(segments)?, boundaries))
}

/// The ids, labels, positions and segments of all rows, one row behind the other: sequences, then padding. `pads` is where
/// the three numbers of padding and of first labels begin, `places` where those from 0 on do. [`Error::Argument`] for a row
/// beyond `max_tokens`.
fn lines_of_rows<'n>(
    (ids, labels): (&Imported, &Imported),
    lengths: &[i64],
    plan: &RowPlan<'_>,
    numbers: &'n Uploaded,
    (pads, places): (i64, i64),
) -> windrow::Result<[Line<'n>; 4]> {
    let mut lines = [(); 4].map(|()| Line::new(numbers));
    let [own_ids, own_labels, positions, segments] = &mut lines;
    let mut number = 0;
    for row in plan.rows(lengths) {
        let (row_lengths, left) = row?;
        for (segment, &length) in row_lengths.iter().enumerate() {
            own_ids.sequence(ids, number, 0)?;
            own_labels.labels(labels, number, pads + 2)?;
            positions.numbers(places, length, 1)?;
            segments.numbers(places + 1 + segment as i64, length, 0)?;
            number += 1;
        }
        let left = left as i64;
        own_ids.numbers(pads, left, 0)?;
        own_labels.numbers(pads + 1, left, 0)?;
        positions.numbers(places, left, 0)?;
        segments.numbers(places, left, 0)?;
    }
    Ok(lines)
}

/// The number of tokens of each sequence; ShapeError if it has another number of labels, DeviceError if it is not on `device`.
fn lengths_of(py: Python<'_>, columns: &[KeyColumn], device: Device) -> PyResult<Vec<i64>> {
    let mut lengths: Vec<Vec<i64>> = Vec::new();
    for column in columns {
        lengths.push(column.lengths_on(device).map_err(|error| column.error(py, error))?);
    }
    if let [ids, labels] = &lengths[..] {
        check_labels(ids, labels).or_py_err(py)?;
    }
    Ok(lengths.swap_remove(0))
}

/// The largest length, 0 without sequences.
fn longest_of(lengths: &[i64]) -> i64 {
    lengths.iter().copied().max().unwrap_or(0)
}

/// The samples of one result, ``[1, L]`` each.
struct Line<'n> {
    list: SampleList<'static>,
    numbers: &'n Tensor,
}

impl<'n> Line<'n> {
    /// An empty line, whose numbers are parts of the uploaded ones.
    fn new(numbers: &'n Uploaded) -> Line<'n> {
        Line { list: SampleList::new(), numbers: &numbers.tensor }
    }

    /// Appends a sample of uploaded numbers: those from position `first` on, or with stride 0 the one there again and again.
    /// That they are among the uploaded ones is not checked.
    fn numbers(&mut self, first: i64, length: i64, stride: i64) -> windrow::Result<()> {
        self.list.reserve(1)?;
        push(&mut self.list, self.numbers, first, &[1, length], Some(&[0, stride]))
    }

    /// Appends a sequence without its first `skipped` tokens. That it has as many is not checked.
    fn sequence(&mut self, samples: &Imported, index: usize, skipped: i64) -> windrow::Result<()> {
        self.list.reserve(1)?;
        let meta = samples.list.meta(index);
        let (length, stride) = (meta.layout.shape()[0], meta.layout.strides()[0]);
        let step = skipped.wrapping_mul(stride).wrapping_mul(meta.dtype.size() as i64);
        let data = samples.list.address(index).wrapping_offset(step as isize);
        debug_assert!((0..=length).contains(&skipped));
        // SAFETY: a sample of the list, without its first elements, which it has.
        #[allow(unsafe_code)]
        unsafe {
            self.list.push(
                data,
                meta.dtype,
                meta.device,
                &[1, length - skipped],
                Some(&[0, stride]),
            )
        }
    }

    /// Appends two samples for a sequence of labels: the uploaded number at `first` in place of its first, and the labels behind
    /// that. Both samples are empty for an empty sequence.
    fn labels(&mut self, samples: &Imported, index: usize, first: i64) -> windrow::Result<()> {
        let skipped = samples.list.meta(index).layout.shape()[0].min(1);
        self.numbers(first, skipped, 0)?;
        self.sequence(samples, index, skipped)
    }
}
