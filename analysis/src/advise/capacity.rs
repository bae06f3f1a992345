//! The smallest memory in which a program fits, found without replaying the entire program for every size.
//!
//! Under a limit, a run makes the same decisions as the unlimited run until it first asks the device for memory beyond the
//! limit (or, with `garbage_collection_threshold`, beyond that fraction of the limit). The unlimited run is therefore made
//! once, and every trial continues a copy of it that was taken just before the trials begin to differ.
//!
//! A limit decides only whether the device refuses memory and, with `garbage_collection_threshold`, whether garbage is
//! collected first. Runs under two limits are therefore identical until the smaller limit refuses memory that the larger one
//! allows, or triggers a garbage collection. A trial ends at its first failure. After that, only larger sizes are tried, and
//! those trials continue a copy of the failed run from before that point ([`Trial`]).
//!
//! A trial at the size found served every request, and a trial that was smaller by at most the search precision failed. More
//! memory is not always better: a larger size may fail again.

use parkade::policy::{Policy, PyTorch};
use parkade::units::Bytes;
use parkade_replay::{AfterFailure, Operation, PredictedRun, Prediction};

use super::program::Replay;

/// Sizes are searched to within one part in this many ...
const PRECISION: u64 = 1000;
/// ... or to within this many bytes, whichever is more: the size of a driver page.
const PRECISION_BYTES: u64 = 2 << 20;
/// A limit that no run reaches. It is set because, without a limit, the allocator neither collects garbage nor ages blocks.
const NEVER_REACHED: u64 = 1 << 60;

/// One program under one setting, tried in various amounts of memory.
pub(super) struct Capacities<'r, 'a> {
    replay: &'r Replay<'a>,
    policy: PyTorch,
    unlimited: Prediction,
    /// The peak of reserved bytes if the device had granted everything that the unlimited run asked for.
    most_asked: u64,
    /// The common beginning of the runs under all limits between `low` and `high`; `None` if they never differ.
    base: Option<PredictedRun<'a>>,
    /// The largest size known to be too small.
    low: u64,
    /// The smallest size known to be enough.
    high: u64,
}

impl<'r, 'a> Capacities<'r, 'a> {
    /// Makes the unlimited run.
    pub(super) fn find(replay: &'r Replay<'a>) -> Capacities<'r, 'a> {
        let policy = PyTorch::of(replay.profile, replay.settings.clone());
        let collects = replay.settings.garbage_collection_threshold > 0.0;
        let mut run = replay.run(collects.then_some(NEVER_REACHED), AfterFailure::GoOn);
        let live_bytes = replay.program.live.bytes;
        let (unlimited, low) = (run.prediction(), live_bytes.saturating_sub(1));
        let mut found = Capacities { replay, policy, unlimited, most_asked: 0, base: None, low, high: 0 };
        let same_until = found.same_until(live_bytes);
        loop {
            if found.base.is_none() && found.may_ask_for(run.reserved_bytes(), run.next_operation()) > same_until {
                found.base = Some(run.clone());
            }
            found.most_asked = found.asked(&mut run).max(found.most_asked);
            if run.next_operation().is_none() {
                break;
            }
        }
        (found.unlimited, found.high) = (run.prediction(), found.most_asked);
        found
    }

    /// The outcome in unlimited memory.
    pub(super) fn unlimited(&self) -> Prediction {
        self.unlimited.clone()
    }

    /// Runs the entire program within `available_bytes`. Returns the outcome and the operations that ran out of memory.
    pub(super) fn within(&mut self, available_bytes: u64) -> (Prediction, Vec<usize>) {
        if self.most_asked <= self.same_until(available_bytes) {
            return (self.unlimited(), Vec::new());
        }
        let run = match &self.base {
            Some(base) if available_bytes > self.low => base.clone(),
            _ => self.replay.run(None, AfterFailure::GoOn),
        };
        let mut trial = Trial::new(run, available_bytes);
        let (mut failed, mut ooms) = (Vec::new(), trial.run.stats().num_ooms);
        while trial.run.next_operation().is_some() {
            trial.step(self);
            if trial.run.stats().num_ooms > ooms {
                ooms = trial.run.stats().num_ooms;
                failed.push(trial.run.done() - 1);
            }
        }
        let prediction = trial.run.prediction();
        self.note(available_bytes, trial);
        (prediction, failed)
    }

    /// The smallest memory in which the program fits.
    pub(super) fn smallest(mut self) -> u64 {
        let (most_asked, threshold) = (self.high, self.threshold());
        if threshold < 1.0 && most_asked > self.low && !self.fits(most_asked) {
            // With this much memory the program never asks for more than the threshold, so no garbage is collected.
            self.high = (most_asked as f64 / threshold).ceil() as u64;
        }
        while self.high.saturating_sub(self.low) > PRECISION_BYTES.max(self.high / PRECISION) {
            // Below the middle, because a failing trial ends early and a successful one runs to the end.
            self.fits(self.low + (self.high - self.low) / 3);
        }
        // The last page of an expandable segment may exceed a limit, but the live bytes are always needed.
        self.high.max(self.replay.program.live.bytes)
    }

    /// Tries a size and records the outcome.
    fn fits(&mut self, bytes: u64) -> bool {
        let Some(base) = &self.base else { return true };
        let mut trial = Trial::new(base.clone(), bytes);
        while trial.run.first_failure().is_none() && trial.run.next_operation().is_some() {
            trial.step(self);
        }
        self.note(bytes, trial)
    }

    /// Records the outcome of a trial within `bytes`: whether it fits.
    fn note(&mut self, bytes: u64, trial: Trial<'a>) -> bool {
        let fits = trial.run.first_failure().is_none();
        if fits {
            self.note_enough(bytes, trial.asked);
        } else if bytes > self.low {
            (self.low, self.base) = (bytes, Some(trial.shared));
        }
        fits
    }

    /// A run within `bytes` succeeded and never asked for more than `asked`. Within `asked`, the run would have been the
    /// same, except under a threshold, which depends on the limit.
    fn note_enough(&mut self, bytes: u64, asked: u64) {
        // This lowers `low` only if the recording contradicts itself.
        self.low = self.low.min(bytes.saturating_sub(1));
        let same = if self.threshold() < 1.0 { bytes } else { asked.clamp(self.low + 1, bytes.max(self.low + 1)) };
        self.high = self.high.min(same);
    }

    /// Carries out the next operation. Returns the bytes that would be reserved if the device had granted the request; 0 if the
    /// operation asked for none.
    fn asked(&self, run: &mut PredictedRun<'a>) -> u64 {
        let (before, operation) = (run.reserved_bytes(), run.next_operation());
        let segments = run.stats().num_device_alloc;
        run.step();
        let after = run.reserved_bytes();
        if self.replay.settings.expandable_segments {
            // The limit check counts a whole segment, although fewer pages, or one page more, may be mapped.
            if after > before { self.may_ask_for(before, operation) } else { 0 }
        } else if run.stats().num_device_alloc > segments {
            after
        } else {
            0
        }
    }

    /// The bytes that would be reserved if this operation asked the device for memory.
    fn may_ask_for(&self, reserved_bytes: u64, operation: Option<Operation>) -> u64 {
        let Some(Operation::Allocate { bytes, .. }) = operation else { return 0 };
        let segment = self.policy.round(Bytes(bytes)).and_then(|size| self.policy.segment_for(size));
        reserved_bytes.saturating_add(segment.map_or(u64::MAX, Bytes::get))
    }

    /// Whether an operation that the device first refused may proceed differently under a larger limit that is still to be
    /// tried. `before_bytes` is the amount reserved before the operation.
    fn depends_on_limit(&self, before_bytes: u64, operation: Option<Operation>) -> bool {
        // The allocator releases oversize blocks and garbage in portions and asks the device again after each portion.
        let in_portions = self.threshold() < 1.0 || self.replay.settings.max_split_bytes < u64::MAX;
        in_portions || self.may_ask_for(before_bytes, operation) < self.high
    }

    fn threshold(&self) -> f64 {
        let threshold = self.replay.settings.garbage_collection_threshold;
        if threshold > 0.0 { threshold } else { 1.0 }
    }

    /// Under this limit, the run makes the same decisions as the unlimited run until it asks for more than this many bytes.
    fn same_until(&self, limit_bytes: u64) -> u64 {
        if self.threshold() < 1.0 { (self.threshold() * limit_bytes as f64) as u64 } else { limit_bytes }
    }
}

/// A copy is taken after at least this many operations (after every one in tests, whose programs are short) ...
const OPERATIONS_A_COPY: usize = if cfg!(test) { 1 } else { 1 << 13 };
/// ... and after as many operations per block in the copy, so that copying takes only a small part of the time.
const OPERATIONS_A_BLOCK: usize = if cfg!(test) { 0 } else { 16 };

/// A run within a limit.
struct Trial<'a> {
    run: PredictedRun<'a>,
    /// The largest number of bytes reserved after a request that the device granted.
    asked: u64,
    /// The run's state at an earlier operation, up to which runs under larger limits are the same.
    shared: PredictedRun<'a>,
    /// Whether this run is still the same as those under larger limits.
    is_shared: bool,
}

impl<'a> Trial<'a> {
    /// Continues a run within `limit_bytes`.
    fn new(mut run: PredictedRun<'a>, limit_bytes: u64) -> Trial<'a> {
        run.set_limit(Some(limit_bytes));
        Trial { shared: run.clone(), run, asked: 0, is_shared: true }
    }

    /// Carries out the next operation.
    fn step(&mut self, capacities: &Capacities<'_, 'a>) {
        if !self.is_shared {
            self.asked = capacities.asked(&mut self.run).max(self.asked);
            return;
        }
        if self.run.done() - self.shared.done() >= OPERATIONS_A_COPY.max(self.run.most_live() * OPERATIONS_A_BLOCK) {
            self.shared = self.run.clone();
        }
        let (before_bytes, operation) = (self.run.reserved_bytes(), self.run.next_operation());
        let (relieved, ooms) = (relieved(&self.run), self.run.stats().num_ooms);
        self.asked = capacities.asked(&mut self.run).max(self.asked);
        let is_refused = matches!(operation, Some(Operation::Allocate { .. })) && self::relieved(&self.run) != relieved;
        self.is_shared =
            self.run.stats().num_ooms == ooms && !(is_refused && capacities.depends_on_limit(before_bytes, operation));
    }
}

/// Counters that grow when the device refuses a request, or when memory is released before a request.
fn relieved(run: &PredictedRun<'_>) -> (i64, i64) {
    (run.stats().num_alloc_retries, run.stats().num_device_free)
}

#[cfg(test)]
mod tests {
    use parkade::profile::Profile;
    use parkade::settings::Settings;

    use super::*;
    use crate::advise::program::Program;
    use crate::advise::program::sample_programs::{MIB, allocate, free, program};

    /// A program whose sizes and lifetimes have no pattern.
    fn mixed(seed: u64) -> Program {
        let mut state = seed;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let (mut operations, mut live) = (Vec::new(), Vec::new());
        for id in 0..80 {
            while live.len() > 12 || (!live.is_empty() && below(3) == 0) {
                operations.push(free(live.swap_remove(below(live.len() as u64) as usize)));
            }
            operations.push(allocate(id, 1 + below(60)));
            live.push(id);
        }
        program(&operations)
    }

    #[test]
    fn a_trial_that_continues_another_ends_as_one_from_the_beginning() {
        let texts = [
            "",
            "expandable_segments:True",
            "max_split_size_mb:32",
            "garbage_collection_threshold:0.6",
            "max_split_size_mb:32,garbage_collection_threshold:0.8",
        ];
        let (mut fit, mut failed, mut continued) = (0, 0, 0);
        for seed in 0..24 {
            let program = mixed(seed);
            for text in texts {
                let settings = Settings::from_environment(text).unwrap();
                let replay = Replay { program: &program, profile: &Profile::PYTORCH_2_11, settings: &settings };
                let mut capacities = Capacities::find(&replay);
                let first = capacities.base.as_ref().map_or(0, PredictedRun::done);
                // Sizes change in small steps, approached from both sides, so that trials have long common beginnings.
                while capacities.high > capacities.low + MIB {
                    let bytes = capacities.low + ((capacities.high - capacities.low) / 5).max(MIB);
                    let mut alone = replay.run(Some(bytes), AfterFailure::Stop);
                    while alone.step() {}
                    let fits = capacities.fits(bytes);
                    assert_eq!(fits, alone.first_failure().is_none(), "seed {seed}, {text:?}, {bytes} bytes");
                    *if fits { &mut fit } else { &mut failed } += 1;
                }
                continued += usize::from(capacities.base.as_ref().is_some_and(|base| base.done() > first));
            }
        }
        assert!(fit > 100 && failed > 100 && continued > 50, "{fit} {failed} {continued}");
    }
}
