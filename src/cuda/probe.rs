//! CUDA devices, the driver, and the device that owns an address.

use super::driver::{self, MemoryKind};
use crate::tensor::{CudaBuild, Device, DeviceInfo, Result};

/// The devices that this process may use. Starts the driver.
/// [`Error::NoDriver`](crate::Error::NoDriver) without one, and most often also without a device.
pub(crate) fn devices() -> Result<Vec<DeviceInfo>> {
    (0..driver::device_count()?).map(driver::describe).collect()
}

/// The place of an address, which is not read; managed memory is at its device, page-locked memory
/// at [`Device::Pinned`]; [`Device::Cpu`] for what the driver does not know. Starts the driver;
/// [`Error::NoDriver`](crate::Error::NoDriver) without one.
pub(crate) fn device_of(address: usize) -> Result<Device> {
    driver::init()?;
    let info = driver::pointer_info(address as u64)?;
    Ok(match (info.kind, info.ordinal) {
        (MemoryKind::Pinned, _) => Device::Pinned,
        (MemoryKind::Device | MemoryKind::Managed, Some(ordinal)) => Device::Cuda(ordinal),
        _ => Device::Cpu,
    })
}

/// The compiled kernels, and the driver that runs them. Starts the driver; [`Error::NoDriver`](crate::Error::NoDriver) without
/// one.
pub(crate) fn cuda_build() -> Result<CudaBuild> {
    driver::init()?;
    let (toolkit, targets) = (driver::TOOLKIT, driver::TARGETS);
    Ok(CudaBuild { toolkit, targets, driver: driver::driver_version()? })
}
