//! The chunks of an address space, by age, by address and by the room that they have.

use std::collections::{BTreeMap, BTreeSet};

use crate::range_maps::Holes;

/// A part of the address space that the driver holds and serves requests from.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) holes: Holes,
    /// Whether somebody else made it. Then its true ends are unknown.
    pub(super) is_foreign: bool,
}

/// Chunks, which do not overlap.
#[derive(Clone, Default, Debug)]
pub(super) struct Chunks {
    /// Oldest first.
    by_age: BTreeMap<i64, Chunk>,
    /// The ages, by the first address.
    ages: BTreeMap<u64, i64>,
    /// A length that no hole of a chunk exceeds, with the chunk's age.
    room: BTreeSet<(u64, i64)>,
}

impl Chunks {
    pub(super) fn len(&self) -> usize {
        self.by_age.len()
    }

    /// The first address of the lowest.
    pub(super) fn lowest(&self) -> Option<u64> {
        self.ages.keys().next().copied()
    }

    pub(super) fn add_newest(&mut self, chunk: Chunk) {
        let age = self.by_age.last_key_value().map_or(0, |(newest, _)| newest + 1);
        self.insert(age, chunk);
    }

    pub(super) fn add_oldest(&mut self, chunk: Chunk) {
        let age = self.by_age.first_key_value().map_or(0, |(oldest, _)| oldest - 1);
        self.insert(age, chunk);
    }

    fn insert(&mut self, age: i64, chunk: Chunk) {
        self.ages.insert(chunk.start, age);
        self.room.insert((chunk.holes.longest_at_most(), age));
        self.by_age.insert(age, chunk);
    }

    /// The chunk that contains an address.
    pub(super) fn at(&self, address: u64) -> Option<&Chunk> {
        let (_, age) = self.ages.range(..=address).next_back()?;
        self.by_age.get(age).filter(|chunk| address < chunk.end)
    }

    /// Changes the chunk that contains an address. `None` if there is none.
    pub(super) fn change<T>(&mut self, address: u64, change: impl FnOnce(&mut Chunk) -> T) -> Option<T> {
        let (_, &age) = self.ages.range(..=address).next_back()?;
        let chunk = self.by_age.get_mut(&age).filter(|chunk| address < chunk.end)?;
        let before = chunk.holes.longest_at_most();
        let changed = change(chunk);
        let now = chunk.holes.longest_at_most();
        if now != before {
            self.room.remove(&(before, age));
            self.room.insert((now, age));
        }
        Some(changed)
    }

    /// Takes out the chunk that contains an address.
    pub(super) fn remove(&mut self, address: u64) -> Option<Chunk> {
        let start = self.at(address)?.start;
        let age = self.ages.remove(&start)?;
        let chunk = self.by_age.remove(&age)?;
        self.room.remove(&(chunk.holes.longest_at_most(), age));
        Some(chunk)
    }

    /// The chunks that overlap these addresses: the first address of each, and the one behind its last.
    pub(super) fn overlapping(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let first = self.at(start).map_or(start, |chunk| chunk.start);
        let starts = self.ages.range(first..end.max(first)).map(|(&start, _)| start);
        starts.filter_map(|start| self.at(start)).map(|chunk| (chunk.start, chunk.end)).collect()
    }

    /// The newest chunk with a hole of `bytes` bytes, and there the lowest such hole: its address and length.
    pub(super) fn newest_fit(&mut self, bytes: u64) -> Option<(u64, u64)> {
        loop {
            // Few lengths differ, as chunks of one size are filled alike.
            let mut newest: Option<i64> = None;
            let mut next = self.room.range((bytes, i64::MIN)..).next();
            while let Some(&(length, _)) = next {
                let of_length = self.room.range(..=(length, i64::MAX)).next_back();
                newest = newest.max(of_length.map(|&(_, age)| age));
                next = length.checked_add(1).and_then(|longer| self.room.range((longer, i64::MIN)..).next());
            }
            let start = self.by_age.get(&newest?)?.start;
            // In vain only if the hole was taken meanwhile; then the chunk is known to have less room.
            if let Some(hole) = self.change(start, |chunk| chunk.holes.first_fit(bytes))? {
                return Some(hole);
            }
        }
    }
}
