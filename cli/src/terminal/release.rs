//! Finds the PyTorch release that made a recording, in the same way and the same words for all commands.

use anyhow::Result;
use parkade::profile::{Profile as Rules, RELEASES, Release};
use parkade_recording::{DeviceRecording, Recording};
use parkade_replay::recognition::{Asked, Basis, Differing, Recognition, RecognitionError, RefutedLimit, recognise};

use crate::terminal::json_struct::{Word, all, sections, view};
use crate::terminal::{recording, size};

/// Returns the rules of the newest release. It knows the most settings, so that mistyped ones are found before a file is read.
pub fn newest() -> &'static Rules {
    RELEASES.last().map_or(&Rules::PYTORCH_2_11, |release| release.profile)
}

/// Returns the release that made a recording, and the recording's settings as that release parses them.
///
/// # Errors
/// The settings are invalid, or no release could have made the recording.
pub fn of(recording: &Recording, asked: &Asked<'_>) -> Result<Recognition> {
    let traced = recording::traced(recording);
    let devices = if traced.is_empty() { recording.devices.iter().collect() } else { traced };
    recognise(recording, &devices, asked).map_err(|error| explain(error, &devices))
}

/// Adds the device to an error if there are several.
pub fn explain(error: RecognitionError, devices: &[&DeviceRecording]) -> anyhow::Error {
    let RecognitionError { device, error } = error;
    match device {
        Some(device) if devices.len() > 1 => anyhow::Error::from(error).context(format!("device {device}")),
        _ => error.into(),
    }
}

/// Says which release it is, as a sentence without its full stop, and if so, that the given limit was not the run's.
pub fn words(found: &Recognition) -> String {
    let mut words = found.words();
    if let Some(RefutedLimit { limit_bytes, reserved_bytes }) = found.refuted_limit {
        let (reserved, limit) = (size::show_bytes(reserved_bytes), size::show_bytes(limit_bytes));
        words +=
            &format!("; the recorded run reserved {reserved}, more than the given limit of {limit}, so that was not its limit");
    }
    words
}

view! {
    /// What was found out about the release.
    pub struct MadeBy(found: &Recognition) {
        /// The releases, oldest first, with full names such as `2.11.0`: those that explain the recording, or that its contents
        /// leave. If none explains it, those that differ least.
        releases: Vec<&'static str> = names(&found.releases),
        /// `given` (`--profile`), `contents` (there is no trace to replay, only what the file has), `replay` (every recorded
        /// decision was made again under their rules) or `nearest` (no release explains every decision).
        basis: Word<Basis> = Word::of(&found.basis),
        /// What in the file excludes other releases.
        judging_by: Option<String> = found.evidence_words(),
        /// What in the file excludes some of `releases`, although they explain every decision and no others do: the file was
        /// changed, or another program wrote it.
        contradicted_by: Option<String> = found.contradiction_words(),
        /// The other releases that were tried and do not explain the recording.
        differing: Vec<DifferingReleases> = all(&found.differing, DifferingReleases::of),
        /// The release whose decisions were made, as `2.11`, where `--profile` chose it.
        replayed_as: Option<&'static str> = found.decides_as.map(|rules| rules.name),
        /// The limit that was given, if it was not the recorded run's: decisions differ under it, and the run had more
        /// reserved. The releases are those that explain the recording without it.
        refuted_limit: Option<Refuted> = found.refuted_limit.map(Refuted::of),
        /// Whether no release explains the recording, and its trace maps memory although its settings have
        /// `expandable_segments` off: the settings changed, or another allocator decided, as a policy of parkade does.
        maps_while_off: bool = found.maps_while_off,
        /// The same in a sentence.
        words: String = words(found),
    }
}

sections! {
    "made_by": MadeBy;
}

view! {
    /// A limit that the recorded run exceeded.
    pub struct Refuted(refuted: RefutedLimit) {
        /// The limit.
        limit_bytes: u64 = refuted.limit_bytes,
        /// The most that the run had reserved on one device.
        reserved_bytes: u64 = refuted.reserved_bytes,
    }
}

view! {
    /// Releases that do not explain the recording.
    pub struct DifferingReleases(differing: &Differing) {
        /// The releases.
        releases: Vec<&'static str> = names(&differing.releases),
        /// The device whose replay differs.
        device: u32 = differing.device,
        /// The entry of the first difference; null if it is at the end.
        entry: Option<usize> = differing.entry,
    }
}

fn names(releases: &[&'static Release]) -> Vec<&'static str> {
    releases.iter().map(|release| release.name).collect()
}
