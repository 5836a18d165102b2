//! Lists made from another: one sample in place of another, fewer samples, the same samples elsewhere.

use std::sync::Arc;

use crate::samples::addresses::Addresses;
use crate::samples::list::{outside, SampleList};
use crate::samples::meta::TensorMeta;
use crate::tensor::{new_owners, out_of_memory, Device, Layout, Offsets, Owner, Result};

impl SampleList<'static> {
    /// A list of one sample with this metadata at address 0, which nothing may read.
    pub(crate) fn for_meta(meta: &TensorMeta) -> Result<SampleList<'static>> {
        let mut list = SampleList::new();
        list.add_like(meta, std::ptr::null())?;
        Ok(list)
    }
}

impl<'a> SampleList<'a> {
    /// The same samples row-major in native byte order, each from its offset in bytes on, in memory of a device that begins at
    /// address 0: addresses to be added to, of samples that nothing may read. `offsets` has one for
    /// each sample or more.
    ///
    /// # Errors
    /// As [`Layout::compact`]; [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub(crate) fn packed_at(
        &self,
        offsets: &Offsets,
        device: Device,
    ) -> Result<SampleList<'static>> {
        let mut list = SampleList::new();
        list.reserve(self.len())?;
        let mut last: Option<(&TensorMeta, TensorMeta)> = None;
        for (index, &offset) in offsets.as_slice()[..self.len()].iter().enumerate() {
            let meta = self.meta(index);
            if last.as_ref().is_none_or(|(of, _)| !std::ptr::eq(*of, meta)) {
                // Packed, they are in native byte order.
                let dtype = meta.dtype.native();
                let layout = Layout::compact(dtype, meta.layout.shape())?;
                last = Some((meta, TensorMeta { dtype, device, layout }));
            }
            if let Some((_, meta)) = &last {
                list.add_like(meta, std::ptr::without_provenance(offset as usize))?;
            }
        }
        Ok(list)
    }

    /// Puts sample `from` of another list, with its mark as read-only, in place of sample `index`:
    /// the reference is replaced, and no memory is written. Lists that were taken from this one
    /// keep the sample that they have. All owners of both lists stay in this one, that of the
    /// sample that is replaced too.
    ///
    /// # Errors
    /// [`Error::Index`](crate::Error::Index) if one of the samples does not exist; [`Error::Argument`](crate::Error::Argument) if the
    /// samples of a list were selected by indices on a device; [`Error::OutOfMemory`](crate::Error::OutOfMemory). The list is then
    /// unchanged.
    ///
    /// ```
    /// use windrow::{Collate, Engine, SampleList, SampleView};
    /// let list = |rows: &'static [[u8; 2]]| -> SampleList<'static> {
    ///     rows.iter().map(|row| SampleView::from(&row[..])).collect()
    /// };
    /// let mut ring = list(&[[1, 2], [3, 4]]);
    /// ring.replace(0, &list(&[[5, 6]]), 0)?;
    /// let batch = Engine::host().assemble(&ring, &Collate::stack())?;
    /// assert_eq!(batch.data().as_slice::<u8>()?, [5, 6, 3, 4]);
    /// # Ok::<(), windrow::Error>(())
    /// ```
    pub fn replace(&mut self, index: usize, other: &SampleList<'a>, from: usize) -> Result<()> {
        self.check_known().and(other.check_known())?;
        let len = self.len();
        for (index, len) in [(index, len), (from, other.len())] {
            if index >= len {
                return Err(outside(index, len));
            }
        }
        let (meta, data) = (other.meta(from), other.address(from));
        // Rows of a table get an address each from now on.
        self.reserve(0)?;
        let owners = new_owners(&self.owners, &other.owners);
        self.owners.try_reserve(owners.len()).map_err(|_| out_of_memory::<Owner>(owners.len()))?;
        let TensorMeta { dtype, device, layout } = meta;
        let (shape, strides) = (layout.shape(), Some(layout.strides()));
        let place = match self.is_row(*dtype, *device, shape, strides) {
            true => (0, shape[0]),
            false => self.place_of(*dtype, *device, shape, strides)?,
        };
        let (has_ids, has_lengths) = self.columns_with(place.0, place.1);
        self.begin_columns(has_ids, has_lengths)?;
        self.layouts.ids.get_mut(index).into_iter().for_each(|id| *id = place.0);
        self.lengths.get_mut(index).into_iter().for_each(|length| *length = place.1);
        self.exact.take();
        self.data.each()[index] = data;
        self.read_only.set(index, other.is_read_only_at(from));
        self.owners.extend_from_slice(owners);
        Ok(())
    }

    /// Keeps the first `len` samples, all if there are no more, and all owners. Samples that are
    /// pushed later are no longer marked by [`SampleList::mark_read_only`].
    ///
    /// ```
    /// use windrow::{SampleList, SampleView};
    /// let mut list: SampleList = [[1u8, 2], [3, 4], [5, 6]].iter().map(|row| SampleView::from(&row[..])).collect();
    /// list.truncate(2);
    /// assert_eq!(list.len(), 2);
    /// ```
    pub fn truncate(&mut self, len: usize) {
        match &mut self.data {
            Addresses::Each(each) => each.truncate(len),
            Addresses::Rows { len: count, .. } => *count = len.min(*count),
        }
        self.layouts.ids.truncate(len);
        self.lengths.truncate(len);
        self.read_only.truncate(len);
        self.exact.take();
        if let Some(selection) = self.selection.as_deref().filter(|from| from.len() > len) {
            self.selection = selection.first(len).map(Arc::new);
        }
    }
}
