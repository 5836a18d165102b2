//! Converts batches to Arrow arrays, in the memory of the batch.
#![allow(unsafe_code)] // Structs are handed out here, and freed.

use std::ffi::{c_void, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;

use super::ffi::{ArrowArray, ArrowSchema};
use super::field::FORMATS;
use crate::batch::{Batch, SampleBounds};
use crate::tensor::{DType, Error, Hint, Mismatch, Result, Tensor};

/// The private data of an exported struct: it owns all that the struct points to, its children too.
struct Private<T> {
    /// Keeps the memory of `buffers` alive.
    _tensors: Vec<Tensor>,
    buffers: Vec<*const c_void>,
    children: Vec<*mut T>,
    /// The format and the name of a schema.
    texts: Vec<CString>,
}

impl<T> Drop for Private<T> {
    fn drop(&mut self) {
        for &child in &self.children {
            debug_assert!(!child.is_null() && child.is_aligned());
            // SAFETY: `Box::into_raw` made it below, and it is freed once. What a consumer has
            // moved out of it is released already; its own drop releases the rest.
            drop(unsafe { Box::from_raw(child) });
        }
    }
}

impl Batch {
    /// The samples as an Arrow array that shares the memory of the batch and keeps it alive. A ragged batch becomes lists
    /// (`large_list`, or `list` if its offsets are int32), whose offsets are copied; any other batch the rows of its data; further
    /// dims become fixed-size lists.
    ///
    /// Waits until the batch has been written.
    ///
    /// # Errors
    /// [`Error::DType`] for bools, which Arrow packs into bits, and for dtypes that it does not have; [`Error::Device`] for
    /// memory that is not the host's; [`Error::Layout`] for data with gaps; [`Error::Argument`] for data without dims, and for
    /// lists of samples that are not joined along dim 0; [`Error::TooLarge`] for lists beyond
    /// their int32 offsets; as [`Batch::check`].
    pub fn to_arrow(&self) -> Result<(ArrowSchema, ArrowArray)> {
        let data = self.data();
        let format = format_of(data.dtype())?;
        if data.device().is_cuda() {
            let mismatch = Mismatch::for_subject("batch", "host memory", data.device().to_string());
            let hint = Hint::Text("assemble it on the host for Arrow");
            return Err(mismatch.with_hint(hint).into_error(Error::Device));
        }
        if !data.layout().is_compact() {
            let got = format!("strides {:?}", data.strides());
            return Err(
                Mismatch::for_subject("batch", "data without gaps", got).into_error(Error::Layout)
            );
        }
        let [len, tail @ ..] = data.shape() else {
            return Err(Error::argument("data without dims has no rows for Arrow".to_owned()));
        };
        if let Some(extent) = tail.iter().find(|&&extent| extent > i64::from(i32::MAX)) {
            let expected =
                "extents of samples that fit in 32 bits, as Arrow's lists of one size have";
            return Err(Mismatch::for_subject("batch", expected, extent.to_string())
                .into_error(Error::Layout));
        }
        self.check()?;
        let mut sizes = vec![*len];
        for extent in tail {
            let total = sizes[sizes.len() - 1] * extent;
            sizes.push(total);
        }
        let mut schema = schema_of(format, Vec::new());
        let numbers = sizes[tail.len()];
        let mut array = array_of(numbers, vec![None, Some(data)], Vec::new());
        for (&extent, &len) in tail.iter().zip(&sizes).rev() {
            schema = schema_of(&format!("+w:{extent}"), vec![schema]);
            array = array_of(len, vec![None], vec![array]);
        }
        if let (Some(offsets), Some(_)) = (self.offsets(), self.max_length()) {
            let (format, offsets) = list_offsets(self.fields().bounds(), offsets.dtype())?;
            schema = schema_of(format, vec![schema]);
            array = array_of(self.len() as i64, vec![None, Some(&offsets)], vec![array]);
        }
        Ok((schema, array))
    }
}

/// The Arrow format of lists that are the samples of a batch, and a copy of their offsets, since the batch's own tensor may hold
/// any numbers; [`Error::Argument`] for samples that are not joined along dim 0, [`Error::TooLarge`] for offsets beyond int32 if
/// that is `dtype`.
fn list_offsets(bounds: &SampleBounds, dtype: DType) -> Result<(&'static str, Tensor)> {
    let offsets = bounds.row_offsets().ok_or_else(|| {
        Error::argument("lists of samples that are not joined along dim 0".to_owned())
    })?;
    let (numbers, shape) = (offsets.as_slice(), [offsets.num_samples() as i64 + 1]);
    if dtype != DType::I32 {
        return Ok(("+L", Tensor::from_vec(numbers.to_vec(), &shape)?));
    }
    offsets.check_i32()?;
    Ok(("+l", Tensor::from_vec(numbers.iter().map(|&n| n as i32).collect(), &shape)?))
}

/// The Arrow format string of a dtype; [`Error::DType`] for bool and for dtypes that Arrow does not have.
fn format_of(dtype: DType) -> Result<&'static str> {
    let format = FORMATS.iter().find(|(_, known)| *known == dtype);
    format.map(|(format, _)| *format).ok_or_else(|| {
        let mismatch =
            Mismatch::for_subject("batch", "integers, float16, float32 or float64", dtype);
        let hint = Hint::Text("Arrow has no such numbers in memory: assemble it as one of those");
        mismatch.with_hint(hint).into_error(Error::DType)
    })
}

/// A nullable schema named `item`, which owns its children. `format` contains no NUL.
fn schema_of(format: &str, children: Vec<ArrowSchema>) -> ArrowSchema {
    /// `ARROW_FLAG_NULLABLE`, as every library has it unless told otherwise.
    const NULLABLE: i64 = 2;
    let texts = [format, "item"].map(|text| CString::new(text).expect("no NUL in a constant"));
    let mut private = Box::new(Private {
        _tensors: Vec::new(),
        buffers: Vec::new(),
        children: children.into_iter().map(|child| Box::into_raw(Box::new(child))).collect(),
        texts: texts.into(),
    });
    let mut schema = ArrowSchema::empty();
    schema.format = private.texts[0].as_ptr();
    schema.name = private.texts[1].as_ptr();
    schema.flags = NULLABLE;
    schema.n_children = private.children.len() as i64;
    schema.children = private.children.as_mut_ptr();
    schema.release = Some(release_schema);
    schema.private_data = Box::into_raw(private).cast();
    schema
}

/// An array of `len` rows without nulls, which owns its children and keeps the tensors alive. A buffer of `None`, or of an empty
/// tensor, is NULL.
fn array_of(len: i64, buffers: Vec<Option<&Tensor>>, children: Vec<ArrowArray>) -> ArrowArray {
    let address = |tensor: &Option<&Tensor>| match tensor {
        Some(tensor) if tensor.nbytes() > 0 => tensor.data_ptr().cast_const().cast(),
        _ => ptr::null(),
    };
    let mut private = Box::new(Private {
        buffers: buffers.iter().map(address).collect(),
        _tensors: buffers.into_iter().flatten().cloned().collect(),
        children: children.into_iter().map(|child| Box::into_raw(Box::new(child))).collect(),
        texts: Vec::new(),
    });
    let mut array = ArrowArray::empty();
    array.length = len;
    array.n_buffers = private.buffers.len() as i64;
    array.n_children = private.children.len() as i64;
    array.buffers = private.buffers.as_mut_ptr();
    array.children = private.children.as_mut_ptr();
    array.release = Some(release_array);
    array.private_data = Box::into_raw(private).cast();
    array
}

/// Frees what a struct of ours points to. A panic of an owner's drop stays here.
///
/// # Safety
/// Made by `Box::into_raw` of a `Private<T>`, and not used again.
unsafe fn free<T>(private: *mut c_void) {
    debug_assert!(!private.is_null() && private.cast::<Private<T>>().is_aligned());
    // SAFETY: the caller's promise.
    let private = unsafe { Box::from_raw(private.cast::<Private<T>>()) };
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(private))) {
        // The payload's own drop might panic again.
        std::mem::forget(payload);
    }
}

/// Frees all that an array owns, its children too, and marks it as released.
///
/// # Safety
/// A struct of `array_of`, released once.
unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    debug_assert!(!array.is_null() && array.is_aligned());
    // SAFETY: the caller's promise.
    unsafe {
        debug_assert!((*array).release.is_some());
        (*array).release = None;
        free::<ArrowArray>((*array).private_data);
    }
}

/// Frees all that a schema owns, its children too, and marks it as released.
///
/// # Safety
/// A struct of `schema_of`, released once.
unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    debug_assert!(!schema.is_null() && schema.is_aligned());
    // SAFETY: the caller's promise.
    unsafe {
        debug_assert!((*schema).release.is_some());
        (*schema).release = None;
        free::<ArrowSchema>((*schema).private_data);
    }
}
