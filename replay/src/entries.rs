//! Kinds of trace entries.

use parkade_recording::{Action, Entry};

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
