//! Tries the releases that may have made a recording.
//!
//! The releases form groups that make the same decisions for a file, so that one replay is enough for an entire group.

use parkade::profile::{Profile, RELEASES, Release, Scope};
use parkade_recording::{Action, DeviceRecording, Recording};

use super::limit::{finding_limit, most_reserved, verify_finding_limit};
use super::outcome::{Basis, Differing, Evidence, Possible, Recognition, RefutedLimit, in_order, possible};
use crate::{DeviceVerdict, ReplaySettings, SettingsOrigin, StatsFile, Trial, VerifyError, VerifyOptions, try_device};

/// The facts that the caller knows about a recorded run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Asked<'a> {
    /// The release under whose rules the run took place.
    pub profile: Option<&'static Profile>,
    /// The run's settings, if the file does not state them or states them wrongly.
    pub settings: Option<&'a str>,
    /// The run's memory limit, in bytes.
    pub limit_bytes: Option<u64>,
    /// The run's final statistics.
    pub stats_file: Option<&'a StatsFile>,
}

impl Asked<'_> {
    /// Returns the settings of the run under the rules of a release.
    fn settings_under(&self, profile: &'static Profile, recording: &Recording) -> Result<ReplaySettings, VerifyError> {
        match self.settings {
            Some(text) => ReplaySettings::given_as(profile, text),
            None => ReplaySettings::of_recording_as(profile, recording.settings.as_ref()),
        }
    }

    fn options(&self, settings: &ReplaySettings) -> VerifyOptions {
        let stats_file = self.stats_file.cloned();
        VerifyOptions { settings: settings.clone(), limit_bytes: self.limit_bytes, stats_file }
    }
}

/// A verified device: the verdict, and the limit in bytes that garbage collection reveals if none was specified.
pub type VerifiedDevice = (DeviceVerdict, Option<u64>);

/// The reason why no release can be determined. The device is the one with the error; `None` if the error concerns all
/// devices.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RecognitionError {
    /// The device's number.
    pub device: Option<u32>,
    /// The error.
    #[source]
    pub error: VerifyError,
}

impl From<VerifyError> for RecognitionError {
    fn from(error: VerifyError) -> RecognitionError {
        RecognitionError { device: None, error }
    }
}

/// Finds the releases that may have made a recording: the result of [`verify`] for the devices that have a trace and can be
/// replayed. If there are no such devices, or the caller names the release, this replays nothing.
///
/// # Errors
/// Fails if the settings cannot be read under the rules of any release.
pub fn recognise(
    recording: &Recording,
    devices: &[&DeviceRecording],
    asked: &Asked<'_>,
) -> Result<Recognition, RecognitionError> {
    let search = Search { recording, devices, asked };
    let is_settled = asked.profile.is_some() && search.exceeded_limit().is_none();
    let mut sound: Vec<&DeviceRecording> = devices.iter().copied().filter(|device| !device.trace.is_empty()).collect();
    while !is_settled && !sound.is_empty() {
        match verify(recording, &sound, asked, &mut |_, _| ()) {
            Ok((found, _)) => return Ok(found),
            Err(RecognitionError { device: Some(device), .. }) => sound.retain(|other| other.device != device),
            Err(error) => return Err(error),
        }
    }
    let (possible, groups) = search.candidates()?;
    let basis = if asked.profile.is_some() { Basis::Given } else { Basis::Contents };
    let releases = in_order(groups.iter().flat_map(|group| group.releases.iter().copied()));
    let settings = groups.into_iter().next().map(|group| group.settings);
    Ok(Recognition { possible, ..Recognition::new(settings.ok_or(VerifyError::NoTrace)?, basis, releases) })
}

/// Verifies these devices of a recording, each of which has a trace, under the rules of every release that may have made it.
/// Returns the outcome, and the verified devices under the rules that explain the recording, or that have the fewest
/// differences.
///
/// It calls `progress` periodically with the index of the device and the number of its entries done so far. The number starts
/// over at 0 for each reading of the file that is tried.
///
/// # Errors
/// Fails if the settings cannot be read, or a device cannot be replayed, under the rules of any release.
pub fn verify(
    recording: &Recording,
    devices: &[&DeviceRecording],
    asked: &Asked<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(Recognition, Vec<VerifiedDevice>), RecognitionError> {
    let search = Search { recording, devices, asked };
    if let Some(exceeded) = search.exceeded_limit() {
        // No release would have exceeded the limit, so the limit shows nothing about which release made the file.
        let unlimited = Asked { limit_bytes: None, ..*asked };
        let (found, _) = verify(recording, devices, &unlimited, progress)?;
        let group = Group { releases: found.releases.clone(), settings: found.settings.clone() };
        let verified = search.verify_group(&group, progress).map_err(Failed::into_error)?;
        let refuted_limit = (mismatches(&verified) > 0).then_some(exceeded);
        return Ok((Recognition { refuted_limit, ..found }, verified));
    }
    let (possible, groups) = search.candidates()?;
    let (found, verified) = search.verify(possible, groups, progress)?;
    match search.verify_excluded(&found, &verified, progress) {
        Some(explained) => Ok(explained),
        None => Ok((found, verified)),
    }
}

struct Search<'s> {
    recording: &'s Recording,
    devices: &'s [&'s DeviceRecording],
    asked: &'s Asked<'s>,
}

/// The verdict on every device under the rules of one group, or the reason why there is no verdict, with the device
/// concerned.
type Attempt = Result<Vec<VerifiedDevice>, Failed>;

/// The point at which a group of releases fails to explain the recording.
struct Failed {
    device: u32,
    entry: Option<usize>,
    error: Option<VerifyError>,
}

impl Failed {
    fn into_error(self) -> RecognitionError {
        RecognitionError { device: Some(self.device), error: self.error.unwrap_or(VerifyError::NoTrace) }
    }
}

impl Search<'_> {
    /// Returns the limit that the caller specified, if the recorded run had more reserved on some device.
    fn exceeded_limit(&self) -> Option<RefutedLimit> {
        let limit_bytes = self.asked.limit_bytes?;
        let reserved_bytes = self.devices.iter().map(|device| most_reserved(device)).max()?;
        (reserved_bytes > limit_bytes).then_some(RefutedLimit { limit_bytes, reserved_bytes })
    }

    /// Returns a reading by the excluded releases, for a recording that no release allowed by the file's contents explains,
    /// if one of the excluded releases explains it in the first reading. In that case, the file's contents were changed or a
    /// different program wrote them.
    fn verify_excluded(
        &self,
        found: &Recognition,
        verified: &[VerifiedDevice],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Option<(Recognition, Vec<VerifiedDevice>)> {
        let possible = found.possible.clone().filter(|_| found.basis == Basis::Nearest)?;
        let excluded: Vec<_> = RELEASES.iter().filter(|release| !possible.releases.contains(release)).collect();
        let groups = groups_of(&excluded, self.recording, self.asked, |settings| self.scope(settings)).ok()?;
        let attempts: Vec<Attempt> = groups.iter().map(|group| self.try_group(group, progress)).collect();
        if !attempts.iter().any(Result::is_ok) {
            return None;
        }
        let (mut explained, devices) = self.conclude(Some(possible), groups, attempts).ok()?;
        let contradicts = |one: &&Evidence| explained.releases.iter().any(|release| one.excludes(release, self.recording));
        explained.contradicting = explained.possible.iter().flat_map(|all| &all.evidence).filter(contradicts).copied().collect();
        let Failed { device, entry, .. } = first_difference(verified);
        explained.differing.push(Differing { releases: found.releases.clone(), device, entry });
        explained.differing.extend(found.differing.iter().cloned());
        Some((explained, devices))
    }

    /// Returns the releases that the file's contents allow, and their groups, the preferred one first.
    fn candidates(&self) -> Result<(Option<Possible>, Vec<Group>), VerifyError> {
        let scope = |settings: &ReplaySettings| self.scope(settings);
        if let Some(profile) = self.asked.profile {
            let settings = self.asked.settings_under(profile, self.recording)?;
            return Ok((None, vec![Group { releases: profile.releases().collect(), settings }]));
        }
        let possible = possible(self.recording, self.asked.stats_file);
        let groups = groups_of(&possible.releases, self.recording, self.asked, scope)?;
        Ok((Some(possible), groups))
    }

    fn verify(
        &self,
        possible: Option<Possible>,
        groups: Vec<Group>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(Recognition, Vec<VerifiedDevice>), RecognitionError> {
        let mut attempts: Vec<Attempt> = Vec::new();
        if groups.len() > 1 {
            // Try the first reading of the file, and only up to the first difference. Most rules differ early, and rules that
            // explain this reading need no guesses about what the file does not state.
            attempts.extend(groups.iter().map(|group| self.try_group(group, progress)));
            if attempts.iter().any(Result::is_ok) {
                return self.conclude(possible, groups, attempts);
            }
        }
        let attempts = self.verify_all(&groups, attempts, progress);
        let is_guessed = |(verdict, _): &VerifiedDevice| verdict.not_in_file.guess.is_some();
        let guesses = |devices: &Vec<VerifiedDevice>| mismatches(devices) == 0 && devices.iter().any(is_guessed);
        if let Some(possible) = possible.as_ref().filter(|_| attempts.iter().flatten().any(guesses)) {
            // There are private pools, for which releases of one group may decide differently.
            let finer = |settings: &ReplaySettings| Scope { private_pools: true, ..self.scope(settings) };
            let groups = groups_of(&possible.releases, self.recording, self.asked, finer)?;
            let attempts = self.verify_all(&groups, Vec::new(), progress);
            return self.conclude(Some(possible.clone()), groups, attempts);
        }
        self.conclude(possible, groups, attempts)
    }

    /// Verifies each group in full, with guesses about what the file does not state, starting with the group that got
    /// furthest in the trials. If there is too much to guess, the other groups keep the results of the trials.
    fn verify_all(&self, groups: &[Group], trials: Vec<Attempt>, progress: &mut dyn FnMut(usize, usize)) -> Vec<Attempt> {
        let mut order: Vec<usize> = (0..groups.len()).collect();
        let reach = |place: &usize| match trials.get(*place) {
            Some(Err(Failed { error: None, entry, .. })) => entry.unwrap_or(usize::MAX),
            _ => 0,
        };
        order.sort_by_key(|place| std::cmp::Reverse(reach(place)));
        let mut attempts: Vec<Option<Attempt>> = trials.into_iter().map(Some).collect();
        attempts.resize_with(groups.len(), || None);
        for place in order {
            let verified = self.verify_group(&groups[place], progress);
            let gave_up = verified.iter().flatten().any(|(verdict, _)| verdict.not_in_file.gave_up_on_pools);
            attempts[place] = Some(verified);
            if gave_up {
                break;
            }
        }
        attempts.into_iter().flatten().collect()
    }

    fn scope(&self, settings: &ReplaySettings) -> Scope {
        scope(self.devices, settings)
    }

    fn try_group(&self, group: &Group, progress: &mut dyn FnMut(usize, usize)) -> Attempt {
        let options = self.asked.options(&group.settings);
        let on = |(place, device): (usize, &&DeviceRecording)| {
            let differs = |trial: &Trial| u64::from(matches!(trial, Trial::Differs { .. }));
            let replay = |own: &VerifyOptions| try_device(device, own, &mut |entries| progress(place, entries));
            match finding_limit(device, &options, differs, replay) {
                Ok((Trial::Same(verdict), limit)) => Ok((*verdict, limit)),
                Ok((Trial::Differs { entry }, _)) => Err(Failed { device: device.device, entry, error: None }),
                Err(error) => Err(Failed { device: device.device, entry: None, error: Some(error) }),
            }
        };
        self.devices.iter().enumerate().map(on).collect()
    }

    /// Returns the verdicts even if there are differences.
    fn verify_group(&self, group: &Group, progress: &mut dyn FnMut(usize, usize)) -> Attempt {
        let options = self.asked.options(&group.settings);
        let on = |(place, device): (usize, &&DeviceRecording)| {
            let verified = verify_finding_limit(device, &options, &mut |entries| progress(place, entries));
            verified.map_err(|error| Failed { device: device.device, entry: None, error: Some(error) })
        };
        self.devices.iter().enumerate().map(on).collect()
    }

    /// Returns the attempts that explain the recording; if none does, those with the fewest differences.
    fn conclude(
        &self,
        possible: Option<Possible>,
        groups: Vec<Group>,
        attempts: Vec<Attempt>,
    ) -> Result<(Recognition, Vec<VerifiedDevice>), RecognitionError> {
        let least = attempts.iter().flatten().map(|devices| mismatches(devices)).min();
        let explains = |attempt: &Attempt| attempt.as_ref().is_ok_and(|devices| Some(mismatches(devices)) == least);
        let (mut used, mut releases, mut differing, mut first_error) = (None, Vec::new(), Vec::new(), None);
        for (group, attempt) in groups.into_iter().zip(attempts) {
            if explains(&attempt) {
                releases.extend(group.releases);
                used = used.or(attempt.ok().map(|devices| (group.settings, devices)));
                continue;
            }
            let failed = attempt.map_or_else(|failed| failed, |devices| first_difference(&devices));
            let Failed { device, entry, error } = failed;
            differing.push(Differing { releases: group.releases, device, entry });
            first_error = first_error.or(error.map(|error| RecognitionError { device: Some(device), error }));
        }
        let Some((settings, devices)) = used else {
            return Err(first_error.unwrap_or(RecognitionError { device: None, error: VerifyError::NoTrace }));
        };
        let basis = match (self.asked.profile, least) {
            (Some(_), _) => Basis::Given,
            (None, Some(0)) => Basis::Replay,
            (None, _) => Basis::Nearest,
        };
        let is_stated = matches!(settings.origin, SettingsOrigin::Recorded | SettingsOrigin::RecordedValues);
        let maps_while_off = basis == Basis::Nearest && is_stated && !settings.settings.expandable_segments && self.maps_memory();
        Ok((
            Recognition { differing, possible, maps_while_off, ..Recognition::new(settings, basis, in_order(releases)) },
            devices,
        ))
    }

    fn maps_memory(&self) -> bool {
        self.devices.iter().any(|device| device.trace.iter().any(|entry| entry.action == Action::SegmentMap))
    }
}

fn mismatches(devices: &[VerifiedDevice]) -> u64 {
    devices.iter().map(|(verdict, _)| verdict.mismatches).sum()
}

fn first_difference(devices: &[VerifiedDevice]) -> Failed {
    let found = devices.iter().find_map(|(verdict, _)| Some((verdict.device, verdict.first.as_ref()?.entry)));
    let (device, entry) = found.unwrap_or_default();
    Failed { device, entry, error: None }
}

/// Releases that make the same decisions for a file.
#[derive(Clone, Debug)]
struct Group {
    /// The releases, oldest first.
    releases: Vec<&'static Release>,
    /// The file's settings as these releases read them, under the rules of the preferred one.
    settings: ReplaySettings,
}

/// Returns the features that the devices of a recording use, or may use under these settings.
fn scope(devices: &[&DeviceRecording], settings: &ReplaySettings) -> Scope {
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

/// Returns the groups of these releases, the preferred one first.
///
/// # Errors
/// Fails if none of the releases can read the settings.
fn groups_of(
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

/// Puts the release about which the most is known first, followed by the others, the newest first.
fn by_preference(releases: &[&'static Release]) -> Vec<&'static Release> {
    let mut ordered: Vec<_> = releases.iter().rev().copied().collect();
    ordered.sort_by_key(|release| *release.profile != Profile::PYTORCH_2_11);
    ordered
}
