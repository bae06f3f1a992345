//! How far into the recording a replay is.

use std::cell::Cell;

use parkade_recording::{Action, Entry};

/// How far the replay is; shared by the runner, the device, the policy and the observer.
#[derive(Debug, Default)]
pub(crate) struct Position {
    /// The entry that the core must reproduce next.
    pub(crate) next: Cell<usize>,
    /// One past the last entry of the current operation.
    pub(crate) end: Cell<usize>,
    /// Events that completed before this entry are reported as complete.
    pub(crate) visible: Cell<usize>,
    /// How many requests for a segment were refused because the recording has no segment there.
    pub(crate) refusals: Cell<u64>,
    /// How many blocks were copied to try readings, in all.
    pub(crate) copied: Cell<u64>,
    /// Of an entry and the first one from there on that maps pages: all entries between have the same.
    mapped: Cell<Option<(usize, Option<usize>)>>,
}

impl Position {
    /// The first entry from the next one on that maps pages.
    pub(crate) fn next_map(&self, trace: &[Entry]) -> Option<usize> {
        let next = self.next.get();
        if let Some((from, known)) = self.mapped.get()
            && (from..=known.unwrap_or(usize::MAX)).contains(&next)
        {
            return known;
        }
        let found = trace.iter().skip(next).position(|entry| entry.action == Action::SegmentMap).map(|behind| next + behind);
        self.mapped.set(Some((next, found)));
        found
    }
}
