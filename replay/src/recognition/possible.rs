//! Determines which releases a file's own contents allow: its keys, its settings string, and the names of its statistics.

use crate::StatsFile;
use parkade::profile::{Profile, RELEASES, Release};
use parkade::settings::Settings;
use parkade_recording::{DatedKey, FieldEvidence, Minor, Part, Recording};

/// The releases that may have made a file, judging by its contents alone.
#[derive(Clone, Debug)]
pub struct Possible {
    /// The releases, oldest first. Never empty.
    pub releases: Vec<&'static Release>,
    /// The evidence that excludes the others.
    pub evidence: Vec<Evidence>,
    /// The series whose keys the file has, if there are no rules for any of them; in that case, all releases are tried.
    pub unknown: Vec<Minor>,
}

/// Something in a file that excludes a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// A key is present or missing.
    Key(FieldEvidence),
    /// The settings string has a key that other releases refuse.
    SettingsText,
}

impl Evidence {
    /// The evidence, worded as the end of a sentence: "excluded by the pool_id of its trace entries".
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Evidence::Key(FieldEvidence { key, is_present: true }) => format!("the {} of {}", key.name, key.part.words()),
            Evidence::Key(FieldEvidence { key, is_present: false }) => {
                format!("the lack of {} in {}", key.name, key.part.words())
            }
            Evidence::SettingsText => "a key in its settings string".to_owned(),
        }
    }

    /// The fact itself, after "although the file has": "pool_id in its trace entries".
    pub(crate) fn fact_words(&self) -> String {
        match self {
            Evidence::Key(FieldEvidence { key, is_present: true }) => format!("{} in {}", key.name, key.part.words()),
            Evidence::Key(FieldEvidence { key, is_present: false }) => format!("no {} in {}", key.name, key.part.words()),
            Evidence::SettingsText => "a settings string that it refuses".to_owned(),
        }
    }

    /// Whether this fact rules out that the release made the file.
    pub(crate) fn excludes(&self, release: &Release, recording: &Recording) -> bool {
        match self {
            Evidence::Key(fact) => !fact.allows(minor(release)),
            Evidence::SettingsText => !accepts(release.profile, settings_text(recording)),
        }
    }
}

/// The statistics that a release introduced.
static STATISTICS: [DatedKey; 2] = [statistic("num_device_alloc", (2, 3)), statistic("num_oom_rejections", (2, 12))];

const fn statistic(name: &'static str, since: Minor) -> DatedKey {
    DatedKey { part: Part::Statistics, name, since: Some(since), until: None, is_always_written: true }
}

/// The series of PyTorch whose keys are known.
const ALL_SERIES: [Minor; 16] = {
    let mut all = [(2, 0); 16];
    let mut minor = 0;
    while minor < all.len() {
        all[minor].1 = minor as u8;
        minor += 1;
    }
    all
};

/// The releases that may have made a recording, and its stats file if there is one.
#[must_use]
pub fn possible(recording: &Recording, stats_file: Option<&StatsFile>) -> Possible {
    let statistics = stats_file
        .into_iter()
        .flat_map(|file| STATISTICS.iter().map(|key| FieldEvidence { key, is_present: file.has(key.name) }));
    let facts: Vec<FieldEvidence> = recording.fields.evidence().chain(statistics).collect();
    let whole = allowed(&facts);
    let unknown: Vec<Minor> = match whole.as_slice() {
        [] => ALL_SERIES.into_iter().filter(|&series| facts.iter().all(|fact| fact.allows(series))).collect(),
        _ => Vec::new(),
    };
    // No release has all of these keys: the file was changed, or a different program assembled it. A missing key then proves
    // nothing.
    let is_contradictory = whole.is_empty() && unknown.is_empty();
    let facts: Vec<FieldEvidence> = facts.into_iter().filter(|fact| fact.is_present || !is_contradictory).collect();
    let mut releases = if is_contradictory { allowed(&facts) } else { whole };
    if releases.is_empty() {
        releases = RELEASES.iter().collect();
    }
    let excluding = |fact: &FieldEvidence| RELEASES.iter().any(|release| !fact.allows(minor(release)));
    let mut evidence: Vec<Evidence> = decisive(&facts).into_iter().filter(excluding).map(Evidence::Key).collect();
    let text = settings_text(recording);
    let accepting: Vec<_> = releases.iter().copied().filter(|release| accepts(release.profile, text)).collect();
    if !accepting.is_empty() && accepting.len() < releases.len() {
        releases = accepting;
        evidence.push(Evidence::SettingsText);
    }
    Possible { releases, evidence, unknown }
}

fn allowed(facts: &[FieldEvidence]) -> Vec<&'static Release> {
    RELEASES.iter().filter(|release| facts.iter().all(|fact| fact.allows(minor(release)))).collect()
}

/// The newest of the present keys and the oldest of the missing keys. Together they exclude every release that the other keys
/// exclude.
fn decisive(facts: &[FieldEvidence]) -> Vec<FieldEvidence> {
    let of = |is_present| facts.iter().filter(move |fact| fact.is_present == is_present && fact.key.since.is_some());
    let newest = of(true).max_by_key(|fact| fact.key.since);
    let oldest = of(false).min_by_key(|fact| fact.key.since);
    let gone = facts.iter().filter(|fact| fact.is_present && fact.key.until.is_some()).min_by_key(|fact| fact.key.until);
    newest.into_iter().chain(oldest).chain(gone).copied().collect()
}

fn settings_text(recording: &Recording) -> &str {
    recording.settings.as_ref().and_then(|settings| settings.text.as_deref()).unwrap_or_default()
}

fn accepts(profile: &Profile, text: &str) -> bool {
    Settings::default().apply_as(&profile.dialect, text).is_ok()
}

/// The first two numbers of a release's version.
fn minor(release: &Release) -> Minor {
    let mut numbers = release.name.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use parkade_recording::{FileFields, RecordedSettings};

    use super::*;

    fn of(fields: FileFields) -> Vec<Minor> {
        possible(&Recording { fields, ..Recording::default() }, None).releases.into_iter().map(minor).collect()
    }

    #[test]
    fn the_keys_of_a_release_leave_that_release() {
        for release in RELEASES {
            let found = of(FileFields::of_release(minor(release)));
            assert!(found.contains(&minor(release)), "{}", release.name);
        }
        assert!(of(FileFields::of_release((2, 15))).iter().all(|&release| release >= (2, 13)));
        assert!(of(FileFields::of_release((2, 11))).iter().all(|release| [(2, 10), (2, 11)].contains(release)));
    }

    #[test]
    fn a_settings_string_that_only_some_accept_leaves_those() {
        let with = |text: &str| {
            let settings = Some(RecordedSettings { text: Some(text.to_owned()), ..RecordedSettings::default() });
            possible(&Recording { settings, ..Recording::default() }, None)
        };
        assert!(!with("max_split_size_mb:64").evidence.contains(&Evidence::SettingsText));
        let newer = with("throw_on_cudamalloc_oom:True");
        assert!(newer.evidence.contains(&Evidence::SettingsText));
        assert!(newer.releases.iter().all(|release| minor(release) >= (2, 12)));
        assert!(!with("no such key").releases.is_empty(), "refused by all: it excludes none");
    }

    #[test]
    fn a_file_of_a_series_without_rules_is_said_to_be_one_and_a_contradictory_one_goes_by_what_it_has() {
        let recording = |fields| Recording { fields, ..Recording::default() };
        let oldest = possible(&recording(FileFields::of_release((2, 0))), None);
        assert_eq!(oldest.unknown, [(2, 0)]);
        assert_eq!(oldest.releases.len(), RELEASES.len(), "all are tried");
        let mut changed = FileFields::of_release((2, 0));
        changed.note(Part::Entry, b"pool_id");
        let changed = possible(&recording(changed), None);
        assert!(changed.unknown.is_empty());
        assert!(changed.releases.iter().all(|release| minor(release) >= (2, 12)), "pool_id is there, whatever else is not");
    }
}
