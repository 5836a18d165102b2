//! Stage 5. The result of a run.

mod batch;
mod filled;
mod order;

pub use batch::{Batch, Fields, Parts};
pub(crate) use filled::hand_out;
pub use filled::Filled;
