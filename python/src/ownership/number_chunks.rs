//! Values of Python numbers, which are kept as samples.

use pyo3::prelude::*;

use crate::ground::reserve::{push_to, try_vec};

/// Numbers in chunks that never move: rows with a chunk of their own, and shared ones for all others.
#[derive(Default)]
pub(crate) struct NumberChunks {
    chunks: Vec<Vec<[u8; 8]>>,
    /// The shared chunk that is filled now.
    shared: Option<usize>,
    /// The chunk that was asked for last.
    last: usize,
    /// The chunk of each sample that was noted.
    chunk_of: Vec<usize>,
}

impl NumberChunks {
    /// A chunk with capacity for `count` more numbers, which has no others if it `is_own`. The caller appends no more than
    /// its capacity, or the numbers would move.
    pub fn chunk_for(&mut self, count: usize, is_own: bool) -> PyResult<&mut Vec<[u8; 8]>> {
        let shared = self.shared.map(|at| &self.chunks[at]);
        let has_room = |chunk: &&Vec<_>| chunk.capacity() - chunk.len() >= count;
        self.last = match self.shared.filter(|_| !is_own && shared.as_ref().is_some_and(has_room)) {
            Some(at) => at,
            None => {
                let grown = shared.map_or(0, Vec::capacity).saturating_mul(2).clamp(16, 1 << 16);
                let capacity = if is_own { count } else { count.max(grown) };
                push_to(&mut self.chunks, try_vec(capacity)?)?;
                self.chunks.len() - 1
            }
        };
        if !is_own {
            self.shared = Some(self.last);
        }
        Ok(&mut self.chunks[self.last])
    }

    /// Notes that a sample was read, whose numbers are in the chunk that was asked for last.
    pub fn note_sample(&mut self) -> PyResult<()> {
        push_to(&mut self.chunk_of, self.last)
    }

    /// Each chunk by itself, and the chunk of each sample in the order in which they were noted.
    pub fn into_chunks(self) -> (impl Iterator<Item = NumberChunks>, Vec<usize>) {
        let alone = |chunk| NumberChunks { chunks: vec![chunk], ..NumberChunks::default() };
        (self.chunks.into_iter().map(alone), self.chunk_of)
    }

    /// Whether there are no chunks.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}
