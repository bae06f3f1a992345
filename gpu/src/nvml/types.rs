//! What NVML can be asked, and its answers.

use super::error::NvmlError;

/// What can be asked of NVML. [`NvmlLibrary`](super::NvmlLibrary) asks the real one.
pub trait Nvml {
    /// The driver's version, such as `580.95.05`.
    ///
    /// # Errors
    /// If the call fails.
    fn driver_version(&self) -> Result<String, NvmlError>;

    /// Every device that NVML sees, in the order of `nvidia-smi`. CUDA may number them differently
    /// (`CUDA_VISIBLE_DEVICES`, `CUDA_DEVICE_ORDER`); the UUID tells which is which.
    ///
    /// # Errors
    /// If counting the devices fails. What fails for one device is an error in that device's fields.
    fn devices(&self) -> Result<Vec<NvmlDevice>, NvmlError>;
}

/// One device at the time of the call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NvmlDevice {
    /// NVML's index.
    pub index: u32,
    /// The product's name.
    pub name: Result<String, NvmlError>,
    /// The device's UUID, the same in every process and after every restart.
    pub uuid: Result<String, NvmlError>,
    /// Its memory.
    pub memory: Result<NvmlMemory, NvmlError>,
    /// The processes that use it, by pid. NVML knows nothing of pid namespaces, so in a container the pids
    /// may be the host's, and the list may be empty although memory is in use.
    pub processes: Result<Vec<GpuProcess>, NvmlError>,
}

/// A device's memory in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NvmlMemory {
    /// All memory. More than CUDA's total, which leaves out what the driver reserves.
    pub total_bytes: u64,
    /// Memory that is not in use.
    pub free_bytes: u64,
    /// Memory used by processes, including contexts. Drivers before 510 do not report `reserved_bytes`
    /// separately and include it here.
    pub used_bytes: u64,
    /// Memory reserved by the driver and the firmware, if the driver reports it.
    pub reserved_bytes: Option<u64>,
}

/// A process that uses a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuProcess {
    /// The process id, in the driver's pid namespace.
    pub pid: u32,
    /// Its memory on this device, including its context. `None` if the driver does not report it.
    pub used_bytes: Option<u64>,
    /// Whether it uses the device for compute.
    pub compute: bool,
    /// Whether it uses the device for graphics.
    pub graphics: bool,
}
