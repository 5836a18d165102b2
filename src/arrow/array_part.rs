//! A part of an array: what it says is checked before its buffers are read.
#![allow(unsafe_code)] // Foreign buffers are read here.

use super::ffi::ArrowArray;
use crate::tensor::{try_vec, Device, Error, Hint, Mismatch, Result};

/// Why a part of an array is not read.
pub(super) enum PartError {
    /// The position of a null, in entries from the start of the part.
    Null(i64),
    /// The position of the first entry that the memory does not have, and the error.
    Beyond(i64, Error),
    /// Any other error. Its index, if it has one, is an entry of the part.
    Refused(Error),
}

impl PartError {
    /// The error of a child as one of its parent: `parent_of` gives the parent's entry for one of the child. Refusals are
    /// unchanged.
    pub(super) fn in_parent(self, parent_of: impl FnOnce(i64) -> i64) -> PartError {
        match self {
            PartError::Null(position) => PartError::Null(parent_of(position)),
            PartError::Beyond(position, error) => PartError::Beyond(parent_of(position), error),
            refused => refused,
        }
    }
}

impl From<Error> for PartError {
    fn from(error: Error) -> PartError {
        PartError::Refused(error)
    }
}

/// An [`Error::Layout`] at entry 0 of the part.
pub(super) fn broken(expected: impl Into<String>, got: impl Into<String>) -> Error {
    let (expected, got): (String, String) = (expected.into(), got.into());
    Mismatch::new(Some(0), expected, got).into_error(Error::Layout)
}

/// An [`Error::DType`] at entry 0 of the part.
pub(super) fn no_numbers(got: &str, hint: &'static str) -> Error {
    let expected = "numbers, or lists or tensors of them";
    Mismatch::new(Some(0), expected, got).with_hint(Hint::Text(hint)).into_error(Error::DType)
}

/// The [`Error::Device`] for `what` the host has to read although it is on a device.
pub(super) fn not_on_host(what: &str, device: Device) -> Error {
    let expected =
        "an Arrow array in host memory, or of numbers and fixed-size lists without nulls";
    let hint = "copy it to the host before";
    let mismatch = Mismatch::new(Some(0), expected, format!("{what} on {device}"));
    mismatch.with_hint(Hint::Text(hint)).into_error(Error::Device)
}

/// Consecutive entries of an array.
#[derive(Clone, Copy)]
pub(super) struct ArrayPart<'a> {
    pub array: &'a ArrowArray,
    /// The first one, from the array's own offset on.
    pub start: i64,
    pub len: i64,
    /// The device of the buffers.
    pub device: Device,
}

impl<'a> ArrayPart<'a> {
    /// The entries `start..start + len`. Checks the array's own numbers, but no pointer: [`PartError::Refused`] for a released array
    /// and for impossible ones; [`PartError::Beyond`] has the first entry that the array is too short for. A negative `start` or
    /// `len` is [`PartError::Beyond`] too.
    pub(super) fn new(
        array: &'a ArrowArray,
        start: i64,
        len: i64,
        device: Device,
    ) -> std::result::Result<ArrayPart<'a>, PartError> {
        let &ArrowArray { length, offset, null_count, .. } = array;
        if array.is_released() {
            return Err(broken("an Arrow array that is alive", "a released one").into());
        }
        if length < 0 || offset < 0 || offset.checked_add(length).is_none() {
            let got = format!("length {length} from offset {offset}");
            return Err(broken("an Arrow array of a length and an offset from 0 on", got).into());
        }
        if !(-1..=length).contains(&null_count) {
            let got = format!("{null_count}");
            return Err(broken(format!("a null count up to the length of {length}"), got).into());
        }
        let is_inside =
            start >= 0 && len >= 0 && start.checked_add(len).is_some_and(|end| end <= length);
        match is_inside {
            true => Ok(ArrayPart { array, start, len, device }),
            false => {
                let expected = format!("a child with {} entries", start.saturating_add(len));
                let error = broken(expected, format!("one of length {length}"));
                Err(PartError::Beyond(length.saturating_sub(start).max(0), error))
            }
        }
    }

    /// The position of the first entry in the buffers, the array's own offset included.
    pub(super) fn first(&self) -> i64 {
        self.array.offset + self.start
    }

    /// Checks the array's numbers of buffers and of children, and that the lists of their pointers are there. The pointers in the
    /// lists may be NULL. The error is [`Error::Layout`].
    pub(super) fn expect(&self, num_buffers: i64, num_children: usize) -> Result<()> {
        let ArrowArray { n_buffers, n_children, buffers, children, .. } = *self.array;
        if n_buffers != num_buffers || n_buffers > 0 && buffers.is_null() {
            let got = format!("{n_buffers} at {buffers:p}");
            return Err(broken(format!("an Arrow array of {num_buffers} buffers"), got));
        }
        if n_children != num_children as i64 || n_children > 0 && children.is_null() {
            let got = format!("{n_children} at {children:p}");
            return Err(broken(format!("as many children as its type has, {num_children}"), got));
        }
        Ok(())
    }

    /// The address of a buffer, which may be NULL.
    ///
    /// # Safety
    /// After `expect`: there are more buffers than `position`.
    pub(super) unsafe fn buffer(&self, position: usize) -> *const u8 {
        debug_assert!((position as i64) < self.array.n_buffers);
        debug_assert!(!self.array.buffers.is_null() && self.array.buffers.is_aligned());
        // SAFETY: the caller's promise.
        unsafe { *self.array.buffers.add(position) }.cast()
    }

    /// The address of a buffer; [`Error::Layout`] for NULL if the part has entries.
    ///
    /// # Safety
    /// After `expect`: there are more buffers than `position`.
    pub(super) unsafe fn required_buffer(&self, position: usize) -> Result<*const u8> {
        // SAFETY: the caller's promise.
        let buffer = unsafe { self.buffer(position) };
        match buffer.is_null() && self.len > 0 {
            true => Err(broken(format!("a buffer of {} entries", self.len), "NULL")),
            false => Ok(buffer),
        }
    }

    /// The entries `start..start + len` of a child, counted from the child's own offset on.
    ///
    /// # Safety
    /// After `expect`: there are more children than `position`.
    pub(super) unsafe fn child(
        &self,
        position: usize,
        start: i64,
        len: i64,
    ) -> std::result::Result<ArrayPart<'a>, PartError> {
        debug_assert!((position as i64) < self.array.n_children);
        debug_assert!(!self.array.children.is_null() && self.array.children.is_aligned());
        // SAFETY: the caller's promise. Children live as long as their parent.
        let child = unsafe { (*self.array.children.add(position)).as_ref() };
        match child {
            Some(child) => ArrayPart::new(child, start, len, self.device),
            None => Err(broken("children", format!("NULL as child {position}")).into()),
        }
    }

    /// [`PartError::Null`] at the first null, if there is one. A null count of 0 is believed. An array of unknown count and without a
    /// bitmap has no nulls; a bitmap on a device is an error, and so is none of an array that counts nulls.
    ///
    /// # Safety
    /// After `expect`, for a type whose buffer 0 is a validity bitmap; a bitmap that is there covers the entries.
    pub(super) unsafe fn refuse_null(&self) -> std::result::Result<(), PartError> {
        if self.array.null_count == 0 || self.len == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let bits = unsafe { self.buffer(0) };
        if bits.is_null() {
            return match self.array.null_count {
                -1 => Ok(()),
                count => Err(broken("a bitmap of nulls", format!("NULL for {count} nulls")).into()),
            };
        }
        if self.device != Device::Cpu {
            return Err(not_on_host("a bitmap of nulls", self.device).into());
        }
        let (first, mut position) = (self.first(), 0);
        debug_assert!(first >= 0 && first.checked_add(self.len).is_some());
        while position < self.len {
            let at = first + position;
            // SAFETY: `at` is the bit of an entry, which the bitmap covers.
            let byte = unsafe { *bits.add((at / 8) as usize) };
            let in_byte = (8 - at % 8).min(self.len - position);
            let mask = (((1u16 << in_byte) - 1) << (at % 8)) as u8;
            if byte & mask != mask {
                let null = (!(byte | !mask)).trailing_zeros() as i64 - at % 8;
                return Err(PartError::Null(position + null));
            }
            position += in_byte;
        }
        Ok(())
    }

    /// The integer of entry `position` of the part, in a buffer of int64 (`wide`) or int32.
    ///
    /// # Safety
    /// The buffer is in host memory and has an integer for this entry; it may be misaligned.
    pub(super) unsafe fn int(&self, buffer: *const u8, wide: bool, position: i64) -> i64 {
        debug_assert!(!buffer.is_null() && (0..=self.len).contains(&position));
        debug_assert_eq!(self.device, Device::Cpu);
        let at = (self.first() + position) as usize;
        // SAFETY: the caller's promise.
        unsafe {
            match wide {
                true => buffer.cast::<i64>().add(at).read_unaligned(),
                false => i64::from(buffer.cast::<i32>().add(at).read_unaligned()),
            }
        }
    }

    /// The offsets in buffer 1, one more than the part has entries. They are at least 0 and do not go back; others are
    /// an [`Error::Layout`] at their entry. `[0]` for a part without entries, whose buffer is not read.
    ///
    /// # Safety
    /// After `expect`; buffer 1 of a part with entries is in host memory and has one more offset than the array has entries.
    pub(super) unsafe fn offsets(&self, wide: bool) -> Result<Vec<i64>> {
        let mut offsets = try_vec(self.len as usize + 1)?;
        if self.len == 0 {
            offsets.push(0);
            return Ok(offsets);
        }
        // SAFETY: the caller's promise.
        let buffer = unsafe { self.required_buffer(1) }?;
        // SAFETY: the caller's promise.
        offsets.extend((0..=self.len).map(|position| unsafe { self.int(buffer, wide, position) }));
        // All at once, without a branch for each.
        let goes_back = |any, pair: &[i64]| any | (pair[1] < pair[0]);
        if offsets.windows(2).fold(offsets[0] < 0, goes_back) {
            let before = |position: usize| if position > 0 { offsets[position - 1] } else { 0 };
            let wrong = (0..offsets.len()).find(|&position| offsets[position] < before(position));
            let position = wrong.unwrap_or(0);
            let expected = format!("an offset from {} on", before(position));
            let refused = broken(expected, offsets[position].to_string());
            return Err(refused.at_index(position.saturating_sub(1)));
        }
        Ok(offsets)
    }
}
