//! Links windrow before cudarc.
extern crate windrow;
extern crate cudarc;

include!("../both.rs");
