//! Objects with the Arrow PyCapsule interface in place of a list: the list of their rows.
#![allow(unsafe_code)] // Structs of the Arrow C data interface enter here.

use std::ffi::CStr;

use pyo3::exceptions::{PyTypeError, PyUnicodeDecodeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyList, PyString, PyTuple, PyType};
use windrow::arrow::{
    ArrowArray, ArrowArrayStream, ArrowDeviceArray, ArrowSchema, ColumnRows, Columns, ARROW_ARRAY,
    ARROW_ARRAY_STREAM, ARROW_DEVICE_ARRAY, ARROW_DEVICE_CPU, ARROW_DEVICE_CUDA,
    ARROW_DEVICE_CUDA_HOST, ARROW_DEVICE_CUDA_MANAGED, ARROW_SCHEMA,
};
use windrow::dlpack::DLDeviceType;
use windrow::error::Mismatch;
use windrow::{Device, Error};

use crate::engine::default::default_engine;
use crate::ground::errors::{attribute, class_name, is_answer, shown, to_py_err, OrPyErr};
use crate::ground::reserve::{push_to, try_vec};
use crate::import::routes::{route_of, ImportRoute};
use crate::ownership::holder::Holder;
use crate::ownership::owners::Owners;
use crate::samples::imported::Imported;
use crate::samples::list::PySampleList;

/// The methods of the interface, in the order in which they are asked.
const METHODS: [&str; 3] = ["__arrow_c_array__", "__arrow_c_stream__", "__arrow_c_device_array__"];

/// The rows of an Arrow object.
pub(crate) struct ArrowRows<'py> {
    /// Whether rows have fields, as those of a table.
    pub is_struct: bool,
    pub num_rows: usize,
    pub columns: Vec<ArrowColumn<'py>>,
}

/// A column of numbers, texts or structs without fields, by its name and those of the structs around it, outermost first.
pub(crate) struct ArrowColumn<'py> {
    pub path: Vec<String>,
    /// The position in each struct for each name of the path, and the number of fields.
    pub places: Vec<(usize, usize)>,
    /// `None` for structs without fields.
    pub content: Option<ArrowContent<'py>>,
}

pub(crate) enum ArrowContent<'py> {
    Samples(Box<Imported>),
    /// A str or bytes for each row.
    Texts(Bound<'py, PyList>),
}

/// Whether an object, not a class, is to be read as Arrow's: it has one of the methods, and no better route is known. A pandas Series
/// of objects is not: pyarrow would cast all of them to one type that it infers.
#[pyfunction]
#[pyo3(name = "_is_arrow", signature = (object, /))]
pub(crate) fn is_arrow(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if !matches!(route_of(object)?.0, ImportRoute::Protocols) || object.is_instance_of::<PyType>() {
        return Ok(false);
    }
    for method in METHODS {
        if object.hasattr(method)? {
            let dtype = attribute(object, "dtype")?;
            return Ok(!dtype.is_some_and(|dtype| dtype.eq("object").unwrap_or(false)));
        }
    }
    Ok(false)
}

/// The rows of an Arrow object as samples; TypeError for a table, and for a column of texts.
pub(crate) fn samples_in(object: &Bound<'_, PyAny>, path: &str) -> PyResult<Imported> {
    read(object, ".", path)?.samples(object)
}

impl ArrowRows<'_> {
    /// The samples; TypeError, which names the class of `object`, unless they are one column of numbers.
    pub fn samples(mut self, object: &Bound<'_, PyAny>) -> PyResult<Imported> {
        match self.columns.pop() {
            Some(ArrowColumn { content: Some(ArrowContent::Samples(samples)), .. })
                if !self.is_struct =>
            {
                Ok(*samples)
            }
            _ => {
                let class = class_name(&object.get_type())?;
                let what = match self.is_struct {
                    true => "a table, whose rows are dicts; wr.collate takes it, and this call takes one column of it",
                    false => "a column of strings or bytes; wr.collate takes it",
                };
                let text = format!("expected a list of samples, got {class}, {what}");
                Err(PyTypeError::new_err(text))
            }
        }
    }
}

/// Reads an Arrow object: array, stream, or array in the memory of the host or of a device. In errors, ``sep`` joins the names
/// of columns, and ``path`` is that of the leaf.
pub(crate) fn read<'py>(
    object: &Bound<'py, PyAny>,
    sep: &str,
    path: &str,
) -> PyResult<ArrowRows<'py>> {
    let py = object.py();
    let owner = Holder::default();
    let object = &joined(object)?;
    let mut reader = ArrowReader { object, sep, path, device: Device::Cpu, owner };
    let columns = reader.columns()?;
    let (is_struct, num_rows) = (columns.is_struct(), columns.num_rows());
    let mut read = Vec::new();
    for column in columns.into_columns() {
        let content = match column.rows {
            ColumnRows::Samples { list, unpacked } => {
                reader.owner.tensors.extend(unpacked);
                Ok(list)
            }
            ColumnRows::Texts { texts, is_utf8 } => {
                let refused = |error: Error| reader.error(error.at_path(&column.path.join(sep)));
                Err(Some(texts_of(py, &texts, is_utf8, refused)?))
            }
            ColumnRows::EmptyStructs => Err(None),
        };
        read.push((column.path, column.places, content));
    }
    let owners = Owners::from_object(reader.owner.into_object(py)?);
    let columns = read.into_iter().map(|(path, places, content)| {
        let content = match content {
            Ok(list) => {
                let (owners, watches) = (owners.clone(), Default::default());
                Some(ArrowContent::Samples(Box::new(Imported { list, owners, watches })))
            }
            Err(texts) => texts.map(ArrowContent::Texts),
        };
        ArrowColumn { path, places, content }
    });
    Ok(ArrowRows { is_struct, num_rows, columns: columns.collect() })
}

/// A column or a table with many short chunks as one with a single chunk, by its library, and other objects as they are.
fn joined<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    // The names of pyarrow's chunked classes, and of polars.
    for method in ["combine_chunks", "rechunk"] {
        if object.getattr_opt(method)?.is_some() {
            let chunks = object.py().import(intern!(object.py(), "windrow._chunks"))?;
            return chunks.call_method1("joined", (object,));
        }
    }
    Ok(object.clone())
}

/// Reads one object, whose arrays `owner` keeps.
struct ArrowReader<'a, 'py> {
    object: &'a Bound<'py, PyAny>,
    sep: &'a str,
    path: &'a str,
    /// The device of the buffers.
    device: Device,
    owner: Holder,
}

impl<'py> ArrowReader<'_, 'py> {
    /// The columns by the first method that the object has.
    fn columns(&mut self) -> PyResult<Columns> {
        if let Some(pair) = self.ask(METHODS[0])? {
            return self.read_array(&pair);
        }
        if let Some(capsule) = self.ask(METHODS[1])? {
            return self.read_stream(&capsule.cast_into().map_err(|_| no_capsules())?);
        }
        match self.ask(METHODS[2])? {
            Some(pair) => self.read_device_array(&pair),
            None => Err(no_capsules()),
        }
    }

    /// The result of a method of the interface; `None` if the object does not have it, LayoutError if it raises.
    fn ask(&self, method: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = self.object.py();
        let Some(method) = self.object.getattr_opt(method)? else { return Ok(None) };
        match method.call0() {
            Ok(answer) => Ok(Some(answer)),
            Err(cause) if !is_answer(py, &cause) => Err(cause),
            Err(cause) => {
                let got = shown(cause.value(py))?;
                let error = self.error(refused("an Arrow array", &got));
                error.set_cause(py, Some(cause));
                Err(error)
            }
        }
    }

    /// The exception of an error, at the path of the leaf unless the error names one.
    fn error(&self, error: Error) -> PyErr {
        let py = self.object.py();
        match (self.path, error.mismatch()) {
            ("", _) | (_, None) => to_py_err(py, &error),
            (_, Some(mismatch)) if !mismatch.path.is_empty() => to_py_err(py, &error),
            _ => to_py_err(py, &error.at_path(self.path)),
        }
    }

    /// Appends the rows of an array, which `owner` keeps also after an error.
    fn append(&mut self, columns: &mut Columns, array: ArrowArray) -> PyResult<()> {
        // The owner has the array before its memory is used.
        push_to(&mut self.owner.arrays, array)?;
        let array = self.owner.arrays.last().expect("just kept");
        // SAFETY: an array of the schema's type, as its producer vouches; kept as long as the samples.
        unsafe { columns.append_on(array, self.device) }.map_err(|error| self.error(error))
    }

    /// Reads the capsules of `__arrow_c_array__`, a schema and an array.
    fn read_array(&mut self, pair: &Bound<'py, PyAny>) -> PyResult<Columns> {
        let (schema, array) = capsules(pair, ARROW_ARRAY)?;
        let mut columns = columns_of(&schema, self.sep).map_err(|error| self.error(error))?;
        // SAFETY: the capsule's struct, which is moved out of it.
        let array = unsafe { ArrowArray::take(pointer(&array, ARROW_ARRAY)?) };
        self.append(&mut columns, array)?;
        Ok(columns)
    }

    /// Reads all arrays of a stream, without the interpreter lock while it is asked for one.
    fn read_stream(&mut self, capsule: &Bound<'py, PyCapsule>) -> PyResult<Columns> {
        let py = self.object.py();
        // SAFETY: the capsule's struct, which is moved out of it.
        let mut stream = unsafe { ArrowArrayStream::take(pointer(capsule, ARROW_ARRAY_STREAM)?) };
        let mut schema = ArrowSchema::empty();
        call(py, &mut stream, |stream| {
            // SAFETY: a stream that is not released, and room for its schema.
            stream.get_schema.map_or(0, |get| unsafe { get(stream, &mut schema) })
        })?
        .map_err(|error| self.error(error))?;
        // SAFETY: the producer vouches for its schema.
        let columns = unsafe { Columns::from_schema(&schema, self.sep) };
        let mut columns = columns.map_err(|error| self.error(error))?;
        loop {
            let mut array = ArrowArray::empty();
            call(py, &mut stream, |stream| {
                // SAFETY: as above, and room for an array.
                stream.get_next.map_or(0, |get| unsafe { get(stream, &mut array) })
            })?
            .map_err(|error| self.error(error))?;
            if array.is_released() {
                return Ok(columns);
            }
            self.append(&mut columns, array)?;
        }
    }

    /// Reads an array of the host or of a device; there, its event becomes a producer. DeviceError for other devices, and for
    /// host memory that is still being written.
    fn read_device_array(&mut self, pair: &Bound<'py, PyAny>) -> PyResult<Columns> {
        let (schema, array) = capsules(pair, ARROW_DEVICE_ARRAY)?;
        let mut columns = columns_of(&schema, self.sep).map_err(|error| self.error(error))?;
        // SAFETY: the capsule's struct, alive while the capsule is.
        let device = unsafe { &mut *pointer::<ArrowDeviceArray>(&array, ARROW_DEVICE_ARRAY)? };
        let event = device.sync_event;
        let got = match device.device_type {
            ARROW_DEVICE_CUDA | ARROW_DEVICE_CUDA_MANAGED => {
                match u32::try_from(device.device_id) {
                    Ok(ordinal) => {
                        self.device = Device::Cuda(ordinal);
                        None
                    }
                    Err(_) => Some(format!("one on device {}", device.device_id)),
                }
            }
            ARROW_DEVICE_CPU | ARROW_DEVICE_CUDA_HOST if event.is_null() => None,
            ARROW_DEVICE_CPU | ARROW_DEVICE_CUDA_HOST => {
                Some("one that is still being written (sync_event)".to_owned())
            }
            other => Some(format!("one on device type {}", DLDeviceType(other))),
        };
        if let Some(got) = got {
            let mismatch = Mismatch::new(Some(0), "an Arrow array in host memory", got);
            return Err(self.error(Error::Device(Box::new(mismatch))));
        }
        // SAFETY: as above; the array is moved out of it.
        let array = unsafe { ArrowArray::take(&mut device.array) };
        self.append(&mut columns, array)?;
        if let (Device::Cuda(ordinal), false) = (self.device, event.is_null()) {
            debug_assert!(event.cast::<usize>().is_aligned());
            // SAFETY: the interface has the address of an event there, which exists while the array, now kept, does.
            let arrived =
                unsafe { default_engine().adopt_event(ordinal, event.cast::<usize>().read()) };
            self.owner.producers.add(arrived.map_err(|error| self.error(error))?);
        }
        Ok(columns)
    }
}

/// Calls a stream without the interpreter lock, which it may wait for. The inner error is the stream's own refusal, in its words,
/// or says that the stream is released; the outer one is a signal's exception or one that is no answer.
fn call(
    py: Python<'_>,
    stream: &mut ArrowArrayStream,
    ask: impl FnOnce(&mut ArrowArrayStream) -> std::ffi::c_int + Send,
) -> PyResult<Result<(), Error>> {
    py.check_signals()?;
    if stream.is_released() || stream.get_schema.is_none() || stream.get_next.is_none() {
        return Ok(Err(refused("an Arrow stream that is alive", "a released one")));
    }
    let (code, text) = py.detach(|| {
        let code = ask(stream);
        let text = stream.get_last_error.filter(|_| code != 0).map(|get| {
            // SAFETY: the stream is alive; the text is, until the next call.
            let text = unsafe { get(stream) };
            // SAFETY: NULL or an ended string.
            let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
            text.map(|text| text.to_string_lossy().into_owned())
        });
        (code, text.flatten())
    });
    if code == 0 {
        return Ok(Ok(()));
    }
    match PyErr::take(py) {
        Some(error) if !is_answer(py, &error) => Err(error),
        _ => {
            let got = text.unwrap_or_else(|| format!("the error {code} without a reason"));
            Ok(Err(refused("the next array of an Arrow stream", &got)))
        }
    }
}

/// The LayoutError of samples that are no Arrow data of this kind.
fn refused(expected: &str, got: &str) -> Error {
    Error::Layout(Box::new(Mismatch::for_subject("samples", expected, got)))
}

/// The TypeError for an answer that is no such capsules, and for an object without the methods.
fn no_capsules() -> PyErr {
    PyTypeError::new_err("the Arrow PyCapsule interface gives capsules of a schema and an array")
}

/// The capsules of a schema and of an array of this name, unused, of which the structs were not
/// looked at. TypeError for no pair of capsules, ValueError for capsules of other names.
fn capsules<'py>(
    pair: &Bound<'py, PyAny>,
    name: &CStr,
) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
    let pair = pair.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2);
    let pair = pair.ok_or_else(no_capsules)?;
    let at = |position: usize| {
        pair.get_item(position)?.cast_into::<PyCapsule>().map_err(|_| no_capsules())
    };
    let (schema, array) = (at(0)?, at(1)?);
    pointer::<ArrowSchema>(&schema, ARROW_SCHEMA)?;
    pointer::<ArrowArray>(&array, name)?;
    Ok((schema, array))
}

/// The struct of a capsule; ValueError if it has another name, as one that was used. That a `T` is there is left to the producer.
fn pointer<T>(capsule: &Bound<'_, PyCapsule>, name: &CStr) -> PyResult<*mut T> {
    capsule.pointer_checked(Some(name)).map(|pointer| pointer.as_ptr().cast()).map_err(|_| {
        PyValueError::new_err(format!("expected a capsule named {}", name.to_string_lossy()))
    })
}

/// The columns of a schema; ``sep`` joins their names in errors. Types that are not read are refused with the first array.
fn columns_of(schema: &Bound<'_, PyCapsule>, sep: &str) -> Result<Columns, Error> {
    match schema.pointer_checked(Some(ARROW_SCHEMA)) {
        // SAFETY: the capsule's struct, for which its producer vouches, alive while the capsule is.
        Ok(schema) => unsafe { Columns::from_schema(schema.cast().as_ref(), sep) },
        Err(_) => Err(refused("a capsule of an Arrow schema", "another one")),
    }
}

/// Strings and bytes as Python's, those of length 0 as empty ones. `refused` makes the exception of
/// a string that is not UTF-8 from its LayoutError.
fn texts_of<'py>(
    py: Python<'py>,
    texts: &[(*const u8, usize)],
    is_utf8: bool,
    refused: impl Fn(Error) -> PyErr,
) -> PyResult<Bound<'py, PyList>> {
    let mut objects = try_vec(texts.len())?;
    for (index, &(data, len)) in texts.iter().enumerate() {
        debug_assert!(len == 0 || !data.is_null());
        let bytes = match len {
            0 => &[],
            // SAFETY: bytes of an array that is kept, in the range that it says.
            _ => unsafe { std::slice::from_raw_parts(data, len) },
        };
        objects.push(match is_utf8 {
            false => PyBytes::new(py, bytes).into_any(),
            true => match PyString::from_bytes(py, bytes) {
                Ok(text) => text.into_any(),
                Err(error) if error.is_instance_of::<PyUnicodeDecodeError>(py) => {
                    let mismatch = Mismatch::new(Some(index), "a string in UTF-8", "other bytes");
                    return Err(refused(Error::Layout(Box::new(mismatch))));
                }
                Err(error) => return Err(error),
            },
        });
    }
    PyList::new(py, objects)
}

/// The columns of a table by name, those of structs by their names joined by a dot, as lists of
/// samples. DTypeError for a column of strings or bytes, ValueError for two columns of one name.
#[pyfunction]
#[pyo3(name = "_arrow_columns", signature = (table, /))]
pub(crate) fn arrow_columns<'py>(table: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let py = table.py();
    let columns = PyDict::new(py);
    for ArrowColumn { path, content, .. } in read(table, ".", "")?.columns {
        // A struct without fields has no column.
        let Some(content) = content else { continue };
        let name = path.join(".");
        let ArrowContent::Samples(samples) = content else {
            let mismatch = Mismatch::new(
                Some(0),
                "numbers, or lists or tensors of them",
                "strings or bytes; leave the column out (columns=)",
            );
            return Err(Error::DType(Box::new(mismatch)).at_path(&name)).or_py_err(py);
        };
        if columns.contains(&name)? {
            return Err(PyValueError::new_err(format!("two columns are named {name:?}")));
        }
        columns.set_item(name, Bound::new(py, PySampleList::from_imported(*samples))?)?;
    }
    Ok(columns)
}
