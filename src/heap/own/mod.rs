//! What the heap keeps for the mechanisms that PyTorch does not have (`allocator/own`): handles, blocks on other streams
//! than their segment, and parts of segments in other pools.
//!
//! A handle is memory that the device maps and unmaps as a whole ([`Policy::handle`](crate::policy::Policy::handle)). Policies
//! that move or break handles see where each one is, which are free, and where a segment would grow with them.
//!
//! A part of an expandable segment that a private pool takes over is unlinked from the segment's chain and becomes a separate
//! chain, as do the blocks before and after it. All blocks of a chain therefore belong to one pool, and neighbours coalesce by
//! the usual rule. When the part is returned, the chains are linked again. Only lendable memory may change pools ([`LENDABLE`]).

pub(super) mod state;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

use crate::block::{Block, BlockId, BlockState, NIL};
use crate::heap::expandable::{GrowsFrom, LENDABLE};
use crate::heap::{BlockView, Heap, PoolSlot};
use crate::policy::Request;
use crate::units::{Bytes, DeviceAddress, StreamId};
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

    /// The lendable block for a private pool's request, and the number of bytes that it lacks. A range of addresses may begin
    /// directly behind another one, but no segment continues there.
    pub(crate) fn find_lendable(
        &self,
        request: &Request,
        stream_slot: u16,
        begins_range: impl Fn(u64) -> bool,
    ) -> Option<(u32, u64)> {
        let size = request.size.0;
        let home = PoolSlot::default_pool(request.pool.class());
        let ends = self.chain_ends(request.pool, stream_slot).map(|end| {
            let free = if end.state == BlockState::Free { end.size } else { 0 };
            (DeviceAddress(end.address + end.size), size.saturating_sub(free))
        });
        let ends: Vec<_> = ends.filter(|(end, _)| !begins_range(end.0)).collect();
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
        self.own.refined_page
    }

    pub(crate) fn set_refined_page(&mut self, page: Bytes) {
        self.own.refined_page = Some(page);
    }

    /// Whether the pool may belong to graphs that have been or are being captured, which may write to all memory that
    /// it has handed out.
    pub(crate) fn may_serve_graphs(&self, pool_number: u16) -> bool {
        pool_number != 0 && !self.private_pools.is_abandoned(pool_number)
    }

    /// The addresses of a free block whose memory may be moved: all of them or, in a private pool in use, those that
    /// were never handed out. Empty if another pool lent the block to a private pool.
    pub(crate) fn dispensable(&self, block: &Block) -> Range<u64> {
        let (all, pool_number) = (block.address..block.address + block.size, PoolSlot(block.pool).pool_number());
        match pool_number == 0 || self.own.untouched.holds(block.address) {
            true if self.may_serve_graphs(pool_number) => self.own.untouched.part_of(all),
            true => all,
            false => all.end..all.end,
        }
    }

    /// Whether an allocated block is marked as handed out, in pools for which the heap keeps these marks.
    pub(crate) fn is_marked_as_handed_out(&self, block: &Block) -> bool {
        self.own.untouched.part_of(block.address..block.address + block.size).is_empty()
    }

    /// Records that all mapped memory of a private pool counts as handed out from now on.
    pub(crate) fn note_all_handed_out(&mut self, pool_number: u16) {
        for index in self.arena.occupied() {
            let block = self.arena.at(index);
            if PoolSlot(block.pool).pool_number() == pool_number && block.state != BlockState::Unmapped {
                self.own.untouched.touch(block.address, block.size);
            }
        }
    }

    /// Records that a block was handed out.
    #[inline]
    pub(crate) fn note_handed_out(&mut self, index: u32) {
        let block = self.arena.at(index);
        self.own.untouched.touch(block.address, block.size);
    }

    /// The handles that are entirely in a free block and may be moved, by address; none if there is no block with this
    /// id. In a private pool in use, only handles of which nothing was ever handed out may be moved.
    pub fn handles_in(&self, id: BlockId) -> impl Iterator<Item = HandleView> + '_ {
        let block = self.arena.resolve(id).map(|index| self.arena.at(index)).filter(|block| block.state == BlockState::Free);
        let range = block.map_or(0..0, |block| self.dispensable(block));
        let end = range.end;
        let inside = self.own.handles.range(range).filter(move |&(&address, &size)| address + size <= end);
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
            let first = self.own.handles.range(..=from).next_back().map_or(from, |(&address, _)| address);
            for (&address, &size) in self.own.handles.range(first..to) {
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
        match self.find_growth(pool, stream, size.0, GrowsFrom::default()) {
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
    pub(crate) fn find_growth(&self, pool: PoolSlot, stream: StreamId, size: u64, from: GrowsFrom) -> Option<GrowthPlace> {
        let unmapped = &self.unmapped[usize::from(pool.0)];
        let places = unmapped.range((stream, 0, 0)..=(stream, u64::MAX, u32::MAX)).map(|&(_, _, index)| index);
        let places = places.filter_map(|index| self.growth_at(index, size, from));
        let allowed = places.filter(|place| from.address.is_none_or(|address| address == place.addresses.start));
        allowed.min_by_key(|place| (place.missing, place.addresses.start))
    }

    /// The growth at one unmapped block, starting at the free block before it.
    fn growth_at(&self, unmapped: u32, size: u64, from: GrowsFrom) -> Option<GrowthPlace> {
        let before = self.arena.at(unmapped).prev;
        let first = if self.is_usable(before, unmapped, from) { before } else { unmapped };
        let start = self.arena.at(first).address;
        let (mut at, mut room, mut missing) = (first, 0, 0);
        while room < size {
            let block = self.arena.get(at).filter(|_| self.is_usable(at, unmapped, from))?;
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
        self.own.handles.get(&address).copied()
    }

    /// Records consecutive pieces of mapped memory. For each piece, states whether it is a handle, and its size.
    pub(crate) fn note_handles(&mut self, address: u64, pieces: &[(bool, u64)]) {
        let mut at = address;
        for &(is_handle, size) in pieces {
            if is_handle {
                self.own.handles.insert(at, size);
            }
            at += size;
        }
    }

    /// Records that addresses were unmapped.
    pub(crate) fn forget_handles(&mut self, address: u64, bytes: u64) {
        while let Some((&first, _)) = self.own.handles.range(address..address + bytes).next() {
            self.own.handles.remove(&first);
        }
    }
}
