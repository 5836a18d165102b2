//! `windrow_set_log`: what calls report to a function of the program.
//!
//! Records of stages are the engine's `tracing` spans. They end under locks and in a device's context, so they are kept on the
//! thread that made them until the call has done its work. Threads of the pool make none.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_void, CString};
use std::fmt::{Debug, Write};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Once, PoisonError, RwLock};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{callsite, subscriber, Event, Metadata, Subscriber};
use windrow::engine::StreamingStores;
use windrow::Error;

use crate::status::{guarded, Status};

/// How much is reported: `windrow_set_log`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Each call that fails.
    Error = 1,
    /// Settings that are not followed, and what is done instead, when an engine is made.
    Warning = 2,
    /// The stages of each call, with their times, paths, samples and bytes.
    Debug = 3,
}

/// Takes a record: the `user` of `windrow_set_log`, a `windrow_log_level` and a text, which is valid until it returns.
/// NULL: there is none.
pub type LogCallback =
    Option<unsafe extern "C-unwind" fn(user: *mut c_void, level: i32, text: *const c_char)>;

struct Sink {
    callback: unsafe extern "C-unwind" fn(*mut c_void, i32, *const c_char),
    user: *mut c_void,
}

// SAFETY: `windrow_set_log` asks for a callback and a `user` that any thread may use.
unsafe impl Send for Sink {}
// SAFETY: as above.
unsafe impl Sync for Sink {}

/// The callback is called with this read-locked, so that taking it out waits for calls that are under way.
static SINK: RwLock<Option<Sink>> = RwLock::new(None);
/// The level of the sink; 0 without one. What is below it costs a call one load.
static LEVEL: AtomicI32 = AtomicI32::new(0);

thread_local! {
    /// Whether this thread is in the callback, which may call the library: that is not reported, or it would never end.
    static IS_REPORTING: Cell<bool> = const { Cell::new(false) };
    /// `None` but during a call that is watched.
    static STAGES: RefCell<Option<Stages>> = const { RefCell::new(None) };
}

/// Reports to `callback` from now on, from all threads and engines, in place of an earlier one; NULL: no longer. Records of
/// `level`, a `windrow_log_level`, and of lower ones are given; another number is WINDROW_STATUS_ARGUMENT, and with NULL it is
/// not read. Set the callback before the first engine is made.
///
/// The callback runs on the thread that called, when the work of its call is done and before it returns, perhaps on several
/// threads at once. The library holds nothing meanwhile that another call needs, but for the callback itself: this function
/// returns when no thread is in the callback that was set before, which is never called again; calls that report
/// wait as long. The callback may call other functions of the library, which then report nothing; this one is
/// WINDROW_STATUS_ARGUMENT within it. It does not throw, nor leave by longjmp.
///
/// # Safety
/// `callback` and `user` may be used by any thread until this has been called again.
#[no_mangle]
pub unsafe extern "C" fn windrow_set_log(
    callback: LogCallback,
    user: *mut c_void,
    level: i32,
) -> Status {
    guarded(|| {
        let refuse = |text: String| Err(Error::argument(text));
        if IS_REPORTING.get() {
            return refuse("windrow_set_log cannot be called within the log callback".to_owned());
        }
        if callback.is_some() && !(1..=3).contains(&level) {
            return refuse(format!("level must be a windrow_log_level, got {level}"));
        }
        let level = if callback.is_some() { level } else { 0 };
        let mut sink = SINK.write().unwrap_or_else(PoisonError::into_inner);
        *sink = callback.map(|callback| Sink { callback, user });
        LEVEL.store(level, Ordering::Relaxed);
        drop(sink);
        static ONCE: Once = Once::new();
        if level == LogLevel::Debug as i32 {
            // This can only fail in a Rust program that has a subscriber of its own, which then has the spans.
            ONCE.call_once(|| drop(subscriber::set_global_default(Collector)));
        }
        // Each span's place in the code caches whether the collector takes it.
        callsite::rebuild_interest_cache();
        Ok(())
    })
}

/// Whether records of `level` are taken, and this thread is not in the callback.
fn is_reported(level: LogLevel) -> bool {
    level as i32 <= LEVEL.load(Ordering::Relaxed) && !IS_REPORTING.get()
}

/// Hands a record to the callback if [`is_reported`], and makes the text only then; a panic of the callback ends here,
/// one of `text` does not.
pub(crate) fn report(level: LogLevel, text: impl FnOnce() -> String) {
    if !is_reported(level) {
        return;
    }
    let text = CString::new(text().replace('\0', " ")).unwrap_or_default();
    let sink = SINK.read().unwrap_or_else(PoisonError::into_inner);
    // Another thread may have changed the level since.
    let Some(Sink { callback, user }) = sink.as_ref().filter(|_| is_reported(level)) else {
        return;
    };
    IS_REPORTING.set(true);
    // A panic of a callback in Rust ends here and not in the engine; an exception of C++ ends the process.
    // SAFETY: any thread may use both, as `windrow_set_log` demands; the held lock keeps them.
    let _ = catch_unwind(AssertUnwindSafe(|| unsafe {
        callback(*user, level as i32, text.as_ptr());
    }));
    IS_REPORTING.set(false);
}

/// Reports refused settings of streaming stores and of NVTX, as [`LogLevel::Warning`].
pub(crate) fn report_settings() {
    if !is_reported(LogLevel::Warning) {
        return;
    }
    if let Some(refused) = &StreamingStores::chosen().refused {
        report(LogLevel::Warning, || format!("{refused}; the processor decides about stores"));
    }
    let is_set = |value: &std::ffi::OsString| !value.is_empty() && value != "0";
    if std::env::var_os("WINDROW_NVTX").filter(is_set).is_some() {
        if let Err(reason) = windrow::observe::nvtx_state() {
            report(LogLevel::Warning, || format!("WINDROW_NVTX=1 makes no ranges: {reason}"));
        }
    }
}

/// Runs a call, which does not unwind, and gives its result. If records of [`LogLevel::Debug`] are
/// taken, reports behind it the stages that ended on this thread, in the order of their ends.
pub(crate) fn watched<T>(call: impl FnOnce() -> T) -> T {
    // Spans of a thread whose variables are gone have no place to be kept in.
    if !is_reported(LogLevel::Debug) || STAGES.try_with(|_| ()).is_err() {
        return call();
    }
    STAGES.set(Some(Stages::default()));
    let result = call();
    for text in STAGES.take().unwrap_or_default().ended {
        report(LogLevel::Debug, || text);
    }
    result
}

/// The stages of the call that this thread makes: the open ones by the ids of their spans, and the texts of those that have
/// ended.
#[derive(Default)]
struct Stages {
    open: Vec<(u64, Stage)>,
    ended: Vec<String>,
}

struct Stage {
    name: &'static str,
    begin: Instant,
    facts: String,
}

/// Keeps the spans of a call that is watched. Enables windrow's spans of all threads; the level hint is off below
/// [`LogLevel::Debug`]. Values that a span begins with are dropped; only those recorded later are
/// kept.
struct Collector;

/// Calls `body` with the stages of this thread, if it is in a call that is watched and not in the callback; else does
/// nothing.
fn with_stages(body: impl FnOnce(&mut Stages)) {
    if IS_REPORTING.get() {
        return;
    }
    let _ = STAGES.try_with(|stages| stages.borrow_mut().as_mut().map(body));
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "windrow"
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let is_on = LEVEL.load(Ordering::Relaxed) >= LogLevel::Debug as i32;
        Some(if is_on { LevelFilter::DEBUG } else { LevelFilter::OFF })
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let stage =
            Stage { name: span.metadata().name(), begin: Instant::now(), facts: String::new() };
        with_stages(|stages| {
            stages.open.push((id, stage));
        });
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        with_stages(|stages| {
            let open = stages.open.iter_mut().find(|(open, _)| *open == id.into_u64());
            if let Some((_, stage)) = open {
                values.record(stage);
            }
        });
    }

    fn try_close(&self, id: Id) -> bool {
        with_stages(|stages| {
            if let Some(at) = stages.open.iter().rposition(|(open, _)| *open == id.into_u64()) {
                let (_, Stage { name, begin, facts }) = stages.open.remove(at);
                let micros = begin.elapsed().as_secs_f64() * 1e6;
                stages.ended.push(format!("{name}: {micros:.1} us{facts}"));
            }
        });
        true
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Visit for Stage {
    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.facts, ", {} {value}", field.name());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.facts, ", {} {value:?}", field.name());
    }
}
