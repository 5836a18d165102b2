//! The devices of the caller's memory. The driver is asked where page-locked and managed memory is: DLPack has no ordinal for these.

use windrow::device::device_of;
use windrow::dlpack::{self, device_from_dl, DLDevice, DLDeviceType, DLTensor, ForeignTensor};
use windrow::{Device, Error, Result};

/// A tensor of the caller's, with the errors of [`dlpack::read_tensor`]. Page-locked memory is [`Device::Pinned`] if the driver
/// knows it as such; where the driver cannot be asked it is memory of the host. Managed memory that the driver does not know is an
/// [`Error::Argument`].
///
/// # Safety
/// As of [`dlpack::read_tensor`].
pub(crate) unsafe fn read_tensor<'a>(tensor: *const DLTensor) -> Result<ForeignTensor<'a>> {
    // SAFETY: the caller's promise.
    let (foreign, kind) = unsafe { (dlpack::read_tensor(tensor)?, (*tensor).device.device_type) };
    let is_known = !matches!(kind, DLDeviceType::CUDA_HOST | DLDeviceType::CUDA_MANAGED);
    if is_known || foreign.shape.contains(&0) {
        return Ok(foreign);
    }
    match device_of(foreign.data.addr()) {
        Ok(Device::Cpu) if foreign.device != Device::Cpu => Err(Error::argument(
            "managed memory at an address that the driver does not know".into(),
        )),
        Ok(device) => Ok(ForeignTensor { device, ..foreign }),
        Err(_) if foreign.device == Device::Cpu => Ok(foreign),
        Err(error) => Err(error),
    }
}

/// The device of a batch; kDLCUDAHost is [`Device::Pinned`]. [`Error::Argument`] for managed memory and for memory of the host that
/// has another id than 0 or is of another vendor, else the errors of [`device_from_dl`].
pub(crate) fn place_of(device: DLDevice) -> Result<Device> {
    match (device_from_dl(device)?, device.device_type, device.device_id) {
        (Device::Cpu, DLDeviceType::CPU, 0) => Ok(Device::Cpu),
        (Device::Cpu, DLDeviceType::CUDA_HOST, 0) => Ok(Device::Pinned),
        (Device::Cpu, kind, id) | (_, kind @ DLDeviceType::CUDA_MANAGED, id) => Err(Error::argument(format!(
            "expected kDLCPU or kDLCUDAHost with id 0, or kDLCUDA, got DLPack device type {kind}, id {id}"
        ))),
        (device, ..) => Ok(device),
    }
}
