//! Handles: memory that the device maps and unmaps as a whole ([`Policy::handle`](crate::policy::Policy::handle)).
//!
//! Policies that move or break handles see where each one is, which are free, and where a segment would grow with them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

use crate::block::{Block, BlockId, BlockState};
use crate::heap::expandable::GrowsFrom;
use crate::heap::{BlockView, Heap, PoolSlot};
use crate::units::{Bytes, DeviceAddress, StreamId};

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
