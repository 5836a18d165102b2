//! Foreign objects given back: under the lock, without an exception in flight, and not too deep within each other.
#![allow(unsafe_code)] // The thread state and exceptions of the interpreter.

use std::cell::RefCell;

use pyo3::ffi;
use pyo3::prelude::*;
use windrow::arrow::ArrowArray;
use windrow::bindings::prefetch;
use windrow::dlpack::ManagedTensor;
use windrow::Tensor;

use crate::ownership::buffer::Buffer;
use crate::ownership::OBJECTS_AHEAD;

/// Owners that are, or may be, Python objects.
#[derive(Default)]
pub(super) struct Foreign {
    pub objects: Vec<Option<Py<PyAny>>>,
    pub managed: Vec<ManagedTensor>,
    pub buffers: Vec<Buffer>,
    pub arrays: Vec<ArrowArray>,
}

impl Foreign {
    /// Whether nothing is to be released.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
            && self.managed.is_empty()
            && self.buffers.is_empty()
            && self.arrays.is_empty()
    }

    /// Releases everything under one attach. After the interpreter is gone there is nothing to
    /// release it to, and it leaks.
    fn release(self) {
        if self.is_empty() {
            return;
        }
        let mut held = Some(self);
        Python::try_attach(|_| {
            attached(|| {
                without_exception(|| held.take().into_iter().for_each(Foreign::release_now))
            });
        });
        std::mem::forget(held);
    }

    /// Releases everything; the thread is attached. Asks for the memory of objects a few ahead: since they were read it may have
    /// left the caches.
    fn release_now(mut self) {
        let mut objects = std::mem::take(&mut self.objects).into_iter();
        while let Some(object) = objects.next() {
            if let Some(Some(later)) = objects.as_slice().get(OBJECTS_AHEAD) {
                prefetch(later.as_ptr().cast(), 1);
            }
            if let Some(object) = object {
                // SAFETY: attached, and a reference of ours. PyO3 looks at the thread for each object that it drops.
                unsafe { ffi::Py_DECREF(object.into_ptr()) };
            }
        }
    }
}

/// Releases references to objects as [`release`] does.
pub(super) fn release_objects(objects: Vec<Option<Py<PyAny>>>) {
    if !objects.is_empty() {
        release((Foreign { objects, ..Foreign::default() }, Vec::new()));
    }
}

type Released = (Foreign, Vec<Tensor>);

/// Releases within releases, further ones of which wait until the first is done.
const MAX_NESTED: usize = 32;

thread_local! {
    /// The number of releases under way on this thread, one within the other, and the list of those put off.
    static NESTED: RefCell<(usize, Vec<Released>)> = const { RefCell::new((0, Vec::new())) };
}

/// Releases what was held, on whatever thread, attached or not; beyond [`MAX_NESTED`] releases within each other it is put off
/// until the first one ends. Tensors and arrays that are each other's memory by turns, made in a loop, form a chain, which would
/// use up the stack.
pub(super) fn release(held: Released) {
    let release = |(foreign, tensors): Released| {
        foreign.release();
        drop(tensors);
    };
    let mut held = Some(held);
    // An ending thread cannot put releases off.
    let is_counted = NESTED.try_with(|nested| {
        let (depth, put_off) = &mut *nested.borrow_mut();
        match *depth < MAX_NESTED {
            true => *depth += 1,
            false => put_off.extend(held.take()),
        }
    });
    let Some(held) = held else { return };
    release(held);
    if is_counted.is_err() {
        return;
    }
    let next = || {
        NESTED.try_with(|nested| {
            let (depth, put_off) = &mut *nested.borrow_mut();
            let next = if *depth == 1 { put_off.pop() } else { None };
            *depth -= usize::from(next.is_none());
            next
        })
    };
    while let Ok(Some(held)) = next() {
        release(held);
    }
}

/// Runs what needs the interpreter, attached for certain. PyO3 counts how often it has attached a thread; others may have
/// detached it since, as torch does while it frees a tensor, of which ours may be the memory.
fn attached(run: impl FnOnce()) {
    // SAFETY: the interpreter is there (`try_attach`); whether this thread is attached, it knows itself,
    // and it is afterwards as it was.
    let state = unsafe { ffi::PyGILState_Ensure() };
    run();
    // SAFETY: as above.
    unsafe { ffi::PyGILState_Release(state) };
}

/// Runs arbitrary code with no exception in flight, and then goes on with the one that was; one
/// that the code leaves is dropped. An export may be let go while an exception is on its way, and a
/// deleter written in Python would take it for its own.
fn without_exception(run: impl FnOnce()) {
    let (mut class, mut value, mut trace) =
        (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: attached; three places for references, which are given back below.
    unsafe { ffi::PyErr_Fetch(&mut class, &mut value, &mut trace) };
    run();
    // SAFETY: as above. What `run` left behind is replaced: a release has no caller to tell.
    unsafe { ffi::PyErr_Restore(class, value, trace) };
}
