//! [`Memo`]: what a later stage has made of something that does not change, for the next time.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::ForkMutex;
use crate::tensor::Owner;

/// The value that was set last, of any type; none at first. Without it, it is made again.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    made: ForkMutex<Option<Owner>>,
    was_seen: AtomicBool,
}

impl Memo {
    /// Returns false at the first call and true at every later one: an object that is used once is not worth keeping.
    pub fn seen_twice(&self) -> bool {
        self.was_seen.swap(true, Ordering::Relaxed)
    }

    /// The value that is kept; `None` if there is none.
    pub fn get(&self) -> Option<Owner> {
        self.made.lock().clone()
    }

    /// Keeps a value in place of the one before, which is dropped after the lock is released.
    pub fn set(&self, made: Owner) {
        let old = self.made.lock().replace(made);
        // The drop may call the driver, so it happens outside the lock.
        drop(old);
    }
}

/// The copy is empty, because its owner may change what the value was made of.
impl Clone for Memo {
    fn clone(&self) -> Memo {
        Memo::default()
    }
}
