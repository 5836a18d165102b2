//! One node of the trees of all samples, taken apart into its children.

use std::rc::Rc;

use pyo3::exceptions::{PyAttributeError, PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::collate::containers::{check_known, dataclass_fields, open, Container, Opened};
use crate::collate::leaves::Within;
use crate::collate::specs::Specs;
use crate::ground::errors::{at, class_name, in_words};
use crate::ground::iterables::{entries, is_mapping};
use crate::ground::reserve::room_for;
use crate::import::rows::{is_row, row_cure};

/// The same place of every sample, not yet looked at.
pub(super) struct Branch<'py> {
    pub samples: Vec<Bound<'py, PyAny>>,
    pub path: String,
    pub out: Option<Bound<'py, PyAny>>,
    pub depth: usize,
    /// What the class of the container around it says of it.
    pub within: Within<'py>,
}

impl<'py> Branch<'py> {
    pub fn root(samples: Vec<Bound<'py, PyAny>>, out: Option<Bound<'py, PyAny>>) -> Branch<'py> {
        Branch { samples, path: String::new(), out, depth: 0, within: Within::default() }
    }

    fn child(
        &self,
        samples: Vec<Bound<'py, PyAny>>,
        path: String,
        out: Option<Bound<'py, PyAny>>,
    ) -> Branch<'py> {
        Branch { samples, path, out, depth: self.depth + 1, within: Within::default() }
    }

    /// The children of a container that `windrow._nodes` takes apart by its class.
    pub fn opened(
        self,
        opener: &Bound<'py, PyAny>,
        specs: &Specs<'_, 'py>,
        open_branches: &mut Vec<Branch<'py>>,
    ) -> PyResult<Container<'py>> {
        let Branch { samples, path, out, depth, .. } = self;
        let class = samples[0].get_type();
        if let Some(index) = samples.iter().position(|sample| !sample.get_type().is(&class)) {
            return Err(uneven(&path, index, &samples[0], &samples[index]));
        }
        let out = match out {
            Some(out) if out.get_type().is(&class) => {
                open(opener, vec![out], &path, specs.sep())?.children.pop()
            }
            out => out,
        };
        let Opened { children, close, forms, tensors } = open(opener, samples, &path, specs.sep())?;
        let (Some(first), tensors) = (children.first().cloned(), tensors.map(Rc::from)) else {
            return Err(PyTypeError::new_err(format!("an empty column{}", at(&path))));
        };
        let first_child = open_branches.len();
        let dicts = Branch { samples: children, path, out, depth, within: Within::default() };
        let Container::Mapping(_, keys) = dicts.mapping(&first, specs, open_branches)? else {
            return Err(PyTypeError::new_err("children of a class are a dict"));
        };
        for (key, child) in keys.iter().zip(&mut open_branches[first_child..]) {
            let form = forms.as_ref().map_or(Ok(None), |forms| forms.get_item(key))?;
            let form = form.map(|form| form.extract()).transpose()?;
            child.within = Within { tensors: tensors.clone(), form };
        }
        Ok(Container::Node(close, keys))
    }

    /// The values of each key of mappings, all of which have the same keys.
    pub fn mapping(
        &self,
        first: &Bound<'py, PyAny>,
        specs: &Specs<'_, 'py>,
        open: &mut Vec<Branch<'py>>,
    ) -> PyResult<Container<'py>> {
        let Branch { samples, path, out, .. } = self;
        if first.cast_exact::<PyDict>().is_err() {
            check_known(&first.get_type(), path, true)?;
        }
        let keys = entries(first, Ok)?;
        let mut columns = Vec::new();
        for _ in &keys {
            columns.push(room_for(samples.len())?);
        }
        // Sample by sample: a mapping is asked for all its items while it is in a cache.
        for (index, sample) in samples.iter().enumerate() {
            // Plain dicts are asked directly: a lookup by the protocol costs twice as much.
            let dict = sample.cast_exact::<PyDict>().ok();
            if dict.is_none() && !is_mapping(sample)? {
                return Err(uneven(path, index, first, sample));
            }
            if dict.map_or_else(|| sample.len(), |dict| Ok(dict.len()))? != keys.len() {
                self.check_no_other(first, index, specs)?;
            }
            for (key, column) in keys.iter().zip(&mut columns) {
                let item = match dict {
                    Some(dict) => dict.get_item(key)?,
                    None => match sample.get_item(key) {
                        Err(error) if error.is_instance_of::<PyKeyError>(first.py()) => None,
                        item => Some(item?),
                    },
                };
                match item {
                    Some(item) => column.push(item),
                    None => {
                        return Err(self.uneven_key(index, key, "the key is missing", specs)?);
                    }
                }
            }
        }
        for (key, samples) in keys.iter().zip(columns) {
            let path = specs.join(path, key)?;
            let out = child_of(out.as_ref(), &path, |out| out.get_item(key))?;
            open.push(self.child(samples, path, out));
        }
        check_keys(out.as_ref(), path, &keys, first, specs)?;
        Ok(Container::Mapping(first.clone(), keys))
    }

    /// Refuses a key that the first sample does not have.
    fn check_no_other(
        &self,
        first: &Bound<'py, PyAny>,
        index: usize,
        specs: &Specs<'_, 'py>,
    ) -> PyResult<()> {
        for key in entries(&self.samples[index], Ok)? {
            if !first.contains(&key)? {
                return Err(self.uneven_key(index, &key, "a key that sample 0 has not", specs)?);
            }
        }
        Ok(())
    }

    /// A key that not every sample has.
    fn uneven_key(
        &self,
        index: usize,
        key: &Bound<'py, PyAny>,
        what: &str,
        specs: &Specs<'_, 'py>,
    ) -> PyResult<PyErr> {
        Ok(PyKeyError::new_err(format!(
            "sample {index}{}: {what}; {} of {} samples have it",
            at(&specs.join(&self.path, key)?),
            count_with(&self.samples, key)?,
            self.samples.len()
        )))
    }

    /// The items of lists, tuples and namedtuples of one length.
    pub fn sequence(
        &self,
        first: &Bound<'py, PyAny>,
        specs: &Specs<'_, 'py>,
        open: &mut Vec<Branch<'py>>,
    ) -> PyResult<Container<'py>> {
        let (class, len) = (first.get_type(), first.len()?);
        let Branch { samples, path, out, .. } = self;
        let names = |fields: Bound<'py, PyAny>| entries(&fields, |field| field.extract());
        let names: Option<Vec<String>> = class.getattr_opt("_fields")?.map(names).transpose()?;
        for (index, sample) in samples.iter().enumerate() {
            if !is_list_or_tuple(sample) {
                return Err(uneven(path, index, first, sample));
            }
            if sample.len()? != len {
                let cure = if is_row(first)? { row_cure(path) } else { String::new() };
                return Err(PyValueError::new_err(format!(
                    "sample {index}{}: expected {len} entries, got {}{cure}",
                    at(path),
                    sample.len()?
                )));
            }
        }
        if let Some(out) = out.as_ref().filter(|out| is_list_or_tuple(out)) {
            let got = out.len()?;
            if got > len {
                let text = format!("out{}: expected {len} entries, got {got}", at(path));
                return Err(PyValueError::new_err(text));
            }
        }
        for position in 0..len {
            let name = names.as_ref().and_then(|names| names.get(position).cloned());
            let name = name.unwrap_or_else(|| position.to_string());
            let mut column = room_for(samples.len())?;
            for sample in samples {
                column.push(sample.get_item(position)?);
            }
            let path = specs.join_name(path, &name);
            let out = child_of(out.as_ref(), &path, |out| out.get_item(position))?;
            open.push(self.child(column, path, out));
        }
        Ok(match names {
            Some(_) => Container::Named(class, len),
            None => Container::Sequence(class, len),
        })
    }

    /// The fields of objects of one dataclass. None: the class is no dataclass.
    pub fn dataclass(
        &self,
        first: &Bound<'py, PyAny>,
        specs: &Specs<'_, 'py>,
        open: &mut Vec<Branch<'py>>,
    ) -> PyResult<Option<Container<'py>>> {
        let (class, Branch { samples, path, out, .. }) = (first.get_type(), self);
        let Some(fields) = dataclass_fields(&class)? else { return Ok(None) };
        check_known(&class, path, false)?;
        for field in &fields {
            let (name, path) = (field.name.as_str(), specs.join_name(path, &field.name));
            let mut column = room_for(samples.len())?;
            for (index, sample) in samples.iter().enumerate() {
                if !sample.get_type().is(&class) {
                    return Err(uneven(&self.path, index, first, sample));
                }
                column.push(sample.getattr_opt(name)?.ok_or_else(|| {
                    let text = format!("sample {index}{}: the field is not set", at(&path));
                    PyAttributeError::new_err(text)
                })?);
            }
            let out = child_of(out.as_ref(), &path, |out| out.getattr(name))?;
            open.push(self.child(column, path, out));
        }
        Ok(Some(Container::Dataclass(class, fields)))
    }
}

/// Refuses a key of a tree of outputs that the samples have not.
pub(super) fn check_keys<'py>(
    out: Option<&Bound<'py, PyAny>>,
    path: &str,
    keys: &[Bound<'py, PyAny>],
    first: &Bound<'py, PyAny>,
    specs: &Specs<'_, 'py>,
) -> PyResult<()> {
    let Some(out) = out else { return Ok(()) };
    if !is_mapping(out)? || out.len()? == keys.len() {
        return Ok(());
    }
    for key in entries(out, Ok)? {
        if !first.contains(&key)? {
            let path = specs.join(path, &key)?;
            let text = format!("out{}: the samples have no such key", at(&path));
            return Err(PyKeyError::new_err(text));
        }
    }
    Ok(())
}

pub(super) fn is_list_or_tuple(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyList>()
}

/// The entry of a tree of outputs for the node at `path`.
pub(super) fn child_of<'py>(
    out: Option<&Bound<'py, PyAny>>,
    path: &str,
    find: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(out) = out else { return Ok(None) };
    find(out).map(Some).map_err(|error| {
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
    })
}

/// The error of a sample of another class than the first's.
pub(super) fn uneven(
    path: &str,
    index: usize,
    first: &Bound<'_, PyAny>,
    other: &Bound<'_, PyAny>,
) -> PyErr {
    match (class_name(&first.get_type()), class_name(&other.get_type())) {
        (Ok(expected), Ok(got)) => PyTypeError::new_err(format!(
            "sample {index}{}: expected {expected}, got {got}",
            at(path)
        )),
        (Err(error), _) | (_, Err(error)) => error,
    }
}

fn count_with(samples: &[Bound<'_, PyAny>], key: &Bound<'_, PyAny>) -> PyResult<usize> {
    samples.iter().try_fold(0, |count, sample| Ok(count + usize::from(sample.contains(key)?)))
}
