//! The retry ladder of policies that have no rungs of their own, and parts that other ladders share. [`Relief`]
//! explains what a ladder is.

use alloc::vec::Vec;

use parkade::BlockId;
use parkade::policy::{Attempt, Relief, Request};
use parkade::units::PoolClass;
use parkade::{BlockView, Heap, PoolSlot};

/// Asks the device; searches the private pools that may serve requests when the device is out of memory; waits for all
/// events and searches again; releases everything and asks once more. `find` searches for a free block of the
/// request's stream.
///
/// While a graph is captured, nothing waits, so nothing is released either: unmapping pages of an expandable segment
/// waits for its stream.
pub(crate) fn plain(heap: &Heap, rung: u32, find: impl FnOnce() -> Option<BlockId>) -> Relief {
    releasing(heap, rung, find, || heap.releasable())
}

/// Like [`plain`], where `releasable` returns everything that can be released.
pub(crate) fn releasing(
    heap: &Heap,
    rung: u32,
    find: impl FnOnce() -> Option<BlockId>,
    releasable: impl FnOnce() -> Vec<BlockId>,
) -> Relief {
    match rung {
        0 => Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask },
        1 => Relief::Borrow,
        2 if heap.is_deferring() => Relief::GiveUp,
        2 => Relief::Wait,
        3 => match find() {
            Some(block) => Relief::Reuse(block),
            None => Relief::Release { blocks: releasable(), attempt: Attempt::AskAgain },
        },
        _ => Relief::GiveUp,
    }
}

/// The first rung of a ladder for policies whose private pools are separate allocators with only large blocks: pools
/// without uses release their entirely free segments, regardless of the pool for which the request is made. The ladder
/// then starts over.
///
/// This does not apply while a graph is captured, because a release would break the capture.
pub(crate) fn left_behind(heap: &Heap, request: &Request) -> Option<Relief> {
    let others = heap.pool_slots().filter(|pool| ![PoolSlot::default_pool(PoolClass::Large), request.pool].contains(pool));
    let mut blocks: Vec<_> = others.flat_map(|pool| heap.free_blocks(pool)).map(|block| block.id).collect();
    if heap.is_deferring() || blocks.is_empty() {
        return None;
    }
    let releasable = heap.releasable();
    blocks.retain(|block| releasable.contains(block));
    (!blocks.is_empty()).then_some(Relief::Release { blocks, attempt: Attempt::No })
}

/// The rung of the first step that has one. `climb` takes the next step; the last step of the ladder has a rung.
pub(crate) fn first_relief(mut climb: impl FnMut() -> Option<Relief>) -> Relief {
    loop {
        if let Some(relief) = climb() {
            return relief;
        }
    }
}

/// The tightest movable block of each other stream, smallest first; blocks of equal size by ascending address.
pub(crate) fn elsewhere(heap: &Heap, request: &Request) -> Vec<BlockView> {
    let others = heap.first_at_least_elsewhere(request.pool, request.stream, request.size);
    let mut blocks: Vec<BlockView> = others.filter(|block| !block.is_expandable).collect();
    blocks.sort_unstable_by_key(|block| (block.size, block.address));
    blocks
}
