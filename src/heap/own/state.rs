//! The state of the mechanisms that PyTorch does not have.
//!
//! A part of it is the memory of private pools that has never been handed out ([`Untouched`]). A private pool in use may belong
//! to captured graphs. When a graph runs, it may write to any address that the pool handed out during the capture, even if the
//! block is free now. In such a pool, only addresses that were never handed out may therefore lose their memory. Addresses that
//! have been handed out once stay recorded until the entire range is removed.

use alloc::collections::BTreeMap;
use core::ops::Range;

use crate::units::Bytes;

/// The number of times that a policy may wait before requests are routed to private pools. The count is reset whenever
/// a pool has no free block for a request, so a program that only reuses its pools stops waiting
/// ([`Policy::waits_for_pools`](crate::policy::Policy::waits_for_pools)).
pub(super) const MOST_WAITS: u32 = 16;

/// The state of these mechanisms. Under PyTorch's rules, it never influences a decision.
#[derive(Clone, Debug)]
pub(in crate::heap) struct OwnState {
    /// Whether blocks of one segment may belong to different streams.
    mixes_streams: bool,
    /// Whether the policy has ever kept two adjacent free blocks apart.
    keeps_apart: bool,
    /// Whether the policy searches free blocks by address.
    pub(in crate::heap) searches_by_address: bool,
    /// Whether any of these is true, so that the path of a free checks only one flag.
    pub(in crate::heap) coalesces_slowly: bool,
    /// Whether any part of an expandable segment has ever served another pool.
    pub(super) has_parts_elsewhere: bool,
    /// How many more times the policy may wait before requests are routed to private pools.
    pub(super) waits_left: u32,
    /// The handles that were mapped as a whole: first byte and bytes.
    pub(super) handles: BTreeMap<u64, u64>,
    /// The memory that private pools have never handed out.
    pub(in crate::heap) untouched: Untouched,
    /// The page size to which all expandable segments were refined.
    pub(super) refined_page: Option<Bytes>,
}

impl OwnState {
    /// The state of an empty heap.
    pub(in crate::heap) fn new(searches_by_address: bool) -> OwnState {
        OwnState {
            mixes_streams: false,
            keeps_apart: false,
            searches_by_address,
            coalesces_slowly: searches_by_address,
            has_parts_elsewhere: false,
            waits_left: MOST_WAITS,
            handles: BTreeMap::new(),
            untouched: Untouched::default(),
            refined_page: None,
        }
    }

    pub(super) fn mixes_streams(&self) -> bool {
        self.mixes_streams
    }

    pub(in crate::heap) fn keeps_apart(&self) -> bool {
        self.keeps_apart
    }

    /// Records that blocks of one segment may belong to different streams from now on.
    pub(super) fn note_mixed_streams(&mut self) {
        (self.mixes_streams, self.coalesces_slowly) = (true, true);
    }

    /// Records that the policy has kept two adjacent free blocks apart.
    pub(in crate::heap) fn note_kept_apart(&mut self) {
        (self.keeps_apart, self.coalesces_slowly) = (true, true);
    }
}

/// The reserved ranges of private pools, by first byte: the end of each range, and the end of the part that has been
/// handed out.
#[derive(Clone, Debug, Default)]
pub(in crate::heap) struct Untouched(BTreeMap<u64, HandedOut>);

#[derive(Clone, Debug)]
struct HandedOut {
    end: u64,
    /// The end of the part that has been handed out.
    high_water: u64,
}

impl Untouched {
    /// Adds a range of which nothing has been handed out.
    pub(in crate::heap) fn add(&mut self, base: u64, bytes: u64) {
        self.0.insert(base, HandedOut { end: base + bytes, high_water: base });
    }

    /// Removes a range, if it is known.
    pub(in crate::heap) fn remove(&mut self, base: u64) {
        self.0.remove(&base);
    }

    /// Records that a block was handed out. Does nothing outside the known ranges.
    #[inline]
    pub(in crate::heap) fn touch(&mut self, address: u64, bytes: u64) {
        if !self.0.is_empty() {
            self.mark(address, address + bytes);
        }
    }

    #[cold]
    fn mark(&mut self, address: u64, end: u64) {
        if let Some((_, range)) = self.0.range_mut(..=address).next_back()
            && address < range.end
        {
            range.high_water = range.high_water.max(end);
        }
    }

    /// Whether an address is in a known range.
    pub(in crate::heap) fn holds(&self, address: u64) -> bool {
        self.range(address).is_some()
    }

    /// The part of a block that lies after everything that has been handed out in its range. Empty outside the known
    /// ranges.
    pub(in crate::heap) fn part_of(&self, Range { start, end }: Range<u64>) -> Range<u64> {
        self.range(start).map_or(end, |range| range.high_water.clamp(start, end))..end
    }

    fn range(&self, address: u64) -> Option<&HandedOut> {
        self.0.range(..=address).next_back().map(|(_, range)| range).filter(|range| address < range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_a_range_is_untouched() {
        let mut untouched = Untouched::default();
        untouched.add(1000, 500);
        assert_eq!(untouched.part_of(1100..1150), 1100..1150);
        untouched.touch(1100, 50);
        untouched.touch(1000, 10);
        assert_eq!(untouched.part_of(1000..1100), 1100..1100);
        assert_eq!(untouched.part_of(1100..1300), 1150..1300);
        assert_eq!(untouched.part_of(1200..1500), 1200..1500);
    }

    #[test]
    fn memory_outside_of_the_ranges_counts_as_handed_out() {
        let mut untouched = Untouched::default();
        untouched.add(1000, 500);
        untouched.touch(1500, 10);
        assert_eq!(untouched.part_of(1500..1510), 1510..1510);
        assert_eq!(untouched.part_of(500..510), 510..510);
        assert_eq!(untouched.part_of(1490..1500), 1490..1500);
        assert!(untouched.holds(1499) && !untouched.holds(1500) && !untouched.holds(999));
        untouched.remove(1000);
        assert_eq!(untouched.part_of(1490..1500), 1500..1500);
    }
}
