//! [`Status`]: the results of calls, and the last failure of a thread.

use std::cell::RefCell;
use std::ffi::{c_char, CStr, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};

use windrow::error::{Hint, Mismatch};
use windrow::Error;

use crate::log::{self, LogLevel};

/// The result of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// A shape that does not fit.
    Shape = 1,
    /// A dtype that does not fit.
    Dtype = 2,
    /// A device that does not fit.
    Device = 3,
    /// Strides or memory that cannot be used.
    Layout = 4,
    /// An argument that is wrong, NULL where a pointer is needed, or an empty list.
    Argument = 5,
    /// A size beyond 64 bits, or offsets beyond int32.
    TooLarge = 6,
    /// No memory.
    OutOfMemory = 7,
    /// No CUDA driver or device, or a build without devices.
    NoDriver = 8,
    /// A call of the CUDA driver failed.
    Cuda = 9,
    /// A bug in windrow.
    Bug = 10,
}

impl Status {
    /// The name of its constant in `windrow.h`.
    pub(crate) fn name(self) -> &'static CStr {
        match self {
            Status::Ok => c"WINDROW_STATUS_OK",
            Status::Shape => c"WINDROW_STATUS_SHAPE",
            Status::Dtype => c"WINDROW_STATUS_DTYPE",
            Status::Device => c"WINDROW_STATUS_DEVICE",
            Status::Layout => c"WINDROW_STATUS_LAYOUT",
            Status::Argument => c"WINDROW_STATUS_ARGUMENT",
            Status::TooLarge => c"WINDROW_STATUS_TOO_LARGE",
            Status::OutOfMemory => c"WINDROW_STATUS_OUT_OF_MEMORY",
            Status::NoDriver => c"WINDROW_STATUS_NO_DRIVER",
            Status::Cuda => c"WINDROW_STATUS_CUDA",
            Status::Bug => c"WINDROW_STATUS_BUG",
        }
    }

    const ALL: [Status; 11] = [
        Status::Ok,
        Status::Shape,
        Status::Dtype,
        Status::Device,
        Status::Layout,
        Status::Argument,
        Status::TooLarge,
        Status::OutOfMemory,
        Status::NoDriver,
        Status::Cuda,
        Status::Bug,
    ];
}

/// The name of a status, such as "WINDROW_STATUS_SHAPE", and "unknown status" for any other number. A string of the library,
/// valid forever. Any thread may call it.
#[no_mangle]
pub extern "C" fn windrow_status_name(status: i32) -> *const c_char {
    let found = Status::ALL.into_iter().find(|one| *one as i32 == status);
    found.map_or(c"unknown status", Status::name).as_ptr()
}

/// The last failure of a thread.
struct Failure {
    text: CString,
    sample: i64,
}

thread_local! {
    static FAILURE: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

/// The status of an error; [`Status::Bug`] for a kind that C has no status for.
fn status_of(error: &Error) -> Status {
    match error {
        Error::Shape(_) => Status::Shape,
        Error::DType(_) => Status::Dtype,
        Error::Device(_) => Status::Device,
        Error::Layout(_) | Error::NotAView(_) => Status::Layout,
        Error::Overlap(_) => Status::Argument,
        Error::Argument(_) | Error::Index(_) | Error::Empty => Status::Argument,
        Error::TooLarge(_) => Status::TooLarge,
        Error::OutOfMemory { .. } => Status::OutOfMemory,
        Error::NoDriver(_) => Status::NoDriver,
        Error::Cuda(_) => Status::Cuda,
        _ => Status::Bug,
    }
}

/// Makes this the last failure of the thread, and returns `status`.
fn fail(status: Status, text: &str, sample: i64) -> Status {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // A thread that ends may call from the destructors of its other variables: the text is gone then.
    let _ = FAILURE.try_with(|failure| failure.replace(Some(Failure { text, sample })));
    status
}

/// The text of an error, with the hint in the words of this interface.
fn text_of(error: &Error) -> String {
    let Some((mismatch, hint)) = error.mismatch().and_then(|m| Some((m, m.hint?))) else {
        return error.to_string();
    };
    let hint = match hint {
        Hint::Pad => "form = WINDROW_FORM_PAD takes samples of different shapes",
        Hint::Stack => "form = WINDROW_FORM_STACK takes samples without dims",
        Hint::Cast => "set dtype to cast on the way",
        Hint::CastToFloat => "set dtype to float32; an integer dtype truncates and saturates",
        Hint::CastToFloat32 => "set dtype to float32",
        Hint::BatchDevice => "set device to say where the batch is made",
        Hint::Truncate => "truncate = 1 cuts what does not fit",
        Hint::PadDim(dim) => {
            return format!("{}; name dim {dim} in dims to pad it too", bare(mismatch))
        }
        _ => return error.to_string(),
    };
    format!("{}; {hint}", bare(mismatch))
}

/// The mismatch without its hint.
fn bare(mismatch: &Mismatch) -> Mismatch {
    Mismatch { hint: None, ..mismatch.clone() }
}

/// Runs the body of a function that C calls. An error, or a panic, is reported to the log and becomes the last failure of the
/// thread.
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Error>) -> Status {
    let (status, text, sample) = match log::watched(|| catch_unwind(AssertUnwindSafe(body))) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(error)) => {
            let sample = error.sample().map_or(-1, |index| index as i64);
            (status_of(&error), text_of(&error), sample)
        }
        Err(_) => (Status::Bug, "a bug of windrow: it panicked, see stderr".to_owned(), -1),
    };
    log::report(LogLevel::Error, || format!("{}: {text}", status.name().to_string_lossy()));
    // Last, because the callback may call functions that fail.
    fail(status, &text, sample)
}

/// The error for an argument that is NULL.
pub(crate) fn is_null(name: &str) -> Error {
    Error::argument(format!("{name} is NULL"))
}

/// The text of this thread's last failure, and "" before the first; valid until the next one, or until the thread ends.
#[no_mangle]
pub extern "C" fn windrow_error() -> *const c_char {
    let text =
        FAILURE.try_with(|failure| failure.borrow().as_ref().map(|failure| failure.text.as_ptr()));
    text.ok().flatten().unwrap_or(c"".as_ptr())
}

/// The position of the sample that this thread's last failure is about; -1 if there is none.
#[no_mangle]
pub extern "C" fn windrow_error_sample() -> i64 {
    let sample =
        FAILURE.try_with(|failure| failure.borrow().as_ref().map(|failure| failure.sample));
    sample.ok().flatten().unwrap_or(-1)
}
