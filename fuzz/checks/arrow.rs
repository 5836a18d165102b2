//! Arrow arrays that say anything of themselves, in buffers exactly as large as their lengths and offsets say, which is all
//! that a producer is trusted with. AddressSanitizer sees a read past one. What is read is assembled, so that every
//! sample is read too.
#![allow(unsafe_code, reason = "Arrow structs at raw addresses")]

use std::ffi::{c_char, c_void, CString};
use std::ptr;

use arbitrary::{Arbitrary, Unstructured};
use windrow::arrow::{ArrowArray, ArrowSchema, ColumnRows, Columns};
use windrow::{Collate, Engine, Pad, Ragged};

/// A type and an array of it, which need not fit.
#[derive(Debug)]
struct Node {
    format: Format,
    length: i64,
    offset: i64,
    null_count: i64,
    /// More or fewer buffers and children than the type has.
    more_buffers: i8,
    more_children: i8,
    is_null: [bool; 4],
    has_dictionary: bool,
    /// Offsets rise by small steps.
    is_tidy: bool,
    content: Vec<u8>,
    children: Vec<Node>,
}

#[derive(Arbitrary, Clone, Debug)]
enum Format {
    Number(u8),
    Bits,
    List,
    LargeList,
    View,
    LargeView,
    Fixed(i8),
    Struct,
    Utf8,
    LargeUtf8,
    Utf8View,
    Binary,
    LargeBinary,
    BinaryView,
    Tensor(u8, u8),
    /// Tensors with a shape each, in this many dims.
    Tensors(u8),
    Text(String),
}

/// Bytes of the buffer that views of strings and bytes point into.
const VIEWED_BYTES: usize = 64;

const NUMBERS: [(&str, usize); 11] = [
    ("c", 1),
    ("C", 1),
    ("s", 2),
    ("S", 2),
    ("i", 4),
    ("I", 4),
    ("l", 8),
    ("L", 8),
    ("e", 2),
    ("f", 4),
    ("g", 8),
];

impl Format {
    fn text(&self) -> String {
        match self {
            Format::Number(which) => NUMBERS[usize::from(*which) % NUMBERS.len()].0.to_owned(),
            Format::Bits => "b".to_owned(),
            Format::List => "+l".to_owned(),
            Format::LargeList => "+L".to_owned(),
            Format::View => "+vl".to_owned(),
            Format::LargeView => "+vL".to_owned(),
            Format::Fixed(size) => format!("+w:{size}"),
            Format::Tensor(a, b) => format!("+w:{}", u32::from(a % 4) * u32::from(b % 4)),
            Format::Struct | Format::Tensors(_) => "+s".to_owned(),
            Format::Binary => "z".to_owned(),
            Format::LargeBinary => "Z".to_owned(),
            Format::BinaryView => "vz".to_owned(),
            Format::Utf8 => "u".to_owned(),
            Format::LargeUtf8 => "U".to_owned(),
            Format::Utf8View => "vu".to_owned(),
            Format::Text(text) => text.clone(),
        }
    }

    /// Bytes of each buffer behind the bitmap, for so many rows from the first of the buffers on.
    fn buffers(&self, rows: usize) -> Vec<usize> {
        match self {
            Format::Number(which) => vec![rows * NUMBERS[usize::from(*which) % NUMBERS.len()].1],
            Format::Bits => vec![rows.div_ceil(8)],
            Format::List => vec![(rows + 1) * 4],
            Format::LargeList => vec![(rows + 1) * 8],
            Format::View => vec![rows * 4; 2],
            Format::LargeView => vec![rows * 8; 2],
            Format::Fixed(_) | Format::Tensor(..) | Format::Tensors(_) | Format::Struct => vec![],
            // The bytes behind the offsets are as many as these say: `Memory::array`.
            Format::Utf8 | Format::Binary => vec![(rows + 1) * 4, 0],
            Format::LargeUtf8 | Format::LargeBinary => vec![(rows + 1) * 8, 0],
            Format::Utf8View | Format::BinaryView => vec![rows * 16, VIEWED_BYTES, 8],
            // Whatever it is, no element has more than 32 bytes.
            Format::Text(_) => vec![(rows + 1) * 32; 3],
        }
    }

    /// Bytes of one offset, of those that have offsets.
    fn offset_bytes(&self) -> Option<usize> {
        match self {
            Format::List | Format::Utf8 | Format::Binary => Some(4),
            Format::LargeList | Format::LargeUtf8 | Format::LargeBinary => Some(8),
            _ => None,
        }
    }

    /// Keys and values as the C data interface has them.
    fn metadata(&self) -> Option<Vec<u8>> {
        let (name, parameters) = match self {
            Format::Tensor(a, b) => {
                ("arrow.fixed_shape_tensor", format!("{{\"shape\":[{},{}]}}", a % 4, b % 4))
            }
            Format::Tensors(n) if n & 64 != 0 => {
                ("arrow.variable_shape_tensor", "{\"permutation\":[1,0]}".to_owned())
            }
            Format::Tensors(_) => ("arrow.variable_shape_tensor", String::new()),
            _ => return None,
        };
        let mut bytes = 2i32.to_ne_bytes().to_vec();
        let pairs =
            [("ARROW:extension:name", name), ("ARROW:extension:metadata", parameters.as_str())];
        for text in pairs.iter().flat_map(|&(key, value)| [key, value]) {
            bytes.extend((text.len() as i32).to_ne_bytes());
            bytes.extend(text.as_bytes());
        }
        Some(bytes)
    }
}

/// Small, so that the memory can be there; at times negative.
fn count(u: &mut Unstructured<'_>) -> arbitrary::Result<i64> {
    Ok(match u.arbitrary::<u8>()? {
        n @ 0..=15 => i64::from(n),
        16..=31 => 0,
        n @ 32..=40 => i64::from(n),
        255 => -1,
        n => i64::from(n % 6),
    })
}

fn node(u: &mut Unstructured<'_>, depth: usize) -> arbitrary::Result<Node> {
    let format = u.arbitrary()?;
    node_of(format, u, depth)
}

fn node_of(format: Format, u: &mut Unstructured<'_>, depth: usize) -> arbitrary::Result<Node> {
    let wanted = match format {
        Format::List
        | Format::LargeList
        | Format::View
        | Format::LargeView
        | Format::Fixed(_)
        | Format::Tensor(..) => 1,
        Format::Struct => usize::from(u.arbitrary::<u8>()? % 3),
        _ => 0,
    };
    let mut children = Vec::new();
    if let Format::Tensors(ndim) = format {
        // The children are those of the type; what is in them may be anything.
        children.push(node_of(Format::List, u, depth + 1)?);
        let shape = match ndim & 128 {
            0 => Format::Fixed((ndim % 4) as i8),
            _ => Format::List,
        };
        children.push(node_of(shape, u, depth + 1)?);
    }
    for _ in 0..if depth < 4 { wanted } else { 0 } {
        children.push(node(u, depth + 1)?);
    }
    // Mostly as the type has it.
    let odd = |u: &mut Unstructured<'_>| {
        Ok(match u.arbitrary::<u8>()? {
            0 => -1,
            1 => 1,
            2 => -100,
            _ => 0,
        })
    };
    let (length, offset) = (count(u)?, if u.ratio(1, 3)? { count(u)? } else { 0 });
    let null_count = *u.choose(&[0, 0, 0, -1, 1])?;
    let (more_buffers, more_children) = (odd(u)?, odd(u)?);
    let is_null = if u.ratio(1, 8)? { u.arbitrary()? } else { [false; 4] };
    let (has_dictionary, is_tidy) = (u.ratio(1, 64)?, u.arbitrary()?);
    let size = usize::from(u.arbitrary::<u8>()?);
    let content = u.bytes(size.min(u.len()))?.to_vec();
    Ok(Node {
        format,
        length,
        offset,
        null_count,
        more_buffers,
        more_children,
        is_null,
        has_dictionary,
        is_tidy,
        content,
        children,
    })
}

/// The memory that both structs point to.
#[derive(Default)]
#[allow(clippy::vec_box, reason = "structs stay at their addresses while more are added")]
struct Memory {
    texts: Vec<CString>,
    blocks: Vec<Box<[u8]>>,
    schemas: Vec<Box<ArrowSchema>>,
    arrays: Vec<Box<ArrowArray>>,
    lists: Vec<Box<[*mut c_void]>>,
}

// `Memory` frees the memory that they point to.
unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: called once, with the live struct that it belongs to.
    unsafe { (*schema).release = None };
}

unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    // SAFETY: called once, with the live struct that it belongs to.
    unsafe { (*array).release = None };
}

impl Memory {
    fn text(&mut self, text: &str) -> *const c_char {
        let Ok(text) = CString::new(text) else { return ptr::null() };
        self.texts.push(text);
        self.texts[self.texts.len() - 1].as_ptr()
    }

    /// Exactly so many bytes, of small numbers mostly, so that offsets often fit. Allocators align them to 16.
    fn buffer(&mut self, bytes: usize, content: &[u8], shift: usize) -> *const c_void {
        let byte = |i: usize| match content.get((i + shift) % content.len().max(1)) {
            Some(&byte) if i % 4 == 0 => byte % 24,
            Some(&byte) if byte > 250 => byte,
            _ => 0,
        };
        self.blocks.push((0..bytes).map(byte).collect());
        self.blocks[self.blocks.len() - 1].as_ptr().cast()
    }

    /// A buffer of offsets; what the largest of them is.
    fn offsets(&mut self, width: usize, bytes: usize, node: &Node) -> i64 {
        self.buffer(bytes, &node.content, 0);
        let last = self.blocks.len() - 1;
        let (mut sum, mut most) = (0, 0);
        for (i, offset) in self.blocks[last].chunks_exact_mut(width).enumerate() {
            if node.is_tidy {
                offset.copy_from_slice(&i64::to_le_bytes(sum)[..width]);
                sum += i64::from(node.content.get(i).map_or(0, |byte| byte % 4));
            }
            most = most.max(match width {
                4 => i64::from(i32::from_ne_bytes(offset.try_into().expect("four bytes"))),
                _ => i64::from_ne_bytes(offset.try_into().expect("eight bytes")),
            });
        }
        most
    }

    fn list<T>(&mut self, items: Vec<*mut T>) -> *mut *mut T {
        let items: Vec<*mut c_void> = items.into_iter().map(<*mut T>::cast).collect();
        self.lists.push(items.into_boxed_slice());
        let last = self.lists.len() - 1;
        self.lists[last].as_mut_ptr().cast()
    }

    fn schema(&mut self, node: &Node, name: &str) -> *mut ArrowSchema {
        let children: Vec<_> = node
            .children
            .iter()
            .enumerate()
            .map(|(i, child)| match node.format {
                Format::Tensors(_) => self.schema(child, ["data", "shape"][i % 2]),
                _ => self.schema(child, &format!("c{i}")),
            })
            .collect();
        let mut schema = ArrowSchema::empty();
        schema.n_children = children.len() as i64;
        schema.children = self.list(children);
        schema.format = self.text(&node.format.text());
        schema.name = self.text(name);
        if let Some(metadata) = node.format.metadata() {
            self.blocks.push(metadata.into_boxed_slice());
            schema.metadata = self.blocks[self.blocks.len() - 1].as_ptr().cast();
        }
        schema.release = Some(release_schema);
        if node.has_dictionary {
            let mut values = ArrowSchema::empty();
            values.format = self.text("u");
            values.release = Some(release_schema);
            schema.dictionary = self.keep_schema(values);
        }
        self.keep_schema(schema)
    }

    fn keep_schema(&mut self, schema: ArrowSchema) -> *mut ArrowSchema {
        self.schemas.push(Box::new(schema));
        let last = self.schemas.len() - 1;
        &mut *self.schemas[last]
    }

    fn array(&mut self, node: &Node) -> *mut ArrowArray {
        let children: Vec<_> = node.children.iter().map(|child| self.array(child)).collect();
        let mut array = ArrowArray::empty();
        (array.length, array.offset, array.null_count) =
            (node.length, node.offset, node.null_count);
        let rows = (node.length.max(0) + node.offset.max(0)) as usize;
        let mut buffers = vec![match node.null_count {
            0 => ptr::null(),
            _ => self.buffer(rows.div_ceil(8), &node.content, 0),
        }];
        let mut end = 0;
        for (i, bytes) in node.format.buffers(rows).into_iter().enumerate() {
            let buffer = match (node.format.offset_bytes(), i) {
                (Some(width), 0) => {
                    end = self.offsets(width, bytes, node);
                    self.blocks[self.blocks.len() - 1].as_ptr().cast()
                }
                (Some(_), _) => match end {
                    0..=4096 => self.buffer(end as usize, &node.content, i),
                    // More than can be there: none is.
                    _ => ptr::null(),
                },
                (None, 2) if matches!(node.format, Format::Utf8View | Format::BinaryView) => {
                    self.blocks.push((VIEWED_BYTES as i64).to_ne_bytes().into());
                    self.blocks[self.blocks.len() - 1].as_ptr().cast()
                }
                _ => self.buffer(bytes, &node.content, i),
            };
            buffers.push(if node.is_null[i % 4] { ptr::null() } else { buffer });
        }
        // Fewer than there are: more would promise pointers that are not there.
        let fewer = |have: usize, more: i8| {
            if more == -100 {
                -1
            } else {
                have as i64 + i64::from(more.min(0))
            }
        };
        array.n_buffers = fewer(buffers.len(), node.more_buffers);
        array.n_children = fewer(children.len(), node.more_children);
        array.buffers =
            self.list(buffers.into_iter().map(<*const c_void>::cast_mut).collect()).cast();
        array.children = self.list(children);
        array.release = Some(release_array);
        self.arrays.push(Box::new(array));
        let last = self.arrays.len() - 1;
        &mut *self.arrays[last]
    }
}

/// Reads and assembles the array that an input describes.
pub fn check(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok(root) = node(&mut u, 0) else { return };
    let mut memory = Memory::default();
    let schema = memory.schema(&root, "");
    let array = memory.array(&root);
    // SAFETY: as the reader asks for it: ended strings, buffers as large as lengths and offsets say.
    let read = unsafe { Columns::from_schema(&*schema, ".") };
    let Ok(mut columns) = read else { return };
    for _ in 0..2 {
        // SAFETY: as above.
        if unsafe { columns.append(&*array) }.is_err() {
            return;
        }
    }
    let rows = columns.num_rows();
    let engine = Engine::builder().threads(1).build().expect("an engine on the host");
    for column in columns.into_columns() {
        let (list, unpacked) = match &column.rows {
            ColumnRows::Samples { list, unpacked } => (list, unpacked),
            ColumnRows::EmptyStructs => continue,
            ColumnRows::Texts { texts, .. } => {
                assert_eq!(texts.len(), rows, "{:?}", column.path);
                for &(data, len) in texts.iter().filter(|(_, len)| *len > 0) {
                    // SAFETY: bytes of the array, as the reader promises.
                    let bytes = unsafe { std::slice::from_raw_parts(data, len) };
                    std::hint::black_box(bytes.iter().fold(0u8, |sum, byte| sum ^ byte));
                }
                continue;
            }
        };
        assert_eq!(list.len(), rows, "{:?}", column.path);
        for collate in [Collate::stack(), Collate::ragged(Ragged::new()), Collate::pad(Pad::new())]
        {
            let _ = engine.assemble(list, &collate);
        }
        // Unpacked bits live as long as the list.
        assert!(unpacked
            .iter()
            .all(|tensor| tensor.nbytes() > 0 || list.is_empty() || tensor.shape().contains(&0)));
    }
}
