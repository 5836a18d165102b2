//! Exports a [`Tensor`] as structs that any consumer can take.
//!
//! Strides are always given and the byte offset is always 0, because consumers exist that follow
//! neither rule; the deleter is never `NULL`, is pure Rust and assumes nothing about its thread.
// Blocks are laid out by hand here: struct, owner, shape and strides in one allocation.
#![allow(unsafe_code)]

use std::alloc;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::{self, NonNull};

use super::dtypes::dtype_to_dl;
use super::ffi::{
    DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor,
    FLAG_IS_SUBBYTE_TYPE_PADDED, FLAG_READ_ONLY,
};
use crate::tensor::{Device, Owner, Tensor};

/// The device of DLPack for one of this crate.
///
/// Page-locked host memory goes out as plain host memory: torch refuses the other kind, and
/// consumers that care ask `__dlpack_device__`.
///
/// ```
/// assert_eq!(windrow::dlpack::device_to_dl(windrow::Device::Cuda(1)).device_id, 1);
/// ```
pub fn device_to_dl(device: Device) -> DLDevice {
    match device {
        Device::Cpu | Device::Pinned => DLDevice { device_type: DLDeviceType::CPU, device_id: 0 },
        // CUDA counts devices in an `int`, so no existing ordinal is changed here.
        Device::Cuda(ordinal) => DLDevice {
            device_type: DLDeviceType::CUDA,
            device_id: i32::try_from(ordinal).unwrap_or(i32::MAX),
        },
    }
}

/// The block a consumer receives a pointer to; shape and strides follow it in the same allocation.
#[repr(C)]
struct ExportBlock<H> {
    /// The field is at offset 0, so that a pointer to it is a pointer to the block. The consumer may change it.
    managed: H,
    owner: Owner,
    /// The layout of the whole block. It is kept here because the consumer may change `ndim`.
    allocated: alloc::Layout,
}

/// Puts `tensor` into a block of its own, which holds its owner until [`delete`] is called. `wrap` makes the struct from its
/// tensor part.
fn export<H>(tensor: &Tensor, wrap: impl FnOnce(DLTensor) -> H) -> NonNull<H> {
    let ndim = tensor.layout().ndim();
    let (allocated, dims_at) = alloc::Layout::array::<[i64; 2]>(ndim)
        .and_then(|dims| alloc::Layout::new::<ExportBlock<H>>().extend(dims))
        .expect("a few hundred bytes");
    debug_assert_ne!(allocated.size(), 0);
    // SAFETY: a block is never empty.
    let Some(block) = NonNull::new(unsafe { alloc::alloc(allocated) }) else {
        alloc::handle_alloc_error(allocated)
    };
    debug_assert!(dims_at + ndim * size_of::<[i64; 2]>() <= allocated.size());
    debug_assert_eq!([tensor.shape().len(), tensor.strides().len()], [ndim; 2]);
    debug_assert_eq!(dims_at % align_of::<i64>(), 0);
    // SAFETY: `dims_at` is where `extend` put room for `2 * ndim` aligned integers; `shape` and
    // `strides` of a layout hold `ndim` each and cannot be in a block allocated just now.
    let (shape, strides) = unsafe {
        let shape = block.as_ptr().add(dims_at).cast::<i64>();
        let strides = shape.add(ndim);
        ptr::copy_nonoverlapping(tensor.shape().as_ptr(), shape, ndim);
        ptr::copy_nonoverlapping(tensor.strides().as_ptr(), strides, ndim);
        (shape, strides)
    };
    let managed = wrap(DLTensor { shape, strides, ..tensor.borrow_tensor() });
    let owner = tensor.owner().clone();
    debug_assert!(size_of::<ExportBlock<H>>() <= dims_at);
    debug_assert!(block.as_ptr().cast::<ExportBlock<H>>().is_aligned());
    // SAFETY: the block begins with room for an `ExportBlock<H>`, aligned for it.
    unsafe { block.cast::<ExportBlock<H>>().write(ExportBlock { managed, owner, allocated }) };
    block.cast()
}

/// The deleter of a struct that [`export`] made: frees the block and drops the owner. A panic of the owner's drop stays here.
///
/// # Safety
/// `managed` is `NULL` or came from [`export`] with the same `H`, and is not used again.
unsafe extern "C" fn delete<H>(managed: *mut H) {
    if managed.is_null() {
        return;
    }
    debug_assert_eq!(std::mem::offset_of!(ExportBlock<H>, managed), 0);
    debug_assert!(managed.cast::<ExportBlock<H>>().is_aligned());
    let freed = catch_unwind(AssertUnwindSafe(|| {
        let block = managed.cast::<ExportBlock<H>>();
        // SAFETY: `managed` is the first field of a live block that nothing else will use; moving
        // the owner out leaves nothing to drop in it, and `allocated` is how it was allocated.
        let owner = unsafe {
            let ExportBlock { owner, allocated, .. } = block.read();
            alloc::dealloc(block.cast(), allocated);
            owner
        };
        drop(owner);
    }));
    if let Err(payload) = freed {
        // The owner's drop panicked; dropping what it threw might do so again.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(again);
        }
    }
}

impl Tensor {
    /// A versioned DLPack tensor that shares the memory, marked read-only if this tensor is.
    ///
    /// The consumer calls the deleter of the pointer once, from any thread; until then the memory
    /// stays, whatever becomes of `self`. A pointer that nobody takes is a leak. The deleter does not order streams: the owner has to
    /// keep device memory from being reused before the consumer's work is done.
    ///
    /// The pointer is not `Send`, but a tensor is: send that to the thread of the consumer, and export it there.
    ///
    /// ```
    /// use windrow::{assemble, Collate, Pad, Tensor};
    /// let (to_model, batches) = std::sync::mpsc::channel::<Tensor>();
    /// let model = std::thread::spawn(move || {
    ///     for tensor in batches {
    ///         let managed = tensor.to_dlpack(); // for `from_dlpack` of a runtime, which frees it
    ///         # drop(tensor);
    ///         # // SAFETY: a valid struct, given up here.
    ///         # #[allow(unsafe_code)]
    ///         # let taken = unsafe { Tensor::from_dlpack(managed.as_ptr()) }.unwrap();
    ///         # assert_eq!(taken.shape(), [2, 2]);
    ///     }
    /// });
    /// let batch = assemble(&[vec![1, 2], vec![3]], &Collate::pad(Pad::new()))?;
    /// to_model.send(batch.into_data()).unwrap();
    /// # drop(to_model);
    /// # model.join().unwrap();
    /// # Ok::<(), windrow::Error>(())
    /// ```
    #[must_use = "the memory stays until the deleter is called"]
    pub fn to_dlpack(&self) -> NonNull<DLManagedTensorVersioned> {
        self.to_dlpack_with(0)
    }

    /// Exports a tensor as [`Tensor::to_dlpack`] does, with more flags, such as
    /// [`FLAG_IS_COPIED`](crate::dlpack::FLAG_IS_COPIED) for a tensor that nothing else will see.
    #[must_use = "the memory stays until the deleter is called"]
    pub fn to_dlpack_with(&self, flags: u64) -> NonNull<DLManagedTensorVersioned> {
        let flag = |holds, flag| if holds { flag } else { 0 };
        let tensor_flags = flag(self.is_read_only(), FLAG_READ_ONLY)
            | flag(self.dtype().is_padded(), FLAG_IS_SUBBYTE_TYPE_PADDED);
        export(self, |dl_tensor| DLManagedTensorVersioned {
            version: DLPackVersion::CURRENT,
            manager_ctx: ptr::null_mut(),
            deleter: Some(delete::<DLManagedTensorVersioned>),
            flags: flags | tensor_flags,
            dl_tensor,
        })
    }

    /// Exports a tensor as [`Tensor::to_dlpack`] does, in the form from before version 1.0.
    ///
    /// The legacy form has no flags: refuse the request when [`Tensor::is_read_only`] or [`crate::DType::is_padded`] holds.
    #[must_use = "the memory stays until the deleter is called"]
    pub fn to_dlpack_legacy(&self) -> NonNull<DLManagedTensor> {
        export(self, |dl_tensor| DLManagedTensor {
            dl_tensor,
            manager_ctx: ptr::null_mut(),
            deleter: Some(delete::<DLManagedTensor>),
        })
    }

    /// A description that borrows shape and strides from `self`, which must outlive it in place; its address is `NULL` if empty.
    ///
    /// The struct holds pointers to mutable memory because the ABI has no other kind; shape and
    /// strides are not to be written.
    pub fn borrow_tensor(&self) -> DLTensor {
        // Consumers compare the address of an empty tensor with NULL.
        let data = if self.shape().contains(&0) { ptr::null_mut() } else { self.data_ptr() };
        DLTensor {
            data: data.cast(),
            device: device_to_dl(self.device()),
            ndim: i32::try_from(self.layout().ndim()).expect("at most 64 dims"),
            dtype: dtype_to_dl(self.dtype()),
            shape: self.shape().as_ptr().cast_mut(),
            strides: self.strides().as_ptr().cast_mut(),
            byte_offset: 0,
        }
    }
}
