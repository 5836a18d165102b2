//! The simulated driver against what the CUDA documentation says of the real one.

// Driver functions are called through pointers found by name.
#![allow(unsafe_code)]

mod capture;
mod faults;
mod gpu;
mod kernels;
mod memory;
mod streams;
