//! Fences: blocks in use next to free ones. If a fence were freed, it and its free neighbours would coalesce into one hole.

use std::cmp::Reverse;

use parkade::policy::{Policy, PyTorch};
use parkade::snapshot::{BlockActivity, SegmentInfo};

use super::breakdown::Asked;
use super::owners::{Owner, Owners};

/// A block in use next to free memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fence {
    /// Its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it has been freed by the program and waits for events.
    pub is_pending: bool,
    /// The free bytes next to it.
    pub beside_bytes: u64,
    /// The size of the hole that freeing it would leave.
    pub opens_bytes: u64,
    /// Whether that hole would serve the request.
    pub is_enough: bool,
    /// Whether that hole would be the whole segment, which could then be released.
    pub frees_segment: bool,
    /// Who allocated it.
    pub owner: Owner,
}

/// The fences in the pool, stream and size class that could serve the request, at most `most` of them. First those that would serve it
/// if they alone were freed, the smallest first; then those with the most free memory beside them, small fences before large ones.
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
    // A block that is larger than the free memory beside it is no obstacle: using memory is what blocks are for.
    let rank = |fence: &Fence| {
        let is_small = fence.bytes < fence.beside_bytes;
        let is_key = fence.is_enough && is_small;
        (!is_key, if is_key { fence.bytes } else { 0 }, !is_small, Reverse(fence.beside_bytes), fence.address)
    };
    fences.sort_by_key(rank);
    fences.truncate(most);
    fences
}
