//! CUDA devices, the driver, and the device that owns an address.

use crate::cuda::probe;
pub use crate::tensor::device::{CudaBuild, DeviceInfo};
use crate::tensor::{Device, Result};

/// The CUDA devices that this process may use. Starts the driver.
///
/// # Errors
/// [`Error::NoDriver`](crate::Error::NoDriver) without a driver or a device; [`Error::Cuda`](crate::Error::Cuda).
///
/// ```
/// match windrow::device::devices() {
///     Ok(devices) => println!("{} CUDA devices", devices.len()),
///     Err(error) => println!("{error}"), // such as a build without feature `cuda`
/// }
/// ```
pub fn devices() -> Result<Vec<DeviceInfo>> {
    probe::devices()
}

/// The device that an address belongs to, according to the driver: managed memory counts as that of
/// its device, page-locked memory as [`Device::Pinned`], and an address that the driver does not
/// know is on [`Device::Cpu`]. Starts the driver.
///
/// # Errors
/// [`Error::NoDriver`](crate::Error::NoDriver); [`Error::Cuda`](crate::Error::Cuda).
///
/// ```no_run
/// let tensor = windrow::Engine::cuda(0)?.empty(windrow::DType::F32, &[4], windrow::Device::Cuda(0))?;
/// let device = windrow::device::device_of(tensor.data_ptr() as usize)?;
/// assert_eq!(device, windrow::Device::Cuda(0));
/// # Ok::<(), windrow::Error>(())
/// ```
pub fn device_of(address: usize) -> Result<Device> {
    probe::device_of(address)
}

/// The targets of the compiled kernels and the driver version. Starts the driver.
///
/// # Errors
/// [`Error::NoDriver`](crate::Error::NoDriver); [`Error::Cuda`](crate::Error::Cuda).
///
/// ```no_run
/// let build = windrow::device::cuda_build()?;
/// println!("kernels for {:?}", build);
/// # Ok::<(), windrow::Error>(())
/// ```
pub fn cuda_build() -> Result<CudaBuild> {
    probe::cuda_build()
}
