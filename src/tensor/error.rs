//! The one error type: every message names the sample, the leaf, what was expected and what came.

use std::fmt::{self, Display};

use crate::tensor::mismatch::{Mismatch, MoveSide};

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
    Argument(Box<Message>),
    /// An index that is out of range for a list. If a device found it, it may belong to an earlier call.
    Index(Box<Message>),
    /// A size in elements or bytes that does not fit in 64 bits, or offsets that do not fit in int32; the text says which.
    TooLarge(Box<Message>),
    /// Memory of `bytes` bytes could not be allocated, for an output, a list or a table.
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// A view was demanded but the samples do not form the batch in memory.
    NotAView(Box<Message>),
    /// No CUDA driver, no device, or a build without the CUDA engine.
    NoDriver(Box<Message>),
    /// A driver call failed.
    Cuda(Box<DriverError>),
}

/// The kind of an [`Error`], for callers that do not match its variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// [`Error::Shape`].
    Shape,
    /// [`Error::DType`].
    DType,
    /// [`Error::Device`].
    Device,
    /// [`Error::Layout`].
    Layout,
    /// [`Error::Overlap`].
    Overlap,
    /// [`Error::Empty`].
    Empty,
    /// [`Error::Argument`].
    Argument,
    /// [`Error::Index`].
    Index,
    /// [`Error::TooLarge`].
    TooLarge,
    /// [`Error::OutOfMemory`].
    OutOfMemory,
    /// [`Error::NotAView`].
    NotAView,
    /// [`Error::NoDriver`].
    NoDriver,
    /// [`Error::Cuda`].
    Cuda,
}

/// The words of an error that is no [`Mismatch`], with the leaf and the sample that they are about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    text: String,
    path: String,
    /// The sample, or the tensor of a pair.
    place: Option<(Option<MoveSide>, usize)>,
}

impl Message {
    /// A message without path and place.
    fn boxed(text: String) -> Box<Message> {
        Box::new(Message { text, path: String::new(), place: None })
    }
}

impl Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "at \"{}\": ", self.path)?;
        }
        match self.place {
            Some((Some(side), index)) => write!(f, "{side} {index}: ")?,
            Some((None, index)) => write!(f, "sample {index}: ")?,
            None => {}
        }
        f.write_str(&self.text)
    }
}

/// A call of the CUDA driver that failed, in the driver's words.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverError {
    /// The function called, as in `cuMemAllocAsync`.
    pub function: &'static str,
    /// The driver's result code.
    pub code: u32,
    /// The code's name, as in `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// The driver's text for the code.
    pub text: String,
}

impl Error {
    /// An [`Error::Argument`] in these words.
    ///
    /// ```
    /// use windrow::error::{Error, ErrorKind};
    /// let error = Error::argument("the reason".to_owned());
    /// assert_eq!(error.kind(), ErrorKind::Argument);
    /// ```
    pub fn argument(text: String) -> Error {
        Error::Argument(Message::boxed(text))
    }

    /// An [`Error::Index`] in these words.
    ///
    /// ```
    /// use windrow::error::{Error, ErrorKind};
    /// let error = Error::index("the reason".to_owned());
    /// assert_eq!(error.kind(), ErrorKind::Index);
    /// ```
    pub fn index(text: String) -> Error {
        Error::Index(Message::boxed(text))
    }

    /// An [`Error::TooLarge`] in these words.
    ///
    /// ```
    /// use windrow::error::{Error, ErrorKind};
    /// let error = Error::too_large("the reason".to_owned());
    /// assert_eq!(error.kind(), ErrorKind::TooLarge);
    /// ```
    pub fn too_large(text: String) -> Error {
        Error::TooLarge(Message::boxed(text))
    }

    /// An [`Error::NotAView`] in these words.
    ///
    /// ```
    /// use windrow::error::{Error, ErrorKind};
    /// let error = Error::not_a_view("the reason".to_owned());
    /// assert_eq!(error.kind(), ErrorKind::NotAView);
    /// ```
    pub fn not_a_view(text: String) -> Error {
        Error::NotAView(Message::boxed(text))
    }

    /// An [`Error::NoDriver`] for this reason.
    ///
    /// ```
    /// use windrow::error::{Error, ErrorKind};
    /// let error = Error::no_driver("the reason".to_owned());
    /// assert_eq!(error.kind(), ErrorKind::NoDriver);
    /// ```
    pub fn no_driver(text: String) -> Error {
        Error::NoDriver(Message::boxed(text))
    }

    /// The kind of this error.
    ///
    /// ```
    /// use windrow::error::ErrorKind;
    /// use windrow::{assemble, Collate};
    ///
    /// let error = assemble(&[[1, 2]], &Collate::stack().cast(windrow::DType::C64)).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::DType);
    /// assert_eq!((error.sample(), error.path()), (Some(0), ""));
    /// ```
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Shape(_) => ErrorKind::Shape,
            Error::DType(_) => ErrorKind::DType,
            Error::Device(_) => ErrorKind::Device,
            Error::Layout(_) => ErrorKind::Layout,
            Error::Overlap(_) => ErrorKind::Overlap,
            Error::Empty => ErrorKind::Empty,
            Error::Argument(_) => ErrorKind::Argument,
            Error::Index(_) => ErrorKind::Index,
            Error::TooLarge(_) => ErrorKind::TooLarge,
            Error::OutOfMemory { .. } => ErrorKind::OutOfMemory,
            Error::NotAView(_) => ErrorKind::NotAView,
            Error::NoDriver(_) => ErrorKind::NoDriver,
            Error::Cuda(_) => ErrorKind::Cuda,
        }
    }

    /// The path of the leaf that the error is of, or empty.
    pub fn path(&self) -> &str {
        match (self.mismatch(), self.message()) {
            (Some(mismatch), _) => &mismatch.path,
            (_, Some(message)) => &message.path,
            _ => "",
        }
    }

    /// The position of the first sample, or pair of a move, that the error is of.
    pub fn sample(&self) -> Option<usize> {
        match (self.mismatch(), self.message()) {
            (Some(mismatch), _) => mismatch.index,
            (_, Some(message)) => message.place.map(|(_, index)| index),
            _ => None,
        }
    }

    /// The message of an error that is a text; `None` for other errors.
    fn message(&self) -> Option<&Message> {
        match self {
            Error::Argument(message)
            | Error::Index(message)
            | Error::TooLarge(message)
            | Error::NotAView(message)
            | Error::NoDriver(message) => Some(message),
            _ => None,
        }
    }

    /// The error for a device in a build without the CUDA engine.
    pub(crate) fn host_only(what: impl Display) -> Error {
        Error::no_driver(format!("{what}: this build of windrow works on the host only"))
    }
}

impl Error {
    /// The same error with the path of the leaf it belongs to, in place of an earlier one. `Empty`, `OutOfMemory`, `NoDriver` and
    /// `Cuda` stay as they are.
    #[must_use]
    pub fn at_path(mut self, leaf: &str) -> Self {
        match &mut self {
            Error::Argument(message)
            | Error::Index(message)
            | Error::TooLarge(message)
            | Error::NotAView(message) => leaf.clone_into(&mut message.path),
            error => {
                if let Some(mismatch) = error.mismatch_mut() {
                    leaf.clone_into(&mut mismatch.path);
                }
            }
        }
        self
    }

    /// The same error as that of sample `index`. A [`Mismatch`] keeps its side; an `Argument`, `Index` or `TooLarge` loses it. Other
    /// errors stay as they are.
    #[must_use]
    pub fn at_index(self, index: usize) -> Self {
        self.at_place(None, index)
    }

    /// Sets the index as [`Error::at_index`] does, and the side, for one tensor of pair `index`.
    #[must_use]
    pub fn at_side(self, side: MoveSide, index: usize) -> Self {
        self.at_place(Some(side), index)
    }

    /// Sets the index as [`Error::at_index`] does, and the side if one is given; otherwise a mismatch keeps its side, and a
    /// message loses it.
    fn at_place(mut self, side: Option<MoveSide>, index: usize) -> Self {
        if let Some(message) = self.numbered_message_mut() {
            message.place = Some((side, index));
        } else if let Some(mismatch) = self.mismatch_mut() {
            mismatch.side = side.or(mismatch.side);
            mismatch.index = Some(index);
        }
        self
    }

    /// The same error of samples, or pairs, that have other numbers; in an `Overlap` also the number that ends each value.
    #[doc(hidden)]
    #[must_use]
    pub fn renumbered(mut self, number: impl Fn(usize) -> usize) -> Self {
        let is_overlap = matches!(self, Error::Overlap(_));
        if let Some((_, index)) =
            self.numbered_message_mut().and_then(|message| message.place.as_mut())
        {
            *index = number(*index);
        }
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

    /// The same error as that of an argument, which is no sample: a mismatch names `subject` and loses its number. The text of an
    /// `Argument`, `Index` or `TooLarge` begins with `subject`, and its number becomes text behind that.
    #[must_use]
    pub fn about(mut self, subject: &'static str) -> Self {
        if let Some(message) = self.numbered_message_mut() {
            let path = std::mem::take(&mut message.path);
            message.text = format!("{subject}: {message}");
            (message.path, message.place) = (path, None);
        } else if let Some(mismatch) = self.mismatch_mut() {
            (mismatch.index, mismatch.subject) = (None, subject);
        }
        self
    }

    /// The message of an `Argument`, `Index` or `TooLarge`, which may be one sample's; else `None`.
    fn numbered_message_mut(&mut self) -> Option<&mut Message> {
        match self {
            Error::Argument(message) | Error::Index(message) | Error::TooLarge(message) => {
                Some(message)
            }
            _ => None,
        }
    }

    /// The mismatch behind a shape, dtype, device, layout or overlap error, to be changed.
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
            Error::Argument(message)
            | Error::Index(message)
            | Error::TooLarge(message)
            | Error::NotAView(message) => message.fmt(f),
            Error::OutOfMemory { bytes } => {
                write!(
                    f,
                    "could not allocate {bytes} bytes for the batch: reduce the batch size or free other batches"
                )
            }
            Error::NoDriver(message) => write!(f, "CUDA is not available: {message}"),
            Error::Cuda(error) => error.fmt(f),
        }
    }
}

impl Mismatch {
    /// The error of this kind.
    pub(crate) fn into_error(self, kind: fn(Box<Mismatch>) -> Error) -> Error {
        kind(Box::new(self))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Cuda(error) => Some(&**error),
            _ => None,
        }
    }
}

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
    /// Whether a kernel or the device has failed and the context with it: every later call then fails in the same way.
    pub(crate) fn is_sticky(&self) -> bool {
        matches!(self.code, 214 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721)
    }
}

impl std::error::Error for DriverError {}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn parts_of_an_error_need_no_text() {
        let makes = [Error::argument, Error::index, Error::too_large];
        let kinds = [ErrorKind::Argument, ErrorKind::Index, ErrorKind::TooLarge];
        for (make, kind) in makes.into_iter().zip(kinds) {
            let error = make("no".to_owned()).at_index(3).at_path("a.b");
            assert_eq!((error.kind(), error.sample(), error.path()), (kind, Some(3), "a.b"));
            assert_eq!(error.to_string(), "at \"a.b\": sample 3: no");
            let error = make("no".to_owned()).at_side(MoveSide::Source, 2).at_path("");
            assert_eq!((error.sample(), error.path()), (Some(2), ""));
            assert_eq!(error.to_string(), "source 2: no");
            let error = make("no".to_owned()).at_index(1).about("scales");
            assert_eq!(error.sample(), None);
            assert_eq!(error.to_string(), "scales: sample 1: no");
            let error = make("no".to_owned()).at_index(1).renumbered(|index| index + 4);
            assert_eq!((error.sample(), error.to_string().as_str()), (Some(5), "sample 5: no"));
        }
        let view = Error::not_a_view("no".to_owned()).at_path("a");
        assert_eq!((view.kind(), view.path(), view.sample()), (ErrorKind::NotAView, "a", None));
        let driver = Error::no_driver("no".to_owned()).at_path("a");
        assert_eq!((driver.kind(), driver.path()), (ErrorKind::NoDriver, ""));
        assert_eq!(driver.to_string(), "CUDA is not available: no");
        let shape = Mismatch::new(Some(4), &[2i64][..], &[3i64][..]);
        let shape = Error::Shape(Box::new(shape)).at_path("c");
        let parts = (shape.kind(), shape.sample(), shape.path());
        assert_eq!(parts, (ErrorKind::Shape, Some(4), "c"));
        assert_eq!((Error::Empty.kind(), Error::Empty.sample()), (ErrorKind::Empty, None));
    }

    #[test]
    fn the_driver_is_the_source() {
        let (name, text) = ("CUDA_ERROR_INVALID_VALUE".to_owned(), "invalid".to_owned());
        let call = DriverError { function: "cuMemcpyAsync", code: 1, name, text };
        let error = Error::Cuda(Box::new(call.clone()));
        let source = error.source().and_then(|source| source.downcast_ref::<DriverError>());
        assert_eq!((error.kind(), source), (ErrorKind::Cuda, Some(&call)));
        assert!(Error::Empty.source().is_none());
    }
}
