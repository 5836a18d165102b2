//! The engine's `tracing` spans as records of Python's `logging`.
//!
//! Spans end where Python must not run: without the interpreter lock, in a device's context, under
//! locks. They are kept on the thread that made them, and handed to `logging` by the call that they
//! belong to, as the last thing it does. Threads of the pool make none.

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Once;
use std::time::Instant;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

static IS_ON: AtomicBool = AtomicBool::new(false);

thread_local! {
    static THREAD: RefCell<Thread> = const {
        RefCell::new(Thread { num_calls: 0, open: Vec::new(), ended: Vec::new() })
    };
}

/// The records of one thread.
struct Thread {
    /// Calls that are under way, one within the other: a handler may assemble batches too.
    num_calls: usize,
    open: Vec<(u64, StageRecord)>,
    ended: Vec<(StageRecord, f64)>,
}

struct StageRecord {
    name: &'static str,
    begin: Instant,
    fields: Vec<(&'static str, Value)>,
}

#[derive(IntoPyObjectRef)]
enum Value {
    Count(u64),
    Text(String),
}

/// Keeps the spans of this thread while a logger takes them.
struct Collector;

impl Subscriber for Collector {
    /// Whether a span is windrow's, on threads without a call too: `tracing` keeps one answer for all threads.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "windrow"
    }

    /// DEBUG while reports are on, else off.
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(if IS_ON.load(Ordering::Relaxed) { LevelFilter::DEBUG } else { LevelFilter::OFF })
    }

    /// Opens a record if this thread is in a call. Leaves out values given here: windrow's spans have none at first.
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = span.metadata().name();
        THREAD.with_borrow_mut(|thread| {
            if thread.num_calls > 0 {
                let stage = StageRecord { name, begin: Instant::now(), fields: Vec::new() };
                thread.open.push((id, stage));
            }
        });
        Id::from_u64(id)
    }

    /// Adds values to the record of a span that this thread has opened; drops those of any other span.
    fn record(&self, id: &Id, values: &Record<'_>) {
        THREAD.with_borrow_mut(|thread| {
            if let Some((_, stage)) =
                thread.open.iter_mut().find(|(open, _)| *open == id.into_u64())
            {
                values.record(stage);
            }
        });
    }

    /// Ends the record of a span that this thread has opened, with its seconds. True for every span.
    fn try_close(&self, id: Id) -> bool {
        THREAD.with_borrow_mut(|thread| {
            if let Some(at) = thread.open.iter().rposition(|(open, _)| *open == id.into_u64()) {
                let (_, stage) = thread.open.remove(at);
                let seconds = stage.begin.elapsed().as_secs_f64();
                thread.ended.push((stage, seconds));
            }
        });
        true
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Visit for StageRecord {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.push((field.name(), Value::Count(value)));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.push((field.name(), Value::Text(value.to_owned())));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.push((field.name(), Value::Text(format!("{value:?}"))));
    }
}

/// A call, for as long as this lives. Made first and so dropped last: it hands the records on then, if it is the outermost of its
/// thread; those of calls by handlers are dropped. What a handler raises is written as unraisable, but a KeyboardInterrupt, which
/// the main thread gets again.
pub(crate) struct LogScope<'py>(Option<Python<'py>>);

impl<'py> LogScope<'py> {
    /// Starts to keep the spans of a call on this thread, if logging is on.
    pub fn for_call(py: Python<'py>) -> LogScope<'py> {
        let is_on = IS_ON.load(Ordering::Relaxed);
        if is_on {
            THREAD.with_borrow_mut(|thread| thread.num_calls += 1);
        }
        LogScope(is_on.then_some(py))
    }
}

impl Drop for LogScope<'_> {
    fn drop(&mut self) {
        let Some(py) = self.0 else { return };
        let ended = THREAD.with_borrow_mut(|thread| match thread.num_calls {
            1 => std::mem::take(&mut thread.ended),
            _ => Vec::new(),
        });
        // The thread still counts as within the call: a batch that a handler assembles is not logged, or it would never
        // end.
        if let Err(error) = if ended.is_empty() { Ok(()) } else { emit(py, &ended) } {
            let interrupts = error.is_instance_of::<PyKeyboardInterrupt>(py);
            let again = || py.import("_thread")?.call_method0("interrupt_main");
            // The batch is made: its call does not fail for what a handler raised.
            if !interrupts || again().is_err() {
                error.write_unraisable(py, None);
            }
        }
        THREAD.with_borrow_mut(|thread| {
            thread.num_calls -= 1;
            if thread.num_calls == 0 {
                thread.ended.clear();
            }
        });
    }
}

/// Hands records with their seconds to `logging`, whose handlers may run any code.
fn emit(py: Python<'_>, ended: &[(StageRecord, f64)]) -> PyResult<()> {
    let record = |(stage, seconds): &(StageRecord, f64)| {
        let fields = PyDict::new(py);
        for (name, value) in &stage.fields {
            fields.set_item(name, value)?;
        }
        Ok((stage.name, *seconds, fields))
    };
    let records = ended.iter().map(record).collect::<PyResult<Vec<_>>>()?;
    py.import(intern!(py, "windrow._log"))?.call_method1(intern!(py, "emit"), (records,))?;
    Ok(())
}

/// Turns reports to ``logging`` on or off: a record of level DEBUG for each stage, to the loggers
/// ``windrow.import``, ``windrow.plan``, ``windrow.run``, ``windrow.launch``, ``windrow.wait`` and
/// ``windrow.export``. The program sets their levels and handlers. The dict ``record.windrow`` has ``stage``, ``seconds`` and, for a
/// run, ``paths``, ``samples``, ``bytes_in``, ``bytes_out`` and ``padding_bytes``.
///
/// Off by default, unless ``WINDROW_LOG`` in the environment is neither empty nor 0; records then also go to stderr if there is no
/// handler. Each call emits its records when its work is done, on the calling thread; exceptions of a handler do not reach the caller.
///
/// Args:
///     enabled (bool): whether calls report.
///
/// Examples:
///     >>> import logging, windrow as wr
///     >>> logging.getLogger("windrow").setLevel(logging.DEBUG)
///     >>> wr.set_logging(True)
///     >>> wr.set_logging(False)
#[pyfunction]
#[pyo3(signature = (enabled = true))]
pub(crate) fn set_logging(enabled: bool) {
    static ONCE: Once = Once::new();
    IS_ON.store(enabled, Ordering::Relaxed);
    // This can only fail if this module installed it before: the subscriber registry is private to the extension.
    ONCE.call_once(|| drop(tracing::subscriber::set_global_default(Collector)));
    tracing::callsite::rebuild_interest_cache();
}

/// Whether `set_logging` is on.
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// The stage of an export, to be dropped at its end.
pub(crate) fn exporting(py: Python<'_>) -> (windrow::observe::Span<'static>, LogScope<'_>) {
    let log_scope = LogScope::for_call(py);
    (windrow::observe::Span::enter(windrow::observe::Stage::Export), log_scope)
}
