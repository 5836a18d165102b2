//! Reading a list: metadata and addresses of its samples, and lists of some of them.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::sync::{Arc, OnceLock};

use crate::samples::addresses::{end_without_memory, Addresses};
use crate::samples::layouts::Layouts;
use crate::samples::list::{outside, SampleList};
use crate::samples::memo::Memo;
use crate::samples::meta::{Metas, TensorMeta};
use crate::samples::read_only::ReadOnly;
use crate::samples::selection::Selection;
use crate::tensor::{try_vec, Device, Error, Footprint, Owner, Result};

impl<'a> SampleList<'a> {
    /// Number of samples.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every distinct layout, and each sample's position among them, with lengths applied. Kept for later calls.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[inline]
    pub(super) fn try_exact(&self) -> Result<&Layouts> {
        if self.lengths.is_empty() {
            return Ok(&self.layouts);
        }
        if let Some(exact) = self.exact.get() {
            return Ok(exact);
        }
        let mut exact = Layouts::default();
        self.layouts.apply(&self.lengths, &mut exact)?;
        // Another thread may have been quicker.
        Ok(self.exact.get_or_init(|| exact))
    }

    /// The layouts of [`SampleList::try_exact`] for callers that cannot return an error: without memory the process
    /// ends.
    #[inline]
    pub(super) fn exact(&self) -> &Layouts {
        self.try_exact().unwrap_or_else(|_| end_without_memory())
    }

    /// Owners that keep samples in device memory alive, as far as the list has them.
    pub(crate) fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// The address of each sample's first element; for rows of a table the addresses are made by
    /// this call. Samples that only a device knows have that of the first sample of the list they
    /// are from.
    ///
    /// # Panics
    /// If the addresses of a table's rows are more than fit in the address space.
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
    /// If the list has no metas, or [`SampleList::meta_ids`] but no sample `index`; without ids each index gives the first.
    pub fn meta(&self, index: usize) -> &TensorMeta {
        let Layouts { metas, ids } = self.exact();
        &metas.all()[if ids.is_empty() { 0 } else { ids[index] as usize }]
    }

    /// Every distinct dtype, layout and device; after `take`, perhaps some that no sample has.
    pub fn metas(&self) -> &[TensorMeta] {
        self.exact().metas.all()
    }

    /// Position in [`SampleList::metas`] for each sample, or `None` if all have the first; after `take`, perhaps not `None` then.
    pub fn meta_ids(&self) -> Option<&[u32]> {
        let ids = &self.exact().ids[..];
        (!ids.is_empty()).then_some(ids)
    }

    /// The metadata of the first sample, except for the extent of dim 0 of a row; `None` without samples.
    #[inline]
    fn first(&self) -> Option<&TensorMeta> {
        let id = self.layouts.ids.first().copied().unwrap_or(0);
        self.layouts.metas.all().get(id as usize).filter(|_| !self.is_empty())
    }

    /// Number of dims of the first sample; 0 without samples.
    pub(crate) fn ndim(&self) -> usize {
        self.first().map_or(0, |meta| meta.layout.ndim())
    }

    /// The number of dims of the samples; `None` if the layouts differ in it, of which some may have no sample after `take`, or
    /// if there is no sample.
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn common_ndim(&self) -> Option<usize> {
        let ndim = self.ndim();
        let same = |meta: &TensorMeta| meta.layout.ndim() == ndim;
        (!self.is_empty() && self.layouts.metas.all().iter().all(same)).then_some(ndim)
    }

    /// The device of the first sample; `None` without samples.
    pub fn device(&self) -> Option<Device> {
        self.first().map(|meta| meta.device)
    }

    /// The dtypes of layouts that have elements, in native byte order, some more than once; after `take`, perhaps some that no
    /// sample has.
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn filled_dtypes(&self) -> impl Iterator<Item = crate::tensor::DType> + '_ {
        let has_long = self.lengths.iter().any(|&length| length > 0);
        let is_filled = move |(id, meta): &(usize, &TensorMeta)| {
            *id == 0 && has_long || meta.layout.numel() > 0
        };
        let metas = self.layouts.metas.all().iter().enumerate();
        metas.filter(is_filled).map(|(_, meta)| meta.dtype.native())
    }

    /// The dtype of a sample, in native byte order; `None` if there is no such sample.
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn dtype_at(&self, index: usize) -> Option<crate::tensor::DType> {
        let id = self.layouts.ids.get(index).copied().unwrap_or(0);
        let meta = self.layouts.metas.all().get(id as usize).filter(|_| index < self.len());
        meta.map(|meta| meta.dtype.native())
    }

    /// The dtype of the last sample, in native byte order; `None` without samples.
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn last_dtype(&self) -> Option<crate::tensor::DType> {
        self.dtype_at(self.len().checked_sub(1)?)
    }

    /// A clone that returns [`Error::OutOfMemory`] for the columns of a list with an address for each sample, where `clone` aborts.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[cfg(feature = "unstable-bindings")]
    #[doc(hidden)]
    pub fn try_clone(&self) -> Result<SampleList<'a>> {
        match &self.data {
            Addresses::Each(each) => self.take(0..each.len() as i64),
            Addresses::Rows { .. } => Ok(self.clone()),
        }
    }

    /// The address of each sample; empty for rows of a table.
    pub(crate) fn each(&self) -> &[*const u8] {
        match &self.data {
            Addresses::Each(each) => each,
            Addresses::Rows { .. } => &[],
        }
    }

    /// The cached plan for samples of this list on a device. It serves other samples of the same number, if plans differ only in
    /// the samples that they read; `None` if they differ in more. Samples that a device selects have one; of others, two or more
    /// on a device do, if they are uniform and no rows of a table.
    pub(crate) fn plan_memo(&self) -> Option<&Memo> {
        let is_alike = || {
            matches!(self.device(), Some(Device::Cuda(_)))
                && self.is_uniform()
                && self.each().len() > 1
        };
        let is_shared = self.selection.is_some() || is_alike();
        is_shared.then(|| self.layouts.metas.plan_memo.get_or_init(Memo::default))
    }

    /// Whether all samples have the first of [`SampleList::metas`], as those of an empty list do;
    /// after `take`, perhaps false though they have.
    pub fn is_uniform(&self) -> bool {
        self.lengths.is_empty() && self.layouts.ids.is_empty()
    }

    /// The metadata that all samples share, if they are row-major on the host and differ in the extent of dim 0 at most; and the
    /// extent of each, empty if all have that of the metadata. After `take`, perhaps `None` though they are such;
    /// of no samples, `None` unless taken from such.
    pub(crate) fn as_rows(&self) -> Option<(&TensorMeta, &[i64])> {
        let metas = &self.layouts.metas;
        let first = metas.all().first()?;
        let is_host = first.device == Device::Cpu;
        let are_rows = metas.max_row_len >= 0 || is_host && first.layout.is_compact();
        (self.layouts.ids.is_empty() && are_rows).then_some((first, &self.lengths))
    }

    /// The footprint of each sample: the bytes that its elements cover.
    pub(crate) fn footprints(&self) -> impl Iterator<Item = Footprint<'_>> {
        let rows = self.as_rows().filter(|(_, lengths)| !lengths.is_empty());
        (0..self.len()).map(move |index| match rows {
            Some((meta, lengths)) => {
                let begin = self.data.at(index).addr() as i128;
                let bytes = lengths[index].wrapping_mul(meta.unit());
                Footprint::for_run(begin..begin + i128::from(bytes))
            }
            None => {
                let TensorMeta { dtype, layout, .. } = self.meta(index);
                Footprint::new(self.data.at(index), layout, *dtype)
            }
        })
    }

    /// The position of the first sample that shares a byte with a tensor; `None` if none does.
    pub(crate) fn sharing(&self, other: &Footprint<'_>) -> Option<usize> {
        self.footprints().position(|of| of.shares_with(other))
    }

    /// A list of the samples at these indices: in another order, repeated or left out. It has all
    /// owners of this list, and the marks as read-only of its own samples.
    ///
    /// # Errors
    /// [`Error::Index`] for an index that is not in the list; negative ones count from the end.
    /// [`Error::OutOfMemory`]. [`Error::Argument`] for samples that only a device knows.
    pub fn take(&self, indices: impl IntoIterator<Item = i64>) -> Result<SampleList<'a>> {
        self.check_known()?;
        let (source, len) = (indices.into_iter(), self.len());
        let mut indices = try_vec(source.size_hint().0)?;
        indices.extend(source);
        let (data, lengths, ids) = match self.is_uniform() {
            true => (self.addresses_at(&indices)?, Vec::new(), Vec::new()),
            false => {
                let column_len = |is_empty: bool| if is_empty { 0 } else { indices.len() };
                let mut data = try_vec(indices.len())?;
                let mut lengths = try_vec(column_len(self.lengths.is_empty()))?;
                let mut ids = try_vec(column_len(self.layouts.ids.is_empty()))?;
                for &index in &indices {
                    let position = position_of(index, len)?;
                    data.push(self.data.at(position));
                    lengths.extend(self.lengths.get(position));
                    ids.extend(self.layouts.ids.get(position));
                }
                (data, lengths, ids)
            }
        };
        let read_only = self.read_only.take(&indices, len)?;
        Ok(SampleList {
            data: Addresses::Each(data),
            layouts: Layouts { metas: Arc::clone(&self.layouts.metas), ids },
            lengths,
            exact: OnceLock::new(),
            read_only,
            owners: self.owners.clone(),
            selection: None,
            memory: PhantomData,
        })
    }

    /// The address of each sample at these positions; negative ones count from the end.
    ///
    /// # Errors
    /// [`Error::Index`], [`Error::OutOfMemory`].
    pub(crate) fn addresses_at(&self, indices: &[i64]) -> Result<Vec<*const u8>> {
        match &self.data {
            Addresses::Each(each) => {
                let each = each.as_slice();
                look_up(indices, each.len(), |place| each[place])
            }
            &Addresses::Rows { first, step, len } => {
                let offset = |place: usize| (place as i64).wrapping_mul(step) as isize;
                look_up(indices, len, |place| first.wrapping_offset(offset(place)))
            }
        }
    }

    /// The samples of a range as a list without owners and marks as read-only. The range has a sample, and all have the
    /// metadata of its first one, which is not checked.
    pub(crate) fn alike(&self, range: Range<usize>) -> SampleList<'a> {
        let meta = self.meta(range.start).clone();
        SampleList {
            data: Addresses::Each(range.map(|index| self.data.at(index)).collect()),
            layouts: Layouts { metas: Arc::new(Metas::one(meta)), ids: Vec::new() },
            ..SampleList::default()
        }
    }

    /// Samples that a device selects, and what else has to be kept for the work on them. By this list's own fields every sample
    /// is the first of the list they are from, which is not empty: code that reads samples checks the selection.
    pub(crate) fn selected(
        selection: Arc<Selection<SampleList<'a>>>,
        owners: impl Iterator<Item = Owner>,
    ) -> SampleList<'a> {
        let (list, len) = (&selection.list, selection.len());
        let samples = &list.samples;
        SampleList {
            data: Addresses::Rows { first: samples.address(0), step: 0, len },
            layouts: Layouts {
                metas: Arc::clone(&list.representatives.layouts.metas),
                ids: Vec::new(),
            },
            read_only: ReadOnly::all_if(samples.is_read_only()),
            owners: samples.owners.iter().cloned().chain(owners).collect(),
            selection: Some(selection),
            ..SampleList::default()
        }
    }

    /// One sample for each `TensorMeta` in use, in the order of their first samples, and for every sample the position of its own
    /// among these; empty if there is only one. They have the list's owners, and are read-only if any sample is. The list is not
    /// empty.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn representatives(&self) -> Result<(SampleList<'a>, Vec<u32>)> {
        let ids = self.meta_ids().unwrap_or(&[0]);
        let mut number = vec![u32::MAX; self.metas().len()];
        let (mut each, mut numbers) = (SampleList::new(), try_vec(ids.len())?);
        for (index, &id) in ids.iter().enumerate() {
            let number = &mut number[id as usize];
            if *number == u32::MAX {
                *number = each.len() as u32;
                each.add_like(self.meta(index), self.data.at(index))?;
            }
            numbers.push(*number);
        }
        each.read_only = ReadOnly::all_if(self.is_read_only());
        each.owners.clone_from(&self.owners);
        if each.len() == 1 {
            numbers.clear();
        }
        Ok((each, numbers))
    }

    /// The selection by which a device chooses the samples; `None` if the host knows them.
    pub(crate) fn selection(&self) -> Option<&Selection<SampleList<'a>>> {
        self.selection.as_deref()
    }

    /// Checks that the host knows the samples.
    ///
    /// # Errors
    /// [`Error::Argument`] if they were selected by indices on a device.
    pub fn check_known(&self) -> Result<()> {
        match self.selection {
            None => Ok(()),
            Some(_) => Err(Error::argument(
                "these samples were taken by indices on a device, which the host does not know: they can be \
                 stacked, padded or moved by copy_many; take by indices on the host for all else"
                    .to_owned(),
            )),
        }
    }

    /// The address of the first sample and the pitch in bytes, if the list has samples as rows of a table. Samples that a device
    /// selects are such, of pitch 0.
    pub(crate) fn as_table(&self) -> Option<(*const u8, i64)> {
        match self.data {
            Addresses::Rows { first, step, .. } => Some((first, step)),
            Addresses::Each(_) => None,
        }
    }
}

/// The position for an index into a list of `len` samples; a negative one counts from the end. [`Error::Index`] for one
/// out of range.
#[inline(always)]
fn position_of(index: i64, len: usize) -> Result<usize> {
    match place_of(index, len) {
        place if place < len => Ok(place),
        _ => Err(outside(index, len)),
    }
}

/// The position of an index that may be negative; not below `len` if there is none.
#[inline(always)]
fn place_of(index: i64, len: usize) -> usize {
    index.wrapping_add(if index < 0 { len as i64 } else { 0 }) as usize
}

/// The address of each sample at these indices in a list of `len`; negative ones count from the end.
///
/// # Errors
/// [`Error::Index`], [`Error::OutOfMemory`].
#[inline(always)]
fn look_up(
    indices: &[i64],
    len: usize,
    address: impl Fn(usize) -> *const u8,
) -> Result<Vec<*const u8>> {
    let mut data = try_vec(indices.len())?;
    let mut all_there = true;
    data.extend(indices.iter().map(|&index| match place_of(index, len) {
        place if place < len => address(place),
        _ => {
            all_there = false;
            ptr::null()
        }
    }));
    if !all_there {
        indices.iter().try_for_each(|&index| position_of(index, len).map(drop))?;
    }
    Ok(data)
}
