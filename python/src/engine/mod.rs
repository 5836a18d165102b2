//! Engines as Python has them, what they did and what they can run on.

/// Sets items of a dict to the fields of a struct that have their names.
macro_rules! set_fields {
    ($dict:ident, $from:expr, [$($field:ident),* $(,)?]) => {
        $($dict.set_item(stringify!($field), &$from.$field)?;)*
    };
}

pub(crate) mod default;
pub(crate) mod engine;
pub(crate) mod explain;
pub(crate) mod machine;
pub(crate) mod stats;
