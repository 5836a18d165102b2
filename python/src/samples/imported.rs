//! Samples as they were imported, and what keeps them alive.

use std::sync::Arc;

use pyo3::prelude::*;
use windrow::{Owner, RowsAhead, SampleList, Tensor};

use crate::ground::errors::OrPyErr;
use crate::import::importer::{Importer, Reading};
use crate::ownership::owner::{places_of, producers_of, ImportOwner, ListOwner};
use crate::ownership::owners::Owners;
use crate::ownership::places::Places;

/// Samples and what keeps them alive.
#[derive(Clone, Default)]
pub(crate) struct Imported {
    pub list: SampleList<'static>,
    pub owners: Owners,
    pub places: Places,
}

impl Imported {
    /// The rows of a tensor of our own.
    pub fn rows_of(py: Python<'_>, table: Tensor) -> PyResult<Imported> {
        // SAFETY: the tensor, which holds the owner, is kept below.
        #[allow(unsafe_code)]
        let list = unsafe { SampleList::rows_from_raw_parts(&table) }.or_py_err(py)?;
        Imported::parts_of(table, list)
    }

    /// Samples that are parts of a tensor of our own.
    pub fn parts_of(table: Tensor, list: SampleList<'static>) -> PyResult<Imported> {
        let (producers, places) =
            (producers_of(&table), Places::of_parts(places_of(table.owner()))?);
        let owners = Owners::of_all(Arc::new(ImportOwner::of(table, producers)));
        Ok(Imported { list, owners, places })
    }

    /// A sample of the list as a tensor, which keeps its memory alive.
    pub fn sample(&self, index: usize) -> Tensor {
        let (meta, data) = (self.list.kind(index), self.list.address(index).cast_mut());
        let places = self.places_at(vec![index as i64]);
        let (owners, per_sample) =
            (Arc::clone(self.owners.shared()), self.owners.of_sample(index).cloned());
        let owner: Owner = Arc::new(ListOwner { owners, per_sample, places });
        let (dtype, device, layout) = (meta.dtype, meta.device, meta.layout.clone());
        // SAFETY: the owners keep the memory of every sample of the list alive.
        #[allow(unsafe_code)]
        unsafe {
            Tensor::new_unchecked(owner, data, dtype, device, layout, self.list.is_read_only())
        }
    }

    /// Imports objects gathered from trees.
    pub fn from_objects(
        py: Python<'_>,
        objects: Vec<Bound<'_, PyAny>>,
        reading: Reading<'_>,
    ) -> PyResult<(Imported, Option<RowsAhead>)> {
        let mut importer = Importer::new(py, reading);
        importer.import_objects(objects, reading.stacker)?;
        Ok(Imported::from_importer(importer))
    }

    fn places_at(&self, positions: Vec<i64>) -> Places {
        self.places.take(positions, self.list.len(), self.owners.has_per_sample())
    }

    /// The samples at these positions, of which negative ones count from the end.
    pub fn taken(&self, py: Python<'_>, positions: Vec<i64>) -> PyResult<Imported> {
        let list = self.list.take(positions.iter().copied()).or_py_err(py)?;
        let owners = self.owners.take(&positions, self.list.len())?;
        Ok(Imported { list, owners, places: self.places_at(positions) })
    }

    /// The same samples, to be changed.
    pub fn copied(&self) -> windrow::Result<Imported> {
        let list = self.list.take(0..self.list.len() as i64)?;
        let (owners, places) = (self.owners.clone(), self.places.clone());
        Ok(Imported { list, owners, places })
    }

    pub fn from_importer(importer: Importer<'_>) -> (Imported, Option<RowsAhead>) {
        let owners = Owners::of_all(Arc::new(importer.owner));
        let places = Places::from(importer.places);
        (Imported { list: importer.list, owners, places }, importer.ahead)
    }
}
