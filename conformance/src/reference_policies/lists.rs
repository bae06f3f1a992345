//! The lists of free blocks that the rules of several policies refer to. Each list results from a scan of all free blocks.

use std::collections::VecDeque;

use parkade::policy::{Attempt, Relief, Request};
use parkade::units::{Bytes, PoolClass, StreamId};
use parkade::{BlockId, BlockView, Heap, PoolSlot};

/// Returns the free blocks of the request's pool that belong to this stream and are large enough for the request, in the
/// heap's order: the tightest first.
pub(super) fn sufficient(heap: &Heap, request: &Request, stream: StreamId) -> Vec<BlockView> {
    let is_one = |block: &BlockView| block.stream == stream && block.size >= request.size;
    heap.free_blocks(request.pool).filter(is_one).collect()
}

/// Returns the request's tightest free block.
pub(super) fn tightest(heap: &Heap, request: &Request) -> Option<BlockView> {
    sufficient(heap, request, request.stream).first().copied()
}

/// Returns the tightest free block of each other stream, sorted by size, and by address if sizes are equal.
pub(super) fn tightest_of_others(heap: &Heap, request: &Request) -> Vec<BlockView> {
    let others = heap.streams_seen().iter().filter(|&&stream| stream != request.stream);
    let mut blocks: Vec<BlockView> = others.filter_map(|&stream| sufficient(heap, request, stream).first().copied()).collect();
    blocks.sort_by_key(|block| block.address);
    blocks.sort_by_key(|block| block.size);
    blocks
}

/// Returns the entirely free segments of the request's pool if they can be released.
pub(super) fn releasable_segments(heap: &Heap, request: &Request) -> Vec<BlockView> {
    let releasable = heap.releasable();
    let whole = heap.free_blocks(request.pool).filter(|block| !block.is_split && !block.is_expandable);
    whole.filter(|block| releasable.contains(&block.id)).collect()
}

/// Returns whether this is the large collection of the default pool, which is the only one under policies without small
/// blocks.
pub(super) fn is_default(pool: PoolSlot) -> bool {
    pool == PoolSlot::default_pool(PoolClass::Large)
}

/// Returns the free blocks that other private pools can release because they have no uses; none while a graph is captured.
/// Policies whose private pools are separate allocators release them before every step of a request.
pub(super) fn left_behind(heap: &Heap, request: &Request) -> Vec<BlockId> {
    if heap.is_deferring() {
        return Vec::new();
    }
    let releasable = heap.releasable();
    let mut blocks = Vec::new();
    for pool in heap.pool_slots() {
        if !is_default(pool) && pool != request.pool {
            blocks.extend(heap.free_blocks(pool).map(|block| block.id).filter(|id| releasable.contains(id)));
        }
    }
    blocks
}

/// Returns the step that releases blocks and does not ask the device.
pub(super) fn release(blocks: Vec<BlockId>) -> Relief {
    Relief::Release { blocks, attempt: Attempt::No }
}

/// Returns the step that releases blocks and then asks the device for this many bytes.
pub(super) fn release_and_ask(blocks: Vec<BlockId>, bytes: Bytes) -> Relief {
    Relief::Release { blocks, attempt: Attempt::AskFor(bytes) }
}

/// The remaining turns of the current request's ladder, in order.
#[derive(Clone, Debug)]
pub(super) struct Turns<T>(VecDeque<T>);

impl<T> Turns<T> {
    /// Creates a ladder without turns.
    pub(super) fn none() -> Turns<T> {
        Turns(VecDeque::new())
    }

    /// Replaces all turns.
    pub(super) fn begin(&mut self, turns: impl IntoIterator<Item = T>) {
        self.0 = turns.into_iter().collect();
    }

    /// Adds turns before all others.
    pub(super) fn first(&mut self, turns: impl IntoIterator<Item = T, IntoIter: DoubleEndedIterator>) {
        turns.into_iter().rev().for_each(|turn| self.0.push_front(turn));
    }

    /// Removes all turns.
    pub(super) fn give_up(&mut self) {
        self.0.clear();
    }

    /// Removes the next turn and returns it.
    pub(super) fn next(&mut self) -> Option<T> {
        self.0.pop_front()
    }
}
