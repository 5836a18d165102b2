//! Columns of a container that are read together, and what keeps them alive: one owner for all, or the caller's objects as long as no
//! Python code runs.

use std::ops::Range;
use std::sync::Arc;

use pyo3::prelude::*;
use windrow::bindings::RowsAhead;
use windrow::{Engine, SampleList};

use crate::ground::reserve::room_for;
use crate::import::columns::read_columns;
use crate::import::importer::Reading;
use crate::import::routes::{route_of, ImportRoute};
use crate::ownership::child_columns::ChildColumns;
use crate::ownership::owner::ImportOwner;
use crate::ownership::owners::Owners;
use crate::ownership::places::Places;
use crate::ownership::producers::Producers;
use crate::samples::imported::Imported;

/// A leaf that was read with others.
pub(crate) struct ReadColumn {
    samples: Arc<Imported>,
    /// Of all samples of the columns; of none while these are borrowed, which then are asked for no views.
    owner: Arc<ImportOwner>,
    /// Which of the owner's objects are its samples.
    objects: Range<usize>,
}

/// A column that was read, or as it is.
pub(crate) type MaybeRead<'py> = Result<ReadColumn, Vec<Bound<'py, PyAny>>>;

/// Columns that were read and are still borrowed.
pub(crate) struct Borrowed<'py> {
    columns: ChildColumns<'py>,
    producers: Producers,
}

impl Borrowed<'_> {
    /// Counts references to all samples: what then keeps them alive.
    pub fn into_owners(self) -> PyResult<Owners> {
        let mut owner = ImportOwner::default();
        owner.producers = self.producers;
        owner.objects = self.columns.into_objects()?;
        Ok(Owners::of_all(Arc::new(owner)))
    }
}

impl ReadColumn {
    fn new(
        list: SampleList<'static>,
        owner: &Arc<ImportOwner>,
        (owners, places): &(Owners, Places),
        objects: Range<usize>,
    ) -> ReadColumn {
        let (owners, places) = (owners.clone(), places.clone());
        let samples = Arc::new(Imported { list, owners, places });
        ReadColumn { samples, owner: Arc::clone(owner), objects }
    }

    /// The samples. Those that are to be kept are read once more, for what is noted of these.
    pub fn import(
        self,
        py: Python<'_>,
        reading: Reading<'_>,
    ) -> PyResult<(Arc<Imported>, Option<RowsAhead>)> {
        let ReadColumn { samples, owner, objects } = self;
        if !reading.owned {
            return Ok((samples, None));
        }
        let objects = owner.objects[objects].iter().map(|object| object.bind(py).clone());
        let (imported, ahead) = Imported::from_objects(py, objects.collect(), 0, reading)?;
        Ok((Arc::new(imported), ahead))
    }
}

/// Reads those of the columns that need no Python code to be read. `may_borrow`: none will run as long as the second result is there,
/// which is, for columns that are borrowed and were all read, in place of owners of the samples.
pub(crate) fn read_together<'py>(
    engine: &Engine,
    mut columns: ChildColumns<'py>,
    may_borrow: bool,
) -> PyResult<(Vec<MaybeRead<'py>>, Option<Borrowed<'py>>)> {
    let lists = read_columns(engine, &mut columns)?;
    let mut owner = ImportOwner::default();
    for (column, list) in lists.iter().enumerate() {
        let Some(first) = columns.first(column).filter(|_| list.is_some()) else { continue };
        if let ImportRoute::Exchange { api, is_torch: true, .. } = route_of(&first)?.0 {
            owner.producers.torch = Some(api);
        }
    }
    if may_borrow && columns.are_borrowed() && lists.iter().all(Option::is_some) {
        let producers = std::mem::take(&mut owner.producers);
        let (owner, kept) = (Arc::new(ImportOwner::default()), Default::default());
        let read = |list| Ok(ReadColumn::new(list, &owner, &kept, 0..0));
        let read = lists.into_iter().flatten().map(read).collect();
        return Ok((read, Some(Borrowed { columns, producers })));
    }
    let (py, num_rows, mut found) = (columns.py(), columns.num_rows(), room_for(lists.len())?);
    owner.objects = room_for(lists.iter().flatten().map(SampleList::len).sum())?;
    let mut objects = columns.into_objects()?.into_iter();
    for list in lists {
        let (start, column) = (owner.objects.len(), objects.by_ref().take(num_rows));
        found.push(match list {
            Some(list) => {
                owner.objects.extend(column);
                Ok((list, start..owner.objects.len()))
            }
            None => {
                let mut own = room_for(num_rows)?;
                own.extend(column.map(|object| object.into_bound(py)));
                Err(own)
            }
        });
    }
    let owner = Arc::new(owner);
    let kept = (Owners::of_all(Arc::clone(&owner) as _), Places::default());
    let column = |found: Result<_, _>| {
        found.map(|(list, objects)| ReadColumn::new(list, &owner, &kept, objects))
    };
    Ok((found.into_iter().map(column).collect(), None))
}
