//! Python numbers as samples: one by itself without dims, a list or tuple of them with one. Their values
//! are read into memory that the import keeps.

use pyo3::exceptions::PyOverflowError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple};
use windrow::dlpack::ForeignTensor;
use windrow::error::{Mismatch, MoveSide};
use windrow::samples::TensorMeta;
use windrow::{DType, Device, Error, SampleList};

use crate::ground::errors::{class_name, shown, type_error, OrPyErr};
use crate::import::importer::{Importer, Reading};
use crate::ownership::buffer::copy_buffer;
use crate::private_layouts::pyint_layout;

/// A row of so many numbers has a chunk of its own, with which they are released: 2 KiB, beside some 300 bytes of a holder.
const OWN_CHUNK: usize = 256;

/// The value of a Python number.
#[derive(Clone, Copy)]
enum Number {
    Bool(bool),
    Int(i64),
    Float(f64),
}

impl Number {
    /// The dtype of this number by itself: bool, int64 or float64.
    fn dtype(self) -> DType {
        match self {
            Number::Bool(_) => DType::Bool,
            Number::Int(_) => DType::I64,
            Number::Float(_) => DType::F64,
        }
    }

    /// The number's class in errors, with an article.
    fn name(self) -> &'static str {
        match self {
            Number::Bool(_) => "a bool",
            Number::Int(_) => "an int",
            Number::Float(_) => "a float",
        }
    }

    /// The number's bytes in memory, in native order; a bool is the first byte.
    fn bits(self) -> [u8; 8] {
        match self {
            Number::Bool(value) => [u8::from(value), 0, 0, 0, 0, 0, 0, 0],
            Number::Int(value) => value.to_ne_bytes(),
            Number::Float(value) => value.to_ne_bytes(),
        }
    }
}

/// The address of rows without numbers. They have the dtype of their neighbours, also of later ones.
static NO_NUMBERS: u64 = 0;

/// The dtype of the first sample of a list that is no row without numbers, in native byte order; `None` if there is none.
pub(crate) fn said_dtype(list: &SampleList<'_>) -> Option<DType> {
    (0..list.len())
        .find(|&index| !has_no_numbers(list, index))
        .and_then(|index| list.dtype_at(index))
}

/// Whether a sample is a row without numbers.
pub(crate) fn has_no_numbers(list: &SampleList<'_>, index: usize) -> bool {
    std::ptr::addr_eq(list.address(index), &raw const NO_NUMBERS)
}

/// Sets the dtype of the rows without numbers of a list.
pub(crate) fn set_empty_dtype(
    py: Python<'_>,
    list: &mut SampleList<'static>,
    dtype: DType,
) -> PyResult<()> {
    let is_other = |meta: &TensorMeta| meta.dtype != dtype && meta.layout.shape() == [0];
    if !list.metas().iter().any(is_other) {
        return Ok(());
    }
    let mut row = Importer::new(py, Reading::OWNED);
    row.push_no_numbers(dtype, 0)?;
    for index in 0..list.len() {
        if has_no_numbers(list, index) && list.dtype_at(index) != Some(dtype) {
            list.replace(index, &row.list, 0).or_py_err(py)?;
        }
    }
    Ok(())
}

/// Why an object is not a number of a row.
enum Refusal<'py> {
    NotANumber(Bound<'py, PyAny>),
    /// An int beyond int64, in words.
    TooLarge(String),
    /// A bool among other numbers, a number among bools, or an int among floats that no float has.
    OtherKind {
        expected: DType,
        got: &'static str,
    },
}

/// The value of a Python number, also of a subclass, or why it is none, never `OtherKind`; an error is one of Python's that is no
/// answer.
fn number_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Result<Number, Refusal<'py>>> {
    // Exact types first: the others are found by walking their bases.
    if let Ok(float) = object.cast_exact::<PyFloat>() {
        return Ok(Ok(Number::Float(float.value())));
    }
    if let Ok(value) = object.cast_exact::<PyBool>() {
        return Ok(Ok(Number::Bool(value.is_true())));
    }
    if object.is_instance_of::<PyInt>() {
        if let Ok(value) = object.extract::<i64>() {
            return Ok(Ok(Number::Int(value)));
        }
        // Python does not print ints of thousands of digits.
        let text = match shown(object)?.as_str() {
            "?" => "an int beyond 64 bits".to_owned(),
            digits => format!("the int {digits}"),
        };
        return Ok(Err(Refusal::TooLarge(text)));
    }
    Ok(match object.cast::<PyFloat>() {
        Ok(float) => Ok(Number::Float(float.value())),
        Err(_) => Err(Refusal::NotANumber(object.clone())),
    })
}

/// Returns the end of an error's text that says which spec takes a list of numbers at `path` as one sample; empty at
/// the root.
pub(crate) fn row_hint(path: &str) -> String {
    match path {
        "" => String::new(),
        path => format!("; spec={{{path:?}: wr.Pad()}} takes a list of numbers as one sample"),
    }
}

/// Whether an object is a list or tuple that begins with a number; an int beyond int64 is none.
pub(crate) fn is_row(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let first = match object.cast::<PyList>() {
        Ok(list) => list.iter().next(),
        Err(_) => object.cast::<PyTuple>().ok().and_then(|tuple| tuple.iter().next()),
    };
    first.map_or(Ok(false), |first| Ok(number_of(&first)?.is_ok()))
}

/// Whether a list or tuple has nothing but numbers in it, of whatever size, or, with `or_none`,
/// None; true for an empty one. TypeError for any other object.
pub(crate) fn is_of_numbers(object: &Bound<'_, PyAny>, or_none: bool) -> PyResult<bool> {
    /// Whether all items are Python numbers, or, if `or_none`, None; the first exception of reading one.
    fn all<'py>(
        mut items: impl Iterator<Item = Bound<'py, PyAny>>,
        or_none: bool,
    ) -> PyResult<bool> {
        let no_number = items.find_map(|item| match number_of(&item) {
            Ok(Err(Refusal::NotANumber(item))) if !or_none || !item.is_none() => Some(Ok(false)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        });
        no_number.unwrap_or(Ok(true))
    }
    match object.cast::<PyList>() {
        Ok(list) => all(list.iter(), or_none),
        Err(_) => all(object.cast::<PyTuple>()?.iter(), or_none),
    }
}

impl<'py> Importer<'py> {
    /// Appends a number by itself. DTypeError for an int beyond int64; any other object is imported by protocol.
    pub fn import_number(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        let number = match number_of(object)? {
            Ok(number) => number,
            Err(Refusal::TooLarge(got)) => return Err(self.dtype_error(index, DType::I64, &got)),
            // The route is that of numbers: a class cannot cease to be one.
            Err(_) => return self.import_by_protocol(object, index),
        };
        let chunk = self.owner.numbers.chunk_for(1, false)?;
        chunk.push(number.bits());
        let data = chunk[chunk.len() - 1].as_ptr();
        self.push_numbers(data, number.dtype(), &[], index)
    }

    /// Appends a NumPy scalar of this dtype, of 16 bytes at most; by protocol if its buffer cannot be copied.
    pub fn import_scalar(
        &mut self,
        object: &Bound<'py, PyAny>,
        dtype: DType,
        index: usize,
    ) -> PyResult<()> {
        let mut cells = [[0; 8]; 2];
        let count = dtype.size().div_ceil(cells[0].len());
        if !copy_buffer(object, &mut cells.as_flattened_mut()[..dtype.size()])? {
            return self.import_by_protocol(object, index);
        }
        let chunk = self.owner.numbers.chunk_for(count, false)?;
        chunk.extend_from_slice(&cells[..count]);
        let data = chunk[chunk.len() - count].as_ptr();
        self.push_numbers(data, dtype, &[], index)
    }

    /// Appends a list or tuple of numbers: of dtype bool, int64, or float64 if any of its numbers
    /// is a float. One without any has the dtype of the sample before it. DTypeError for a bool
    /// among other numbers and for an int beyond the dtype, TypeError for an item that is no number.
    pub fn import_row(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        let list = object.cast::<PyList>();
        let len = match &list {
            Ok(list) => list.len(),
            Err(_) => object.cast::<PyTuple>()?.len(),
        };
        let is_own = len >= OWN_CHUNK && self.is_per_sample();
        let chunk = self.owner.numbers.chunk_for(len, is_own)?;
        let start = chunk.len();
        let reader = pyint_layout::reader(self.py).as_ref().ok();
        let known = reader.and_then(|reader| reader.read(object, list.is_ok(), chunk));
        let read = match (known, list) {
            (Some(dtype), _) => Ok(Some(dtype)),
            (None, Ok(list)) => read_row(chunk, || list.iter())?,
            (None, Err(_)) => {
                let tuple = object.cast::<PyTuple>()?;
                read_row(chunk, || tuple.iter())?
            }
        };
        let count = chunk.len() - start;
        let data = chunk[start..].as_ptr().cast();
        let dtype = match read {
            Ok(Some(DType::Bool)) => {
                pack_bools(chunk, start);
                DType::Bool
            }
            Ok(Some(dtype)) => dtype,
            Ok(None) => {
                return self
                    .push_no_numbers(self.list.last_dtype().unwrap_or(self.empty_dtype), index);
            }
            Err((position, refusal)) => return self.refuse_at(position, refusal, index),
        };
        self.push_numbers(data, dtype, &[count as i64], index)
    }

    /// Appends a row without numbers, of this dtype until another is set.
    fn push_no_numbers(&mut self, dtype: DType, index: usize) -> PyResult<()> {
        self.push_numbers((&raw const NO_NUMBERS).cast(), dtype, &[0], index)?;
        self.is_number = false; // It has no memory that a chunk would keep.
        Ok(())
    }

    /// Appends numbers that `owner` holds, at `data`. Refuses them where samples are written or the batch has to be a view.
    fn push_numbers(
        &mut self,
        data: *const u8,
        dtype: DType,
        shape: &[i64],
        index: usize,
    ) -> PyResult<()> {
        if self.side.is_some_and(MoveSide::is_written) {
            return Err(self.layout_error(index, "writable memory", "a Python number"));
        }
        if self.must_be_view {
            let why = "copy=False, but Python numbers have no memory that a batch could be";
            return Err(self.error(Error::not_a_view(why.to_owned()), index));
        }
        // Values that `owner` holds: a chunk is never grown beyond its capacity, so they do not move.
        let (device, strides, read_only) = (Device::Cpu, None, false);
        let data = data.cast_mut();
        self.is_number = true;
        self.push(&ForeignTensor { data, dtype, device, shape, strides, read_only }, index)
    }

    /// Refuses a list where an array is due: always an error.
    pub fn refuse_row(&self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        let (class, hint) = (class_name(&object.get_type())?, row_hint(&self.path));
        let text = format!("expected an array-like, got {class}{hint}");
        Err(type_error(self.py, self.subject(index), &self.path, &text))
    }

    /// The DTypeError of sample `index`.
    fn dtype_error(&self, index: usize, expected: DType, got: &str) -> PyErr {
        let mismatch = Mismatch::new(Some(index), expected, got);
        self.error(Error::DType(Box::new(mismatch)), index)
    }

    /// The error of the number at a position of row `index`.
    fn refuse_at(&self, position: usize, refusal: Refusal<'py>, index: usize) -> PyResult<()> {
        Err(match refusal {
            Refusal::TooLarge(got) => {
                self.dtype_error(index, DType::I64, &format!("{got} at position {position}"))
            }
            Refusal::OtherKind { expected, got } => {
                self.dtype_error(index, expected, &format!("{got} at position {position}"))
            }
            Refusal::NotANumber(item) => {
                let class = class_name(&item.get_type())?;
                let text = format!("expected a Python number, got {class} at position {position}");
                let is_text = item.is_instance_of::<PyString>() || item.is_instance_of::<PyBytes>();
                let hint = match item.is_none() || is_text {
                    true => "",
                    false => "; numpy.asarray makes one array of a nested list or of arrays",
                };
                let subject = self.subject(index);
                type_error(item.py(), subject, &self.path, &(text + hint))
            }
        })
    }
}

/// The float of an int of any size, as Python's own `int.__float__` has it; `None` for one that no float has.
fn float_of_int(int: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    let float = int.py().get_type::<PyInt>().call_method1(intern!(int.py(), "__float__"), (int,));
    match float {
        Ok(float) => float.extract().map(Some),
        Err(error) if error.is_instance_of::<PyOverflowError>(int.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Appends the numbers of a row, as many as there is room for: another thread may lengthen the
/// list. Gives their dtype, `None` without numbers: with a float among ints all of them become
/// float64. Else gives the position of the first that is refused, and why; then some may have been
/// appended.
fn read_row<'py, I: Iterator<Item = Bound<'py, PyAny>>>(
    chunk: &mut Vec<[u8; 8]>,
    items: impl Fn() -> I,
) -> PyResult<Result<Option<DType>, (usize, Refusal<'py>)>> {
    let (start, mut dtype) = (chunk.len(), None);
    let has_float = || items().any(|item| item.is_instance_of::<PyFloat>());
    for (position, item) in items().take(chunk.capacity() - start).enumerate() {
        let number = match number_of(&item)? {
            Ok(number) => number,
            Err(Refusal::TooLarge(_)) if dtype == Some(DType::F64) || has_float() => {
                match float_of_int(&item)? {
                    Some(value) => Number::Float(value),
                    None => {
                        let (expected, got) = (DType::F64, "an int that no float has");
                        return Ok(Err((position, Refusal::OtherKind { expected, got })));
                    }
                }
            }
            Err(refusal) => return Ok(Err((position, refusal))),
        };
        let number = match (*dtype.get_or_insert(number.dtype()), number) {
            (known, number) if known == number.dtype() => number,
            (DType::F64, Number::Int(value)) => Number::Float(value as f64),
            (DType::I64, Number::Float(_)) => {
                for bits in &mut chunk[start..] {
                    *bits = (i64::from_ne_bytes(*bits) as f64).to_ne_bytes();
                }
                dtype = Some(DType::F64);
                number
            }
            (expected, number) => {
                return Ok(Err((position, Refusal::OtherKind { expected, got: number.name() })))
            }
        };
        chunk.push(number.bits());
    }
    Ok(Ok(dtype))
}

/// Moves bools that were read one to a cell of 8 bytes, from cell `start` on, into as many bytes; the cells behind are removed.
fn pack_bools(chunk: &mut Vec<[u8; 8]>, start: usize) {
    let count = chunk.len() - start;
    for position in 0..count {
        chunk[start + position / 8][position % 8] = chunk[start + position][0];
    }
    chunk.truncate(start + count.div_ceil(8));
}
