//! A crowded bin: a bin with more blocks than a list can handle quickly.
//!
//! Crowded bins are normal: workloads repeat their sizes, and remainders accumulate in the smallest bins. The keys
//! are stored in a sorted sequence instead of in the blocks, so a search does not access any block. Usually all blocks
//! of the bin have the same size, which the keys omit; when a block of a different size is added, they include it.
//!
//! A flat vector is faster than a tree as long as a change moves little memory. The sequence is therefore cut into
//! chunks of bounded length, with a vector of bounds for finding the right chunk. Keys are in descending order,
//! because the smallest one is taken most often, and removing the last element of a vector is cheap.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;

use crate::block::Block;

/// A block's key among the blocks of its size: rank, address and slot, from the most to the least significant of 128
/// bits. It has two halves, because a `u128` would align keys to 16 bytes and make keys that include a size a third
/// larger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    high: u64,
    low: u64,
}

impl Place {
    const FIRST: Place = Place { high: 0, low: 0 };
    /// Greater than the key of any block, because no block has the slot [`NIL`](crate::block::NIL).
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
pub(super) enum CrowdedBin {
    /// All blocks have this size.
    Equal(u64, Descending<Place>),
    Mixed(Descending<(u64, Place)>),
}

impl CrowdedBin {
    /// Builds a bin from at least one block, in descending order.
    pub(super) fn new<'a>(blocks: impl Iterator<Item = (u32, &'a Block)>) -> CrowdedBin {
        let keys: Vec<(u64, Place)> = blocks.map(|(index, block)| (block.size, Place::of(block, index))).collect();
        let size = keys[0].0;
        if keys.iter().all(|key| key.0 == size) {
            CrowdedBin::Equal(size, Descending::new(keys.iter().map(|key| key.1).collect()))
        } else {
            CrowdedBin::Mixed(Descending::new(keys))
        }
    }
}

impl CrowdedBin {
    pub(super) fn len(&self) -> usize {
        match self {
            CrowdedBin::Equal(_, places) => places.len(),
            CrowdedBin::Mixed(keys) => keys.len(),
        }
    }

    /// Adds a block. Returns false if the block was already there.
    pub(super) fn insert(&mut self, block: &Block, index: u32) -> bool {
        let place = Place::of(block, index);
        match self {
            CrowdedBin::Equal(size, places) if *size == block.size => places.insert(place),
            CrowdedBin::Equal(size, places) => {
                let mut keys = places.renamed(|other| (*size, other));
                let fresh = keys.insert((block.size, place));
                *self = CrowdedBin::Mixed(keys);
                fresh
            }
            CrowdedBin::Mixed(keys) => keys.insert((block.size, place)),
        }
    }

    /// Removes a block. Returns false if the block was not there.
    pub(super) fn remove(&mut self, block: &Block, index: u32) -> bool {
        let place = Place::of(block, index);
        match self {
            CrowdedBin::Equal(size, places) => *size == block.size && places.remove(place),
            CrowdedBin::Mixed(keys) => keys.remove((block.size, place)),
        }
    }

    /// The first block.
    #[inline]
    pub(super) fn first(&self) -> Option<u32> {
        match self {
            CrowdedBin::Equal(_, places) => places.first().map(Place::slot),
            CrowdedBin::Mixed(keys) => keys.first().map(|key| key.1.slot()),
        }
    }

    /// The first block with at least `size` bytes.
    #[inline]
    pub(super) fn first_at_least(&self, size: u64) -> Option<u32> {
        match self {
            CrowdedBin::Equal(own, places) => places.first().filter(|_| *own >= size).map(Place::slot),
            CrowdedBin::Mixed(keys) => keys.first_at_least((size, Place::FIRST)).map(|key| key.1.slot()),
        }
    }

    /// The first block that comes after block `index` in the order.
    pub(super) fn first_behind(&self, block: &Block, index: u32) -> Option<u32> {
        // No block has this key: slots are below `NIL`.
        let behind = Place::of(block, index + 1);
        match self {
            CrowdedBin::Equal(own, places) if *own == block.size => places.first_at_least(behind).map(Place::slot),
            CrowdedBin::Equal(own, places) => places.first().filter(|_| *own > block.size).map(Place::slot),
            CrowdedBin::Mixed(keys) => keys.first_at_least((block.size, behind)).map(|key| key.1.slot()),
        }
    }

    /// The last block.
    pub(super) fn last(&self) -> Option<u32> {
        match self {
            CrowdedBin::Equal(_, places) => places.last().map(Place::slot),
            CrowdedBin::Mixed(keys) => keys.last().map(|key| key.1.slot()),
        }
    }

    /// All blocks, in descending order.
    pub(super) fn descending(&self) -> impl Iterator<Item = u32> + '_ {
        match self {
            CrowdedBin::Equal(_, places) => Either::First(places.iter().map(Place::slot)),
            CrowdedBin::Mixed(keys) => Either::Second(keys.iter().map(|key| key.1.slot())),
        }
    }

    /// The blocks with at least `size` bytes, in ascending order.
    pub(super) fn at_least(&self, size: u64) -> impl Iterator<Item = u32> + '_ {
        match self {
            CrowdedBin::Equal(own, places) => Either::First(places.at_least(boundary(*own, size)).map(Place::slot)),
            CrowdedBin::Mixed(keys) => Either::Second(keys.at_least((size, Place::FIRST)).map(|key| key.1.slot())),
        }
    }

    /// The blocks with fewer than `size` bytes, in descending order.
    pub(super) fn below(&self, size: u64) -> impl Iterator<Item = u32> + '_ {
        match self {
            CrowdedBin::Equal(own, places) => Either::First(places.below(boundary(*own, size)).map(Place::slot)),
            CrowdedBin::Mixed(keys) => Either::Second(keys.below((size, Place::FIRST)).map(|key| key.1.slot())),
        }
    }
}

/// One of two iterators.
pub(super) enum Either<A, B> {
    First(A),
    Second(B),
}

impl<T, A: Iterator<Item = T>, B: Iterator<Item = T>> Iterator for Either<A, B> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match self {
            Either::First(iterator) => iterator.next(),
            Either::Second(iterator) => iterator.next(),
        }
    }
}

/// The first key for which blocks of `own` bytes have at least `size` bytes: the lowest key if they all do, or the end
/// if none does.
fn boundary(own: u64, size: u64) -> Place {
    if own >= size { Place::FIRST } else { Place::END }
}

/// The maximum number of keys in a chunk. A change moves half a chunk on average.
const CHUNK: usize = 128;

/// Distinct keys in descending order.
#[derive(Clone, Debug)]
pub(super) struct Descending<K> {
    /// At least one chunk; no chunk is empty unless it is the only one.
    chunks: Vec<Vec<K>>,
    /// The bounds between adjacent chunks: keys that are not below a bound are in the earlier chunk.
    bounds: Vec<K>,
    count: usize,
}

impl<K: Copy + Ord> Descending<K> {
    /// Builds the sequence from keys in descending order.
    fn new(keys: Vec<K>) -> Descending<K> {
        debug_assert!(keys.is_sorted_by(|a, b| a > b));
        debug_assert!(keys.len() <= CHUNK);
        Descending { count: keys.len(), chunks: vec![keys], bounds: Vec::new() }
    }

    /// The same sequence with different keys; `rename` must preserve the order.
    fn renamed<L>(&self, rename: impl Fn(K) -> L) -> Descending<L> {
        let chunks = self.chunks.iter().map(|chunk| chunk.iter().map(|&key| rename(key)).collect()).collect();
        Descending { chunks, bounds: self.bounds.iter().map(|&key| rename(key)).collect(), count: self.count }
    }

    fn len(&self) -> usize {
        self.count
    }

    /// The index of the chunk where the key is or would be.
    #[inline]
    fn chunk_of(&self, key: K) -> usize {
        self.bounds.partition_point(|&bound| bound > key)
    }

    /// Adds a key. Returns false if the key was already there.
    fn insert(&mut self, key: K) -> bool {
        let number = self.chunk_of(key);
        let chunk = &mut self.chunks[number];
        let place = chunk.partition_point(|&other| other > key);
        if chunk.get(place) == Some(&key) {
            return false;
        }
        chunk.insert(place, key);
        self.count += 1;
        if chunk.len() > CHUNK {
            self.split(number);
        }
        true
    }

    /// Removes a key. Returns false if the key was not there.
    fn remove(&mut self, key: K) -> bool {
        // No search is needed for the smallest key.
        let number = if self.first() == Some(key) { self.bounds.len() } else { self.chunk_of(key) };
        let chunk = &mut self.chunks[number];
        if chunk.last() == Some(&key) {
            chunk.pop();
        } else {
            let place = chunk.partition_point(|&other| other > key);
            if chunk.get(place) != Some(&key) {
                return false;
            }
            chunk.remove(place);
        }
        self.count -= 1;
        if chunk.len() < CHUNK / 4 && !self.bounds.is_empty() {
            self.merge(number);
        }
        true
    }

    #[cold]
    fn split(&mut self, number: usize) {
        let chunk = &mut self.chunks[number];
        let low = chunk.split_off(chunk.len() / 2);
        let bound = chunk[chunk.len() - 1];
        self.bounds.insert(number, bound);
        self.chunks.insert(number + 1, low);
    }

    /// Joins a small chunk with a neighbour if the result is well below a full chunk; a larger one would soon split
    /// again.
    #[cold]
    fn merge(&mut self, number: usize) {
        let high = number.min(self.bounds.len() - 1);
        let joined = self.chunks[high].len() + self.chunks[high + 1].len();
        if joined <= CHUNK * 3 / 4 || self.chunks[number].is_empty() {
            let low = self.chunks.remove(high + 1);
            self.chunks[high].extend(low);
            self.bounds.remove(high);
        }
    }

    /// The smallest key that is at least `key`.
    fn first_at_least(&self, key: K) -> Option<K> {
        let number = self.chunk_of(key);
        let chunk = &self.chunks[number];
        match chunk.partition_point(|&other| other >= key) {
            0 => self.chunks[..number].last()?.last().copied(),
            above => Some(chunk[above - 1]),
        }
    }

    fn first(&self) -> Option<K> {
        self.chunks[self.chunks.len() - 1].last().copied()
    }

    fn last(&self) -> Option<K> {
        self.chunks[0].first().copied()
    }

    /// The keys that are at least `key`, in ascending order.
    fn at_least(&self, key: K) -> impl Iterator<Item = K> + '_ {
        let number = self.chunk_of(key);
        let above = self.chunks[number].partition_point(|&other| other >= key);
        let earlier = self.chunks[..number].iter().flatten();
        earlier.chain(&self.chunks[number][..above]).rev().copied()
    }

    /// The keys that are less than `key`, in descending order.
    fn below(&self, key: K) -> impl Iterator<Item = K> + '_ {
        let number = self.chunk_of(key);
        let above = self.chunks[number].partition_point(|&other| other >= key);
        let later = self.chunks[number + 1..].iter().flatten();
        self.chunks[number][above..].iter().chain(later).copied()
    }

    /// All keys, in descending order.
    fn iter(&self) -> impl Iterator<Item = K> + '_ {
        self.chunks.iter().flatten().copied()
    }
}
