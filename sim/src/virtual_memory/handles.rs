//! Created memory: kept until it is released and mapped nowhere.
//!
//! Pieces of one size that were created together are one entry, whatever their number, until they are
//! released or mapped apart.

use std::collections::BTreeMap;

use crate::calls::INVALID_VALUE;
use crate::memory::{PAGE_BYTES, PageRun, PageRuns};

/// Memory created on a [`SimDevice`](crate::SimDevice), which may be mapped: one piece, or several of one size
/// that were created together. Valid only on that device and its clones.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SimPhysical {
    ordinal: u64,
    piece_bytes: u64,
    pieces: u64,
}

impl SimPhysical {
    /// The number of its first piece among those created on its device, counted from zero, as in the log.
    #[must_use]
    pub fn ordinal(&self) -> u64 {
        self.ordinal
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.piece_bytes * self.pieces // no more than the device has
    }

    /// How many pieces it is.
    #[must_use]
    pub fn pieces(&self) -> u64 {
        self.pieces
    }

    /// The size of each piece in bytes.
    #[must_use]
    pub fn piece_bytes(&self) -> u64 {
        self.piece_bytes
    }

    /// Keeps the first `pieces` pieces and returns the rest. `None` if either would have none.
    pub(crate) fn split_off(&mut self, pieces: u64) -> Option<SimPhysical> {
        let rest = self.pieces.checked_sub(pieces).filter(|&rest| rest > 0 && pieces > 0)?;
        self.pieces = pieces;
        Some(SimPhysical { ordinal: self.ordinal + pieces, pieces: rest, ..*self })
    }
}

/// Pieces of created memory to which the same has happened.
#[derive(Clone, Debug)]
struct Handle {
    pieces: u64,
    piece_bytes: u64,
    runs: PageRuns,
    /// How many times each piece is mapped.
    mappings: u64,
    released: bool,
}

/// All created memory.
#[derive(Clone, Default, Debug)]
pub(super) struct Handles {
    /// By the number of the first piece.
    by_ordinal: BTreeMap<u64, Handle>,
    pieces: u64,
    next_ordinal: u64,
}

impl Handles {
    /// How many pieces of memory there are.
    pub(super) fn count(&self) -> u64 {
        self.pieces
    }

    /// Adds new memory.
    #[inline]
    pub(super) fn insert(&mut self, piece_bytes: u64, pieces: u64, runs: PageRuns) -> SimPhysical {
        let ordinal = self.next_ordinal;
        self.next_ordinal += pieces;
        self.pieces += pieces;
        self.by_ordinal.insert(ordinal, Handle { pieces, piece_bytes, runs, mappings: 0, released: false });
        SimPhysical { ordinal, piece_bytes, pieces }
    }

    /// Checks that memory may be mapped or released.
    ///
    /// # Errors
    /// `INVALID_VALUE` if any of it was released.
    pub(super) fn check(&self, memory: &SimPhysical) -> Result<(), u32> {
        let end = memory.ordinal + memory.pieces;
        let mut at = memory.ordinal;
        while at < end {
            let (first, handle) = self.holding(at).ok_or(INVALID_VALUE)?;
            if handle.released || handle.piece_bytes != memory.piece_bytes {
                return Err(INVALID_VALUE);
            }
            at = first + handle.pieces;
        }
        Ok(())
    }

    /// Whether memory was not released and is mapped at one place.
    pub(super) fn is_mapped_once(&self, memory: &SimPhysical) -> bool {
        self.check(memory).is_ok() && self.holding(memory.ordinal).is_some_and(|(_, handle)| handle.mappings == 1)
    }

    /// The entry of a piece.
    #[inline]
    fn holding(&self, ordinal: u64) -> Option<(u64, &Handle)> {
        let (&first, handle) = self.by_ordinal.range(..=ordinal).next_back()?;
        (ordinal - first < handle.pieces).then_some((first, handle))
    }

    /// The pages of the entry of a piece, and the number of the entry's first piece.
    #[inline]
    pub(super) fn runs(&self, ordinal: u64) -> Option<(u64, &[PageRun])> {
        self.holding(ordinal).map(|(first, handle)| (first, &*handle.runs))
    }

    /// Makes an entry begin at this piece, unless there is none to cut.
    pub(super) fn cut(&mut self, ordinal: u64) {
        let Some((&first, handle)) = self.by_ordinal.range_mut(..ordinal).next_back() else { return };
        if ordinal - first >= handle.pieces {
            return;
        }
        let kept = ordinal - first;
        let runs = handle.runs.split_off(kept * handle.piece_bytes / PAGE_BYTES);
        let rest = Handle { pieces: handle.pieces - kept, runs, ..*handle };
        handle.pieces = kept;
        self.by_ordinal.insert(ordinal, rest);
    }

    /// Notes that pieces are mapped once more.
    pub(super) fn mapped(&mut self, first: u64, pieces: u64) {
        self.change(first, pieces, |handle| handle.mappings += 1);
    }

    /// Releases memory. Returns its pages, without those that are mapped.
    pub(super) fn release(&mut self, memory: &SimPhysical) -> Result<PageRuns, u32> {
        self.check(memory)?;
        Ok(self.change(memory.ordinal, memory.pieces, |handle| handle.released = true))
    }

    /// Notes that one mapping of pieces has ended. Returns the pages of those that were released and are mapped
    /// nowhere else.
    pub(super) fn unmapped(&mut self, first: u64, pieces: u64) -> PageRuns {
        self.change(first, pieces, |handle| handle.mappings = handle.mappings.saturating_sub(1))
    }

    /// Changes the entries of pieces, and removes those that are released and mapped nowhere. Returns their
    /// pages.
    #[inline]
    fn change(&mut self, first: u64, pieces: u64, change: impl Fn(&mut Handle)) -> PageRuns {
        let is_over = |handle: &Handle| handle.released && handle.mappings == 0;
        // Usually the pieces are one entry.
        if let Some(handle) = self.by_ordinal.get_mut(&first).filter(|handle| handle.pieces == pieces) {
            change(handle);
            if !is_over(handle) {
                return PageRuns::default();
            }
            self.pieces -= pieces;
            return self.by_ordinal.remove(&first).map(|handle| handle.runs).unwrap_or_default();
        }
        self.cut(first);
        self.cut(first + pieces);
        let entries: Vec<u64> = self.by_ordinal.range(first..first + pieces).map(|(&ordinal, _)| ordinal).collect();
        let mut returned = Vec::new();
        for ordinal in entries {
            let Some(handle) = self.by_ordinal.get_mut(&ordinal) else { continue };
            change(handle);
            if is_over(handle) {
                self.pieces -= handle.pieces;
                returned.extend_from_slice(&handle.runs);
                self.by_ordinal.remove(&ordinal);
            }
        }
        PageRuns::Many(returned)
    }
}
