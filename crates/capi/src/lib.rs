//! windrow for C and other languages: `include/windrow.h`.
//!
//! Handles are made and freed by pairs of functions. A function that can fail returns a [`Status`], and
//! [`windrow_error`] then has the text. No function unwinds: a panic, which would be a bug, is a status too.
//! Samples are borrowed: their memory stays valid and unchanged until the call that assembles them returns, on a
//! device until its work is done.
#![allow(unsafe_code)] // A C interface.

mod log;
mod moves;
mod number;
mod options;
mod place;
mod status;

use std::ffi::{c_char, c_void};
use std::ptr;

use windrow::batch::Fields;
use windrow::dlpack::{DLManagedTensorVersioned, DLTensor};
use windrow::{Device, Error, SampleList, Stream, Tensor};

pub use log::{windrow_set_log, LogCallback, LogLevel};
pub use moves::{windrow_copy_many, windrow_copy_many_on, windrow_copy_many_with};
pub use number::{
    windrow_complex128, windrow_float64, windrow_int64, windrow_uint64, Number, NumberKind,
    NumberValue,
};
use options::target_at;
pub use options::{Form, Granularity, Mask, Options, Side};
use place::read_tensor;
use status::{guarded, is_null};
pub use status::{windrow_error, windrow_error_sample, windrow_status_name, Status};

/// Threads and memory that assemble batches. It can be used from several threads at once.
pub struct Engine(windrow::Engine);

/// A list of borrowed samples. Used by one thread at a time.
#[derive(Default)]
pub struct Samples(SampleList<'static>);

/// An assembled batch. Its tensors are handed out by DLPack and live on without it.
pub struct Batch {
    data: Option<Tensor>,
    fields: Fields,
}

impl From<windrow::Batch> for Batch {
    fn from(made: windrow::Batch) -> Batch {
        Batch { data: Some(made.data().clone()), fields: made.fields().clone() }
    }
}

impl Batch {
    /// The tensor of a [`Field`]: `None` for a number that is no field, `Some(None)` if the batch lacks it.
    fn tensor(&self, field: i32) -> Option<Option<&Tensor>> {
        let fields = &self.fields;
        Some(match field {
            0 => self.data.as_ref(),
            1 => fields.lengths.as_deref(),
            2 => fields.offsets.as_deref(),
            3 => fields.mask.as_deref(),
            4 => fields.batch_index.as_deref(),
            5 => fields.scales.as_deref(),
            _ => return None,
        })
    }
}

/// A tensor of a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The data; absent if it was written to memory of the caller.
    Data = 0,
    /// Lengths, int64.
    Lengths = 1,
    /// Offsets of a ragged or joined batch, int64 or int32.
    Offsets = 2,
    /// The mask of a padded batch, bool or of `mask_dtype`.
    Mask = 3,
    /// The sample of each row of a ragged batch, int64.
    BatchIndex = 4,
    /// The scales of a batch that was quantised, of `scale_dtype`; absent if they were written to memory of the caller.
    Scales = 5,
}

/// The version of the library that runs, such as "0.1.0": `WINDROW_VERSION` is that of the header that was compiled. A string of
/// the library, valid forever. Any thread may call it.
#[no_mangle]
pub extern "C" fn windrow_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Makes an engine with `num_threads` threads, the calling one included, and 4096 at most; 0 means
/// one for each core that the process may use. `engine` is written only if the call succeeds.
///
/// # Safety
/// `engine` points to a place for a pointer.
#[no_mangle]
pub unsafe extern "C" fn windrow_engine_new(
    num_threads: usize,
    engine: *mut *mut Engine,
) -> Status {
    guarded(|| {
        let made = match num_threads {
            0 => windrow::Engine::host(),
            count => windrow::Engine::builder().threads(count).build()?,
        };
        log::report_settings();
        // SAFETY: the caller's promise.
        unsafe { give(engine, "engine", Engine(made)) }
    })
}

/// Frees an engine; its batches live on, and so does work on a device: what it reads and writes
/// stays until it is done. NULL is ignored.
///
/// # Safety
/// `engine` is NULL, or comes from `windrow_engine_new`, is not in use by a call and has not been freed.
#[no_mangle]
pub unsafe extern "C" fn windrow_engine_free(engine: *mut Engine) {
    // SAFETY: the caller's promise.
    unsafe { free(engine) }
}

/// Makes an empty list of samples.
///
/// # Safety
/// `samples` points to a place for a pointer.
#[no_mangle]
pub unsafe extern "C" fn windrow_samples_new(samples: *mut *mut Samples) -> Status {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { give(samples, "samples", Samples::default()) })
}

/// Appends a sample, with strides in elements, or NULL if it is row-major without gaps. The struct is only read within the
/// call; its memory is borrowed. A sample that is refused is not appended; `windrow_error_sample` is the position that it would
/// have had.
///
/// # Safety
/// A list, and a tensor whose shape and strides have `ndim` entries. Every element that they reach stays valid and
/// unchanged until the last call that assembles the list has returned, in device or page-locked memory until that work is done.
#[no_mangle]
pub unsafe extern "C" fn windrow_samples_push(
    samples: *mut Samples,
    tensor: *const DLTensor,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let samples = unsafe { samples.as_mut() }.ok_or_else(|| is_null("samples"))?;
        if tensor.is_null() {
            return Err(is_null("tensor"));
        }
        let index = samples.0.len();
        // SAFETY: the caller's promise.
        unsafe {
            let foreign = read_tensor(tensor).map_err(|error| error.at_index(index))?;
            let (shape, strides) = (foreign.shape, foreign.strides);
            let pushed =
                samples.0.push(foreign.data, foreign.dtype, foreign.device, shape, strides);
            pushed.map_err(|error| error.at_index(index))
        }
    })
}

/// The number of samples; 0 for NULL.
///
/// # Safety
/// A list, or NULL.
#[no_mangle]
pub unsafe extern "C" fn windrow_samples_len(samples: *const Samples) -> usize {
    // SAFETY: the caller's promise.
    unsafe { samples.as_ref() }.map_or(0, |samples| samples.0.len())
}

/// Takes all samples out of the list. NULL is ignored.
///
/// # Safety
/// A list, or NULL.
#[no_mangle]
pub unsafe extern "C" fn windrow_samples_clear(samples: *mut Samples) {
    // SAFETY: the caller's promise.
    if let Some(samples) = unsafe { samples.as_mut() } {
        *samples = Samples::default();
    }
}

/// Frees a list. NULL is ignored.
///
/// # Safety
/// `samples` is NULL, or comes from `windrow_samples_new`, is not in use by a call and has not been freed.
#[no_mangle]
pub unsafe extern "C" fn windrow_samples_free(samples: *mut Samples) {
    // SAFETY: the caller's promise.
    unsafe { free(samples) }
}

/// Fills in the defaults: a stack of the samples as they are. `windrow_options_init(options)` calls it with
/// `size = sizeof(windrow_options)`; another size than the library's is WINDROW_STATUS_ARGUMENT, and nothing is written.
///
/// # Safety
/// `options` points to a place of `size` bytes for options.
#[no_mangle]
pub unsafe extern "C" fn windrow_options_init_sized(options: *mut Options, size: usize) -> Status {
    guarded(|| {
        if options.is_null() {
            return Err(is_null("options"));
        }
        options::check_size(size)?;
        debug_assert!(options.is_aligned());
        // SAFETY: the caller's promise.
        unsafe { options.write(Options::default()) };
        Ok(())
    })
}

/// Assembles a batch in memory of windrow. `batch` is written only if the call succeeds. Work on a device goes to one of the
/// engine's own streams, and the call waits for it only if the batch is on the host:
/// `windrow_batch_ready_on` orders other streams behind it.
///
/// # Safety
/// `engine` and `samples` are handles of this library; each array of `options` has as many entries as its count says; `batch`
/// points to a place for a pointer.
#[no_mangle]
pub unsafe extern "C" fn windrow_assemble(
    engine: *const Engine,
    samples: *const Samples,
    options: *const Options,
    batch: *mut *mut Batch,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (engine, samples, collate) = unsafe { read(engine, samples, options, false) }?;
        let made = Batch::from(engine.assemble(samples, &collate)?);
        // SAFETY: the caller's promise.
        unsafe { give(batch, "batch", made) }
    })
}

/// Does what `windrow_assemble` does, by work enqueued on a stream (`CUstream`, `cudaStream_t`; NULL is the default
/// one) behind what is already on it. The call does not wait for a batch on a device: samples in device or page-locked
/// memory stay until the work is done, and a user on another stream calls `windrow_batch_ready_on` first. A batch on the
/// host is complete on return; if its samples are in pageable memory too, the stream is not used.
///
/// # Safety
/// `engine` and `samples` are handles of this library; each array of `options` has as many entries as its count says; `batch`
/// points to a place for a pointer. The stream exists as long as the batch and the tensors handed out of it.
#[no_mangle]
pub unsafe extern "C" fn windrow_assemble_on(
    engine: *const Engine,
    samples: *const Samples,
    options: *const Options,
    stream: *mut c_void,
    batch: *mut *mut Batch,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (engine, samples, collate) = unsafe { read(engine, samples, options, false) }?;
        // SAFETY: the caller's promise.
        let stream = unsafe { Stream::from_raw(stream as usize) };
        let made = Batch::from(engine.assemble_on(samples, &collate, &stream)?);
        // SAFETY: the caller's promise.
        unsafe { give(batch, "batch", made) }
    })
}

/// Assembles a batch into the memory of `out`, which has exactly its shape and dtype. `batch` receives everything else
/// (lengths, offsets, mask), and may be NULL if none of it is needed. If `device` is not given and all samples are on the
/// host, the batch is in that memory of the host, pageable or page-locked, which `out` is. Work on a device goes to one of
/// the engine's own streams.
///
/// # Safety
/// `engine` and `samples` are handles of this library; each array of `options` has as many entries as its count says; `batch`
/// is NULL or points to a place for a pointer. The memory of `out` and of `scales_out` may be written to, and nothing else uses it
/// during the call, on a device until that work is done.
#[no_mangle]
pub unsafe extern "C" fn windrow_assemble_into(
    engine: *const Engine,
    samples: *const Samples,
    options: *const Options,
    out: *const DLTensor,
    batch: *mut *mut Batch,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (engine, samples, collate) = unsafe { read(engine, samples, options, true) }?;
        if out.is_null() {
            return Err(is_null("out"));
        }
        // SAFETY: the caller's promise.
        let (mut target, place) = unsafe {
            let (target, place) = target_at(out).map_err(|error| error.about("out"))?;
            match options.as_ref().map_or(Ok(None), |options| options.scales_target())? {
                Some(scales) => (target.with_scales(scales), place),
                None => (target, place),
            }
        };
        let is_host = |device: Device| matches!(device, Device::Cpu | Device::Pinned);
        let are_host = samples.metas().iter().all(|meta| is_host(meta.device));
        // SAFETY: the caller's promise.
        let is_given = unsafe { options.as_ref() }.is_some_and(|options| options.has_device != 0);
        // A batch of samples on the host is in whichever memory of the host `out` is.
        let collate = match !is_given && are_host && is_host(place) {
            true => collate.device(place),
            false => collate,
        };
        let fields = engine.assemble_into(samples, &collate, &mut target)?;
        if batch.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { give(batch, "batch", Batch { data: None, fields }) }
    })
}

/// Orders a stream behind the work that writes a batch: all of its tensors can be used on it, and the memory that
/// `windrow_assemble_into` was given. Nothing for a batch on the host.
///
/// # Safety
/// A batch; a stream that exists as long as the batch and the tensors handed out of it.
#[no_mangle]
pub unsafe extern "C" fn windrow_batch_ready_on(
    batch: *const Batch,
    stream: *mut c_void,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let batch = unsafe { batch.as_ref() }.ok_or_else(|| is_null("batch"))?;
        // SAFETY: the caller's promise.
        let stream = unsafe { Stream::from_raw(stream as usize) };
        // What was written to the caller's memory is no tensor of the batch.
        if let (None, Some(end)) = (&batch.data, batch.fields.end()) {
            end.order(stream)?;
        }
        let all = (0..).map_while(|field| batch.tensor(field));
        all.flatten().try_for_each(|tensor| tensor.ready_on(stream))
    })
}

/// The largest length of a ragged batch; -1 for any other, and for NULL.
///
/// # Safety
/// A batch, or NULL.
#[no_mangle]
pub unsafe extern "C" fn windrow_batch_max_length(batch: *const Batch) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { batch.as_ref() }.and_then(|batch| batch.fields.max_length).unwrap_or(-1)
}

/// The number of samples of a batch; 0 for NULL.
///
/// # Safety
/// A batch, or NULL.
#[no_mangle]
pub unsafe extern "C" fn windrow_batch_len(batch: *const Batch) -> usize {
    // SAFETY: the caller's promise.
    unsafe { batch.as_ref() }.map_or(0, |batch| batch.fields.num_samples)
}

/// Hands out a tensor of a batch, a `windrow_field`, by DLPack: the caller owns it and calls its deleter once. Its memory lives
/// as long as it does. NULL, and WINDROW_STATUS_OK, if the batch has no such tensor; WINDROW_STATUS_ARGUMENT for a number that
/// is no field.
///
/// # Safety
/// A batch, and a place for a pointer.
#[no_mangle]
pub unsafe extern "C" fn windrow_batch_tensor(
    batch: *const Batch,
    field: i32,
    tensor: *mut *mut DLManagedTensorVersioned,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let batch = unsafe { batch.as_ref() }.ok_or_else(|| is_null("batch"))?;
        if tensor.is_null() {
            return Err(is_null("tensor"));
        }
        let Some(found) = batch.tensor(field) else {
            return Err(Error::argument(format!("field must be a windrow_field, got {field}")));
        };
        let exported = found.map_or(ptr::null_mut(), |tensor| tensor.to_dlpack().as_ptr());
        debug_assert!(tensor.is_aligned());
        // SAFETY: the caller's promise.
        unsafe { tensor.write(exported) };
        Ok(())
    })
}

/// Frees a batch; tensors handed out live on. NULL is ignored.
///
/// # Safety
/// `batch` is NULL, or comes from this library, is not in use by a call and has not been freed.
#[no_mangle]
pub unsafe extern "C" fn windrow_batch_free(batch: *mut Batch) {
    // SAFETY: the caller's promise.
    unsafe { free(batch) }
}

/// The engine, the list and the options of a call that assembles. `is_into`: it writes to memory of the caller's.
///
/// # Errors
/// [`Error::Argument`] for NULL, and for `scales_out` unless `is_into`; those of [`Options::collate`].
///
/// # Safety
/// Handles of this library, or NULL; options with arrays of as many entries as they say.
unsafe fn read<'a>(
    engine: *const Engine,
    samples: *const Samples,
    options: *const Options,
    is_into: bool,
) -> Result<(&'a windrow::Engine, &'a SampleList<'static>, windrow::Collate), Error> {
    debug_assert!(engine.is_aligned() && samples.is_aligned());
    // SAFETY: the caller's promise.
    unsafe {
        let engine = engine.as_ref().ok_or_else(|| is_null("engine"))?;
        let samples = samples.as_ref().ok_or_else(|| is_null("samples"))?;
        let options = options::of_caller(options)?;
        let collate = options.collate()?;
        if !is_into && !options.scales_out.is_null() {
            let text = "scales_out is an option of windrow_assemble_into";
            return Err(Error::argument(text.to_owned()));
        }
        Ok((&engine.0, &samples.0, collate))
    }
}

/// Moves a value to the heap and its pointer to the caller; [`free`] drops it.
///
/// # Errors
/// [`Error::Argument`] if `place` is NULL; the value is then dropped.
///
/// # Safety
/// `place` is NULL or points to a place for a pointer.
unsafe fn give<T>(place: *mut *mut T, name: &str, value: T) -> Result<(), Error> {
    if place.is_null() {
        return Err(is_null(name));
    }
    debug_assert!(place.is_aligned());
    // SAFETY: it is not NULL; the rest is the caller's promise.
    unsafe { place.write(Box::into_raw(Box::new(value))) };
    Ok(())
}

/// Drops what [`give`] moved to the heap; NULL is ignored.
///
/// # Safety
/// NULL, or a pointer from `give` that nothing uses.
unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        debug_assert!(handle.is_aligned());
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(handle) });
    }
}
