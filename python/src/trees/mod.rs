//! Trees of samples: one walk, containers by two sets of rules, and the types that are containers.

pub(crate) mod container;
mod dicts;
pub(crate) mod flatten;
pub(crate) mod flatten_like;
pub(crate) mod node_types;
pub(crate) mod rules;
pub(crate) mod torch_rules;
pub(crate) mod tree_def;
