//! Values of dicts by the keys of the first one, mostly without a lookup for each: the dicts of samples mostly have the very same
//! objects as keys, in one order.
#![allow(unsafe_code)] // Entries of dicts without a reference.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use pyo3::{ffi, intern};
use windrow::bindings::prefetch;

use crate::import::torch_words::HAS_LOCK;

/// How many values ahead of their use their memory is asked for.
const VALUES_AHEAD: usize = 16;

/// The word of a dict that has the address of its entries, in every CPython so far; what else may be there is not harmed by a
/// prefetch.
const ENTRIES: usize = 4;

/// Bytes of an entry and of its place in the table of hashes.
const ENTRY_BYTES: usize = 26;

/// Dicts with these keys, each of which is walked once: when its values are asked for, a few dicts before they are used.
pub(super) struct Dicts<'a> {
    keys: &'a [Py<PyAny>],
    /// The last class that was asked for, and whether its objects give entries and length as dict itself does.
    class: (*mut ffi::PyTypeObject, bool),
    /// Dicts are large enough to have the word of their entries.
    has_entries: bool,
    /// How many dicts ahead of its use one is walked.
    lead: usize,
    /// The dicts that were walked last: number n at n modulo `lead + 1`.
    walked: [Walked; VALUES_AHEAD + 1],
}

/// The values of a dict that has the very keys in their order.
#[derive(Default)]
struct Walked {
    /// The number of the dict; `None` if it is another one, or if its values may have changed since.
    index: Option<usize>,
    /// Without references.
    values: Vec<*mut ffi::PyObject>,
}

impl<'a> Dicts<'a> {
    pub fn new(py: Python<'_>, keys: &'a [Py<PyAny>]) -> Dicts<'a> {
        static DICT_BYTES: PyOnceLock<usize> = PyOnceLock::new();
        let size = || py.get_type::<PyDict>().getattr("__basicsize__")?.extract();
        let size = DICT_BYTES.get_or_try_init(py, size).map_or(0, |&bytes| bytes);
        let has_entries = HAS_LOCK && size > ENTRIES * size_of::<usize>();
        let lead = VALUES_AHEAD.div_ceil(keys.len().max(1));
        let class = (std::ptr::null_mut(), false);
        Dicts { keys, class, has_entries, lead, walked: Default::default() }
    }

    /// An object as a dict, if it is one whose class gives entries and length as dict itself does. Without one the caller runs
    /// Python code.
    pub fn dict<'b, 'py>(
        &mut self,
        sample: &'b Bound<'py, PyAny>,
    ) -> PyResult<Option<&'b Bound<'py, PyDict>>> {
        let class = sample.get_type_ptr();
        if self.class.0 != class {
            self.forget();
            self.class = (class, reads_as_dict(&sample.get_type())?);
        }
        if !self.class.1 {
            self.forget();
            return Ok(None);
        }
        Ok(sample.cast().ok())
    }

    /// Python code may run now, which may change dicts.
    fn forget(&mut self) {
        self.walked.iter_mut().for_each(|walked| walked.index = None);
    }

    /// Asks for the memory of samples that will be read soon: of the farthest that of its dict, of the next one that of its
    /// entries, then of its values, since to count a reference waits for it.
    pub fn prefetch(&mut self, samples: &[Bound<'_, PyAny>], index: usize) {
        let later = |steps: usize| samples.get(index + steps * self.lead);
        if let Some(dict) = later(3) {
            prefetch(dict.as_ptr().cast(), ENTRIES * size_of::<usize>());
        }
        if let Some(dict) = later(2).filter(|dict| self.has_entries && self.is_known(dict)) {
            // SAFETY: a live dict, which is large enough.
            let entries = unsafe { dict.as_ptr().cast::<*const u8>().add(ENTRIES).read() };
            prefetch(entries, ENTRY_BYTES * self.keys.len());
        }
        if let Some(dict) = later(1).filter(|dict| self.is_known(dict)) {
            self.walk(dict, index + self.lead);
        }
    }

    /// Whether an object is a dict of the last class.
    fn is_known(&self, sample: &Bound<'_, PyAny>) -> bool {
        self.class.1 && sample.get_type_ptr() == self.class.0
    }

    /// The values of the dict with this number, if its keys are those very objects in that order; without them the caller
    /// runs Python code.
    pub fn in_order<'b, 'py>(
        &'b mut self,
        dict: &'b Bound<'py, PyDict>,
        index: usize,
    ) -> Option<impl Iterator<Item = Bound<'py, PyAny>> + 'b> {
        let place = index % (self.lead + 1);
        if self.walked[place].index != Some(index) && !self.walk(dict, index) {
            self.forget();
            return None;
        }
        let py = dict.py();
        // SAFETY: values that the dict has: to count references runs no Python code, and none has run since they were noted.
        let value =
            move |&value: &*mut ffi::PyObject| unsafe { Bound::from_borrowed_ptr(py, value) };
        Some(self.walked[place].values.iter().map(value))
    }

    /// Notes the values of a dict, if its keys are these in this order, and asks for their memory; says whether it has.
    fn walk(&mut self, dict: &Bound<'_, PyAny>, index: usize) -> bool {
        let walked = &mut self.walked[index % (self.lead + 1)];
        walked.index = None;
        walked.values.clear();
        if !HAS_LOCK || walked.values.try_reserve(self.keys.len()).is_err() {
            return false;
        }
        let (mut keys, values) = (self.keys.iter(), &mut walked.values);
        let mut are_same = true;
        // SAFETY: attached, and no Python code runs meanwhile.
        unsafe {
            each_entry(dict, |key, value| {
                prefetch(value.cast(), 1);
                are_same &= keys.next().is_some_and(|known| known.as_ptr() == key);
                if are_same {
                    values.push(value);
                }
            });
        }
        are_same &= keys.next().is_none();
        walked.index = are_same.then_some(index);
        are_same
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
    let (mut position, mut key, mut value) = (0, std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the caller's promise, so that nothing changes the dict; out-pointers of this frame.
    while unsafe { ffi::PyDict_Next(dict.as_ptr(), &mut position, &mut key, &mut value) } != 0 {
        function(key, value);
    }
}

/// Whether objects of a class are dicts that are asked for an entry and for their length as dict itself is.
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
