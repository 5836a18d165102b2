//! Stand-in for the ranges for profilers in builds without the feature `cuda`.

use crate::observe::stage::Stage;

#[derive(Debug)]
pub(crate) struct Range;

/// `None`: no profiler listens.
pub(crate) fn range(_: Stage) -> Option<Range> {
    None
}

/// The reason why there are no ranges.
pub(crate) fn state() -> Result<(), &'static str> {
    Err("not in this build: NVTX comes with the CUDA engine")
}
