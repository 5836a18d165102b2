//! Long lists, read by several threads where the interpreter has no lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::engine::default::default_engine;
use crate::ground::errors::OrPyErr;
use crate::import::importer::{Importer, Reading};
use crate::samples::imported::Imported;

/// One thread reads fewer samples sooner than another one starts.
const LEAST_SAMPLES: usize = 8192;

/// The samples of a tuple, read on the engine's threads, each attached to the interpreter. `None` where it has a lock, of
/// short lists, and where Python code has to run to read a sample: the calling thread reads the list then.
pub(crate) fn import_in_parts(
    samples: &Bound<'_, PyTuple>,
    reading: Reading<'_>,
) -> PyResult<Option<Imported>> {
    let (py, count) = (samples.py(), samples.len());
    let engine = match reading.stacker {
        Some((engine, _)) => engine,
        None => default_engine(),
    };
    let num_parts = engine.num_threads();
    if count < LEAST_SAMPLES || num_parts < 2 || has_lock(py)? {
        return Ok(None);
    }
    let reading = Reading { stacker: None, ..reading };
    let is_odd = AtomicBool::new(false);
    let parts: Vec<_> = (0..num_parts).map(|_| Mutex::new(None)).collect();
    let tuple = samples.clone().unbind();
    let read = |part: usize| {
        let range = part * count / num_parts..(part + 1) * count / num_parts;
        let made = Python::attach(|py| {
            let mut importer = Importer::new(py, reading);
            let made = importer.import_quietly(tuple.bind(py), range, &is_odd);
            made.and_then(|()| Imported::from_importer(importer)).map(|(imported, _)| imported)
        });
        *parts[part].lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
    };
    // Without the interpreter: a thread that has it would keep the others from stopping the world while it waits.
    py.detach(|| engine.for_each(num_parts, read)).or_py_err(py)?;
    if is_odd.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let mut whole: Option<Imported> = None;
    for part in parts.into_iter().filter_map(|part| part.into_inner().ok().flatten()) {
        match &mut whole {
            None => whole = Some(part?),
            Some(whole) => whole.join(py, &part?)?,
        }
    }
    Ok(whole)
}

/// Whether one thread at a time runs Python code, which those of a free-threaded interpreter can ask for too.
fn has_lock(py: Python<'_>) -> PyResult<bool> {
    let sys = py.import(intern!(py, "sys"))?;
    match sys.getattr_opt(intern!(py, "_is_gil_enabled"))? {
        Some(answer) => answer.call0()?.is_truthy(),
        None => Ok(true),
    }
}
