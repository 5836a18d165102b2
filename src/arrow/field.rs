//! Reads a schema: the type of a column in this crate's terms.
#![allow(unsafe_code)] // A foreign schema is read here.

use std::ffi::{c_char, CStr};

use super::ffi::ArrowSchema;
use crate::tensor::{checked_numel, DType, Dims, Error, Mismatch, Result, MAX_NDIM};

/// The format strings of numbers.
pub(super) const FORMATS: [(&str, DType); 11] = [
    ("c", DType::I8),
    ("C", DType::U8),
    ("s", DType::I16),
    ("S", DType::U16),
    ("i", DType::I32),
    ("I", DType::U32),
    ("l", DType::I64),
    ("L", DType::U64),
    ("e", DType::F16),
    ("f", DType::F32),
    ("g", DType::F64),
];

/// Deeper types are refused.
const MAX_DEPTH: usize = MAX_NDIM;

/// A column or a part of one.
#[derive(Clone, Debug)]
pub(super) struct SchemaField {
    pub name: String,
    pub data_type: DataType,
}

/// The type of a column's rows.
#[derive(Clone, Debug)]
pub(super) enum DataType {
    Number(DType),
    /// One bit each.
    Bits,
    /// Lists of this fixed number of entries.
    Fixed(i64, Box<SchemaField>),
    List {
        /// Offsets are 64 bits.
        wide: bool,
        entries: Box<SchemaField>,
    },
    View {
        wide: bool,
        entries: Box<SchemaField>,
    },
    Struct(Vec<SchemaField>),
    /// A level of the index that pandas names itself; it has no column.
    IndexLevel,
    /// Tensors of one shape, in lists of their elements. `order` is the permutation that leads from the shape in storage to
    /// that of a sample; `None` keeps it.
    Tensor {
        shape: Dims,
        order: Option<Dims>,
        storage: Box<SchemaField>,
    },
    /// Tensors with a shape beside each: the positions of both in the struct that holds them.
    Tensors {
        data: usize,
        shape: usize,
        order: Option<Dims>,
        parts: Vec<SchemaField>,
    },
    Text(Text),
    /// A type that is not read: its name in errors, and the cure.
    Other(String, &'static str),
}

/// How strings and bytes are stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    pub is_utf8: bool,
    pub how: TextHow,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum TextHow {
    Offsets { wide: bool },
    Views,
}

const CONVERT: &str = "leave the column out or convert it first";

impl SchemaField {
    /// Reads a schema. Types that windrow does not support become [`DataType::Other`], without an error. A name that is NULL or not
    /// UTF-8 is empty.
    ///
    /// # Errors
    /// [`Error::Layout`] for a schema that contradicts itself or is too deep; [`Error::OutOfMemory`].
    ///
    /// # Safety
    /// A schema that is not changed meanwhile, with as many children as it says, NUL-terminated strings and metadata of the
    /// sizes in it.
    pub unsafe fn read(schema: &ArrowSchema) -> Result<SchemaField> {
        // SAFETY: the caller's promise.
        unsafe { read_at(schema, 0) }
    }
}

/// The [`Error::Layout`] of a schema.
fn broken(expected: &str, got: impl Into<String>) -> Error {
    Mismatch::for_subject("Arrow schema", expected, got.into()).into_error(Error::Layout)
}

/// Reads a schema as [`SchemaField::read`] does, `depth` levels below the root.
///
/// # Safety
/// A schema that is not changed meanwhile, with as many children as it says, NUL-terminated strings and metadata of the
/// sizes in it.
unsafe fn read_at(schema: &ArrowSchema, depth: usize) -> Result<SchemaField> {
    if schema.is_released() {
        return Err(broken("one that is alive", "a released one"));
    }
    if depth > MAX_DEPTH {
        return Err(broken(&format!("at most {MAX_DEPTH} levels"), "more"));
    }
    // SAFETY: the caller's promise.
    let (format, name) = unsafe { (text_at(schema.format), text_at(schema.name)) };
    let Some(format) = format else {
        return Err(broken("a format in UTF-8", "none"));
    };
    let name = name.unwrap_or_default();
    if !schema.dictionary.is_null() {
        let data_type = DataType::Other(
            "a dictionary".into(),
            "decode it before, by a cast to the type of its values",
        );
        return Ok(SchemaField { name, data_type });
    }
    let num_children = schema.n_children;
    if num_children < 0 || num_children > 0 && schema.children.is_null() {
        return Err(broken("an array of children", format!("{num_children} at NULL")));
    }
    let mut children = Vec::new();
    debug_assert!(schema.children.is_aligned());
    for position in 0..num_children as usize {
        // SAFETY: the list of children is not NULL, and has as many pointers as the schema says.
        let child = unsafe { (*schema.children.add(position)).as_ref() };
        let Some(child) = child else {
            return Err(broken("children", format!("NULL as child {position}")));
        };
        children.try_reserve(1).map_err(|_| Error::OutOfMemory { bytes: num_children as u64 })?;
        // SAFETY: the caller's promise covers the children.
        children.push(unsafe { read_at(child, depth + 1) }?);
    }
    // SAFETY: the caller's promise.
    let metadata = unsafe { Metadata::read(schema.metadata) }?;
    let is_level = |child: &&mut SchemaField| {
        is_index(&child.name) && has_text(&metadata.pandas, "index_columns", &child.name)
    };
    children.iter_mut().filter(is_level).for_each(|child| child.data_type = DataType::IndexLevel);
    let data_type = data_type_of(&format, children)?;
    let data_type = match metadata.extension {
        Some(extension) => extended(data_type, &extension, &metadata.parameters)?,
        None => data_type,
    };
    Ok(SchemaField { name, data_type })
}

/// Whether pandas gives this name to a level of an index without a name.
fn is_index(name: &str) -> bool {
    let level = name.strip_prefix("__index_level_").and_then(|name| name.strip_suffix("__"));
    level.is_some_and(|level| level.parse::<u32>().is_ok())
}

/// The type that a format string names; [`DataType::Other`] for one that is not read, [`Error::Layout`] for a wrong
/// number of children.
fn data_type_of(format: &str, children: Vec<SchemaField>) -> Result<DataType> {
    let number = FORMATS.iter().find(|(known, _)| *known == format);
    let text = |is_utf8, how| DataType::Text(Text { is_utf8, how });
    let data_type = match (format, number) {
        (_, Some(&(_, dtype))) => DataType::Number(dtype),
        ("b", _) => DataType::Bits,
        ("u", _) => text(true, TextHow::Offsets { wide: false }),
        ("U", _) => text(true, TextHow::Offsets { wide: true }),
        ("vu", _) => text(true, TextHow::Views),
        ("z", _) => text(false, TextHow::Offsets { wide: false }),
        ("Z", _) => text(false, TextHow::Offsets { wide: true }),
        ("vz", _) => text(false, TextHow::Views),
        ("+s", _) => return Ok(DataType::Struct(children)),
        ("+l" | "+L" | "+vl" | "+vL", _) => {
            let wide = format.ends_with('L');
            let entries = Box::new(only(format, children)?);
            return Ok(match format.contains('v') {
                true => DataType::View { wide, entries },
                false => DataType::List { wide, entries },
            });
        }
        _ => match format.strip_prefix("+w:") {
            Some(size) => {
                let size = size.parse::<i64>().ok().filter(|&size| size >= 0);
                let Some(size) = size else {
                    return Err(broken("a fixed-size list of a size", format!("{format:?}")));
                };
                return Ok(DataType::Fixed(size, Box::new(only(format, children)?)));
            }
            None => return Ok(DataType::Other(format_noun(format), CONVERT)),
        },
    };
    match children.len() {
        0 => Ok(data_type),
        got => Err(broken("no children", format!("{got} of format {format:?}"))),
    }
}

/// The one child of a list; [`Error::Layout`] if there are none or several.
fn only(format: &str, mut children: Vec<SchemaField>) -> Result<SchemaField> {
    match (children.pop(), children.is_empty()) {
        (Some(child), true) => Ok(child),
        (child, _) => {
            let got = children.len() + usize::from(child.is_some());
            Err(broken("one child", format!("{got} of format {format:?}")))
        }
    }
}

/// The noun for a format that is not read, as errors show it.
fn format_noun(format: &str) -> String {
    let name = match format.as_bytes() {
        [b'n', ..] => "null",
        [b'd', ..] => "decimal",
        [b'w', ..] => "fixed-size binary",
        [b't', b'd', ..] => "date",
        [b't', b't', ..] => "time",
        [b't', b's', ..] => "timestamp",
        [b't', b'D', ..] => "duration",
        [b't', b'i', ..] => "interval",
        [b'+', b'm', ..] => "map",
        [b'+', b'r', ..] => return "a run-end encoded column".into(),
        [b'+', b'u', ..] => "union",
        _ => return format!("the Arrow format {format:?}"),
    };
    format!("a column of the Arrow type {name}")
}

/// The type that an extension gives to its storage: tensors, or [`DataType::Other`] for an extension that is not known.
/// [`Error::Layout`] for metadata that does not fit the storage.
fn extended(data_type: DataType, extension: &str, metadata: &str) -> Result<DataType> {
    let broken = |expected: &str| broken(expected, format!("{metadata:?} of {extension}"));
    match (extension, data_type) {
        (
            "arrow.fixed_shape_tensor" | "ray.data.arrow_tensor" | "ray.data.arrow_tensor_v2",
            storage @ (DataType::Fixed(..) | DataType::List { .. }),
        ) => {
            let shape = integers_in(metadata, "shape").or_else(|| integers_in(metadata, ""));
            let shape = shape.filter(|s| s.len() < MAX_NDIM && s.iter().all(|&extent| extent >= 0));
            let shape = shape.filter(|s| checked_numel(s).is_some());
            let Some(shape) = shape else { return Err(broken("the shape of a tensor")) };
            if matches!(storage, DataType::Fixed(size, _) if Some(size) != checked_numel(&shape)) {
                return Err(broken("a shape of as many elements as its storage has"));
            }
            let order =
                order_of(metadata, Some(shape.len())).map_err(|()| broken("an order of dims"))?;
            let storage = Box::new(SchemaField { name: String::new(), data_type: storage });
            Ok(DataType::Tensor { shape, order, storage })
        }
        (
            "arrow.variable_shape_tensor" | "ray.data.arrow_variable_shaped_tensor",
            DataType::Struct(parts),
        ) => {
            let find = |name: &str| parts.iter().position(|part| part.name == name);
            let (Some(data), Some(shape)) = (find("data"), find("shape")) else {
                return Err(broken("a struct of data and shape"));
            };
            let order = order_of(metadata, None).map_err(|()| broken("an order of dims"))?;
            Ok(DataType::Tensors { data, shape, order, parts })
        }
        _ => Ok(DataType::Other(
            format!("the extension type {extension:?}"),
            "give its storage, or convert it first",
        )),
    }
}

/// The `permutation` of dims in metadata; `None` without one, or for one that is no list of
/// integers. `Err` if it does not permute `ndim` dims, or any number for `None`.
fn order_of(metadata: &str, ndim: Option<usize>) -> std::result::Result<Option<Dims>, ()> {
    let Some(order) = integers_in(metadata, "permutation") else { return Ok(None) };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    let is_order = sorted.iter().enumerate().all(|(dim, &at)| dim as i64 == at);
    match is_order && ndim.is_none_or(|ndim| ndim == order.len()) {
        true => Ok(Some(order)),
        false => Err(()),
    }
}

/// The list of integers under a key of a JSON object, or that `json` itself is if `key` is empty. `None` if it is missing or has
/// other entries.
pub(super) fn integers_in(json: &str, key: &str) -> Option<Dims> {
    let list = |text: &str| -> Option<Dims> {
        let inside = text.trim_start().strip_prefix('[')?.split_once(']')?.0;
        match inside.trim() {
            "" => Some(Dims::new()),
            inside => inside.split(',').map(|number| number.trim().parse().ok()).collect(),
        }
    };
    match key {
        "" => list(json),
        key => list(value_in(json, key)?),
    }
}

/// Whether the list under a key of a JSON object has this entry, a text without escapes.
fn has_text(json: &str, key: &str, text: &str) -> bool {
    let list = value_in(json, key).map(str::trim_start).filter(|value| value.starts_with('['));
    list.is_some_and(|list| strings_of(list).any(|(depth, word, _)| depth == 1 && word == text))
}

/// The text of a JSON object from the value under one of its own keys on; `None` without the key.
fn value_in<'j>(json: &'j str, key: &str) -> Option<&'j str> {
    strings_of(json).find_map(|(depth, word, after)| {
        let value = after.trim_start().strip_prefix(':')?;
        (depth == 1 && word == key).then_some(value)
    })
}

/// The keys and strings of a JSON value up to its end: how many brackets are open around each (1 in the outermost object), the
/// raw text with its escapes, and the text after it.
fn strings_of(json: &str) -> impl Iterator<Item = (usize, &str, &str)> {
    let (mut depth, mut rest) = (0usize, json);
    std::iter::from_fn(move || loop {
        let at = rest.find(['"', '{', '}', '[', ']'])?;
        let (mark, after) = (rest.as_bytes()[at], &rest[at + 1..]);
        rest = after;
        match mark {
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth <= 1 => return None,
            b'}' | b']' => depth -= 1,
            _ => {
                let (word, after) = string_of(rest)?;
                rest = after;
                return Some((depth, word, after));
            }
        }
    })
}

/// Splits behind an opening quotation mark at the closing one: the text before it and after it. `None` without one.
fn string_of(text: &str) -> Option<(&str, &str)> {
    let mut is_escaped = false;
    let end = text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })?;
    Some((&text[..end], &text[end + 1..]))
}

/// A copy of a C string; `None` for NULL and for what is not UTF-8.
///
/// # Safety
/// NULL or a NUL-terminated string.
unsafe fn text_at(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().ok().map(str::to_owned)
}

/// The parts of a schema's metadata that windrow reads.
#[derive(Default)]
struct Metadata {
    /// The name of an extension type.
    extension: Option<String>,
    /// The metadata of an extension type.
    parameters: String,
    /// The metadata that pandas adds to its tables, which may have columns for the index.
    pandas: String,
}

impl Metadata {
    /// Reads the metadata of a schema; empty for NULL. The last of equal keys counts, and bytes
    /// that are not UTF-8 are replaced. [`Error::Layout`] for a negative size.
    ///
    /// # Safety
    /// NULL or the metadata of a schema, of the sizes in it.
    unsafe fn read(metadata: *const c_char) -> Result<Metadata> {
        let mut read = Metadata::default();
        if metadata.is_null() {
            return Ok(read);
        }
        let mut at = metadata.cast::<u8>();
        // SAFETY: the caller's promise: sizes are where the entries before them end.
        let num_pairs = unsafe { size_at(&mut at) }?;
        for _ in 0..num_pairs {
            let mut next = || -> Result<String> {
                // SAFETY: as above.
                let len = unsafe { size_at(&mut at) }?;
                // SAFETY: `len` bytes follow the size.
                let bytes = unsafe { std::slice::from_raw_parts(at, len) };
                at = at.wrapping_add(len);
                Ok(String::from_utf8_lossy(bytes).into_owned())
            };
            let (key, value) = (next()?, next()?);
            match key.as_str() {
                "ARROW:extension:name" => read.extension = Some(value),
                "ARROW:extension:metadata" => read.parameters = value,
                "pandas" => read.pandas = value,
                _ => {}
            }
        }
        Ok(read)
    }
}

/// Reads a size and moves `at` behind it; [`Error::Layout`] if the size is negative.
///
/// # Safety
/// `at` points to an int32 in readable memory, at any alignment.
unsafe fn size_at(at: &mut *const u8) -> Result<usize> {
    debug_assert!(!at.is_null());
    // SAFETY: the caller's promise.
    let size = unsafe { at.cast::<i32>().read_unaligned() };
    *at = at.wrapping_add(size_of::<i32>());
    usize::try_from(size).map_err(|_| broken("sizes from 0 on in its metadata", size.to_string()))
}
