//! windrow's rules for containers: all samples have the kind, the keys and the lengths of the first; objects, its class too.

use pyo3::exceptions::{PyAttributeError, PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};
use windrow::Engine;

use crate::ground::errors::{at, class_name, located};
use crate::ground::iterables::{entries, is_list_or_tuple, is_mapping, items_of, list_of, Lookup};
use crate::ground::reserve::{push_to, try_vec};
use crate::import::column_reader::will_be_shared;
use crate::import::rows::{is_row, row_hint};
use crate::ownership::child_columns::ChildColumns;
use crate::trees::container::{
    name_of, names_of, positions_of, ColumnPlace, Container, Maker, NodeType, Registered,
};
use crate::trees::dicts::Dicts;
use crate::trees::node_types::{
    call_flattener, check_known, dataclass_fields, flattener_of, is_builtin, maker_of, Entries,
};

/// A column of containers that was opened.
pub(crate) struct FlattenedColumn<'py> {
    pub container: Container,
    /// A column for each child, with that of every sample.
    pub columns: ChildColumns<'py>,
    /// Form and arguments of children that are not stacked, by name.
    pub forms: Option<Bound<'py, PyDict>>,
    /// The name of the class, if its leaves have to be torch tensors.
    pub tensors: Option<String>,
}

/// Opens a column, of at least one sample, if its first sample is a container, else `None`. `is_leaf`: a list or tuple is no
/// container. `readers`: the engine whose threads read the children next, if any do. Values of dicts are borrowed: the caller
/// keeps the samples.
pub(crate) fn flatten_container<'py>(
    samples: &[Bound<'py, PyAny>],
    place: ColumnPlace<'_>,
    is_leaf: bool,
    readers: Option<&Engine>,
) -> PyResult<Option<FlattenedColumn<'py>>> {
    let (first, class) = (&samples[0], samples[0].get_type());
    let node_type = if let Some(flattener) = flattener_of(first, false)? {
        return flatten_class(flattener, samples, place, readers).map(Some);
    } else if is_mapping(first)? {
        if first.cast_exact::<PyDict>().is_err() {
            check_known(&class, place.path, true)?;
        }
        NodeType::Mapping(entries(first, |key| Ok(key.unbind()))?)
    } else if is_list_or_tuple(first) && is_leaf {
        return Ok(None);
    } else if is_list_or_tuple(first) {
        match names_of(&class)? {
            Some(names) => NodeType::Named(names, first.len()?),
            None => NodeType::Sequence(first.len()?, is_row(first)?),
        }
    } else if let Some(fields) = dataclass_fields(&class)? {
        check_known(&class, place.path, false)?;
        NodeType::Dataclass(fields)
    } else if let Some(flattener) = flattener_of(first, true)? {
        return flatten_class(flattener, samples, place, readers).map(Some);
    } else {
        return Ok(None);
    };
    let is_plain = is_builtin(first);
    let mut container = Container { class: class.unbind(), node_type, maker: None };
    let mut columns = container.columns(first.py(), samples, place, readers)?;
    if !is_plain {
        columns.take_references();
        container.maker = Some(maker_of(first, &container.node_type, place.path)?);
    }
    Ok(Some(FlattenedColumn { container, columns, forms: None, tensors: None }))
}

/// Opens a column of objects of one class, at least one, by the flattener of that class.
fn flatten_class<'py>(
    flattener: Bound<'py, PyAny>,
    samples: &[Bound<'py, PyAny>],
    place: ColumnPlace<'_>,
    readers: Option<&Engine>,
) -> PyResult<FlattenedColumn<'py>> {
    let class = samples[0].get_type();
    check_class(samples, &class, place)?;
    let flattened = call_flattener(&flattener, samples.to_vec(), place.path, place.sep)?;
    let (names, columns) = match flattened.children {
        Entries::Columns(columns) => named_columns(&columns, samples.len())?,
        Entries::Samples(children) => {
            let Some(first) = children.first() else {
                return Err(PyTypeError::new_err(format!("an empty column{}", at(place.path))));
            };
            let names = entries(first, |name| Ok(name.unbind()))?;
            let mut columns = columns_of(&class, &names, &children, place, readers)?;
            columns.retain_all(children);
            (names, columns)
        }
    };
    let flatten_more = flattened.flatten_more.map(Bound::unbind);
    let node_type =
        NodeType::Registered(Registered { flattener: flattener.unbind(), flatten_more, names });
    let maker = Some(Maker { function: flattened.unflatten.unbind(), like: None });
    let container = Container { class: class.unbind(), node_type, maker };
    Ok(FlattenedColumn { container, columns, forms: flattened.forms, tensors: flattened.tensors })
}

/// Names, and for each the children of all samples.
type NamedColumns<'py> = (Vec<Py<PyAny>>, ChildColumns<'py>);

/// The columns of a dict by name; TypeError for one that has not an entry for each sample.
fn named_columns<'py>(
    columns: &Bound<'py, PyDict>,
    num_samples: usize,
) -> PyResult<NamedColumns<'py>> {
    let (mut names, mut values) = (try_vec(columns.len())?, try_vec(columns.len())?);
    for item in columns.items() {
        let (name, column): (Bound<'py, PyAny>, Bound<'py, PyAny>) = item.extract()?;
        let column = items_of(&column)?;
        if column.len() != num_samples {
            let text = format!("a column of {} for {num_samples} samples", column.len());
            return Err(PyTypeError::new_err(text));
        }
        names.push(name.unbind());
        values.push(column);
    }
    Ok((names, ChildColumns::from_columns(columns.py(), values)?))
}

/// TypeError for a sample of another class.
fn check_class(
    samples: &[Bound<'_, PyAny>],
    class: &Bound<'_, PyType>,
    place: ColumnPlace<'_>,
) -> PyResult<()> {
    match samples.iter().position(|sample| !sample.get_type().is(class)) {
        Some(index) => place.uneven(index, &class_name(class)?, &samples[index]),
        None => Ok(()),
    }
}

impl Container {
    /// Flattens samples that must have these children: a column for each child. In place of a list or tuple any list or tuple
    /// will do, in place of a mapping any mapping; other objects must be of this class.
    ///
    /// # Errors
    /// Another structure, with sample and path: TypeError for another class, KeyError for other keys, ValueError for another
    /// number of entries, AttributeError for a field that is not set.
    pub fn columns<'py>(
        &self,
        py: Python<'py>,
        samples: &[Bound<'py, PyAny>],
        place: ColumnPlace<'_>,
        readers: Option<&Engine>,
    ) -> PyResult<ChildColumns<'py>> {
        let class = self.class.bind(py);
        if samples.is_empty() {
            return ChildColumns::with_capacity(py, self.len(), 0);
        }
        match &self.node_type {
            NodeType::Mapping(keys) => columns_of(class, keys, samples, place, readers),
            NodeType::Sequence(..) | NodeType::Named(..) => {
                ChildColumns::from_columns(py, self.columns_of_sequences(samples, place)?)
            }
            NodeType::Dataclass(fields) => {
                check_class(samples, class, place)?;
                let columns = fields.iter().map(|field| column_of(field.bind(py), samples, place));
                ChildColumns::from_columns(py, columns.collect::<PyResult<_>>()?)
            }
            NodeType::Registered(Registered { flatten_more, names, .. }) => {
                check_class(samples, class, place)?;
                let Some(flatten_more) = flatten_more else {
                    let text =
                        format!("objects of {} are taken apart all at once", class_name(class)?);
                    return Err(PyTypeError::new_err(text));
                };
                let list = list_of(py, samples.iter().cloned())?;
                let children: Vec<_> =
                    flatten_more.bind(py).call1((list, place.start()))?.extract()?;
                let mut columns = columns_of(class, names, &children, place, readers)?;
                columns.retain_all(children);
                Ok(columns)
            }
        }
    }

    /// The columns of [`Container::columns`] for a list, tuple or namedtuple.
    fn columns_of_sequences<'py>(
        &self,
        samples: &[Bound<'py, PyAny>],
        place: ColumnPlace<'_>,
    ) -> PyResult<Vec<Vec<Bound<'py, PyAny>>>> {
        let (len, path) = (self.len(), place.path);
        for (index, sample) in samples.iter().enumerate() {
            if !is_list_or_tuple(sample) {
                let class = self.class.bind(sample.py());
                return place.uneven(index, &class_name(class)?, sample);
            }
            let (index, got) = (place.start() + index, sample.len()?);
            if got != len {
                let is_row = matches!(self.node_type, NodeType::Sequence(_, true));
                let hint = if is_row { row_hint(path) } else { String::new() };
                let text =
                    format!("sample {index}{}: expected {len} entries, got {got}{hint}", at(path));
                let error = PyValueError::new_err(text);
                return Err(located(sample.py(), error, Some(index), path));
            }
        }
        // One after the other: a list may have fewer entries than it says.
        let mut columns = Vec::new();
        for position in 0..len {
            let mut column = try_vec(samples.len())?;
            for sample in samples {
                column.push(sample.get_item(position)?);
            }
            push_to(&mut columns, column)?;
        }
        Ok(columns)
    }
}

/// A field of all dataclasses; AttributeError where it is not set.
fn column_of<'py>(
    field: &Bound<'py, PyAny>,
    samples: &[Bound<'py, PyAny>],
    place: ColumnPlace<'_>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let mut column = try_vec(samples.len())?;
    for (index, sample) in samples.iter().enumerate() {
        column.push(sample.getattr_opt(field.cast::<PyString>()?)?.ok_or_else(|| {
            let (index, path) = (place.start() + index, place.join(&field.to_string()));
            let text = format!("sample {index}{}: the field is not set", at(&path));
            located(sample.py(), PyAttributeError::new_err(text), Some(index), &path)
        })?);
    }
    Ok(column)
}

/// The values of mappings, of at least one, for each of these keys, which are all that they have. They are borrowed where the
/// mappings are dicts that were only walked: the caller keeps the samples.
fn columns_of<'py>(
    class: &Bound<'py, PyType>,
    keys: &[Py<PyAny>],
    samples: &[Bound<'py, PyAny>],
    place: ColumnPlace<'_>,
    readers: Option<&Engine>,
) -> PyResult<ChildColumns<'py>> {
    let py = class.py();
    let mut columns = ChildColumns::with_capacity(py, keys.len(), samples.len())?;
    let mut dicts = Dicts::new(py, keys)?;
    let mut index = dicts.walk(&samples[..1], &mut columns)?;
    if let (Some(engine), Some(first)) = (readers, columns.first(0)) {
        if will_be_shared(&first, keys.len() * samples.len()) {
            engine.wake_threads();
        }
    }
    // Sample by sample: a mapping is asked for all its items while it is in a cache.
    loop {
        index += dicts.walk(&samples[index..], &mut columns)?;
        let Some(sample) = samples.get(index) else { return Ok(columns) };
        columns.take_references();
        let dict = dicts.dict(sample)?;
        if dict.is_none() && !is_mapping(sample)? {
            return place.uneven(index, &class_name(class)?, sample);
        }
        if dict.map_or_else(|| sample.len(), |dict| Ok(dict.len()))? != keys.len() {
            check_no_other_key(keys, index, samples, place)?;
        }
        let lookup = dict.is_none().then(|| Lookup::new(sample)).transpose()?;
        for key in keys {
            let key = key.bind(py);
            // A dict is asked directly, which leaves out its `__missing__`; any other mapping for keys that it has.
            let item = match (dict, &lookup) {
                (Some(dict), _) => dict.get_item(key)?,
                (None, Some(lookup)) => lookup.get(key)?,
                _ => None,
            };
            let Some(item) = item else {
                return Err(uneven_key(index, key, "the key is missing", samples, place)?);
            };
            columns.push(item)?;
        }
        index += 1;
    }
}

/// KeyError for a mapping with a key that is none of these; a missing one is not looked for.
fn check_no_other_key(
    keys: &[Py<PyAny>],
    index: usize,
    samples: &[Bound<'_, PyAny>],
    place: ColumnPlace<'_>,
) -> PyResult<()> {
    let known = positions_of(samples[index].py(), keys)?;
    for key in entries(&samples[index], Ok)? {
        if !known.contains(&key)? {
            let what = match place.added_to {
                None => "a key that sample 0 does not have",
                Some(_) => "a key that the samples of the list do not have",
            };
            return Err(uneven_key(index, &key, what, samples, place)?);
        }
    }
    Ok(())
}

/// The KeyError of a key that not every sample has.
pub(super) fn uneven_key(
    index: usize,
    key: &Bound<'_, PyAny>,
    what: &str,
    samples: &[Bound<'_, PyAny>],
    place: ColumnPlace<'_>,
) -> PyResult<PyErr> {
    let path = place.join(&name_of(key)?);
    let (index, len) = (place.start() + index, samples.len());
    let count = || {
        samples.iter().try_fold(0, |count, sample| {
            PyResult::Ok(count + usize::from(Lookup::new(sample)?.has(key)?))
        })
    };
    let others = match place.added_to {
        None => format!("; {} of {len} samples have it", count()?),
        Some(_) => String::new(),
    };
    let error = PyKeyError::new_err(format!("sample {index}{}: {what}{others}", at(&path)));
    Ok(located(key.py(), error, Some(index), &path))
}
