//! The output of scales that are found, and the loops that lead to each.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::plan::batch_shape::BatchShape;
use crate::plan::loops::{placed, Channel, Dim, LoopNest};
use crate::plan::output::{joined_unit, row_elems, ElementOp, OutputPlan, Starts};
use crate::plan::placement::Placement;
use crate::plan::role::Role;
use crate::plan::scaling::Groups;
use crate::samples::{SampleList, TensorMeta};
use crate::tensor::{Dims, Layout};

/// The output of scales that are found, with this layout; `None` for a batch that finds none. Its
/// loops lead from the first element of each group in the sample to the group's scale; a scale that
/// they do not reach is 1.
pub(super) fn scales_output<'s>(
    leaf: usize,
    batch_shape: &BatchShape,
    samples: &'s SampleList<'_>,
    layout: Layout,
) -> Option<OutputPlan<'s>> {
    let scaling = batch_shape.scaling.as_deref()?;
    let quantize = scaling.quantize()?;
    let dtype = quantize.scale_dtype;
    let size = dtype.size() as i64;
    let strides: Dims = layout.strides().iter().map(|stride| stride.wrapping_mul(size)).collect();
    let (starts, own_strides) = match (&batch_shape.placement, scaling.groups) {
        (Placement::Joined { dim, offsets }, Groups::Blocks { .. }) => {
            let unit = joined_unit(&layout, *dim);
            (Starts::Joined { offsets: offsets.clone(), unit, step: strides[*dim] }, &strides[..])
        }
        _ => {
            let elems = row_elems(&layout);
            (Starts::Rows { elems, step: strides[0] }, &strides[1..])
        }
    };
    let mut dims = Vec::new();
    let nest = |meta| nest_of_scales(meta, batch_shape, scaling.groups, own_strides, &mut dims);
    let nests = samples.metas().iter().map(nest).collect();
    Some(OutputPlan {
        leaf,
        fill: quantize.bits_of(1.0),
        data: samples.data(),
        nest_ids: Cow::Borrowed(samples.meta_ids().unwrap_or_default()),
        nests,
        dims,
        ..OutputPlan::new(Role::Scales, dtype, layout, ElementOp::Scales, starts)
    })
}

/// Adds the loops over the scales of a sample with this metadata to `table`: over its dims but the
/// last, and over the blocks of a row; one place where the sample has one scale, none where it has
/// another number of dims than the batch's samples. `strides`: bytes from scale to scale, for each
/// dim of a sample's own scales; without one for the blocks, they have no loop.
pub(super) fn nest_of_scales(
    meta: &TensorMeta,
    batch_shape: &BatchShape,
    groups: Groups,
    strides: &[i64],
    table: &mut Vec<Dim>,
) -> LoopNest {
    let ndim = batch_shape.permute.len();
    let nothing = [Dim::whole(0, 0, 0)];
    if meta.layout.ndim() != ndim {
        return LoopNest::new(meta.dtype, nothing, Channel::None, 0, table);
    }
    let Groups::Blocks { block, per_row, .. } = groups else {
        return LoopNest::new(meta.dtype, [Dim::whole(1, 0, 0)], Channel::None, 0, table);
    };
    let size = meta.dtype.size() as i64;
    let step = |d: usize| meta.layout.strides()[d].wrapping_mul(size);
    let (mut dims, mut src_offset): (SmallVec<[Dim; 4]>, i64) = Default::default();
    for (d, &stride) in strides.iter().enumerate().take(ndim - 1) {
        let real = meta.layout.shape()[d];
        let (dim, cut) = placed(&batch_shape.placement, d, real, step(d), stride);
        src_offset = cut.wrapping_mul(step(d)).wrapping_add(src_offset);
        dims.push(dim);
    }
    if let Some(&stride) = strides.get(ndim - 1) {
        let along = (block as i64).wrapping_mul(step(ndim - 1));
        dims.push(Dim::whole(per_row as i64, along, stride));
    }
    LoopNest::new(meta.dtype, dims, Channel::None, src_offset, table)
}
