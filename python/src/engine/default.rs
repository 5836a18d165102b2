//! The engines of the module itself.

use std::sync::OnceLock;

use pyo3::prelude::*;

/// The engine of the module's functions, an [`Engine::host`](windrow::Engine::host) that is made at first use.
pub(crate) fn default_engine() -> &'static windrow::Engine {
    static ENGINE: OnceLock<windrow::Engine> = OnceLock::new();
    ENGINE.get_or_init(windrow::Engine::host)
}

/// Drops what waits for work on devices, without the interpreter lock, which others may need for that work.
pub(crate) fn drop_detached<T: Send>(waiting: T) {
    let mut held = Some(waiting);
    Python::try_attach(|py| {
        let waiting = held.take();
        py.detach(|| drop(waiting));
    });
}

/// The engine for our own small copies: index arrays, `copy=True`. Kept out of the user's counters; made as `default_engine` is.
pub(crate) fn index_engine() -> &'static windrow::Engine {
    static ENGINE: OnceLock<windrow::Engine> = OnceLock::new();
    ENGINE.get_or_init(windrow::Engine::host)
}
