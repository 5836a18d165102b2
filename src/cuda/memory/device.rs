//! Output memory on a device.
//!
//! The problem: the drop of a block, on any thread, cannot wait for the device, and work on several streams may still use the
//! block: its consumers' on the stream that it was made for, too. Some of these streams are another library's, which may have destroyed
//! them since: to query them would be undefined.
//!
//! ```text
//! drop      used on its home stream alone                   -> parked      the next allocation there takes it, in stream order;
//!                                                                          too many, or no memory: as used on a named stream if
//!                                                                          the home is ours, else as handed to it
//!           used by work with events, or on named streams   -> ending      freed to the pool when all events are reached
//!           made on or handed to streams that may be gone   -> handed_out  until calls have named them all: -> ending
//!
//! allocate  too much handed out: wait for the device, free it all
//!           note that the stream is named
//!           a parked block of the size, else give all blocks parked for the stream to the pool, behind their users
//!           free ended blocks, then take memory of the pool; none left: trim parked and ending, then handed out too
//! ```
//!
//! Freeing each block in the order of one stream would be simpler, but a slow reader would hold up all blocks behind its own.
//! Parked blocks need no call of the driver: a loop reuses its memory however far it runs ahead.
#![allow(unsafe_code)] // Memory given back to the driver.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use smallvec::SmallVec;

use super::super::driver::{
    forked, Context, Current, DevicePtr, DriverResult, EventPool, MemPool, OwnStream, PooledEvent,
    StreamRef,
};
use super::policy::POLICY;
use super::stream_key::{StreamKey, ANY_STREAM, PER_THREAD};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{lock, Mutex};
use crate::tensor::{self, Error, Result};

/// Device memory in stream order.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    pool: MemPool,
    /// The stream on which memory is given back.
    release: OwnStream,
    /// The stream of work that no other was named for.
    own: Arc<OwnStream>,
    events: Arc<EventPool>,
    used_bytes: AtomicU64,
    /// The oldest first.
    parked: Mutex<VecDeque<Parked>>,
    /// Blocks that are freed when their events are reached, queried in turn.
    ending: Mutex<VecDeque<Parked>>,
    /// Freed blocks that were handed to foreign streams, which may be destroyed by now, and these streams.
    handed_out: Mutex<Vec<(Vec<StreamKey>, Parked)>>,
}

/// A freed block, in one of three lists: `parked`, left to the stream of its work; `ending`, on its way to the pool;
/// `handed_out`, used by streams that cannot be queried. If only its home stream used it, the next allocation on that
/// stream can reuse it at once: stream order protects it.
#[derive(Debug)]
struct Parked {
    address: DevicePtr,
    bytes: u64,
    home: StreamKey,
    /// Events of the work that used the block, and the streams of these events.
    events: SmallVec<[(StreamKey, Arc<PooledEvent>); 2]>,
}

impl Parked {
    /// Whether all its events are reached.
    fn is_done(&self) -> DriverResult<bool> {
        for (_, event) in &self.events {
            if !event.query()? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Sizes are multiples of this, as the driver's are.
const SIZE_ALIGN: u64 = 512;

/// A block of device memory. Its drop, on any thread, frees it behind the work that wrote it
/// and behind all work enqueued by then on the streams it was handed to.
#[derive(Debug)]
pub(crate) struct DeviceBlock {
    address: DevicePtr,
    bytes: u64,
    /// The stream it was made for.
    home: StreamKey,
    memory: Arc<DeviceMemory>,
    users: Mutex<Users>,
}

#[derive(Debug, Default)]
struct Users {
    /// Reached when the block has been written, on this stream.
    ready: Option<(StreamKey, Arc<PooledEvent>)>,
    /// The last batch on each stream that reads the block.
    readers: Vec<(StreamKey, Arc<PooledEvent>)>,
    /// Streams of others that may have work on the block.
    streams: Vec<StreamKey>,
    /// The streams among these whose owner may have destroyed them since.
    borrowed: Vec<StreamKey>,
}

impl DeviceMemory {
    /// Makes a pool and the stream of releases, on the device of `current`. `events` are those of its context, `own` is the
    /// stream of work that no other is named for.
    pub fn new(
        current: &Current<'_>,
        events: &Arc<EventPool>,
        own: &Arc<OwnStream>,
    ) -> DriverResult<Arc<DeviceMemory>> {
        Ok(Arc::new(DeviceMemory {
            context: Arc::clone(current.context()),
            pool: current.mem_pool()?,
            release: current.stream(0)?,
            own: Arc::clone(own),
            events: Arc::clone(events),
            used_bytes: AtomicU64::new(0),
            parked: Mutex::default(),
            ending: Mutex::default(),
            handed_out: Mutex::default(),
        }))
    }

    /// Allocates uninitialised memory for work on `stream`. No bytes get the address 0. Without free memory, or if too many freed
    /// blocks wait for their streams, unused memory is returned first, for which the host may wait.
    pub fn allocate(
        self: &Arc<Self>,
        current: &Current<'_>,
        stream: StreamRef<'_>,
        bytes: u64,
    ) -> Result<DeviceBlock> {
        let home = StreamKey::new(stream)?;
        let address = if bytes == 0 {
            0
        } else {
            let size = bytes.checked_next_multiple_of(SIZE_ALIGN);
            let size = size.and_then(|size| usize::try_from(size).ok());
            let size = size.ok_or(Error::OutOfMemory { bytes })?;
            self.note_named(current, stream, home)?;
            if self.has_too_much_handed_out() {
                self.end_all(current)?;
            }
            match self.unpark(stream, home, size as u64)? {
                Some(address) => address,
                None => self.fresh(current, stream, size)?,
            }
        };
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        let (memory, users) = (Arc::clone(self), Mutex::default());
        Ok(DeviceBlock { address, bytes, home, memory, users })
    }

    /// Allocates memory from the pool; [`Error::OutOfMemory`] if it stays without. When the device has none left,
    /// unused memory is returned to it and the allocation is tried again: first what needs no wait for the whole
    /// device, then the rest.
    fn fresh(
        &self,
        current: &Current<'_>,
        stream: StreamRef<'_>,
        size: usize,
    ) -> Result<DevicePtr> {
        self.free_ended(current)?;
        let allocated = self.pool.alloc(stream, size).or_else(|error| {
            if !error.is_out_of_memory() {
                return Err(error);
            }
            self.trim_known(current)?;
            self.pool.alloc(stream, size).or_else(|error| {
                if !error.is_out_of_memory() || !self.has_unnamed() {
                    return Err(error);
                }
                self.trim(current)?;
                self.pool.alloc(stream, size)
            })
        });
        match allocated {
            Err(error) if error.is_out_of_memory() => {
                Err(Error::OutOfMemory { bytes: size as u64 })
            }
            allocated => Ok(allocated?),
        }
    }

    /// Takes a parked block of this size from the stream: all that used it is in the order of that. If there is none, all blocks
    /// parked for the stream go back to the pool in its order, and the result is `None`. Blocks of a destroyed stream that had its
    /// handle count as handed to that one.
    fn unpark(
        &self,
        stream: StreamRef<'_>,
        home: StreamKey,
        bytes: u64,
    ) -> DriverResult<Option<DevicePtr>> {
        let mut left = {
            let mut parked = lock(&self.parked);
            let fits = |one: &Parked| one.home == home && one.bytes == bytes;
            if let Some(found) = parked.iter().position(fits) {
                return Ok(parked.remove(found).map(|one| one.address));
            }
            let is_of_handle = |one: &Parked| one.home.name() == home.name();
            if !parked.iter().any(is_of_handle) {
                return Ok(None);
            }
            let (left, others): (VecDeque<_>, _) =
                std::mem::take(&mut *parked).into_iter().partition(is_of_handle);
            *parked = others;
            left.into_iter()
        };
        while let Some(one) = left.next() {
            if one.home != home {
                self.hand_out(one);
                continue;
            }
            // SAFETY: nothing has it any more; the stream is behind all users.
            if let Err(error) = unsafe { self.pool.free(stream, one.address) } {
                lock(&self.parked).extend(left);
                return Err(error);
            }
        }
        Ok(None)
    }

    /// Notes that a caller names a stream, which therefore exists: freed blocks that were handed to it wait for the work that
    /// is on it now, and are freed behind it if no other stream has yet to be named.
    fn note_named(
        &self,
        current: &Current<'_>,
        stream: StreamRef<'_>,
        named: StreamKey,
    ) -> DriverResult<()> {
        let mut handed_out = lock(&self.handed_out);
        if !handed_out.iter().any(|(streams, _)| streams.contains(&named))
            || stream.is_capturing()?
        {
            return Ok(());
        }
        let event = Arc::new(self.events.take(current)?);
        stream.record(&event)?;
        let mut ended = Vec::new();
        for (mut streams, mut one) in std::mem::take(&mut *handed_out) {
            if streams.contains(&named) {
                streams.retain(|stream| *stream != named);
                one.events.push((named, Arc::clone(&event)));
            }
            match streams.is_empty() {
                true => ended.push(one),
                false => handed_out.push((streams, one)),
            }
        }
        drop(handed_out);
        self.give_back_all(current, ended)
    }

    /// Parks a block for the stream of its work; returns the oldest block, for the caller to free, if too much is parked.
    fn park(&self, one: Parked) -> Option<Parked> {
        let mut parked = lock(&self.parked);
        parked.push_back(one);
        if parked.len() > POLICY.max_parked {
            parked.pop_front()
        } else {
            None
        }
    }

    /// Notes that a freed block may be used on its home stream, which may be gone.
    fn hand_out(&self, one: Parked) {
        lock(&self.handed_out).push((vec![one.home], one));
    }

    /// Takes a parked block from its home stream, which others may have enqueued work on that uses it: behind an event there, if
    /// the stream is ours or a default stream of this thread, for the caller to give back. `None`, and handed out, if it is another's.
    fn leave_home(&self, current: &Current<'_>, mut one: Parked) -> Option<Parked> {
        let home = one.home;
        if self.exists(home) && matches!(self.end_behind(current, home, &mut one), Ok(true)) {
            return Some(one);
        }
        self.hand_out(one);
        None
    }

    /// Whether a stream is ours, or a default stream that this thread can name.
    fn exists(&self, stream: StreamKey) -> bool {
        let is_known = stream.handle == self.own.handle() || stream.handle <= PER_THREAD;
        is_known && !stream.is_of_another_thread()
    }

    /// All parked blocks that could be taken from their home streams; the others are handed out.
    fn unpark_all(&self, current: &Current<'_>) -> VecDeque<Parked> {
        let parked = std::mem::take(&mut *lock(&self.parked));
        parked.into_iter().filter_map(|one| self.leave_home(current, one)).collect()
    }

    /// Whether the next call has to wait for the device. A drop cannot wait: its thread may hold a lock that the device's work
    /// needs.
    fn has_too_much_handed_out(&self) -> bool {
        let handed_out = lock(&self.handed_out);
        let (count, bytes) = (handed_out.len(), handed_out.iter().map(|(_, one)| one.bytes).sum());
        let most_bytes: u64 = self.context.info().total_bytes / POLICY.idle_share;
        count > POLICY.max_parked || count > POLICY.min_idle && most_bytes < bytes
    }

    /// Makes the release of memory wait for the work on a stream that still exists; false, and for none, while the stream is captured.
    fn end_behind(&self, current: &Current<'_>, user: StreamKey, end: &mut Parked) -> Result<bool> {
        debug_assert!(user != ANY_STREAM);
        // SAFETY: as for `hand_to`, and not borrowed.
        let stream = unsafe { current.foreign_stream(user.handle) }?;
        // The graph's owner orders its later launches.
        if stream.is_capturing()? {
            return Ok(false);
        }
        let event = Arc::new(self.events.take(current)?);
        stream.record(&event)?;
        end.events.push((user, event));
        Ok(true)
    }

    /// Frees blocks that were handed to streams that have not been named since. Waits for the
    /// device; after an error of the wait the blocks stay.
    fn end_all(&self, current: &Current<'_>) -> DriverResult<()> {
        let handed_out = std::mem::take(&mut *lock(&self.handed_out));
        if handed_out.is_empty() {
            return Ok(());
        }
        if let Err(error) = current.synchronize() {
            // A wait fails beside a capture: the block stays for a later call.
            lock(&self.handed_out).extend(handed_out);
            return Err(error);
        }
        self.give_back_all(current, handed_out.into_iter().map(|(_, one)| one))
    }

    /// Gives all of these back by [`Self::give_back`], even after an error; returns the first error.
    fn give_back_all(
        &self,
        current: &Current<'_>,
        all: impl IntoIterator<Item = Parked>,
    ) -> DriverResult<()> {
        let given: Vec<_> = all.into_iter().map(|one| self.give_back(current, one)).collect();
        given.into_iter().collect()
    }

    /// Frees memory once its users are done, now or at a later call.
    fn give_back(&self, current: &Current<'_>, one: Parked) -> DriverResult<()> {
        match one.is_done() {
            Ok(true) => self.free(current, &one),
            Ok(false) => {
                lock(&self.ending).push_back(one);
                Ok(())
            }
            Err(error) => {
                // No event can be recorded any more: all work has to end first.
                current.synchronize().map_err(|_| error)?;
                self.free(current, &one)
            }
        }
    }

    /// Frees memory in the order of the release stream, behind its users; waits for the device if an event fails.
    fn free_behind(&self, current: &Current<'_>, one: &Parked) -> DriverResult<()> {
        let release = self.release.on(current);
        if one.events.iter().try_for_each(|(_, event)| release.wait(event)).is_err() {
            // No event can be recorded any more: all work has to end first.
            current.synchronize()?;
        }
        self.free(current, one)
    }

    /// Frees memory without users, or whose users the release stream waits for.
    fn free(&self, current: &Current<'_>, one: &Parked) -> DriverResult<()> {
        // SAFETY: allocated from this pool, given back once; the release stream is behind all users.
        unsafe { self.pool.free(self.release.on(current), one.address) }
    }

    /// Frees blocks whose users have ended. Queries at most `max_parked` blocks; those that are in
    /// use go behind the others, which the next call queries first.
    fn free_ended(&self, current: &Current<'_>) -> DriverResult<()> {
        let count = lock(&self.ending).len().min(POLICY.max_parked);
        for _ in 0..count {
            let Some(one) = lock(&self.ending).pop_front() else { break };
            self.give_back(current, one)?;
        }
        Ok(())
    }

    /// Returns unused memory to the device, except blocks that unnamed streams may use. Waits for the blocks' events.
    pub fn trim_known(&self, current: &Current<'_>) -> DriverResult<()> {
        let mut unused = self.unpark_all(current);
        unused.extend(std::mem::take(&mut *lock(&self.ending)));
        let given: Vec<_> = unused.iter().map(|one| self.free_behind(current, one)).collect();
        given.into_iter().collect::<DriverResult<()>>()?;
        self.release.on(current).synchronize()?;
        self.pool.trim(0)
    }

    /// Returns all unused memory to the device. Waits for the device if unnamed streams may use some of it.
    pub fn trim(&self, current: &Current<'_>) -> DriverResult<()> {
        let unused = self.unpark_all(current);
        lock(&self.ending).extend(unused);
        self.end_all(current)?;
        self.trim_known(current)
    }

    /// Whether freed blocks wait for the streams that they were handed to or made for, which no call has named since.
    pub fn has_unnamed(&self) -> bool {
        !lock(&self.handed_out).is_empty()
    }

    /// Bytes of blocks in use, as they were asked for.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }
}

impl DeviceBlock {
    /// The address of the block's first byte; 0 for a block without bytes.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Records the event after which the block has been written on a stream. The caller has ordered the writing behind all
    /// earlier readers, which are forgotten; streams that the block was handed to stay noted.
    pub fn set_ready(&self, stream: StreamRef<'_>, event: Arc<PooledEvent>) -> DriverResult<()> {
        let (stream, mut users) = (StreamKey::new(stream)?, lock(&self.users));
        users.ready = Some((stream, event));
        users.readers.clear();
        Ok(())
    }

    /// Records the event after which work on a stream has read the block.
    pub fn set_read(&self, stream: StreamRef<'_>, event: Arc<PooledEvent>) -> DriverResult<()> {
        let (stream, mut users) = (StreamKey::new(stream)?, lock(&self.users));
        // The last event of a stream is behind all earlier ones.
        users.readers.retain(|(reader, _)| *reader != stream);
        users.readers.push((stream, event));
        Ok(())
    }

    /// Orders a stream behind the writing of the block; does nothing if none was recorded.
    pub fn wait_on(&self, stream: StreamRef<'_>) -> Result<()> {
        let ready = lock(&self.users).ready.clone();
        ready.map_or(Ok(()), |(_, ready)| Ok(stream.wait(&ready)?))
    }

    /// Orders a stream behind everything that has been enqueued on the block, so that it may be
    /// written anew. Waits for the whole device if some of its streams cannot be named. Streams that are captured now are left
    /// out; the users of the block stay noted.
    pub fn wait_for_users(
        &self,
        current: &Current<'_>,
        events: &Arc<EventPool>,
        stream: StreamRef<'_>,
    ) -> Result<()> {
        self.wait_on(stream)?;
        let here = StreamKey::new(stream)?;
        let (readers, streams, has_unnamed) = {
            let users = lock(&self.users);
            let has_no_name = |used: &StreamKey| *used != here && used.is_of_another_thread();
            let has_unnamed = users.borrowed.iter().any(|used| *used != here)
                || users.streams.iter().any(has_no_name);
            (users.readers.clone(), users.streams.clone(), has_unnamed)
        };
        if has_unnamed {
            // Streams that may be gone, and per-thread streams of other threads, cannot be queried.
            return Ok(current.synchronize()?);
        }
        for (_, event) in &readers {
            stream.wait(event)?;
        }
        for &used in &streams {
            if used == here {
                continue;
            }
            debug_assert!(used != ANY_STREAM);
            // SAFETY: as for `hand_to`, and not borrowed.
            let user = unsafe { current.foreign_stream(used.handle) }?;
            // The graph's owner orders its later launches.
            if !user.is_capturing()? {
                events.order(current, user, stream)?;
            }
        }
        Ok(())
    }

    /// Orders a stream behind the writing of the block, and the block's end behind that stream.
    /// `is_borrowed`: the stream need not exist when the call has returned.
    ///
    /// # Errors
    /// [`Error::Argument`] for a stream of another device or context, or one that is captured; [`Error::NoDriver`] in a forked
    /// child; [`Error::Cuda`].
    pub fn hand_to(&self, stream: tensor::Stream, is_borrowed: bool) -> Result<()> {
        let (current, handle) = (self.memory.context.enter()?, stream.handle());
        // SAFETY: the maker of the `Stream` vouched for its handle.
        let stream = unsafe { current.foreign_stream(handle) }?;
        let user = StreamKey::new(stream)?;
        if stream.is_capturing()? {
            return Err(Error::argument(
                "the stream is being captured in a graph, which cannot wait for work outside of it: \
                 hand the batch over before the capture begins"
                    .into(),
            ));
        }
        self.memory.note_named(&current, stream, user)?;
        self.wait_on(stream)?;
        let mut users = lock(&self.users);
        let streams = match is_borrowed && handle > PER_THREAD {
            true => &mut users.borrowed,
            false => &mut users.streams,
        };
        if !streams.contains(&user) {
            streams.push(user);
        }
        Ok(())
    }

    /// Makes the release of the block wait for the whole device: streams that nobody names may use
    /// it. Orders nothing, and does not wait itself.
    pub fn hand_to_unnamed(&self) -> Result<()> {
        // First: in a forked child the lock below may be one that is never released.
        let _current = self.memory.context.enter()?;
        let mut users = lock(&self.users);
        if !users.borrowed.contains(&ANY_STREAM) {
            users.borrowed.push(ANY_STREAM);
        }
        Ok(())
    }

    /// Blocks until the block has been written; returns at once if nothing was enqueued to write it.
    pub fn synchronize(&self) -> Result<()> {
        // First: in a forked child the lock below may be one that is never released.
        let _current = self.memory.context.enter()?;
        let ready = lock(&self.users).ready.clone();
        ready.map_or(Ok(()), |(_, ready)| Ok(ready.synchronize()?))
    }

    /// The context of the block's device.
    pub fn context(&self) -> &Arc<Context> {
        &self.memory.context
    }
}

impl Drop for DeviceBlock {
    /// Does not wait. In a forked child, and after a failure, the memory is lost.
    fn drop(&mut self) {
        self.memory.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        if self.address == 0 {
            return;
        }
        // The memory is no longer ours to give back after a fork, and the lock may be one that is never released.
        if forked().is_some() {
            return;
        }
        let mut users = std::mem::take(&mut *lock(&self.users));
        users.streams.retain(|user| *user != self.home);
        users.borrowed.retain(|user| *user != self.home);
        let users_ready = users.ready.as_ref().map(|(stream, _)| *stream);
        let events: SmallVec<[_; 2]> = users.ready.into_iter().chain(users.readers).collect();
        let is_home = events.iter().all(|(of, _)| *of == self.home);
        let bytes = self.bytes.next_multiple_of(SIZE_ALIGN);
        let mut end = Parked { address: self.address, bytes, home: self.home, events };
        if is_home && users.streams.is_empty() && users.borrowed.is_empty() {
            let Some(oldest) = self.memory.park(end) else { return };
            let Ok(current) = self.memory.context.enter() else { return };
            if let Some(oldest) = self.memory.leave_home(&current, oldest) {
                let _ = self.memory.give_back(&current, oldest);
            }
            return;
        }
        // A driver that is torn down takes nothing back; after a failure of the device the memory is gone with the
        // context.
        let Ok(current) = self.memory.context.enter() else { return };
        // Consumers on the streams of the calls that wrote it need no name.
        let last = users_ready.filter(|last| *last != self.home);
        for writer in std::iter::once(self.home).chain(last) {
            let known = match self.memory.exists(writer) {
                true => &mut users.streams,
                false => &mut users.borrowed,
            };
            if !known.contains(&writer) {
                known.push(writer);
            }
        }
        let (mut unnamed, named): (Vec<_>, Vec<_>) =
            users.streams.into_iter().partition(|user| user.is_of_another_thread());
        for user in named {
            match self.memory.end_behind(&current, user, &mut end) {
                Ok(true) => {}
                // What was on it before its capture has no event, and so has all after a failure, or on the legacy stream beside
                // a capture of another's.
                Ok(false) | Err(_) => unnamed.push(user),
            }
        }
        // Streams that their owner may have destroyed, and those that have no name on this thread.
        users.borrowed.extend(unnamed);
        if users.borrowed.is_empty() {
            let _ = self.memory.give_back(&current, end);
        } else {
            lock(&self.memory.handed_out).push((users.borrowed, end));
        }
    }
}

impl Drop for DeviceMemory {
    /// Frees all blocks behind their users; waits for the device if some were handed out. Nothing in a forked child.
    fn drop(&mut self) {
        let take = |list: &mut Mutex<VecDeque<Parked>>| {
            std::mem::take(list.get_mut().unwrap_or_else(PoisonError::into_inner))
        };
        let (parked, mut left) = (take(&mut self.parked), take(&mut self.ending));
        let handed_out = self.handed_out.get_mut().unwrap_or_else(PoisonError::into_inner);
        if parked.is_empty() && left.is_empty() && handed_out.is_empty() {
            return;
        }
        let Ok(current) = self.context.enter() else { return };
        left.extend(parked.into_iter().filter_map(|one| self.leave_home(&current, one)));
        let _ = self.end_all(&current);
        left.extend(std::mem::take(&mut *lock(&self.ending)));
        for one in left {
            let _ = self.free_behind(&current, &one);
        }
    }
}
