#![doc = include_str!("../README.md")]

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("windrow-driver is written for Linux on x86-64 and aarch64");

// The dependency is there for its version alone, see Cargo.toml.
use cust_raw as _;

mod driver;

pub use driver::{entry, last_unknown_code, load, load_from, Function};
