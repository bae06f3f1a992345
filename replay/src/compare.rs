//! Comparing what the core does with what the recording says comes next, entry by entry.

use std::fmt;

use parkade::trace::{Observer, TraceAction, TraceEntry};

use super::device::{ELSEWHERE, Position};
use parkade_recording::{Action, Entry};

/// Something that happened, as the recording or the core tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doing {
    /// What.
    pub action: Action,
    /// Where; for an out-of-memory point the device's free bytes.
    pub address: u64,
    /// How many bytes.
    pub size: u64,
    /// On which stream.
    pub stream: u64,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Doing { action, address, size, stream } = self;
        match action {
            Action::Oom => write!(f, "oom of {size} bytes on stream {stream:#x}"),
            _ if *address >= ELSEWHERE => {
                write!(f, "{} of {size} bytes on stream {stream:#x}, at an address of its own", action.name())
            }
            _ => write!(f, "{} at {address:#x} of {size} bytes on stream {stream:#x}", action.name()),
        }
    }
}

impl From<&Entry> for Doing {
    fn from(entry: &Entry) -> Doing {
        Doing { action: entry.action, address: entry.address, size: entry.size, stream: entry.stream }
    }
}

impl From<&TraceEntry> for Doing {
    fn from(entry: &TraceEntry) -> Doing {
        let action = match entry.action {
            TraceAction::Alloc => Action::Alloc,
            TraceAction::FreeRequested => Action::FreeRequested,
            TraceAction::FreeCompleted => Action::FreeCompleted,
            TraceAction::SegmentAlloc => Action::SegmentAlloc,
            TraceAction::SegmentFree => Action::SegmentFree,
            TraceAction::SegmentMap => Action::SegmentMap,
            TraceAction::SegmentUnmap => Action::SegmentUnmap,
            TraceAction::Oom => Action::Oom,
            TraceAction::Snapshot => Action::Snapshot,
        };
        Doing { action, address: entry.address, size: entry.size, stream: entry.stream.get() }
    }
}

/// The first place where the core and the recording part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The recording's entry, from 0; `None` in the final state.
    pub entry: Option<usize>,
    /// What the recording has there.
    pub recorded: String,
    /// What the core did.
    pub replayed: String,
    /// The addresses concerned, the recording's and the core's; one if they are the same.
    pub addresses: Vec<u64>,
}

/// Watches the core during one operation.
#[derive(Clone, Debug)]
pub(super) struct Comparer<'a> {
    trace: &'a [Entry],
    position: &'a Position,
    /// What the core did first that the recording does not have, and before which entry.
    pub(super) stray: Option<(usize, Doing)>,
    /// How many things the core did after that.
    pub(super) stray_count: u64,
    /// Nothing is compared: the state before the first entry is being made.
    pub(super) muted: bool,
}

impl<'a> Comparer<'a> {
    pub(super) fn new(trace: &'a [Entry], position: &'a Position) -> Comparer<'a> {
        Comparer { trace, position, stray: None, stray_count: 0, muted: false }
    }

    /// Takes note that the operation under way is over; returns what did not agree in it.
    pub(super) fn take_stray(&mut self) -> (Option<(usize, Doing)>, u64) {
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
        let doing = Doing::from(entry);
        if self.stray.is_none()
            && next < self.position.end.get()
            && let Some(expected) = self.trace.get(next)
            && Doing::from(expected) == doing
        {
            self.position.next.set(next + 1);
            return;
        }
        self.stray_count += 1;
        self.stray.get_or_insert((next, doing));
    }
}
