//! The CUDA device: the core's `DeviceBackend` on the driver.
//!
//! The device keeps track of the ranges, reservations and streams that it owns, and refuses anything else
//! without a driver call. So freeing an address twice, or using a made-up stream handle, is an error here,
//! where the driver might take it for somebody else's or crash. Calls inside what the device owns go to the
//! driver, also those that the driver refuses.

mod backend;
mod breaking;
mod cuda_device;
mod holdings;
mod host_copy;
mod peers;
mod shared;
mod work;

pub use cuda_device::CudaDevice;
pub use holdings::Holdings;
pub use host_copy::HostCopyError;
pub use shared::SharedHandle;
