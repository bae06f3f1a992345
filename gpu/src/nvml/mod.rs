//! NVML, the management library of NVIDIA's driver. It reports how much of each device's memory is in use, and by which
//! processes.
//!
//! It needs no CUDA context, so reading costs no device memory. The library is opened at run time
//! ([`NvmlLibrary::open`]); if it is missing or a call fails, the answer is an error and never a panic. Callers use
//! the trait [`Nvml`], so a test can supply its own answers.

mod answers;
#[allow(unsafe_code)] // turns the library's C interface into safe types, as `driver` does for the driver's
mod table;

use answers::{NOT_SUPPORTED, RawList, merge};
use table::{Device, Table};

pub use answers::{GpuProcess, Nvml, NvmlDevice, NvmlError, NvmlMemory};

/// NVIDIA's library. It stays open and initialised until dropped.
pub struct NvmlLibrary(Table);

impl NvmlLibrary {
    /// Opens the library that the loader finds (`libnvidia-ml.so.1`; `nvml.dll` on Windows).
    ///
    /// # Errors
    /// There is no library, the library lacks a function, or it finds no driver.
    pub fn open() -> Result<NvmlLibrary, NvmlError> {
        Table::open().map(NvmlLibrary)
    }
}

impl Nvml for NvmlLibrary {
    fn driver_version(&self) -> Result<String, NvmlError> {
        self.0.driver_version()
    }

    fn devices(&self) -> Result<Vec<NvmlDevice>, NvmlError> {
        let read = |index| match self.0.device(index) {
            Ok(device) => NvmlDevice {
                index,
                name: device.name(),
                uuid: device.uuid(),
                memory: memory(&device),
                processes: processes(&device),
            },
            Err(error) => NvmlDevice {
                index,
                name: Err(error.clone()),
                uuid: Err(error.clone()),
                memory: Err(error.clone()),
                processes: Err(error),
            },
        };
        Ok((0..self.0.device_count()?).map(read).collect())
    }
}

/// Returns the device's memory, with the reserved part reported separately if the driver supports
/// this.
fn memory(device: &Device<'_>) -> Result<NvmlMemory, NvmlError> {
    device.detailed_memory().unwrap_or_else(|| device.memory()).or_else(|_| device.memory())
}

/// Returns all processes. A device without graphics has no list of graphics processes.
fn processes(device: &Device<'_>) -> Result<Vec<GpuProcess>, NvmlError> {
    let compute = device.compute_processes()?;
    let graphics = match device.graphics_processes() {
        Err(NvmlError::Refused { code: NOT_SUPPORTED, .. }) => RawList { words: Vec::new(), count: 0 },
        list => list?,
    };
    Ok(merge(&compute, &graphics))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that opening fails with the right error without the library, and that the numbers add
    /// up with it.
    #[test]
    fn the_library_opens_or_says_why_not() {
        match NvmlLibrary::open() {
            Err(NvmlError::NoLibrary { reason }) => assert!(reason.contains("libnvidia-ml.so.1"), "{reason}"),
            Err(error) => assert!(error.to_string().contains("nvmlInit_v2"), "{error}"),
            Ok(nvml) => {
                assert!(nvml.driver_version().is_ok_and(|version| version.starts_with(|c: char| c.is_ascii_digit())));
                for device in nvml.devices().expect("a count") {
                    let memory = device.memory.expect("memory");
                    let parts = memory.free_bytes + memory.used_bytes + memory.reserved_bytes.unwrap_or(0);
                    assert_eq!(parts, memory.total_bytes, "{memory:?}");
                }
            }
        }
    }
}
