//! NVML, the management library of NVIDIA's driver: how much memory of each device is in use, and by which
//! processes.
//!
//! It needs no CUDA context, so reading costs no device memory. The library is opened at run time
//! ([`NvmlLibrary::open`]); if it is missing or a call fails, the answer is an error and never a panic.
//! Readers use the trait [`Nvml`], so a test can supply answers of its own.

mod error;
mod library;
mod processes;
#[allow(unsafe_code)] // turns the library's C interface into safe types, as `driver` does for the driver's
mod table;
mod types;

pub use error::NvmlError;
pub use library::NvmlLibrary;
pub use types::{GpuProcess, Nvml, NvmlDevice, NvmlMemory};
