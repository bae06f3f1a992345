//! parkade's CUDA device: the core's [`DeviceBackend`](parkade::device::DeviceBackend) made of silicon.
//!
//! The driver library is opened when a device is ([`CudaDevice::open`]), so everything here builds and links on machines without a
//! GPU, where opening says why it cannot. [`nvml`] reads how much memory devices have and which processes hold it. All unsafe code
//! is in the private modules `driver` and `nvml::table`.
#![deny(unsafe_code)]

mod device;
#[allow(unsafe_code)] // the one place for it: what the driver's C interface promises is turned into types there
mod driver;
mod error;
mod holdings;
mod host_copy;
mod mappings;
pub mod nvml;

pub use device::CudaDevice;
pub use driver::{CudaEvent, CudaPhysical, LONGEST_SPIN_NS};
pub use error::{DriverError, Unavailable};
pub use holdings::Holdings;
pub use host_copy::HostCopyError;
