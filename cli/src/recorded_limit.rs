//! The recorded run's own limit: given with `--recorded-limit`, else the one that garbage collection shows. One rule for all commands that
//! read a run's requests.

use anyhow::Result;
use parkade_recognition::{Recognition, find_limit};
use parkade_recording::Recording;
use parkade_replay::VerifyOptions;

use crate::args::RecordedLimit;
use crate::recording;

/// The recorded run's own settings and limit, that limit if it was found and not given, and which release made the recording.
///
/// # Errors
/// The recorded settings are not valid, or the recording cannot be replayed.
pub(crate) fn own(given: &RecordedLimit, recording: &Recording) -> Result<(VerifyOptions, Option<u64>, Recognition)> {
    let (own, made_by) = given.own(recording)?;
    // One device's collections say nothing about the limit of the others.
    let found = match recording::traced(recording).as_slice() {
        [device] => find_limit(device, &own)?,
        _ => None,
    };
    Ok((VerifyOptions { limit_bytes: own.limit_bytes.or(found), ..own }, found, made_by))
}
