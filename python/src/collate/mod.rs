//! The assembling calls: options, jobs, the walks of trees, one plan and one run for all leaves.

pub(crate) mod forms;
pub(crate) mod job;
pub(crate) mod leaves;
pub(crate) mod options;
pub(crate) mod options_cache;
pub(crate) mod patterns;
pub(crate) mod quantize;
pub(crate) mod run;
pub(crate) mod specs;
pub(crate) mod torch;
pub(crate) mod torch_memory;
pub(crate) mod transform;
pub(crate) mod tree;
mod tree_rules;
