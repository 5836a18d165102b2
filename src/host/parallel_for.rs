//! Work that is shared with helper threads that may start late, or never.
//!
//! The problem: a thread of the pool that is asked for help may not run for milliseconds, where another library's threads
//! spin on its core. A plain scope (rayon's, the standard library's) waits for every thread that it has started, so that the
//! whole call is as slow as the slowest start.
//!
//! ```text
//! caller    open gate | take, take, take ... | close gate | wait until nobody is inside | return
//! helper A      enter | take, take ......... | leave
//! helper B                                                        enter: refused, nothing is touched
//! ```
//!
//! ```text
//! enter: before = state.fetch_add(1); if before has CLOSED: fetch_sub(1), refused
//! leave: state.fetch_sub(1)
//! close: state.fetch_or(CLOSED); spin until state == CLOSED
//! ```
//!
//! The number of helpers inside and the flag CLOSED share one word, so that a helper is either counted before the gate
//! closes, or sees that it is closed: with two words it could pass between the two. The job is on the caller's stack, hence
//! the wait; the gate is in an `Arc`, so a late helper may still look at it. Beside torch's spinning threads a stack of 32
//! images took 3.71 ms with a wait for late helpers and 0.35 ms with this gate (docs/performance-method.md). `host/model_tests.rs` runs
//! a caller with one and with two helpers under loom, which found that an earlier gate of two atomics was wrong.
#![allow(unsafe_code)] // A job outlives no thread inside it, which the compiler cannot know.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use crate::host::Helpers;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{spin_loop, thread};

/// Admits helper threads until it is closed.
#[derive(Debug, Default)]
pub(super) struct HelperGate {
    /// The number of helpers inside, and the flag [`CLOSED`].
    state: AtomicUsize,
}

const CLOSED: usize = 1 << (usize::BITS - 1);

/// A helper that was admitted. Its drop says that it has left.
#[derive(Debug)]
pub(super) struct HelperGuard<'a>(&'a HelperGate);

impl HelperGate {
    /// Admits the calling thread until the guard is dropped; `None` if the gate is closed.
    pub fn enter(&self) -> Option<HelperGuard<'_>> {
        let before = self.state.fetch_add(1, Ordering::Acquire);
        let guard = HelperGuard(self);
        (before & CLOSED == 0).then_some(guard)
    }

    /// Closes the gate and returns when all helpers have left. The caller then sees what they wrote.
    pub fn close_and_wait(&self) {
        self.state.fetch_or(CLOSED, Ordering::Relaxed);
        while self.state.load(Ordering::Acquire) != CLOSED {
            spin_loop();
            thread::yield_now();
        }
    }
}

impl Drop for HelperGuard<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_sub(1, Ordering::Release);
    }
}

/// The work of the helpers, without the lifetime of what it borrows.
#[derive(Clone, Copy)]
struct Task(*const (dyn Fn() + Sync));

// SAFETY: what it points to is `Sync`.
unsafe impl Send for Task {}

/// Closes a gate on drop, also if its owner panics.
struct GateCloser<'a>(&'a HelperGate);

impl Drop for GateCloser<'_> {
    fn drop(&mut self) {
        self.0.close_and_wait();
    }
}

/// Calls `run` once for each number below `count`, on the calling thread and on those that help,
/// and returns when all calls have ended. Each thread takes its numbers in rising order.
///
/// # Panics
/// If `run` does on any thread, after the helpers have left; some numbers may then have been left
/// out.
pub(crate) fn parallel_for(count: usize, threads: Option<&Helpers>, run: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let take_all = || loop {
        let taken = next.fetch_add(1, Ordering::Relaxed);
        if taken >= count {
            break;
        }
        run(taken);
    };
    let Some(threads) = threads else { return take_all() };
    let failed = AtomicBool::new(false);
    let help = || {
        if catch_unwind(AssertUnwindSafe(take_all)).is_err() {
            failed.store(true, Ordering::Relaxed);
        }
    };
    let help: &(dyn Fn() + Sync) = &help;
    // SAFETY: only the lifetime changes. Only helpers inside the gate call it, and this function
    // does not return or unwind before `GateCloser` has closed the gate and all of them have left.
    let task = Task(unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &(dyn Fn() + Sync)>(help) });
    let gate = Arc::new(HelperGate::default());
    let opened = GateCloser(&gate);
    for _ in 0..threads.count.min(count.saturating_sub(1)) {
        let gate = Arc::clone(&gate);
        threads.spawn(move || {
            let task = task;
            if let Some(_guard) = gate.enter() {
                // SAFETY: the caller does not return while this helper is inside the gate, so the job lives.
                unsafe { (*task.0)() };
            }
        });
    }
    take_all();
    drop(opened);
    assert!(!failed.load(Ordering::Relaxed), "a thread that helped panicked");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn helpers(count: usize) -> Helpers {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(count).build().unwrap();
        Helpers { pool: Arc::new(pool), count }
    }

    #[test]
    fn each_number_once() {
        let threads = helpers(3);
        for count in [0, 1, 2, 7, 1000] {
            let seen: Vec<AtomicUsize> =
                std::iter::repeat_with(AtomicUsize::default).take(count).collect();
            parallel_for(count, Some(&threads), |i| {
                seen[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(seen.iter().all(|times| times.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn helpers_help() {
        // Each waits here until all have a number.
        let all = Barrier::new(3);
        parallel_for(3, Some(&helpers(2)), |_| {
            all.wait();
        });
    }

    #[test]
    fn helpers_that_do_not_come_are_not_waited_for() {
        let threads = helpers(2);
        let barrier = Arc::new(Barrier::new(3));
        for _ in 0..2 {
            let barrier = Arc::clone(&barrier);
            threads.pool.spawn(move || {
                barrier.wait();
            });
        }
        let mine = std::thread::current().id();
        parallel_for(100, Some(&threads), |_| assert_eq!(std::thread::current().id(), mine));
        barrier.wait();
        // The threads come now, and find the gate closed.
        threads.pool.broadcast(|_| ());
    }

    #[test]
    fn a_panic_is_the_callers_and_no_thread_is_left_inside() {
        let threads = helpers(2);
        for bad in 0..20 {
            let num_inside = AtomicUsize::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                parallel_for(20, Some(&threads), |i| {
                    num_inside.fetch_add(1, Ordering::Relaxed);
                    let fails = i == bad;
                    std::thread::yield_now();
                    num_inside.fetch_sub(1, Ordering::Relaxed);
                    assert!(!fails, "this one fails");
                });
            }));
            assert!(outcome.is_err());
            assert_eq!(num_inside.load(Ordering::Relaxed), 0);
        }
    }
}
