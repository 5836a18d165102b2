//! Synchronisation primitives: the standard library's, or loom's, which tries out every interleaving of threads and
//! every order of memory that the processor may choose (`scripts/ci/loom.sh`).

use std::sync::PoisonError;

#[cfg(not(all(test, windrow_loom)))]
pub(crate) use std::{
    hint::spin_loop,
    sync::{atomic, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard},
    thread,
};

#[cfg(all(test, windrow_loom))]
pub(crate) use loom::{
    lazy_static,
    sync::{atomic, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard},
    thread,
};

/// Locks what no panic leaves half done, whether a thread has panicked or not.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does nothing, as a checker has no time: a waiting thread calls `thread::yield_now` besides.
#[cfg(all(test, windrow_loom))]
pub(crate) fn spin_loop() {}

/// Memory that a raw address leads to, which loom cannot see: accesses are recorded here. Nothing without loom.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    #[cfg(all(test, windrow_loom))]
    memory: loom::cell::UnsafeCell<()>,
}

#[cfg(all(test, windrow_loom))]
// SAFETY: loom records accesses, and there is nothing to race for.
#[allow(unsafe_code)]
unsafe impl Sync for Watched {}

impl Watched {
    /// The calling thread has a part of it, beside others with theirs.
    #[inline]
    pub fn share(&self) {
        #[cfg(all(test, windrow_loom))]
        self.memory.with(|_| ());
    }

    /// The calling thread has all of it: others with a part are done, and seen to be done.
    #[inline]
    pub fn reclaim(&self) {
        #[cfg(all(test, windrow_loom))]
        self.memory.with_mut(|_| ());
    }
}
