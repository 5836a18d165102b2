//! A block in use: what tensors keep, so that it is free when the last one has died.

use std::sync::Arc;

use super::forks::{self, Claim, Life};
use super::memory::Memory;

/// A claim that this process has. Dropping it ends the claim, from any thread.
#[derive(Debug)]
pub struct Lease {
    life: Life,
    /// The owner, which drop takes.
    claim: Option<Claim>,
}

impl Lease {
    /// A lease for a claim that has just been made or received.
    pub(super) fn new(memory: Arc<Memory>, claim: u32, number: u64) -> Lease {
        Lease { life: forks::begin(), claim: Some(Claim { memory, claim, number }) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            forks::end(self.life, claim);
        }
    }
}
