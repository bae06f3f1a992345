//! The address space as NVIDIA's driver has been observed to use it: chunks, the space between them, and the parts of
//! both that other code uses.
//!
//! The three rules of the observed driver are [`Layout::choose`], [`Layout::take`] and [`Layout::release`]. The rest is
//! bookkeeping: each address is in a hole of a chunk, in the space between chunks, used by the program, used by other
//! code ("hidden"), or not known to be free.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::range_maps::{Holes, Intervals};

/// A part of the address space that the driver holds and from which it serves requests.
#[derive(Clone, Debug)]
struct Chunk {
    start: u64,
    end: u64,
    holes: Holes,
    /// Whether other code made it. If so, its true ends are unknown.
    is_foreign: bool,
}

/// Chunks, which do not overlap, ordered by age, by address and by room.
#[derive(Clone, Default, Debug)]
struct Chunks {
    /// The chunks, oldest first.
    by_age: BTreeMap<i64, Chunk>,
    /// The chunks' ages, by first address.
    ages: BTreeMap<u64, i64>,
    /// The chunks' ages, by an upper bound on the length of a chunk's holes. There are few different lengths, because
    /// chunks of the same size fill up in the same way.
    room: BTreeMap<u64, BTreeSet<i64>>,
}

impl Chunks {
    fn len(&self) -> usize {
        self.by_age.len()
    }

    /// Returns the first address of the lowest chunk.
    fn lowest(&self) -> Option<u64> {
        self.ages.keys().next().copied()
    }

    fn add_newest(&mut self, chunk: Chunk) {
        let age = self.by_age.last_key_value().map_or(0, |(newest, _)| newest + 1);
        self.insert(age, chunk);
    }

    fn add_oldest(&mut self, chunk: Chunk) {
        let age = self.by_age.first_key_value().map_or(0, |(oldest, _)| oldest - 1);
        self.insert(age, chunk);
    }

    fn insert(&mut self, age: i64, chunk: Chunk) {
        self.ages.insert(chunk.start, age);
        self.room.entry(chunk.holes.longest_at_most()).or_default().insert(age);
        self.by_age.insert(age, chunk);
    }

    /// Removes a chunk from the order by room.
    fn forget_room(&mut self, length: u64, age: i64) {
        if let Entry::Occupied(mut ages) = self.room.entry(length) {
            ages.get_mut().remove(&age);
            if ages.get().is_empty() {
                ages.remove();
            }
        }
    }

    /// Returns the chunk that contains an address.
    fn at(&self, address: u64) -> Option<&Chunk> {
        let (_, age) = self.ages.range(..=address).next_back()?;
        self.by_age.get(age).filter(|chunk| address < chunk.end)
    }

    /// Changes the chunk that contains an address. Returns `None` if there is none.
    fn change<T>(&mut self, address: u64, change: impl FnOnce(&mut Chunk) -> T) -> Option<T> {
        let (_, &age) = self.ages.range(..=address).next_back()?;
        let chunk = self.by_age.get_mut(&age).filter(|chunk| address < chunk.end)?;
        let before = chunk.holes.longest_at_most();
        let changed = change(chunk);
        let now = chunk.holes.longest_at_most();
        if now != before {
            self.forget_room(before, age);
            self.room.entry(now).or_default().insert(age);
        }
        Some(changed)
    }

    /// Removes the chunk that contains an address.
    fn remove(&mut self, address: u64) -> Option<Chunk> {
        let start = self.at(address)?.start;
        let age = self.ages.remove(&start)?;
        let chunk = self.by_age.remove(&age)?;
        self.forget_room(chunk.holes.longest_at_most(), age);
        Some(chunk)
    }

    /// Returns the chunks that overlap these addresses: the first address and the end of each one.
    fn overlapping(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let first = self.at(start).map_or(start, |chunk| chunk.start);
        let starts = self.ages.range(first..end.max(first)).map(|(&start, _)| start);
        starts.filter_map(|start| self.at(start)).map(|chunk| (chunk.start, chunk.end)).collect()
    }

    /// Returns the address and length of the lowest hole with at least `bytes` bytes in the newest chunk that has one.
    fn newest_fit(&mut self, bytes: u64) -> Option<(u64, u64)> {
        loop {
            let newest = self.room.range(bytes..).filter_map(|(_, ages)| ages.last()).max()?;
            let start = self.by_age.get(newest)?.start;
            // This fails only if the hole has been taken since then, in which case the chunk's recorded room shrinks.
            if let Some(hole) = self.change(start, |chunk| chunk.holes.first_fit(bytes))? {
                return Some(hole);
            }
        }
    }
}

/// Chunks start and end at multiples of this size, in bytes.
pub(super) const GRANULE_BYTES: u64 = 32 << 20;
/// A gap must be at least this much longer than a chunk placed in it, in bytes.
pub(super) const SLACK_BYTES: u64 = 32 << 20;

/// The place where the driver would put a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spot {
    /// At the start of a hole of this length in a chunk.
    Hole { address: u64, hole_bytes: u64 },
    /// At the start of a new chunk in this gap of the address space.
    New { address: u64, gap_start: u64, gap_end: u64 },
}

impl Spot {
    pub(super) fn address(self) -> u64 {
        match self {
            Spot::Hole { address, .. } | Spot::New { address, .. } => address,
        }
    }
}

/// The entire address space.
#[derive(Clone, Default, Debug)]
pub(super) struct Layout {
    /// Addresses known to be free and in no chunk.
    space: Holes,
    chunks: Chunks,
    /// The parts of chunks and of the space between them that other code uses.
    hidden: Intervals<()>,
}

impl Layout {
    /// Returns the number of pieces of the address space: the cost of visiting all of it.
    pub(super) fn pieces(&self) -> usize {
        self.chunks.len() + self.space.count() + self.hidden.count()
    }

    /// Returns the address at which the driver would put a range of `bytes` bytes.
    pub(super) fn choose(&mut self, bytes: u64) -> Option<Spot> {
        if let Some((address, hole_bytes)) = self.chunks.newest_fit(bytes) {
            return Some(Spot::Hole { address, hole_bytes });
        }
        let length = bytes.checked_next_multiple_of(GRANULE_BYTES)?;
        let (address, gap_start, gap_end) = self.space.highest_fit(length, SLACK_BYTES, GRANULE_BYTES)?;
        Some(Spot::New { address, gap_start, gap_end })
    }

    /// Takes the place that [`Layout::choose`] chose.
    pub(super) fn take(&mut self, spot: Spot, bytes: u64) {
        match spot {
            Spot::Hole { address, .. } => {
                self.chunks.change(address, |chunk| chunk.holes.take_start(address, bytes));
            }
            Spot::New { address, .. } => {
                let length = bytes.next_multiple_of(GRANULE_BYTES);
                self.space.remove(address, length);
                let mut holes = Holes::default();
                holes.insert(address + bytes, length - bytes);
                self.chunks.add_newest(Chunk { start: address, end: address + length, holes, is_foreign: false });
            }
        }
    }

    /// Frees a range. If its chunk is then empty, the chunk is returned to the space, unless other code made it, in
    /// which case it may not really be empty. Returns whether the chunk was returned.
    pub(super) fn release(&mut self, address: u64, bytes: u64) -> bool {
        let is_empty = self.chunks.change(address, |chunk| {
            chunk.holes.insert(address, bytes);
            !chunk.is_foreign && chunk.holes.are_only(chunk.start, chunk.end - chunk.start)
        });
        if is_empty == Some(true)
            && let Some(chunk) = self.chunks.remove(address)
        {
            self.space.insert(chunk.start, chunk.end - chunk.start);
        }
        is_empty == Some(true)
    }

    /// Returns whether no chunk contains any of the addresses from `start` up to `end`, or begins right after them.
    pub(super) fn has_no_chunk(&self, start: u64, end: u64) -> bool {
        self.chunks.overlapping(start, end.saturating_add(1)).is_empty()
    }

    /// Adds addresses that are free. Addresses in chunks and hidden addresses do not change.
    pub(super) fn add_space(&mut self, start: u64, bytes: u64) {
        let mut fresh = self.outside_chunks(start, bytes);
        let taken = self.space.parts(start, bytes).into_iter().chain(self.hidden_in(start, bytes));
        taken.for_each(|(taken, length)| fresh.remove(taken, length));
        fresh.iter().for_each(|(start, length)| self.space.insert(start, length));
    }

    /// Adds the parts of a free chunk made by other code where there is no chunk yet. These parts count as the oldest
    /// chunks; adjacent parts are merged.
    pub(super) fn add_chunk(&mut self, start: u64, bytes: u64) {
        self.space.remove(start, bytes);
        for (piece, _) in self.hidden_in(start, bytes) {
            self.hidden.remove(piece);
        }
        for (start, bytes) in self.outside_chunks(start, bytes).iter() {
            self.add_foreign(start, start + bytes);
        }
    }

    fn outside_chunks(&self, start: u64, bytes: u64) -> Holes {
        let mut outside = Holes::default();
        outside.insert(start, bytes);
        let inside = self.chunks.overlapping(start, start.saturating_add(bytes));
        inside.into_iter().for_each(|(start, end)| outside.remove(start, end - start));
        outside
    }

    fn add_foreign(&mut self, start: u64, end: u64) {
        let mut merged = Chunk { start, end, holes: Holes::default(), is_foreign: true };
        merged.holes.insert(start, end - start);
        while let Some(other) = self.foreign_beside(merged.start, merged.end) {
            merged.start = merged.start.min(other.start);
            merged.end = merged.end.max(other.end);
            other.holes.iter().for_each(|(hole, length)| merged.holes.insert(hole, length));
        }
        self.chunks.add_oldest(merged);
    }

    /// Removes the chunk made by other code that is adjacent to these addresses.
    fn foreign_beside(&mut self, start: u64, end: u64) -> Option<Chunk> {
        let before = start.checked_sub(1).and_then(|last| self.chunks.at(last));
        let behind = self.chunks.at(end).filter(|chunk| chunk.start == end);
        let beside = before.filter(|chunk| chunk.is_foreign).or(behind.filter(|chunk| chunk.is_foreign))?.start;
        self.chunks.remove(beside)
    }

    /// Makes other code take the free parts of these addresses.
    pub(super) fn hide(&mut self, start: u64, bytes: u64) {
        let mut taken = self.space.parts(start, bytes);
        self.space.remove(start, bytes);
        for (inside, _) in self.chunks.overlapping(start, start.saturating_add(bytes)) {
            let parts = self.chunks.change(inside, |chunk| {
                let parts = chunk.holes.parts(start, bytes);
                chunk.holes.remove(start, bytes);
                parts
            });
            taken.extend(parts.into_iter().flatten());
        }
        for (start, bytes) in taken {
            self.hidden.insert(start, bytes, ());
        }
    }

    /// Makes other code return all its pieces that overlap these addresses, each of them entirely.
    pub(super) fn unhide(&mut self, start: u64, bytes: u64) {
        for (piece, length) in self.hidden_in(start, bytes) {
            self.hidden.remove(piece);
            if self.chunks.change(piece, |chunk| chunk.holes.insert(piece, length)).is_none() {
                self.space.insert(piece, length);
            }
        }
    }

    /// Returns the pieces used by other code that overlap these addresses.
    pub(super) fn hidden_in(&self, start: u64, bytes: u64) -> Vec<(u64, u64)> {
        self.hidden.overlapping(start, start + bytes).collect()
    }

    /// Returns the start and end of the chunk that contains an address.
    pub(super) fn chunk_around(&self, address: u64) -> Option<(u64, u64)> {
        self.chunks.at(address).map(|chunk| (chunk.start, chunk.end))
    }

    /// Returns the hole or gap that contains all of these addresses: its start and end, and whether it is a hole in a
    /// chunk.
    pub(super) fn free_around(&self, start: u64, bytes: u64) -> Option<(u64, u64, bool)> {
        let around = |holes: &Holes| holes.around(start).filter(|&(_, end)| start + bytes <= end);
        let hole = self.chunks.at(start).and_then(|chunk| around(&chunk.holes));
        hole.map(|(start, end)| (start, end, true)).or_else(|| around(&self.space).map(|(start, end)| (start, end, false)))
    }

    /// Returns the lowest known address.
    pub(super) fn lowest(&self) -> Option<u64> {
        let space = self.space.iter().map(|(start, _)| start).next();
        self.chunks.lowest().into_iter().chain(space).min()
    }
}
