//! Coalescing: how the heap makes a block free again, and which free neighbours the block absorbs.
//!
//! A block absorbs all free neighbours of its stream. Neighbours of different streams do not coalesce until the
//! allocator has waited for all streams. A separate path handles segments with blocks of several streams, and heaps
//! that do not order free blocks by size.

use alloc::vec::Vec;

use super::{Heap, PoolSlot};
use crate::block::{Arena, Block, BlockState, NIL, Slots};

/// The change in the free blocks that are only a part of their segment, when a block became free. It has only two
/// fields, so that it is returned in registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Coalesced {
    /// The change in their number; negative if the block absorbed free neighbours that no longer exist as parts.
    pub(crate) splits: i64,
    /// The change in their bytes.
    pub(crate) bytes: i64,
}

impl Coalesced {
    /// A block of `size` bytes absorbed free neighbours and now has `whole` bytes.
    #[inline(always)]
    fn of(size: u64, absorbed: i64, whole: u64, is_split: bool) -> Coalesced {
        if is_split {
            Coalesced { splits: 1 - absorbed, bytes: size as i64 }
        } else {
            Coalesced { splits: -absorbed, bytes: (size as i64) - (whole as i64) }
        }
    }
}

impl Heap {
    /// Adds a block to the free index, coalesced with its free neighbours (spec 3.4). The block keeps its slot,
    /// regardless of which neighbours it absorbs. Calls `count` before updating the index.
    #[inline(always)]
    pub(crate) fn put_back(&mut self, index: u32, stamp: u64, count: impl FnOnce(Coalesced)) {
        let (slots, vacant) = self.arena.parts_mut();
        let Block { pool, stream, mut prev, mut next, mut address, mut size, .. } = *slots.at(index);
        let Some(free) = self.free[usize::from(pool)].of_mut(stream).filter(|_| !self.mixes_streams) else {
            return count(self.put_back_beside_others(index, stamp));
        };
        let (mut absorbed, own_size) = (0, size);
        // The neighbours belong to the same pool and stream.
        if let Some(before) = slots.linked(prev).filter(|block| block.state == BlockState::Free) {
            let low = prev;
            (prev, address) = (before.prev, before.address);
            size += before.size;
            absorbed += 1;
            free.remove(slots, low);
            vacant.add(slots, low);
            if let Some(before) = slots.linked_mut(prev) {
                before.next = index;
            }
        }
        if let Some(after) = slots.linked(next).filter(|block| block.state == BlockState::Free) {
            let high = next;
            next = after.next;
            size += after.size;
            absorbed += 1;
            free.remove(slots, high);
            vacant.add(slots, high);
            if let Some(after) = slots.linked_mut(next) {
                after.prev = index;
            }
        }
        let block = slots.at_mut(index);
        (block.prev, block.next, block.address, block.size) = (prev, next, address, size);
        block.state = BlockState::Free;
        block.stamp = stamp;
        let before = free.make_newest(index, size);
        count(Coalesced::of(own_size, absorbed, size, prev != NIL || next != NIL));
        free.settle(slots, before);
    }

    /// Makes a block free if its neighbours may belong to other streams, if the free blocks have a different order, or
    /// if the stream has no free blocks yet.
    #[cold]
    #[inline(never)]
    fn put_back_beside_others(&mut self, index: u32, stamp: u64) -> Coalesced {
        let own_size = self.arena.at(index).size;
        let absorbed = self.absorb_neighbours(index);
        let block = self.arena.at_mut(index);
        block.state = BlockState::Detached;
        let (size, is_split) = (block.size, block.is_split());
        self.attach(index, stamp);
        Coalesced::of(own_size, absorbed, size, is_split)
    }

    /// Absorbs the free neighbours that belong to the block's stream. Returns how many.
    fn absorb_neighbours(&mut self, index: u32) -> i64 {
        let mut absorbed = 0;
        loop {
            let block = self.arena.at(index);
            let (prev, next) = (block.prev, block.next);
            if is_free(&self.arena, prev) && self.may_merge(prev, index) {
                self.detach(prev);
                absorb_before(&mut self.arena, index, prev);
            } else if is_free(&self.arena, next) && self.may_merge(index, next) {
                self.detach(next);
                absorb_after(&mut self.arena, index, next);
            } else {
                return absorbed;
            }
            absorbed += 1;
        }
    }

    /// Whether two neighbours coalesce when both are free.
    pub(crate) fn may_merge(&self, low: u32, high: u32) -> bool {
        self.arena.at(low).stream == self.arena.at(high).stream
    }

    /// Whether blocks of one segment may belong to different streams.
    pub(crate) fn mixes_streams(&self) -> bool {
        self.mixes_streams
    }

    /// Moves a detached block to another stream.
    pub(crate) fn change_stream(&mut self, index: u32, stream: u16) {
        let block = self.arena.at_mut(index);
        self.mixes_streams |= block.stream != stream;
        block.stream = stream;
    }

    /// A stream's free blocks outside expandable segments.
    pub(crate) fn movable_blocks(&self, pool: PoolSlot, stream: u16) -> Vec<u32> {
        let blocks = self.free[usize::from(pool.0)].at_least(&self.arena, stream, 0);
        blocks.filter(|&index| !self.arena.at(index).is_expandable()).collect()
    }

    /// All free blocks of expandable segments.
    pub(crate) fn free_expandable(&self) -> Vec<u32> {
        let is_one = |block: &Block| block.state == BlockState::Free && block.is_expandable();
        self.arena.live().filter(|&index| is_one(self.arena.at(index))).collect()
    }

    /// Free blocks outside expandable segments whose stream differs from that of the first free block of their
    /// segment, each with that stream's slot.
    pub(crate) fn parted_by_stream(&self) -> Vec<(u32, u16)> {
        let mut parted = Vec::new();
        for head in self.arena.live() {
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

fn is_free(arena: &Arena, index: u32) -> bool {
    arena.get(index).is_some_and(|block| block.state == BlockState::Free)
}

/// Extends a block to absorb the one before it, which has been removed from the free index.
fn absorb_before(arena: &mut Arena, index: u32, prev: u32) {
    let Block { address, size, prev: before, .. } = *arena.at(prev);
    arena.remove(prev);
    let block = arena.at_mut(index);
    block.prev = before;
    block.address = address;
    block.size += size;
    if let Some(before) = arena.get_mut(before) {
        before.next = index;
    }
}

/// Extends a block to absorb the one after it, which has been removed from the free index.
fn absorb_after(arena: &mut Arena, index: u32, next: u32) {
    let Block { size, next: after, .. } = *arena.at(next);
    arena.remove(next);
    let block = arena.at_mut(index);
    block.next = after;
    block.size += size;
    if let Some(after) = arena.get_mut(after) {
        after.prev = index;
    }
}
