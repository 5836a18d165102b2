//! Lists made from another: one sample in place of another, fewer samples, the same samples elsewhere.

use crate::samples::addresses::Addresses;
use crate::samples::list::{no_room, outside, SampleList};
use crate::samples::meta::TensorMeta;
use crate::tensor::{are_compact, new_owners, Device, Layout, Offsets, Result};

impl SampleList<'static> {
    /// One sample at address 0, of a list that nothing reads.
    pub(crate) fn of_meta(meta: &TensorMeta) -> Result<SampleList<'static>> {
        let mut list = SampleList::new();
        list.push_meta(meta, std::ptr::null())?;
        Ok(list)
    }
}

impl<'a> SampleList<'a> {
    /// The same samples row-major, the bytes of each from its offset on, in memory of a device that begins at address 0:
    /// addresses to be added to, of samples that nothing reads.
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
                let layout = Layout::compact(meta.dtype, meta.layout.shape())?;
                last = Some((meta, TensorMeta { dtype: meta.dtype, device, layout }));
            }
            if let Some((_, meta)) = &last {
                list.push_meta(meta, std::ptr::without_provenance(offset as usize))?;
            }
        }
        Ok(list)
    }

    /// Sample `from` of another list in place of sample `index`: the reference is replaced, and no memory is written. Lists
    /// that were taken from this one keep the sample that they have.
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
                return Err(outside(index as i64, len as i64));
            }
        }
        let (meta, data) = (other.meta(from), other.address(from));
        let (shape, strides) = (meta.layout.shape(), meta.layout.strides());
        // Of a table's rows there is an address each from now on.
        self.reserve(0)?;
        let owners = new_owners(&self.owners, &other.owners);
        self.owners.try_reserve(owners.len()).map_err(|_| no_room(owners.len()))?;
        // What was said of the lengths so far.
        self.told.take();
        if self.is_row(meta.dtype, meta.device, shape) && are_compact(strides, shape) {
            let is_new =
                self.lengths.is_empty() && shape[0] != self.metas.all()[0].layout.shape()[0];
            if is_new && !self.begin_lengths() {
                return Err(no_room(len));
            }
            if let Some(length) = self.lengths.get_mut(index) {
                *length = shape[0];
            }
        } else {
            self.tell()?;
            let last = self.last;
            let id = match self.metas.find(meta.dtype, meta.device, shape, strides) {
                Some(id) => id,
                None => {
                    self.insert(meta.clone())?;
                    self.last
                }
            };
            if self.metas.all().len() > 1 {
                self.meta_ids.resize(len, 0);
                self.meta_ids[index] = id;
            }
            self.last = if index + 1 == len { id } else { last };
        }
        self.data.each()[index] = data;
        self.read_only |= other.read_only;
        self.owners.extend_from_slice(owners);
        Ok(())
    }

    /// Keeps the first `len` samples, all if there are no more.
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
        self.lengths.truncate(len);
        self.told.take();
        self.meta_ids.truncate(len);
        self.last = self.meta_ids.last().copied().unwrap_or(0);
    }
}
