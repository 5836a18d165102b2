//! Stage 1. Lists of samples: an address for each, and every distinct layout once.

use std::borrow::Borrow;
use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use crate::samples::addresses::{end_without_memory, reserve_in_all, Addresses};
use crate::samples::layouts::Layouts;
use crate::samples::meta::{Metas, TensorMeta};
use crate::samples::read_only::ReadOnly;
use crate::samples::selection::Selection;
use crate::samples::view::SampleView;
use crate::tensor::{
    are_compact, new_owners, out_of_memory, try_vec, DType, Device, Error, Layout, Mismatch, Owner,
    Result, Tensor,
};

/// Samples imported once: an address each, and every distinct layout stored once.
///
/// A uniform list costs 8 bytes a sample, one of several layouts 4 more, one of rows that differ in the extent of dim 0
/// another 8, the rows of a table nothing. `take` picks a batch by index without reading the samples again.
#[derive(Clone, Debug, Default)]
pub struct SampleList<'a> {
    pub(super) data: Addresses,
    /// The layout of each sample. The first one stands for rows that differ from it in the extent of dim 0 alone: ragged
    /// samples often have a length each, and a search for each layout would take longer than all else.
    pub(super) layouts: Layouts,
    /// The extent of dim 0 of each row of the first layout, 0 for other samples; empty while each row has the first one's.
    pub(super) lengths: Vec<i64>,
    /// `layouts` with `lengths` applied, computed on first use.
    pub(super) exact: OnceLock<Layouts>,
    /// The samples that must not be written to.
    pub(super) read_only: ReadOnly,
    /// Owners of device memory that the list itself must keep: see `SampleView`.
    pub(super) owners: Vec<Owner>,
    /// The selection that gives the samples, if a device makes it.
    pub(super) selection: Option<Arc<Selection<SampleList<'a>>>>,
    pub(super) memory: PhantomData<&'a [u8]>,
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
    ///
    /// ```
    /// use windrow::{SampleList, SampleView};
    /// let mut list = SampleList::new();
    /// list.push_view(&SampleView::from([1u8, 2].as_slice()))?;
    /// assert_eq!(list.len(), 1);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn new() -> SampleList<'a> {
        SampleList::default()
    }

    /// The rows of a table along its dim 0, without anything kept for each of them; read-only if the table is.
    ///
    /// # Errors
    /// [`Error::Shape`] for a tensor without dims; [`Error::TooLarge`] for rows beyond 64 bits, of a table without any.
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

    /// Makes a list as [`SampleList::rows`] does, from a table that the caller keeps alive; the list also keeps its
    /// owner, unless its device is [`Device::Cpu`].
    ///
    /// # Errors
    /// As [`SampleList::rows`].
    ///
    /// # Safety
    /// The table's memory stays valid and unchanged during `'a`; on a CUDA device or in page-locked memory until the work that
    /// reads it is done.
    ///
    /// ```
    /// use windrow::{SampleList, Tensor};
    /// let table = Tensor::from_vec(vec![1i32, 2, 3, 4], &[2, 2])?;
    /// // SAFETY: the table outlives the list, and nobody writes to it.
    /// let list = unsafe { SampleList::rows_from_raw_parts(&table) }?;
    /// assert_eq!(list.len(), 2);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn rows_from_raw_parts(table: &Tensor) -> Result<SampleList<'a>> {
        let (Some(&len), [step, strides @ ..]) = (table.shape().first(), table.strides()) else {
            let mismatch = Mismatch::for_subject("samples", "at least one dim", table.shape());
            return Err(Error::Shape(Box::new(mismatch)));
        };
        let layout = Layout::try_new(table.dtype(), &table.shape()[1..], Some(strides))?;
        let meta = TensorMeta { dtype: table.dtype(), device: table.device(), layout };
        let step = step.wrapping_mul(table.dtype().size() as i64);
        Ok(SampleList {
            data: Addresses::Rows { first: table.data_ptr(), step, len: len as usize },
            layouts: Layouts { metas: Arc::new(Metas::one(meta)), ids: Vec::new() },
            read_only: ReadOnly::all_if(table.is_read_only()),
            owners: if table.device() == Device::Cpu {
                vec![]
            } else {
                vec![table.owner().clone()]
            },
            ..SampleList::default()
        })
    }

    /// Makes room for further samples; rows of a table get an address each.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; the list is then unchanged.
    pub fn reserve(&mut self, additional: usize) -> Result<()> {
        let count = self.len().saturating_add(additional);
        match &mut self.data {
            Addresses::Each(each) => {
                each.try_reserve(additional).map_err(|_| out_of_memory::<*const u8>(additional))?
            }
            Addresses::Rows { .. } => {
                let mut each = try_vec(count)?;
                each.extend((0..self.len()).map(|index| self.data.at(index)));
                self.data = Addresses::Each(each);
            }
        }
        if !self.layouts.ids.is_empty() {
            reserve_in_all(&mut self.layouts.ids, count)?;
        }
        match self.lengths.is_empty() {
            true => Ok(()),
            false => reserve_in_all(&mut self.lengths, count),
        }
    }

    /// Checks that an address for each row of a table fits memory, `additional` samples included, by an allocation that is freed at
    /// once: a table with empty or broadcast rows can have more rows. Other lists pass.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn check_rows(&self, additional: usize) -> Result<()> {
        let Addresses::Rows { len, .. } = self.data else { return Ok(()) };
        try_vec::<*const u8>(len.saturating_add(additional)).map(drop)
    }

    /// Appends a sample that is already checked, and its owner. The sample is not marked as read-only, even if it is a
    /// read-only tensor's.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] without memory for a new layout, or for an id or a length of each sample; [`Error::Argument`] for a
    /// list of samples that only a device knows. The list is then unchanged. Any other allocation failure aborts, as in `Vec::push`.
    pub fn push_view(&mut self, view: &SampleView<'a>) -> Result<()> {
        self.add_like(view.meta(), view.data())?;
        // Neighbours are often parts of one tensor.
        let is_last =
            |owner: &&Owner| self.owners.last().is_some_and(|last| Arc::ptr_eq(last, owner));
        self.owners.extend(view.owner().filter(|owner| !is_last(owner)).cloned());
        Ok(())
    }

    /// Builds a list from views. Aborts on allocation failure, like `Vec::push`.
    pub(crate) fn from_views(views: impl IntoIterator<Item = impl Borrow<SampleView<'a>>>) -> Self {
        let (mut list, views) = (SampleList::new(), views.into_iter());
        list.data.each().reserve(views.size_hint().0);
        for view in views {
            list.push_view(view.borrow()).unwrap_or_else(|_| end_without_memory());
        }
        list
    }

    /// Appends a foreign sample; `strides: None` means row-major without gaps.
    ///
    /// # Errors
    /// As [`Layout::try_new`] and [`SampleList::push_view`]; the list is then unchanged.
    ///
    /// # Safety
    /// Every element that shape and strides reach from `data` is initialised memory of its device that nothing writes
    /// to or frees during `'a`; on a CUDA device or in page-locked memory until the work that reads it is done.
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
        self.add(data, dtype, device, shape, strides)
    }

    /// What readers of columns append by in place of [`SampleList::push`]: samples that differ from the last one in their address
    /// alone; none to a list without samples, or of samples that only a device knows. They do not take over a mark as read-only of
    /// the last one alone. Aborts on allocation failure.
    ///
    /// # Safety
    /// Every element that the last sample's shape and strides reach from each address is of its dtype, in initialised memory
    /// of its device that nothing writes to or frees during `'a`; on a CUDA device or in page-locked memory until the work
    /// that reads it is done. `data` does not panic.
    #[doc(hidden)]
    #[allow(unsafe_code)]
    #[inline]
    pub unsafe fn extend_same(&mut self, data: impl IntoIterator<Item = *const u8>) {
        if self.is_empty() || self.selection.is_some() {
            return;
        }
        let each = self.data.each();
        each.extend(data);
        if let Some(&length) = self.lengths.last() {
            self.lengths.resize(each.len(), length);
        }
        if let Some(&id) = self.layouts.ids.last() {
            self.layouts.ids.resize(each.len(), id);
        }
        self.follow();
    }

    /// What readers of columns append by: row-major samples that differ from the last one in their address and the extent of dim 0
    /// alone, which come with each. Ends before the first that the list does not take so, which [`SampleList::push`] takes or
    /// refuses: what is too long, though the iterator has given it, and all if there is no sample or the last one is not row-major on the host or
    /// not like the first one but for the extent of dim 0; among samples of several layouts perhaps all. Aborts on allocation
    /// failure; without memory for the column of lengths it ends before the row that begins it.
    ///
    /// # Safety
    /// The address has the elements of a row of this extent, of the last sample's dtype, row-major: initialised memory of the
    /// host that nothing writes to or frees during `'a`.
    #[doc(hidden)]
    #[allow(unsafe_code)]
    #[inline]
    pub unsafe fn extend_rows(&mut self, rows: impl IntoIterator<Item = (*const u8, i64)>) {
        let max_row_len = self.layouts.metas.max_row_len;
        if self.is_empty() || max_row_len < 0 || self.layouts.last() != 0 || !self.keeps_lengths() {
            return;
        }
        let fits = |&(_, length): &(_, i64)| (0..=max_row_len).contains(&length);
        // An iterator may go on behind its end.
        let mut rows = rows.into_iter().take_while(fits).fuse();
        // The first row of another length begins the column of lengths.
        for (data, length) in rows.by_ref() {
            let is_appended = self.append(data, 0, length).is_ok();
            if !is_appended || !self.lengths.is_empty() && self.layouts.ids.is_empty() {
                break;
            }
        }
        if !self.lengths.is_empty() && self.layouts.ids.is_empty() {
            // Samples are appended by blocks: one by one to two lists takes twice as long.
            let mut block = [(std::ptr::null(), 0); 64];
            loop {
                let count =
                    block.iter_mut().zip(rows.by_ref()).map(|(entry, row)| *entry = row).count();
                self.data.each().extend(block[..count].iter().map(|row| row.0));
                self.lengths.extend(block[..count].iter().map(|row| row.1));
                if count < block.len() {
                    break;
                }
            }
        }
        self.follow();
    }

    /// Appends all samples of another list, with their owners and marks as read-only. On an error
    /// the samples are unchanged.
    ///
    /// # Errors
    /// As [`SampleList::reserve`]; [`Error::Argument`] for samples that were selected by indices on a device.
    pub fn extend(&mut self, other: &SampleList<'a>) -> Result<()> {
        self.check_known()?;
        other.check_known()?;
        other.check_rows(0)?;
        other.try_exact()?;
        self.reserve(other.len())?;
        let owners = new_owners(&self.owners, &other.owners);
        self.owners.try_reserve(owners.len()).map_err(|_| out_of_memory::<Owner>(owners.len()))?;
        let (len, read_only) = (self.len(), self.read_only.clone());
        for index in 0..other.len() {
            if let Err(error) = self.add_like(other.meta(index), other.data.at(index)) {
                self.truncate(len);
                self.read_only = read_only;
                return Err(error);
            }
        }
        self.read_only.extend(len, &other.read_only, other.len());
        self.owners.extend_from_slice(owners);
        Ok(())
    }

    /// Marks all samples as such that must not be written to, so that a view of them is read-only: those that are pushed later
    /// too, until the list is extended by another or truncated.
    pub fn mark_read_only(&mut self) {
        self.read_only = ReadOnly::all();
    }

    /// Marks the last sample, if there is one, as one that must not be written to.
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn mark_last_read_only(&mut self) {
        if let Some(last) = self.len().checked_sub(1) {
            self.read_only.push(last..last + 1);
        }
    }

    /// Whether some sample must not be written to; true of an empty list by [`SampleList::mark_read_only`], too.
    pub fn is_read_only(&self) -> bool {
        self.read_only.first().is_some()
    }

    /// Whether no sample may be written to; false of an empty list, but for [`SampleList::mark_read_only`].
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn is_all_read_only(&self) -> bool {
        self.read_only.has_all(self.len())
    }

    /// The position of the first sample that must not be written to; `None` if there is none, as in
    /// an empty list that is marked.
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn first_read_only(&self) -> Option<usize> {
        self.read_only.first().filter(|&first| first < self.len())
    }

    /// Whether sample `index` must not be written to; for an index out of range, whether samples
    /// that are pushed later are marked ([`SampleList::mark_read_only`]).
    pub fn is_read_only_at(&self, index: usize) -> bool {
        self.read_only.has(index)
    }

    /// Appends a sample with this metadata at `data`, which is not read. Owners and marks as read-only are the caller's to add. Fails
    /// and aborts as [`SampleList::push_view`].
    #[inline]
    pub(super) fn add_like(&mut self, meta: &TensorMeta, data: *const u8) -> Result<()> {
        let TensorMeta { dtype, device, layout } = meta;
        self.add(data, *dtype, *device, layout.shape(), Some(layout.strides()))
    }

    /// Appends a sample as [`SampleList::push`] does, without reading it.
    #[inline]
    fn add(
        &mut self,
        data: *const u8,
        dtype: DType,
        device: Device,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> Result<()> {
        match self.is_row(dtype, device, shape, strides) {
            true => self.append(data, 0, shape[0])?,
            false => {
                let (id, length) = self.place_of(dtype, device, shape, strides)?;
                self.append(data, id, length)?;
            }
        }
        self.follow();
        Ok(())
    }

    /// Whether a sample is a row-major row of the first layout, of any length if `keeps_lengths`, else of the first one's. Its
    /// length is then all that is kept of it. False if `Metas::max_row_len` is negative.
    #[inline]
    pub(super) fn is_row(
        &self,
        dtype: DType,
        device: Device,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> bool {
        let metas = &self.layouts.metas;
        metas.has_row(dtype, device, shape)
            && strides.is_none_or(|strides| are_compact(strides, shape))
            && (self.keeps_lengths() || shape[0] == metas.first_length)
    }

    /// The position of the layout of a sample that is no row, added if it is new, and the sample's entry in `lengths`: the first
    /// layout's extent of dim 0 if that is its own, else 0. Errors as of [`SampleList::push`].
    pub(super) fn place_of(
        &mut self,
        dtype: DType,
        device: Device,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> Result<(u32, i64)> {
        self.check_known()?;
        self.layouts.trim()?;
        let id = self.layouts.id_of(dtype, device, shape, strides)?;
        Ok((id, if id == 0 { self.layouts.metas.first_length } else { 0 }))
    }

    /// Whether rows of other lengths are kept as lengths of the first layout. Not in a list of several layouts without lengths:
    /// few samples are such rows, each length is a layout, and a list that is taken from this one derives no layouts.
    #[inline]
    fn keeps_lengths(&self) -> bool {
        !self.lengths.is_empty() || self.layouts.ids.is_empty()
    }

    /// Appends a sample to all columns, without [`SampleList::follow`]. On an error the samples are unchanged. The caller checks that
    /// no device selects the samples. Inlined, since a
    /// call for each sample costs a tenth of what a list takes.
    #[inline(always)]
    fn append(&mut self, data: *const u8, id: u32, length: i64) -> Result<()> {
        let (has_ids, has_lengths) = self.columns_with(id, length);
        if has_ids && self.layouts.ids.is_empty() || has_lengths && self.lengths.is_empty() {
            self.begin_columns(has_ids, has_lengths)?;
        }
        if has_ids {
            self.layouts.ids.push(id);
        }
        if has_lengths {
            self.lengths.push(length);
        }
        self.data.each().push(data);
        Ok(())
    }

    /// Whether the list has a column of ids, and one of lengths, once a sample with these is in it. Another id than 0 begins the
    /// ids; another length than the first layout's begins the lengths if the id is 0.
    #[inline(always)]
    pub(super) fn columns_with(&self, id: u32, length: i64) -> (bool, bool) {
        let is_other = || id == 0 && length != self.layouts.metas.first_length;
        (id != 0 || !self.layouts.ids.is_empty(), !self.lengths.is_empty() || is_other())
    }

    /// Begins columns of an id, or a length, of each sample: those so far have the first layout, of its own length. Rows of a
    /// table get an address each first, for which an allocation failure aborts.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] without memory for a column; the samples are unchanged, and the column of ids may have begun.
    #[cold]
    pub(super) fn begin_columns(&mut self, has_ids: bool, has_lengths: bool) -> Result<()> {
        let (count, first) = (self.len(), self.layouts.metas.first_length);
        let capacity = self.data.each().capacity().max(count + 1);
        if has_ids && self.layouts.ids.is_empty() {
            reserve_in_all(&mut self.layouts.ids, capacity)?;
            self.layouts.ids.resize(count, 0);
        }
        if has_lengths && self.lengths.is_empty() {
            reserve_in_all(&mut self.lengths, capacity)?;
            self.lengths.resize(count, first);
        }
        Ok(())
    }

    /// Brings the exact layouts up to date with the samples that were just added, if they were asked for before. Without memory
    /// they are dropped, to be made anew.
    #[inline(always)]
    pub(super) fn follow(&mut self) {
        if self.exact.get().is_some() {
            self.follow_added();
        }
    }

    /// Does what [`SampleList::follow`] does, once the exact layouts were asked for.
    #[cold]
    fn follow_added(&mut self) {
        let Some(mut exact) = self.exact.take() else { return };
        // The layouts are made again at the next request if memory is lacking now.
        if self.layouts.apply(&self.lengths, &mut exact).is_ok() {
            self.exact = exact.into();
        }
    }
}

/// The [`Error::Index`] for an index that is not in a list of `len` samples.
#[cold]
pub(super) fn outside(index: impl Display, len: usize) -> Error {
    Error::index(format!("index {index} in a list of {len} samples"))
}

impl<'a> FromIterator<SampleView<'a>> for SampleList<'a> {
    fn from_iter<I: IntoIterator<Item = SampleView<'a>>>(views: I) -> Self {
        SampleList::from_views(views)
    }
}
