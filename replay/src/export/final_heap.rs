//! The heap at the end of a predicted run, with the stacks of the requests for its blocks.

use std::collections::BTreeMap;

use parkade::snapshot::{BlockActivity, BlockInfo, SegmentInfo};
use parkade::units::PoolClass;
use parkade_recording::{Action, Block, BlockState, DeviceRecording, Entry, Segment, StackId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::predict::{Operation, Requests};

/// The stacks of what is in the heap.
pub(crate) struct Provenance {
    /// The stack of each block that is in use, by address.
    blocks: FxHashMap<u64, StackId>,
    /// The stack that each segment was allocated with, and how many blocks it has served since, by address.
    segments: BTreeMap<u64, (StackId, u64)>,
    /// How many requests are from before the first entry; they have the lowest numbers.
    early: usize,
    /// The stacks of such requests whose blocks are in use at the recording's end.
    early_stacks: FxHashMap<usize, StackId>,
    /// Such requests whose memory was freed before the first entry.
    early_freed: FxHashSet<usize>,
}

impl Provenance {
    pub(crate) fn new(recording: &DeviceRecording, requests: &Requests) -> Provenance {
        let early = requests.lost_beginning.map_or(0, |lost| lost.blocks);
        let early_stacks = early_stacks(recording, requests, early);
        let early_freed = early_freed(requests, early);
        Provenance { blocks: FxHashMap::default(), segments: BTreeMap::new(), early, early_stacks, early_freed }
    }

    /// Whether an operation is from before the recording's first entry: a request for memory in use then, or
    /// freeing memory that had been freed then and was not free for reuse yet.
    pub(crate) fn is_early(&self, operation: Operation) -> bool {
        match operation {
            Operation::Allocate { id, .. } => id < self.early,
            Operation::Free { id, .. } => self.early_freed.contains(&id),
            _ => false,
        }
    }

    /// The stack of a request from before the first entry, if a block at the recording's end has it.
    pub(crate) fn early_stack(&self, operation: Operation) -> StackId {
        match operation {
            Operation::Allocate { id, .. } => self.early_stacks.get(&id).copied().unwrap_or(StackId::NONE),
            _ => StackId::NONE,
        }
    }

    /// Records an entry of the exported trace.
    pub(crate) fn see(&mut self, entry: &Entry) {
        match entry.action {
            Action::Alloc => {
                self.blocks.insert(entry.address, entry.stack);
                if let Some((_, (_, handed_out))) = self.segments.range_mut(..=entry.address).next_back() {
                    *handed_out += 1;
                }
            }
            Action::FreeCompleted => {
                self.blocks.remove(&entry.address);
            }
            Action::SegmentAlloc => {
                self.segments.insert(entry.address, (entry.stack, 0));
            }
            Action::SegmentFree => {
                self.segments.remove(&entry.address);
            }
            _ => {}
        }
    }

    /// The heap in the form of a recording.
    pub(crate) fn segments(&self, heap: &[SegmentInfo]) -> Vec<Segment> {
        heap.iter().map(|segment| self.segment(segment)).collect()
    }

    fn segment(&self, segment: &SegmentInfo) -> Segment {
        let address = segment.address.get();
        Segment {
            address,
            total_bytes: segment.total.get(),
            stream: segment.stream.get(),
            large: segment.class == PoolClass::Large,
            pool: Some((segment.pool.0, segment.pool.1)),
            expandable: segment.expandable,
            allocated_bytes: Some(segment.allocated.get()),
            active_bytes: Some(segment.active.get()),
            requested_bytes: Some(segment.requested.get()),
            stack: self.segment_stack(segment),
            blocks: segment.blocks.iter().map(|block| self.block(block)).collect(),
        }
    }

    /// The stack of a segment. PyTorch drops it when the segment is split (spec 7.3). A segment that served one
    /// request, as a whole, was never split; of others the trace does not show it.
    fn segment_stack(&self, segment: &SegmentInfo) -> StackId {
        match (segment.blocks.as_slice(), self.segments.get(&segment.address.get())) {
            ([block], Some(&(stack, 1))) if block.state != BlockActivity::Inactive => stack,
            _ => StackId::NONE,
        }
    }

    fn block(&self, block: &BlockInfo) -> Block {
        let address = block.address.get();
        let state = match block.state {
            BlockActivity::Allocated => BlockState::ActiveAllocated,
            BlockActivity::PendingFree => BlockState::ActivePendingFree,
            BlockActivity::Inactive => BlockState::Inactive,
        };
        let is_active = state != BlockState::Inactive;
        let stack = self.blocks.get(&address).copied().filter(|_| is_active).unwrap_or(StackId::NONE);
        Block { address, size: block.size.get(), requested: Some(block.requested.get()), state, stack }
    }
}

/// The requests from before the first entry whose memory was freed before it: they are freed directly after.
fn early_freed(requests: &Requests, early: usize) -> FxHashSet<usize> {
    let pairs = requests.operations.windows(2).map(|pair| (pair[0].1, pair[1].1));
    pairs
        .filter_map(|pair| match pair {
            (Operation::Allocate { id, .. }, Operation::Free { id: freed, .. }) if id == freed && id < early => Some(id),
            _ => None,
        })
        .collect()
}

/// The stacks of requests from before the first entry whose blocks are in use at the end.
/// Both are in the order of addresses.
fn early_stacks(recording: &DeviceRecording, requests: &Requests, early: usize) -> FxHashMap<usize, StackId> {
    let freed: FxHashSet<usize> = requests
        .operations
        .iter()
        .filter_map(|(_, operation)| match operation {
            Operation::Free { id, .. } if *id < early => Some(*id),
            _ => None,
        })
        .collect();
    let kept = requests.operations.iter().filter_map(|&(_, operation)| match operation {
        Operation::Allocate { id, bytes, .. } if id < early && !freed.contains(&id) => Some((id, bytes)),
        _ => None,
    });
    let kept: Vec<(usize, u64)> = kept.collect();
    let in_trace: FxHashSet<u64> =
        recording.trace.iter().filter(|entry| entry.action == Action::Alloc).map(|entry| entry.address).collect();
    let blocks = recording.segments.iter().flat_map(|segment| &segment.blocks);
    let old: Vec<&Block> =
        blocks.filter(|block| block.state == BlockState::ActiveAllocated && !in_trace.contains(&block.address)).collect();
    // If they do not match, none is known.
    let agrees = |((_, bytes), block): (&(usize, u64), &&Block)| block.requested.is_none_or(|requested| requested == *bytes);
    if kept.len() != old.len() || !kept.iter().zip(&old).all(agrees) {
        return FxHashMap::default();
    }
    kept.iter().zip(&old).map(|(&(id, _), block)| (id, block.stack)).collect()
}
