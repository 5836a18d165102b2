//! [`Layouts`]: what samples are like, each distinct layout stored once. Layouts of rows are derived from their
//! lengths.

use std::sync::Arc;

use crate::samples::addresses::reserve_in_all;
use crate::samples::meta::{Metas, TensorMeta};
use crate::tensor::{compact_strides, out_of_memory, try_vec, DType, Device, Dims, Layout, Result};

/// Every distinct layout, and which of them each sample has.
#[derive(Clone, Debug, Default)]
pub(super) struct Layouts {
    pub metas: Arc<Metas>,
    /// Position in `metas` for each sample; empty while all have the first.
    pub ids: Vec<u32>,
}

impl Layouts {
    /// Position in `metas` of the last sample; 0 without samples.
    #[inline]
    pub fn last(&self) -> u32 {
        self.ids.last().copied().unwrap_or(0)
    }

    /// The position of a layout in `metas`, where it is added if it is new; `ids` stays as it is. `strides: None` means row-major
    /// without gaps.
    ///
    /// # Errors
    /// As [`Layout::try_new`]; [`Error::OutOfMemory`](crate::Error::OutOfMemory).
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
        // Strides of layouts without elements are made compact, by which they may be known.
        if given.is_some_and(|given| layout.strides() != given) {
            if let Some(id) = self.metas.find(dtype, device, shape, layout.strides()) {
                return Ok(id);
            }
        }
        let reserved = match Arc::get_mut(&mut self.metas) {
            Some(metas) => metas.reserve(),
            None => self.metas.with_capacity().map(|metas| self.metas = Arc::new(metas)),
        };
        reserved.map_err(|_| out_of_memory::<TensorMeta>(self.metas.all().len()))?;
        Ok(Arc::make_mut(&mut self.metas).insert(TensorMeta { dtype, device, layout }))
    }

    /// Leaves out layouts that no sample has, once they are more than half: a queue of ever new shapes would keep them all. The first
    /// stays, since lengths are of its rows, and up to 64 are not worth the copy. Not in `take`, whose lists share the layouts.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory); the layouts are then unchanged.
    #[inline]
    pub fn trim(&mut self) -> Result<()> {
        match self.metas.all().len() > self.ids.len().saturating_mul(2).max(64) {
            true => self.copy_used(),
            false => Ok(()),
        }
    }

    /// Does what [`Layouts::trim`] does, if some are to be left out.
    #[cold]
    fn copy_used(&mut self) -> Result<()> {
        let all = self.metas.all();
        let mut used = Layouts { metas: Arc::new(Metas::one(all[0].clone())), ids: Vec::new() };
        let mut ids = try_vec(self.ids.len())?;
        for &id in &self.ids {
            let TensorMeta { dtype, device, layout } = &all[id as usize];
            ids.push(used.id_of(*dtype, *device, layout.shape(), Some(layout.strides()))?);
        }
        *self = Layouts { metas: used.metas, ids };
        Ok(())
    }

    /// Adds to `exact` these layouts with the lengths of rows applied, for the samples behind those that it has already. A length
    /// becomes the extent of dim 0 in the first layout alone: samples of other layouts keep theirs. `lengths` has one of each
    /// sample, those included that `exact` has already; on an error `exact` has some of them.
    #[cold]
    pub fn apply(&self, lengths: &[i64], exact: &mut Layouts) -> Result<()> {
        reserve_in_all(&mut exact.ids, lengths.len())?;
        let first = &self.metas.all()[0];
        let mut row_shape = Dims::from(first.layout.shape());
        let mut last = None;
        for (index, &length) in lengths.iter().enumerate().skip(exact.ids.len()) {
            let which = (self.ids.get(index).copied().unwrap_or(0), length);
            let id = match last {
                Some((known, id)) if known == which => id,
                _ => {
                    let meta = &self.metas.all()[which.0 as usize];
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
}
