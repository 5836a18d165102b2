//! `windrow.plan`: which samples go into which batch, from their lengths.

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyMemoryView};
use windrow::packing::{IndexRows, Packing};
use windrow::{packing, Result, Tensor};

use crate::ground::errors::OrPyErr;
use crate::ground::reserve::try_vec;
use crate::ground::tensor::PyTensor;
use crate::import::integers::integers;

/// More lists than this are made with the garbage collector turned off.
const COLLECTED_LISTS: usize = 1024;

/// Python's cyclic garbage collector is off until this is dropped, if many lists are made. It would go through all lists made so
/// far again and again, which takes longer than to make them, and finds nothing: they hold ints.
struct NoCollector<'py>(Option<Bound<'py, PyModule>>);

impl<'py> NoCollector<'py> {
    /// Turns the collector off for more than [`COLLECTED_LISTS`] lists, unless the program has.
    fn new(py: Python<'py>, num_lists: usize) -> PyResult<NoCollector<'py>> {
        if num_lists <= COLLECTED_LISTS {
            return Ok(NoCollector(None));
        }
        let gc = py.import("gc")?;
        if !gc.call_method0("isenabled")?.is_truthy()? {
            return Ok(NoCollector(None));
        }
        gc.call_method0("disable")?;
        Ok(NoCollector(Some(gc)))
    }
}

impl Drop for NoCollector<'_> {
    fn drop(&mut self) {
        if let Some(gc) = &self.0 {
            if let Err(error) = gc.call_method0("enable") {
                error.write_unraisable(gc.py(), Some(gc));
            }
        }
    }
}

/// Integers of one dim that are no indices: those beyond 63 bits are a ValueError.
fn numbers_of(numbers: &Bound<'_, PyAny>, name: &'static str) -> PyResult<Vec<i64>> {
    let py = numbers.py();
    let (numbers, _) = integers(numbers, name, 1).map_err(|error| {
        match error.is_instance_of::<PyIndexError>(py) {
            true => PyValueError::new_err(error.value(py).to_string()),
            false => error,
        }
    })?;
    Ok(numbers)
}

/// Rows as lists of ints, the number of their tokens, and the share of padding.
type Lists<'py> = (Bound<'py, PyList>, u128, f64);

/// The rows of indices that `rows` makes of the lengths, with the interpreter lock released.
fn lists<'py>(
    py: Python<'py>,
    lengths: &Bound<'py, PyAny>,
    rows: impl Send + FnOnce(&[i64]) -> Result<IndexRows>,
) -> PyResult<Lists<'py>> {
    let lengths = numbers_of(lengths, "lengths")?;
    let rows = py.detach(|| rows(&lengths)).or_py_err(py)?;
    let mut indices = try_vec(rows.iter().map(<[usize]>::len).sum())?;
    indices.extend(rows.iter().flatten().map(|&index| index as i64));
    // Python's own ints and slices: where there is no memory for one, PyO3's panic.
    let shape = [indices.len() as i64];
    let indices = Tensor::from_vec(indices, &shape).or_py_err(py)?;
    let indices = PyMemoryView::from(Bound::new(py, PyTensor::from(indices))?.as_any())?;
    let indices = indices.call_method0("tolist")?.cast_into::<PyList>()?.into_sequence();
    let _no_collector = NoCollector::new(py, rows.len())?;
    let (lists, mut begin) = (PyList::empty(py), 0);
    for row in rows.iter() {
        lists.append(indices.get_slice(begin, begin + row.len())?)?;
        begin += row.len();
    }
    Ok((lists, rows.num_tokens(), rows.waste()))
}

/// `pack` of `windrow.plan`. ValueError for an unknown `how` and for a length that is negative or above `max_tokens`.
#[pyfunction]
pub(crate) fn _pack<'py>(
    py: Python<'py>,
    lengths: &Bound<'py, PyAny>,
    max_tokens: i64,
    how: &str,
    max_sequences: Option<usize>,
) -> PyResult<Lists<'py>> {
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
    lists(py, lengths, |lengths| packing::pack(lengths, max_tokens, how, max_sequences))
}

/// `token_budget` of `windrow.plan`. ValueError for a `pad_to_multiple_of` below 1 and for a length that is negative or, rounded
/// up, above `max_tokens`.
#[pyfunction]
pub(crate) fn _token_budget<'py>(
    py: Python<'py>,
    lengths: &Bound<'py, PyAny>,
    max_tokens: i64,
    pad_to_multiple_of: i64,
    max_sequences: Option<usize>,
) -> PyResult<Lists<'py>> {
    lists(py, lengths, |lengths| {
        packing::token_budget(lengths, max_tokens, pad_to_multiple_of, max_sequences)
    })
}

/// `buckets` of `windrow.plan`. ValueError for a `batch_size` of 0, a negative length and boundaries that do not increase.
#[pyfunction]
pub(crate) fn _buckets<'py>(
    py: Python<'py>,
    lengths: &Bound<'py, PyAny>,
    batch_size: usize,
    boundaries: Option<&Bound<'py, PyAny>>,
    drop_last: bool,
    seed: Option<u64>,
) -> PyResult<Lists<'py>> {
    let boundaries = boundaries.map(|numbers| numbers_of(numbers, "boundaries")).transpose()?;
    let boundaries = boundaries.as_deref();
    lists(py, lengths, |lengths| packing::buckets(lengths, batch_size, boundaries, drop_last, seed))
}

/// `balance` of `windrow.plan`: a list of indices for each rank. ValueError for no ranks and a negative length.
#[pyfunction]
pub(crate) fn _balance<'py>(
    py: Python<'py>,
    lengths: &Bound<'py, PyAny>,
    num_ranks: usize,
    seed: Option<u64>,
) -> PyResult<Lists<'py>> {
    lists(py, lengths, |lengths| packing::balance(lengths, num_ranks, seed))
}
