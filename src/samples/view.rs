//! Stage 1. Samples: a borrowed view of one.

use std::marker::PhantomData;

use crate::samples::meta::TensorMeta;
use crate::tensor::{DType, Device, Element, Error, Layout, Mismatch, Owner, Result, Tensor};

/// One sample: a borrowed tensor anywhere in memory.
#[derive(Clone, Debug)]
pub struct SampleView<'a> {
    data: *const u8,
    meta: TensorMeta,
    /// The owner of device memory, which is read after the call that took the view.
    owner: Option<Owner>,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: a view is only read through, and its constructors demand memory that nothing writes to or
// frees during `'a`, on whatever thread.
#[allow(unsafe_code)]
unsafe impl Send for SampleView<'_> {}
// SAFETY: as for `Send`.
#[allow(unsafe_code)]
unsafe impl Sync for SampleView<'_> {}

impl<'a> SampleView<'a> {
    /// A row-major sample of `shape` over the whole slice.
    ///
    /// # Errors
    /// [`Error::Shape`] if the shape does not have as many elements as the slice;
    /// [`Error::Argument`] or [`Error::TooLarge`] for an impossible shape. An error names sample 0, as the view is in no list yet:
    /// [`Error::at_index`] gives it another position.
    ///
    /// ```
    /// let sample = windrow::SampleView::from_slice(&[1u8, 2, 3, 4, 5, 6], &[2, 3])?;
    /// assert_eq!(sample.shape(), [2, 3]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    #[inline(always)]
    pub fn from_slice<T: Element>(data: &'a [T], shape: &[i64]) -> Result<SampleView<'a>> {
        if shape == [data.len() as i64] {
            return Ok(SampleView::from(data));
        }
        let layout = Layout::compact(T::DTYPE, shape).map_err(|error| error.at_index(0))?;
        if layout.numel() as usize != data.len() {
            let got = format!("a slice of {} elements", data.len());
            let mismatch = Mismatch::new(Some(0), shape, got);
            return Err(Error::Shape(Box::new(mismatch)));
        }
        Ok(SampleView::new(data.as_ptr().cast(), T::DTYPE, Device::Cpu, layout))
    }

    /// A sample of any strides (in elements) inside the slice. The element at the lowest address is
    /// `data[0]`, so that a reversed dim begins at its end.
    ///
    /// # Errors
    /// [`Error::Layout`] if the strides lead out of the slice; [`Error::Argument`] or
    /// [`Error::TooLarge`] for an impossible layout. An error names sample 0, as of [`SampleView::from_slice`].
    ///
    /// ```
    /// let column = windrow::SampleView::with_strides(&[1u8, 2, 3, 4, 5], &[3], &[2])?;
    /// assert_eq!(column.shape(), [3]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn with_strides<T: Element>(
        data: &'a [T],
        shape: &[i64],
        strides: &[i64],
    ) -> Result<SampleView<'a>> {
        let layout = Layout::try_new(T::DTYPE, shape, Some(strides));
        let layout = layout.map_err(|error| error.at_index(0))?;
        let span = layout.byte_span(T::DTYPE);
        let span_bytes = span.end.abs_diff(span.start);
        if span_bytes > size_of_val(data) as u64 {
            let expected = format!("at most {} bytes", size_of_val(data));
            let got = format!("strides that span {span_bytes} bytes");
            return Err(Error::Layout(Box::new(Mismatch::new(Some(0), expected, got))));
        }
        let first = data.as_ptr().cast::<u8>().wrapping_offset(-span.start as isize);
        Ok(SampleView::new(first, T::DTYPE, Device::Cpu, layout))
    }

    /// A sample at a raw address.
    ///
    /// # Safety
    /// Every element that `layout` reaches from `data` is initialised memory of `device` that
    /// nothing writes to or frees during `'a`; on a CUDA device or in page-locked memory until the work that reads it is done.
    ///
    /// ```
    /// use windrow::{DType, Device, Layout, SampleView};
    /// let memory = [1i32, 2, 3, 4];
    /// let layout = Layout::compact(DType::I32, &[2, 2])?;
    /// // SAFETY: the array has the four elements, and outlives the view unchanged.
    /// let view = unsafe { SampleView::from_raw_parts(memory.as_ptr().cast(), DType::I32, Device::Cpu, layout) };
    /// assert_eq!(view.shape(), [2, 2]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn from_raw_parts(
        data: *const u8,
        dtype: DType,
        device: Device,
        layout: Layout,
    ) -> SampleView<'a> {
        SampleView::new(data, dtype, device, layout)
    }

    /// A view of these parts, without an owner.
    #[inline]
    fn new(data: *const u8, dtype: DType, device: Device, layout: Layout) -> SampleView<'a> {
        SampleView {
            data,
            meta: TensorMeta { dtype, device, layout },
            owner: None,
            memory: PhantomData,
        }
    }

    /// The extents.
    pub fn shape(&self) -> &[i64] {
        self.meta.layout.shape()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.meta.dtype
    }

    /// Dtype, device and layout of the sample.
    pub(crate) fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// The address of the sample's first element.
    pub(crate) fn data(&self) -> *const u8 {
        self.data
    }

    /// The owner that keeps the memory alive, of samples that are not in pageable memory.
    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }
}

impl<'a> From<&'a Tensor> for SampleView<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        let (data, layout) = (tensor.data_ptr(), tensor.layout().clone());
        let view = SampleView::new(data, tensor.dtype(), tensor.device(), layout);
        let is_host = matches!(tensor.device(), Device::Cpu);
        SampleView { owner: (!is_host).then(|| tensor.owner().clone()), ..view }
    }
}

impl<'a, T: Element> From<&'a [T]> for SampleView<'a> {
    /// A sample of one dim.
    #[inline]
    fn from(data: &'a [T]) -> SampleView<'a> {
        SampleView::new(data.as_ptr().cast(), T::DTYPE, Device::Cpu, Layout::from_slice(data))
    }
}
