//! The result of the search for the release that made a recording, and its description in words.

use parkade::profile::{Profile, RELEASES, Release, Scope};

use super::possible::{Evidence, Possible};
use crate::ReplaySettings;

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
    /// What the file's contents alone allow. `None` if the caller named the release.
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
    /// An outcome with these releases and no other facts.
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

    /// The rules in use.
    #[must_use]
    pub fn profile(&self) -> &'static Profile {
        self.settings.profile
    }

    /// The distinct rules of `releases`, with those in use first. Under other settings, their predictions may differ.
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

    /// The releases among `releases` that have one of these rules.
    #[must_use]
    pub fn with_rules(&self, profile: &Profile) -> Vec<&'static Release> {
        self.releases.iter().filter(|release| release.profile.decides_like(profile, ANY_REPLAY)).copied().collect()
    }

    /// A sentence without its full stop: "recorded by PyTorch 2.4 to 2.9; 2.12 differs from entry 145 onward". It does not
    /// mention `refuted_limit`.
    #[must_use]
    pub fn words(&self) -> String {
        let mut words = self.made_by_words();
        if let Some(profile) = self.decides_as {
            words += &format!("; replayed as PyTorch {} decides, as given", profile.name);
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

    /// The points at which the other releases differ. Releases that differ at the same point are named together.
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

    /// What in the file excludes other releases, as the end of a sentence. `None` if the file's decisions contradict its
    /// contents.
    #[must_use]
    pub fn evidence_words(&self) -> Option<String> {
        let is_believed = self.contradicting.is_empty();
        joined(self.possible.iter().filter(|_| is_believed).flat_map(|possible| &possible.evidence).map(Evidence::words))
    }

    /// What in the file excludes the very releases that explain it, as the end of a sentence.
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

/// The series of a release: `2.11` of `2.11.0`.
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

/// Oldest first.
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
    use super::*;

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
