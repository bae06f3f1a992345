//! Which release of PyTorch made a recording: one rule for all commands, and how they say it.

use anyhow::Result;
use parkade::profile::{Profile as Rules, RELEASES, Release};
use parkade_recording::{DeviceRecording, Recording};
use parkade_replay::recognition::{Asked, Basis, Differing, Recognition, RecognitionError, RefutedLimit, recognise};

use crate::terminal::json_struct::{all, view};
use crate::terminal::{recording, size};

/// The rules of the newest release, which understands the most settings: to find mistyped ones before a file is read.
pub fn newest() -> &'static Rules {
    RELEASES.last().map_or(&Rules::PYTORCH_2_11, |release| release.profile)
}

/// The release that made a recording, and its own settings as that release reads them.
///
/// # Errors
/// They are not valid, or no release could have made it.
pub fn of(recording: &Recording, asked: &Asked<'_>) -> Result<Recognition> {
    let traced = recording::traced(recording);
    let devices = if traced.is_empty() { recording.devices.iter().collect() } else { traced };
    recognise(recording, &devices, asked).map_err(|error| explain(error, &devices))
}

/// The error, with its device if there are several.
pub fn explain(error: RecognitionError, devices: &[&DeviceRecording]) -> anyhow::Error {
    let RecognitionError { device, error } = error;
    match device {
        Some(device) if devices.len() > 1 => anyhow::Error::from(error).context(format!("device {device}")),
        _ => error.into(),
    }
}

/// What was found out about the release, as a sentence without its full stop; and that the limit that was given was not the run's.
pub fn words(found: &Recognition) -> String {
    let mut words = found.words();
    if let Some(RefutedLimit { limit_bytes, reserved_bytes }) = found.refuted_limit {
        let (reserved, limit) = (size::show_bytes(reserved_bytes), size::show_bytes(limit_bytes));
        words += &format!(
            "; the recorded run reserved {reserved}, more than the limit of {limit} that is given, so that was not its limit"
        );
    }
    words
}

view! {
    /// What was found out about the release.
    pub struct MadeBy(found: &Recognition) {
        releases: Vec<&'static str> = names(&found.releases),
        basis: &'static str = basis(found.basis),
        judging_by: Option<String> = found.evidence_words(),
        contradicted_by: Option<String> = found.contradiction_words(),
        differing: Vec<DifferingReleases> = all(&found.differing, DifferingReleases::of),
        replayed_as: Option<&'static str> = found.decides_as.map(|rules| rules.name),
        refuted_limit: Option<Refuted> = found.refuted_limit.map(Refuted::of),
        maps_while_off: bool = found.maps_while_off,
        words: String = words(found),
    }
}

view! {
    /// A limit that the recorded run exceeded.
    pub struct Refuted(refuted: RefutedLimit) {
        limit_bytes: u64 = refuted.limit_bytes,
        reserved_bytes: u64 = refuted.reserved_bytes,
    }
}

view! {
    /// Releases that do not explain the recording.
    pub struct DifferingReleases(differing: &Differing) {
        releases: Vec<&'static str> = names(&differing.releases),
        device: u32 = differing.device,
        entry: Option<usize> = differing.entry,
    }
}

fn names(releases: &[&'static Release]) -> Vec<&'static str> {
    releases.iter().map(|release| release.name).collect()
}

const fn basis(basis: Basis) -> &'static str {
    match basis {
        Basis::Given => "given",
        Basis::Contents => "contents",
        Basis::Replay => "replay",
        Basis::Nearest => "nearest",
    }
}
