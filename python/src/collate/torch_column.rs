//! One node of the trees that `collate_torch` walks: its samples, and its children.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::collate::leaves::Within;
use crate::collate::specs::Specs;
use crate::ground::errors::{attribute, is_answer};
use crate::ground::iterables::{entries, list_of, tuple_of};
use crate::ground::reserve::room_for;

/// The same place of every sample.
#[derive(Clone)]
pub(super) struct Column<'py> {
    pub items: Vec<Bound<'py, PyAny>>,
    /// The object that torch's functions are given: made of the items if it is not there yet.
    pub whole: Option<Bound<'py, PyAny>>,
    /// It is then a tuple, as `zip` gives, rather than a list.
    pub zipped: bool,
}

impl<'py> Column<'py> {
    /// What torch's functions are given.
    pub fn object(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match (&self.whole, self.zipped) {
            (Some(whole), _) => whole.clone(),
            (None, zipped) => {
                let list = list_of(py, self.items.iter().cloned())?;
                match zipped {
                    true => list.as_sequence().to_tuple()?.into_any(),
                    false => list.into_any(),
                }
            }
        })
    }

    /// The values of each key of mappings. The keys of the first sample rule; others are not looked at.
    pub fn children_by_key(
        &self,
        at: &At<'py>,
        specs: &Specs<'_, 'py>,
        open: &mut Vec<Branch<'py>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (py, samples) = (self.items[0].py(), &self.items);
        let keys = entries(&samples[0], Ok)?;
        // Sample by sample, while a mapping is in a cache; a column ends at its first error.
        let mut columns: Vec<PyResult<Vec<_>>> = Vec::new();
        for _ in &keys {
            columns.push(Ok(room_for(samples.len())?));
        }
        for sample in samples {
            let dict = sample.cast_exact::<PyDict>().ok();
            for (key, column) in keys.iter().zip(&mut columns) {
                let Ok(items) = column else { continue };
                let found = dict.map_or(Ok(None), |dict| dict.get_item(key));
                // Not there: as the mapping itself says it.
                match found.and_then(|found| found.map_or_else(|| sample.get_item(key), Ok)) {
                    Ok(item) => items.push(item),
                    Err(error) if is_answer(py, &error) => *column = Err(error),
                    Err(error) => return Err(error),
                }
            }
        }
        for (key, items) in keys.iter().zip(columns) {
            let path = specs.join(&at.path, key)?;
            let column = items.map(|items| Column { items, whole: None, zipped: false });
            open.push(Branch { column: Some(column), at: at.child(path, at.within.around()) });
        }
        Ok(keys)
    }

    /// The items of sequences, as `zip` gives them: up to the shortest. Says how many.
    pub fn children_by_position(
        &self,
        at: &At<'py>,
        specs: &Specs<'_, 'py>,
        open: &mut Vec<Branch<'py>>,
    ) -> PyResult<usize> {
        let (py, samples) = (self.items[0].py(), &self.items);
        let mut rows = room_for(samples.len())?;
        for sample in samples {
            rows.push(tuple_of(sample)?);
        }
        let len = rows.iter().map(|row| row.len()).min().unwrap_or(0);
        let fields = attribute(&samples[0], "_fields")?;
        for position in 0..len {
            let mut items = room_for(rows.len())?;
            for row in &rows {
                items.push(row.get_item(position)?);
            }
            let key = match &fields {
                Some(fields) => fields.get_item(position)?,
                None => position.into_pyobject(py)?.into_any(),
            };
            let path = specs.join(&at.path, &key)?;
            let column = Some(Ok(Column { items, whole: None, zipped: true }));
            open.push(Branch { column, at: at.child(path, at.within.around()) });
        }
        Ok(len)
    }
}

/// A column not yet looked at. An error of reading it is due when all before it are done.
pub(super) struct Branch<'py> {
    /// None: the next one of a table.
    pub column: Option<PyResult<Column<'py>>>,
    pub at: At<'py>,
}

/// Where a column is.
#[derive(Default)]
pub(super) struct At<'py> {
    pub path: String,
    pub depth: usize,
    /// What the class of the container around it says of it.
    pub within: Within<'py>,
}

impl<'py> At<'py> {
    pub fn child(&self, path: String, within: Within<'py>) -> At<'py> {
        At { path, depth: self.depth + 1, within }
    }
}
