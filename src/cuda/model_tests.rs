//! The lists and the memory of the CUDA engine that threads meet at, beside a device whose work has threads of its own: in
//! every interleaving that loom finds (`scripts/ci/loom.sh`). `driver` stands for the real one.
#![allow(unsafe_code)] // Memory that loom watches.

use std::sync::Arc;

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::tensor::{Owner, Stream};
use driver::{Context, EventPool, Memory, PooledEvent, Transfer, STREAMS};

#[path = "model_tests_driver.rs"]
mod driver;
#[allow(dead_code)]
mod memory {
    pub mod device;
    pub mod keep_alive;
    pub mod pinned;
    mod policy;
    pub mod ring;
    mod stream_key;
}

use memory::device::{DeviceBlock, DeviceMemory};
use memory::keep_alive::KeepAlive;
use memory::pinned::{PinnedBlock, PinnedPool};
use memory::ring::Ring;

/// The memory behind a block, which the pool keeps alive as long as the block.
fn memory_of(block: &PinnedBlock) -> Arc<Memory> {
    // SAFETY: the block is alive.
    unsafe { Memory::at(block.as_ptr().cast()) }
}

/// Fills a slot, lets the device copy from it, and gives it back until then.
fn upload(ring: &Ring, pool: &PinnedPool, device: &Arc<Context>, value: u32) -> Transfer {
    let slot = ring.take(&device.enter().unwrap(), pool, 1).unwrap();
    // SAFETY: the ring is alive, and one piece large.
    let memory = unsafe { Memory::at(slot.as_ptr().cast()) };
    memory.write(value);
    let event = Arc::<PooledEvent>::default();
    let copy = Transfer::begin(&memory, value, &event);
    slot.free_after(event);
    copy
}

#[test]
fn a_slot_is_not_written_again_while_the_device_copies_from_it() {
    loom::model(|| {
        let (pool, device) = (Arc::<PinnedPool>::default(), Arc::<Context>::default());
        let ring = Arc::<Ring>::default();
        let other = {
            let (ring, pool, device) = (Arc::clone(&ring), Arc::clone(&pool), Arc::clone(&device));
            thread::spawn(move || upload(&ring, &pool, &device, 1).join())
        };
        let copy = upload(&ring, &pool, &device, 2);
        other.join().unwrap();
        copy.join();
        assert_eq!(device.made(), 1);
    });
}

#[test]
fn a_slot_that_is_done_with_is_taken_again() {
    loom::model(|| {
        let (pool, device) = (Arc::<PinnedPool>::default(), Arc::<Context>::default());
        let ring = Ring::default();
        for value in 0..2 {
            upload(&ring, &pool, &device, value).join();
        }
        assert_eq!(device.made(), 1);
    });
}

#[test]
fn a_batch_that_others_had_is_used_again_when_every_device_is_done() {
    loom::model(|| {
        let (pool, device) = (Arc::<PinnedPool>::default(), Arc::<Context>::default());
        let batch = pool.take(&device.enter().unwrap(), 1).unwrap();
        memory_of(&batch).write(7);
        // A foreign copy, on an unknown stream.
        let copy = Transfer::begin(&memory_of(&batch), 7, &device.everything);
        drop(batch);
        let other = {
            let (pool, device) = (Arc::clone(&pool), Arc::clone(&device));
            thread::spawn(move || {
                let batch = pool.take(&device.enter().unwrap(), 1).unwrap();
                memory_of(&batch).write(1);
            })
        };
        let batch = pool.take(&device.enter().unwrap(), 1).unwrap();
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
        let (pool, device) = (Arc::<PinnedPool>::default(), Arc::<Context>::default());
        let batch = pool.take(&device.enter().unwrap(), 1).unwrap();
        memory_of(&batch).write(7);
        let copy = Transfer::begin(&memory_of(&batch), 7, &device.everything);
        drop(batch);
        pool.clear(&device.enter().unwrap()).unwrap();
        assert_eq!(pool.bytes(), (0, 0));
        copy.join();
    });
}

/// The owner of a sample: its memory is gone when it is released.
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
        let (keep_alive, gone) = (Arc::<KeepAlive>::default(), Arc::new(AtomicUsize::new(0)));
        let batch = |value: u32| {
            let memory = Arc::<Memory>::default();
            memory.write(value);
            let event = Arc::<PooledEvent>::default();
            let copy = Transfer::begin(&memory, value, &event);
            let owner: Owner = Arc::new(Sample(memory, Arc::clone(&gone)));
            keep_alive.until(value as usize, event, smallvec::smallvec![owner]);
            copy
        };
        let first = batch(1);
        let other = {
            let keep_alive = Arc::clone(&keep_alive);
            thread::spawn(move || keep_alive.reap().unwrap())
        };
        let second = batch(2);
        keep_alive.reap().unwrap();
        other.join().unwrap();
        Arc::try_unwrap(keep_alive).unwrap().finish();
        assert_eq!(gone.load(Ordering::Relaxed), 2);
        first.join();
        second.join();
    });
}

/// A block of device memory that the first stream writes.
fn written(device: &Arc<Context>, value: u32) -> (Arc<DeviceBlock>, Transfer) {
    let current = device.enter().unwrap();
    let own = Arc::new(current.stream(0).unwrap());
    let memory = DeviceMemory::new(&current, &Arc::<EventPool>::default(), &own).unwrap();
    // SAFETY: a handle of the model's.
    let stream = unsafe { current.foreign_stream(STREAMS[0]) }.unwrap();
    let block = memory.allocate(&current, stream, 4).unwrap();
    let bytes = bytes_of(&block);
    let work = stream.run(move || bytes.write(value));
    block.set_ready(stream, stream.event()).unwrap();
    (Arc::new(block), work)
}

/// The memory of a block, as the device has it.
fn bytes_of(block: &DeviceBlock) -> Arc<Memory> {
    // SAFETY: the block is alive.
    unsafe { Memory::at(block.address() as *const Memory) }
}

/// Makes the device read a block on a stream; the block records the event, or was handed to that stream before.
fn read(device: &Arc<Context>, block: &DeviceBlock, value: u32, is_handed: bool) -> Transfer {
    let current = device.enter().unwrap();
    // SAFETY: a handle of the model's.
    let stream = unsafe { current.foreign_stream(STREAMS[1]) }.unwrap();
    match is_handed {
        // SAFETY: a handle of the model's.
        true => block.hand_to(unsafe { Stream::from_raw(STREAMS[1]) }, false).unwrap(),
        false => block.wait_on(stream).unwrap(),
    }
    let bytes = bytes_of(block);
    let work =
        stream.run(move || assert_eq!(bytes.read(), value, "written over before it was read"));
    if !is_handed {
        block.set_read(stream, stream.event()).unwrap();
    }
    work
}

/// Device memory ends behind its writer and its reader, whichever is released last.
fn ends_behind_its_users(is_handed: bool) {
    loom::model(move || {
        let device = Arc::<Context>::default();
        let (block, written) = written(&device, 7);
        let other = {
            let (device, block) = (Arc::clone(&device), Arc::clone(&block));
            thread::spawn(move || read(&device, &block, 7, is_handed))
        };
        drop(block);
        other.join().unwrap().join();
        written.join();
    });
}

#[test]
fn device_memory_ends_behind_its_writer() {
    loom::model(|| {
        let (block, written) = written(&Arc::default(), 7);
        drop(block);
        written.join();
    });
}

#[test]
fn device_memory_ends_behind_a_batch_that_reads_it() {
    ends_behind_its_users(false);
}

#[test]
fn device_memory_ends_behind_a_stream_it_was_handed_to() {
    ends_behind_its_users(true);
}

#[test]
fn device_memory_is_written_anew_behind_its_users() {
    for is_handed in [false, true] {
        loom::model(move || {
            let device = Arc::<Context>::default();
            let (block, written) = written(&device, 7);
            let read = read(&device, &block, 7, is_handed);
            let current = device.enter().unwrap();
            // SAFETY: a handle of the model's.
            let stream = unsafe { current.foreign_stream(STREAMS[2]) }.unwrap();
            block.wait_for_users(&current, &Arc::<EventPool>::default(), stream).unwrap();
            let bytes = bytes_of(&block);
            let again = stream.run(move || bytes.write(9));
            block.set_ready(stream, stream.event()).unwrap();
            block.synchronize().unwrap();
            assert_eq!(bytes_of(&block).read(), 9);
            for work in [written, read, again] {
                work.join();
            }
        });
    }
}
