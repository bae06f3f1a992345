//! A device's identity: name, driver version, UUID, bus address, size, and what it can do.

use std::ffi::CStr;

use cudarc::driver::sys::{CUdevice_attribute, CUuuid};

use super::call::call;
use super::context::Context;
use crate::error::DriverError;

/// Size of the buffer for a name; the driver truncates longer ones.
const NAME_BYTES: usize = 256;

impl Context {
    /// The newest CUDA version that the driver supports, as 1000 x major + 10 x minor.
    pub(crate) fn driver_version(&self) -> Result<i32, DriverError> {
        let mut version = 0;
        // SAFETY: writes one int through the pointer.
        unsafe { call!(self.cuDriverGetVersion(&raw mut version)) }?;
        Ok(version)
    }

    /// The device's name.
    pub(crate) fn device_name(&self) -> Result<String, DriverError> {
        let mut name = [0_u8; NAME_BYTES];
        // SAFETY: writes at most as many bytes as the buffer has, including the final zero.
        unsafe { call!(self.cuDeviceGetName(name.as_mut_ptr().cast(), NAME_BYTES as i32, self.device)) }?;
        Ok(CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned())
    }

    /// The device's total memory in bytes; constant.
    pub(crate) fn total_memory_bytes(&self) -> Result<u64, DriverError> {
        let mut bytes = 0_usize;
        // SAFETY: writes one size through the pointer.
        unsafe { call!(self.cuDeviceTotalMem_v2(&raw mut bytes, self.device)) }?;
        Ok(bytes as u64)
    }

    /// An attribute of the device.
    pub(super) fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, DriverError> {
        let mut answer = 0;
        // SAFETY: writes one int through the pointer; the device is the driver's.
        unsafe { call!(self.cuDeviceGetAttribute(&raw mut answer, attribute, self.device)) }?;
        Ok(answer)
    }

    /// The device's UUID as `nvidia-smi` prints it: `GPU-` and 16 bytes in hexadecimal.
    pub(crate) fn uuid(&self) -> Result<String, DriverError> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: writes 16 bytes through the pointer.
        unsafe { call!(self.cuDeviceGetUuid_v2(&raw mut uuid, self.device)) }?;
        Ok(uuid_text(uuid.bytes.map(|byte| byte as u8)))
    }

    /// The device's address on the PCI bus: domain, bus, device and function, in hexadecimal.
    pub(crate) fn pci_bus_id(&self) -> Result<String, DriverError> {
        let mut name = [0_u8; NAME_BYTES];
        // SAFETY: writes at most as many bytes as the buffer has, including the final zero.
        unsafe { call!(self.cuDeviceGetPCIBusId(name.as_mut_ptr().cast(), NAME_BYTES as i32, self.device)) }?;
        Ok(CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned())
    }
}

/// 16 bytes in groups of 4, 2, 2, 2 and 6.
fn uuid_text(bytes: [u8; 16]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32].map(|group| &digits[group]);
    format!("GPU-{}", groups.join("-"))
}

#[cfg(test)]
mod tests {
    use super::uuid_text;

    #[test]
    fn a_uuid_is_printed_as_tools_print_it() {
        let bytes = [0x4b, 0x1d, 0xe0, 0xff, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xa, 0xb];
        assert_eq!(uuid_text(bytes), "GPU-4b1de0ff-0001-0203-0405-060708090a0b");
    }
}
