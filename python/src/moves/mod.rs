//! Moves: `copy_many`, parts of one buffer (`windrow.packed`), uploads of `windrow.Staging`.

pub(crate) mod copy_many;
pub(crate) mod one_buffer;
mod pairs;
pub(crate) mod staging;
