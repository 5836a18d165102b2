//! The threads of an engine.

use std::sync::Arc;

use crate::sync::ForkMutex;
use crate::tensor::{Error, Result};

/// The threads that do the work.
#[derive(Debug)]
pub(crate) enum Threads {
    /// The caller's.
    Given(Arc<rayon::ThreadPool>),
    /// Threads are started at the first batch that is large enough, and again in a forked child: threads do not
    /// survive a fork.
    Own {
        /// The calling thread included.
        count: usize,
        started: ForkMutex<Option<StartedPool>>,
    },
}

/// Threads that may help the calling one.
#[derive(Debug)]
pub(crate) struct Helpers {
    #[cfg_attr(all(test, windrow_loom), allow(dead_code))] // Its threads are loom's.
    pub pool: Arc<rayon::ThreadPool>,
    /// The number of helpers: one less than the engine's threads, since the calling thread works too.
    pub count: usize,
}

impl Helpers {
    /// Queues work for one of the threads, and returns at once.
    #[cfg(not(all(test, windrow_loom)))]
    pub fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        self.pool.spawn(work);
    }

    /// Runs the work on a new thread of the model checker.
    #[cfg(all(test, windrow_loom))]
    pub fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        drop(crate::sync::thread::spawn(work));
    }
}

/// Threads made by a process: one less than the engine has, as the calling thread works too.
#[derive(Debug)]
pub(crate) struct StartedPool {
    process: u32,
    /// The pool, which only `drop` takes out.
    pool: Option<Arc<rayon::ThreadPool>>,
    ids: Arc<Ids>,
}

impl Drop for StartedPool {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The parent's threads are not here: waiting for them, or for a lock that one of them
            // held, would never end.
            std::mem::forget(self.pool.take());
        }
    }
}

impl Threads {
    /// Threads of an engine, `count` with the calling one, which [`Threads::helpers`] starts.
    pub fn new(count: usize) -> Threads {
        Threads::Own { count, started: ForkMutex::new(None) }
    }

    /// Threads that work on a large batch, the calling one included.
    pub fn count(&self) -> usize {
        match self {
            Threads::Given(pool) => pool.current_num_threads(),
            Threads::Own { count, .. } => *count,
        }
    }

    /// The threads that may help the calling one now; `None` if the engine's own are the calling one alone, never of the caller's
    /// pool. The engine's own are started, if this process has none yet, and kept off the caller's processor.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no memory for the stacks of threads, [`Error::Argument`] if the system
    /// gives none for another reason.
    pub fn helpers(&self) -> Result<Option<Helpers>> {
        let count = self.count().saturating_sub(1);
        let started = match self {
            Threads::Given(pool) => return Ok(Some(Helpers { pool: Arc::clone(pool), count })),
            Threads::Own { .. } if count == 0 => return Ok(None),
            Threads::Own { started, .. } => started,
        };
        let mut started = started.lock();
        let process = std::process::id();
        let started = match &mut *started {
            Some(started) if started.process == process => started,
            none => none.insert(StartedPool::new(process, count)?),
        };
        started.ids.keep_off_this_cpu();
        Ok(started.pool.clone().map(|pool| Helpers { pool, count }))
    }
}

/// The standard library's own default.
const STACK_BYTES: usize = 2 << 20;

/// A size that an allocator cannot have left over from before, as glibc may below 32 MiB.
const PROBE_BYTES: usize = 64 << 20;

impl StartedPool {
    /// Starts `count` threads, which record their ids as they begin. Errors as of [`Threads::helpers`]: after a failure a probe of
    /// `PROBE_BYTES` tells which.
    fn new(process: u32, count: usize) -> Result<StartedPool> {
        let ids = Arc::new(Ids::new(count));
        let entered = Arc::clone(&ids);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .stack_size(STACK_BYTES)
            .thread_name(|index| format!("windrow-{index}"))
            .start_handler(move |index| entered.enter(index))
            .build();
        let pool = pool.map_err(|e| {
            // The system gives one code for too many threads and for no memory for their stacks.
            // Opaque to the compiler, which may take an allocation that is not used for one that succeeds.
            let mut probe = Vec::<u8>::new();
            if std::hint::black_box(&mut probe).try_reserve_exact(PROBE_BYTES).is_err() {
                return Error::OutOfMemory { bytes: (count * STACK_BYTES) as u64 };
            }
            std::hint::black_box(probe);
            Error::argument(format!(
                "cannot start {count} threads: {e}; an engine with one thread starts none"
            ))
        })?;
        Ok(StartedPool { process, pool: Some(Arc::new(pool)), ids })
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) use linux::Ids;

#[cfg(all(target_os = "linux", not(miri)))]
#[allow(unsafe_code)] // Calls of the system.
mod linux {
    use std::mem::MaybeUninit;
    use std::sync::atomic::{AtomicI32, Ordering};
    use std::sync::{Mutex, PoisonError};

    /// The system's numbers for threads that were started, and where these may run.
    #[derive(Debug)]
    pub(crate) struct Ids {
        threads: Box<[AtomicI32]>,
        /// The set of processors that the threads were given last.
        given: Mutex<Option<libc::cpu_set_t>>,
    }

    impl Ids {
        /// Room for the ids of `count` threads.
        pub fn new(count: usize) -> Ids {
            let threads = std::iter::repeat_with(AtomicI32::default).take(count).collect();
            Ids { threads, given: Mutex::new(None) }
        }

        /// Records the id of the calling thread.
        pub fn enter(&self, index: usize) {
            // SAFETY: a question without arguments.
            self.threads[index].store(unsafe { libc::gettid() }, Ordering::Release);
        }

        /// Keeps the threads off the caller's current processor: with few cores Linux
        /// often wakes a thread on the waker's own, where it waits until the waker is done. (Zen 4, two
        /// cores, Linux 6.18: 0.51 ms with it and 0.33 without, for 4096 rows of 512 bytes.) The
        /// system is asked once for each place of the caller: this takes longer than to copy 64
        /// KiB. Nothing changes if the caller may use one processor alone, or for threads that the
        /// system refuses. Threads that have not begun are kept off by a later call.
        pub fn keep_off_this_cpu(&self) {
            let size = size_of::<libc::cpu_set_t>();
            let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
            // SAFETY: a set of `size` bytes to fill in; all zeros is one too. The number of a CPU is
            // in bounds of it, or negative. The threads live as long as the pool, so that no other
            // thread has their numbers; one that is refused stays where it is.
            unsafe {
                let cpu = libc::sched_getcpu();
                if cpu < 0 || libc::sched_getaffinity(0, size, set.as_mut_ptr()) != 0 {
                    return;
                }
                let mut set = set.assume_init();
                if libc::CPU_COUNT(&set) < 2 || cpu as usize >= 8 * size {
                    return;
                }
                libc::CPU_CLR(cpu as usize, &mut set);
                let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
                if given.is_some_and(|given| libc::CPU_EQUAL(&given, &set)) {
                    return;
                }
                let mut have_begun = true;
                for thread in &self.threads {
                    match thread.load(Ordering::Acquire) {
                        0 => have_begun = false,
                        id => drop(libc::sched_setaffinity(id, size, &set)),
                    }
                }
                *given = have_begun.then_some(set);
            }
        }
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
pub(crate) use elsewhere::Ids;

/// Other systems place their threads themselves.
#[cfg(any(not(target_os = "linux"), miri))]
mod elsewhere {
    #[derive(Debug)]
    pub(crate) struct Ids;

    impl Ids {
        /// Nothing: threads have no processor of their own here.
        pub fn new(_: usize) -> Ids {
            Ids
        }

        pub fn enter(&self, _: usize) {}

        pub fn keep_off_this_cpu(&self) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_made_once() {
        let threads = Threads::new(3);
        let (first, second) = (threads.helpers().unwrap().unwrap(), threads.helpers().unwrap());
        assert!(Arc::ptr_eq(&first.pool, &second.unwrap().pool));
        assert_eq!((threads.count(), first.count, first.pool.current_num_threads()), (3, 2, 2));
        assert!(Threads::new(1).helpers().unwrap().is_none());
        let given = Threads::Given(Arc::clone(&first.pool));
        let helpers = given.helpers().unwrap().unwrap();
        assert!(Arc::ptr_eq(&first.pool, &helpers.pool));
        assert_eq!((given.count(), helpers.count), (2, 1));
    }

    #[test]
    fn threads_end_with_their_owner() {
        let threads = Threads::new(3);
        drop(threads.helpers().unwrap());
        let Threads::Own { started, .. } = &threads else { unreachable!("own") };
        let ids = Arc::downgrade(&started.lock().as_ref().expect("started").ids);
        drop(threads);
        // The threads have a share of them until they end.
        while ids.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
