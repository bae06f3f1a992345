//! Parts of an expandable segment that serve a private pool: cut out, as a segment of their own, and linked again.
//!
//! The blocks of a segment are a chain. A part that another pool takes over is cut out of it, so that all blocks of a chain
//! are of one pool, and neighbours coalesce as ever. What lies before and behind it are chains too, until the part comes back.

use alloc::vec::Vec;
use core::ops::Range;

use super::{Heap, PoolSlot};
use crate::block::{Block, BlockState, NIL};
use crate::units::StreamId;

/// The stamp of a settled block: a free one of the default pool in which no work was pending when it was marked, or newly
/// mapped memory. Whatever takes a part of it, or joins it with another block, gives it another stamp.
pub(crate) const SETTLED: u64 = u64::MAX;

/// How often a policy may wait before requests are routed to private pools, from the last time on that one had no free block for
/// a request. So a program that uses its pools again waits no more
/// ([`Policy::waits_for_pools`](crate::policy::Policy::waits_for_pools)).
pub(super) const MOST_WAITS: u32 = 16;

impl Heap {
    /// Notes that a private pool has no free block for a request.
    pub(crate) fn note_growing_pool(&mut self) {
        self.waits_left = MOST_WAITS;
    }

    /// Whether it is allowed to wait before requests are routed to a private pool.
    pub(crate) fn may_wait_for_pools(&self) -> bool {
        self.waits_left > 0
    }

    /// Notes such a wait.
    pub(crate) fn note_waited_for_pools(&mut self) {
        self.waits_left = self.waits_left.saturating_sub(1);
    }

    /// Marks the free blocks of expandable segments as settled: those of the default pool, of streams without work.
    pub(crate) fn mark_settled(&mut self, is_idle: &[bool]) {
        for index in self.free_expandable() {
            let block = self.arena.at_mut(index);
            if PoolSlot(block.pool).pool_number() == 0 && is_idle.get(usize::from(block.stream)) == Some(&true) {
                block.stamp = SETTLED;
            }
        }
    }

    /// The settled blocks of a collection of the default pool.
    pub(crate) fn settled(&self, pool: PoolSlot) -> impl Iterator<Item = (u32, &Block)> {
        let free = self.free_blocks(pool).map(|block| block.id.index);
        free.map(|index| (index, self.arena.at(index))).filter(|(_, block)| block.stamp == SETTLED && block.is_expandable())
    }

    /// The ends of a private pool's chains of a stream: the last block of each.
    pub(crate) fn chain_ends(&self, pool: PoolSlot, stream: u16) -> impl Iterator<Item = &Block> {
        let blocks = self.arena.live().map(|index| self.arena.at(index));
        let is_end = move |block: &&Block| block.pool == pool.0 && block.stream == stream && block.next == NIL;
        blocks.filter(is_end).filter(|block| block.is_expandable() && block.state != BlockState::Unmapped)
    }

    /// Cuts a detached block out of its chain.
    pub(crate) fn unlink(&mut self, index: u32) {
        let block = self.arena.at_mut(index);
        let (prev, next) = (block.prev, block.next);
        (block.prev, block.next) = (NIL, NIL);
        if let Some(before) = self.arena.get_mut(prev) {
            before.next = NIL;
        }
        if let Some(after) = self.arena.get_mut(next) {
            after.prev = NIL;
        }
    }

    /// Links a detached block that is a chain of its own to the end of the one before it, and if `both`, to the beginning of
    /// the one behind it, where they are of the same pool and range of addresses, and of the same stream unless streams mix.
    pub(crate) fn relink(&mut self, index: u32, range: &Range<u64>, both: bool) {
        let block = self.arena.at(index);
        let (start, end, pool, stream) = (block.address, block.address + block.size, block.pool, block.stream);
        let is_of_it = |other: &Block| other.pool == pool && (other.stream == stream || self.mixes_streams);
        let place = |wanted: &dyn Fn(&Block) -> bool| {
            self.arena.live().find(|&other| other != index && is_of_it(self.arena.at(other)) && wanted(self.arena.at(other)))
        };
        let before = place(&|other| other.next == NIL && start > range.start && other.address + other.size == start);
        let after = place(&|other| both && other.prev == NIL && end < range.end && other.address == end);
        if let Some(before) = before {
            self.arena.at_mut(before).next = index;
            self.arena.at_mut(index).prev = before;
        }
        if let Some(after) = after {
            self.arena.at_mut(after).prev = index;
            self.arena.at_mut(index).next = after;
        }
    }

    /// Gives a detached block that is a chain of its own to another pool and stream.
    pub(crate) fn change_owner(&mut self, index: u32, pool: PoolSlot, stream: u16) {
        let (from, bytes) = (self.arena.at(index).pool, self.arena.at(index).size);
        self.give_bytes(from, bytes);
        self.take_bytes(pool.0, bytes);
        let block = self.arena.at_mut(index);
        (block.pool, block.stream) = (pool.0, stream);
        self.has_parts_elsewhere = true;
    }

    /// Whether any part of an expandable segment has ever served another pool.
    pub(crate) fn has_parts_elsewhere(&self) -> bool {
        self.has_parts_elsewhere
    }

    /// Where the default pool's segment of a stream grows for `size` bytes: the settled and unmapped addresses from there on.
    /// `None` if addresses are to be reserved.
    pub(crate) fn settled_growth(&self, pool: PoolSlot, stream: StreamId, size: u64, has_handles: bool) -> Option<Range<u64>> {
        let first = if has_handles {
            self.find_growth(pool, stream, size).map(|place| place.first)?
        } else {
            self.find_space(pool, stream, size)?
        };
        let (start, mut at, mut end) = (self.arena.at(first).address, first, self.arena.at(first).address);
        while self.is_usable(at, first) {
            end += self.arena.at(at).size;
            at = self.arena.at(at).next;
        }
        Some(start..end)
    }

    /// Says whether free blocks may be the beginning of what an expandable segment grows by only if they are settled, and
    /// whether it grows from one address only.
    pub(crate) fn set_grows_settled(&mut self, grows_settled: bool, from: Option<u64>) {
        (self.grows_settled, self.grows_from) = (grows_settled, from);
    }

    /// Where a private pool's segments of a stream end in free bytes, fewer than `size`: the address behind each, and how many.
    pub(crate) fn free_ends(&self, pool: PoolSlot, stream: u16, size: u64) -> Vec<(u64, u64)> {
        let free = self.chain_ends(pool, stream).filter(|end| end.state == BlockState::Free && end.size < size);
        free.map(|end| (end.address + end.size, end.size)).collect()
    }
}
