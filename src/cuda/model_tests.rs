//! The lists of the CUDA engine that threads meet at, beside a device whose work is a thread of its own: in every
//! interleaving that loom finds (`make model`). `driver` stands for the real one, of which they need four names.
#![allow(unsafe_code)] // Memory that loom watches.

use std::sync::Arc;

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::tensor::Owner;
use driver::{Device, Memory, Transfer};

#[allow(dead_code)]
#[path = "held.rs"]
mod held;
#[allow(dead_code)]
#[path = "pinned.rs"]
mod pinned;

use held::Held;
use pinned::{PinnedBlock, PinnedPool};

mod driver {
    use std::sync::Arc;

    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use loom::thread;

    use crate::error::{Error, Result};

    /// Bytes that loom sees the readers and writers of.
    #[derive(Debug, Default)]
    pub(super) struct Memory(UnsafeCell<u32>);

    // SAFETY: loom fails where one writes while others are there.
    unsafe impl Sync for Memory {}
    // SAFETY: as above.
    unsafe impl Send for Memory {}

    impl Memory {
        pub fn write(&self, value: u32) {
            // SAFETY: as above.
            self.0.with_mut(|cell| unsafe { *cell = value });
        }

        pub fn read(&self) -> u32 {
            // SAFETY: as above.
            self.0.with(|cell| unsafe { *cell })
        }
    }

    /// Reached when the device has done what lies before it.
    #[derive(Debug, Default)]
    pub(super) struct PooledEvent(AtomicBool);

    impl PooledEvent {
        pub fn query(&self) -> Result<bool> {
            Ok(self.0.load(Ordering::Acquire))
        }

        pub fn synchronize(&self) -> Result<()> {
            while !self.query()? {
                thread::yield_now();
            }
            Ok(())
        }
    }

    /// A copy that the device makes from memory, at its leisure.
    pub(super) struct Transfer(thread::JoinHandle<()>);

    impl Transfer {
        /// Reads `value`, and says so by the event.
        pub fn begin(from: &Arc<Memory>, value: u32, done: &Arc<PooledEvent>) -> Transfer {
            let (from, done) = (Arc::clone(from), Arc::clone(done));
            Transfer(thread::spawn(move || {
                assert_eq!(from.read(), value, "written over before it was read");
                drop(from);
                done.0.store(true, Ordering::Release);
            }))
        }

        pub fn join(self) {
            self.0.join().unwrap();
        }
    }

    #[derive(Default)]
    pub(super) struct Device {
        /// What waits for everything waits for this.
        pub everything: Arc<PooledEvent>,
        made: AtomicUsize,
    }

    impl Device {
        pub fn enter(&self) -> Current<'_> {
            Current(self)
        }

        /// Blocks that were locked.
        pub fn made(&self) -> usize {
            self.made.load(Ordering::Relaxed)
        }
    }

    pub(super) struct Current<'d>(&'d Device);

    impl Current<'_> {
        pub fn pinned(&self, len: usize) -> Result<Pinned> {
            self.0.made.fetch_add(1, Ordering::Relaxed);
            Ok(Pinned { memory: Arc::default(), len })
        }

        pub fn synchronize_all(&self) -> Result<()> {
            self.0.everything.synchronize()
        }
    }

    /// Page-locked memory; a device that still reads it when it is freed is at fault.
    #[derive(Debug)]
    pub(super) struct Pinned {
        memory: Arc<Memory>,
        len: usize,
    }

    impl Pinned {
        pub fn as_ptr(&self) -> *mut u8 {
            Arc::as_ptr(&self.memory).cast_mut().cast()
        }

        pub fn len(&self) -> usize {
            self.len
        }
    }

    impl Drop for Pinned {
        fn drop(&mut self) {
            self.memory.write(0);
        }
    }

    impl Error {
        pub(super) fn is_out_of_memory(&self) -> bool {
            false
        }
    }

    pub(super) fn forked() -> Option<Error> {
        None
    }
}

/// The memory behind a block, which the pool keeps alive as long as the block.
fn memory_of(block: &PinnedBlock) -> Arc<Memory> {
    let memory: *const Memory = block.as_ptr().cast();
    // SAFETY: the pointer of the block's own `Arc`, counted once more.
    unsafe {
        Arc::increment_strong_count(memory);
        Arc::from_raw(memory)
    }
}

/// Fills a slot, lets the device copy from it, and gives it back until then.
fn upload(pool: &Arc<PinnedPool>, device: &Device, value: u32) -> Transfer {
    let slot = pool.take(&device.enter(), 1).unwrap();
    let memory = memory_of(&slot);
    memory.write(value);
    let event = Arc::default();
    let copy = Transfer::begin(&memory, value, &event);
    slot.free_after(event);
    copy
}

#[test]
fn a_slot_is_not_written_again_while_the_device_copies_from_it() {
    loom::model(|| {
        let (pool, device) = (Arc::<PinnedPool>::default(), Arc::new(Device::default()));
        let other = {
            let (pool, device) = (Arc::clone(&pool), Arc::clone(&device));
            thread::spawn(move || upload(&pool, &device, 1).join())
        };
        let copy = upload(&pool, &device, 2);
        other.join().unwrap();
        copy.join();
        let (free, used) = pool.bytes();
        assert_eq!(used, 0);
        assert_eq!(free, device.made() as u64 * (64 << 10));
    });
}

#[test]
fn a_slot_that_is_done_with_is_taken_again() {
    loom::model(|| {
        let (pool, device) = (Arc::<PinnedPool>::default(), Device::default());
        for value in 0..2 {
            upload(&pool, &device, value).join();
        }
        assert_eq!(device.made(), 1);
    });
}

#[test]
fn a_batch_that_others_had_is_used_again_when_every_device_is_done() {
    loom::model(|| {
        let (pool, device) = (Arc::<PinnedPool>::default(), Arc::new(Device::default()));
        let batch = pool.take(&device.enter(), 1).unwrap();
        memory_of(&batch).write(7);
        // Somebody's copy, on a stream that we know nothing of.
        let copy = Transfer::begin(&memory_of(&batch), 7, &device.everything);
        drop(batch);
        let other = {
            let (pool, device) = (Arc::clone(&pool), Arc::clone(&device));
            thread::spawn(move || {
                let batch = pool.take(&device.enter(), 1).unwrap();
                memory_of(&batch).write(1);
            })
        };
        let batch = pool.take(&device.enter(), 1).unwrap();
        memory_of(&batch).write(2);
        drop(batch);
        other.join().unwrap();
        copy.join();
        assert!(device.made() <= 2);
        assert_eq!(pool.bytes(), (device.made() as u64 * (64 << 10), 0));
    });
}

#[test]
fn memory_is_freed_when_every_device_is_done() {
    loom::model(|| {
        let (pool, device) = (Arc::<PinnedPool>::default(), Device::default());
        let batch = pool.take(&device.enter(), 1).unwrap();
        memory_of(&batch).write(7);
        let copy = Transfer::begin(&memory_of(&batch), 7, &device.everything);
        drop(batch);
        pool.empty(&device.enter()).unwrap();
        assert_eq!(pool.bytes(), (0, 0));
        copy.join();
    });
}

/// The owner of a sample: its memory is gone when it is let go of.
struct Sample(Arc<Memory>, Arc<AtomicUsize>);

impl Drop for Sample {
    fn drop(&mut self) {
        self.0.write(0);
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn samples_are_held_until_the_device_has_read_them() {
    loom::model(|| {
        let (held, gone) = (Arc::<Held>::default(), Arc::new(AtomicUsize::new(0)));
        let batch = |value: u32| {
            let memory = Arc::<Memory>::default();
            memory.write(value);
            let event = Arc::default();
            let copy = Transfer::begin(&memory, value, &event);
            let owner: Owner = Arc::new(Sample(memory, Arc::clone(&gone)));
            held.until(event, vec![owner]);
            copy
        };
        let first = batch(1);
        let other = {
            let held = Arc::clone(&held);
            thread::spawn(move || held.reap().unwrap())
        };
        let second = batch(2);
        held.reap().unwrap();
        other.join().unwrap();
        Arc::try_unwrap(held).unwrap().finish();
        assert_eq!(gone.load(Ordering::Relaxed), 2);
        first.join();
        second.join();
    });
}
