//! The numbers of a part of an array: their address, and the shape of each entry.
#![allow(unsafe_code)] // Foreign buffers are read here.

use super::array_part::{no_numbers, not_on_host, ArrayPart, PartError};
use super::field::DataType;
use crate::device::device_of;
use crate::tensor::{checked_numel, try_vec, DType, Device, Dims, Error, Mismatch, Result, Tensor};

/// Numbers one after the other, in groups of the shape `tail`.
pub(super) struct ArrayValues {
    pub data: *const u8,
    pub dtype: DType,
    pub tail: Dims,
    /// The owner of `data`, if the array has bits; `None` if `data` is in the array.
    pub unpacked: Option<Tensor>,
}

impl ArrayValues {
    /// The bytes of one entry, its tail included.
    pub fn entry_bytes(&self) -> usize {
        let tail = checked_numel(&self.tail).unwrap_or_default() as usize;
        tail.wrapping_mul(self.dtype.size())
    }
}

/// The numbers of a part, which may be in lists of fixed size, or in tensors of one shape that are
/// stored in such lists and keep their order of dims; an error for nulls and all other types. Only
/// bools are copied.
///
/// # Safety
/// The array is of its column's type, with buffers as large as its lengths and offsets say. They stay as long as the
/// samples are used, and nothing writes to them meanwhile.
pub(super) unsafe fn values(
    data_type: &DataType,
    part: ArrayPart<'_>,
) -> std::result::Result<ArrayValues, PartError> {
    // SAFETY: the caller's promise.
    unsafe {
        match data_type {
            DataType::Number(dtype) => numbers(part, *dtype),
            DataType::Bits => bits(part),
            DataType::Fixed(size, entries) => fixed_lists(part, *size, &entries.data_type),
            DataType::Tensor { shape, order: None, storage }
                if matches!(storage.data_type, DataType::Fixed(..)) =>
            {
                let lists = values(&storage.data_type, part)?;
                if lists.tail.len() != 1 {
                    return Err(no_numbers("a tensor of lists", CONVERT).into());
                }
                Ok(ArrayValues { tail: shape.clone(), ..lists })
            }
            other => Err(unread(other).into()),
        }
    }
}

/// The numbers of a part, in its own memory. The driver is asked whether memory of a device is where the array says:
/// [`Error::Device`] if not.
///
/// # Safety
/// The array is of its column's type, with buffers as large as its lengths and offsets say. They stay as long as the
/// samples are used, and nothing writes to them meanwhile.
unsafe fn numbers(
    part: ArrayPart<'_>,
    dtype: DType,
) -> std::result::Result<ArrayValues, PartError> {
    part.expect(2, 0)?;
    // SAFETY: the caller's promise; the buffers were just counted.
    let data = unsafe {
        part.refuse_null()?;
        part.required_buffer(1)?
    };
    let bytes = (part.first() + part.len).checked_mul(dtype.size() as i64);
    if bytes.is_none() {
        let text = format!("{} entries of {dtype} are beyond 64 bits", part.len);
        return Err(Error::too_large(text).into());
    }
    let data = data.wrapping_add(part.first() as usize * dtype.size());
    if part.device != Device::Cpu && part.len > 0 {
        let place = device_of(data.addr())?;
        if place != part.device {
            let expected = format!("memory of {}, as the array says", part.device);
            let mismatch = Mismatch::new(Some(0), expected, format!("memory of {place}"));
            return Err(mismatch.into_error(Error::Device).into());
        }
    }
    Ok(ArrayValues { data, dtype, tail: Dims::new(), unpacked: None })
}

/// The bools of a part, unpacked to a byte each in memory of their own.
///
/// # Safety
/// The array is of its column's type, with buffers as large as its lengths and offsets say. They stay as long as the
/// samples are used, and nothing writes to them meanwhile.
unsafe fn bits(part: ArrayPart<'_>) -> std::result::Result<ArrayValues, PartError> {
    part.expect(2, 0)?;
    debug_assert_eq!(part.device, Device::Cpu);
    // SAFETY: the caller's promise; the buffers were just counted, and the bitmap covers the entries.
    let bools = unsafe {
        part.refuse_null()?;
        unpack(part.required_buffer(1)?, part.first(), part.len)?
    };
    let shape = [bools.len() as i64];
    let unpacked = Tensor::from_vec(bools, &shape)?;
    let data = unpacked.data_ptr().cast_const();
    Ok(ArrayValues { data, dtype: DType::Bool, tail: Dims::new(), unpacked: Some(unpacked) })
}

/// The numbers of lists of `size` entries, with `size` as the first extent of their tail.
///
/// # Safety
/// The array is of its column's type, with buffers as large as its lengths and offsets say. They stay as long as the
/// samples are used, and nothing writes to them meanwhile.
unsafe fn fixed_lists(
    part: ArrayPart<'_>,
    size: i64,
    entries: &DataType,
) -> std::result::Result<ArrayValues, PartError> {
    part.expect(1, 1)?;
    // SAFETY: the caller's promise; the buffers were just counted.
    unsafe { part.refuse_null() }?;
    let in_entries = |lists: i64| {
        let text = || format!("lists of {size} are beyond 64 bits");
        lists.checked_mul(size).ok_or_else(|| Error::too_large(text()))
    };
    let (start, len) = (in_entries(part.first())?, in_entries(part.len)?);
    // SAFETY: the caller's promise; the children were just counted.
    let values = unsafe { part.child(0, start, len).and_then(|child| values(entries, child)) };
    let mut values = values.map_err(|error| error.in_parent(|position| position / size.max(1)))?;
    values.tail.insert(0, size);
    Ok(values)
}

/// Checks that the host does not have to read buffers of this type on a device, else [`Error::Device`].
pub(super) fn check_place(data_type: &DataType, device: Device) -> Result<()> {
    let what = match data_type {
        _ if device == Device::Cpu => return Ok(()),
        DataType::Number(_) | DataType::Other(..) | DataType::Struct(_) | DataType::IndexLevel => {
            return Ok(())
        }
        DataType::Fixed(_, entries) => return check_place(&entries.data_type, device),
        DataType::Tensor { storage, .. } => return check_place(&storage.data_type, device),
        DataType::Bits => "bits",
        DataType::List { .. } | DataType::View { .. } => "lists of several lengths",
        DataType::Tensors { .. } => "tensors of several shapes",
        DataType::Text(_) => "strings or bytes",
    };
    Err(not_on_host(what, device))
}

pub(super) const CONVERT: &str = "leave the column out or convert it first";

/// The [`Error::DType`] that says why a column of this type is not read.
pub(super) fn unread(data_type: &DataType) -> Error {
    match data_type {
        DataType::Other(got, hint) => no_numbers(got, hint),
        DataType::List { .. } | DataType::View { .. } => no_numbers(
            "lists of lists whose type does not fix the inner length",
            "flatten one level before (pyarrow.compute.list_flatten), or cast the inner lists to ones of fixed size",
        ),
        DataType::Struct(_) | DataType::IndexLevel => no_numbers("a struct within a list", CONVERT),
        DataType::Text(_) => no_numbers("strings or bytes", CONVERT),
        DataType::Tensor { .. } | DataType::Tensors { .. } => {
            no_numbers("tensors within a list", "give a column of tensors")
        }
        DataType::Number(_) | DataType::Bits | DataType::Fixed(..) => {
            no_numbers("something else", CONVERT)
        }
    }
}

/// The `len` bits from bit `first` on as bools, the lowest bit of a byte first; [`Error::OutOfMemory`].
///
/// # Safety
/// The bitmap covers the bits.
pub(super) unsafe fn unpack(bits: *const u8, first: i64, len: i64) -> Result<Vec<bool>> {
    let mut bools = try_vec(len as usize)?;
    debug_assert!(first >= 0 && len >= 0 && (len == 0 || !bits.is_null()));
    bools.extend((first..first + len).map(|at| {
        // SAFETY: the caller's promise.
        unsafe { *bits.add((at / 8) as usize) >> (at % 8) & 1 == 1 }
    }));
    Ok(bools)
}

/// The offsets of lists as the array has them, and the values from the first offset on: entry `offset` is value
/// `offset - offsets[0]`.
///
/// # Safety
/// The array is of its column's type, with buffers as large as its lengths and offsets say. They stay as long as the
/// samples are used, and nothing writes to them meanwhile.
pub(super) unsafe fn lists(
    part: ArrayPart<'_>,
    wide: bool,
    entries: &DataType,
) -> std::result::Result<(Vec<i64>, ArrayValues), PartError> {
    part.expect(2, 1)?;
    // SAFETY: the caller's promise; buffers and children were just counted.
    unsafe {
        part.refuse_null()?;
        let offsets = part.offsets(wide)?;
        let (first, last) = (offsets[0], offsets[part.len as usize]);
        let values = part.child(0, first, last - first).and_then(|child| values(entries, child));
        let row_of = |position| {
            offsets.partition_point(|&offset| offset <= first.saturating_add(position)) as i64 - 1
        };
        match values {
            Ok(values) => Ok((offsets, values)),
            Err(error) => Err(error.in_parent(row_of)),
        }
    }
}

/// The shapes that stand beside tensors: int32 or int64, as many for each row as it has dims; of another dtype [`Error::DType`].
/// Their values are not checked.
///
/// # Safety
/// The array is of its column's type, with buffers as large as its lengths and offsets say. They stay as long as the
/// samples are used, and nothing writes to them meanwhile.
pub(super) unsafe fn shapes_of(
    part: ArrayPart<'_>,
    data_type: &DataType,
) -> std::result::Result<Vec<Dims>, PartError> {
    // SAFETY: the caller's promise.
    let (offsets, values) = unsafe {
        match data_type {
            DataType::List { wide, entries } => lists(part, *wide, &entries.data_type)?,
            DataType::Fixed(ndim, _) => {
                let mut values = values(data_type, part)?;
                values.tail.remove(0);
                let mut offsets = try_vec(part.len as usize + 1)?;
                offsets.extend((0..=part.len).map(|row| row * ndim));
                (offsets, values)
            }
            data_type => return Err(unread(data_type).into()),
        }
    };
    let wide = match (values.dtype, values.tail.is_empty()) {
        (DType::I64, true) => true,
        (DType::I32, true) => false,
        (dtype, _) => return Err(no_numbers(&format!("shapes of {dtype}"), CONVERT).into()),
    };
    let mut shapes = try_vec(part.len as usize)?;
    debug_assert_eq!(part.device, Device::Cpu);
    debug_assert!(!values.data.is_null() || offsets.first() == offsets.last());
    for bounds in offsets.windows(2) {
        debug_assert!(offsets[0] <= bounds[0] && bounds[0] <= bounds[1]);
        let extent = |position: i64| {
            let at = (position - offsets[0]) as usize;
            // SAFETY: `at` is the position of a value, as `lists` and `values` have counted them.
            unsafe {
                match wide {
                    true => values.data.cast::<i64>().add(at).read_unaligned(),
                    false => i64::from(values.data.cast::<i32>().add(at).read_unaligned()),
                }
            }
        };
        shapes.push((bounds[0]..bounds[1]).map(extent).collect());
    }
    Ok(shapes)
}
