//! [`Number`]: a number with its kind, as a struct of C.

use std::fmt;

use windrow::tensor::Scalar;
use windrow::{Error, Result};

/// The member of `windrow_number.as` that holds the number: `windrow_number.kind`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberKind {
    /// `int64`.
    Int64 = 0,
    /// `uint64`.
    Uint64 = 1,
    /// `float64`.
    Float64 = 2,
    /// `complex128`: real and imaginary part.
    Complex128 = 3,
}

/// The number itself; `windrow_number.kind` says which member it is.
#[repr(C)]
#[derive(Clone, Copy)]
pub union NumberValue {
    /// The number of kind `WINDROW_NUMBER_KIND_INT64`.
    pub int64: i64,
    /// The number of kind `WINDROW_NUMBER_KIND_UINT64`.
    pub uint64: u64,
    /// The number of kind `WINDROW_NUMBER_KIND_FLOAT64`.
    pub float64: f64,
    /// The number of kind `WINDROW_NUMBER_KIND_COMPLEX128`: real and imaginary part.
    pub complex128: [f64; 2],
}

/// A number. `windrow_int64`, `windrow_uint64`, `windrow_float64` and `windrow_complex128` make one. It reaches the dtype that
/// it is for exactly or, where that is a floating-point dtype, rounded once; a number that an integer dtype cannot hold is
/// WINDROW_STATUS_ARGUMENT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Number {
    /// A `windrow_number_kind`.
    pub kind: i32,
    /// The number.
    pub r#as: NumberValue,
}

/// A number that is an integer. It owns nothing, and any thread may call this.
#[no_mangle]
pub extern "C" fn windrow_int64(value: i64) -> Number {
    Number { kind: NumberKind::Int64 as i32, r#as: NumberValue { int64: value } }
}

/// A number that is an integer without a sign, for values beyond int64.
#[no_mangle]
pub extern "C" fn windrow_uint64(value: u64) -> Number {
    Number { kind: NumberKind::Uint64 as i32, r#as: NumberValue { uint64: value } }
}

/// A number of floating point.
#[no_mangle]
pub extern "C" fn windrow_float64(value: f64) -> Number {
    Number { kind: NumberKind::Float64 as i32, r#as: NumberValue { float64: value } }
}

/// A complex number.
#[no_mangle]
pub extern "C" fn windrow_complex128(re: f64, im: f64) -> Number {
    Number { kind: NumberKind::Complex128 as i32, r#as: NumberValue { complex128: [re, im] } }
}

impl Number {
    /// The number in the member of its kind; errors call it `name`.
    ///
    /// # Safety
    /// The member of its kind has been written to.
    ///
    /// # Errors
    /// [`Error::Argument`] for an unknown kind.
    pub(crate) unsafe fn scalar(&self, name: &str) -> Result<Scalar> {
        // SAFETY: the caller's promise; all bits are values of these members.
        unsafe {
            Ok(match self.kind {
                0 => Scalar::from(self.r#as.int64),
                1 => Scalar::from(self.r#as.uint64),
                2 => Scalar::from(self.r#as.float64),
                3 => Scalar::Complex(self.r#as.complex128[0], self.r#as.complex128[1]),
                kind => {
                    return Err(Error::argument(format!(
                        "{name}.kind must be a windrow_number_kind, got {kind}; windrow_int64 and windrow_float64 make numbers"
                    )))
                }
            })
        }
    }
}

impl fmt::Debug for Number {
    // Other members than that of the kind may not have been written to.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Number").field("kind", &self.kind).finish_non_exhaustive()
    }
}
