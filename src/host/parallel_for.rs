//! Work that is shared with threads which may come late.
//!
//! A thread that is asked for help may not get to run for milliseconds, where another library's threads
//! spin on its core. The caller waits only for helpers that started; one that comes later finds the door
//! closed when it comes.
#![allow(unsafe_code)] // A job outlives no thread inside it, which the compiler cannot know.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use crate::host::Helpers;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{spin_loop, thread};

/// Lets helpers in until it is closed.
#[derive(Debug, Default)]
pub(super) struct Door {
    /// How many are inside, and [`CLOSED`]. One word, so that a thread that comes is either counted before the
    /// door is closed, or sees that it is.
    state: AtomicUsize,
}

const CLOSED: usize = 1 << (usize::BITS - 1);

/// A helper that was let in; dropped, it has left.
#[derive(Debug)]
pub(super) struct Inside<'a>(&'a Door);

impl Door {
    /// Lets the calling thread in, unless the door is closed.
    pub fn enter(&self) -> Option<Inside<'_>> {
        let before = self.state.fetch_add(1, Ordering::Acquire);
        let inside = Inside(self);
        (before & CLOSED == 0).then_some(inside)
    }

    /// Closes the door, and returns when all have left; what they wrote is seen then.
    pub fn close_and_wait(&self) {
        self.state.fetch_or(CLOSED, Ordering::Relaxed);
        while self.state.load(Ordering::Acquire) != CLOSED {
            spin_loop();
            thread::yield_now();
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_sub(1, Ordering::Release);
    }
}

/// The work of the helpers, without the lifetime of what it borrows.
#[derive(Clone, Copy)]
struct Task(*const (dyn Fn() + Sync));

// SAFETY: what it points to is `Sync`.
unsafe impl Send for Task {}

/// Closes a door even if the one who opened it panics.
struct OpenDoor<'a>(&'a Door);

impl Drop for OpenDoor<'_> {
    fn drop(&mut self) {
        self.0.close_and_wait();
    }
}

/// Calls `run` once for each number below `count`, on the calling thread and on those that help.
///
/// # Panics
/// If `run` does.
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
    // SAFETY: only the lifetime changes. It is called by those inside of the door alone, and this function
    // is not left, nor by a panic, before `OpenDoor` has closed the door and all of them have left.
    let task = Task(unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &(dyn Fn() + Sync)>(help) });
    let door = Arc::new(Door::default());
    let opened = OpenDoor(&door);
    for _ in 0..threads.count.min(count.saturating_sub(1)) {
        let door = Arc::clone(&door);
        threads.spawn(move || {
            let task = task;
            if let Some(_inside) = door.enter() {
                // SAFETY: inside of the door, so it lives.
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
        // They come now, and find it closed.
        threads.pool.broadcast(|_| ());
    }

    #[test]
    fn a_panic_is_the_callers_and_no_thread_is_left_inside() {
        let threads = helpers(2);
        for bad in 0..20 {
            let inside = AtomicUsize::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                parallel_for(20, Some(&threads), |i| {
                    inside.fetch_add(1, Ordering::Relaxed);
                    let fails = i == bad;
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::Relaxed);
                    assert!(!fails, "this one fails");
                });
            }));
            assert!(outcome.is_err());
            assert_eq!(inside.load(Ordering::Relaxed), 0);
        }
    }
}
