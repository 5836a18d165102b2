//! [`Column`]: what each sample of a list has by itself, such as the object that keeps it.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::ground::reserve::{out_of_memory, push_to, try_vec};

/// An entry of a sample.
pub(crate) trait Entry: Sized {
    /// Whether the garbage collector counts it, so that each column has one of its own.
    const IS_REFERENCE: bool;

    /// The entry of a sample that has none.
    fn none() -> Self;

    /// Whether two entries are one.
    fn is(&self, other: &Self) -> bool;

    /// The same entry for another column, with a reference of its own.
    fn copied(&self, py: Python<'_>) -> Self;

    /// Drops the entries of a column that is gone.
    fn release(entries: Vec<Self>) {
        drop(entries);
    }
}

/// The entries of samples: none if no sample has one, one if all have the same, or one for each.
pub(crate) struct Entries<T: Entry>(pub(super) Vec<T>);

/// The entries of a list; clones share them until one is changed.
pub(crate) struct Column<T: Entry>(pub(super) Option<Arc<Entries<T>>>);

impl<T: Entry> Default for Entries<T> {
    fn default() -> Self {
        Entries(Vec::new())
    }
}

impl<T: Entry> Default for Column<T> {
    fn default() -> Self {
        Column(None)
    }
}

impl<T: Entry> Clone for Column<T> {
    fn clone(&self) -> Self {
        Column(self.0.clone())
    }
}

impl<T: Entry> Drop for Entries<T> {
    fn drop(&mut self) {
        T::release(std::mem::take(&mut self.0));
    }
}

impl<T: Entry> Entries<T> {
    /// Reserves memory for the entries of `count` more samples.
    pub fn reserve(&mut self, count: usize) -> PyResult<()> {
        self.0.try_reserve_exact(count).map_err(out_of_memory)
    }

    /// Adds the entry of the next sample, which is number `index`: as many have been added (not checked).
    #[inline(never)]
    pub fn push(&mut self, py: Python<'_>, index: usize, entry: T) -> PyResult<()> {
        match &self.0[..] {
            [] if entry.is(&T::none()) => return Ok(()),
            [all] if all.is(&entry) => return Ok(()),
            _ => {}
        }
        self.spread(py, index)?;
        push_to(&mut self.0, entry)
    }

    /// Gives each of `len` samples an entry of its own.
    fn spread(&mut self, py: Python<'_>, len: usize) -> PyResult<()> {
        if self.0.len() < len {
            self.0.try_reserve(len + 1 - self.0.len()).map_err(out_of_memory)?;
            let all = self.0.pop().unwrap_or_else(T::none);
            self.0.extend((1..len).map(|_| all.copied(py)));
            self.0.push(all);
        }
        Ok(())
    }
}

impl<T: Entry> From<Entries<T>> for Column<T> {
    fn from(mut entries: Entries<T>) -> Self {
        entries.0.shrink_to_fit();
        let has_any = entries.0.iter().any(|entry| !entry.is(&T::none()));
        Column(has_any.then(|| Arc::new(entries)))
    }
}

impl<T: Entry> Column<T> {
    /// One entry for all samples; the empty column for [`Entry::none`].
    pub fn one(entry: T) -> Column<T> {
        Column::from(Entries(vec![entry]))
    }

    /// No entry if no sample has one, one if all have the same, or one for each.
    pub fn all(&self) -> &[T] {
        self.0.as_ref().map_or(&[], |entries| &entries.0)
    }

    /// Whether no sample has an entry.
    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// The column of one sample.
    pub fn at(&self, py: Python<'_>, index: usize) -> Column<T> {
        match self.all() {
            [] => Column::default(),
            [_] if !T::IS_REFERENCE => self.clone(),
            _ => Column::one(self.entry(py, index)),
        }
    }

    /// A copy of the entry of a sample. The index is not checked: beyond the last sample it is the
    /// entry that all have, or [`Entry::none`].
    pub fn entry(&self, py: Python<'_>, index: usize) -> T {
        let entry = match self.all() {
            [all] => Some(all),
            each => each.get(index),
        };
        entry.map_or_else(T::none, |entry| entry.copied(py))
    }

    /// The same entries in a column of its own.
    pub fn copied(&self, py: Python<'_>) -> PyResult<Column<T>> {
        let mut copy = self.clone();
        if !copy.is_empty() {
            copy.make_mut(py)?;
        }
        Ok(copy)
    }

    /// The entries of the samples at these valid positions, of `len`; negative ones count from the
    /// end. An invalid one panics if each sample has an entry of its own; else it is not looked at.
    pub fn take(&self, py: Python<'_>, positions: &[i64], len: usize) -> PyResult<Column<T>> {
        if positions.is_empty() {
            return Ok(Column::default()); // An empty column lets owners go.
        }
        let each = self.all();
        if each.len() < 2 {
            return Ok(self.at(py, 0));
        }
        let mut taken = try_vec(positions.len())?;
        taken.extend(positions.iter().map(|&position| {
            let end = if position < 0 { len as i64 } else { 0 };
            each[(position + end) as usize].copied(py)
        }));
        Ok(Column::from(Entries(taken)))
    }

    /// The entries to be changed: copied first if another column has them.
    fn make_mut(&mut self, py: Python<'_>) -> PyResult<&mut Entries<T>> {
        if self.0.as_mut().is_none_or(|shared| Arc::get_mut(shared).is_none()) {
            let mut copy = try_vec(self.all().len())?;
            copy.extend(self.all().iter().map(|entry| entry.copied(py)));
            self.0 = Some(Arc::new(Entries(copy)));
        }
        Ok(self.0.as_mut().and_then(Arc::get_mut).expect("just made"))
    }

    /// Appends the entries of `other_len` samples to the entries of `len`. After an error the caller truncates the column.
    pub fn extend(
        &mut self,
        py: Python<'_>,
        len: usize,
        other: &Column<T>,
        other_len: usize,
    ) -> PyResult<()> {
        if len == 0 {
            *self = Column::default(); // The old entry is that of a table without rows.
        }
        match (self.all(), other.all()) {
            ([], []) => return Ok(()),
            ([entry], [all]) if entry.is(all) => return Ok(()),
            ([], [all]) if len == 0 => {
                *self = Column::one(all.copied(py));
                return Ok(());
            }
            _ => {}
        }
        let entries = self.make_mut(py)?;
        entries.spread(py, len)?;
        entries.0.try_reserve(other_len).map_err(out_of_memory)?;
        entries.0.extend((0..other_len).map(|index| other.entry(py, index)));
        Ok(())
    }

    /// Gives each of `len` samples an entry of its own, if one of them or of `other` has one: [`Column::replace`] then cannot
    /// fail.
    pub fn spread(&mut self, py: Python<'_>, len: usize, other: &Column<T>) -> PyResult<()> {
        match self.is_empty() && other.is_empty() {
            true => Ok(()),
            false => self.make_mut(py)?.spread(py, len),
        }
    }

    /// Puts the entry of the first sample of another list in place of that of a sample, after [`Column::spread`]. Returns the
    /// entry before, the release of which can run any code; `None` if neither list has entries.
    pub fn replace(&mut self, py: Python<'_>, index: usize, other: &Column<T>) -> Option<T> {
        let entry = Arc::get_mut(self.0.as_mut()?)?.0.get_mut(index)?;
        Some(std::mem::replace(entry, other.entry(py, 0)))
    }

    /// Keeps the entries of the first `len` samples. Does nothing if another column has them.
    pub fn truncate(&mut self, len: usize) {
        if let Some(entries) = self.0.as_mut().and_then(Arc::get_mut) {
            entries.0.truncate(len);
        }
    }
}
