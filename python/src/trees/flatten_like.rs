//! A tree of outputs, or of sources, flattened as the samples or the destinations were.

use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use windrow::error::MoveSide;

use crate::ground::errors::{at, at_pair, class_name, in_words, located};
use crate::ground::iterables::{entries, is_list_or_tuple, is_mapping, Lookup};
use crate::ground::reserve::try_vec;
use crate::trees::container::{
    name_of, positions_of, ColumnPlace, Container, NodeType, Registered,
};
use crate::trees::node_types::call_flattener;

/// How a tree that is flattened as another one is named, and that one.
#[derive(Clone, Copy)]
pub(crate) struct TreeNames {
    pub name: &'static str,
    pub like: &'static str,
    /// The `side` of errors, if it is a side of `copy_many`.
    pub side: Option<MoveSide>,
}

/// The tree of `out=`.
pub(crate) const OUT: TreeNames = TreeNames { name: "out", like: "samples", side: None };

impl TreeNames {
    /// The same error with `index` None, this path and the side as its attributes.
    fn located(self, py: Python<'_>, error: PyErr, path: &str) -> PyErr {
        match self.side {
            Some(side) => at_pair(py, error, side, None, path),
            None => located(py, error, None, path),
        }
    }
}

impl Container {
    /// The entry of a tree of outputs for each child, in the order of the children.
    ///
    /// # Errors
    /// KeyError or TypeError for an entry that is missing, KeyError for a key and ValueError for more entries than the samples
    /// have; all with the path.
    pub fn outputs<'py>(
        &self,
        mut out: Bound<'py, PyAny>,
        place: ColumnPlace<'_>,
        names: TreeNames,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (py, len, mut keys) = (out.py(), self.len(), self.keys());
        let class = self.class.bind(py);
        match &self.node_type {
            NodeType::Registered(Registered { flattener, .. })
                if out.get_type().is(class) || !self.is_open() && out.is_instance(class)? =>
            {
                // A batch of graphs, whose class is a subclass, has more entries than they have, which pass.
                let is_same_class = out.get_type().is(class);
                keys = keys.filter(|_| is_same_class);
                let flattened =
                    call_flattener(flattener.bind(py), vec![out.clone()], place.path, place.sep)?;
                out = flattened.children.into_first(py)?.unwrap_or(out);
            }
            NodeType::Sequence(..) | NodeType::Named(..) if is_list_or_tuple(&out) => {
                let got = out.len()?;
                if got > len {
                    let (name, at) = (names.name, at(place.path));
                    let text = format!("{name}{at}: expected {len} entries, got {got}");
                    return Err(names.located(py, PyValueError::new_err(text), place.path));
                }
            }
            NodeType::Dataclass(_) => keys = None,
            _ => {}
        }
        let mut outputs = try_vec(len)?;
        let lookup = is_mapping(&out)?.then(|| Lookup::new(&out)).transpose()?;
        for child in 0..len {
            let found = match (&self.node_type, self.key(py, child), &lookup) {
                (NodeType::Dataclass(_), Some(field), _) => out.getattr(field.cast::<PyString>()?),
                (_, Some(key), Some(lookup)) => {
                    lookup.get(key).and_then(|found| found.ok_or_else(|| PyKeyError::new_err(())))
                }
                (_, Some(key), None) => out.get_item(key),
                (_, None, _) => out.get_item(child),
            };
            let found = found.or_else(|error| {
                Err(no_entry(&out, &self.path_of(py, child, place)?, names, error))
            });
            outputs.push(found?);
        }
        keys.map_or(Ok(()), |keys| check_keys(&out, keys, place, names))?;
        Ok(outputs)
    }
}

/// KeyError for a key of a tree of outputs that the samples have not. An object that is no mapping is not checked.
fn check_keys(
    out: &Bound<'_, PyAny>,
    keys: &[Py<PyAny>],
    place: ColumnPlace<'_>,
    names: TreeNames,
) -> PyResult<()> {
    if !is_mapping(out)? || out.len()? == keys.len() {
        return Ok(());
    }
    let known = positions_of(out.py(), keys)?;
    for key in entries(out, Ok)? {
        if !known.contains(&key)? {
            let path = place.join(&name_of(&key)?);
            let TreeNames { name, like, .. } = names;
            let text = format!("{name}{}: the {like} have no such key", at(&path));
            return Err(names.located(out.py(), PyKeyError::new_err(text), &path));
        }
    }
    Ok(())
}

/// The error for an entry at `path` that a tree of outputs does not give: a KeyError or TypeError, or `error` if that is no
/// answer.
fn no_entry(out: &Bound<'_, PyAny>, path: &str, names: TreeNames, error: PyErr) -> PyErr {
    let py = out.py();
    let class = match class_name(&out.get_type()) {
        Ok(class) => class,
        Err(aborted) => return aborted,
    };
    let text = format!("{}{}: there is no such entry in {class}", names.name, at(path));
    let is_key = error.is_instance_of::<PyKeyError>(py);
    in_words(py, error, || {
        let error = match is_key {
            true => PyKeyError::new_err(text),
            false => PyTypeError::new_err(text),
        };
        names.located(py, error, path)
    })
}
