//! Columns of a container that are read all at once, before the walk of the tree comes to each of them.
//!
//! Tensors made long ago are in no cache, and to read one is to wait for memory. Here the memory of the next ones is asked for
//! beyond the end of a column, and the engine's threads read columns side by side.
#![allow(unsafe_code)] // Objects that other threads read.

use std::sync::{Mutex, PoisonError};

use pyo3::ffi;
use pyo3::prelude::*;
use windrow::{Engine, SampleList};

use crate::ground::reserve::room_for;
use crate::import::reader::Reader;
use crate::import::routes::known_route;
use crate::import::torch_words::HAS_LOCK;
use crate::ownership::child_columns::ChildColumns;

/// One thread reads fewer samples sooner than another one starts.
const LEAST_SHARED: usize = 2048;

/// Parts of the columns for each thread: so many that none waits long for the last part of a thread that started late.
const PARTS_OF_A_THREAD: usize = 16;

/// Stacks that read and write more are copied while they are read.
const MOST_BYTES: u64 = 1 << 20;

/// Whether several threads will read so many samples, of which this is the first. Runs no Python code.
pub(crate) fn will_be_shared(first: &Bound<'_, PyAny>, num_samples: usize) -> bool {
    num_samples >= LEAST_SHARED
        && known_route(first).is_some_and(|route| Reader::by(route).is_some())
}

/// A column that can be read without running Python code.
struct Readable {
    /// Its position among all columns.
    column: usize,
    class: *mut ffi::PyTypeObject,
    reader: Reader,
}

/// Columns to be read, one after the other, and all their objects in that order.
struct Readables {
    columns: Vec<Readable>,
    objects: Vec<*mut ffi::PyObject>,
}

// SAFETY: the objects are held or borrowed, and no Python code runs meanwhile: other threads only read what they hold.
unsafe impl Sync for Readables {}

/// The samples of each column that is one of row-major NumPy arrays or of dense torch tensors and no large stack; `None` for
/// the others, and for all where one column is all there is. Each column has a sample or more. Runs no Python code while columns are
/// borrowed.
pub(crate) fn read_columns(
    engine: &Engine,
    columns: &mut ChildColumns<'_>,
) -> PyResult<Vec<Option<SampleList<'static>>>> {
    let mut lists = room_for(columns.len())?;
    lists.resize_with(columns.len(), || Mutex::new(None));
    let found = readables(columns)?;
    let (num_columns, count) = (found.columns.len(), columns.num_rows());
    let read = |range: std::ops::Range<usize>| {
        let Readables { columns, objects } = &found;
        let Some(Readable { class, reader, .. }) = columns.get(range.start) else { return };
        // SAFETY: live objects, held or borrowed by the caller's columns, which stays attached and runs no Python code.
        unsafe { reader.prefetch_first(*class, &objects[range.start * count..]) };
        for (position, column) in range.clone().zip(&columns[range]) {
            let own = position * count..(position + 1) * count;
            // SAFETY: as above; the reader is for objects of this class.
            let list = unsafe { column.reader.list(column.class, objects, own, MOST_BYTES) };
            *lists[column.column].lock().unwrap_or_else(PoisonError::into_inner) = list;
        }
    };
    let num_parts = match found.objects.len() < LEAST_SHARED {
        true => 1,
        false => num_columns.min(PARTS_OF_A_THREAD * engine.num_threads()),
    };
    let part = |part: usize| {
        read(part * num_columns / num_parts..(part + 1) * num_columns / num_parts);
    };
    if num_parts < 2 || engine.for_each(num_parts, part).is_err() {
        read(0..num_columns);
    }
    let into_inner = |list: Mutex<_>| list.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(lists.into_iter().map(into_inner).collect())
}

fn readables(columns: &mut ChildColumns<'_>) -> PyResult<Readables> {
    let mut found = Readables { columns: room_for(columns.len())?, objects: Vec::new() };
    if !HAS_LOCK || columns.len() < 2 {
        return Ok(found);
    }
    let is_known = |column| columns.first(column).is_none_or(|first| known_route(&first).is_some());
    if !(0..columns.len()).all(is_known) {
        columns.hold();
    }
    for column in 0..columns.len() {
        let Some(first) = columns.first(column) else { continue };
        if let Some(reader) = Reader::of(&first)? {
            found.columns.push(Readable { column, class: first.get_type_ptr(), reader });
        }
    }
    found.objects = room_for(found.columns.len() * columns.num_rows())?;
    found.objects.extend(found.columns.iter().flat_map(|readable| columns.column(readable.column)));
    Ok(found)
}
