//! The order of free blocks. No other module depends on it.
//!
//! PyTorch keeps the free blocks of a pool in one set ordered by stream, size and address, all unsigned and ascending
//! (spec 2.3). [`FreeIndex`] answers the queries of PyTorch's rules: the first block of a stream with at least a given
//! size, and walks up and down from there. Between size and address, the order also includes the block's rank, which
//! is 0 for all blocks under rules that do not use it. If the policy searches by address, the index keeps the blocks in
//! that order too.

mod bins;
mod by_address;
mod by_size;
mod crowded;

use alloc::vec::Vec;

use crate::block::{Block, Slots};
pub(crate) use by_address::ByAddress;
pub(crate) use by_size::BySize;

/// The free blocks of one collection, by stream slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeIndex {
    streams: Vec<BySize>,
    /// The same blocks by address, by stream slot, if the policy searches by address.
    by_address: Option<Vec<ByAddress>>,
}

impl FreeIndex {
    /// Creates an empty index.
    pub(crate) fn new(searches_by_address: bool) -> FreeIndex {
        FreeIndex { streams: Vec::new(), by_address: searches_by_address.then(Vec::new) }
    }

    /// The blocks of one stream; `None` if the stream never had a free block.
    #[inline(always)]
    pub(crate) fn of(&self, stream_slot: u16) -> Option<&BySize> {
        self.streams.get(usize::from(stream_slot))
    }

    /// Like [`FreeIndex::of`], but mutable.
    #[inline(always)]
    pub(crate) fn of_mut(&mut self, stream_slot: u16) -> Option<&mut BySize> {
        self.streams.get_mut(usize::from(stream_slot))
    }

    /// Adds a block. Its stream, size, rank and address must not change until it is removed.
    #[inline]
    pub(crate) fn insert(&mut self, slots: &mut [Block], index: u32) {
        self.with_address(slots.at(index), |blocks, block| blocks.insert(block, index));
        match self.of_mut(slots.at(index).stream) {
            Some(blocks) => blocks.insert(slots, index),
            None => self.insert_first(slots, index),
        }
    }

    /// Adds the first block of its stream.
    #[cold]
    #[inline(never)]
    fn insert_first(&mut self, slots: &mut [Block], index: u32) {
        let slot = usize::from(slots.at(index).stream);
        self.streams.resize_with(slot + 1, BySize::default);
        self.streams[slot].insert(slots, index);
    }

    /// Removes a block that is in the index.
    #[inline]
    pub(crate) fn remove(&mut self, slots: &mut [Block], index: u32) {
        self.with_address(slots.at(index), ByAddress::remove);
        match self.of_mut(slots.at(index).stream) {
            Some(blocks) => blocks.remove(slots, index),
            None => debug_assert!(false, "a block that is not in the free index was removed"),
        }
    }

    /// Records that the low `size` bytes of a block will be split off. Must be called before the block changes.
    #[inline(always)]
    pub(crate) fn note_cut(&mut self, block: &Block, size: u64) {
        self.with_address(block, |blocks, block| blocks.cut(block, size));
    }

    /// Changes the order by address of the block's stream, if the policy searches by address.
    #[inline(always)]
    fn with_address(&mut self, block: &Block, change: impl FnOnce(&mut ByAddress, &Block)) {
        if self.by_address.is_some() {
            self.change_by_address(block, change);
        }
    }

    // Out of line, so that policies that do not search by address pay only for the check.
    #[cold]
    #[inline(never)]
    fn change_by_address(&mut self, block: &Block, change: impl FnOnce(&mut ByAddress, &Block)) {
        let Some(streams) = &mut self.by_address else { return };
        let slot = usize::from(block.stream);
        if streams.len() <= slot {
            streams.resize_with(slot + 1, ByAddress::default);
        }
        change(&mut streams[slot], block);
    }

    /// The lowest block of the stream that has at least `size` bytes and ends after `from`.
    pub(crate) fn lowest_at_least(&self, slots: &[Block], stream_slot: u16, size: u64, from: u64) -> Option<u32> {
        if let Some(streams) = &self.by_address {
            return streams.get(usize::from(stream_slot))?.lowest_at_least(size, from);
        }
        let ends_after = |&index: &u32| slots.at(index).address + slots.at(index).size > from;
        self.at_least(slots, stream_slot, size).filter(ends_after).min_by_key(|&index| slots.at(index).address)
    }

    /// The blocks by address, by stream slot, if the policy searches by address.
    pub(crate) fn by_address(&self) -> Option<&[ByAddress]> {
        self.by_address.as_deref()
    }

    /// The first block of the stream with at least `size` bytes.
    #[inline(always)]
    pub(crate) fn first_at_least(&self, slots: &[Block], stream_slot: u16, size: u64) -> Option<u32> {
        self.of(stream_slot)?.first_at_least(slots, size)
    }

    /// The block of the same stream that follows block `index` by size, rank and address. Block `index` must be in
    /// the index.
    #[inline]
    pub(crate) fn following(&self, slots: &[Block], index: u32) -> Option<u32> {
        self.of(slots.at(index).stream)?.following(slots, index)
    }

    /// The stream's largest block; if several are equally large, the first by rank and address.
    #[inline]
    pub(crate) fn largest_of(&self, slots: &[Block], stream_slot: u16) -> Option<u32> {
        self.of(stream_slot)?.largest(slots)
    }

    /// The blocks of one stream with fewer than `size` bytes, in reverse order.
    pub(crate) fn below<'a>(&'a self, slots: &'a [Block], stream_slot: u16, size: u64) -> impl Iterator<Item = u32> + 'a {
        self.of(stream_slot).into_iter().flat_map(move |blocks| blocks.below(slots, size))
    }

    /// The blocks of one stream with at least `size` bytes, in order.
    pub(crate) fn at_least<'a>(&'a self, slots: &'a [Block], stream_slot: u16, size: u64) -> impl Iterator<Item = u32> + 'a {
        self.of(stream_slot).into_iter().flat_map(move |blocks| blocks.at_least(slots, size))
    }

    /// Whether no stream ever had a block here.
    #[inline]
    pub(crate) fn is_unused(&self) -> bool {
        self.streams.is_empty()
    }

    /// Whether the stream has a block here.
    #[inline]
    pub(crate) fn is_occupied(&self, stream_slot: u16) -> bool {
        self.of(stream_slot).is_some_and(|blocks| !blocks.is_empty())
    }

    /// The largest free block of any stream.
    pub(crate) fn largest(&self, slots: &[Block]) -> Option<u32> {
        self.streams.iter().filter_map(|blocks| blocks.largest(slots)).max_by_key(|&index| slots.at(index).size)
    }
}
