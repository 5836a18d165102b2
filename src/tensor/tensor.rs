//! [`Tensor`]: a typed, strided piece of memory that keeps its owner alive.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::tensor::device::Device;
use crate::tensor::dims::{Dims, Tuple};
use crate::tensor::dtype::{DType, Element};
use crate::tensor::error::{Error, Result};
use crate::tensor::layout::{bytes_of, Layout};
use crate::tensor::mismatch::{ErrorValue, Mismatch};

/// Anything whose drop releases the memory of a tensor: a pool block, a foreign tensor, a Python object.
pub type Owner = Arc<dyn Any + Send + Sync>;

/// The owners of `other` behind those with which both lists begin. Lists that come from one another begin
/// with the same owners; joined again and again, each of these would be there twice as often every time.
pub fn new_owners<'o>(held: &[Owner], other: &'o [Owner]) -> &'o [Owner] {
    let shared = held.iter().zip(other).take_while(|(one, another)| Arc::ptr_eq(one, another));
    &other[shared.count()..]
}

/// A strided view of memory that its owner keeps alive. Cloning is cheap and shares the memory.
#[derive(Clone)]
pub struct Tensor {
    owner: Owner,
    data: *mut u8,
    dtype: DType,
    device: Device,
    layout: Layout,
    read_only: bool,
}

// SAFETY: `data` points into memory that the `Send + Sync` owner keeps alive, and this crate writes
// through it only while it holds the sole reference to a block that nothing has seen yet, or through
// `&mut`, as `new_unchecked` and `assemble_into` demand.
#[allow(unsafe_code)]
unsafe impl Send for Tensor {}
// SAFETY: as for `Send`; a shared reference gives out shared slices only.
#[allow(unsafe_code)]
unsafe impl Sync for Tensor {}

/// The error of a tensor, of this class, with what was expected and what came.
fn refused(
    kind: fn(Box<Mismatch>) -> Error,
    expected: impl Into<ErrorValue>,
    got: impl Into<ErrorValue>,
) -> Error {
    Mismatch::for_subject("tensor", expected, got).into_error(kind)
}

/// The owner of a vector's elements, which nobody gets back: a tensor of the same bytes may have written values that `T` has not,
/// such as a bool of 2.
struct Elements<T>(#[expect(dead_code)] Vec<T>);

impl Tensor {
    /// Wraps memory without checking it.
    ///
    /// # Safety
    /// - Every element that `layout` reaches from `data` is inside memory that stays valid and in
    ///   place until `owner` is dropped; on [`Device::Cpu`] it is initialised when read.
    /// - Unless `read_only` is set, consumers of an export may write to the memory.
    /// - Nothing writes to it while a slice from [`Tensor::as_slice`], or an array from `Tensor::as_array`, is alive, nor while a
    ///   batch of samples in it is assembled.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use windrow::{DType, Device, Layout, Tensor};
    /// let mut memory = vec![1i32, 2, 3, 4];
    /// let (data, layout) = (memory.as_mut_ptr().cast(), Layout::compact(DType::I32, &[4])?);
    /// // SAFETY: the vector has the four elements, keeps them in place and is the owner.
    /// let tensor = unsafe { Tensor::new_unchecked(Arc::new(memory), data, DType::I32, Device::Cpu, layout, false) };
    /// assert_eq!(tensor.as_slice::<i32>()?, [1, 2, 3, 4]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn new_unchecked(
        owner: Owner,
        data: *mut u8,
        dtype: DType,
        device: Device,
        layout: Layout,
        read_only: bool,
    ) -> Tensor {
        Tensor { owner, data, dtype, device, layout, read_only }
    }

    /// A row-major tensor that owns its elements.
    ///
    /// # Errors
    /// [`Error::Shape`] if the shape does not have as many elements as the vector; as [`Layout::try_new`] for an impossible
    /// shape.
    ///
    /// ```
    /// let tensor = windrow::Tensor::from_vec(vec![1i32, 2, 3, 4, 5, 6], &[2, 3])?;
    /// assert_eq!(tensor.select(1)?.as_slice::<i32>()?, [4, 5, 6]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn from_vec<T: Element>(mut elements: Vec<T>, shape: &[i64]) -> Result<Tensor> {
        let layout = Layout::compact(T::DTYPE, shape)?;
        if layout.numel() as usize != elements.len() {
            let got = format!("a vector of {} elements", elements.len());
            return Err(refused(Error::Shape, shape, got));
        }
        let data = elements.as_mut_ptr().cast();
        // SAFETY: moving a `Vec` does not move its elements; the layout was just counted.
        #[allow(unsafe_code)]
        Ok(unsafe {
            Tensor::new_unchecked(
                Arc::new(Elements(elements)),
                data,
                T::DTYPE,
                Device::Cpu,
                layout,
                false,
            )
        })
    }

    /// The extents.
    pub fn shape(&self) -> &[i64] {
        self.layout.shape()
    }

    /// The strides, in elements.
    pub fn strides(&self) -> &[i64] {
        self.layout.strides()
    }

    /// Shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device of the memory.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Bytes of all elements, gaps not counted.
    pub fn nbytes(&self) -> usize {
        self.layout.numel() as usize * self.dtype.size()
    }

    /// Address of the element whose indices are all 0; a negative stride leads below it. Null or dangling when the tensor is
    /// empty.
    pub fn data_ptr(&self) -> *mut u8 {
        self.data
    }

    /// Whether writing through an export is forbidden.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The owner that keeps the memory alive.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Whether nothing holds the memory of the first tensor but these tensors. The others of its owner have another one during
    /// the call: `Arc` counts references and weak ones in one step only where there is a single reference.
    pub(crate) fn is_first_unshared(tensors: &mut [&mut Tensor]) -> bool {
        let Some((first, others)) = tensors.split_first_mut() else { return true };
        let others = others.iter_mut().filter(|other| Arc::ptr_eq(&other.owner, &first.owner));
        let mut others: SmallVec<[&mut &mut Tensor; 5]> = others.collect();
        others.iter_mut().for_each(|other| other.owner = Arc::new(()));
        let is_unshared = Arc::get_mut(&mut first.owner).is_some();
        others.iter_mut().for_each(|other| other.owner = Arc::clone(&first.owner));
        is_unshared
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    /// [`Error::DType`] if `T` is not the dtype; [`Error::Device`] if the memory is not on the host;
    /// [`Error::Layout`] if it has gaps or another order, is misaligned for `T`, or has a bool that is neither 0 nor 1.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.check_host_elements::<T>()?;
        let numel = self.layout.numel() as usize;
        if numel == 0 {
            return Ok(&[]);
        }
        let data = self.data.cast::<T>();
        if !self.layout.is_compact() || !data.is_aligned() {
            let got = format!("strides {:?} at {:p}", self.strides(), self.data);
            return Err(refused(Error::Layout, "compact aligned memory", got));
        }
        debug_assert!(!data.is_null() && size_of::<T>() == self.dtype.size());
        // SAFETY: what is said below holds; every byte is a valid `u8`, and a bool has one byte.
        #[allow(unsafe_code)]
        let bytes = || unsafe { std::slice::from_raw_parts(self.data, numel) };
        if T::DTYPE == DType::Bool && bytes().iter().any(|&byte| byte > 1) {
            let got = "a bool that is neither";
            return Err(refused(Error::Layout, "bools of 0 and 1", got));
        }
        // SAFETY: `new_unchecked` promised that the layout is in valid initialised memory for as
        // long as the owner lives, which `self` holds; compactness and alignment were just checked.
        #[allow(unsafe_code)]
        Ok(unsafe { std::slice::from_raw_parts(data, numel) })
    }

    /// [`Error::DType`] unless the elements are of type `T`, [`Error::Device`] unless they are on the host, page-locked or not.
    pub(crate) fn check_host_elements<T: Element>(&self) -> Result<()> {
        if T::DTYPE != self.dtype {
            return Err(refused(Error::DType, T::DTYPE, self.dtype));
        }
        if self.device.is_cuda() {
            let got = self.device.to_string();
            return Err(refused(Error::Device, "host memory", got));
        }
        Ok(())
    }

    /// A view of part of this tensor: `start` elements from [`Tensor::data_ptr`] on, with another layout.
    ///
    /// # Errors
    /// [`Error::Layout`] if the view would leave the bytes between this tensor's first and last one. An empty view never does;
    /// it has this tensor's address for every `start`.
    pub fn view(&self, start: i64, layout: Layout) -> Result<Tensor> {
        let size = self.dtype.size() as i64;
        let (whole, part) = (self.layout.byte_span(self.dtype), layout.byte_span(self.dtype));
        let shift = start.checked_mul(size);
        // A layout that was checked for a smaller dtype may count bytes beyond 64 bits, in places that are all the same.
        let is_counted = layout.numel().checked_mul(size).is_some();
        let fits = part.is_empty()
            || is_counted
                && shift.is_some_and(|shift| {
                    part.start.checked_add(shift).is_some_and(|low| low >= whole.start)
                        && part.end.checked_add(shift).is_some_and(|high| high <= whole.end)
                });
        if !fits {
            let got = format!("shape {:?} from element {start}", layout.shape());
            return Err(refused(Error::Layout, "a part of the tensor", got));
        }
        let shift = if part.is_empty() { 0 } else { shift.unwrap_or(0) as isize };
        Ok(Tensor { data: self.data.wrapping_offset(shift), layout, ..self.clone() })
    }

    /// The same memory as bytes, uint8 `[nbytes]`, from which [`Tensor::part`] leads back.
    ///
    /// # Errors
    /// [`Error::Layout`] if it is not row-major without gaps.
    pub fn bytes(&self) -> Result<Tensor> {
        if !self.layout.is_compact() {
            let got = format!("strides {:?}", self.strides());
            return Err(refused(Error::Layout, "compact memory", got));
        }
        let layout = Layout::compact(DType::U8, &[self.nbytes() as i64])?;
        Ok(Tensor { dtype: DType::U8, layout, ..self.clone() })
    }

    /// Bytes of this tensor as a row-major tensor of their own.
    ///
    /// # Errors
    /// [`Error::DType`] if this is no tensor of bytes (uint8); [`Error::Layout`] if it has gaps, or if
    /// the part would leave it; as [`Layout::try_new`] for an impossible shape.
    ///
    /// ```
    /// use windrow::{DType, Tensor};
    /// let bytes = Tensor::from_vec(vec![7u8; 128], &[128])?;
    /// assert_eq!(bytes.part(64, DType::I16, &[2, 3])?.as_bits().shape(), [2, 3]);
    /// assert!(bytes.part(124, DType::I16, &[3]).is_err());
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn part(&self, byte_offset: u64, dtype: DType, shape: &[i64]) -> Result<Tensor> {
        if self.dtype != DType::U8 {
            return Err(refused(Error::DType, DType::U8, self.dtype));
        }
        let refuse = |expected: String, got: String| Err(refused(Error::Layout, expected, got));
        if !self.layout.is_compact() {
            return refuse("bytes without gaps".into(), format!("strides {:?}", self.strides()));
        }
        let layout = Layout::compact(dtype, shape)?;
        let end = byte_offset.checked_add(bytes_of(dtype, shape));
        if end.is_none_or(|end| end > self.nbytes() as u64) {
            let expected = format!("{dtype} {} at byte {byte_offset}", Tuple(shape));
            return refuse(expected, format!("{} bytes", self.nbytes()));
        }
        let data = self.data.wrapping_add(byte_offset as usize);
        let Tensor { device, read_only, .. } = *self;
        Ok(Tensor { owner: self.owner.clone(), data, dtype, device, layout, read_only })
    }

    /// The same memory as unsigned integers of the same width; complex dtypes are kept. The byte order is native, which is not
    /// checked.
    #[must_use]
    pub fn as_bits(&self) -> Tensor {
        let dtype = match (self.dtype, self.dtype.size()) {
            (DType::C64 | DType::C128, _) => self.dtype,
            (_, 1) => DType::U8,
            (_, 2) => DType::U16,
            (_, 4) => DType::U32,
            _ => DType::U64,
        };
        Tensor { dtype, ..self.clone() }
    }

    /// The part at `index` of dim 0, without that dim and without a copy.
    ///
    /// # Errors
    /// [`Error::Argument`] when there is no such index, which a negative one is too, or no dim 0.
    pub fn select(&self, index: i64) -> Result<Tensor> {
        let Some(&extent) = self.shape().first() else {
            return Err(Error::argument("a tensor without dims has no rows".to_owned()));
        };
        if !(0..extent).contains(&index) {
            return Err(Error::argument(format!("row {index} of {extent}")));
        }
        let (shape, strides): (Dims, Dims) = (self.shape()[1..].into(), self.strides()[1..].into());
        let start = self.strides()[0].checked_mul(index).unwrap_or(0);
        self.view(start, Layout::try_new(self.dtype, &shape, Some(&strides))?)
    }
}

impl<T: Element> TryFrom<&Tensor> for Vec<T> {
    type Error = Error;

    /// A copy of the elements; the errors are those of [`Tensor::as_slice`].
    fn try_from(tensor: &Tensor) -> Result<Vec<T>> {
        tensor.as_slice().map(<[T]>::to_vec)
    }
}

impl<T: Element> TryFrom<Tensor> for Vec<T> {
    type Error = Error;

    /// A copy of the elements, as from a reference.
    fn try_from(tensor: Tensor) -> Result<Vec<T>> {
        Vec::try_from(&tensor)
    }
}

impl fmt::Debug for Tensor {
    /// Shape, strides, dtype, device and address; no elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor")
            .field("shape", &self.shape())
            .field("strides", &self.strides())
            .field("dtype", &self.dtype)
            .field("device", &self.device)
            .field("data", &self.data)
            .finish()
    }
}
