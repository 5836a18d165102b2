//! Samples that are rows of several lengths: an extent for each, instead of a `TensorMeta`.

use std::sync::Arc;

use crate::samples::list::{end_without_memory, no_room, reserve_in_all, room_for, SampleList};
use crate::samples::meta::{same_dims, Metas, TensorMeta, Told};
use crate::tensor::{DType, Device, Dims, Layout, Result};

impl SampleList<'_> {
    /// Whether a row-major sample differs from the first one, if at all, in the extent of dim 0 alone, so
    /// that it may be [`SampleList::append_row`]'s.
    #[inline]
    pub(super) fn is_row(&self, dtype: DType, device: Device, shape: &[i64]) -> bool {
        self.metas.all().first().is_some_and(|first| {
            self.is_rows()
                && first.dtype == dtype
                && first.device == device
                && self.fits_rows(first, shape)
        })
    }

    /// Whether a shape is that of a row, by all but its dtype and device.
    #[inline]
    pub(super) fn fits_rows(&self, first: &TensorMeta, shape: &[i64]) -> bool {
        let own = first.layout.shape();
        matches!(shape, [length, rest @ ..] if own.len() == shape.len()
            && same_dims(&own[1..], rest) && (0..=self.longest).contains(length))
    }

    /// Whether the samples so far are rows that differ from the first one in length at most.
    #[inline]
    pub(super) fn is_rows(&self) -> bool {
        self.longest >= 0 && self.metas.all().len() == 1 && self.told.get().is_none()
    }

    /// Says whether there was room for it. A call for each sample costs a tenth of what a list takes.
    #[inline(always)]
    pub(super) fn append_row(&mut self, data: *const u8, length: i64) -> bool {
        let is_new = self.lengths.is_empty() && length != self.metas.all()[0].layout.shape()[0];
        if is_new && !self.begin_lengths() {
            return false;
        }
        if !self.lengths.is_empty() || is_new {
            self.lengths.push(length);
        }
        self.data.each().push(data);
        true
    }

    /// Appends row-major samples that differ from the last one in their address and the extent of dim 0 alone, if the list is of
    /// such rows: those between `bounds`, in places of `unit` bytes each from `data` on, where the first bound is. Says whether it did.
    ///
    /// # Safety
    /// Bounds do not decrease. As many elements of the last sample's dtype as are between the first and the last are initialised
    /// memory of the host, row-major from `data` on, that nothing writes to or frees while the list is used.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn append_rows_like_last(
        &mut self,
        data: *const u8,
        bounds: &[i64],
        unit: usize,
    ) -> bool {
        let (&[first, .., last], [_, ends @ ..]) = (bounds, bounds) else {
            return bounds.len() < 2;
        };
        let fits = self.is_rows()
            && !self.is_empty()
            && self.selection.is_none()
            && (0..=self.longest).contains(&last.wrapping_sub(first));
        if !fits {
            return false;
        }
        let length = self.metas.all()[0].layout.shape()[0];
        let mut lengths = bounds.iter().zip(ends).map(|(begin, end)| end - begin);
        let is_new = self.lengths.is_empty() && lengths.any(|other| other != length);
        if self.reserve(ends.len()).is_err() || is_new && !self.begin_lengths() {
            return false;
        }
        if !self.lengths.is_empty() || is_new {
            self.lengths.extend(bounds.iter().zip(ends).map(|(begin, end)| end - begin));
        }
        let place = |&bound: &i64| data.wrapping_add(((bound - first) as usize).wrapping_mul(unit));
        self.data.each().extend(bounds[..ends.len()].iter().map(place));
        true
    }

    /// Starts to keep a length for each row, at the first row of another length. Says whether there was room.
    #[cold]
    pub(super) fn begin_lengths(&mut self) -> bool {
        let (count, first) = (self.data.len(), self.metas.all()[0].layout.shape()[0]);
        let room = self.data.each().capacity().max(count + 1);
        let has_room = self.lengths.try_reserve(room).is_ok();
        if has_room {
            self.lengths.resize(count, first);
        }
        has_room
    }

    /// A `TensorMeta` for each length of the rows, and each row's position among them.
    #[cold]
    pub(super) fn metas_of_rows(&self) -> Result<Told> {
        let &TensorMeta { dtype, device, ref layout } = &self.metas.all()[0];
        let (mut metas, mut shape) = (Metas::default(), Dims::from(layout.shape()));
        let mut id_of = |length: i64| -> Result<u32> {
            shape[0] = length;
            // The strides of all: that of dim 0 is made of the others' extents.
            if let Some(id) = metas.find(dtype, device, &shape, layout.strides()) {
                return Ok(id);
            }
            let layout = Layout::compact(dtype, &shape)?;
            metas.reserve().map_err(|_| no_room(self.lengths.len()))?;
            Ok(metas.insert(TensorMeta { dtype, device, layout }))
        };
        let mut ids = room_for(self.lengths.len())?;
        let mut last = None;
        for &length in &self.lengths {
            let id = match last {
                Some((known, id)) if known == length => id,
                _ => id_of(length)?,
            };
            last = Some((length, id));
            ids.push(id);
        }
        if metas.all().len() < 2 {
            ids.clear();
        }
        Ok((Arc::new(metas), ids))
    }

    /// Makes the `TensorMeta` of all rows, so that they can be asked for.
    pub(super) fn find_told(&self) -> Result<()> {
        if !self.lengths.is_empty() && self.told.get().is_none() {
            // Another thread may have been quicker.
            let _ = self.told.set(self.metas_of_rows()?);
        }
        Ok(())
    }

    /// Every distinct `TensorMeta`, and each sample's position among them.
    #[inline]
    pub(super) fn table(&self) -> (&Metas, &[u32]) {
        if self.lengths.is_empty() {
            return (&self.metas, &self.meta_ids);
        }
        let tell = || self.metas_of_rows().unwrap_or_else(|_| end_without_memory());
        let (metas, ids) = self.told.get_or_init(tell);
        (metas, ids)
    }

    /// Stores a `TensorMeta` for each sample from now on, as one comes that is no row.
    #[inline]
    pub(super) fn tell(&mut self) -> Result<()> {
        match self.lengths.is_empty() {
            true => Ok(()),
            false => self.tell_rows(),
        }
    }

    #[cold]
    pub(super) fn tell_rows(&mut self) -> Result<()> {
        self.find_told()?;
        let Some((metas, mut meta_ids)) = self.told.take() else { return Ok(()) };
        if !meta_ids.is_empty() {
            reserve_in_all(&mut meta_ids, self.data.each().capacity())?;
        }
        (self.metas, self.meta_ids) = (metas, meta_ids);
        self.last = self.meta_ids.last().copied().unwrap_or(0);
        self.lengths = Vec::new();
        Ok(())
    }
}
