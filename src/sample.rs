//! Stage 1. Samples: borrowed views, and lists of them with their layouts told once.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::dtype::{DType, Element};
use crate::error::{Error, Mismatch, Result};
use crate::kinds::{same_dims, Kind, Kinds};
use crate::layout::{compact_strides, Layout};
use crate::tensor::{new_owners, Device, Owner, Tensor};

/// One sample: a borrowed tensor anywhere in memory.
#[derive(Clone, Debug)]
pub struct SampleView<'a> {
    data: *const u8,
    kind: Kind,
    /// Of device memory, which is read after the call that took the view.
    owner: Option<Owner>,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: a view is only read through, and its constructors demand memory that nobody writes to or
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
    /// [`Error::Argument`] or [`Error::TooLarge`] for an impossible shape.
    ///
    /// ```
    /// let sample = windrow::SampleView::from_slice(&[1u8, 2, 3, 4, 5, 6], &[2, 3])?;
    /// assert_eq!(sample.shape(), [2, 3]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn from_slice<T: Element>(data: &'a [T], shape: &[i64]) -> Result<SampleView<'a>> {
        let layout = Layout::compact(T::DTYPE, shape)?;
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
    /// [`Error::TooLarge`] for an impossible layout.
    pub fn with_strides<T: Element>(
        data: &'a [T],
        shape: &[i64],
        strides: &[i64],
    ) -> Result<SampleView<'a>> {
        let layout = Layout::try_new(T::DTYPE, shape, Some(strides))?;
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
    /// nobody writes to or frees during `'a`; on a CUDA device until the work that reads it is done.
    #[allow(unsafe_code)]
    pub unsafe fn from_raw_parts(
        data: *const u8,
        dtype: DType,
        device: Device,
        layout: Layout,
    ) -> SampleView<'a> {
        SampleView::new(data, dtype, device, layout)
    }

    fn new(data: *const u8, dtype: DType, device: Device, layout: Layout) -> SampleView<'a> {
        SampleView { data, kind: Kind { dtype, device, layout }, owner: None, memory: PhantomData }
    }

    /// The extents.
    pub fn shape(&self) -> &[i64] {
        self.kind.layout.shape()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.kind.dtype
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

/// Samples imported once: an address each, and every distinct layout told once.
///
/// A uniform list costs 8 bytes a sample, any other 12, the rows of a table nothing. `take` picks a
/// batch by index without looking at the samples again.
#[derive(Clone, Debug, Default)]
pub struct SampleList<'a> {
    data: Addresses,
    /// Position in `kinds` for each sample; empty while there is only one kind.
    kind_ids: Vec<u32>,
    kinds: Arc<Kinds>,
    /// The kind of the last sample.
    last: u32,
    read_only: bool,
    /// Owners of device memory that the list itself must keep: see `SampleView`.
    owners: Vec<Owner>,
    memory: PhantomData<&'a [u8]>,
}

/// Where each sample begins.
#[derive(Clone, Debug)]
enum Addresses {
    Each(Vec<*const u8>),
    /// `len` rows, `step` bytes apart.
    Rows {
        first: *const u8,
        step: i64,
        len: usize,
    },
}

impl Default for Addresses {
    fn default() -> Self {
        Addresses::Each(Vec::new())
    }
}

impl Addresses {
    fn len(&self) -> usize {
        match self {
            Addresses::Each(each) => each.len(),
            Addresses::Rows { len, .. } => *len,
        }
    }

    /// The address of a sample that is there.
    fn at(&self, index: usize) -> *const u8 {
        match self {
            Addresses::Each(each) => each[index],
            Addresses::Rows { first, step, .. } => {
                first.wrapping_offset((index as i64).wrapping_mul(*step) as isize)
            }
        }
    }

    /// A list that can grow.
    #[inline]
    fn each(&mut self) -> &mut Vec<*const u8> {
        if let Addresses::Rows { len, .. } = *self {
            *self = Addresses::Each((0..len).map(|index| self.at(index)).collect());
        }
        match self {
            Addresses::Each(each) => each,
            Addresses::Rows { .. } => unreachable!("rows were just told one by one"),
        }
    }
}

// SAFETY: the addresses are only read through, and `SampleView`'s constructors (or the caller of
// `push`) promise that the memory is not written to or freed during `'a`, on whatever thread.
#[allow(unsafe_code)]
unsafe impl Send for SampleList<'_> {}
// SAFETY: as for `Send`; nothing is mutated through a shared reference.
#[allow(unsafe_code)]
unsafe impl Sync for SampleList<'_> {}

impl<'a> SampleList<'a> {
    /// An empty list.
    pub fn new() -> SampleList<'a> {
        SampleList::default()
    }

    /// The rows of a table along its dim 0, without anything kept for each of them.
    ///
    /// # Errors
    /// [`Error::Shape`] for a tensor without dims.
    ///
    /// ```
    /// use windrow::{Collate, Engine, SampleList, Tensor};
    /// let table = Tensor::from_vec(vec![1u8, 2, 3, 4, 5, 6], &[3, 2])?;
    /// let picked = SampleList::rows(&table)?.take([2, 0])?;
    /// let batch = Engine::host().assemble(&picked, &Collate::stack())?;
    /// assert_eq!(batch.data().as_slice::<u8>()?, [5, 6, 1, 2]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn rows(table: &'a Tensor) -> Result<SampleList<'a>> {
        // SAFETY: the tensor's elements stay where they are while it is borrowed.
        #[allow(unsafe_code)]
        unsafe {
            SampleList::rows_from_raw_parts(table)
        }
    }

    /// As [`SampleList::rows`], for a table that is kept alive in another way.
    ///
    /// # Errors
    /// As [`SampleList::rows`].
    ///
    /// # Safety
    /// The owner of the table's memory lives during `'a`, and nobody writes to it meanwhile.
    #[allow(unsafe_code)]
    pub unsafe fn rows_from_raw_parts(table: &Tensor) -> Result<SampleList<'a>> {
        let (Some(&len), [step, strides @ ..]) = (table.shape().first(), table.strides()) else {
            let mismatch = Mismatch::new(Some(0), "a table of at least one dim", table.shape());
            return Err(Error::Shape(Box::new(mismatch)));
        };
        let layout = Layout::try_new(table.dtype(), &table.shape()[1..], Some(strides))?;
        let kind = Kind { dtype: table.dtype(), device: table.device(), layout };
        let step = step.wrapping_mul(table.dtype().size() as i64);
        Ok(SampleList {
            data: Addresses::Rows { first: table.data_ptr(), step, len: len as usize },
            kinds: Arc::new(Kinds::one(kind)),
            read_only: table.is_read_only(),
            owners: if table.device() == Device::Cpu {
                vec![]
            } else {
                vec![table.owner().clone()]
            },
            ..SampleList::default()
        })
    }

    /// Makes room for further samples.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; the list is then unchanged.
    pub fn reserve(&mut self, additional: usize) -> Result<()> {
        self.check_rows(additional)?;
        self.data.each().try_reserve(additional).map_err(|_| no_room(additional))
    }

    /// A table may have more rows than there is memory to tell them apart, if they are empty or all
    /// the same. Refused before anything is made for each of them, `additional` samples included.
    pub(crate) fn check_rows(&self, additional: usize) -> Result<()> {
        let Addresses::Rows { len, .. } = self.data else { return Ok(()) };
        let count = len.saturating_add(additional);
        Vec::<*const u8>::new().try_reserve_exact(count).map_err(|_| no_room(count))
    }

    /// Appends a sample that is already checked.
    pub fn push_view(&mut self, view: &SampleView<'a>) {
        self.enter(&view.kind);
        self.append(view.data);
        self.owners.extend(view.owner.clone());
    }

    /// Appends a foreign sample; `strides: None` means row-major without gaps.
    ///
    /// # Errors
    /// As [`Layout::try_new`]; the list is then unchanged.
    ///
    /// # Safety
    /// As [`SampleView::from_raw_parts`].
    #[allow(unsafe_code)]
    #[inline]
    pub unsafe fn push(
        &mut self,
        data: *const u8,
        dtype: DType,
        device: Device,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> Result<()> {
        let is_same = |last: &Kind| {
            let layout = &last.layout;
            let is_alike = last.dtype == dtype && last.device == device;
            is_alike && same_dims(layout.shape(), shape) && are_compact(layout.strides(), shape)
        };
        if strides.is_none() && self.kinds.all().get(self.last as usize).is_some_and(is_same) {
            self.append(data);
            return Ok(());
        }
        let compact;
        let told = match strides {
            Some(strides) => Some(strides),
            None => {
                compact = compact_strides(shape);
                compact.as_deref()
            }
        };
        let known = told.and_then(|strides| {
            let last = self.kinds.all().get(self.last as usize);
            match last.is_some_and(|last| last.is(dtype, device, shape, strides)) {
                true => Some(self.last),
                false => self.kinds.find(dtype, device, shape, strides),
            }
        });
        match known {
            Some(id) => self.last = id,
            None => {
                let layout = Layout::try_new(dtype, shape, strides)?;
                if !self.kinds.all().is_empty() {
                    // From the second kind on each sample's is told: as many as there is room for.
                    let count = self.data.each().capacity().saturating_sub(self.kind_ids.len());
                    self.kind_ids.try_reserve(count).map_err(|_| no_room(count))?;
                }
                self.last = Arc::make_mut(&mut self.kinds).insert(Kind { dtype, device, layout });
            }
        }
        self.append(data);
        Ok(())
    }

    /// Appends another sample of the last one's dtype and device if it is of its shape and strides too.
    /// Says whether it did.
    ///
    /// # Safety
    /// As [`SampleView::from_raw_parts`], for the last sample's dtype and device.
    #[allow(unsafe_code)]
    #[inline]
    pub unsafe fn push_if_same(&mut self, data: *const u8, shape: &[i64], strides: &[i64]) -> bool {
        let same = !self.is_empty()
            && self.kinds.all().get(self.last as usize).is_some_and(|last| {
                same_dims(last.layout.shape(), shape) && same_dims(last.layout.strides(), strides)
            });
        if same {
            self.append(data);
        }
        same
    }

    /// Appends all samples of another list.
    ///
    /// # Errors
    /// As [`SampleList::reserve`].
    pub fn extend(&mut self, other: &SampleList<'a>) -> Result<()> {
        other.check_rows(0)?;
        self.reserve(other.len())?;
        for (index, &data) in other.data().iter().enumerate() {
            self.enter(other.kind(index));
            self.append(data);
        }
        self.read_only |= other.read_only;
        self.owners.extend_from_slice(new_owners(&self.owners, &other.owners));
        Ok(())
    }

    /// Remembers that some sample must not be written to, so that a view of it is read-only.
    pub fn mark_read_only(&mut self) {
        self.read_only = true;
    }

    /// Whether some sample must not be written to.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Makes `kind` the last one, adding it if it is new.
    fn enter(&mut self, kind: &Kind) {
        if self.kinds.all().get(self.last as usize) == Some(kind) {
            return;
        }
        let Kind { dtype, device, layout } = kind;
        let known = self.kinds.find(*dtype, *device, layout.shape(), layout.strides());
        self.last = known.unwrap_or_else(|| Arc::make_mut(&mut self.kinds).insert(kind.clone()));
    }

    #[inline]
    fn append(&mut self, data: *const u8) {
        if self.kinds.all().len() > 1 {
            // Samples before the second kind came are all of the first.
            self.kind_ids.resize(self.data.len(), 0);
            self.kind_ids.push(self.last);
        }
        self.data.each().push(data);
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What keeps samples in device memory alive, as far as the list knows.
    #[cfg(feature = "cuda")]
    pub(crate) fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// The address of each sample's first element.
    pub fn data(&self) -> Cow<'_, [*const u8]> {
        match &self.data {
            Addresses::Each(each) => Cow::Borrowed(each),
            Addresses::Rows { len, .. } => (0..*len).map(|index| self.data.at(index)).collect(),
        }
    }

    /// The address of a sample's first element.
    ///
    /// # Panics
    /// If there is no sample `index`.
    pub fn address(&self, index: usize) -> *const u8 {
        assert!(index < self.len(), "sample {index} of {}", self.len());
        self.data.at(index)
    }

    /// Dtype, device and layout of a sample.
    ///
    /// # Panics
    /// If there is no sample `index`.
    pub fn kind(&self, index: usize) -> &Kind {
        &self.kinds.all()[self.kind_ids().map_or(0, |ids| ids[index] as usize)]
    }

    /// Every distinct kind; after `take`, perhaps some that no sample has.
    pub fn kinds(&self) -> &[Kind] {
        self.kinds.all()
    }

    /// Position in [`SampleList::kinds`] for each sample, or `None` if all are of the first.
    pub fn kind_ids(&self) -> Option<&[u32]> {
        (!self.kind_ids.is_empty()).then_some(&*self.kind_ids)
    }

    /// A batch by index: the same samples in another order, repeated or left out.
    ///
    /// # Errors
    /// [`Error::Argument`] for an index that is not in the list; negative ones count from the end.
    /// [`Error::OutOfMemory`].
    pub fn take(&self, indices: impl IntoIterator<Item = i64>) -> Result<SampleList<'a>> {
        let len = self.data.len() as i64;
        let indices = indices.into_iter();
        let (count, mut data) = (indices.size_hint().0, Vec::new());
        data.try_reserve(count).map_err(|_| no_room(count))?;
        let (ids, mut kind_ids) = (self.kind_ids(), Vec::new());
        for index in indices {
            let position = if index < 0 { index + len } else { index };
            if !(0..len).contains(&position) {
                return Err(Error::Argument(format!("index {index} in a list of {len} samples")));
            }
            data.push(self.data.at(position as usize));
            if let Some(ids) = ids {
                kind_ids.push(ids[position as usize]);
            }
        }
        let last = kind_ids.last().copied().unwrap_or(0);
        Ok(SampleList {
            data: Addresses::Each(data),
            kind_ids,
            kinds: Arc::clone(&self.kinds),
            last,
            read_only: self.read_only,
            owners: self.owners.clone(),
            memory: PhantomData,
        })
    }
}

/// Whether strides are those of a tensor in one piece, row by row, which one without strides is.
#[inline]
fn are_compact(strides: &[i64], shape: &[i64]) -> bool {
    let mut elements = 1;
    strides.iter().zip(shape).rev().all(|(&stride, &extent)| {
        let is_next = stride == elements;
        elements = stride.wrapping_mul(extent);
        is_next
    })
}

#[cold]
fn no_room(count: usize) -> Error {
    Error::OutOfMemory { bytes: (count as u64).saturating_mul(size_of::<*const u8>() as u64) }
}

impl<'a, T: Element> From<&'a [T]> for SampleView<'a> {
    /// A sample of one dim.
    fn from(data: &'a [T]) -> SampleView<'a> {
        SampleView::new(data.as_ptr().cast(), T::DTYPE, Device::Cpu, Layout::of_slice(data))
    }
}

impl<'a> FromIterator<SampleView<'a>> for SampleList<'a> {
    fn from_iter<I: IntoIterator<Item = SampleView<'a>>>(views: I) -> Self {
        let mut list = SampleList::new();
        for view in views {
            list.push_view(&view);
        }
        list
    }
}

/// What the engine takes as samples: a [`SampleList`], or a slice, array or `Vec` of [`SampleView`]s or of
/// slices, each a sample of one dim.
///
/// ```
/// use windrow::{Collate, Engine};
///
/// let rows: [&[i32]; 3] = [&[1, 2, 3], &[4], &[5, 6]];
/// let batch = Engine::host().assemble(&rows, &Collate::ragged())?;
/// assert_eq!(batch.data().as_slice::<i32>()?, [1, 2, 3, 4, 5, 6]);
/// # Ok::<(), windrow::Error>(())
/// ```
pub trait Samples<'a> {
    /// The samples as a list.
    fn to_list(&self) -> Cow<'_, SampleList<'a>>;
}

impl<'a> Samples<'a> for SampleList<'a> {
    fn to_list(&self) -> Cow<'_, SampleList<'a>> {
        Cow::Borrowed(self)
    }
}

impl<'a> Samples<'a> for [SampleView<'a>] {
    fn to_list(&self) -> Cow<'_, SampleList<'a>> {
        let mut list = SampleList::new();
        list.data.each().reserve(self.len());
        for view in self {
            list.push_view(view);
        }
        Cow::Owned(list)
    }
}

impl<'a, T: Element> Samples<'a> for [&'a [T]] {
    fn to_list(&self) -> Cow<'_, SampleList<'a>> {
        let mut list = SampleList::new();
        list.data.each().reserve(self.len());
        for &row in self {
            list.push_view(&row.into());
        }
        Cow::Owned(list)
    }
}

impl<'a, S> Samples<'a> for Vec<S>
where
    [S]: Samples<'a>,
{
    fn to_list(&self) -> Cow<'_, SampleList<'a>> {
        self.as_slice().to_list()
    }
}

impl<'a, S, const N: usize> Samples<'a> for [S; N]
where
    [S]: Samples<'a>,
{
    fn to_list(&self) -> Cow<'_, SampleList<'a>> {
        self.as_slice().to_list()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_once() {
        let data = [0u16; 12];
        let mut list = SampleList::new();
        for rows in [3, 3, 2, 3, 2, 1] {
            list.push_view(&SampleView::from_slice(&data[..rows * 4], &[rows as i64, 4]).unwrap());
        }
        assert_eq!(list.kinds().len(), 3);
        assert_eq!(list.kind_ids().unwrap(), [0, 0, 1, 0, 1, 2]);
        let taken = list.take([-1, 0, 5]).unwrap();
        assert_eq!(taken.kind(0).layout.shape(), [1, 4]);
        assert_eq!(taken.kind(1).layout.shape(), [3, 4]);
        assert!(list.take([6]).is_err() && list.take([-7]).is_err());
        assert!(matches!(list.take(0..i64::MAX), Err(Error::OutOfMemory { .. })));
    }

    #[test]
    fn slices_are_samples_of_one_dim() {
        let rows: [&[i32]; 3] = [&[1, 2, 3], &[], &[5]];
        let views: SampleList = rows
            .iter()
            .map(|row| SampleView::from_slice(row, &[row.len() as i64]).unwrap())
            .collect();
        for list in [rows.to_list(), rows.to_vec().to_list(), rows[..].to_list()] {
            assert_eq!((list.kinds(), list.data()), (views.kinds(), views.data()));
        }
    }

    #[test]
    fn owners_do_not_multiply() {
        let held = |_| Arc::new(0u8) as Owner;
        let mut list = SampleList { owners: (0..3).map(held).collect(), ..SampleList::new() };
        for added in 1..50 {
            let mut taken = list.clone();
            taken.owners.push(held(0));
            list.extend(&taken).unwrap();
            list.extend(&taken).unwrap();
            list.extend(&list.clone()).unwrap();
            assert_eq!(list.owners.len(), 3 + added);
        }
    }

    #[test]
    fn a_taken_list_can_grow() {
        let data = [0u8; 4];
        let mut list: SampleList = [2, 4]
            .iter()
            .map(|&n| SampleView::from_slice(&data[..n], &[n as i64]).unwrap())
            .collect();
        list = list.take([1]).unwrap();
        list.push_view(&SampleView::from_slice(&data[..2], &[2]).unwrap());
        list.push_view(&SampleView::from_slice(&data[..3], &[3]).unwrap());
        assert_eq!(list.kind_ids().unwrap(), [1, 0, 2]);
    }

    #[test]
    fn rows_of_a_table_need_no_addresses_until_the_list_grows() {
        let table = Tensor::from_vec((0..12u8).collect(), &[4, 3]).unwrap();
        let mut list = SampleList::rows(&table).unwrap();
        assert_eq!(list.len(), 4);
        assert_eq!(list.address(3), table.data_ptr().wrapping_add(9).cast_const());
        assert_eq!(*list.data(), *list.take([0, 1, 2, 3]).unwrap().data());
        let other = [7u8; 3];
        list.push_view(&SampleView::from_slice(&other, &[3]).unwrap());
        assert_eq!((list.len(), list.address(4)), (5, other.as_ptr()));
        assert!(SampleList::rows(&table.select(0).unwrap().select(0).unwrap()).is_err());
    }

    #[test]
    fn views_stay_inside_their_slice() {
        let data = [1i32, 2, 3, 4, 5, 6];
        assert!(SampleView::from_slice(&data, &[7]).is_err());
        assert!(SampleView::with_strides(&data, &[3, 2], &[2, 2]).is_err());
        let far = SampleView::with_strides(&[0u8], &[2, 2], &[i64::MIN + 1, i64::MAX - 1]);
        assert!(matches!(far, Err(Error::Layout(_))), "a span of more than 63 bits");
        let reversed = SampleView::with_strides(&data, &[6], &[-1]).unwrap();
        assert_eq!(reversed.data, data[5..].as_ptr().cast());
    }
}
