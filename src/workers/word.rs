//! The words that several processes write. The word of a claim says who has a block, and how often the claim was made,
//! so that a message that is read twice, or too late, is found out. The word of a pool says who has it.

use crate::sync::atomic::{fence, AtomicU64, Ordering};

const FREE: u64 = 0;
/// The block is in a message that nobody has read.
const SENT: u64 = 1;
/// Tensors of the reader's are in the block.
const HELD: u64 = 2;
/// Tensors of the worker's are.
const LOCAL: u64 = 3;

/// `number << 2 | state`. The worker alone claims, with a number for each time; who has the claim ends it.
pub(super) struct Word<'m>(pub &'m AtomicU64);

impl Word<'_> {
    /// Whether the block may be written, as far as this claim goes: what its last user did is seen then.
    pub fn is_free(&self) -> bool {
        self.0.load(Ordering::Acquire) & 3 == FREE
    }

    /// Takes a free claim for tensors of the worker's own, and returns its new number. Only the worker calls it; that the
    /// claim is free is not checked.
    pub fn claim(&self) -> u64 {
        self.renew(LOCAL)
    }

    /// Takes a free claim as [`Word::claim`] does, for a message. Writes to the block before this call are visible to
    /// the message's reader.
    pub fn send(&self) -> u64 {
        self.renew(SENT)
    }

    /// Stores the next number with this state, whatever the word was, and returns the number.
    fn renew(&self, state: u64) -> u64 {
        let number = (self.0.load(Ordering::Relaxed) >> 2) + 1;
        self.0.store(number << 2 | state, Ordering::Release);
        number
    }

    /// The reader takes over the claim of a message; false if it was read or revoked before, or made anew since.
    pub fn receive(&self, number: u64) -> bool {
        self.exchange(number, SENT, HELD)
    }

    /// Frees the claim of a message that nobody has read; false if someone has, or if it was freed.
    pub fn revoke(&self, number: u64) -> bool {
        self.exchange(number, SENT, FREE)
    }

    /// Changes the state from `from` to `to` if the word has it and this number; whether it did.
    fn exchange(&self, number: u64, from: u64, to: u64) -> bool {
        let (old, new) = (number << 2 | from, number << 2 | to);
        self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Ends the claim, which its holder alone may do; one that has ended, or was made anew since, stays as it is. True: this
    /// call ended it and the pool is gone, so that its pages have to be given back, by this side or by the side that closed
    /// the pool. Neither side can miss the other.
    pub fn free(&self, number: u64, pool: &PoolWord<'_>) -> bool {
        let is_ended = self.exchange(number, HELD, FREE) || self.exchange(number, LOCAL, FREE);
        fence(Ordering::SeqCst);
        is_ended && pool.get().state == GONE
    }

    /// Whether tensors of the worker's are in the block, by this claim.
    pub fn is_local(&self) -> bool {
        self.0.load(Ordering::Acquire) & 3 == LOCAL
    }

    /// Ends the claim of a worker that allocates no more, unless a reader has it, or the worker itself, if it `lives`, which
    /// the result says. It is also true where a reader takes a message over during the call, even if the claim is free again
    /// by the end. Only the holder of the pool calls it.
    pub fn free_unless_used(&self, lives: bool) -> bool {
        let word = self.0.load(Ordering::Acquire);
        match word & 3 {
            HELD => true,
            // A reader may take it over meanwhile.
            SENT => !self.revoke(word >> 2),
            LOCAL => lives || !self.exchange(word >> 2, LOCAL, FREE),
            _ => false,
        }
    }
}

/// A worker allocates, or it has ended without a word, or with tensors that its threads may still use.
pub(super) const OPEN: u64 = 0;
/// The worker has ended, and another one may take the pool over with its pages.
pub(super) const LEFT: u64 = 1;
/// Nobody will allocate: pages go back to the system.
pub(super) const GONE: u64 = 2;

/// The holder of a pool and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub process: u64,
    pub state: u64,
}

impl Holder {
    fn packed(self) -> u64 {
        self.process << 2 | self.state
    }
}

/// [`Holder`] in one word: of all that find a pool left, one takes it.
pub(super) struct PoolWord<'m>(pub &'m AtomicU64);

impl PoolWord<'_> {
    pub fn get(&self) -> Holder {
        let word = self.0.load(Ordering::Acquire);
        Holder { process: word >> 2, state: word & 3 }
    }

    /// Sets the holder and its state; only the present holder calls it.
    pub fn set(&self, holder: Holder) {
        self.0.store(holder.packed(), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Makes `to` the holder if `from` still is; whether it did.
    pub fn take(&self, from: Holder, to: Holder) -> bool {
        let (from, to) = (from.packed(), to.packed());
        let taken = self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        fence(Ordering::SeqCst);
        taken
    }
}
