//! Stage 5. The result of a run.

mod batch;
mod filled;
mod order;
mod parts;

pub use batch::{Batch, Fields};
pub(crate) use filled::hand_out;
pub use filled::Filled;
pub use parts::Parts;
