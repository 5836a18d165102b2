//! Reads the list of samples that a caller gives.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use windrow::bindings::PipelinedCopy;

use crate::ground::iterables::{check_list, tuple_from, tuple_items};
use crate::import::column_reader::objects_of;
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
    match samples_argument(samples)? {
        SamplesArgument::Arrow => Ok((samples_in(samples, reading.path)?, None)),
        SamplesArgument::Table => {
            let table = table_of(samples, "samples", Reading { owned: true, ..reading })?;
            Ok((Imported::from_rows(py, table)?, None))
        }
        SamplesArgument::Samples(tuple) => {
            let mut importer = Importer::new(py, reading);
            importer.import_tuple(&tuple, reading.stacker)?;
            Imported::from_importer(importer)
        }
    }
}

/// An argument in the place of a list of samples.
pub(crate) enum SamplesArgument<'py> {
    /// Each by itself: the entries of a list, a tuple or another iterable, the parts of a nested tensor.
    Samples(Bound<'py, PyTuple>),
    /// One tensor, whose rows are the samples.
    Table,
    /// An Arrow array or table, whose rows are the samples.
    Arrow,
}

/// Finds out what is given as a list of samples; TypeError for a mapping, a sparse matrix, text, what has no items, or a table of
/// columns without the Arrow interface. A table with that interface is `SamplesArgument::Arrow`; a tensor
/// without dims is `SamplesArgument::Table`.
pub(crate) fn samples_argument<'py>(samples: &Bound<'py, PyAny>) -> PyResult<SamplesArgument<'py>> {
    if let Ok(list) = samples.cast_exact::<PyList>() {
        return list.as_sequence().to_tuple().map(SamplesArgument::Samples);
    }
    if let Ok(tuple) = samples.cast_exact::<PyTuple>() {
        return Ok(SamplesArgument::Samples(tuple.clone()));
    }
    if !is_array(samples)? {
        if is_arrow(samples)? {
            return Ok(SamplesArgument::Arrow);
        }
        check_list(samples)?;
    }
    if is_nested(samples)? {
        tuple_from(&samples.call_method0("unbind")?).map(SamplesArgument::Samples)
    } else if is_tensor(samples)? {
        Ok(SamplesArgument::Table)
    } else {
        tuple_from(samples).map(SamplesArgument::Samples)
    }
}

/// Imports samples as `import_samples` does, into a new list, which keeps them alive: trees are taken apart.
pub(crate) fn import_list(samples: &Bound<'_, PyAny>) -> PyResult<ListSamples> {
    let py = samples.py();
    let objects = match samples.cast_exact::<PyList>() {
        // Nothing changes it meanwhile.
        Ok(list) if HAS_LOCK => objects_of(samples, list.len(), |object| object)?,
        _ => match samples_argument(samples)? {
            SamplesArgument::Samples(tuple) => tuple_items(&tuple)?,
            SamplesArgument::Arrow => return rows_of_arrow(samples),
            SamplesArgument::Table => {
                let (imported, _) = import_samples(samples, Reading::OWNED)?;
                return Ok(ListSamples::Leaves(Arc::new(imported)));
            }
        },
    };
    if objects.first().map_or(Ok(false), is_tree)? {
        return Trees::read(objects).map(ListSamples::Trees);
    }
    let (imported, _) = Imported::from_objects(py, objects, 0, Reading::OWNED)?;
    Ok(ListSamples::Leaves(Arc::new(imported)))
}

/// The rows of an Arrow object: those of a table are trees; TypeError for a column of texts by itself.
pub(crate) fn rows_of_arrow(object: &Bound<'_, PyAny>) -> PyResult<ListSamples> {
    let rows = read(object, ".", "")?;
    match rows.is_struct {
        true => trees_of_table(object.py(), rows).map(ListSamples::Trees),
        false => Ok(ListSamples::Leaves(Arc::new(rows.samples(object)?))),
    }
}

/// The samples of a `SampleList`, or of anything else, imported now. LayoutError for a list whose memory was moved, TypeError for
/// one of trees, and the IndexError that its indices on a device have had.
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
