//! The word of a claim, in every interleaving and every order of memory that loom finds (`scripts/ci/loom.sh`).
#![allow(unsafe_code)] // A block that two threads write.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::Arc;
use loom::thread;

use super::word::{Holder, PoolWord, Word, GONE, LEFT, OPEN};

/// A claim, its block and the message that tells of it: a number, or 0.
struct Shared {
    word: AtomicU64,
    pool: AtomicU64,
    message: AtomicU64,
    block: UnsafeCell<u64>,
}

// SAFETY: loom fails where two threads are at the block.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Arc<Shared> {
        let (word, pool, message) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Shared { word, pool, message, block: UnsafeCell::new(0) })
    }

    fn word(&self) -> Word<'_> {
        Word(&self.word)
    }

    fn pool(&self) -> PoolWord<'_> {
        PoolWord(&self.pool)
    }

    fn write(&self, value: u64) {
        // SAFETY: as above.
        self.block.with_mut(|block| unsafe { *block = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: as above.
        self.block.with(|block| unsafe { *block })
    }
}

#[test]
fn a_block_is_written_again_when_its_reader_is_done() {
    loom::model(|| {
        let shared = Shared::new();
        shared.write(7);
        // Relaxed: the pipe between processes promises nothing here.
        shared.message.store(shared.word().send(), Ordering::Relaxed);
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let number = shared.message.load(Ordering::Relaxed);
                if number != 0 && shared.word().receive(number) {
                    assert_eq!(shared.read(), 7);
                    shared.word().free(number, &shared.pool());
                }
            })
        };
        if shared.word().is_free() {
            shared.write(8);
            shared.word().claim();
        }
        reader.join().unwrap();
        assert!([7, 8].contains(&shared.read()));
    });
}

#[test]
fn a_message_is_read_once_and_not_when_it_was_revoked() {
    loom::model(|| {
        let shared = Shared::new();
        let number = shared.word().send();
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || u32::from(shared.word().receive(number)))
            })
            .collect();
        let revoked = u32::from(shared.word().revoke(number));
        let read: u32 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert_eq!(read + revoked, 1);
        // The number is not an earlier one either.
        if revoked == 1 {
            assert!(shared.word().send() == number + 1 && !shared.word().receive(number));
        }
    });
}

#[test]
fn pages_are_given_back_by_one_side_at_least() {
    loom::model(|| {
        let shared = Shared::new();
        let number = shared.word().send();
        assert!(shared.word().receive(number));
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.word().free(number, &shared.pool()))
        };
        shared.pool().set(Holder { process: 1, state: GONE });
        let by_owner = !shared.word().free_unless_used(true);
        assert!(reader.join().unwrap() || by_owner);
    });
}

#[test]
fn a_claim_that_was_made_anew_is_not_ended_by_who_had_it_before() {
    loom::model(|| {
        let shared = Shared::new();
        let number = shared.word().claim();
        let late = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.word().free(number, &shared.pool()))
        };
        // The process that takes the pool over, while this one drops its tensor.
        shared.word().free_unless_used(false);
        let anew = shared.word().send();
        late.join().unwrap();
        assert!(shared.word().receive(anew));
    });
}

/// One block with two claims, in a pool that is closed: who ends a claim removes the pages if the others are free, and so does who
/// clears, after all claims were looked at.
#[test]
fn pages_of_a_block_with_two_claims_are_given_back_once_nobody_has_it() {
    loom::model(|| {
        let (one, other) = (Shared::new(), Shared::new());
        let (local, sent) = (one.word().claim(), other.word().send());
        let worker = {
            let (one, other) = (Arc::clone(&one), Arc::clone(&other));
            thread::spawn(move || one.word().free(local, &one.pool()) && other.word().is_free())
        };
        let reader = {
            let other = Arc::clone(&other);
            thread::spawn(move || other.word().receive(sent))
        };
        one.pool().set(Holder { process: 1, state: GONE });
        for claim in [&one, &other] {
            claim.word().free_unless_used(true);
        }
        loom::sync::atomic::fence(Ordering::SeqCst);
        let by_owner = one.word().is_free() && other.word().is_free();
        let (by_worker, is_held) = (worker.join().unwrap(), reader.join().unwrap());
        // What a reader has stays.
        assert!(!is_held || !by_owner && !by_worker);
        let by_reader = is_held && other.word().free(sent, &one.pool()) && one.word().is_free();
        assert!(by_owner || by_worker || by_reader);
    });
}

#[test]
fn a_pool_that_is_left_is_taken_by_one() {
    loom::model(|| {
        let shared = Shared::new();
        shared.pool().set(Holder { process: 1, state: LEFT });
        let take = |process: u64, state: u64| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let holder = shared.pool().get();
                let taken =
                    holder.state == LEFT && shared.pool().take(holder, Holder { process, state });
                // The taker has the block to itself.
                if taken {
                    shared.write(process);
                }
                u32::from(taken)
            })
        };
        let takers = [take(2, OPEN), take(3, OPEN), take(4, GONE)];
        assert_eq!(takers.map(|taker| taker.join().unwrap()).iter().sum::<u32>(), 1);
        assert_eq!(shared.pool().get().process, shared.read());
    });
}
