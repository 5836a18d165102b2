//! Lengths and offsets of batches on a device: the host knows them before anything runs.

use bytemuck::cast_slice;

use crate::plan::{Plan, Role};
use crate::tensor::{DType, Dims, Result};

/// Numbers known on the host that a batch has on the device: lengths, offsets.
#[derive(Debug)]
pub(crate) struct MetadataSegment<'v> {
    pub out: u64,
    pub dtype: DType,
    pub bytes: &'v [u8],
    /// If a device selects the samples: the number of samples, and of numbers for each. `bytes` then has the numbers of
    /// one sample for each `TensorMeta`.
    pub chosen: Option<(usize, usize)>,
}

/// The lengths or the offsets of a leaf.
pub(crate) struct HostMetadata {
    pub leaf: usize,
    pub role: Role,
    pub dtype: DType,
    pub shape: Dims,
    pub bytes: Vec<u8>,
    /// A number for each `TensorMeta`, from which the device takes those of the samples that it chooses.
    pub is_selected: bool,
}

impl HostMetadata {
    /// See [`MetadataSegment::chosen`].
    pub fn chosen(&self) -> Option<(usize, usize)> {
        let count: i64 = self.shape[1..].iter().product();
        self.is_selected.then_some((self.shape[0] as usize, count as usize))
    }
}

/// The numbers of all leaves whose batch is on a device, leaf by leaf, lengths before offsets. It
/// does not fail.
pub(crate) fn host_metadata(plan: &Plan<'_>) -> Result<Vec<HostMetadata>> {
    let mut all = Vec::new();
    let batch_shapes = plan.batch_shapes().iter().enumerate();
    for (leaf, batch_shape) in batch_shapes.filter(|(_, batch_shape)| batch_shape.device.is_cuda())
    {
        batch_shape.for_each_metadata(|role, dtype, shape, numbers| {
            let (shape, is_selected) = (shape.into(), batch_shape.is_selected);
            let bytes = match dtype {
                DType::I32 => numbers.iter().flat_map(|&n| (n as i32).to_ne_bytes()).collect(),
                _ => cast_slice(numbers).to_vec(),
            };
            all.push(HostMetadata { leaf, role, dtype, shape, bytes, is_selected });
            Ok(())
        })?;
    }
    Ok(all)
}
