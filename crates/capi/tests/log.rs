//! `windrow_set_log`: what is reported, by whom, and never after it is unset.
#![allow(unsafe_code)] // A C interface.

use std::ffi::{c_char, c_void, CStr};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use windrow::dlpack::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLTensor};
use windrow_capi::*;

/// One callback is set for the process: tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

type Records = Mutex<Vec<(i32, String)>>;

unsafe extern "C-unwind" fn record(user: *mut c_void, level: i32, text: *const c_char) {
    // SAFETY: `user` is the list of the test; a string for the time of the call.
    let (records, text) = unsafe { (&*user.cast::<Records>(), CStr::from_ptr(text)) };
    records.lock().unwrap().push((level, text.to_str().unwrap().to_owned()));
}

fn set(callback: LogCallback, user: *const c_void, level: LogLevel) {
    // SAFETY: each test unsets the callback before its `user` ends.
    let status = unsafe { windrow_set_log(callback, user.cast_mut(), level as i32) };
    assert_eq!(status, Status::Ok);
}

fn unset() {
    set(None, null(), LogLevel::Debug);
}

/// A call that fails.
fn failure() -> Status {
    // SAFETY: NULL is refused.
    unsafe { windrow_engine_new(1, null_mut()) }
}

fn error() -> String {
    // SAFETY: a string of the library, which no call changes meanwhile.
    unsafe { CStr::from_ptr(windrow_error()) }.to_str().unwrap().to_owned()
}

#[test]
fn failures_are_reported_until_it_is_unset() {
    let _turn = turn();
    let records = Records::default();
    set(Some(record), (&raw const records).cast(), LogLevel::Error);
    assert_eq!(failure(), Status::Argument);
    let wanted = (1, "WINDROW_STATUS_ARGUMENT: engine is NULL".to_owned());
    assert_eq!(*records.lock().unwrap(), [wanted]);
    unset();
    assert_eq!(failure(), Status::Argument);
    assert_eq!(records.lock().unwrap().len(), 1);
    for level in [0, 4, -1, i32::MAX] {
        // SAFETY: as `set`.
        let status = unsafe { windrow_set_log(Some(record), null_mut(), level) };
        assert_eq!(status, Status::Argument);
        assert_eq!(error(), format!("level must be a windrow_log_level, got {level}"));
    }
}

#[test]
fn stages_of_calls_are_reported() {
    let _turn = turn();
    let records = Records::default();
    let (mut data, mut length) = ([1u8, 2, 3], [3i64]);
    let row = DLTensor {
        data: data.as_mut_ptr().cast(),
        device: DLDevice { device_type: DLDeviceType::CPU, device_id: 0 },
        ndim: 1,
        dtype: DLDataType { code: DLDataTypeCode::UINT, bits: 8, lanes: 1 },
        shape: length.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    };
    let (mut engine, mut samples, mut batch) = (null_mut(), null_mut(), null_mut());
    // SAFETY: live places for handles; handles of the library, freed once.
    unsafe {
        assert_eq!(windrow_engine_new(1, &mut engine), Status::Ok);
        assert_eq!(windrow_samples_new(&mut samples), Status::Ok);
        for _ in 0..2 {
            assert_eq!(windrow_samples_push(samples, &row), Status::Ok);
        }
        for level in [LogLevel::Warning, LogLevel::Debug] {
            set(Some(record), (&raw const records).cast(), level);
            let options = Options::default();
            assert_eq!(windrow_assemble(engine, samples, &options, &mut batch), Status::Ok);
            windrow_batch_free(batch);
            assert_eq!(records.lock().unwrap().is_empty(), level == LogLevel::Warning);
        }
        unset();
        windrow_samples_free(samples);
        windrow_engine_free(engine);
    }
    let records = records.into_inner().unwrap();
    let run = records.iter().find(|(_, text)| text.starts_with("run: ")).unwrap();
    assert!(
        run.1.ends_with(" us, paths gather, samples 2, bytes_in 6, bytes_out 6, padding_bytes 0"),
        "{run:?}"
    );
    assert!(records.iter().all(|(level, _)| *level == 3), "{records:?}");
}

/// A user of the log that may be called, or has been left.
struct Listener {
    is_set: AtomicBool,
    calls: AtomicUsize,
    late: AtomicUsize,
}

unsafe extern "C-unwind" fn count(user: *mut c_void, _: i32, _: *const c_char) {
    // SAFETY: `user` is a listener of the test.
    let listener = unsafe { &*user.cast::<Listener>() };
    thread::yield_now();
    listener.calls.fetch_add(1, Ordering::SeqCst);
    listener.late.fetch_add(usize::from(!listener.is_set.load(Ordering::SeqCst)), Ordering::SeqCst);
}

#[test]
fn no_call_is_made_once_it_is_unset() {
    let _turn = turn();
    let listener = Listener { is_set: AtomicBool::new(false), calls: 0.into(), late: 0.into() };
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_done.load(Ordering::SeqCst) {
                    assert_eq!(failure(), Status::Argument);
                }
            });
        }
        for _ in 0..200 {
            listener.is_set.store(true, Ordering::SeqCst);
            set(Some(count), (&raw const listener).cast(), LogLevel::Debug);
            let begun = listener.calls.load(Ordering::SeqCst);
            while listener.calls.load(Ordering::SeqCst) == begun {
                thread::yield_now();
            }
            unset();
            listener.is_set.store(false, Ordering::SeqCst);
        }
        is_done.store(true, Ordering::SeqCst);
    });
    assert!(listener.calls.into_inner() >= 200);
    assert_eq!(listener.late.into_inner(), 0);
}

unsafe extern "C-unwind" fn call_the_library(user: *mut c_void, _: i32, _: *const c_char) {
    // SAFETY: `user` is the counter of the test.
    let calls = unsafe { &*user.cast::<AtomicUsize>() };
    calls.fetch_add(1, Ordering::SeqCst);
    // SAFETY: NULL is refused.
    assert_eq!(unsafe { windrow_samples_push(null_mut(), null()) }, Status::Argument);
    // SAFETY: nothing is set.
    assert_eq!(unsafe { windrow_set_log(None, null_mut(), 0) }, Status::Argument);
    assert_eq!(error(), "windrow_set_log cannot be called within the log callback");
}

#[test]
fn a_callback_may_call_the_library_which_reports_nothing_then() {
    let _turn = turn();
    let calls = AtomicUsize::new(0);
    set(Some(call_the_library), (&raw const calls).cast(), LogLevel::Debug);
    assert_eq!((failure(), error().as_str()), (Status::Argument, "engine is NULL"));
    unset();
    assert_eq!(calls.into_inner(), 1);
}

unsafe extern "C-unwind" fn throw(_: *mut c_void, _: i32, _: *const c_char) {
    panic!("the callback of a test");
}

#[test]
fn what_a_callback_throws_ends_there() {
    let _turn = turn();
    set(Some(throw), null(), LogLevel::Error);
    for _ in 0..2 {
        assert_eq!((failure(), error().as_str()), (Status::Argument, "engine is NULL"));
    }
    unset();
}

/// Fails when its thread ends, after the library's own variables of the thread have gone.
struct Last;

impl Drop for Last {
    fn drop(&mut self) {
        assert_eq!(failure(), Status::Argument);
        assert_eq!((error().as_str(), windrow_error_sample()), ("", -1));
    }
}

#[test]
fn calls_of_a_thread_that_ends_fail_as_others_do() {
    thread_local!(static LAST: Last = const { Last });
    let _turn = turn();
    let records = Records::default();
    set(Some(record), (&raw const records).cast(), LogLevel::Debug);
    let end = thread::spawn(|| {
        // The value is made first and so destroyed last.
        LAST.with(|_| ());
        assert_eq!(failure(), Status::Argument);
    });
    end.join().unwrap();
    unset();
    assert_eq!(records.into_inner().unwrap().len(), 2);
}

/// The test runs in a process of its own, since these settings are read once.
#[test]
fn settings_that_are_not_followed_are_warnings() {
    const NAME: &str = "settings_that_are_not_followed_are_warnings";
    const CHILD: &str = "WINDROW_TEST_LOG_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args([NAME, "--exact"]).env(CHILD, "1").env("WINDROW_NVTX", "1");
        child.env("WINDROW_STREAMING_STORES", "always").env_remove("NVTX_INJECTION64_PATH");
        let output = child.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let records = Records::default();
    set(Some(record), (&raw const records).cast(), LogLevel::Warning);
    let mut engine = null_mut();
    // SAFETY: a live place for a handle, which is freed once.
    unsafe {
        assert_eq!(windrow_engine_new(1, &mut engine), Status::Ok);
        windrow_engine_free(engine);
    }
    unset();
    let records = records.into_inner().unwrap();
    let [stores, nvtx] = &records[..] else { panic!("{records:?}") };
    assert!(stores.1.starts_with("WINDROW_STREAMING_STORES is not read: "), "{stores:?}");
    assert!(nvtx.1.starts_with("WINDROW_NVTX=1 makes no ranges: "), "{nvtx:?}");
    assert_eq!((stores.0, nvtx.0), (2, 2));
}
