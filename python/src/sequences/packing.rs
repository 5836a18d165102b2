//! `windrow.plan`: which samples go into which batch, from their lengths. Rust as `windrow::packing` is, which it calls: 10 000 lengths
//! into rows of 4096 tokens take 0.98 ms, first fit decreasing by NumPy 38.4 (EPYC).

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use windrow::packing::{IndexRows, Packing};
use windrow::{packing, Result, Tensor};

use crate::ground::errors::OrPyErr;
use crate::ground::reserve::try_vec;
use crate::ground::tensor::PyTensor;
use crate::import::integers::integers;

/// Integers of one dim that are no indices: those beyond 63 bits are a ValueError.
pub(super) fn numbers_of(numbers: &Bound<'_, PyAny>, name: &'static str) -> PyResult<Vec<i64>> {
    let py = numbers.py();
    let (numbers, _) = integers(numbers, name, 1).map_err(|error| {
        match error.is_instance_of::<PyIndexError>(py) {
            true => PyValueError::new_err(error.value(py).to_string()),
            false => error,
        }
    })?;
    Ok(numbers)
}

/// The indices of all rows, the end of each row among them, the number of their tokens, and the share of padding.
type PackedRows = (PyTensor, Vec<usize>, u128, f64);

/// The rows of indices that `rows` makes of the lengths, with the interpreter lock released.
fn packed_rows(
    lengths: &Bound<'_, PyAny>,
    rows: impl Send + FnOnce(&[i64]) -> Result<IndexRows>,
) -> PyResult<PackedRows> {
    let py = lengths.py();
    let lengths = numbers_of(lengths, "lengths")?;
    let rows = py.detach(|| rows(&lengths)).or_py_err(py)?;
    let mut indices = try_vec(rows.iter().map(<[usize]>::len).sum())?;
    let mut ends = try_vec(rows.len())?;
    for row in rows.iter() {
        indices.extend(row.iter().map(|&index| index as i64));
        ends.push(indices.len());
    }
    let shape = [indices.len() as i64];
    let indices = Tensor::from_vec(indices, &shape).or_py_err(py)?;
    Ok((indices.into(), ends, rows.num_tokens(), rows.waste()))
}

/// `pack` of `windrow.plan`. ValueError for an unknown `how`, a `max_sequences` of 0 and a length that is negative or above
/// `max_tokens`.
#[pyfunction]
pub(crate) fn _pack(
    lengths: &Bound<'_, PyAny>,
    max_tokens: i64,
    how: &str,
    max_sequences: Option<usize>,
) -> PyResult<PackedRows> {
    let how = match how {
        "first_fit_decreasing" => Packing::FirstFitDecreasing,
        "best_fit_decreasing" => Packing::BestFitDecreasing,
        "in_order" => Packing::InOrder,
        _ => {
            return Err(PyValueError::new_err(format!(
            "how must be \"first_fit_decreasing\", \"best_fit_decreasing\" or \"in_order\", got {how:?}"
        )))
        }
    };
    packed_rows(lengths, |lengths| packing::pack(lengths, max_tokens, how, max_sequences))
}

/// `token_budget` of `windrow.plan`. ValueError for a `pad_to_multiple_of` or `max_sequences` below 1 and for a length that is
/// negative or, rounded up, above `max_tokens`.
#[pyfunction]
pub(crate) fn _token_budget(
    lengths: &Bound<'_, PyAny>,
    max_tokens: i64,
    pad_to_multiple_of: i64,
    max_sequences: Option<usize>,
) -> PyResult<PackedRows> {
    packed_rows(lengths, |lengths| {
        packing::token_budget(lengths, max_tokens, pad_to_multiple_of, max_sequences)
    })
}

/// `buckets` of `windrow.plan`. ValueError for a `batch_size` of 0, a negative length and boundaries that do not increase.
#[pyfunction]
pub(crate) fn _buckets(
    lengths: &Bound<'_, PyAny>,
    batch_size: usize,
    boundaries: Option<&Bound<'_, PyAny>>,
    drop_last: bool,
    seed: Option<u64>,
) -> PyResult<PackedRows> {
    let boundaries = boundaries.map(|numbers| numbers_of(numbers, "boundaries")).transpose()?;
    let boundaries = boundaries.as_deref();
    packed_rows(lengths, |lengths| {
        packing::buckets(lengths, batch_size, boundaries, drop_last, seed)
    })
}

/// `balance` of `windrow.plan`: a list of indices for each rank. ValueError for no ranks and a negative length.
#[pyfunction]
pub(crate) fn _balance(
    lengths: &Bound<'_, PyAny>,
    num_ranks: usize,
    seed: Option<u64>,
) -> PyResult<PackedRows> {
    packed_rows(lengths, |lengths| packing::balance(lengths, num_ranks, seed))
}
