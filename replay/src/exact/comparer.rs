//! Comparing what the core does with what the recording says comes next, entry by entry.

use parkade::trace::{Observer, TraceEntry};
use parkade_recording::Entry;

use super::position::Position;
use crate::decision::Decision;

/// Watches the core during one operation.
#[derive(Clone, Debug)]
pub(crate) struct Comparer<'a> {
    trace: &'a [Entry],
    position: &'a Position,
    /// What the core did first that the recording does not have, and before which entry.
    pub(crate) stray: Option<(usize, Decision)>,
    /// How many things the core did after that.
    pub(crate) stray_count: u64,
    /// Nothing is compared: the state before the first entry is being made.
    pub(crate) muted: bool,
}

impl<'a> Comparer<'a> {
    pub(crate) fn new(trace: &'a [Entry], position: &'a Position) -> Comparer<'a> {
        Comparer { trace, position, stray: None, stray_count: 0, muted: false }
    }

    /// Takes note that the operation under way is over; returns what did not agree in it.
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
        let next = self.position.next.get();
        let doing = Decision::from(entry);
        if self.stray.is_none()
            && next < self.position.end.get()
            && let Some(expected) = self.trace.get(next)
            && Decision::from(expected) == doing
        {
            self.position.next.set(next + 1);
            return;
        }
        self.stray_count += 1;
        self.stray.get_or_insert((next, doing));
    }
}
