//! [`ArgumentPool`]: parameters of launches, in memory that is used again.

use super::kernel_abi::{LARGE_BYTES, SMALL_BYTES};
use super::policy::Policy;
use crate::sync::ForkMutex;

/// Memory for the parameters of launches. A kernel reads what its header and table say: what an earlier launch left
/// behind them is not zeroed, which would cost more than writing them.
#[derive(Debug, Default)]
pub(crate) struct ArgumentPool {
    /// Each as large as the larger of the two sizes.
    free: ForkMutex<Vec<Box<[u64]>>>,
}

impl ArgumentPool {
    /// A header with words behind it, in parameters of the size that one of the kernels has. Together they have at most
    /// [`LARGE_BYTES`]; more is a panic.
    pub fn with(&self, header: &[u64], words: &[u64], policy: &Policy) -> KernelArguments<'_> {
        let free = self.free.lock().pop();
        let mut memory = free.unwrap_or_else(|| vec![0; LARGE_BYTES / 8].into());
        let num_words = header.len() + words.len();
        memory[..header.len()].copy_from_slice(header);
        memory[header.len()..num_words].copy_from_slice(words);
        let is_large = num_words as u64 * 8 > policy.small_bytes;
        KernelArguments { memory, is_large, num_words, pool: self }
    }
}

/// The parameters of one launch.
#[derive(Debug)]
pub(crate) struct KernelArguments<'p> {
    memory: Box<[u64]>,
    /// They are those of the kernel with large parameters.
    pub is_large: bool,
    num_words: usize,
    pool: &'p ArgumentPool,
}

impl KernelArguments<'_> {
    /// The words of the kernel's parameters, as many as these have.
    pub fn words(&self) -> &[u64] {
        &self.memory[..if self.is_large { LARGE_BYTES } else { SMALL_BYTES } / 8]
    }

    /// All words, as many as the larger parameters have.
    pub fn large_words(&self) -> &[u64] {
        &self.memory
    }

    /// The last `count` of the words that they were made with.
    pub fn last_mut(&mut self, count: usize) -> &mut [u64] {
        &mut self.memory[self.num_words - count..self.num_words]
    }
}

impl Drop for KernelArguments<'_> {
    fn drop(&mut self) {
        self.pool.free.lock().push(std::mem::take(&mut self.memory));
    }
}
