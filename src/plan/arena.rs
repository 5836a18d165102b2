//! [`Arena`]: the layout of tensors that share one allocation, of all leaves of a plan or of some.

use crate::plan::batch_shape::BatchShape;
use crate::plan::role::Role;
use crate::plan::target::AsTarget;
use crate::tensor::{
    bytes_of, DType, Device, Dims, Error, Layout, Mismatch, Places, Result, Tensor,
};

/// Tensors of an arena begin at multiples of this in host memory: a cache line.
const HOST_ALIGN: u64 = 64;

/// The alignment on a device, and in page-locked memory, which is copied to one: that of the driver's own
/// allocations.
const DEVICE_ALIGN: u64 = 256;

/// The one allocation of a plan, tensor after tensor. Its size is a multiple of the alignment too, so
/// that arenas one after the other keep it.
#[derive(Debug)]
pub(crate) struct Arena {
    pub device: Device,
    slots: Vec<ArenaSlot>,
    /// Bytes of the tensors alone.
    tensor_bytes: u64,
    layout: Layout,
}

/// The place of one tensor.
#[derive(Debug)]
struct ArenaSlot {
    leaf: usize,
    role: Role,
    /// Position of the output that writes it; numbers known beforehand have none.
    output: Option<usize>,
    dtype: DType,
    shape: Dims,
    byte_offset: u64,
}

impl ArenaSlot {
    /// The offset behind the slot's last byte.
    fn end(&self) -> u64 {
        self.byte_offset + bytes_of(self.dtype, &self.shape)
    }
}

impl Arena {
    /// Plans an arena for the leaves for whose positions `is_in` is true. All of these have one device, which is not checked. An
    /// arena of no leaves is on the host.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn new(batch_shapes: &[BatchShape], is_in: impl Fn(usize) -> bool) -> Result<Arena> {
        let first = (0..batch_shapes.len()).find(|&leaf| is_in(leaf));
        let device = first.map_or(Device::Cpu, |leaf| batch_shapes[leaf].device);
        let align = if device == Device::Cpu { HOST_ALIGN } else { DEVICE_ALIGN };
        let (mut slots, mut tensor_bytes, mut outputs) = (Vec::new(), 0u64, 0..);
        let mut places = Places::new(align);
        let too_large = || {
            let text = "the tensors of one arena are beyond 64 bits together";
            Error::too_large(text.to_owned())
        };
        for (leaf, batch_shape) in batch_shapes.iter().enumerate() {
            let mut add = |role, dtype, shape: &[i64]| -> Result<()> {
                let is_known = matches!(role, Role::Lengths | Role::Offsets);
                let output = if is_known { None } else { outputs.next() };
                if !is_in(leaf) {
                    return Ok(());
                }
                let (bytes, shape) = (bytes_of(dtype, shape), shape.into());
                let byte_offset = places.place(bytes).ok_or_else(too_large)?;
                slots.push(ArenaSlot { leaf, role, output, dtype, shape, byte_offset });
                tensor_bytes = tensor_bytes.saturating_add(bytes);
                Ok(())
            };
            add(Role::Data, batch_shape.dtype, &batch_shape.shape)?;
            batch_shape.for_each_field(add)?;
        }
        let end = places.aligned_end().ok_or_else(too_large)?;
        let layout = Layout::compact(DType::U8, &[end as i64])?;
        Ok(Arena { device, slots, tensor_bytes, layout })
    }

    /// The layout of the whole arena, as bytes.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes of the whole arena, gaps included.
    pub fn bytes(&self) -> u64 {
        self.layout.numel() as u64
    }

    /// The first [`Arena::bytes`] of memory that the caller gives, as a tensor of uint8.
    ///
    /// # Errors
    /// [`Error::Layout`] if it is read-only or shared, too small, or has gaps; [`Error::Device`];
    /// [`Error::DType`].
    pub fn accept(&self, given: &mut Tensor) -> Result<Tensor> {
        let device = given.as_target().map_err(|error| error.about("arena"))?.device;
        if device != self.device {
            let (expected, got) = (self.device.to_string(), device.to_string());
            return Err(Mismatch::for_subject("arena", expected, got).into_error(Error::Device));
        }
        let part = given.part(0, DType::U8, self.layout.shape());
        part.map_err(|error| error.about("arena"))
    }

    /// Bytes between tensors, and behind the last one.
    pub fn gap_bytes(&self) -> u64 {
        self.bytes() - self.tensor_bytes
    }

    /// The position and the address of each output that is in the arena, if that begins at `base`.
    pub fn places(&self, base: *mut u8) -> impl Iterator<Item = (usize, *mut u8)> + '_ {
        let place = move |slot: &ArenaSlot| base.wrapping_add(slot.byte_offset as usize);
        self.slots.iter().filter_map(move |slot| Some((slot.output?, place(slot))))
    }

    /// The gaps: the offset of the first byte that no tensor covers, and the number of such bytes.
    pub fn gaps(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        let next = self.slots.iter().skip(1).map(|slot| slot.byte_offset);
        let ends = self.slots.iter().map(ArenaSlot::end).zip(next.chain([self.bytes()]));
        ends.filter(|(end, next)| end < next).map(|(end, next)| (end, (next - end) as usize))
    }

    /// The tensor of a role and leaf in memory of the arena's layout; `None` if the arena has no such tensor, the error
    /// of [`Tensor::part`] if the memory does not fit.
    pub fn tensor(&self, memory: &Tensor, leaf: usize, role: Role) -> Option<Result<Tensor>> {
        let slot = self.slots.iter().find(|slot| slot.leaf == leaf && slot.role == role)?;
        Some(memory.part(slot.byte_offset, slot.dtype, &slot.shape))
    }

    /// Each tensor in memory of the arena's layout, with its leaf and role.
    pub fn tensors<'t>(
        &'t self,
        memory: &'t Tensor,
    ) -> impl Iterator<Item = Result<(usize, Role, Tensor)>> + 't {
        self.slots.iter().map(|slot| {
            let tensor = memory.part(slot.byte_offset, slot.dtype, &slot.shape)?;
            Ok((slot.leaf, slot.role, tensor))
        })
    }
}
