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
use by_address::ByAddress;

/// The free blocks of one pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeIndex {
    /// One entry for each stream slot that ever had a free block here; empty ones stay.
    by_slot: Vec<BinnedBlocks>,
    /// Likewise; `None` where nobody asks for the order by address.
    by_address: Option<Vec<ByAddress>>,
}

impl FreeIndex {
    /// An empty one, that keeps the order by address too if asked to.
    pub(crate) fn new(keeps_addresses: bool) -> FreeIndex {
        FreeIndex { by_slot: Vec::new(), by_address: keeps_addresses.then(Vec::new) }
    }

    /// Puts a block in. Its stream, size, rank and address must not change while it is in.
    #[inline]
    pub(crate) fn insert(&mut self, arena: &mut Arena, index: u32) {
        let slot = usize::from(arena.at(index).stream);
        if self.by_slot.len() <= slot {
            self.by_slot.resize_with(slot + 1, BinnedBlocks::default);
        }
        self.by_slot[slot].insert(arena, index);
        if let Some(by_address) = &mut self.by_address {
            if by_address.len() <= slot {
                by_address.resize_with(slot + 1, ByAddress::default);
            }
            let block = arena.at(index);
            by_address[slot].insert(block.address, block.size, index);
        }
    }

    /// Takes a block out that is in.
    #[inline]
    pub(crate) fn remove(&mut self, arena: &mut Arena, index: u32) {
        let slot = usize::from(arena.at(index).stream);
        self.by_slot[slot].remove(arena, index);
        if let Some(by_address) = &mut self.by_address {
            by_address[slot].remove(arena.at(index).address);
        }
    }

    /// The lowest address among the blocks of the stream that end behind `from` and have at least `size` bytes.
    pub(crate) fn lowest_at_least(&self, arena: &Arena, stream_slot: u16, size: u64, from: u64) -> Option<u32> {
        match &self.by_address {
            Some(by_address) => by_address.get(usize::from(stream_slot))?.lowest_at_least(size, from),
            None => {
                let behind = |index: &u32| arena.at(*index).address + arena.at(*index).size > from;
                self.at_least(arena, stream_slot, size).filter(behind).min_by_key(|&index| arena.at(index).address)
            }
        }
    }

    /// The first block of the stream with at least `size` bytes.
    #[inline]
    pub(crate) fn first_at_least(&self, arena: &Arena, stream_slot: u16, size: u64) -> Option<u32> {
        self.by_slot.get(usize::from(stream_slot))?.first_at_least(arena, size)
    }

    /// The blocks of one stream that come before the first one with at least `size` bytes, largest first.
    pub(crate) fn below<'a>(&'a self, arena: &'a Arena, stream_slot: u16, size: u64) -> impl Iterator<Item = u32> + 'a {
        self.by_slot.get(usize::from(stream_slot)).into_iter().flat_map(move |blocks| blocks.below(arena, size))
    }

    /// The blocks of one stream with at least `size` bytes, in order.
    pub(crate) fn at_least<'a>(&'a self, arena: &'a Arena, stream_slot: u16, size: u64) -> impl Iterator<Item = u32> + 'a {
        self.by_slot.get(usize::from(stream_slot)).into_iter().flat_map(move |blocks| blocks.at_least(arena, size))
    }

    /// The largest free block of any stream.
    pub(crate) fn largest(&self, arena: &Arena) -> Option<u32> {
        self.by_slot.iter().filter_map(|blocks| blocks.last(arena)).max_by_key(|&index| arena.at(index).size)
    }
}
