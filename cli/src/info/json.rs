//! One look as one JSON object.

use serde_json::{Value, json};

use super::source::{Device, Process, Reading};

/// The object. What is not known is null; what was refused has an `..._error` with the reason.
pub(super) fn object(reading: &Reading) -> Value {
    json!({
        "source": if reading.no_nvml.is_some() { "cuda" } else { "nvml" },
        "no_nvml": reading.no_nvml,
        "driver": reading.driver.as_ref().ok(),
        "devices": reading.devices.iter().map(device).collect::<Vec<_>>(),
    })
}

fn device(device: &Device) -> Value {
    let memory = device.memory.as_ref();
    let processes = device.processes.as_ref();
    json!({
        "index": device.index,
        "name": device.name.as_ref().ok(),
        "uuid": device.uuid,
        "total_bytes": memory.ok().map(|memory| memory.total_bytes),
        "free_bytes": memory.ok().map(|memory| memory.free_bytes),
        "used_bytes": memory.ok().map(|memory| memory.used_bytes),
        "driver_reserved_bytes": memory.ok().and_then(|memory| memory.reserved_bytes),
        "memory_error": memory.err(),
        "listed_bytes": device.listed_bytes(),
        "unlisted_bytes": device.unlisted_bytes(),
        "processes": processes.and_then(|told| told.as_ref().ok()).map(|list| list.iter().map(process).collect::<Vec<_>>()),
        "processes_error": processes.and_then(|told| told.as_ref().err()),
    })
}

fn process(process: &Process) -> Value {
    json!({
        "pid": process.listed.pid,
        "name": process.name,
        "used_bytes": process.listed.used_bytes,
        "compute": process.listed.compute,
        "graphics": process.listed.graphics,
    })
}
