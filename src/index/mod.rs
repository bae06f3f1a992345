//! The order of free blocks, and the only place that knows it.
//!
//! PyTorch keeps the free blocks of a pool in one set ordered by stream, size and address, all unsigned and ascending (spec 2.3).
//! [`FreeIndex`] answers what its rules ask: the first block of a stream with at least so many bytes, the block before or after a
//! given one, and a walk over everything in order. Between size and address stands the block's rank, which is 0 everywhere
//! under rules that do not use it.

mod bins;
mod by_address;
#[cfg(test)]
mod ordered;

use alloc::vec::Vec;

use crate::block::Arena;
use bins::BinnedBlocks;
pub(crate) use by_address::{ByAddress, Entry};

/// The free blocks of one pool.
///
/// Where a policy asks for the order by address, everything is in `with_addresses` and `by_slot` stays empty: the look at its length, which
/// every request takes anyway, is then what tells the two apart.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeIndex {
    /// One entry for each stream slot that ever had a free block here; empty ones stay.
    by_slot: Vec<BinnedBlocks>,
    /// Likewise, with both orders.
    with_addresses: Option<Vec<BothOrders>>,
}

/// The free blocks of one stream, by size and by address.
#[derive(Clone, Debug, Default)]
struct BothOrders {
    by_size: BinnedBlocks,
    by_address: ByAddress,
}

impl FreeIndex {
    /// An empty one, that keeps the order by address too if asked to.
    pub(crate) fn new(keeps_addresses: bool) -> FreeIndex {
        FreeIndex { by_slot: Vec::new(), with_addresses: keeps_addresses.then(Vec::new) }
    }

    /// The blocks of one stream by size.
    #[inline(always)]
    fn by_size(&self, stream_slot: u16) -> Option<&BinnedBlocks> {
        let slot = usize::from(stream_slot);
        self.by_slot.get(slot).or_else(|| self.with_addresses(slot).map(|blocks| &blocks.by_size))
    }

    #[cold]
    fn with_addresses(&self, slot: usize) -> Option<&BothOrders> {
        self.with_addresses.as_ref()?.get(slot)
    }

    /// Puts a block in. Its stream, size, rank and address must not change while it is in.
    #[inline]
    pub(crate) fn insert(&mut self, arena: &mut Arena, index: u32) {
        match self.by_slot.get_mut(usize::from(arena.at(index).stream)) {
            Some(blocks) => blocks.insert(arena, index),
            None => self.insert_elsewhere(arena, index),
        }
    }

    /// The stream's first block, or one that is kept by address too.
    #[cold]
    fn insert_elsewhere(&mut self, arena: &mut Arena, index: u32) {
        let block = arena.at(index);
        let (slot, address, size) = (usize::from(block.stream), block.address, block.size);
        match &mut self.with_addresses {
            Some(streams) => {
                if streams.len() <= slot {
                    streams.resize_with(slot + 1, BothOrders::default);
                }
                streams[slot].by_size.insert(arena, index);
                streams[slot].by_address.insert(Entry { address, size, index });
            }
            None => {
                self.by_slot.resize_with(slot + 1, BinnedBlocks::default);
                self.by_slot[slot].insert(arena, index);
            }
        }
    }

    /// Takes a block out that is in.
    #[inline]
    pub(crate) fn remove(&mut self, arena: &mut Arena, index: u32) {
        match self.by_slot.get_mut(usize::from(arena.at(index).stream)) {
            Some(blocks) => blocks.remove(arena, index),
            None => self.remove_elsewhere(arena, index),
        }
    }

    #[cold]
    fn remove_elsewhere(&mut self, arena: &mut Arena, index: u32) {
        let (slot, address) = (usize::from(arena.at(index).stream), arena.at(index).address);
        let blocks = self.with_addresses.as_mut().and_then(|streams| streams.get_mut(slot));
        debug_assert!(blocks.is_some(), "a block left the free index that was not in it");
        if let Some(blocks) = blocks {
            blocks.by_size.remove(arena, index);
            blocks.by_address.remove(address);
        }
    }

    /// The blocks of one stream by address, where they are kept so.
    pub(crate) fn by_address(&self, stream_slot: u16) -> Option<&ByAddress> {
        self.with_addresses(usize::from(stream_slot)).map(|blocks| &blocks.by_address)
    }

    /// Likewise, to spoil.
    #[cfg(test)]
    pub(crate) fn by_address_mut(&mut self, stream_slot: u16) -> Option<&mut ByAddress> {
        self.with_addresses.as_mut()?.get_mut(usize::from(stream_slot)).map(|blocks| &mut blocks.by_address)
    }

    /// The lowest address among the blocks of the stream that end behind `from` and have at least `size` bytes.
    pub(crate) fn lowest_at_least(&self, arena: &Arena, stream_slot: u16, size: u64, from: u64) -> Option<u32> {
        if self.with_addresses.is_some() {
            return self.with_addresses(usize::from(stream_slot))?.by_address.lowest_at_least(size, from);
        }
        let ends_behind = |index: &u32| arena.at(*index).address + arena.at(*index).size > from;
        self.at_least(arena, stream_slot, size).filter(ends_behind).min_by_key(|&index| arena.at(index).address)
    }

    /// The first block of the stream with at least `size` bytes.
    #[inline(always)]
    pub(crate) fn first_at_least(&self, arena: &Arena, stream_slot: u16, size: u64) -> Option<u32> {
        self.by_size(stream_slot)?.first_at_least(arena, size)
    }

    /// The blocks of one stream that come before the first one with at least `size` bytes, largest first.
    pub(crate) fn below<'a>(&'a self, arena: &'a Arena, stream_slot: u16, size: u64) -> impl Iterator<Item = u32> + 'a {
        self.by_size(stream_slot).into_iter().flat_map(move |blocks| blocks.below(arena, size))
    }

    /// The blocks of one stream with at least `size` bytes, in order.
    pub(crate) fn at_least<'a>(&'a self, arena: &'a Arena, stream_slot: u16, size: u64) -> impl Iterator<Item = u32> + 'a {
        self.by_size(stream_slot).into_iter().flat_map(move |blocks| blocks.at_least(arena, size))
    }

    /// The largest free block of any stream.
    pub(crate) fn largest(&self, arena: &Arena) -> Option<u32> {
        let others = self.with_addresses.iter().flatten().map(|blocks| &blocks.by_size);
        let last = self.by_slot.iter().chain(others).filter_map(|blocks| blocks.last(arena));
        last.max_by_key(|&index| arena.at(index).size)
    }
}
