//! The result of the search for the release that made a recording, its description in words, and the evidence that the search
//! begins with: the releases that the file's own contents (its keys, its settings string, and the names of its statistics)
//! allow.

use parkade::profile::{Profile, RELEASES, Release, Scope};
use parkade::settings::Settings;
use parkade_recording::{DatedKey, FieldEvidence, Minor, Part, Recording};

use crate::{ReplaySettings, StatsFile};

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
    /// Returns the evidence, worded as the end of a sentence: "excluded by the pool_id of its trace entries".
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Evidence::Key(FieldEvidence { key, is_present: true }) => format!("the {} of {}", key.name, key.part.words()),
            Evidence::Key(FieldEvidence { key, is_present: false }) => {
                format!("the absence of {} in {}", key.name, key.part.words())
            }
            Evidence::SettingsText => "a key in its settings string".to_owned(),
        }
    }

    /// Returns the fact itself, after "although the file has": "pool_id in its trace entries".
    fn fact_words(&self) -> String {
        match self {
            Evidence::Key(FieldEvidence { key, is_present: true }) => format!("{} in {}", key.name, key.part.words()),
            Evidence::Key(FieldEvidence { key, is_present: false }) => format!("no {} in {}", key.name, key.part.words()),
            Evidence::SettingsText => "a settings string that it refuses".to_owned(),
        }
    }

    /// Returns whether this fact rules out that the release made the file.
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

/// Returns the releases that may have made a recording, and its stats file if there is one.
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

/// Returns the newest of the present keys and the oldest of the missing keys. Together they exclude every release that the
/// other keys exclude.
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

/// Returns the first two numbers of a release's version.
fn minor(release: &Release) -> Minor {
    let mut numbers = release.name.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Everything that a replay may encounter, under settings that do not set any size to a single division.
const ANY_REPLAY: Scope = Scope { checkpoints: false, one_division: false, ..Scope::EVERYTHING };

/// The basis on which the releases were determined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// The caller named the release.
    Given,
    /// The file's contents allow only these releases, and there is no trace to replay.
    Contents,
    /// Every recorded decision was repeated under their rules.
    Replay,
    /// No release explains every recorded decision; these have the fewest differences.
    Nearest,
}

parkade_recording::names! {
    Basis {
        Basis::Given => "given",
        Basis::Contents => "contents",
        Basis::Replay => "replay",
        Basis::Nearest => "nearest",
    }
}

/// The releases that may have made a recording, and the settings to read it under.
#[derive(Clone, Debug)]
pub struct Recognition {
    /// The settings of the recorded run, read under the rules in use.
    pub settings: ReplaySettings,
    /// The basis on which `releases` were determined.
    pub basis: Basis,
    /// The releases, oldest first: those that explain the file, or that its contents allow. If none explains the file, those
    /// with the fewest differences.
    pub releases: Vec<&'static Release>,
    /// The other releases that were tried, and the point at which each first differs.
    pub differing: Vec<Differing>,
    /// The releases that the file's contents allow. `None` if the caller named the release.
    pub possible: Option<Possible>,
    /// The parts of the file that exclude some of `releases`, although these explain every decision. In that case, the file
    /// was changed or a different program wrote it.
    pub contradicting: Vec<Evidence>,
    /// The limit that the caller specified, if it was not the recorded run's. In that case, `releases` explain the file
    /// without a limit.
    pub refuted_limit: Option<RefutedLimit>,
    /// The rules that the caller chose for the decisions of a replay, regardless of which release made the recording.
    pub decides_as: Option<&'static Profile>,
    /// Whether no release explains the file and its trace maps memory although the file's settings switch expandable
    /// segments off. PyTorch maps memory only for expandable segments.
    pub maps_while_off: bool,
}

/// A limit that the recorded run exceeded, and under which the decisions differ from the recorded ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefutedLimit {
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// The recorded run's highest peak of reserved bytes on any device.
    pub reserved_bytes: u64,
}

/// Releases whose rules do not explain a recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Differing {
    /// The releases, oldest first. They make the same decisions for this file.
    pub releases: Vec<&'static Release>,
    /// The device whose replay differs.
    pub device: u32,
    /// The entry of the first difference. `None` if it is at the end, or if the replay cannot begin.
    pub entry: Option<usize>,
}

impl Recognition {
    /// Creates an outcome with these releases and no other facts.
    pub(crate) fn new(settings: ReplaySettings, basis: Basis, releases: Vec<&'static Release>) -> Recognition {
        let (differing, contradicting) = (Vec::new(), Vec::new());
        Recognition {
            settings,
            basis,
            releases,
            differing,
            possible: None,
            contradicting,
            refuted_limit: None,
            decides_as: None,
            maps_while_off: false,
        }
    }

    /// Returns the rules in use.
    #[must_use]
    pub fn profile(&self) -> &'static Profile {
        self.settings.profile
    }

    /// Returns the distinct rules of `releases`, with those in use first. Under other settings, their predictions may differ.
    #[must_use]
    pub fn rules(&self) -> Vec<&'static Profile> {
        let mut rules = vec![self.profile()];
        let may_be_others = matches!(self.basis, Basis::Contents | Basis::Replay);
        for release in self.releases.iter().rev().filter(|_| may_be_others) {
            if !rules.iter().any(|known| known.decides_like(release.profile, ANY_REPLAY)) {
                rules.push(release.profile);
            }
        }
        rules
    }

    /// Returns the releases among `releases` that have one of these rules.
    #[must_use]
    pub fn with_rules(&self, profile: &Profile) -> Vec<&'static Release> {
        self.releases.iter().filter(|release| release.profile.decides_like(profile, ANY_REPLAY)).copied().collect()
    }

    /// Returns a sentence without its full stop: "recorded by PyTorch 2.4 to 2.9; 2.12 differs from entry 145 onward". It
    /// does not mention `refuted_limit`.
    #[must_use]
    pub fn words(&self) -> String {
        let mut words = self.made_by_words();
        if let Some(profile) = self.decides_as {
            words += &format!("; replayed under the rules of PyTorch {}, as given", profile.name);
        }
        words
    }

    fn made_by_words(&self) -> String {
        let names = in_words(&self.releases);
        let mut words = match self.basis {
            Basis::Given => return format!("PyTorch {names}, as given"),
            Basis::Contents => format!("its keys are those of PyTorch {}", or(&names)),
            Basis::Replay => format!("recorded by PyTorch {}", or(&names)),
            Basis::Nearest => {
                let come = if names.contains(' ') { "come" } else { "comes" };
                format!("no PyTorch release explains every decision; {names} {come} closest")
            }
        };
        let unknown = self.possible.as_ref().map_or(&[][..], |possible| &possible.unknown);
        match (unknown, self.contradiction_words()) {
            (_, Some(contradicting)) => {
                words += &format!(", although the file has {contradicting}: it was changed, or a different program wrote it");
            }
            ([_, ..], None) => {
                let names: Vec<String> = unknown.iter().map(|(major, minor)| format!("{major}.{minor}")).collect();
                words += &format!("; its keys are those of {}, whose rules are unknown", names.join(" or "));
            }
            ([], None) => {}
        }
        if self.maps_while_off {
            words += "; the trace maps memory although expandable_segments is off: the settings changed, or a different \
                      allocator made the decisions, such as a parkade policy";
        }
        words + &self.differing_words()
    }

    /// Returns the points at which the other releases differ. Releases that differ at the same point are named together.
    fn differing_words(&self) -> String {
        let mut places: Vec<(u32, Option<usize>)> = Vec::new();
        for Differing { device, entry, .. } in &self.differing {
            if !places.contains(&(*device, *entry)) {
                places.push((*device, *entry));
            }
        }
        let at = |&(device, entry): &(u32, Option<usize>)| {
            let here = self.differing.iter().filter(|differing| (differing.device, differing.entry) == (device, entry));
            let names = in_words(&in_order(here.flat_map(|differing| differing.releases.iter().copied())));
            let verb = if names.contains(' ') { "differ" } else { "differs" };
            let place = entry.map_or("at the end".to_owned(), |entry| format!("from entry {entry} onward"));
            format!("; {names} {verb} {place}")
        };
        places.iter().map(at).collect()
    }

    /// Returns the evidence in the file that excludes other releases, as the end of a sentence. Returns `None` if the
    /// file's decisions contradict its contents.
    #[must_use]
    pub fn evidence_words(&self) -> Option<String> {
        let is_believed = self.contradicting.is_empty();
        joined(self.possible.iter().filter(|_| is_believed).flat_map(|possible| &possible.evidence).map(Evidence::words))
    }

    /// Returns the evidence in the file that excludes the very releases that explain it, as the end of a sentence.
    #[must_use]
    pub fn contradiction_words(&self) -> Option<String> {
        joined(self.contradicting.iter().map(Evidence::fact_words))
    }
}

fn joined(words: impl Iterator<Item = String>) -> Option<String> {
    let words: Vec<String> = words.collect();
    let (last, rest) = words.split_last()?;
    Some(if rest.is_empty() { last.clone() } else { format!("{} and {last}", rest.join(", ")) })
}

fn or(names: &str) -> String {
    names.replace(" and ", " or ")
}

/// Returns the series of a release: `2.11` of `2.11.0`.
fn series(release: &Release) -> &'static str {
    release.name.rsplit_once('.').map_or(release.name, |(series, _)| series)
}

/// A series whose releases are all named, or a single release of a series whose releases are not all named.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Name {
    text: &'static str,
    /// The position of the series among all series.
    place: Option<usize>,
}

/// Sorts releases, the oldest first.
pub(crate) fn in_order(releases: impl IntoIterator<Item = &'static Release>) -> Vec<&'static Release> {
    let mut releases: Vec<_> = releases.into_iter().collect();
    releases.sort_by_key(|release| RELEASES.iter().position(|other| other == *release));
    releases
}

/// Releases as users name them: a complete series by its name, neighbouring series as a range. `releases` are in the order
/// of [`RELEASES`].
#[must_use]
pub fn in_words(releases: &[&'static Release]) -> String {
    let mut all: Vec<&'static str> = RELEASES.iter().map(series).collect();
    all.dedup();
    let mut names: Vec<Name> = Vec::new();
    for &release in releases {
        let of_series = series(release);
        let is_whole = RELEASES.iter().filter(|other| series(other) == of_series).all(|other| releases.contains(&other));
        let name = match is_whole {
            true => Name { text: of_series, place: all.iter().position(|&other| other == of_series) },
            false => Name { text: release.name, place: None },
        };
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    let mut parts: Vec<String> = Vec::new();
    let follows = |pair: &[Name]| matches!((pair[0].place, pair[1].place), (Some(first), Some(second)) if second == first + 1);
    let mut from = 0;
    while from < names.len() {
        let run = 1 + names[from..].windows(2).take_while(|pair| follows(pair)).count();
        match run {
            1 | 2 => parts.extend(names[from..from + run].iter().map(|name| name.text.to_owned())),
            _ => parts.push(format!("{} to {}", names[from].text, names[from + run - 1].text)),
        }
        from += run;
    }
    match parts.split_last() {
        None => "none".to_owned(),
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
    }
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

    #[test]
    fn all_releases_are_one_range() {
        let all: Vec<_> = RELEASES.iter().collect();
        let (first, last) = (series(all[0]), series(all[all.len() - 1]));
        let said = in_words(&all);
        assert!(said.starts_with(first) && said.ends_with(last), "{said}");
        assert_eq!(in_words(&all[..1]), if series(all[0]) == series(all[1]) { all[0].name } else { first });
        assert_eq!(in_words(&[]), "none");
    }
}
