//! [`Memo`]: what a later stage has made of something that does not change, for the next time.

use crate::sync::ForkMutex;
use crate::tensor::Owner;

/// The last such thing; without it, it is made again.
#[derive(Debug, Default)]
pub(crate) struct Memo(ForkMutex<Option<Owner>>);

impl Memo {
    pub fn get(&self) -> Option<Owner> {
        self.0.lock().clone()
    }

    pub fn set(&self, made: Owner) {
        let old = self.0.lock().replace(made);
        // What ends with it may call the driver: not under the lock.
        drop(old);
    }
}
