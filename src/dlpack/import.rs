//! Imports foreign structs as [`Tensor`]s: look first, then own.
// Foreign pointers are read here, under the promises of the unsafe constructors.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use super::dtypes::known_dtype;
use super::ffi::{
    DLDataType, DLDataTypeCode as Code, DLDevice, DLDeviceType, DLManagedTensor,
    DLManagedTensorVersioned, DLPackVersion, DLTensor, FLAG_IS_COPIED, FLAG_IS_SUBBYTE_TYPE_PADDED,
    FLAG_READ_ONLY,
};
use crate::tensor::{
    DType, Device, Error, Hint, Layout, Mismatch, Result, Tensor, Tuple, MAX_NDIM,
};

/// A foreign [`DLTensor`], read but not yet trusted: borrowed from the struct.
///
/// Dtype, device and extents are checked; that strides and sizes stay within 64 bits is not (see
/// [`ForeignTensor::layout`]). The address may be misaligned for the dtype.
#[derive(Clone, Copy, Debug)]
pub struct ForeignTensor<'a> {
    /// Address of the first element, with the byte offset applied; anything when empty.
    pub data: *mut u8,
    /// The element type.
    pub dtype: DType,
    /// The device of the memory. Page-locked host memory counts as [`Device::Cpu`].
    pub device: Device,
    /// The extents, none negative.
    pub shape: &'a [i64],
    /// The strides in elements, unchecked; `None` for row-major without gaps.
    pub strides: Option<&'a [i64]>,
    /// Whether the producer forbids writing; false where the struct cannot say so.
    pub read_only: bool,
}

impl ForeignTensor<'_> {
    /// Shape and strides, checked.
    ///
    /// # Errors
    /// [`Error::TooLarge`] when a size or an offset leaves 64 bits.
    pub fn layout(&self) -> Result<Layout> {
        Layout::try_new(self.dtype, self.shape, self.strides)
    }
}

/// The error of class `kind` for a tensor; out of line, so that the path without one stays short.
#[cold]
#[inline(never)]
fn refuse(kind: fn(Box<Mismatch>) -> Error, expected: &str, got: String) -> Error {
    kind(Box::new(Mismatch::for_subject("tensor", expected, got)))
}

/// The dtype of this crate for one of DLPack.
///
/// # Errors
/// [`Error::DType`] for a combination of code, bits and lanes that has no counterpart. Only two lanes of float4_e2m1fn
/// have a dtype of fewer bits than a byte; [`read_versioned`] also takes 4-bit integers that the flags call padded.
///
/// ```
/// use windrow::dlpack::{dtype_from_dl, dtype_to_dl};
/// use windrow::DType;
/// assert_eq!(dtype_from_dl(dtype_to_dl(DType::BF16))?, DType::BF16);
/// # Ok::<(), windrow::Error>(())
/// ```
#[inline]
pub fn dtype_from_dl(dtype: DLDataType) -> Result<DType> {
    known_dtype(dtype).ok_or_else(|| {
        let expected = "a dtype of whole bytes and one lane";
        refuse(Error::DType, expected, format!("DLPack dtype {dtype}"))
    })
}

/// The device of this crate for one of DLPack: page-locked memory is [`Device::Cpu`], managed memory [`Device::Cuda`].
///
/// # Errors
/// [`Error::Device`] for any kind but host and CUDA, and for a negative CUDA ordinal.
///
/// ```
/// use windrow::dlpack::{device_from_dl, device_to_dl};
/// use windrow::Device;
/// assert_eq!(device_from_dl(device_to_dl(Device::Cuda(1)))?, Device::Cuda(1));
/// # Ok::<(), windrow::Error>(())
/// ```
#[inline]
pub fn device_from_dl(device: DLDevice) -> Result<Device> {
    let DLDevice { device_type, device_id } = device;
    match device_type {
        DLDeviceType::CPU | DLDeviceType::CUDA_HOST | DLDeviceType::ROCM_HOST => Ok(Device::Cpu),
        DLDeviceType::CUDA | DLDeviceType::CUDA_MANAGED => {
            u32::try_from(device_id).map(Device::Cuda).map_err(|_| {
                refuse(Error::Device, "a CUDA ordinal of at least 0", format!("{device_id}"))
            })
        }
        _ => {
            let got = format!("DLPack device type {device_type}, id {device_id}");
            Err(refuse(Error::Device, "memory of the host or of a CUDA device", got))
        }
    }
}

/// Reads a foreign tensor without owning it and without an allocation on success.
///
/// # Safety
/// `tensor` points to an initialised [`DLTensor`]. Its `shape` and `strides`, unless `NULL`, are
/// aligned arrays of `ndim` values that live unchanged for `'a`.
///
/// # Errors
/// [`Error::DType`] and [`Error::Device`] as [`dtype_from_dl`] and [`device_from_dl`];
/// [`Error::Layout`] for a number of dims outside 0 to 64, a missing shape, a negative extent, or
/// elements without an address; [`Error::TooLarge`] if the byte offset leaves the address space.
///
/// ```
/// use windrow::{dlpack::read_tensor, DType, Tensor};
/// let tensor = Tensor::from_vec(vec![1f32, 2.0], &[2])?;
/// let lent = tensor.borrow_tensor();
/// // SAFETY: the struct and the tensor, whose shape it points to, outlive the use.
/// let read = unsafe { read_tensor(&lent) }?;
/// assert_eq!((read.dtype, read.layout()?.shape()), (DType::F32, &[2][..]));
/// # Ok::<(), windrow::Error>(())
/// ```
#[inline]
pub unsafe fn read_tensor<'a>(tensor: *const DLTensor) -> Result<ForeignTensor<'a>> {
    // SAFETY: the caller's promise.
    unsafe { read_as(tensor, dtype_from_dl) }
}

/// Reads a tensor as [`read_tensor`] does, with `dtype_of` in place of [`dtype_from_dl`].
///
/// # Safety
/// As of [`read_tensor`].
#[inline]
unsafe fn read_as<'a>(
    tensor: *const DLTensor,
    dtype_of: impl FnOnce(DLDataType) -> Result<DType>,
) -> Result<ForeignTensor<'a>> {
    debug_assert!(!tensor.is_null() && tensor.is_aligned());
    // SAFETY: the caller's promise. A copy, so that no reference to the struct itself is made.
    let DLTensor { data, device, ndim, dtype, shape, strides, byte_offset } =
        unsafe { tensor.read() };
    let dtype = dtype_of(dtype)?;
    let device = device_from_dl(device)?;
    let ndim = match usize::try_from(ndim) {
        Ok(count) if count <= MAX_NDIM => count,
        _ => return Err(refuse(Error::Layout, "0 to 64 dims", format!("ndim {ndim}"))),
    };
    let (shape, strides): (&'a [i64], Option<&'a [i64]>) = if ndim == 0 {
        // The pointers are not read: a 0-d tensor has no dims.
        (&[], None)
    } else {
        if shape.is_null() {
            let got = format!("NULL for {ndim} dims");
            return Err(refuse(Error::Layout, "a shape", got));
        }
        debug_assert!(shape.is_aligned() && strides.is_aligned());
        // SAFETY: neither pointer is NULL where it is used; the caller promised arrays of `ndim`.
        unsafe {
            let strides = NonNull::new(strides)
                .map(|strides| std::slice::from_raw_parts(strides.as_ptr().cast_const(), ndim));
            (std::slice::from_raw_parts(shape.cast_const(), ndim), strides)
        }
    };
    let mut signs = 0;
    let mut empty = false;
    for &extent in shape {
        signs |= extent;
        empty |= extent == 0;
    }
    if signs < 0 {
        let got = format!("shape {}", Tuple(shape));
        return Err(refuse(Error::Layout, "extents of at least 0", got));
    }
    let first = if empty {
        // The address is never dereferenced, and producers put anything here.
        data
    } else {
        if data.is_null() {
            return Err(no_data(shape));
        }
        let offset = usize::try_from(byte_offset)
            .ok()
            .filter(|&offset| data.addr().checked_add(offset).is_some());
        let Some(offset) = offset else {
            return Err(offset_too_large(byte_offset));
        };
        data.wrapping_byte_add(offset)
    };
    Ok(ForeignTensor { data: first.cast(), dtype, device, shape, strides, read_only: false })
}

/// The [`Error::Layout`] of a tensor with elements and without an address.
#[cold]
#[inline(never)]
fn no_data(shape: &[i64]) -> Error {
    let got = format!("a NULL data pointer for shape {}", Tuple(shape));
    let hint = Hint::Text("fake and meta tensors look like this: they have no memory to read");
    Mismatch::for_subject("tensor", "memory", got).with_hint(hint).into_error(Error::Layout)
}

/// The [`Error::Layout`] of a struct of another major version.
#[cold]
fn unknown_major(version: DLPackVersion) -> Error {
    let got = format!("version {}.{}", version.major, version.minor);
    refuse(Error::Layout, "DLPack major version 1", got)
}

/// The [`Error::TooLarge`] of a byte offset beyond the address space.
#[cold]
#[inline(never)]
fn offset_too_large(byte_offset: u64) -> Error {
    Error::too_large(format!("byte offset {byte_offset} leads beyond the address space"))
}

/// Reads a versioned tensor without owning it, as [`read_tensor`] does, with version and flags.
///
/// Lets a caller refuse a capsule before taking its tensor out.
///
/// # Safety
/// `managed` points to a [`DLManagedTensorVersioned`] of any major version; when the major version
/// is 1, its tensor is initialised, and its `shape` and `strides`, unless `NULL`, are aligned arrays of
/// `ndim` values that live unchanged for `'a`.
///
/// # Errors
/// [`Error::Layout`] for another major version, of which nothing past the flags is read; else as
/// [`read_tensor`].
///
/// ```
/// use windrow::dlpack::{read_versioned, ManagedTensor};
/// use windrow::{DType, Tensor};
/// let managed = Tensor::from_vec(vec![1f32, 2.0], &[2])?.to_dlpack();
/// // SAFETY: the struct is valid until its deleter is called, below.
/// let dtype = unsafe { read_versioned(managed.as_ptr()) }?.dtype;
/// assert_eq!(dtype, DType::F32);
/// drop(unsafe { ManagedTensor::from_versioned(managed.as_ptr()) }?);
/// # Ok::<(), windrow::Error>(())
/// ```
pub unsafe fn read_versioned<'a>(
    managed: *const DLManagedTensorVersioned,
) -> Result<ForeignTensor<'a>> {
    debug_assert!(!managed.is_null() && managed.is_aligned());
    // SAFETY: both fields stand before the end of `flags`, so every major version has them; the
    // caller promised one. Fields are read one by one: the rest may not exist.
    let (version, flags) = unsafe { ((*managed).version, (*managed).flags) };
    if version.major != DLPackVersion::CURRENT.major {
        return Err(unknown_major(version));
    }
    let is_padded = flags & FLAG_IS_SUBBYTE_TYPE_PADDED != 0;
    let dtype_of = |dtype: DLDataType| match (dtype.code, dtype.bits, dtype.lanes) {
        (Code::INT, 4, 1) if is_padded => Ok(DType::I4),
        (Code::UINT, 4, 1) if is_padded => Ok(DType::U4),
        (_, 0..=7, _) if is_padded => Err(refuse(
            Error::DType,
            "whole bytes, or int4",
            format!("padded DLPack dtype {dtype}"),
        )),
        _ => dtype_from_dl(dtype),
    };
    // SAFETY: the caller's promise for major version 1.
    let tensor = unsafe { read_as(&raw const (*managed).dl_tensor, dtype_of)? };
    Ok(ForeignTensor { read_only: flags & FLAG_READ_ONLY != 0, ..tensor })
}

/// Owns a foreign managed tensor of either kind. Drop calls its deleter once, on whatever thread;
/// without a deleter it does nothing.
#[derive(Debug)]
pub struct ManagedTensor(Kind);

#[derive(Debug)]
enum Kind {
    /// A tensor of major version 1, once a constructor has returned it.
    Versioned(NonNull<DLManagedTensorVersioned>),
    Legacy(NonNull<DLManagedTensor>),
}

// SAFETY: DLPack lets the deleter run on any thread, as the constructors demand, and between
// construction and drop the struct is only read.
unsafe impl Send for ManagedTensor {}
// SAFETY: as for `Send`; `&ManagedTensor` only reads.
unsafe impl Sync for ManagedTensor {}

impl ManagedTensor {
    /// Takes a versioned tensor, also when it returns an error: then the deleter has been called.
    ///
    /// # Safety
    /// - `managed` points to a [`DLManagedTensorVersioned`] of any major version that belongs to the caller and is given
    ///   up here; it stays unchanged until its deleter is called. When the major version is 1, its tensor is initialised,
    ///   and its `shape` and `strides`, unless `NULL`, are aligned arrays of `ndim` values.
    /// - The deleter, unless `NULL`, may be called from any thread and does not unwind.
    /// - Until then every element that shape and strides reach is valid memory of the device, and
    ///   on the host initialised to values of the dtype when it is read.
    /// - Nothing writes to host memory while a slice of it from
    ///   [`Tensor::as_slice`](crate::Tensor::as_slice) is alive.
    ///
    /// # Errors
    /// [`Error::Layout`] for another major version than 1; nothing past the flags is read then.
    ///
    /// ```
    /// use windrow::{dlpack::ManagedTensor, Tensor};
    /// let producer = Tensor::from_vec(vec![1f32, 2.0], &[2])?;
    /// // SAFETY: a valid struct, given up here.
    /// let managed = unsafe { ManagedTensor::from_versioned(producer.to_dlpack().as_ptr()) }?;
    /// assert_eq!(managed.tensor()?.layout()?.shape(), [2]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub unsafe fn from_versioned(managed: *mut DLManagedTensorVersioned) -> Result<ManagedTensor> {
        debug_assert!(!managed.is_null() && managed.is_aligned());
        // SAFETY: it is not NULL by the caller's promise. From here on drop calls the deleter.
        let owned = ManagedTensor(Kind::Versioned(unsafe { NonNull::new_unchecked(managed) }));
        // SAFETY: `version` is in every major version.
        let version = unsafe { (*managed).version };
        if version.major != DLPackVersion::CURRENT.major {
            return Err(unknown_major(version));
        }
        Ok(owned)
    }

    /// Takes a legacy tensor.
    ///
    /// # Safety
    /// - `managed` points to an initialised [`DLManagedTensor`] that belongs to the caller and is given up here; it stays
    ///   unchanged until its deleter is called. Its `shape` and `strides`, unless `NULL`, are aligned arrays of `ndim`
    ///   values.
    /// - The deleter, unless `NULL`, may be called from any thread and does not unwind.
    /// - Until then every element that shape and strides reach is valid memory of the device, and on the host
    ///   initialised to values of the dtype when it is read.
    /// - Nothing writes to host memory while a slice of it from [`Tensor::as_slice`](crate::Tensor::as_slice) is alive.
    ///
    /// ```
    /// use windrow::{dlpack::ManagedTensor, Tensor};
    /// let producer = Tensor::from_vec(vec![1f32, 2.0], &[2])?;
    /// // SAFETY: a valid struct, given up here.
    /// let managed = unsafe { ManagedTensor::from_legacy(producer.to_dlpack_legacy().as_ptr()) };
    /// assert_eq!(managed.flags(), 0); // a legacy struct has none
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub unsafe fn from_legacy(managed: *mut DLManagedTensor) -> ManagedTensor {
        debug_assert!(!managed.is_null() && managed.is_aligned());
        // SAFETY: it is not NULL by the caller's promise.
        ManagedTensor(Kind::Legacy(unsafe { NonNull::new_unchecked(managed) }))
    }

    /// Reads the tensor as the struct describes it.
    ///
    /// # Errors
    /// As [`read_tensor`].
    pub fn tensor(&self) -> Result<ForeignTensor<'_>> {
        // SAFETY: the constructors were promised a readable tensor that stays unchanged until the
        // deleter is called, which only drop does.
        unsafe {
            match self.0 {
                Kind::Versioned(managed) => read_versioned(managed.as_ptr()),
                Kind::Legacy(managed) => read_tensor(&raw const (*managed.as_ptr()).dl_tensor),
            }
        }
    }

    /// The flags; 0 for a legacy tensor, which has none.
    pub fn flags(&self) -> u64 {
        match self.0 {
            // SAFETY: the struct is alive and unchanged until drop.
            Kind::Versioned(managed) => unsafe { (*managed.as_ptr()).flags },
            Kind::Legacy(_) => 0,
        }
    }

    /// The kind of memory, in the producer's words.
    pub fn device_type(&self) -> DLDeviceType {
        // SAFETY: the struct is alive and unchanged until drop, and of major version 1.
        unsafe {
            match self.0 {
                Kind::Versioned(managed) => (*managed.as_ptr()).dl_tensor.device.device_type,
                Kind::Legacy(managed) => (*managed.as_ptr()).dl_tensor.device.device_type,
            }
        }
    }

    /// Whether the producer says that it made a copy for us. False proves nothing: torch copies
    /// without saying so.
    pub fn is_copied(&self) -> bool {
        self.flags() & FLAG_IS_COPIED != 0
    }

    /// Makes this the owner of a [`Tensor`] over the same memory.
    ///
    /// # Errors
    /// As [`ManagedTensor::tensor`] and [`ForeignTensor::layout`]; the deleter has been called then.
    pub fn into_tensor(self) -> Result<Tensor> {
        let foreign = self.tensor()?;
        let layout = foreign.layout()?;
        let ForeignTensor { data, dtype, device, read_only, .. } = foreign;
        // SAFETY: the constructors were promised that the memory is valid until the deleter is
        // called, which drop of the owner does; `layout` is the shape and strides of that memory.
        Ok(unsafe { Tensor::new_unchecked(Arc::new(self), data, dtype, device, layout, read_only) })
    }
}

impl Drop for ManagedTensor {
    fn drop(&mut self) {
        // SAFETY: this value owns the struct, so the deleter was not called before, and nothing
        // uses the struct afterwards. `deleter` stands before `flags`: every major version has it.
        unsafe {
            match self.0 {
                Kind::Versioned(managed) => {
                    if let Some(deleter) = (*managed.as_ptr()).deleter {
                        deleter(managed.as_ptr());
                    }
                }
                Kind::Legacy(managed) => {
                    if let Some(deleter) = (*managed.as_ptr()).deleter {
                        deleter(managed.as_ptr());
                    }
                }
            }
        }
    }
}

impl Tensor {
    /// Wraps a versioned DLPack tensor without a copy, and takes it also when it returns an error:
    /// then its deleter has been called.
    ///
    /// # Safety
    /// - `managed` points to a [`DLManagedTensorVersioned`] of any major version that belongs to the caller and is given
    ///   up here; it stays unchanged until its deleter is called. When the major version is 1, its tensor is initialised,
    ///   and its `shape` and `strides`, unless `NULL`, are aligned arrays of `ndim` values.
    /// - The deleter, unless `NULL`, may be called from any thread and does not unwind.
    /// - Until then every element that shape and strides reach is valid memory of the device, and on the host
    ///   initialised to values of the dtype when it is read.
    /// - Nothing writes to host memory while a slice of it from [`Tensor::as_slice`](crate::Tensor::as_slice) is alive.
    ///
    /// # Errors
    /// As [`ManagedTensor::from_versioned`] and [`ManagedTensor::into_tensor`].
    ///
    /// ```
    /// use windrow::Tensor;
    /// let producer = Tensor::from_vec(vec![1f32, 2.0], &[2])?;
    /// let managed = producer.to_dlpack(); // such as another library's
    /// // SAFETY: a valid struct, given up here.
    /// let tensor = unsafe { Tensor::from_dlpack(managed.as_ptr()) }?;
    /// assert_eq!(tensor.data_ptr(), producer.data_ptr()); // no copy
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub unsafe fn from_dlpack(managed: *mut DLManagedTensorVersioned) -> Result<Tensor> {
        // SAFETY: the caller's promise.
        unsafe { ManagedTensor::from_versioned(managed) }?.into_tensor()
    }

    /// Wraps a legacy DLPack tensor, as [`Tensor::from_dlpack`] does. It counts as writable: the
    /// legacy struct cannot say otherwise.
    ///
    /// # Safety
    /// - `managed` points to an initialised [`DLManagedTensor`] that belongs to the caller and is given up here; it stays
    ///   unchanged until its deleter is called. Its `shape` and `strides`, unless `NULL`, are aligned arrays of `ndim`
    ///   values.
    /// - The deleter, unless `NULL`, may be called from any thread and does not unwind.
    /// - Until then every element that shape and strides reach is valid memory of the device, and on the host
    ///   initialised to values of the dtype when it is read.
    /// - Nothing writes to host memory while a slice of it from [`Tensor::as_slice`](crate::Tensor::as_slice) is alive.
    ///
    /// # Errors
    /// As [`ManagedTensor::into_tensor`].
    ///
    /// ```
    /// use windrow::Tensor;
    /// let producer = Tensor::from_vec(vec![1f32, 2.0], &[2])?;
    /// // SAFETY: a valid struct, given up here.
    /// let tensor = unsafe { Tensor::from_dlpack_legacy(producer.to_dlpack_legacy().as_ptr()) }?;
    /// assert_eq!(tensor.as_slice::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub unsafe fn from_dlpack_legacy(managed: *mut DLManagedTensor) -> Result<Tensor> {
        // SAFETY: the caller's promise.
        unsafe { ManagedTensor::from_legacy(managed) }.into_tensor()
    }
}
