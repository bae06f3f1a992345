#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod device;
#[allow(unsafe_code)] // the place for it: turns the driver's C interface into safe types
mod driver;
mod error;
mod mappings;
pub mod nvml;

pub use device::sharing::SharedHandle;
pub use device::work::HostCopyError;
pub use device::{CudaDevice, Holdings};
pub use driver::{CudaEvent, CudaPhysical, LONGEST_SPIN_NS, SharedMemory, StreamsAreValid, WorkIsSerial};
pub use error::{DriverError, Unavailable};
