//! Observability: counters, times, and ranges for profilers.

#[cfg_attr(not(feature = "cuda"), path = "nvtx_absent.rs")]
mod nvtx;
mod span;
mod stage;
mod stats;

pub use span::{nvtx_state, Span};
pub use stage::Stage;
pub(crate) use stats::{share, Counters, Tally, Traffic};
pub use stats::{PoolStats, Stats};
