//! Dtypes as Python names them: by name, buffer format, array-interface kind and typestr.

use std::ffi::{c_long, CStr};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};
use windrow::dlpack::{dtype_from_dl, DLDataType, DLDataTypeCode};
use windrow::error::{Hint, Mismatch};
use windrow::DType;

use crate::ground::errors::{attribute, shown};

/// NumPy's int64 and uint64 are C's long where that has 8 bytes: by another code an array has a scalar type of its own.
const LONG_HAS_8_BYTES: bool = size_of::<c_long>() == 8;

/// Code of the buffer protocol in native order, such as `f`, or `Zf` of complex64; `None` for other byte order, and for dtypes
/// that have none.
pub(crate) fn format_of(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::Bool => c"?",
        DType::I8 => c"b",
        DType::I16 => c"h",
        DType::I32 => c"i",
        DType::I64 if LONG_HAS_8_BYTES => c"l",
        DType::I64 => c"q",
        DType::U8 => c"B",
        DType::U16 => c"H",
        DType::U32 => c"I",
        DType::U64 if LONG_HAS_8_BYTES => c"L",
        DType::U64 => c"Q",
        DType::F16 => c"e",
        DType::F32 => c"f",
        DType::F64 => c"d",
        DType::C64 => c"Zf",
        DType::C128 => c"Zd",
        _ => return None,
    })
}

/// Whether values of a dtype, by torch's or NumPy's name of it, have fewer bits than a byte.
pub(crate) fn is_small(name: &str) -> bool {
    let name = name.trim_start_matches("torch.");
    let bits = ["uint", "int", "float"].iter().find_map(|kind| name.strip_prefix(kind));
    bits.is_some_and(|bits| matches!(bits.as_bytes(), [b'1'..=b'7'] | [b'1'..=b'7', b'_', ..]))
}

/// The prefixes of a format whose byte order is not this machine's.
const FOREIGN_ORDER: &[u8] = if cfg!(target_endian = "little") { b">!" } else { b"<" };

/// The dtype of a buffer format, of other byte order if that says so; `None` if no dtype has it, or not with items of `size`
/// bytes. The size alone decides for the ints of two bytes or more, from `h` to `q` and `n`: that of `l` depends on the prefix.
pub(crate) fn dtype_of_format(format: &[u8], size: usize) -> Option<DType> {
    let is_swapped = matches!(format, [order, ..] if FOREIGN_ORDER.contains(order));
    let code = match format {
        [b'@' | b'=' | b'<' | b'>' | b'!', code @ ..] => code,
        code => code,
    };
    let dtype = match (code, size) {
        (b"?", _) => DType::Bool,
        (b"b", _) => DType::I8,
        (b"B" | b"c", _) => DType::U8,
        (b"h" | b"i" | b"l" | b"q" | b"n", 2 | 4 | 8) => dtype_of_kind(b'i', size)?,
        (b"H" | b"I" | b"L" | b"Q" | b"N", 2 | 4 | 8) => dtype_of_kind(b'u', size)?,
        (b"e", _) => DType::F16,
        (b"f", _) => DType::F32,
        (b"d", _) => DType::F64,
        (b"Zf" | b"F", _) => DType::C64,
        (b"Zd" | b"D", _) => DType::C128,
        _ => return None,
    };
    let dtype = if is_swapped { dtype.swapped()? } else { dtype };
    (dtype.size() == size).then_some(dtype)
}

/// The error for memory of foreign byte order, where only a view would do.
pub(crate) fn in_other_order(index: Option<usize>, dtype: DType) -> Box<Mismatch> {
    let mismatch = Mismatch::new(index, "native byte order", dtype);
    Box::new(mismatch.with_hint(Hint::Text(TO_NATIVE)))
}

const TO_NATIVE: &str = "array.astype(array.dtype.newbyteorder(\"=\")) is in native byte order";

/// The replacement to suggest for an array whose dtype is not supported, by its buffer format, typestr or name; never empty.
pub(crate) fn hint_for(dtype: &str) -> &'static str {
    let name = dtype.trim_start_matches(|c: char| "@=<>!|".contains(c) || c.is_ascii_digit());
    let starts = |words: &[&str]| words.iter().any(|word| name.starts_with(word));
    if ["int4", "uint4"].contains(&dtype) {
        // JAX's: NumPy's are samples, and torch's have another name.
        "numpy.asarray(array) is an array that can be a sample"
    } else if is_small(dtype) {
        "its bytes are samples: view them as uint8"
    } else if starts(&["O", "object"]) {
        "an object array holds Python objects: .astype() makes numbers of them, and list(array) is a list of its samples"
    } else if starts(&["M", "m", "datetime64", "timedelta64"]) {
        "array.view(\"int64\") gives the counts of its unit"
    } else if starts(&["T{", "[", "V", "x", "void"]) {
        "give its fields one by one, as array[\"name\"]"
    } else if starts(&["U", "S", "w", "s", "str", "bytes"]) {
        "a batch holds numbers: encode text first"
    } else if starts(&["g", "Zg", "float128", "complex256", "longdouble", "clongdouble"]) {
        ".astype(\"float64\") or .astype(\"complex128\") gives a dtype that a batch can have"
    } else if dtype.bytes().next().is_some_and(|order| FOREIGN_ORDER.contains(&order)) {
        TO_NATIVE
    } else {
        "cast it first, to a dtype that a batch can have"
    }
}

/// The array-interface typestr of a dtype; `None` for other byte order, and for dtypes that NumPy itself does not have.
pub(crate) fn typestr_of(dtype: DType) -> Option<String> {
    let kind = match dtype {
        _ if !dtype.is_native() => return None,
        DType::Bool => 'b',
        DType::F16 | DType::F32 | DType::F64 => 'f',
        DType::C64 | DType::C128 => 'c',
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 'u',
        _ if dtype.is_integer() => 'i',
        _ => return None,
    };
    let order = match (dtype.size(), cfg!(target_endian = "little")) {
        (1, _) => '|',
        (_, true) => '<',
        (_, false) => '>',
    };
    Some(format!("{order}{kind}{}", dtype.size()))
}

/// The dtype of an array-interface typestr, of other byte order if that says so; `None` if no dtype has it.
pub(crate) fn dtype_of_typestr(typestr: &[u8]) -> Option<DType> {
    let [order, kind, size @ ..] = typestr else { return None };
    let size = std::str::from_utf8(size).ok()?.parse().ok()?;
    match (dtype_of_kind(*kind, size)?, order) {
        (dtype, &order @ (b'<' | b'>')) if order == FOREIGN_ORDER[0] => dtype.swapped(),
        (dtype, b'<' | b'>' | b'=' | b'|') => Some(dtype),
        _ => None,
    }
}

/// The dtype of an array-interface kind and a size in bytes; `None` if there is none.
pub(crate) fn dtype_of_kind(kind: u8, size: usize) -> Option<DType> {
    Some(match (kind, size) {
        (b'b', 1) => DType::Bool,
        (b'i', 1) => DType::I8,
        (b'i', 2) => DType::I16,
        (b'i', 4) => DType::I32,
        (b'i', 8) => DType::I64,
        (b'u', 1) => DType::U8,
        (b'u', 2) => DType::U16,
        (b'u', 4) => DType::U32,
        (b'u', 8) => DType::U64,
        (b'f', 2) => DType::F16,
        (b'f', 4) => DType::F32,
        (b'f', 8) => DType::F64,
        (b'c', 8) => DType::C64,
        (b'c', 16) => DType::C128,
        _ => return None,
    })
}

/// The dtype of an array by its name, as NumPy knows the types of ml_dtypes; `None` for those that NumPy itself has, and for
/// elements of another size.
pub(crate) fn named_dtype(array: &Bound<'_, PyAny>, item_bytes: usize) -> PyResult<Option<DType>> {
    let dtype = attribute(array, "dtype")?;
    let name = dtype.map_or(Ok(None), |dtype| attribute(&dtype, "name"))?;
    let known = name.and_then(|name| name.extract::<String>().ok()?.parse().ok());
    // The others go by kind and byte order.
    Ok(known.filter(|&known: &DType| typestr_of(known).is_none() && known.size() == item_bytes))
}

/// A dtype by name, from NumPy, torch, JAX, ml_dtypes or Python itself, or by what it says of itself for DLPack. An object of
/// another library serves too, if its `name`, or its text behind the last dot, is the name of a dtype. TypeError for others, and
/// for foreign byte order.
pub(crate) fn dtype_of(dtype: &Bound<'_, PyAny>) -> PyResult<DType> {
    let parse =
        |name: &str| name.parse::<DType>().map_err(|error| PyTypeError::new_err(error.to_string()));
    if let Ok(class) = dtype.cast::<PyType>() {
        return parse(&class.name()?.to_string_lossy());
    }
    let text = shown(dtype)?;
    if dtype.is_instance_of::<PyString>() && !text.starts_with("torch.") {
        return parse(&text);
    }
    let word = |name| -> PyResult<Option<String>> {
        Ok(attribute(dtype, name)?.and_then(|word| word.extract().ok()))
    };
    let foreign = if cfg!(target_endian = "little") { ">" } else { "<" };
    if word("byteorder")?.is_some_and(|order| order == foreign) {
        return parse(&text);
    }
    let unknown = || -> PyResult<String> {
        Ok(format!("{text} ({})", dtype.get_type().fully_qualified_name()?))
    };
    if let Some(data_type) = attribute(dtype, "__dlpack_data_type__")? {
        let (code, bits, lanes) = data_type.call0()?.extract()?;
        return dtype_from_dl(DLDataType { code: DLDataTypeCode(code), bits, lanes })
            .or_else(|_| parse(&unknown()?));
    }
    // Other libraries give NumPy's words other meanings: pyarrow's "float" has four bytes.
    let known = word("name")?.and_then(|name| DType::from_name(&name));
    match known.or_else(|| DType::from_name(text.rsplit('.').next().unwrap_or_default())) {
        Some(known) => Ok(known),
        None => parse(&unknown()?),
    }
}
