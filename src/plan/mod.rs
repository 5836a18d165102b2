//! Stage 3. What would be done, before anything is: see [`Plan`].

mod account;
mod apart;
mod arena;
mod batch_shape;
mod checks;
mod chosen_moves;
mod circle;
mod device_moves;
mod launch;
mod loops;
mod moves;
mod output;
mod path;
mod plan;
mod plan_body;
mod policy;
mod role;
mod route;
mod scaling;
mod selected;
mod target;

pub(crate) use arena::Arena;
pub use batch_shape::{BatchShape, Padded, Placement};
pub(crate) use chosen_moves::{first_of, is_chosen, needs_gather, ChosenMove};
pub use launch::{Launch, SegmentReport};
pub(crate) use loops::{Channel, Dim, LoopNest};
pub(crate) use moves::Moves;
pub(crate) use output::{saturating_sum, CopyRange, ElementOp, OutputPlan, Starts};
pub(crate) use path::{num_ranges, Path};
pub use plan::Plan;
pub(crate) use policy::{is_shared, POLICY, SHARED_ALIGN};
pub(crate) use role::Role;
pub(crate) use route::{is_mapping_stale, set_mapping_stale, Route, Staged, StagedBlock, Upload};
pub(crate) use scaling::Groups;
pub(crate) use target::{check_apart, check_target, target_of};
pub use target::{AsTarget, Leaf, Target};
