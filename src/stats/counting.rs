//! What every request and every free counts: several families at once, and their peaks together.
//!
//! The families of a change are told apart at compile time, and whether any peak has to follow is one comparison.

use super::{Beyond, Family, Stats};
use crate::units::PoolClass;

impl Stats {
    /// Counts a block of `size` bytes that is handed out for a request.
    #[inline(always)]
    pub(crate) fn count_handed_out(&mut self, class: PoolClass, size: i64, requested: i64) {
        let mut add = |family, amount| self.families[family as usize].add(class, amount);
        let sign = add(Family::Allocation, 1) | add(Family::AllocatedBytes, size) | add(Family::RequestedBytes, requested);
        if sign < 0 {
            self.raise_peaks_of_blocks(class);
        }
        if self.is_apart {
            self.note_increase(class);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_increase(&mut self, class: PoolClass) {
        self.active[0].note_increase(class, &self.families[Family::Allocation as usize]);
        self.active[1].note_increase(class, &self.families[Family::AllocatedBytes as usize]);
    }

    /// Must be called after a change of what active blocks have beyond allocated ones.
    pub(super) fn note_apart(&mut self) {
        self.is_apart = self.active.iter().any(Beyond::is_apart);
    }

    /// Counts a block of `size` bytes that is given back and free at once.
    #[inline(always)]
    pub(crate) fn count_freed(&mut self, class: PoolClass, size: i64, requested: i64) {
        let mut subtract = |family, amount| self.families[family as usize].subtract(class, amount);
        subtract(Family::Allocation, 1);
        subtract(Family::AllocatedBytes, size);
        subtract(Family::RequestedBytes, requested);
    }

    /// Counts a block of `size` bytes that is given back and waits for events.
    pub(crate) fn count_waiting(&mut self, class: PoolClass, size: i64) {
        for (beyond, family, amount) in [(0, Family::Allocation, 1), (1, Family::AllocatedBytes, size)] {
            self.families[family as usize].subtract(class, amount);
            self.active[beyond].wait(class, amount);
        }
        self.note_apart();
    }

    /// Counts that such a block is free.
    pub(crate) fn count_settled(&mut self, class: PoolClass, size: i64, requested: i64) {
        self.active[0].settle(class, 1, &self.families[Family::Allocation as usize]);
        self.active[1].settle(class, size, &self.families[Family::AllocatedBytes as usize]);
        self.families[Family::RequestedBytes as usize].subtract(class, requested);
        self.note_apart();
    }

    /// Changes the count and the bytes of free blocks that are only a part of their segment. Each amount is added
    /// if it is positive, and otherwise subtracted, which leaves everything alone at zero (spec 3.4, step 6).
    #[inline(always)]
    pub(crate) fn change_splits(&mut self, class: PoolClass, blocks: i64, bytes: i64) {
        let count_headroom = self.families[Family::InactiveSplit as usize].change(class, blocks);
        let byte_headroom = self.families[Family::InactiveSplitBytes as usize].change(class, bytes);
        if count_headroom | byte_headroom < 0 {
            self.raise_peaks_of_splits(class, blocks, bytes);
        }
    }

    /// Counts a free block of `bytes` bytes that is split off a whole segment.
    #[inline(always)]
    pub(crate) fn count_split_off(&mut self, class: PoolClass, bytes: i64) {
        let count_headroom = self.families[Family::InactiveSplit as usize].add(class, 1);
        let byte_headroom = self.families[Family::InactiveSplitBytes as usize].add(class, bytes);
        if count_headroom | byte_headroom < 0 {
            self.raise_peaks_of_splits(class, 1, 1);
        }
    }

    /// Counts that one of the free blocks that are a part of their segment lost `bytes` bytes.
    #[inline(always)]
    pub(crate) fn count_split_again(&mut self, class: PoolClass, bytes: i64) {
        self.families[Family::InactiveSplitBytes as usize].subtract(class, bytes);
    }

    /// Counts that one of those blocks, of `bytes` bytes, is free no longer.
    #[inline(always)]
    pub(crate) fn count_split_taken(&mut self, class: PoolClass, bytes: i64) {
        self.families[Family::InactiveSplit as usize].subtract(class, 1);
        self.families[Family::InactiveSplitBytes as usize].subtract(class, bytes);
    }

    /// Counts the part of a free block that is about to be handed out as such a block: peaks follow only afterwards.
    pub(crate) fn count_split_in_passing(&mut self, class: PoolClass, bytes: i64) {
        let _ = self.families[Family::InactiveSplit as usize].change(class, 1);
        let _ = self.families[Family::InactiveSplitBytes as usize].change(class, bytes);
    }

    /// Lets the peaks of those that may have grown, by these amounts, follow.
    #[cold]
    #[inline(never)]
    pub(crate) fn raise_peaks_of_splits(&mut self, class: PoolClass, blocks: i64, bytes: i64) {
        for (family, amount) in [(Family::InactiveSplit, blocks), (Family::InactiveSplitBytes, bytes)] {
            if amount > 0 {
                self.families[family as usize].raise_peaks(class);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn raise_peaks_of_blocks(&mut self, class: PoolClass) {
        for family in [Family::Allocation, Family::AllocatedBytes, Family::RequestedBytes] {
            self.families[family as usize].raise_peaks(class);
        }
    }
}
