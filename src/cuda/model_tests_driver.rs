//! A stand-in for the driver in the models: each piece of a device's work is a thread.
#![allow(unsafe_code)] // Memory that loom watches.

use std::mem::take;
use std::sync::{Arc, OnceLock};

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::tensor::{Error, Result};

pub(super) type DriverResult<T> = Result<T>;

/// Bytes that loom sees the readers and writers of.
#[derive(Debug, Default)]
pub(super) struct Memory(UnsafeCell<u32>);

// SAFETY: loom fails where one writes while others are there.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

impl Memory {
    /// The memory behind an address, kept alive.
    ///
    /// # Safety
    /// The address is that of an `Arc`, which is alive.
    pub unsafe fn at(address: *const Memory) -> Arc<Memory> {
        // SAFETY: counted once more, by the contract above.
        unsafe {
            Arc::increment_strong_count(address);
            Arc::from_raw(address)
        }
    }

    pub fn write(&self, value: u32) {
        // SAFETY: as above.
        self.0.with_mut(|cell| unsafe { *cell = value });
    }

    pub fn read(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|cell| unsafe { *cell })
    }
}

/// A piece of the device's work.
#[derive(Debug, Default)]
struct Work {
    is_done: Mutex<bool>,
    end: Condvar,
}

impl Work {
    fn is_done(&self) -> bool {
        *self.is_done.lock().unwrap()
    }

    fn finish(&self) {
        *self.is_done.lock().unwrap() = true;
        self.end.notify_all();
    }

    fn wait(&self) {
        let mut is_done = self.is_done.lock().unwrap();
        while !*is_done {
            is_done = self.end.wait(is_done).unwrap();
        }
    }
}

/// Reached when the device has done what is before it; recorded once, before it is shared.
#[derive(Debug, Default)]
pub(super) struct PooledEvent(OnceLock<Vec<Arc<Work>>>);

impl PooledEvent {
    pub fn query(&self) -> Result<bool> {
        Ok(self.before().iter().all(|work| work.is_done()))
    }

    pub fn synchronize(&self) -> Result<()> {
        self.before().iter().for_each(|work| work.wait());
        Ok(())
    }

    fn before(&self) -> &[Arc<Work>] {
        self.0.get().map_or(&[], Vec::as_slice)
    }
}

/// Work of the device that is under way.
pub(super) struct Transfer(thread::JoinHandle<()>);

impl Transfer {
    /// A copy from memory that has to hold `value`, on a stream of its own.
    pub fn begin(from: &Arc<Memory>, value: u32, done: &PooledEvent) -> Transfer {
        let (queue, from) = (Queue::default(), Arc::clone(from));
        let stream = StreamRef { queue: &queue, handle: OURS };
        let transfer =
            stream.run(move || assert_eq!(from.read(), value, "written over before it was read"));
        stream.record(done).expect("nothing fails here");
        transfer
    }

    pub fn join(self) {
        self.0.join().unwrap();
    }
}

/// A device: page-locked memory, and streams by their handles.
#[derive(Debug, Default)]
pub(super) struct Context {
    /// The event of all work: a wait for everything waits for this.
    pub everything: PooledEvent,
    made: AtomicUsize,
    queues: [Queue; 4],
}

pub(super) struct DeviceFacts {
    pub total_bytes: u64,
}

/// The work that the next work on a stream waits for.
#[derive(Debug, Default)]
struct Queue(Mutex<Vec<Arc<Work>>>);

/// Handles: of the stream of ours, and of those of others.
const OURS: usize = 0;
pub(super) const STREAMS: [usize; 3] = [1, 3, 4];

impl Context {
    pub fn enter(self: &Arc<Self>) -> Result<Current<'_>> {
        Ok(Current(self))
    }

    pub fn info(&self) -> DeviceFacts {
        DeviceFacts { total_bytes: 64 << 20 }
    }

    /// Blocks of page-locked memory that were made.
    pub fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }
}

pub(super) struct Current<'c>(&'c Arc<Context>);

impl Current<'_> {
    pub fn context(&self) -> &Arc<Context> {
        self.0
    }

    pub fn pinned(&self, len: usize) -> Result<Pinned> {
        self.0.made.fetch_add(1, Ordering::Relaxed);
        Ok(Pinned { memory: Arc::default(), len })
    }

    pub fn mem_pool(&self) -> Result<MemPool> {
        Ok(MemPool)
    }

    pub fn stream(&self, _priority: i32) -> Result<OwnStream> {
        Ok(OwnStream)
    }

    /// # Safety
    /// None here.
    pub unsafe fn foreign_stream(&self, handle: usize) -> Result<StreamRef<'_>> {
        let index = 1 + STREAMS.iter().position(|&known| known == handle).expect("one of them");
        Ok(StreamRef { queue: &self.0.queues[index], handle })
    }

    pub fn synchronize(&self) -> Result<()> {
        for queue in &self.0.queues {
            let last = queue.0.lock().unwrap().clone();
            last.iter().for_each(|work| work.wait());
        }
        Ok(())
    }

    pub fn synchronize_all(&self) -> Result<()> {
        self.0.everything.synchronize()
    }
}

#[derive(Debug)]
pub(super) struct OwnStream;

impl OwnStream {
    pub fn handle(&self) -> usize {
        OURS
    }

    pub fn on<'c>(&self, current: &'c Current<'_>) -> StreamRef<'c> {
        StreamRef { queue: &current.0.queues[OURS], handle: OURS }
    }
}

#[derive(Clone, Copy)]
pub(super) struct StreamRef<'c> {
    queue: &'c Queue,
    handle: usize,
}

impl StreamRef<'_> {
    pub fn handle(self) -> usize {
        self.handle
    }

    pub fn id(self) -> Result<u64> {
        Ok(self.handle as u64)
    }

    pub fn is_capturing(self) -> Result<bool> {
        Ok(false)
    }

    /// Enqueues work on the stream.
    pub fn run(self, work: impl FnOnce() + Send + 'static) -> Transfer {
        let mut queue = self.queue.0.lock().unwrap();
        let (before, done) = (take(&mut *queue), Arc::<Work>::default());
        queue.push(Arc::clone(&done));
        drop(queue);
        Transfer(thread::spawn(move || {
            before.iter().for_each(|work| work.wait());
            work();
            done.finish();
        }))
    }

    pub fn record(self, event: &PooledEvent) -> Result<()> {
        event.0.set(self.queue.0.lock().unwrap().clone()).expect("recorded once");
        Ok(())
    }

    /// A point behind what is on the stream.
    pub fn event(self) -> Arc<PooledEvent> {
        let event = Arc::default();
        self.record(&event).expect("nothing fails here");
        event
    }

    pub fn synchronize(self) -> Result<()> {
        let before = self.queue.0.lock().unwrap().clone();
        before.iter().for_each(|work| work.wait());
        Ok(())
    }

    pub fn wait(self, event: &PooledEvent) -> Result<()> {
        self.queue.0.lock().unwrap().extend_from_slice(event.before());
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(super) struct EventPool;

impl EventPool {
    pub fn take(&self, _current: &Current<'_>) -> Result<PooledEvent> {
        Ok(PooledEvent::default())
    }

    pub fn order(
        &self,
        _current: &Current<'_>,
        first: StreamRef<'_>,
        then: StreamRef<'_>,
    ) -> Result<()> {
        then.wait(&first.event())
    }
}

pub(super) type DevicePtr = u64;

/// Memory in the order of streams. Its end is a write, for which its enqueuer stands in for the device.
#[derive(Debug)]
pub(super) struct MemPool;

impl MemPool {
    pub fn alloc(&self, _stream: StreamRef<'_>, _bytes: usize) -> Result<DevicePtr> {
        Ok(Arc::into_raw(Arc::<Memory>::default()) as u64)
    }

    /// # Safety
    /// `address` is from `alloc`.
    pub unsafe fn free(&self, stream: StreamRef<'_>, address: DevicePtr) -> Result<()> {
        // SAFETY: by the contract above.
        let memory = unsafe { Arc::from_raw(address as *const Memory) };
        stream.synchronize()?;
        memory.write(0);
        Ok(())
    }

    pub fn trim(&self, _keep_bytes: usize) -> Result<()> {
        Ok(())
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
