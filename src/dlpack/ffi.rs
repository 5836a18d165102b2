//! The structs of DLPack header 1.3, field for field.
// Raw tables are followed here; their layout is asserted at the end of the file.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void, CStr};
use std::fmt;

/// Name of a legacy capsule that still owns its tensor.
pub const DLTENSOR: &CStr = c"dltensor";
/// Name of a legacy capsule whose tensor was taken.
pub const USED_DLTENSOR: &CStr = c"used_dltensor";
/// Name of a versioned capsule that still owns its tensor.
pub const DLTENSOR_VERSIONED: &CStr = c"dltensor_versioned";
/// Name of a versioned capsule whose tensor was taken.
pub const USED_DLTENSOR_VERSIONED: &CStr = c"used_dltensor_versioned";
/// Name of the capsule that holds a `DLPackExchangeAPI*`.
pub const DLPACK_EXCHANGE_API: &CStr = c"dlpack_exchange_api";

/// The consumer must not write.
pub const FLAG_READ_ONLY: u64 = 1 << 0;
/// The producer made a copy, which belongs to the consumer alone until the deleter.
pub const FLAG_IS_COPIED: u64 = 1 << 1;
/// Elements below eight bits take a byte each instead of being packed.
pub const FLAG_IS_SUBBYTE_TYPE_PADDED: u64 = 1 << 2;

/// A version of the ABI.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLPackVersion {
    /// Changes when the layout of the structs does.
    pub major: u32,
    /// Changes when values are added to the enums.
    pub minor: u32,
}

impl DLPackVersion {
    /// The version of these structs.
    pub const CURRENT: DLPackVersion = DLPackVersion { major: 1, minor: 3 };
}

/// Constants of an open C enum and their names in the header.
macro_rules! open_enum {
    ($type:ident: $($constant:ident = $value:literal $name:literal $doc:literal;)*) => {
        impl $type {
            $(#[doc = $doc] pub const $constant: $type = $type($value);)*

            /// The name in DLPack's header without its prefix; `None` for a value that the header lacks.
            pub const fn name(self) -> Option<&'static str> {
                match self { $($type::$constant => Some($name),)* _ => None }
            }
        }

        impl fmt::Display for $type {
            /// The value, and behind it the name in parentheses if the header has one: `2 (CUDA)`.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{} ({name})", self.0),
                    None => write!(f, "{}", self.0),
                }
            }
        }
    };
}

/// Kind of a device. Any integer is a valid value: producers send ones this list does not have.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DLDeviceType(pub i32);

open_enum! { DLDeviceType:
    CPU = 1 "CPU" "Host memory.";
    CUDA = 2 "CUDA" "Memory of a CUDA device.";
    CUDA_HOST = 3 "CUDAHost" "Page-locked host memory of CUDA.";
    OPENCL = 4 "OpenCL" "An OpenCL buffer.";
    VULKAN = 7 "Vulkan" "A Vulkan buffer.";
    METAL = 8 "Metal" "A Metal buffer.";
    VPI = 9 "VPI" "A Verilog simulator.";
    ROCM = 10 "ROCM" "Memory of a ROCm device.";
    ROCM_HOST = 11 "ROCMHost" "Page-locked host memory of ROCm.";
    EXT_DEV = 12 "ExtDev" "Reserved for experiments.";
    CUDA_MANAGED = 13 "CUDAManaged" "Managed memory of CUDA.";
    ONE_API = 14 "OneAPI" "Unified shared memory of oneAPI.";
    WEB_GPU = 15 "WebGPU" "A WebGPU buffer.";
    HEXAGON = 16 "Hexagon" "A Hexagon DSP.";
    MAIA = 17 "MAIA" "A MAIA accelerator.";
    TRN = 18 "Trn" "A Trainium accelerator.";
    TPU = 19 "TPU" "A TPU.";
    TPU_HOST = 20 "TPUHost" "Page-locked host memory of a TPU.";
}

/// A device: kind and number.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DLDevice {
    /// The kind.
    pub device_type: DLDeviceType,
    /// The producer's number for it; 0 for host and managed memory.
    pub device_id: i32,
}

/// Kind of an element. Any byte is a valid value, as for [`DLDeviceType`].
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DLDataTypeCode(pub u8);

open_enum! { DLDataTypeCode:
    INT = 0 "Int" "Signed integer.";
    UINT = 1 "UInt" "Unsigned integer.";
    FLOAT = 2 "Float" "IEEE 754 floating point.";
    OPAQUE_HANDLE = 3 "OpaqueHandle" "A handle, meaning not defined.";
    BFLOAT = 4 "Bfloat" "The upper bits of a binary32.";
    COMPLEX = 5 "Complex" "Two floats; `bits` counts both.";
    BOOL = 6 "Bool" "0 or 1, in eight bits.";
    FLOAT8_E3M4 = 7 "Float8_e3m4" "Eight-bit float.";
    FLOAT8_E4M3 = 8 "Float8_e4m3" "Eight-bit float.";
    FLOAT8_E4M3B11FNUZ = 9 "Float8_e4m3b11fnuz" "Eight-bit float.";
    FLOAT8_E4M3FN = 10 "Float8_e4m3fn" "Eight-bit float.";
    FLOAT8_E4M3FNUZ = 11 "Float8_e4m3fnuz" "Eight-bit float.";
    FLOAT8_E5M2 = 12 "Float8_e5m2" "Eight-bit float.";
    FLOAT8_E5M2FNUZ = 13 "Float8_e5m2fnuz" "Eight-bit float.";
    FLOAT8_E8M0FNU = 14 "Float8_e8m0fnu" "Eight-bit power of two.";
    FLOAT6_E2M3FN = 15 "Float6_e2m3fn" "Six-bit float.";
    FLOAT6_E3M2FN = 16 "Float6_e3m2fn" "Six-bit float.";
    FLOAT4_E2M1FN = 17 "Float4_e2m1fn" "Four-bit float.";
}

/// An element type, in native byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DLDataType {
    /// The kind.
    pub code: DLDataTypeCode,
    /// Bits of one lane.
    pub bits: u8,
    /// Values in one element; 1 but for vector types.
    pub lanes: u16,
}

impl fmt::Display for DLDataType {
    /// All three fields: `code 2 (Float), bits 32, lanes 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "code {}, bits {}, lanes {}", self.code, self.bits, self.lanes)
    }
}

/// A strided piece of memory with a foreign owner.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    /// Start of the memory; `NULL` when there are no elements.
    pub data: *mut c_void,
    /// The device of the memory.
    pub device: DLDevice,
    /// Number of dims.
    pub ndim: i32,
    /// The element type.
    pub dtype: DLDataType,
    /// `ndim` extents; may be `NULL` without dims.
    pub shape: *mut i64,
    /// `ndim` strides in elements; `NULL` for row-major without gaps.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// Releases a managed tensor of type `T`, struct included; callable once, from any thread.
pub type Deleter<T> = unsafe extern "C" fn(managed: *mut T);

/// A tensor with its release function, as before version 1.0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The producer's own.
    pub manager_ctx: *mut c_void,
    /// `NULL` when there is nothing to release.
    pub deleter: Option<Deleter<DLManagedTensor>>,
}

/// A tensor with its release function and flags.
///
/// All fields up to `flags` keep their place in every later major version.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLManagedTensorVersioned {
    /// Version of the rest of the struct.
    pub version: DLPackVersion,
    /// The producer's own.
    pub manager_ctx: *mut c_void,
    /// `NULL` when there is nothing to release.
    pub deleter: Option<Deleter<DLManagedTensorVersioned>>,
    /// [`FLAG_READ_ONLY`] and the others.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

/// Reports an error of an allocator: context, kind (`"MemoryError"`), message.
pub type DLPackSetError =
    unsafe extern "C" fn(error_ctx: *mut c_void, kind: *const c_char, message: *const c_char);

/// Makes a tensor with dtype, device and shape of the prototype; runs without the GIL.
pub type DLPackManagedTensorAllocator = unsafe extern "C" fn(
    prototype: *mut DLTensor,
    out: *mut *mut DLManagedTensorVersioned,
    error_ctx: *mut c_void,
    set_error: Option<DLPackSetError>,
) -> c_int;

/// Exports a Python object, which the result keeps alive; needs the GIL.
pub type DLPackManagedTensorFromPyObjectNoSync =
    unsafe extern "C" fn(py_object: *mut c_void, out: *mut *mut DLManagedTensorVersioned) -> c_int;

/// Wraps a tensor in a Python object; takes the tensor only when it returns 0; needs the GIL.
pub type DLPackManagedTensorToPyObjectNoSync = unsafe extern "C" fn(
    tensor: *mut DLManagedTensorVersioned,
    out_py_object: *mut *mut c_void,
) -> c_int;

/// Describes a Python object without owning it; needs the GIL.
pub type DLPackDLTensorFromPyObjectNoSync =
    unsafe extern "C" fn(py_object: *mut c_void, out: *mut DLTensor) -> c_int;

/// Gives the stream on which the producer works now, `NULL` on the host.
pub type DLPackCurrentWorkStream = unsafe extern "C" fn(
    device_type: DLDeviceType,
    device_id: i32,
    out_current_stream: *mut *mut c_void,
) -> c_int;

/// Head of every exchange table, the same in all versions.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLPackExchangeAPIHeader {
    /// Version of the table that follows.
    pub version: DLPackVersion,
    /// The same producer's table of an earlier major version, or `NULL`.
    pub prev_api: *mut DLPackExchangeAPIHeader,
}

/// A producer's C functions; each returns 0, or -1 with an error set.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLPackExchangeAPI {
    /// Version and link.
    pub header: DLPackExchangeAPIHeader,
    /// May be `NULL`.
    pub managed_tensor_allocator: Option<DLPackManagedTensorAllocator>,
    /// Owning export.
    pub managed_tensor_from_py_object_no_sync: Option<DLPackManagedTensorFromPyObjectNoSync>,
    /// Import.
    pub managed_tensor_to_py_object_no_sync: Option<DLPackManagedTensorToPyObjectNoSync>,
    /// Borrowing export; may be `NULL`.
    pub dltensor_from_py_object_no_sync: Option<DLPackDLTensorFromPyObjectNoSync>,
    /// The stream to work on.
    pub current_work_stream: Option<DLPackCurrentWorkStream>,
}

// SAFETY: a table is plain data that nothing changes once it is published, and no safe function
// follows its pointers.
unsafe impl Send for DLPackExchangeAPI {}
// SAFETY: as for `Send`.
unsafe impl Sync for DLPackExchangeAPI {}

impl DLPackExchangeAPI {
    /// Longest chain of tables that [`DLPackExchangeAPI::find`] follows.
    pub const MAX_CHAIN: usize = 16;

    /// The first table of major version 1 in the chain that begins at `api`; `None` without one.
    ///
    /// The walk is bounded, so that a table linked to itself cannot hang the process.
    ///
    /// # Safety
    /// `api` is `NULL` or points to an exchange table; the same holds for each `prev_api`; all of
    /// them live unchanged for the rest of the process.
    ///
    /// ```
    /// use windrow::dlpack::DLPackExchangeAPI;
    /// // SAFETY: NULL is allowed. A program passes what a type's `__dlpack_c_exchange_api__` holds.
    /// assert!(unsafe { DLPackExchangeAPI::find(std::ptr::null()) }.is_none());
    /// ```
    pub unsafe fn find(api: *const DLPackExchangeAPI) -> Option<&'static DLPackExchangeAPI> {
        let mut header = api.cast::<DLPackExchangeAPIHeader>();
        for _ in 0..Self::MAX_CHAIN {
            if header.is_null() {
                return None;
            }
            debug_assert!(header.is_aligned());
            // SAFETY: it is not NULL, so by the caller's promise it is the head of a live table.
            let DLPackExchangeAPIHeader { version, prev_api } = unsafe { header.read() };
            if version.major == DLPackVersion::CURRENT.major {
                // SAFETY: as above, and this major version says that it has the fields of this type.
                return Some(unsafe { &*header.cast::<DLPackExchangeAPI>() });
            }
            header = prev_api;
        }
        None
    }
}

/// Asserts size, alignment and the offset of each field of a struct.
macro_rules! assert_layout {
    ($($type:ident $size:literal/$align:literal { $($field:ident @ $offset:literal),* $(,)? })*) => {
        $(const _: () = {
            assert!(size_of::<$type>() == $size);
            assert!(align_of::<$type>() == $align);
            $(assert!(std::mem::offset_of!($type, $field) == $offset);)*
        };)*
    };
}

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the DLPack structs of this crate are checked for 64-bit pointers only");

assert_layout! {
    DLPackVersion 8/4 { major @ 0, minor @ 4 }
    DLDeviceType 4/4 {}
    DLDevice 8/4 { device_type @ 0, device_id @ 4 }
    DLDataTypeCode 1/1 {}
    DLDataType 4/2 { code @ 0, bits @ 1, lanes @ 2 }
    DLTensor 48/8 {
        data @ 0, device @ 8, ndim @ 16, dtype @ 20, shape @ 24, strides @ 32, byte_offset @ 40,
    }
    DLManagedTensor 64/8 { dl_tensor @ 0, manager_ctx @ 48, deleter @ 56 }
    DLManagedTensorVersioned 80/8 {
        version @ 0, manager_ctx @ 8, deleter @ 16, flags @ 24, dl_tensor @ 32,
    }
    DLPackExchangeAPIHeader 16/8 { version @ 0, prev_api @ 8 }
    DLPackExchangeAPI 56/8 {
        header @ 0, managed_tensor_allocator @ 16, managed_tensor_from_py_object_no_sync @ 24,
        managed_tensor_to_py_object_no_sync @ 32, dltensor_from_py_object_no_sync @ 40,
        current_work_stream @ 48,
    }
}
