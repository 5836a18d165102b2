//! Reads the list of samples that a caller gives.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use windrow::bindings::PipelinedCopy;

use crate::ground::iterables::{check_list, is_list_or_tuple, tuple_from, tuple_items};
use crate::ground::reserve::try_vec;
use crate::import::importer::{Importer, Reading};
use crate::import::routes::{is_array, is_nested, is_tensor};
use crate::import::tensor::table_of;
use crate::private_layouts::HAS_LOCK;
use crate::samples::arrow::{is_arrow, read, samples_in};
use crate::samples::imported::Imported;
use crate::samples::list::{ListSamples, PySampleList};
use crate::samples::table_trees::trees_of_table;
use crate::samples::trees::{is_tree, Trees};

/// Imports every sample of a list, tuple or other iterable; of a tensor or an Arrow array every row, of a nested tensor every component.
pub(crate) fn import_samples(
    samples: &Bound<'_, PyAny>,
    reading: Reading<'_>,
) -> PyResult<(Imported, Option<PipelinedCopy>)> {
    let py = samples.py();
    let tuple = if let Ok(list) = samples.cast_exact::<PyList>() {
        list.as_sequence().to_tuple()?
    } else if let Ok(tuple) = samples.cast_exact::<PyTuple>() {
        tuple.clone()
    } else {
        if !is_array(samples)? {
            if is_arrow(samples)? {
                return Ok((samples_in(samples, reading.path)?, None));
            }
            check_list(samples)?;
        }
        if is_nested(samples)? {
            tuple_from(&samples.call_method0("unbind")?)?
        } else if is_tensor(samples)? {
            let table = table_of(samples, "samples", Reading { owned: true, ..reading })?;
            return Ok((Imported::from_rows(py, table)?, None));
        } else {
            tuple_from(samples)?
        }
    };
    let mut importer = Importer::new(py, reading);
    importer.import_tuple(&tuple, reading.stacker)?;
    Imported::from_importer(importer)
}

/// As `import_samples`, of a new list, which keeps the samples: trees are taken apart.
pub(crate) fn import_list(samples: &Bound<'_, PyAny>) -> PyResult<ListSamples> {
    if !is_list_or_tuple(samples) {
        if !is_array(samples)? {
            if is_arrow(samples)? {
                return rows_of_arrow(samples);
            }
            check_list(samples)?;
        }
        if is_tensor(samples)? {
            let (imported, _) = import_samples(samples, Reading::OWNED)?;
            return Ok(ListSamples::Leaves(Arc::new(imported)));
        }
    }
    let py = samples.py();
    let objects = match samples.cast_exact::<PyList>() {
        // Nothing changes it meanwhile.
        Ok(list) if HAS_LOCK => {
            let mut objects = try_vec(list.len())?;
            objects.extend(list.iter());
            objects
        }
        _ => tuple_items(&tuple_from(samples)?)?,
    };
    if objects.first().map_or(Ok(false), is_tree)? {
        return Trees::read(objects).map(ListSamples::Trees);
    }
    let (imported, _) = Imported::from_objects(py, objects, 0, Reading::OWNED)?;
    Ok(ListSamples::Leaves(Arc::new(imported)))
}

/// The rows of an Arrow object: those of a table are trees; TypeError for a column of texts.
pub(crate) fn rows_of_arrow(object: &Bound<'_, PyAny>) -> PyResult<ListSamples> {
    let rows = read(object, ".", "")?;
    match rows.is_struct {
        true => trees_of_table(object.py(), rows.columns).map(ListSamples::Trees),
        false => Ok(ListSamples::Leaves(Arc::new(rows.samples(object)?))),
    }
}

/// The samples of a `SampleList`, unless their memory was moved, or of anything else, imported now.
pub(crate) fn samples_of(
    samples: &Bound<'_, PyAny>,
    reading: Reading<'_>,
) -> PyResult<(Arc<Imported>, Option<PipelinedCopy>)> {
    match samples.cast_exact::<PySampleList>() {
        Ok(list) => Ok((list.get().unmoved(samples.py(), reading.path)?, None)),
        Err(_) => {
            let (imported, ahead) = import_samples(samples, reading)?;
            Ok((Arc::new(imported), ahead))
        }
    }
}
