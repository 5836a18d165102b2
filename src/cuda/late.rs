//! [`Late`]: what is known of a batch only when the device has come so far.

use std::sync::Arc;

use super::driver::{Context, PooledEvent};
use crate::tensor::Result;

/// The end of a call's work.
#[derive(Debug)]
pub(crate) struct Late {
    context: Arc<Context>,
    end: Arc<PooledEvent>,
}

impl Late {
    pub fn new(context: &Arc<Context>, end: Arc<PooledEvent>) -> Late {
        Late { context: Arc::clone(context), end }
    }

    /// Blocks until the work is done, and says how it ended.
    pub fn check(&self) -> Result<()> {
        let _current = self.context.enter()?;
        Ok(self.end.synchronize()?)
    }
}
