//! Tests how much memory batches of any size take of the allocator and of the system, once the engine's memory is warm:
//! no more for a larger one. The forms and sizes are those that `scripts/ci/bench_check.py` counts instructions of.
#![cfg(target_os = "linux")]

#[path = "../benches/instructions/rows.rs"]
mod rows;
#[path = "../benches/instructions/sweep.rs"]
mod sweep;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use windrow::{Collate, Engine, SampleList};

thread_local! {
    /// Allocations of this thread.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// The most that each of the last batches takes.
    static TAKEN: Cell<Taken> = const { Cell::new(Taken { allocations: 0, faults: 0 }) };
}

struct Counting;

// SAFETY: as the system's.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Clone, Copy, Debug)]
struct Taken {
    allocations: u64,
    faults: u64,
}

/// Page faults of this thread that read no disk.
fn faults() -> u64 {
    // SAFETY: plain numbers, which the call fills.
    #[allow(unsafe_code)]
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    usage.ru_minflt as u64
}

/// Makes batches, and counts what each takes once the first are gone.
fn assemble(engine: &Engine, list: &SampleList<'_>, collate: &Collate, times: usize) {
    for _ in 0..2 {
        black_box(engine.assemble(list, collate).expect("a batch"));
    }
    let (allocations, before) = (ALLOCATIONS.get(), faults());
    for _ in 0..times {
        black_box(engine.assemble(list, collate).expect("a batch"));
    }
    let times = times as u64;
    TAKEN.set(Taken {
        allocations: (ALLOCATIONS.get() - allocations) / times,
        faults: (faults() - before) / times,
    });
}

/// Sizes around those at which batches are made in another way, and some between; with `WINDROW_SWEEP=1` each 1.1 times
/// the one before.
fn sizes() -> Vec<usize> {
    if std::env::var_os("WINDROW_SWEEP").is_some() {
        let next = |size: &usize| Some(size * 11 / 10).filter(|&next| next <= 64 << 20);
        return std::iter::successors(Some(1024), next).collect();
    }
    let around = |size: usize| [size * 20 / 21, size * 21 / 20];
    let steps = [512 << 10, 1 << 20, 16 << 20, 32 << 20].into_iter().flat_map(around);
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 4 << 20].into_iter().chain(steps).collect()
}

#[test]
fn larger_batches_take_no_more_of_the_system() {
    let engine = Engine::builder().threads(1).build().unwrap();
    for (name, form) in sweep::FORMS {
        for size in sizes() {
            form(&engine, size, 2);
            let taken = TAKEN.get();
            // Tables of a tile that is turned: five for some 64 KiB.
            let most = Taken {
                allocations: 16 + size as u64 / (8 << 10),
                faults: 2 + size as u64 / 4096 / 50,
            };
            let fits = taken.allocations <= most.allocations && taken.faults <= most.faults;
            assert!(fits, "{name}, {size} bytes: {taken:?}, at most {most:?}");
        }
    }
}
