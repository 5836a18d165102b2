//! Values of Python numbers, which are kept as samples.

use pyo3::prelude::*;

use crate::ground::reserve::{push_to, try_vec};

/// Numbers in chunks that never move.
#[derive(Default)]
pub(crate) struct NumberChunks(Vec<Chunk>);

/// Numbers, and how many samples they are.
#[derive(Default)]
struct Chunk {
    cells: Vec<[u8; 8]>,
    num_samples: usize,
}

impl NumberChunks {
    /// A chunk with capacity for `count` more numbers, which has no others if it `is_own`. The caller appends no more than
    /// its capacity, or the numbers would move.
    pub fn chunk_for(&mut self, count: usize, is_own: bool) -> PyResult<&mut Vec<[u8; 8]>> {
        let last = self.0.last().map(|chunk| &chunk.cells);
        if is_own || last.is_none_or(|cells| cells.capacity() - cells.len() < count) {
            let grown = last.map_or(0, Vec::capacity).saturating_mul(2).clamp(16, 1 << 16);
            let capacity = if is_own { count } else { count.max(grown) };
            push_to(&mut self.0, Chunk { cells: try_vec(capacity)?, num_samples: 0 })?;
        }
        Ok(&mut self.0.last_mut().expect("a chunk with room was just made").cells)
    }

    /// Notes that a sample was read whose numbers, if it has any, are in the last chunk.
    pub fn note_sample(&mut self) {
        if let Some(chunk) = self.0.last_mut() {
            chunk.num_samples += 1;
        }
    }

    /// Each chunk by itself with the number of its samples, in the order in which they were noted.
    pub fn into_chunks(self) -> impl Iterator<Item = (NumberChunks, usize)> {
        self.0.into_iter().map(|chunk| {
            let num_samples = chunk.num_samples;
            (NumberChunks(vec![chunk]), num_samples)
        })
    }

    /// Whether there are no chunks.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
