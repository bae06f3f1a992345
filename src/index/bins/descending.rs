//! A sorted sequence in chunks: how an oversized bin keeps its keys.
//!
//! A flat vector beats a tree as long as a change moves little memory, so the keys lie in chunks of bounded
//! length, with a vector of bounds to find the chunk. Keys descend, because the smallest is taken most often
//! and the end of a vector is its cheap side.

use alloc::vec;
use alloc::vec::Vec;

/// The most keys in a chunk. A change moves half a chunk on average.
const CHUNK: usize = 128;

/// Distinct keys in descending order.
#[derive(Clone, Debug)]
pub(super) struct Descending<K> {
    /// At least one; none is empty unless it is the only one.
    chunks: Vec<Vec<K>>,
    /// One between each chunk and the next: keys not below the bound are in the earlier chunk.
    bounds: Vec<K>,
    count: usize,
}

impl<K: Copy + Ord> Descending<K> {
    /// From keys in descending order.
    pub(super) fn new(keys: Vec<K>) -> Descending<K> {
        debug_assert!(keys.is_sorted_by(|a, b| a > b));
        debug_assert!(keys.len() <= CHUNK);
        Descending { count: keys.len(), chunks: vec![keys], bounds: Vec::new() }
    }

    /// The same sequence with other keys; `rename` must preserve the order.
    pub(super) fn renamed<L>(&self, rename: impl Fn(K) -> L) -> Descending<L> {
        let chunks = self.chunks.iter().map(|chunk| chunk.iter().map(|&key| rename(key)).collect()).collect();
        Descending { chunks, bounds: self.bounds.iter().map(|&key| rename(key)).collect(), count: self.count }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The index of the chunk where the key is or would be.
    #[inline]
    fn chunk_of(&self, key: K) -> usize {
        self.bounds.partition_point(|&bound| bound > key)
    }

    /// Adds a key; false if it was there.
    pub(super) fn insert(&mut self, key: K) -> bool {
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

    /// Removes a key; false if it was not there.
    pub(super) fn remove(&mut self, key: K) -> bool {
        // The smallest key needs no search.
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

    /// Joins a small chunk with a neighbour if both together are well below a full chunk, so that they do not
    /// split again at once.
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
    pub(super) fn first_at_least(&self, key: K) -> Option<K> {
        let number = self.chunk_of(key);
        let chunk = &self.chunks[number];
        match chunk.partition_point(|&other| other >= key) {
            0 => self.chunks[..number].last()?.last().copied(),
            above => Some(chunk[above - 1]),
        }
    }

    pub(super) fn first(&self) -> Option<K> {
        self.chunks[self.chunks.len() - 1].last().copied()
    }

    pub(super) fn last(&self) -> Option<K> {
        self.chunks[0].first().copied()
    }

    /// The keys that are at least `key`, ascending.
    pub(super) fn at_least(&self, key: K) -> impl Iterator<Item = K> + '_ {
        let number = self.chunk_of(key);
        let above = self.chunks[number].partition_point(|&other| other >= key);
        let earlier = self.chunks[..number].iter().flatten();
        earlier.chain(&self.chunks[number][..above]).rev().copied()
    }

    /// The keys that are less than `key`, descending.
    pub(super) fn below(&self, key: K) -> impl Iterator<Item = K> + '_ {
        let number = self.chunk_of(key);
        let above = self.chunks[number].partition_point(|&other| other >= key);
        let later = self.chunks[number + 1..].iter().flatten();
        self.chunks[number][above..].iter().chain(later).copied()
    }

    /// All keys, descending.
    pub(super) fn iter(&self) -> impl Iterator<Item = K> + '_ {
        self.chunks.iter().flatten().copied()
    }
}
