//! The source of the readings: NVML, or the CUDA driver if there is no NVML.

use anyhow::{Result, bail, ensure};
use parkade::device::DeviceBackend;
use parkade_gpu::nvml::{GpuProcess, Nvml, NvmlDevice, NvmlError, NvmlLibrary, NvmlMemory};
use parkade_gpu::{CudaDevice, Unavailable};

/// An open source.
pub(super) enum Source {
    Nvml(Box<dyn Nvml>),
    /// Every device, and why NVML is not used.
    Cuda(Vec<CudaSlot>, NvmlError),
}

/// A CUDA device by its index, opened if possible.
pub(super) type CudaSlot = (u32, Result<CudaDevice, Unavailable>);

/// One reading.
#[derive(Debug)]
pub(super) struct Reading {
    /// The driver's version, or from CUDA the newest version it supports.
    pub(super) driver: Result<String, String>,
    pub(super) devices: Vec<Device>,
    /// Why NVML was not used, if it was not.
    pub(super) no_nvml: Option<String>,
}

/// One device. Errors are texts.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) index: u32,
    pub(super) name: Result<String, String>,
    pub(super) uuid: Option<String>,
    pub(super) memory: Result<NvmlMemory, String>,
    /// `None` where nothing lists processes.
    pub(super) processes: Option<Result<Vec<Process>, String>>,
}

/// A process, with its name if it can be known.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) listed: GpuProcess,
    pub(super) name: Option<String>,
}

impl Device {
    /// The memory of the listed processes, as far as it is known.
    pub(super) fn listed_bytes(&self) -> Option<u64> {
        let processes = self.processes.as_ref()?.as_ref().ok()?;
        Some(processes.iter().filter_map(|process| process.listed.used_bytes).fold(0, u64::saturating_add))
    }

    /// The used memory beyond that; 0 if processes count shared memory twice.
    pub(super) fn unlisted_bytes(&self) -> Option<u64> {
        Some(self.memory.as_ref().ok()?.used_bytes.saturating_sub(self.listed_bytes()?))
    }

    /// Whether processes that are not listed hold memory.
    pub(super) fn hides_processes(&self) -> bool {
        /// An idle driver uses less.
        const IDLE_BYTES: u64 = 64 << 20;
        let lists_none = matches!(&self.processes, Some(Ok(processes)) if processes.is_empty());
        lists_none && self.unlisted_bytes() > Some(IDLE_BYTES)
    }
}

impl Source {
    /// Opens the best source available.
    pub(super) fn open() -> Result<Source> {
        let no_nvml = match NvmlLibrary::open() {
            Ok(nvml) => return Ok(Source::Nvml(Box::new(nvml))),
            Err(error) => error,
        };
        match cuda_devices() {
            Ok(devices) => Ok(Source::Cuda(devices, no_nvml)),
            Err(error) => bail!("no GPU found: {no_nvml}; {error}"),
        }
    }

    pub(super) fn read(&mut self) -> Result<Reading> {
        match self {
            Source::Nvml(nvml) => {
                let devices = nvml.devices()?;
                ensure!(!devices.is_empty(), "no GPU found: NVML counts none");
                let driver = nvml.driver_version().map_err(|error| error.to_string());
                Ok(Reading { driver, devices: devices.into_iter().map(device).collect(), no_nvml: None })
            }
            Source::Cuda(devices, no_nvml) => {
                let opened = devices.iter().find_map(|(_, device)| device.as_ref().ok());
                let version = opened.map(|device| device.driver_version().map_err(|error| error.to_string()));
                let version = version.unwrap_or_else(|| Err(String::from("no device could be opened")));
                Ok(Reading {
                    driver: version.map(|(major, minor)| format!("for CUDA {major}.{minor}")),
                    devices: devices.iter_mut().map(cuda_device).collect(),
                    no_nvml: Some(no_nvml.to_string()),
                })
            }
        }
    }
}

fn device(told: NvmlDevice) -> Device {
    let named = |listed: GpuProcess| Process { listed, name: process_name(listed.pid) };
    let processes = told.processes.map(|processes| processes.into_iter().map(named).collect());
    Device {
        index: told.index,
        name: told.name.map_err(|error| error.to_string()),
        uuid: told.uuid.ok(),
        memory: told.memory.map_err(|error| error.to_string()),
        processes: Some(processes.map_err(|error| error.to_string())),
    }
}

#[cfg(target_os = "linux")]
fn process_name(pid: u32) -> Option<String> {
    crate::commands::kill::name_of(pid)
}

#[cfg(not(target_os = "linux"))]
fn process_name(_: u32) -> Option<String> {
    None
}

/// All CUDA devices, or why there are none. One that cannot be opened (full, or exclusive to another process) hides no other.
fn cuda_devices() -> Result<Vec<CudaSlot>, Unavailable> {
    match CudaDevice::open(u32::MAX) {
        Err(Unavailable::NoDevice { count, .. }) if count > 0 => {
            Ok((0..count).map(|ordinal| (ordinal, CudaDevice::open(ordinal))).collect())
        }
        Err(Unavailable::NoDevice { count, .. }) => Err(Unavailable::NoDevice { ordinal: 0, count }),
        Err(error) => Err(error),
        // No machine has so many.
        Ok(device) => Ok(vec![(u32::MAX, Ok(device))]),
    }
}

/// The device, as far as it could be opened.
fn cuda_device((index, slot): &mut CudaSlot) -> Device {
    let device = match slot {
        Ok(device) => device,
        Err(error) => {
            let refusal = error.to_string();
            return Device { index: *index, name: Err(refusal.clone()), uuid: None, memory: Err(refusal), processes: None };
        }
    };
    let memory = device.memory_info().map(|memory| {
        let (total_bytes, free_bytes) = (memory.total.get(), memory.free.get());
        NvmlMemory { total_bytes, free_bytes, used_bytes: total_bytes.saturating_sub(free_bytes), reserved_bytes: None }
    });
    Device {
        index: *index,
        name: device.name().map_err(|error| error.to_string()),
        uuid: None,
        memory: memory.map_err(|error| error.to_string()),
        processes: None,
    }
}
