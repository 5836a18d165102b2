//! [`Ring`]: page-locked memory that bytes of the host pass through on their way to a device.
//!
//! The problem: an asynchronous copy reads page-locked memory some time after the call. A piece can be reused only when its copy
//! has ended, which an event tells, and each query of an event is a call to the driver.
//!
//! ```text
//! memory   |......|== 3 ==|= 4 =|==== 5 ====|.............|       = in use, oldest piece first
//!                 ^tail = begin of the oldest ^head
//!
//! take:    reclaim pieces from the front, at most `max_ring_queries` event queries
//!          place the new piece at head, or at 0 if it fits before tail
//!          if neither fits: grow to larger memory, up to MAX_BYTES; else wait for the oldest piece
//! ```
//!
//! Pieces are given back in the order in which they were taken, so the oldest one decides and one query usually suffices. A free
//! list would have to query every piece: a batch took 103 397 calls of the driver with the device 60 batches behind, and takes 16
//! since the oldest piece alone is queried. A slow copy at the front holds up those behind it; on one device copies end in about
//! the order in which they were enqueued. Memory that has been outgrown is freed with its last piece.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use super::super::driver::{Current, Pinned, PooledEvent};
use super::pinned::PinnedPool;
use super::policy::POLICY;
use crate::plan;
use crate::sync::{lock, Condvar, Mutex};
use crate::tensor::Result;

/// The first size, and the largest. One piece for the checker, which then waits for it.
const MIN_BYTES: usize = if cfg!(windrow_loom) { ALIGN } else { POLICY.min_ring_bytes };
const MAX_BYTES: usize = if cfg!(windrow_loom) { ALIGN } else { POLICY.max_ring_bytes };

/// Pieces begin at multiples of this.
const ALIGN: usize = 256;

/// The ring of one device.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    state: Mutex<State>,
    /// A piece has been filled.
    filled: Condvar,
}

#[derive(Debug, Default)]
struct State {
    memory: Option<Arc<Pinned>>,
    /// The oldest first. Pieces of smaller memory, used before, are at the front.
    pieces: VecDeque<Piece>,
    /// The number of the piece at the front.
    first: u64,
    /// The start of the next piece.
    head: usize,
}

#[derive(Debug)]
struct Piece {
    memory: Arc<Pinned>,
    begin: usize,
    until: PieceUntil,
}

/// The work that a piece waits for before it may be written to again.
#[derive(Clone, Debug)]
enum PieceUntil {
    /// The piece is being filled.
    Filled,
    /// A copy has read it.
    Event(Arc<PooledEvent>),
    /// Nothing reads it.
    Now,
}

/// A piece in use.
#[derive(Debug)]
pub(crate) struct Slot<'r> {
    ring: &'r Ring,
    number: u64,
    data: *mut u8,
}

impl Ring {
    /// Takes a piece of at least `bytes` bytes, at most a chunk, that no copy reads any more. If
    /// all of the memory is in use at its largest size, waits for the oldest copy, or until the
    /// thread that fills the oldest piece is done: a thread that holds a piece itself may wait for
    /// ever. Errors as of [`PinnedPool::take`], and those of an earlier copy.
    pub fn take(&self, current: &Current<'_>, pool: &PinnedPool, bytes: u64) -> Result<Slot<'_>> {
        debug_assert!(bytes <= plan::POLICY.chunk_bytes);
        let size = (bytes as usize).next_multiple_of(ALIGN).max(ALIGN);
        let mut state = lock(&self.state);
        state.reclaim()?;
        loop {
            if let Some(begin) = state.find_space(size) {
                return Ok(self.piece(&mut state, begin, size));
            }
            if state.capacity() < MAX_BYTES {
                state.grow(current, pool, size)?;
                continue;
            }
            match state.pieces.front().map(|oldest| oldest.until.clone()) {
                Some(PieceUntil::Event(event)) => {
                    drop(state);
                    event.synchronize()?;
                    state = lock(&self.state);
                }
                Some(PieceUntil::Filled) => {
                    state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                Some(PieceUntil::Now) | None => {}
            }
            state.reclaim()?;
        }
    }

    /// Adds a piece at `begin`, which `find_space` found, as the newest one.
    fn piece(&self, state: &mut State, begin: usize, size: usize) -> Slot<'_> {
        let memory = state.memory.as_ref().expect("`find_space` found a place in it");
        let (memory, data) = (Arc::clone(memory), memory.as_ptr().wrapping_add(begin));
        let number = state.first + state.pieces.len() as u64;
        state.pieces.push_back(Piece { memory, begin, until: PieceUntil::Filled });
        state.head = begin + size;
        Slot { ring: self, number, data }
    }

    /// Frees the memory, unless pieces of it are being filled. The caller has waited for all work of the device.
    pub fn clear(&self) {
        let mut state = lock(&self.state);
        if !state.pieces.iter().any(|piece| matches!(piece.until, PieceUntil::Filled)) {
            let first = state.first + state.pieces.len() as u64;
            *state = State { first, ..State::default() };
        }
    }

    /// Bytes of the present memory; outgrown memory that copies still read is not counted.
    pub fn bytes(&self) -> u64 {
        lock(&self.state).capacity() as u64
    }
}

impl State {
    /// Bytes of the present memory.
    fn capacity(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.len())
    }

    /// Frees the oldest pieces up to the first one in use; queries at most `max_ring_queries` events.
    fn reclaim(&mut self) -> Result<()> {
        let mut queries = 0;
        while let Some(oldest) = self.pieces.front() {
            match &oldest.until {
                PieceUntil::Filled => break,
                PieceUntil::Now => {}
                PieceUntil::Event(_) if queries == POLICY.max_ring_queries => break,
                PieceUntil::Event(event) if !event.query()? => break,
                PieceUntil::Event(_) => queries += 1,
            }
            self.pieces.pop_front();
            self.first += 1;
        }
        Ok(())
    }

    /// The start of `size` free bytes in the present memory; `None` without them.
    fn find_space(&self, size: usize) -> Option<usize> {
        let memory = self.memory.as_ref()?;
        let oldest = self.pieces.iter().find(|piece| Arc::ptr_eq(&piece.memory, memory));
        let (head, end) = (self.head, memory.len());
        let fits = |begin: usize, end: usize| end - begin >= size;
        match oldest.map(|piece| piece.begin) {
            None => fits(0, end).then_some(0),
            Some(tail) if head <= tail => fits(head, tail).then_some(head),
            Some(_) if fits(head, end) => Some(head),
            Some(tail) => fits(0, tail).then_some(0),
        }
    }

    /// Allocates larger memory for the next pieces, of at least `size` bytes and at most
    /// [`MAX_BYTES`]; the old one is freed when its last piece has been read.
    fn grow(&mut self, current: &Current<'_>, pool: &PinnedPool, size: usize) -> Result<()> {
        let bytes = (4 * size.next_power_of_two()).max(2 * self.capacity());
        let memory = pool.lock(current, bytes.clamp(MIN_BYTES, MAX_BYTES))?;
        (self.memory, self.head) = (Some(Arc::new(memory)), 0);
        Ok(())
    }
}

impl Slot<'_> {
    /// The address of the piece's first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.data
    }

    /// The piece may be used again when the event is reached. A slot that is dropped instead is free at once.
    pub fn free_after(self, event: Arc<PooledEvent>) {
        self.free(PieceUntil::Event(event));
        std::mem::forget(self);
    }

    /// Sets when the piece may be used again, and wakes those that wait for one.
    fn free(&self, until: PieceUntil) {
        let mut state = lock(&self.ring.state);
        let index = usize::try_from(self.number - state.first).expect("a position in memory");
        state.pieces[index].until = until;
        drop(state);
        self.ring.filled.notify_all();
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.free(PieceUntil::Now);
    }
}
