//! [`Container`]: a node of a tree without its children, which `rules` and `torch_rules` make of a column of samples.

use std::borrow::Cow;

use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use crate::ground::errors::{class_name, type_error, ErrorSubject};
use crate::ground::iterables::{entries, list_of, tuple_of};
use crate::ground::reserve::try_vec;
use crate::ownership::holder::Visited;

/// A container without its children.
pub(crate) struct Container {
    pub(super) class: Py<PyType>,
    pub(super) node_type: NodeType,
    /// The function that makes the container of the results; `None` for dict, list and tuple themselves.
    pub(super) maker: Option<Maker>,
}

pub(super) enum NodeType {
    /// The keys.
    Mapping(Vec<Py<PyAny>>),
    /// A list or tuple: the number of entries, and whether the first is a number.
    Sequence(usize, bool),
    /// A namedtuple: the names of fields, and the number of entries, which may differ.
    Named(Vec<String>, usize),
    /// The names of the fields.
    Dataclass(Vec<Py<PyAny>>),
    Registered(Registered),
}

/// An object of a class that `windrow._nodes` knows.
pub(super) struct Registered {
    pub flattener: Py<PyAny>,
    /// Flattens further samples as the first ones, if that does not depend on all samples of a batch.
    pub flatten_more: Option<Py<PyAny>>,
    pub names: Vec<Py<PyAny>>,
}

/// Makes a container of a dict or list of its children.
pub(super) struct Maker {
    pub function: Py<PyAny>,
    /// The function's first argument, a model of the result: a template of `windrow._like` without the children of the first
    /// sample; by torch's rules the first sample.
    pub like: Option<Py<PyAny>>,
}

/// The place of a column of samples in a tree.
#[derive(Clone, Copy)]
pub(crate) struct ColumnPlace<'a> {
    pub path: &'a str,
    pub sep: &'a str,
    /// The number of samples already in the list that they are appended to.
    pub added_to: Option<usize>,
}

impl<'a> ColumnPlace<'a> {
    /// The place of a column that is not added to a list.
    pub fn new(path: &'a str, sep: &'a str) -> ColumnPlace<'a> {
        ColumnPlace { path, sep, added_to: None }
    }

    /// The number of the sample that is first in the column.
    pub fn start(&self) -> usize {
        self.added_to.unwrap_or(0)
    }

    /// The path of the child of this name.
    pub fn join(&self, name: &str) -> String {
        match self.path {
            "" => name.to_owned(),
            path => [path, self.sep, name].concat(),
        }
    }

    /// The TypeError of sample `index` of the column, which is not as those before it.
    pub fn uneven<T>(&self, index: usize, expected: &str, other: &Bound<'_, PyAny>) -> PyResult<T> {
        let text = format!("expected {expected}, got {}", class_name(&other.get_type())?);
        Err(type_error(other.py(), ErrorSubject::Sample(self.start() + index), self.path, &text))
    }
}

impl Container {
    /// The number of its children.
    pub fn len(&self) -> usize {
        match &self.node_type {
            NodeType::Sequence(len, _) | NodeType::Named(_, len) => *len,
            _ => self.keys().map_or(0, <[_]>::len),
        }
    }

    /// The container of a plain dict with these keys, such as the groups of a table's column names.
    pub fn dict<'py>(py: Python<'py>, keys: Vec<Bound<'py, PyAny>>) -> Container {
        let keys = keys.into_iter().map(Bound::unbind).collect();
        let class = py.get_type::<PyDict>().unbind();
        Container { class, node_type: NodeType::Mapping(keys), maker: None }
    }

    /// A container of the same type with these children, one for each of its own (not checked).
    pub fn unflatten<'py>(
        &self,
        py: Python<'py>,
        children: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let children = match self.keys() {
            Some(keys) => {
                let dict = PyDict::new(py);
                keys.iter().zip(children).try_for_each(|(key, child)| dict.set_item(key, child))?;
                dict.into_any()
            }
            None => list_of(py, children)?.into_any(),
        };
        match &self.maker {
            Some(Maker { function, like: Some(like) }) => function.bind(py).call1((like, children)),
            Some(Maker { function, like: None }) => function.bind(py).call1((children,)),
            None if self.class.is(py.get_type::<PyTuple>()) => Ok(tuple_of(&children)?.into_any()),
            None => Ok(children),
        }
    }

    /// Shows the collector the class, the keys and what makes the container, which refer to objects of the caller's.
    pub fn visit(&self, visit: &PyVisit<'_>) -> Visited {
        visit.call(&self.class)?;
        self.keys().unwrap_or_default().iter().try_for_each(|key| visit.call(key))?;
        if let NodeType::Registered(Registered { flattener, flatten_more, .. }) = &self.node_type {
            visit.call(flattener).and_then(|()| visit.call(flatten_more))?;
        }
        match &self.maker {
            Some(Maker { function, like }) => visit.call(function).and_then(|()| visit.call(like)),
            None => Ok(()),
        }
    }

    /// The class of the container.
    pub fn class<'py>(&self, py: Python<'py>) -> &Bound<'py, PyType> {
        self.class.bind(py)
    }

    /// Whether further samples can be taken apart as the first ones were; not where that depends on all samples of a batch.
    pub fn is_open(&self) -> bool {
        !matches!(&self.node_type, NodeType::Registered(Registered { flatten_more: None, .. }))
    }

    /// Whether all keys are str, subclasses too, or there are none: the path of a child then runs no Python code.
    pub fn has_plain_names(&self, py: Python<'_>) -> bool {
        let is_plain = |key: &Py<PyAny>| key.bind(py).is_instance_of::<PyString>();
        self.keys().is_none_or(|keys| keys.iter().all(is_plain))
    }

    /// The path of a child, by its key, its field's name or its position.
    pub fn path_of(
        &self,
        py: Python<'_>,
        child: usize,
        place: ColumnPlace<'_>,
    ) -> PyResult<String> {
        Ok(match (&self.node_type, self.key(py, child)) {
            (_, Some(key)) => place.join(&name_of(key)?),
            (NodeType::Named(names, _), None) if child < names.len() => place.join(&names[child]),
            _ => place.join(&child.to_string()),
        })
    }

    /// The position of each child in another container, by key, or by place in a sequence; None if
    /// that has another class, number of children or keys.
    pub fn order_in(&self, py: Python<'_>, other: &Container) -> PyResult<Option<Vec<usize>>> {
        if !self.class.bind(py).is(other.class.bind(py)) || self.len() != other.len() {
            return Ok(None);
        }
        let (mut order, mut positions) = (try_vec(self.len())?, None);
        for child in 0..self.len() {
            let its = match (self.key(py, child), other.keys()) {
                // The keys of most samples are in one order.
                (Some(key), Some(keys)) if !key.is(&keys[child]) && !key.eq(&keys[child])? => {
                    let positions = match &positions {
                        Some(made) => made,
                        None => positions.insert(positions_of(py, keys)?),
                    };
                    positions.get_item(key)?.map(|position| position.extract()).transpose()?
                }
                _ => Some(child),
            };
            let Some(its) = its else { return Ok(None) };
            order.push(its);
        }
        Ok(Some(order))
    }

    /// Whether its class is tuple or a subclass, namedtuples too, and its children have no keys.
    pub fn is_tuple(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.keys().is_none() && self.class.bind(py).is_subclass_of::<PyTuple>()?)
    }

    /// The keys of a mapping, a dataclass or a registered class; None for a sequence or namedtuple, whose maker takes a list.
    pub fn keys(&self) -> Option<&[Py<PyAny>]> {
        match &self.node_type {
            NodeType::Mapping(keys)
            | NodeType::Dataclass(keys)
            | NodeType::Registered(Registered { names: keys, .. }) => Some(keys),
            NodeType::Sequence(..) | NodeType::Named(..) => None,
        }
    }

    /// The key of a child, as of [`Container::keys`].
    pub fn key<'a, 'py>(&'a self, py: Python<'py>, child: usize) -> Option<&'a Bound<'py, PyAny>> {
        self.keys()?.get(child).map(|key| key.bind(py))
    }
}

/// The name of a key in a path: a str, of whatever class, as it is, such as a member of an enum of
/// str; any other key by `str()`.
pub(super) fn name_of<'a>(key: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, str>> {
    match key.cast::<PyString>() {
        Ok(text) => Ok(text.to_string_lossy()),
        Err(_) => Ok(Cow::Owned(key.str()?.to_string_lossy().into_owned())),
    }
}

/// The position of each key, by the key. Hashes and compares keys, which can run any code.
pub(super) fn positions_of<'py>(
    py: Python<'py>,
    keys: &[Py<PyAny>],
) -> PyResult<Bound<'py, PyDict>> {
    let positions = PyDict::new(py);
    let mut numbered = keys.iter().enumerate();
    numbered.try_for_each(|(position, key)| positions.set_item(key, position))?;
    Ok(positions)
}

/// Whether a class of tuples or lists has names for its entries, as namedtuples and the struct sequences of C have.
pub(crate) fn has_names(class: &Bound<'_, PyType>) -> PyResult<bool> {
    Ok(class.hasattr("_fields")? || class.hasattr("n_sequence_fields")?)
}

/// The names in the `_fields` of a tuple's or list's class, more or fewer than its entries; None if it has no `_fields`.
pub(crate) fn names_of(class: &Bound<'_, PyType>) -> PyResult<Option<Vec<String>>> {
    let names = |fields: Bound<'_, PyAny>| entries(&fields, |field| field.extract());
    class.getattr_opt("_fields")?.map(names).transpose()
}
