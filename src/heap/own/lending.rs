//! Parts of an expandable segment that serve a private pool.
//!
//! A part that another pool takes over is unlinked from the segment's chain and becomes a separate chain, as do the
//! blocks before and after it. All blocks of a chain therefore belong to one pool, and neighbours coalesce by the usual
//! rule. When the part is returned, the chains are linked again. Only lendable memory may change pools ([`LENDABLE`]).

use alloc::vec::Vec;
use core::ops::Range;

use super::state::MOST_WAITS;
use crate::block::{Block, BlockState, NIL};
use crate::heap::expandable::{GrowsFrom, LENDABLE};
use crate::heap::{Heap, PoolSlot};
use crate::policy::Request;
use crate::units::{DeviceAddress, StreamId};

impl Heap {
    /// Marks the free blocks of expandable segments as lendable if they belong to the default pool and to streams
    /// without work.
    pub(crate) fn mark_lendable(&mut self, is_idle: &[bool]) {
        for index in self.free_expandable() {
            let block = self.arena.at_mut(index);
            if PoolSlot(block.pool).pool_number() == 0 && is_idle.get(usize::from(block.stream)) == Some(&true) {
                block.stamp = LENDABLE;
            }
        }
    }

    /// The lendable blocks of one of the default pool's collections.
    pub(crate) fn lendable(&self, pool: PoolSlot) -> impl Iterator<Item = (u32, &Block)> {
        let free = self.free_blocks(pool).map(|block| block.id.index);
        free.map(|index| (index, self.arena.at(index))).filter(|(_, block)| block.stamp == LENDABLE && block.is_expandable())
    }

    /// The last block of each chain of a private pool and a stream.
    pub(crate) fn chain_ends(&self, pool: PoolSlot, stream: u16) -> impl Iterator<Item = &Block> {
        let blocks = self.arena.occupied().map(|index| self.arena.at(index));
        let is_end = move |block: &&Block| block.pool == pool.0 && block.stream == stream && block.next == NIL;
        blocks.filter(is_end).filter(|block| block.is_expandable() && block.state != BlockState::Unmapped)
    }

    /// Unlinks a detached block from its chain.
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

    /// Links a detached block that is a separate chain to the end of the chain before it and, if `both` is true, to
    /// the beginning of the chain after it. The chains must belong to the same pool and range of addresses, and to the
    /// same stream unless streams may be mixed.
    pub(crate) fn relink(&mut self, index: u32, range: &Range<u64>, both: bool) {
        let block = self.arena.at(index);
        let (start, end, pool, stream) = (block.address, block.address + block.size, block.pool, block.stream);
        let is_of_it = |other: &Block| other.pool == pool && (other.stream == stream || self.mixes_streams());
        let place = |wanted: &dyn Fn(&Block) -> bool| {
            self.arena.occupied().find(|&other| other != index && is_of_it(self.arena.at(other)) && wanted(self.arena.at(other)))
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

    /// Assigns a detached block that is a separate chain to a different pool and stream.
    pub(crate) fn change_owner(&mut self, index: u32, pool: PoolSlot, stream: u16) {
        let (from, bytes) = (self.arena.at(index).pool, self.arena.at(index).size);
        self.give_bytes(from, bytes);
        self.take_bytes(pool.0, bytes);
        let block = self.arena.at_mut(index);
        (block.pool, block.stream) = (pool.0, stream);
        self.own.has_parts_elsewhere = true;
    }

    /// Whether any part of an expandable segment has ever served another pool.
    pub(crate) fn has_parts_elsewhere(&self) -> bool {
        self.own.has_parts_elsewhere
    }

    /// Where the default pool's segment of a stream grows for `size` bytes: the lendable and unmapped addresses
    /// starting there. `None` if new addresses must be reserved.
    pub(crate) fn lendable_growth(
        &self,
        pool: PoolSlot,
        stream: StreamId,
        size: u64,
        has_handles: bool,
        from: GrowsFrom,
    ) -> Option<Range<u64>> {
        let first = if has_handles {
            self.find_growth(pool, stream, size, from).map(|place| place.first)?
        } else {
            self.find_space(pool, stream, size, from)?
        };
        let (start, mut at, mut end) = (self.arena.at(first).address, first, self.arena.at(first).address);
        while self.is_usable(at, first, from) {
            end += self.arena.at(at).size;
            at = self.arena.at(at).next;
        }
        Some(start..end)
    }

    /// The private pool's segments of a stream that end in fewer than `size` free bytes: the address after each
    /// segment, and the number of these bytes.
    pub(crate) fn free_ends(&self, pool: PoolSlot, stream: u16, size: u64) -> Vec<(u64, u64)> {
        let free = self.chain_ends(pool, stream).filter(|end| end.state == BlockState::Free && end.size < size);
        free.map(|end| (end.address + end.size, end.size)).collect()
    }

    /// Allows the policy again to wait before requests are routed to a private pool: a pool had no free block for a request.
    pub(crate) fn renew_waits(&mut self) {
        self.own.waits_left = MOST_WAITS;
    }

    /// Whether the policy may wait before requests are routed to a private pool.
    pub(crate) fn may_wait_for_pools(&self) -> bool {
        self.own.waits_left > 0
    }

    /// Records such a wait.
    pub(crate) fn note_waited_for_pools(&mut self) {
        self.own.waits_left = self.own.waits_left.saturating_sub(1);
    }

    /// The lendable block for a private pool's request, and the number of bytes that it lacks.
    pub(crate) fn find_lendable(&self, request: &Request, stream_slot: u16) -> Option<(u32, u64)> {
        let size = request.size.0;
        let home = PoolSlot::default_pool(request.pool.class());
        let ends = self.chain_ends(request.pool, stream_slot).map(|end| {
            let free = if end.state == BlockState::Free { end.size } else { 0 };
            (DeviceAddress(end.address + end.size), size.saturating_sub(free))
        });
        let ends: Vec<_> = ends.collect();
        let extends = self.lendable(home).filter_map(|(index, block)| {
            let (_, missing) = ends.iter().find(|(end, _)| end.0 == block.address)?;
            (*missing > 0 && block.size >= *missing).then_some((index, *missing))
        });
        let fits = self.lendable(home).filter(|(_, block)| block.size >= size);
        let largest = fits.max_by_key(|(_, block)| (block.size, core::cmp::Reverse(block.address)));
        extends
            .min_by_key(|&(index, missing)| (missing, self.arena.at(index).address))
            .or(largest.map(|(index, _)| (index, size)))
    }
}
