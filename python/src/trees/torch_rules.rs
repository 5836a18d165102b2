//! The rules of torch's `default_collate` for containers: the first sample says the keys, the shortest how many entries.

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::ground::errors::is_answer;
use crate::ground::iterables::{entries, list_of, tuple_of};
use crate::ground::reserve::{push_to, room_for};
use crate::ownership::child_columns::ChildColumns;
use crate::trees::container::{names_of, Container, NodeType};
use crate::trees::dicts::Dicts;
use crate::trees::rules::dict_of;

/// The same place of every sample.
#[derive(Clone)]
pub(crate) struct TorchColumn<'py> {
    pub items: Vec<Bound<'py, PyAny>>,
    /// The object that torch's functions are given, if it is there already.
    pub whole: Option<Bound<'py, PyAny>>,
    /// Else it is a tuple, as `zip` gives, rather than a list.
    pub zipped: bool,
}

impl<'py> TorchColumn<'py> {
    /// The object that torch's functions receive.
    pub fn object(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(whole) = &self.whole {
            return Ok(whole.clone());
        }
        let list = list_of(py, self.items.iter().cloned())?;
        match self.zipped {
            true => Ok(list.as_sequence().to_tuple()?.into_any()),
            false => Ok(list.into_any()),
        }
    }

    /// As mappings: the values of each key of the first one. Other keys are not looked at.
    pub fn mappings(&self) -> PyResult<TorchApart<'py>> {
        let (py, samples) = (self.items[0].py(), &self.items);
        let keys = entries(&samples[0], |key| Ok(key.unbind()))?;
        let (mut dicts, mut walked) =
            (Dicts::new(py, &keys, true)?, ChildColumns::with_room(py, keys.len(), samples.len())?);
        let num_walked = dicts.walk(samples, &mut walked)?;
        let mut columns: Vec<PyResult<Vec<_>>> = walked.into_lists()?.into_iter().map(Ok).collect();
        // Sample by sample, while a mapping is in a cache; a column ends at its first error.
        for sample in &samples[num_walked..] {
            let dict = sample.cast_exact::<PyDict>().ok();
            for (key, column) in keys.iter().zip(&mut columns) {
                let Ok(items) = column else { continue };
                let key = key.bind(py);
                let found = dict.map_or(Ok(None), |dict| dict.get_item(key));
                // Not there: as the mapping itself says it.
                match found.and_then(|found| found.map_or_else(|| sample.get_item(key), Ok)) {
                    Ok(item) => push_to(items, item)?,
                    Err(error) if is_answer(py, &error) => *column = Err(error),
                    Err(error) => return Err(error),
                }
            }
        }
        let of_items = |items| TorchColumn { items, whole: None, zipped: false };
        let columns = columns.into_iter().map(|items| items.map(of_items)).collect();
        Ok(self.apart(NodeType::Mapping(keys), columns))
    }

    /// As namedtuples: the entries that all of them have, as `zip` gives them.
    pub fn namedtuples(&self) -> PyResult<TorchApart<'py>> {
        let names = names_of(&self.items[0].get_type())?.unwrap_or_default();
        let columns = self.zip()?;
        Ok(self.apart(NodeType::Named(names, columns.len()), columns))
    }

    /// As sequences of one length.
    ///
    /// # Errors
    /// The rules of torch for sequences of several lengths.
    pub fn sequences(&self) -> PyResult<TorchApart<'py>> {
        let len = self.items[0].len()?;
        for sample in &self.items[1..] {
            if sample.len()? != len {
                let text = "each element in list of batch should be of equal size";
                return Err(PyRuntimeError::new_err(text));
            }
        }
        let columns = self.zip()?;
        Ok(self.apart(NodeType::Sequence(columns.len(), false), columns))
    }

    fn zip(&self) -> PyResult<Vec<PyResult<TorchColumn<'py>>>> {
        let mut rows = room_for(self.items.len())?;
        for sample in &self.items {
            rows.push(tuple_of(sample)?);
        }
        let len = rows.iter().map(|row| row.len()).min().unwrap_or(0);
        let mut columns = room_for(len)?;
        for position in 0..len {
            let mut items = room_for(rows.len())?;
            for row in &rows {
                items.push(row.get_item(position)?);
            }
            columns.push(Ok(TorchColumn { items, whole: None, zipped: true }));
        }
        Ok(columns)
    }

    fn apart(
        &self,
        node_type: NodeType,
        columns: Vec<PyResult<TorchColumn<'py>>>,
    ) -> TorchApart<'py> {
        let first = &self.items[0];
        let (class, first) = (first.get_type().unbind(), Some(first.clone().unbind()));
        TorchApart { container: Container { class, node_type, first }, columns }
    }
}

/// A column of containers taken apart.
pub(crate) struct TorchApart<'py> {
    pub container: Container,
    /// For each child that of every sample, or the error that is due when the children before it are done.
    pub columns: Vec<PyResult<TorchColumn<'py>>>,
}

impl Container {
    /// One like the first sample's around these. `rules`: `windrow.torch`'s, for types that only Python code can make.
    pub fn with_by_torch<'py>(
        &self,
        rules: &Bound<'py, PyAny>,
        children: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = rules.py();
        let Some(first) = self.first.as_ref().map(|first| first.bind(py)) else {
            return self.with(py, children);
        };
        if let NodeType::Mapping(keys) = &self.node_type {
            let dict = dict_of(py, keys, children)?;
            return match first.is_exact_instance_of::<PyDict>() {
                true => Ok(dict.into_any()),
                false => rules.call_method1(intern!(py, "mapping"), (first, dict)),
            };
        }
        let list = list_of(py, children)?;
        if let NodeType::Named(..) = &self.node_type {
            return self.class(py).call1(list.as_sequence().to_tuple()?);
        }
        match first.is_instance_of::<PyTuple>() || first.is_exact_instance_of::<PyList>() {
            true => Ok(list.into_any()),
            false => rules.call_method1(intern!(py, "sequence"), (first, list)),
        }
    }
}
