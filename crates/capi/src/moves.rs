//! `windrow_copy_many`: many tensors written to as many others.

use std::ffi::c_void;

use windrow::bindings::MoveOptions;
use windrow::{Error, Stream};

use crate::options::of_caller;
use crate::status::{guarded, is_null};
use crate::{Engine, Options, Samples, Status};

/// Writes source `i` into destination `i`, for all of both lists, which have as many tensors: `dsts` is a list whose memory is written
/// to. Empty lists are no error. Shapes are equal pair by pair; dtypes may differ, and elements are
/// then cast; strides and alignment may be any. A
/// pair that is the same memory and dtype is left as it is. All errors are found before a byte is written;
/// `windrow_error_sample` is the position of the pair. A destination that shares bytes with another one, or with any source but its own
/// identical one, is WINDROW_STATUS_ARGUMENT. Work on a device goes to one of the engine's own streams.
///
/// # Safety
/// `engine`, `dsts` and `srcs` are handles of this library. The memory of destinations may be written to, and nothing else uses
/// it during the call, on a device until that work is done.
#[no_mangle]
pub unsafe extern "C" fn windrow_copy_many(
    engine: *const Engine,
    dsts: *const Samples,
    srcs: *const Samples,
) -> Status {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { copy_many(engine, dsts, srcs, None) })
}

/// Does what `windrow_copy_many` does, by work enqueued on a stream (`CUstream`, `cudaStream_t`; NULL is the default
/// one) behind what is already on it. On return, destinations on the host are written and sources in pageable memory
/// are read; device and page-locked memory stay until the work is done. Without a side on a device or in page-locked memory the
/// stream is not used.
///
/// # Safety
/// As of `windrow_copy_many`; the stream exists until the work is done.
#[no_mangle]
pub unsafe extern "C" fn windrow_copy_many_on(
    engine: *const Engine,
    dsts: *const Samples,
    srcs: *const Samples,
    stream: *mut c_void,
) -> Status {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { copy_many(engine, dsts, srcs, Some(Stream::from_raw(stream as usize))) })
}

/// Does what `windrow_copy_many` does, and transforms the sources as `options` say: `scale`, `mean` and `std` with
/// their channel dim, and `permute`; or `quantize` with what belongs to it; or `scales`, whose dim 0 is that of the
/// pairs. Any other option that is set is WINDROW_STATUS_ARGUMENT. A destination has the shape of the result. The
/// scales that are found are written to the tensors of `scales_out`, one for each pair: of rows of the source's shape
/// without its last dim, of blocks with their number in its place, of a sample without dims; NULL without `quantize`.
/// Each is where its destination is: on its device, or on the host, where those of no elements always are.
///
/// # Safety
/// As of `windrow_copy_many`, and of `windrow_assemble` for the options, which are not NULL;
/// `scales_out` is a list as `dsts` or NULL.
#[no_mangle]
pub unsafe extern "C" fn windrow_copy_many_with(
    engine: *const Engine,
    dsts: *const Samples,
    srcs: *const Samples,
    options: *const Options,
    scales_out: *const Samples,
) -> Status {
    guarded(|| {
        debug_assert!(scales_out.is_aligned());
        // SAFETY: the caller's promise.
        unsafe {
            let options = of_caller(options)?;
            let scales_out = scales_out.as_ref().map(|scales| &scales.0);
            let transform = options.move_transform()?;
            let options = MoveOptions { transform, scales_out, ..MoveOptions::default() };
            copy_lists(engine, dsts, srcs, options)
        }
    })
}

/// [`copy_lists`] without a transform.
///
/// # Safety
/// As of `windrow_copy_many`.
unsafe fn copy_many(
    engine: *const Engine,
    dsts: *const Samples,
    srcs: *const Samples,
    stream: Option<Stream>,
) -> Result<(), Error> {
    let mut options = MoveOptions::default();
    options.run.stream = stream;
    // SAFETY: the caller's promise.
    unsafe { copy_lists(engine, dsts, srcs, options) }
}

/// Writes `srcs` into `dsts`.
///
/// # Errors
/// [`Error::Argument`] for NULL; those of the engine.
///
/// # Safety
/// As of `windrow_copy_many`.
unsafe fn copy_lists(
    engine: *const Engine,
    dsts: *const Samples,
    srcs: *const Samples,
    options: MoveOptions<'_>,
) -> Result<(), Error> {
    debug_assert!(engine.is_aligned() && dsts.is_aligned() && srcs.is_aligned());
    // SAFETY: the caller's promise.
    unsafe {
        let engine = engine.as_ref().ok_or_else(|| is_null("engine"))?;
        let dsts = dsts.as_ref().ok_or_else(|| is_null("dsts"))?;
        let srcs = srcs.as_ref().ok_or_else(|| is_null("srcs"))?;
        engine.0.copy_lists(&dsts.0, &srcs.0, options)
    }
}
