#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod device;
#[allow(unsafe_code)] // the place for it: turns the driver's C interface into safe types
mod driver;
mod mappings;
#[allow(unsafe_code)] // turns the library's C interface into safe types, as `driver` does for the driver's
pub mod nvml;

pub use device::work::HostCopyError;
pub use device::{CudaDevice, Holdings, SharedHandle};
pub use driver::{
    CudaEvent, CudaPhysical, DriverError, LONGEST_SPIN_NS, SharedMemory, StreamsAreValid, Unavailable, WorkIsSerial,
};
