//! [`Late`]: what is known of a batch only when the device has come so far.

use std::sync::Arc;

use super::driver::{forked, Context, PooledEvent};
use super::held::Held;
use super::list_table::Chosen;
use crate::tensor::Result;

/// The end of a call's work.
#[derive(Debug)]
pub(crate) struct Late {
    context: Arc<Context>,
    /// `None` in a graph, which begins and ends as often as its owner wants.
    end: Option<Arc<PooledEvent>>,
    chosen: Option<Chosen>,
    /// Has samples of this call until the end.
    held: Option<Arc<Held>>,
}

impl Late {
    pub(super) fn new(
        context: &Arc<Context>,
        end: Option<Arc<PooledEvent>>,
        chosen: Option<Chosen>,
        held: Option<Arc<Held>>,
    ) -> Late {
        Late { context: Arc::clone(context), end, chosen, held }
    }

    /// Blocks until the work is done, and says how it ended.
    pub fn check(&self) -> Result<()> {
        let _current = self.context.enter()?;
        if let Some(end) = &self.end {
            end.synchronize()?;
        }
        if let Some(held) = &self.held {
            held.reap()?;
        }
        let in_graph = self.end.is_none();
        self.chosen.as_ref().map_or(Ok(()), |chosen| chosen.check(in_graph))
    }
}

impl Drop for Late {
    /// Releases the samples of the batch if the device has read them; else the next call does.
    fn drop(&mut self) {
        let Some(held) = &self.held else { return };
        // Most often `check` has released them. In a forked child the lock may be one that is never released.
        if forked().is_some() || held.is_empty() {
            return;
        }
        if let Ok(_current) = self.context.enter() {
            // What has failed is told by the next call.
            let _ = held.reap();
        }
    }
}
