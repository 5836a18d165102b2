//! Options of the last call of each thread: a call site gives the same constants each time, and to read them takes longer than
//! to copy a row.

use std::cell::RefCell;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString, PyTuple};
use windrow::Collate;

/// Whether a call may return a view instead of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyMode {
    /// `copy=True`: the batch is a copy.
    Always,
    /// `copy=None`: a view where the samples form the batch in memory.
    IfNeeded,
    /// `copy=False`: a view, or an error.
    Never,
}

/// Names and values of keyword arguments.
pub(super) type Items<'py> = Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>;

/// The parsed arguments of a form.
struct Parsed {
    form: String,
    /// Objects that never change, held so that no other object has their address.
    items: Vec<(Py<PyAny>, Py<PyAny>)>,
    collate: Collate,
    copy: CopyMode,
}

thread_local! {
    static LAST: RefCell<Option<Parsed>> = const { RefCell::new(None) };
}

/// The parsed form of the same objects in the same order, if they and this form were stored last on this thread. `None` without
/// arguments.
pub(super) fn get(form: &str, items: &Items<'_>) -> Option<(Collate, CopyMode)> {
    let find = |last: &RefCell<Option<Parsed>>| {
        let last = last.borrow();
        let last = last.as_ref()?;
        let are_same = last.form == form
            && last.items.len() == items.len()
            && last
                .items
                .iter()
                .zip(items)
                .all(|((name, item), (given, value))| name.is(given) && item.is(value));
        are_same.then(|| (last.collate.clone(), last.copy))
    };
    match items.is_empty() {
        // To parse none is quicker.
        true => None,
        false => LAST.try_with(find).ok().flatten(),
    }
}

/// Stores the parsed arguments for this thread, in place of those before, if there are some and none of them can change; else
/// those before stay.
pub(super) fn insert(form: &str, items: &Items<'_>, collate: &Collate, copy: CopyMode) {
    if items.is_empty() || !items.iter().all(|(name, item)| is_text(name) && is_constant(item)) {
        return;
    }
    let items = items.iter().map(|(name, item)| (name.clone().unbind(), item.clone().unbind()));
    let parsed =
        Parsed { form: form.to_owned(), items: items.collect(), collate: collate.clone(), copy };
    // This fails only while the thread ends.
    let _ = LAST.try_with(|last| last.replace(Some(parsed)));
}

/// Whether an object is a str, and of no subclass.
fn is_text(object: &Bound<'_, PyAny>) -> bool {
    object.is_exact_instance_of::<PyString>()
}

/// Whether an object is None, an exact str, int, float or bool, or a tuple of such, without tuples in it.
fn is_constant(object: &Bound<'_, PyAny>) -> bool {
    let is_single = |object: &Bound<'_, PyAny>| {
        object.is_none()
            || is_text(object)
            || object.is_exact_instance_of::<PyInt>()
            || object.is_exact_instance_of::<PyFloat>()
            || object.is_exact_instance_of::<PyBool>()
    };
    is_single(object)
        || object
            .cast_exact::<PyTuple>()
            .is_ok_and(|entries| entries.iter_borrowed().all(|entry| is_single(&entry)))
}
