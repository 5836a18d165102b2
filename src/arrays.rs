//! Feature `ndarray`: views of arrays as samples, and views of tensors as arrays. Nothing is copied.

use ndarray::{ArrayBase, ArrayView, ArrayViewD, Axis, Data, Dimension, IxDyn, ShapeBuilder};

use crate::samples::SampleView;
use crate::tensor::{DType, Device, Dims, Element, Error, Layout, Mismatch, Result, Tensor};

/// Any strides are taken, negative ones too. The errors are those of [`Layout::try_new`], as for too many dims.
///
/// ```
/// use ndarray::{array, s};
/// use windrow::{assemble, Collate, SampleView};
///
/// let image = array![[1f32, 2.0], [3.0, 4.0]];
/// let flipped = image.slice(s![.., ..;-1]);
/// let samples = [SampleView::try_from(&image)?, SampleView::try_from(flipped)?];
/// let batch = assemble(&samples, &Collate::stack())?;
/// assert_eq!(batch.data().as_array::<f32>()?, array![[[1.0, 2.0], [3.0, 4.0]], [[2.0, 1.0], [4.0, 3.0]]].into_dyn());
/// # Ok::<(), windrow::Error>(())
/// ```
impl<'a, T: Element, D: Dimension> TryFrom<ArrayView<'a, T, D>> for SampleView<'a> {
    type Error = Error;

    fn try_from(array: ArrayView<'a, T, D>) -> Result<SampleView<'a>> {
        let shape: Dims = array.shape().iter().map(|&extent| extent as i64).collect();
        let strides: Dims = array.strides().iter().map(|&stride| stride as i64).collect();
        let layout = Layout::try_new(T::DTYPE, &shape, Some(&strides))?;
        // SAFETY: an array's view reaches initialised elements alone, from its first one by its strides, for all of `'a`.
        #[allow(unsafe_code)]
        Ok(unsafe {
            SampleView::from_raw_parts(array.as_ptr().cast(), T::DTYPE, Device::Cpu, layout)
        })
    }
}

impl<'a, T: Element, S: Data<Elem = T>, D: Dimension> TryFrom<&'a ArrayBase<S, D>>
    for SampleView<'a>
{
    type Error = Error;

    fn try_from(array: &'a ArrayBase<S, D>) -> Result<SampleView<'a>> {
        array.view().try_into()
    }
}

impl Tensor {
    /// The elements as an array of any strides, of a sample of a batch too. Needs feature `ndarray`.
    ///
    /// # Errors
    /// [`Error::DType`] if `T` is not the dtype; [`Error::Device`] if the memory is not on the host; [`Error::Layout`] if
    /// it is misaligned for `T`, or has a bool that is neither 0 nor 1; [`Error::TooLarge`] for a shape that `ndarray` cannot
    /// have.
    ///
    /// ```
    /// use windrow::{assemble, Collate, Pad};
    /// let batch = assemble(&[vec![1, 2], vec![3]], &Collate::pad(Pad::new()))?;
    /// assert_eq!(batch.data().as_array::<i32>()?, ndarray::array![[1, 2], [3, 0]].into_dyn());
    /// assert_eq!(batch.sample(1)?.as_array::<i32>()?, ndarray::array![3].into_dyn());
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn as_array<T: Element>(&self) -> Result<ArrayViewD<'_, T>> {
        self.check_host_elements::<T>()?;
        let shape: Vec<usize> = self.shape().iter().map(|&extent| extent as usize).collect();
        if self.layout().numel() == 0 {
            let text = |error| Error::too_large(format!("shape {shape:?}: {error}"));
            return ArrayViewD::from_shape(IxDyn(&shape), &[]).map_err(text);
        }
        let refuse = |expected: &'static str, got: String| {
            Err(Mismatch::for_subject("tensor", expected, got).into_error(Error::Layout))
        };
        if !self.data_ptr().cast::<T>().is_aligned() {
            return refuse("aligned memory", format!("an address of {:p}", self.data_ptr()));
        }
        // SAFETY: what is said below holds; every byte is a valid `u8`, and a bool has one byte.
        #[allow(unsafe_code)]
        let bytes = || unsafe { array_at::<u8>(self, &shape) };
        if T::DTYPE == DType::Bool && bytes().iter().any(|&byte| byte > 1) {
            return refuse("bools of 0 and 1", "a bool that is neither".to_owned());
        }
        // SAFETY: `new_unchecked` promised that the layout is in valid initialised memory for as long as the owner lives,
        // which `self` holds; dtype, host and alignment were just checked.
        #[allow(unsafe_code)]
        Ok(unsafe { array_at(self, &shape) })
    }
}

/// The view of all elements, in the order of the tensor. `ndarray` begins at the lowest address and inverts dims of negative
/// stride.
///
/// # Safety
/// The tensor has elements, all of them valid for `T`, aligned, and on the host.
#[allow(unsafe_code)]
unsafe fn array_at<'t, T: Element>(tensor: &'t Tensor, shape: &[usize]) -> ArrayViewD<'t, T> {
    // A dim of one element has any stride, and needs none.
    let strides = || tensor.strides().iter().zip(shape).map(|(&stride, &n)| (n > 1, stride));
    let steps: Vec<usize> = strides()
        .map(|(counts, stride)| usize::from(counts) * stride.unsigned_abs() as usize)
        .collect();
    let lowest = strides().zip(shape).filter(|((counts, stride), _)| *counts && *stride < 0);
    let below: i64 = lowest.map(|((_, stride), &n)| stride * (n as i64 - 1)).sum();
    debug_assert_eq!(shape.len(), tensor.strides().len());
    debug_assert_eq!(size_of::<T>(), tensor.dtype().size());
    debug_assert!(tensor.layout().numel() > 0 && !tensor.device().is_cuda());
    debug_assert!(!tensor.data_ptr().is_null() && tensor.data_ptr().cast::<T>().is_aligned());
    let span = || tensor.layout().byte_span(tensor.dtype());
    debug_assert_eq!(below * size_of::<T>() as i64, span().start);
    // SAFETY: the caller's promise; the elements that are reached are those of the layout.
    let mut array = unsafe {
        let first = tensor.data_ptr().cast::<T>().offset(below as isize);
        ArrayViewD::from_shape_ptr(IxDyn(shape).strides(IxDyn(&steps)), first)
    };
    for (dim, (counts, stride)) in strides().enumerate() {
        if counts && stride < 0 {
            array.invert_axis(Axis(dim));
        }
    }
    array
}
