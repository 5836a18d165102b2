//! The tests of the public interface, one module for each file of this folder: one program, so that what they share
//! is compiled once.
//!
//! The files that are programs of their own need the process for themselves (`sweep_memory.rs` its allocator,
//! `tracing.rs` its subscribers) or are not packed (`corpus.rs`).
//!
//! ```text
//! cargo test-all --test suite executors::
//! ```

mod common;

mod ahead;
mod arena;
mod batch;
mod byte_order;
mod casts;
mod channels;
mod device_moves;
mod device_quantize;
mod device_scaled_moves;
mod errors;
mod executors;
mod increments;
mod moves;
mod ndarray;
mod options;
mod outputs;
mod packed;
mod properties;
mod quantize;
mod sizes;
mod small;
