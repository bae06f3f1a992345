//! Expandable segments in the heap: reserved addresses, some pages of which are mapped (spec section 4).
//!
//! An expandable segment is a chain of blocks like any other segment, but some of its blocks are unmapped: addresses
//! without memory, stored by pool, stream and address. Memory is mapped and unmapped in whole pages. The allocator
//! chooses the pages, and this module splits and joins the blocks.

use super::{Heap, PoolSlot};
use crate::block::{Block, BlockId, BlockState, Marks};
use crate::units::{Bytes, DeviceAddress, PoolClass, StreamId};

/// The stamp of a lendable block: a free block of the default pool that no pending work used when it was marked, or
/// newly mapped memory. If part of the block is taken, or if it is joined with another block, it gets a different
/// stamp.
pub(crate) const LENDABLE: u64 = u64::MAX;

/// Restricts where an expandable segment may grow; nothing by default.
#[derive(Clone, Copy, Default)]
pub(crate) struct GrowsFrom {
    /// Whether only lendable blocks count.
    pub(crate) lendable_only: bool,
    /// The only address from which the segment may grow with handles.
    pub(crate) address: Option<u64>,
}

impl Heap {
    /// The unmapped bytes directly after a free block, into which it could grow.
    #[must_use]
    pub fn unmapped_after(&self, id: BlockId) -> Bytes {
        let after = self.arena.resolve(id).and_then(|index| self.arena.get(self.arena.at(index).next));
        after.filter(|block| block.state == BlockState::Unmapped).map_or(Bytes::ZERO, |block| Bytes(block.size))
    }

    /// Adds an unmapped segment.
    pub(crate) fn add_reservation(&mut self, address: DeviceAddress, size: Bytes, stream: u16, pool: PoolSlot) -> u32 {
        let index = self.add_block(address, size, stream, pool, Marks::EXPANDABLE);
        if pool.pool_number() != 0 {
            self.own.untouched.add(address.0, size.0);
        }
        self.attach_unmapped(index);
        index
    }

    /// The first block of the first run, by address, of free and unmapped blocks of the pool and stream with at least
    /// `size` bytes (spec 4.2).
    pub(crate) fn find_space(&self, pool: PoolSlot, stream: StreamId, size: u64, from: GrowsFrom) -> Option<u32> {
        let unmapped = &self.unmapped[usize::from(pool.0)];
        unmapped.range((stream, 0, 0)..=(stream, u64::MAX, u32::MAX)).map(|&(_, _, index)| index).find_map(|index| {
            let prev = self.arena.at(index).prev;
            let start = if self.is_usable(prev, index, from) { prev } else { index };
            let mut room = 0;
            let mut at = start;
            while self.is_usable(at, index, from) && room < size {
                room += self.arena.at(at).size;
                at = self.arena.at(at).next;
            }
            (room >= size).then_some(start)
        })
    }

    /// Whether the slot contains a block and the block is unmapped.
    pub(crate) fn is_unmapped(&self, index: u32) -> bool {
        self.arena.get(index).is_some_and(|block| block.state == BlockState::Unmapped)
    }

    /// Whether the slot contains a block into which the segment can continue to grow after the block `unmapped`: an
    /// unmapped block, or a free block of the same stream.
    pub(super) fn is_usable(&self, index: u32, unmapped: u32, from: GrowsFrom) -> bool {
        self.arena.get(index).is_some_and(|block| match block.state {
            BlockState::Free => {
                block.stream == self.arena.at(unmapped).stream && (!from.lendable_only || block.stamp == LENDABLE)
            }
            BlockState::Unmapped => true,
            BlockState::Allocated | BlockState::Pending | BlockState::Detached => false,
        })
    }

    /// Records that the first `size` bytes of an unmapped block are mapped: they become a detached block in the same
    /// slot, and any rest becomes a new unmapped block (spec 4.3).
    pub(crate) fn map_front(&mut self, index: u32, size: u64) {
        self.detach_unmapped(index);
        let block = self.arena.at(index).clone();
        self.take_bytes(block.pool, size);
        if size < block.size {
            let rest =
                Block { address: block.address + size, size: block.size - size, requested: 0, prev: index, ..block.clone() };
            let rest = self.insert_linked(rest);
            self.arena.at_mut(index).size = size;
            self.attach_unmapped(rest);
        }
    }

    /// Records that `bytes` bytes of a free block, starting at `offset`, are unmapped. The parts before and after them
    /// become free blocks; the block itself becomes unmapped and joins its unmapped neighbours (spec 4.6). Returns
    /// whether the entire segment is now unmapped.
    pub(crate) fn unmap_middle(&mut self, index: u32, offset: u64, bytes: u64, stamp: u64) -> bool {
        self.detach(index);
        let block = self.arena.at(index).clone();
        self.give_bytes(block.pool, bytes);
        let tail = block.size - offset - bytes;
        if offset > 0 {
            let head = self.insert_linked(Block { size: offset, requested: 0, next: index, ..block.clone() });
            self.attach(head, stamp);
        }
        if tail > 0 {
            let address = block.address + offset + bytes;
            let rest = self.insert_linked(Block { address, size: tail, requested: 0, prev: index, ..block.clone() });
            self.attach(rest, stamp);
        }
        let middle = self.arena.at_mut(index);
        middle.address += offset;
        middle.size = bytes;
        self.join_unmapped(index);
        self.attach_unmapped(index);
        !self.arena.at(index).is_split()
    }

    /// Removes a segment that is entirely unmapped.
    pub(crate) fn remove_reservation(&mut self, index: u32) {
        debug_assert!(!self.arena.at(index).is_split());
        self.own.untouched.remove(self.arena.at(index).address);
        self.detach_unmapped(index);
        self.arena.remove(index);
    }

    /// Makes a detached block unmapped. Used to build an adopted segment block by block.
    pub(crate) fn make_unmapped(&mut self, index: u32) {
        let (pool, size) = (self.arena.at(index).pool, self.arena.at(index).size);
        self.give_bytes(pool, size);
        self.attach_unmapped(index);
    }

    /// Returns a segment of the pool that is entirely unmapped.
    pub(crate) fn bare_reservation_of(&self, pool_number: u16) -> Option<u32> {
        let pools = [PoolClass::Small, PoolClass::Large].map(|class| PoolSlot::of_pool(pool_number, class));
        let mut unmapped = pools.iter().flat_map(|pool| &self.unmapped[usize::from(pool.0)]).map(|&(_, _, index)| index);
        unmapped.find(|&index| !self.arena.at(index).is_split())
    }

    /// Adds a detached block to the arena, between its neighbours.
    fn insert_linked(&mut self, block: Block) -> u32 {
        let (prev, next) = (block.prev, block.next);
        let index = self.arena.insert(Block { state: BlockState::Detached, ..block });
        if let Some(before) = self.arena.get_mut(prev) {
            before.next = index;
        }
        if let Some(after) = self.arena.get_mut(next) {
            after.prev = index;
        }
        index
    }

    /// Joins a detached block with its unmapped neighbours.
    fn join_unmapped(&mut self, index: u32) {
        let (prev, next) = (self.arena.at(index).prev, self.arena.at(index).next);
        for neighbour in [prev, next] {
            if !self.is_unmapped(neighbour) {
                continue;
            }
            self.detach_unmapped(neighbour);
            let absorbed = self.arena.at(neighbour).clone();
            self.arena.remove(neighbour);
            let block = self.arena.at_mut(index);
            block.size += absorbed.size;
            let other = if neighbour == prev {
                block.address = absorbed.address;
                block.prev = absorbed.prev;
                absorbed.prev
            } else {
                block.next = absorbed.next;
                absorbed.next
            };
            if let Some(other) = self.arena.get_mut(other) {
                if neighbour == prev { other.next = index } else { other.prev = index }
            }
        }
    }

    fn attach_unmapped(&mut self, index: u32) {
        let block = self.arena.at_mut(index);
        debug_assert_eq!(block.state, BlockState::Detached);
        block.state = BlockState::Unmapped;
        let key = (self.streams.handles[usize::from(block.stream)], block.address, index);
        let pool = usize::from(block.pool);
        self.unmapped[pool].insert(key);
    }

    fn detach_unmapped(&mut self, index: u32) {
        let block = self.arena.at_mut(index);
        debug_assert_eq!(block.state, BlockState::Unmapped);
        block.state = BlockState::Detached;
        let key = (self.streams.handles[usize::from(block.stream)], block.address, index);
        let pool = usize::from(block.pool);
        let found = self.unmapped[pool].remove(&key);
        debug_assert!(found, "an unmapped block was not listed");
    }
}
