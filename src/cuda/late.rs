//! [`Late`]: what is known of a batch only when the device has come so far.

use std::sync::Arc;

use super::driver::{Context, PooledEvent};
use super::list_table::Chosen;
use crate::tensor::Result;

/// The end of a call's work.
#[derive(Debug)]
pub(crate) struct Late {
    context: Arc<Context>,
    /// `None` in a graph, which begins and ends as often as its owner wants.
    end: Option<Arc<PooledEvent>>,
    chosen: Option<Chosen>,
}

impl Late {
    pub fn new(
        context: &Arc<Context>,
        end: Option<Arc<PooledEvent>>,
        chosen: Option<Chosen>,
    ) -> Late {
        Late { context: Arc::clone(context), end, chosen }
    }

    /// Blocks until the work is done, and says how it ended.
    pub fn check(&self) -> Result<()> {
        let _current = self.context.enter()?;
        if let Some(end) = &self.end {
            end.synchronize()?;
        }
        let in_graph = self.end.is_none();
        self.chosen.as_ref().map_or(Ok(()), |chosen| chosen.check(in_graph))
    }
}
