//! What kinds of trace entries there are.

use parkade_recording::{Action, Entry};

pub(crate) fn takes_memory(entry: &Entry) -> bool {
    matches!(entry.action, Action::SegmentAlloc | Action::SegmentMap)
}

pub(crate) fn gives_memory(entry: &Entry) -> bool {
    matches!(entry.action, Action::SegmentFree | Action::SegmentUnmap)
}

/// Whether an entry is part of a request, or of a call that gives cached memory back, and not a request of its own.
pub(crate) fn is_inner(entry: &Entry) -> bool {
    entry.action == Action::FreeCompleted || takes_memory(entry) || gives_memory(entry)
}

/// Whether an entry is a request, served or not.
pub(crate) fn is_request(entry: &Entry) -> bool {
    matches!(entry.action, Action::Alloc | Action::Oom)
}
