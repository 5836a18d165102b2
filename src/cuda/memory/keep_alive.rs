//! Owners kept alive until the device has finished with their memory.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::super::driver::PooledEvent;
use crate::sync::{lock, Mutex};
use crate::tensor::{Owner, Result};

/// Owners of samples, of each stream in the order of its batches: a slow reader keeps its own alone.
#[derive(Debug, Default)]
pub(crate) struct KeepAlive {
    pending: Mutex<Pending>,
}

/// Inline for the number of owners that most batches have.
type KeptOwners = SmallVec<[Owner; 2]>;
/// A stream moves to the end when its oldest batch is asked for and not reached; new streams are added there.
type Pending = VecDeque<(usize, Batches)>;
type Batches = VecDeque<(Arc<PooledEvent>, KeptOwners)>;

impl KeepAlive {
    /// Keeps owners until the event is reached, which the caller recorded behind all earlier ones of the stream.
    pub fn until(&self, stream: usize, event: Arc<PooledEvent>, owners: KeptOwners) {
        let mut pending = lock(&self.pending);
        match pending.iter_mut().find(|(other, _)| *other == stream) {
            Some((_, batches)) => batches.push_back((event, owners)),
            None => pending.push_back((stream, VecDeque::from([(event, owners)]))),
        }
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        lock(&self.pending).is_empty()
    }

    /// Drops the owners that are no longer read, outside of the lock. Waits for nothing; the error
    /// of a query is returned.
    pub fn reap(&self) -> Result<()> {
        self.reap_some(usize::MAX)
    }

    /// Drops the owners of the oldest batches of each stream if they are no longer read, by at most `most` queries.
    /// The first stream keeps its place while its batches are reached, so the next call may begin with it again.
    pub fn reap_some(&self, most: usize) -> Result<()> {
        let mut reached: SmallVec<[_; 2]> = SmallVec::new();
        {
            let mut pending = lock(&self.pending);
            let mut unasked = pending.len();
            for _ in 0..most {
                let Some((_, batches)) = pending.front_mut().filter(|_| unasked > 0) else { break };
                let Some((event, _)) = batches.front() else { break };
                if !event.query()? {
                    pending.rotate_left(1);
                    unasked -= 1;
                    continue;
                }
                reached.extend(batches.pop_front());
                if batches.is_empty() {
                    pending.pop_front();
                    unasked -= 1;
                }
            }
        }
        // Drops of owners may run arbitrary code: not under the lock.
        drop(reached);
        Ok(())
    }

    /// Blocks until nothing is read any more, and drops all owners; errors of the wait are ignored.
    pub fn finish(&self) {
        let pending = std::mem::take(&mut *lock(&self.pending));
        for (event, owners) in pending.into_iter().flat_map(|(_, batches)| batches) {
            // A failure means that nothing runs any more.
            let _ = event.synchronize();
            drop(owners);
        }
    }
}
