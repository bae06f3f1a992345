//! What the allocator tells whoever watches it: one value for everything that it does.
//!
//! The entries are PyTorch's trace entries (spec 7.4), in PyTorch's order. They leave through an [`Observer`], which costs nothing
//! when it is `()`. Recordings are compared with them, histories and reports are made of them.

use alloc::collections::VecDeque;

use crate::units::{PoolId, StreamId};

/// What happened. The names are PyTorch's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum TraceAction {
    /// A block was handed out; the size is what was asked for.
    Alloc,
    /// The owner gave a block back; the size is what had been asked for.
    FreeRequested,
    /// A block given back became reusable, at once or after its events.
    FreeCompleted,
    /// A segment was taken from the device.
    SegmentAlloc,
    /// A segment went back to the device.
    SegmentFree,
    /// Pages of an expandable segment got memory.
    SegmentMap,
    /// Pages of an expandable segment gave their memory back.
    SegmentUnmap,
    /// A request failed for lack of memory; the size is the rounded one, the address field holds the device's free bytes.
    Oom,
    /// A snapshot was taken; the address is zero, the size is the active bytes of the segments listed.
    Snapshot,
}

impl TraceAction {
    /// PyTorch's word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TraceAction::Alloc => "alloc",
            TraceAction::FreeRequested => "free_requested",
            TraceAction::FreeCompleted => "free_completed",
            TraceAction::SegmentAlloc => "segment_alloc",
            TraceAction::SegmentFree => "segment_free",
            TraceAction::SegmentMap => "segment_map",
            TraceAction::SegmentUnmap => "segment_unmap",
            TraceAction::Oom => "oom",
            TraceAction::Snapshot => "snapshot",
        }
    }
}

/// One thing that the allocator did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEntry {
    /// What.
    pub action: TraceAction,
    /// Where; for [`TraceAction::Oom`] the device's free bytes instead.
    pub address: u64,
    /// How many bytes; which ones is said at each action.
    pub size: u64,
    /// The block's or the segment's stream.
    pub stream: StreamId,
    /// The pool that the block or segment belongs to.
    pub pool: PoolId,
}

/// Watches an allocator.
pub trait Observer {
    /// Called for every entry, in order, at the moment when it happens.
    fn observe(&mut self, entry: &TraceEntry);
}

/// Nobody watches.
impl Observer for () {
    #[inline]
    fn observe(&mut self, _: &TraceEntry) {}
}

impl Observer for alloc::vec::Vec<TraceEntry> {
    fn observe(&mut self, entry: &TraceEntry) {
        self.push(*entry);
    }
}

/// A ring that keeps the newest entries, as PyTorch's memory history does (spec 7.4).
#[derive(Clone, Debug)]
pub struct TraceRing {
    entries: VecDeque<TraceEntry>,
    capacity: usize,
}

impl TraceRing {
    /// A ring that keeps at most `capacity` entries; at least one, as in PyTorch.
    #[must_use]
    pub fn new(capacity: usize) -> TraceRing {
        TraceRing { entries: VecDeque::new(), capacity: capacity.max(1) }
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &TraceEntry> {
        self.entries.iter()
    }
}

impl Observer for TraceRing {
    fn observe(&mut self, entry: &TraceEntry) {
        if self.entries.len() == self.capacity {
            self.entries.pop_front();
        }
        self.entries.push_back(*entry);
    }
}
