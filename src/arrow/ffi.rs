//! The structs of the Arrow C data, stream and device interfaces, field for field.
#![allow(unsafe_code)] // Foreign structs; their layout is asserted at the end of the file.

use std::ffi::{c_char, c_int, c_void, CStr};

/// Name of a capsule that owns an [`ArrowSchema`].
pub const ARROW_SCHEMA: &CStr = c"arrow_schema";
/// Name of a capsule that owns an [`ArrowArray`].
pub const ARROW_ARRAY: &CStr = c"arrow_array";
/// Name of a capsule that owns an [`ArrowArrayStream`].
pub const ARROW_ARRAY_STREAM: &CStr = c"arrow_array_stream";
/// Name of a capsule that owns an [`ArrowDeviceArray`].
pub const ARROW_DEVICE_ARRAY: &CStr = c"arrow_device_array";

/// `ARROW_DEVICE_CPU`; the device types are DLPack's.
pub const ARROW_DEVICE_CPU: i32 = 1;
/// `ARROW_DEVICE_CUDA`: memory of a CUDA device.
pub const ARROW_DEVICE_CUDA: i32 = 2;
/// `ARROW_DEVICE_CUDA_MANAGED`: memory that host and device share.
pub const ARROW_DEVICE_CUDA_MANAGED: i32 = 13;
/// `ARROW_DEVICE_CUDA_HOST`: page-locked host memory.
pub const ARROW_DEVICE_CUDA_HOST: i32 = 3;

/// The type of an array. Dropped, it is released.
#[repr(C)]
#[derive(Debug)]
pub struct ArrowSchema {
    /// The type, as in `+l`.
    pub format: *const c_char,
    /// The name of a column; may be NULL.
    pub name: *const c_char,
    /// Keys and values; may be NULL.
    pub metadata: *const c_char,
    /// Bits, of which none is needed to read an array.
    pub flags: i64,
    /// Number of children.
    pub n_children: i64,
    /// Types of the children.
    pub children: *mut *mut ArrowSchema,
    /// The type of a dictionary's values, or NULL.
    pub dictionary: *mut ArrowSchema,
    /// Frees what the struct points to; NULL once that has happened, or the struct was moved.
    pub release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    /// The producer's.
    pub private_data: *mut c_void,
}

/// The memory of an array. Dropped, it is released.
#[repr(C)]
#[derive(Debug)]
pub struct ArrowArray {
    /// Number of rows.
    pub length: i64,
    /// Number of nulls, or -1 where they were not counted.
    pub null_count: i64,
    /// The first row in the buffers.
    pub offset: i64,
    /// Number of buffers.
    pub n_buffers: i64,
    /// Number of children.
    pub n_children: i64,
    /// Validity, offsets and data.
    pub buffers: *mut *const c_void,
    /// The children, whose rows are counted from their own offset on.
    pub children: *mut *mut ArrowArray,
    /// The values of a dictionary, or NULL.
    pub dictionary: *mut ArrowArray,
    /// Frees what the struct points to; NULL once that has happened, or the struct was moved.
    pub release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    /// The producer's.
    pub private_data: *mut c_void,
}

/// Arrays of one type, one after the other. Dropped, it is released.
#[repr(C)]
#[derive(Debug)]
pub struct ArrowArrayStream {
    /// Writes the type; returns 0, or an errno.
    pub get_schema: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowSchema) -> c_int>,
    /// Writes the next array, or a released one at the end; returns 0, or an errno.
    pub get_next: Option<unsafe extern "C" fn(*mut ArrowArrayStream, *mut ArrowArray) -> c_int>,
    /// The text of the last failure; may be NULL.
    pub get_last_error: Option<unsafe extern "C" fn(*mut ArrowArrayStream) -> *const c_char>,
    /// Frees the stream, not the arrays it gave.
    pub release: Option<unsafe extern "C" fn(*mut ArrowArrayStream)>,
    /// The producer's.
    pub private_data: *mut c_void,
}

/// An array in the memory of a device. Dropped, the array is released.
#[repr(C)]
#[derive(Debug)]
pub struct ArrowDeviceArray {
    /// The array.
    pub array: ArrowArray,
    /// The device's number.
    pub device_id: i64,
    /// The kind of device.
    pub device_type: i32,
    /// The address of an event to wait for, or NULL.
    pub sync_event: *mut c_void,
    /// Zeros.
    pub reserved: [i64; 3],
}

// SAFETY: the interface makes arrays immutable once they are handed over, and lets a consumer release
// them on any thread; the only mutation here is the release, by the owner of the struct.
unsafe impl Send for ArrowArray {}
// SAFETY: as above.
unsafe impl Sync for ArrowArray {}
// SAFETY: a schema is released by its owner, on any thread; it is never shared.
unsafe impl Send for ArrowSchema {}
// SAFETY: a stream is used by one thread at a time, which may be any: it is never shared.
unsafe impl Send for ArrowArrayStream {}

/// Methods that every owning struct has.
macro_rules! owned {
    ($($type:ident: $($field:ident = $empty:expr),*;)*) => {$(
        impl $type {
            /// A struct that owns nothing, as after a move.
            ///
            /// ```
            /// assert!(windrow::arrow::ArrowArray::empty().is_released());
            /// ```
            pub const fn empty() -> $type {
                $type { $($field: $empty,)* release: None, private_data: std::ptr::null_mut() }
            }

            /// Whether there is nothing to release.
            pub fn is_released(&self) -> bool {
                self.release.is_none()
            }

            /// Moves a struct out of memory that a producer lends, which is left released.
            ///
            /// # Safety
            /// A struct of this kind, which nothing else uses meanwhile.
            ///
            /// ```
            /// use windrow::arrow::ArrowArray;
            /// let batch = windrow::assemble(&[[1i32, 2], [3, 4]], &windrow::Collate::stack())?;
            /// let (_, mut lent) = batch.to_arrow()?;
            /// // SAFETY: a struct of this kind, which nothing else uses.
            /// let array = unsafe { ArrowArray::take(&mut lent) };
            /// assert!(lent.is_released() && array.length == 2);
            /// # Ok::<(), windrow::Error>(())
            /// ```
            pub unsafe fn take(place: *mut $type) -> $type {
                debug_assert!(!place.is_null() && place.is_aligned());
                // SAFETY: the caller's promise. The one left behind owns nothing.
                unsafe { std::ptr::replace(place, $type::empty()) }
            }
        }

        impl Drop for $type {
            fn drop(&mut self) {
                if let Some(release) = self.release {
                    // SAFETY: whoever set the callback set it for this struct; one that is moved leaves none behind, so
                    // it is called once.
                    unsafe { release(self) };
                }
            }
        }
    )*};
}

owned! {
    ArrowSchema: format = std::ptr::null(), name = std::ptr::null(), metadata = std::ptr::null(), flags = 0,
        n_children = 0, children = std::ptr::null_mut(), dictionary = std::ptr::null_mut();
    ArrowArray: length = 0, null_count = 0, offset = 0, n_buffers = 0, n_children = 0,
        buffers = std::ptr::null_mut(), children = std::ptr::null_mut(), dictionary = std::ptr::null_mut();
    ArrowArrayStream: get_schema = None, get_next = None, get_last_error = None;
}

const _: () = {
    assert!(size_of::<ArrowSchema>() == 72 && align_of::<ArrowSchema>() == 8);
    assert!(std::mem::offset_of!(ArrowSchema, release) == 56);
    assert!(size_of::<ArrowArray>() == 80 && align_of::<ArrowArray>() == 8);
    assert!(std::mem::offset_of!(ArrowArray, buffers) == 40);
    assert!(std::mem::offset_of!(ArrowArray, release) == 64);
    assert!(size_of::<ArrowArrayStream>() == 40);
    assert!(size_of::<ArrowDeviceArray>() == 128);
    assert!(std::mem::offset_of!(ArrowDeviceArray, sync_event) == 96);
};
