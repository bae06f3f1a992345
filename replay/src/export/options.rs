//! What to export, and the result.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::stats::Stats;
use parkade_recording::Recording;
use thiserror::Error;

use crate::error::VerifyError;
use crate::inputs::VerifyOptions;
use crate::predict::AfterFailure;

/// What to predict and export.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The recorded run's own settings and limit.
    pub own: VerifyOptions,
    /// The rules of the PyTorch release to predict for.
    pub profile: &'static Profile,
    /// The settings to predict for.
    pub settings: Settings,
    /// The memory limit to predict for, in bytes.
    pub limit_bytes: Option<u64>,
    /// The device's memory in bytes; more than any device has if `None`.
    pub capacity_bytes: Option<u64>,
    /// What the program does after a request that failed.
    pub after_failure: AfterFailure,
    /// Export only this device; all if `None`.
    pub device: Option<u32>,
}

/// Why a recording cannot be exported.
#[derive(Debug, Error)]
pub enum ExportError {
    /// No device has a trace.
    #[error("the file has no trace entries to replay: record it with torch.cuda.memory._record_memory_history()")]
    NoTrace,
    /// The recording does not have the device.
    #[error("the file has nothing of device {device}; it has {}", list(known))]
    NoSuchDevice {
        /// The device that the options name.
        device: u32,
        /// The devices that the recording has.
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

/// The result for one device.
#[derive(Clone, Debug)]
pub struct ExportedDevice {
    /// The device's number.
    pub device: u32,
    /// The number of entries in the exported trace.
    pub entries: usize,
    /// The stats at the end of the predicted run.
    pub stats: Stats,
    /// The first out-of-memory entry in the exported trace.
    pub first_failure: Option<usize>,
    /// Operations that the simulated device refused and a real one would not.
    pub device_errors: u64,
    /// How many recorded decisions the core makes differently under the recording's own settings.
    pub mismatches: u64,
    /// If the recording lost its beginning, how many blocks were in use at its first entry. They are requested first.
    pub early_blocks: Option<usize>,
}

/// An exported recording.
#[derive(Clone, Debug)]
pub struct Exported {
    /// What a snapshot of the predicted run contains.
    pub recording: Recording,
    /// The devices that were predicted.
    pub devices: Vec<ExportedDevice>,
    /// Devices that have segments but no trace; they are exported as recorded.
    pub kept_devices: Vec<u32>,
}
