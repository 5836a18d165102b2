//! Messages of workers to torch's tensors.
#![allow(unsafe_code)] // A descriptor that was handed over.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;
use windrow::bindings::reap_copies;
use windrow::tensor::Owner;
use windrow::workers::{self, Memory, Message, Origin, Unread};

use crate::export::libraries;
use crate::ownership::holder::Holder;
use crate::ownership::producers::Producers;

/// The tensors of a message, of torch, in the memory of the worker's pool. `file`: None, or what gives the descriptor of that
/// pool by its `detach`, where the system does not. RuntimeError: the message is broken or was read before, or that memory is
/// gone.
#[pyfunction]
pub(crate) fn _receive<'py>(
    py: Python<'py>,
    message: &[u8],
    file: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyList>> {
    let broken = || PyRuntimeError::new_err("a message that no worker of this windrow has sent");
    let message = Message::decode(message).ok_or_else(broken)?;
    let memory = mapped(&message.origin, file)?;
    let received = py.detach(|| {
        reap_copies();
        workers::receive(&memory, &message)
    });
    let tensors = received.map_err(|error| match error {
        Unread::Broken => broken(),
        Unread::Stale => PyRuntimeError::new_err(
            "a batch of a worker process was read twice, or its worker had ended before it was read",
        ),
    })?;
    let result = PyList::empty(py);
    let mut last: Option<(Owner, Py<PyAny>)> = None;
    for tensor in &tensors {
        let object = libraries::torch(py, tensor)?;
        let owner = tensor.owner();
        let lease = match &last {
            Some((known, lease)) if Arc::ptr_eq(known, owner) => lease.clone_ref(py),
            _ => Holder::from_tensor(tensor.clone(), Producers::default()).into_object(py)?,
        };
        // If torch gives a storage new memory, as `share_memory_` does, arrays of the tensor still use the block, so the
        // storage keeps it too.
        let storage = object.call_method0(intern!(py, "untyped_storage"))?;
        storage.setattr(intern!(py, "_windrow_block"), &lease)?;
        last = Some((Arc::clone(owner), lease));
        result.append(object)?;
    }
    Ok(result)
}

/// The memory of a worker's pool: mapped before, opened by the system's name for it, or by the descriptor that `file` gives and
/// gives away, if it is not None. RuntimeError if none of these works, MemoryError where the process may not map it.
fn mapped(origin: &Origin, file: &Bound<'_, PyAny>) -> PyResult<Arc<Memory>> {
    let py = file.py();
    if let Some(memory) = workers::mapped(origin) {
        return Ok(memory);
    }
    let refused = match py.detach(|| workers::open(origin)) {
        Ok(memory) => return Ok(memory),
        Err(refused) => refused,
    };
    let gone = |why: String| {
        let process = origin.process;
        PyRuntimeError::new_err(format!(
            "a batch of the worker process {process} cannot be read: its memory is gone ({why})"
        ))
    };
    if refused.kind() == io::ErrorKind::OutOfMemory {
        return Err(PyMemoryError::new_err(format!(
            "a batch of the worker process {} cannot be read: no addresses for its pool ({refused}): raise `ulimit -v`, or pass \
             workers_memory=0",
            origin.process
        )));
    }
    if file.is_none() {
        return Err(gone(refused.to_string()));
    }
    let given = file.call_method0(intern!(py, "detach")).and_then(|file| file.extract::<i32>());
    let given = given.map_err(|error| {
        let gone = gone(format!("{refused}; {error}"));
        gone.set_cause(py, Some(error));
        gone
    })?;
    debug_assert!(given >= 0);
    // SAFETY: `detach` gives a descriptor that is the caller's.
    let given = unsafe { OwnedFd::from_raw_fd(given) };
    py.detach(|| workers::map(origin, &given)).map_err(|error| gone(format!("{refused}; {error}")))
}
