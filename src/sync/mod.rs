//! Synchronisation primitives, the standard library's or loom's, and fork-safe locks.

mod fork;
mod primitives;

#[cfg(all(target_os = "linux", not(any(miri, all(test, windrow_loom)))))]
pub(crate) use fork::on_fork;
pub(crate) use fork::{ForkMutex, Guard};
pub(crate) use primitives::*;
