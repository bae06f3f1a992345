//! Reading a recording and choosing among its devices, and the notes that several commands make about one.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use parkade_recording::{Action, DeviceRecording, Entry, ReadError, Recording};

use crate::terminal::{output, size};

/// How to record a trace, for the end of a message.
pub const RECORD_IT: &str = "record it with torch.cuda.memory._record_memory_history()";

/// A note for recordings without settings.
pub const ASSUMED_SETTINGS: &str = "not in the file: the settings; PyTorch's defaults are assumed (--settings overrides them)";

/// A note on a limit that was inferred. `option` sets it.
pub fn assumed_limit(bytes: u64, option: &str) -> String {
    format!("a limit of {} is assumed ({option} sets it): the recording allows it", size::show_bytes(bytes))
}

/// That the recorded run cannot have had this limit, because it reserved more.
pub fn not_its_limit(reserved_bytes: u64, limit_bytes: u64) -> String {
    format!(
        "The recorded run reserved {}, more than the limit of {}, so that was not its limit: --limit is the limit of the recorded run, \
         --capacity the memory to try other settings with.",
        size::show_bytes(reserved_bytes),
        size::show_bytes(limit_bytes)
    )
}

/// That recorded decisions differ from the replay's, so many of so many.
pub fn differing(mismatches: u64, decisions: u64) -> String {
    let differ = if mismatches == 1 { "differs" } else { "differ" };
    format!("{mismatches} of {decisions} recorded decisions {differ}")
}

/// A note on requests taken from a recording that the replay does not reproduce.
pub fn uncertain_requests(mismatches: u64, decisions: u64) -> String {
    format!(
        "{} in a replay under the recording's own settings (see parkade verify; --recorded-limit sets its limit), so the requests are \
         less certain",
        differing(mismatches, decisions)
    )
}

/// A note on requests that failed on the simulated device, but not for lack of memory.
pub fn other_failures(requests: u64) -> String {
    format!("{} failed for a reason other than memory", output::count(requests, "request"))
}

/// Reads a recording.
///
/// # Errors
/// It cannot be read, or is none. The error does not name the file.
pub fn read(file: &Path) -> Result<Recording> {
    parkade_recording::read_file(file).map_err(|error| match error {
        // The caller names the file.
        ReadError::File { cause, .. } => anyhow!("cannot be read: {cause}"),
        error => error.into(),
    })
}

/// These devices, or only the wanted one.
///
/// # Errors
/// The file has nothing about the wanted one.
pub fn chosen<'r>(
    devices: impl IntoIterator<Item = &'r DeviceRecording>,
    wanted: Option<u32>,
) -> Result<Vec<&'r DeviceRecording>> {
    let mut devices: Vec<_> = devices.into_iter().collect();
    let known = output::list(devices.iter().map(|device| device.device));
    devices.retain(|device| wanted.is_none_or(|number| number == device.device));
    match wanted.filter(|_| devices.is_empty() && !known.is_empty()) {
        Some(number) => bail!("the file has nothing about device {number}, only about {known}"),
        None => Ok(devices),
    }
}

/// The devices of which the file tells something: entries about memory, or what was reserved at its end. PyTorch writes that a snapshot was
/// taken into the trace of every device, used or not. If nothing is told of any, all of them.
pub fn telling(devices: &[DeviceRecording]) -> Vec<&DeviceRecording> {
    let is_about_memory = |entry: &Entry| entry.action != Action::Snapshot;
    let tells = |device: &&DeviceRecording| !device.segments.is_empty() || device.trace.iter().any(is_about_memory);
    let telling: Vec<&DeviceRecording> = devices.iter().filter(tells).collect();
    if telling.is_empty() { devices.iter().collect() } else { telling }
}

/// The devices with a trace.
pub fn traced(recording: &Recording) -> Vec<&DeviceRecording> {
    recording.devices.iter().filter(|device| !device.trace.is_empty()).collect()
}

/// The number of entries in these traces.
pub fn entries(devices: &[&DeviceRecording]) -> u64 {
    devices.iter().map(|device| device.trace.len() as u64).sum()
}

/// Names the device in an error if there are several devices.
///
/// # Errors
/// That of `result`.
pub fn of_device<T, E: Into<anyhow::Error>>(result: Result<T, E>, device: u32, devices: usize) -> Result<T> {
    result.map_err(|error| {
        let error = error.into();
        if devices > 1 { error.context(format!("device {device}")) } else { error }
    })
}

/// The name of the file without its folder.
pub fn short_name(file: &Path) -> String {
    output::one_line(&file.file_name().unwrap_or(file.as_os_str()).to_string_lossy())
}
