//! Values of dicts by the keys of the first one, mostly without a lookup for each: the dicts of samples mostly have the very same
//! objects as keys, in one order.
#![allow(unsafe_code)] // Entries of dicts without a reference.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use pyo3::{ffi, intern};
use windrow::bindings::prefetch;

use crate::ground::reserve::try_vec;
use crate::ownership::child_columns::ChildColumns;
use crate::private_layouts::dict_entries::{are_known, prefetch_entries, HEAD_BYTES};
use crate::private_layouts::HAS_LOCK;

/// How many values ahead of their use entries are asked for, in whole dicts; and a few dicts more, since short ones are soon done.
const VALUES_AHEAD: usize = 64;
const DICTS_AHEAD: usize = 2;

/// Dicts with these keys.
pub(super) struct Dicts<'a> {
    keys: &'a [Py<PyAny>],
    /// The last class that was asked for, and whether its objects give entries and length as dict itself does.
    class: (*mut ffi::PyTypeObject, bool),
    /// Whether the position of dict entries is known.
    has_entries: bool,
    /// How many dicts ahead of its use the entries of one are asked for.
    lead: usize,
    /// The values of the dict that was walked last, without references.
    values: Vec<*mut ffi::PyObject>,
}

impl<'a> Dicts<'a> {
    /// The only error is MemoryError.
    pub fn new(py: Python<'_>, keys: &'a [Py<PyAny>]) -> PyResult<Dicts<'a>> {
        let lead = DICTS_AHEAD + VALUES_AHEAD.div_ceil(keys.len().max(1));
        let (class, values) = ((std::ptr::null_mut(), false), try_vec(keys.len())?);
        Ok(Dicts { keys, class, has_entries: are_known(py), lead, values })
    }

    /// Adds the values of the samples, which the caller keeps, up to the first that is no dict with those very keys in their
    /// order; returns how many were added, 0 in an interpreter without a lock. Counts references before it runs Python code.
    pub fn walk<'py>(
        &mut self,
        samples: &[Bound<'py, PyAny>],
        columns: &mut ChildColumns<'py>,
    ) -> PyResult<usize> {
        for (index, sample) in samples.iter().enumerate() {
            self.prefetch(samples, index);
            if !self.knows(sample) {
                columns.take_references();
            }
            let dict = self.dict(sample)?;
            let Some(values) = dict.and_then(|dict| self.in_order(dict)) else {
                return Ok(index);
            };
            // SAFETY: of a live dict, which the caller keeps; no Python code runs from here on but after `take_references`.
            unsafe { columns.push_row(values) };
        }
        Ok(samples.len())
    }

    /// Whether an object is of the last class, so that [`Dicts::dict`] runs no Python code for it.
    fn knows(&self, sample: &Bound<'_, PyAny>) -> bool {
        sample.get_type_ptr() == self.class.0
    }

    /// An object as a dict, if it is one whose class gives entries and length as dict itself does. May run Python code for a
    /// class that is not that of the object before.
    pub fn dict<'b, 'py>(
        &mut self,
        sample: &'b Bound<'py, PyAny>,
    ) -> PyResult<Option<&'b Bound<'py, PyDict>>> {
        if !self.knows(sample) {
            self.class = (sample.get_type_ptr(), reads_as_dict(&sample.get_type())?);
        }
        Ok(if self.class.1 { sample.cast().ok() } else { None })
    }

    /// Asks for the memory of samples that will be read soon: of the farther one that of the object, whatever it is; of the
    /// nearer one that of its entries, if it is a dict of the last class.
    fn prefetch(&self, samples: &[Bound<'_, PyAny>], index: usize) {
        if let Some(dict) = samples.get(index + 2 * self.lead) {
            prefetch(dict.as_ptr().cast(), HEAD_BYTES);
        }
        let near = samples.get(index + self.lead);
        let near = near.filter(|dict| self.has_entries && self.class.1 && self.knows(dict));
        if let Some(dict) = near.and_then(|dict| dict.cast().ok()) {
            prefetch_entries(dict, self.keys.len());
        }
    }

    /// The values of a dict, without references, if its keys are those very objects in their order; `None` also in an interpreter
    /// without a lock.
    fn in_order(&mut self, dict: &Bound<'_, PyDict>) -> Option<&[*mut ffi::PyObject]> {
        if !HAS_LOCK {
            return None;
        }
        self.values.clear();
        let (mut keys, values) = (self.keys.iter(), &mut self.values);
        let mut are_same = true;
        // SAFETY: attached, and no Python code runs meanwhile.
        unsafe {
            each_entry(dict, |key, value| {
                are_same &= keys.next().is_some_and(|known| known.as_ptr() == key);
                if are_same {
                    values.push(value);
                }
            });
        }
        (are_same && keys.next().is_none()).then_some(&self.values[..])
    }
}

/// Calls a function for each entry of a dict, in its order.
///
/// # Safety
/// A dict, attached to an interpreter that [has a lock](HAS_LOCK); the function runs no Python code.
unsafe fn each_entry(
    dict: &Bound<'_, PyAny>,
    mut function: impl FnMut(*mut ffi::PyObject, *mut ffi::PyObject),
) {
    debug_assert!(HAS_LOCK && dict.is_instance_of::<PyDict>());
    let (mut position, mut key, mut value) = (0, std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the caller's promise, so that nothing changes the dict; out-pointers of this frame.
    while unsafe { ffi::PyDict_Next(dict.as_ptr(), &mut position, &mut key, &mut value) } != 0 {
        function(key, value);
    }
}

/// Whether a class is dict, or a subclass of it with dict's own `__getitem__` and `__len__`. Others of its methods, such as
/// `__missing__` and `__iter__`, may be its own.
fn reads_as_dict(class: &Bound<'_, PyType>) -> PyResult<bool> {
    let py = class.py();
    let dict = py.get_type::<PyDict>();
    if class.is(&dict) || !class.is_subclass(&dict)? {
        return Ok(class.is(&dict));
    }
    for method in [intern!(py, "__getitem__"), intern!(py, "__len__")] {
        if !class.getattr(method)?.is(&dict.getattr(method)?) {
            return Ok(false);
        }
    }
    Ok(true)
}
