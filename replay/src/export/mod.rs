//! The replayed run as a recording: what PyTorch would have written down, had the program run under other settings.
//!
//! The result is a [`Recording`] like any other: written with [`write`](parkade_recording::write) it opens in PyTorch's viewers, and it
//! verifies. What the replay decides is new (addresses, segments, blocks, out-of-memory points), what the program did is carried
//! over: the stacks and times of its requests, and its annotations.

mod collect;
mod heap;
mod settings;

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::stats::Stats;
use thiserror::Error;

use crate::{AfterFailure, Requests, VerifyError, VerifyOptions};
use parkade_recording::{DeviceRecording, Recording};

/// Under what to replay, and what of the recording.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// Settings and limit of the recorded run, which show what it asked for.
    pub own: VerifyOptions,
    /// The version of PyTorch whose decisions are made.
    pub profile: &'static Profile,
    /// The settings to replay under.
    pub settings: Settings,
    /// The memory limit to replay under.
    pub limit_bytes: Option<u64>,
    /// The device's memory; as much as is needed if not given.
    pub capacity_bytes: Option<u64>,
    /// What the program does after a request that failed.
    pub after_failure: AfterFailure,
    /// Only this device.
    pub device: Option<u32>,
}

/// A recording that cannot be exported.
#[derive(Debug, Error)]
pub enum ExportError {
    /// Nothing can be replayed.
    #[error("the file has no trace entries to replay: record it with torch.cuda.memory._record_memory_history()")]
    NoTrace,
    /// The device that was asked for is not in the file.
    #[error("the file has nothing of device {device}; it has {}", list(known))]
    NoSuchDevice {
        /// The device asked for.
        device: u32,
        /// Those of the file.
        known: Vec<u32>,
    },
    /// A device cannot be replayed.
    #[error("device {device}: {error}")]
    Device {
        /// Its number.
        device: u32,
        /// Why.
        error: VerifyError,
    },
}

fn list(devices: &[u32]) -> String {
    let numbers: Vec<String> = devices.iter().map(u32::to_string).collect();
    if numbers.is_empty() { "no device".to_owned() } else { format!("device {}", numbers.join(", ")) }
}

/// What exporting one device found.
#[derive(Clone, Debug)]
pub struct ExportedDevice {
    /// The device's number.
    pub device: u32,
    /// Entries of the exported trace.
    pub entries: usize,
    /// The statistics at the end of the replayed run.
    pub stats: Stats,
    /// The exported trace's entry that is the first out-of-memory point.
    pub first_failure: Option<usize>,
    /// Requests that the simulated device could not follow.
    pub device_errors: u64,
    /// How many decisions of the recording the core makes otherwise under its own settings.
    pub mismatches: u64,
    /// If the recording lost its beginning, how many blocks were in use by then: they are asked for before everything else.
    pub early_blocks: Option<usize>,
}

/// An exported recording.
#[derive(Clone, Debug)]
pub struct Exported {
    /// What a snapshot of the replayed run has.
    pub recording: Recording,
    /// Each device that was replayed.
    pub devices: Vec<ExportedDevice>,
    /// Devices that have segments and no trace: they are as recorded.
    pub kept_devices: Vec<u32>,
}

/// Replays the devices of a recording and gives what a snapshot at the end would have. `progress` is told now and then how many
/// entries of the recording have been read.
///
/// # Errors
/// [`ExportError`]: nothing to replay, no such device, or a trace that contradicts itself.
pub fn export(recording: &Recording, options: &ExportOptions, progress: &mut dyn FnMut(usize)) -> Result<Exported, ExportError> {
    let devices = chosen(recording, options.device)?;
    if devices.iter().all(|device| device.trace.is_empty()) {
        return Err(ExportError::NoTrace);
    }
    let is_newer = *options.profile != Profile::PYTORCH_2_11;
    let mut exported = Exported {
        recording: Recording {
            settings: Some(settings::recorded(&options.settings, is_newer)),
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
        let pools = is_newer.then_some(&mut exported.recording.pools);
        let collected = collect::replay(device, &requests, options, pools);
        exported.devices.push(collected.found);
        exported.recording.devices.push(collected.device);
        done += device.trace.len();
        progress(done);
    }
    Ok(exported)
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
