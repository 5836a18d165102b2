//! Blocks while processes fork. A child has the tensors that its parent had, in memory that both share: a block that was in
//! use when a process forked is not written again before the children of that time have ended, however they end. That is known
//! by a pipe, of which they all have the writing end.
#![allow(unsafe_code)] // Calls of the system.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use super::memory::Memory;
use crate::sync::{on_fork, ForkMutex};

/// Counts children in a line: processes differ in it from those that they come from.
static PROCESS: AtomicU64 = AtomicU64::new(0);
/// Generations of children so far.
static GENERATIONS: AtomicU64 = AtomicU64::new(0);
/// Whether releases wait for children.
static HAS_DEFERRED: AtomicBool = AtomicBool::new(false);

/// Children that were forked while the same blocks were in use.
#[derive(Debug)]
struct Generation {
    number: u64,
    /// Children from now on belong to it too: no lease has begun since, and none of those that they have has ended.
    is_open: bool,
    /// The descriptor that reaches its end when all children are gone. `None`: none could be made, and they count as
    /// living for ever.
    ended: Option<OwnedFd>,
    /// The descriptor that children inherit, kept while it is open.
    inherited: Option<OwnedFd>,
}

/// A claim that ends when the children are gone that were forked during its time.
#[derive(Debug)]
pub(super) struct Claim {
    pub memory: Arc<Memory>,
    pub claim: u32,
    pub number: u64,
}

impl Claim {
    /// Ends the claim.
    fn release(self) {
        self.memory.release(self.claim, self.number);
    }
}

#[derive(Debug, Default)]
struct Forks {
    process: u64,
    /// Leases of this process.
    num_leases: usize,
    generations: Vec<Generation>,
    /// Claims, each behind the first and last generation of children that may have it.
    deferred: Vec<(u64, u64, Claim)>,
}

static FORKS: LazyLock<ForkMutex<Forks>> = LazyLock::new(|| {
    on_fork(before, in_child);
    ForkMutex::default()
});

/// A number that tells this process from those it was forked from and from its children. Forks are watched from the first call
/// on.
pub(super) fn process() -> u64 {
    LazyLock::force(&FORKS);
    PROCESS.load(Ordering::Relaxed)
}

/// The process and generation in which a lease began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    process: u64,
    generation: u64,
}

/// Begins a lease, and releases what waited for children that are gone by now. Children from now on are a new generation.
pub(super) fn begin() -> Life {
    if HAS_DEFERRED.load(Ordering::Relaxed) {
        poll();
    }
    Forks::with(|forks| {
        forks.num_leases += 1;
        forks.seal();
        Life { process: forks.process, generation: GENERATIONS.load(Ordering::Relaxed) }
    })
}

/// Ends a lease: its claim is released, now or when no child has the block any more. One that was inherited is the parent's:
/// nothing happens.
pub(super) fn end(life: Life, claim: Claim) {
    if life.process != PROCESS.load(Ordering::Relaxed) {
        return;
    }
    let deferred = Forks::with(|forks| {
        forks.num_leases -= 1;
        let last = GENERATIONS.load(Ordering::Relaxed);
        if life.generation == last {
            return Some(claim);
        }
        forks.seal();
        forks.deferred.push((life.generation + 1, last, claim));
        None
    });
    match deferred {
        Some(claim) => claim.release(),
        None => {
            HAS_DEFERRED.store(true, Ordering::Relaxed);
            poll();
        }
    }
}

/// Releases what waited for children that are gone by now.
pub(super) fn poll() {
    let released = Forks::with(|forks| {
        forks.generations.retain(|generation| !generation.has_ended());
        let generations = &forks.generations;
        let waits = |&(first, last, _): &(u64, u64, Claim)| {
            generations.iter().any(|of| (first..=last).contains(&of.number))
        };
        let (waiting, released) =
            std::mem::take(&mut forks.deferred).into_iter().partition::<Vec<_>, _>(waits);
        forks.deferred = waiting;
        HAS_DEFERRED.store(!forks.deferred.is_empty(), Ordering::Relaxed);
        released
    });
    for (_, _, claim) in released {
        claim.release();
    }
}

impl Forks {
    /// Runs with the forks of this process, under the lock; what is left of a parent's is dropped outside of it, but for the
    /// descriptors that children inherit, which stay open.
    fn with<R>(run: impl FnOnce(&mut Forks) -> R) -> R {
        let (result, inherited);
        {
            let mut forks = FORKS.lock();
            let process = PROCESS.load(Ordering::Relaxed);
            let fresh = || Forks { process, ..Forks::default() };
            inherited = (forks.process != process).then(|| std::mem::replace(&mut *forks, fresh()));
            result = run(&mut forks);
        }
        for generation in inherited.into_iter().flat_map(|forks| forks.generations) {
            // Open as long as this process lives: the parent waits for that.
            let _ = generation.inherited.map(IntoRawFd::into_raw_fd);
        }
        result
    }

    /// Children from now on are another generation than those so far.
    fn seal(&mut self) {
        if let Some(last) = self.generations.last_mut() {
            last.is_open = false;
            last.inherited = None;
        }
    }
}

impl Generation {
    /// An open generation with a descriptor to watch its children by, if one can be made.
    fn new(number: u64) -> Generation {
        let (ended, inherited) = pipe().ok().unzip();
        Generation { number, is_open: true, ended, inherited }
    }

    /// Whether all its children are known to be gone; false while it is open, and always if there was no descriptor.
    fn has_ended(&self) -> bool {
        let (Some(end), None) = (&self.ended, &self.inherited) else { return false };
        let mut asked = libc::pollfd { fd: end.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one struct, which is filled in; no waiting.
        unsafe { libc::poll(&mut asked, 1, 0) == 1 && asked.revents & libc::POLLHUP != 0 }
    }
}

/// A pipe that programs started from here do not get: reading end, writing end.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: room for both; then owned here alone.
    unsafe {
        match libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) {
            0 => Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Begins a generation of children before a fork, if blocks are in use and none is open.
fn before() {
    FORKS.in_fork(|forks| {
        let is_open = forks.generations.last().is_some_and(|last| last.is_open);
        if forks.process != PROCESS.load(Ordering::Relaxed) || forks.num_leases == 0 || is_open {
            return;
        }
        forks.generations.retain(|generation| !generation.has_ended());
        let number = GENERATIONS.load(Ordering::Relaxed) + 1;
        forks.generations.push(Generation::new(number));
        GENERATIONS.store(number, Ordering::Relaxed);
    });
}

/// Gives the child of a fork another number than its parent's: the next [`Forks::with`] there drops
/// the leases and deferred claims that it has from the parent, without an end to their claims.
fn in_child() {
    PROCESS.fetch_add(1, Ordering::Relaxed);
    HAS_DEFERRED.store(false, Ordering::Relaxed);
}
