//! The limit of a recorded run that collected garbage. A recording does not state it, but its decisions depend on it.
//!
//! Garbage is collected from a share of the limit on. So where decisions differ without a limit, those that the out-of-memory errors
//! allow are tried, and the one under which every decision is the recorded one was the run's.

use crate::{DeviceVerdict, VerifyError, VerifyOptions, verify_device};
use parkade_recording::DeviceRecording;

use super::capacity_hint::{CapacityHint, hint};

/// Verifies a device and finds its limit, if none is given and garbage collection shows it. Returns the verdict under that limit, and the
/// limit in bytes: the smallest in whole gibibytes that explains every decision; `None` if none was looked for, or none does.
///
/// `progress` is called from time to time with the number of entries that are done. It starts again at 0 for each limit that is tried.
///
/// # Errors
/// If the recording cannot be replayed.
pub fn verify_finding_limit(
    recording: &DeviceRecording,
    own: &VerifyOptions,
    progress: &mut dyn FnMut(usize),
) -> Result<(DeviceVerdict, Option<u64>), VerifyError> {
    finding_limit(recording, own, |verdict: &DeviceVerdict| verdict.mismatches, |own| verify_device(recording, own, progress))
}

/// The rule itself, for whatever replays the device: `replay` does, and `mismatches` tells how many decisions differ.
///
/// # Errors
/// Those of `replay`.
pub fn finding_limit<T>(
    recording: &DeviceRecording,
    own: &VerifyOptions,
    mismatches: impl Fn(&T) -> u64,
    mut replay: impl FnMut(&VerifyOptions) -> Result<T, VerifyError>,
) -> Result<(T, Option<u64>), VerifyError> {
    let replayed = replay(own)?;
    let collects = own.settings.settings.garbage_collection_threshold > 0.0;
    if mismatches(&replayed) == 0 || !collects || own.limit_bytes.is_some() {
        return Ok((replayed, None));
    }
    for bytes in hint(recording, &own.settings).iter().flat_map(CapacityHint::whole_gibibytes) {
        let explained = replay(&VerifyOptions { limit_bytes: Some(bytes), ..own.clone() })?;
        if mismatches(&explained) == 0 {
            return Ok((explained, Some(bytes)));
        }
    }
    Ok((replayed, None))
}

/// Only the limit of [`verify_finding_limit`]. Where no garbage was collected nothing is replayed.
///
/// # Errors
/// If the recording cannot be replayed.
pub fn find_limit(recording: &DeviceRecording, own: &VerifyOptions) -> Result<Option<u64>, VerifyError> {
    let collects = own.settings.settings.garbage_collection_threshold > 0.0;
    if collects { Ok(verify_finding_limit(recording, own, &mut |_| ())?.1) } else { Ok(None) }
}
