//! `Mismatch`: a difference from the expected value, with the sample, the leaf, both values, and the cure.

use std::fmt::{self, Display};

use crate::tensor::dims::Tuple;
use crate::tensor::dtype::DType;

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
    /// The subject of the error where it is no sample: `out`, unless [`Error::about`](crate::Error::about) says otherwise.
    pub subject: &'static str,
}

/// A side of a pair: see [`Engine::copy_many`](crate::Engine::copy_many).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveSide {
    /// The one that is written.
    Destination,
    /// The one that is read.
    Source,
    /// The destination of the scales of a source.
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
    /// Say where the batch is to be.
    BatchDevice,
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
            Hint::BatchDevice => ".device(Device) says where the batch is made",
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

impl Mismatch {
    /// One offender: sample `index`; without one [`Mismatch::subject`].
    ///
    /// ```
    /// use windrow::error::{Error, Mismatch};
    /// let error = Error::Shape(Box::new(Mismatch::new(Some(3), &[2i64, 2][..], &[2i64][..])));
    /// assert_eq!(error.sample(), Some(3));
    /// ```
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
    ///
    /// ```
    /// use windrow::error::{Error, Hint, Mismatch};
    /// let mismatch = Mismatch::for_subject("indices", "int32 or int64", "float32");
    /// let error = Error::DType(Box::new(mismatch.with_hint(Hint::Text("cast them"))));
    /// assert!(error.to_string().contains("indices"));
    /// ```
    pub fn for_subject(
        subject: &'static str,
        expected: impl Into<ErrorValue>,
        got: impl Into<ErrorValue>,
    ) -> Self {
        Mismatch { subject, ..Mismatch::new(None, expected, got) }
    }

    /// Sets the hint, in place of an earlier one.
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
    /// Writes the value of an offender, a shape without the word "shape" if `expected` is a shape too.
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
