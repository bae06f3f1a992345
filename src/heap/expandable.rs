//! Expandable segments in the heap: reserved addresses, some pages of which are mapped (spec section 4).
//!
//! An expandable segment is a chain of blocks like any other segment, but some of its blocks are unmapped: addresses
//! without memory, stored by pool, stream and address. Memory is mapped and unmapped in whole pages. The allocator
//! chooses the pages, and this module splits and joins the blocks.
//!
//! A handle is memory that the device maps and unmaps as a whole ([`Policy::handle`](crate::policy::Policy::handle)).
//! Policies that move handles can see where each handle is, and where a segment would grow with them.
//!
//! Parts of a segment may serve a private pool. A part that another pool takes over is unlinked from the segment's
//! chain and becomes a separate chain, as do the blocks before and after it. All blocks of a chain therefore belong to
//! one pool, and neighbours coalesce by the usual rule. When the part is returned, the chains are linked again.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

use super::{BlockView, Heap, PoolSlot};
use crate::block::{Block, BlockId, BlockState, Marks, NIL};
use crate::units::{Bytes, DeviceAddress, PoolClass, StreamId};

/// A handle as policies see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandleView {
    /// The address at which it is mapped.
    pub address: DeviceAddress,
    /// Its size in bytes.
    pub size: Bytes,
}

/// A handle with free pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartlyFreeView {
    /// The handle.
    pub handle: HandleView,
    /// The bytes of its free pages.
    pub free: Bytes,
}

/// Where an expandable segment would grow for a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrowthView {
    /// The bytes to map there: whole pages.
    pub missing: Bytes,
    /// The addresses that the request would use, and the rest of the free blocks that they overlap. Empty if new
    /// addresses would be reserved first.
    pub addresses: Range<DeviceAddress>,
}

/// The whole pages in a range, as indices from the page at `first`; empty if the range contains no whole page.
pub(crate) fn whole_pages(range: Range<u64>, first: u64, page: u64) -> Range<u64> {
    let from = first + (range.start - first).next_multiple_of(page);
    from..(first + (range.end - first) / page * page).max(from)
}

/// Where an expandable segment would grow, as the allocator needs it.
pub(crate) struct GrowthPlace {
    /// The first block of the run, free or unmapped.
    pub(crate) first: u32,
    pub(crate) missing: u64,
    addresses: Range<u64>,
}

impl Heap {
    /// If more pages than this have memory, they are not refined. This corresponds to 20 TiB in the pages of PyTorch's
    /// large segments.
    pub const MOST_REFINED: u64 = 1 << 20;

    /// The page size to which all expandable segments were refined ([`Relief::Rescue`](crate::policy::Relief::Rescue)).
    #[must_use]
    pub fn refined_page(&self) -> Option<Bytes> {
        self.refined_page
    }

    pub(crate) fn set_refined_page(&mut self, page: Bytes) {
        self.refined_page = Some(page);
    }

    /// Whether the pool may belong to graphs that have been or are being captured, which may write to all memory that
    /// it has handed out.
    pub(crate) fn may_serve_graphs(&self, pool_number: u16) -> bool {
        pool_number != 0 && !self.private_pools.freeable().contains(&pool_number)
    }

    /// The addresses of a free block whose memory may be moved: all of them or, in a private pool in use, those that
    /// were never handed out. Empty if another pool lent the block to a private pool.
    pub(crate) fn dispensable(&self, block: &Block) -> Range<u64> {
        let (all, pool_number) = (block.address..block.address + block.size, PoolSlot(block.pool).pool_number());
        match pool_number == 0 || self.untouched.holds(block.address) {
            true if self.may_serve_graphs(pool_number) => self.untouched.part_of(all),
            true => all,
            false => all.end..all.end,
        }
    }

    /// Whether an allocated block is marked as handed out, in pools for which the heap keeps these marks.
    pub(crate) fn is_marked_as_handed_out(&self, block: &Block) -> bool {
        self.untouched.part_of(block.address..block.address + block.size).is_empty()
    }

    /// Records that all mapped memory of a private pool counts as handed out from now on.
    pub(crate) fn note_all_handed_out(&mut self, pool_number: u16) {
        for index in self.arena.live() {
            let block = self.arena.at(index);
            if PoolSlot(block.pool).pool_number() == pool_number && block.state != BlockState::Unmapped {
                self.untouched.touch(block.address, block.size);
            }
        }
    }

    /// Records that a block was handed out.
    #[inline]
    pub(crate) fn note_handed_out(&mut self, index: u32) {
        let block = self.arena.at(index);
        self.untouched.touch(block.address, block.size);
    }

    /// The handles that are entirely in a free block and may be moved, by address; none if there is no block with this
    /// id. In a private pool in use, only handles of which nothing was ever handed out may be moved.
    pub fn handles_in(&self, id: BlockId) -> impl Iterator<Item = HandleView> + '_ {
        let block = self.arena.resolve(id).map(|index| self.arena.at(index)).filter(|block| block.state == BlockState::Free);
        let range = block.map_or(0..0, |block| self.dispensable(block));
        let end = range.end;
        let inside = self.handles.range(range).filter(move |&(&address, &size)| address + size <= end);
        inside.map(|(&address, &size)| HandleView { address: DeviceAddress(address), size: Bytes(size) })
    }

    /// The handles that have free pages of `page` bytes in free blocks of the pool but are not entirely free, by
    /// address ([`Relief::Break`](crate::policy::Relief::Break)). In a private pool in use, pages count only if
    /// nothing was ever handed out there. Blocks that were transferred to another stream count, although their pages
    /// stay. None if `page` is 0.
    #[must_use]
    pub fn partly_free(&self, pool: PoolSlot, page: Bytes) -> Vec<PartlyFreeView> {
        let mut free: BTreeMap<u64, u64> = BTreeMap::new();
        for block in self.free_blocks(pool) {
            let Range { start: from, end: to } = self.dispensable(self.arena.at(block.id.index));
            let first = self.handles.range(..=from).next_back().map_or(from, |(&address, _)| address);
            for (&address, &size) in self.handles.range(first..to) {
                let inside = whole_pages(from.max(address)..to.min(address + size), address, page.0.max(1));
                *free.entry(address).or_default() += inside.end - inside.start;
            }
        }
        let handles = free.into_iter().filter_map(|(address, free)| Some((address, self.handle_at(address)?, free)));
        let partly = handles.filter(|&(_, size, free)| page.0 > 0 && free > 0 && free < size);
        let view = |(address, size, free)| PartlyFreeView {
            handle: HandleView { address: DeviceAddress(address), size: Bytes(size) },
            free: Bytes(free),
        };
        partly.map(view).collect()
    }

    /// Where the pool's expandable segments of the stream would grow for `size` bytes with handles: at the place where
    /// the fewest bytes are missing; if there are several, at the lowest address. `page` is the page size of a new
    /// segment.
    #[must_use]
    pub fn growth_place(&self, pool: PoolSlot, stream: StreamId, size: Bytes, page: Bytes) -> GrowthView {
        match self.find_growth(pool, stream, size.0) {
            Some(GrowthPlace { missing, addresses, .. }) => GrowthView {
                missing: Bytes(missing).checked_round_up(page).unwrap_or(Bytes::MAX),
                addresses: DeviceAddress(addresses.start)..DeviceAddress(addresses.end),
            },
            None => GrowthView {
                missing: size.checked_round_up(page).unwrap_or(Bytes::MAX),
                addresses: DeviceAddress(0)..DeviceAddress(0),
            },
        }
    }

    /// The run of free and unmapped blocks with at least `size` bytes that lacks the fewest bytes; if there are
    /// several, the lowest one.
    pub(crate) fn find_growth(&self, pool: PoolSlot, stream: StreamId, size: u64) -> Option<GrowthPlace> {
        let unmapped = &self.unmapped[usize::from(pool.0)];
        let places = unmapped.range((stream, 0, 0)..=(stream, u64::MAX, u32::MAX)).map(|&(_, _, index)| index);
        let places = places.filter_map(|index| self.growth_at(index, size));
        let allowed = places.filter(|place| self.grows_from.is_none_or(|from| from == place.addresses.start));
        allowed.min_by_key(|place| (place.missing, place.addresses.start))
    }

    /// The growth at one unmapped block, starting at the free block before it.
    fn growth_at(&self, unmapped: u32, size: u64) -> Option<GrowthPlace> {
        let before = self.arena.at(unmapped).prev;
        let first = if self.is_usable(before, unmapped) { before } else { unmapped };
        let start = self.arena.at(first).address;
        let (mut at, mut room, mut missing) = (first, 0, 0);
        while room < size {
            let block = self.arena.get(at).filter(|_| self.is_usable(at, unmapped))?;
            if block.state == BlockState::Unmapped {
                missing += block.size.min(size - room);
            }
            room += block.size;
            at = block.next;
        }
        Some(GrowthPlace { first, missing, addresses: start..start + room })
    }

    /// The free block that contains an address.
    pub(crate) fn free_block_at(&self, address: u64) -> Option<u32> {
        let mut free = self.pool_slots().flat_map(|pool| self.free_blocks(pool));
        let holds = |block: &BlockView| block.address.0 <= address && address - block.address.0 < block.size.0;
        free.find(holds).map(|block| block.id.index)
    }

    /// The size of the handle that begins at an address.
    pub(crate) fn handle_at(&self, address: u64) -> Option<u64> {
        self.handles.get(&address).copied()
    }

    /// Records consecutive pieces of mapped memory. For each piece, states whether it is a handle, and its size.
    pub(crate) fn note_handles(&mut self, address: u64, pieces: &[(bool, u64)]) {
        let mut at = address;
        for &(is_handle, size) in pieces {
            if is_handle {
                self.handles.insert(at, size);
            }
            at += size;
        }
    }

    /// Records that addresses were unmapped.
    pub(crate) fn forget_handles(&mut self, address: u64, bytes: u64) {
        while let Some((&first, _)) = self.handles.range(address..address + bytes).next() {
            self.handles.remove(&first);
        }
    }
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
            self.untouched.add(address.0, size.0);
        }
        self.attach_unmapped(index);
        index
    }

    /// The first block of the first run, by address, of free and unmapped blocks of the pool and stream with at least
    /// `size` bytes (spec 4.2).
    pub(crate) fn find_space(&self, pool: PoolSlot, stream: StreamId, size: u64) -> Option<u32> {
        let unmapped = &self.unmapped[usize::from(pool.0)];
        unmapped.range((stream, 0, 0)..=(stream, u64::MAX, u32::MAX)).map(|&(_, _, index)| index).find_map(|index| {
            let prev = self.arena.at(index).prev;
            let start = if self.is_usable(prev, index) { prev } else { index };
            let mut room = 0;
            let mut at = start;
            while self.is_usable(at, index) && room < size {
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
    fn is_usable(&self, index: u32, unmapped: u32) -> bool {
        self.arena.get(index).is_some_and(|block| match block.state {
            BlockState::Free => block.stream == self.arena.at(unmapped).stream && (!self.grows_settled || block.stamp == SETTLED),
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
        self.untouched.remove(self.arena.at(index).address);
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
        let key = (self.streams[usize::from(block.stream)], block.address, index);
        let pool = usize::from(block.pool);
        self.unmapped[pool].insert(key);
    }

    fn detach_unmapped(&mut self, index: u32) {
        let block = self.arena.at_mut(index);
        debug_assert_eq!(block.state, BlockState::Unmapped);
        block.state = BlockState::Detached;
        let key = (self.streams[usize::from(block.stream)], block.address, index);
        let pool = usize::from(block.pool);
        let found = self.unmapped[pool].remove(&key);
        debug_assert!(found, "an unmapped block was not listed");
    }
}

/// The stamp of a settled block: a free block of the default pool that no pending work used when it was marked, or
/// newly mapped memory. If part of the block is taken, or if it is joined with another block, it gets a different
/// stamp.
pub(crate) const SETTLED: u64 = u64::MAX;

impl Heap {
    /// Marks the free blocks of expandable segments as settled if they belong to the default pool and to streams
    /// without work.
    pub(crate) fn mark_settled(&mut self, is_idle: &[bool]) {
        for index in self.free_expandable() {
            let block = self.arena.at_mut(index);
            if PoolSlot(block.pool).pool_number() == 0 && is_idle.get(usize::from(block.stream)) == Some(&true) {
                block.stamp = SETTLED;
            }
        }
    }

    /// The settled blocks of one of the default pool's collections.
    pub(crate) fn settled(&self, pool: PoolSlot) -> impl Iterator<Item = (u32, &Block)> {
        let free = self.free_blocks(pool).map(|block| block.id.index);
        free.map(|index| (index, self.arena.at(index))).filter(|(_, block)| block.stamp == SETTLED && block.is_expandable())
    }

    /// The last block of each chain of a private pool and a stream.
    pub(crate) fn chain_ends(&self, pool: PoolSlot, stream: u16) -> impl Iterator<Item = &Block> {
        let blocks = self.arena.live().map(|index| self.arena.at(index));
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

    /// Assigns a detached block that is a separate chain to a different pool and stream.
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

    /// Where the default pool's segment of a stream grows for `size` bytes: the settled and unmapped addresses
    /// starting there. `None` if new addresses must be reserved.
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

    /// Sets whether an expandable segment may grow only from free blocks that are settled, and the only address from
    /// which it may grow.
    pub(crate) fn set_grows_settled(&mut self, grows_settled: bool, from: Option<u64>) {
        (self.grows_settled, self.grows_from) = (grows_settled, from);
    }

    /// The private pool's segments of a stream that end in fewer than `size` free bytes: the address after each
    /// segment, and the number of these bytes.
    pub(crate) fn free_ends(&self, pool: PoolSlot, stream: u16, size: u64) -> Vec<(u64, u64)> {
        let free = self.chain_ends(pool, stream).filter(|end| end.state == BlockState::Free && end.size < size);
        free.map(|end| (end.address + end.size, end.size)).collect()
    }
}
