//! Fork-safe locks.
//!
//! A fork copies memory as it is, with the locks that other threads hold, and not those threads: the
//! child would wait forever. So a fork waits until all of these locks are free and keeps them so
//! until it is done. No thread may hold two of them, or call Python or a driver while holding one.
//!
//! ```text
//! thread A      gate.read | lock | ... | unlock | gate.read released
//! forking       pthread_atfork prepare: gate.write waits for A ........... | fork | parent, child: gate.write released
//! thread B                                      gate.read waits ................. | lock
//! ```
//!
//! One gate stands for all locks: a list of locks to take in `prepare` would have to change with each mutex that is made or
//! dropped. Each lock costs an atomic read lock more. A second lock under the first could deadlock: the writer waits for the
//! first reader, and the second read waits for the writer.

use std::sync::PoisonError;

use crate::sync::primitives::{lock, Mutex, MutexGuard, RwLock, RwLockReadGuard};

/// The lock that is held for reading while a [`ForkMutex`] is held, and for writing by a fork.
#[cfg(not(all(test, windrow_loom)))]
static GATE: RwLock<()> = RwLock::new(());

#[cfg(all(test, windrow_loom))]
crate::sync::primitives::lazy_static! {
    static ref GATE: RwLock<()> = RwLock::new(());
}

/// A mutex for short sections, which a fork waits for.
#[derive(Debug)]
pub(crate) struct ForkMutex<T>(Mutex<T>);

/// A locked mutex. The fields are dropped in this order.
pub(crate) struct Guard<'m, T> {
    value: MutexGuard<'m, T>,
    _gate: RwLockReadGuard<'static, ()>,
}

impl<T> ForkMutex<T> {
    /// A mutex of this value. From the first one on, every fork of the process goes through the gate.
    pub fn new(value: T) -> ForkMutex<T> {
        at_fork::watch();
        ForkMutex(Mutex::new(value))
    }

    /// Runs with the value, in what a fork calls ([`on_fork`]): the fork has the gate to itself, so that nobody has the lock.
    #[cfg(all(target_os = "linux", not(any(miri, all(test, windrow_loom)))))]
    pub fn in_fork<R>(&self, run: impl FnOnce(&mut T) -> R) -> R {
        run(&mut lock(&self.0))
    }

    /// Locks the value; waits for a fork that is under way. The thread holds no other such lock, which is not checked.
    pub fn lock(&self) -> Guard<'_, T> {
        let _gate = GATE.read().unwrap_or_else(PoisonError::into_inner);
        // Nothing panics while such a lock is held; if it did, the figures would still be usable.
        Guard { value: lock(&self.0), _gate }
    }
}

impl<T: Default> Default for ForkMutex<T> {
    fn default() -> Self {
        ForkMutex::new(T::default())
    }
}

impl<T> std::ops::Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> std::ops::DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(all(target_os = "linux", not(any(miri, all(test, windrow_loom)))))]
pub(crate) use at_fork::on_fork;

#[cfg(all(unix, not(any(miri, all(test, windrow_loom)))))]
mod at_fork {
    use std::cell::Cell;
    use std::sync::{Once, OnceLock, PoisonError, RwLockWriteGuard};

    use super::GATE;

    thread_local! {
        /// The gate, while this thread forks; the child goes on in a copy of this thread.
        static CLOSED: Cell<Option<RwLockWriteGuard<'static, ()>>> = const { Cell::new(None) };
    }

    static CALLED: OnceLock<Called> = OnceLock::new();

    struct Called {
        before: fn(),
        in_child: fn(),
    }

    /// Has `before` be called by each fork from now on, while no fork-safe lock is held, and `in_child` in the child. They
    /// must not take such locks but by `in_fork`. The first call of the process counts; later ones have no effect.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    pub fn on_fork(before: fn(), in_child: fn()) {
        watch();
        let _ = CALLED.set(Called { before, in_child });
    }

    /// Waits before a fork until no fork-safe lock is held, and keeps others from being taken.
    extern "C" fn close() {
        // A thread that is ending and forks does without.
        let _ = CLOSED.try_with(|closed| {
            closed.set(Some(GATE.write().unwrap_or_else(PoisonError::into_inner)));
            if let Some(called) = CALLED.get() {
                (called.before)();
            }
        });
    }

    /// Runs the function that [`on_fork`] was given for the child of a fork, then opens the gate.
    extern "C" fn open_in_child() {
        if let Some(called) = CALLED.get() {
            (called.in_child)();
        }
        open();
    }

    /// Opens the gate after a fork, in the parent and in the child: locks can be taken again.
    extern "C" fn open() {
        let _ = CLOSED.try_with(Cell::take);
    }

    /// Has every fork from now on go through the gate.
    pub fn watch() {
        static WATCHED: Once = Once::new();
        // SAFETY: functions without arguments, which do not unwind and stay as long as the process.
        #[allow(unsafe_code)]
        WATCHED.call_once(|| unsafe {
            // The call fails only if memory runs out; then forks do not go through the gate.
            libc::pthread_atfork(Some(close), Some(open), Some(open_in_child));
        });
    }
}

#[cfg(any(not(unix), miri, all(test, windrow_loom)))]
mod at_fork {
    /// Does nothing: this build cannot fork.
    pub fn watch() {}
}
