//! Synchronisation primitives, the standard library's or loom's, and fork-safe locks.

mod fork;
mod primitives;

pub(crate) use fork::{ForkMutex, Guard};
pub(crate) use primitives::*;
