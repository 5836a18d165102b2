//! Output memory on a device, and page-locked memory on the host.
#![allow(unsafe_code)] // Memory given back to the driver.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use super::driver::{
    forked, Context, Current, DevicePtr, DriverResult, EventPool, MemPool, Pinned, PooledEvent,
    Stream, StreamRef,
};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::tensor::{Device, Tensor};

/// Device memory in stream order.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    context: Arc<Context>,
    pool: MemPool,
    /// Where memory is given back, behind everything that still uses it.
    release: Stream,
    events: Arc<EventPool>,
    used_bytes: AtomicU64,
}

/// A block of device memory. Dropped, on whatever thread, it goes back behind the work that wrote it
/// and behind everything enqueued so far on the streams it was handed to.
#[derive(Debug)]
pub(crate) struct DeviceBlock {
    address: DevicePtr,
    bytes: u64,
    memory: Arc<DeviceMemory>,
    users: Mutex<Users>,
}

#[derive(Debug, Default)]
struct Users {
    /// Reached when the block has been written.
    ready: Option<Arc<PooledEvent>>,
    /// The last batch on each stream that reads the block.
    readers: Vec<(Handed, Arc<PooledEvent>)>,
    /// Streams of others that may have work on the block.
    streams: Vec<Handed>,
}

/// A stream by its handle, and for [`PER_THREAD`], which is another one on each thread, whose.
type Handed = (usize, Option<ThreadId>);

fn handed(handle: usize) -> Handed {
    (handle, (handle == PER_THREAD).then(|| thread::current().id()))
}

/// The handle of the calling thread's own stream.
const PER_THREAD: usize = 2;

impl DeviceMemory {
    pub fn new(current: &Current<'_>, events: &Arc<EventPool>) -> DriverResult<Arc<DeviceMemory>> {
        Ok(Arc::new(DeviceMemory {
            context: Arc::clone(current.context()),
            pool: current.mem_pool()?,
            release: current.stream(0)?,
            events: Arc::clone(events),
            used_bytes: AtomicU64::new(0),
        }))
    }

    /// Memory for work on `stream`. If there is none, what lies unused is given back to the device and
    /// it is tried once more.
    pub fn allocate(
        self: &Arc<Self>,
        current: &Current<'_>,
        stream: StreamRef<'_>,
        bytes: u64,
    ) -> Result<DeviceBlock> {
        let address = if bytes == 0 {
            0
        } else {
            let size = usize::try_from(bytes).map_err(|_| Error::OutOfMemory { bytes })?;
            let allocated = self.pool.alloc(stream, size).or_else(|error| {
                if !error.is_out_of_memory() {
                    return Err(error);
                }
                self.trim(current)?;
                self.pool.alloc(stream, size)
            });
            match allocated {
                Err(error) if error.is_out_of_memory() => {
                    return Err(Error::OutOfMemory { bytes });
                }
                allocated => allocated?,
            }
        };
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        let (memory, users) = (Arc::clone(self), Mutex::default());
        Ok(DeviceBlock { address, bytes, memory, users })
    }

    /// Gives unused memory back to the device. Waits for memory that is being given back.
    pub fn trim(&self, current: &Current<'_>) -> DriverResult<()> {
        self.release.on(current).synchronize()?;
        self.pool.trim(0)
    }

    /// Bytes of blocks in use.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }
}

impl DeviceBlock {
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Says when the block has been written, behind all who read it before.
    pub fn set_ready(&self, event: Arc<PooledEvent>) {
        let mut users = self.users();
        users.ready = Some(event);
        users.readers.clear();
    }

    /// Says when work on a stream of this handle has read the block.
    pub fn set_read(&self, handle: usize, event: Arc<PooledEvent>) {
        let (stream, mut users) = (handed(handle), self.users());
        // Within a stream the last one says it all.
        users.readers.retain(|(reader, _)| *reader != stream);
        users.readers.push((stream, event));
    }

    /// Orders a stream behind the writing of the block.
    pub fn wait_on(&self, stream: StreamRef<'_>) -> Result<()> {
        let ready = self.users().ready.clone();
        ready.map_or(Ok(()), |ready| Ok(stream.wait(&ready)?))
    }

    /// Orders a stream behind everything that has been enqueued on the block, so that it may be
    /// written anew.
    pub fn wait_for_users(
        &self,
        current: &Current<'_>,
        events: &Arc<EventPool>,
        stream: StreamRef<'_>,
    ) -> Result<()> {
        self.wait_on(stream)?;
        let (readers, streams) = {
            let users = self.users();
            (users.readers.clone(), users.streams.clone())
        };
        for (_, event) in &readers {
            stream.wait(event)?;
        }
        for &(handle, thread) in &streams {
            if thread.is_some_and(|thread| thread != thread::current().id()) {
                // That thread's stream has no name here.
                current.synchronize()?;
                continue;
            }
            // SAFETY: as for `hand_to`.
            let user = unsafe { current.foreign_stream(handle) }?;
            // What a captured graph does later is its owner's to order.
            if handle != stream.handle() && !user.is_capturing()? {
                events.order(current, user, stream)?;
            }
        }
        Ok(())
    }

    /// Orders a stream behind the writing of the block, and the block's end behind that stream.
    pub fn hand_to(&self, current: &Current<'_>, handle: usize) -> Result<()> {
        // SAFETY: the handle is of a `Stream`, whose maker vouched for it.
        let stream = unsafe { current.foreign_stream(handle) }?;
        if stream.is_capturing()? {
            return Err(Error::Argument(
                "the stream is being captured in a graph, which cannot wait for work outside of it: \
                 hand the batch over before"
                    .into(),
            ));
        }
        self.wait_on(stream)?;
        let (user, mut users) = (handed(handle), self.users());
        if !users.streams.contains(&user) {
            users.streams.push(user);
        }
        Ok(())
    }

    /// Blocks until the block has been written.
    pub fn synchronize(&self) -> Result<()> {
        // First: in a forked child the lock below may be one that nobody will ever release.
        let _current = self.memory.context.enter()?;
        let ready = self.users().ready.clone();
        ready.map_or(Ok(()), |ready| Ok(ready.synchronize()?))
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.memory.context
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues the end of the block.
    fn give_back(&self, current: &Current<'_>) -> Result<()> {
        let release = self.memory.release.on(current);
        if self.wait_for_users(current, &self.memory.events, release).is_err() {
            // Order cannot be told any more: then everything has to end first.
            current.synchronize()?;
        }
        // SAFETY: allocated from this pool, given back once; the release stream is behind all users.
        Ok(unsafe { self.memory.pool.free(release, self.address) }?)
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        self.memory.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        if self.address == 0 {
            return;
        }
        // After a fork, or while the driver is torn down, the memory is no longer ours to give back;
        // after a failure of the device it is gone with the context.
        if let Ok(current) = self.memory.context.enter() {
            let _ = self.give_back(&current);
        }
    }
}

/// Page-locked blocks, used again: locking pages takes longer than filling them.
#[derive(Debug, Default)]
pub(super) struct PinnedPool {
    state: Mutex<PinnedState>,
}

#[derive(Debug, Default)]
struct PinnedState {
    free: Vec<Free>,
    used_bytes: u64,
}

#[derive(Debug)]
struct Free {
    pinned: Pinned,
    until: Until,
}

/// When a free block may be written to again.
#[derive(Debug)]
enum Until {
    Now,
    /// A copy of ours has read it.
    Event(Arc<PooledEvent>),
    /// A block that others had: they may have copies under way on streams we know nothing of, of any
    /// device.
    EverythingIsDone,
}

/// Page-locked host memory in use.
#[derive(Debug)]
pub(crate) struct PinnedBlock {
    pinned: Option<Pinned>,
    until: Option<Until>,
    pool: Arc<PinnedPool>,
}

/// Blocks are powers of two from here on.
const MIN_PINNED_BYTES: usize = 64 << 10;

impl PinnedPool {
    /// A block of at least `bytes` that nothing reads any more.
    pub fn take(self: &Arc<Self>, current: &Current<'_>, bytes: u64) -> Result<PinnedBlock> {
        let size = usize::try_from(bytes).ok().and_then(usize::checked_next_power_of_two);
        let size = size.ok_or(Error::OutOfMemory { bytes })?.max(MIN_PINNED_BYTES);
        let pinned = match self.find(current, size)? {
            Some(pinned) => pinned,
            None => match current.pinned(size) {
                Err(error) if error.is_out_of_memory() => {
                    self.empty(current)?;
                    current.pinned(size).map_err(|error| match error.is_out_of_memory() {
                        true => Error::OutOfMemory { bytes },
                        false => error.into(),
                    })?
                }
                pinned => pinned?,
            },
        };
        self.state().used_bytes += pinned.len() as u64;
        Ok(PinnedBlock { pinned: Some(pinned), until: None, pool: Arc::clone(self) })
    }

    fn find(&self, current: &Current<'_>, size: usize) -> Result<Option<Pinned>> {
        let fits = |free: &Free| free.pinned.len() == size;
        let foreign = |free: &Free| fits(free) && matches!(free.until, Until::EverythingIsDone);
        let mut state = self.state();
        for (index, free) in state.free.iter().enumerate().filter(|(_, free)| fits(free)) {
            let is_free = match &free.until {
                Until::Now => true,
                Until::Event(event) => event.query()?,
                Until::EverythingIsDone => false,
            };
            if is_free {
                return Ok(Some(state.free.swap_remove(index).pinned));
            }
        }
        if !state.free.iter().any(foreign) {
            return Ok(None);
        }
        let (mut waiting, others): (Vec<Free>, Vec<Free>) =
            std::mem::take(&mut state.free).into_iter().partition(foreign);
        state.free = others;
        // The device may take its time: others can give blocks back meanwhile.
        drop(state);
        let synchronized = current.synchronize_all();
        let mut found = None;
        if synchronized.is_ok() {
            waiting.iter_mut().for_each(|free| free.until = Until::Now);
            found = waiting.pop();
        }
        self.state().free.extend(waiting);
        synchronized?;
        Ok(found.map(|free| free.pinned))
    }

    /// Unlocks and frees what lies unused. Waits for all devices.
    pub fn empty(&self, current: &Current<'_>) -> Result<()> {
        let free = std::mem::take(&mut self.state().free);
        if !free.is_empty() {
            current.synchronize_all()?;
        }
        Ok(())
    }

    /// Bytes that lie unused, and bytes in use.
    pub fn bytes(&self) -> (u64, u64) {
        let state = self.state();
        (state.free.iter().map(|free| free.pinned.len() as u64).sum(), state.used_bytes)
    }

    fn state(&self) -> MutexGuard<'_, PinnedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PinnedBlock {
    pub fn as_ptr(&self) -> *mut u8 {
        self.pinned.as_ref().map_or(std::ptr::null_mut(), Pinned::as_ptr)
    }

    /// The block as a tensor, whose owner it is.
    pub fn into_tensor(self, dtype: DType, layout: Layout) -> Tensor {
        let data = self.as_ptr();
        debug_assert!(layout.is_compact());
        // SAFETY: whoever took the block asked for the bytes of this compact layout.
        unsafe { Tensor::new_unchecked(Arc::new(self), data, dtype, Device::Pinned, layout, false) }
    }

    /// The block may be used again when the event is reached.
    pub fn free_after(mut self, event: Arc<PooledEvent>) {
        self.until = Some(Until::Event(event));
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        let Some(pinned) = self.pinned.take() else { return };
        if forked().is_some() {
            // The parent's, and so may be the lock.
            return std::mem::forget(pinned);
        }
        let until = self.until.take().unwrap_or(Until::EverythingIsDone);
        let mut state = self.pool.state();
        state.used_bytes -= pinned.len() as u64;
        state.free.push(Free { pinned, until });
    }
}
