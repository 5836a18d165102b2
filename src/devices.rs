//! What CUDA there is: devices, the driver, whose memory an address is.

#[cfg(feature = "cuda")]
use crate::cuda::driver;
#[cfg(not(feature = "cuda"))]
use crate::tensor::Error;
use crate::tensor::{Device, DeviceInfo, Result};

/// The compiled kernels, and the driver that runs them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaBuild {
    /// Version of the toolkit that compiled the kernels, as in `13.0.88`.
    pub toolkit: &'static str,
    /// What they were compiled for, as in `sm_90 compute_120`.
    pub targets: &'static str,
    /// The newest CUDA version that the driver supports, as in (13, 0).
    pub driver: (u32, u32),
}

/// The CUDA devices that this process may use. Starts the driver.
///
/// # Errors
/// [`crate::Error::NoDriver`] without a driver or a device; [`crate::Error::Cuda`].
pub fn devices() -> Result<Vec<DeviceInfo>> {
    #[cfg(feature = "cuda")]
    return (0..driver::device_count()?).map(driver::describe).collect();
    #[cfg(not(feature = "cuda"))]
    Err(Error::host_only("CUDA"))
}

/// The place of an address, by the driver's word: managed memory counts as that of its device. Starts
/// the driver.
///
/// # Errors
/// [`crate::Error::NoDriver`]; [`crate::Error::Cuda`].
pub fn device_of(address: usize) -> Result<Device> {
    #[cfg(feature = "cuda")]
    {
        driver::init()?;
        let info = driver::pointer_info(address as u64)?;
        Ok(match (info.kind, info.ordinal) {
            (driver::MemoryKind::Pinned, _) => Device::Pinned,
            (driver::MemoryKind::Device | driver::MemoryKind::Managed, Some(ordinal)) => {
                Device::Cuda(ordinal)
            }
            _ => Device::Cpu,
        })
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = address;
        Err(Error::host_only("CUDA"))
    }
}

/// What the kernels were compiled for, and for what the driver is. Starts the driver.
///
/// # Errors
/// [`crate::Error::NoDriver`]; [`crate::Error::Cuda`].
pub fn cuda_build() -> Result<CudaBuild> {
    #[cfg(feature = "cuda")]
    {
        driver::init()?;
        let (toolkit, targets) = (driver::TOOLKIT, driver::TARGETS);
        Ok(CudaBuild { toolkit, targets, driver: driver::driver_version()? })
    }
    #[cfg(not(feature = "cuda"))]
    Err(Error::host_only("CUDA"))
}
