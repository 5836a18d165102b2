//! The leaves of samples that are trees, a column for each.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyType};

use crate::ground::errors::{class_name, not_array_like, ErrorSubject};
use crate::ground::iterables::{is_list_or_tuple, is_text};
use crate::ground::reserve::{out_of_memory, try_vec};
use crate::import::importer::{Importer, Reading};
use crate::import::rows::is_of_numbers;
use crate::samples::imported::Imported;
use crate::trees::container::{has_names, ColumnPlace};
use crate::trees::node_types::{flattener_of, in_place_of};

/// The kind of a leaf that all samples share.
pub(crate) enum Content {
    Tensors,
    /// Strings and bytes.
    Texts,
    /// Lists and tuples of Python numbers: one leaf or as many as numbers, as the spec of a batch says.
    Numbers,
    /// Objects of a class whose children are those of a whole batch, such as graphs.
    Objects(Py<PyType>),
}

/// A leaf of every sample.
#[derive(Clone)]
pub(crate) enum LeafColumn {
    Tensors(Arc<Imported>),
    /// The objects themselves, which `collate` reads.
    Objects(Arc<Vec<Py<PyAny>>>),
}

/// Whether a column begins with a str or bytes, and so is of these; false without samples.
///
/// # Errors
/// TypeError for a sample that is none among them.
pub(crate) fn are_texts(samples: &[Bound<'_, PyAny>], place: ColumnPlace<'_>) -> PyResult<bool> {
    if !samples.first().is_some_and(is_text) {
        return Ok(false);
    }
    match samples.iter().position(|sample| !is_text(sample)) {
        Some(index) => place.uneven(index, &class_name(&samples[0].get_type())?, &samples[index]),
        None => Ok(true),
    }
}

/// Whether all samples of a column are lists or tuples of Python numbers; true for empty lists, and
/// without samples.
fn are_numbers(samples: &[Bound<'_, PyAny>]) -> PyResult<bool> {
    for sample in samples {
        if !is_list_or_tuple(sample) || !is_of_numbers(sample, false)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a column, of at least one sample, begins with a list of Python numbers and has others than lists and tuples, such as
/// arrays: its lists are rows.
pub(crate) fn are_rows(samples: &[Bound<'_, PyAny>]) -> PyResult<bool> {
    let is_one = |sample: &Bound<'_, PyAny>| is_list_or_tuple(sample);
    Ok(is_one(&samples[0])
        && is_of_numbers(&samples[0], false)?
        && !samples.iter().all(is_one)
        && !has_names(&samples[0].get_type())?)
}

/// Reads a column of array-likes, of at least one, by `import`. TypeError for None; where `import` refuses a sample, the first
/// one may get an error that says what to give in its place.
pub(crate) fn import_leaf<'py, T>(
    samples: Vec<Bound<'py, PyAny>>,
    place: ColumnPlace<'_>,
    import: impl FnOnce(Vec<Bound<'py, PyAny>>) -> PyResult<T>,
) -> PyResult<T> {
    let (first, path) = (samples[0].clone(), place.path);
    if let Some(index) = samples.iter().position(|sample| sample.is_none()) {
        return not_array_like(ErrorSubject::Sample(place.start() + index), path, &samples[index]);
    }
    import(samples).map_err(|error| match place.added_to {
        None => in_place_of(error, &first, path).unwrap_or_else(|e| e),
        Some(_) => error,
    })
}

impl Content {
    /// The kind of a column, of at least one sample, that has no containers: texts, numbers, or
    /// else tensors, which are not looked at. TypeError for texts and others mixed.
    pub fn from_samples(samples: &[Bound<'_, PyAny>], place: ColumnPlace<'_>) -> PyResult<Content> {
        if are_texts(samples, place)? {
            return Ok(Content::Texts);
        }
        match flattener_of(&samples[0], false)?.is_none() && are_numbers(samples)? {
            true => Ok(Content::Numbers),
            false => Ok(Content::Tensors),
        }
    }

    /// The TypeError of the first sample that is no such leaf. Array-likes are not looked at here.
    pub fn check(&self, samples: &[Bound<'_, PyAny>], place: ColumnPlace<'_>) -> PyResult<()> {
        for (index, sample) in samples.iter().enumerate() {
            let expected = match self {
                Content::Texts if !is_text(sample) => "str or bytes".to_owned(),
                Content::Numbers if !are_numbers(std::slice::from_ref(sample))? => {
                    "a list of Python numbers".to_owned()
                }
                Content::Objects(class) if !sample.get_type().is(class.bind(sample.py())) => {
                    class_name(class.bind(sample.py()))?
                }
                _ => continue,
            };
            return place.uneven(index, &expected, sample);
        }
        Ok(())
    }

    /// Whether both are of one kind, and objects of one class.
    pub fn is_like(&self, py: Python<'_>, other: &Content) -> bool {
        match (self, other) {
            (Content::Objects(class), Content::Objects(other)) => class.bind(py).is(other.bind(py)),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl LeafColumn {
    /// Reads a leaf of every sample, of at least one, of a new list.
    pub fn read(
        samples: Vec<Bound<'_, PyAny>>,
        place: ColumnPlace<'_>,
        content: &Content,
    ) -> PyResult<LeafColumn> {
        if !matches!(content, Content::Tensors) {
            return LeafColumn::from_objects(samples);
        }
        let (path, start) = (place.path, place.start());
        let py = samples[0].py();
        let reading = Reading { path, ..Reading::OWNED };
        let import = |samples: Vec<_>| Imported::from_objects(py, samples, start, reading);
        let (imported, _) = import_leaf(samples, place, import)?;
        Ok(LeafColumn::Tensors(Arc::new(imported)))
    }

    /// Reads this leaf of one further sample as a column of its own.
    pub fn read_one(
        &self,
        sample: Vec<Bound<'_, PyAny>>,
        place: ColumnPlace<'_>,
    ) -> PyResult<LeafColumn> {
        let LeafColumn::Tensors(imported) = self else { return LeafColumn::from_objects(sample) };
        let importer =
            Importer::new(sample[0].py(), Reading { path: place.path, ..Reading::OWNED });
        let read = |sample| imported.read_more(importer, sample, place.start());
        Ok(LeafColumn::Tensors(Arc::new(import_leaf(sample, place, read)?)))
    }

    /// A column of objects as they are, lists in a copy.
    pub fn from_objects(samples: Vec<Bound<'_, PyAny>>) -> PyResult<LeafColumn> {
        let mut objects = try_vec(samples.len())?;
        for sample in samples {
            objects.push(match sample.cast_exact::<PyList>() {
                // Later changes of the list do not reach the samples.
                Ok(list) => list.as_sequence().to_list()?.into_any().unbind(),
                Err(_) => sample.unbind(),
            });
        }
        Ok(LeafColumn::Objects(Arc::new(objects)))
    }

    /// The leaves of the samples at these positions. The caller has found that they are there, and none is negative.
    pub fn taken(&self, py: Python<'_>, positions: &[i64]) -> PyResult<LeafColumn> {
        match self {
            LeafColumn::Tensors(imported) => {
                Ok(LeafColumn::Tensors(Arc::new(imported.taken(py, positions)?)))
            }
            LeafColumn::Objects(objects) => {
                let mut taken = try_vec(positions.len())?;
                taken.extend(
                    positions.iter().map(|&position| objects[position as usize].clone_ref(py)),
                );
                Ok(LeafColumn::Objects(Arc::new(taken)))
            }
        }
    }

    /// Takes a copy of the leaves with new references, if another list has them.
    pub fn unshare(&mut self, py: Python<'_>) -> PyResult<()> {
        match self {
            LeafColumn::Tensors(imported) => Imported::make_mut(imported, py).map(drop),
            LeafColumn::Objects(objects) => own_objects(py, objects, 0).map(drop),
        }
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        match self {
            LeafColumn::Tensors(imported) => imported.list.len(),
            LeafColumn::Objects(objects) => objects.len(),
        }
    }

    /// Adds the leaves of other samples; on an error none. TypeError for a column of the other kind.
    pub fn join(&mut self, py: Python<'_>, other: &LeafColumn) -> PyResult<()> {
        match (self, other) {
            (LeafColumn::Tensors(imported), LeafColumn::Tensors(other)) => {
                Imported::make_mut(imported, py)?.join(py, other)
            }
            (LeafColumn::Objects(objects), LeafColumn::Objects(other)) => {
                let objects = own_objects(py, objects, other.len())?;
                objects.extend(other.iter().map(|object| object.clone_ref(py)));
                Ok(())
            }
            _ => Err(PyTypeError::new_err("cannot mix tensors and other objects in one leaf")),
        }
    }

    /// Keeps the first `len` leaves. Does nothing to a column that another list shares.
    pub fn truncate(&mut self, len: usize) {
        match self {
            LeafColumn::Tensors(imported) => {
                Arc::get_mut(imported).into_iter().for_each(|imported| imported.truncate(len));
            }
            LeafColumn::Objects(objects) => {
                Arc::get_mut(objects).into_iter().for_each(|objects| objects.truncate(len));
            }
        }
    }

    /// Puts the first leaf of another column in the place of one; on an error nothing is changed, TypeError for a column of the
    /// other kind. What was there is released here. The caller has found that both are there: objects panic otherwise.
    pub fn replace(&mut self, py: Python<'_>, index: usize, other: &LeafColumn) -> PyResult<()> {
        match (self, other) {
            (LeafColumn::Tensors(imported), LeafColumn::Tensors(other)) => {
                Imported::make_mut(imported, py)?.replace(py, index, other).map(drop)
            }
            (LeafColumn::Objects(objects), LeafColumn::Objects(other)) => {
                own_objects(py, objects, 0)?[index] = other[0].clone_ref(py);
                Ok(())
            }
            _ => Err(PyTypeError::new_err("cannot mix tensors and other objects in one leaf")),
        }
    }
}

/// Objects to be changed, in a copy if they are shared, with capacity for `additional` more.
fn own_objects<'a>(
    py: Python<'_>,
    objects: &'a mut Arc<Vec<Py<PyAny>>>,
    additional: usize,
) -> PyResult<&'a mut Vec<Py<PyAny>>> {
    if Arc::get_mut(objects).is_none() {
        let mut copy = try_vec(objects.len() + additional)?;
        copy.extend(objects.iter().map(|object| object.clone_ref(py)));
        *objects = Arc::new(copy);
    }
    let objects = Arc::get_mut(objects).expect("not shared");
    objects.try_reserve(additional).map_err(out_of_memory)?;
    Ok(objects)
}
