//! The rules of torch's `default_collate` for containers: the first sample says the keys, the shortest how many entries.

use pyo3::exceptions::{PyKeyError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::ground::errors::{answered, is_answer};
use crate::ground::iterables::{entries, tuple_of};
use crate::ground::reserve::{push_to, try_vec};
use crate::ownership::child_columns::ChildColumns;
use crate::trees::container::{names_of, ColumnPlace, Container, Maker, NodeType};
use crate::trees::dicts::Dicts;
use crate::trees::rules::uneven_key;

/// A container, and for each child that of every sample, or the error that is due when the children before it are done.
pub(crate) type OpenedByTorch<'py> = (Container, Vec<PyResult<Vec<Bound<'py, PyAny>>>>);

/// Mappings, at least one: the values of each key of the first one. Other keys are not looked at.
/// `rules`: `windrow.torch`'s, for types that only Python code can make. The cause of the KeyError
/// of a key that a sample lacks says which sample.
pub(crate) fn open_mappings<'py>(
    samples: &[Bound<'py, PyAny>],
    rules: &Bound<'py, PyAny>,
    place: ColumnPlace<'_>,
) -> PyResult<OpenedByTorch<'py>> {
    let py = rules.py();
    let keys = entries(&samples[0], |key| Ok(key.unbind()))?;
    let (mut dicts, mut walked) =
        (Dicts::new(py, &keys)?, ChildColumns::with_capacity(py, keys.len(), samples.len())?);
    let num_walked = dicts.walk(samples, &mut walked)?;
    let mut columns: Vec<PyResult<Vec<_>>> = walked.into_lists()?.into_iter().map(Ok).collect();
    // Sample by sample, while a mapping is in a cache; a column ends at its first error.
    for (index, sample) in samples.iter().enumerate().skip(num_walked) {
        let dict = sample.cast_exact::<PyDict>().ok();
        for (key, column) in keys.iter().zip(&mut columns) {
            let Ok(items) = column else { continue };
            let key = key.bind(py);
            let found = dict.map_or(Ok(None), |dict| dict.get_item(key));
            // A key that is absent from the dict is asked of the mapping itself.
            match found.and_then(|found| found.map_or_else(|| sample.get_item(key), Ok)) {
                Ok(item) => push_to(items, item)?,
                Err(error) if is_answer(py, &error) => {
                    // A mapping may fail to load a key that it has, and says why.
                    let is_plain =
                        error.is_instance_of::<PyKeyError>(py) && error.cause(py).is_none();
                    if is_plain && answered(py, sample.contains(key))?.is_ok_and(|has| !has) {
                        let cause = uneven_key(index, key, "the key is missing", samples, place);
                        error.set_cause(py, answered(py, cause)?.ok());
                    }
                    *column = Err(error);
                }
                Err(error) => return Err(error),
            }
        }
    }
    let is_dict = samples[0].is_exact_instance_of::<PyDict>();
    let maker = (!is_dict).then(|| maker(rules, "mapping", &samples[0])).transpose()?;
    Ok((container(&samples[0], NodeType::Mapping(keys), maker), columns))
}

/// Namedtuples, at least one: the entries that all of them have, as `zip` gives them.
pub(crate) fn open_namedtuples<'py>(
    samples: &[Bound<'py, PyAny>],
    rules: &Bound<'py, PyAny>,
) -> PyResult<OpenedByTorch<'py>> {
    let (class, columns) = (samples[0].get_type(), zip(samples)?);
    let node_type = NodeType::Named(names_of(&class)?.unwrap_or_default(), columns.len());
    let maker = maker(rules, "named", class.as_any())?;
    Ok((container(&samples[0], node_type, Some(maker)), columns))
}

/// Sequences of one length, at least one; tuples become lists.
///
/// # Errors
/// RuntimeError for sequences of several lengths, as torch has it.
pub(crate) fn open_sequences<'py>(
    samples: &[Bound<'py, PyAny>],
    rules: &Bound<'py, PyAny>,
) -> PyResult<OpenedByTorch<'py>> {
    let (first, len) = (&samples[0], samples[0].len()?);
    for sample in &samples[1..] {
        if sample.len()? != len {
            let text = "each element in list of batch should be of equal size";
            return Err(PyRuntimeError::new_err(text));
        }
    }
    let columns = zip(samples)?;
    let is_list = first.is_instance_of::<PyTuple>() || first.is_exact_instance_of::<PyList>();
    let maker = (!is_list).then(|| maker(rules, "sequence", first)).transpose()?;
    let list = PyList::empty(rules.py());
    Ok((container(&list, NodeType::Sequence(columns.len(), false), maker), columns))
}

/// A container of the class of `first`.
fn container(first: &Bound<'_, PyAny>, node_type: NodeType, maker: Option<Maker>) -> Container {
    Container { class: first.get_type().unbind(), node_type, maker }
}

/// The maker that calls a function of `rules` with `like` first.
fn maker(rules: &Bound<'_, PyAny>, function: &str, like: &Bound<'_, PyAny>) -> PyResult<Maker> {
    let function = rules.getattr(function)?.unbind();
    Ok(Maker { function, like: Some(like.clone().unbind()) })
}

/// A column for each position that all samples have, each `Ok`.
fn zip<'py>(samples: &[Bound<'py, PyAny>]) -> PyResult<Vec<PyResult<Vec<Bound<'py, PyAny>>>>> {
    let mut rows = try_vec(samples.len())?;
    for sample in samples {
        rows.push(tuple_of(sample)?);
    }
    let len = rows.iter().map(|row| row.len()).min().unwrap_or(0);
    let mut columns = try_vec(len)?;
    for position in 0..len {
        let mut items = try_vec(rows.len())?;
        for row in &rows {
            items.push(row.get_item(position)?);
        }
        columns.push(Ok(items));
    }
    Ok(columns)
}
