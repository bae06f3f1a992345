//! Fences: blocks in use between free ones. Were a fence given back, its free neighbours and it would be one hole.

use std::cmp::Reverse;

use parkade::policy::{Policy, PyTorch};
use parkade::snapshot::{BlockActivity, SegmentInfo};

use super::owners::{Owner, Owners};
use super::stranded::Asked;

/// A block in use with free memory beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fence {
    /// Its first byte.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Whether it was given back and waits for events.
    pub is_pending: bool,
    /// The free bytes beside it.
    pub beside_bytes: u64,
    /// The hole that there would be without it.
    pub opens_bytes: u64,
    /// Whether that hole would serve the request.
    pub is_enough: bool,
    /// Whether that hole would be the whole segment, which could go back to the device.
    pub frees_segment: bool,
    /// Who asked for it.
    pub owner: Owner,
}

/// The fences where the request could be served (its pool, stream and class), at most `most`: first those whose removal alone
/// would serve it, the smallest first, then those with the most free memory beside them, the ones smaller than that before the
/// others.
#[must_use]
pub fn fences(segments: &[SegmentInfo], asked: Option<&Asked>, policy: &PyTorch, owners: &Owners, most: usize) -> Vec<Fence> {
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
    // A block larger than the free memory beside it fences little: it is what memory is for.
    let rank = |fence: &Fence| {
        let is_small = fence.bytes < fence.beside_bytes;
        let is_key = fence.is_enough && is_small;
        (!is_key, if is_key { fence.bytes } else { 0 }, !is_small, Reverse(fence.beside_bytes), fence.address)
    };
    fences.sort_by_key(rank);
    fences.truncate(most);
    fences
}
