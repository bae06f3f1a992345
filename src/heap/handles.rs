//! Handles of several sizes, and where an expandable segment grows with them: what a policy that moves handles looks at.
//!
//! A handle is memory that the device maps and unmaps as a whole ([`Policy::handle`](crate::policy::Policy::handle)). The
//! allocator keeps the memory; here is only where each handle lies.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

use super::{BlockView, Heap, PoolSlot};
use crate::block::{BlockId, BlockState};
use crate::units::{Bytes, DeviceAddress, StreamId};

/// A handle as policies see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandleView {
    /// Where it is mapped.
    pub address: DeviceAddress,
    /// Its size.
    pub size: Bytes,
}

/// A handle of which a part is free.
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
    /// The addresses that the request would use, and the rest of the free blocks among them. Empty if addresses would be
    /// reserved first.
    pub addresses: Range<DeviceAddress>,
}

/// The whole pages in a range, counted from `first` on; none if there are none.
pub(crate) fn whole_pages(range: Range<u64>, first: u64, page: u64) -> Range<u64> {
    let from = first + (range.start - first).next_multiple_of(page);
    from..(first + (range.end - first) / page * page).max(from)
}

/// The same for the allocator.
pub(crate) struct GrowthPlace {
    /// The first block, free or unmapped.
    pub(crate) first: u32,
    pub(crate) missing: u64,
    addresses: Range<u64>,
}

impl Heap {
    /// The handles that lie wholly in a free block, by address; none if there is no such block.
    pub fn handles_in(&self, id: BlockId) -> impl Iterator<Item = HandleView> + '_ {
        let block = self.arena.resolve(id).map(|index| self.arena.at(index)).filter(|block| block.state == BlockState::Free);
        let range = block.map_or(0..0, |block| block.address..block.address + block.size);
        let end = range.end;
        let inside = self.handles.range(range).filter(move |&(&address, &size)| address + size <= end);
        inside.map(|(&address, &size)| HandleView { address: DeviceAddress(address), size: Bytes(size) })
    }

    /// The handles with free pages of `page` bytes in free blocks of the pool, but not wholly free, by address
    /// ([`Relief::Break`](crate::policy::Relief::Break)). Blocks that were transferred to another stream count, though their
    /// pages stay. None for pages of no bytes.
    #[must_use]
    pub fn partly_free(&self, pool: PoolSlot, page: Bytes) -> Vec<PartlyFreeView> {
        let mut free: BTreeMap<u64, u64> = BTreeMap::new();
        for block in self.free_blocks(pool) {
            let (from, to) = (block.address.0, block.address.0 + block.size.0);
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

    /// Where the pool's expandable segments of the stream would grow for `size` bytes with handles: where the least is
    /// missing, at the lowest address. `page` is the page of a new segment.
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

    /// The run of free and unmapped blocks with at least `size` bytes that misses the least; of equal ones the lowest.
    pub(crate) fn find_growth(&self, pool: PoolSlot, stream: StreamId, size: u64) -> Option<GrowthPlace> {
        let unmapped = &self.unmapped[usize::from(pool.0)];
        let places = unmapped.range((stream, 0, 0)..=(stream, u64::MAX, u32::MAX)).map(|&(_, _, index)| index);
        let places = places.filter_map(|index| self.growth_at(index, size));
        let allowed = places.filter(|place| self.grows_from.is_none_or(|from| from == place.addresses.start));
        allowed.min_by_key(|place| (place.missing, place.addresses.start))
    }

    /// The same at one unmapped block, from the free one before it on.
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

    /// The free block that holds an address.
    pub(crate) fn free_block_at(&self, address: u64) -> Option<u32> {
        let mut free = self.pool_slots().flat_map(|pool| self.free_blocks(pool));
        let holds = |block: &BlockView| block.address.0 <= address && address - block.address.0 < block.size.0;
        free.find(holds).map(|block| block.id.index)
    }

    /// The size of the handle that begins at an address.
    pub(crate) fn handle_at(&self, address: u64) -> Option<u64> {
        self.handles.get(&address).copied()
    }

    /// Notes memory that was mapped, one piece after the other: whether each is a handle, and its size.
    pub(crate) fn note_handles(&mut self, address: u64, pieces: &[(bool, u64)]) {
        let mut at = address;
        for &(is_handle, size) in pieces {
            if is_handle {
                self.handles.insert(at, size);
            }
            at += size;
        }
    }

    /// Notes that addresses were unmapped.
    pub(crate) fn forget_handles(&mut self, address: u64, bytes: u64) {
        while let Some((&first, _)) = self.handles.range(address..address + bytes).next() {
            self.handles.remove(&first);
        }
    }
}
