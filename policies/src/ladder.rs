//! The default retry ladder, for policies without their own, and parts for other ladders.

use alloc::vec::Vec;

use parkade::BlockId;
use parkade::policy::{Attempt, Relief, Request};
use parkade::{BlockView, Heap};

/// Ask the device; search the private pools that serve when memory runs out; wait for all events and search again; give back
/// everything that is entirely free and ask a last time. `find` searches for a free block of the request's own stream.
///
/// While a graph is captured nothing may wait, so nothing is given back: giving back pages of an expandable segment waits for its
/// stream.
pub(crate) fn plain(heap: &Heap, rung: u32, find: impl FnOnce() -> Option<BlockId>) -> Relief {
    match rung {
        0 => Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask },
        1 => Relief::Borrow,
        2 if heap.is_deferring() => Relief::GiveUp,
        2 => Relief::Wait,
        3 => match find() {
            Some(block) => Relief::Reuse(block),
            None => Relief::Release { blocks: heap.releasable(), attempt: Attempt::AskAgain },
        },
        _ => Relief::GiveUp,
    }
}

/// The smallest fitting block of each other stream that may change streams, smallest first, of equal ones the lowest address
/// first.
pub(crate) fn elsewhere(heap: &Heap, request: &Request) -> Vec<BlockView> {
    let others = heap.first_at_least_elsewhere(request.pool, request.stream, request.size);
    let mut blocks: Vec<BlockView> = others.filter(|block| !block.is_expandable).collect();
    blocks.sort_unstable_by_key(|block| (block.size, block.address));
    blocks
}
