//! The search over settings: ladders first, then what lies next to the best, twice.
//!
//! Every option is evaluated on all devices, for there is one environment variable for all; options are evaluated in parallel.

use std::sync::atomic::{AtomicUsize, Ordering};

use parkade::profile::Profile;
use parkade::settings::Settings;
use rayon::prelude::*;

use super::candidates::{Candidate, kept, keys};
use super::evaluate::{DeviceOutcome, Replay, Space};
use super::program::Program;
use super::report::{AdviseOptions, Progress};
use crate::caution::{Caution, InUse, cautions};

/// How many of the best options have their neighbours tried in one round: first of several, then of the best alone.
const ROUNDS: [usize; 2] = [2, 1];
/// So many options are tried at least: where the best have no neighbours left, those of worse ones.
const FEWEST: usize = 64;

/// One setting, and what would come of it.
#[derive(Clone, Debug)]
pub struct AdvisedOption {
    /// The settings.
    pub settings: Settings,
    /// They are the recorded run's own.
    pub is_own: bool,
    /// The caller asked for them.
    pub is_given: bool,
    /// What they may break, given what the recording shows in use or cannot show.
    pub cautions: Vec<Caution>,
    /// The memory that may be reserved under them, if it was said.
    pub available_bytes: Option<u64>,
    /// Each device's outcome.
    pub devices: Vec<DeviceOutcome>,
}

impl AdvisedOption {
    /// No request is out of memory.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.devices.iter().all(DeviceOutcome::fits)
    }

    /// The entry of the first request that is out of memory, on the first device that has one.
    #[must_use]
    pub fn fails_at_entry(&self) -> Option<usize> {
        self.devices.iter().find_map(|device| device.prediction.first_failure)
    }

    /// Requests that are out of memory.
    #[must_use]
    pub fn ooms(&self) -> i64 {
        self.devices.iter().map(|device| device.prediction.stats.num_ooms).sum()
    }

    /// It does not fit, but every request that fails is one that a library may do without.
    #[must_use]
    pub fn may_survive(&self) -> bool {
        !self.fits() && self.devices.iter().all(|device| device.fits() || device.may_survive)
    }

    /// The most that was reserved at once, of the fullest device.
    #[must_use]
    pub fn peak_reserved_bytes(&self) -> i64 {
        self.devices.iter().map(|device| device.prediction.peak_reserved_bytes()).max().unwrap_or(0)
    }

    /// The smallest memory found in which every request of every device is served, by a run that was made. Within 0.1 % or 2 MiB below
    /// it lies one in which one was not. It is searched above the memory that there is if that does not suffice, and below it if it does.
    #[must_use]
    pub fn smallest_capacity_bytes(&self) -> u64 {
        let smallest = self.devices.iter().map(|device| device.smallest_bytes).max().unwrap_or(0);
        let fraction = self.settings.per_process_memory_fraction;
        if fraction > 0.0 && fraction < 1.0 { (smallest as f64 / fraction).ceil() as u64 } else { smallest }
    }

    /// Releases of everything that was cached, because memory was short.
    #[must_use]
    pub fn retries(&self) -> i64 {
        self.devices.iter().map(|device| device.prediction.stats.num_alloc_retries).sum()
    }

    /// Calls of the driver about memory.
    #[must_use]
    pub fn driver_calls(&self) -> u64 {
        self.devices.iter().map(|device| device.prediction.driver_calls).sum()
    }

    /// What they cost on the measured device, in microseconds.
    #[must_use]
    pub fn driver_us(&self) -> u64 {
        self.devices.iter().map(|device| device.prediction.driver_ns / 1000).sum()
    }

    /// What is left of the memory when the most is reserved. Negative where the last page of an expandable segment reaches beyond.
    #[must_use]
    pub fn headroom_bytes(&self) -> Option<i64> {
        Some(i64::try_from(self.available_bytes?).unwrap_or(i64::MAX).saturating_sub(self.peak_reserved_bytes()))
    }

    /// More is reserved than there is: a limit lets the last page of an expandable segment reach beyond it, a device does not.
    #[must_use]
    pub fn reaches_beyond(&self) -> bool {
        self.headroom_bytes().is_some_and(|headroom| headroom < 0)
    }

    /// Whether less than 1 % of memory more or less might change the answer.
    #[must_use]
    pub fn is_close(&self) -> bool {
        if self.fits() && self.reaches_beyond() {
            return true;
        }
        let smallest = self.devices.iter().map(|device| device.smallest_bytes).max().unwrap_or(0);
        self.available_bytes.is_some_and(|available| available.abs_diff(smallest) < available / 100)
    }

    /// How many settings it sets.
    #[must_use]
    pub fn keys(&self) -> usize {
        keys(&self.settings)
    }

    /// Whether it does something only where there is a memory limit.
    #[must_use]
    pub fn needs_limit(&self) -> bool {
        self.settings.garbage_collection_threshold > 0.0
    }

    /// What they break of what the recording shows in use.
    pub fn warnings(&self) -> impl Iterator<Item = &Caution> {
        self.cautions.iter().filter(|caution| caution.needs_warning())
    }

    /// Whether they break anything of that.
    #[must_use]
    pub fn has_warnings(&self) -> bool {
        self.warnings().next().is_some()
    }

    /// The most useful first: what fits, without warnings, in the least memory, with the fewest settings.
    pub(super) fn rank(&self) -> (bool, bool, u64, usize, u64) {
        (!self.fits(), self.has_warnings(), self.smallest_capacity_bytes(), self.keys(), self.driver_us())
    }
}

/// The search under way.
pub(super) struct Search<'a> {
    programs: &'a [Program],
    in_use: &'a [InUse],
    profile: &'static Profile,
    space: Space,
    options: &'a AdviseOptions,
    kept: String,
    found: Vec<AdvisedOption>,
    /// Where each found option came from, by its place.
    candidates: Vec<Option<Candidate>>,
    progress: &'a (dyn Fn(Progress) + Sync),
}

/// Settings that are to be tried.
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
        space: Space,
        options: &'a AdviseOptions,
        progress: &'a (dyn Fn(Progress) + Sync),
    ) -> Search<'a> {
        let kept = kept(&options.own.settings.settings.text);
        let profile = options.profile;
        Search { programs, in_use, profile, space, options, kept, found: Vec::new(), candidates: Vec::new(), progress }
    }

    /// Tries everything; the recorded run's own settings come first.
    pub(super) fn run(mut self) -> Vec<AdvisedOption> {
        let own = Trial { settings: self.options.own.settings.settings.clone(), candidate: None, is_own: true, is_given: false };
        let given = self.options.given.iter();
        let given = given.map(|settings| Trial { settings: settings.clone(), candidate: None, is_own: false, is_given: true });
        let mut trials: Vec<Trial> = [own].into_iter().chain(given).collect();
        if !self.options.only_given {
            trials.extend(self.trials(Candidate::ladder()));
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

    /// The best options of those with expandable segments and of the others: not every program can have the first.
    fn best(&self, count: usize) -> Vec<Candidate> {
        let mut places: Vec<usize> = (0..self.found.len()).collect();
        places.sort_by_key(|&place| self.found[place].rank());
        let of_kind = |expandable: bool| {
            let candidates = places.iter().filter_map(|&place| self.candidates[place].clone());
            candidates.filter(move |candidate| candidate.expandable == expandable).take(count)
        };
        of_kind(true).take(1).chain(of_kind(false)).collect()
    }

    /// Evaluates those that were not tried yet.
    fn try_all(&mut self, trials: Vec<Trial>) {
        let mut new: Vec<Trial> = Vec::new();
        for trial in trials {
            let same = |settings: &Settings| Settings { text: trial.settings.text.clone(), ..settings.clone() } == trial.settings;
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
        let evaluate = |trial: &Trial| {
            let option = self.evaluate(trial);
            (self.progress)(Progress::Tried { options: done.fetch_add(1, Ordering::Relaxed) + 1, of: total });
            option
        };
        let found: Vec<AdvisedOption> = new.par_iter().with_max_len(1).map(evaluate).collect();
        self.found.extend(found);
        self.candidates.extend(new.into_iter().map(|trial| trial.candidate));
    }

    /// What the settings may break on any of the devices, each case once.
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

    fn evaluate(&self, trial: &Trial) -> AdvisedOption {
        let available_bytes = self.space.bytes(self.profile, &trial.settings);
        let outcome = |program| Replay { program, profile: self.profile, settings: &trial.settings }.evaluate(available_bytes);
        AdvisedOption {
            cautions: self.cautions(&trial.settings),
            is_own: trial.is_own,
            is_given: trial.is_given,
            available_bytes,
            devices: self.programs.iter().map(outcome).collect(),
            settings: trial.settings.clone(),
        }
    }
}
