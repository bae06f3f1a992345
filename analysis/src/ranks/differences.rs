//! Whether the files are ranks of one job at all: release, settings, program, copies.

use std::collections::BTreeMap;

use parkade::profile::Release;
use parkade_replay::recognition::in_words;

use super::request_sizes::RequestSizes;
use super::run::RankRun;

/// Ranks of one program have at least this share of their requests in common. Recordings of one program, one of them cut short or under
/// variable lengths, share a third and more; of different programs mostly less than a fifth.
const LEAST_IN_COMMON: f64 = 0.25;

/// Runs that agree in something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variant {
    /// What they agree in: a release, or settings; empty for programs, which have no names.
    pub value: String,
    /// Their places.
    pub runs: Vec<usize>,
}

/// Something in which the runs of one job should not differ, but do. The variant of most runs is the first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Difference {
    /// Releases of PyTorch.
    Release(Vec<Variant>),
    /// Settings of the allocator.
    Settings(Vec<Variant>),
    /// Programs, or parts of one program that have little in common.
    Program(Vec<Variant>),
    /// Runs in which nothing differs, as in copies of one recording; each variant is one of them.
    Copies(Vec<Variant>),
}

impl Difference {
    /// Its name in JSON.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Difference::Release(_) => "release",
            Difference::Settings(_) => "settings",
            Difference::Program(_) => "program",
            Difference::Copies(_) => "copies",
        }
    }

    /// The groups of runs.
    #[must_use]
    pub fn variants(&self) -> &[Variant] {
        match self {
            Difference::Release(variants)
            | Difference::Settings(variants)
            | Difference::Program(variants)
            | Difference::Copies(variants) => variants,
        }
    }
}

/// What the runs differ in, and the places of those that can be compared: of the program that most are of, copies once.
pub(super) fn differences(runs: &[RankRun]) -> (Vec<Difference>, Vec<usize>) {
    let releases = releases(runs);
    let settings = by(runs, |run| &run.settings);
    let programs = programs(runs);
    let mut copies = by(runs, |run| run.content);
    copies.retain(|variant| variant.runs.len() > 1);
    copies.iter_mut().for_each(|variant| variant.value.clear());
    let is_copy = |place: usize| copies.iter().any(|variant| variant.runs[1..].contains(&place));
    let alike = programs.first().map_or(&[][..], |most| &most.runs);
    let alike = alike.iter().copied().filter(|&place| !is_copy(place)).collect();
    let mut found = Vec::new();
    found.extend((releases.len() > 1).then_some(Difference::Release(releases)));
    found.extend((settings.len() > 1).then_some(Difference::Settings(settings)));
    found.extend((programs.len() > 1).then_some(Difference::Program(programs)));
    found.extend((!copies.is_empty()).then_some(Difference::Copies(copies)));
    (found, alike)
}

/// The runs by a property, the most frequent value first.
fn by<'r, T: Ord + ToString>(runs: &'r [RankRun], property: impl Fn(&'r RankRun) -> T) -> Vec<Variant> {
    let mut groups: BTreeMap<T, Vec<usize>> = BTreeMap::new();
    for (place, run) in runs.iter().enumerate() {
        groups.entry(property(run)).or_default().push(place);
    }
    most_first(groups.into_iter().map(|(value, runs)| Variant { value: value.to_string(), runs }).collect())
}

/// The runs by release: each joins the first group of which some release may have made it too. Those of which the fewest may come first.
fn releases(runs: &[RankRun]) -> Vec<Variant> {
    let mut groups: Vec<(Vec<&'static Release>, Vec<usize>)> = Vec::new();
    let mut surest: Vec<(usize, &RankRun)> = runs.iter().enumerate().collect();
    surest.sort_by_key(|(_, run)| run.releases.len());
    for (place, run) in surest {
        let common = |releases: &[&'static Release]| -> Vec<&'static Release> {
            releases.iter().filter(|release| run.releases.contains(release)).copied().collect()
        };
        match groups.iter_mut().find(|(releases, _)| !common(releases).is_empty()) {
            Some((releases, places)) => {
                *releases = common(releases);
                places.push(place);
            }
            None => groups.push((run.releases.clone(), vec![place])),
        }
    }
    groups.iter_mut().for_each(|(_, places)| places.sort_unstable());
    most_first(groups.into_iter().map(|(releases, runs)| Variant { value: in_words(&releases), runs }).collect())
}

/// The runs by program: each joins the first group whose first run it has enough in common with.
fn programs(runs: &[RankRun]) -> Vec<Variant> {
    let mut groups: Vec<(&RequestSizes, Variant)> = Vec::new();
    for (place, run) in runs.iter().enumerate() {
        match groups.iter_mut().find(|(sizes, _)| sizes.in_common(&run.sizes) >= LEAST_IN_COMMON) {
            Some((_, variant)) => variant.runs.push(place),
            None => groups.push((&run.sizes, Variant { value: String::new(), runs: vec![place] })),
        }
    }
    most_first(groups.into_iter().map(|(_, variant)| variant).collect())
}

fn most_first(mut variants: Vec<Variant>) -> Vec<Variant> {
    variants.sort_by_key(|variant| (std::cmp::Reverse(variant.runs.len()), variant.runs.first().copied()));
    variants
}
