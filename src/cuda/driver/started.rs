//! The process that started the driver: a child forked after that cannot use it.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::tensor::Error;

/// The process that started, or was starting, the driver. 0: none has.
static STARTED_BY: AtomicU32 = AtomicU32::new(0);

/// Notes that this process starts the driver, in place of any other.
pub(super) fn mark() {
    STARTED_BY.store(process::id(), Ordering::Release);
}

/// The [`Error::NoDriver`] in a child that was forked after the driver started; `None` in any other process.
pub(crate) fn forked() -> Option<Error> {
    let by = STARTED_BY.load(Ordering::Acquire);
    if by == 0 || by == process::id() {
        return None;
    }
    Some(Error::no_driver(
        "this process was forked after its parent had begun to use CUDA, which no driver survives; \
         start such processes by spawn or forkserver"
            .into(),
    ))
}

/// Runs the release of an object of the driver, from a drop; not in a forked child, whose driver belongs to the parent process.
/// There is no caller to tell of an error, and the driver may be gone (at process exit). A panic is
/// not caught.
pub(super) fn quietly(release: impl FnOnce()) {
    if forked().is_none() {
        release();
    }
}
