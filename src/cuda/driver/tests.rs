//! Tests of the driver layer: errors and no crash without a driver; every wrapper once with one, real or simulated.

use std::sync::Arc;

use super::codes::{NOT_FOUND, NO_DEVICE};
use super::*;
use crate::tensor::{DriverError, Error};

/// The context of device 0; `None`, and a word on it, where there is no driver.
pub(in crate::cuda) fn context() -> Option<Arc<Context>> {
    match Context::primary(0) {
        Ok(context) => Some(context),
        Err(Error::NoDriver(text)) if std::env::var_os("WINDROW_REQUIRE_GPU").is_none() => {
            println!("SKIP: {text}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn paint(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i % 251) as u8).collect()
}

#[test]
fn without_a_driver_everything_is_an_error() {
    let Err(error) = init() else { return };
    assert!(matches!(error, Error::NoDriver(_)), "{error}");
    assert!(error.to_string().starts_with("CUDA is not available: "), "{error}");
    assert_eq!(init(), Err(error.clone()));
    assert_eq!(device_count(), Err(error.clone()));
    assert_eq!(Context::primary(0).unwrap_err(), error);
    if windrow_driver::load().is_err() {
        let error = pointer_info(0).unwrap_err();
        assert_eq!(error.code, NO_DEVICE);
        assert_eq!(
            error.to_string(),
            "cuPointerGetAttributes: CUDA_ERROR_NO_DEVICE (100): the driver has no text for it"
        );
    }
}

#[test]
fn kinds_of_errors() {
    let kind = |code| DriverError::from_code("cuMemAllocAsync", code);
    assert!(kind(2).is_out_of_memory() && !kind(2).is_sticky());
    assert!(kind(NOT_FOUND).is_unsupported() && kind(801).is_unsupported());
    assert!(kind(700).is_sticky() && kind(719).is_sticky() && !kind(600).is_sticky());
    assert!(matches!(Error::from(kind(3)), Error::Cuda(e) if e.code == 3));
}

#[test]
fn a_forked_child_gets_an_error_that_names_the_cure() {
    let started = init();
    // SAFETY: the child calls nothing that takes a lock another thread may hold, and ends by _exit.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let is_expected = match (started, init()) {
                (Ok(()), Err(Error::NoDriver(text))) => text.to_string().contains("spawn"),
                (Err(before), Err(after)) => before == after,
                _ => false,
            };
            libc::_exit(i32::from(!is_expected));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
    }
}

#[test]
fn the_callers_context_stays_current() {
    let Some(context) = context() else { return };
    let now = || {
        let mut now = std::ptr::null_mut();
        // SAFETY: a live pointer to write to.
        unsafe { raw::cuCtxGetCurrent(&raw mut now) }.ok().unwrap();
        now
    };
    assert!(now().is_null());
    {
        let current = context.enter().unwrap();
        assert_eq!(now(), current.context().raw());
    }
    assert!(now().is_null());
    assert!(context.info().num_multiprocessors > 0 && context.info().total_bytes > 0);
    assert!(matches!(Context::primary(4096), Err(Error::Argument(_))));
}

#[test]
fn copies_and_waits_between_streams() {
    let Some(context) = context() else { return };
    let current = context.enter().unwrap();
    let (uploads, work) = (current.stream(0).unwrap(), current.stream(0).unwrap());
    let (uploads, work) = (uploads.on(&current), work.on(&current));
    let events = Arc::new(EventPool::default());
    let pool = current.mem_pool().unwrap();
    let expected = paint(4096);
    let (source, result) = (current.pinned(4096).unwrap(), current.pinned(4096).unwrap());
    // SAFETY: pinned memory of that size that no work uses yet.
    unsafe { source.as_ptr().copy_from_nonoverlapping(expected.as_ptr(), 4096) };

    let device = pool.alloc(uploads, 4096).unwrap();
    let copied = events.take(&current).unwrap();
    let done = events.take(&current).unwrap();
    let mut halves = CopyBatch::new(Direction::HostToDevice);
    halves.push(device, source.as_ptr() as u64, 2048);
    halves.push(device, source.as_ptr() as u64, 0);
    halves.push(device + 2048, source.as_ptr() as u64 + 2048, 2048);
    assert_eq!(halves.len(), 2);
    // SAFETY: all ranges are in the memory above, which lives until `synchronize` below.
    unsafe {
        uploads.copy_batch(&halves).unwrap();
        uploads.record(&copied).unwrap();
        work.wait(&copied).unwrap();
        work.memset(device + 4032, 0xEE, 64).unwrap();
        work.d2h(result.as_ptr(), device, 4096).unwrap();
        work.record(&done).unwrap();
        pool.free(work, device).unwrap();
    }
    work.synchronize().unwrap();
    assert!(done.query().unwrap());
    assert!(!work.is_capturing().unwrap());
    // SAFETY: nothing writes to it any more.
    let got = unsafe { std::slice::from_raw_parts(result.as_ptr(), 4096) };
    assert_eq!(got[..4032], expected[..4032]);
    assert_eq!(got[4032..], [0xEE; 64]);
    drop((copied, done));
    assert_eq!(events.num_free(), 2);
    pool.trim(0).unwrap();
}

#[test]
fn pointers_of_every_kind() {
    let Some(context) = context() else { return };
    let current = context.enter().unwrap();
    let (stream, pool) = (current.stream(0).unwrap(), current.mem_pool().unwrap());
    let stream = stream.on(&current);
    let device = pool.alloc(stream, 512).unwrap();
    let info = pointer_info(device + 7).unwrap();
    assert_eq!((info.kind, info.ordinal), (MemoryKind::Device, Some(0)));
    let pinned = current.pinned(512).unwrap();
    let pageable = vec![0u8; 8192];
    let kind = |address: *const u8| pointer_info(address as u64).unwrap().kind;
    assert_eq!(kind(pinned.as_ptr()), MemoryKind::Pinned);
    assert_eq!(kind(pageable.as_ptr()), MemoryKind::Pageable);
    assert_eq!(pointer_info(pageable.as_ptr() as u64).unwrap().ordinal, None);
    // SAFETY: allocated above, used by no work.
    unsafe { pool.free(stream, device) }.unwrap();
    assert_eq!(current.pinned(0).unwrap().len(), 0);
}

#[test]
fn foreign_streams() {
    let Some(context) = context() else { return };
    let current = context.enter().unwrap();
    let ours = current.stream(0).unwrap();
    let handle = ours.on(&current).handle();
    for handle in [0, 1, 2, handle] {
        // SAFETY: default streams, and one that is alive.
        let stream = unsafe { current.foreign_stream(handle) }.unwrap();
        assert_eq!(stream.handle(), handle);
        let event = current.event().unwrap();
        stream.record(&event).unwrap();
        stream.wait(&event).unwrap();
        event.synchronize().unwrap();
    }
}

#[test]
fn the_image_loads_and_an_unknown_kernel_is_an_error() {
    let Some(context) = context() else { return };
    let current = context.enter().unwrap();
    let module = current.load(image().unwrap()).unwrap();
    let error = module.kernel("no_such_kernel").unwrap_err();
    assert_eq!((error.function, error.code), ("cuModuleGetFunction", NOT_FOUND));
    assert!(matches!(current.load(vec![0; 64].into()), Err(Error::Cuda(_) | Error::NoDriver(_))));
}
