//! Handles of created memory.

use std::ops::Range;

use parkade::device::BackendError;

/// Created memory: the numbers of its pieces, which all have this size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Memory {
    pub(super) first: usize,
    pub(super) pieces: usize,
    pub(super) piece_bytes: u64,
}

impl Memory {
    pub(super) fn bytes(&self) -> u64 {
        self.piece_bytes * self.pieces as u64
    }

    pub(super) fn numbers(&self) -> Range<usize> {
        self.first..self.first + self.pieces
    }

    /// Keeps the first pieces and returns the rest, if both are left.
    pub(super) fn split(&mut self, page: u64, pages: u64) -> Result<Memory, BackendError> {
        let kept = usize::try_from(pages).unwrap_or(usize::MAX);
        if page != self.piece_bytes || kept == 0 || kept >= self.pieces {
            return Err(BackendError::Driver { call: "cuMemRelease", code: 1 });
        }
        let rest = Memory { first: self.first + kept, pieces: self.pieces - kept, ..*self };
        self.pieces = kept;
        Ok(rest)
    }
}
