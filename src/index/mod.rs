//! The order of free blocks. No other module depends on it.
//!
//! PyTorch keeps the free blocks of a pool in one set ordered by stream, size and address, all unsigned and ascending
//! (spec 2.3). [`FreeIndex`] answers the queries of PyTorch's rules: the first block of a stream with at least a given
//! size, and walks up and down from there. Between size and address, the order also includes the block's rank, which
//! is 0 for all blocks under rules that do not use it.

mod bins;
mod by_address;
mod by_size;
mod either;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::block::{Block, Slots};
pub(crate) use by_address::{ByAddress, Entry, Spot};
pub(crate) use by_size::BySize;
use by_size::place_by_size;
use either::Either;

/// The order in which a heap keeps its free blocks. [`Heap`](crate::Heap) answers every query in either order, but a
/// query about the other order visits all blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FreeOrder {
    /// By size, then address. This serves [`first_at_least`](crate::Heap::first_at_least),
    /// [`largest`](crate::Heap::largest) and similar queries.
    #[default]
    BySize,
    /// By address. This serves [`lowest_at_least`](crate::Heap::lowest_at_least).
    ByAddress,
}

/// The free blocks of one collection, by stream slot, in the order that the policy chose.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeIndex {
    /// Empty if blocks are kept by address, so that PyTorch's path, which uses the order by size, does not have to
    /// check the order.
    by_size: Vec<BySize>,
    #[expect(clippy::box_collection, reason = "the index is found in fewer steps if it is small")]
    by_address: Option<Box<Vec<ByAddress>>>,
}

impl FreeIndex {
    /// An empty index.
    pub(crate) fn new(order: FreeOrder) -> FreeIndex {
        FreeIndex { by_size: Vec::new(), by_address: (order == FreeOrder::ByAddress).then(Box::default) }
    }

    /// The blocks of one stream, if they are kept by size.
    #[inline(always)]
    fn by_size(&self, stream_slot: u16) -> Option<&BySize> {
        self.by_size.get(usize::from(stream_slot))
    }

    /// The blocks of one stream, if they are kept by size; mutable.
    #[inline(always)]
    pub(crate) fn by_size_mut(&mut self, stream_slot: u16) -> Option<&mut BySize> {
        self.by_size.get_mut(usize::from(stream_slot))
    }

    /// The blocks of one stream, if they are kept by address.
    #[inline]
    pub(crate) fn by_address(&self, stream_slot: u16) -> Option<&ByAddress> {
        self.by_address.as_ref()?.get(usize::from(stream_slot))
    }

    /// The blocks of one stream by address, mutable, so that tests can damage them.
    #[cfg(test)]
    pub(crate) fn by_address_mut(&mut self, stream_slot: u16) -> Option<&mut ByAddress> {
        self.by_address.as_mut()?.get_mut(usize::from(stream_slot))
    }

    /// Adds a block. Its stream, size, rank and address must not change until it is removed.
    #[inline]
    pub(crate) fn insert(&mut self, slots: &mut [Block], index: u32) {
        match self.by_size_mut(slots.at(index).stream) {
            Some(blocks) => blocks.insert(slots, index),
            None => self.insert_elsewhere(slots, index),
        }
    }

    /// Adds the first block of its stream, or one that is kept by address.
    #[cold]
    #[inline(never)]
    fn insert_elsewhere(&mut self, slots: &mut [Block], index: u32) {
        let slot = usize::from(slots.at(index).stream);
        match &mut self.by_address {
            Some(streams) => insert_by_address(streams, slots, index),
            None => {
                self.by_size.resize_with(slot + 1, BySize::default);
                self.by_size[slot].insert(slots, index);
            }
        }
    }

    /// Removes a block that is in the index.
    #[inline]
    pub(crate) fn remove(&mut self, slots: &mut [Block], index: u32) {
        match self.by_size_mut(slots.at(index).stream) {
            Some(blocks) => blocks.remove(slots, index),
            None => self.remove_elsewhere(slots, index),
        }
    }

    /// Removes a block that is kept by address.
    #[cold]
    #[inline(never)]
    fn remove_elsewhere(&mut self, slots: &[Block], index: u32) {
        match &mut self.by_address {
            Some(streams) => remove_by_address(streams, slots, index),
            None => debug_assert!(false, "a block that is not in the free index was removed"),
        }
    }

    /// The stream's block with the lowest address among those that have at least `size` bytes and end after
    /// `from`.
    #[inline]
    pub(crate) fn lowest_at_least(&self, slots: &[Block], stream_slot: u16, size: u64, from: u64) -> Option<u32> {
        if let Some(streams) = &self.by_address {
            return streams.get(usize::from(stream_slot))?.lowest_at_least(size, from);
        }
        let ends_behind = |index: &u32| slots.at(*index).address + slots.at(*index).size > from;
        self.at_least(slots, stream_slot, size).filter(ends_behind).min_by_key(|&index| slots.at(index).address)
    }

    /// The first block of the stream with at least `size` bytes.
    #[inline(always)]
    pub(crate) fn first_at_least(&self, slots: &[Block], stream_slot: u16, size: u64) -> Option<u32> {
        match self.by_size(stream_slot) {
            Some(blocks) => blocks.first_at_least(slots, size),
            None => self.first_elsewhere(slots, stream_slot, size),
        }
    }

    /// The block of the same stream that follows block `index` by size, rank and address. Block `index` must be in
    /// the index.
    #[inline]
    pub(crate) fn following(&self, slots: &[Block], index: u32) -> Option<u32> {
        let stream_slot = slots.at(index).stream;
        match self.by_size(stream_slot) {
            Some(blocks) => blocks.following(slots, index),
            None => self.following_elsewhere(slots, index),
        }
    }

    #[cold]
    #[inline(never)]
    fn following_elsewhere(&self, slots: &[Block], index: u32) -> Option<u32> {
        let (stream_slot, place) = (slots.at(index).stream, place_by_size(slots, index));
        let behind = self.unsorted(stream_slot, |own| own >= place.0);
        behind.filter(|&other| place_by_size(slots, other) > place).min_by_key(|&other| place_by_size(slots, other))
    }

    #[cold]
    #[inline(never)]
    fn first_elsewhere(&self, slots: &[Block], stream_slot: u16, size: u64) -> Option<u32> {
        self.unsorted(stream_slot, |own| own >= size).min_by_key(|&index| place_by_size(slots, index))
    }

    /// The stream's largest block; if several are equally large, the first by rank and address.
    #[inline]
    pub(crate) fn largest_of(&self, slots: &[Block], stream_slot: u16) -> Option<u32> {
        match self.by_size(stream_slot) {
            Some(blocks) => blocks.largest(slots),
            None => self.first_elsewhere(
                slots,
                stream_slot,
                self.unsorted(stream_slot, |_| true).map(|index| slots.at(index).size).max()?,
            ),
        }
    }

    /// The blocks of one stream with fewer than `size` bytes, in reverse order.
    pub(crate) fn below<'a>(&'a self, slots: &'a [Block], stream_slot: u16, size: u64) -> impl Iterator<Item = u32> + 'a {
        match self.by_size(stream_slot) {
            Some(blocks) => Either::First(blocks.below(slots, size)),
            None => Either::Second(self.sorted(slots, stream_slot, |own| own < size).into_iter().rev()),
        }
    }

    /// The blocks of one stream with at least `size` bytes, in order.
    pub(crate) fn at_least<'a>(&'a self, slots: &'a [Block], stream_slot: u16, size: u64) -> impl Iterator<Item = u32> + 'a {
        match self.by_size(stream_slot) {
            Some(blocks) => Either::First(blocks.at_least(slots, size)),
            None => Either::Second(self.sorted(slots, stream_slot, |own| own >= size).into_iter()),
        }
    }

    /// The blocks of one stream that are kept by address and whose size `has` accepts, by address.
    fn unsorted(&self, stream_slot: u16, has: impl Fn(u64) -> bool) -> impl Iterator<Item = u32> {
        let entries = self.by_address(stream_slot).into_iter().flat_map(ByAddress::entries);
        entries.filter(move |entry| has(entry.size)).map(|entry| entry.index)
    }

    /// The blocks of one stream that are kept by address and whose size `has` accepts, by size.
    #[cold]
    fn sorted(&self, slots: &[Block], stream_slot: u16, has: impl Fn(u64) -> bool) -> Vec<u32> {
        let mut blocks: Vec<u32> = self.unsorted(stream_slot, has).collect();
        blocks.sort_unstable_by_key(|&index| place_by_size(slots, index));
        blocks
    }

    /// The number of stream slots that the index knows: all up to the last stream that has ever had a block here.
    #[inline]
    pub(crate) fn streams(&self) -> usize {
        self.by_address.as_ref().map_or(self.by_size.len(), |streams| streams.len())
    }

    /// Whether the stream has a block here.
    #[inline]
    pub(crate) fn is_occupied(&self, stream_slot: u16) -> bool {
        match self.by_size(stream_slot) {
            Some(blocks) => !blocks.is_empty(),
            None => self.unsorted(stream_slot, |_| true).next().is_some(),
        }
    }

    /// The largest free block of any stream.
    pub(crate) fn largest(&self, slots: &[Block]) -> Option<u32> {
        (0..self.streams()).filter_map(|slot| self.largest_of(slots, slot as u16)).max_by_key(|&index| slots.at(index).size)
    }
}

fn insert_by_address(streams: &mut Vec<ByAddress>, slots: &mut [Block], index: u32) {
    let slot = usize::from(slots.at(index).stream);
    if streams.len() <= slot {
        streams.resize_with(slot + 1, ByAddress::default);
    }
    let block = slots.at_mut(index);
    let spot = streams[slot].insert(Entry { address: block.address, size: block.size, index });
    (block.link_prev, block.link_next) = (spot.at, spot.place);
}

fn remove_by_address(streams: &mut [ByAddress], slots: &[Block], index: u32) {
    let block = slots.at(index);
    let went = Spot { at: block.link_prev, place: block.link_next };
    match streams.get_mut(usize::from(block.stream)) {
        Some(blocks) => blocks.remove(block.address, went),
        None => debug_assert!(false, "a block that is not in the free index was removed"),
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::{FreeIndex, FreeOrder};
    use crate::block::{Arena, Block, BlockState, Marks, NIL};

    /// Streams that have blocks.
    const STREAMS: u16 = 3;

    /// The same blocks twice, in the same slots. Each order writes to its own arena.
    struct Both {
        by_size: (Arena, FreeIndex),
        by_address: (Arena, FreeIndex),
        inside: Vec<u32>,
        end: u64,
    }

    impl Both {
        fn new() -> Both {
            let pool = |order| (Arena::new(false), FreeIndex::new(order));
            Both { by_size: pool(FreeOrder::BySize), by_address: pool(FreeOrder::ByAddress), inside: Vec::new(), end: 0 }
        }

        /// Adds a block after the other blocks of its rank, with a gap. Blocks of rank 1 descend from the end of the
        /// address space.
        fn insert(&mut self, (size, rank, stream, stamp): (u64, u32, u16, u64)) {
            let address = if rank == 0 { self.end } else { (1 << 40) - self.end - size };
            self.end += 2 * size;
            let (requested, prev, next) = (0, NIL, NIL);
            let (link_prev, link_next, generation, pool) = (3, 3, 0, 0);
            let (state, marks) = (BlockState::Free, Marks::default());
            let block = Block {
                address,
                size,
                requested,
                stamp,
                prev,
                next,
                link_prev,
                link_next,
                generation,
                rank,
                stream,
                pool,
                bin: 0,
                state,
                marks,
            };
            let [first, second] = [&mut self.by_size, &mut self.by_address].map(|(arena, index)| {
                let slot = arena.insert(block.clone());
                index.insert(arena, slot);
                slot
            });
            assert_eq!(first, second);
            self.inside.push(first);
        }

        fn remove(&mut self, place: usize) {
            let slot = self.inside.swap_remove(place % self.inside.len());
            for (arena, index) in [&mut self.by_size, &mut self.by_address] {
                index.remove(arena, slot);
                arena.remove(slot);
            }
        }
    }

    /// The answers to all queries with these numbers.
    fn answers((arena, index): &(Arena, FreeIndex), stream: u16, size: u64, other: u64) -> Vec<Option<u32>> {
        let mut answers = alloc::vec![
            index.first_at_least(arena, stream, size),
            index.lowest_at_least(arena, stream, size, 0),
            index.lowest_at_least(arena, stream, size, other * 20),
            index.largest_of(arena, stream),
        ];
        answers.extend(index.at_least(arena, stream, size).map(Some));
        answers.extend(index.at_least(arena, stream, 0).map(|block| index.following(arena, block)));
        answers.push(None);
        answers.extend(index.below(arena, stream, size).map(Some));
        answers
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn either_order_gives_the_same_answers(
            blocks in vec((1_u64..40, 0_u32..2, 0..STREAMS, 0_u64..5), 1..150),
            leave in vec(any::<usize>(), 0..100),
            asked in vec((0..=STREAMS, 0_u64..45, 0_u64..400), 30),
        ) {
            let mut both = Both::new();
            blocks.iter().for_each(|&(size, rank, stream, stamp)| both.insert((size * 512, rank, stream, stamp)));
            for place in leave {
                if !both.inside.is_empty() {
                    both.remove(place);
                }
            }
            for (stream, size, other) in asked {
                let size = size * 512;
                prop_assert_eq!(answers(&both.by_size, stream, size, other * 512), answers(&both.by_address, stream, size, other * 512));
            }
            let largest = |(arena, index): &(Arena, FreeIndex)| index.largest(arena).map(|slot| arena.at(slot).size);
            prop_assert_eq!(largest(&both.by_size), largest(&both.by_address));
        }
    }
}
