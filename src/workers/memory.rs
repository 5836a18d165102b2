//! The memory of a pool, as the worker and its reader map it: a sparse file without a name, of its full size from the start.
//! First words of the pool, then the claims, then blocks.
#![allow(unsafe_code)] // Calls of the system, and words in memory that processes share.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{fence, AtomicU64, Ordering};

use super::word::{PoolWord, Word};
use crate::sync::ForkMutex;
use crate::tensor::Owner;

/// Blocks begin and end with pages.
pub(super) const PAGE: u64 = 4096;
/// Blocks that can be in use at a time.
pub(super) const NUM_CLAIMS: u32 = 32 << 10;
/// Words of a claim: its state, the offset and bytes of its block, and the block's [`Life`].
const CLAIM_WORDS: usize = 4;
const FIRST_CLAIM: usize = PAGE as usize / 8;
pub(super) const FIRST_BLOCK: u64 = PAGE + NUM_CLAIMS as u64 * CLAIM_WORDS as u64 * 8;

/// Words of the pool.
#[derive(Clone, Copy)]
pub(super) enum Header {
    /// Two words that no other pool has.
    Key = 0,
    /// The holder of the pool.
    Pool = 2,
    /// A flag that is not 0 once a reader has mapped the pool.
    Mapped,
    /// Claims that were ever used.
    NumClaims,
    /// Blocks whose pages were given back.
    Removed,
    /// The first of the counters.
    Counters,
}

/// The counters that a worker publishes to its reader.
#[derive(Clone, Copy)]
pub(super) enum Counter {
    /// Messages sent.
    Messages,
    /// Bytes of the tensors in them.
    Bytes,
    /// Times that there was no room below the limit.
    Refused,
    /// Blocks that were made; all others were used again.
    Blocks,
    /// Bytes of all blocks at present.
    BlockBytes,
}

impl Counter {
    pub const ALL: [(Counter, &'static str); 5] = [
        (Counter::Messages, "batches"),
        (Counter::Bytes, "bytes"),
        (Counter::Refused, "refused"),
        (Counter::Blocks, "blocks"),
        (Counter::BlockBytes, "pool_bytes"),
    ];
}

/// The block of a claim, and whether this is the block's first claim, which lives as long as the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// No other block of the pool has it, before or after: its pages are not those of a block that was at the same place. From
    /// 1 on.
    pub number: u64,
    pub is_first: bool,
}

/// A block whose pages this process has mapped.
#[derive(Debug)]
struct MappedBlock {
    bytes: u64,
    life: u64,
    /// A value made from its pages, kept as long as the pages belong to the block.
    kept: Option<Owner>,
}

/// A mapped pool.
#[derive(Debug)]
pub struct Memory {
    mapping: Mapping,
    /// The blocks by offset; none overlaps another.
    mapped: ForkMutex<BTreeMap<u64, MappedBlock>>,
    /// [`Header::Removed`] when it was last looked at.
    removed: AtomicU64,
}

impl Memory {
    /// Maps the file of a pool, for reading and writing. An error if it is shorter than `bytes`, or these have no room for a
    /// block.
    pub fn map(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Memory> {
        // SAFETY: the struct is plain numbers, and filled in by the call.
        let size = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            match libc::fstat(file.as_raw_fd(), &mut stat) {
                0 => stat.st_size as u64,
                _ => return Err(io::Error::last_os_error()),
            }
        };
        if bytes <= FIRST_BLOCK || size < bytes {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        let mapping = Mapping::shared(bytes as usize, libc::MAP_NORESERVE, file.as_raw_fd())?;
        let (mapped, removed) = (ForkMutex::default(), AtomicU64::new(0));
        let memory = Memory { mapping, mapped, removed };
        // A dump of a process would walk through the whole of it. Refused, that is all.
        let _ = memory.advise(0, memory.bytes(), libc::MADV_DONTDUMP);
        Ok(memory)
    }

    /// The number that tells the pool from all others.
    pub fn key(&self) -> u128 {
        let half = |index| u128::from(self.word_at(index).load(Ordering::Relaxed));
        half(Header::Key as usize) | half(Header::Key as usize + 1) << 64
    }

    /// Stores the key of the pool.
    pub(super) fn set_key(&self, key: u128) {
        self.word_at(Header::Key as usize).store(key as u64, Ordering::Relaxed);
        self.word_at(Header::Key as usize + 1).store((key >> 64) as u64, Ordering::Relaxed);
    }

    /// A word of the header.
    pub(super) fn header(&self, word: Header) -> &AtomicU64 {
        self.word_at(word as usize)
    }

    /// The word of a counter.
    pub(super) fn counter(&self, counter: Counter) -> &AtomicU64 {
        self.word_at(Header::Counters as usize + counter as usize)
    }

    /// The value of a counter.
    pub(super) fn count(&self, counter: Counter) -> u64 {
        self.counter(counter).load(Ordering::Relaxed)
    }

    /// The word of a claim.
    pub(super) fn claim(&self, claim: u32) -> Word<'_> {
        Word(self.word_at(FIRST_CLAIM + claim as usize * CLAIM_WORDS))
    }

    /// Offset and bytes of the block of a claim, which are those of a block while it is not free.
    pub(super) fn block_of_claim(&self, claim: u32) -> (u64, u64) {
        let word = |index| {
            self.word_at(FIRST_CLAIM + claim as usize * CLAIM_WORDS + index).load(Ordering::Relaxed)
        };
        (word(1), word(2))
    }

    /// Stores the place of the block that a claim is for, in bytes.
    pub(super) fn set_block_of_claim(&self, claim: u32, offset: u64, bytes: u64) {
        let word = |index| self.word_at(FIRST_CLAIM + claim as usize * CLAIM_WORDS + index);
        word(1).store(offset, Ordering::Relaxed);
        word(2).store(bytes, Ordering::Relaxed);
    }

    /// The life of the block of a claim; `None` if the block has been removed.
    pub(super) fn life(&self, claim: u32) -> Option<Life> {
        let word = self.life_word(claim).load(Ordering::Acquire);
        (word != 0).then_some(Life { number: word >> 1, is_first: word & 1 == 1 })
    }

    /// Stores the life of the block that a claim is for; `None`: it has none.
    pub(super) fn set_life(&self, claim: u32, life: Option<Life>) {
        let word = life.map_or(0, |life| life.number << 1 | u64::from(life.is_first));
        self.life_word(claim).store(word, Ordering::Release);
    }

    /// The word for the life of a claim's block.
    fn life_word(&self, claim: u32) -> &AtomicU64 {
        self.word_at(FIRST_CLAIM + claim as usize * CLAIM_WORDS + 3)
    }

    /// Claims that were ever used; [`NUM_CLAIMS`] at most, whatever the pool's word says.
    pub(super) fn claims(&self) -> std::ops::Range<u32> {
        let count = self.header(Header::NumClaims).load(Ordering::Relaxed);
        0..NUM_CLAIMS.min(count as u32)
    }

    /// The word at this index, before the first block; a panic behind that.
    fn word_at(&self, index: usize) -> &AtomicU64 {
        assert!(index < FIRST_BLOCK as usize / 8);
        // SAFETY: in the mapping, which is longer than that and begins with a page; all processes
        // use these words as this type only.
        unsafe { AtomicU64::from_ptr(self.mapping.as_ptr().cast::<u64>().add(index)) }
    }

    /// Whether this range is behind the first block's begin and within the memory.
    pub(super) fn contains(&self, offset: u64, bytes: u64) -> bool {
        let end = offset.checked_add(bytes);
        offset >= FIRST_BLOCK && end.is_some_and(|end| end <= self.bytes())
    }

    /// The address of a place in a block; only a valid one if [`Memory::contains`] it.
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        self.mapping.as_ptr().wrapping_add(offset as usize)
    }

    /// The offset of this address in the memory; `None` outside of it.
    pub(super) fn offset_of(&self, address: *const u8) -> Option<u64> {
        let offset = (address as usize).checked_sub(self.mapping.as_ptr() as usize)?;
        (offset < self.mapping.bytes).then_some(offset as u64)
    }

    /// The bytes of the pool's mapping.
    pub(super) fn bytes(&self) -> u64 {
        self.mapping.bytes as u64
    }

    /// Calls `madvise` for a range that begins with a page; the error is the system's.
    fn advise(&self, offset: u64, bytes: u64, advice: libc::c_int) -> io::Result<()> {
        debug_assert!(offset + bytes <= self.bytes());
        // SAFETY: the range is within the mapping. Advice that loses contents is given for pages
        // that nobody has, by the word of the claims.
        let refused = unsafe { libc::madvise(self.at(offset).cast(), bytes as usize, advice) } != 0;
        if refused {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Notes a new block and makes its pages, which fails here where otherwise a write would end
    /// the process. On an old system without a `file` none are made, and that is no error.
    pub(super) fn create_pages(
        &self,
        file: Option<BorrowedFd<'_>>,
        offset: u64,
        bytes: u64,
        life: u64,
    ) -> io::Result<()> {
        self.note_block(offset, bytes, life);
        match self.advise(offset, bytes, libc::MADV_POPULATE_WRITE) {
            // A system older than the advice.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let Some(file) = file else { return Ok(()) };
                // SAFETY: the descriptor is open, and the call takes no pointer.
                let code =
                    unsafe { libc::posix_fallocate(file.as_raw_fd(), offset as i64, bytes as i64) };
                match code {
                    0 => Ok(()),
                    code => Err(io::Error::from_raw_os_error(code)),
                }
            }
            result => result,
        }
    }

    /// Maps the pages of a block that is seen for the first time at once; otherwise each is mapped as it is touched.
    pub(super) fn map_pages(&self, offset: u64, bytes: u64, life: u64) {
        if self.note_block(offset, bytes, life) {
            let _ = self.advise(offset, bytes, libc::MADV_POPULATE_READ);
        }
    }

    /// Notes a block, in place of those that were where it is. Whether it was not known.
    fn note_block(&self, offset: u64, bytes: u64, life: u64) -> bool {
        let mut gone = Vec::new();
        let mut mapped = self.mapped.lock();
        if mapped.get(&offset).is_some_and(|block| (block.bytes, block.life) == (bytes, life)) {
            return false;
        }
        let end = offset.saturating_add(bytes);
        while let Some((&begin, last)) = mapped.range(..end).next_back() {
            if begin.saturating_add(last.bytes) <= offset {
                break;
            }
            gone.extend(mapped.remove(&begin));
        }
        mapped.insert(offset, MappedBlock { bytes, life, kept: None });
        // The drop of the kept value may call the driver.
        drop(mapped);
        drop(gone);
        true
    }

    /// Offset, bytes and number of the block that has all of this range, and what is kept of it;
    /// `None` if none that this process has noted does.
    pub(super) fn block_of(
        &self,
        offset: u64,
        bytes: u64,
    ) -> Option<(u64, u64, u64, Option<Owner>)> {
        let mapped = self.mapped.lock();
        let (&begin, block) = mapped.range(..=offset).next_back()?;
        let is_inside = offset.checked_add(bytes)? <= begin + block.bytes;
        is_inside.then(|| (begin, block.bytes, block.life, block.kept.clone()))
    }

    /// Keeps what was made of a block's pages, until they are given back. Returns what is kept from now on, as another thread
    /// may have been earlier; `made` itself, which is not kept, if the block is gone.
    pub(super) fn keep(&self, offset: u64, life: u64, made: Owner) -> Owner {
        let mut mapped = self.mapped.lock();
        let block = mapped.get_mut(&offset).filter(|block| block.life == life);
        let kept = block.map(|block| block.kept.get_or_insert_with(|| made.clone()).clone());
        drop(mapped);
        kept.unwrap_or(made)
    }

    /// Drops what was made of pages that the worker has given back since the last call; their blocks stay known.
    pub(super) fn forget_removed(&self) {
        let removed = self.header(Header::Removed).load(Ordering::Acquire);
        if self.removed.swap(removed, Ordering::Relaxed) == removed {
            return;
        }
        let lives = self.claims().filter_map(|claim| self.life(claim));
        let alive: Vec<u64> = lives.filter(|life| life.is_first).map(|life| life.number).collect();
        self.forget(|life| !alive.contains(&life));
    }

    /// Drops what was made of the blocks whose number is gone; they stay known.
    pub(super) fn forget(&self, is_gone: impl Fn(u64) -> bool) {
        let mut gone = Vec::new();
        for block in self.mapped.lock().values_mut().filter(|block| is_gone(block.life)) {
            gone.extend(block.kept.take());
        }
        drop(gone);
    }

    /// A second mapping of a block, of the same pages.
    pub(super) fn map_again(&self, offset: u64, bytes: u64) -> io::Result<Mapping> {
        debug_assert!(self.contains(offset, bytes));
        // SAFETY: of a range of the mapping, which stays as it is: the old size is 0.
        let base = unsafe {
            libc::mremap(self.at(offset).cast(), 0, bytes as usize, libc::MREMAP_MAYMOVE)
        };
        Mapping::new(base, bytes as usize)
    }

    /// Gives the pages back to the system, in all processes; they then read as zeros. If the system
    /// refuses, they stay as they are. [`Header::Removed`] is the caller's to count up.
    pub(super) fn remove_pages(&self, offset: u64, bytes: u64) {
        let _ = self.advise(offset, bytes, libc::MADV_REMOVE);
    }

    /// Ends a claim that this process has, made with this number, or nothing if it has another: the block's last tensor has died,
    /// on any thread, at any moment. If the pool is gone, the pages of a block that nobody has go back to the system.
    pub(super) fn release(&self, claim: u32, number: u64) {
        let (offset, bytes) = self.block_of_claim(claim);
        let is_gone = self.claim(claim).free(number, &self.pool());
        if is_gone && self.contains(offset, bytes) && self.is_free(offset) {
            self.remove_pages(offset, bytes);
        }
    }

    /// Whether all claims of the block that begins here are free. One that was sent is not: `clear` revokes it, or its reader
    /// ends it.
    fn is_free(&self, offset: u64) -> bool {
        self.claims()
            .all(|claim| self.block_of_claim(claim).0 != offset || self.claim(claim).is_free())
    }

    /// Whether tensors of the worker's are in any block.
    pub(super) fn has_local(&self) -> bool {
        self.claims().any(|claim| self.claim(claim).is_local())
    }

    /// The word that says which process holds the pool.
    pub(super) fn pool(&self) -> PoolWord<'_> {
        PoolWord(self.header(Header::Pool))
    }

    /// Forgets which blocks have mapped pages, and what was made of them: a child has mapped none yet.
    pub(super) fn forget_pages(&self) {
        let mapped = std::mem::take(&mut *self.mapped.lock());
        drop(mapped);
    }

    /// Clears a pool that is gone: batches that were sent and not read are lost, and all pages go back to the system except
    /// those of blocks that a reader has, or the worker, if it `lives`. These follow as they are released.
    pub(super) fn clear(&self, lives: bool) {
        // All claims first: who ends another claim of a block meanwhile sees them free, or is seen below.
        for claim in self.claims() {
            self.claim(claim).free_unless_used(lives);
        }
        fence(Ordering::SeqCst);
        let held = self.claims().filter(|&claim| !self.claim(claim).is_free());
        let mut held: Vec<_> = held.map(|claim| self.block_of_claim(claim)).collect();
        held.sort_unstable();
        let mut begin = FIRST_BLOCK;
        for (offset, bytes) in held.into_iter().chain([(self.bytes(), 0)]) {
            // Another process wrote the claim.
            let offset = offset.min(self.bytes());
            if offset > begin {
                self.remove_pages(begin, offset - begin);
            }
            begin = begin.max(offset.saturating_add(bytes));
        }
    }
}

/// Memory that is mapped until this is dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: its addresses alone are given. The words of a pool are atomic, and its blocks are handed out by claims, of which each has
// one user.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(base: *mut libc::c_void, bytes: usize) -> io::Result<Mapping> {
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base: NonNull<u8> = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidData)?;
        debug_assert!(base.as_ptr().addr() % PAGE as usize == 0);
        Ok(Mapping { base, bytes })
    }

    /// Zeros in memory that is shared as a pool's is, and belongs to no pool.
    ///
    /// # Errors
    /// Those of the system.
    pub fn anonymous(bytes: usize) -> io::Result<Mapping> {
        Mapping::shared(bytes, libc::MAP_ANONYMOUS, -1)
    }

    /// Memory that other processes may map too, for reading and writing.
    fn shared(bytes: usize, flags: libc::c_int, file: libc::c_int) -> io::Result<Mapping> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | flags;
        // SAFETY: a new mapping, at an address of the system's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, file, 0) };
        Mapping::new(base, bytes)
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub fn num_bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by this, and whoever reads there or has a block of it has a reference to this.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
