//! Comparing each decision of the core with the recording's next entry.

use parkade::trace::{Observer, TraceAction, TraceEntry};
use parkade::units::PoolId;
use parkade_recording::Entry;

use super::position::Position;
use crate::entries::Decision;

/// Observes the core, and moves the replay forward as long as decisions agree.
#[derive(Clone, Debug)]
pub(crate) struct Comparer<'a> {
    trace: &'a [Entry],
    position: &'a Position,
    /// The first decision in this operation that the recording does not have, and the entry that it stands before.
    pub(crate) stray: Option<(usize, Decision)>,
    /// How many decisions in this operation the recording does not have.
    pub(crate) stray_count: u64,
    /// Set while the state before the first entry is rebuilt: nothing is compared.
    pub(crate) muted: bool,
    /// Where memory was taken from the device in this operation, and for which pools; `None` if nobody asks.
    pub(crate) taken: Option<Vec<(u64, PoolId)>>,
}

impl<'a> Comparer<'a> {
    pub(crate) fn new(trace: &'a [Entry], position: &'a Position) -> Comparer<'a> {
        Comparer { trace, position, stray: None, stray_count: 0, muted: false, taken: None }
    }

    /// Ends an operation; returns its first decision that did not agree, and how many did not.
    pub(crate) fn take_stray(&mut self) -> (Option<(usize, Decision)>, u64) {
        (self.stray.take(), std::mem::take(&mut self.stray_count))
    }
}

impl Observer for Comparer<'_> {
    #[inline]
    fn observe(&mut self, entry: &TraceEntry) {
        if self.muted {
            return;
        }
        if let Some(taken) = &mut self.taken
            && matches!(entry.action, TraceAction::SegmentAlloc | TraceAction::SegmentMap)
        {
            taken.push((entry.address, entry.pool));
        }
        let next = self.position.next.get();
        let decision = Decision::from(entry);
        if self.stray.is_none()
            && next < self.position.end.get()
            && let Some(expected) = self.trace.get(next)
            && Decision::from(expected) == decision
        {
            self.position.next.set(next + 1);
            return;
        }
        self.stray_count += 1;
        self.stray.get_or_insert((next, decision));
    }
}
