//! A reading as one JSON object.

use super::source::{Device, Process, Reading};
use crate::terminal::json_struct::{all, view};

view! {
    /// Unknown values are null; a refused value has an `..._error` with the reason.
    pub(super) struct Object<'a>(reading: &'a Reading) {
        source: &'static str = if reading.no_nvml.is_some() { "cuda" } else { "nvml" },
        no_nvml: Option<&'a str> = reading.no_nvml.as_deref(),
        driver: Option<&'a str> = reading.driver.as_deref().ok(),
        devices: Vec<OfDevice<'a>> = all(&reading.devices, OfDevice::of),
    }
}

view! {
    struct OfDevice<'a>(device: &'a Device) {
        index: u32 = device.index,
        name: Option<&'a str> = device.name.as_deref().ok(),
        uuid: Option<&'a str> = device.uuid.as_deref(),
        total_bytes: Option<u64> = device.memory.as_ref().ok().map(|memory| memory.total_bytes),
        free_bytes: Option<u64> = device.memory.as_ref().ok().map(|memory| memory.free_bytes),
        used_bytes: Option<u64> = device.memory.as_ref().ok().map(|memory| memory.used_bytes),
        driver_reserved_bytes: Option<u64> = device.memory.as_ref().ok().and_then(|memory| memory.reserved_bytes),
        memory_error: Option<&'a str> = device.memory.as_ref().err().map(String::as_str),
        listed_bytes: Option<u64> = device.listed_bytes(),
        unlisted_bytes: Option<u64> = device.unlisted_bytes(),
        processes: Option<Vec<OfProcess<'a>>> =
            device.processes.as_ref().and_then(|told| told.as_ref().ok()).map(|list| all(list, OfProcess::of)),
        processes_error: Option<&'a str> =
            device.processes.as_ref().and_then(|told| told.as_ref().err()).map(String::as_str),
    }
}

view! {
    struct OfProcess<'a>(process: &'a Process) {
        pid: u32 = process.listed.pid,
        name: Option<&'a str> = process.name.as_deref(),
        used_bytes: Option<u64> = process.listed.used_bytes,
        compute: bool = process.listed.compute,
        graphics: bool = process.listed.graphics,
    }
}
