//! What keeps imported samples alive, and gives them back.
#![allow(unsafe_code)] // Reference counts and buffer views.

use std::cell::RefCell;
use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use windrow::arrow::ArrowArray;
use windrow::dlpack::ManagedTensor;
use windrow::Tensor;

use crate::ground::errors::is_answer;
use crate::ground::reserve::room_for;
use crate::import::rows::Numbers;
use crate::ownership::order::Order;
use crate::ownership::places::Places;

/// Everything that keeps the samples of one import alive.
#[derive(Default)]
pub(crate) struct Keep {
    pub objects: Vec<Py<PyAny>>,
    pub managed: Vec<ManagedTensor>,
    pub buffers: Vec<Buffer>,
    pub arrays: Vec<ArrowArray>,
    pub tensors: Vec<Tensor>,
    /// What work on device memory among it waits for.
    pub order: Order,
    /// The object is a torch tensor made for this output.
    pub is_output: bool,
    /// Where the memory of objects lay, if this is around a single one.
    pub places: Places,
    /// Values of Python numbers.
    pub numbers: Numbers,
}

impl Keep {
    /// Keeps a tensor, the work on which waits for `order`.
    pub fn of(tensor: Tensor, order: Order) -> Keep {
        let mut keep = Keep::default();
        keep.tensors.push(tensor);
        keep.order = order;
        keep
    }

    /// The same tensor under an owner that records what it waits for, and which torch tensor lent the
    /// memory.
    pub fn around(tensor: &Tensor, order: Order, lender: Option<Py<PyAny>>) -> Tensor {
        let mut keep = Keep::of(Keep::innermost(tensor).clone(), order);
        keep.is_output = lender.is_some();
        keep.objects.extend(lender);
        let (dtype, layout) = (tensor.dtype(), tensor.layout().clone());
        let (data, device, read_only) = (tensor.data_ptr(), tensor.device(), tensor.is_read_only());
        // SAFETY: the same memory, whose owner the new one holds.
        unsafe { Tensor::new_unchecked(Arc::new(keep), data, dtype, device, layout, read_only) }
    }

    /// The tensor in a keep around nothing else. A result that is an output again and again would otherwise
    /// are in one more of them each time.
    fn innermost(tensor: &Tensor) -> &Tensor {
        match tensor.owner().downcast_ref::<Keep>() {
            Some(Keep {
                objects,
                managed,
                buffers,
                arrays,
                tensors,
                numbers,
                is_output: false,
                ..
            }) if objects.is_empty()
                && managed.is_empty()
                && buffers.is_empty()
                && arrays.is_empty()
                && numbers.is_empty() =>
            {
                match &tensors[..] {
                    [inner] => Keep::innermost(inner),
                    _ => tensor,
                }
            }
            _ => tensor,
        }
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        let foreign = Foreign {
            objects: std::mem::take(&mut self.objects),
            managed: std::mem::take(&mut self.managed),
            buffers: std::mem::take(&mut self.buffers),
            arrays: std::mem::take(&mut self.arrays),
        };
        let tensors = std::mem::take(&mut self.tensors);
        if !foreign.is_empty() || !tensors.is_empty() {
            release((foreign, tensors));
        }
    }
}

/// What is Python's, or may be.
struct Foreign {
    objects: Vec<Py<PyAny>>,
    managed: Vec<ManagedTensor>,
    buffers: Vec<Buffer>,
    arrays: Vec<ArrowArray>,
}

impl Foreign {
    fn is_empty(&self) -> bool {
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
        Python::try_attach(|_| attached(|| without_exception(|| drop(held.take()))));
        std::mem::forget(held);
    }
}

type Held = (Foreign, Vec<Tensor>);

/// Releases within releases, further ones of which wait until the first is done.
const MAX_NESTED: usize = 32;

thread_local! {
    /// How many releases of this thread are under way, one within the other, and those put off.
    static NESTED: RefCell<(usize, Vec<Held>)> = const { RefCell::new((0, Vec::new())) };
}

/// Releases what was held. Tensors and arrays that are each other's memory by turns, made in a loop,
/// form a chain, which would use up the stack if each release were made within the one before.
fn release(held: Held) {
    let release = |(foreign, tensors): Held| {
        foreign.release();
        drop(tensors);
    };
    let mut held = Some(held);
    // Where the thread is ending, there is nowhere to put anything off.
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

/// Runs what needs the interpreter. PyO3 counts how often it has attached a thread; others may have
/// detached it since, as torch does while it frees a tensor, of which ours may be the memory.
fn attached(run: impl FnOnce()) {
    // SAFETY: the interpreter is there (`try_attach`); whether this thread is attached, it knows itself,
    // and it is afterwards as it was.
    let state = unsafe { ffi::PyGILState_Ensure() };
    run();
    // SAFETY: as above.
    unsafe { ffi::PyGILState_Release(state) };
}

/// Runs arbitrary code with no exception in flight, and then goes on with the one that was: an export
/// may be let go while one is on its way, and a deleter written in Python would take it for its own.
fn without_exception(run: impl FnOnce()) {
    let (mut class, mut value, mut trace) =
        (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: attached; three places for references, which are given back below.
    unsafe { ffi::PyErr_Fetch(&mut class, &mut value, &mut trace) };
    run();
    // SAFETY: as above. What `run` left behind is replaced: a release has no caller to tell.
    unsafe { ffi::PyErr_Restore(class, value, trace) };
}

/// A buffer view, released when dropped. The caller is attached then: `Keep` sees to it. A list of one: the view may
/// point into itself and stays where it is, and a `Box` would end the process where there is no memory.
pub(crate) struct Buffer(Vec<ffi::Py_buffer>);

// SAFETY: a filled-in view is plain data; it is released under the interpreter lock.
unsafe impl Send for Buffer {}
// SAFETY: as above; nothing is mutated through a shared reference.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: filled in by `PyObject_GetBuffer`, released once, attached.
        unsafe { ffi::PyBuffer_Release(self.0.as_mut_ptr()) };
    }
}

impl Buffer {
    /// Asks an object for a view of its memory.
    pub fn new(object: &Bound<'_, PyAny>, flags: std::ffi::c_int) -> PyResult<Buffer> {
        let mut view = room_for(1)?;
        // SAFETY: all zeros is an empty view.
        view.push(unsafe { std::mem::zeroed() });
        // SAFETY: a live object and a view to fill in; we are attached.
        match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) } {
            0 => Ok(Buffer(view)),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    pub fn view(&self) -> &ffi::Py_buffer {
        &self.0[0]
    }
}

/// Whether an object has the buffer protocol and refuses to be written to through it. Some producers
/// say so there and nowhere else.
pub(crate) fn refuses_writes(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    let refused = |flags| match Buffer::new(object, flags) {
        Ok(_) => Ok(None),
        Err(error) if is_answer(py, &error) => Ok(Some(error)),
        Err(error) => Err(error),
    };
    // SAFETY: a live object; the answer is a flag.
    let has_buffer = unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0;
    if !has_buffer || refused(ffi::PyBUF_FULL_RO)?.is_some() {
        return Ok(false);
    }
    Ok(refused(ffi::PyBUF_FULL)?.is_some_and(|error| {
        error.is_instance_of::<PyBufferError>(py) || error.is_instance_of::<PyValueError>(py)
    }))
}
