//! Which releases decide alike about a file, so that one replay answers for all of them.

use crate::{ReplaySettings, VerifyError};
use parkade::profile::{Profile, Release, Scope};
use parkade_recording::{Action, DeviceRecording, Recording};

use super::recognise::Asked;

/// All that a replay may meet under settings that nobody would set to one division.
pub(crate) const ANY_REPLAY: Scope = Scope { checkpoints: false, one_division: false, ..Scope::EVERYTHING };

/// Releases that decide alike about a file.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Oldest first.
    pub(crate) releases: Vec<&'static Release>,
    /// The file's settings as they read them, under the rules of the one that is preferred.
    pub(crate) settings: ReplaySettings,
}

/// What occurs in the devices of a recording, or may occur under these settings.
pub(crate) fn scope(devices: &[&DeviceRecording], settings: &ReplaySettings) -> Scope {
    let is_mapped = |device: &&DeviceRecording| {
        let maps = |action| matches!(action, Action::SegmentMap | Action::SegmentUnmap);
        device.segments.iter().any(|segment| segment.expandable) || device.trace.iter().any(|entry| maps(entry.action))
    };
    let is_private = |device: &&DeviceRecording| {
        let is_private = |pool: Option<(u64, u64)>| pool.is_some_and(|id| id != (0, 0));
        device.segments.iter().any(|segment| is_private(segment.pool))
            || (!device.pools.is_empty() && device.trace.iter().any(|entry| is_private(device.pools.get(entry.pool))))
    };
    Scope {
        expandable_segments: settings.settings.expandable_segments || devices.iter().any(is_mapped),
        private_pools: devices.iter().any(is_private),
        checkpoints: false,
        one_division: settings.settings.roundup_power2_divisions.contains(&1),
    }
}

/// The groups of these releases, the preferred one first.
///
/// # Errors
/// The settings cannot be read by any of them.
pub(crate) fn groups(
    releases: &[&'static Release],
    recording: &Recording,
    asked: &Asked<'_>,
    scope: impl Fn(&ReplaySettings) -> Scope,
) -> Result<Vec<Group>, VerifyError> {
    let (mut groups, mut failed) = (Vec::<Group>::new(), None);
    for &release in &by_preference(releases) {
        let settings = match asked.settings_under(release.profile, recording) {
            Ok(settings) => settings,
            Err(error) => {
                failed.get_or_insert(error);
                continue;
            }
        };
        let scope = scope(&settings);
        let is_alike = |group: &&mut Group| {
            group.settings.settings == settings.settings && group.settings.profile.decides_like(settings.profile, scope)
        };
        match groups.iter_mut().find(is_alike) {
            Some(group) => group.releases.push(release),
            None => groups.push(Group { releases: vec![release], settings }),
        }
    }
    for group in &mut groups {
        group.releases.sort_by_key(|release| releases.iter().position(|other| other == release));
    }
    match failed {
        Some(error) if groups.is_empty() => Err(error),
        _ => Ok(groups),
    }
}

/// The release of which most is known comes first, then the newest.
fn by_preference(releases: &[&'static Release]) -> Vec<&'static Release> {
    let mut ordered: Vec<_> = releases.iter().rev().copied().collect();
    ordered.sort_by_key(|release| *release.profile != Profile::PYTORCH_2_11);
    ordered
}
