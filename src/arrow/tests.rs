//! Arrays made by hand: what is read, and everything that an array can say wrongly.
#![allow(unsafe_code)] // Structs of the C data interface.

use std::ffi::{c_char, c_void, CString};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use super::field::integers_in;
use super::*;
use crate::batch::{Fields, SampleBounds};
use crate::tensor::Offsets;
use crate::{Batch, Collate, DType, Engine, Error, Ragged, Result, Tensor};

/// Owns what a struct points to, and counts its release.
struct Exported<T> {
    children: Vec<*mut T>,
    buffers: Vec<*const c_void>,
    _memory: Vec<Vec<u8>>,
    _texts: Vec<CString>,
    released: Arc<AtomicUsize>,
}

impl<T> Drop for Exported<T> {
    fn drop(&mut self) {
        for &child in &self.children {
            if !child.is_null() {
                // SAFETY: made by `Box::into_raw`, freed once.
                drop(unsafe { Box::from_raw(child) });
            }
        }
        self.released.fetch_add(1, Ordering::SeqCst);
    }
}

unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    // SAFETY: made by `array`, released once.
    unsafe {
        drop(Box::from_raw((*array).private_data.cast::<Exported<ArrowArray>>()));
        (*array).release = None;
    }
}

unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: made by `schema`, released once.
    unsafe {
        drop(Box::from_raw((*schema).private_data.cast::<Exported<ArrowSchema>>()));
        (*schema).release = None;
    }
}

/// An array over these buffers, the first of which, the bitmap, may be none.
fn array(len: i64, buffers: Vec<Option<Vec<u8>>>, children: Vec<ArrowArray>) -> ArrowArray {
    counted(len, buffers, children, Arc::default())
}

fn counted(
    len: i64,
    buffers: Vec<Option<Vec<u8>>>,
    children: Vec<ArrowArray>,
    released: Arc<AtomicUsize>,
) -> ArrowArray {
    let pointer = |buffer: &Option<Vec<u8>>| {
        buffer.as_ref().map_or(std::ptr::null(), |buffer| buffer.as_ptr().cast())
    };
    let mut exported = Box::new(Exported {
        children: children.into_iter().map(|child| Box::into_raw(Box::new(child))).collect(),
        buffers: buffers.iter().map(pointer).collect(),
        _memory: buffers.into_iter().flatten().collect(),
        _texts: Vec::new(),
        released,
    });
    let mut array = ArrowArray::empty();
    array.length = len;
    array.n_buffers = exported.buffers.len() as i64;
    array.n_children = exported.children.len() as i64;
    array.buffers = exported.buffers.as_mut_ptr();
    array.children = exported.children.as_mut_ptr();
    array.release = Some(release_array);
    array.private_data = Box::into_raw(exported).cast();
    array
}

fn schema(format: &str, name: &str, children: Vec<ArrowSchema>) -> ArrowSchema {
    let texts = vec![CString::new(format).unwrap(), CString::new(name).unwrap()];
    let mut exported = Box::new(Exported::<ArrowSchema> {
        children: children.into_iter().map(|child| Box::into_raw(Box::new(child))).collect(),
        buffers: Vec::new(),
        _memory: Vec::new(),
        released: Arc::default(),
        _texts: texts,
    });
    let mut schema = ArrowSchema::empty();
    schema.format = exported._texts[0].as_ptr();
    schema.name = exported._texts[1].as_ptr();
    schema.n_children = exported.children.len() as i64;
    schema.children = exported.children.as_mut_ptr();
    schema.release = Some(release_schema);
    schema.private_data = Box::into_raw(exported).cast();
    schema
}

/// The same of an extension type, whose metadata the caller keeps.
fn extension(mut schema: ArrowSchema, metadata: &[u8]) -> ArrowSchema {
    schema.metadata = metadata.as_ptr().cast::<c_char>();
    schema
}

fn pairs(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = (entries.len() as i32).to_ne_bytes().to_vec();
    for text in entries.iter().flat_map(|&(key, value)| [key, value]) {
        bytes.extend((text.len() as i32).to_ne_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

fn ints(values: &[i32]) -> Option<Vec<u8>> {
    Some(values.iter().flat_map(|value| value.to_ne_bytes()).collect())
}

fn numbers(values: &[i32]) -> ArrowArray {
    array(values.len() as i64, vec![None, ints(values)], vec![])
}

fn lists(offsets: &[i32], values: ArrowArray) -> ArrowArray {
    array(offsets.len() as i64 - 1, vec![None, ints(offsets)], vec![values])
}

fn list_schema() -> ArrowSchema {
    schema("+l", "", vec![schema("i", "item", vec![])])
}

fn read(schema: &ArrowSchema, arrays: &[&ArrowArray]) -> Result<Columns> {
    // SAFETY: made above, but for what a test made wrong, which is to be found before it is followed.
    unsafe {
        let mut columns = Columns::from_schema(schema, ".")?;
        for array in arrays {
            columns.append(array)?;
        }
        Ok(columns)
    }
}

fn joined(columns: Columns) -> Vec<i32> {
    let column = columns.into_columns().remove(0);
    let ColumnRows::Samples { list, .. } = column.rows else { panic!("no samples") };
    let batch = Engine::host().assemble(&list, &Collate::ragged(Ragged::new())).unwrap();
    batch.data().as_slice::<i32>().unwrap().to_vec()
}

/// Reads an array that a change made wrong.
fn refused(
    schema: &ArrowSchema,
    mut array: ArrowArray,
    change: impl FnOnce(&mut ArrowArray),
) -> String {
    change(&mut array);
    let error = read(schema, &[&array]).map(|_| "nothing was refused").unwrap_err();
    assert!(matches!(error, Error::Layout(_) | Error::TooLarge(_)), "{error}");
    error.to_string()
}

/// The expected error text of a change, and the change.
type Case = (&'static str, fn(&mut ArrowArray));

#[test]
fn lists_of_several_arrays() {
    let first = lists(&[0, 2, 2, 3], numbers(&[1, 2, 3, 9]));
    let mut second = lists(&[7, 1, 2, 4], numbers(&[8, 4, 5, 6]));
    // The slice begins at the second row, that of a child at its own second entry.
    (second.offset, second.length) = (1, 2);
    let columns = read(&list_schema(), &[&first, &second]).unwrap();
    assert_eq!(columns.num_rows(), 5);
    assert_eq!(joined(columns), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn lists_of_one_length_and_then_of_several() {
    let alike = lists(&[0, 2, 4], numbers(&[1, 2, 3, 4]));
    let (none, other) =
        (lists(&[3], numbers(&[0; 3])), lists(&[0, 2, 2, 5], numbers(&[5, 6, 7, 8, 9])));
    let lengths = |arrays: &[&ArrowArray]| -> Vec<i64> {
        let column = read(&list_schema(), arrays).unwrap().into_columns().remove(0);
        let ColumnRows::Samples { list, .. } = column.rows else { panic!("no samples") };
        (0..list.len()).map(|index| list.meta(index).layout.shape()[0]).collect()
    };
    assert_eq!(lengths(&[&none, &alike, &none, &alike]), [2; 4]);
    assert_eq!(lengths(&[&alike, &other, &alike]), [2, 2, 2, 0, 3, 2, 2]);
    assert_eq!(lengths(&[&other, &alike]), [2, 0, 3, 2, 2]);
    let columns = read(&list_schema(), &[&alike, &other]).unwrap();
    assert_eq!(joined(columns), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn structs_are_released_once() {
    let released = Arc::new(AtomicUsize::new(0));
    let mut lent = counted(1, vec![None, ints(&[7])], vec![], Arc::clone(&released));
    // SAFETY: a struct of our own.
    let taken = unsafe { ArrowArray::take(&mut lent) };
    assert!(lent.is_released() && !taken.is_released());
    drop(lent);
    assert_eq!(released.load(Ordering::SeqCst), 0);
    let parent = lists(&[0, 1], taken);
    assert!(read(&list_schema(), &[&parent]).is_ok());
    assert!(read(&schema("+w:2", "", vec![schema("i", "", vec![])]), &[&parent]).is_err());
    drop(parent);
    assert_eq!(released.load(Ordering::SeqCst), 1);
}

#[test]
fn offsets_of_an_exported_batch() {
    let of = |dtype: DType, bytes: &[u8]| {
        let count = (bytes.len() / dtype.size()) as i64;
        Tensor::from_vec(bytes.to_vec(), &[bytes.len() as i64])?.part(0, dtype, &[count])
    };
    let exported = |shape: &[i64], offsets: Result<Tensor>| {
        let bounds = SampleBounds::joined(shape.len() - 1, Offsets::from_lengths([1, 2])?);
        let mut fields = Fields::with_bounds(2, bounds);
        (fields.offsets, fields.max_length) = (Some(Box::new(offsets?)), Some(2));
        Batch::try_new(Tensor::from_vec(vec![7i32, 8, 9], shape)?, fields)?.to_arrow()
    };
    // The offsets are too few, of another dtype, or of other samples.
    for (dtype, bytes) in [
        (DType::I64, vec![0; 8]),
        (DType::F32, vec![0; 12]),
        (DType::I32, [0i32, 1, 5].map(i32::to_ne_bytes).concat()),
    ] {
        let (schema, array) = exported(&[3], of(dtype, &bytes)).unwrap();
        let column = read(&schema, &[&array]).unwrap().into_columns().remove(0);
        let ColumnRows::Samples { list, .. } = column.rows else { panic!("no samples") };
        let batch = Engine::host().assemble(&list, &Collate::ragged(Ragged::new())).unwrap();
        assert_eq!(batch.offsets().unwrap().as_slice::<i64>().unwrap(), [0, 1, 3]);
        assert_eq!(batch.data().as_slice::<i32>().unwrap(), [7, 8, 9]);
    }
    let error = exported(&[1, 3], of(DType::I64, &[0; 24])).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Argument(_)), "{error}");
}

#[test]
fn arrays_that_contradict_themselves() {
    let number = || schema("i", "", vec![]);
    let five = || numbers(&[1, 2, 3, 4, 5]);
    let cases: [Case; 10] = [
        ("length -1", |a| a.length = -1),
        ("offset -1", |a| a.offset = -1),
        ("length 5 from offset 9223372036854775807", |a| a.offset = i64::MAX),
        ("beyond 64 bits", |a| (a.offset, a.length) = (i64::MAX / 2, 5)),
        ("null count", |a| a.null_count = 6),
        ("a bitmap of nulls", |a| a.null_count = 1),
        ("2 buffers", |a| a.n_buffers = 1),
        ("2 buffers", |a| a.buffers = std::ptr::null_mut()),
        ("children", |a| a.n_children = -1),
        ("children as its type has, 0, got 1", |a| a.n_children = 1),
    ];
    for (text, change) in cases {
        let got = refused(&number(), five(), change);
        assert!(got.contains(text), "{text}: {got}");
    }
    let got = refused(&number(), array(1, vec![None, None], vec![]), |_| ());
    assert!(got.contains("NULL"), "{got}");
    let got = refused(&number(), ArrowArray::empty(), |_| ());
    assert!(got.contains("released"), "{got}");
}

#[test]
fn lists_that_leave_their_child() {
    let cases: [(&str, &[i32]); 6] = [
        ("sample 1: expected an offset from 2 on, got 1", &[0, 2, 1]),
        ("sample 0: expected an offset from 0 on, got -1", &[-1, 2, 3]),
        ("sample 1: expected a child with 4 entries, got one of length 3", &[0, 2, 4]),
        ("sample 2: expected a child with 4 entries, got one of length 3", &[3, 3, 3, 4]),
        ("sample 0: expected a child with 2147483647 entries", &[0, i32::MAX, i32::MAX]),
        ("sample 1: expected a child with 9 entries", &[7, 7, 9]),
    ];
    for (text, offsets) in cases {
        let got = refused(&list_schema(), lists(offsets, numbers(&[1, 2, 3])), |_| ());
        assert!(got.contains(text), "{text}: {got}");
    }
    let cases: [Case; 6] = [
        ("children as its type has, 1, got 0", |a| a.n_children = 0),
        ("children as its type has, 1, got 2", |a| a.n_children = 2),
        ("children", |a| a.children = std::ptr::null_mut()),
        ("NULL", |a| {
            // SAFETY: the one child, whose memory the test frees.
            unsafe { drop(Box::from_raw(std::ptr::replace(a.children, std::ptr::null_mut()))) }
        }),
        // SAFETY: the one child.
        ("released", |a| unsafe { drop(ArrowArray::take(*a.children)) }),
        // SAFETY: the one child.
        ("one of length 1", |a| unsafe { (**a.children).length = 1 }),
    ];
    for (text, change) in cases {
        let got = refused(&list_schema(), lists(&[0, 2, 3], numbers(&[1, 2, 3])), change);
        assert!(got.contains(text), "{text}: {got}");
    }
}

#[test]
fn list_views_that_leave_their_child() {
    let views = || schema("+vl", "", vec![schema("i", "", vec![])]);
    let make = |offsets: &[i32], sizes: &[i32]| {
        array(2, vec![None, ints(offsets), ints(sizes)], vec![numbers(&[1, 2, 3])])
    };
    assert_eq!(joined(read(&views(), &[&make(&[1, 0], &[2, 1])]).unwrap()), [2, 3, 1]);
    for (offsets, sizes) in
        [([0, -1], [1, 1]), ([0, 0], [1, -1]), ([0, 2], [1, 2]), ([0, i32::MAX], [0, i32::MAX])]
    {
        let got = refused(&views(), make(&offsets, &sizes), |_| ());
        assert!(got.contains("sample 1"), "{got}");
    }
}

#[test]
fn fixed_sizes_beyond_their_child() {
    let pairs = schema("+w:2", "", vec![schema("i", "", vec![])]);
    let make = |len| array(len, vec![None], vec![numbers(&[1, 2, 3, 4])]);
    assert_eq!(joined(read(&pairs, &[&make(2)]).unwrap()), [1, 2, 3, 4]);
    assert!(refused(&pairs, make(3), |_| ())
        .contains("sample 2: expected a child with 6 entries, got one of length 4"));
    let lists_of_pairs = schema("+l", "", vec![schema("+w:2", "", vec![schema("i", "", vec![])])]);
    let got = refused(&lists_of_pairs, lists(&[0, 2, 2, 3], make(3)), |_| ());
    assert!(got.contains("sample 2: expected a child with 6 entries"), "{got}");
    let views_of_pairs = schema("+vl", "", vec![schema("+w:2", "", vec![schema("i", "", vec![])])]);
    let views = array(2, vec![None, ints(&[2, 0]), ints(&[1, 1])], vec![make(3)]);
    assert!(refused(&views_of_pairs, views, |_| ()).contains("sample 0: expected a child with 6"));
    let vast = schema(&format!("+w:{}", i64::MAX), "", vec![schema("i", "", vec![])]);
    assert!(refused(&vast, make(2), |_| ()).contains("beyond 64 bits"));
}

#[test]
fn a_column_that_is_shorter_than_its_table() {
    let table = schema("+s", "", vec![schema("i", "a", vec![]), schema("i", "b", vec![])]);
    let make = || array(2, vec![None], vec![numbers(&[1, 2]), numbers(&[3])]);
    let got = refused(&table, make(), |_| ());
    assert!(got.contains("sample 1 at \"b\": expected a child with 2 entries"), "{got}");
    // Rows are counted from the first array on.
    let good = array(2, vec![None], vec![numbers(&[1, 2]), numbers(&[3, 4])]);
    let error = read(&table, &[&good, &make()]).unwrap_err().to_string();
    assert!(error.contains("sample 3 at \"b\""), "{error}");
}

#[test]
fn texts_that_leave_their_buffers() {
    let strings = schema("u", "", vec![]);
    let make = |offsets: &[i32]| array(2, vec![None, ints(offsets), Some(b"abc".to_vec())], vec![]);
    assert!(read(&strings, &[&make(&[0, 1, 3])]).is_ok());
    assert!(refused(&strings, make(&[0, 2, 1]), |_| ()).contains("sample 1"));
    let views = schema("vu", "", vec![]);
    let make = |view: [i32; 4]| {
        let size = Some(20i64.to_ne_bytes().to_vec());
        array(1, vec![None, ints(&view), Some(vec![b'x'; 20]), size], vec![])
    };
    assert!(read(&views, &[&make([20, 0, 0, 0])]).is_ok());
    for view in
        [[20, 0, 0, 1], [21, 0, 0, 0], [20, 0, 1, 0], [20, 0, -1, 0], [20, 0, 0, -1], [-1, 0, 0, 0]]
    {
        assert!(refused(&views, make(view), |_| ()).contains("a view within its buffer"));
    }
}

#[test]
fn schemas_that_contradict_themselves() {
    let number = || schema("i", "", vec![]);
    let mut no_format = number();
    no_format.format = std::ptr::null();
    let mut no_children = schema("+l", "", vec![number()]);
    no_children.children = std::ptr::null_mut();
    let mut negative = number();
    negative.n_children = -1;
    let mut deep = number();
    for _ in 0..100 {
        deep = schema("+w:1", "", vec![deep]);
    }
    let negative_size = (-1i32).to_ne_bytes();
    let broken = [
        ("released", ArrowSchema::empty()),
        ("a format", no_format),
        ("children", no_children),
        ("children", negative),
        ("levels", deep),
        ("one child", schema("+l", "", vec![])),
        ("one child", schema("+w:2", "", vec![number(), number()])),
        ("no children", schema("i", "", vec![number()])),
        ("of a size", schema("+w:-2", "", vec![number()])),
        ("metadata", extension(number(), &negative_size)),
    ];
    for (text, schema) in &broken {
        let error = read(schema, &[]).unwrap_err();
        assert!(
            matches!(error, Error::Layout(_)) && error.to_string().contains(text),
            "{text}: {error}"
        );
    }
}

#[test]
fn shapes_in_metadata() {
    let named = |metadata| {
        pairs(&[
            ("ARROW:extension:name", "arrow.fixed_shape_tensor"),
            ("ARROW:extension:metadata", metadata),
        ])
    };
    let storage = || schema("+w:6", "", vec![schema("i", "", vec![])]);
    let six = || array(1, vec![None], vec![numbers(&[1, 2, 3, 4, 5, 6])]);
    let metadata = named(r#"{"dim_names":["shape","\"}"],"shape": [2, 3]}"#);
    assert!(read(&extension(storage(), &metadata), &[&six()]).is_ok());
    for wrong in [
        "",
        "{}",
        r#"{"shape":[2,2]}"#,
        r#"{"shape":[-2,-3]}"#,
        r#"{"shape":[2,x]}"#,
        r#"{"shape":[6],"permutation":[1]}"#,
        r#"{"shape":[2,3],"permutation":[0,0]}"#,
        r#"{"shape":"[6]"}"#,
        r#"{"shape":[9223372036854775807,9]}"#,
    ] {
        let metadata = named(wrong);
        assert!(read(&extension(storage(), &metadata), &[]).is_err(), "{wrong}");
    }
    assert_eq!(integers_in("[2, 3]", "").as_deref(), Some(&[2, 3][..]));
    assert_eq!(integers_in(r#"{"a":{"shape":[1]},"shape":[]}"#, "shape").as_deref(), Some(&[][..]));
    assert_eq!(integers_in(r#"{"a"#, "shape"), None);
}
