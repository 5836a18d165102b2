//! Reads samples from arrays. Everything that an array says is checked before its memory is looked at; the sizes of its
//! buffers are not part of an array.
#![allow(unsafe_code)] // Foreign buffers are read here.

use std::sync::Arc;

use super::array_part::{broken, no_numbers, ArrayPart, PartError};
use super::ffi::{ArrowArray, ArrowSchema};
use super::field::{DataType, SchemaField, Text, TextHow};
use super::texts::{push_texts, push_views};
use super::values::{check_place, lists, shapes_of, unread, values, ArrayValues, CONVERT};
use crate::samples::SampleList;
use crate::tensor::{
    checked_numel, compact_strides, try_vec, Device, Dims, Error, Hint, Layout, Mismatch, Result,
    Tensor,
};

/// Rows of Arrow arrays as samples, by column. A struct has a column for each field that has no fields itself, at any depth; an
/// array that is no struct is a single column without a name.
#[derive(Debug)]
pub struct Columns {
    columns: Vec<Column>,
    is_struct: bool,
    sep: String,
    num_rows: usize,
}

/// One column.
#[derive(Debug)]
pub struct Column {
    /// The names from the root on; none where the root is no struct.
    pub path: Vec<String>,
    /// The rows of the column.
    pub rows: ColumnRows,
    /// For each name of the path the position of the child in its struct, and the number of children.
    pub places: Vec<(usize, usize)>,
    field: SchemaField,
}

/// The rows of a column.
#[derive(Debug)]
pub enum ColumnRows {
    /// Numbers and arrays of them.
    Samples {
        /// A sample for each row, read-only, in the memory of the arrays.
        list: SampleList<'static>,
        /// Columns of bits, unpacked to bytes; the list points into this memory.
        unpacked: Vec<Tensor>,
    },
    /// Strings and bytes.
    Texts {
        /// The address and the length in bytes of each.
        texts: Vec<(*const u8, usize)>,
        /// Whether the column's type is a string; the bytes are not validated as UTF-8.
        is_utf8: bool,
    },
    /// Structs without fields, which have nothing to read.
    EmptyStructs,
}

impl Columns {
    /// Reads a schema; `sep` joins the names of columns for errors.
    ///
    /// # Errors
    /// [`Error::Layout`] for a schema that contradicts itself; [`Error::OutOfMemory`].
    ///
    /// # Safety
    /// The schema conforms to the Arrow C data interface, with NUL-terminated strings, and does not change during the call.
    ///
    /// ```
    /// use windrow::arrow::Columns;
    /// let batch = windrow::assemble(&[[1i32, 2], [3, 4]], &windrow::Collate::stack())?;
    /// let (schema, array) = batch.to_arrow()?;
    /// // SAFETY: schema and array are valid and belong together; the batch's memory outlives the samples.
    /// let mut columns = unsafe { Columns::from_schema(&schema, ".") }?;
    /// unsafe { columns.append(&array) }?;
    /// assert!(!columns.is_struct());
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub unsafe fn from_schema(schema: &ArrowSchema, sep: &str) -> Result<Columns> {
        // SAFETY: the caller's promise.
        let root = unsafe { SchemaField::read(schema) }?;
        let is_struct = matches!(root.data_type, DataType::Struct(_));
        let mut columns = Vec::new();
        add_columns(root, &mut Vec::new(), &mut Vec::new(), &mut columns);
        Ok(Columns { columns, is_struct, sep: sep.to_owned(), num_rows: 0 })
    }

    /// Whether the root is a struct, even one without fields.
    pub fn is_struct(&self) -> bool {
        self.is_struct
    }

    /// Appends the rows of an array.
    ///
    /// # Errors
    /// [`Error::DType`] for a column of a type that is not read, and for a null; [`Error::Layout`] for an array that
    /// contradicts its type or itself; [`Error::TooLarge`]; [`Error::OutOfMemory`]. They name the column and, where there is
    /// one, the row, counted from the first array on. After an error the columns may have different numbers of rows.
    ///
    /// # Safety
    /// An array of the schema's type, whose buffers are as large as its lengths and offsets say. They stay as long
    /// as the samples are used, and nothing writes to them meanwhile. So do the tensors of [`ColumnRows::Samples`].
    pub unsafe fn append(&mut self, array: &ArrowArray) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.append_on(array, Device::Cpu) }
    }

    /// Appends an array as [`Columns::append`] does, with buffers on a device. Samples are read when a batch is
    /// assembled, after the work on [`RunOptions::producers`](crate::engine::RunOptions::producers).
    ///
    /// # Errors
    /// As [`Columns::append`]; [`Error::Device`] for a column of which something has to be read on the host: lists of several
    /// lengths, bools, strings, a bitmap of nulls; and if the buffers are not where they are said to be; [`Error::NoDriver`];
    /// [`Error::Cuda`].
    ///
    /// # Safety
    /// The array is of its column's type, with buffers as large as its lengths and offsets say. They stay as long as
    /// the samples are used, and nothing writes to them meanwhile. So do the tensors of [`ColumnRows::Samples`].
    pub unsafe fn append_on(&mut self, array: &ArrowArray, device: Device) -> Result<()> {
        for column in &mut self.columns {
            // SAFETY: the caller's promise.
            if let Err(error) = unsafe { column.append(array, device, self.num_rows) } {
                return Err(error.at_path(&column.path.join(&self.sep)));
            }
        }
        self.num_rows += usize::try_from(array.length).unwrap_or_default();
        Ok(())
    }

    /// The number of rows of all arrays that were appended without an error.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// The columns that were read.
    pub fn into_columns(self) -> Vec<Column> {
        self.columns
    }
}

/// Appends an empty column for each field below this one that has no fields itself, in the order of the schema. `path` and `places`
/// lead to this field, before and after the call.
fn add_columns(
    field: SchemaField,
    path: &mut Vec<String>,
    places: &mut Vec<(usize, usize)>,
    columns: &mut Vec<Column>,
) {
    let rows = match field.data_type {
        DataType::Struct(fields) if !fields.is_empty() => {
            let num_fields = fields.len();
            for (position, field) in fields.into_iter().enumerate() {
                path.push(field.name.clone());
                places.push((position, num_fields));
                add_columns(field, path, places, columns);
                path.pop();
                places.pop();
            }
            return;
        }
        DataType::IndexLevel => return,
        DataType::Struct(_) => ColumnRows::EmptyStructs,
        DataType::Text(Text { is_utf8, .. }) => ColumnRows::Texts { texts: Vec::new(), is_utf8 },
        _ => ColumnRows::Samples { list: SampleList::new(), unpacked: Vec::new() },
    };
    columns.push(Column { path: path.clone(), rows, field, places: places.clone() });
}

impl Column {
    /// Appends the rows of an array, the first of which is number `num_before` in errors. After an error some rows may be
    /// appended. Errors as of [`Columns::append_on`], without the column.
    ///
    /// # Safety
    /// The array is of its column's type, with buffers as large as its lengths and offsets say. They stay as long as
    /// the samples are used, and nothing writes to them meanwhile.
    unsafe fn append(
        &mut self,
        array: &ArrowArray,
        device: Device,
        num_before: usize,
    ) -> Result<()> {
        let at_row = |error| match error {
            PartError::Null(position) => {
                let hint = "fill or drop nulls before (fill_null and drop_null of pyarrow, fill_null and drop_nulls of polars, fillna and dropna of pandas)";
                let row = num_before.saturating_add(position as usize);
                let null = Mismatch::new(Some(row), "a value", "null");
                null.with_hint(Hint::Text(hint)).into_error(Error::DType)
            }
            PartError::Beyond(position, error) => {
                error.at_index(num_before.saturating_add(position as usize))
            }
            PartError::Refused(error) => match error.mismatch().and_then(|mismatch| mismatch.index)
            {
                Some(row) => error.at_index(num_before + row),
                None => error,
            },
        };
        let place = check_place(&self.field.data_type, device);
        // SAFETY: the caller's promise.
        let read =
            place.map_err(PartError::from).and_then(|()| unsafe { self.part_of(array, device) });
        read.and_then(|part| {
            // SAFETY: the part is one of the array, for which the caller's promise holds.
            unsafe { self.rows.append(&self.field.data_type, part) }
        })
        .map_err(at_row)
    }

    /// The rows of this column in the root array; a null in a struct on the way is a fault.
    ///
    /// # Safety
    /// The array is of its column's type, with buffers as large as its lengths and offsets say. They stay as long as
    /// the samples are used, and nothing writes to them meanwhile.
    unsafe fn part_of<'a>(
        &self,
        array: &'a ArrowArray,
        device: Device,
    ) -> std::result::Result<ArrayPart<'a>, PartError> {
        let mut part = ArrayPart::new(array, 0, array.length, device)?;
        for &(place, num_fields) in &self.places {
            // SAFETY: the caller's promise.
            unsafe {
                part.expect(1, num_fields)?;
                part.refuse_null()?;
                part = part.child(place, part.first(), part.len)?;
            }
        }
        Ok(part)
    }
}

impl ColumnRows {
    /// Appends the rows of a part of an array. Samples are marked read-only.
    ///
    /// # Safety
    /// The array is of its column's type, with buffers as large as its lengths and offsets say. They stay as long as
    /// the samples are used, and nothing writes to them meanwhile.
    unsafe fn append(
        &mut self,
        data_type: &DataType,
        part: ArrayPart<'_>,
    ) -> std::result::Result<(), PartError> {
        // SAFETY: the caller's promise, for all of these.
        unsafe {
            match (self, data_type) {
                (ColumnRows::Texts { texts, .. }, DataType::Text(text)) => match text.how {
                    TextHow::Offsets { wide } => push_texts(texts, part, wide),
                    TextHow::Views => push_views(texts, part),
                },
                (ColumnRows::Samples { list, unpacked }, data_type) => {
                    list.mark_read_only();
                    let mut to = SampleSink { list, unpacked };
                    match data_type {
                        DataType::List { wide, entries } => {
                            to.push_lists(part, *wide, &entries.data_type)
                        }
                        DataType::View { wide, entries } => {
                            to.push_list_views(part, *wide, &entries.data_type)
                        }
                        DataType::Tensor { shape, order, storage } => {
                            to.push_tensors(part, shape, order.as_deref(), &storage.data_type)
                        }
                        DataType::Tensors { data, shape, order, parts } => {
                            let types = (&parts[*data].data_type, &parts[*shape].data_type);
                            part.expect(1, parts.len())?;
                            to.push_shaped(part, (*data, *shape), types, order.as_deref())
                        }
                        data_type => {
                            let values = values(data_type, part)?;
                            let tail = values.tail.clone();
                            to.push_table(values, part, &tail, None)
                        }
                    }
                }
                (ColumnRows::EmptyStructs, _) => {
                    part.expect(1, 0)?;
                    part.refuse_null()
                }
                (ColumnRows::Texts { .. }, data_type) => Err(unread(data_type).into()),
            }
        }
    }
}

/// The list that samples are added to, and the memory of those that are unpacked bits, which is added with them, but by
/// [`SampleSink::push_piece`].
struct SampleSink<'t> {
    list: &'t mut SampleList<'static>,
    unpacked: &'t mut Vec<Tensor>,
}

impl SampleSink<'_> {
    /// Appends `len` rows of one shape that follow one another in memory. `shape` is that in memory; the samples have its dims in
    /// the order `order`.
    ///
    /// # Safety
    /// The values are as many as `len` rows of the shape have elements, and stay.
    unsafe fn push_table(
        &mut self,
        values: ArrayValues,
        ArrayPart { len, device, .. }: ArrayPart<'_>,
        shape: &[i64],
        order: Option<&[i64]>,
    ) -> std::result::Result<(), PartError> {
        let mut dims = Dims::from_slice(&[len]);
        dims.extend_from_slice(shape);
        let mut layout = Layout::compact(values.dtype, &dims)?;
        if let Some(order) = order {
            let (shape, strides) = ordered(&layout.shape()[1..], &layout.strides()[1..], order);
            let (mut extents, mut steps) =
                (Dims::from_slice(&[len]), Dims::from_slice(&layout.strides()[..1]));
            extents.extend(shape);
            steps.extend(strides);
            layout = Layout::try_new(values.dtype, &extents, Some(&steps))?;
        }
        let data = values.data.cast_mut();
        debug_assert!(!data.is_null() || layout.numel() == 0);
        // Before the rows, which stay in the list if a later one is refused.
        self.unpacked.extend(values.unpacked);
        if self.list.is_empty() || device != Device::Cpu {
            // SAFETY: the caller's promise; what was unpacked is kept beside the list.
            let rows = unsafe {
                let table =
                    Tensor::new_unchecked(Arc::new(()), data, values.dtype, device, layout, true);
                SampleList::rows_from_raw_parts(&table)
            }?;
            match self.list.is_empty() {
                true => *self.list = rows,
                false => self.list.extend(&rows)?,
            }
        } else if len > 0 {
            // Further arrays are often short, and a table for each would take longer than its rows.
            self.list.reserve(len as usize)?;
            let (shape, strides) = (&layout.shape()[1..], &layout.strides()[1..]);
            let step = layout.strides()[0].wrapping_mul(values.dtype.size() as i64) as isize;
            let rows = (1..len as isize).map(|row| data.cast_const().wrapping_offset(row * step));
            // SAFETY: the caller's promise, for each row of the table.
            unsafe {
                self.list.push(data, values.dtype, device, shape, Some(strides))?;
                self.list.extend_same(rows);
            }
        }
        Ok(())
    }

    /// Appends one sample in host memory: row-major in `shape` from entry `first` of the values on, its dims then in the order
    /// `order`.
    ///
    /// # Safety
    /// From `first` on there are as many values as the shape has elements, and they stay.
    unsafe fn push_piece(
        &mut self,
        values: &ArrayValues,
        first: i64,
        shape: &[i64],
        order: Option<&[i64]>,
    ) -> Result<()> {
        let bytes = (first as usize).wrapping_mul(values.entry_bytes());
        let data = values.data.wrapping_add(bytes);
        let strides = match order {
            None => None,
            Some(_) => compact_strides(shape),
        };
        debug_assert!(first >= 0 && (!values.data.is_null() || shape.contains(&0)));
        // SAFETY: the caller's promise.
        unsafe {
            match (order, strides) {
                (Some(order), Some(strides)) => {
                    let (shape, strides) = ordered(shape, &strides, order);
                    self.list.push(data, values.dtype, Device::Cpu, &shape, Some(&strides))
                }
                _ => self.list.push(data, values.dtype, Device::Cpu, shape, None),
            }
        }
    }

    /// Appends a sample for each list, in the memory of the entries.
    ///
    /// # Safety
    /// The array is of its column's type, with buffers as large as its lengths and offsets say. They stay as long as
    /// the samples are used, and nothing writes to them meanwhile.
    unsafe fn push_lists(
        &mut self,
        part: ArrayPart<'_>,
        wide: bool,
        entries: &DataType,
    ) -> std::result::Result<(), PartError> {
        // SAFETY: the caller's promise.
        let (offsets, values) = unsafe { lists(part, wide, entries) }?;
        let mut shape = Dims::from_slice(&[0]);
        shape.extend_from_slice(&values.tail);
        self.list.reserve(part.len as usize)?;
        self.unpacked.extend(values.unpacked.clone()); // as in `push_table`
        let entry_bytes = values.entry_bytes();
        let num_before = self.list.len();
        while let rest @ [begin, end, ..] = &offsets[self.list.len() - num_before..] {
            shape[0] = end - begin;
            let row = |bounds: &[i64]| {
                let first = (bounds[0] - offsets[0]) as usize;
                (values.data.wrapping_add(first.wrapping_mul(entry_bytes)), bounds[1] - bounds[0])
            };
            debug_assert!(offsets[0] <= *begin && begin <= end);
            // SAFETY: offsets do not go back, and the values end at the last one: all ranges are in
            // them. The rows of a column have one dtype and tail.
            unsafe {
                self.push_piece(&values, begin - offsets[0], &shape, None)?;
                self.list.extend_rows(rest[1..].windows(2).map(row));
            }
        }
        Ok(())
    }

    /// Appends a sample for each list view; views may overlap and be in any order. A null anywhere between the first entry
    /// that is viewed and the last one is an error, in a gap too.
    ///
    /// # Safety
    /// The array is of its column's type, with buffers as large as its lengths and offsets say. They stay as long as
    /// the samples are used, and nothing writes to them meanwhile.
    unsafe fn push_list_views(
        &mut self,
        part: ArrayPart<'_>,
        wide: bool,
        entries: &DataType,
    ) -> std::result::Result<(), PartError> {
        part.expect(3, 1)?;
        let mut ranges = try_vec(part.len as usize)?;
        let (mut begin, mut end) = (i64::MAX, 0);
        // SAFETY: the caller's promise; buffers and children were just counted.
        let all = unsafe {
            part.refuse_null()?;
            let (offsets, sizes) = (part.required_buffer(1)?, part.required_buffer(2)?);
            for row in 0..part.len {
                let (offset, size) = (part.int(offsets, wide, row), part.int(sizes, wide, row));
                let last = offset.checked_add(size).filter(|_| offset >= 0 && size >= 0);
                let Some(last) = last else {
                    let got = format!("{size} from {offset}");
                    return Err(broken("a size and an offset from 0 on", got)
                        .at_index(row as usize)
                        .into());
                };
                if size > 0 {
                    part.child(0, offset, size).map_err(|error| error.in_parent(|_| row))?;
                    (begin, end) = (begin.min(offset), end.max(last));
                    ranges.push((offset, size));
                } else {
                    ranges.push((0, 0));
                }
            }
            let begin = begin.min(end);
            part.child(0, begin, end - begin)?
        };
        let row_of = |at: i64| {
            let holds = |&(offset, size): &(i64, i64)| (offset..offset + size).contains(&at);
            ranges.iter().position(holds).map(|row| row as i64)
        };
        // SAFETY: the caller's promise.
        let values = match unsafe { values(entries, all) } {
            Err(PartError::Null(position)) if row_of(all.start + position).is_none() => {
                let got = format!("a null at {}", all.start + position);
                return Err(broken("lists without nulls between them", got).into());
            }
            // The first missing entry may be between lists, and belongs to none of them.
            values => values.map_err(|error| {
                error.in_parent(|position| row_of(all.start + position).unwrap_or(0))
            })?,
        };
        let mut shape = Dims::from_slice(&[0]);
        shape.extend_from_slice(&values.tail);
        self.list.reserve(part.len as usize)?;
        self.unpacked.extend(values.unpacked.clone()); // as in `push_table`
        for (offset, size) in ranges {
            shape[0] = size;
            let first = if size > 0 { offset - all.start } else { 0 };
            debug_assert!(first >= 0 && first + size <= all.len);
            // SAFETY: the range is in the values.
            unsafe { self.push_piece(&values, first, &shape, None) }?;
        }
        Ok(())
    }

    /// Appends a tensor of `shape` for each row, from storage of fixed-size lists or of lists. Lists of another length are an
    /// error.
    ///
    /// # Safety
    /// The array is of its column's type, with buffers as large as its lengths and offsets say. They stay as long as
    /// the samples are used, and nothing writes to them meanwhile.
    unsafe fn push_tensors(
        &mut self,
        part: ArrayPart<'_>,
        shape: &[i64],
        order: Option<&[i64]>,
        storage: &DataType,
    ) -> std::result::Result<(), PartError> {
        // SAFETY: the caller's promise.
        let (values, num_dims) = match storage {
            DataType::List { wide, entries } => {
                let numel = checked_numel(shape).unwrap_or_default();
                // SAFETY: as above.
                let (offsets, values) = unsafe { lists(part, *wide, &entries.data_type) }?;
                for (row, bounds) in offsets.windows(2).enumerate() {
                    let got = bounds[1] - bounds[0];
                    if got != numel {
                        let expected = format!("a tensor of {numel} elements");
                        return Err(broken(expected, got.to_string()).at_index(row).into());
                    }
                }
                (values, 0)
            }
            // SAFETY: as above.
            storage => (unsafe { values(storage, part) }?, 1),
        };
        if values.tail.len() != num_dims {
            return Err(no_numbers("tensors of lists", CONVERT).into());
        }
        debug_assert!(values.tail.iter().all(|&size| checked_numel(shape) == Some(size)));
        // SAFETY: each row has as many values as the shape has elements.
        unsafe { self.push_table(values, part, shape, order) }
    }

    /// Appends a tensor for each row, whose elements are in child `data` and whose shape is in child `shape`. A shape that
    /// does not fit the number of elements, or `order`, is an error at its row.
    ///
    /// # Safety
    /// The array is of its column's type, with as many children as that has and buffers as large as its lengths and offsets say.
    /// They stay as long as the samples are used, and nothing writes to them meanwhile.
    unsafe fn push_shaped(
        &mut self,
        part: ArrayPart<'_>,
        (data, shape): (usize, usize),
        (tensor_type, shape_type): (&DataType, &DataType),
        order: Option<&[i64]>,
    ) -> std::result::Result<(), PartError> {
        let DataType::List { wide, entries } = tensor_type else {
            return Err(no_numbers("tensors whose elements are in no list", CONVERT).into());
        };
        // SAFETY: the caller's promise.
        let (offsets, values, shapes) = unsafe {
            part.refuse_null()?;
            let (data, shape) = (
                part.child(data, part.first(), part.len)?,
                part.child(shape, part.first(), part.len)?,
            );
            let (offsets, values) = lists(data, *wide, &entries.data_type)?;
            (offsets, values, shapes_of(shape, shape_type)?)
        };
        if !values.tail.is_empty() {
            return Err(no_numbers("tensors of lists", CONVERT).into());
        }
        self.list.reserve(part.len as usize)?;
        self.unpacked.extend(values.unpacked.clone()); // as in `push_table`
        for (row, (bounds, shape)) in offsets.windows(2).zip(&shapes).enumerate() {
            let numel = checked_numel(shape).filter(|_| shape.iter().all(|&extent| extent >= 0));
            let has_order = order.is_none_or(|order| order.len() == shape.len());
            if numel != Some(bounds[1] - bounds[0]) || !has_order {
                let expected = format!("a shape of {} elements", bounds[1] - bounds[0]);
                return Err(broken(expected, format!("{:?}", &shape[..])).at_index(row).into());
            }
            // SAFETY: the range is in the values, and has as many as the shape has elements.
            unsafe { self.push_piece(&values, bounds[0] - offsets[0], shape, order) }?;
        }
        Ok(())
    }
}

/// Shape and strides with dim `order[i]` at `i`.
fn ordered(shape: &[i64], strides: &[i64], order: &[i64]) -> (Dims, Dims) {
    let at = |dims: &[i64]| order.iter().map(|&dim| dims[dim as usize]).collect();
    (at(shape), at(strides))
}
