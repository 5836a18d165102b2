//! Stage 5. The result of a run.

mod batch;
mod leaf_output;
mod order;
mod sample_bounds;

pub use batch::{Batch, Fields};
pub(crate) use leaf_output::bind_arena;
pub use leaf_output::LeafOutput;
pub use sample_bounds::SampleBounds;
