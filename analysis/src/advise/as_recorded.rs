//! What the recorded run did within so much memory stands, whatever a replay says.
//!
//! A replay under the run's own settings may still differ from it: other streams may finish at other times, and what came before the first
//! entry of a file that lost its beginning is requested anew.

use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_recording::DeviceRecording;
use parkade_replay::{Prediction, ReplaySettings, VerifyOptions, verify_device};

use crate::ending::Ending;

/// Whether two settings are the same, however they are written.
pub(super) fn are_same(one: &Settings, other: &Settings) -> bool {
    Settings { text: String::new(), ..one.clone() } == Settings { text: String::new(), ..other.clone() }
}

/// How the run was recorded, read by the rules of a release that may be another than the one that made it.
fn under(profile: &'static Profile, recorded: &VerifyOptions) -> VerifyOptions {
    VerifyOptions { settings: ReplaySettings { profile, ..recorded.settings.clone() }, ..recorded.clone() }
}

/// Whether a release would have done what the recorded run did on every device. If not, that run says nothing about the release.
pub(super) fn would_do_the_same(profile: &'static Profile, devices: &[&DeviceRecording], recorded: &VerifyOptions) -> bool {
    let explains = |device: &&DeviceRecording| {
        verify_device(device, &under(profile, recorded), &mut |_| ()).is_ok_and(|verdict| verdict.mismatches == 0)
    };
    profile == recorded.settings.profile || devices.iter().all(explains)
}

/// Replaces a prediction for a release under `settings` in `available_bytes` that fails, if the settings are the recorded run's own, the
/// release would have done the same, and the run was within as much memory and served every request; returns whether it did. What driver
/// calls cost stays as predicted. `recorded` says how the run was recorded.
pub fn fit_as_recorded(
    prediction: &mut Prediction,
    recording: &DeviceRecording,
    recorded: &VerifyOptions,
    (profile, settings): (&'static Profile, &Settings),
    available_bytes: u64,
) -> bool {
    let is_own = are_same(settings, &recorded.settings.settings);
    if prediction.first_failure.is_none() || !is_own || Ending::of(recording) != Ending::NoError {
        return false;
    }
    let within = VerifyOptions { limit_bytes: Some(available_bytes), ..under(profile, recorded) };
    let Ok(verdict) = verify_device(recording, &within, &mut |_| ()) else { return false };
    let hid_more = verdict.not_in_file.lost_beginning.is_some_and(|lost| lost.reserved_bytes > available_bytes);
    let is_proof = verdict.mismatches == 0 && verdict.ooms == 0 && !hid_more;
    if is_proof {
        // The only statistic that repeats the settings.
        let max_split_size = prediction.stats.max_split_size;
        prediction.stats = verdict.stats;
        prediction.stats.max_split_size = max_split_size;
        prediction.first_failure = None;
    }
    is_proof
}
