//! What to export, and what an export found.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::stats::Stats;
use parkade_recording::Recording;
use thiserror::Error;

use crate::error::VerifyError;
use crate::inputs::VerifyOptions;
use crate::predict::AfterFailure;

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
