//! An oversized bin: one with more blocks than a list handles quickly.
//!
//! Such bins are normal: workloads repeat their sizes, and remainders pile up in the smallest bins. The keys
//! move out of the blocks into a sorted sequence, where a search touches no block. Usually all blocks of the
//! bin have one size, and the keys leave it out; the first block of another size makes them include it.

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::descending::Descending;
use crate::block::Block;
use crate::index::either::Either;

/// A block's key among those of its size: rank, address and slot, from the most to the least significant of
/// 128 bits. Two halves, because a `u128` would align keys to 16 bytes and make those with a size a third
/// larger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    high: u64,
    low: u64,
}

impl Place {
    const FIRST: Place = Place { high: 0, low: 0 };
    /// Above every block: none has the slot [`NIL`](crate::block::NIL).
    const END: Place = Place { high: u64::MAX, low: u64::MAX };

    #[inline]
    fn of(block: &Block, index: u32) -> Place {
        let high = u64::from(block.rank) << 32 | block.address >> 32;
        Place { high, low: block.address << 32 | u64::from(index) }
    }

    #[inline]
    fn slot(self) -> u32 {
        self.low as u32
    }

    #[inline]
    fn number(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }
}

impl Ord for Place {
    #[inline]
    fn cmp(&self, other: &Place) -> Ordering {
        // One wide comparison avoids the branch between two narrow ones.
        self.number().cmp(&other.number())
    }
}

impl PartialOrd for Place {
    #[inline]
    fn partial_cmp(&self, other: &Place) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The blocks of one bin, by size, rank and address.
#[derive(Clone, Debug)]
pub(super) enum OversizedBin {
    /// All blocks have this size.
    Equal(u64, Descending<Place>),
    Mixed(Descending<(u64, Place)>),
}

impl OversizedBin {
    /// From at least one block, in descending order.
    pub(super) fn new<'a>(blocks: impl Iterator<Item = (u32, &'a Block)>) -> OversizedBin {
        let keys: Vec<(u64, Place)> = blocks.map(|(index, block)| (block.size, Place::of(block, index))).collect();
        let size = keys[0].0;
        if keys.iter().all(|key| key.0 == size) {
            OversizedBin::Equal(size, Descending::new(keys.iter().map(|key| key.1).collect()))
        } else {
            OversizedBin::Mixed(Descending::new(keys))
        }
    }
}

impl OversizedBin {
    pub(super) fn len(&self) -> usize {
        match self {
            OversizedBin::Equal(_, places) => places.len(),
            OversizedBin::Mixed(keys) => keys.len(),
        }
    }

    /// Adds a block; false if it was there.
    pub(super) fn insert(&mut self, block: &Block, index: u32) -> bool {
        let place = Place::of(block, index);
        match self {
            OversizedBin::Equal(size, places) if *size == block.size => places.insert(place),
            OversizedBin::Equal(size, places) => {
                let mut keys = places.renamed(|other| (*size, other));
                let fresh = keys.insert((block.size, place));
                *self = OversizedBin::Mixed(keys);
                fresh
            }
            OversizedBin::Mixed(keys) => keys.insert((block.size, place)),
        }
    }

    /// Removes a block; false if it was not there.
    pub(super) fn remove(&mut self, block: &Block, index: u32) -> bool {
        let place = Place::of(block, index);
        match self {
            OversizedBin::Equal(size, places) => *size == block.size && places.remove(place),
            OversizedBin::Mixed(keys) => keys.remove((block.size, place)),
        }
    }

    /// The first block.
    #[inline]
    pub(super) fn first(&self) -> Option<u32> {
        match self {
            OversizedBin::Equal(_, places) => places.first().map(Place::slot),
            OversizedBin::Mixed(keys) => keys.first().map(|key| key.1.slot()),
        }
    }

    /// The first block with at least `size` bytes.
    #[inline]
    pub(super) fn first_at_least(&self, size: u64) -> Option<u32> {
        match self {
            OversizedBin::Equal(own, places) => places.first().filter(|_| *own >= size).map(Place::slot),
            OversizedBin::Mixed(keys) => keys.first_at_least((size, Place::FIRST)).map(|key| key.1.slot()),
        }
    }

    /// The first block behind the place in the order of block `index`.
    pub(super) fn first_behind(&self, block: &Block, index: u32) -> Option<u32> {
        // No block has this place: slots are below `NIL`.
        let behind = Place::of(block, index + 1);
        match self {
            OversizedBin::Equal(own, places) if *own == block.size => places.first_at_least(behind).map(Place::slot),
            OversizedBin::Equal(own, places) => places.first().filter(|_| *own > block.size).map(Place::slot),
            OversizedBin::Mixed(keys) => keys.first_at_least((block.size, behind)).map(|key| key.1.slot()),
        }
    }

    /// The last block.
    pub(super) fn last(&self) -> Option<u32> {
        match self {
            OversizedBin::Equal(_, places) => places.last().map(Place::slot),
            OversizedBin::Mixed(keys) => keys.last().map(|key| key.1.slot()),
        }
    }

    /// All blocks, descending.
    pub(super) fn descending(&self) -> impl Iterator<Item = u32> + '_ {
        match self {
            OversizedBin::Equal(_, places) => Either::First(places.iter().map(Place::slot)),
            OversizedBin::Mixed(keys) => Either::Second(keys.iter().map(|key| key.1.slot())),
        }
    }

    /// The blocks with at least `size` bytes, ascending.
    pub(super) fn at_least(&self, size: u64) -> impl Iterator<Item = u32> + '_ {
        match self {
            OversizedBin::Equal(own, places) => Either::First(places.at_least(boundary(*own, size)).map(Place::slot)),
            OversizedBin::Mixed(keys) => Either::Second(keys.at_least((size, Place::FIRST)).map(|key| key.1.slot())),
        }
    }

    /// The blocks with fewer than `size` bytes, descending.
    pub(super) fn below(&self, size: u64) -> impl Iterator<Item = u32> + '_ {
        match self {
            OversizedBin::Equal(own, places) => Either::First(places.below(boundary(*own, size)).map(Place::slot)),
            OversizedBin::Mixed(keys) => Either::Second(keys.below((size, Place::FIRST)).map(|key| key.1.slot())),
        }
    }
}

/// Where blocks with at least `size` bytes begin among blocks of `own` bytes: before all of them or after.
fn boundary(own: u64, size: u64) -> Place {
    if own >= size { Place::FIRST } else { Place::END }
}
