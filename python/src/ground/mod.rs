//! Ground types that know no stage: errors, logging, Python's iterables, dtypes and streams, the objects of results.

pub(crate) mod arguments;
pub(crate) mod batch;
pub(crate) mod dtype;
pub(crate) mod errors;
pub(crate) mod iterables;
pub(crate) mod logging;
pub(crate) mod modules;
pub(crate) mod reserve;
pub(crate) mod stream;
pub(crate) mod tensor;
