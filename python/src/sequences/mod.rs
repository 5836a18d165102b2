//! Sequences of tokens padded or packed, graphs joined, and plans of batches by lengths: the compiled part of `windrow.sequence`,
//! `windrow.structure` and `windrow.plan`.

pub(crate) mod graphs;
pub(crate) mod pack;
mod pack_on_device;
mod packed;
pub(crate) mod packing;
pub(crate) mod token_columns;
mod uploaded_numbers;
