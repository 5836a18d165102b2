//! What is kept alive until the device is done with it.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use super::driver::PooledEvent;
use crate::sync::{Mutex, MutexGuard};
use crate::tensor::{Owner, Result};

/// Owners of samples, in the order of the batches that read them.
#[derive(Debug, Default)]
pub(super) struct Held {
    pending: Mutex<Pending>,
}

type Pending = VecDeque<(Arc<PooledEvent>, Vec<Owner>)>;

impl Held {
    /// Keeps owners until the event is reached.
    pub fn until(&self, event: Arc<PooledEvent>, owners: Vec<Owner>) {
        self.pending().push_back((event, owners));
    }

    /// Releases what is no longer read.
    pub fn reap(&self) -> Result<()> {
        let mut reached = Vec::new();
        {
            let mut pending = self.pending();
            while let Some((event, _)) = pending.front() {
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
    pub fn finish(&mut self) {
        for (event, owners) in self.take() {
            // A failure means that nothing runs any more.
            let _ = event.synchronize();
            drop(owners);
        }
    }

    /// Kept until the process ends.
    pub fn forget(&mut self) {
        std::mem::forget(self.take());
    }

    /// Without the lock: in a forked child it may be one that is never released.
    fn take(&mut self) -> Pending {
        std::mem::take(self.pending.get_mut().unwrap_or_else(PoisonError::into_inner))
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(windrow_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_held_at_a_fork_is_not_waited_for() {
        let mut held = Held::default();
        std::mem::forget(held.pending());
        held.forget();
        held.finish();
    }
}
