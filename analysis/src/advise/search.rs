//! The search over settings: a coarse grid first, then two rounds around the best options found.
//!
//! Every option is evaluated on all devices, because one environment variable sets them all. Options are evaluated in parallel.

use std::sync::atomic::{AtomicUsize, Ordering};

use parkade::profile::Profile;
use parkade::settings::Settings;
use rayon::prelude::*;

use super::advised_option::AdvisedOption;
use super::as_recorded::are_same;
use super::candidates::{Candidate, kept};
use super::decisive::decisive;
use super::evaluate::{DeviceOutcome, evaluate};
use super::memory::DeviceMemory;
use super::options::{AdviseOptions, Progress};
use super::program::Program;
use super::replay::Replay;
use crate::caution::{Caution, InUse, cautions};

/// How many of the best options have their neighbours tried, round by round.
const ROUNDS: [usize; 2] = [2, 1];
/// At least this many options are tried: if the best have no untried neighbours left, those of worse options are.
const FEWEST: usize = 64;

/// A search in progress.
pub(super) struct Search<'a> {
    programs: &'a [Program],
    in_use: &'a [InUse],
    profile: &'static Profile,
    memory: &'a [DeviceMemory],
    options: &'a AdviseOptions,
    /// Whether under its own settings a run that died dies again.
    repeats: bool,
    kept: String,
    found: Vec<AdvisedOption>,
    /// The settings that were tried, as [`decisive`] gives them, and each device's outcome.
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

    /// The best option with expandable segments and the `count` best without: not every program can use expandable segments.
    fn best(&self, count: usize) -> Vec<Candidate> {
        let mut places: Vec<usize> = (0..self.found.len()).collect();
        places.sort_by_key(|&place| self.found[place].rank());
        let of_kind = |expandable: bool| {
            let candidates = places.iter().filter_map(|&place| self.candidates[place].clone());
            candidates.filter(move |candidate| candidate.expandable == expandable).take(count)
        };
        of_kind(true).take(1).chain(of_kind(false)).collect()
    }

    /// Evaluates the settings that were not tried yet.
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

    /// What the settings may break on any of the devices, each known issue once.
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

    /// The outcomes on all devices under settings that are [`decisive`].
    fn evaluate(&self, settings: &Settings) -> Vec<DeviceOutcome> {
        let outcome = |(program, memory): (&Program, &DeviceMemory)| {
            let available_bytes = memory.budget.bytes(self.profile, settings);
            let outcome = evaluate(&Replay { program, profile: self.profile, settings }, available_bytes);
            DeviceOutcome { sure_bytes: memory.range.map(|range| range.least_bytes).or(available_bytes), ..outcome }
        };
        self.programs.iter().zip(self.memory).map(outcome).collect()
    }

    /// An option whose settings were tried.
    fn option(&self, trial: &Trial) -> AdvisedOption {
        let decisive = decisive(&trial.settings, self.profile, self.programs);
        let tried = self.tried.iter().find(|(known, _)| *known == decisive);
        let mut devices = tried.map_or_else(|| self.evaluate(&decisive), |(_, outcomes)| outcomes.clone());
        let is_own = self.repeats && are_same(&trial.settings, &self.options.own.settings.settings);
        for (outcome, program) in devices.iter_mut().zip(self.programs) {
            // The only statistic that repeats the settings.
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
            devices,
            settings: trial.settings.clone(),
            likely: None,
        }
    }
}
