//! A run within a limit, and how long runs within larger limits are the same.
//!
//! A limit decides nothing but whether an ask of the device is refused, and, with `garbage_collection_threshold`, whether garbage is
//! collected before. So a run within a larger limit is the same until this run is refused an ask that the larger limit allows, or
//! collects garbage. If this run fails, larger limits are tried next: they continue a copy of it from before that point.

use parkade_replay::{Operation, PredictedRun};

use super::capacity::Capacities;

/// A copy is taken after at least this many operations ...
const OPERATIONS_A_COPY: usize = 1 << 13;
/// ... and as many for each block that it contains: then copies take a small part of the time.
const OPERATIONS_A_BLOCK: usize = 16;

/// A run within a limit.
pub(super) struct Trial<'a> {
    pub(super) run: PredictedRun<'a>,
    /// The most that it asked for and was granted: the bytes that were then reserved.
    pub(super) asked: u64,
    /// The run at an earlier operation, up to which runs within larger limits are the same.
    pub(super) shared: PredictedRun<'a>,
    /// Whether they are still the same now.
    is_shared: bool,
}

impl<'a> Trial<'a> {
    /// Goes on with a run within `limit_bytes`.
    pub(super) fn new(mut run: PredictedRun<'a>, limit_bytes: u64) -> Trial<'a> {
        run.set_limit(Some(limit_bytes));
        Trial { shared: run.clone(), run, asked: 0, is_shared: true }
    }

    /// Carries out the next operation.
    pub(super) fn step(&mut self, capacities: &Capacities<'_, 'a>) {
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

/// Counts that grow when a request is refused memory, or releases some before it asks.
fn relieved(run: &PredictedRun<'_>) -> (i64, i64) {
    (run.stats().num_alloc_retries, run.stats().num_device_free)
}
