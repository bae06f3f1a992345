//! Searches the settings: a coarse grid first, then two rounds around the best options found.
//!
//! A [`Candidate`] is a setting to try: a point of the grid, or a neighbour of a good candidate. Every option is evaluated on
//! all devices, because one environment variable sets them all. Options are evaluated in parallel; options that differ only in
//! keys without influence have the same outcome and are tried once ([`decisive`]).

use std::sync::atomic::{AtomicUsize, Ordering};

use parkade::policy::{Policy, PyTorch};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::Bytes;
use rayon::prelude::*;

use super::advised_option::{AdvisedOption, DeviceOutcome, evaluate};
use super::completion::{CompletedRuns, Means};
use super::memory::{AdviseOptions, DeviceMemory, Progress};
use super::program::{Program, Replay};
use crate::caution::{Caution, InUse, cautions};

/// The number of best options whose neighbours are tried in each round.
const ROUNDS: [usize; 2] = [2, 1];
/// The minimum number of options to try: when the best options have no untried neighbours left, the neighbours of worse
/// options follow.
const FEWEST: usize = 64;

/// A search in progress.
pub(super) struct Search<'a> {
    programs: &'a [Program],
    in_use: &'a [InUse],
    profile: &'static Profile,
    memory: &'a [DeviceMemory],
    options: &'a AdviseOptions,
    /// Whether a run that died dies again under its own settings.
    repeats: bool,
    kept: String,
    found: Vec<AdvisedOption>,
    /// The settings that were tried, as [`decisive`] returns them, and each device's outcome.
    tried: Vec<(Settings, Vec<DeviceOutcome>)>,
    /// The candidate behind each found option, by index.
    candidates: Vec<Option<Candidate>>,
    progress: &'a (dyn Fn(Progress) + Sync),
}

/// Settings to try.
struct Trial {
    settings: Settings,
    candidate: Option<Candidate>,
    is_own: bool,
    is_given: bool,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        programs: &'a [Program],
        in_use: &'a [InUse],
        memory: &'a [DeviceMemory],
        (options, repeats): (&'a AdviseOptions, bool),
        progress: &'a (dyn Fn(Progress) + Sync),
    ) -> Search<'a> {
        let kept = kept(&options.own.settings.settings.text);
        let profile = options.profile;
        Search {
            programs,
            in_use,
            profile,
            memory,
            options,
            repeats,
            kept,
            found: Vec::new(),
            tried: Vec::new(),
            candidates: Vec::new(),
            progress,
        }
    }

    /// Runs the search. The first option returned is the recorded run's own settings.
    pub(super) fn run(mut self) -> Vec<AdvisedOption> {
        let own = Trial { settings: self.options.own.settings.settings.clone(), candidate: None, is_own: true, is_given: false };
        let given = self.options.given.iter();
        let given = given.map(|settings| Trial { settings: settings.clone(), candidate: None, is_own: false, is_given: true });
        let mut trials: Vec<Trial> = [own].into_iter().chain(given).collect();
        if !self.options.only_given {
            trials.extend(self.trials(Candidate::coarse()));
        }
        self.try_all(trials);
        if self.options.only_given {
            return self.found;
        }
        for best in ROUNDS {
            self.try_neighbours(best);
        }
        let mut best = ROUNDS.len();
        while self.found.len() < FEWEST && best < self.found.len() {
            best *= 2;
            self.try_neighbours(best);
        }
        self.found
    }

    fn try_neighbours(&mut self, best: usize) {
        let neighbours = self.best(best).iter().flat_map(Candidate::neighbours).collect();
        let trials = self.trials(neighbours);
        self.try_all(trials);
    }

    fn trials(&self, candidates: Vec<Candidate>) -> Vec<Trial> {
        let trial = |candidate: Candidate| {
            let settings = candidate.settings(self.profile, &self.kept)?;
            Some(Trial { settings, candidate: Some(candidate), is_own: false, is_given: false })
        };
        candidates.into_iter().filter_map(trial).collect()
    }

    /// Returns the best option with expandable segments and the `count` best options without them: not every program can use
    /// expandable segments.
    fn best(&self, count: usize) -> Vec<Candidate> {
        let mut places: Vec<usize> = (0..self.found.len()).collect();
        places.sort_by_key(|&place| self.found[place].rank());
        let of_kind = |expandable: bool| {
            let candidates = places.iter().filter_map(|&place| self.candidates[place].clone());
            candidates.filter(move |candidate| candidate.expandable == expandable).take(count)
        };
        of_kind(true).take(1).chain(of_kind(false)).collect()
    }

    /// Evaluates the settings that have not been tried yet.
    fn try_all(&mut self, trials: Vec<Trial>) {
        let mut new: Vec<Trial> = Vec::new();
        for trial in trials {
            let same = |settings: &Settings| are_same(settings, &trial.settings);
            if let Some(place) = self.found.iter().position(|option| same(&option.settings)) {
                self.candidates[place] = self.candidates[place].take().or(trial.candidate);
                self.found[place].is_given |= trial.is_given;
            } else if let Some(first) = new.iter_mut().find(|first| same(&first.settings)) {
                first.candidate = first.candidate.take().or(trial.candidate);
                first.is_given |= trial.is_given;
            } else {
                new.push(trial);
            }
        }
        let (before, total) = (self.found.len(), self.found.len() + new.len());
        let done = AtomicUsize::new(before);
        let mut untried: Vec<(Settings, usize)> = Vec::new();
        for settings in new.iter().map(|trial| decisive(&trial.settings, self.profile, self.programs)) {
            if self.tried.iter().any(|(known, _)| *known == settings) {
                done.fetch_add(1, Ordering::Relaxed);
            } else if let Some((_, trials)) = untried.iter_mut().find(|(known, _)| *known == settings) {
                *trials += 1;
            } else {
                untried.push((settings, 1));
            }
        }
        let evaluate = |(settings, trials): (Settings, usize)| {
            let outcomes = self.evaluate(&settings);
            let options = done.fetch_add(trials, Ordering::Relaxed) + trials;
            (self.progress)(Progress::Tried { options, of: total });
            (settings, outcomes)
        };
        let tried: Vec<_> = untried.into_par_iter().with_max_len(1).map(evaluate).collect();
        self.tried.extend(tried);
        let found: Vec<AdvisedOption> = new.iter().map(|trial| self.option(trial)).collect();
        self.found.extend(found);
        self.candidates.extend(new.into_iter().map(|trial| trial.candidate));
    }

    /// Returns the known issues that the settings may cause on any of the devices, each once.
    fn cautions(&self, settings: &Settings) -> Vec<Caution> {
        let mut found: Vec<Caution> = Vec::new();
        for caution in self.in_use.iter().flat_map(|in_use| cautions(in_use, settings, self.profile)) {
            match found.iter_mut().find(|known| known.id == caution.id) {
                Some(known) => known.in_use = known.in_use.max(caution.in_use),
                None => found.push(caution),
            }
        }
        found
    }

    /// Returns the outcomes on all devices under settings in [`decisive`] form.
    fn evaluate(&self, settings: &Settings) -> Vec<DeviceOutcome> {
        let outcome = |(program, memory): (&Program, &DeviceMemory)| {
            let available_bytes = memory.budget.bytes(self.profile, settings);
            let outcome = evaluate(&Replay { program, profile: self.profile, settings }, available_bytes);
            DeviceOutcome { sure_bytes: memory.range.map(|range| range.least_bytes).or(available_bytes), ..outcome }
        };
        self.programs.iter().zip(self.memory).map(outcome).collect()
    }

    /// Returns an option whose settings have been tried.
    fn option(&self, trial: &Trial) -> AdvisedOption {
        let decisive = decisive(&trial.settings, self.profile, self.programs);
        let tried = self.tried.iter().find(|(known, _)| *known == decisive);
        let mut devices = tried.map_or_else(|| self.evaluate(&decisive), |(_, outcomes)| outcomes.clone());
        let is_own = self.repeats && are_same(&trial.settings, &self.options.own.settings.settings);
        for (outcome, program) in devices.iter_mut().zip(self.programs) {
            // This is the only statistic that depends on how the settings are written.
            outcome.prediction.stats.max_split_size = trial.settings.max_split_bytes.cast_signed();
            if let Some(entry) = program.dies_again(outcome.available_bytes).filter(|_| is_own) {
                outcome.fail_at(entry);
            }
        }
        AdvisedOption {
            cautions: self.cautions(&trial.settings),
            is_own: trial.is_own,
            is_given: trial.is_given,
            available_bytes: devices.iter().filter_map(|outcome| outcome.available_bytes).min(),
            completes: completes(self.programs, &devices),
            devices,
            settings: trial.settings.clone(),
            likely: None,
        }
    }
}

/// Returns the cut runs that are similar to the runs that died, for the device where the smallest share was completed.
/// Returns `None` if no program died, if one does not get past its failure, or if its memory is not known.
fn completes(programs: &[Program], devices: &[DeviceOutcome]) -> Option<CompletedRuns> {
    let died = programs.iter().zip(devices).filter(|(program, _)| program.died());
    let of = |(program, outcome): (&Program, &DeviceOutcome)| {
        outcome.gets_past.then(|| program.completes(Means::Settings, outcome.smallest_bytes, outcome.available_bytes)).flatten()
    };
    CompletedRuns::least(died.map(of))
}

/// Returns whether two settings have the same meaning, however they are written.
pub(super) fn are_same(one: &Settings, other: &Settings) -> bool {
    Settings { text: String::new(), ..one.clone() } == Settings { text: String::new(), ..other.clone() }
}

/// The keys that the search sets; every other key of the recording's own settings is kept.
const SEARCHED: [&str; 4] =
    ["expandable_segments", "max_split_size_mb", "garbage_collection_threshold", "roundup_power2_divisions"];
/// The smallest `max_split_size_mb` worth trying. PyTorch accepts 20 (spec 8.4), but whole free segments are then oversize (spec 10.18).
const LEAST_SPLIT_MB: u64 = 21;
const SPLITS_MB: [u64; 8] = [32, 64, 96, 128, 256, 512, 1024, 2048];
const THRESHOLDS: [u32; 2] = [60, 80];
const DIVISIONS: [u64; 4] = [4, 8, 16, 32];

/// One combination of the settings that are searched.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Candidate {
    /// `expandable_segments:True`.
    expandable: bool,
    /// `max_split_size_mb`.
    split_mb: Option<u64>,
    /// `garbage_collection_threshold`, in percent.
    threshold: Option<u32>,
    /// `roundup_power2_divisions`, the same for all sizes.
    divisions: Option<u64>,
}

impl Candidate {
    fn split(split_mb: u64) -> Candidate {
        Candidate { split_mb: Some(split_mb), ..Candidate::default() }
    }

    fn with_threshold(&self, percent: u32) -> Candidate {
        Candidate { threshold: Some(percent), ..self.clone() }
    }

    fn with_divisions(&self, divisions: u64) -> Candidate {
        Candidate { divisions: Some(divisions), ..self.clone() }
    }

    /// Returns the coarse grid, which is tried first.
    fn coarse() -> Vec<Candidate> {
        let plain = Candidate::default();
        let expandable = Candidate { expandable: true, ..Candidate::default() };
        let mut all = vec![plain.clone(), expandable.clone()];
        all.extend(DIVISIONS.map(|divisions| expandable.with_divisions(divisions)));
        all.extend(DIVISIONS.map(|divisions| plain.with_divisions(divisions)));
        all.extend([50, 60, 70, 80, 90].map(|percent| plain.with_threshold(percent)));
        for split in SPLITS_MB.map(Candidate::split) {
            all.extend(THRESHOLDS.map(|percent| split.with_threshold(percent)));
            all.push(split);
        }
        let rounded = [128, 512].map(Candidate::split);
        all.extend(rounded.iter().flat_map(|split| [4, 8, 16].map(|divisions| split.with_divisions(divisions))));
        all
    }

    /// Returns the candidates to try next if this one is among the best: nearby values, and one more key.
    fn neighbours(&self) -> Vec<Candidate> {
        let mut all = Vec::new();
        if let Some(split_mb) = self.split_mb {
            for near in [split_mb * 5 / 8, split_mb * 3 / 4, split_mb * 7 / 8, split_mb * 5 / 4, split_mb * 3 / 2] {
                all.push(Candidate { split_mb: Some(near.max(LEAST_SPLIT_MB)), ..self.clone() });
            }
        }
        match self.threshold {
            Some(percent) => {
                let near = [percent.saturating_sub(10), percent.saturating_sub(5), percent + 5, percent + 10];
                all.extend(
                    near.into_iter().filter(|percent| (20..=95).contains(percent)).map(|percent| self.with_threshold(percent)),
                );
            }
            None if !self.expandable => all.extend([65, 75, 85].map(|percent| self.with_threshold(percent))),
            None => {}
        }
        match self.divisions {
            Some(divisions) => {
                let near = [divisions / 2, divisions * 2];
                all.extend(near.into_iter().filter(|near| (2..=64).contains(near)).map(|near| self.with_divisions(near)));
            }
            None => all.extend([8, 32, 64].map(|divisions| self.with_divisions(divisions))),
        }
        all
    }

    /// Returns the settings string, followed by `kept`.
    fn text(&self, kept: &str) -> String {
        let mut parts = Vec::new();
        if self.expandable {
            parts.push("expandable_segments:True".to_owned());
        }
        if let Some(split_mb) = self.split_mb {
            parts.push(format!("max_split_size_mb:{split_mb}"));
        }
        if let Some(percent) = self.threshold {
            let digits = format!("{percent:02}");
            parts.push(format!("garbage_collection_threshold:0.{}", digits.trim_end_matches('0')));
        }
        if let Some(divisions) = self.divisions {
            parts.push(format!("roundup_power2_divisions:{divisions}"));
        }
        if !kept.is_empty() {
            parts.push(kept.to_owned());
        }
        parts.join(",")
    }

    /// Returns the settings, or `None` if this PyTorch release refuses them, which only `kept` can cause.
    fn settings(&self, profile: &Profile, kept: &str) -> Option<Settings> {
        Settings::from_environment_as(&profile.dialect, &self.text(kept)).ok()
    }
}

/// Returns the parts of a settings string whose keys the search does not set.
fn kept(text: &str) -> String {
    let mut depth = 0_i32;
    let parts = text.split(|c| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth == 0
    });
    let key = |part: &str| part.split(':').next().unwrap_or_default().trim().to_owned();
    let is_kept = |part: &&str| !part.trim().is_empty() && !SEARCHED.contains(&key(part).as_str());
    parts.filter(is_kept).map(str::trim).collect::<Vec<_>>().join(",")
}

/// Returns the settings without the parts that make no difference to these programs in any amount of memory: the spelling,
/// and a `max_split_size` larger than every segment (spec 2.5, 2.9, 3.1: the allocator compares it only with requests and
/// free blocks, which are parts of segments).
fn decisive(settings: &Settings, profile: &'static Profile, programs: &[Program]) -> Settings {
    let mut decisive = Settings { text: String::new(), ..settings.clone() };
    // Expandable segments grow to any size.
    if !settings.expandable_segments && largest_segment(settings, profile, programs) < settings.max_split_bytes {
        decisive.max_split_bytes = Settings::default().max_split_bytes;
    }
    decisive
}

/// Returns the largest segment that these programs may have, in bytes.
fn largest_segment(settings: &Settings, profile: &'static Profile, programs: &[Program]) -> u64 {
    let policy = PyTorch::of(profile, settings.clone());
    let segment =
        |&bytes: &u64| policy.round(Bytes(bytes)).and_then(|block| policy.segment_for(block)).map_or(u64::MAX, Bytes::get);
    programs.iter().flat_map(|program| &program.sizes).map(segment).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::program::sample_programs::{MIB, cut};

    #[test]
    fn pytorch_accepts_every_candidate_and_its_text_says_what_it_sets() {
        let coarse = Candidate::coarse();
        for candidate in coarse.iter().flat_map(|candidate| [vec![candidate.clone()], candidate.neighbours()].concat()) {
            let settings = candidate.settings(&Profile::PYTORCH_2_11, "").expect("settings");
            assert_eq!(settings.max_split_bytes, candidate.split_mb.map_or(u64::MAX, |mb| mb << 20));
            let percent = candidate.threshold.map_or(0.0, |percent| f64::from(percent) / 100.0);
            assert!((settings.garbage_collection_threshold - percent).abs() < 1e-9, "{}", candidate.text(""));
            assert_eq!(settings.expandable_segments, candidate.expandable);
            assert_eq!(settings.roundup_power2_divisions[5], candidate.divisions.unwrap_or(0));
        }
        assert!(coarse.len() >= 40);
    }

    #[test]
    fn keys_that_are_not_searched_are_kept() {
        let text = "roundup_power2_divisions:[256:1,>:4], pinned_use_cuda_host_register:True,max_split_size_mb:64,backend:native";
        assert_eq!(kept(text), "pinned_use_cuda_host_register:True,backend:native");
        assert_eq!(kept(""), "");
        let candidate = Candidate::split(128);
        assert_eq!(candidate.text("backend:native"), "max_split_size_mb:128,backend:native");
        assert!(candidate.settings(&Profile::PYTORCH_2_11, "backend:none").is_none());
    }

    fn settings(text: &str) -> Settings {
        Settings::from_environment(text).unwrap()
    }

    #[test]
    fn only_a_split_size_above_every_segment_is_left_out() {
        let programs = [cut()];
        let of = |text: &str| decisive(&settings(text), &Profile::PYTORCH_2_11, &programs);
        let plain = of("");
        assert_eq!(of("max_split_size_mb:101"), plain);
        assert_ne!(of("max_split_size_mb:100"), plain, "the 100 MiB segment would not be split");
        assert_ne!(of("max_split_size_mb:101,garbage_collection_threshold:0.5"), plain);
        assert_ne!(of("max_split_size_mb:101,expandable_segments:True"), of("expandable_segments:True"), "they grow");
        let rounded = of("roundup_power2_divisions:2");
        assert_ne!(of("max_split_size_mb:128,roundup_power2_divisions:2"), rounded, "100 MiB are rounded to 128 MiB");
        assert_eq!(of("max_split_size_mb:129,roundup_power2_divisions:2"), rounded);
    }

    #[test]
    fn settings_that_decide_the_same_have_the_same_outcome() {
        let program = cut();
        for available_mib in [120, 150, 180, 200, 219, 220, 300] {
            let outcome = |text: &str| {
                let settings = settings(text);
                let replay = Replay { program: &program, profile: &Profile::PYTORCH_2_11, settings: &settings };
                let mut outcome = evaluate(&replay, Some(available_mib * MIB));
                outcome.prediction.stats.max_split_size = 0;
                format!("{outcome:?}")
            };
            assert_eq!(outcome("max_split_size_mb:101"), outcome(""), "{available_mib} MiB");
        }
    }
}
