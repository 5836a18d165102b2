//! Lengths and offsets of batches on a device: the host knows them before anything runs.

use crate::plan::{Plan, Role};
use crate::tensor::{DType, Dims, Result};

/// Numbers known on the host that a launch writes: lengths, offsets, or the zeros of an arena's gap.
#[derive(Debug)]
pub(crate) struct MetadataSegment {
    /// The leaf and the role; `None` for a gap.
    pub field: Option<(usize, Role)>,
    pub dtype: DType,
    pub shape: Dims,
    /// If a device selects the samples, the numbers of one sample for each `TensorMeta`. A gap has none.
    pub numbers: Vec<i64>,
    pub is_selected: bool,
    /// The address that a launch writes to. [`host_metadata`] gives 0, or the offset of a gap in its arena.
    pub out: u64,
}

impl MetadataSegment {
    /// How many numbers are written.
    pub fn count(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }
}

/// The numbers of all leaves whose batch is on a device, leaf by leaf, lengths before offsets; then the gaps of an arena on a
/// device. It does not fail.
pub(crate) fn host_metadata(plan: &Plan<'_>) -> Result<Vec<MetadataSegment>> {
    let mut all = Vec::new();
    let batch_shapes = plan.batch_shapes().iter().enumerate();
    for (leaf, batch_shape) in batch_shapes.filter(|(_, batch_shape)| batch_shape.device.is_cuda())
    {
        batch_shape.for_each_metadata(|role, dtype, shape, numbers| {
            let (field, shape, numbers) = (Some((leaf, role)), shape.into(), numbers.to_vec());
            let is_selected = batch_shape.is_selected;
            all.push(MetadataSegment { field, dtype, shape, numbers, is_selected, out: 0 });
            Ok(())
        })?;
    }
    let arena = plan.arena.iter().filter(|arena| arena.device.is_cuda());
    all.extend(arena.flat_map(|arena| arena.gaps()).map(|(out, count)| MetadataSegment {
        field: None,
        dtype: DType::U8,
        shape: Dims::from_slice(&[count as i64]),
        numbers: Vec::new(),
        is_selected: false,
        out,
    }));
    Ok(all)
}
