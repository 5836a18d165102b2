//! The children of containers: a row for each sample, a column for each child.
#![allow(unsafe_code)] // Objects without a reference.

use pyo3::prelude::*;
use pyo3::{ffi, Borrowed};
use windrow::bindings::prefetch;

use crate::ground::reserve::{push_to, try_vec};
use crate::ownership::OBJECTS_AHEAD;
use crate::private_layouts::HAS_LOCK;

/// The children of the samples of a container. Values of dicts are borrowed from them until references are counted, which is to be
/// done before any Python code runs: that may change the dicts. To count a reference waits for the memory of its object, which
/// threads that read the objects have brought before.
pub(crate) struct ChildColumns<'py> {
    py: Python<'py>,
    /// Row by row.
    values: Vec<*mut ffi::PyObject>,
    num_columns: usize,
    are_borrowed: bool,
    /// The containers that hold the values that are borrowed.
    temporaries: Vec<Vec<Bound<'py, PyAny>>>,
}

impl<'py> ChildColumns<'py> {
    /// Columns without rows, with capacity for `num_rows`; their values are borrowed until
    /// references are counted.
    pub fn with_capacity(py: Python<'py>, num_columns: usize, num_rows: usize) -> PyResult<Self> {
        let values = try_vec(num_columns.saturating_mul(num_rows))?;
        Ok(ChildColumns { py, values, num_columns, are_borrowed: true, temporaries: Vec::new() })
    }

    /// Children from columns that are equally long, with a reference to each. Not checked: a shorter column shifts the values of
    /// others.
    pub fn from_columns(py: Python<'py>, columns: Vec<Vec<Bound<'py, PyAny>>>) -> PyResult<Self> {
        let num_rows = columns.first().map_or(0, Vec::len);
        let mut made = ChildColumns::with_capacity(py, columns.len(), num_rows)?;
        made.are_borrowed = false;
        let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
        for _ in 0..num_rows {
            made.values.extend(columns.iter_mut().filter_map(Iterator::next).map(Bound::into_ptr));
        }
        Ok(made)
    }

    /// The token of the interpreter lock.
    pub fn py(&self) -> Python<'py> {
        self.py
    }

    /// The number of columns.
    pub fn len(&self) -> usize {
        self.num_columns
    }

    /// The number of whole rows; 0 without columns.
    pub fn num_rows(&self) -> usize {
        self.values.len().checked_div(self.num_columns).unwrap_or(0)
    }

    /// Whether no reference has been counted, so that no Python code may run.
    pub fn are_borrowed(&self) -> bool {
        self.are_borrowed
    }

    /// A column, below [`len`](ChildColumns::len) (not checked), from its first row to its last.
    pub fn column(&self, column: usize) -> impl Iterator<Item = *mut ffi::PyObject> + '_ {
        self.values.iter().skip(column).step_by(self.num_columns.max(1)).copied()
    }

    /// The value of a column, below [`len`](ChildColumns::len) (not checked), in the first row;
    /// `None` without rows.
    pub fn first(&self, column: usize) -> Option<Borrowed<'_, 'py, PyAny>> {
        let &first = self.values.get(column)?;
        // SAFETY: a live object, and alive as long as these columns are not changed.
        Some(unsafe { Borrowed::from_ptr(self.py, first) })
    }

    /// Adds a row, which has a value for each column and room in the capacity (not checked). Counts references to it if those of
    /// rows before are counted.
    ///
    /// # Safety
    /// Live objects that a dict holds, which is among what is [kept](ChildColumns::retain_all), or lives, until references are counted or these
    /// columns are dropped; no Python code runs before that.
    pub unsafe fn push_row(&mut self, values: &[*mut ffi::PyObject]) {
        debug_assert_eq!(values.len(), self.num_columns);
        debug_assert!(values.iter().all(|value| !value.is_null()));
        if !self.are_borrowed {
            // SAFETY: live objects, attached.
            values.iter().for_each(|&value| unsafe {
                debug_assert!(ffi::Py_REFCNT(value) > 0);
                ffi::Py_INCREF(value);
            });
        }
        self.values.extend_from_slice(values);
    }

    /// Adds the next value of a row, with its reference; those of values before are counted first.
    pub fn push(&mut self, value: Bound<'py, PyAny>) -> PyResult<()> {
        self.take_references();
        self.are_borrowed = false;
        push_to(&mut self.values, std::ptr::null_mut())?;
        if let Some(place) = self.values.last_mut() {
            *place = value.into_ptr();
        }
        Ok(())
    }

    /// Keeps the containers that hold the values, as long as these are borrowed; drops them if they are not.
    pub fn retain_all(&mut self, temporaries: Vec<Bound<'py, PyAny>>) {
        if self.are_borrowed {
            self.temporaries.push(temporaries);
        }
    }

    /// Counts references to the values, if that was not done before, and lets go of the containers: now Python code may run. Does
    /// nothing without rows.
    pub fn take_references(&mut self) {
        // Nothing is borrowed before the first column.
        if !self.are_borrowed || self.values.is_empty() {
            return;
        }
        for (index, &value) in self.values.iter().enumerate() {
            if let Some(later) = self.values.get(index + OBJECTS_AHEAD) {
                prefetch(later.cast(), 1);
            }
            // SAFETY: a live object, which a dict holds until here (`push_row`); attached.
            unsafe {
                debug_assert!(ffi::Py_REFCNT(value) > 0);
                ffi::Py_INCREF(value);
            }
        }
        self.are_borrowed = false;
        self.temporaries.clear();
    }

    /// The values of all columns, one column after the other.
    pub fn into_objects(mut self) -> PyResult<Vec<Py<PyAny>>> {
        self.take_references();
        debug_assert!(!self.are_borrowed || self.values.is_empty());
        let mut objects = try_vec(self.values.len())?;
        for column in 0..self.num_columns {
            // SAFETY: objects with a reference each, which the list has from now on; attached.
            let value = |value| unsafe { Bound::from_owned_ptr(self.py, value) };
            objects.extend(self.column(column).map(value).map(Bound::unbind));
        }
        self.values.clear();
        Ok(objects)
    }

    /// Returns one list of the values per column, in the order of the columns; an error where there is no memory.
    pub fn into_lists(self) -> PyResult<Vec<Vec<Bound<'py, PyAny>>>> {
        let (py, num_columns, num_rows) = (self.py, self.num_columns, self.num_rows());
        let mut lists = try_vec(num_columns)?;
        let mut objects = self.into_objects()?.into_iter();
        for _ in 0..num_columns {
            let mut list = try_vec(num_rows)?;
            list.extend(objects.by_ref().take(num_rows).map(|object| object.into_bound(py)));
            lists.push(list);
        }
        Ok(lists)
    }
}

impl Drop for ChildColumns<'_> {
    fn drop(&mut self) {
        if !self.are_borrowed {
            let values = std::mem::take(&mut self.values).into_iter();
            // SAFETY: objects with a reference each, attached.
            values.for_each(|value| unsafe {
                debug_assert!(!HAS_LOCK || ffi::Py_REFCNT(value) > 0);
                ffi::Py_DECREF(value);
            });
        }
    }
}
