//! The assembling calls: options, jobs, the walks of trees, one plan and one run for all leaves.

pub(crate) mod explain;
pub(crate) mod forms;
pub(crate) mod graphs;
pub(crate) mod job;
pub(crate) mod leaves;
pub(crate) mod moves;
pub(crate) mod one_buffer;
pub(crate) mod options;
pub(crate) mod options_cache;
pub(crate) mod packed;
pub(crate) mod packing;
pub(crate) mod pairs;
pub(crate) mod patterns;
pub(crate) mod quantize;
pub(crate) mod run;
pub(crate) mod sequences;
pub(crate) mod sequences_on_device;
pub(crate) mod specs;
pub(crate) mod staging;
pub(crate) mod token_columns;
pub(crate) mod torch;
pub(crate) mod torch_memory;
pub(crate) mod transform;
pub(crate) mod tree;
pub(crate) mod uploaded_numbers;
