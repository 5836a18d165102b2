//! [`Span`]: one stage of a call, for observers: its time in the counters, a range for NVTX tools
//! (feature `cuda`), a span of the crate `tracing` (feature `tracing`).

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::observe::nvtx;
use crate::observe::stage::Stage;
use crate::observe::stats::Tally;

/// A stage that is under way on this thread, until it is dropped.
#[must_use = "the stage ends where this is dropped"]
#[derive(Debug)]
pub struct Span<'c> {
    /// The time at which the stage began, and the sum of nanoseconds to add to.
    time: Option<(Instant, &'c AtomicU64)>,
    // Ranges and entered spans belong to one thread, whatever the features.
    thread: PhantomData<*mut ()>,
    #[cfg(feature = "tracing")]
    span: tracing::span::EnteredSpan,
    _range: Option<nvtx::Range>,
}

impl Span<'static> {
    /// Begins a stage whose time is not summed.
    ///
    /// ```
    /// use windrow::observe::{Span, Stage};
    /// let span = Span::enter(Stage::Plan);
    /// // ... planning: a span of crate `tracing`, a range of NVTX
    /// drop(span);
    /// ```
    pub fn enter(stage: Stage) -> Span<'static> {
        Span::new(stage, None)
    }
}

impl<'c> Span<'c> {
    /// Begins a stage at a known time, which saves a look at the clock; its time is added to `sum` on drop, not for
    /// `None`.
    pub(crate) fn timed(stage: Stage, begin: Option<Instant>, sum: &'c AtomicU64) -> Span<'c> {
        Span::new(stage, begin.map(|begin| (begin, sum)))
    }

    /// Begins a stage, whose time is added on drop if `time` is given.
    fn new(stage: Stage, time: Option<(Instant, &'c AtomicU64)>) -> Span<'c> {
        Span {
            time,
            thread: PhantomData,
            #[cfg(feature = "tracing")]
            span: stage.span(),
            _range: nvtx::range(stage),
        }
    }

    /// Records what was done in the `tracing` span, if it has a subscriber.
    #[cfg_attr(not(feature = "tracing"), allow(unused_variables))]
    pub(crate) fn note(&self, tally: &Tally) {
        #[cfg(feature = "tracing")]
        if !self.span.is_disabled() {
            let paths: Vec<_> = tally.paths.iter().map(|path| path.name()).collect();
            self.span.record("paths", paths.join(", ").as_str());
            self.span.record("samples", tally.samples);
            self.span.record("bytes_in", tally.bytes_in);
            self.span.record("bytes_out", tally.bytes_out);
            self.span.record("padding_bytes", tally.padding_bytes);
        }
    }

    /// Ends the stage and returns the time at which it ended, or `None` if the stage is not timed.
    pub fn end(mut self) -> Option<Instant> {
        let now = self.time.is_some().then(Instant::now)?;
        self.add_time(now);
        Some(now)
    }

    /// Adds the time since the begin, once.
    fn add_time(&mut self, now: Instant) {
        if let Some((begin, sum)) = self.time.take() {
            sum.fetch_add(nanos(now.duration_since(begin)), Ordering::Relaxed);
        }
    }
}

impl Drop for Span<'_> {
    fn drop(&mut self) {
        if self.time.is_some() {
            self.add_time(Instant::now());
        }
    }
}

/// `Ok` if ranges go to an NVTX tool. Looks for the tool, as the first range does.
///
/// # Errors
/// The reason, and the hint.
///
/// ```
/// if let Err(reason) = windrow::observe::nvtx_state() {
///     println!("no NVTX ranges: {reason}");
/// }
/// ```
pub fn nvtx_state() -> std::result::Result<(), &'static str> {
    nvtx::state()
}

/// The nanoseconds of a time; the largest number beyond 64 bits.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
