//! Steps that several policies' own ladders share ([`Relief`]).

use alloc::vec::Vec;

use parkade::policy::{Attempt, Relief, Request};
use parkade::units::PoolClass;
use parkade::{BlockView, Heap, PoolSlot};

/// The first step of policies whose private pools are separate allocators with only large blocks: pools
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

/// The entirely free segments of the request's pool, smallest first; none if the pool's memory cannot be released. The pool
/// may still be in use although no graph is being captured any more: a callback may have ended the capture.
pub(crate) fn whole_segments(heap: &Heap, request: &Request) -> Vec<BlockView> {
    let whole = heap.free_blocks(request.pool).filter(|block| !block.is_split && !block.is_expandable);
    let whole: Vec<BlockView> = whole.collect();
    // Either all of a pool's segments can be released or none.
    let may_go = whole.first().is_some_and(|block| heap.releasable().contains(&block.id));
    if may_go { whole } else { Vec::new() }
}

/// The first step that does something. `climb` takes the next one; the last one always does something.
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
