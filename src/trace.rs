//! The entries that the allocator reports to an observer: one for each action.
//!
//! They are PyTorch's trace entries (spec 7.4), in PyTorch's order. The replay compares them with recordings. The
//! observer `()` costs nothing.

use alloc::collections::VecDeque;

use crate::texts::RescueTried;
use crate::units::{Bytes, PoolId, StreamId};

/// The actions of the allocator. The names are PyTorch's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum TraceAction {
    /// A block was handed out; the size is the requested size.
    Alloc,
    /// A block was freed by the program; the size is the requested size.
    FreeRequested,
    /// A freed block became free, immediately or after its events; the size is the requested size.
    FreeCompleted,
    /// A segment was taken from the device.
    SegmentAlloc,
    /// A segment was released to the device.
    SegmentFree,
    /// Pages of an expandable segment were mapped.
    SegmentMap,
    /// Pages of an expandable segment were unmapped.
    SegmentUnmap,
    /// A request failed for lack of memory. The size is the rounded size, and the address contains the device's free
    /// bytes.
    Oom,
    /// A snapshot was taken. The address is 0, and the size is the sum of the active bytes of its segments.
    Snapshot,
}

impl TraceAction {
    /// PyTorch's name for the action.
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

/// One action of the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEntry {
    /// The action.
    pub action: TraceAction,
    /// The first byte; for [`TraceAction::Oom`], the device's free bytes.
    pub address: u64,
    /// A size in bytes; its meaning depends on the action.
    pub size: u64,
    /// The block's or the segment's stream.
    pub stream: StreamId,
    /// The pool that the block or segment belongs to.
    pub pool: PoolId,
}

/// Receives an entry for every action of an allocator.
pub trait Observer {
    /// Whether the observer reads the entries. If false, requests and frees do not create theirs.
    const WATCHES: bool = true;

    /// Called for every entry, in order, as it happens.
    fn observe(&mut self, entry: &TraceEntry);

    /// Called when a rescue has found memory for a request that PyTorch would have refused, and before the request's entry
    /// ([`Relief::Rescue`](crate::policy::Relief::Rescue)). `size` is the request's rounded size.
    fn rescued(&mut self, size: Bytes, rescue: &RescueTried) {
        let _ = (size, rescue);
    }
}

/// Ignores everything.
impl Observer for () {
    const WATCHES: bool = false;

    #[inline]
    fn observe(&mut self, _: &TraceEntry) {}
}

impl Observer for alloc::vec::Vec<TraceEntry> {
    fn observe(&mut self, entry: &TraceEntry) {
        self.push(*entry);
    }
}

/// A ring buffer that keeps the newest entries, like PyTorch's memory history (spec 7.4).
#[derive(Clone, Debug)]
pub struct TraceRing {
    entries: VecDeque<TraceEntry>,
    capacity: usize,
}

impl TraceRing {
    /// Creates a ring buffer that keeps at most `capacity` entries, but at least one, as in PyTorch.
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
