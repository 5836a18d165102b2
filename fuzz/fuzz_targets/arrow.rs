//! Arrow arrays that say anything of themselves, in buffers exactly as large as their lengths and offsets say, which is all
//! that a producer is trusted with. AddressSanitizer sees a read past one. What is read is assembled, so that every
//! sample is read too.
#![no_main]

use std::ffi::{c_char, c_void, CString};
use std::ptr;

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use windrow::arrow::{ArrowArray, ArrowSchema, Columns, Rows};
use windrow::{Collate, Engine, EngineOptions, Pad};

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
    Tensor(u8, u8),
    Text(String),
}

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
            Format::Struct => "+s".to_owned(),
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
            Format::Fixed(_) | Format::Tensor(..) | Format::Struct => vec![],
            Format::Utf8 => vec![(rows + 1) * 4, 64],
            Format::LargeUtf8 => vec![(rows + 1) * 8, 64],
            Format::Utf8View => vec![rows * 16, 64, 8],
            // Whatever it is, no element has more than 32 bytes.
            Format::Text(_) => vec![(rows + 1) * 32; 3],
        }
    }

    /// Keys and values as the C data interface has them.
    fn metadata(&self) -> Option<Vec<u8>> {
        let Format::Tensor(a, b) = self else { return None };
        let shape = format!("{{\"shape\":[{},{}]}}", a % 4, b % 4);
        let mut bytes = 2i32.to_ne_bytes().to_vec();
        let pairs = [
            ("ARROW:extension:name", "arrow.fixed_shape_tensor"),
            ("ARROW:extension:metadata", shape.as_str()),
        ];
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
    let format: Format = u.arbitrary()?;
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
    let has_dictionary = u.ratio(1, 64)?;
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
        content,
        children,
    })
}

/// What both structs point to.
#[derive(Default)]
struct Memory {
    texts: Vec<CString>,
    blocks: Vec<Box<[u8]>>,
    schemas: Vec<Box<ArrowSchema>>,
    arrays: Vec<Box<ArrowArray>>,
    lists: Vec<Box<[*mut c_void]>>,
}

// What they point to is freed by `Memory`.
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
            .map(|(i, child)| self.schema(child, &format!("c{i}")))
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
        for (i, bytes) in node.format.buffers(rows).into_iter().enumerate() {
            let is_null = node.is_null[i % 4];
            buffers.push(if is_null { ptr::null() } else { self.buffer(bytes, &node.content, i) });
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

fuzz_target!(|data: &[u8]| {
    let mut u = Unstructured::new(data);
    let Ok(root) = node(&mut u, 0) else { return };
    let mut memory = Memory::default();
    let schema = memory.schema(&root, "");
    let array = memory.array(&root);
    // SAFETY: as the reader asks for it: ended strings, buffers as large as lengths and offsets say.
    let read = unsafe { Columns::of_schema(&*schema, ".") };
    let Ok(mut columns) = read else { return };
    for _ in 0..2 {
        // SAFETY: as above.
        if unsafe { columns.append(&*array) }.is_err() {
            return;
        }
    }
    let rows = columns.num_rows();
    let mut options = EngineOptions::default();
    options.threads = Some(1);
    let engine = Engine::with_options(options);
    for column in columns.into_columns() {
        let Rows::Samples { list, unpacked } = &column.rows else { continue };
        assert_eq!(list.len(), rows, "{:?}", column.path);
        for collate in [Collate::stack(), Collate::ragged(), Collate::pad(Pad::new())] {
            let _ = engine.assemble(list, &collate);
        }
        // What was bits lives as long as the list.
        assert!(unpacked
            .iter()
            .all(|tensor| tensor.nbytes() > 0 || list.is_empty() || tensor.shape().contains(&0)));
    }
});
