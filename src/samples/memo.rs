//! [`Memo`]: what a later stage has made of something that does not change, for the next time.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::ForkMutex;
use crate::tensor::Owner;

/// The last such thing; without it, it is made again.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    made: ForkMutex<Option<Owner>>,
    was_seen: AtomicBool,
}

impl Memo {
    /// Whether this was asked before: what is made once is not worth keeping.
    pub fn seen_twice(&self) -> bool {
        self.was_seen.swap(true, Ordering::Relaxed)
    }

    pub fn get(&self) -> Option<Owner> {
        self.made.lock().clone()
    }

    pub fn set(&self, made: Owner) {
        let old = self.made.lock().replace(made);
        // The drop may call the driver, so it happens outside the lock.
        drop(old);
    }
}

/// Nothing: what a copy is of may change.
impl Clone for Memo {
    fn clone(&self) -> Memo {
        Memo::default()
    }
}
