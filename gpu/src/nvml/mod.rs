//! NVML, the management library of NVIDIA's driver: how much memory each device has given out, and which processes hold it.
//!
//! It needs no CUDA context, so that looking costs no device memory. The library is opened at run time ([`NvmlLibrary::open`]); where
//! it is missing, or refuses, the answer is an error and never a panic. What reads it goes through the trait [`Nvml`], so that a test
//! can put a driver of its own there.

mod error;
mod library;
mod processes;
#[allow(unsafe_code)] // the library's C interface is turned into types there, as the driver's is in `driver`
mod table;

pub use error::NvmlError;
pub use library::NvmlLibrary;

/// What can be asked of NVML.
pub trait Nvml {
    /// The driver's version, such as `580.95.05`.
    ///
    /// # Errors
    /// Whatever NVML says.
    fn driver_version(&self) -> Result<String, NvmlError>;

    /// Every device that NVML sees, in its order, which is that of `nvidia-smi`. CUDA may count them otherwise (CUDA_VISIBLE_DEVICES,
    /// CUDA_DEVICE_ORDER); the uuid tells which is which.
    ///
    /// # Errors
    /// Whatever NVML says to the question how many there are. What it refuses about one device is an error in that device's fields.
    fn devices(&self) -> Result<Vec<NvmlDevice>, NvmlError>;
}

/// One device, as it was when it was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NvmlDevice {
    /// NVML's index.
    pub index: u32,
    /// The product's name.
    pub name: Result<String, NvmlError>,
    /// The device's own name, the same in every process and after every restart.
    pub uuid: Result<String, NvmlError>,
    /// Its memory.
    pub memory: Result<NvmlMemory, NvmlError>,
    /// The processes that use it, by pid. In a container the pids may be the host's, and the list may be empty although memory is in
    /// use: NVML knows no pid namespaces.
    pub processes: Result<Vec<GpuProcess>, NvmlError>,
}

/// A device's memory in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NvmlMemory {
    /// All there is; more than CUDA calls total, which lacks what the driver withholds.
    pub total_bytes: u64,
    /// Not given out.
    pub free_bytes: u64,
    /// Given out to processes, contexts included. From a driver that does not tell `reserved_bytes` apart (before 510) they are in
    /// here.
    pub used_bytes: u64,
    /// What the driver and the firmware keep for themselves, where the driver tells.
    pub reserved_bytes: Option<u64>,
}

/// A process that uses a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuProcess {
    /// The process, in the pid namespace that the driver counts in.
    pub pid: u32,
    /// What the driver has given it on this device, its context included; `None` where the driver does not tell.
    pub used_bytes: Option<u64>,
    /// Whether it computes.
    pub compute: bool,
    /// Whether it draws.
    pub graphics: bool,
}
