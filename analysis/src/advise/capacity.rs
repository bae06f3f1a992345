//! The smallest memory in which a program fits, found without replaying the whole program for every size.
//!
//! Under a limit a run decides as the unlimited run does until it first asks the device for memory beyond the limit, or, with
//! `garbage_collection_threshold`, beyond that fraction of the limit. So the unlimited run is made once, and every trial continues a
//! copy of it that was taken where the trials begin to differ. A trial ends at its first failure. Then only more memory is tried, and
//! those trials in turn continue the one that failed, from where they may differ from it ([`Trial`]).
//!
//! The size found is one in which a trial served every request; a trial failed within the precision below it. More memory is not
//! always better: a larger size may fail again.

use parkade::policy::{Policy, PyTorch};
use parkade::units::Bytes;
use parkade_replay::{AfterFailure, Operation, PredictedRun, Prediction};

use super::replay::Replay;
use super::trial::Trial;

/// Sizes are searched to within one part in this many ...
const PRECISION: u64 = 1000;
/// ... or to within this many bytes, whichever is more: a page of the driver.
const PRECISION_BYTES: u64 = 2 << 20;
/// A limit that no run reaches. It is set because without a limit garbage is not collected and blocks do not age.
const NEVER_REACHED: u64 = 1 << 60;

/// One program under one setting, tried in various amounts of memory.
pub(super) struct Capacities<'r, 'a> {
    replay: &'r Replay<'a>,
    policy: PyTorch,
    unlimited: Prediction,
    /// The most bytes that would have been reserved at once, had the device granted all that the unlimited run asked for.
    most_asked: u64,
    /// What the runs under all limits between `low` and `high` have in common; `None` if they never differ.
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

    /// Runs the whole program within `available_bytes`. Returns the outcome and the operations that were out of memory.
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
            // In this size the program never asks for more than the threshold, so nothing is collected.
            self.high = (most_asked as f64 / threshold).ceil() as u64;
        }
        while self.high.saturating_sub(self.low) > PRECISION_BYTES.max(self.high / PRECISION) {
            // Below the middle, because a trial that fails ends early and one that fits runs to the end.
            self.fits(self.low + (self.high - self.low) / 3);
        }
        // The last page of an expandable segment may exceed a limit, but the live bytes are always needed.
        self.high.max(self.replay.program.live.bytes)
    }

    /// Tries a size and notes the outcome.
    fn fits(&mut self, bytes: u64) -> bool {
        let Some(base) = &self.base else { return true };
        let mut trial = Trial::new(base.clone(), bytes);
        while trial.run.first_failure().is_none() && trial.run.next_operation().is_some() {
            trial.step(self);
        }
        self.note(bytes, trial)
    }

    /// Notes the outcome of a trial within `bytes`: whether it fits.
    fn note(&mut self, bytes: u64, trial: Trial<'a>) -> bool {
        let fits = trial.run.first_failure().is_none();
        if fits {
            self.note_enough(bytes, trial.asked);
        } else if bytes > self.low {
            (self.low, self.base) = (bytes, Some(trial.shared));
        }
        fits
    }

    /// A run within `bytes` fitted and never asked for more than `asked`. Within `asked` it would have been the same run, unless there is
    /// a threshold, which depends on the limit.
    fn note_enough(&mut self, bytes: u64, asked: u64) {
        // This lowers `low` only if the recording contradicts itself.
        self.low = self.low.min(bytes.saturating_sub(1));
        let same = if self.threshold() < 1.0 { bytes } else { asked.clamp(self.low + 1, bytes.max(self.low + 1)) };
        self.high = self.high.min(same);
    }

    /// Carries out the next operation. Returns the bytes that would be reserved had the device granted what it asked for; 0 if it did
    /// not ask.
    pub(super) fn asked(&self, run: &mut PredictedRun<'a>) -> u64 {
        let (before, operation) = (run.reserved_bytes(), run.next_operation());
        let segments = run.stats().num_device_alloc;
        run.step();
        let after = run.reserved_bytes();
        if self.replay.settings.expandable_segments {
            // The limit check counts a whole segment, although fewer pages may be mapped, or a page more.
            if after > before { self.may_ask_for(before, operation) } else { 0 }
        } else if run.stats().num_device_alloc > segments {
            after
        } else {
            0
        }
    }

    /// The bytes that would be reserved if this operation asked the device for memory.
    pub(super) fn may_ask_for(&self, reserved_bytes: u64, operation: Option<Operation>) -> u64 {
        let Some(Operation::Allocate { bytes, .. }) = operation else { return 0 };
        let segment = self.policy.round(Bytes(bytes)).and_then(|size| self.policy.segment_for(size));
        reserved_bytes.saturating_add(segment.map_or(u64::MAX, Bytes::get))
    }

    /// Whether an operation that the device refused memory at first may go another way under a larger limit that is still to be tried.
    /// `before_bytes` were reserved before it.
    pub(super) fn depends_on_limit(&self, before_bytes: u64, operation: Option<Operation>) -> bool {
        // Oversize blocks and garbage are released in portions, and the device is asked again after each.
        let in_portions = self.threshold() < 1.0 || self.replay.settings.max_split_bytes < u64::MAX;
        in_portions || self.may_ask_for(before_bytes, operation) < self.high
    }

    fn threshold(&self) -> f64 {
        let threshold = self.replay.settings.garbage_collection_threshold;
        if threshold > 0.0 { threshold } else { 1.0 }
    }

    /// Under this limit the decisions are those of the unlimited run until more than this is asked for.
    fn same_until(&self, limit_bytes: u64) -> u64 {
        if self.threshold() < 1.0 { (self.threshold() * limit_bytes as f64) as u64 } else { limit_bytes }
    }
}
