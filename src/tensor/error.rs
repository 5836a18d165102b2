//! The one error type: every message names the sample, the leaf, what was expected and what came.

use std::fmt::{self, Display};

use crate::tensor::dims::Tuple;
use crate::tensor::dtype::DType;

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate. An error of input is returned before anything is written to an output. After [`Error::Cuda`] an
/// output may be partly written; an [`Error::Index`] that a device found is of a batch that has been written.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// Samples (or `out`) whose shapes do not fit the form asked for.
    Shape(Box<Mismatch>),
    /// Samples (or `out`) of the wrong dtype, or a dtype the operation cannot take.
    DType(Box<Mismatch>),
    /// Samples that are not in one place, or are where this engine cannot read.
    Device(Box<Mismatch>),
    /// Memory that cannot be expressed or used: strides out of range, read-only or overlapping `out`.
    Layout(Box<Mismatch>),
    /// A destination that shares bytes with another destination, or with a source: see
    /// [`Engine::copy_many`](crate::Engine::copy_many).
    Overlap(Box<Mismatch>),
    /// An empty list of samples: the batch would have no shape.
    Empty,
    /// An argument that is wrong by itself, whatever the samples are.
    Argument(String),
    /// An index that is out of range for a list. If a device found it, it may belong to an earlier call.
    Index(String),
    /// A size in elements or bytes that does not fit in 64 bits, or offsets that do not fit in int32; the text says which.
    TooLarge(String),
    /// Memory of `bytes` bytes could not be allocated, for an output, a list or a table.
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// A view was demanded but the samples do not form the batch in memory.
    NotAView(String),
    /// No CUDA driver, no device, or a build without the CUDA engine.
    NoDriver(String),
    /// A driver call failed.
    Cuda(Box<DriverError>),
}

/// A call of the CUDA driver that failed, in the driver's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// The function called, as in `cuMemAllocAsync`.
    pub function: &'static str,
    /// Its result code.
    pub code: u32,
    /// The code's name, as in `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// The driver's text for the code.
    pub text: String,
}

/// One or several samples that differ from what was expected.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// Position of the first offender in the list of samples, or of pairs; `None` when it is neither.
    pub index: Option<usize>,
    /// The side of a pair that is wrong, in a call that moves one tensor to the other.
    pub side: Option<MoveSide>,
    /// Path of the leaf in a tree of samples, or empty.
    pub path: String,
    /// The expected value.
    pub expected: ErrorValue,
    /// The value of the first offender.
    pub got: ErrorValue,
    /// Further offenders, at most two.
    pub others: Vec<(usize, ErrorValue)>,
    /// How many samples offend in all.
    pub count: usize,
    /// The hint, if one is known.
    pub hint: Option<Hint>,
    /// The subject of the error where it is no sample: `out`, unless [`Error::about`] says otherwise.
    pub subject: &'static str,
}

/// A side of a pair: see [`Engine::copy_many`](crate::Engine::copy_many).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveSide {
    /// The one that is written.
    Destination,
    /// The one that is read.
    Source,
    /// Where the scales of a source are written.
    Scales,
}

impl MoveSide {
    /// Whether the move writes to it.
    #[must_use]
    pub fn is_written(self) -> bool {
        self != MoveSide::Source
    }
}

impl fmt::Display for MoveSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MoveSide::Destination => "destination",
            MoveSide::Source => "source",
            MoveSide::Scales => "scales_out",
        })
    }
}

/// The hint of a [`Mismatch`]. Its text names calls of this crate; a binding has its own words for
/// those, which is why they are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// Words that fit every caller.
    Text(&'static str),
    /// Pad the samples.
    Pad,
    /// Stack the samples.
    Stack,
    /// Ask for one dtype.
    Cast,
    /// Ask for a floating-point dtype.
    CastToFloat,
    /// Ask for float32.
    CastToFloat32,
    /// Cut what does not fit.
    Truncate,
    /// Name this dim among those to be padded.
    PadDim(usize),
    /// Say where the leaves of an arena are to be.
    Device,
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Hint::Text(text) => text,
            Hint::Pad => "Collate::pad takes samples of different shapes",
            Hint::Stack => "Collate::stack takes samples without dims",
            Hint::Cast => ".cast(DType) casts on the way",
            Hint::CastToFloat => {
                ".cast(DType::F32) gives floats; an integer dtype truncates and saturates"
            }
            Hint::CastToFloat32 => ".cast(DType::F32) names it",
            Hint::Truncate => "Pad::truncate(true) cuts what does not fit",
            Hint::PadDim(dim) => return write!(f, "name dim {dim} in Pad::dims to pad it too"),
            Hint::Device => "an arena is in one place: .device(Device) says which",
        })
    }
}

/// A property of a tensor as an error reports it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ErrorValue {
    /// A whole shape.
    Shape(Vec<i64>),
    /// A dtype.
    DType(DType),
    /// Anything else, in words.
    Text(String),
}

impl fmt::Display for ErrorValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorValue::Shape(dims) => write!(f, "shape {}", Tuple(dims)),
            ErrorValue::DType(dtype) => write!(f, "{dtype}"),
            ErrorValue::Text(text) => f.write_str(text),
        }
    }
}

impl From<&str> for ErrorValue {
    fn from(text: &str) -> Self {
        ErrorValue::Text(text.to_owned())
    }
}

impl From<String> for ErrorValue {
    fn from(text: String) -> Self {
        ErrorValue::Text(text)
    }
}

impl From<DType> for ErrorValue {
    fn from(dtype: DType) -> Self {
        ErrorValue::DType(dtype)
    }
}

impl From<&[i64]> for ErrorValue {
    fn from(shape: &[i64]) -> Self {
        ErrorValue::Shape(shape.into())
    }
}

impl Error {
    /// The error for a device in a build without the CUDA engine.
    pub(crate) fn host_only(what: impl Display) -> Error {
        Error::NoDriver(format!("{what}: this build of windrow works on the host only"))
    }
}

impl Mismatch {
    /// One offender: sample `index`; without one [`Mismatch::subject`].
    pub fn new(
        index: Option<usize>,
        expected: impl Into<ErrorValue>,
        got: impl Into<ErrorValue>,
    ) -> Self {
        Mismatch {
            index,
            side: None,
            path: String::new(),
            expected: expected.into(),
            got: got.into(),
            others: Vec::new(),
            count: 1,
            hint: None,
            subject: "out",
        }
    }

    /// An argument or a tensor that is no sample.
    pub fn for_subject(
        subject: &'static str,
        expected: impl Into<ErrorValue>,
        got: impl Into<ErrorValue>,
    ) -> Self {
        Mismatch { subject, ..Mismatch::new(None, expected, got) }
    }

    /// Adds the hint to the text.
    #[must_use]
    pub fn with_hint(mut self, hint: Hint) -> Self {
        self.hint = Some(hint);
        self
    }

    /// Gathers offenders one at a time: the first three are kept, all are counted.
    pub(crate) fn note(
        found: &mut Option<Mismatch>,
        index: usize,
        expected: impl FnOnce() -> ErrorValue,
        got: ErrorValue,
    ) {
        match found {
            None => *found = Some(Mismatch::new(Some(index), expected(), got)),
            Some(first) => {
                if first.others.len() < 2 {
                    first.others.push((index, got));
                }
                first.count += 1;
            }
        }
    }
}

impl Mismatch {
    /// Omits the word "shape" if `expected` already has it.
    fn write_got(&self, f: &mut fmt::Formatter<'_>, got: &ErrorValue) -> fmt::Result {
        match (&self.expected, got) {
            (ErrorValue::Shape(_), ErrorValue::Shape(dims)) => Tuple(dims).fmt(f),
            _ => got.fmt(f),
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = self.side.map(|side| side.to_string());
        let noun = side.as_deref().unwrap_or("sample");
        match self.index {
            Some(index) => write!(f, "{noun} {index}")?,
            None if side.is_some() => write!(f, "{noun}s")?,
            None => f.write_str(self.subject)?,
        }
        if !self.path.is_empty() {
            write!(f, " at \"{}\"", self.path)?;
        }
        write!(f, ": expected {}, got ", self.expected)?;
        self.write_got(f, &self.got)?;
        for (index, got) in &self.others {
            write!(f, "; {noun} {index}: got ")?;
            self.write_got(f, got)?;
        }
        if self.count > 1 + self.others.len() {
            write!(f, "; {} {noun}s differ in all", self.count)?;
        }
        match self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl Error {
    /// The same error with the path of the leaf it belongs to.
    #[must_use]
    pub fn at_path(mut self, leaf: &str) -> Self {
        match &mut self {
            Error::Shape(m)
            | Error::DType(m)
            | Error::Device(m)
            | Error::Layout(m)
            | Error::Overlap(m) => {
                leaf.clone_into(&mut m.path);
            }
            Error::Argument(text)
            | Error::Index(text)
            | Error::TooLarge(text)
            | Error::NotAView(text)
                if !leaf.is_empty() =>
            {
                *text = format!("at \"{leaf}\": {text}");
            }
            _ => {}
        }
        self
    }

    /// The same error as that of sample `index`.
    #[must_use]
    pub fn at_index(mut self, index: usize) -> Self {
        match &mut self {
            Error::Shape(m)
            | Error::DType(m)
            | Error::Device(m)
            | Error::Layout(m)
            | Error::Overlap(m) => {
                m.index = Some(index);
            }
            Error::Argument(text) | Error::Index(text) | Error::TooLarge(text) => {
                *text = format!("sample {index}: {text}")
            }
            _ => {}
        }
        self
    }

    /// The same error as that of one tensor of pair `index`.
    #[must_use]
    pub fn at_side(self, side: MoveSide, index: usize) -> Self {
        match self {
            Error::Argument(text) => Error::Argument(format!("{side} {index}: {text}")),
            Error::Index(text) => Error::Index(format!("{side} {index}: {text}")),
            Error::TooLarge(text) => Error::TooLarge(format!("{side} {index}: {text}")),
            mut error => {
                if let Some(mismatch) = error.mismatch_mut() {
                    (mismatch.side, mismatch.index) = (Some(side), Some(index));
                }
                error
            }
        }
    }

    /// The same error of samples, or pairs, that have other numbers.
    #[doc(hidden)]
    #[must_use]
    pub fn renumbered(mut self, number: impl Fn(usize) -> usize) -> Self {
        let is_overlap = matches!(self, Error::Overlap(_));
        if let Some(mismatch) = self.mismatch_mut() {
            mismatch.index = mismatch.index.map(&number);
            mismatch.others.iter_mut().for_each(|(index, _)| *index = number(*index));
            if is_overlap {
                // The other tensor is the last word of both.
                for facet in [&mut mismatch.expected, &mut mismatch.got] {
                    let text = facet.to_string();
                    let parts = text
                        .rsplit_once(' ')
                        .and_then(|(words, last)| Some((words, last.parse().ok()?)));
                    if let Some((words, last)) = parts {
                        *facet = format!("{words} {}", number(last)).into();
                    }
                }
            }
        }
        self
    }

    /// The same error as that of an argument, which is no sample.
    #[must_use]
    pub fn about(mut self, subject: &'static str) -> Self {
        match &mut self {
            Error::Shape(m)
            | Error::DType(m)
            | Error::Device(m)
            | Error::Layout(m)
            | Error::Overlap(m) => {
                (m.index, m.subject) = (None, subject);
            }
            Error::Argument(text) | Error::Index(text) | Error::TooLarge(text) => {
                *text = format!("{subject}: {text}")
            }
            _ => {}
        }
        self
    }

    /// The mismatch behind an error of input that has one.
    pub(crate) fn mismatch_mut(&mut self) -> Option<&mut Mismatch> {
        match self {
            Error::Shape(m)
            | Error::DType(m)
            | Error::Device(m)
            | Error::Layout(m)
            | Error::Overlap(m) => Some(m),
            _ => None,
        }
    }

    /// The mismatch behind a shape, dtype, device, layout or overlap error.
    pub fn mismatch(&self) -> Option<&Mismatch> {
        match self {
            Error::Shape(m)
            | Error::DType(m)
            | Error::Device(m)
            | Error::Layout(m)
            | Error::Overlap(m) => Some(m),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Shape(m)
            | Error::DType(m)
            | Error::Device(m)
            | Error::Layout(m)
            | Error::Overlap(m) => m.fmt(f),
            Error::Empty => f.write_str("cannot assemble an empty list of samples"),
            Error::Argument(text)
            | Error::Index(text)
            | Error::TooLarge(text)
            | Error::NotAView(text) => f.write_str(text),
            Error::OutOfMemory { bytes } => {
                write!(
                    f,
                    "could not allocate {bytes} bytes for the batch: reduce the batch size or free other batches"
                )
            }
            Error::NoDriver(text) => write!(f, "CUDA is not available: {text}"),
            Error::Cuda(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({}): {}", self.function, self.name, self.code, self.text)?;
        if self.is_sticky() {
            f.write_str(
                "; the device's context is lost with all that is in it: restart the process",
            )?;
        }
        Ok(())
    }
}

impl DriverError {
    /// A kernel or the device has failed and the context with it: every later call fails in the same
    /// way.
    pub(crate) fn is_sticky(&self) -> bool {
        matches!(self.code, 214 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721)
    }
}

impl std::error::Error for DriverError {}
