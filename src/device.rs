//! CUDA devices, the driver, and the device that owns an address.

use crate::cuda::probe;
pub use crate::tensor::device::{CudaBuild, DeviceInfo};
use crate::tensor::{Device, Result};

/// The CUDA devices that this process may use. Starts the driver.
///
/// # Errors
/// [`Error::NoDriver`](crate::Error::NoDriver) without a driver or a device; [`Error::Cuda`](crate::Error::Cuda).
pub fn devices() -> Result<Vec<DeviceInfo>> {
    probe::devices()
}

/// The device that an address belongs to, according to the driver; managed memory counts as that of its device. Starts the
/// driver.
///
/// # Errors
/// [`Error::NoDriver`](crate::Error::NoDriver); [`Error::Cuda`](crate::Error::Cuda).
pub fn device_of(address: usize) -> Result<Device> {
    probe::device_of(address)
}

/// The targets of the compiled kernels and the driver version. Starts the driver.
///
/// # Errors
/// [`Error::NoDriver`](crate::Error::NoDriver); [`Error::Cuda`](crate::Error::Cuda).
pub fn cuda_build() -> Result<CudaBuild> {
    probe::cuda_build()
}
