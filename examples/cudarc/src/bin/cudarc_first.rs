//! Links cudarc before windrow.
extern crate cudarc;
extern crate windrow;

include!("../both.rs");
