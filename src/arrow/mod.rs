//! Arrow arrays of other libraries as samples, and batches as Arrow arrays, by the Arrow C data interface: no Arrow library
//! is needed.
//!
//! | struct | what it is here |
//! |---|---|
//! | [`ArrowSchema`] | read once, to [`Columns`]: which columns there are, and how their rows become samples |
//! | [`ArrowArray`] | rows, appended with [`Columns::append`]; the keeper of the samples keeps the struct |
//! | [`ArrowArrayStream`], [`ArrowDeviceArray`] | declared only: a binding calls the one and looks at the other's device |
//!
//! [`Batch::to_arrow`](crate::Batch::to_arrow) is the way out.
//!
//! A row is a sample: numbers and bools have no dims, lists (`list`, `large_list`, `list_view`) have their length,
//! fixed-size lists and tensors (`arrow.fixed_shape_tensor`, `arrow.variable_shape_tensor`, Ray's) their shape. All stay
//! in the memory of the array except bools, which Arrow packs into bits. Strings and bytes are given by address and length
//! ([`ColumnRows::Texts`]); structs without fields have nothing to read. Nulls and all other types (dictionaries, run-end
//! encoded arrays, dates, ...) are refused.
//!
//! An array says how long it is, not how large its buffers are. What it says is checked against its type and against
//! itself before a buffer is read: released structs, negative lengths and offsets, numbers of buffers and children, NULL
//! where memory is due, list offsets that go back or beyond their child.
//!
//! # Why not a crate?
//! The interface is four structs that have not changed since 2020. The smallest crate with them brings Arrow's own
//! arrays and buffers, and checks an import by copying what it says into types of its own.

mod array_part;
mod export;
mod ffi;
mod field;
mod read;
#[cfg(test)]
mod tests;
mod texts;
mod values;

pub use ffi::*;
pub use read::{Column, ColumnRows, Columns};
