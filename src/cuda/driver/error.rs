//! The meaning of result codes for the engine.

use std::ffi::{c_char, CStr};
use std::ptr::null;

use cust::error::CudaError;

use super::codes::{
    CuResult, NOT_FOUND, NOT_INITIALIZED, NOT_READY, NOT_SUPPORTED, NO_DEVICE, OUT_OF_MEMORY,
    UNKNOWN,
};
use super::raw;
use super::started::forked;
use crate::tensor::{DriverError, Error};

/// The result of a driver call.
pub(crate) type DriverResult<T> = Result<T, DriverError>;

impl CuResult {
    /// An error for every code but 0.
    #[inline]
    pub(super) fn ok(self) -> DriverResult<()> {
        if self.code == 0 {
            return Ok(());
        }
        Err(DriverError::from_code(self.function, self.code))
    }

    /// The answer of a query: false for NOT_READY, true for code 0, an error for any other code.
    #[inline]
    pub(super) fn is_ready(self) -> DriverResult<bool> {
        if self.code == NOT_READY {
            return Ok(false);
        }
        self.ok().map(|()| true)
    }
}

impl DriverError {
    /// The error of a code, with the driver's name and text for it, or a substitute.
    #[cold]
    pub(crate) fn from_code(function: &'static str, code: u32) -> DriverError {
        let name = described(raw::cuGetErrorName, code);
        let name = name.unwrap_or_else(|| known_name(code).to_owned());
        let text = described(raw::cuGetErrorString, code).unwrap_or_else(|| match code {
            NOT_FOUND => "the driver lacks this function".to_owned(),
            _ => "the driver has no text for it".to_owned(),
        });
        DriverError { function, code, name, text }
    }

    /// The error of a code that went through cust, whose enum has no place for newer codes: for UNKNOWN it has the latest such
    /// code of any thread, if there is one.
    #[cold]
    pub(crate) fn from_cust(function: &'static str, error: CudaError) -> DriverError {
        let code = match error as u32 {
            UNKNOWN => {
                Some(windrow_driver::last_unknown_code()).filter(|c| *c != 0).unwrap_or(UNKNOWN)
            }
            code => code,
        };
        DriverError::from_code(function, code)
    }

    /// Whether the driver ran out of memory.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.code == OUT_OF_MEMORY
    }

    /// Whether the driver lacks this function, or the device cannot do it.
    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(self.code, NOT_FOUND | NOT_SUPPORTED)
    }
}

/// The driver answers NOT_INITIALIZED in a forked child; there the hint is worth more than the code.
impl From<DriverError> for Error {
    fn from(error: DriverError) -> Error {
        match error.code {
            NOT_INITIALIZED => forked().unwrap_or_else(|| Error::Cuda(Box::new(error))),
            _ => Error::Cuda(Box::new(error)),
        }
    }
}

/// The text that cuGetErrorName or cuGetErrorString has for a code; `None` if it has none.
fn described(ask: unsafe fn(u32, *mut *const c_char) -> CuResult, code: u32) -> Option<String> {
    let mut text = null();
    // SAFETY: both write a pointer to a static text, or null, to their second argument.
    let answer = unsafe { ask(code, &raw mut text) };
    if answer.code != 0 || text.is_null() {
        return None;
    }
    // SAFETY: the driver has set it to one of its static, NUL-terminated texts.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// A name where the driver gives none: that of NO_DEVICE or NOT_FOUND, the codes of a driver or function that is absent, and one
/// text for all others.
fn known_name(code: u32) -> &'static str {
    match code {
        NO_DEVICE => "CUDA_ERROR_NO_DEVICE",
        NOT_FOUND => "CUDA_ERROR_NOT_FOUND",
        _ => "an unknown CUDA error",
    }
}
