//! [`Layouts`]: what samples are like, each distinct layout stored once. Those of rows are derived from their lengths.

use std::sync::Arc;

use crate::samples::list::{end_without_memory, no_room, reserve_in_all, SampleList};
use crate::samples::meta::{Metas, TensorMeta};
use crate::tensor::{compact_strides, DType, Device, Dims, Layout, Result};

/// Every distinct layout, and which of them each sample has.
#[derive(Clone, Debug, Default)]
pub(super) struct Layouts {
    pub metas: Arc<Metas>,
    /// Position in `metas` for each sample; empty while all have the first.
    pub ids: Vec<u32>,
}

impl Layouts {
    /// Position in `metas` of the last sample.
    #[inline]
    pub fn last(&self) -> u32 {
        self.ids.last().copied().unwrap_or(0)
    }

    /// The position of a layout, which is added if it is new. `strides: None` means row-major without gaps.
    #[inline]
    pub fn id_of(
        &mut self,
        dtype: DType,
        device: Device,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> Result<u32> {
        let compact;
        let given = match strides {
            Some(strides) => Some(strides),
            None => {
                compact = compact_strides(shape);
                compact.as_deref()
            }
        };
        if let Some(given) = given {
            let last = self.last();
            let is_last = |meta: &TensorMeta| meta.is(dtype, device, shape, given);
            if self.metas.all().get(last as usize).is_some_and(is_last) {
                return Ok(last);
            }
            if let Some(id) = self.metas.find(dtype, device, shape, given) {
                return Ok(id);
            }
        }
        let layout = Layout::try_new(dtype, shape, strides)?;
        let has_room = match Arc::get_mut(&mut self.metas) {
            Some(metas) => metas.reserve(),
            None => self.metas.with_room().map(|metas| self.metas = Arc::new(metas)),
        };
        has_room.map_err(|_| no_room(self.metas.all().len()))?;
        Ok(Arc::make_mut(&mut self.metas).insert(TensorMeta { dtype, device, layout }))
    }
}

impl SampleList<'_> {
    /// Adds the layouts of the samples behind those that `exact` has already, with an id for each.
    #[cold]
    fn apply_lengths(&self, exact: &mut Layouts) -> Result<()> {
        reserve_in_all(&mut exact.ids, self.len())?;
        let first = &self.layouts.metas.all()[0];
        let mut row_shape = Dims::from(first.layout.shape());
        let mut last = None;
        for index in exact.ids.len()..self.len() {
            let which = (self.layouts.ids.get(index).copied().unwrap_or(0), self.lengths[index]);
            let id = match last {
                Some((known, id)) if known == which => id,
                _ => {
                    let meta = &self.layouts.metas.all()[which.0 as usize];
                    let mut shape = meta.layout.shape();
                    if which.0 == 0 && !row_shape.is_empty() {
                        row_shape[0] = which.1;
                        shape = &row_shape;
                    }
                    // Strides of a row-major sample do not depend on the extent of dim 0.
                    exact.id_of(meta.dtype, meta.device, shape, Some(meta.layout.strides()))?
                }
            };
            last = Some((which, id));
            exact.ids.push(id);
        }
        Ok(())
    }

    /// Every distinct layout, and each sample's position among them.
    #[inline]
    pub(super) fn try_exact(&self) -> Result<&Layouts> {
        if self.lengths.is_empty() {
            return Ok(&self.layouts);
        }
        if let Some(exact) = self.exact.get() {
            return Ok(exact);
        }
        let mut exact = Layouts::default();
        self.apply_lengths(&mut exact)?;
        // Another thread may have been quicker.
        Ok(self.exact.get_or_init(|| exact))
    }

    /// As [`SampleList::try_exact`], where no error can be given.
    #[inline]
    pub(super) fn exact(&self) -> &Layouts {
        self.try_exact().unwrap_or_else(|_| end_without_memory())
    }

    /// Brings the exact layouts up to date with the samples that were just added, if they were asked for before.
    #[inline(always)]
    pub(super) fn follow(&mut self) {
        if self.exact.get().is_some() {
            self.follow_added();
        }
    }

    #[cold]
    fn follow_added(&mut self) {
        let Some(mut exact) = self.exact.take() else { return };
        // Without memory they are made again when they are asked for.
        if self.apply_lengths(&mut exact).is_ok() {
            self.exact = exact.into();
        }
    }
}
