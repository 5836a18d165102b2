//! [`Container`]: a node of a tree without its children; columns of containers are taken apart into columns of children.

use pyo3::exceptions::{PyAttributeError, PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyType};

use crate::ground::errors::{at, class_name, in_words};
use crate::ground::iterables::{entries, is_list_or_tuple, is_mapping, list_of};
use crate::ground::reserve::{push_to, room_for};
use crate::import::rows::{is_row, row_cure};
use crate::trees::containers::{
    check_known, dataclass_fields, dataclass_of, mapping_like, open, opener_of, Field,
};

/// A container without its children.
pub(crate) struct Container {
    class: Py<PyType>,
    kind: Kind,
}

enum Kind {
    /// The keys, and of another class than dict the first sample's mapping.
    Mapping(Vec<Py<PyAny>>, Option<Py<PyAny>>),
    /// A list or tuple type, called with one iterable of so many; whether they began with a number.
    Sequence(usize, bool),
    /// A namedtuple type, called with so many fields in order; their names, which may be more or fewer.
    Named(Vec<String>, usize),
    Dataclass(Vec<Field>),
    Node(Node),
}

/// An object of a class that `windrow._nodes` knows.
struct Node {
    opener: Py<PyAny>,
    /// Makes an object of a dict of its children.
    close: Py<PyAny>,
    /// Takes further samples apart as the first ones, if that does not depend on all samples of a batch.
    again: Option<Py<PyAny>>,
    names: Vec<Py<PyAny>>,
}

/// Where a column of samples is.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub path: &'a str,
    pub sep: &'a str,
    /// They are added to a list that has so many.
    pub added_to: Option<usize>,
}

impl Place<'_> {
    /// The number of the sample that is first in the column.
    pub fn start(&self) -> usize {
        self.added_to.unwrap_or(0)
    }

    pub fn join(&self, name: &str) -> String {
        match self.path {
            "" => name.to_owned(),
            path => format!("{path}{}{name}", self.sep),
        }
    }

    pub fn uneven(&self, index: usize, expected: &str, other: &Bound<'_, PyAny>) -> PyErr {
        match class_name(&other.get_type()) {
            Ok(got) => {
                let (index, at) = (self.start() + index, at(self.path));
                PyTypeError::new_err(format!("sample {index}{at}: expected {expected}, got {got}"))
            }
            Err(error) => error,
        }
    }
}

/// A column of containers taken apart.
pub(crate) struct Apart<'py> {
    pub container: Container,
    /// For each child that of every sample.
    pub columns: Vec<Vec<Bound<'py, PyAny>>>,
    /// Form and arguments of children that are not stacked, by name.
    pub forms: Option<Bound<'py, PyDict>>,
    /// The class whose leaves are all torch tensors.
    pub tensors: Option<String>,
}

/// Takes a column apart if its first sample is a container. `is_leaf`: a list or tuple is none.
pub(crate) fn apart<'py>(
    samples: &[Bound<'py, PyAny>],
    place: Place<'_>,
    is_leaf: bool,
) -> PyResult<Option<Apart<'py>>> {
    let (first, class) = (&samples[0], samples[0].get_type());
    let kind = if let Some(opener) = opener_of(first, false)? {
        return open_all(opener, samples, place).map(Some);
    } else if is_mapping(first)? {
        let is_plain = first.cast_exact::<PyDict>().is_ok();
        if !is_plain {
            check_known(&class, place.path, true)?;
        }
        let keys = entries(first, |key| Ok(key.unbind()))?;
        Kind::Mapping(keys, (!is_plain).then(|| first.clone().unbind()))
    } else if is_list_or_tuple(first) && !is_leaf {
        let names = |fields: Bound<'py, PyAny>| entries(&fields, |field| field.extract());
        match class.getattr_opt("_fields")?.map(names).transpose()? {
            Some(names) => Kind::Named(names, first.len()?),
            None => Kind::Sequence(first.len()?, is_row(first)?),
        }
    } else if let Some(fields) = dataclass_fields(&class)? {
        check_known(&class, place.path, false)?;
        Kind::Dataclass(fields)
    } else if let Some(opener) = opener_of(first, true)? {
        return open_all(opener, samples, place).map(Some);
    } else {
        return Ok(None);
    };
    let container = Container { class: class.unbind(), kind };
    let columns = container.columns(samples, place)?;
    Ok(Some(Apart { container, columns, forms: None, tensors: None }))
}

/// Takes a column of objects apart by what knows their class.
fn open_all<'py>(
    opener: Bound<'py, PyAny>,
    samples: &[Bound<'py, PyAny>],
    place: Place<'_>,
) -> PyResult<Apart<'py>> {
    let class = samples[0].get_type();
    check_class(samples, &class, place)?;
    let opened = open(&opener, samples.to_vec(), place.path, place.sep)?;
    let Some(first) = opened.children.first() else {
        return Err(PyTypeError::new_err(format!("an empty column{}", at(place.path))));
    };
    let names = entries(first, |name| Ok(name.unbind()))?;
    let columns = columns_of(&class, &names, &opened.children, place)?;
    let (opener, close) = (opener.unbind(), opened.close.unbind());
    let again = opened.again.map(Bound::unbind);
    let kind = Kind::Node(Node { opener, close, again, names });
    let (forms, tensors) = (opened.forms, opened.tensors);
    Ok(Apart { container: Container { class: class.unbind(), kind }, columns, forms, tensors })
}

fn check_class(
    samples: &[Bound<'_, PyAny>],
    class: &Bound<'_, PyType>,
    place: Place<'_>,
) -> PyResult<()> {
    match samples.iter().position(|sample| !sample.get_type().is(class)) {
        Some(index) => Err(place.uneven(index, &class_name(class)?, &samples[index])),
        None => Ok(()),
    }
}

impl Container {
    /// The number of its children.
    pub fn len(&self) -> usize {
        match &self.kind {
            Kind::Mapping(keys, _) | Kind::Node(Node { names: keys, .. }) => keys.len(),
            Kind::Sequence(len, _) | Kind::Named(_, len) => *len,
            Kind::Dataclass(fields) => fields.len(),
        }
    }

    /// A dict with these keys, in place of a mapping without children of its own.
    pub fn dict<'py>(py: Python<'py>, keys: Vec<Bound<'py, PyAny>>) -> Container {
        let keys = keys.into_iter().map(Bound::unbind).collect();
        Container { class: py.get_type::<PyDict>().unbind(), kind: Kind::Mapping(keys, None) }
    }

    pub fn class<'py>(&self, py: Python<'py>) -> &Bound<'py, PyType> {
        self.class.bind(py)
    }

    /// Further samples can be taken apart as the first ones were.
    pub fn is_open(&self) -> bool {
        !matches!(&self.kind, Kind::Node(Node { again: None, .. }))
    }

    /// The path of a child.
    pub fn path_of(&self, py: Python<'_>, child: usize, place: Place<'_>) -> PyResult<String> {
        Ok(match &self.kind {
            Kind::Mapping(keys, _) | Kind::Node(Node { names: keys, .. }) => {
                place.join(&keys[child].bind(py).str()?.to_string_lossy())
            }
            Kind::Named(names, _) if child < names.len() => place.join(&names[child]),
            Kind::Sequence(..) | Kind::Named(..) => place.join(&child.to_string()),
            Kind::Dataclass(fields) => place.join(&fields[child].name),
        })
    }

    /// For each child its position among those of another container that is to be like this one.
    pub fn order_in(&self, py: Python<'_>, other: &Container) -> PyResult<Option<Vec<usize>>> {
        if !self.class.bind(py).is(other.class.bind(py)) || self.len() != other.len() {
            return Ok(None);
        }
        let mut order = room_for(self.len())?;
        for child in 0..self.len() {
            let mut its = Some(child);
            if let (Some(own), Some(keys)) = (self.key(py, child), other.keys()) {
                its = position_of(keys, own)?;
            }
            let Some(its) = its else { return Ok(None) };
            order.push(its);
        }
        Ok(Some(order))
    }

    fn keys(&self) -> Option<&[Py<PyAny>]> {
        match &self.kind {
            Kind::Mapping(keys, _) | Kind::Node(Node { names: keys, .. }) => Some(keys),
            _ => None,
        }
    }

    /// The name of a child in a dict of a class's children.
    pub fn key<'a, 'py>(&'a self, py: Python<'py>, child: usize) -> Option<&'a Bound<'py, PyAny>> {
        self.keys()?.get(child).map(|key| key.bind(py))
    }

    /// Takes samples apart that are to be of this class and to have these children: for each child that of every sample.
    ///
    /// # Errors
    /// Another structure, with sample and path.
    pub fn columns<'py>(
        &self,
        samples: &[Bound<'py, PyAny>],
        place: Place<'_>,
    ) -> PyResult<Vec<Vec<Bound<'py, PyAny>>>> {
        let Some(py) = samples.first().map(|sample| sample.py()) else {
            return Ok(self.empty_columns());
        };
        let class = self.class.bind(py);
        match &self.kind {
            Kind::Mapping(keys, _) => columns_of(class, keys, samples, place),
            Kind::Sequence(..) | Kind::Named(..) => self.columns_of_sequences(samples, place),
            Kind::Dataclass(fields) => {
                check_class(samples, class, place)?;
                let mut columns = self.room_for_columns(samples.len())?;
                for (Field { name, .. }, column) in fields.iter().zip(&mut columns) {
                    for (index, sample) in samples.iter().enumerate() {
                        column.push(sample.getattr_opt(name.as_str())?.ok_or_else(|| {
                            let (index, at) = (place.start() + index, at(&place.join(name)));
                            let text = format!("sample {index}{at}: the field is not set");
                            PyAttributeError::new_err(text)
                        })?);
                    }
                }
                Ok(columns)
            }
            Kind::Node(Node { again, names, .. }) => {
                check_class(samples, class, place)?;
                let Some(again) = again else {
                    let text =
                        format!("objects of {} are taken apart all at once", class_name(class)?);
                    return Err(PyTypeError::new_err(text));
                };
                let list = list_of(py, samples.iter().cloned())?;
                let children: Vec<_> = again.bind(py).call1((list, place.start()))?.extract()?;
                columns_of(class, names, &children, place)
            }
        }
    }

    fn empty_columns<'py>(&self) -> Vec<Vec<Bound<'py, PyAny>>> {
        (0..self.len()).map(|_| Vec::new()).collect()
    }

    fn room_for_columns<'py>(&self, count: usize) -> PyResult<Vec<Vec<Bound<'py, PyAny>>>> {
        (0..self.len()).map(|_| room_for(count)).collect()
    }

    fn columns_of_sequences<'py>(
        &self,
        samples: &[Bound<'py, PyAny>],
        place: Place<'_>,
    ) -> PyResult<Vec<Vec<Bound<'py, PyAny>>>> {
        let (len, path) = (self.len(), place.path);
        for (index, sample) in samples.iter().enumerate() {
            if !is_list_or_tuple(sample) {
                let class = self.class.bind(sample.py());
                return Err(place.uneven(index, &class_name(class)?, sample));
            }
            let (index, got) = (place.start() + index, sample.len()?);
            if got != len {
                let is_row = matches!(self.kind, Kind::Sequence(_, true));
                let cure = if is_row { row_cure(path) } else { String::new() };
                let text =
                    format!("sample {index}{}: expected {len} entries, got {got}{cure}", at(path));
                return Err(PyValueError::new_err(text));
            }
        }
        // One after the other: a list may have fewer entries than it says.
        let mut columns = Vec::new();
        for position in 0..len {
            let mut column = room_for(samples.len())?;
            for sample in samples {
                column.push(sample.get_item(position)?);
            }
            push_to(&mut columns, column)?;
        }
        Ok(columns)
    }

    /// The entries of a tree of outputs for the children.
    ///
    /// # Errors
    /// An entry that is missing, or that the samples have not.
    pub fn outputs<'py>(
        &self,
        out: Option<Bound<'py, PyAny>>,
        place: Place<'_>,
    ) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let Some(mut out) = out else { return Ok((0..self.len()).map(|_| None).collect()) };
        let (py, len) = (out.py(), self.len());
        match &self.kind {
            Kind::Node(Node { opener, .. }) if out.get_type().is(self.class.bind(py)) => {
                let opened = open(opener.bind(py), vec![out.clone()], place.path, place.sep)?;
                out = opened.children.into_iter().next().unwrap_or(out);
            }
            Kind::Sequence(..) | Kind::Named(..) if is_list_or_tuple(&out) => {
                let got = out.len()?;
                if got > len {
                    let text = format!("out{}: expected {len} entries, got {got}", at(place.path));
                    return Err(PyValueError::new_err(text));
                }
            }
            _ => {}
        }
        let mut outputs = room_for(len)?;
        for child in 0..len {
            let found = match &self.kind {
                Kind::Mapping(keys, _) | Kind::Node(Node { names: keys, .. }) => {
                    out.get_item(keys[child].bind(py))
                }
                Kind::Sequence(..) | Kind::Named(..) => out.get_item(child),
                Kind::Dataclass(fields) => out.getattr(fields[child].name.as_str()),
            };
            let found =
                found.or_else(|error| Err(no_entry(&out, &self.path_of(py, child, place)?, error)));
            outputs.push(Some(found?));
        }
        if let Kind::Mapping(keys, _) | Kind::Node(Node { names: keys, .. }) = &self.kind {
            check_keys(&out, keys, place)?;
        }
        Ok(outputs)
    }

    /// One of the same type around these.
    pub fn with<'py>(
        &self,
        py: Python<'py>,
        children: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let class = self.class.bind(py);
        match &self.kind {
            Kind::Mapping(keys, first) => {
                let dict = dict_of(py, keys, children)?;
                first
                    .as_ref()
                    .map_or(Ok(dict.clone().into_any()), |first| mapping_like(first.bind(py), dict))
            }
            Kind::Sequence(..) => {
                let list = list_of(py, children)?;
                match class.is(py.get_type::<PyList>()) {
                    true => Ok(list.into_any()),
                    false => class.call1((list,)),
                }
            }
            Kind::Named(..) => class.call1(list_of(py, children)?.as_sequence().to_tuple()?),
            Kind::Dataclass(fields) => dataclass_of(class, fields, children),
            Kind::Node(Node { close, names, .. }) => {
                close.bind(py).call1((dict_of(py, names, children)?,))
            }
        }
    }
}

fn dict_of<'py>(
    py: Python<'py>,
    keys: &[Py<PyAny>],
    values: Vec<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (key, value) in keys.iter().zip(values) {
        dict.set_item(key, value)?;
    }
    Ok(dict)
}

fn position_of(keys: &[Py<PyAny>], key: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    for (position, own) in keys.iter().enumerate() {
        if own.bind(key.py()).eq(key)? {
            return Ok(Some(position));
        }
    }
    Ok(None)
}

/// The values of mappings for each of these keys, which are all that they have.
fn columns_of<'py>(
    class: &Bound<'py, PyType>,
    keys: &[Py<PyAny>],
    samples: &[Bound<'py, PyAny>],
    place: Place<'_>,
) -> PyResult<Vec<Vec<Bound<'py, PyAny>>>> {
    let mut columns = Vec::new();
    for _ in keys {
        columns.push(room_for(samples.len())?);
    }
    // Sample by sample: a mapping is asked for all its items while it is in a cache.
    for (index, sample) in samples.iter().enumerate() {
        let py = sample.py();
        // Plain dicts are asked directly: a lookup by the protocol costs twice as much.
        let dict = sample.cast_exact::<PyDict>().ok();
        if dict.is_none() && !is_mapping(sample)? {
            return Err(place.uneven(index, &class_name(class)?, sample));
        }
        if dict.map_or_else(|| sample.len(), |dict| Ok(dict.len()))? != keys.len() {
            for key in entries(sample, Ok)? {
                if position_of(keys, &key)?.is_none() {
                    let what = match place.added_to {
                        None => "a key that sample 0 has not",
                        Some(_) => "a key that the samples of the list have not",
                    };
                    return Err(uneven_key(index, &key, what, samples, place)?);
                }
            }
        }
        for (key, column) in keys.iter().zip(&mut columns) {
            let key = key.bind(py);
            let item = match dict {
                Some(dict) => dict.get_item(key)?,
                None => match sample.get_item(key) {
                    Err(error) if error.is_instance_of::<PyKeyError>(py) => None,
                    item => Some(item?),
                },
            };
            match item {
                Some(item) => column.push(item),
                None => {
                    let what = "the key is missing";
                    return Err(uneven_key(index, key, what, samples, place)?);
                }
            }
        }
    }
    Ok(columns)
}

/// A key that not every sample has.
fn uneven_key(
    index: usize,
    key: &Bound<'_, PyAny>,
    what: &str,
    samples: &[Bound<'_, PyAny>],
    place: Place<'_>,
) -> PyResult<PyErr> {
    let at = at(&place.join(&key.str()?.to_string_lossy()));
    let (index, len) = (place.start() + index, samples.len());
    let count = || {
        samples
            .iter()
            .try_fold(0, |count, sample| PyResult::Ok(count + usize::from(sample.contains(key)?)))
    };
    let others = match place.added_to {
        None => format!("; {} of {len} samples have it", count()?),
        Some(_) => String::new(),
    };
    Ok(PyKeyError::new_err(format!("sample {index}{at}: {what}{others}")))
}

/// Refuses a key of a tree of outputs that the samples have not.
fn check_keys(out: &Bound<'_, PyAny>, keys: &[Py<PyAny>], place: Place<'_>) -> PyResult<()> {
    if !is_mapping(out)? || out.len()? == keys.len() {
        return Ok(());
    }
    for key in entries(out, Ok)? {
        if position_of(keys, &key)?.is_none() {
            let path = place.join(&key.str()?.to_string_lossy());
            let text = format!("out{}: the samples have no such key", at(&path));
            return Err(PyKeyError::new_err(text));
        }
    }
    Ok(())
}

/// In place of an error of asking a tree of outputs for the entry at `path`.
fn no_entry(out: &Bound<'_, PyAny>, path: &str, error: PyErr) -> PyErr {
    let py = out.py();
    let class = match class_name(&out.get_type()) {
        Ok(class) => class,
        Err(aborted) => return aborted,
    };
    let text = format!("out{}: there is no such entry in {class}", at(path));
    let is_key = error.is_instance_of::<PyKeyError>(py);
    in_words(py, error, || match is_key {
        true => PyKeyError::new_err(text),
        false => PyTypeError::new_err(text),
    })
}
