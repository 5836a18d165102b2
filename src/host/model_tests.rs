//! Models of the host's threads, in every interleaving and every order of memory that loom
//! finds (`scripts/ci/loom.sh`).
#![allow(unsafe_code)] // Rows and outputs by address.

use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::{Arc, OnceLock};

use loom::cell::UnsafeCell;
use loom::thread;

use super::parallel_for::parallel_for;
use super::pipelined_copy::PipelinedCopy;
use super::pool::MemoryPool;
use super::Helpers;

/// Threads of the checker's.
fn helpers(count: usize) -> Helpers {
    static UNUSED: OnceLock<Arc<rayon::ThreadPool>> = OnceLock::new();
    let pool = || Arc::new(rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap());
    Helpers { pool: Arc::clone(UNUSED.get_or_init(pool)), count }
}

/// The data of a call: loom sees every access, and that there is none when the call ends.
#[derive(Default)]
struct Cells([UnsafeCell<u32>; 3]);

// SAFETY: loom fails where two threads are at a cell.
unsafe impl Sync for Cells {}

impl Cells {
    fn add(&self, index: usize) {
        // SAFETY: as above.
        self.0[index].with_mut(|cell| unsafe { *cell += 1 });
    }

    fn get(&self) -> [u32; 3] {
        // SAFETY: as above.
        [0, 1, 2].map(|index| self.0[index].with_mut(|cell| unsafe { *cell }))
    }
}

#[test]
fn shared_work_is_done_once_and_over_when_the_call_is() {
    for count in 1..=2 {
        loom::model(move || {
            let cells = Cells::default();
            parallel_for(3, Some(&helpers(count)), |index| cells.add(index));
            assert_eq!(cells.get(), [1; 3]);
        });
    }
}

#[test]
fn shared_work_that_panics_is_over_too() {
    for bad in 0..2 {
        loom::model(move || {
            let cells = Cells::default();
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                parallel_for(2, Some(&helpers(1)), |index| {
                    cells.add(index);
                    if index == bad {
                        // `resume_unwind` panics without printing.
                        resume_unwind(Box::new(()));
                    }
                });
            }));
            assert!(outcome.is_err());
            assert_eq!(cells.get()[bad], 1);
        });
    }
}

/// Two rows of this size make a chunk.
const ROW_BYTES: usize = 16 << 10;

/// Starts rows in a poisoned block, and finds them.
fn pushed(pool: &Arc<MemoryPool>, count: usize, found: usize) -> PipelinedCopy {
    static ROWS: [[u8; ROW_BYTES]; 3] = [[1; ROW_BYTES], [2; ROW_BYTES], [3; ROW_BYTES]];
    let block = pool.allocate((count * ROW_BYTES) as u64).unwrap();
    // SAFETY: as many bytes as asked for, which nothing else has.
    unsafe { block.data().write_bytes(0, count * ROW_BYTES) };
    let mut ahead = PipelinedCopy::start(block, ROW_BYTES, count, &helpers(1)).unwrap();
    for row in &ROWS[..found] {
        // SAFETY: a row that stays.
        unsafe { ahead.push(row.as_ptr()) };
    }
    ahead
}

// One helper beside the owner, who copies too: two that have nothing to copy would yield to each other forever.
#[test]
fn rows_ahead_are_all_there_when_they_are_finished() {
    loom::model(|| {
        let pool = MemoryPool::new(0);
        let block = pushed(&pool, 3, 3).finish().unwrap();
        for row in 0..3 {
            for at in [0, ROW_BYTES - 1] {
                // SAFETY: inside of the block, which nothing else has.
                let byte = unsafe { *block.data().add(row * ROW_BYTES + at) };
                assert_eq!(byte, row as u8 + 1);
            }
        }
    });
}

#[test]
fn rows_ahead_that_are_given_up_are_let_alone() {
    for found in 0..=3 {
        loom::model(move || {
            let pool = MemoryPool::new(0);
            drop(pushed(&pool, 3, found));
            assert_eq!(pool.stats().used_bytes, 0);
        });
    }
}

#[test]
fn a_pool_gives_a_block_to_one_at_a_time() {
    loom::model(|| {
        let bytes = 64 << 10;
        // Room for one.
        let pool = MemoryPool::new(bytes);
        let held = Arc::new([loom::sync::atomic::AtomicUsize::new(0), Default::default()]);
        let work = |pool: &Arc<MemoryPool>, slot: usize| {
            let (pool, held) = (Arc::clone(pool), Arc::clone(&held));
            move || {
                use loom::sync::atomic::Ordering::SeqCst;
                for _ in 0..2 {
                    let block = pool.allocate(bytes).unwrap();
                    held[slot].store(block.data().addr(), SeqCst);
                    assert_ne!(held[1 - slot].load(SeqCst), block.data().addr());
                    held[slot].store(0, SeqCst);
                    drop(block);
                }
            }
        };
        let other = thread::spawn(work(&pool, 0));
        work(&pool, 1)();
        pool.clear();
        other.join().unwrap();
        let stats = pool.stats();
        assert_eq!((stats.used_bytes, stats.hits + stats.misses), (0, 4));
        assert!(stats.free_bytes <= bytes);
    });
}
