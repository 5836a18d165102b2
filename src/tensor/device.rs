//! [`Device`]: where memory is, and [`DeviceInfo`]: what a driver says of one; [`CudaBuild`]: what runs there.

use std::fmt;

/// The location of memory: host, page-locked host or a CUDA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// Host memory, pageable or not.
    Cpu,
    /// Page-locked host memory, asked for as such.
    Pinned,
    /// A CUDA device by ordinal.
    Cuda(u32),
}

impl Device {
    /// The number of a CUDA device; `None` for host memory.
    pub(crate) fn ordinal(self) -> Option<u32> {
        match self {
            Device::Cuda(ordinal) => Some(ordinal),
            _ => None,
        }
    }

    /// Whether this is a CUDA device.
    pub(crate) fn is_cuda(self) -> bool {
        self.ordinal().is_some()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Pinned => f.write_str("pinned"),
            Device::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// A CUDA device, as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The device as batches name it.
    pub device: Device,
    /// The product's name.
    pub name: String,
    /// Compute capability: (9, 0).
    pub compute_capability: (u32, u32),
    /// Number of multiprocessors.
    pub num_multiprocessors: u32,
    /// Bytes of its memory.
    pub total_bytes: u64,
}

/// The compiled kernels, and the driver that runs them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaBuild {
    /// Version of the toolkit that compiled the kernels, as in `13.0.88`.
    pub toolkit: &'static str,
    /// The targets of the compiled kernels, as in `sm_90 compute_120`.
    pub targets: &'static str,
    /// The newest CUDA version that the driver supports, as in (13, 0).
    pub driver: (u32, u32),
}
