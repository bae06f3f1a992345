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
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use crate::block::Arena;
use bins::{BinnedBlocks, Either};
pub(crate) use by_address::{ByAddress, Entry, Spot};

/// The free blocks of one pool, in one order: by size, or by address where a policy asks for that.
///
/// Where the order is by address `by_slot` stays empty: the look at its length, which every request takes anyway, is then what tells the two
/// apart. Questions by size are answered there too, by a look at all blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeIndex {
    /// One entry for each stream slot that ever had a free block here; empty ones stay.
    by_slot: Vec<BinnedBlocks>,
    /// Likewise, by address.
    by_address: Option<Vec<ByAddress>>,
}

impl FreeIndex {
    /// An empty one, in the order of addresses if that is asked for.
    pub(crate) fn new(keeps_addresses: bool) -> FreeIndex {
        FreeIndex { by_slot: Vec::new(), by_address: keeps_addresses.then(Vec::new) }
    }

    /// The blocks of one stream by size.
    #[inline(always)]
    fn by_size(&self, stream_slot: u16) -> Option<&BinnedBlocks> {
        self.by_slot.get(usize::from(stream_slot))
    }

    /// The blocks of one stream by address, where they are kept so.
    #[inline]
    pub(crate) fn by_address(&self, stream_slot: u16) -> Option<&ByAddress> {
        self.by_address.as_ref()?.get(usize::from(stream_slot))
    }

    /// Likewise, to spoil.
    #[cfg(test)]
    pub(crate) fn by_address_mut(&mut self, stream_slot: u16) -> Option<&mut ByAddress> {
        self.by_address.as_mut()?.get_mut(usize::from(stream_slot))
    }

    /// Puts a block in. Its stream, size, rank and address must not change while it is in.
    #[inline]
    pub(crate) fn insert(&mut self, arena: &mut Arena, index: u32) {
        match self.by_slot.get_mut(usize::from(arena.at(index).stream)) {
            Some(blocks) => blocks.insert(arena, index),
            None => self.insert_elsewhere(arena, index),
        }
    }

    /// The stream's first block, or one that is kept by address.
    #[cold]
    #[inline(never)]
    fn insert_elsewhere(&mut self, arena: &mut Arena, index: u32) {
        let block = arena.at(index);
        let slot = usize::from(block.stream);
        let entry = Entry { address: block.address, size: block.size, index };
        match &mut self.by_address {
            Some(streams) => {
                if streams.len() <= slot {
                    streams.resize_with(slot + 1, ByAddress::default);
                }
                let spot = streams[slot].insert(entry);
                let block = arena.at_mut(index);
                (block.link_prev, block.link_next) = (spot.at, spot.place);
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
    #[inline(never)]
    fn remove_elsewhere(&mut self, arena: &Arena, index: u32) {
        let block = arena.at(index);
        let (slot, address) = (usize::from(block.stream), block.address);
        let went = Spot { at: block.link_prev, place: block.link_next };
        let blocks = self.by_address.as_mut().and_then(|streams| streams.get_mut(slot));
        debug_assert!(blocks.is_some(), "a block left the free index that was not in it");
        if let Some(blocks) = blocks {
            blocks.remove(address, went);
        }
    }

    /// The lowest address among the blocks of the stream that end behind `from` and have at least `size` bytes.
    #[inline]
    pub(crate) fn lowest_at_least(&self, arena: &Arena, stream_slot: u16, size: u64, from: u64) -> Option<u32> {
        if let Some(streams) = &self.by_address {
            return streams.get(usize::from(stream_slot))?.lowest_at_least(size, from);
        }
        let ends_behind = |index: &u32| arena.at(*index).address + arena.at(*index).size > from;
        self.at_least(arena, stream_slot, size).filter(ends_behind).min_by_key(|&index| arena.at(index).address)
    }

    /// The first block of the stream with at least `size` bytes.
    #[inline(always)]
    pub(crate) fn first_at_least(&self, arena: &Arena, stream_slot: u16, size: u64) -> Option<u32> {
        match self.by_size(stream_slot) {
            Some(blocks) => blocks.first_at_least(arena, size),
            None => self.first_elsewhere(arena, stream_slot, size),
        }
    }

    #[cold]
    #[inline(never)]
    fn first_elsewhere(&self, arena: &Arena, stream_slot: u16, size: u64) -> Option<u32> {
        self.unsorted(stream_slot, |own| own >= size).min_by_key(|&index| place_by_size(arena, index))
    }

    /// The first of the stream's largest blocks, in the order by size.
    #[inline]
    pub(crate) fn largest_of(&self, arena: &Arena, stream_slot: u16) -> Option<u32> {
        match self.by_size(stream_slot) {
            Some(blocks) => blocks.largest(arena),
            None => self.first_elsewhere(
                arena,
                stream_slot,
                self.unsorted(stream_slot, |_| true).map(|index| arena.at(index).size).max()?,
            ),
        }
    }

    /// Of the stream's blocks with at least `from` and fewer than `to` bytes the one that was stamped last; of equally late ones the first in
    /// the order by size.
    #[inline]
    pub(crate) fn latest(&self, arena: &Arena, stream_slot: u16, from: u64, to: u64) -> Option<u32> {
        match self.by_size(stream_slot) {
            Some(blocks) => blocks.latest(arena, from, to),
            None => {
                let blocks = self.sorted(arena, stream_slot, |own| (from..to).contains(&own));
                blocks.into_iter().rev().max_by_key(|&index| arena.at(index).stamp)
            }
        }
    }

    /// The blocks of one stream that come before the first one with at least `size` bytes, largest first.
    pub(crate) fn below<'a>(&'a self, arena: &'a Arena, stream_slot: u16, size: u64) -> impl Iterator<Item = u32> + 'a {
        match self.by_size(stream_slot) {
            Some(blocks) => Either::First(blocks.below(arena, size)),
            None => Either::Second(self.sorted(arena, stream_slot, |own| own < size).into_iter().rev()),
        }
    }

    /// The blocks of one stream with at least `size` bytes, in order.
    pub(crate) fn at_least<'a>(&'a self, arena: &'a Arena, stream_slot: u16, size: u64) -> impl Iterator<Item = u32> + 'a {
        match self.by_size(stream_slot) {
            Some(blocks) => Either::First(blocks.at_least(arena, size)),
            None => Either::Second(self.sorted(arena, stream_slot, |own| own >= size).into_iter()),
        }
    }

    /// The blocks of one stream that are kept by address and have such a size, by address.
    fn unsorted(&self, stream_slot: u16, has: impl Fn(u64) -> bool) -> impl Iterator<Item = u32> {
        let entries = self.by_address(stream_slot).into_iter().flat_map(ByAddress::entries);
        entries.filter(move |entry| has(entry.size)).map(|entry| entry.index)
    }

    /// Likewise, by size.
    #[cold]
    fn sorted(&self, arena: &Arena, stream_slot: u16, has: impl Fn(u64) -> bool) -> Vec<u32> {
        let mut blocks: Vec<u32> = self.unsorted(stream_slot, has).collect();
        blocks.sort_unstable_by_key(|&index| place_by_size(arena, index));
        blocks
    }

    /// The largest free block of any stream.
    pub(crate) fn largest(&self, arena: &Arena) -> Option<u32> {
        let streams = self.by_slot.len().max(self.by_address.as_ref().map_or(0, Vec::len)) as u16;
        (0..streams).filter_map(|slot| self.largest_of(arena, slot)).max_by_key(|&index| arena.at(index).size)
    }
}

/// Where a block stands in the order by size.
fn place_by_size(arena: &Arena, index: u32) -> (u64, u32, u64) {
    let block = arena.at(index);
    (block.size, block.rank, block.address)
}
