//! The address space: chunks, the space between them, and what others use of both.
//!
//! The three rules of this folder are [`Layout::choose`], [`Layout::take`] and [`Layout::release`]. The rest
//! is book-keeping: each address is in a hole of a chunk, in the space between chunks, used by the program,
//! used by somebody else ("hidden"), or not known to be free.

use super::chunks::{Chunk, Chunks};
use crate::range_maps::{Holes, Intervals};

/// Chunks start and end on multiples of this, in bytes.
pub(super) const GRANULE_BYTES: u64 = 32 << 20;
/// A gap must be this much longer than a chunk that is put into it, in bytes.
pub(super) const SLACK_BYTES: u64 = 32 << 20;

/// Where a range would go.
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

/// The whole address space.
#[derive(Clone, Default, Debug)]
pub(super) struct Layout {
    /// Addresses known to be free and in no chunk.
    space: Holes,
    chunks: Chunks,
    /// What others use, of chunks and of the space.
    hidden: Intervals<()>,
}

impl Layout {
    /// How many pieces the address space is in: the cost of going through all of it.
    pub(super) fn pieces(&self) -> usize {
        self.chunks.len() + self.space.count() + self.hidden.count()
    }

    /// Where the driver would put a range of `bytes` bytes.
    pub(super) fn choose(&mut self, bytes: u64) -> Option<Spot> {
        if let Some((address, hole_bytes)) = self.chunks.newest_fit(bytes) {
            return Some(Spot::Hole { address, hole_bytes });
        }
        let length = bytes.checked_next_multiple_of(GRANULE_BYTES)?;
        let (address, gap_start, gap_end) = self.space.highest_fit(length, SLACK_BYTES, GRANULE_BYTES)?;
        Some(Spot::New { address, gap_start, gap_end })
    }

    /// Takes what [`Layout::choose`] chose.
    pub(super) fn take(&mut self, spot: Spot, bytes: u64) {
        match spot {
            Spot::Hole { address, .. } => {
                self.chunks.change(address, |chunk| chunk.holes.remove(address, bytes));
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

    /// Frees a range. A chunk that is empty then returns to the space, unless somebody else made it: then it
    /// may not be empty. Returns whether it did.
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

    /// Whether no chunk has, or begins right behind, any of the addresses from `start` up to `end`.
    pub(super) fn has_no_chunk(&self, start: u64, end: u64) -> bool {
        self.chunks.overlapping(start, end.saturating_add(1)).is_empty()
    }

    /// Adds addresses that are free. Those in chunks or hidden stay as they are.
    pub(super) fn add_space(&mut self, start: u64, bytes: u64) {
        let mut fresh = self.outside_chunks(start, bytes);
        let taken = self.space.parts(start, bytes).into_iter().chain(self.hidden_in(start, bytes));
        taken.for_each(|(taken, length)| fresh.remove(taken, length));
        fresh.iter().for_each(|(start, length)| self.space.insert(start, length));
    }

    /// Adds free parts of somebody else's chunk, where there is no chunk yet. They count as the oldest; those
    /// that touch merge.
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

    /// Takes out somebody else's chunk that touches these addresses.
    fn foreign_beside(&mut self, start: u64, end: u64) -> Option<Chunk> {
        let before = start.checked_sub(1).and_then(|last| self.chunks.at(last));
        let behind = self.chunks.at(end).filter(|chunk| chunk.start == end);
        let beside = before.filter(|chunk| chunk.is_foreign).or(behind.filter(|chunk| chunk.is_foreign))?.start;
        self.chunks.remove(beside)
    }

    /// Others take the free parts of these addresses.
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

    /// Others return every piece of theirs that overlaps these addresses, whole.
    pub(super) fn unhide(&mut self, start: u64, bytes: u64) {
        for (piece, length) in self.hidden_in(start, bytes) {
            self.hidden.remove(piece);
            if self.chunks.change(piece, |chunk| chunk.holes.insert(piece, length)).is_none() {
                self.space.insert(piece, length);
            }
        }
    }

    /// The pieces used by others that overlap these addresses.
    pub(super) fn hidden_in(&self, start: u64, bytes: u64) -> Vec<(u64, u64)> {
        self.hidden.overlapping(start, start + bytes).collect()
    }

    /// Start and end of the chunk that contains an address.
    pub(super) fn chunk_around(&self, address: u64) -> Option<(u64, u64)> {
        self.chunks.at(address).map(|chunk| (chunk.start, chunk.end))
    }

    /// The hole or gap that contains all of these addresses: its start and end, and whether it is a hole of a
    /// chunk.
    pub(super) fn free_around(&self, start: u64, bytes: u64) -> Option<(u64, u64, bool)> {
        let around = |holes: &Holes| holes.around(start).filter(|&(_, end)| start + bytes <= end);
        let hole = self.chunks.at(start).and_then(|chunk| around(&chunk.holes));
        hole.map(|(start, end)| (start, end, true)).or_else(|| around(&self.space).map(|(start, end)| (start, end, false)))
    }

    /// The lowest known address.
    pub(super) fn lowest(&self) -> Option<u64> {
        let space = self.space.iter().map(|(start, _)| start).next();
        self.chunks.lowest().into_iter().chain(space).min()
    }
}
