//! What the heap keeps for the mechanisms that PyTorch does not have (`allocator/own`): handles, blocks on other streams
//! than their segment, and parts of segments in other pools.
//!
//! A part of an expandable segment that a private pool takes over is unlinked from the segment's chain and becomes a separate
//! chain, as do the blocks before and after it. All blocks of a chain therefore belong to one pool, and neighbours coalesce by
//! the usual rule. When the part is returned, the chains are linked again. Only lendable memory may change pools ([`LENDABLE`]).

pub(super) mod handles;
pub(super) mod state;

use alloc::vec::Vec;
use core::ops::Range;

use crate::block::{Block, BlockState, NIL};
use crate::heap::expandable::{GrowsFrom, LENDABLE};
use crate::heap::{Heap, PoolSlot};
use crate::policy::Request;
use crate::units::{DeviceAddress, StreamId};
use state::MOST_WAITS;

impl Heap {
    /// Whether blocks of one segment may belong to different streams.
    pub(crate) fn mixes_streams(&self) -> bool {
        self.own.mixes_streams()
    }

    /// Whether the policy has ever kept two adjacent free blocks apart.
    pub(crate) fn keeps_apart(&self) -> bool {
        self.own.keeps_apart()
    }

    /// Moves a detached block to another stream.
    pub(crate) fn change_stream(&mut self, index: u32, stream: u16) {
        if self.arena.at(index).stream != stream {
            self.own.note_mixed_streams();
        }
        self.arena.at_mut(index).stream = stream;
    }

    /// A stream's free blocks outside expandable segments.
    pub(crate) fn movable_blocks(&self, pool: PoolSlot, stream: u16) -> Vec<u32> {
        let blocks = self.free[usize::from(pool.0)].at_least(&self.arena, stream, 0);
        blocks.filter(|&index| !self.arena.at(index).is_expandable()).collect()
    }

    /// Whether a block and the one before it are free, and the policy has kept them apart.
    fn is_apart(&self, index: u32) -> bool {
        let block = self.arena.at(index);
        let before = self.arena.get(block.prev).filter(|before| before.state == BlockState::Free);
        block.state == BlockState::Free && block.is_kept_apart() && before.is_some_and(|before| before.stream == block.stream)
    }

    /// The free blocks that the policy has kept apart from the free block before them, in all pools or in one.
    pub(crate) fn apart(&self, pool_number: Option<u16>) -> Vec<u32> {
        let is_wanted = |index: u32| pool_number.is_none_or(|number| PoolSlot(self.arena.at(index).pool).pool_number() == number);
        self.arena.occupied().filter(|&index| is_wanted(index) && self.is_apart(index)).collect()
    }

    /// The same for all segments in which nothing is in use.
    pub(crate) fn apart_in_idle_segments(&self) -> Vec<u32> {
        let mut apart = Vec::new();
        for head in self.arena.occupied().filter(|&index| self.arena.at(index).prev == NIL) {
            let links = core::iter::successors(Some(head), |&index| Some(self.arena.at(index).next).filter(|&next| next != NIL));
            let is_idle = |index: u32| matches!(self.arena.at(index).state, BlockState::Free | BlockState::Unmapped);
            if links.clone().all(is_idle) {
                apart.extend(links.filter(|&index| self.is_apart(index)));
            }
        }
        apart
    }

    /// All free blocks of expandable segments.
    pub(crate) fn free_expandable(&self) -> Vec<u32> {
        let is_one = |block: &Block| block.state == BlockState::Free && block.is_expandable();
        self.arena.occupied().filter(|&index| is_one(self.arena.at(index))).collect()
    }

    /// Free blocks outside expandable segments whose stream differs from that of the first free block of their
    /// segment, each with that stream's slot.
    pub(crate) fn parted_by_stream(&self) -> Vec<(u32, u16)> {
        let mut parted = Vec::new();
        for head in self.arena.occupied() {
            let first = self.arena.at(head);
            if first.prev != NIL || first.is_expandable() {
                continue;
            }
            let (mut index, mut stream) = (head, None);
            while let Some(block) = self.arena.get(index) {
                if block.state == BlockState::Free && *stream.get_or_insert(block.stream) != block.stream {
                    parted.extend(stream.map(|stream| (index, stream)));
                }
                index = block.next;
            }
        }
        parted
    }
}

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
