//! The recorded run itself, as an export: what happened, not what would have happened.

use anyhow::Result;
use parkade_recording::{Action, Recording};
use parkade_replay::export::{Exported, ExportedDevice};
use parkade_replay::{VerifyOptions, verify_device};

use super::Shortage;
use crate::terminal::recording;

/// The recording unchanged, with what its replay under its own settings shows.
pub(super) fn as_recorded(
    mut recording: Recording,
    own: &VerifyOptions,
    device: Option<u32>,
) -> Result<(Exported, Vec<Shortage>)> {
    let chosen: Vec<u32> = recording::chosen(recording.devices.iter(), device)?.iter().map(|device| device.device).collect();
    recording.devices.retain(|device| chosen.contains(&device.device));
    let (mut devices, mut shortages, mut kept_devices) = (Vec::new(), Vec::new(), Vec::new());
    for device in &recording.devices {
        if device.trace.is_empty() {
            kept_devices.push(device.device);
            continue;
        }
        let verdict = recording::of_device(verify_device(device, own, &mut |_| ()), device.device, chosen.len())?;
        let retries = (verdict.mismatches == 0).then_some(verdict.stats.num_alloc_retries);
        shortages.push(Shortage { ooms: verdict.ooms as i64, retries });
        devices.push(ExportedDevice {
            device: device.device,
            entries: verdict.entries,
            first_failure: device.trace.iter().position(|entry| entry.action == Action::Oom),
            device_errors: 0,
            mismatches: verdict.mismatches,
            early_blocks: None,
            stats: verdict.stats,
        });
    }
    Ok((Exported { recording, devices, kept_devices }, shortages))
}
