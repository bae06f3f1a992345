//! Reading the recording that a command is about, and choosing among its devices.

use std::path::Path;

use anyhow::{Result, anyhow};
use parkade::profile::Profile as Rules;
use parkade_recording::{DeviceRecording, ReadError, Recording};
use parkade_replay::{ReplaySettings, newer_release};

use crate::output;

/// How to make a recording that has a trace; the end of many messages.
pub(crate) const RECORD_IT: &str = "record it with torch.cuda.memory._record_memory_history()";

/// Reads a recording; the error does not name the file.
pub(crate) fn read(file: &Path) -> Result<Recording> {
    parkade_recording::read_file(file).map_err(|error| match error {
        // The path comes before every error of this file.
        ReadError::File { cause, .. } => anyhow!("cannot be read: {cause}"),
        error => error.into(),
    })
}

/// The release whose decisions a recording shows, 2.11 where it shows none.
pub(crate) fn recorded_rules(recording: &Recording) -> &'static Rules {
    newer_release(recording, None).map_or(&Rules::PYTORCH_2_11, |(profile, _)| profile)
}

/// The settings of the recorded run, as the release that recorded it reads them.
pub(crate) fn own_settings(recording: &Recording) -> Result<ReplaySettings> {
    Ok(ReplaySettings::of_recording_as(recorded_rules(recording), recording.settings.as_ref())?)
}

/// The devices that have a trace.
pub(crate) fn traced(recording: &Recording) -> Vec<&DeviceRecording> {
    recording.devices.iter().filter(|device| !device.trace.is_empty()).collect()
}

/// The entries of all these traces.
pub(crate) fn entries(devices: &[&DeviceRecording]) -> u64 {
    devices.iter().map(|device| device.trace.len() as u64).sum()
}

/// An error of one of several devices names the device.
pub(crate) fn of_device<T, E: Into<anyhow::Error>>(result: Result<T, E>, device: u32, devices: usize) -> Result<T> {
    result.map_err(|error| {
        let error = error.into();
        if devices > 1 { error.context(format!("device {device}")) } else { error }
    })
}

/// The file's own name.
pub(crate) fn short_name(file: &Path) -> String {
    output::one_line(&file.file_name().unwrap_or(file.as_os_str()).to_string_lossy())
}
