//! A predicted run as a recording: what PyTorch would have recorded, had the program run under other settings.
//!
//! The result is a [`Recording`] like any other. Written with [`write`](parkade_recording::write()) it opens in
//! PyTorch's viewers, and it can be verified. Addresses, segments, blocks and out-of-memory entries are those
//! of the prediction; stacks and times of requests, and annotations, are carried over from the recording.

mod collect;
mod final_heap;
mod options;
mod recorded_settings;

use parkade::profile::Profile;
use parkade_recording::{DeviceRecording, FileFields, Minor, Part, Recording};

pub use options::{ExportError, ExportOptions, Exported, ExportedDevice};

use crate::predict::Requests;

/// Predicts the devices of a recording, and returns what a snapshot at the end of the predicted run would contain.
///
/// `progress` is called from time to time with the number of the recording's entries that have been read.
///
/// # Errors
/// [`ExportError`] if there is no trace, no such device, or a trace contradicts itself.
pub fn export(recording: &Recording, options: &ExportOptions, progress: &mut dyn FnMut(usize)) -> Result<Exported, ExportError> {
    let devices = chosen(recording, options.device)?;
    if devices.iter().all(|device| device.trace.is_empty()) {
        return Err(ExportError::NoTrace);
    }
    let fields = FileFields::of_release(series(options.profile));
    let mut exported = Exported {
        recording: Recording {
            settings: Some(recorded_settings::recorded(&options.settings, fields)),
            fields,
            annotations: recording.annotations.clone(),
            stacks: recording.stacks.clone(),
            ..Recording::default()
        },
        devices: Vec::new(),
        kept_devices: Vec::new(),
    };
    let mut done = 0;
    for device in devices {
        if device.trace.is_empty() {
            exported.kept_devices.push(device.device);
            exported.recording.devices.push(device.clone());
            continue;
        }
        let failed = |error| ExportError::Device { device: device.device, error };
        let requests = Requests::of_recording(device, &options.own, &mut |entries| progress(done + entries)).map_err(failed)?;
        let collected = collect::replay(device, &requests, options, fields.has(Part::Entry, "pool_id"));
        exported.devices.push(collected.found);
        exported.recording.devices.push(collected.device);
        done += device.trace.len();
        progress(done);
    }
    Ok(exported)
}

/// The series of the release whose rules these are: 2.11.
fn series(profile: &Profile) -> Minor {
    let mut numbers = profile.name.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn chosen(recording: &Recording, only: Option<u32>) -> Result<Vec<&DeviceRecording>, ExportError> {
    let Some(only) = only else { return Ok(recording.devices.iter().collect()) };
    match recording.devices.iter().find(|device| device.device == only) {
        Some(device) => Ok(vec![device]),
        None => {
            let known = recording.devices.iter().map(|device| device.device).collect();
            Err(ExportError::NoSuchDevice { device: only, known })
        }
    }
}
