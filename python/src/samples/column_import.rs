//! Columns of a container that are read together, and what keeps them alive: one owner for all, or the caller's objects as long as no
//! Python code runs.

use std::ops::Range;
use std::sync::Arc;

use pyo3::prelude::*;
use windrow::bindings::PipelinedCopy;
use windrow::{Engine, SampleList};

use crate::ground::reserve::try_vec;
use crate::import::column_reader::read_columns;
use crate::import::importer::Reading;
use crate::import::routes::{route_of, ImportRoute};
use crate::ownership::child_columns::ChildColumns;
use crate::ownership::holder::{held_by, Holder};
use crate::ownership::owners::Owners;
use crate::ownership::producers::Producers;
use crate::ownership::storage_watch::StorageWatches;
use crate::samples::imported::Imported;

/// A leaf that was read with others.
pub(crate) struct ImportedColumn {
    samples: Arc<Imported>,
    /// Positions of its samples among the holder's objects; empty while references are borrowed, when views are not allowed.
    objects: Range<usize>,
}

/// A column that was read, or else its objects.
pub(crate) type MaybeImported<'py> = Result<ImportedColumn, Vec<Bound<'py, PyAny>>>;

/// Columns that were read and are still borrowed.
pub(crate) struct Borrowed<'py> {
    columns: ChildColumns<'py>,
    producers: Producers,
}

impl Borrowed<'_> {
    /// Counts references to all samples, which keep them alive from then on.
    pub fn into_owners(self) -> PyResult<Owners> {
        let mut owner = Holder::default();
        owner.producers = self.producers;
        owner.objects = self.columns.into_objects()?;
        Ok(Owners::from_one(Arc::new(owner)))
    }
}

impl ImportedColumn {
    /// A column of samples whose objects are at these positions among the owners.
    fn new(list: SampleList<'static>, owners: &Owners, objects: Range<usize>) -> ImportedColumn {
        let samples = Imported { list, owners: owners.clone(), watches: StorageWatches::default() };
        ImportedColumn { samples: Arc::new(samples), objects }
    }

    /// The samples. With `reading.owned` they are read once more, one by one, for their keepers and watches. Not checked:
    /// borrowed ones would be none then.
    pub fn import(
        self,
        py: Python<'_>,
        reading: Reading<'_>,
    ) -> PyResult<(Arc<Imported>, Option<PipelinedCopy>)> {
        let ImportedColumn { samples, objects } = self;
        if !reading.owned {
            return Ok((samples, None));
        }
        let held = samples.owners.shared().first().map(held_by).unwrap_or_default();
        let objects = held.objects[0].get(objects).unwrap_or_default().iter();
        let objects = objects.map(|object| object.bind(py).clone());
        let (imported, ahead) = Imported::from_objects(py, objects.collect(), 0, reading)?;
        Ok((Arc::new(imported), ahead))
    }
}

/// Reads those of the columns that need no Python code to be read; a result for each column, in order. Samples have an owner,
/// unless there is a second result: with `may_borrow`, where all columns were read and are borrowed, it keeps them, and the
/// caller runs no Python code before it is dropped or made owners.
pub(crate) fn import_columns<'py>(
    engine: &Engine,
    mut columns: ChildColumns<'py>,
    may_borrow: bool,
) -> PyResult<(Vec<MaybeImported<'py>>, Option<Borrowed<'py>>)> {
    let lists = read_columns(engine, &mut columns)?;
    let mut owner = Holder::default();
    for (column, list) in lists.iter().enumerate() {
        let Some(first) = columns.first(column).filter(|_| list.is_some()) else { continue };
        if let ImportRoute::Exchange { api, is_torch: true, .. } = route_of(&first)?.0 {
            owner.producers.torch = Some(api);
        }
    }
    if may_borrow && columns.are_borrowed() && lists.iter().all(Option::is_some) {
        let producers = std::mem::take(&mut owner.producers);
        let owners = Owners::default();
        let read = |list| Ok(ImportedColumn::new(list, &owners, 0..0));
        let read = lists.into_iter().flatten().map(read).collect();
        return Ok((read, Some(Borrowed { columns, producers })));
    }
    let (py, num_rows, mut found) = (columns.py(), columns.num_rows(), try_vec(lists.len())?);
    owner.objects = try_vec(lists.iter().flatten().map(SampleList::len).sum())?;
    let mut objects = columns.into_objects()?.into_iter();
    for list in lists {
        let (start, column) = (owner.objects.len(), objects.by_ref().take(num_rows));
        found.push(match list {
            Some(list) => {
                owner.objects.extend(column);
                Ok((list, start..owner.objects.len()))
            }
            None => {
                let mut unread = try_vec(num_rows)?;
                unread.extend(column.map(|object| object.into_bound(py)));
                Err(unread)
            }
        });
    }
    let owners = Owners::from_one(Arc::new(owner));
    let column = |found: Result<_, _>| {
        found.map(|(list, objects)| ImportedColumn::new(list, &owners, objects))
    };
    Ok((found.into_iter().map(column).collect(), None))
}
