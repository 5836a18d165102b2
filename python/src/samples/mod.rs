//! Lists of samples: what callers give as one, and `SampleList`.

pub(crate) mod arrow;
pub(crate) mod column_import;
pub(crate) mod imported;
pub(crate) mod leaf_columns;
pub(crate) mod list;
pub(crate) mod list_import;
pub(crate) mod pickle;
pub(crate) mod pieces;
pub(crate) mod table_trees;
pub(crate) mod trees;
pub(crate) mod windows;
