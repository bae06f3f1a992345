//! The address space: chunks, the space between them, and what others use of both.
//!
//! The three rules of this folder are [`Layout::choose`], [`Layout::take`] and [`Layout::release`]. The rest
//! is book-keeping: each address is in a hole of a chunk, in the space between chunks, used by the program,
//! used by somebody else ("hidden"), or not known to be free.

use crate::range_maps::{Holes, Intervals};

/// Chunks start and end on multiples of this, in bytes.
pub(super) const GRANULE_BYTES: u64 = 32 << 20;
/// A gap must be this much longer than a chunk that is put into it, in bytes.
pub(super) const SLACK_BYTES: u64 = 32 << 20;

/// A part of the address space that the driver holds and serves requests from.
#[derive(Clone, Debug)]
struct Chunk {
    start: u64,
    end: u64,
    holes: Holes,
    /// Whether somebody else made it. Then its true ends are unknown.
    is_foreign: bool,
}

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
    /// Oldest first.
    chunks: Vec<Chunk>,
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
        let hole = self.chunks.iter_mut().rev().find_map(|chunk| chunk.holes.first_fit(bytes));
        if let Some((address, hole_bytes)) = hole {
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
                if let Some(chunk) = self.chunk_at(address) {
                    chunk.holes.remove(address, bytes);
                }
            }
            Spot::New { address, .. } => {
                let length = bytes.next_multiple_of(GRANULE_BYTES);
                self.space.remove(address, length);
                let mut holes = Holes::default();
                holes.insert(address + bytes, length - bytes);
                self.chunks.push(Chunk { start: address, end: address + length, holes, is_foreign: false });
            }
        }
    }

    /// Frees a range. A chunk that is empty then returns to the space, unless somebody else made it: then it
    /// may not be empty.
    pub(super) fn release(&mut self, address: u64, bytes: u64) {
        let Some(at) = self.chunks.iter().position(|chunk| (chunk.start..chunk.end).contains(&address)) else { return };
        let chunk = &mut self.chunks[at];
        chunk.holes.insert(address, bytes);
        if !chunk.is_foreign && chunk.holes.are_only(chunk.start, chunk.end - chunk.start) {
            let chunk = self.chunks.remove(at);
            self.space.insert(chunk.start, chunk.end - chunk.start);
        }
    }

    /// Adds addresses that are free. Those in chunks or hidden stay as they are.
    pub(super) fn add_space(&mut self, start: u64, bytes: u64) {
        let mut fresh = self.outside_chunks(start, bytes);
        self.space.iter().for_each(|(taken, length)| fresh.remove(taken, length));
        self.hidden.iter().for_each(|(taken, length)| fresh.remove(taken, length));
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
        self.chunks.iter().for_each(|chunk| outside.remove(chunk.start, chunk.end - chunk.start));
        outside
    }

    fn add_foreign(&mut self, start: u64, end: u64) {
        let mut merged = Chunk { start, end, holes: Holes::default(), is_foreign: true };
        merged.holes.insert(start, end - start);
        while let Some(at) =
            self.chunks.iter().position(|other| other.is_foreign && (other.end == merged.start || other.start == merged.end))
        {
            let other = self.chunks.remove(at);
            merged.start = merged.start.min(other.start);
            merged.end = merged.end.max(other.end);
            other.holes.iter().for_each(|(hole, length)| merged.holes.insert(hole, length));
        }
        self.chunks.insert(0, merged);
    }

    /// Others take the free parts of these addresses.
    pub(super) fn hide(&mut self, start: u64, bytes: u64) {
        let mut taken = self.space.parts(start, bytes);
        self.space.remove(start, bytes);
        for chunk in &mut self.chunks {
            taken.extend(chunk.holes.parts(start, bytes));
            chunk.holes.remove(start, bytes);
        }
        for (start, bytes) in taken {
            self.hidden.insert(start, bytes, ());
        }
    }

    /// Others return every piece of theirs that overlaps these addresses, whole.
    pub(super) fn unhide(&mut self, start: u64, bytes: u64) {
        for (piece, length) in self.hidden_in(start, bytes) {
            self.hidden.remove(piece);
            match self.chunk_at(piece) {
                Some(chunk) => chunk.holes.insert(piece, length),
                None => self.space.insert(piece, length),
            }
        }
    }

    fn chunk_at(&mut self, address: u64) -> Option<&mut Chunk> {
        self.chunks.iter_mut().find(|chunk| (chunk.start..chunk.end).contains(&address))
    }

    /// The pieces used by others that overlap these addresses.
    pub(super) fn hidden_in(&self, start: u64, bytes: u64) -> Vec<(u64, u64)> {
        let end = start + bytes;
        self.hidden.iter().filter(|&(piece, length)| piece < end && start < piece + length).collect()
    }

    /// Start and end of the chunk that contains an address.
    pub(super) fn chunk_around(&self, address: u64) -> Option<(u64, u64)> {
        let chunk = self.chunks.iter().find(|chunk| (chunk.start..chunk.end).contains(&address))?;
        Some((chunk.start, chunk.end))
    }

    /// The hole or gap that contains all of these addresses: its start and end, and whether it is a hole of a
    /// chunk.
    pub(super) fn free_around(&self, start: u64, bytes: u64) -> Option<(u64, u64, bool)> {
        let around = |holes: &Holes| holes.around(start).filter(|&(_, end)| start + bytes <= end);
        let hole = self.chunks.iter().find_map(|chunk| around(&chunk.holes));
        hole.map(|(start, end)| (start, end, true)).or_else(|| around(&self.space).map(|(start, end)| (start, end, false)))
    }

    /// The lowest known address.
    pub(super) fn lowest(&self) -> Option<u64> {
        let chunk = self.chunks.iter().map(|chunk| chunk.start).min();
        let space = self.space.iter().map(|(start, _)| start).next();
        chunk.into_iter().chain(space).min()
    }
}
