//! Owners kept alive until the device has finished with their memory.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use smallvec::SmallVec;

use super::driver::PooledEvent;
use crate::sync::{Mutex, MutexGuard};
use crate::tensor::{Owner, Result};

/// Owners of samples, in the order of the batches that read them.
#[derive(Debug, Default)]
pub(super) struct Held {
    pending: Mutex<Pending>,
}

/// Inline for the number of owners that most batches have.
type HeldOwners = SmallVec<[Owner; 2]>;
type Pending = VecDeque<(Arc<PooledEvent>, HeldOwners)>;

impl Held {
    /// Keeps owners until the event is reached.
    pub fn until(&self, event: Arc<PooledEvent>, owners: HeldOwners) {
        self.pending().push_back((event, owners));
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.pending().is_empty()
    }

    /// Releases what is no longer read.
    pub fn reap(&self) -> Result<()> {
        self.reap_some(usize::MAX)
    }

    /// Releases owners of so many batches at most, the oldest first, if they are no longer read.
    pub fn reap_some(&self, most: usize) -> Result<()> {
        let mut reached: SmallVec<[_; 2]> = SmallVec::new();
        {
            let mut pending = self.pending();
            while let Some((event, _)) = pending.front().filter(|_| reached.len() < most) {
                if !event.query()? {
                    break;
                }
                reached.extend(pending.pop_front());
            }
        }
        // Drops of owners may run arbitrary code: not under the lock.
        drop(reached);
        Ok(())
    }

    /// Releases everything once it is no longer read.
    pub fn finish(&self) {
        let pending = std::mem::take(&mut *self.pending());
        for (event, owners) in pending {
            // A failure means that nothing runs any more.
            let _ = event.synchronize();
            drop(owners);
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
