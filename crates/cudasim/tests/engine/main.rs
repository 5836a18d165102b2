//! The CUDA engine on the simulated driver: order, lifetimes, captures, faults, bad input.

// Device memory and streams are handed over by address, as other programs do it.
#![allow(unsafe_code)]

mod capture;
mod faults;
#[allow(dead_code, reason = "shared with the tests of the simulator itself")]
#[path = "../sim/gpu.rs"]
mod gpu;
mod input;
mod lifetime;
mod order;
mod processes;
mod rig;
mod scenarios;
mod waits;
