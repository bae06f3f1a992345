//! Finds fences: blocks in use next to free ones. If a fence were freed, it and its free neighbours would coalesce into one
//! hole.
//!
//! [`Owners`] records which entry allocated each block, with its stack and time, and how much each stack holds.

use std::cmp::Reverse;

use parkade::policy::{Policy, PyTorch};
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade_recording::{Action, BlockState, DeviceRecording, StackId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::breakdown::Asked;
use crate::stacks::{StackUse, by_stack};

/// A block in use next to free memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fence {
    /// Its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether the program has freed it and it is waiting for events.
    pub is_pending: bool,
    /// The free bytes next to it.
    pub beside_bytes: u64,
    /// The size of the hole that freeing it would leave.
    pub opens_bytes: u64,
    /// Whether that hole would be large enough for the request.
    pub is_enough: bool,
    /// Whether that hole would be the whole segment, which could then be released.
    pub frees_segment: bool,
    /// The allocation that created it.
    pub owner: Owner,
}

/// The fences in the pool, stream and size class that could serve the request, at most `most` of them. Fences that would make
/// room for the request if only they were freed come first, the smallest first; then come those with the most free memory
/// beside them, small fences before large ones.
pub(super) fn fences(
    segments: &[SegmentInfo],
    asked: Option<&Asked>,
    policy: &PyTorch,
    owners: &Owners,
    most: usize,
) -> Vec<Fence> {
    let mut fences = Vec::new();
    let place_of = |asked: &Asked| (asked.pool, asked.stream, policy.classify(asked.size));
    let wanted = asked.map(place_of);
    let is_reachable =
        |segment: &&SegmentInfo| wanted.is_none_or(|wanted| wanted == (segment.pool, segment.stream, segment.class));
    for segment in segments.iter().filter(is_reachable) {
        let free = |place: Option<usize>| {
            let block = place.and_then(|place| segment.blocks.get(place));
            block.filter(|block| block.state == BlockActivity::Inactive).map_or(0, |block| block.size.get())
        };
        for (place, block) in segment.blocks.iter().enumerate() {
            let beside_bytes = free(place.checked_sub(1)).saturating_add(free(place.checked_add(1)));
            if block.state == BlockActivity::Inactive || beside_bytes == 0 {
                continue;
            }
            let opens_bytes = beside_bytes.saturating_add(block.size.get());
            fences.push(Fence {
                address: block.address.get(),
                bytes: block.size.get(),
                is_pending: block.state == BlockActivity::PendingFree,
                beside_bytes,
                opens_bytes,
                is_enough: asked.is_some_and(|asked| opens_bytes >= asked.size.get()),
                frees_segment: opens_bytes == segment.total.get(),
                owner: owners.of(block.address.get()),
            });
        }
    }
    // A block that is larger than the free memory beside it is no obstacle: blocks exist to use memory.
    let rank = |fence: &Fence| {
        let is_small = fence.bytes < fence.beside_bytes;
        let is_key = fence.is_enough && is_small;
        (!is_key, if is_key { fence.bytes } else { 0 }, !is_small, Reverse(fence.beside_bytes), fence.address)
    };
    fences.sort_by_key(rank);
    fences.truncate(most);
    fences
}

/// The allocation that created a live block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The entry of the allocation; `None` if it came before the first entry.
    pub entry: Option<usize>,
    /// Its stack; [`StackId::NONE`] if the file has none.
    pub stack: StackId,
    /// Its time, in microseconds since 1970, if the file has it.
    pub time_us: Option<u64>,
}

/// The owners of all blocks in use at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners {
    served: FxHashMap<u64, Owner>,
}

impl Owners {
    /// The owners after the first `entries` entries of the trace.
    pub(super) fn after(recording: &DeviceRecording, entries: usize) -> Owners {
        let mut served = FxHashMap::default();
        let (before, later) = recording.trace.split_at(entries.min(recording.trace.len()));
        let later: FxHashSet<u64> =
            later.iter().filter(|entry| entry.action == Action::Alloc).map(|entry| entry.address).collect();
        // If a block was in use from before the first entry until the end, the final segments record its stack.
        for block in recording.segments.iter().flat_map(|segment| &segment.blocks) {
            if block.state != BlockState::Inactive && !later.contains(&block.address) {
                served.insert(block.address, Owner { entry: None, stack: block.stack, time_us: None });
            }
        }
        for (at, entry) in before.iter().enumerate().filter(|(_, entry)| entry.action == Action::Alloc) {
            served.insert(entry.address, Owner { entry: Some(at), stack: entry.stack, time_us: entry.time() });
        }
        Owners { served }
    }

    /// The owner of the block in use at this address.
    fn of(&self, address: u64) -> Owner {
        self.served.get(&address).copied().unwrap_or(Owner { entry: None, stack: StackId::NONE, time_us: None })
    }
}

/// The bytes of a heap's live blocks that each stack holds, the largest first.
pub(super) fn live_by_stack(segments: &[SegmentInfo], owners: &Owners) -> Vec<StackUse> {
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    let live = blocks.filter(|block| block.state == BlockActivity::Allocated);
    by_stack(live.map(|block| (owners.of(block.address.get()).stack, block.size.get())).collect())
}

#[cfg(test)]
mod tests {
    use parkade::units::MIB;

    use super::*;
    use crate::diagnose::breakdown::sample_heaps::{Is, KIB, asked, segment_of, under};

    #[test]
    fn the_smallest_fence_that_opens_enough_comes_first() {
        let live = |size: u64| (size, Is::Live(size));
        let blocks = [(30 * MIB, Is::Free), live(MIB), (40 * MIB, Is::Free), live(4 * KIB), (10 * MIB, Is::Free), live(9 * MIB)];
        let segments = [segment_of(0, &blocks), segment_of(1 << 30, &[(64 * MIB, Is::Free), live(512)])];
        let found = |request: u64| {
            let fences = fences(&segments, Some(&asked(request)), &under(""), &Owners::default(), 3);
            fences.iter().map(|fence| (fence.bytes, fence.opens_bytes, fence.is_enough, fence.frees_segment)).collect::<Vec<_>>()
        };
        let (one, two) = ((MIB, 71 * MIB, false, false), (4 * KIB, 50 * MIB + 4 * KIB, false, false));
        assert_eq!(found(80 * MIB), [one, (512, 64 * MIB + 512, false, true), two]);
        let enough = |(bytes, opens, _, frees)| (bytes, opens, true, frees);
        assert_eq!(found(50 * MIB), [(512, 64 * MIB + 512, true, true), enough(two), enough(one)]);
    }
}
