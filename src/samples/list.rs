//! Stage 1. Lists of samples: an address for each, and every distinct layout once.

use std::borrow::Borrow;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use crate::samples::addresses::Addresses;
use crate::samples::meta::{same_dims, Metas, TensorMeta, Told};
use crate::samples::selection::Selection;
use crate::samples::view::SampleView;
use crate::tensor::{
    are_compact, compact_strides, new_owners, DType, Device, Error, Layout, Mismatch, Owner,
    Result, Tensor,
};

/// Samples imported once: an address each, and every distinct layout stored once.
///
/// A uniform list costs 8 bytes a sample, row-major ones that differ in dim 0 alone 16, any other 12, the rows
/// of a table nothing. `take` picks a batch by index without reading the samples again.
#[derive(Clone, Debug, Default)]
pub struct SampleList<'a> {
    pub(super) data: Addresses,
    /// The extent of dim 0 of each sample, as long as they differ in nothing else and are row-major on the host:
    /// the first `TensorMeta` has the rest. Empty while all are of the first extent, and where `meta_ids` is not.
    pub(super) lengths: Vec<i64>,
    /// The largest such extent that a row may have; negative if the first sample is no row.
    pub(super) longest: i64,
    /// `metas` and `meta_ids` with `lengths` applied, computed on first use.
    pub(super) told: OnceLock<Told>,
    /// Position in `metas` for each sample; empty while there is only one `TensorMeta`.
    pub(super) meta_ids: Vec<u32>,
    pub(super) metas: Arc<Metas>,
    /// Position in `metas` of the last sample.
    pub(super) last: u32,
    pub(super) read_only: bool,
    /// Owners of device memory that the list itself must keep: see `SampleView`.
    pub(super) owners: Vec<Owner>,
    /// Which samples these are, if only a device knows.
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
    /// The table's memory stays valid and unchanged during `'a`; on a CUDA device or in page-locked memory until the work that
    /// reads it is done.
    #[allow(unsafe_code)]
    pub unsafe fn rows_from_raw_parts(table: &Tensor) -> Result<SampleList<'a>> {
        let (Some(&len), [step, strides @ ..]) = (table.shape().first(), table.strides()) else {
            let mismatch = Mismatch::of("samples", "at least one dim", table.shape());
            return Err(Error::Shape(Box::new(mismatch)));
        };
        let layout = Layout::try_new(table.dtype(), &table.shape()[1..], Some(strides))?;
        let meta = TensorMeta { dtype: table.dtype(), device: table.device(), layout };
        let step = step.wrapping_mul(table.dtype().size() as i64);
        Ok(SampleList {
            data: Addresses::Rows { first: table.data_ptr(), step, len: len as usize },
            longest: meta.longest_row(),
            metas: Arc::new(Metas::one(meta)),
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
        let count = self.len().saturating_add(additional);
        match &mut self.data {
            Addresses::Each(each) => {
                each.try_reserve(additional).map_err(|_| no_room(additional))?
            }
            Addresses::Rows { .. } => {
                let mut each = room_for(count)?;
                each.extend((0..self.len()).map(|index| self.data.at(index)));
                self.data = Addresses::Each(each);
            }
        }
        match (self.lengths.is_empty(), self.metas.all().len()) {
            (true, 0 | 1) => Ok(()),
            (true, _) => reserve_in_all(&mut self.meta_ids, count),
            (false, _) => reserve_in_all(&mut self.lengths, count),
        }
    }

    /// A table may have more rows than there is memory to tell them apart, if they are empty or all
    /// the same. Refused before anything is made for each of them, `additional` samples included.
    pub(crate) fn check_rows(&self, additional: usize) -> Result<()> {
        let Addresses::Rows { len, .. } = self.data else { return Ok(()) };
        room_for::<*const u8>(len.saturating_add(additional)).map(drop)
    }

    /// Appends a sample that is already checked.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Argument`] for a list of samples that only a device knows. The list is then
    /// unchanged.
    pub fn push_view(&mut self, view: &SampleView<'a>) -> Result<()> {
        self.push_meta(view.meta(), view.data())?;
        // Neighbours are often parts of one tensor.
        let is_last =
            |owner: &&Owner| self.owners.last().is_some_and(|last| Arc::ptr_eq(last, owner));
        self.owners.extend(view.owner().filter(|owner| !is_last(owner)).cloned());
        Ok(())
    }

    /// A list of views. Without memory the process ends, as where a `Vec` grows.
    pub(crate) fn of_views(views: impl IntoIterator<Item = impl Borrow<SampleView<'a>>>) -> Self {
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
        if self.is_row(dtype, device, shape) && strides.is_none_or(|s| are_compact(s, shape)) {
            return match self.append_row(data, shape[0]) {
                true => Ok(()),
                false => Err(no_room(self.len())),
            };
        }
        self.check_known()?;
        self.tell()?;
        let compact;
        let given = match strides {
            Some(strides) => Some(strides),
            None => {
                compact = compact_strides(shape);
                compact.as_deref()
            }
        };
        let known = given.and_then(|strides| {
            let last = self.metas.all().get(self.last as usize);
            match last.is_some_and(|last| last.is(dtype, device, shape, strides)) {
                true => Some(self.last),
                false => self.metas.find(dtype, device, shape, strides),
            }
        });
        match known {
            Some(id) => self.last = id,
            None => {
                let layout = Layout::try_new(dtype, shape, strides)?;
                self.insert(TensorMeta { dtype, device, layout })?;
            }
        }
        self.append(data);
        Ok(())
    }

    /// Adds a `TensorMeta` that is not there yet, as the last one.
    pub(super) fn insert(&mut self, meta: TensorMeta) -> Result<()> {
        let num_metas = self.metas.all().len();
        if num_metas > 0 {
            // From the second `TensorMeta` on each sample has its position: as many as there is room for.
            reserve_in_all(&mut self.meta_ids, self.data.each().capacity())?;
        }
        let has_room = match Arc::get_mut(&mut self.metas) {
            Some(metas) => metas.reserve(),
            None => self.metas.with_room().map(|metas| self.metas = Arc::new(metas)),
        };
        has_room.map_err(|_| no_room(num_metas))?;
        if num_metas == 0 {
            self.longest = meta.longest_row();
        }
        self.last = Arc::make_mut(&mut self.metas).insert(meta);
        Ok(())
    }

    /// Appends a sample with the dtype and device of the last one, if it has the same shape and strides, or if all samples are
    /// row-major on the host and it differs in the extent of dim 0 only. Returns whether it was appended.
    ///
    /// # Safety
    /// Every element of the last sample's dtype that shape and strides reach from `data` is initialised memory of the
    /// last sample's device that nothing writes to or frees during `'a`; on a CUDA device or in page-locked memory until
    /// the work that reads it is done.
    #[allow(unsafe_code)]
    #[inline]
    pub unsafe fn push_if_same(&mut self, data: *const u8, shape: &[i64], strides: &[i64]) -> bool {
        if self.is_empty() || self.selection.is_some() {
            return false;
        }
        let Some(last) = self.metas.all().get(self.last as usize) else { return false };
        if self.is_rows() && self.fits_rows(last, shape) && are_compact(strides, shape) {
            return self.append_row(data, shape[0]);
        }
        let (own, own_strides) = (last.layout.shape(), last.layout.strides());
        let same =
            self.lengths.is_empty() && same_dims(own, shape) && same_dims(own_strides, strides);
        if same {
            self.append(data);
        }
        same
    }

    /// Appends samples that differ from the last one in their address alone; none to a list without samples, nor to one
    /// that has made the `TensorMeta`s of its rows.
    ///
    /// # Safety
    /// Every element that the last sample's shape and strides reach from each address is of its dtype, in initialised memory
    /// of its device that nothing writes to or frees during `'a`; on a CUDA device or in page-locked memory until the work
    /// that reads it is done.
    #[allow(unsafe_code)]
    #[inline]
    pub(crate) unsafe fn append_like_last(&mut self, data: impl Iterator<Item = *const u8>) {
        if self.is_empty() || self.selection.is_some() || self.told.get().is_some() {
            return;
        }
        let each = self.data.each();
        each.extend(data);
        if let Some(&length) = self.lengths.last() {
            self.lengths.resize(each.len(), length);
        }
        if self.metas.all().len() > 1 {
            self.meta_ids.resize(each.len(), self.last);
        }
    }

    /// Appends a row-major sample that differs from the last one in its address and the extent of dim 0 alone, if the list is
    /// of such rows. Says whether it did.
    ///
    /// # Safety
    /// As many elements of the last sample's dtype as a row of this extent has, row-major from `data` on, are initialised
    /// memory of the host that nothing writes to or frees during `'a`.
    #[allow(unsafe_code)]
    #[inline]
    pub(crate) unsafe fn append_row_like_last(&mut self, data: *const u8, length: i64) -> bool {
        let fits = self.is_rows()
            && !self.is_empty()
            && self.selection.is_none()
            && (0..=self.longest).contains(&length);
        fits && self.append_row(data, length)
    }

    /// Appends all samples of another list.
    ///
    /// # Errors
    /// As [`SampleList::reserve`]; [`Error::Argument`] for samples that were selected by indices on a device.
    pub fn extend(&mut self, other: &SampleList<'a>) -> Result<()> {
        self.check_known()?;
        other.check_known()?;
        other.check_rows(0)?;
        other.find_told()?;
        self.reserve(other.len())?;
        let owners = new_owners(&self.owners, &other.owners);
        self.owners.try_reserve(owners.len()).map_err(|_| no_room(owners.len()))?;
        let (len, last) = (self.len(), self.last);
        for index in 0..other.len() {
            if let Err(error) = self.push_meta(other.meta(index), other.data.at(index)) {
                self.truncate(len);
                self.last = self.meta_ids.last().copied().unwrap_or(last);
                return Err(error);
            }
        }
        self.read_only |= other.read_only;
        self.owners.extend_from_slice(owners);
        Ok(())
    }

    /// Marks the list as having a sample that must not be written to, so that a view of the samples is read-only.
    pub fn mark_read_only(&mut self) {
        self.read_only = true;
    }

    /// Whether some sample must not be written to.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Appends a sample that is already checked.
    #[inline]
    pub(super) fn push_meta(&mut self, meta: &TensorMeta, data: *const u8) -> Result<()> {
        let TensorMeta { dtype, device, layout } = meta;
        let (shape, strides) = (layout.shape(), layout.strides());
        let is_row = self.is_row(*dtype, *device, shape) && are_compact(strides, shape);
        if is_row && self.append_row(data, shape[0]) {
            return Ok(());
        }
        self.check_known()?;
        self.tell()?;
        if self.metas.all().get(self.last as usize) != Some(meta) {
            match self.metas.find(*dtype, *device, shape, strides) {
                Some(id) => self.last = id,
                None => self.insert(meta.clone())?,
            }
        }
        self.append(data);
        Ok(())
    }

    #[inline]
    pub(super) fn append(&mut self, data: *const u8) {
        if self.metas.all().len() > 1 {
            // Samples before the second `TensorMeta` came all have the first.
            self.meta_ids.resize(self.data.len(), 0);
            self.meta_ids.push(self.last);
        }
        self.data.each().push(data);
    }
}

#[cold]
pub(super) fn outside(index: i64, len: i64) -> Error {
    Error::Index(format!("index {index} in a list of {len} samples"))
}

/// An empty list with room for so many entries.
pub(super) fn room_for<T>(count: usize) -> Result<Vec<T>> {
    let mut entries = Vec::new();
    entries.try_reserve_exact(count).map_err(|_| no_room(count))?;
    Ok(entries)
}

/// Makes room for `count` entries in all.
pub(super) fn reserve_in_all<T>(entries: &mut Vec<T>, count: usize) -> Result<()> {
    let additional = count.saturating_sub(entries.len());
    entries.try_reserve(additional).map_err(|_| no_room(count))
}

/// Where no error can be given.
#[cold]
pub(super) fn end_without_memory() -> ! {
    std::alloc::handle_alloc_error(std::alloc::Layout::new::<TensorMeta>())
}

#[cold]
pub(super) fn no_room(count: usize) -> Error {
    Error::OutOfMemory { bytes: (count as u64).saturating_mul(size_of::<*const u8>() as u64) }
}

impl<'a> FromIterator<SampleView<'a>> for SampleList<'a> {
    fn from_iter<I: IntoIterator<Item = SampleView<'a>>>(views: I) -> Self {
        SampleList::of_views(views)
    }
}
