//! Values of Python numbers, which are kept as samples.

use pyo3::prelude::*;

use crate::ground::reserve::{push_to, try_vec};

/// Numbers in chunks that never move.
#[derive(Default)]
pub(crate) struct NumberChunks(Vec<Vec<[u8; 8]>>);

impl NumberChunks {
    /// A chunk with capacity for `count` more numbers. The caller appends no more than its capacity, or the numbers would move.
    pub fn chunk_for(&mut self, count: usize) -> PyResult<&mut Vec<[u8; 8]>> {
        let last = self.0.last();
        if last.is_none_or(|chunk| chunk.capacity() - chunk.len() < count) {
            let grown = last.map_or(0, Vec::capacity).saturating_mul(2).clamp(16, 1 << 16);
            push_to(&mut self.0, try_vec(count.max(grown))?)?;
        }
        Ok(self.0.last_mut().expect("a chunk with room was just made"))
    }

    /// Whether there are no chunks.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
