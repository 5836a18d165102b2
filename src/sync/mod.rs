//! What threads meet at, the standard library's or loom's, and locks that a fork waits for.

mod fork;
mod primitives;

pub(crate) use fork::{ForkMutex, Guard};
pub(crate) use primitives::*;
