//! The numbers of a part of an array: their address, and the shape of each entry.
#![allow(unsafe_code)] // Foreign buffers are read here.

use super::field::Kind;
use super::part::{no_numbers, room_for, Fault, Part};
use crate::tensor::{DType, Dims, Error, Result, Tensor};

/// Numbers one after the other, in groups of the shape `tail`.
pub(super) struct Values {
    pub data: *const u8,
    pub dtype: DType,
    pub tail: Dims,
    /// Their memory, if they were bits.
    pub unpacked: Option<Tensor>,
}

/// The numbers of a part, which may be in lists of fixed size.
///
/// # Safety
/// As [`Columns::append`].
pub(super) unsafe fn values(kind: &Kind, part: Part<'_>) -> std::result::Result<Values, Fault> {
    let (mut kind, mut part, mut tail) = (kind, part, Dims::new());
    // How many entries of this level one of the first has.
    let mut each = 1i64;
    loop {
        let refuse_null = |num_buffers, num_children: usize| {
            part.expect(num_buffers, num_children..)?;
            // SAFETY: the caller's promise; the buffers were just counted.
            unsafe { part.refuse_null() }.map_err(|fault| match fault {
                Fault::Null(position) => Fault::Null(position / each.max(1)),
                refused => refused,
            })
        };
        match kind {
            Kind::Number(dtype) => {
                refuse_null(2, 0)?;
                // SAFETY: the buffers were just counted.
                let data = unsafe { part.filled(1) }?;
                let bytes = (part.first() + part.len).checked_mul(dtype.size() as i64);
                if bytes.is_none() {
                    let text = format!("{} entries of {dtype} are beyond 64 bits", part.len);
                    return Err(Error::TooLarge(text).into());
                }
                let data = data.wrapping_add(part.first() as usize * dtype.size());
                return Ok(Values { data, dtype: *dtype, tail, unpacked: None });
            }
            Kind::Bits => {
                refuse_null(2, 0)?;
                // SAFETY: the buffers were just counted; the bitmap covers the entries.
                let bools = unsafe { unpack(part.filled(1)?, part.first(), part.len) }?;
                let shape = [bools.len() as i64];
                let unpacked = Tensor::from_vec(bools, &shape)?;
                let data = unpacked.data_ptr().cast_const();
                return Ok(Values { data, dtype: DType::Bool, tail, unpacked: Some(unpacked) });
            }
            Kind::Fixed(size, entries) => {
                refuse_null(1, 1)?;
                let too_large = || Error::TooLarge(format!("lists of {size} are beyond 64 bits"));
                let start = part.first().checked_mul(*size).ok_or_else(too_large)?;
                let len = part.len.checked_mul(*size).ok_or_else(too_large)?;
                tail.push(*size);
                each = each.saturating_mul(*size);
                // SAFETY: the children were just counted.
                part = unsafe { part.child(0, start, len) }?;
                kind = &entries.kind;
            }
            Kind::Tensor { shape, order: None, storage }
                if matches!(storage.kind, Kind::Fixed(..)) =>
            {
                let before = tail.len();
                // SAFETY: the caller's promise; the storage of a tensor is no tensor, so this ends.
                let mut inner =
                    unsafe { values(&storage.kind, part) }.map_err(|fault| match fault {
                        Fault::Null(position) => Fault::Null(position / each.max(1)),
                        refused => refused,
                    })?;
                if inner.tail.len() != 1 {
                    return Err(no_numbers("a tensor of lists", CONVERT).into());
                }
                tail.truncate(before);
                tail.extend_from_slice(shape);
                inner.tail = tail;
                return Ok(inner);
            }
            kind => return Err(unread(kind).into()),
        }
    }
}

pub(super) const CONVERT: &str = "leave the column out or convert it before";

/// Why a column is not read.
pub(super) fn unread(kind: &Kind) -> Error {
    match kind {
        Kind::Other(got, cure) => no_numbers(got, cure),
        Kind::List { .. } | Kind::View { .. } => no_numbers(
            "lists of lists of unequal length",
            "flatten one level before (pyarrow.compute.list_flatten)",
        ),
        Kind::Struct(_) => no_numbers("a struct within a list", CONVERT),
        Kind::Text(_) => no_numbers("strings or bytes", CONVERT),
        Kind::Tensor { .. } | Kind::Tensors { .. } => {
            no_numbers("tensors within a list", "give a column of tensors")
        }
        Kind::Number(_) | Kind::Bits | Kind::Fixed(..) => no_numbers("something else", CONVERT),
    }
}

/// # Safety
/// The bitmap covers the bits.
pub(super) unsafe fn unpack(bits: *const u8, first: i64, len: i64) -> Result<Vec<bool>> {
    let mut bools = room_for(len)?;
    bools.extend((first..first + len).map(|at| {
        // SAFETY: the caller's promise.
        unsafe { *bits.add((at / 8) as usize) >> (at % 8) & 1 == 1 }
    }));
    Ok(bools)
}

/// The offsets of lists, and the values from the first of these on.
///
/// # Safety
/// As [`Columns::append`].
pub(super) unsafe fn lists(
    part: Part<'_>,
    wide: bool,
    entries: &Kind,
) -> std::result::Result<(Vec<i64>, Values), Fault> {
    part.expect(2, 1..)?;
    // SAFETY: the caller's promise; buffers and children were just counted.
    unsafe {
        part.refuse_null()?;
        let offsets = part.offsets(wide)?;
        let (first, last) = (offsets[0], offsets[part.len as usize]);
        let child = part.child(0, first, last - first)?;
        let values = values(entries, child).map_err(|fault| match fault {
            Fault::Null(position) => {
                let row = offsets.partition_point(|&offset| offset <= first + position);
                Fault::Null(row as i64 - 1)
            }
            refused => refused,
        })?;
        Ok((offsets, values))
    }
}

/// The shapes that stand beside tensors: integers, as many for each row as it has dims.
///
/// # Safety
/// As [`Columns::append`].
pub(super) unsafe fn shapes_of(
    part: Part<'_>,
    kind: &Kind,
) -> std::result::Result<Vec<Dims>, Fault> {
    // SAFETY: the caller's promise.
    let (offsets, values) = unsafe {
        match kind {
            Kind::List { wide, entries } => lists(part, *wide, &entries.kind)?,
            Kind::Fixed(ndim, _) => {
                let mut values = values(kind, part)?;
                values.tail.remove(0);
                let mut offsets = room_for(part.len.saturating_add(1))?;
                offsets.extend((0..=part.len).map(|row| row * ndim));
                (offsets, values)
            }
            kind => return Err(unread(kind).into()),
        }
    };
    let wide = match (values.dtype, values.tail.is_empty()) {
        (DType::I64, true) => true,
        (DType::I32, true) => false,
        (dtype, _) => return Err(no_numbers(&format!("shapes of {dtype}"), CONVERT).into()),
    };
    let mut shapes = room_for(part.len)?;
    for bounds in offsets.windows(2) {
        let extent = |position: i64| {
            let at = (position - offsets[0]) as usize;
            // SAFETY: one of the values, as `lists` and `values` have counted them.
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
