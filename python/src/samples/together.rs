//! Columns of a container that are read together, and what keeps them alive: one owner for all.

use std::ops::Range;
use std::sync::Arc;

use pyo3::prelude::*;
use windrow::bindings::RowsAhead;
use windrow::{Engine, SampleList};

use crate::ground::reserve::room_for;
use crate::import::columns::read_columns;
use crate::import::importer::Reading;
use crate::import::routes::{route_of, ImportRoute};
use crate::ownership::owner::ImportOwner;
use crate::ownership::owners::Owners;
use crate::ownership::places::Places;
use crate::samples::imported::Imported;

/// A column of a container that was taken apart.
pub(crate) enum Column<'py> {
    /// Not yet looked at.
    Objects(Vec<Bound<'py, PyAny>>),
    Read(ReadColumn),
}

/// A leaf that was read with others.
pub(crate) struct ReadColumn {
    list: SampleList<'static>,
    owner: Arc<ImportOwner>,
    owners: Owners,
    /// Which of the owner's objects are its samples.
    objects: Range<usize>,
}

/// Reads those of the columns that need no Python code to be read.
pub(crate) fn read_together<'py>(
    engine: &Engine,
    columns: Vec<Vec<Bound<'py, PyAny>>>,
) -> PyResult<Vec<Column<'py>>> {
    let lists = read_columns(engine, &columns)?;
    let (mut owner, mut found) = (ImportOwner::default(), room_for(columns.len())?);
    let num_read = lists.iter().flatten().map(SampleList::len).sum();
    owner.objects = room_for(num_read)?;
    for (objects, list) in columns.into_iter().zip(lists) {
        let Some(list) = list else {
            found.push(Err(objects));
            continue;
        };
        if let ImportRoute::Exchange { api, is_torch: true, .. } = route_of(&objects[0])?.0 {
            owner.producers.torch = Some(api);
        }
        found.push(Ok((list, owner.objects.len()..owner.objects.len() + objects.len())));
        owner.objects.extend(objects.into_iter().map(Bound::unbind));
    }
    let owner = Arc::new(owner);
    let owners = Owners::of_all(Arc::clone(&owner) as _);
    let column = |found| match found {
        Err(objects) => Column::Objects(objects),
        Ok((list, objects)) => {
            let (owner, owners) = (Arc::clone(&owner), owners.clone());
            Column::Read(ReadColumn { list, owner, owners, objects })
        }
    };
    Ok(found.into_iter().map(column).collect())
}

impl ReadColumn {
    /// The samples. Those that are to be kept are read once more, for what is noted of these.
    pub fn import(
        self,
        py: Python<'_>,
        reading: Reading<'_>,
    ) -> PyResult<(Arc<Imported>, Option<RowsAhead>)> {
        let ReadColumn { list, owner, owners, objects } = self;
        let (imported, ahead) = match reading.owned {
            true => {
                let objects = owner.objects[objects].iter().map(|object| object.bind(py).clone());
                Imported::from_objects(py, objects.collect(), 0, reading)?
            }
            false => (Imported { list, owners, places: Places::default() }, None),
        };
        Ok((Arc::new(imported), ahead))
    }
}
