//! What an engine tells of its work: counters, time, ranges for profilers.

#[cfg(feature = "cuda")]
mod nvtx;
mod span;
mod stage;
mod stats;

pub use span::{nvtx_state, Span};
pub use stage::Stage;
#[cfg(feature = "cuda")]
pub(crate) use stats::Traffic;
pub(crate) use stats::{share, Counters, Tally};
pub use stats::{PoolStats, Stats};
