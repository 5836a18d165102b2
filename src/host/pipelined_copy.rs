//! [`PipelinedCopy`]: rows of a stack are copied while later ones are still being imported.
//!
//! The problem: the thread that holds the interpreter lock imports objects one by one, which takes longer than the copy. The other
//! threads of the engine would be idle until the list is complete.
//!
//! ```text
//! importer   push push push push | publish | push push push push | publish | ... | close, help, wait at the gate
//! helper     spin ............... copy chunk 0 ................... copy chunk 1 .............. | leave
//!
//! rows       [ a a a a | a a a a | . . . . ]      a: address stored, .: null
//!                ^next       ^published           next: first row that no thread has taken, by compare-exchange
//! ```
//!
//! `published` moves once a chunk and not once a row: its cache line would travel between two cores with each row. It is stored with
//! release order and loaded with acquire order, so that the addresses below it are visible. Helpers spin and yield rather than sleep,
//! because the next chunk is microseconds away. `finish` takes part in the copy and then closes the gate: the block is complete when
//! all helpers have left.
//!
//! A copy after the import would be simpler: 4096 rows of 512 bytes from torch then take 1.05 ms, against 0.52 ms on two cores
//! (docs/performance-method.md, which has the measurements behind the limits of `pays_for`, too). The slot `ahead` of
//! scripts/gpu/slots.sh compares both on a machine of 16 cores: below 15 % in all of its cases this module goes.
//! `host/model_tests.rs` runs importer and helper under loom.
#![allow(unsafe_code)] // Copies between raw addresses.

use std::sync::Arc;

use crate::host::parallel_for::HelperGate;
use crate::host::pool::Block;
use crate::host::prefetch::prefetch;
use crate::host::{rows, Helpers, StreamingStores, POLICY};
use crate::plan::{ElementOp, OutputPlan, Starts};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use crate::sync::{spin_loop, thread, Watched};

/// The rows of a stack in the making. Dropped without being finished, it stops the copying.
#[derive(Debug)]
pub struct PipelinedCopy {
    block: Option<Block>,
    shared: Arc<AheadState>,
    /// Rows that were pushed.
    len: usize,
}

#[derive(Debug)]
struct AheadState {
    out: AtomicPtr<u8>,
    written: Watched,
    row_bytes: usize,
    chunk_rows: usize,
    streaming: bool,
    rows: Box<[AtomicPtr<u8>]>,
    /// Rows that may be copied.
    published: AtomicUsize,
    /// The first row that no thread has taken.
    next: AtomicUsize,
    /// No further rows will come.
    closed: AtomicBool,
    /// Admission of the threads that copy.
    gate: HelperGate,
}

impl PipelinedCopy {
    /// Whether copying ahead can pay for `count` rows of this size: they are short, not empty, and not small together.
    pub(crate) fn pays_for(row_bytes: u64, count: usize) -> bool {
        (1..=POLICY.max_ahead_row_bytes as u64).contains(&row_bytes)
            && row_bytes.saturating_mul(count as u64) >= POLICY.small_bytes
    }

    /// Starts with no rows, and calls helpers to copy. The block holds `count` of them, of `row_bytes`, which is not 0. `None`
    /// without memory for their addresses; the block is then dropped.
    pub(crate) fn start(
        block: Block,
        row_bytes: usize,
        count: usize,
        threads: &Helpers,
    ) -> Option<PipelinedCopy> {
        debug_assert!(row_bytes * count <= block.size() as usize);
        let mut rows = Vec::new();
        rows.try_reserve_exact(count).ok()?;
        rows.resize_with(count, AtomicPtr::default);
        let shared = Arc::new(AheadState {
            out: AtomicPtr::new(block.data()),
            written: Watched::default(),
            row_bytes,
            chunk_rows: (POLICY.ahead_bytes / row_bytes).max(1),
            streaming: (row_bytes * count) as u64 >= StreamingStores::chosen().stores.copies
                && row_bytes as u64 >= POLICY.min_streamed_run_bytes,
            rows: rows.into(),
            published: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            gate: HelperGate::default(),
        });
        for _ in 0..threads.count.min(POLICY.max_ahead_helpers) {
            let shared = Arc::clone(&shared);
            threads.spawn(move || shared.help());
        }
        Some(PipelinedCopy { block: Some(block), shared, len: 0 })
    }

    /// Appends the next row; it may be read from now on until this value is finished or dropped. Rows beyond the block's are
    /// ignored.
    ///
    /// # Safety
    /// `row` has as many bytes as the first row; they can be read until then, and nothing writes to them.
    #[inline]
    pub unsafe fn push(&mut self, row: *const u8) {
        let Some(slot) = self.shared.rows.get(self.len) else { return };
        debug_assert!(!row.is_null());
        slot.store(row.cast_mut(), Ordering::Relaxed);
        self.len += 1;
        // The number is not stored at every row: its cache line would go to and fro between two caches.
        if self.len % self.shared.chunk_rows == 0 {
            self.shared.published.store(self.len, Ordering::Release);
        }
    }

    /// Publishes all rows and that no further ones come, so that the other threads can end.
    pub fn close(&mut self) {
        self.shared.published.store(self.len, Ordering::Release);
        self.shared.closed.store(true, Ordering::Release);
    }

    /// Whether the output moves rows as many and as long as these, and all have come. Their addresses are not compared.
    pub(crate) fn fits(&self, output: &OutputPlan<'_>) -> bool {
        let row_bytes = self.shared.row_bytes as u64;
        let rows = match output.starts {
            Starts::Rows { elems, .. } => elems * output.dtype.size() as u64 == row_bytes,
            Starts::Joined { .. } => false,
        };
        rows && output.bytes_only
            && output.op == ElementOp::MOVED
            && self.len == self.shared.rows.len()
            && self.len == output.data.len()
    }

    /// Copies what is left, waits for the helpers, and gives the block, in which all rows that were pushed are written. Never
    /// `None`.
    pub(crate) fn finish(mut self) -> Option<Block> {
        self.close();
        self.shared.copy_chunks();
        self.shared.gate.close_and_wait();
        self.shared.written.reclaim();
        self.block.take()
    }
}

impl Drop for PipelinedCopy {
    fn drop(&mut self) {
        self.shared.next.store(self.shared.rows.len(), Ordering::Relaxed);
        self.close();
        self.shared.gate.close_and_wait();
        self.shared.written.reclaim();
    }
}

impl AheadState {
    /// The work of another thread: copies chunks until no further rows come.
    fn help(&self) {
        let Some(_guard) = self.gate.enter() else { return };
        loop {
            let closed = self.closed.load(Ordering::Acquire);
            self.copy_chunks();
            if closed {
                break;
            }
            spin_loop();
            thread::yield_now();
        }
    }

    /// Takes and copies chunks until none is left that is published; other threads may still copy theirs.
    fn copy_chunks(&self) {
        loop {
            let published = self.published.load(Ordering::Acquire);
            let begin = self.next.load(Ordering::Relaxed);
            let end = published.min(begin + self.chunk_rows);
            if begin >= end {
                break;
            }
            let taken =
                self.next.compare_exchange(begin, end, Ordering::Relaxed, Ordering::Relaxed);
            if taken.is_ok() {
                self.copy_rows(begin, end);
            }
        }
        if self.streaming {
            rows::stream_fence();
        }
    }

    /// Copies these rows, which are published and which the calling thread has taken.
    fn copy_rows(&self, begin: usize, end: usize) {
        let out = self.out.load(Ordering::Relaxed);
        self.written.share();
        for (index, row) in self.rows[begin..end].iter().enumerate() {
            if let Some(ahead) = self.rows[begin..end].get(index + 4) {
                prefetch(ahead.load(Ordering::Relaxed), self.row_bytes);
            }
            let src = row.load(Ordering::Relaxed);
            debug_assert!(!src.is_null(), "published");
            // SAFETY: a published row is readable (`push`) until the owner of this has waited for us,
            // and so long the block, which holds all rows, is the owner's; each row is taken once.
            unsafe {
                let dst = out.add((begin + index) * self.row_bytes);
                rows::copy_bytes(src, dst, self.row_bytes, self.streaming);
            }
        }
    }
}
