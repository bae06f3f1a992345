//! Trace entries: their kinds, and the part of them in which a recording and the core are compared.

use std::fmt;

use parkade::trace::{TraceAction, TraceEntry};
use parkade_recording::{Action, Entry};

/// Addresses from here on are for segments that the recording does not have. They are far above any GPU's.
pub(crate) const ELSEWHERE: u64 = 1 << 60;

/// One thing that an allocator did; the comparable part of a trace entry.
///
/// Displays as one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// What it did.
    pub action: Action,
    /// At which address; for [`Action::Oom`] the device's free bytes.
    pub address: u64,
    /// To how many bytes.
    pub size: u64,
    /// On which stream, by its handle.
    pub stream: u64,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Decision { action, address, size, stream } = self;
        match action {
            Action::Oom => write!(f, "oom of {size} bytes on stream {stream:#x}"),
            _ if *address >= ELSEWHERE => {
                write!(f, "{} of {size} bytes on stream {stream:#x}, at an address of its own", action.name())
            }
            _ => write!(f, "{} at {address:#x} of {size} bytes on stream {stream:#x}", action.name()),
        }
    }
}

impl From<&Entry> for Decision {
    fn from(entry: &Entry) -> Decision {
        Decision { action: entry.action, address: entry.address, size: entry.size, stream: entry.stream }
    }
}

impl From<&TraceEntry> for Decision {
    fn from(entry: &TraceEntry) -> Decision {
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
        Decision { action, address: entry.address, size: entry.size, stream: entry.stream.get() }
    }
}

/// The actions that take memory from the device, or give it back.
pub(crate) const SEGMENT_ACTIONS: [Action; 4] =
    [Action::SegmentAlloc, Action::SegmentFree, Action::SegmentMap, Action::SegmentUnmap];

/// Whether the entry takes memory from the device.
pub(crate) fn takes_memory(entry: &Entry) -> bool {
    matches!(entry.action, Action::SegmentAlloc | Action::SegmentMap)
}

/// Whether the entry gives memory back to the device.
pub(crate) fn gives_memory(entry: &Entry) -> bool {
    matches!(entry.action, Action::SegmentFree | Action::SegmentUnmap)
}

/// Whether the entry belongs to the request that follows, or to a call that gives cached memory back.
pub(crate) fn is_inner(entry: &Entry) -> bool {
    entry.action == Action::FreeCompleted || takes_memory(entry) || gives_memory(entry)
}

/// Whether the entry is a request, served or not.
pub(crate) fn is_request(entry: &Entry) -> bool {
    matches!(entry.action, Action::Alloc | Action::Oom)
}
