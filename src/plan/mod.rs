//! Stage 3. What would be done, before anything is: see [`Plan`].

mod arena;
mod batch_shape;
mod checks;
mod launch;
mod loops;
mod output;
mod plan;
mod planned;
mod route;
mod selected;
mod target;

pub(crate) use arena::Arena;
pub(crate) use batch_shape::{padded_dims, padded_extent};
pub use batch_shape::{BatchShape, Padded, Placement};
pub use launch::{Launch, LaunchPart};
pub(crate) use loops::{Channel, Dim, LoopNest};
pub(crate) use output::{saturating_sum, CopyRange, Op, OutputPlan, Role, Starts};
pub use plan::Plan;
pub(crate) use route::CHUNK_BYTES;
pub(crate) use route::{bytes_to_device, bytes_to_host, is_device_output, num_ranges, Path};
pub(crate) use route::{is_on_device, is_shared, is_upload, must_upload, uploaded_together};
pub(crate) use route::{SHARED_ALIGN, UPLOAD_ALIGN};
pub(crate) use target::target_of;
pub use target::{AsTarget, Leaf, Target};
