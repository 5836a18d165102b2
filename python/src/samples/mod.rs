//! Lists of samples: what callers give as one, and `SampleList`.

pub(crate) mod arrow;
pub(crate) mod column_import;
pub(crate) mod columns;
pub(crate) mod imported;
pub(crate) mod list;
pub(crate) mod pickle;
pub(crate) mod pieces;
pub(crate) mod read;
pub(crate) mod table;
pub(crate) mod trees;
pub(crate) mod windows;
