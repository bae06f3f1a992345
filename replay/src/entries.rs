//! Trace entries: their kinds, and the fields in which a replay compares a recording with the core.

use std::fmt;

use parkade::trace::{TraceAction, TraceEntry};
use parkade_recording::{Action, Entry};

/// Addresses at or above this one are for segments that the recording does not contain. They are far above any GPU's
/// addresses.
pub(crate) const ELSEWHERE: u64 = 1 << 60;

/// One action by an allocator: the fields of a trace entry that a replay compares.
///
/// Displayed as one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The action.
    pub action: Action,
    /// Its address; for [`Action::Oom`] the device's free bytes.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// The handle of its stream.
    pub stream: u64,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Decision { action, address, size, stream } = self;
        match action {
            Action::Oom => write!(f, "oom of {size} bytes on stream {stream:#x}"),
            _ if *address >= ELSEWHERE => {
                write!(f, "{} of {size} bytes on stream {stream:#x}, at a separate address", action.name())
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

/// The actions that take memory from the device or release it.
pub(crate) const SEGMENT_ACTIONS: [Action; 4] =
    [Action::SegmentAlloc, Action::SegmentFree, Action::SegmentMap, Action::SegmentUnmap];

/// Returns whether the entry takes memory from the device.
pub(crate) fn takes_memory(entry: &Entry) -> bool {
    matches!(entry.action, Action::SegmentAlloc | Action::SegmentMap)
}

/// Returns whether the entry releases memory to the device.
pub(crate) fn gives_memory(entry: &Entry) -> bool {
    matches!(entry.action, Action::SegmentFree | Action::SegmentUnmap)
}

/// Returns whether the entry belongs to the request after it, or to a call that releases cached memory.
pub(crate) fn is_inner(entry: &Entry) -> bool {
    entry.action == Action::FreeCompleted || takes_memory(entry) || gives_memory(entry)
}

/// Returns whether the entry is a request, whether served or not.
pub(crate) fn is_request(entry: &Entry) -> bool {
    matches!(entry.action, Action::Alloc | Action::Oom)
}
