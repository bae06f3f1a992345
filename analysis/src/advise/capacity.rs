//! The smallest memory in which a program fits, without starting over for every size.
//!
//! Under a limit a run makes the decisions of the unlimited run until it first asks for memory beyond the limit; with
//! `garbage_collection_threshold`, until what is reserved may first exceed that part of it. So the unlimited run is made once, noting
//! what it asked for at which operation, and every trial goes on from a copy of it, taken where the trials begin to
//! differ. A trial ends at its first failure.
//!
//! What is found is a size at which every request is served, by a run that was made; and within the precision below it lies one at
//! which none was. More memory is not always better: a size above it may fail again.

use parkade::policy::{Policy, PyTorch};
use parkade::stats::Family;
use parkade::units::Bytes;

use super::evaluate::Replay;
use parkade_replay::{AfterFailure, Operation, PredictedRun, Prediction};

/// How closely sizes are searched: to this part of the size ...
const PRECISION: u64 = 1000;
/// ... or this many bytes, whichever is more: the pages of the driver.
const PRECISION_BYTES: u64 = 2 << 20;
/// A limit that no run reaches: garbage is only collected, and blocks only age, where there is a limit at all.
const NEVER_REACHED: u64 = 1 << 60;

/// One program under one setting, in any amount of memory.
pub(super) struct Capacities<'r, 'a> {
    replay: &'r Replay<'a>,
    policy: PyTorch,
    unlimited: Prediction,
    /// The operations of the unlimited run that asked for more than any before, and what they would have had reserved.
    asks: Vec<(usize, u64)>,
    /// The unlimited run where trials begin to differ; none if they do not.
    base: Option<PredictedRun<'a>>,
    /// Does not suffice, as far as is known.
    low: u64,
    /// Suffices.
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
        let mut found = Capacities { replay, policy, unlimited, asks: Vec::new(), base: None, low, high: 0 };
        let same_until = found.same_until(live_bytes);
        loop {
            let before = reserved(&run);
            if found.base.is_none() && found.may_ask_for(before, run.next_operation()) > same_until {
                found.base = Some(run.clone());
            }
            let asked = found.asked(&mut run);
            if asked > found.high {
                found.high = asked;
                found.asks.push((run.done() - 1, asked));
            }
            if run.next_operation().is_none() {
                break;
            }
        }
        found.unlimited = run.prediction();
        found
    }

    /// The run in unlimited memory.
    pub(super) fn unlimited(&self) -> Prediction {
        self.unlimited.clone()
    }

    /// The run within `available_bytes`, to its end, and the operations that were out of memory.
    pub(super) fn within(&mut self, available_bytes: u64) -> (Prediction, Vec<usize>) {
        if self.most_asked() <= self.same_until(available_bytes) {
            return (self.unlimited(), Vec::new());
        }
        let mut run = match &self.base {
            Some(base) if available_bytes > self.low => base.clone(),
            _ => self.replay.run(None, AfterFailure::GoOn),
        };
        run.set_limit(Some(available_bytes));
        let (mut failed, mut asked, mut ooms) = (Vec::new(), 0, run.stats().num_ooms);
        while run.next_operation().is_some() {
            asked = self.asked(&mut run).max(asked);
            if run.stats().num_ooms > ooms {
                ooms = run.stats().num_ooms;
                failed.push(run.done() - 1);
            }
        }
        if run.first_failure().is_none() {
            self.suffices(available_bytes, asked);
        } else {
            self.suffices_not(available_bytes);
        }
        (run.prediction(), failed)
    }

    /// The smallest memory in which the program fits.
    pub(super) fn smallest(mut self) -> u64 {
        let (most_asked, threshold) = (self.high, self.threshold());
        if threshold < 1.0 && most_asked > self.low && !self.fits(most_asked) {
            // Where even the threshold is above all that is asked for, nothing is ever collected.
            self.high = (most_asked as f64 / threshold).ceil() as u64;
        }
        while self.high.saturating_sub(self.low) > PRECISION_BYTES.max(self.high / PRECISION) {
            // Nearer to what fails: such a trial ends early, one that fits goes on to the end.
            self.fits(self.low + (self.high - self.low) / 3);
        }
        // A page of an expandable segment may reach beyond a limit; but no memory holds more than itself.
        self.high.max(self.replay.program.live.bytes)
    }

    /// Tries a size, and notes the outcome.
    fn fits(&mut self, bytes: u64) -> bool {
        let Some(base) = &self.base else { return true };
        let mut run = base.clone();
        run.set_limit(Some(bytes));
        let mut asked = 0;
        while run.first_failure().is_none() && run.next_operation().is_some() {
            asked = self.asked(&mut run).max(asked);
        }
        let fits = run.first_failure().is_none();
        if fits {
            self.suffices(bytes, asked)
        } else {
            self.suffices_not(bytes)
        }
        fits
    }

    /// A run within `bytes` never asked for more than `asked`: within that much it would have been the same, unless a threshold decides.
    fn suffices(&mut self, bytes: u64, asked: u64) {
        // At most what is known not to suffice: only where a recording contradicts itself.
        self.low = self.low.min(bytes.saturating_sub(1));
        let same = if self.threshold() < 1.0 { bytes } else { asked.clamp(self.low + 1, bytes.max(self.low + 1)) };
        self.high = self.high.min(same);
    }

    fn suffices_not(&mut self, bytes: u64) {
        if bytes <= self.low {
            return;
        }
        self.low = bytes;
        let same_until = self.same_until(bytes);
        let (Some(base), Some(&(differs, _))) = (&mut self.base, self.asks.iter().find(|(_, asked)| *asked > same_until)) else {
            return;
        };
        while base.done() < differs && base.step() {}
    }

    /// Carries out the next operation. Returns how many bytes it would have had reserved, had it got what it asked the device for; 0 if
    /// it did not ask.
    fn asked(&self, run: &mut PredictedRun<'a>) -> u64 {
        let (before, operation) = (reserved(run), run.next_operation());
        let (segments, reserved_before) = (run.stats().num_device_alloc, before);
        run.step();
        let after = reserved(run);
        if self.replay.settings.expandable_segments {
            // The limit is held against the whole segment; less may be mapped, or a whole page more.
            if after > reserved_before { self.may_ask_for(before, operation) } else { 0 }
        } else if run.stats().num_device_alloc > segments {
            after
        } else {
            0
        }
    }

    /// What would be reserved if this operation asked the device for memory.
    fn may_ask_for(&self, reserved_bytes: u64, operation: Option<Operation>) -> u64 {
        let Some(Operation::Allocate { bytes, .. }) = operation else { return 0 };
        let segment = self.policy.round(Bytes(bytes)).and_then(|size| self.policy.segment_for(size));
        reserved_bytes.saturating_add(segment.map_or(u64::MAX, Bytes::get))
    }

    fn most_asked(&self) -> u64 {
        self.asks.last().map_or(0, |&(_, asked)| asked)
    }

    fn threshold(&self) -> f64 {
        let threshold = self.replay.settings.garbage_collection_threshold;
        if threshold > 0.0 { threshold } else { 1.0 }
    }

    /// Under this limit decisions are those of the unlimited run until more than this is asked for.
    fn same_until(&self, limit_bytes: u64) -> u64 {
        if self.threshold() < 1.0 { (self.threshold() * limit_bytes as f64) as u64 } else { limit_bytes }
    }
}

fn reserved(run: &PredictedRun<'_>) -> u64 {
    run.stats().family(Family::ReservedBytes).all.current.max(0).cast_unsigned()
}
