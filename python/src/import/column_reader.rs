//! Columns: row-major NumPy arrays or dense torch tensors of the host's, all of one class, read from the structs of their objects
//! one after the other. No Python code runs, and no reference is counted.
//!
//! The problem: a batch of thousands of small samples spends most of its time on their objects. Tensors made long ago are in no
//! cache, and each leads by addresses to others: object, tensor, dims, storage. So memory is asked for ahead of the reader,
//! beyond the end of a column too, and the columns of a container are read side by side.
//!
//! ```text
//! a list       o0   o1   ...   o8   ...   o16   ...       arrays: o0 is read, the dims of o8 and the object o16 are asked for
//! a container  | column a: o0 .. o255 | column b | column c | ...       parts of whole columns, for the engine's threads
//! ```
//!
//! ```text
//! borrowed        the list or tuple of a call is one column, which it keeps alive: no Python code runs meanwhile
//! borrowed_pairs  the same for both sides of moves
//! read_columns    the leaves of a container; from LEAST_SHARED objects on by several threads
//! list_by         the loop over a column, compiled for each kind of object
//! None            one is of another class or has gradients, or a stack is too large: another import reads all of them
//! ```
//!
//! Each object by its library's interface would be simpler: a torch tensor takes 98 ns by the exchange table of its class and 20
//! by its fields, a NumPy array 75 ns by `__array_struct__` and 15 here. Of 100 000 tensors anywhere in memory each takes 230 ns
//! without memory asked for ahead, and 110 with it. A function that asks each object for its kind took 241,047 instructions for a
//! stack of 1024 small tensors; a loop for each kind takes 202,867.
#![allow(unsafe_code)] // Structs of foreign objects, which other threads read.

use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use windrow::bindings::prefetch;
use windrow::bindings::Dims;
use windrow::collate::Form;
use windrow::{Collate, DType, Device, Engine, SampleList};

use crate::ground::modules::records_nothing;
use crate::ground::reserve::try_vec;
use crate::import::numpy_layout::{array_fields, prefetch_dims, ArrayStruct};
use crate::import::routes::{cached_route, route_of, ImportRoute, Lazy};
use crate::ownership::child_columns::ChildColumns;
use crate::private_layouts::torch_layout::{TorchReader, FARTHEST};
use crate::private_layouts::HAS_LOCK;

/// One thread reads fewer samples sooner than another one starts.
const LEAST_SHARED: usize = 2048;

/// Parts of the columns for each thread: enough that none waits long for the last part of a thread that started late.
const PARTS_OF_A_THREAD: usize = 16;

/// Stacks of a container that read and write more are copied while they are read.
const MOST_BYTES: u64 = 1 << 20;

/// How many places ahead the dims of an array are asked for, and twice as many its object.
const ARRAYS_AHEAD: usize = 8;

/// How all samples of a column are read.
#[derive(Clone, Copy)]
enum Reader {
    Array,
    Dense(&'static TorchReader),
}

/// The class of all objects of a column, and how they are read.
#[derive(Clone, Copy)]
struct ColumnReader {
    class: *mut ffi::PyTypeObject,
    reader: Reader,
    /// Whether the samples are destinations: those that must not be written to as they are, are not read.
    is_written: bool,
    /// Whether torch records nothing now, so that tensors that require grad are samples as others.
    records_nothing: bool,
}

/// The reading of one kind of object. Each is a type, so that a loop over objects does not ask for the kind with each of them.
trait ReadObject: Copy {
    /// The fields of a sample, unless it has to be read in another way.
    ///
    /// # Safety
    /// A live object of the column's class.
    unsafe fn read<'a>(
        self,
        column: &ColumnReader,
        object: *mut ffi::PyObject,
    ) -> Option<RawArray<'a>>;

    /// Asks for the memory that the reading of the samples ahead touches. `at`: the object of the list this many places ahead.
    ///
    /// # Safety
    /// The objects are alive.
    unsafe fn prefetch_ahead(
        self,
        column: &ColumnReader,
        at: impl Fn(usize) -> Option<*mut ffi::PyObject>,
    );
}

/// Reads NumPy arrays; a [`TorchReader`] reads dense tensors.
#[derive(Clone, Copy)]
struct Arrays;

/// The fields of a sample, in memory that belongs to its object; without strides it is row-major.
struct RawArray<'a> {
    data: *const u8,
    dtype: DType,
    shape: &'a [AtomicI64],
    strides: Option<&'a [AtomicI64]>,
}
type ItemOf = unsafe extern "C" fn(*mut ffi::PyObject, ffi::Py_ssize_t) -> *mut ffi::PyObject;

/// The samples of a list or tuple that is one column. `None` for everything else, for none or more than `most_samples`, for
/// stacks that read and write more than `most_bytes`, which may be copied while they are read, and in a Python without the
/// interpreter lock; errors are for another import to find.
///
/// # Safety
/// Until the result is dropped, or [`objects_of`] has references to the samples, no Python code runs and this thread stays attached.
pub(crate) unsafe fn borrowed(
    samples: &Bound<'_, PyAny>,
    collate: &Collate,
    most_samples: usize,
    most_bytes: u64,
) -> PyResult<Option<SampleList<'static>>> {
    let Some(item_of) = item_of(samples) else { return Ok(None) };
    if !HAS_LOCK || !(1..=most_samples).contains(&samples.len()?) {
        return Ok(None);
    }
    // May run Python code, which may change the list, and so may the release of the first sample; `read` does not.
    let Some(reader) = ColumnReader::for_first(&samples.get_item(0)?)? else { return Ok(None) };
    let most_bytes = if matches!(collate.form(), Form::Stack) { most_bytes } else { u64::MAX };
    let read = |reader: ColumnReader| -> PyResult<_> {
        let len = samples.len()?;
        let mut objects = try_vec(len)?;
        objects.extend((0..len).map(|index| {
            // SAFETY: an entry of a list or tuple, as nothing has changed it since it was counted.
            unsafe { item_of(samples.as_ptr(), index as ffi::Py_ssize_t) }
        }));
        // SAFETY: live objects, which the list holds.
        Ok(unsafe { reader.list(&objects, 0..len, most_bytes) })
    };
    match read(reader)? {
        // One may require grad. To ask whether that matters may run Python code, so the list is read again.
        None if matches!(reader.reader, Reader::Dense(_)) && records_nothing(samples.py())? => {
            read(ColumnReader { records_nothing: true, ..reader })
        }
        found => Ok(found),
    }
}

/// Like [`borrowed`], for the destinations and the sources of as many pairs, whatever their size; `None` also for tensors that require
/// grad while torch records nothing. Also whether destinations are torch tensors.
///
/// # Safety
/// As for [`borrowed`].
pub(crate) unsafe fn borrowed_pairs(
    dsts: &Bound<'_, PyAny>,
    srcs: &Bound<'_, PyAny>,
) -> PyResult<Option<([SampleList<'static>; 2], bool)>> {
    let (Some(dst_of), Some(src_of)) = (item_of(dsts), item_of(srcs)) else { return Ok(None) };
    let len = dsts.len()?;
    if !HAS_LOCK || len == 0 || srcs.len()? != len {
        return Ok(None);
    }
    // This may run Python code, as in `borrowed`; both are counted again when no Python code runs any more.
    let (first_dst, first_src) = (dsts.get_item(0)?, srcs.get_item(0)?);
    let readers = (ColumnReader::for_first(&first_dst)?, ColumnReader::for_first(&first_src)?);
    let (Some(writer), Some(reader)) = readers else { return Ok(None) };
    drop((first_dst, first_src));
    if dsts.len()? != len || srcs.len()? != len {
        return Ok(None);
    }
    let list = |side: &Bound<'_, PyAny>, item_of: ItemOf, reader: ColumnReader| -> PyResult<_> {
        let mut objects = try_vec(len)?;
        objects.extend((0..len).map(|index| {
            // SAFETY: as in `borrowed`.
            unsafe { item_of(side.as_ptr(), index as ffi::Py_ssize_t) }
        }));
        // SAFETY: live objects, which the list holds.
        Ok(unsafe { reader.list(&objects, 0..len, u64::MAX) })
    };
    let Some(dsts) = list(dsts, dst_of, ColumnReader { is_written: true, ..writer })? else {
        return Ok(None);
    };
    let Some(srcs) = list(srcs, src_of, reader)? else { return Ok(None) };
    Ok(Some(([dsts, srcs], matches!(writer.reader, Reader::Dense(_)))))
}

/// References to the `len` samples of a list or tuple, such as one that was [`borrowed`], which keep them, each in the form that
/// `form` gives it; none for what is neither. Nothing has changed the samples since they were counted.
pub(crate) fn objects_of<'py, T>(
    samples: &Bound<'py, PyAny>,
    len: usize,
    form: impl Fn(Bound<'py, PyAny>) -> T,
) -> PyResult<Vec<T>> {
    let mut objects = try_vec(len)?;
    if let Some(item_of) = item_of(samples) {
        // SAFETY: as in `borrowed`; to count a reference runs no Python code.
        objects.extend((0..len).map(|index| unsafe {
            let object = item_of(samples.as_ptr(), index as ffi::Py_ssize_t);
            form(Bound::from_borrowed_ptr(samples.py(), object))
        }));
    }
    Ok(objects)
}

/// The function that gives entries of a list or tuple, which borrow; `None` for other classes, subclasses too.
fn item_of(samples: &Bound<'_, PyAny>) -> Option<ItemOf> {
    match () {
        () if samples.is_exact_instance_of::<PyList>() => Some(ffi::PyList_GetItem),
        () if samples.is_exact_instance_of::<PyTuple>() => Some(ffi::PyTuple_GetItem),
        () => None,
    }
}

/// Whether several threads will read `num_samples` samples, the first of which is given. Runs no Python code.
pub(crate) fn will_be_shared(first: &Bound<'_, PyAny>, num_samples: usize) -> bool {
    num_samples >= LEAST_SHARED
        && cached_route(first).is_some_and(|route| Reader::for_route(route).is_some())
}

/// Columns to be read, each with its position among all, and their objects one column after the other.
struct Readables {
    columns: Vec<(usize, ColumnReader)>,
    objects: Vec<*mut ffi::PyObject>,
}

// SAFETY: the objects are held or borrowed, and no Python code runs meanwhile: other threads only read what they hold.
unsafe impl Sync for Readables {}

/// For each child of a container its samples, if they can be read as a column and stacks of them are no larger than
/// [`MOST_BYTES`]; `None` for the others, for an only child, and in a Python without the interpreter lock. Each column has a
/// sample or more. Runs no Python code while columns are borrowed.
pub(crate) fn read_columns(
    engine: &Engine,
    columns: &mut ChildColumns<'_>,
) -> PyResult<Vec<Option<SampleList<'static>>>> {
    let mut lists = try_vec(columns.len())?;
    lists.resize_with(columns.len(), || Mutex::new(None));
    let found = readables(columns)?;
    let (num_columns, count) = (found.columns.len(), columns.num_rows());
    debug_assert_eq!(found.objects.len(), num_columns * count);
    let read = |range: Range<usize>| {
        let Readables { columns, objects } = &found;
        let Some((_, first)) = columns.get(range.start) else { return };
        // SAFETY: live objects, held or borrowed by the caller's columns, which stays attached and runs no Python code.
        unsafe { first.prefetch_first(&objects[range.start * count..]) };
        for (position, (column, reader)) in range.clone().zip(&columns[range]) {
            let object_range = position * count..(position + 1) * count;
            // SAFETY: as above.
            let list = unsafe { reader.list(objects, object_range, MOST_BYTES) };
            *lists[*column].lock().unwrap_or_else(PoisonError::into_inner) = list;
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

/// The columns whose class is read so. Takes references to all first if the class of one is not known yet, since it is then
/// asked.
fn readables(columns: &mut ChildColumns<'_>) -> PyResult<Readables> {
    let mut found = Readables { columns: try_vec(columns.len())?, objects: Vec::new() };
    if !HAS_LOCK || columns.len() < 2 {
        return Ok(found);
    }
    let is_known =
        |column| columns.first(column).is_none_or(|first| cached_route(&first).is_some());
    if !(0..columns.len()).all(is_known) {
        columns.take_references();
    }
    for column in 0..columns.len() {
        let Some(first) = columns.first(column) else { continue };
        if let Some(reader) = ColumnReader::for_first(&first)? {
            found.columns.push((column, reader));
        }
    }
    found.objects = try_vec(found.columns.len() * columns.num_rows())?;
    found.objects.extend(found.columns.iter().flat_map(|(column, _)| columns.column(*column)));
    Ok(found)
}

impl Reader {
    /// `None` for objects that are not read as columns.
    fn for_route(route: (ImportRoute, Lazy)) -> Option<Reader> {
        match route {
            (ImportRoute::Array, Lazy::No) => Some(Reader::Array),
            (ImportRoute::Exchange { is_torch: true, .. }, Lazy::Layout(torch)) => {
                Some(Reader::Dense(torch))
            }
            _ => None,
        }
    }
}

impl ColumnReader {
    /// The reader of objects of a class, of which this is one; `None` for other classes. Runs Python code unless the class [is
    /// known](cached_route).
    fn for_first(first: &Bound<'_, PyAny>) -> PyResult<Option<ColumnReader>> {
        let class = first.get_type_ptr();
        Ok(Reader::for_route(route_of(first)?).map(|reader| ColumnReader {
            class,
            reader,
            is_written: false,
            records_nothing: false,
        }))
    }

    /// The samples of a range of objects; those behind it are asked for too. `None` if one is of another class or not to be
    /// read so, for samples without memory for the list, and for those whose stack reads and writes more than `most_bytes`.
    ///
    /// # Safety
    /// The objects are alive, and nothing runs Python code until the list is dropped or the objects are held.
    unsafe fn list(
        &self,
        objects: &[*mut ffi::PyObject],
        range: Range<usize>,
        most_bytes: u64,
    ) -> Option<SampleList<'static>> {
        // SAFETY: the caller's promise.
        unsafe {
            match self.reader {
                Reader::Array => self.list_by(Arrays, objects, range, most_bytes),
                Reader::Dense(torch) => self.list_by(torch, objects, range, most_bytes),
            }
        }
    }

    /// Like [`ColumnReader::list`], by the reader of the column's kind.
    ///
    /// ```text
    /// until all samples are in the list:
    ///     read one; if its class is another, or it cannot be read that way: None
    ///     the first of a stack that is too large: None
    ///     append it with its layout, then those behind it that differ from it in their address alone,
    ///     then those that differ in their address and length alone
    /// ```
    ///
    /// # Safety
    /// As for [`ColumnReader::list`].
    #[inline(never)]
    unsafe fn list_by<R: ReadObject>(
        &self,
        reader: R,
        objects: &[*mut ffi::PyObject],
        range: Range<usize>,
        most_bytes: u64,
    ) -> Option<SampleList<'static>> {
        let (mut list, end) = (SampleList::new(), range.end);
        list.reserve(range.len()).ok()?;
        debug_assert!(objects[range.clone()].iter().all(|object| !object.is_null()));
        loop {
            let index = range.start + list.len();
            if index == end {
                return Some(list);
            }
            // SAFETY: the caller's promise.
            let array = unsafe { self.read_at(reader, objects, index) }?;
            let (shape, strides) = (copied(array.shape), array.strides.map(copied));
            if index == range.start && bytes_moved(range.len(), array.dtype, &shape) > most_bytes {
                return None;
            }
            let (data, dtype, device) = (array.data, array.dtype, Device::Cpu);
            // SAFETY: as above.
            unsafe { list.push(data, dtype, device, &shape, strides.as_deref()) }.ok()?;
            // The next objects that are like it, as most are, are appended without another look at the list for each.
            let alike = (index + 1..end).map_while(|index| {
                // SAFETY: as above.
                let next = unsafe { self.read_at(reader, objects, index) }?;
                let is_alike = next.dtype == dtype
                    && are_same(next.shape, &shape)
                    && next.has_strides(strides.as_deref());
                is_alike.then_some(next.data)
            });
            // SAFETY: as above.
            unsafe { list.extend_same(alike) };
            let next = range.start + list.len();
            let rows = (next..end).map_while(|index| {
                // SAFETY: as above.
                let row = unsafe { self.read_at(reader, objects, index) }?;
                let is_row = row.dtype == dtype && row.has_strides(strides.as_deref());
                is_row.then(|| row.row_length(&shape))?.map(|length| (row.data, length))
            });
            // SAFETY: as above.
            unsafe { list.extend_rows(rows) };
        }
    }

    /// The fields of the object at an index, if it is of the class and to be read so; asks for those behind it.
    ///
    /// # Safety
    /// The objects are alive.
    // Three loops read by it: with it and `fields_of` out of line, a stack of 1024 small torch tensors takes 241,047 instructions
    // in place of 202,867.
    #[inline(always)]
    unsafe fn read_at<'a, R: ReadObject>(
        &self,
        reader: R,
        objects: &[*mut ffi::PyObject],
        index: usize,
    ) -> Option<RawArray<'a>> {
        // SAFETY: the caller's promise. A live object has a type.
        unsafe {
            reader.prefetch_ahead(self, |steps| objects.get(index + steps).copied());
            let object = *objects.get(index)?;
            let is_its = ffi::Py_TYPE(object) == self.class;
            is_its.then(|| reader.read(self, object)).flatten()
        }
    }

    /// Asks for the memory of the first objects, which [`ColumnReader::list`] then reads.
    ///
    /// # Safety
    /// As for [`ColumnReader::list`].
    unsafe fn prefetch_first(&self, objects: &[*mut ffi::PyObject]) {
        const { assert!(FARTHEST >= 2 * ARRAYS_AHEAD) };
        for before in (1..=FARTHEST).rev() {
            let at = |steps: usize| objects.get(steps.checked_sub(before)?).copied();
            // SAFETY: the caller's promise.
            unsafe { self.prefetch_ahead(at) };
        }
    }

    /// [`ReadObject::prefetch_ahead`] of the column's objects.
    ///
    /// # Safety
    /// The objects are alive.
    unsafe fn prefetch_ahead(&self, at: impl Fn(usize) -> Option<*mut ffi::PyObject>) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.reader {
                Reader::Array => Arrays.prefetch_ahead(self, at),
                Reader::Dense(torch) => ReadObject::prefetch_ahead(torch, self, at),
            }
        }
    }
}

impl ReadObject for Arrays {
    #[inline(always)]
    unsafe fn read<'a>(
        self,
        column: &ColumnReader,
        object: *mut ffi::PyObject,
    ) -> Option<RawArray<'a>> {
        // SAFETY: the caller's promise.
        unsafe {
            let array = array_fields(object)?;
            let (data, dtype) = (array.data.cast_const(), array.dtype);
            let shape = std::slice::from_raw_parts(
                array.shape.as_ptr().cast::<AtomicI64>(),
                array.shape.len(),
            );
            let wanted = match column.is_written {
                true => ArrayStruct::C_CONTIGUOUS | ArrayStruct::WRITABLE,
                false => ArrayStruct::C_CONTIGUOUS,
            };
            let is_sample = array.flags & wanted == wanted;
            is_sample.then_some(RawArray { data, dtype, shape, strides: None })
        }
    }

    #[inline(always)]
    unsafe fn prefetch_ahead(
        self,
        column: &ColumnReader,
        at: impl Fn(usize) -> Option<*mut ffi::PyObject>,
    ) {
        if let Some(object) = at(2 * ARRAYS_AHEAD) {
            prefetch(object.cast(), 1);
        }
        // SAFETY: the caller's promise; a live object has a type.
        unsafe {
            let near = at(ARRAYS_AHEAD).filter(|&near| ffi::Py_TYPE(near) == column.class);
            if let Some(object) = near {
                prefetch_dims(object);
            }
        }
    }
}

impl ReadObject for &'static TorchReader {
    #[inline(always)]
    unsafe fn read<'a>(
        self,
        column: &ColumnReader,
        object: *mut ffi::PyObject,
    ) -> Option<RawArray<'a>> {
        // SAFETY: the caller's promise.
        unsafe {
            let is_sample = |_: &_| column.records_nothing || self.has_no_grad(object);
            let fields = self.fields_of(object).filter(is_sample)?;
            if column.is_written && self.may_be_shared(object) {
                return None;
            }
            let (data, dtype, shape) = (fields.data, fields.dtype, fields.shape);
            Some(RawArray { data, dtype, shape, strides: Some(fields.strides) })
        }
    }

    #[inline(always)]
    unsafe fn prefetch_ahead(
        self,
        column: &ColumnReader,
        at: impl Fn(usize) -> Option<*mut ffi::PyObject>,
    ) {
        // SAFETY: the caller's promise.
        unsafe { TorchReader::prefetch_ahead(self, column.class, false, at) }
    }
}

impl RawArray<'_> {
    /// Whether it has these strides; without strides, on both sides, it is row-major.
    #[inline]
    fn has_strides(&self, known: Option<&[i64]>) -> bool {
        match (self.strides, known) {
            (Some(strides), Some(known)) => are_same(strides, known),
            (None, None) => true,
            _ => false,
        }
    }

    /// The extent of dim 0 if the other extents are those of `known`, and dim 0 of that is not empty: if it is, a list of rows
    /// takes whatever strides for row-major ones. `None` without dims. Dtype and strides are left to the caller.
    #[inline]
    fn row_length(&self, known: &[i64]) -> Option<i64> {
        let (first, others) = self.shape.split_first()?;
        let (known_first, known_others) = known.split_first()?;
        let length = first.load(Ordering::Relaxed);
        (*known_first != 0 && are_same(others, known_others)).then_some(length)
    }
}

fn copied(dims: &[AtomicI64]) -> Dims {
    dims.iter().map(|dim| dim.load(Ordering::Relaxed)).collect()
}

/// Whether dims are the known ones now. A loop, since a call costs more for a few entries.
#[inline]
fn are_same(dims: &[AtomicI64], known: &[i64]) -> bool {
    let is_same = |(dim, &known): (&AtomicI64, &i64)| dim.load(Ordering::Relaxed) == known;
    dims.len() == known.len() && dims.iter().zip(known).all(is_same)
}

/// The least number of bytes that a stack of `count` samples reads and writes.
#[inline]
fn bytes_moved(count: usize, dtype: DType, shape: &[i64]) -> u64 {
    let sizes = [2, count as i64, dtype.size() as i64];
    sizes.iter().chain(shape).fold(1, |all, &n| all.saturating_mul(n as u64))
}
