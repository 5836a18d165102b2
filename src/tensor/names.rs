//! Dtypes and devices by their names.

use std::str::FromStr;

use crate::tensor::device::Device;
use crate::tensor::dtype::DType;
use crate::tensor::error::{Error, Result};

impl FromStr for DType {
    type Err = Error;

    /// Takes the names of [`DType::name`], and NumPy's names, aliases and type codes with NumPy's meaning:
    /// `"half"`, `"float"` (float64), `"f4"`, `"<i8"`. Codes in the byte order of other machines are
    /// refused.
    ///
    /// # Errors
    /// [`Error::Argument`] for any other name.
    fn from_str(name: &str) -> Result<Self> {
        if let Some(dtype) = DType::from_name(name).or_else(|| numpy_alias(name)) {
            return Ok(dtype);
        }
        let code = name.strip_prefix(['<', '>', '=', '|']).unwrap_or(name);
        let Some(dtype) = numpy_code(code) else {
            let names: Vec<_> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
            return Err(Error::argument(format!(
                "dtype must be one of {}, or NumPy's name or code for one, such as \"half\" or \"<f4\", got {name:?}",
                names.join(", ")
            )));
        };
        let (native, other, which) = match cfg!(target_endian = "little") {
            true => ('<', '>', "big"),
            false => ('>', '<', "little"),
        };
        if dtype.size() > 1 && name.starts_with(other) {
            return Err(Error::argument(format!(
                "dtype={name:?} is {which}-endian; batches have the byte order of this machine: \"{native}{code}\""
            )));
        }
        Ok(dtype)
    }
}

const LONG: DType = if size_of::<std::ffi::c_long>() == 8 { DType::I64 } else { DType::I32 };
const ULONG: DType = if size_of::<std::ffi::c_ulong>() == 8 { DType::U64 } else { DType::U32 };

/// NumPy's aliases: Python's types, and C's.
fn numpy_alias(name: &str) -> Option<DType> {
    Some(match name {
        "bool_" => DType::Bool,
        "byte" => DType::I8,
        "short" => DType::I16,
        "intc" => DType::I32,
        "long" => LONG,
        "int" | "int_" | "intp" | "longlong" => DType::I64,
        "ubyte" => DType::U8,
        "ushort" => DType::U16,
        "uintc" => DType::U32,
        "ulong" => ULONG,
        "uint" | "uintp" | "ulonglong" => DType::U64,
        "half" => DType::F16,
        "single" => DType::F32,
        "float" | "double" => DType::F64,
        "csingle" => DType::C64,
        "complex" | "cdouble" => DType::C128,
        _ => return None,
    })
}

/// NumPy's type characters, and its kinds with a size in bytes, both without a mark of byte order.
fn numpy_code(code: &str) -> Option<DType> {
    Some(match code {
        "?" | "b1" => DType::Bool,
        "b" | "i1" => DType::I8,
        "h" | "i2" => DType::I16,
        "i" | "i4" => DType::I32,
        "l" => LONG,
        "q" | "p" | "n" | "i8" => DType::I64,
        "B" | "u1" => DType::U8,
        "H" | "u2" => DType::U16,
        "I" | "u4" => DType::U32,
        "L" => ULONG,
        "Q" | "P" | "N" | "u8" => DType::U64,
        "e" | "f2" => DType::F16,
        "f" | "f4" => DType::F32,
        "d" | "f8" => DType::F64,
        "F" | "c8" => DType::C64,
        "D" | "c16" => DType::C128,
        _ => return None,
    })
}

impl FromStr for Device {
    type Err = Error;

    /// Takes `"cpu"`, `"pinned"`, `"cuda"` (device 0) and `"cuda:1"`; `"cpu:0"`, as torch's devices
    /// may print, is the CPU.
    ///
    /// # Errors
    /// [`Error::Argument`] for any other name.
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "cpu" | "cpu:0" => Ok(Device::Cpu),
            "pinned" => Ok(Device::Pinned),
            "cuda" => Ok(Device::Cuda(0)),
            _ => name
                .strip_prefix("cuda:")
                // Numbers that Rust reads have a sign, too.
                .filter(|ordinal| !ordinal.starts_with('+'))
                .and_then(|ordinal| ordinal.parse().ok())
                .map(Device::Cuda)
                .ok_or_else(|| {
                    Error::argument(format!(
                        "device must be \"cpu\", \"pinned\", \"cuda\" or \"cuda:N\", got {name:?}"
                    ))
                }),
        }
    }
}
