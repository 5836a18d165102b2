//! What CUDA there is: devices, the driver, whose memory an address is.

use crate::cuda::probe;
use crate::tensor::{CudaBuild, Device, DeviceInfo, Result};

/// The CUDA devices that this process may use. Starts the driver.
///
/// # Errors
/// [`crate::Error::NoDriver`] without a driver or a device; [`crate::Error::Cuda`].
pub fn devices() -> Result<Vec<DeviceInfo>> {
    probe::devices()
}

/// The place of an address, by the driver's word: managed memory counts as that of its device. Starts
/// the driver.
///
/// # Errors
/// [`crate::Error::NoDriver`]; [`crate::Error::Cuda`].
pub fn device_of(address: usize) -> Result<Device> {
    probe::device_of(address)
}

/// What the kernels were compiled for, and for what the driver is. Starts the driver.
///
/// # Errors
/// [`crate::Error::NoDriver`]; [`crate::Error::Cuda`].
pub fn cuda_build() -> Result<CudaBuild> {
    probe::cuda_build()
}
